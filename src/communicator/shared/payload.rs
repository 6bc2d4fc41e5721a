//! What each verb moves, once all members have agreed on the call.
//!
//! Small contributions lie beside the descriptors: nothing more is waited for. Large ones pass through the stages piece
//! by piece. A stage is written again only after every reader has published a later step.

use std::ops::Range;

use super::arena::{Array, Parts};
use super::control::{self, INLINE_BYTES, LAST_STEP};
use super::watch::Watch;
use super::{Call, SharedCommunicator};
use crate::communicator::Progress;
use crate::communicator::descriptor::{self, Descriptor};
use crate::communicator::reduce::{pieces, share};
use crate::communicator::{parts, small};
use crate::error::Result;
use crate::sys::kernel::Table;
use crate::sys::{Span, SpanMut};
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
    progress: Option<&'c Progress<'c>>,
}

impl Work<'_, '_> {
    /// Counts bytes of the output that are there.
    pub(super) fn advance(&self, byte_count: usize) {
        if let Some(progress) = self.progress {
            progress.advance(byte_count as u64);
        }
    }
}

impl SharedCommunicator {
    /// Checks a call before it takes a number; gives its count.
    pub(super) fn check(&self, call: &Call<'_>) -> Result<usize> {
        let members = self.seats.len();
        let count = descriptor::check(call, self.own, members)?;
        parts::check_room(call, members, INLINE_BYTES)?;
        let piece = (self.piece_bytes / (call.dtype.size_bytes() * members)).max(1) as u64;
        if (count as u64).saturating_mul(2) / piece + 8 > LAST_STEP {
            let reason = "has more pieces than one call can count".to_owned();
            return Err(descriptor::invalid("output", call.output.byte_count(), reason));
        }
        Ok(count)
    }

    /// Agrees on the call, then moves its payload.
    pub(super) fn carry(
        &self,
        watch: &Watch<'_>,
        descriptor: &Descriptor,
        arena: Option<&Parts>,
        call: &mut Call<'_>,
    ) -> Result<()> {
        let (size, members) = (descriptor.dtype.size_bytes(), self.seats.len());
        let count = usize::try_from(descriptor.count).unwrap_or(usize::MAX);
        if members == 1 {
            return match call.input {
                Some(input) if descriptor.verb != Verb::Barrier => call.output.copy_from(input),
                _ => Ok(()),
            };
        }
        let (own, part_bytes) = (self.own, count.saturating_mul(size));
        let contribution_bytes = small::contribution_bytes(descriptor.verb, part_bytes, members);
        let is_small = descriptor.shape == 0 && contribution_bytes <= INLINE_BYTES;
        if is_small && let Some(contribution) = small::contribution(call, own, part_bytes)? {
            self.own_control().write_inline(watch.sequence, contribution)?;
        }
        if let Some(pairs) = parts::pairs(call) {
            self.own_control().write_inline(watch.sequence, Span::of(&pairs))?;
        }
        self.enter(watch, descriptor)?;
        if count == 0 && descriptor.shape == 0 {
            return Ok(());
        }
        if is_small {
            let contributed = |seat: usize| self.controls[seat].inline(watch.sequence, contribution_bytes);
            return small::settle(call, own, members, part_bytes, contributed);
        }
        let (kernels, progress) = (call.kernels, call.progress.as_ref());
        let work = Work { watch, descriptor, size, count, input: call.input, kernels, progress };
        let output = &mut call.output;
        if descriptor.verb == Verb::AllReduce
            && let Some(arena) = arena
            && let Some(arrays) = self.arrays(arena, descriptor, part_bytes)?
        {
            return self.all_reduce_shared(&work, &arrays);
        }
        match descriptor.verb {
            _ if Self::is_transfer(descriptor) => {
                self.transfer(&work, call.counts, call.receive_counts, output)
            }
            Verb::AllReduce => self.all_reduce(&work, output, true),
            Verb::Reduce => self.all_reduce(&work, output, call.root == own),
            Verb::Broadcast => self.broadcast(&work, output),
            Verb::AllGather | Verb::Exchange | Verb::Split => self.all_gather(&work, output),
            Verb::ReduceScatter => self.reduce_scatter(&work, output),
            _ => Ok(()),
        }
    }

    /// Publishes a step and waits for it on all members.
    pub(super) fn step_together(&self, watch: &Watch<'_>, step: &mut u64) -> Result<()> {
        *step += 1;
        self.own_control().advance(control::place(watch.sequence, *step));
        self.reach(watch, *step, &|_| true)
    }

