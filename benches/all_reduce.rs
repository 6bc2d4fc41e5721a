//! Measures all_reduce of two processes as a ratio to a memcpy of the same bytes in the same run.
//!
//! The program starts itself twice more, once for each member; a member prints nothing but its errors.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uform::communicator::recorded::RecordedCommunicator;
use uform::communicator::shared::{Listener, Proof, SharedCommunicator};
use uform::communicator::tcp::{self, Links, Run, TcpCommunicator};
use uform::communicator::{Call, Communicator};
use uform::recorder::{Identity, Recorder};
use uform::rendezvous::RunKey;
use uform::sys::kernel::Table;
use uform::sys::{Deadline, Span, SpanMut, process};
use uform::topology::{Group, Introduction, Member, Process, Roster, Survey};
use uform::vocabulary::{Dtype, ReduceOp, Verb};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const MEMBERS: usize = 2;
/// Name, bytes, rounds, and calls of a round.
const SIZES: [(&str, usize, usize, usize); 6] = [
    ("8 B", 8, 1000, 200),
    ("4 KiB", 4 << 10, 500, 200),
    ("64 KiB", 64 << 10, 300, 20),
    ("1 MiB", 1 << 20, 100, 4),
    ("16 MiB", 16 << 20, 25, 1),
    ("64 MiB", 64 << 20, 15, 1),
];

fn deadline() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(120))
}

fn introduction(socket: String) -> Outcome<Introduction> {
    let pid = process::pid();
    let boot_id = process::boot_id()?;
    let cores = (0..u32::try_from(std::thread::available_parallelism()?.get())?).collect::<Vec<_>>();
    let survey = Survey {
        host_name: process::host_name(),
        boot_id: boot_id.clone(),
        cores: cores.clone(),
        memory_domains: Vec::new(),
        siblings: Vec::new(),
        cpu_classes: Vec::new(),
        gpus: Vec::new(),
    };
    let start_ticks = process::start_ticks(pid).ok_or("/proc is not mounted")?;
    let command = process::command();
    Ok(Introduction {
        process: Process { host_name: process::host_name(), boot_id, pid, start_ticks, command },
        cores,
        quota_cores: None,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        socket,
        launcher: "bench".into(),
        local_index: None,
        survey,
    })
}

