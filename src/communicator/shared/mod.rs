//! The backend for members of one host: they read each other's memory, and watch each other's processes.

mod arena;
mod channel;
mod control;
mod direct;
mod habits;
mod join;
mod pairs;
mod payload;
mod proof;
mod remote;
mod signal;
#[cfg(test)]
mod signal_model;
mod stages;
mod transfer;
mod watch;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

pub use proof::{Listener, Proof};

use self::control::Control;
use self::habits::Habits;
use self::stages::Stages;
use self::watch::Watch;
use super::descriptor::{self, Cause, Descriptor, again};
use super::gate::{self, Gate};
use super::pair::Pair;
use super::warning::{STOPPED, Warning};
use super::{Call, Communicator, SharedArena};
use crate::error::{Error, Missing, Result};
use crate::recorder::IS_ON;
use crate::sys::Deadline;
use crate::sys::shared::Segment;
use crate::topology::Group;
use crate::vocabulary::Verb;

/// Bytes of one stage: a member's contribution passes through it piece by piece. What is larger than the second cache comes out
/// of a cache that cores share.
const PIECE_BYTES: usize = 1 << 20;
/// Bytes of one stage that all members of a group have together, as long as each has the least.
const PIECES_BYTES: usize = 4 << 20;
/// The smallest stage that is chosen.
const LEAST_PIECE_BYTES: usize = 256 << 10;
/// The largest stage that may be asked for.
const PIECE_LIMIT: usize = 1 << 30;
/// Looks at a peer's progress before sleeping, where every member has a core of its own.
const SPINS: u32 = 4000;
/// How often a member gives its core away before it sleeps, where members share cores.
const YIELDS: u32 = 20;

/// A group whose members are processes, or threads of processes, of one host.
///
/// One call at a time: a second one at the same time is `Contended`.
pub struct SharedCommunicator {
    proof: Proof,
    seats: Vec<usize>,
    own: usize,
    piece_bytes: usize,
    has_cores: bool,
    /// Whether this member can read the memory of all others through the kernel.
    reads_all: bool,
    has_read_remotely: AtomicBool,
    controls: Vec<Control>,
    gate: Gate<Turn>,
    /// The sites that stand beside the two descriptors.
    told_sites: [AtomicU32; 2],
    /// By seat, for sends and receives.
    pairs: Vec<Option<Pair<pairs::Rings>>>,
    /// What ended the group outside of its calls.
    ended: OnceLock<Error>,
}

/// What only the member in a call touches.
struct Turn {
    sequence: u64,
    /// The arenas made so far, and those of them that still live, by number from 1.
    arena_count: u64,
    arenas: BTreeMap<u64, Weak<arena::Parts>>,
    ended: Option<Error>,
    habits: Habits,
    /// Whether whole calls go through the kernel.
    choices: Habits,
    stages: Stages,
    /// What was read of others and is reduced next.
    scratch: RefCell<Vec<u64>>,
}

impl Default for Turn {
    fn default() -> Self {
        Self {
            sequence: 0,
            arena_count: 0,
            arenas: BTreeMap::new(),
            ended: None,
            habits: Habits::new(habits::STAGES),
            choices: Habits::new(habits::CALLS),
            stages: Stages::default(),
            scratch: RefCell::default(),
        }
    }
}

impl gate::Turn for Turn {
    fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }
}

impl std::fmt::Debug for SharedCommunicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "SharedCommunicator({}, seat {} of {})",
            self.gate.name(),
            self.own,
            self.seats.len()
        )
    }
}

impl SharedCommunicator {
    /// Joins a group of members that have proved to each other that they share this host.
    ///
    /// Collective: all members of the group call it with the same group.
    ///
    /// # Errors
    /// `Unsupported` if a member of the group is not among the proved; `Exhausted` on all members, naming the one
    /// that could not reserve its part; `Lost`, `TimedOut` and `Interrupted`.
    pub fn join(proof: Proof, group: &Group, deadline: &Deadline<'_>) -> Result<Arc<Self>> {
        let piece_bytes = (PIECES_BYTES / group.seats.len().max(1)).clamp(LEAST_PIECE_BYTES, PIECE_BYTES);
        Self::join_with(proof, group, piece_bytes / 8 * 8, deadline)
    }

