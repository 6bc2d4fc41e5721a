//! What each verb moves, once all members have agreed on the call.
//!
//! Small contributions lie beside the descriptors: nothing more is waited for. Large ones pass through the stages piece
//! by piece. A stage is written again only after every reader has published a later step.

use std::ops::Range;

use super::arena::Parts;
use super::control::{self, INLINE_BYTES, LAST_STEP};
use super::habits::{Habits, Pace};
use super::watch::Watch;
use super::{Call, SharedCommunicator};
use crate::communicator::Progress;
use crate::communicator::descriptor::{self, Descriptor};
use crate::communicator::reduce::{pieces, share, with_spans};
use crate::communicator::spread::{Spread, Store};
use crate::communicator::{parts, small};
use crate::error::Result;
use crate::sys::kernel::Table;
use crate::sys::{Span, SpanMut, settle};
use crate::vocabulary::Verb;

/// The arguments of one call, counted in elements.
pub(super) struct Work<'c, 'a> {
    pub(super) watch: &'c Watch<'a>,
    pub(super) descriptor: &'c Descriptor,
    pub(super) size: usize,
    /// The elements of one member's share: `count` of the descriptor.
    pub(super) count: usize,
    pub(super) input: Option<Span<'c>>,
    pub(super) kernels: Table,
    /// The threads that share large copies and reductions.
    pub(super) spread: Spread<'c>,
    progress: Option<&'c Progress<'c>>,
    /// The rounds of this call through the stages.
    pub(super) pace: Pace<'c>,
    /// Whether the output is too large to stay in a cache.
    is_large: bool,
}

/// Bytes that are reduced at a time.
const BLOCK_BYTES: usize = 8 << 10;
/// Outputs from this size on are written past the caches, where nothing of them was read.
const LARGE_BYTES: usize = 8 << 20;

/// How bytes are stored that others read after the next step: through the caches, or past them.
const fn shown(streams: bool) -> Store {
    if streams { Store::Poured } else { Store::Kept }
}

impl Work<'_, '_> {
    /// Counts bytes of the output that are there.
    pub(super) fn advance(&self, byte_count: usize) {
        if let Some(progress) = self.progress {
            progress.advance(byte_count as u64);
        }
    }

    /// Copies into the own stage, for others to read after the next step: through the caches, or past them.
    pub(super) fn show(&self, target: &mut SpanMut<'_>, source: Span<'_>, streams: bool) -> Result<()> {
        self.spread.copy(target, source, shown(streams))
    }

    /// Copies into a part of the output.
    pub(super) fn take(&self, target: &mut SpanMut<'_>, source: Span<'_>) -> Result<()> {
        self.spread.copy(target, source, Store::Kept)
    }

    /// Copies into a part of the output that was not read before.
    pub(super) fn put(&self, target: &mut SpanMut<'_>, source: Span<'_>) -> Result<()> {
        if !self.is_large {
            return self.take(target, source);
        }
        self.spread.copy(target, source, Store::Poured)?;
        settle();
        Ok(())
    }

    /// Combines contributions as the call wants it.
    pub(super) fn reduce(&self, sources: &[Span<'_>], target: &mut SpanMut<'_>) -> Result<()> {
        let Descriptor { dtype, op, .. } = *self.descriptor;
        self.spread.reduce(self.kernels, (dtype, op), sources, target)
    }
}

impl SharedCommunicator {
    /// Checks a call before it takes a number; gives its count.
    pub(super) fn check(&self, call: &Call<'_>) -> Result<usize> {
        let members = self.seats.len();
        let count = descriptor::check(call, self.own, members)?;
        parts::check_room(call, members, INLINE_BYTES)?;
        let piece = (self.piece_bytes / (call.dtype.size_bytes() * members)).max(1) as u64;
        if call.gpu.is_none() && (count as u64).saturating_mul(2) / piece + 8 > LAST_STEP {
            let reason = "has more pieces than one call can count".to_owned();
            return Err(descriptor::invalid("output", call.output_bytes(), reason));
        }
        Ok(count)
    }