/// Gives the others what this member says, and gets what all of them say, by index.
fn exchange(folder: &Path, what: &str, index: usize, own: &[u8]) -> Outcome<Vec<Vec<u8>>> {
    let part = folder.join(format!("part.{index}"));
    std::fs::write(&part, own)?;
    std::fs::rename(part, folder.join(format!("{what}.{index}")))?;
    let deadline = deadline();
    let mut all = Vec::new();
    while all.len() < MEMBERS {
        match std::fs::read(folder.join(format!("{what}.{}", all.len()))) {
            Ok(text) => all.push(text),
            Err(_) if !deadline.passed() => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

/// The same two members, joined by shared memory and by the loopback network.
fn join(folder: &Path, index: usize) -> Outcome<(Arc<SharedCommunicator>, Arc<TcpCommunicator>)> {
    let door = Listener::open()?;
    let introductions =
        exchange(folder, "member", index, &serde_json::to_vec(&introduction(door.address())?)?)?;
    let mut members = Vec::new();
    for (index, text) in introductions.iter().enumerate() {
        let introduction = serde_json::from_slice(text)?;
        members.push(Member { index, nonce: index.to_string(), introduction });
    }
    let (roster, key) = (Roster { run: "bench".into(), members }, RunKey([1; 32]));
    let proof = Proof::gather(Some(door), &roster, index, &key, &deadline())?;
    let group = Group { name: "run".into(), seats: (0..MEMBERS).collect(), own: index };
    let shared = SharedCommunicator::join(proof, &group, &deadline())?;
    let listener = tcp::Listener::open(None, true, "a measure")?;
    let published = exchange(folder, "addresses", index, &listener.publication())?;
    let run =
        Run { roster: &roster, index, key: &key, published: &published, silence: Duration::from_secs(10) };
    let links = Links::connect(listener, run, &group.seats, &deadline())?;
    Ok((shared, TcpCommunicator::join(links, &group)?))
}

fn call(communicator: &dyn Communicator, verb: Verb, output: SpanMut<'_>) -> Outcome<()> {
    let call = Call::new(verb, Dtype::F32, ReduceOp::Sum, 0, None, output);
    Ok(communicator.run(Call { kernels: Table::best(), ..call }, &deadline())?)
}

/// The median time of an act, in microseconds: all members begin a batch of them together.
fn median(
    communicator: &dyn Communicator,
    (rounds, batch): (usize, usize),
    mut act: impl FnMut() -> Outcome<()>,
) -> Outcome<f64> {
    let mut seconds = Vec::new();
    for _ in 0..rounds + rounds / 10 + 2 {
        call(communicator, Verb::Barrier, SpanMut::empty())?;
        let start = Instant::now();
        for _ in 0..batch {
            act()?;
        }
        seconds.push(start.elapsed().as_secs_f64() / batch as f64);
    }
    // The first rounds warm up.
    seconds.drain(..rounds / 10 + 2);
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2] * 1e6)
}

fn member(folder: &Path, index: usize) -> Outcome<()> {
    let (communicator, network) = join(folder, index)?;
    for (name, bytes, rounds, batch) in SIZES {
        let rounds = (rounds, batch);
        let (mut target, source) = (vec![0.0f32; bytes / 4], vec![0.0f32; bytes / 4]);
        let (communicator, network) = (&*communicator, &*network);
        let copy = median(communicator, rounds, || {
            black_box(&mut target).copy_from_slice(black_box(&source));
            Ok(())
        })?;
        let private =
            median(communicator, rounds, || call(communicator, Verb::AllReduce, SpanMut::of(&mut target)))?;
        let remote = median(network, rounds, || call(network, Verb::AllReduce, SpanMut::of(&mut target)))?;
        let arena = communicator.arena(bytes, &deadline())?;
        let mut part = arena.part_mut(index).ok_or("no part")?;
        part.copy_from(Span::of(&source))?;
        let shared = median(communicator, rounds, || call(communicator, Verb::AllReduce, part.reborrow()))?;
        if index == 0 {
            println!(
                "{name:>7}: memcpy {copy:.1} us, all_reduce {private:.1} us (ratio {:.2}), in an arena {shared:.1} us (ratio {:.2}), over the loopback network {remote:.1} us (ratio {:.2})",
                private / copy,
                shared / copy,
                remote / copy
            );
        }
    }
    record(&communicator, index)?;
    communicator.close();
    network.close();
    Ok(())
}

/// What the record costs: the same calls of 8 bytes with and without it, in turns.
fn record(communicator: &Arc<SharedCommunicator>, index: usize) -> Outcome<()> {
    let recorder = Arc::new(Recorder::open(&Identity { index, ..Identity::default() }, None)?);
    let bare: &dyn Communicator = &**communicator;
    let recorded =
        RecordedCommunicator::new(Arc::clone(communicator) as Arc<dyn Communicator>, recorder, "run");
    let mut target = [0.0f32; 2];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..21 {
        for (times, group) in times.iter_mut().zip([bare, &*recorded]) {
            times.push(median(group, (100, 200), || {
                call(group, Verb::AllReduce, SpanMut::of(&mut target[..]))
            })?);
        }
    }
    let [bare, recorded] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        1e3 * times[times.len() / 2]
    });
    if index == 0 {
        println!("8 B, without a record {bare:.0} ns, with one {recorded:.0} ns, medians of 21 turns");
    }
    Ok(())
}

fn parent() -> Outcome<()> {
    let folder = std::env::temp_dir().join(format!("uform-bench-{}", process::pid()));
    std::fs::create_dir(&folder)?;
    let program = std::env::current_exe()?;
    let children = (0..MEMBERS)
        .map(|index| Command::new(&program).arg("member").arg(&folder).arg(index.to_string()).spawn())
        .collect::<Vec<_>>();
    let mut failed = false;
    for child in children {
        failed |= !child?.wait()?.success();
    }
    std::fs::remove_dir_all(&folder)?;
    if failed { Err("a member failed".into()) } else { Ok(()) }
}

fn main() -> ExitCode {
    let arguments = std::env::args().collect::<Vec<_>>();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [_, "member", folder, index] => {
            index.parse().map_err(Into::into).and_then(|index| member(folder.as_ref(), index))
        }
        _ => parent(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
