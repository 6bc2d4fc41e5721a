//! A simulated world for the protocol: one thread runs at a time, chosen by a seed; time is virtual; folders lie.
//!
//! A folder's changes are kept, so that another host may be shown what it was some time ago. What a host changed itself
//! it sees, and what it has seen it does not unsee, as NFS has it. Exclusive creation is decided at the server.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::rendezvous::directory::ground::{Folder, Ground, Place};
use crate::sys::Clock;
use crate::vocabulary::Nonce;

/// What unwinds a process that was killed.
pub(super) struct Killed;

/// A fault put into the world, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// A name that is taken is replaced by a creation.
    CreationReplaces,
    /// Folders never show another host what changed.
    ListingsStayOld,
}

/// How bad the world is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weather {
    /// The most microseconds that a view of a folder may be old.
    pub(super) staleness: u64,
    /// Of a thousand operations, how many fail for now (ESTALE, EIO).
    pub(super) failing: u64,
    /// Of a thousand steps, how many are delayed, and the most microseconds of a delay.
    pub(super) delayed: u64,
    pub(super) delay: u64,
    /// Of a thousand steps, after how many another process goes on.
    pub(super) switching: u64,
    pub(super) planted: Option<Planted>,
}

/// When something happens to a process.
#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    /// At its step of this number.
    Step(u64),
    /// So many of its steps after it created a record whose name begins with this.
    After(&'static str, u64),
}

/// One process of the world.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) host: usize,
    /// The virtual time of its start, in microseconds.
    pub(super) start: u64,
    pub(super) killed: Option<Moment>,
    pub(super) interrupted: Option<Moment>,
    /// What is done to the process at the moment: it stands still so long.
    pub(super) stopped: Option<(Moment, u64)>,
}

#[derive(Debug)]
struct Running {
    task: Task,
    wake: u64,
    steps: u64,
    ended: bool,
    lives: bool,
    wants_stop: bool,
}

/// Operations of all processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) created: u64,
    /// Files and folders.
    pub(super) opened: u64,
    pub(super) listings: u64,
    /// Names that listings gave.
    pub(super) entries: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

#[derive(Debug)]
enum Node {
    File(Arc<Vec<u8>>),
    Folder(Vec<Change>, BTreeMap<String, usize>),
}

#[derive(Debug)]
struct Change {
    time: u64,
    host: usize,
    name: String,
    node: Option<usize>,
}

#[derive(Debug)]
pub(super) struct State {
    random: u64,
    pub(super) now: u64,
    turn: usize,
    running: Vec<Running>,
    nodes: Vec<Node>,
    removed: Vec<bool>,
    seen: HashMap<(usize, usize, bool), u64>,
    weather: Weather,
    pub(super) counts: Counts,
    steps: u64,
}

#[derive(Debug)]
pub(super) struct World {
    base: Instant,
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

/// More steps of each process than any meeting takes: one that goes on for ever is a fault.
const STEP_LIMIT: u64 = 500_000;

impl State {
    pub(super) fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % below.max(1)
    }

    /// Who goes on: one of those that may, or time passes until one may.
    fn choose(&mut self) -> Option<usize> {
        let first = self.running.iter().filter(|one| !one.ended).map(|one| one.wake).min()?;
        self.now = self.now.max(first);
        let ready: Vec<usize> = (0..self.running.len())
            .filter(|at| !self.running[*at].ended && self.running[*at].wake <= self.now)
            .collect();
        let drawn = self.draw(ready.len() as u64) as usize;
        ready.get(drawn).copied()
    }

    fn change(&mut self, folder: usize, host: usize, name: &str, node: Option<usize>) {
        let time = self.now;
        let keeps_history = self.weather.staleness > 0;
        let Node::Folder(history, entries) = &mut self.nodes[folder] else { return };
        match node {
            Some(node) => drop(entries.insert(name.to_owned(), node)),
            None => drop(entries.remove(name)),
        }
        if keeps_history {
            history.push(Change { time, host, name: name.to_owned(), node });
        }
    }

    fn entries(&self, folder: usize) -> &BTreeMap<String, usize> {
        static NONE: BTreeMap<String, usize> = BTreeMap::new();
        match &self.nodes[folder] {
            Node::Folder(_, entries) => entries,
            Node::File(_) => &NONE,
        }
    }

