//! Memory of all members of a group that all of them map.

use super::watch::Watch;
use super::{SharedCommunicator, join};
use crate::communicator::SharedArena;
use crate::error::{Error, Missing, Result};
use crate::sys::shared::Segment;
use crate::sys::{Span, SpanMut};

/// The parts of one arena, by seat.
#[derive(Debug)]
pub(super) struct Parts {
    segments: Vec<Segment>,
    own: usize,
}

impl SharedArena for Parts {
    fn part(&self, seat: usize) -> Option<Span<'_>> {
        self.segments.get(seat).map(Segment::span)
    }

    fn part_mut(&self, seat: usize) -> Option<SpanMut<'_>> {
        self.segments.get(seat).map(Segment::span_mut)
    }

    fn seat(&self) -> usize {
        self.own
    }
}

impl SharedCommunicator {
    /// Reserves this member's part and maps everybody's, after all have entered.
    pub(super) fn make_arena(&self, watch: &Watch<'_>, number: u64, byte_count: usize) -> Result<Parts> {
        let look = |lagging: &[usize]| self.look_at(watch, lagging);
        let swap = join::Swap {
            proved: &self.proof.0,
            seats: &self.seats,
            label: join::label(&self.name, &self.seats, "arena", number),
            name: "uform-arena",
            phase: &watch.phase,
            deadline: watch.deadline,
            look: &look,
        };
        let segments = swap.run(Segment::reserve("uform-arena", byte_count))?;
        Ok(Parts { segments, own: self.own })
    }

    /// Everything that ends the wait for messages of these indexes.
    fn look_at(&self, watch: &Watch<'_>, lagging: &[usize]) -> Result<()> {
        let seat_of = |index: &usize| self.seats.iter().position(|seat| seat == index);
        for seat in lagging.iter().filter_map(seat_of) {
            self.check_seat(seat, u64::MAX, &watch.phase)?;
        }
        watch.deadline.check(&watch.phase, || {
            let word = |index: &usize| Missing {
                index: *index,
                last_word: seat_of(index).map_or_else(String::new, |seat| self.last_word(seat)),
            };
            lagging.iter().map(word).collect()
        })?;
        self.closed().map_or(Ok(()), Err::<(), Error>)
    }
}
