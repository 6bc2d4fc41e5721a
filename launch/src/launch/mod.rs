//! `uform launch`: starts the processes of a run on this machine, alone or with others, and sees to it that all of them end.

mod child;
mod folder;
mod hosts;
mod line;
mod output;
mod program;
mod share;
mod supervisor;
mod variables;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::child::{Guards, Member};
use self::folder::Meeting;
use self::hosts::{Hosts, Part, Range};
use self::output::Output;
use self::program::Program;
pub(crate) use self::supervisor::{Event, Signals};
use self::supervisor::{Outcome, Supervisor};
pub(crate) use self::variables::is_foreign;
use crate::Failure;

/// The most processes one launcher starts.
const PROCESS_LIMIT: u64 = 1024;

/// Descriptors that a launcher needs besides two for each process.
const SPARE_DESCRIPTORS: u64 = 64;

/// How long the launchers of several hosts wait for each other without --timeout.
const MEETING: Duration = Duration::from_secs(300);

/// Starts processes of one program on this machine, which meet as one mesh.
///
/// Each process gets its index, the count, a meeting directory and a run id of this start in UFORM_INDEX, UFORM_COUNT,
/// UFORM_LOCAL_INDEX, UFORM_LOCAL_COUNT, UFORM_DIRECTORY, UFORM_JOB, UFORM_RESTART_COUNT and UFORM_LAUNCHER_PID, and its own
/// share of this machine's cores. Variables by which outer launchers (uform launch, torchrun, Slurm, MPI) give a place in
/// their run are removed. Where they are not set, OMP_NUM_THREADS becomes the number of cores of the share and
/// PYTHONUNBUFFERED becomes 1.
///
/// Several hosts: start it once on each, with the same --directory (a folder that all see), --job and --hosts, or by
/// `srun --ntasks-per-node=1`, which says job and hosts. Indexes follow the places in the step, else the names of the hosts. The
/// first failure ends the run on all hosts, and every launcher names it and exits with its code. A launcher that gives no
/// sign of life for three times UFORM_SILENCE counts as one.
///
/// With --max-restarts a run that failed begins again, under a run id of its own; with --hosts MIN:MAX it begins with the hosts
/// that came, MIN at least, 5 seconds after the last of them.
///
/// Standard input is empty, but for index 0 if it is not a terminal. Each line of output carries its index.
///
/// SIGINT, SIGTERM and SIGHUP go to the process groups of all processes, which then have the grace period to end; a
/// second SIGINT shortens it, a third ends it. SIGUSR1 and SIGUSR2 go to the processes alone. What Slurm sends to a whole
/// step is not sent a second time. When one process fails the others get SIGTERM, and SIGKILL after the grace period.
///
/// With --kill-on-bad-exit=0 the others live on, those of other hosts too, for a program that goes on without the one that failed;
/// the run ends when all have ended, and each launcher exits with the code of the first of its own that failed.
///
/// The exit code is 0 if all processes ended with 0, else that of the first failure (128 and the signal's number
/// for one that was ended by a signal); 2 for wrong arguments, 126 and 127 for a program that cannot be run or is not
/// there. When the launcher is killed, its processes are too, except one that left its process group (setsid).
#[derive(Args)]
pub(crate) struct Options {
    /// How many processes to start on this host, or `auto`: one for each GPU, else one for each memory domain
    #[arg(short = 'n', long, value_name = "N", default_value = "1", value_parser = processes)]
    processes: Processes,
    /// How many hosts the run has: a number, or MIN:MAX [default: one; under srun the tasks of the step]
    #[arg(long, value_name = "N", value_parser = Range::parse)]
    hosts: Option<Range>,
    /// How often a run that failed begins again
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_restarts: u32,
    /// Whether a process that fails ends the others: 1, or 0 where they shrink their mesh and go on
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    kill_on_bad_exit: u8,
    /// A folder for what the processes write: INDEX.out and INDEX.err, continued if they are there
    #[arg(short, long, value_name = "D")]
    output: Option<PathBuf>,
    /// The directory to meet in, made if it is not there [default: a private one, removed at the end; with several hosts
    /// UFORM_DIRECTORY]
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
    /// Whether what index 0 writes to its standard output is passed on as it is.
    #[arg(skip)]
    is_bare: bool,
}

