//! `uform bench`: how fast the verbs are here, beside what memory allows and what other libraries need.

mod measure;
mod pattern;
mod peers;
mod plot;
mod report;
mod sizes;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rustix::fs::{MemfdFlags, memfd_create};
use uform::environment::{MeshOptions, OwnFacts, Variables, resolve};
use uform::sys::kernel::Table;
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{Error, Span, SpanMut};

use self::peers::Peer;
use self::report::Report;
use self::sizes::Sizes;
use crate::{Failure, launch};

/// Measures a verb: the time of a call, and algorithm and bus bandwidth by the conventions of nccl-tests.
///
/// Started alone it starts --processes of its own, as uform launch does. Within a run (uform launch, torchrun, mpirun,
/// srun) its processes are those of the run, and index 0 prints.
///
/// The bytes of a line are those of the whole array: of all parts together where a verb gathers, scatters or exchanges
/// parts. They are rounded up to whole elements, one at least for each part. A time is the median over rounds of the mean over
/// members; a round is so many calls, one after the other, that the barrier before it does not count. The bus bandwidth is
/// the algorithm bandwidth (bytes by time) times 2 (n - 1) / n for all_reduce, (n - 1) / n for all_gather, reduce_scatter,
/// all_to_all, gather and scatter, and 1 for reduce and broadcast.
///
/// The limit is the time in which the slowest of the members of one host does nothing but the reads and writes that the verb cannot do
/// without, straight in each other's memory and without waiting for each other.
///
/// The exit code is 0; 1 if something failed or a value was wrong; 2 for wrong arguments; 3 if a library of --against
/// could not be measured, as one that is not installed.
#[derive(Args)]
pub(crate) struct Options {
    /// all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather, scatter or barrier
    #[arg(value_name = "VERB", default_value = "all_reduce", value_parser = verb)]
    verb: Verb,
    /// How many processes to start [default: 2; in a run those of the run]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    processes: Option<u64>,
    /// Bytes: sizes such as 8,4K,1M and ranges such as 8:64M (each twice the one before) or 8:64M:4
    /// [default: 8,4K,64K,1M,16M,64M]
    #[arg(short, long, value_name = "SIZES", value_parser = Sizes::parse)]
    sizes: Option<Sizes>,
    /// The element type: f64 f32 f16 bf16 i8 u8 i16 u16 i32 u32 i64 u64 bool
    #[arg(short, long, value_name = "TYPE", default_value = "f32", value_parser = dtype)]
    dtype: Dtype,
    /// How elements are combined: sum product min max average bitwise_and bitwise_or bitwise_xor
    #[arg(short, long, value_name = "OP", default_value = "sum", value_parser = operation)]
    op: ReduceOp,
    /// The root of reduce, broadcast, gather and scatter
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    root: usize,
    /// How many rounds of each size, in place of --seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rounds: Option<u64>,
    /// How long each measurement of a size takes
    #[arg(long, value_name = "S", default_value_t = 0.2, allow_negative_numbers = true, value_parser = seconds)]
    seconds: f64,
    /// Only arrays of a shared arena
    #[arg(long, conflicts_with = "private")]
    arena: bool,
    /// Only private arrays
    #[arg(long)]
    private: bool,
    /// Whether results are compared with what they must be
    #[arg(long, value_name = "WHETHER", default_value = "yes")]
    check: Whether,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a picture of the times into this file; - is standard output
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Measure these libraries too, where they are installed: gloo (in torch), mpi (mpi4py and its mpirun)
    #[arg(long, value_name = "PEERS", value_delimiter = ',')]
    against: Vec<Peer>,
    /// How long the processes may take to meet, in seconds; 0 takes UFORM_TIMEOUT, else 300
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    timeout: f64,
    /// The descriptor that takes the result of a process which this command started
    #[arg(long, hide = true)]
    result: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Whether {
    Yes,
    No,
}

const VERBS: [Verb; 9] = [
    Verb::AllReduce,
    Verb::Reduce,
    Verb::Broadcast,
    Verb::AllGather,
    Verb::ReduceScatter,
    Verb::AllToAll,
    Verb::Gather,
    Verb::Scatter,
    Verb::Barrier,
];

fn verb(text: &str) -> Result<Verb, String> {
    let found = VERBS.into_iter().find(|verb| verb.word() == text);
    found.ok_or_else(|| format!("must be one of {}", VERBS.map(Verb::word).join(", ")))
}

fn dtype(text: &str) -> Result<Dtype, String> {
    let names = || Dtype::ALL.iter().map(|dtype| dtype.name().to_lowercase()).collect::<Vec<_>>().join(", ");
    Dtype::from_name(&text.to_uppercase()).ok_or_else(|| format!("must be one of {}", names()))
}

fn operation(text: &str) -> Result<ReduceOp, String> {
    let names = || ReduceOp::ALL.iter().map(|op| op.name().to_lowercase()).collect::<Vec<_>>().join(", ");
    ReduceOp::from_name(&text.to_uppercase()).ok_or_else(|| format!("must be one of {}", names()))
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("must be a number of seconds above 0 and not above 3600".to_owned()),
    }
}

