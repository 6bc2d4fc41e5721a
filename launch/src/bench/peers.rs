//! Other libraries, measured by a Python script of this package in processes of their own.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::Options;
use super::report::{PeerReport, PeerRow, Report};
use crate::Failure;
use crate::launch::{Event, Signals, is_foreign};

/// Measures gloo and MPI as it is asked by its arguments.
const SCRIPT: &str = include_str!("peers.py");

/// How long asking for a library may take: torch is large and may come from a slow disk.
const PROBE: Duration = Duration::from_secs(120);

/// What a peer may take besides the time that it was given for its sizes.
const START: Duration = Duration::from_secs(180);

/// A library that can be measured beside this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Peer {
    /// The backend for host memory of torch.distributed
    Gloo,
    /// The MPI of an installed mpi4py, started by its mpirun
    Mpi,
}

impl Peer {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Gloo => "gloo",
            Self::Mpi => "mpi",
        }
    }
}

/// A peer, and how it is started or why it cannot be.
pub(super) struct Found {
    peer: Peer,
    /// The program and its first arguments, and what is installed.
    state: Result<(Vec<OsString>, String), String>,
}

/// How the measurement of a peer ended.
pub(super) enum Ended {
    Measured,
    Without,
    Stopped(i32),
}

/// A line of the script's output.
#[derive(Deserialize)]
struct Line {
    bytes: usize,
    microseconds: f64,
}

impl Found {
    /// Asks whether a library is installed, and says at once if it is not.
    pub(super) fn of(peer: Peer, python: Option<&OsStr>, options: &Options) -> Self {
        let state = look(peer, python.unwrap_or(OsStr::new("python3")), options);
        if let Err(reason) = &state {
            crate::report(&format!("{} is not measured: {reason}", peer.word()));
        }
        Self { peer, state }
    }

    /// Measures it, and adds what came to the report.
    pub(super) fn measure(
        &mut self,
        options: &Options,
        count: u64,
        report: &mut Report,
    ) -> Result<Ended, Failure> {
        let mut entry =
            PeerReport { name: self.peer.word().to_owned(), what: None, absent: None, rows: Vec::new() };
        let ended = match &self.state {
            Err(reason) => {
                entry.absent = Some(reason.clone());
                Ended::Without
            }
            Ok((program, what)) => {
                entry.what = Some(what.clone());
                let sizes = report.rows.iter().map(|row| row.bytes).collect::<Vec<_>>();
                match run(self.peer, program, options, count, &sizes)? {
                    Err(signal) => return Ok(Ended::Stopped(signal)),
                    Ok((rows, None)) => {
                        entry.rows = rows;
                        Ended::Measured
                    }
                    Ok((_, Some(reason))) => {
                        crate::report(&format!("{} is not measured: {reason}", self.peer.word()));
                        entry.absent = Some(reason);
                        Ended::Without
                    }
                }
            }
        };
        report.peers.push(entry);
        Ok(ended)
    }
}

/// How a peer is started, and what is installed of it; else what is missing.
fn look(peer: Peer, python: &OsStr, options: &Options) -> Result<(Vec<OsString>, String), String> {
    let (verb, dtype, op) = (options.verb.word(), options.dtype.name(), options.op.name());
    let mut command = command(python);
    command.args(["-c", SCRIPT, "probe", peer.word(), verb, dtype, op]).stdin(Stdio::null());
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn();
    let shown = python.to_string_lossy();
    let child = started.map_err(|error| format!("{shown} cannot be started: {error}"))?;
    let (output, error) = wait(child, PROBE).ok_or_else(|| format!("{shown} did not answer in {PROBE:?}"))?;
    let last = |text: &str| {
        text.lines().rfind(|line| line.contains(char::is_alphabetic)).unwrap_or("no reason").to_owned()
    };
    let Some(what) = output.strip_prefix("installed ") else {
        return Err(last(output.strip_prefix("absent ").unwrap_or(&error)));
    };
    let what = what.trim().to_owned();
    let script = [OsString::from(python), "-c".into(), SCRIPT.into()];
    if peer == Peer::Gloo {
        return Ok((script.to_vec(), what));
    }
    let mpirun = mpirun(python).ok_or("there is no mpirun, neither beside Python nor in PATH")?;
    Ok(([mpirun.into_os_string()].into_iter().chain(script).collect(), what))
}

/// The launcher that belongs to the MPI of a Python: the one in its own folder, else that of PATH.
fn mpirun(python: &OsStr) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders).collect::<Vec<_>>();
    let beside = Path::new(python).parent().filter(|folder| folder.is_absolute()).map(Path::to_owned);
    let candidates = beside.into_iter().chain(folders);
    candidates.map(|folder| folder.join("mpirun")).find(|path| path.is_file())
}

