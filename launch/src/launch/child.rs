//! One process of the run with the guard that ends it when the launcher is gone.

use std::io::Error as IoError;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::Failure;

/// What a guard runs: no signal but SIGKILL ends it, and at the end of its input it kills its process group.
const GUARD: &str = "trap '' INT TERM HUP QUIT USR1 USR2 PIPE ALRM TSTP TTIN TTOU; cd /
while read -r _; do :; done
kill -KILL 0";

/// How often a killed guard of one process is replaced.
const REPLACEMENT_LIMIT: usize = 16;

/// The pipe that tells guards of the launcher's end: nothing is ever written to it.
pub(super) struct Guards {
    read: OwnedFd,
    /// Closed when the launcher ends, however it ends; no other process holds it.
    _write: OwnedFd,
}

impl Guards {
    pub(super) fn open() -> Result<Self, Failure> {
        let (read, write) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Failure::system("make a pipe", errno))?;
        Ok(Self { read, _write: write })
    }

    /// Starts the guard of one process, which leads a new process group.
    pub(super) fn start(&self, index: usize) -> Result<Child, Failure> {
        self.spawn(index, 0).map_err(|error| Failure::system("start /bin/sh", error))
    }

    fn spawn(&self, index: usize, group: i32) -> std::io::Result<Child> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD]).arg(format!("guard of index {index}")).stdin(self.read.try_clone()?);
        command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(group).spawn()
    }
}

/// One process of the run, its guard, and the process group of both.
pub(super) struct Member {
    pub(super) index: usize,
    child: Child,
    /// How the process ended; its group may still hold processes that it started.
    pub(super) ended: Option<ExitStatus>,
    /// The first leads the group, and is not reaped before the group is empty: its number stays taken.
    guards: Vec<Child>,
}

impl Member {
    /// Starts a process in the group of its guard.
    pub(super) fn start(
        index: usize,
        guard: Child,
        guards: &Guards,
        command: &mut Command,
    ) -> std::io::Result<Self> {
        let group = i32::try_from(guard.id()).map_err(IoError::other)?;
        let mut waiting = vec![guard];
        loop {
            match command.process_group(group).spawn() {
                Ok(child) => return Ok(Self { index, child, ended: None, guards: waiting }),
                // The guard was killed meanwhile; while it is not reaped another may join its group.
                Err(error)
                    if waiting.len() <= REPLACEMENT_LIMIT
                        && waiting.last().is_some_and(|guard| has_ended(guard.id())) =>
                {
                    tracing::debug!(index, %error, "the guard was killed");
                    waiting.push(guards.spawn(index, group)?);
                }
                Err(error) => {
                    end_group(&mut waiting);
                    return Err(error);
                }
            }
        }
    }

    /// The read ends of the process's output.
    pub(super) fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// The number of the process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The number of the process group.
    pub(super) fn group(&self) -> u32 {
        self.guards.first().map_or(0, Child::id)
    }

    /// Whether a guard of the group has this number.
    pub(super) fn is_guard(&self, pid: u32) -> bool {
        self.guards.iter().any(|guard| guard.id() == pid)
    }

    /// Looks whether the process has ended; `true` once, when it is first seen.
    pub(super) fn poll(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.ended = match self.child.try_wait() {
            Ok(status) => status,
            // Somebody else in this program reaped it: how it ended is not known.
            Err(error) => {
                tracing::warn!(index = self.index, %error, "the exit code is lost");
                Some(ExitStatus::from_raw(1 << 8))
            }
        };
        self.ended.is_some()
    }

    /// Puts a new guard into the group if the last was killed.
    pub(super) fn replace_guard(&mut self, guards: &Guards) {
        let killed = self.guards.last().is_some_and(|guard| has_ended(guard.id()));
        if !killed || self.guards.len() > REPLACEMENT_LIMIT {
            return;
        }
        let Ok(group) = i32::try_from(self.group()) else { return };
        match guards.spawn(self.index, group) {
            Ok(guard) => self.guards.push(guard),
            Err(error) => tracing::warn!(index = self.index, %error, "no guard watches this process"),
        }
    }

    /// Sends a signal to the process alone.
    pub(super) fn signal_process(&self, signal: Signal) {
        // Not reaped yet, so the number is still its own.
        if self.ended.is_none() {
            // It may have ended, or changed its user.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    /// Sends a signal to the process and all that is in its group; guards ignore all but SIGKILL.
    pub(super) fn signal_group(&self, signal: Signal) {
        if let Some(leader) = self.guards.first() {
            let _ = kill_process_group(Pid::from_child(leader), signal);
        }
        // A process may have moved to another group.
        self.signal_process(signal);
    }
}

impl Drop for Member {
    /// Kills whatever is left of the group, and reaps.
    fn drop(&mut self) {
        self.signal_process(Signal::KILL);
        end_group(&mut self.guards);
        if self.ended.is_none() {
            // Killed: this does not wait long.
            let _ = self.child.wait();
        }
    }
}

fn end_group(guards: &mut [Child]) {
    if let Some(leader) = guards.first() {
        let _ = kill_process_group(Pid::from_child(leader), Signal::KILL);
    }
    for guard in guards.iter_mut().rev() {
        let _ = guard.kill();
        let _ = guard.wait();
    }
}

/// Whether a child has ended, leaving it to be reaped later.
fn has_ended(pid: u32) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// How a process ended, in words.
pub(super) fn describe(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            format!("killed by {name} (signal {signal}{core})")
        }
        None => format!("exit code {}", status.code().unwrap_or(1)),
    }
}

/// The exit code that stands for how a process ended.
pub(super) fn exit_code(status: ExitStatus) -> i32 {
    status.signal().map_or_else(|| status.code().unwrap_or(1), |signal| 128 + signal)
}
