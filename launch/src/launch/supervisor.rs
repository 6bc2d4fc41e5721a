//! Watches the processes of a run: passes signals on, stops all when one fails, and ends what is left.

use std::process::ExitStatus;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Handle;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use uform::rendezvous::directory;

use super::child::{Guards, Member, describe, exit_code};
use super::folder::Meeting;
use super::hosts::{Cause, Hosts, Verdict};
use super::output::{LastLines, Output, report};
use crate::Failure;

/// How often the processes and guards are looked at when no signal tells of a change.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long what is left of a group may take to end by itself after the last process has ended.
const LINGER: Duration = Duration::from_secs(2);

/// The most that what is left of a group gets between SIGTERM and SIGKILL.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// How often the directory is asked about the other hosts.
const HOSTS_INTERVAL: Duration = Duration::from_millis(100);

/// What a second SIGINT leaves of the grace period.
const HASTE: Duration = Duration::from_secs(2);

/// What the supervisor is told.
pub(crate) enum Event {
    /// The launcher got this signal; `true` if its processes got it too.
    Signal(i32, bool),
}

/// The thread that turns the launcher's signals into events.
pub(crate) struct Signals {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Catches the signals from here on. SIGHUP stays ignored where it is (nohup).
    pub(crate) fn open() -> Result<(Self, Receiver<Event>), Failure> {
        let mut wanted = vec![SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2];
        if !is_ignored(SIGHUP) {
            wanted.push(SIGHUP);
        }
        let mut signals = SignalsInfo::<WithOrigin>::new(wanted)
            .map_err(|error| Failure::system("catch signals", error))?;
        let handle = signals.handle();
        let (sender, events) = channel();
        let forward = move || {
            for origin in &mut signals {
                if sender.send(Event::Signal(origin.signal, reached_all(&origin))).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("uform-signals".into()).spawn(forward);
        let thread = thread.map_err(|error| Failure::system("start a thread", error))?;
        Ok((Self { handle, thread: Some(thread) }, events))
    }
}

/// Whether who sent a signal sent it to the launcher's processes as well: Slurm's daemon of a step signals all that is in it.
fn reached_all(origin: &Origin) -> bool {
    let Some(sender) = &origin.process else { return false };
    let name = std::fs::read_to_string(format!("/proc/{}/comm", sender.pid)).unwrap_or_default();
    origin.signal != SIGCHLD && name.trim_end() == "slurmstepd"
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // It only forwards numbers, and ends when the handle is closed.
            let _ = thread.join();
        }
    }
}

/// Whether this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// The first process that failed.
#[derive(Clone, Copy)]
struct First {
    index: usize,
    pid: u32,
    status: ExitStatus,
}

/// How a run ended.
pub(super) struct Outcome {
    count: usize,
    first: Option<First>,
    /// The first signal that asked the launcher to end.
    asked: Option<i32>,
    /// What ended the attempt on another host.
    elsewhere: Option<Cause>,
}

impl Outcome {
    /// The exit code of the launcher.
    pub(super) fn exit_code(&self) -> i32 {
        match &self.elsewhere {
            Some(cause) => cause.code,
            None => self.first.map_or(0, |first| exit_code(first.status)),
        }
    }

    /// Whether another attempt may make it good.
    pub(super) fn may_be_repeated(&self) -> bool {
        let failed = self.first.is_some() || self.elsewhere.is_some();
        failed && self.asked.is_none() && self.elsewhere.as_ref().is_none_or(|cause| cause.restarts)
    }

    /// Tells which index failed first, how, and what it wrote last.
    pub(super) fn report(&self, last_lines: &LastLines) {
        if let Some(cause) = &self.elsewhere {
            return report(&format!("{} failed first: {}", cause.who(), cause.how), []);
        }
        let Some(first) = self.first else { return };
        let how = format!("{} (pid {})", describe(first.status), first.pid);
        if let Some(signal) = self.asked {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            return report(&format!("stopped by {name}; index {} ended first: {how}", first.index), []);
        }
        let lines = last_lines.get(&first.index).filter(|lines| self.count > 1 && !lines.is_empty());
        let tail = match lines {
            Some(lines) if lines.len() == 1 => "; its last line:".to_owned(),
            Some(lines) => format!("; its last {} lines:", lines.len()),
            None => String::new(),
        };
        let lines = lines.into_iter().flatten().map(|line| (first.index, line.clone()));
        report(&format!("index {} failed first: {how}{tail}", first.index), lines);
    }
}

/// The processes of a run.
pub(super) struct Supervisor<'a> {
    members: Vec<Member>,
    guards: Guards,
    /// `None`: longer than any clock runs.
    grace: Option<Duration>,
    /// Whether the first failure ends the others.
    kills_on_bad_exit: bool,
    meeting: &'a Meeting,
    hosts: Option<&'a mut Hosts>,
    /// How the attempt ended on all hosts.
    verdict: Option<Verdict>,
    first: Option<First>,
    asked: Option<i32>,
    interrupts: usize,
    stopping: bool,
    kill_at: Option<Instant>,
}

