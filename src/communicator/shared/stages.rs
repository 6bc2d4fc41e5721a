//! Which of its two stages a member writes in a round, counted over all calls of a group.
//!
//! All members count alike: the rounds of a call follow from what all have agreed on. What was shown in a round is read until its
//! reader publishes a step of a later round or enters a later call; so of the two stages, the one that the next round has is free at
//! the end of a call, but for the root of a broadcast, which waits for nobody at its end.

use std::cell::Cell;

/// The stages of one member.
#[derive(Debug, Default)]
pub(super) struct Stages {
    /// The rounds of all calls that have ended.
    rounds: Cell<usize>,
    busy_until: Cell<u64>,
}

impl Stages {
    /// The stage of a round of this call.
    pub(super) fn of(&self, round: usize) -> usize {
        self.rounds.get().wrapping_add(round) % 2
    }

    /// Counts the rounds of a call that ends.
    pub(super) fn take(&self, rounds: usize) {
        self.rounds.set(self.rounds.get().wrapping_add(rounds));
    }

    /// The place that all others must have published before the next round is shown.
    pub(super) fn busy_until(&self) -> u64 {
        self.busy_until.get()
    }

    /// Others read until they publish this place.
    pub(super) fn keep_until(&self, place: u64) {
        self.busy_until.set(place);
    }
}
