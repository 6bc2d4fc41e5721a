//! Verbs on large private arrays: members read each other's memory through the kernel, and nothing passes through a stage.
//!
//! A read through the kernel copies once and needs no cache that two cores share, but each has a price for every page. Which way is
//! faster differs from machine to machine, and with the size: the first seat tries both and offers its array or not. All
//! members read this way if all have offered theirs, which they see in each other's descriptors.
//!
//! As in `direct.rs`, arrays are read after all have entered the call, or have published the step after which they hold results, and
//! nobody leaves the call before all have published the step that follows their last read.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::SharedCommunicator;
use super::payload::Work;
use crate::communicator::descriptor::{Descriptor, Lies};
use crate::communicator::reduce::{pieces, share, with_spans};
use crate::communicator::{Call, small};
use crate::error::{Error, Result};
use crate::sys::{SpanMut, process};
use crate::vocabulary::Verb;

/// Contributions from this size on may be read through the kernel.
pub(super) const LENT_BYTES: usize = 256 << 10;
/// What stands for private memory where the number of an arena does.
pub(super) const PRIVATE: u64 = u64::MAX;
/// Bytes of all others that are read before they are reduced: they stay in the second cache.
const BLOCK_BYTES: usize = 256 << 10;
const LEAST_BLOCK_BYTES: usize = 16 << 10;
/// Bytes that are read between two looks at whether somebody wants to stop.
const LOOK_BYTES: usize = 1 << 20;
/// How long a member whose memory cannot be read has to turn out to have ended.
const DEATH_LIMIT: Duration = Duration::from_secs(1);

impl SharedCommunicator {
    /// Where the others can read what this member brings, and what it makes of it; `None` if this member cannot read theirs, or
    /// the call is none for that.
    pub(super) fn lend(&self, call: &Call<'_>, count: usize) -> Option<Lies> {
        let (members, part_bytes) = (self.seats.len(), count.saturating_mul(call.dtype.size_bytes()));
        let contribution_bytes = small::contribution_bytes(call.verb, part_bytes, members);
        if call.gpu.is_some()
            || call.counts.is_some()
            || call.reproducible
            || call.list != 0
            || contribution_bytes < LENT_BYTES
            || members < 2
            || !self.reads_all
        {
            return None;
        }
        let output = call.output.as_span();
        if let Some(input) = call.input {
            let (from, to) = (input.pointer().addr(), output.pointer().addr());
            if from < to + output.byte_count() && to < from + input.byte_count() {
                return None;
            }
        }
        let brought = small::contribution(call, self.own, part_bytes).ok()?;
        let address = |pointer: *const u8| pointer.expose_provenance() as u64;
        let offset = brought.map_or(0, |brought| address(brought.pointer()));
        Some(Lies { arena: PRIVATE, offset, output: address(output.pointer()) })
    }

    /// What all members have offered, by seat; `None` unless all have.
    pub(super) fn offers(&self, descriptor: &Descriptor) -> Option<Vec<Lies>> {
        let calls = self.controls.iter().map(|control| control.descriptor(descriptor.sequence));
        calls.map(|call| call.and_then(|call| call.lies).filter(|lies| lies.arena == PRIVATE)).collect()
    }

    /// Runs a call whose members have all offered their arrays.
    pub(super) fn read_remotely(
        &self,
        work: &Work<'_, '_>,
        offers: &[Lies],
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        work.watch.is_lending.set(true);
        if !self.has_read_remotely.swap(true, Ordering::Relaxed) {
            let index = self.seats[self.own];
            tracing::debug!(
                "index {index} reads arrays of others through the kernel in {}",
                work.watch.phase()
            );
        }
        let own = self.own;
        let (part, is_root) = (work.count * work.size, work.descriptor.root == own as u64);
        let root = usize::try_from(work.descriptor.root).unwrap_or(0);
        // Each begins with another one, so that they do not all read the same memory.
        let turns = || (0..offers.len()).map(|turn| (own + 1 + turn) % offers.len());
        let mut step = 1;
        match work.descriptor.verb {
            Verb::AllReduce => {
                let mine = share(work.count, offers.len(), own);
                self.reduce_remotely(work, offers, (mine.start, mine.clone()), output)?;
                self.step_together(work, &mut step)?;
                for seat in turns().filter(|seat| *seat != own) {
                    let theirs = share(work.count, offers.len(), seat);
                    let bytes = theirs.start * work.size..theirs.end * work.size;
                    let start = bytes.start as u64;
                    self.fetch_remotely(
                        work,
                        (seat, offers[seat].output.wrapping_add(start)),
                        bytes,
                        output,
                    )?;
                }
            }
            Verb::Broadcast if !is_root => {
                self.fetch_remotely(work, (root, offers[root].offset), 0..part, output)?;
            }
            Verb::Reduce if is_root => self.reduce_remotely(work, offers, (0, 0..work.count), output)?,
            Verb::ReduceScatter => {
                self.reduce_remotely(work, offers, (own * work.count, 0..work.count), output)?;
            }
            Verb::AllGather | Verb::Gather | Verb::AllToAll
                if is_root || work.descriptor.verb != Verb::Gather =>
            {
                let start = if work.descriptor.verb == Verb::AllToAll { own * part } else { 0 };
                for seat in turns() {
                    let place = seat * part..(seat + 1) * part;
                    match work.input {
                        None if seat == own => work.advance(part),
                        Some(input) if seat == own => {
                            work.put(&mut output.part(place)?, input.part(start..start + part)?)?;
                            work.advance(part);
                        }
                        _ => {
                            let address = offers[seat].offset.wrapping_add(start as u64);
                            self.fetch_remotely(work, (seat, address), place, output)?;
                        }
                    }
                }
            }
            _ => {}
        }
        self.step_together(work, &mut step)
    }

