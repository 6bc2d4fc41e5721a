//! What each verb moves, once all members have agreed on the call.
//!
//! Small contributions lie beside the descriptors: nothing more is waited for. Large ones pass through the stages piece
//! by piece. A stage is written again only after every reader has published a later step. The first piece is shown before a
//! member enters where that is sure already, so that the wait for the others to come is also the one for what they show.

use std::cell::RefCell;
use std::ops::Range;

use super::arena::Parts;
use super::control::{self, INLINE_BYTES, LAST_STEP};
use super::habits::Pace;
use super::remote::PRIVATE;
use super::stages::Stages;
use super::watch::Watch;
use super::{Call, SharedCommunicator, Turn};
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
    /// Which stage a round has.
    pub(super) stages: &'c Stages,
    /// Whether what was shown before this member entered went past the caches; `None` if nothing was.
    shown: Option<bool>,
    /// What was read of others and is reduced next.
    pub(super) scratch: &'c RefCell<Vec<u64>>,
    /// Whether the output is too large to stay in a cache.
    is_large: bool,
}

/// Bytes that are reduced at a time.
const BLOCK_BYTES: usize = 8 << 10;
/// Arrays up to this size are shown whole where there are two members, who both reduce all of it: what one reads of the other is as
/// much as a share and a result, and there is one wait less. Larger ones would leave the caches on the way.
const WHOLE_BYTES: usize = 48 << 10;
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
        (arena, turn, choice): (Option<&Parts>, &Turn, &Pace<'_>),
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
        let pace = turn.habits.pace(descriptor.verb, contribution_bytes);
        if is_small && let Some(contribution) = small::contribution(call, own, part_bytes)? {
            let streams = pace.begin();
            self.own_control().write_inline(watch.sequence, contribution, streams)?;
            pace.pause();
        }
        if let Some(pairs) = parts::pairs(call) {
            self.own_control().write_inline(watch.sequence, Span::of(&pairs), false)?;
        }
        if is_small || call.gpu.is_some() {
            self.enter(watch, descriptor, 1)?;
            // What is small has come with the descriptors.
            if is_small {
                call.matched_last()
            } else {
                call.matched()
            }
            if call.gpu.is_some() {
                let received = call.receive_counts.filter(|_| descriptor.verb == Verb::AllToAll);
                return received.map_or(Ok(()), |received| self.check_pairs(watch, received).map(|_| ()));
            }
            if count == 0 {
                return Ok(());
            }
            let contributed = |seat: usize| self.controls[seat].inline(watch.sequence, contribution_bytes);
            pace.resume();
            small::settle(call, own, members, part_bytes, contributed)?;
            pace.end();
            return Ok(());
        }
        let (kernels, stages, input) = (call.kernels, &turn.stages, call.input);
        let is_large = call.output.byte_count() >= LARGE_BYTES;
        let mut work = Work {
            watch,
            descriptor,
            size,
            count,
            input,
            kernels,
            spread: Spread(call.crew),
            progress: None,
            pace,
            stages,
            shown: None,
            scratch: &turn.scratch,
            is_large,
        };
        if self.may_show_early(&work) {
            work.shown = Some(self.show_early(&work, call.output.as_span())?);
            settle();
            work.pace.pause();
        }
        self.enter(watch, descriptor, 1 + u64::from(work.shown.is_some()))?;
        call.matched();
        work.pace.resume();
        choice.resume();
        work.progress = call.progress.as_ref();
        let output = &mut call.output;
        if Self::is_direct(descriptor)
            && let Some(offers) =
                descriptor.lies.filter(|lies| lies.arena == PRIVATE).and_then(|_| self.offers(descriptor))
        {
            self.read_remotely(&work, &offers, output)?;
            choice.end();
            return Ok(());
        }
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
        }?;
        choice.end();
        Ok(())
    }

    /// Whether the first piece may be shown before the others have entered: nobody reads the stage any more, and nobody will find
    /// that all arrays can be read where they lie.
    fn may_show_early(&self, work: &Work<'_, '_>) -> bool {
        let descriptor = work.descriptor;
        let has_left = |control: &control::Control| control.progress() >= work.stages.busy_until();
        descriptor.lies.is_none()
            && !descriptor.is_counted()
            && (descriptor.verb != Verb::Broadcast || descriptor.root == self.own as u64)
            && !matches!(descriptor.verb, Verb::Barrier | Verb::Arena)
            && self.controls.iter().all(has_left)
    }

    /// Shows the first piece; whether past the caches.
    fn show_early(&self, work: &Work<'_, '_>, output: Span<'_>) -> Result<bool> {
        match work.descriptor.verb {
            Verb::AllReduce | Verb::Reduce => self.show_shares(work, output, 0),
            Verb::Broadcast => self.show_piece(work, output, 0),
            _ => self.show_parts(work, output),
        }
    }

    /// Does something with the own stage of a round, unless it was done before this member entered; whether past the caches.
    pub(super) fn show_round(
        &self,
        work: &Work<'_, '_>,
        number: usize,
        act: impl FnOnce(&mut SpanMut<'_>, bool) -> Result<()>,
    ) -> Result<bool> {
        if let (Some(streams), 0) = (work.shown, number) {
            return Ok(streams);
        }
        let streams = work.pace.begin();
        self.own_control().with_stage(work.stages.of(number), |stage| act(stage, streams))?;
        Ok(streams)
    }

    /// Publishes a step and waits for it on all members.
    pub(super) fn step_together(&self, work: &Work<'_, '_>, step: &mut u64) -> Result<()> {
        *step += 1;
        // Who showed its first piece early has published the step that says so.
        if *step > 2 || work.shown.is_none() {
            settle();
            self.own_control().advance(control::place(work.watch.sequence, *step));
        }
        work.pace.pause();
        self.reach(work.watch, *step, &|_| true)?;
        work.pace.resume();
        Ok(())
    }

    /// Reduces through the stages; those who read take the result.
    ///
    /// In round k each member shows the others their shares of piece k, waits until all have, reduces its own share, and takes
    /// the results of piece k - 1: one wait for each piece, and none for results of what is shown whole. The result of a share lies in the stage where nobody else
    /// has to be shown anything. A stage is written again two rounds later: what was shown in it was read before the round between
    /// began, and its result before the round of the write did.
    fn all_reduce(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>, reads: bool) -> Result<()> {
        let (members, own) = (self.seats.len(), self.own);
        let mut step = 1;
        if self.is_whole(work) {
            self.show_shares(work, output.as_span(), 0)?;
            self.step_together(work, &mut step)?;
            if reads {
                self.reduce_whole(work, output)?;
            }
            work.pace.end();
            work.stages.take(1);
            return Ok(());
        }
        let rounds = work.count.div_ceil(self.piece_bytes / work.size);
        for number in 0..=rounds {
            let streams = number < rounds && self.show_shares(work, output.as_span(), number)?;
            self.step_together(work, &mut step)?;
            if number < rounds {
                self.reduce_share(work, (number, streams), self.places(work, number, own), output, reads)?;
            }
            for seat in (0..members).filter(|seat| reads && number > 0 && *seat != own) {
                let (staged, place) = self.places(work, number - 1, seat);
                work.advance(place.len());
                let stage = self.controls[seat].stage(work.stages.of(number - 1))?;
                work.take(&mut output.part(place)?, stage.part(staged)?)?;
            }
            if number < rounds {
                work.pace.end();
            }
        }
        work.stages.take(rounds);
        Ok(())
    }

    /// Whether both members of a pair show each other all that they have, and reduce it all.
    fn is_whole(&self, work: &Work<'_, '_>) -> bool {
        self.seats.len() == 2 && work.count * work.size <= WHOLE_BYTES.min(self.piece_bytes)
    }

    /// Reduces what the other member shows and what this one has, in the order of seats.
    fn reduce_whole(&self, work: &Work<'_, '_>, output: &mut SpanMut<'_>) -> Result<()> {
        let length = output.byte_count();
        let (array, mut target) = output.in_place();
        let source = |seat: usize| match work.input {
            _ if seat != self.own => self.controls[seat].stage(work.stages.of(0))?.part(0..length),
            Some(input) => Ok(input),
            None => Ok(array),
        };
        with_spans(self.seats.len(), source, |sources| work.reduce(sources, &mut target))?;
        work.advance(length);
        Ok(())
    }

    /// Bytes of a seat's share of a piece: in the stage, and in the array.
    ///
    /// In the stage it begins where that of a whole piece does: the shares of a shorter one touch no result of the piece before
    /// last, which somebody may still read.
    fn places(&self, work: &Work<'_, '_>, number: usize, seat: usize) -> (Range<usize>, Range<usize>) {
        let (size, members) = (work.size, self.seats.len());
        let length = self.piece_bytes / size;
        let start = number * length;
        let range = share(length.min(work.count - start), members, seat);
        let first = share(length, members, seat).start;
        let bytes = |start: usize| start * size..(start + range.len()) * size;
        (bytes(first), bytes(start + range.start))
    }

    /// Shows the others their shares of a piece.
    fn show_shares(&self, work: &Work<'_, '_>, output: Span<'_>, number: usize) -> Result<bool> {
        self.show_round(work, number, |stage, streams| {
            if self.is_whole(work) {
                let array = work.input.unwrap_or(output);
                return work.show(&mut stage.part(0..array.byte_count())?, array, streams);
            }
            for seat in (0..self.seats.len()).filter(|seat| *seat != self.own) {
                let (staged, place) = self.places(work, number, seat);
                work.show(&mut stage.part(staged)?, work.input.unwrap_or(output).part(place)?, streams)?;
            }
            Ok(())
        })
    }

    /// Reduces the own share of a piece into the own stage, and into the output of who reads: a block at a time, which goes to the
    /// stage out of the first cache.
    fn reduce_share(
        &self,
        work: &Work<'_, '_>,
        (number, streams): (usize, bool),
        (staged, place): (Range<usize>, Range<usize>),
        output: &mut SpanMut<'_>,
        reads: bool,
    ) -> Result<()> {
        let Descriptor { dtype, op, .. } = *work.descriptor;
        let (kernels, input, round) = (work.kernels, work.input, work.stages.of(number));
        // Bytes of the share, and where its result goes besides; in place that is where the own contribution lies.
        let blocks = |part: Range<usize>, mut target: Option<&mut SpanMut<'_>>| {
            // Who has no output to reduce into has a block beside the stage.
            let mut room: [u64; BLOCK_BYTES / 8];
            let mut block = SpanMut::empty();
            if target.is_none() {
                room = [0; BLOCK_BYTES / 8];
                block = SpanMut::of(&mut room);
            }
            for bytes in pieces(part.len(), BLOCK_BYTES) {
                let within = |range: &Range<usize>| {
                    let start = range.start + part.start;
                    start + bytes.start..start + bytes.end
                };
                let (array, mut result) = match &mut target {
                    Some(target) => {
                        let (array, target) = target.in_place();
                        (array.part(bytes.clone())?, target.into_part(bytes.clone())?)
                    }
                    None => (Span::empty(), block.part(0..bytes.len())?),
                };
                let source = |seat: usize| match input {
                    _ if seat != self.own => self.controls[seat].stage(round)?.part(within(&staged)),
                    Some(input) => input.part(within(&place)),
                    None => Ok(array),
                };
                with_spans(self.seats.len(), source, |sources| {
                    kernels.reduce(dtype, op, sources, &mut result)
                })?;
                self.own_control().with_stage(round, |stage| {
                    shown(streams).copy(&mut stage.part(within(&staged))?, result.as_span())
                })?;
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
        let (length, mut rounds) = (self.piece_bytes / work.size, 0);
        for (number, piece) in pieces(work.count, length).enumerate() {
            let bytes = piece.start * work.size..piece.end * work.size;
            let length = bytes.len();
            let step = 2 + number as u64;
            rounds = number + 1;
            if root == self.own {
                // This stage was read by all before they published the step of the piece in it.
                if number >= 2 {
                    self.reach(work.watch, step - 2, &|_| true)?;
                }
                self.show_piece(work, output.as_span(), number)?;
            } else {
                work.pace.begin();
                self.reach(work.watch, step, &|seat| seat == root)?;
                let stage = self.controls[root].stage(work.stages.of(number))?;
                work.put(&mut output.part(bytes)?, stage.part(0..length)?)?;
            }
            if number > 0 || work.shown.is_none() {
                settle();
                self.own_control().advance(control::place(work.watch.sequence, step));
            }
            work.pace.end();
            work.advance(length);
        }
        work.stages.take(rounds);
        if root == self.own {
            // The last two may still be read.
            work.stages.keep_until(control::place(work.watch.sequence, 1 + rounds as u64));
        }
        Ok(())
    }

    /// Shows a piece of what the root of a broadcast has.
    fn show_piece(&self, work: &Work<'_, '_>, output: Span<'_>, number: usize) -> Result<bool> {
        let start = number * (self.piece_bytes / work.size);
        let end = work.count.min(start + self.piece_bytes / work.size);
        let source = output.part(start * work.size..end * work.size)?;
        self.show_round(work, number, |stage, streams| {
            work.show(&mut stage.part(0..source.byte_count())?, source, streams)
        })
    }
}
