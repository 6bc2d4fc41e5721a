//! Memory of all members of a group that all of them map.

use std::ops::Range;

use super::watch::Watch;
use super::{Call, SharedCommunicator, Turn, join};
use crate::communicator::descriptor::{Descriptor, Lies};
use crate::communicator::{SharedArena, small};
use crate::error::{Error, Result};
use crate::sys::shared::Segment;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::Verb;

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

/// The segment an array lies in, and its bytes there.
pub(super) type Array<'a> = (&'a Segment, Range<usize>);

impl Parts {
    pub(super) fn segment(&self, seat: usize) -> Option<&Segment> {
        self.segments.get(seat)
    }
}

/// Whether peers may read a call's array where it lies, if all of them can.
fn is_readable(call: &Call<'_>) -> bool {
    let Some(input) = call.input else { return call.counts.is_none() };
    // A reduction in all places at once writes its sources.
    let is_direct = call.verb != Verb::AllReduce && call.counts.is_none();
    let (from, to) = (input.pointer().addr(), call.output.pointer().addr());
    let is_apart = from + input.byte_count() <= to || to + call.output.byte_count() <= from;
    is_direct && is_apart
}

impl Turn {
    /// Where peers can read what this member brings, if that is its own part of an arena; a member that brings nothing says
    /// where its output lies.
    ///
    /// Not where it writes what they read: its input and its output overlap.
    pub(super) fn place_of(&self, call: &Call<'_>, count: usize) -> Option<Lies> {
        if call.gpu.is_some() || self.arenas.is_empty() || !is_readable(call) {
            return None;
        }
        self.arenas.iter().find_map(|(number, arena)| {
            let arena = arena.upgrade()?;
            let own = arena.segment(arena.own)?;
            let part_bytes = count.saturating_mul(call.dtype.size_bytes());
            let brought = small::contribution(call, arena.own, part_bytes).ok()?;
            let brought = brought.unwrap_or(call.output.as_span());
            let offset = own.offset_of(brought.pointer(), brought.byte_count())?;
            if brought.is_empty() {
                return None;
            }
            Some(Lies { arena: *number, offset: offset as u64, output: 0 })
        })
    }
}

impl SharedCommunicator {
    /// The arrays of all members by seat, if all lie in this one arena; all members decide the same.
    pub(super) fn arrays<'a>(
        &self,
        arena: &'a Parts,
        descriptor: &Descriptor,
        byte_count: usize,
    ) -> Result<Option<Vec<Array<'a>>>> {
        let number = descriptor.lies.map(|lies| lies.arena);
        let calls = self.controls.iter().map(|control| control.descriptor(descriptor.sequence));
        let places = calls.map(|call| call.and_then(|call| call.lies)).collect::<Vec<_>>();
        if places.iter().any(|place| place.map(|lies| lies.arena) != number) {
            return Ok(None);
        }
        let found = places.iter().enumerate().map(|(seat, place)| {
            let start = usize::try_from(place.map_or(u64::MAX, |lies| lies.offset)).unwrap_or(usize::MAX);
            let segment = arena.segment(seat);
            let end = start.checked_add(byte_count);
            // A peer wrote the offset: it counts only if it lies within its part.
            match (segment, end) {
                (Some(segment), Some(end)) if end <= segment.byte_count() => Ok((segment, start..end)),
                _ => Err(Error::Corrupt {
                    path: format!("arena {} of index {}", number.unwrap_or(0), self.seats[seat]).into(),
                    offset: start as u64,
                    reason: format!("the array of {byte_count} bytes that it announced is not within"),
                }),
            }
        });
        found.collect::<Result<Vec<_>>>().map(Some)
    }

    /// Reserves this member's part and maps everybody's, after all have entered.
    pub(super) fn make_arena(&self, watch: &Watch<'_>, number: u64, byte_count: usize) -> Result<Parts> {
        let look = |lagging: &[usize]| self.look_at(watch, lagging);
        let swap = join::Swap {
            proved: &self.proof.0,
            seats: &self.seats,
            label: join::label(self.gate.name(), &self.seats, "arena", number),
            name: "uform-arena",
            phase: &watch.phase(),
            deadline: watch.deadline,
            look: &look,
        };
        let segments = swap.run(Segment::reserve("uform-arena", byte_count))?;
        Ok(Parts { segments, own: self.own })
    }

    /// Everything that ends the wait for messages of these indexes.
    fn look_at(&self, watch: &Watch<'_>, lagging: &[usize]) -> Result<()> {
        let seats = || {
            let seat_of = |index: &usize| self.seats.iter().position(|seat| seat == index);
            lagging.iter().filter_map(seat_of).collect::<Vec<_>>()
        };
        for seat in seats() {
            self.check_seat(seat, u64::MAX, watch)?;
        }
        self.warn_if_late(watch, &seats);
        watch.deadline.check(&watch.phase(), || self.missing(&seats()))?;
        self.closed().map_or(Ok(()), Err::<(), Error>)
    }
}