/// Whether a verb combines elements.
fn combines(verb: Verb) -> bool {
    matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::ReduceScatter)
}

/// Whether a verb has a root.
fn has_root(verb: Verb) -> bool {
    matches!(verb, Verb::Reduce | Verb::Broadcast | Verb::Gather | Verb::Scatter)
}

/// Runs the command.
pub(crate) fn execute(options: &Options, python: Option<OsString>) -> Result<i32, Failure> {
    options.check_values()?;
    if let Some(descriptor) = options.result {
        if let Some(report) = measure::run(options)? {
            report.send(descriptor)?;
        }
        return Ok(0);
    }
    let asked = MeshOptions { timeout_seconds: options.timeout, ..MeshOptions::default() };
    let place = resolve(&asked, &Variables::read(), &OwnFacts::read())?;
    if place.launcher != "none" {
        return execute_in_run(options, place.count.value);
    }
    let count = options.processes.unwrap_or(2);
    options.check_root(usize::try_from(count).unwrap_or(usize::MAX))?;
    let peers = options.against.iter().map(|peer| peers::Found::of(*peer, python.as_deref(), options));
    let mut peers = peers.collect::<Vec<_>>();
    let mut report = match start(options, count, python)? {
        Ok(report) => report,
        Err(code) => return Ok(code),
    };
    let mut code = i32::from(report.has_wrong());
    for found in &mut peers {
        match found.measure(options, count, &mut report)? {
            peers::Ended::Stopped(signal) => return Ok(128 + signal),
            peers::Ended::Without if code == 0 => code = 3,
            peers::Ended::Without | peers::Ended::Measured => {}
        }
    }
    finish(options, &report)?;
    Ok(code)
}

/// Measures with the processes of a run that somebody else started.
fn execute_in_run(options: &Options, count: usize) -> Result<i32, Failure> {
    let refuse = |argument: &str, value: String, reason: &str| {
        Err(Failure::from(Error::invalid(argument, value, "argument", reason)))
    };
    if !options.against.is_empty() {
        let reason = "other libraries are started by uform bench itself: leave the launcher away";
        return refuse("--against", options.words_of_peers(), reason);
    }
    if let Some(given) = options.processes
        && given != count as u64
    {
        let reason = format!("the run in which this command was started has {count} processes");
        return refuse("--processes", given.to_string(), &reason);
    }
    options.check_root(count)?;
    let Some(report) = measure::run(options)? else { return Ok(0) };
    finish(options, &report)?;
    Ok(i32::from(report.has_wrong()))
}

/// Writes what is written once everything is known.
fn finish(options: &Options, report: &Report) -> Result<(), Failure> {
    if options.json {
        crate::print(&report.to_json())?;
    } else {
        crate::print(&report.ending())?;
    }
    match &options.plot {
        Some(path) if path.as_os_str() == "-" => crate::print(&plot::draw(report)?),
        Some(path) => crate::topology::write(path, &plot::draw(report)?),
        None => Ok(()),
    }
}

