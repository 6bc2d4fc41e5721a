//! Measures the time from the start of processes to a formed mesh: `cargo bench --bench bootstrap`.
//!
//! The program executes itself once per member. Each number is the median of five rounds, from before the first process
//! is started until the last one has said that its mesh is formed. Without `--bench`, as `cargo test` runs it, one small
//! round shows that it works.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use uform::{Error, Mesh, Result};

const COUNTS: [usize; 5] = [1, 2, 8, 32, 64];
const ROUNDS: usize = 5;
const MEMBER: &str = "member";

fn main() -> ExitCode {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    let outcome = if arguments.first().is_some_and(|first| first == MEMBER) {
        member()
    } else {
        measure(arguments.iter().any(|argument| argument == "--bench"))
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", error.chain());
            ExitCode::FAILURE
        }
    }
}

/// Forms a mesh, says so, and leaves when its standard input ends.
fn member() -> Result<()> {
    let mesh = Mesh::bootstrap(None, None)?;
    let mut output = std::io::stdout();
    let said = writeln!(output, "formed").and_then(|()| output.flush());
    said.and_then(|()| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .map_err(|error| Error::io("a pipe", "use", error))?;
    mesh.close()
}

fn measure(whole: bool) -> Result<()> {
    let (counts, rounds) = if whole { (&COUNTS[..], ROUNDS) } else { (&COUNTS[..2], 1) };
    let folder = std::env::temp_dir().join(format!("uform-bench-{}", std::process::id()));
    for count in counts {
        let times = (0..rounds).map(|round| one_round(*count, &folder, round)).collect::<Result<Vec<_>>>();
        // Whatever came of it, nothing stays in the temporary folder.
        let _ = std::fs::remove_dir_all(&folder);
        let mut times = times?;
        times.sort();
        let shown =
            times.iter().map(|time| format!("{:.1}", 1000.0 * time.as_secs_f64())).collect::<Vec<_>>();
        let median = 1000.0 * times[times.len() / 2].as_secs_f64();
        println!("{count:>3} processes: {median:8.1} ms  (rounds: {})", shown.join(" "));
    }
    Ok(())
}

fn one_round(count: usize, folder: &Path, round: usize) -> Result<Duration> {
    let start = Instant::now();
    let members = (0..count).map(|index| spawn(index, count, folder, round)).collect::<Result<Vec<_>>>();
    let mut members = Members(members?);
    for member in &mut members.0 {
        let mut line = String::new();
        if let Some(output) = member.stdout.take() {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(|error| Error::io("a pipe", "read", error))?;
        }
        if line.trim() != "formed" {
            let source = std::io::Error::other("a member ended before its mesh was formed");
            return Err(Error::io("a member", "measure", source));
        }
    }
    Ok(start.elapsed())
}

fn spawn(index: usize, count: usize, folder: &Path, round: usize) -> Result<Child> {
    let program = std::env::current_exe().map_err(|error| Error::io("this program", "find", error))?;
    let mut command = Command::new(&program);
    command.arg(MEMBER).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", count.to_string());
    command.env("UFORM_LOCAL_INDEX", index.to_string()).env("UFORM_LOCAL_COUNT", count.to_string());
    command
        .env("UFORM_DIRECTORY", folder)
        .env("UFORM_JOB", format!("bench-{}-{count}-{round}", std::process::id()));
    command.spawn().map_err(|error| Error::io(program, "start", error))
}

/// Members of one round; their standard inputs end, and they are waited for, when this is dropped.
struct Members(Vec<Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for member in &mut self.0 {
            drop(member.stdin.take());
        }
        for member in &mut self.0 {
            let _ = member.wait();
        }
    }
}
