//! `uform launch`: starts the processes of a run on this machine, and sees to it that all of them end.

mod child;
mod folder;
mod line;
mod output;
mod program;
mod share;
mod supervisor;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, getrlimit};

use self::child::{Guards, Member};
use self::folder::Meeting;
use self::output::Output;
use self::program::Program;
use self::supervisor::{Signals, Supervisor};
use crate::Failure;

/// The most processes one launcher starts.
const PROCESS_LIMIT: u64 = 1024;

/// Descriptors that a launcher needs besides two for each process.
const SPARE_DESCRIPTORS: u64 = 64;

/// Starts processes of one program on this machine, which meet as one mesh.
///
/// Each process gets its index, the count, a meeting directory and a run id of this start in UFORM_INDEX, UFORM_COUNT,
/// UFORM_LOCAL_INDEX, UFORM_LOCAL_COUNT, UFORM_DIRECTORY, UFORM_JOB and UFORM_LAUNCHER_PID, and its own share of this
/// machine's cores. Variables of an outer launcher (UFORM_*, and those that torchrun sets) are removed. Where they
/// are not set, OMP_NUM_THREADS becomes the number of cores of the share and PYTHONUNBUFFERED becomes 1.
///
/// Standard input is empty, but for index 0 if it is not a terminal. Each line of output carries its index.
///
/// SIGINT, SIGTERM and SIGHUP go to the process groups of all processes, which then have the grace period to end; a
/// second SIGINT shortens it, a third ends it. SIGUSR1 and SIGUSR2 go to the processes alone. When one process fails
/// the others get SIGTERM, and SIGKILL after the grace period.
///
/// The exit code is 0 if all processes ended with 0, else that of the first failure (128 and the signal's number
/// for one that was ended by a signal); 2 for wrong arguments, 126 and 127 for a program that cannot be run or is not
/// there. When the launcher is killed, its processes are too, except one that left its process group (setsid).
#[derive(Args)]
pub(crate) struct Options {
    /// How many processes to start
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PROCESS_LIMIT))]
    processes: u64,
    /// The directory to meet in, made if it is not there [default: a private one, removed at the end]
    #[arg(short, long, value_name = "D")]
    directory: Option<PathBuf>,
    /// A name for the run, which its run id then begins with
    #[arg(short, long, value_name = "J", value_parser = job_name)]
    job: Option<String>,
    /// Seconds the processes may take to meet, for UFORM_TIMEOUT; 0 for the library's default
    #[arg(short, long, value_name = "S", allow_negative_numbers = true, value_parser = seconds)]
    timeout: Option<f64>,
    /// Seconds between asking processes to end and killing them
    #[arg(short, long, value_name = "S", default_value_t = 30.0, allow_negative_numbers = true, value_parser = seconds)]
    grace: f64,
    /// Leave all cores of the launcher to every process
    #[arg(long)]
    no_pin: bool,
    /// The program and its arguments; one that ends in .py is run by Python
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err("must be a finite number of seconds, 0 or more".to_owned()),
    }
}

fn job_name(text: &str) -> Result<String, String> {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_' | '-');
    if text.is_empty() || text.len() > 64 || text.starts_with('.') || !text.chars().all(legal) {
        return Err(
            "must be 1 to 64 letters, digits, dots, dashes or underlines, not led by a dot".to_owned()
        );
    }
    Ok(text.to_owned())
}

/// Runs the command and returns the exit code of the run.
pub(crate) fn execute(options: &Options, python: Option<OsString>) -> Result<i32, Failure> {
    let program = Program::find(&options.program, python)?;
    check_descriptors(options.processes)?;
    let count = usize::try_from(options.processes).unwrap_or(usize::MAX);
    // Signals first: from here on, none ends the launcher before its processes and its folder are gone.
    let (signals, events) = Signals::open()?;
    let nonce = uform::sys::random::nonce()?;
    let job = options.job.as_ref().map_or_else(|| nonce.clone(), |name| format!("{name}-{nonce}"));
    let meeting = Meeting::open(options.directory.as_deref(), count, job)?;
    let shares = share::Shares::of_this_process(count, !options.no_pin);
    let output = Output::open(count)?;
    let guards = Guards::open()?;

    let mut members = Vec::with_capacity(count);
    for index in 0..count {
        let mut command = program.command();
        set_variables(&mut command, options, &meeting, &shares, index);
        command.stdin(program::standard_input(index));
        let guard = guards.start(index)?;
        let started = shares.within(index, || Member::start(index, guard, &guards, &mut command));
        let mut member = started.map_err(|source| program.not_started(source))?;
        output.watch(index, member.take_output());
        members.push(member);
    }
    let mut supervisor =
        Supervisor::new(members, guards, Duration::try_from_secs_f64(options.grace).ok(), &meeting);
    let ended = supervisor.run(&events, &output);
    drop(supervisor);
    let last_lines = output.close(&events);
    ended.report(&last_lines);
    drop(signals);
    meeting.close();
    Ok(ended.exit_code())
}

fn check_descriptors(processes: u64) -> Result<(), Failure> {
    let wanted = 2 * processes + SPARE_DESCRIPTORS;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < wanted => Err(Failure::Descriptors { processes, wanted, limit }),
        _ => Ok(()),
    }
}

/// The variables of an outer launcher, ours or torchrun's; they tell of another run.
const FOREIGN: [&str; 20] = [
    "UFORM_INDEX",
    "UFORM_COUNT",
    "UFORM_LOCAL_INDEX",
    "UFORM_LOCAL_COUNT",
    "UFORM_DIRECTORY",
    "UFORM_JOB",
    "UFORM_LAUNCHER_PID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
];

fn set_variables(
    command: &mut std::process::Command,
    options: &Options,
    meeting: &Meeting,
    shares: &share::Shares,
    index: usize,
) {
    for name in FOREIGN {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TORCHELASTIC_") {
            command.env_remove(name);
        }
    }
    let count = options.processes.to_string();
    command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", &count);
    command.env("UFORM_LOCAL_INDEX", index.to_string()).env("UFORM_LOCAL_COUNT", &count);
    command.env("UFORM_JOB", meeting.job()).env("UFORM_LAUNCHER_PID", std::process::id().to_string());
    if let Some(directory) = meeting.directory() {
        command.env("UFORM_DIRECTORY", directory);
    }
    if let Some(timeout) = options.timeout {
        command.env("UFORM_TIMEOUT", timeout.to_string());
    }
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", shares.thread_count(index).to_string());
    }
    if std::env::var_os("PYTHONUNBUFFERED").is_none() {
        command.env("PYTHONUNBUFFERED", "1");
    }
    if let (Some(columns), None) = (output::columns(shares.count()), std::env::var_os("COLUMNS")) {
        command.env("COLUMNS", columns.to_string());
    }
}
