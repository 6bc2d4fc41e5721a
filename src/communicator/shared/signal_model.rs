//! The handshake of shared memory in a model that tries every order of its steps: nothing is read too early, overwritten too early, or
//! slept through; and with any ordering weakened, something is.
//!
//! The signals are the product's, over words of the model. Which stage is written and read in which step is told again here as the
//! verbs do it. Three things of the machine are told to the model: a sequentially consistent load after a sequentially consistent
//! write of the same thread has a full barrier before it (and only then: a plain load may pass such a write); so has the
//! kernel's look at a word; and the kernel looks and goes to sleep in one act, as who wakes sees it.

use std::cell::Cell;
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread::Thread;

use super::control::place;
use super::signal::{self, Memory, Signal, Words};

/// The words of one member.
const COUNTER: usize = 0;
const SLEEPERS: usize = 1;
const STATE: usize = 2;
const DONE: usize = 3;
const WORDS: usize = 4;

/// An ordering that is taken away: of which word, which one, and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Weak {
    word: usize,
    act: Act,
    from: Ordering,
    to: Ordering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Load,
    Write,
    Set,
}

/// What all members see. Cells are bytes that are written and read without an ordering of their own.
struct Shared {
    words: Vec<AtomicU64>,
    /// One for each word: who sleeps beside it.
    beds: Vec<Mutex<Vec<Thread>>>,
    cells: Vec<UnsafeCell<()>>,
    weak: Option<Weak>,
}

/// The memory as one member sees it.
struct Member {
    shared: Rc<Shared>,
    own: usize,
    count: usize,
    /// Whether a barrier must stand before the next sequentially consistent load.
    owes: Cell<bool>,
}

impl Member {
    fn order(&self, word: usize, act: Act, order: Ordering) -> Ordering {
        let is_meant = |weak: &Weak| weak.word == word % WORDS && weak.act == act && weak.from == order;
        self.shared.weak.filter(is_meant).map_or(order, |weak| weak.to)
    }

    fn signal(&self, seat: usize) -> Signal<'_, Self> {
        let first = seat * WORDS;
        let words =
            Words { counter: first + COUNTER, sleepers: first + SLEEPERS, state: Some(first + STATE) };
        Signal { memory: self, words }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own;
        (0..self.count).filter(move |seat| *seat != own)
    }

    fn write(&self, cell: usize) {
        self.shared.cells[cell].with_mut(|_| ());
    }

    fn read(&self, cell: usize) {
        self.shared.cells[cell].with(|_| ());
    }

    fn reach(&self, seat: usize, target: u64) {
        let reached: Result<(), Infallible> = self.signal(seat).reach(target, || Ok(Duration::MAX));
        assert!(reached.is_ok());
    }

    /// Publishes a step and waits for it on all members.
    fn step_together(&self, sequence: u64, step: &mut u64) {
        *step += 1;
        self.signal(self.own).publish(place(sequence, *step));
        self.peers().for_each(|seat| self.reach(seat, place(sequence, *step)));
    }
}

impl Memory for Member {
    type Word = usize;

    fn load(&self, word: usize, order: Ordering) -> u64 {
        let order = self.order(word, Act::Load, order);
        if order == SeqCst && self.owes.replace(false) {
            fence(SeqCst);
        }
        self.shared.words[word].load(if order == SeqCst { Acquire } else { order })
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        let order = self.order(word, Act::Write, order);
        self.owes.set(self.owes.get() || order == SeqCst);
        self.shared.words[word].store(value, if order == SeqCst { Release } else { order });
    }

    fn swap(&self, word: usize, value: u64, order: Ordering) {
        let order = self.order(word, Act::Write, order);
        self.owes.set(self.owes.get() || order == SeqCst);
        self.shared.words[word].swap(value, if order == SeqCst { AcqRel } else { order });
    }

    fn add(&self, word: usize, value: u64, order: Ordering) {
        let order = self.order(word, Act::Write, order);
        self.owes.set(self.owes.get() || order == SeqCst);
        self.shared.words[word].fetch_add(value, if order == SeqCst { AcqRel } else { order });
    }

