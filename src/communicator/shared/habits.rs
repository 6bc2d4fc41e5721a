//! Whether what members show each other is written past the caches: found out by trying, for each verb and size.
//!
//! A line that one core changes and another reads, again and again, goes from cache to cache each way. Where the two share a
//! cache that is the fastest way, at some sizes. Where they share none it takes several times as long as through memory, and which
//! cores share one may change while a program runs: a host moves the cores of a virtual machine. So nothing is asked of the
//! machine. Once in a period of rounds some go one way and some the other, and the faster way is taken until the next trial.
//!
//! A round is what passes through a stage between two waits, or a call whose contributions lie beside the descriptors. All members
//! count the same rounds, so that they try the same way together; what each takes from it is its own affair, as no byte depends
//! on it.

use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crate::vocabulary::Verb;

/// Contributions below this size are never written past the caches.
pub(super) const STREAMED_BYTES: usize = 2 << 10;
/// How one of two ways is found out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Rounds in a row that go one way in a trial.
    run: u32,
    /// The first rounds of a run, which find memory as the other way left it.
    settling: u32,
    /// Rounds from the beginning of a trial to that of the next.
    period: u32,
    /// Contributions below this size are never tried.
    least_bytes: usize,
}

/// Rounds through the stages, or beside the descriptors: through the caches or past them.
pub(super) const STAGES: Rules = Rules { run: 6, settling: 2, period: 512, least_bytes: STREAMED_BYTES };
/// Whole calls: through the stages, or through the kernel.
pub(super) const CALLS: Rules =
    Rules { run: 3, settling: 1, period: 256, least_bytes: super::remote::LENT_BYTES };
/// Sizes are told apart by their powers of two, up to some.
const SIZES: usize = 18;
/// More than verbs have numbers.
const VERBS: usize = 32;

/// What a member of a group has found out, by verb and size.
#[derive(Debug)]
pub(super) struct Habits {
    rules: Rules,
    habits: Vec<Cell<Habit>>,
}

#[derive(Debug, Clone, Copy)]
struct Habit {
    /// Counted from the beginning of the last trial.
    round: u32,
    streams: bool,
    /// The shortest rounds of a trial in nanoseconds: through the caches, and past them.
    shortest: [u64; 2],
}

/// The rounds of one call.
#[derive(Debug)]
pub(super) struct Pace<'h> {
    rules: Rules,
    habit: Option<&'h Cell<Habit>>,
    since: Cell<Option<Instant>>,
    spent: Cell<Duration>,
}

impl Habits {
    /// Nothing is known yet.
    pub(super) fn new(rules: Rules) -> Self {
        let none = Habit { round: 0, streams: false, shortest: [u64::MAX; 2] };
        Self { rules, habits: vec![Cell::new(none); VERBS * SIZES] }
    }

    /// The rounds of a call in which this member shows `byte_count` bytes.
    pub(super) fn pace(&self, verb: Verb, byte_count: usize) -> Pace<'_> {
        let verb = usize::try_from(verb.number()).unwrap_or(0) % VERBS;
        let size = (byte_count / self.rules.least_bytes).checked_ilog2();
        let habit = size.and_then(|size| self.habits.get(verb * SIZES + (size as usize).min(SIZES - 1)));
        Pace { rules: self.rules, habit, since: Cell::new(None), spent: Cell::new(Duration::ZERO) }
    }
}

impl Habit {
    /// Which way the next round goes, and whether it is timed.
    const fn way(self, Rules { run, settling, .. }: Rules) -> (bool, bool) {
        let is_timed = self.round < 2 * run && self.round % run >= settling;
        let streams = if self.round < 2 * run { self.round >= run } else { self.streams };
        (streams, is_timed)
    }

    /// A round is over, and took so long if it was timed.
    fn learn(&mut self, Rules { run, period, .. }: Rules, nanoseconds: Option<u64>) {
        if let Some(nanoseconds) = nanoseconds {
            let shortest = &mut self.shortest[usize::from(self.round >= run)];
            *shortest = nanoseconds.min(*shortest);
        }
        self.round += 1;
        if self.round == 2 * run {
            let [kept, streamed] = self.shortest;
            // Who changes its way wants a reason.
            let margin = |other: u64| other - other / 16;
            self.streams = if self.streams { streamed <= kept + kept / 16 } else { streamed < margin(kept) };
            self.shortest = [u64::MAX; 2];
        }
        if self.round >= period {
            self.round = 0;
        }
    }
}