    /// Agrees on the call, then moves its payload.
    pub(super) fn carry(
        &self,
        watch: &Watch<'_>,
        descriptor: &Descriptor,
        (arena, habits): (Option<&Parts>, &Habits),
        call: &mut Call<'_>,
    ) -> Result<()> {
        let (size, members) = (descriptor.dtype.size_bytes(), self.seats.len());
        let count = usize::try_from(descriptor.count).unwrap_or(usize::MAX);
        if members == 1 {
            return match call.input {
                Some(input) if descriptor.verb != Verb::Barrier => {
                    Spread(call.crew).copy(&mut call.output, input, Store::Kept)
                }
                _ => Ok(()),
            };
        }
        let (own, part_bytes) = (self.own, count.saturating_mul(size));
        let contribution_bytes = small::contribution_bytes(descriptor.verb, part_bytes, members);
        let is_small = call.gpu.is_none() && !descriptor.is_counted() && contribution_bytes <= INLINE_BYTES;
        let pace = habits.pace(descriptor.verb, contribution_bytes);
        if is_small && let Some(contribution) = small::contribution(call, own, part_bytes)? {
            let streams = pace.begin();
            self.own_control().write_inline(watch.sequence, contribution, streams)?;
            pace.pause();
        }
        if let Some(pairs) = parts::pairs(call) {
            self.own_control().write_inline(watch.sequence, Span::of(&pairs), false)?;
        }
        self.enter(watch, descriptor)?;
        // What is small has come with the descriptors; without elements there is nothing to come.
        if is_small || count == 0 && !descriptor.is_counted() {
            call.matched_last()
        } else {
            call.matched()
        }
        if count == 0 && !descriptor.is_counted() {
            return Ok(());
        }
        if call.gpu.is_some() {
            let received = call.receive_counts.filter(|_| descriptor.verb == Verb::AllToAll);
            return received.map_or(Ok(()), |received| self.check_pairs(watch, received).map(|_| ()));
        }
        if is_small {
            let contributed = |seat: usize| self.controls[seat].inline(watch.sequence, contribution_bytes);
            pace.resume();
            small::settle(call, own, members, part_bytes, contributed)?;
            pace.end();
            return Ok(());
        }
        let (kernels, progress) = (call.kernels, call.progress.as_ref());
        let is_large = call.output.byte_count() >= LARGE_BYTES;
        let (input, spread) = (call.input, Spread(call.crew));
        let work = Work { watch, descriptor, size, count, input, kernels, spread, progress, pace, is_large };
        let output = &mut call.output;
        if Self::is_direct(descriptor)
            && let Some(arena) = arena
            && let Some(arrays) = self.arrays(arena, descriptor, contribution_bytes)?
        {
            return self.read_directly(&work, &arrays, output);
        }
        match descriptor.verb {
            _ if Self::is_transfer(descriptor) => {
                self.transfer(&work, call.counts, call.receive_counts, output)
            }
            Verb::AllReduce => self.all_reduce(&work, output, true),
            Verb::Reduce => self.all_reduce(&work, output, call.root == own),
            Verb::Broadcast => self.broadcast(&work, output),
            _ => Ok(()),
        }
    }

    /// Publishes a step and waits for it on all members.
    pub(super) fn step_together(&self, watch: &Watch<'_>, step: &mut u64) -> Result<()> {
        *step += 1;
        settle();
        self.own_control().advance(control::place(watch.sequence, *step));
        self.reach(watch, *step, &|_| true)
    }

    /// Reduces through the stages; those who read take the result.
    ///
    /// In round k each member shows the others their shares of piece k, waits until all have, reduces its own share, and takes
    /// the results of piece k - 1: one wait for each piece. The result of a share lies in the stage where nobody else
    /// has to be shown anything. A stage is written again two rounds later: what was shown in it was read before the round between
    /// began, and its result before the round of the write did.
    fn all_reduce(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>, reads: bool) -> Result<()> {
        let (size, members, own) = (work.size, self.seats.len(), self.own);
        let length = self.piece_bytes / size;
        let rounds = work.count.div_ceil(length);
        // Bytes of a seat's share of a piece: in the stage, and in the array. In the stage it begins where that of a whole piece
        // does: the shares of a shorter one touch no result of the piece before last, which somebody may still read.
        let places = |number: usize, seat: usize| {
            let start = number * length;
            let range = share(length.min(work.count - start), members, seat);
            let first = share(length, members, seat).start;
            let bytes = |start: usize| start * size..(start + range.len()) * size;
            (bytes(first), bytes(start + range.start))
        };
        let mut step = 1;
        for number in 0..=rounds {
            let streams = number < rounds && work.pace.begin();
            if number < rounds {
                self.own_control().with_stage(number, |stage| {
                    for seat in (0..members).filter(|seat| *seat != own) {
                        let (staged, place) = places(number, seat);
                        let source = work.input.unwrap_or(output.as_span()).part(place)?;
                        work.show(&mut stage.part(staged)?, source, streams)?;
                    }
                    Ok(())
                })?;
            }
            self.step_together(work.watch, &mut step)?;
            if number < rounds {
                self.reduce_share(work, (number, streams), places(number, own), output, reads)?;
            }
            for seat in (0..members).filter(|seat| reads && number > 0 && *seat != own) {
                let (staged, place) = places(number - 1, seat);
                work.advance(place.len());
                work.take(&mut output.part(place)?, self.controls[seat].stage(number - 1)?.part(staged)?)?;
            }
            if number < rounds {
                work.pace.end();
            }
        }
        Ok(())
    }