/// Starts this command again as the members of a run, and gets what index 0 measured, or the exit code of the failure.
fn start(options: &Options, count: u64, python: Option<OsString>) -> Result<Result<Report, i32>, Failure> {
    // It is passed to the processes by not being closed there, and needs no name that could stay.
    let made = memfd_create("uform-bench", MemfdFlags::empty());
    let mut result = File::from(made.map_err(|errno| Failure::system("make a file in memory", errno))?);
    let own = std::env::current_exe().map_err(|error| Failure::system("find this program", error))?;
    let mut program: Vec<OsString> = match &python {
        Some(python) => vec![python.clone(), "-m".into(), "uform".into()],
        None => vec![own.into()],
    };
    program.extend(options.words(result.as_raw_fd()).into_iter().map(OsString::from));
    let code = launch::execute(&launch::Options::plain(count, program), python)?;
    if code != 0 {
        return Ok(Err(code));
    }
    let mut text = String::new();
    let read = result.seek(SeekFrom::Start(0)).and_then(|_| result.read_to_string(&mut text));
    read.map_err(|error| Failure::system("read the result of index 0", error))?;
    let report = serde_json::from_str(&text);
    report.map(Ok).map_err(|error| Failure::system("read the result of index 0", error))
}

impl Options {
    /// What can be said of the arguments alone.
    fn check_values(&self) -> Result<(), Failure> {
        let refuse = |argument: &str, value: String, reason: String| {
            Err(Failure::from(Error::invalid(argument, value, "argument", reason)))
        };
        if combines(self.verb)
            && let Err(error) =
                Table::SERIAL.reduce(self.dtype, self.op, &[Span::empty()], &mut SpanMut::empty())
        {
            return refuse("--op", self.op.name().to_lowercase(), error.to_string());
        }
        if self.verb == Verb::Barrier
            && let Some(sizes) = &self.sizes
        {
            return refuse("--sizes", sizes.text().to_owned(), "a barrier moves no bytes".to_owned());
        }
        if self.verb == Verb::Barrier && self.plot.is_some() {
            return refuse("--plot", "a file".to_owned(), "a barrier moves no bytes to draw over".to_owned());
        }
        if self.json && self.plot.as_ref().is_some_and(|path| path.as_os_str() == "-") {
            return refuse("--plot", "-".to_owned(), "standard output has the object of --json".to_owned());
        }
        Ok(())
    }

    fn check_root(&self, count: usize) -> Result<(), Failure> {
        if has_root(self.verb) && self.root >= count {
            let reason = format!("must be below the count of processes, {count}");
            return Err(Error::invalid("--root", self.root, "argument", reason).into());
        }
        Ok(())
    }

    /// The bytes of each line.
    fn byte_counts(&self) -> Vec<usize> {
        match &self.sizes {
            _ if self.verb == Verb::Barrier => vec![0],
            Some(sizes) => sizes.byte_counts().to_vec(),
            None => vec![8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20],
        }
    }

    fn words_of_peers(&self) -> String {
        self.against.iter().map(|peer| peer.word()).collect::<Vec<_>>().join(",")
    }

    /// The arguments of a process that writes its result to a descriptor.
    fn words(&self, descriptor: i32) -> Vec<String> {
        let mut words = vec!["bench".to_owned(), self.verb.word().to_owned()];
        let mut add = |name: &str, value: String| words.push(format!("--{name}={value}"));
        if let Some(sizes) = &self.sizes {
            add("sizes", sizes.text().to_owned());
        }
        add("dtype", self.dtype.name().to_lowercase());
        add("op", self.op.name().to_lowercase());
        add("root", self.root.to_string());
        if let Some(rounds) = self.rounds {
            add("rounds", rounds.to_string());
        }
        add("seconds", self.seconds.to_string());
        add("check", if self.check == Whether::Yes { "yes" } else { "no" }.to_owned());
        add("timeout", self.timeout.to_string());
        add("result", descriptor.to_string());
        let flags = [("--arena", self.arena), ("--private", self.private), ("--json", self.json)];
        words.extend(flags.iter().filter(|(_, given)| *given).map(|(name, _)| (*name).to_owned()));
        words
    }
}
