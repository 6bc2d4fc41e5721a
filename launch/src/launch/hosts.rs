//! How the launchers of several hosts agree, in the shared directory: who takes part in an attempt, and how it ended.
//!
//! Each launcher keeps one record in `hosts/`, under names that count up, so that a listing shows who lives; none is believed
//! that was not seen to change. An attempt begins by the exclusive creation of `run-K`, which lists the launchers that belong
//! to it, and ends by that of `end-K`, which holds the first cause. Whoever creates one decides, and all obey what they find.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use uform::sys::file::{self, Folder};
use uform::sys::{process, random};

use crate::Failure;

/// The longest record.
const RECORD_LIMIT: usize = 1 << 20;

/// How long a launcher that could begin with fewer hosts than the most waits for another one to come.
const SETTLE: Duration = Duration::from_secs(5);

/// How often the directory is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// How often a record that was removed under way is written again before that is an error.
const TRIES: usize = 50;

/// How many hosts a run may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(super) least: usize,
    pub(super) most: usize,
}

impl Range {
    /// Reads `N` or `MIN:MAX`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "must be a number of hosts, or MIN:MAX with MIN at most MAX".to_owned();
        let number = |word: &str| word.parse::<usize>().ok().filter(|number| (1..=65_536).contains(number));
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        let (least, most) = number(least).zip(number(most)).ok_or_else(wrong)?;
        if least > most { Err(wrong()) } else { Ok(Self { least, most }) }
    }
}

/// What one launcher says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Host {
    nonce: String,
    name: String,
    boot_id: String,
    namespace: String,
    pid: u32,
    start_ticks: u64,
    /// How many processes it starts.
    processes: usize,
    /// Its place among the hosts, where an outer launcher says so.
    place: Option<usize>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    /// It waits for the next attempt.
    Waiting,
    /// It runs processes of this attempt.
    Running(u64),
    /// All its processes of this attempt have ended with 0.
    Finished(u64),
}

/// Who takes part in an attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Plan {
    nonce: String,
    /// How often the run had begun before.
    restarts: u32,
    /// In the order of their indexes: the launcher's nonce, the host's name, and how many processes it starts.
    hosts: Vec<(String, String, usize)>,
}

/// What ended an attempt before its processes had all ended with 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cause {
    /// The index of the process, `None` where it was a launcher.
    pub(super) index: Option<usize>,
    pub(super) host: String,
    /// How it ended, in words.
    pub(super) how: String,
    /// The exit code that stands for it.
    pub(super) code: i32,
    /// Whether another attempt may follow.
    pub(super) restarts: bool,
}

impl Cause {
    /// The process or launcher that it tells of.
    pub(super) fn who(&self) -> String {
        match self.index {
            Some(index) => format!("index {index} on host {}", self.host),
            None => format!("host {}", self.host),
        }
    }
}

/// How an attempt ended; without a cause all is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) cause: Option<Cause>,
}

/// This launcher's part in an attempt.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The number of the attempt in this directory, from 1.
    pub(super) number: u64,
    /// A word that no other attempt has.
    pub(super) nonce: String,
    /// The index of the first process of this host.
    pub(super) first: usize,
    /// How many processes the run has.
    pub(super) count: usize,
    /// How many hosts the run has.
    pub(super) hosts: usize,
    /// How often the run had begun before, the same for all hosts: one may have come too late to an attempt that failed soon.
    pub(super) restarts: u32,
}

/// What was last seen of a launcher.
struct Sight {
    host: Host,
    sequence: u64,
    changed: Instant,
    /// It was seen to change, or is a living process of this host.
    lives: bool,
}

/// The launchers of a job, as this one sees them.
pub(super) struct Hosts {
    root: Folder,
    folder_name: String,
    folder: Folder,
    records: Folder,
    own: Host,
    sequence: u64,
    written: Option<Instant>,
    seen: BTreeMap<String, Sight>,
    looked: Option<Instant>,
    part: Option<(Part, Plan)>,
    last: u64,
    range: Range,
    /// How long a launcher may be silent before it counts as dead.
    silence: Duration,
}