    /// Joins with stages of another size, the same on all members: a multiple of 8 that holds 8 bytes for each.
    ///
    /// # Errors
    /// As [`SharedCommunicator::join`], and `Invalid` for another size.
    pub fn join_with(
        proof: Proof,
        group: &Group,
        piece_bytes: usize,
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Self>> {
        let count = group.seats.len();
        if !piece_bytes.is_multiple_of(8) || piece_bytes < 8 * count || piece_bytes > PIECE_LIMIT {
            let reason = format!("must be a multiple of 8 from {} to {PIECE_LIMIT}", 8 * count);
            return Err(Error::invalid("piece_bytes", piece_bytes, "communicator", reason));
        }
        if group.seats.get(group.own) != Some(&proof.0.index) {
            let reason = format!("must be the seat of index {} in {:?}", proof.0.index, group.seats);
            return Err(Error::invalid("own", group.own, "group", reason));
        }
        let phase = format!("joining the group {}", group.name);
        let warning = Warning::new(deadline);
        let look = |lagging: &[usize]| {
            let missing = || {
                let life = |index: &usize| if proof.0.is_stopped(*index) { STOPPED } else { "alive" };
                let word = |index: &usize| format!("{}, has not joined", life(index));
                lagging.iter().map(|index| Missing { index: *index, last_word: word(index) }).collect()
            };
            let is_any_stopped = || lagging.iter().any(|index| proof.0.is_stopped(*index));
            warning.if_late(deadline, is_any_stopped, (proof.0.index, &phase), missing);
            deadline.check(&phase, missing)
        };
        let swap = join::Swap {
            proved: &proof.0,
            seats: &group.seats,
            label: join::label(&group.name, &group.seats, "join", 0),
            name: "uform-control",
            phase: &phase,
            deadline,
            look: &look,
        };
        let segments = swap.run(Segment::reserve("uform-control", control::size(piece_bytes)))?;
        let controls = segments.into_iter().zip(&group.seats).map(|(segment, index)| {
            Control::new(segment, piece_bytes).ok_or_else(|| Error::Disagreed {
                field: "the size of a piece".to_owned(),
                mine: format!("{piece_bytes} bytes"),
                theirs: "has another".to_owned(),
                index: *index,
            })
        });
        let controls = controls.collect::<Result<Vec<_>>>()?;
        let has_cores = proof.0.core_count > proof.0.mates.len();
        let others = group.seats.iter().filter(|index| **index != proof.0.index);
        let reads_all =
            others.clone().all(|index| proof.0.mates.get(index).is_some_and(|mate| mate.is_readable));
        Ok(Arc::new(Self {
            seats: group.seats.clone(),
            own: group.own,
            piece_bytes,
            has_cores,
            reads_all,
            has_read_remotely: AtomicBool::new(false),
            controls,
            gate: Gate::new(group.name.clone(), Turn::default()),
            told_sites: Default::default(),
            pairs: pairs::pairs(&proof, &group.name, &group.seats, group.own, has_cores),
            ended: OnceLock::new(),
            proof,
        }))
    }

    fn own_control(&self) -> &Control {
        // `join` made one control for each seat, and `own` is a seat.
        &self.controls[self.own]
    }

    fn closed(&self) -> Option<Error> {
        self.gate.closed()
    }

    /// Publishes a call, with the step that this member has come to in it, waits for everybody's, and compares them.
    fn enter(&self, watch: &Watch<'_>, descriptor: &Descriptor, step: u64) -> Result<()> {
        if IS_ON {
            self.own_control().write_descriptor(descriptor);
            self.tell_site(descriptor);
        }
        self.own_control().advance(control::place(watch.sequence, step));
        self.reach(watch, 1, &|_| true)?;
        if IS_ON { self.compare(descriptor) } else { Ok(()) }
    }

    /// Puts where the call is made beside its descriptor, unless the last call there was made at the same place.
    #[inline]
    fn tell_site(&self, descriptor: &Descriptor) {
        // Only the member in a call writes it.
        let told = &self.told_sites[usize::from(!descriptor.sequence.is_multiple_of(2))];
        if told.load(Ordering::Relaxed) != descriptor.site.number() {
            told.store(descriptor.site.number(), Ordering::Relaxed);
            self.own_control().write_site(descriptor.sequence, descriptor.site.text());
        }
    }

    fn compare(&self, own: &Descriptor) -> Result<()> {
        let is_same = |control: &Control| control.has_same_call(self.own_control(), own.sequence);
        if self.controls.iter().all(is_same) {
            return Ok(());
        }
        let calls = self.controls.iter().map(|control| control.descriptor(own.sequence));
        let site = |seat: usize| self.controls[seat].site(own.sequence);
        descriptor::compare(own, self.own, &calls.collect::<Vec<_>>(), &self.seats, self.gate.suffix(), &site)
    }

    /// Ends a call: its place is the last, or, after an error that others cannot follow, the group is ended.
    fn finish(&self, turn: &mut Turn, watch: &Watch<'_>, result: Result<()>) -> Result<()> {
        match result {
            // Calls were crossed: this one does not count as ended here, so that who enters it later finds this member gone.
            Err(error @ Error::Disagreed { .. }) if self.ended.get().is_some() => {
                turn.ended = Some(again(&error));
                Err(error)
            }
            Ok(()) | Err(Error::Disagreed { .. } | Error::Exhausted { .. }) => {
                self.own_control().conclude(watch.sequence);
                result
            }
            Err(error) => {
                self.own_control().leave(&Cause::of(&error, &watch.phase()));
                self.linger(watch);
                turn.ended = Some(again(&error));
                let _ = self.ended.set(again(&error));
                Err(error)
            }
        }
    }

    /// Ends the group because of what happened outside of it: peers that wait in it get this cause.
    pub(super) fn abandon(&self, error: &Error, phase: &str) {
        if self.closed().is_none() {
            let _ = self.ended.set(again(error));
            self.own_control().leave(&Cause::of(error, phase));
        }
    }
}

impl Communicator for SharedCommunicator {
    fn seat(&self) -> usize {
        self.own
    }