impl Pace<'_> {
    /// Begins a round; whether it is written past the caches.
    pub(super) fn begin(&self) -> bool {
        let Some(habit) = self.habit else { return false };
        let (streams, is_timed) = habit.get().way(self.rules);
        if is_timed {
            self.spent.set(Duration::ZERO);
            self.since.set(Some(Instant::now()));
        }
        streams
    }

    /// Stops the clock once what was written is on its way: what follows depends on when others come.
    pub(super) fn pause(&self) {
        if let Some(since) = self.since.get() {
            fence(Ordering::SeqCst);
            self.spent.set(self.spent.get() + since.elapsed());
        }
    }

    /// Lets the clock go on.
    pub(super) fn resume(&self) {
        if self.since.get().is_some() {
            self.since.set(Some(Instant::now()));
        }
    }

    /// Ends a round.
    pub(super) fn end(&self) {
        let Some(habit) = self.habit else { return };
        self.pause();
        let nanoseconds = self.since.take().map(|_| self.spent.get().as_nanos());
        let mut learned = habit.get();
        learned.learn(self.rules, nanoseconds.map(|count| u64::try_from(count).unwrap_or(u64::MAX)));
        habit.set(learned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays rounds that take so long, one way and the other; gives the ways taken.
    fn play(habit: &mut Habit, rounds: u32, nanoseconds: [u64; 2]) -> Vec<bool> {
        let mut ways = Vec::new();
        for _ in 0..rounds {
            let (streams, is_timed) = habit.way(STAGES);
            habit.learn(STAGES, is_timed.then_some(nanoseconds[usize::from(streams)]));
            ways.push(streams);
        }
        ways
    }

    fn fresh() -> Habit {
        Habit { round: 0, streams: false, shortest: [u64::MAX; 2] }
    }

    #[test]
    fn the_faster_way_is_taken_until_the_other_one_is_faster() {
        let mut habit = fresh();
        let ways = play(&mut habit, STAGES.period, [300, 100]);
        assert_eq!(
            ways.iter().filter(|streams| !**streams).count(),
            STAGES.run as usize,
            "only those of the trial"
        );
        let ways = play(&mut habit, STAGES.period, [100, 300]);
        assert_eq!(ways.iter().filter(|streams| **streams).count(), STAGES.run as usize);
    }

    #[test]
    fn a_small_difference_changes_nothing() {
        let mut habit = fresh();
        play(&mut habit, STAGES.period, [100, 98]);
        assert!(!habit.streams);
        play(&mut habit, STAGES.period, [100, 80]);
        play(&mut habit, STAGES.period, [100, 103]);
        assert!(habit.streams);
    }

    #[test]
    fn one_slow_round_of_a_trial_decides_nothing() {
        let mut habit = fresh();
        for round in 0..STAGES.period {
            let (streams, is_timed) = habit.way(STAGES);
            let usual = if streams { 100 } else { 300 };
            habit.learn(
                STAGES,
                is_timed.then_some(if round == STAGES.run + STAGES.settling { 9_000 } else { usual }),
            );
        }
        assert!(habit.streams);
    }

    #[test]
    fn small_calls_are_never_tried_and_huge_ones_share_a_habit() {
        let habits = Habits::new(STAGES);
        let small = habits.pace(Verb::AllReduce, STREAMED_BYTES - 1);
        for _ in 0..2 * STAGES.run {
            assert!(!small.begin());
            small.end();
        }
        for (number, size) in
            [usize::MAX, usize::MAX / 2].into_iter().cycle().take(2 * STAGES.run as usize).enumerate()
        {
            let pace = habits.pace(Verb::AllToAll, size);
            assert_eq!(pace.begin(), number >= STAGES.run as usize);
            pace.pause();
            pace.resume();
            pace.end();
        }
    }
}