    fn set(&self, word: usize, bits: u64, order: Ordering) {
        let order = self.order(word, Act::Set, order);
        self.owes.set(self.owes.get() || order == SeqCst);
        self.shared.words[word].fetch_or(bits, if order == SeqCst { AcqRel } else { order });
    }

    fn sleep(&self, word: usize, value: u64, _limit: Duration) {
        let mut bed = self.shared.beds[word].lock().expect("nobody panics in bed");
        fence(SeqCst);
        if self.shared.words[word].load(Relaxed) == value {
            bed.push(loom::thread::current());
            // No lock is held by who sleeps for ever: the model could not end it.
            drop(bed);
            loom::thread::park();
        }
    }

    fn wake(&self, word: usize) {
        let sleepers = std::mem::take(&mut *self.shared.beds[word].lock().expect("nobody panics in bed"));
        sleepers.iter().for_each(Thread::unpark);
    }
}

/// Runs members in every order, each as a thread that does `act`; the last word of what went wrong in any of them.
fn explore(scene: Scene, bound: Option<usize>, weak: Option<Weak>) -> Result<(), String> {
    let Scene { members: count, cells, act } = scene;
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.max_branches = 20_000;
    let explored = catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            // The threads of the model take turns on one thread of the system.
            let shared = Rc::new(Shared {
                words: (0..count * WORDS).map(|_| AtomicU64::new(0)).collect(),
                beds: (0..count * WORDS).map(|_| Mutex::new(Vec::new())).collect(),
                cells: (0..cells).map(|_| UnsafeCell::new(())).collect(),
                weak,
            });
            let member = |own| Member { shared: shared.clone(), own, count, owes: Cell::new(false) };
            let others = (1..count).map(|own| {
                let member = member(own);
                loom::thread::spawn(move || act(&member))
            });
            let others = others.collect::<Vec<_>>();
            act(&member(0));
            others.into_iter().for_each(|other| other.join().expect("it ends"));
        });
    }));
    explored.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(|_| "a panic".to_owned(), |text| text.to_string()),
    })
}

/// The slot of a member for a call; two for each member.
const fn slot(seat: usize, sequence: u64) -> usize {
    seat * 2 + if sequence.is_multiple_of(2) { 0 } else { 1 }
}

/// Three small calls: a slot is written again two calls later.
fn small_calls(member: &Member) {
    for sequence in 1..=3 {
        member.write(slot(member.own, sequence));
        member.step_together(sequence, &mut 0);
        member.peers().for_each(|seat| member.read(slot(seat, sequence)));
        signal::conclude(member, member.own * WORDS + DONE, sequence);
    }
}

/// The same with one slot for each member: too few.
fn one_slot(member: &Member) {
    for sequence in 1..=2 {
        member.write(slot(member.own, 0));
        member.step_together(sequence, &mut 0);
        member.peers().for_each(|seat| member.read(slot(seat, 0)));
    }
}

/// A share of a stage; two stages for each member, a share in each for every seat.
fn share(member: &Member, seat: usize, number: usize, part: usize) -> usize {
    (seat * 2 + number % 2) * member.count + part
}

/// Two calls of `all_reduce` of one piece, as `payload.rs` makes rounds: the first is shown before the entry.
fn reductions(member: &Member) {
    let own = member.own;
    let mut base = 0;
    for (sequence, rounds) in [(1, 1), (2, 1)] {
        let mut step = 1;
        for number in 0..=rounds {
            if number < rounds {
                member.peers().for_each(|seat| member.write(share(member, own, base + number, seat)));
            }
            member.step_together(sequence, &mut step);
            if number < rounds {
                member.peers().for_each(|seat| member.read(share(member, seat, base + number, own)));
                member.write(share(member, own, base + number, own));
            }
            for seat in member.peers().filter(|_| number > 0) {
                member.read(share(member, seat, base + number - 1, seat));
            }
        }
        base += rounds;
    }
}