impl Options {
    /// Processes of this host that act as one command: what index 0 prints is the command's output.
    pub(crate) fn plain(count: u64, program: Vec<OsString>) -> Self {
        Self {
            processes: Processes::Given(count),
            hosts: None,
            max_restarts: 0,
            kill_on_bad_exit: 1,
            output: None,
            directory: None,
            job: None,
            timeout: None,
            grace: 5.0,
            no_pin: false,
            program,
            is_bare: true,
        }
    }
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

/// How many processes a launcher is to start.
#[derive(Clone, Copy)]
enum Processes {
    Given(u64),
    Auto,
}

fn processes(text: &str) -> Result<Processes, String> {
    if text == "auto" {
        return Ok(Processes::Auto);
    }
    let number = text.parse::<u64>().ok().filter(|number| (1..=PROCESS_LIMIT).contains(number));
    number.map(Processes::Given).ok_or_else(|| format!("must be a number from 1 to {PROCESS_LIMIT}, or auto"))
}

impl Processes {
    fn count(self) -> Result<u64, Failure> {
        if let Self::Given(count) = self {
            return Ok(count);
        }
        let gpus = uform::device::gpu_devices()?.len();
        let count = if gpus > 0 { gpus } else { uform::device::survey()?.memory_domains.len() };
        Ok(u64::try_from(count).unwrap_or(PROCESS_LIMIT).clamp(1, PROCESS_LIMIT))
    }
}

/// What all attempts of this launcher have in common.
struct Job<'a> {
    options: &'a Options,
    program: Program,
    count: usize,
    shares: share::Shares,
    events: Receiver<Event>,
}

/// Runs the command and returns the exit code of the run.
pub(crate) fn execute(options: &Options, python: Option<OsString>) -> Result<i32, Failure> {
    if options.kill_on_bad_exit == 0 && options.max_restarts > 0 {
        let reason = "must be 1 with --max-restarts: a run begins again when it has ended";
        return Err(uform::Error::invalid("--kill-on-bad-exit", 0, "argument", reason).into());
    }
    let program = Program::find(&options.program, python)?;
    let processes = options.processes.count()?;
    check_descriptors(processes)?;
    let count = usize::try_from(processes).unwrap_or(usize::MAX);
    let place = place(options)?;
    // Signals first: from here on, none ends the launcher before its processes and its folder are gone.
    let (signals, events) = Signals::open()?;
    let shares = share::Shares::of_this_process(count, !options.no_pin);
    let mut job = Job { options, program, count, shares, events };
    let ended = match &place {
        None => job.run_alone(),
        Some(place) => job.run_with_others(place),
    };
    drop(signals);
    ended
}

/// Where this launcher stands among those of other hosts.
struct Place {
    directory: PathBuf,
    job: String,
    range: Range,
    index: Option<usize>,
}

/// Finds out whether there are other hosts: from the options, else from the step of srun that this launcher is a task of.
fn place(options: &Options) -> Result<Option<Place>, Failure> {
    use uform::environment::{DIRECTORY_VARIABLE, MeshOptions, OwnFacts, Variables, resolve};
    // The directory given here is never used: only who this launcher is among the tasks of a step is asked.
    let asked = MeshOptions { directory: Some("/".into()), ..MeshOptions::default() };
    let step = resolve(&asked, &Variables::read(), &OwnFacts::read()).ok();
    let step = step.filter(|step| step.launcher == "srun" && step.count.value > 1);
    let range = match (options.hosts, &step) {
        (Some(range), _) => range,
        (None, Some(step)) => Range { least: step.count.value, most: step.count.value },
        (None, None) => return Ok(None),
    };
    if range.most == 1 {
        return Ok(None);
    }
    let missing = |argument: &str, reason: &str| uform::Error::invalid(argument, "None", "default", reason);
    let directory = options
        .directory
        .clone()
        .or_else(|| std::env::var_os(DIRECTORY_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from));
    let directory = directory.ok_or_else(|| {
        missing("--directory", "must name a folder that all hosts see, or UFORM_DIRECTORY must")
    })?;
    let index = step.as_ref().filter(|step| step.count.value == range.most).map(|step| step.index.value);
    let job = options.job.clone().or_else(|| step.map(|step| step.job.value));
    let job = job.ok_or_else(|| missing("--job", "must name the run, the same on all hosts"))?;
    Ok(Some(Place { directory, job, range, index }))
}

