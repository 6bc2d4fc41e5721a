//! A group of threads for the trainer's own tests: no socket, no process, and members that can fail on purpose.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::communicator::control::Life;
use crate::communicator::{Call, Channel, Communicator, SharedArena};
use crate::error::{Error, Missing, Result};
use crate::sys::shared::Segment;
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::Verb;

/// Bytes, and a segment where the call makes an arena.
type Brought = (Vec<u8>, Option<Arc<Segment>>);

/// What the members of one round have brought.
#[derive(Default)]
struct Round {
    brought: Vec<Option<(Verb, Brought)>>,
    taken: usize,
    closed: Option<usize>,
}

struct Table {
    round: Mutex<Round>,
    changed: Condvar,
}

/// One seat of the group.
pub(super) struct Seat {
    table: Arc<Table>,
    seat: usize,
    count: usize,
}

struct Parts {
    parts: Vec<Arc<Segment>>,
    seat: usize,
}

impl SharedArena for Parts {
    fn part(&self, seat: usize) -> Option<Span<'_>> {
        self.parts.get(seat).map(|segment| segment.span())
    }
    fn part_mut(&self, seat: usize) -> Option<SpanMut<'_>> {
        self.parts.get(seat).map(|segment| segment.span_mut())
    }
    fn seat(&self) -> usize {
        self.seat
    }
}

impl Seat {
    /// All seats of a new group.
    pub(super) fn group(count: usize) -> Vec<Arc<dyn Communicator>> {
        let round = Round { brought: (0..count).map(|_| None).collect(), ..Round::default() };
        let table = Arc::new(Table { round: Mutex::new(round), changed: Condvar::new() });
        let seat = |seat| Arc::new(Self { table: Arc::clone(&table), seat, count }) as Arc<dyn Communicator>;
        (0..count).map(seat).collect()
    }

    /// Brings something and takes what all have brought.
    fn meet(
        &self,
        verb: Verb,
        bytes: Vec<u8>,
        segment: Option<Arc<Segment>>,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Brought>> {
        let wait = |round| {
            let waited = self.table.changed.wait_timeout(round, Duration::from_millis(5));
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let mut round = self.table.round.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = |round: &Round| {
            let absent = round.brought.iter().enumerate().filter(|(_, brought)| brought.is_none());
            absent.map(|(index, _)| Missing { index, last_word: "elsewhere".to_owned() }).collect::<Vec<_>>()
        };
        // The round before must have been taken by all.
        while round.brought[self.seat].is_some() {
            self.check(&round, deadline, Vec::new())?;
            round = wait(round);
        }
        round.brought[self.seat] = Some((verb, (bytes, segment)));
        self.table.changed.notify_all();
        while round.brought.iter().any(Option::is_none) {
            let absent = missing(&round);
            self.check(&round, deadline, absent)?;
            round = wait(round);
        }
        let all = round.brought.iter().flatten().cloned().collect::<Vec<_>>();
        round.taken += 1;
        if round.taken == self.count {
            round.taken = 0;
            round.brought.iter_mut().for_each(|brought| *brought = None);
        } else {
            while round.taken != 0 && round.brought[self.seat].is_some() {
                self.check(&round, deadline, Vec::new())?;
                round = wait(round);
            }
        }
        self.table.changed.notify_all();
        drop(round);
        let first = all[0].0;
        if let Some(index) = all.iter().position(|(other, ..)| *other != first) {
            let (mine, theirs) = (first.word().to_owned(), all[index].0.word().to_owned());
            return Err(Error::Disagreed { field: "verb".to_owned(), mine, theirs, index });
        }
        Ok(all.into_iter().map(|(_, brought)| brought).collect())
    }

    fn check(&self, round: &Round, deadline: &Deadline<'_>, missing: Vec<Missing>) -> Result<()> {
        if let Some(index) = round.closed {
            return Err(Error::Lost { index, host: "here".to_owned(), pid: 0, phase: "closed".to_owned() });
        }
        deadline.check("a call of the fake group", || missing)
    }
}

impl Channel for Seat {
    fn post(&self, _seat: usize, _message: &[u8]) -> bool {
        false
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        Vec::new()
    }

    fn life(&self, _seat: usize) -> Life {
        Life::Lives
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn rest(&self, limit: Duration) {
        std::thread::sleep(limit);
    }

    fn went_on(&self, _words: &str) {}
}

impl Communicator for Seat {
    fn seat(&self) -> usize {
        self.seat
    }

    fn count(&self) -> usize {
        self.count
    }

    fn run(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let own = call.input.unwrap_or(Span::empty()).to_vec();
        let all = self.meet(call.verb, own, None, deadline)?;
        let all = all.into_iter().flat_map(|(bytes, _)| bytes).collect::<Vec<_>>();
        call.output.copy_from(Span::of(&all))
    }

    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        let own = Arc::new(Segment::reserve("fake", byte_count)?);
        let all = self.meet(Verb::Arena, Vec::new(), Some(own), deadline)?;
        let parts = all.into_iter().filter_map(|(_, segment)| segment).collect();
        Ok(Arc::new(Parts { parts, seat: self.seat }))
    }

    fn refuse(&self, _verb: Verb, _reason: &Error) {}

    fn close(&self) {
        let mut round = self.table.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.closed.get_or_insert(self.seat);
        self.table.changed.notify_all();
    }
}