impl Hosts {
    /// Enters the job's folder in the shared directory.
    pub(super) fn open(
        directory: &Path,
        job: &str,
        range: Range,
        processes: usize,
        place: Option<usize>,
    ) -> Result<Self, Failure> {
        let silence = uform::environment::interface::network(&String::new)?.silence * 3;
        let pid = process::pid();
        let own = Host {
            nonce: random::nonce()?,
            name: process::host_name(),
            boot_id: process::boot_id()?,
            namespace: process::pid_namespace(),
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            processes,
            place,
            state: State::Waiting,
        };
        let root = Folder::root(directory)?;
        let folder_name = format!("launch-{job}");
        let (folder, records) = enter(&root, &folder_name)?;
        Ok(Self {
            root,
            folder_name,
            folder,
            records,
            own,
            sequence: 0,
            written: None,
            seen: BTreeMap::new(),
            looked: None,
            part: None,
            last: 0,
            range,
            silence,
        })
    }

    /// Waits until an attempt begins that this launcher belongs to; `asked` tells whether a signal asks to end.
    pub(super) fn assemble(
        &mut self,
        timeout: Duration,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Part>, Failure> {
        let start = Instant::now();
        let mut settled: (usize, Instant) = (0, start);
        self.part = None;
        self.say(State::Waiting)?;
        loop {
            self.beat()?;
            self.look(true)?;
            let runs = self.runs()?;
            if let Some(part) = self.join(&runs)? {
                return Ok(Some(part));
            }
            let waiting = self.waiting();
            if waiting.len() != settled.0 {
                settled = (waiting.len(), Instant::now());
            }
            let enough = waiting.len() >= self.range.most
                || (waiting.len() >= self.range.least && settled.1.elapsed() >= SETTLE);
            let goes_on = self.is_going_on(&runs)?;
            if let Some(others) = &goes_on
                && self.range.least == self.range.most
                && others.len() >= self.range.most
            {
                self.leave();
                return Err(self.taken(others));
            }
            if enough && goes_on.is_none() {
                self.propose(&runs, &waiting)?;
                continue;
            }
            if asked() {
                self.leave();
                return Ok(None);
            }
            if start.elapsed() >= timeout {
                let came: Vec<String> = waiting.iter().map(|host| host.name.clone()).collect();
                self.leave();
                return Err(missing(self.range, &came, self.root.path(), start.elapsed()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The names of the hosts of the attempt.
    pub(super) fn names(&self) -> Vec<String> {
        let plan = self.part.as_ref().map(|(_, plan)| plan);
        plan.map(|plan| plan.hosts.iter().map(|(_, name, _)| name.clone()).collect()).unwrap_or_default()
    }

    /// Whether the attempt has ended, here or elsewhere; called all the time while processes run.
    ///
    /// One that outlives others counts a host that is gone as one whose processes have ended.
    pub(super) fn poll(&mut self, outlives: bool) -> Option<Verdict> {
        // A directory that fails for a while is no end; one that fails for long ends in silence.
        if let Err(error) = self.beat() {
            tracing::debug!("no sign of life was left: {error}");
        }
        if let Some(verdict) = self.verdict() {
            return Some(verdict);
        }
        let looked = self.look(false).ok().is_some_and(|looked| looked);
        let (part, plan) = self.part.clone()?;
        if !looked {
            return None;
        }
        let mut finished = 0;
        for (nonce, name, _) in &plan.hosts {
            if *nonce == self.own.nonce {
                finished += usize::from(self.own.state == State::Finished(part.number));
                continue;
            }
            let how = match self.seen.get(nonce) {
                Some(sight) if sight.host.state == State::Finished(part.number) => {
                    finished += 1;
                    continue;
                }
                Some(sight) if self.is_dead(sight) => {
                    let waited = sight.changed.elapsed().as_secs_f64();
                    format!(
                        "its launcher (pid {}) is gone: no sign of life for {waited:.1} s",
                        sight.host.pid
                    )
                }
                Some(_) => continue,
                None => "its launcher has left".to_owned(),
            };
            if outlives {
                finished += 1;
                continue;
            }
            let cause = Cause { index: None, host: name.clone(), how, code: 1, restarts: true };
            return Some(self.end(Verdict { cause: Some(cause) }));
        }
        (finished == plan.hosts.len()).then(|| self.end(Verdict { cause: None }))
    }

    /// Ends the attempt by what happened here; gives what ended it, which may have been another's.
    pub(super) fn fail(&mut self, index: Option<usize>, how: String, code: i32, restarts: bool) -> Verdict {
        let cause = Cause { index, host: self.own.name.clone(), how, code, restarts };
        self.end(Verdict { cause: Some(cause) })
    }

    /// Says that all processes of this host have ended with 0.
    pub(super) fn finish(&mut self) {
        let Some((part, _)) = &self.part else { return };
        let number = part.number;
        if self.own.state != State::Finished(number)
            && let Err(error) = self.say(State::Finished(number))
        {
            tracing::debug!("the end was not told: {error}");
        }
    }

    /// Removes this launcher's record, and the folder after the last one.
    pub(super) fn leave(&mut self) {
        if let Ok(names) = self.records.list() {
            for name in
                names.iter().filter(|name| owner(name).is_some_and(|(nonce, _)| nonce == self.own.nonce))
            {
                self.records.remove(name);
            }
        }
        self.records.remove_hidden();
        if self.folder.remove_empty("hosts") {
            self.root.remove_tree(&self.folder_name);
        }
    }

    fn say(&mut self, state: State) -> Result<(), Failure> {
        self.own.state = state;
        self.written = None;
        self.beat()
    }

    /// Writes the own record under its next name, where it is time to.
    fn beat(&mut self) -> Result<(), Failure> {
        let pause = if self.own.state == State::Waiting { LOOK } else { self.silence / 12 };
        if self.written.is_some_and(|written| written.elapsed() < pause) {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&self.own).unwrap_or_default();
        let mut tries = 0;
        loop {
            let name = format!("{}-{}", self.own.nonce, self.sequence + 1);
            match file::settled(self.records.create(&name, &bytes))? {
                Some(_) => break,
                // The last launcher of an earlier run removed the folder.
                None if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(10));
                    (self.folder, self.records) = enter(&self.root, &self.folder_name)?;
                }
                None => return Err(self.unusable("write in").into()),
            }
        }
        self.records.remove(&format!("{}-{}", self.own.nonce, self.sequence));
        self.sequence += 1;
        self.written = Some(Instant::now());
        Ok(())
    }

    /// Reads what the other launchers say, unless that was just done; tells whether it was.
    fn look(&mut self, waiting: bool) -> Result<bool, Failure> {
        // All launchers look at all: the more there are, the seldomer.
        let crowd = Duration::from_millis(self.seen.len() as u64 * 2);
        let pause = if waiting { LOOK } else { LOOK * 2 } + crowd;
        if self.looked.is_some_and(|looked| looked.elapsed() < pause) {
            return Ok(false);
        }
        let Some(names) = file::settled(self.records.list())? else { return Ok(false) };
        let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
        for (nonce, sequence) in names.iter().filter_map(|name| owner(name)) {
            let entry = newest.entry(nonce).or_insert(sequence);
            *entry = sequence.max(*entry);
        }
        for (nonce, sequence) in &newest {
            let known = self.seen.get(*nonce).map(|sight| sight.sequence);
            if *nonce == self.own.nonce || known == Some(*sequence) {
                continue;
            }
            let bytes = self.records.read(&format!("{nonce}-{sequence}"), RECORD_LIMIT)?;
            let Some(host) = bytes.and_then(|bytes| serde_json::from_slice::<Host>(&bytes).ok()) else {
                continue;
            };
            let lives = known.is_some() || self.is_alive_here(&host) == Some(true);
            let sight = Sight { host, sequence: *sequence, changed: Instant::now(), lives };
            self.seen.insert((*nonce).to_owned(), sight);
        }
        self.seen.retain(|nonce, _| newest.contains_key(nonce.as_str()));
        if waiting {
            let dead: Vec<String> = self
                .seen
                .iter()
                .filter(|(_, sight)| self.is_dead(sight))
                .map(|(nonce, _)| nonce.clone())
                .collect();
            for nonce in dead {
                names.iter().filter(|name| owner(name).is_some_and(|(own, _)| own == nonce)).for_each(
                    |name| {
                        self.records.remove(name);
                    },
                );
                self.seen.remove(&nonce);
            }
        }
        self.looked = Some(Instant::now());
        Ok(true)
    }

    /// Whether a launcher of this host lives; `None` for one of another host or container.
    fn is_alive_here(&self, host: &Host) -> Option<bool> {
        let same = host.boot_id == self.own.boot_id && host.namespace == self.own.namespace;
        same.then(|| process::is_alive(host.pid, host.start_ticks))
    }

    fn is_dead(&self, sight: &Sight) -> bool {
        self.is_alive_here(&sight.host) == Some(false) || sight.changed.elapsed() > self.silence
    }

    /// The launchers that wait for an attempt, this one among them, in the order of their places.
    fn waiting(&self) -> Vec<Host> {
        let others = self
            .seen
            .values()
            .filter(|sight| sight.lives && sight.host.state == State::Waiting && !self.is_dead(sight));
        let mut hosts: Vec<Host> = others.map(|sight| sight.host.clone()).collect();
        hosts.push(self.own.clone());
        let by_place = hosts.iter().all(|host| host.place.is_some());
        hosts.sort_by_key(|host| {
            (host.place.filter(|_| by_place), host.name.len(), host.name.clone(), host.nonce.clone())
        });
        hosts
    }

    /// The numbers of all attempts, ascending.
    fn runs(&self) -> Result<Vec<u64>, Failure> {
        let names = file::settled(self.folder.list())?.unwrap_or_default();
        let mut runs: Vec<u64> =
            names.iter().filter_map(|name| name.strip_prefix("run-")?.parse().ok()).collect();
        runs.sort_unstable();
        Ok(runs)
    }

    fn plan(&self, number: u64) -> Result<Option<Plan>, Failure> {
        let bytes = self.folder.read(&format!("run-{number}"), RECORD_LIMIT)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    fn read_end(&self, number: u64) -> Result<Option<Verdict>, Failure> {
        let bytes = self.folder.read(&format!("end-{number}"), RECORD_LIMIT)?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// This launcher's part in the last attempt, if it is a new one and lists this launcher.
    fn join(&mut self, runs: &[u64]) -> Result<Option<Part>, Failure> {
        let Some(number) = runs.last().copied().filter(|number| *number > self.last) else { return Ok(None) };
        let Some(plan) = self.plan(number)? else { return Ok(None) };
        let Some(place) = plan.hosts.iter().position(|(nonce, _, _)| *nonce == self.own.nonce) else {
            return Ok(None);
        };
        let part = Part {
            number,
            nonce: plan.nonce.clone(),
            first: plan.hosts.iter().take(place).map(|(_, _, processes)| processes).sum(),
            count: plan.hosts.iter().map(|(_, _, processes)| processes).sum(),
            hosts: plan.hosts.len(),
            restarts: plan.restarts,
        };
        self.last = number;
        // From now on silence counts: what was seen before was of another state.
        for sight in self.seen.values_mut() {
            sight.changed = Instant::now();
        }
        self.part = Some((part.clone(), plan));
        self.say(State::Running(number))?;
        Ok(Some(part))
    }

    /// The launchers of the last attempt that may live, if it has not ended; `None` where nobody is left.
    fn is_going_on(&self, runs: &[u64]) -> Result<Option<Vec<Host>>, Failure> {
        let Some(number) = runs.last().copied() else { return Ok(None) };
        if self.read_end(number)?.is_some() {
            return Ok(None);
        }
        let Some(plan) = self.plan(number)? else { return Ok(None) };
        let sights = plan.hosts.iter().filter_map(|(nonce, _, _)| self.seen.get(nonce));
        let living: Vec<&Sight> = sights.filter(|sight| !self.is_dead(sight)).collect();
        if living.is_empty() {
            return Ok(None);
        }
        Ok(Some(living.iter().filter(|sight| sight.lives).map(|sight| sight.host.clone()).collect()))
    }

    fn propose(&self, runs: &[u64], waiting: &[Host]) -> Result<(), Failure> {
        let number = runs.last().map_or(1, |last| last + 1);
        let hosts = waiting.iter().take(self.range.most);
        // What a run that is long gone left here is no earlier attempt of this one.
        let before = runs.last().map(|last| self.plan(*last)).transpose()?.flatten();
        let before = before.filter(|plan| {
            plan.hosts.iter().any(|(nonce, _, _)| hosts.clone().any(|host| host.nonce == *nonce))
        });
        let plan = Plan {
            nonce: random::nonce()?,
            restarts: before.map_or(0, |plan| plan.restarts.saturating_add(1)),
            hosts: hosts.map(|host| (host.nonce.clone(), host.name.clone(), host.processes)).collect(),
        };
        let bytes = serde_json::to_vec(&plan).unwrap_or_default();
        // Taken by another, or in a folder that is being removed: the next look tells.
        file::settled(self.folder.create(&format!("run-{number}"), &bytes))?;
        for old in runs.iter().rev().skip(1) {
            self.folder.remove(&format!("run-{old}"));
            self.folder.remove(&format!("end-{old}"));
        }
        Ok(())
    }

    fn verdict(&self) -> Option<Verdict> {
        let (part, _) = self.part.as_ref()?;
        self.read_end(part.number).ok().flatten()
    }

    /// Creates the end of the attempt, or obeys the one that is there.
    fn end(&self, verdict: Verdict) -> Verdict {
        let Some((part, _)) = &self.part else { return verdict };
        let bytes = serde_json::to_vec(&verdict).unwrap_or_default();
        for _ in 0..TRIES {
            match self.folder.create(&format!("end-{}", part.number), &bytes) {
                Ok(true) => return verdict,
                Ok(false) => {
                    if let Some(theirs) = self.verdict() {
                        return theirs;
                    }
                }
                Err(error) if !file::is_transient(&error) => return verdict,
                Err(_) => {}
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        verdict
    }

    fn taken(&self, others: &[Host]) -> Failure {
        let first = others.first().map(|host| format!("; {} (pid {}) is one of them", host.name, host.pid));
        uform::Error::invalid(
            "--job",
            self.folder_name.trim_start_matches("launch-"),
            "argument",
            format!(
                "names a run that has all its {} hosts{}: give another --job, or wait for its end",
                self.range.most,
                first.unwrap_or_default()
            ),
        )
        .into()
    }

    fn unusable(&self, operation: &str) -> uform::Error {
        uform::Error::io(self.folder.path(), operation, std::io::ErrorKind::NotFound.into())
    }
}

/// Opens or makes a job's folder and the one of the records in it.
fn enter(root: &Folder, name: &str) -> Result<(Folder, Folder), Failure> {
    let mut tries = 0;
    loop {
        let open = || {
            let folder = root.make(name)?;
            let records = folder.make("hosts")?;
            Ok((folder, records))
        };
        match open() {
            // Somebody else is removing it.
            Err(error) if tries < TRIES && file::is_transient(&error) => {
                tries += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.map_err(Failure::from),
        }
    }
}

/// The nonce and the sequence number in a record's name.
fn owner(name: &str) -> Option<(&str, u64)> {
    let (nonce, sequence) = name.rsplit_once('-')?;
    Some((nonce, sequence.parse().ok()?))
}

fn missing(range: Range, came: &[String], directory: &Path, waited: Duration) -> Failure {
    let Range { least, .. } = range;
    let came = if came.is_empty() { "none".to_owned() } else { came.join(", ") };
    Failure::Hosts { least, waited: waited.as_secs_f64(), came, directory: directory.display().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn folder() -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("uform-hosts-test-{}", random::nonce().expect("random")));
        std::fs::create_dir(&path).expect("made");
        path
    }

    fn assemble(directory: &Path, range: Range, counts: &[usize]) -> Vec<(Hosts, Part)> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = counts
                .iter()
                .enumerate()
                .map(|(place, count)| {
                    scope.spawn(move || {
                        let mut hosts =
                            Hosts::open(directory, "job", range, *count, Some(place)).expect("opened");
                        let part = hosts.assemble(PATIENCE, &mut || false).expect("assembled");
                        (hosts, part.expect("not asked to end"))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(Range::parse("3"), Ok(Range { least: 3, most: 3 }));
        assert_eq!(Range::parse("2:4"), Ok(Range { least: 2, most: 4 }));
        for text in ["", "0", "4:2", ":", "1:", "a", "1:2:3", "-1", "99999999"] {
            assert!(Range::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn launchers_take_disjoint_indexes_and_end_as_one() {
        let directory = folder();
        let mut parts = assemble(&directory, Range { least: 3, most: 3 }, &[2, 3, 1]);
        let firsts: Vec<usize> = parts.iter().map(|(_, part)| part.first).collect();
        assert_eq!(firsts, [0, 2, 5]);
        assert!(parts.iter().all(|(_, part)| part.count == 6 && part.hosts == 3 && part.number == 1));
        let own = parts[1].0.fail(Some(3), "exit code 9".into(), 9, true);
        assert_eq!(own.cause.as_ref().map(|cause| cause.index), Some(Some(3)));
        // The first cause stays.
        let later = parts[2].0.fail(Some(5), "exit code 1".into(), 1, true);
        assert_eq!(later, own);
        assert_eq!(parts[0].0.poll(false), Some(own));
        parts.iter_mut().for_each(|(hosts, _)| hosts.leave());
        assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 0, "nothing is left");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn all_must_finish_before_the_run_has() {
        let directory = folder();
        let mut parts = assemble(&directory, Range { least: 2, most: 2 }, &[1, 1]);
        parts[0].0.finish();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(parts[0].0.poll(false), None);
        parts[1].0.finish();
        let mut verdict = None;
        let start = Instant::now();
        while verdict.is_none() && start.elapsed() < PATIENCE {
            verdict = parts[0].0.poll(false);
            std::thread::sleep(LOOK);
        }
        assert_eq!(verdict, Some(Verdict { cause: None }));
        parts.iter_mut().for_each(|(hosts, _)| hosts.leave());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn a_launcher_that_leaves_ends_the_attempt() {
        let directory = folder();
        let mut parts = assemble(&directory, Range { least: 2, most: 2 }, &[1, 1]);
        let (mut gone, _) = parts.pop().expect("two");
        gone.leave();
        let start = Instant::now();
        let mut verdict = None;
        while verdict.is_none() && start.elapsed() < PATIENCE {
            verdict = parts[0].0.poll(false);
            std::thread::sleep(LOOK);
        }
        let cause = verdict.expect("ended").cause.expect("a cause");
        assert_eq!((cause.index, cause.how.as_str()), (None, "its launcher has left"));
        parts[0].0.leave();
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn one_that_outlives_others_ends_when_its_own_have() {
        let directory = folder();
        let mut parts = assemble(&directory, Range { least: 2, most: 2 }, &[1, 1]);
        let (mut gone, _) = parts.pop().expect("two");
        gone.leave();
        std::thread::sleep(3 * LOOK);
        assert_eq!(parts[0].0.poll(true), None);
        parts[0].0.finish();
        let mut verdict = None;
        let start = Instant::now();
        while verdict.is_none() && start.elapsed() < PATIENCE {
            verdict = parts[0].0.poll(true);
            std::thread::sleep(LOOK);
        }
        assert_eq!(verdict, Some(Verdict { cause: None }));
        parts[0].0.leave();
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn too_few_hosts_are_named() {
        let directory = folder();
        let range = Range { least: 2, most: 2 };
        let mut hosts = Hosts::open(&directory, "job", range, 1, None).expect("opened");
        let error = hosts.assemble(Duration::from_millis(300), &mut || false).expect_err("alone");
        let text = error.to_string();
        assert!(text.contains("at least 2 hosts") && text.contains(&process::host_name()), "{text}");
        assert_eq!(std::fs::read_dir(&directory).expect("there").count(), 0, "nothing is left");
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}