    /// What a host is shown of a folder now; looking up and listing have caches of their own.
    fn view(&mut self, folder: usize, host: usize, listing: bool) -> BTreeMap<String, usize> {
        let mut staleness = self.weather.staleness;
        if staleness == 0 {
            return self.entries(folder).clone();
        }
        if self.weather.planted == Some(Planted::ListingsStayOld) {
            staleness = u64::MAX;
        }
        let oldest = self.now.saturating_sub(staleness);
        let seen = self.seen.get(&(host, folder, listing)).copied().unwrap_or(0).max(oldest);
        let drawn = match self.draw(3) {
            _ if staleness == u64::MAX => seen,
            0 => self.now,
            1 => seen,
            _ => seen + self.draw(self.now.saturating_sub(seen) + 1),
        };
        self.seen.insert((host, folder, listing), drawn);
        let Node::Folder(history, _) = &self.nodes[folder] else { return BTreeMap::new() };
        let mut entries = BTreeMap::new();
        for change in history.iter().filter(|change| change.time <= drawn || change.host == host) {
            match change.node {
                Some(node) => drop(entries.insert(change.name.clone(), node)),
                None => drop(entries.remove(&change.name)),
            }
        }
        entries
    }
}

impl World {
    pub(super) fn new(seed: u64, weather: Weather, tasks: Vec<Task>) -> Arc<Self> {
        let turns = tasks.iter().map(|_| Condvar::new()).collect();
        let running = tasks
            .into_iter()
            .map(|task| Running {
                wake: task.start,
                task,
                steps: 0,
                ended: false,
                lives: true,
                wants_stop: false,
            })
            .collect();
        let mut state = State {
            random: seed,
            now: 0,
            turn: 0,
            running,
            nodes: vec![Node::Folder(Vec::new(), BTreeMap::new())],
            removed: vec![false],
            seen: HashMap::new(),
            weather,
            counts: Counts::default(),
            steps: 0,
        };
        state.turn = state.choose().unwrap_or(0);
        Arc::new(Self { base: Instant::now(), state: Mutex::new(state), turns })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for this process's first turn.
    pub(super) fn begin(&self, task: usize) {
        drop(self.await_turn(self.lock(), task));
    }

    /// The process has ended; `lives` for one whose bootstrap has returned and that goes on with other things.
    pub(super) fn end(&self, task: usize, lives: bool) {
        let mut state = self.lock();
        state.running[task].ended = true;
        state.running[task].lives = lives;
        self.pass(&mut state);
    }

    pub(super) fn is_interrupted(&self, task: usize) -> bool {
        self.lock().running[task].wants_stop
    }

    /// What is left in the directory.
    pub(super) fn left(&self) -> Vec<String> {
        self.lock().entries(0).keys().cloned().collect()
    }

    fn pass(&self, state: &mut State) {
        if let Some(next) = state.choose() {
            state.turn = next;
            self.turns[next].notify_one();
        }
    }

    fn await_turn<'a>(&self, mut state: MutexGuard<'a, State>, task: usize) -> MutexGuard<'a, State> {
        while state.turn != task {
            state = self.turns[task].wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn sleep_until(&self, task: usize, wake: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.running[task].wake = wake;
        self.pass(&mut state);
        self.await_turn(state, task)
    }

    /// One step of a process: others may go on first, it may be delayed, and it may die here.
    ///
    /// `None` for a process that is dead already, of which nothing but its unwinding is left.
    fn step(&self, task: usize) -> Option<MutexGuard<'_, State>> {
        let mut state = self.lock();
        if !state.running[task].lives {
            return None;
        }
        state.steps += 1;
        let limit = STEP_LIMIT * state.running.len() as u64;
        assert!(state.steps < limit, "the processes go on for ever");
        let passed = 20 + state.draw(100);
        state.now += passed;
        let weather = state.weather;
        let one = &mut state.running[task];
        one.steps += 1;
        let is_now = |moment: Moment, steps: u64| matches!(moment, Moment::Step(at) if steps >= at);
        let steps = one.steps;
        if one.task.interrupted.is_some_and(|moment| is_now(moment, steps)) {
            one.wants_stop = true;
        }
        let mut rest = 0;
        if let Some((moment, time)) = one.task.stopped
            && is_now(moment, steps)
        {
            one.task.stopped = None;
            rest = time;
        }
        if one.task.killed.is_some_and(|moment| is_now(moment, steps)) {
            one.lives = false;
            drop(state);
            std::panic::resume_unwind(Box::new(Killed));
        }
        if weather.delayed > 0 && state.draw(1000) < weather.delayed {
            rest += state.draw(weather.delay);
        }
        if rest > 0 || state.draw(1000) < weather.switching {
            let wake = state.now + rest;
            drop(state);
            state = self.sleep_until(task, wake);
        }
        Some(state)
    }