impl<'a> Supervisor<'a> {
    /// Takes over processes that were started.
    pub(super) fn new(
        members: Vec<Member>,
        guards: Guards,
        (grace, kills_on_bad_exit): (Option<Duration>, bool),
        meeting: &'a Meeting,
        hosts: Option<&'a mut Hosts>,
    ) -> Self {
        Self {
            members,
            guards,
            grace,
            kills_on_bad_exit,
            meeting,
            hosts,
            verdict: None,
            first: None,
            asked: None,
            interrupts: 0,
            stopping: false,
            kill_at: None,
        }
    }

    /// Returns when all processes have ended and their groups had time to.
    pub(super) fn run(&mut self, events: &Receiver<Event>, output: &Output) -> Outcome {
        let start = Instant::now();
        let mut shown = None;
        loop {
            self.look(output);
            self.ask_hosts(output);
            if self.members.iter().all(|member| member.ended.is_some()) && self.all_hosts_know() {
                break;
            }
            let seconds = start.elapsed().as_secs();
            if shown.replace(seconds) != Some(seconds) {
                let running = self.members.iter().filter(|member| member.ended.is_none()).count();
                output
                    .status(Some(format!("{running} of {} processes run, {seconds} s", self.members.len())));
            }
            let interval = if self.hosts.is_some() { HOSTS_INTERVAL } else { LOOK_INTERVAL };
            self.await_event(events, interval);
        }
        output.status(None);
        self.sweep(events, output);
        let cause = self.verdict.take().and_then(|verdict| verdict.cause);
        let mine = |cause: &Cause| self.first.is_some_and(|first| cause.index == Some(first.index));
        let elsewhere = cause.filter(|cause| !mine(cause));
        Outcome { count: self.members.len(), first: self.first, asked: self.asked, elsewhere }
    }

    /// Tells the other hosts how far this one is, and stops the run if it has ended elsewhere.
    fn ask_hosts(&mut self, output: &Output) {
        let Some(hosts) = self.hosts.as_deref_mut().filter(|_| self.verdict.is_none()) else { return };
        if let Some(number) = self.asked.filter(|_| self.first.is_none()) {
            // Before its processes end by the same signal: this is the cause.
            let name = signal_hook::low_level::signal_name(number).unwrap_or("a signal");
            self.verdict = Some(hosts.fail(None, format!("its launcher got {name}"), 128 + number, false));
            return;
        }
        if let Some(first) = self.first.filter(|_| self.kills_on_bad_exit) {
            let how = format!("{} (pid {})", describe(first.status), first.pid);
            let restarts = self.asked.is_none();
            self.verdict = Some(hosts.fail(Some(first.index), how, exit_code(first.status), restarts));
        } else {
            if self.members.iter().all(|member| member.ended.is_some()) {
                hosts.finish();
            }
            self.verdict = hosts.poll(!self.kills_on_bad_exit);
        }
        let Some(cause) = self.verdict.as_ref().and_then(|verdict| verdict.cause.clone()) else { return };
        let others = self.members.iter().filter(|member| member.ended.is_none()).count();
        if self.stopping || others == 0 {
            return;
        }
        self.stopping = true;
        output.notice(format!("{} failed: {}; stopping {others} here", cause.who(), cause.how));
        self.signal_groups(Signal::TERM);
        self.kill_within(self.grace);
    }

    /// Whether the attempt has ended on all hosts.
    fn all_hosts_know(&self) -> bool {
        self.hosts.is_none() || self.verdict.is_some()
    }

    /// Waits for one event and acts on all that are there, and on the end of the grace period.
    fn await_event(&mut self, events: &Receiver<Event>, limit: Duration) {
        let now = Instant::now();
        let limit = self.kill_at.map_or(limit, |time| limit.min(time.saturating_duration_since(now)));
        match events.recv_timeout(limit) {
            Ok(Event::Signal(signal, reached)) => self.receive(signal, reached),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(limit),
        }
        while let Ok(Event::Signal(signal, reached)) = events.try_recv() {
            self.receive(signal, reached);
        }
        if self.kill_at.is_some_and(|time| time <= Instant::now()) {
            self.kill_at = None;
            self.signal_groups(Signal::KILL);
        }
    }

    /// Acts on a signal; what `reached` all processes already is not passed on.
    fn receive(&mut self, signal: i32, reached: bool) {
        match signal {
            SIGUSR1 | SIGUSR2 if reached => {}
            SIGTERM | SIGHUP if reached => {
                self.asked.get_or_insert(signal);
                self.stopping = true;
                self.kill_within(self.grace);
            }
            SIGINT => {
                self.interrupts += 1;
                match self.interrupts {
                    1 => self.pass_on(SIGINT, Signal::INT),
                    2 => {
                        self.signal_groups(Signal::TERM);
                        self.kill_within(Some(HASTE));
                    }
                    _ => self.kill_within(Some(Duration::ZERO)),
                }
            }
            SIGTERM => self.pass_on(SIGTERM, Signal::TERM),
            SIGHUP => self.pass_on(SIGHUP, Signal::HUP),
            SIGUSR1 => self.members.iter().for_each(|member| member.signal_process(Signal::USR1)),
            SIGUSR2 => self.members.iter().for_each(|member| member.signal_process(Signal::USR2)),
            // SIGCHLD: the loop looks at the processes anyway.
            _ => {}
        }
    }