/// A command without what a launcher said about another run.
fn command(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if is_foreign(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// What a process that prints little wrote, unless it takes too long.
fn wait(mut child: Child, limit: Duration) -> Option<(String, String)> {
    let start = Instant::now();
    while !matches!(child.try_wait(), Ok(Some(_))) {
        if start.elapsed() > limit {
            end(&mut child);
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut output, mut error) = (String::new(), String::new());
    // What cannot be read says nothing.
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut output));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut error));
    Some((output, error))
}

/// Ends a process with all that it started; one that has ended by itself is left alone, since its number may be another's.
fn end(child: &mut Child) {
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // They may all have ended by themselves.
    let _ = group.map(|group| kill_process_group(group, Signal::KILL));
    let _ = child.wait();
}

type Rows = (Vec<PeerRow>, Option<String>);

/// Runs a peer: its lines and why there are no more, or the signal that stopped this command meanwhile.
fn run(
    peer: Peer,
    program: &[OsString],
    options: &Options,
    count: u64,
    sizes: &[usize],
) -> Result<Result<Rows, i32>, Failure> {
    let (signals, events) = Signals::open()?;
    let mut words = program.to_vec();
    if peer == Peer::Mpi {
        words.splice(1..1, ["-n".into(), count.to_string().into()]);
    }
    let first = words.first().cloned().unwrap_or_default();
    let mut command = command(&first);
    command.args(words.iter().skip(1)).arg("measure").arg(peer.word());
    command.args([options.verb.word(), options.dtype.name(), options.op.name()]);
    command.args([count.to_string(), options.root.to_string(), options.seconds.to_string()]);
    command.arg(options.rounds.unwrap_or(0).to_string());
    command.arg(sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
    // Open MPI refuses root and more processes than cores unless it is told; other MPIs do not read these.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    command.env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
    // The script ends when its input does: also if this process is killed.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let started = command.spawn();
    let mut child =
        started.map_err(|error| Failure::system(format!("start {}", first.to_string_lossy()), error))?;
    let result = watch(&mut child, options, sizes.len(), &events);
    end(&mut child);
    drop(signals);
    Ok(result)
}

fn watch(child: &mut Child, options: &Options, count: usize, events: &Receiver<Event>) -> Result<Rows, i32> {
    // Kept open until it has ended: it would end with its input.
    let input = child.stdin.take();
    let (sender, lines) = std::sync::mpsc::channel();
    let out = child.stdout.take().map(|pipe| {
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        })
    });
    let err = child.stderr.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What cannot be read says nothing.
            let _ = pipe.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    // Rounds of a slow network may take long: only what says nothing for so long is given up.
    let silence = START + Duration::from_secs_f64(10.0 * options.seconds);
    let mut rows = Vec::new();
    let mut heard = Instant::now();
    let reason = loop {
        if let Ok(Event::Signal(signal @ (SIGINT | SIGTERM | SIGHUP), _)) = events.try_recv() {
            end(child);
            return Err(signal);
        }
        match lines.recv_timeout(Duration::from_millis(20)) {
            Ok(line) => {
                heard = Instant::now();
                rows.extend(
                    serde_json::from_str::<Line>(&line)
                        .ok()
                        .map(|line| PeerRow { bytes: line.bytes, microseconds: line.microseconds }),
                );
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                if heard.elapsed() > silence {
                    break Some(format!("nothing came of it for {} s", silence.as_secs()));
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break None,
        }
    };
    if reason.is_some() {
        end(child);
    }
    let status = child.wait();
    // What it started and left ends with the input.
    drop(input);
    let _ = out.map(std::thread::JoinHandle::join);
    let errors = err.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let failed = !status.as_ref().is_ok_and(std::process::ExitStatus::success) || rows.len() < count;
    let told = || {
        let marked = errors.lines().rfind(|line| line.starts_with("uform-bench-peer: "));
        let marked = marked.and_then(|line| line.strip_prefix("uform-bench-peer: "));
        let line = marked.or_else(|| errors.lines().rfind(|line| line.contains(char::is_alphabetic)));
        let line = line.unwrap_or("it wrote no error").trim().to_owned();
        match &status {
            Ok(status) => format!("it ended early ({status}): {line}"),
            Err(error) => format!("it cannot be waited for: {error}"),
        }
    };
    Ok((rows, reason.or_else(|| failed.then(told))))
}
