//! Verbs on arrays that all members see: everybody reads the others' arrays where they lie, and nothing passes through a stage.
//!
//! Arrays are read and written after all members have entered the call, and nobody leaves it before all have published the step
//! that follows their last read and write.

use std::ops::Range;

use super::SharedCommunicator;
use super::arena::Array;
use super::payload::Work;
use crate::communicator::descriptor::Descriptor;
use crate::communicator::reduce::{pieces, share, with_spans};
use crate::error::Result;
use crate::sys::SpanMut;
use crate::vocabulary::Verb;

/// Bytes of each array that are reduced at a time: they are in the first cache when they are copied to the others.
const BLOCK_BYTES: usize = 8 << 10;
/// Bytes that are copied between two looks at whether somebody wants to stop.
const LOOK_BYTES: usize = 1 << 20;

impl SharedCommunicator {
    /// Whether a verb can read arrays where they lie; all members find the same.
    pub(super) const fn is_direct(descriptor: &Descriptor) -> bool {
        // In a scatter most members have no array that is read.
        descriptor.shape == 0 && !matches!(descriptor.verb, Verb::Scatter | Verb::Exchange | Verb::Split)
    }

    /// Runs a call whose arrays lie in one arena; `arrays` are what the seats bring.
    pub(super) fn read_directly(
        &self,
        work: &Work<'_, '_>,
        arrays: &[Array<'_>],
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        work.watch.is_lending.set(true);
        let own = self.own;
        let (part, is_root) = (work.count * work.size, work.descriptor.root == own as u64);
        let root = usize::try_from(work.descriptor.root).unwrap_or(0);
        match work.descriptor.verb {
            Verb::AllReduce => self.reduce_everywhere(work, arrays)?,
            Verb::Broadcast if !is_root => self.fetch(work, &arrays[root], 0..part, output, 0)?,
            Verb::Reduce if is_root => self.reduce_here(work, arrays, 0, output)?,
            Verb::ReduceScatter => self.reduce_here(work, arrays, own * part, output)?,
            Verb::AllGather | Verb::Gather | Verb::AllToAll
                if is_root || work.descriptor.verb != Verb::Gather =>
            {
                let start = if work.descriptor.verb == Verb::AllToAll { own * part } else { 0 };
                // Each begins with another one, so that they do not all read the same memory.
                for seat in (0..arrays.len()).map(|turn| (own + 1 + turn) % arrays.len()) {
                    if seat == own && work.input.is_none() {
                        work.advance(part);
                        continue;
                    }
                    self.fetch(work, &arrays[seat], start..start + part, output, seat * part)?;
                }
            }
            _ => {}
        }
        self.step_together(work, &mut 1)
    }

    /// Copies bytes of one array into the output from `start` on.
    fn fetch(
        &self,
        work: &Work<'_, '_>,
        (segment, range): &Array<'_>,
        bytes: Range<usize>,
        output: &mut SpanMut<'_>,
        start: usize,
    ) -> Result<()> {
        for piece in pieces(bytes.len(), LOOK_BYTES * work.spread.threads()) {
            let first = range.start + bytes.start;
            let source = segment.span().part(first + piece.start..first + piece.end)?;
            work.put(&mut output.part(start + piece.start..start + piece.end)?, source)?;
            work.advance(piece.len());
            work.watch.deadline.check_interrupt_of(|| work.watch.phase())?;
        }
        Ok(())
    }

    /// Reduces the bytes of all arrays from `start` on into the output.
    fn reduce_here(
        &self,
        work: &Work<'_, '_>,
        arrays: &[Array<'_>],
        start: usize,
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        for piece in pieces(work.count, LOOK_BYTES * work.spread.threads() / work.size) {
            let bytes = piece.start * work.size..piece.end * work.size;
            let source = |seat: usize| {
                let (segment, range) = &arrays[seat];
                let first = range.start + start;
                segment.span().part(first + bytes.start..first + bytes.end)
            };
            let mut target = output.part(bytes.clone())?;
            with_spans(arrays.len(), source, |sources| work.reduce(sources, &mut target))?;
            work.advance(bytes.len());
            work.watch.deadline.check_interrupt_of(|| work.watch.phase())?;
        }
        Ok(())
    }

    /// Each member reduces its share and writes the result into all arrays.
    fn reduce_everywhere(&self, work: &Work<'_, '_>, arrays: &[Array<'_>]) -> Result<()> {
        let (size, members) = (work.size, arrays.len());
        let (Descriptor { dtype, op, .. }, kernels) = (*work.descriptor, work.kernels);
        // Nobody else reads or writes this share of any array.
        let mine = share(work.count, members, self.own);
        let (own, own_range) = &arrays[self.own];
        // Bytes of this share, a block at a time.
        let blocks = |bytes: Range<usize>| {
            let mut whole = own.span_mut();
            for piece in pieces(bytes.len(), BLOCK_BYTES) {
                let start = mine.start * size + bytes.start + piece.start;
                let place = |range: &Range<usize>| {
                    let start = range.start + start;
                    start..start + piece.len()
                };
                let mut target = whole.part(place(own_range))?;
                let source = |seat: usize| {
                    let (segment, range) = &arrays[seat];
                    segment.span().part(place(range))
                };
                with_spans(members, source, |sources| kernels.reduce(dtype, op, sources, &mut target))?;
                for (seat, (segment, range)) in arrays.iter().enumerate() {
                    if seat != self.own {
                        segment.span_mut().part(place(range))?.copy_from(target.as_span())?;
                    }
                }
            }
            Ok(())
        };
        for look in pieces(mine.len() * size, LOOK_BYTES * work.spread.threads()) {
            match work.spread.of(look.len()) {
                Some(crew) => {
                    crew.ranges(look.len(), &|part| blocks(look.start + part.start..look.start + part.end))?
                }
                None => blocks(look.clone())?,
            }
            // The others reduce as much of theirs meanwhile.
            work.advance(look.len() * members);
            work.watch.deadline.check_interrupt_of(|| work.watch.phase())?;
        }
        Ok(())
    }
}