    /// Reduces the own share of a piece into the own stage, and into the output of who reads: a block at a time, which goes to both
    /// places out of the first cache.
    fn reduce_share(
        &self,
        work: &Work<'_, '_>,
        (number, streams): (usize, bool),
        (staged, place): (Range<usize>, Range<usize>),
        output: &mut SpanMut<'_>,
        reads: bool,
    ) -> Result<()> {
        let Descriptor { dtype, op, .. } = *work.descriptor;
        let (kernels, input) = (work.kernels, work.input);
        // Bytes of the share, and where its result goes besides; in place that is where the own contribution lies.
        let blocks = |part: Range<usize>, mut target: Option<&mut SpanMut<'_>>| {
            let mut block = [0_u64; BLOCK_BYTES / 8];
            let mut block = SpanMut::of(&mut block);
            for bytes in pieces(part.len(), BLOCK_BYTES) {
                let within = |range: &Range<usize>| {
                    let start = range.start + part.start;
                    start + bytes.start..start + bytes.end
                };
                let source = |seat: usize| match (input, &target) {
                    _ if seat != self.own => self.controls[seat].stage(number)?.part(within(&staged)),
                    (Some(input), _) => input.part(within(&place)),
                    (None, Some(target)) => target.as_span().part(bytes.clone()),
                    (None, None) => Span::empty().part(bytes.clone()),
                };
                let mut result = block.part(0..bytes.len())?;
                with_spans(self.seats.len(), source, |sources| {
                    kernels.reduce(dtype, op, sources, &mut result)
                })?;
                self.own_control().with_stage(number, |stage| {
                    shown(streams).copy(&mut stage.part(within(&staged))?, result.as_span())
                })?;
                if let Some(target) = &mut target {
                    target.part(bytes)?.copy_from(result.as_span())?;
                }
            }
            Ok(())
        };
        let length = place.len();
        let crew = work.spread.of(length);
        match (reads, crew) {
            (true, Some(crew)) => {
                crew.parts(&mut output.part(place.clone())?, &|part, target| blocks(part, Some(target)))?;
            }
            (true, None) => blocks(0..length, Some(&mut output.part(place.clone())?))?,
            (false, Some(crew)) => crew.ranges(length, &|part| blocks(part, None))?,
            (false, None) => blocks(0..length, None)?,
        }
        if reads {
            work.advance(length);
        }
        Ok(())
    }

    fn broadcast(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>) -> Result<()> {
        let root = usize::try_from(work.descriptor.root).unwrap_or(0);
        for (number, piece) in pieces(work.count, self.piece_bytes / work.size).enumerate() {
            let bytes = piece.start * work.size..piece.end * work.size;
            let length = bytes.len();
            let step = 2 + number as u64;
            let streams = work.pace.begin();
            if root == self.own {
                // This stage was read by all before they published the step of the piece in it.
                if number >= 2 {
                    self.reach(work.watch, step - 2, &|_| true)?;
                }
                let source = output.as_span().part(bytes)?;
                self.own_control()
                    .with_stage(number, |stage| work.show(&mut stage.part(0..length)?, source, streams))?;
            } else {
                self.reach(work.watch, step, &|seat| seat == root)?;
                work.put(&mut output.part(bytes)?, self.controls[root].stage(number)?.part(0..length)?)?;
            }
            settle();
            self.own_control().advance(control::place(work.watch.sequence, step));
            work.pace.end();
            work.advance(length);
        }
        Ok(())
    }
}