    /// Reads what lies at an address of a seat into a place of the output.
    fn fetch_remotely(
        &self,
        work: &Work<'_, '_>,
        (seat, address): (usize, u64),
        place: Range<usize>,
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        for piece in pieces(place.len(), LOOK_BYTES) {
            let mut target = output.part(place.start + piece.start..place.start + piece.end)?;
            self.read_of(work, (seat, address.wrapping_add(piece.start as u64)), &mut target)?;
            self.look_at_reader(work, piece.len())?;
        }
        Ok(())
    }

    /// Reduces elements of what all bring, from the `start`th on, into a range of elements of the output.
    fn reduce_remotely(
        &self,
        work: &Work<'_, '_>,
        offers: &[Lies],
        (start, range): (usize, Range<usize>),
        output: &mut SpanMut<'_>,
    ) -> Result<()> {
        let (size, members, own) = (work.size, offers.len(), self.own);
        let block = (BLOCK_BYTES / (members - 1)).max(LEAST_BLOCK_BYTES) / 8 * 8;
        let mut blocks = work.scratch.borrow_mut();
        blocks.resize(block / 8 * (members - 1), 0);
        let slot = |seat: usize| (seat - usize::from(seat > own)) * block;
        for piece in pieces(range.len(), block / size) {
            let bytes = piece.len() * size;
            let first = (start + piece.start) * size;
            for seat in (0..members).filter(|seat| *seat != own) {
                let mut whole = SpanMut::of(&mut blocks[..]);
                let mut target = whole.part(slot(seat)..slot(seat) + bytes)?;
                self.read_of(work, (seat, offers[seat].offset.wrapping_add(first as u64)), &mut target)?;
            }
            let mut whole = SpanMut::of(&mut blocks[..]);
            let read = whole.reborrow().into_span();
            let place = (range.start + piece.start) * size..(range.start + piece.end) * size;
            let (array, mut target) = output.in_place();
            let mine = work.input.unwrap_or(array).part(first..first + bytes)?;
            let source = |seat: usize| match seat {
                _ if seat == own => Ok(mine),
                _ => read.part(slot(seat)..slot(seat) + bytes),
            };
            let mut target = target.part(place)?;
            with_spans(members, source, |sources| work.reduce(sources, &mut target))?;
            self.look_at_reader(work, bytes)?;
        }
        Ok(())
    }

    /// Between two reads: counts what is there, and asks whether somebody wants to stop.
    fn look_at_reader(&self, work: &Work<'_, '_>, byte_count: usize) -> Result<()> {
        work.advance(byte_count);
        work.watch.deadline.check_interrupt_of(|| work.watch.phase())
    }

    /// Reads memory of a seat that lived after it was read.
    fn read_of(
        &self,
        work: &Work<'_, '_>,
        (seat, address): (usize, u64),
        target: &mut SpanMut<'_>,
    ) -> Result<()> {
        let mate = self.seats.get(seat).and_then(|index| self.proof.0.mates.get(index));
        let is_read = mate.and_then(|mate| mate.peer.as_ref()).is_some_and(|peer| {
            // Asked afterwards: a number that another process took over meanwhile was not read for this one's.
            peer.read(address, target) && peer.is_alive()
        });
        if is_read {
            return Ok(());
        }
        // The memory of a process goes a moment before others see that it has ended.
        let start = Instant::now();
        while start.elapsed() < DEATH_LIMIT {
            let is_gone = self.is_gone(seat);
            self.check_life(seat, is_gone, || work.watch.phase())?;
            work.watch.deadline.check_interrupt_of(|| work.watch.phase())?;
            std::thread::sleep(Duration::from_millis(1));
        }
        let (index, own) = (self.seats[seat], process::pid());
        let why = format!(
            "process {own} could read it when the mesh formed and cannot now: was its array freed, or process_vm_readv forbidden?"
        );
        Err(Error::unsupported(format!("{} of the memory of index {index}", work.watch.phase()), why))
    }
}