/// `all_reduce` of three pieces in one call: the first stage is written again.
fn long_reduction(member: &Member) {
    let own = member.own;
    let (mut step, rounds) = (0, 3);
    for number in 0..=rounds {
        if number < rounds {
            member.peers().for_each(|seat| member.write(share(member, own, number, seat)));
        }
        member.step_together(1, &mut step);
        if number < rounds {
            member.peers().for_each(|seat| member.read(share(member, seat, number, own)));
            member.write(share(member, own, number, own));
        }
        for seat in member.peers().filter(|_| number > 0) {
            member.read(share(member, seat, number - 1, seat));
        }
    }
}

/// Rounds of `transfer.rs`, the first of each call shown before the entry; `counts` says whether rounds are counted over calls.
fn transfers_of(member: &Member, calls: &[usize], counts: bool) {
    let mut base = 0;
    for (sequence, rounds) in (1..).zip(calls) {
        let mut step = 1;
        for number in 0..*rounds {
            member.write(share(member, member.own, base + number, 0));
            member.step_together(sequence, &mut step);
            member.peers().for_each(|seat| member.read(share(member, seat, base + number, 0)));
        }
        base += if counts { *rounds } else { 0 };
    }
}

/// A call of three pieces, then one of one piece.
fn transfers(member: &Member) {
    transfers_of(member, &[3, 1], true);
}

/// Three calls of one piece.
fn short_transfers(member: &Member) {
    transfers_of(member, &[1, 1, 1], true);
}

/// The same with rounds that are counted anew in each call.
fn uncounted_transfers(member: &Member) {
    transfers_of(member, &[1, 1, 1], false);
}

/// `broadcast` of three pieces from the first member; a reader waits for the root alone.
fn broadcast(member: &Member) {
    for number in 0..3_usize {
        let step = 2 + number as u64;
        if member.own == 0 {
            if number >= 2 {
                member.peers().for_each(|seat| member.reach(seat, place(1, step - 2)));
            }
            member.write(number % 2);
        } else {
            member.reach(0, place(1, step));
            member.read(number % 2);
        }
        member.signal(member.own).publish(place(1, step));
    }
}

/// Two broadcasts of two pieces: the root shows the first before the entry if all have read what lies in its stage, or so it does
/// anyway if `looks` is false.
fn broadcasts_of(member: &Member, looks: bool) {
    for sequence in 1..=2_u64 {
        let signal = |seat: usize| member.signal(seat);
        if member.own == 0 {
            let is_read = |seat: usize| signal(seat).seen() >= place(sequence - 1, 3);
            let is_early = sequence == 1 || !looks || member.peers().all(is_read);
            if is_early {
                member.write(0);
            }
            signal(0).publish(place(sequence, if is_early { 2 } else { 1 }));
            member.peers().for_each(|seat| member.reach(seat, place(sequence, 1)));
            if !is_early {
                member.write(0);
                signal(0).publish(place(sequence, 2));
            }
            member.write(1);
            signal(0).publish(place(sequence, 3));
        } else {
            signal(member.own).publish(place(sequence, 1));
            for number in 0..2 {
                member.reach(0, place(sequence, 2 + number as u64));
                member.read(number);
                signal(member.own).publish(place(sequence, 2 + number as u64));
            }
        }
    }
}

fn broadcasts(member: &Member) {
    broadcasts_of(member, true);
}

fn hasty_broadcasts(member: &Member) {
    broadcasts_of(member, false);
}

/// Arrays that all see, as `direct.rs` reads and writes them, and what their owners write between two calls.
fn arrays(member: &Member) {
    let array = |seat: usize, part: usize| seat * member.count + part;
    for sequence in 1..=2 {
        (0..member.count).for_each(|part| member.write(array(member.own, part)));
        let mut step = 0;
        member.step_together(sequence, &mut step);
        (0..member.count).for_each(|seat| member.read(array(seat, member.own)));
        (0..member.count).for_each(|seat| member.write(array(seat, member.own)));
        member.step_together(sequence, &mut step);
    }
}

