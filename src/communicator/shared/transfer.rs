//! Verbs in which members bring or get parts: all_gather, gather, scatter, reduce_scatter, all_to_all, with and without counts.
//!
//! In every round a member puts the next piece of what it gives into its stage, waits until all have done so, and takes
//! what is its own out of the others' stages. A stage is written again one round later only, when all have read it.

use std::ops::Range;

use super::SharedCommunicator;
use super::control::LAST_STEP;
use super::payload::Work;
use super::watch::Watch;
use crate::communicator::descriptor::Descriptor;
use crate::communicator::parts::{self, PAIR_BYTES, places};
use crate::communicator::reduce::pieces;
use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};
use crate::vocabulary::Verb;

/// The bytes of a part that belong to one round.
fn cut(part: &Range<usize>, round: &Range<usize>) -> Range<usize> {
    part.start + round.start.min(part.len())..part.start + round.end.min(part.len())
}

impl SharedCommunicator {
    /// Whether a call moves parts.
    pub(super) const fn is_transfer(descriptor: &Descriptor) -> bool {
        let is_reduction = matches!(descriptor.verb, Verb::AllReduce | Verb::Reduce);
        !is_reduction && !matches!(descriptor.verb, Verb::Broadcast | Verb::Barrier | Verb::Arena)
    }

    /// Moves the parts of a call that all members have entered.
    pub(super) fn transfer(
        &self,
        work: &Work<'_, '_>,
        counts: Option<&[usize]>,
        receive_counts: Option<&[usize]>,
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        let (size, members) = (work.size, self.seats.len());
        let parts = places(counts, work.count, members, size);
        let longest = parts.iter().map(Range::len).max().unwrap_or(0);
        let is_root = work.descriptor.root == self.own as u64;
        match work.descriptor.verb {
            Verb::AllGather | Verb::Exchange | Verb::Split => self.show(work, &parts, output, true),
            Verb::Gather => self.show(work, &parts, output, is_root),
            Verb::AllToAll => {
                let received = places(receive_counts, work.count, members, size);
                let longest = match receive_counts {
                    Some(receive_counts) => {
                        self.check_pairs(work.watch, receive_counts)?.saturating_mul(work.size)
                    }
                    None => longest,
                };
                self.deal(work, &parts, longest, |round, slots| {
                    for (part, slot) in received.iter().zip(slots) {
                        let range = cut(part, round);
                        let source = slot.part(0..range.len())?;
                        work.put(&mut output.part(range)?, source)?;
                        work.advance(source.byte_count());
                    }
                    Ok(())
                })
            }
            Verb::Scatter => {
                let root = usize::try_from(work.descriptor.root).unwrap_or(0);
                self.deal(work, &parts, longest, |round, slots| {
                    let range = cut(&(0..parts[self.own].len()), round);
                    let source = slots[root].part(0..range.len())?;
                    work.advance(source.byte_count());
                    work.take(&mut output.part(range)?, source)
                })
            }
            _ => self.deal(work, &parts, longest, |round, slots| {
                let range = cut(&(0..parts[self.own].len()), round);
                let sources = slots.iter().map(|slot| slot.part(0..range.len()));
                let sources = sources.collect::<Result<Vec<_>>>()?;
                work.advance(range.len());
                work.reduce(&sources, &mut output.part(range.clone())?)
            }),
        }
    }

    /// Shows the first round of a call with equal parts; whether past the caches.
    pub(super) fn show_parts(&self, work: &Work<'_, '_>, output: Span<'_>) -> Result<bool> {
        let parts = places(None, work.count, self.seats.len(), work.size);
        let part_bytes = parts[self.own].len();
        if matches!(work.descriptor.verb, Verb::AllGather | Verb::Gather | Verb::Exchange | Verb::Split) {
            return self.show_own(
                work,
                &parts[self.own],
                output,
                (0, &(0..part_bytes.min(self.piece_bytes))),
            );
        }
        self.show_slots(work, &parts, (0, &(0..part_bytes.min(self.slot_bytes()))))
    }

    /// Shows all the own part of a round.
    fn show_own(
        &self,
        work: &Work<'_, '_>,
        own: &Range<usize>,
        output: Span<'_>,
        (number, round): (usize, &Range<usize>),
    ) -> Result<bool> {
        let source = match work.input {
            Some(input) => input.part(cut(&(0..own.len()), round))?,
            None => output.part(cut(own, round))?,
        };
        self.show_round(work, number, |stage, streams| {
            work.show(&mut stage.part(0..source.byte_count())?, source, streams)
        })
    }

