//! Measures small calls of a mesh from Rust, as peers are measured from C: `cargo bench --bench latency`.
//!
//! The program executes itself once per member. It prints the median over samples of many calls each, after a barrier.
//! Without `--bench`, as `cargo test` runs it, one small round shows that it works.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use uform::vocabulary::ReduceOp;
use uform::{Error, Mesh, Result};

const COUNT: usize = 2;
const SAMPLES: usize = 300;
const BATCH: usize = 200;
/// The elements of each `all_reduce` of float32.
const ELEMENTS: [usize; 3] = [2, 256, 1024];

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["member", samples] => member(samples.parse().unwrap_or(1)),
        _ => measure(if arguments.iter().any(|one| one == "--bench") { SAMPLES } else { 1 }),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.chain());
            ExitCode::FAILURE
        }
    }
}

/// Forms a mesh and measures; index 0 prints.
fn member(samples: usize) -> Result<()> {
    let mesh = Mesh::bootstrap(None, None)?;
    let median = median(&mesh, samples, || mesh.barrier())?;
    if mesh.index() == 0 {
        println!("{:>24}: {median:.3} us", "barrier");
    }
    for elements in ELEMENTS {
        let mut array = vec![0.0_f32; elements];
        let median = self::median(&mesh, samples, || mesh.all_reduce(&mut array, ReduceOp::Sum))?;
        if mesh.index() == 0 {
            println!("{:>24}: {median:.3} us", format!("all_reduce of {} B", 4 * elements));
        }
    }
    mesh.close()
}

/// The median time of a call in microseconds.
fn median(mesh: &Mesh, samples: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(samples);
    // The first samples warm up.
    for sample in 0..samples + 3 {
        mesh.barrier()?;
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        if sample >= 3 {
            times.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
        }
    }
    // The slowest member's time counts.
    mesh.all_reduce(&mut times, ReduceOp::Max)?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn measure(samples: usize) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("uform-latency-{}", std::process::id()));
    let outcome = run(samples, &folder);
    // Whatever came of it, nothing stays in the temporary folder.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn run(samples: usize, folder: &Path) -> Result<()> {
    let program = std::env::current_exe().map_err(|error| Error::io("this program", "find", error))?;
    let members = (0..COUNT).map(|index| {
        let mut command = Command::new(&program);
        command.arg("member").arg(samples.to_string());
        command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", COUNT.to_string());
        command.env("UFORM_LOCAL_INDEX", index.to_string()).env("UFORM_LOCAL_COUNT", COUNT.to_string());
        command.env("UFORM_DIRECTORY", folder).env("UFORM_JOB", format!("latency-{}", std::process::id()));
        command.spawn().map_err(|error| Error::io(&program, "start", error))
    });
    let members = members.collect::<Vec<_>>();
    let mut outcome = Ok(());
    for member in members {
        let status = member
            .and_then(|mut child| child.wait().map_err(|error| Error::io("a member", "wait for", error)));
        outcome = outcome.and(status.and_then(|status| match status.success() {
            true => Ok(()),
            false => Err(Error::io("a member", "measure", std::io::Error::other(status.to_string()))),
        }));
    }
    outcome
}