impl Job<'_> {
    /// All attempts of a run of this host alone.
    fn run_alone(&mut self) -> Result<i32, Failure> {
        let mut restarts = 0;
        loop {
            let nonce = uform::sys::random::nonce()?;
            let name = self.options.job.as_ref();
            let job = name.map_or_else(|| nonce.clone(), |name| format!("{name}-{nonce}"));
            let meeting = Meeting::open(self.options.directory.as_deref(), self.count, job)?;
            let part = Part { number: 1, nonce, first: 0, count: self.count, hosts: 1, restarts };
            let ended = self.run_once(&part, &meeting, None)?;
            meeting.close();
            if !ended.may_be_repeated() || restarts >= self.options.max_restarts {
                return Ok(ended.exit_code());
            }
            restarts += 1;
            output::report(&format!("restart {restarts} of {}", self.options.max_restarts), []);
        }
    }

    /// All attempts of a run of several hosts.
    fn run_with_others(&mut self, place: &Place) -> Result<i32, Failure> {
        let action = || format!("use --directory {}", place.directory.display());
        let directory =
            std::path::absolute(&place.directory).map_err(|error| Failure::system(action(), error))?;
        let mut hosts = Hosts::open(&directory, &place.job, place.range, self.count, place.index)?;
        let ended = self.attempts(place, &directory, &mut hosts);
        hosts.leave();
        ended
    }

    fn attempts(&mut self, place: &Place, directory: &Path, hosts: &mut Hosts) -> Result<i32, Failure> {
        let given = self.options.timeout.filter(|seconds| *seconds > 0.0);
        let timeout = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(MEETING);
        loop {
            let mut asked = None;
            let events = &self.events;
            let mut is_asked = || {
                while let Ok(Event::Signal(signal, _)) = events.try_recv() {
                    if matches!(signal, SIGINT | SIGTERM | SIGHUP) {
                        asked.get_or_insert(signal);
                    }
                }
                asked.is_some()
            };
            let Some(part) = hosts.assemble(timeout, &mut is_asked)? else {
                let signal = asked.unwrap_or(SIGTERM);
                let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
                output::report(&format!("stopped by {name} before all hosts had come"), []);
                return Ok(128 + signal);
            };
            let last = part.first + self.count - 1;
            tracing::info!("attempt {}: hosts {}", part.number, hosts.names().join(", "));
            output::report(
                &format!(
                    "attempt {}: index {} to {last} of {} here, on {} hosts ({})",
                    part.restarts.saturating_add(1),
                    part.first,
                    part.count,
                    part.hosts,
                    hosts.names().join(", ")
                ),
                [],
            );
            let job = format!("{}-{}", place.job, part.nonce);
            let meeting = Meeting::open(Some(directory), part.count, job)?;
            let ended = match self.run_once(&part, &meeting, Some(hosts)) {
                Ok(ended) => ended,
                Err(failure) => {
                    hosts.fail(None, failure.to_string(), failure.exit_code(), false);
                    return Err(failure);
                }
            };
            meeting.close();
            if !ended.may_be_repeated() || part.restarts >= self.options.max_restarts {
                return Ok(ended.exit_code());
            }
            let restarts = part.restarts + 1;
            output::report(&format!("restart {restarts} of {}", self.options.max_restarts), []);
        }
    }

    /// One attempt: starts the processes of this host and returns when all have ended.
    fn run_once(
        &self,
        part: &Part,
        meeting: &Meeting,
        hosts: Option<&mut Hosts>,
    ) -> Result<Outcome, Failure> {
        let output = Output::open(self.options.output.as_deref(), self.options.is_bare)?;
        let guards = Guards::open()?;
        let mut members = Vec::with_capacity(self.count);
        for local in 0..self.count {
            let index = part.first + local;
            let mut command = self.program.command();
            variables::set(&mut command, self.options, meeting, &self.shares, (part, local, part.restarts));
            command.stdin(program::standard_input(index));
            let guard = guards.start(index)?;
            let started = self.shares.within(local, || Member::start(index, guard, &guards, &mut command));
            let mut member = started.map_err(|source| self.program.not_started(source))?;
            output.watch(index, member.take_output())?;
            members.push(member);
        }
        let grace = Duration::try_from_secs_f64(self.options.grace).ok();
        let mut supervisor =
            Supervisor::new(members, guards, (grace, self.options.kill_on_bad_exit == 1), meeting, hosts);
        let ended = supervisor.run(&self.events, &output);
        drop(supervisor);
        let last_lines = output.close(&self.events);
        ended.report(&last_lines);
        Ok(ended)
    }
}

fn check_descriptors(processes: u64) -> Result<(), Failure> {
    let wanted = 2 * processes + SPARE_DESCRIPTORS;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < wanted => Err(Failure::Descriptors { processes, wanted, limit }),
        _ => Ok(()),
    }
}