    /// Reduces through the stages; those who read take the result.
    fn all_reduce(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>, reads: bool) -> Result<()> {
        let (size, members, own) = (work.size, self.seats.len(), self.own);
        let mut step = 1;
        for (number, piece) in pieces(work.count, self.piece_bytes / size).enumerate() {
            let (start, count) = (piece.start * size, piece.len());
            let bytes = start..start + count * size;
            let source = work.input.unwrap_or(output.as_span()).part(bytes)?;
            self.own_control().with_stage(number, |stage| stage.part(0..count * size)?.copy_from(source))?;
            self.step_together(work.watch, &mut step)?;
            let range = |seat| {
                let range = share(count, members, seat);
                range.start * size..range.end * size
            };
            let sources = self.controls.iter().map(|control| control.stage(number)?.part(range(own)));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            // The result takes the place of the own contribution, which nobody else reads.
            self.own_control().with_stage(number, |stage| {
                work.kernels.reduce(
                    work.descriptor.dtype,
                    work.descriptor.op,
                    &sources,
                    &mut stage.part(range(own))?,
                )
            })?;
            self.step_together(work.watch, &mut step)?;
            for (seat, control) in self.controls.iter().enumerate().filter(|_| reads) {
                let range = range(seat);
                let result = control.stage(number)?.part(range.clone())?;
                output.part(start + range.start..start + range.end)?.copy_from(result)?;
            }
            work.advance(count * size);
        }
        Ok(())
    }

    /// Reduces arrays that all members see: each member writes its share of the result into all of them.
    fn all_reduce_shared(&self, work: &Work<'_, '_>, arrays: &[Array<'_>]) -> Result<()> {
        let (size, members, own) = (work.size, self.seats.len(), self.own);
        let mut step = 1;
        work.watch.is_lending.set(true);
        // Nobody else reads or writes this share of any array.
        let mine = share(work.count, members, own);
        for piece in pieces(mine.len(), self.piece_bytes / size) {
            let (start, end) = ((mine.start + piece.start) * size, (mine.start + piece.end) * size);
            let place = |range: &Range<usize>| range.start + start..range.start + end;
            let sources = arrays.iter().map(|(segment, range)| segment.span().part(place(range)));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            let (segment, range) = &arrays[own];
            let mut whole = segment.span_mut();
            let mut target = whole.part(place(range))?;
            work.kernels.reduce(work.descriptor.dtype, work.descriptor.op, &sources, &mut target)?;
            for (seat, (segment, range)) in arrays.iter().enumerate() {
                if seat != own {
                    segment.span_mut().part(place(range))?.copy_from(target.as_span())?;
                }
            }
            // The others reduce as much of theirs meanwhile.
            work.advance(piece.len() * size * members);
            work.watch.deadline.check_interrupt(&work.watch.phase())?;
        }
        self.step_together(work.watch, &mut step)
    }

    fn broadcast(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>) -> Result<()> {
        let root = usize::try_from(work.descriptor.root).unwrap_or(0);
        for (number, piece) in pieces(work.count, self.piece_bytes / work.size).enumerate() {
            let bytes = piece.start * work.size..piece.end * work.size;
            let length = bytes.len();
            let step = 2 + number as u64;
            if root == self.own {
                // This stage was read by all before they published the step of the piece in it.
                if number >= 2 {
                    self.reach(work.watch, step - 2, &|_| true)?;
                }
                let source = output.as_span().part(bytes)?;
                self.own_control().with_stage(number, |stage| stage.part(0..length)?.copy_from(source))?;
            } else {
                self.reach(work.watch, step, &|seat| seat == root)?;
                output.part(bytes)?.copy_from(self.controls[root].stage(number)?.part(0..length)?)?;
            }
            self.own_control().advance(control::place(work.watch.sequence, step));
            work.advance(length);
        }
        Ok(())
    }

    fn all_gather(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>) -> Result<()> {
        let (size, whole) = (work.size, work.count * work.size);
        let mut step = 1;
        for (number, piece) in pieces(work.count, self.piece_bytes / size).enumerate() {
            let (start, end) = (piece.start * size, piece.end * size);
            let place = |seat: usize| seat * whole + start..seat * whole + end;
            let source = match work.input {
                Some(input) => input.part(start..end)?,
                None => output.as_span().part(place(self.own))?,
            };
            self.own_control().with_stage(number, |stage| stage.part(0..end - start)?.copy_from(source))?;
            self.step_together(work.watch, &mut step)?;
            for (seat, control) in self.controls.iter().enumerate() {
                output.part(place(seat))?.copy_from(control.stage(number)?.part(0..end - start)?)?;
            }
            work.advance((end - start) * self.seats.len());
        }
        Ok(())
    }

    fn reduce_scatter(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>) -> Result<()> {
        let (size, members, whole) = (work.size, self.seats.len(), work.count * work.size);
        let input = work.input.unwrap_or(Span::empty());
        let mut step = 1;
        for (number, piece) in pieces(work.count, self.piece_bytes / (size * members)).enumerate() {
            let (start, length) = (piece.start * size, piece.len() * size);
            self.own_control().with_stage(number, |stage| {
                for seat in 0..members {
                    let source = input.part(seat * whole + start..seat * whole + start + length)?;
                    stage.part(seat * length..(seat + 1) * length)?.copy_from(source)?;
                }
                Ok(())
            })?;
            self.step_together(work.watch, &mut step)?;
            let range = self.own * length..(self.own + 1) * length;
            let sources = self.controls.iter().map(|control| control.stage(number)?.part(range.clone()));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            let mut target = output.part(start..start + length)?;
            work.kernels.reduce(work.descriptor.dtype, work.descriptor.op, &sources, &mut target)?;
            work.advance(length);
        }
        Ok(())
    }
}