/// The first member waits for a step that does not come: the second leaves, and says why before.
fn departure(member: &Member) {
    if member.own == 1 {
        member.signal(1).publish(place(1, 1));
        member.write(0);
        member.signal(1).end(2);
        return;
    }
    let other = member.signal(1);
    let waited = other.reach(place(1, 2), || match other.state() {
        0 => Ok(Duration::MAX),
        state => Err(state),
    });
    assert_eq!(waited, Err(2));
    member.read(0);
}

/// A member whose call failed writes its array again once the other has ended the call, and not before.
fn loan(member: &Member) {
    if member.own == 1 {
        member.read(0);
        signal::conclude(member, WORDS + DONE, 1);
    } else if signal::has_concluded(member, WORDS + DONE, 1) {
        member.write(0);
    }
}

/// Places of the ring in the model, and messages that go through it.
const RING: u64 = 2;
const MESSAGES: u64 = 3;

/// A ring of bytes, as `pairs.rs` fills and empties it: the first member's counter is what was put in, the second's what was taken.
fn ring(member: &Member) {
    let signal = |seat: usize| Signal {
        memory: member,
        words: Words { counter: seat * WORDS + COUNTER, sleepers: seat * WORDS + SLEEPERS, state: None },
    };
    let cell = |number: u64| usize::try_from(number % RING).expect("small");
    let other = signal(1 - member.own);
    for number in 0..MESSAGES {
        // Full, or empty, is what the other's counter says as long as nothing can be moved.
        let stood = if member.own == 0 { number.wrapping_sub(RING) } else { number };
        while other.seen() == stood {
            other.sleep(stood, Duration::MAX);
        }
        if member.own == 0 {
            member.write(cell(number));
        } else {
            member.read(cell(number));
        }
        signal(member.own).publish(number + 1);
    }
}

/// What the model is made to do.
#[derive(Clone, Copy)]
struct Scene {
    members: usize,
    cells: usize,
    act: fn(&Member),
}

const SMALL_CALLS: Scene = Scene { members: 2, cells: 4, act: small_calls };
const SMALL_CALLS_OF_THREE: Scene = Scene { members: 3, cells: 6, act: small_calls };
const REDUCTIONS: Scene = Scene { members: 2, cells: 8, act: reductions };
const LONG_REDUCTION: Scene = Scene { members: 2, cells: 8, act: long_reduction };
const TRANSFERS: Scene = Scene { members: 2, cells: 8, act: transfers };
const SHORT_TRANSFERS: Scene = Scene { members: 2, cells: 8, act: short_transfers };
const BROADCASTS: Scene = Scene { members: 2, cells: 2, act: broadcasts };
const BROADCAST: Scene = Scene { members: 2, cells: 2, act: broadcast };
const BROADCAST_TO_TWO: Scene = Scene { members: 3, cells: 2, act: broadcast };
const ARRAYS: Scene = Scene { members: 2, cells: 4, act: arrays };
const DEPARTURE: Scene = Scene { members: 2, cells: 1, act: departure };
const LOAN: Scene = Scene { members: 2, cells: 1, act: loan };
const PAIR: Scene = Scene { members: 2, cells: 2, act: ring };

/// How often a member may be put aside while it could go on; waits are not counted. Every fault that is known shows with two.
const PREEMPTIONS: Option<usize> = Some(2);
/// The orders of three are many more.
const PREEMPTIONS_OF_THREE: Option<usize> = Some(1);

/// A scene holds in every order, with at most so many preemptions if a bound is given.
fn assert_holds(scene: Scene, bound: Option<usize>) {
    assert_eq!(explore(scene, bound, None), Ok(()));
}

#[test]
fn small_calls_hold() {
    assert_holds(SMALL_CALLS, PREEMPTIONS);
}

#[test]
fn small_calls_of_three_hold() {
    assert_holds(SMALL_CALLS_OF_THREE, PREEMPTIONS_OF_THREE);
}

#[test]
fn rounds_of_a_reduction_hold() {
    assert_holds(REDUCTIONS, PREEMPTIONS);
}