    /// Passes on a signal that asks to end, and starts the grace period.
    fn pass_on(&mut self, number: i32, signal: Signal) {
        self.asked.get_or_insert(number);
        self.stopping = true;
        self.signal_groups(signal);
        self.kill_within(self.grace);
    }

    fn signal_groups(&self, signal: Signal) {
        for member in &self.members {
            member.signal_group(signal);
            if signal != Signal::KILL {
                // A stopped process acts on it only then.
                member.signal_group(Signal::CONT);
            }
        }
    }

    fn kill_within(&mut self, limit: Option<Duration>) {
        let time = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.kill_at = match (self.kill_at, time) {
            (Some(earlier), Some(time)) => Some(earlier.min(time)),
            (earlier, time) => earlier.or(time),
        };
    }

    /// Sees which processes and guards have ended, and stops the run at the first failure.
    fn look(&mut self, output: &Output) {
        let mut failed: Option<First> = None;
        for position in 0..self.members.len() {
            let Some(member) = self.members.get_mut(position) else { break };
            member.replace_guard(&self.guards);
            if !member.poll() {
                continue;
            }
            let Some(status) = member.ended else { continue };
            let seen = First { index: member.index, pid: member.pid(), status };
            self.leave_note(&seen);
            // Of two seen at once, the one that a signal ended is the likelier cause.
            let likelier = |other: &First| exit_code(status) > 128 && exit_code(other.status) <= 128;
            if !status.success() && failed.as_ref().is_none_or(likelier) {
                failed = Some(seen);
            }
        }
        let (None, Some(first)) = (self.first, failed) else { return };
        self.first = Some(first);
        let others = self.members.iter().filter(|member| member.ended.is_none()).count();
        if self.stopping || others == 0 {
            return;
        }
        let how = describe(first.status);
        if !self.kills_on_bad_exit {
            output.notice(format!("index {} failed: {how}; {others} more go on", first.index));
            return;
        }
        self.stopping = true;
        let grace =
            self.grace.map_or_else(String::new, |grace| format!(", SIGKILL after {} s", grace.as_secs_f64()));
        output
            .notice(format!("index {} failed: {how}; stopping {others} more (SIGTERM{grace})", first.index));
        self.signal_groups(Signal::TERM);
        self.kill_within(self.grace);
    }

    /// Tells processes that still wait for this one that it will not come.
    fn leave_note(&self, ended: &First) {
        if self.members.iter().all(|member| member.ended.is_some()) {
            return;
        }
        let text = format!("{}, seen by its launcher", describe(ended.status));
        let Some(directory) = self.meeting.directory() else { return };
        if let Err(error) =
            directory::post_death_note(directory, self.meeting.job(), ended.index, ended.pid, &text)
        {
            tracing::debug!(index = ended.index, "no death note could be left: {}", error.chain());
        }
    }

    /// Lets what is left of the groups end by itself, then asks it to; the rest is killed when the members are dropped.
    fn sweep(&mut self, events: &Receiver<Event>, output: &Output) {
        let linger = if self.stopping { Duration::ZERO } else { LINGER };
        if self.is_empty_within(linger, events) {
            return;
        }
        let left = self.left_behind();
        output.notice(format!("ending what processes left behind ({}): pid {}", left.len(), join(&left)));
        if !self.stopping {
            self.signal_groups(Signal::TERM);
        }
        self.is_empty_within(self.grace.map_or(SWEEP_LIMIT, |grace| grace.min(SWEEP_LIMIT)), events);
    }

    /// Waits so long for the groups to be empty but for the guards.
    fn is_empty_within(&mut self, limit: Duration, events: &Receiver<Event>) -> bool {
        let start = Instant::now();
        loop {
            if self.left_behind().is_empty() {
                return true;
            }
            // A second SIGINT ends the patience as well.
            if start.elapsed() >= limit || self.interrupts > 1 {
                return false;
            }
            self.await_event(events, Duration::from_millis(20));
        }
    }

    /// The processes in the groups, guards left out, in ascending order.
    fn left_behind(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_left = |pid: &u32| {
            let group = group_of(*pid);
            self.members.iter().any(|member| group == Some(member.group()) && !member.is_guard(*pid))
        };
        let mut left: Vec<u32> = numbers.filter(is_left).collect();
        left.sort_unstable();
        left
    }
}

/// The process group of a process; `None` for a zombie or where there is none.
fn group_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // State, parent and group follow the command in parentheses, which may hold any letter.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

fn join(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}