    fn created(&self, state: &mut State, task: usize, name: &str) {
        let one = &mut state.running[task];
        let steps = one.steps;
        let reached = |moment: &mut Moment| {
            if let Moment::After(prefix, more) = *moment
                && name.starts_with(prefix)
            {
                *moment = Moment::Step(steps + more);
            }
        };
        let stopped = one.task.stopped.as_mut().map(|(moment, _)| moment);
        let moments = [one.task.killed.as_mut(), one.task.interrupted.as_mut(), stopped];
        moments.into_iter().flatten().for_each(reached);
    }
}

/// The world as one process meets it.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) world: Arc<World>,
    pub(super) task: usize,
}

impl Clock for Seat {
    fn now(&self) -> Instant {
        self.world.base + Duration::from_micros(self.world.lock().now)
    }

    fn sleep(&self, duration: Duration) {
        let wake = self.world.lock().now + duration.as_micros() as u64;
        drop(self.world.sleep_until(self.task, wake));
    }
}

impl Ground for Seat {
    fn root(&self, path: &Path) -> Result<Folder> {
        Ok(Box::new(Open { seat: self.clone(), node: 0, path: path.to_owned() }))
    }

    fn nonce(&self) -> Result<Nonce> {
        Ok(format!("{:016x}", self.world.lock().draw(u64::MAX)))
    }

    fn key(&self) -> Result<[u8; 32]> {
        let mut state = self.world.lock();
        Ok(std::array::from_fn(|_| state.draw(256) as u8))
    }

    fn is_alive(&self, pid: u32, _start_ticks: u64) -> bool {
        let Some(state) = self.world.step(self.task) else { return false };
        state.running.get(pid as usize).is_some_and(|one| one.lives)
    }
}

#[derive(Debug)]
struct Open {
    seat: Seat,
    node: usize,
    path: PathBuf,
}

/// The numbers that Linux gives ENOENT, ESTALE and EIO.
const ABSENT: i32 = 2;
const STALE: i32 = 116;
const UNANSWERED: i32 = 5;

impl Open {
    fn failed(&self, name: &str, code: i32) -> Error {
        Error::io(self.path.join(name), "use", std::io::Error::from_raw_os_error(code))
    }

    /// A step of this process, which may fail for now.
    fn step(&self, name: &str) -> Result<MutexGuard<'_, State>> {
        let state = self.seat.world.step(self.seat.task);
        let mut state = state.ok_or_else(|| self.failed(name, STALE))?;
        let failing = state.weather.failing;
        if failing > 0 && state.draw(1000) < failing {
            let code = if state.draw(2) == 0 { STALE } else { UNANSWERED };
            return Err(self.failed(name, code));
        }
        Ok(state)
    }

    /// A step that does not fail: what is sent to the server until it answers.
    fn sure_step(&self) -> Option<MutexGuard<'_, State>> {
        self.seat.world.step(self.seat.task)
    }

    fn host(&self, state: &State) -> usize {
        state.running[self.seat.task].task.host
    }

    fn look_up(&self, state: &mut State, name: &str) -> Option<usize> {
        let host = self.host(state);
        if state.weather.staleness == 0 {
            return state.entries(self.node).get(name).copied();
        }
        state.view(self.node, host, false).get(name).copied()
    }

    /// Puts a node under a name, if the name is free at the server.
    fn link(&self, state: &mut State, name: &str, node: usize) -> Result<bool> {
        if state.removed[self.node] {
            return Err(self.failed(name, ABSENT));
        }
        let replaces = state.weather.planted == Some(Planted::CreationReplaces);
        if state.entries(self.node).contains_key(name) && !replaces {
            return Ok(false);
        }
        let host = self.host(state);
        state.change(self.node, host, name, Some(node));
        Ok(true)
    }

    fn new_node(state: &mut State, node: Node) -> usize {
        state.nodes.push(node);
        state.removed.push(false);
        state.nodes.len() - 1
    }

    fn unlink(&self, state: &mut State, name: &str) {
        let host = self.host(state);
        if state.entries(self.node).contains_key(name) {
            state.change(self.node, host, name, None);
        }
    }
}