#[test]
fn a_stage_written_again_holds() {
    assert_holds(LONG_REDUCTION, PREEMPTIONS);
}

#[test]
fn transfers_hold() {
    assert_holds(TRANSFERS, PREEMPTIONS);
    assert_holds(SHORT_TRANSFERS, PREEMPTIONS);
}

#[test]
fn broadcasts_hold() {
    assert_holds(BROADCASTS, PREEMPTIONS);
}

#[test]
fn a_broadcast_holds() {
    assert_holds(BROADCAST, PREEMPTIONS);
}

#[test]
fn a_broadcast_to_two_holds() {
    assert_holds(BROADCAST_TO_TWO, PREEMPTIONS_OF_THREE);
}

#[test]
fn arrays_that_all_see_hold() {
    assert_holds(ARRAYS, PREEMPTIONS);
}

#[test]
fn a_departure_is_seen() {
    assert_holds(DEPARTURE, None);
}

#[test]
fn a_loan_ends() {
    assert_holds(LOAN, None);
}

#[test]
fn a_ring_holds() {
    assert_holds(PAIR, PREEMPTIONS);
}

/// Every ordering of `signal.rs` but those of a sleeper's count, beside which the kernel has its own barrier: what is left of it in a mutant, and the scene that misses it.
const MUTANTS: &[(Scene, Weak)] = &[
    (SMALL_CALLS, Weak { word: COUNTER, act: Act::Load, from: Acquire, to: Relaxed }),
    (SMALL_CALLS, Weak { word: COUNTER, act: Act::Write, from: SeqCst, to: Relaxed }),
    (SMALL_CALLS, Weak { word: COUNTER, act: Act::Write, from: SeqCst, to: Acquire }),
    (SMALL_CALLS, Weak { word: COUNTER, act: Act::Write, from: SeqCst, to: AcqRel }),
    (SMALL_CALLS, Weak { word: SLEEPERS, act: Act::Load, from: SeqCst, to: Acquire }),
    (PAIR, Weak { word: COUNTER, act: Act::Load, from: Acquire, to: Relaxed }),
    (PAIR, Weak { word: COUNTER, act: Act::Write, from: SeqCst, to: Acquire }),
    (PAIR, Weak { word: COUNTER, act: Act::Write, from: SeqCst, to: AcqRel }),
    (DEPARTURE, Weak { word: SLEEPERS, act: Act::Load, from: SeqCst, to: Acquire }),
    (DEPARTURE, Weak { word: COUNTER, act: Act::Set, from: SeqCst, to: AcqRel }),
    (DEPARTURE, Weak { word: STATE, act: Act::Write, from: Release, to: Relaxed }),
    (DEPARTURE, Weak { word: STATE, act: Act::Load, from: Acquire, to: Relaxed }),
    (LOAN, Weak { word: DONE, act: Act::Write, from: Release, to: Relaxed }),
    (LOAN, Weak { word: DONE, act: Act::Load, from: Acquire, to: Relaxed }),
];

#[test]
fn no_ordering_of_the_handshake_can_be_weaker() {
    for (scene, weak) in MUTANTS {
        let found = explore(*scene, PREEMPTIONS, Some(*weak)).expect_err(&format!("{weak:?} is not missed"));
        println!("{weak:?}: {}", found.lines().next().unwrap_or_default());
        assert!(found.contains("Causality violation") || found.contains("deadlock"), "{weak:?}: {found}");
    }
}

#[test]
fn too_few_slots_are_found() {
    let found =
        explore(Scene { act: one_slot, ..SMALL_CALLS }, PREEMPTIONS, None).expect_err("one slot is too few");
    assert!(found.contains("Causality violation"), "{found}");
}

#[test]
fn stages_that_are_written_too_early_are_found() {
    for scene in
        [Scene { act: uncounted_transfers, ..SHORT_TRANSFERS }, Scene { act: hasty_broadcasts, ..BROADCASTS }]
    {
        let found = explore(scene, PREEMPTIONS, None).expect_err("it is too early");
        assert!(found.contains("Causality violation"), "{found}");
    }
}