    /// Shows every other member the round of its part.
    fn show_slots(
        &self,
        work: &Work<'_, '_>,
        parts: &[Range<usize>],
        (number, round): (usize, &Range<usize>),
    ) -> Result<bool> {
        self.show_round(work, number, |stage, streams| {
            let Some(input) = work.input else { return Ok(()) };
            for (seat, part) in parts.iter().enumerate().filter(|(seat, _)| *seat != self.own) {
                let source = input.part(cut(part, round))?;
                let start = seat * self.slot_bytes();
                work.show(&mut stage.part(start..start + source.byte_count())?, source, streams)?;
            }
            Ok(())
        })
    }

    /// Bytes of a stage for each member: whole elements, at addresses that fit all of them.
    fn slot_bytes(&self) -> usize {
        self.piece_bytes / self.seats.len() / 8 * 8
    }

    /// Every member shows its part to all; those who read take everybody's.
    fn show(
        &self,
        work: &Work<'_, '_>,
        parts: &[Range<usize>],
        output: &mut SpanMut<'_>,
        reads: bool,
    ) -> Result<()> {
        let longest = parts.iter().map(Range::len).max().unwrap_or(0);
        let own = &parts[self.own];
        let mut step = 1;
        for (number, round) in pieces(longest, self.piece_bytes).enumerate() {
            self.show_own(work, own, output.as_span(), (number, &round))?;
            self.step_together(work, &mut step)?;
            for (seat, (part, control)) in parts.iter().zip(&self.controls).enumerate().filter(|_| reads) {
                let range = cut(part, &round);
                // The own part is in a near cache: it has just been read.
                let source = control.stage(work.stages.of(number))?.part(0..range.len())?;
                match (work.input, seat == self.own) {
                    (None, true) => {}
                    (Some(input), true) => {
                        let source = input.part(cut(&(0..own.len()), &round))?;
                        work.put(&mut output.part(range)?, source)?;
                    }
                    _ => work.put(&mut output.part(range)?, source)?,
                }
                work.advance(source.byte_count());
            }
            work.pace.end();
        }
        work.stages.take(longest.div_ceil(self.piece_bytes));
        Ok(())
    }

    /// Every member that gives has a slot for every other in its stage; `take` gets the bytes of the round, counted within a
    /// part, and the slots with what each seat has for this member.
    fn deal(
        &self,
        work: &Work<'_, '_>,
        parts: &[Range<usize>],
        longest: usize,
        mut take: impl FnMut(&Range<usize>, &[Span<'_>]) -> Result<()>,
    ) -> Result<()> {
        let slot = self.slot_bytes();
        if (longest / slot) as u64 + 8 > LAST_STEP {
            let reason = "has more pieces than one call can count";
            return Err(Error::invalid("counts", format!("{longest} bytes"), "call", reason));
        }
        let mut step = 1;
        for (number, round) in pieces(longest, slot).enumerate() {
            self.show_slots(work, parts, (number, &round))?;
            self.step_together(work, &mut step)?;
            let slots = self.controls.iter().enumerate().map(|(seat, control)| match work.input {
                Some(input) if seat == self.own => input.part(cut(&parts[self.own], &round)),
                _ => control.stage(work.stages.of(number))?.part(self.own * slot..(self.own + 1) * slot),
            });
            take(&round, &slots.collect::<Result<Vec<_>>>()?)?;
            work.pace.end();
        }
        work.stages.take(longest.div_ceil(slot));
        Ok(())
    }

    /// Compares the counts of an all_to_all; gives the elements of the longest part.
    pub(super) fn check_pairs(&self, watch: &Watch<'_>, own: &[usize]) -> Result<usize> {
        let byte_count = self.seats.len() * PAIR_BYTES;
        let rows = self
            .controls
            .iter()
            .map(|control| control.inline(watch.sequence, byte_count).map(|bytes| bytes.to_vec()));
        let longest = parts::check_pairs(&rows.collect::<Result<Vec<_>>>()?, self.own, &self.seats)?;
        // What a peer wrote meanwhile counts for nothing: this member takes as much as it has room for.
        let own = own.iter().copied().max().unwrap_or(0);
        Ok(longest.max(own))
    }
}