impl Place for Open {
    fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str) -> Result<Folder> {
        let mut state = self.step(name)?;
        state.counts.opened += 1;
        let node = self.look_up(&mut state, name).ok_or_else(|| self.failed(name, ABSENT))?;
        if state.removed[node] && state.draw(2) == 0 {
            return Err(self.failed(name, STALE));
        }
        Ok(Box::new(Self { seat: self.seat.clone(), node, path: self.path.join(name) }))
    }

    fn make(&self, name: &str) -> Result<Folder> {
        {
            let mut state = self.step(name)?;
            if state.removed[self.node] {
                return Err(self.failed(name, ABSENT));
            }
            if !state.entries(self.node).contains_key(name) {
                let node = Self::new_node(&mut state, Node::Folder(Vec::new(), BTreeMap::new()));
                let host = self.host(&state);
                state.change(self.node, host, name, Some(node));
            }
        }
        self.open(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        let mut state = self.step("")?;
        let host = self.host(&state);
        let names: Vec<String> =
            state.view(self.node, host, true).into_keys().filter(|name| !name.starts_with('.')).collect();
        state.counts.listings += 1;
        state.counts.entries += names.len() as u64;
        if names.is_empty() && state.removed[self.node] {
            let code = if state.draw(2) == 0 { STALE } else { ABSENT };
            return Err(self.failed("", code));
        }
        Ok(names)
    }

    fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        let Ok(mut state) = self.step(name) else { return Ok(None) };
        state.counts.opened += 1;
        let Some(node) = self.look_up(&mut state, name) else { return Ok(None) };
        let is_gone = state.entries(self.node).get(name) != Some(&node);
        if is_gone && state.draw(2) == 0 {
            return Ok(None);
        }
        let Node::File(bytes) = &state.nodes[node] else { return Ok(None) };
        let bytes = Arc::clone(bytes);
        state.counts.read_bytes += bytes.len() as u64;
        Ok((bytes.len() <= limit).then(|| bytes.to_vec()))
    }

    fn objection(&self, _name: &str) -> Option<String> {
        // Nobody writes here but members.
        None
    }

    fn create(&self, name: &str, payload: &[u8]) -> Result<bool> {
        let private = format!(".{name}.{}", self.seat.nonce()?);
        {
            let mut state = self.step(name)?;
            state.counts.created += 1;
            state.counts.written_bytes += payload.len() as u64;
            let node = Self::new_node(&mut state, Node::File(Arc::new(payload.to_vec())));
            self.link(&mut state, &private, node)?;
        }
        let mut state = match self.step(name) {
            Ok(state) => state,
            Err(error) => {
                self.remove(&private);
                return Err(error);
            }
        };
        // Somebody who cleans up may have removed the private file.
        let Some(node) = state.entries(self.node).get(&private).copied() else {
            return Err(self.failed(name, ABSENT));
        };
        self.unlink(&mut state, &private);
        let created = self.link(&mut state, name, node)?;
        if created {
            self.seat.world.created(&mut state, self.seat.task, name);
        }
        Ok(created)
    }

    fn remove(&self, name: &str) {
        if let Some(mut state) = self.sure_step() {
            self.unlink(&mut state, name);
        }
    }

    fn remove_hidden(&self) {
        let Some(state) = self.sure_step() else { return };
        let hidden: Vec<String> =
            state.entries(self.node).keys().filter(|name| name.starts_with('.')).cloned().collect();
        drop(state);
        hidden.iter().for_each(|name| self.remove(name));
    }

    fn remove_empty(&self, name: &str) -> bool {
        let Some(mut state) = self.sure_step() else { return false };
        let Some(node) = state.entries(self.node).get(name).copied() else { return true };
        let is_empty = matches!(&state.nodes[node], Node::Folder(_, entries) if entries.is_empty());
        if is_empty {
            self.unlink(&mut state, name);
            state.removed[node] = true;
        }
        is_empty
    }

    fn remove_tree(&self, name: &str) {
        let Some(state) = self.sure_step() else { return };
        let Some(node) = state.entries(self.node).get(name).copied() else { return };
        let names: Option<Vec<String>> = match &state.nodes[node] {
            Node::Folder(_, entries) => Some(entries.keys().cloned().collect()),
            Node::File(_) => None,
        };
        drop(state);
        match names {
            None => self.remove(name),
            Some(names) => {
                let inner = Self { seat: self.seat.clone(), node, path: self.path.join(name) };
                names.iter().for_each(|entry| inner.remove_tree(entry));
                let _ = self.remove_empty(name);
            }
        }
    }
}