    fn count(&self) -> usize {
        self.seats.len()
    }

    fn run(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if descriptor::is_paired(call.verb) {
            return self.pair(&mut call, deadline);
        }
        let count = self.check(&call)?;
        let mut turn = self.gate.begin(call.verb)?;
        self.check_ended()?;
        turn.sequence += 1;
        let watch = Watch::new(call.verb, turn.sequence, self.gate.suffix(), deadline);
        call.numbered(turn.sequence);
        let arena = turn.place_of(&call, count);
        let offer = if arena.is_none() { self.lend(&call, count) } else { None };
        // The first seat tries, and decides for all: the others are always ready.
        let decides = self.own == 0 && offer.is_some();
        let choice = turn.choices.pace(call.verb, if decides { call.output_bytes() } else { 0 });
        let lies = arena.or_else(|| offer.filter(|_| !decides || choice.begin()));
        choice.pause();
        let descriptor = Descriptor {
            sequence: turn.sequence,
            verb: call.verb,
            dtype: call.dtype,
            op: call.op,
            count: count as u64,
            root: call.root as u64,
            shape: descriptor::shape(&call),
            on_gpu: call.gpu.is_some(),
            lies,
            site: call.site,
        };
        // Alive as long as the call: its array lies in it.
        let arena = descriptor.lies.and_then(|lies| turn.arenas.get(&lies.arena)).and_then(Weak::upgrade);
        let result = self.carry(&watch, &descriptor, (arena.as_deref(), &turn, &choice), &mut call);
        self.finish(&mut turn, &watch, result)
    }

    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        let mut turn = self.gate.begin(Verb::Arena)?;
        turn.sequence += 1;
        turn.arena_count += 1;
        let watch = Watch::new(Verb::Arena, turn.sequence, self.gate.suffix(), deadline);
        let mut made = None;
        let result = self
            .enter(&watch, &Descriptor::bare(Verb::Arena, watch.sequence), 1)
            .and_then(|()| self.make_arena(&watch, turn.arena_count, byte_count))
            .map(|arena| made = Some(arena));
        self.finish(&mut turn, &watch, result)?;
        let nothing = || Error::Closed { what: "the arena".to_owned(), why: "it was not made".to_owned() };
        let arena = Arc::new(made.ok_or_else(nothing)?);
        let number = turn.arena_count;
        // From now on calls find out whether their arrays lie in it.
        turn.arenas.retain(|_, arena| arena.strong_count() > 0);
        turn.arenas.insert(number, Arc::downgrade(&arena));
        Ok(arena)
    }

    fn refuse(&self, verb: Verb, reason: &Error) {
        if self.closed().is_none() {
            let (sequence, _) = control::call_of(self.own_control().progress());
            self.own_control().refuse(sequence, &format!("refused {}: {reason}", verb.word()));
        }
    }

    fn give_up(&self, error: &Error, phase: &str) {
        self.abandon(error, phase);
    }

    fn close(&self) {
        if self.gate.close() {
            self.own_control().close();
        }
    }
}

impl Drop for SharedCommunicator {
    fn drop(&mut self) {
        self.close();
    }
}
