//! What each verb moves between hosts, once all members have agreed on the call.
//!
//! Small contributions ride beside the calls. Large arrays are cut into one part for each member: everybody sends its
//! contribution to a part straight to the member that owns it, which combines all of them in the order of seats and
//! sends the result to all. So every byte crosses twice at most, and the order of additions is that of shared memory. A
//! broadcast goes in parts too: the root gives each member one, and the members give them to each other.

use std::ops::Range;

use super::flow::{Flow, Incoming, Lane, Outgoing, Place, Reduction, Trouble};
use super::peer::{End, Heard, Peer};
use super::{Call, TcpCommunicator, Turn, Watch};
use crate::communicator::Progress;
use crate::communicator::descriptor::Descriptor;
use crate::communicator::reduce::share;
use crate::error::{Error, Result};
use crate::sys::{CHECK_INTERVAL, Span, network};
use crate::vocabulary::Verb;

/// Bytes that ride beside the calls of all members together, at most.
const INLINE_TOTAL: usize = 128 << 10;
/// The memory in which contributions of all peers may wait.
const SCRATCH_LIMIT: usize = 64 << 20;

/// Whether a contribution of so many bytes rides beside the call; the same on all members.
pub(in crate::communicator) fn is_small(byte_count: usize, members: usize) -> bool {
    byte_count <= (INLINE_TOTAL / members.max(1)).clamp(256, super::wire::INLINE_BYTES)
}

/// Bytes of one piece, so that those of all peers fit into the scratch memory.
pub(super) fn piece_bytes(wanted: usize, members: usize) -> usize {
    let limit = SCRATCH_LIMIT / (4 * members.max(1));
    (wanted.min(limit.max(64)) / 64 * 64).max(64)
}

fn send(place: Place, range: Range<usize>) -> Outgoing {
    Outgoing { place, range, is_result: false }
}

fn result(range: Range<usize>) -> Outgoing {
    Outgoing { place: Place::Output, range, is_result: true }
}

impl TcpCommunicator {
    /// This member's small contribution; empty if the call is large, or if this member has none.
    pub(in crate::communicator) fn contribution(&self, call: &Call<'_>, count: usize) -> Result<Vec<u8>> {
        let (size, own) = (call.dtype.size_bytes(), self.own);
        let shares = if call.verb == Verb::ReduceScatter { self.seats.len() } else { 1 };
        let is_silent = call.verb == Verb::Broadcast && call.root != own;
        if is_silent || !is_small(count.saturating_mul(size).saturating_mul(shares), self.seats.len()) {
            return Ok(Vec::new());
        }
        let span = match (call.input, call.verb) {
            (Some(input), _) => input,
            (None, Verb::AllGather | Verb::Exchange) => {
                call.output.as_span().part(own * count * size..(own + 1) * count * size)?
            }
            (None, _) => call.output.as_span(),
        };
        Ok(span.to_vec())
    }

    /// What a call does after all members have entered it: `inline` is this member's small contribution.
    pub(in crate::communicator) fn carry(
        &self,
        turn: &mut Turn,
        watch: &Watch<'_>,
        descriptor: &Descriptor,
        inline: &[u8],
        call: &mut Call<'_>,
    ) -> Result<()> {
        let members = self.seats.len();
        let count = usize::try_from(descriptor.count).unwrap_or(usize::MAX);
        let bytes = count.saturating_mul(descriptor.dtype.size_bytes());
        let shares = if descriptor.verb == Verb::ReduceScatter { members } else { 1 };
        if bytes == 0 || descriptor.verb == Verb::Barrier {
            return Ok(());
        }
        if is_small(bytes.saturating_mul(shares), members) {
            return self.move_small(turn, call, inline, bytes);
        }
        let (own, output) = (self.own, call.output.reborrow());
        let segment = |seat: usize| {
            let part = share(count, members, seat);
            let size = descriptor.dtype.size_bytes();
            part.start * size..part.end * size
        };
        let block = |seat: usize| seat * bytes..(seat + 1) * bytes;
        let place = if call.input.is_some() { Place::Input } else { Place::Output };
        let lane = |seat: usize, outgoing: Vec<Outgoing>, incoming: Vec<Incoming>| {
            Lane::new(seat, watch.sequence, outgoing, incoming)
        };
        let reduction = |place: Place, start: usize| {
            let (dtype, op, kernels) = (call.dtype, call.op, call.kernels);
            Some(Reduction { dtype, op, kernels, place, start, position: own, contributors: members })
        };
        let others = (0..members).filter(|seat| *seat != own);
        let (lanes, own_part, reduction) = match descriptor.verb {
            Verb::AllReduce => {
                let lanes = others.map(|seat| {
                    let incoming =
                        vec![Incoming::Contribution(segment(own).len()), Incoming::Final(segment(seat))];
                    lane(seat, vec![send(place, segment(seat)), result(segment(own))], incoming)
                });
                (lanes.collect::<Vec<_>>(), segment(own), reduction(place, segment(own).start))
            }
            Verb::ReduceScatter => {
                let lanes = others.map(|seat| {
                    lane(seat, vec![send(Place::Input, block(seat))], vec![Incoming::Contribution(bytes)])
                });
                (lanes.collect(), 0..bytes, reduction(Place::Input, block(own).start))
            }
            Verb::Broadcast => {
                let root = usize::try_from(descriptor.root).unwrap_or(0);
                let lanes = others.map(|seat| match (own == root, seat == root) {
                    (true, _) => {
                        let outgoing = vec![segment(seat), segment(own)].into_iter();
                        lane(seat, outgoing.map(|range| send(Place::Output, range)).collect(), Vec::new())
                    }
                    (false, true) => {
                        let incoming = vec![Incoming::Own(segment(own)), Incoming::Final(segment(root))];
                        lane(seat, Vec::new(), incoming)
                    }
                    (false, false) => {
                        lane(seat, vec![result(segment(own))], vec![Incoming::Final(segment(seat))])
                    }
                });
                (lanes.collect(), segment(own), None)
            }
            _ => {
                let start = if place == Place::Input { 0 } else { block(own).start };
                let lanes = others.map(|seat| {
                    let incoming = vec![Incoming::Final(block(seat))];
                    lane(seat, vec![send(place, start..start + bytes)], incoming)
                });
                (lanes.collect(), block(own), None)
            }
        };
        let mut output = output;
        if let (Some(input), Verb::AllGather | Verb::Exchange) = (call.input, descriptor.verb) {
            output.part(block(own))?.copy_from(input)?;
        }
        let Turn { heard, scratch, .. } = turn;
        let (input, own) = (call.input, own_part);
        let flow = Flow { input, output, own, reduction, scratch, lanes, ready: 0, done: 0 };
        self.flow(heard, watch, flow, call.progress.as_ref())
    }

    /// The small contribution of a seat to the call that all have entered; `inline` is this member's own.
    pub(in crate::communicator) fn contributed<'t>(
        &self,
        turn: &'t Turn,
        inline: &'t [u8],
        seat: usize,
        byte_count: usize,
    ) -> Result<Span<'t>> {
        let found = match turn.heard.get(seat).and_then(|heard| heard.calls.front()) {
            _ if seat == self.own => Some(inline),
            found => found.map(|(_, inline)| inline.as_slice()),
        };
        let found = found.filter(|found| found.len() == byte_count);
        found.map(Span::of).ok_or_else(|| self.odd(seat))
    }

    fn move_small(&self, turn: &Turn, call: &mut Call<'_>, inline: &[u8], bytes: usize) -> Result<()> {
        let (members, own) = (self.seats.len(), self.own);
        let wanted = if call.verb == Verb::ReduceScatter { bytes * members } else { bytes };
        let root = call.root;
        let contribution = |seat: usize| self.contributed(turn, inline, seat, wanted);
        let all = || (0..members).map(contribution);
        let output = &mut call.output;
        match call.verb {
            Verb::AllReduce => {
                call.kernels.reduce(call.dtype, call.op, &all().collect::<Result<Vec<_>>>()?, output)
            }
            Verb::ReduceScatter => {
                let range = own * bytes..(own + 1) * bytes;
                let sources = all().map(|source| source?.part(range.clone()));
                call.kernels.reduce(call.dtype, call.op, &sources.collect::<Result<Vec<_>>>()?, output)
            }
            Verb::Broadcast if root == own => Ok(()),
            Verb::Broadcast => output.copy_from(contribution(root)?),
            _ => {
                for (seat, source) in all().enumerate() {
                    output.part(seat * bytes..(seat + 1) * bytes)?.copy_from(source?)?;
                }
                Ok(())
            }
        }
    }

    fn odd(&self, seat: usize) -> Error {
        Error::Corrupt {
            path: format!("the payload of index {}", self.seats[seat]).into(),
            offset: 0,
            reason: "is not of the size that its call has".to_owned(),
        }
    }

    /// Moves the payload of one call, watching the deadline and the peers.
    pub(in crate::communicator) fn flow(
        &self,
        heard: &mut [Heard],
        watch: &Watch<'_>,
        mut flow: Flow<'_>,
        progress: Option<&Progress<'_>>,
    ) -> Result<()> {
        while !flow.is_done() {
            let mut has_moved = false;
            for position in 0..flow.lanes.len() {
                let seat = flow.lanes[position].seat;
                let Some(peer) = self.peers.get(seat).and_then(Option::as_ref) else { continue };
                match flow.advance(position, &peer.data) {
                    Ok(moved) => has_moved |= moved,
                    Err(Trouble::Own(error)) => return Err(error),
                    Err(Trouble::Odd) => return Err(self.odd(seat)),
                    Err(Trouble::Ended(error)) => {
                        return Err(self.ended(peer, &mut heard[seat], watch, error));
                    }
                }
            }
            has_moved |= match flow.combine() {
                Ok(combined) => combined,
                Err(Trouble::Own(error)) => return Err(error),
                Err(_) => false,
            };
            if let (Some(progress), done @ 1..) = (progress, std::mem::take(&mut flow.done)) {
                progress.advance(done as u64);
            }
            if has_moved && watch.looked.get().elapsed() < CHECK_INTERVAL {
                continue;
            }
            let lagging = flow.lanes.iter().filter(|lane| !lane.is_done()).map(|lane| lane.seat);
            let lagging = lagging.collect::<Vec<_>>();
            self.look(watch, heard, &lagging)?;
            for lane in flow.lanes.iter().filter(|lane| !lane.is_done()) {
                let (Some(peer), heard) = (&self.peers[lane.seat], &heard[lane.seat]) else { continue };
                // One whose process ended may still have bytes on their way; a silent host has none.
                let is_over = match &heard.end {
                    Some(End::Closed) => lane.moved.elapsed() > self.silence,
                    Some(End::Silent(_) | End::Garbled) => true,
                    None => false,
                };
                if let (true, Some(error)) =
                    (is_over, peer.gone(heard, watch.sequence, &watch.phase, self.silence))
                {
                    return Err(error);
                }
            }
            if !has_moved {
                self.await_flow(watch, heard, &flow);
            }
        }
        Ok(())
    }

    fn await_flow(&self, watch: &Watch<'_>, heard: &[Heard], flow: &Flow<'_>) {
        let mut awaited = self.controls(heard);
        for (position, lane) in flow.lanes.iter().enumerate() {
            let (reads, writes) = flow.waits(position);
            if let (Some(peer), true) = (&self.peers[lane.seat], reads || writes) {
                awaited.push((peer.data.descriptor(), reads, writes));
            }
        }
        network::wait(&awaited, watch.deadline.pause());
    }

    /// Why the data connection of a peer ended.
    fn ended(
        &self,
        peer: &Peer,
        heard: &mut Heard,
        watch: &Watch<'_>,
        error: Option<std::io::Error>,
    ) -> Error {
        peer.listen(heard);
        if let Some(error) = self.cause(peer, heard, watch.sequence) {
            return error;
        }
        let end = error.as_ref().map_or(End::Closed, End::of);
        heard.end.get_or_insert(end);
        peer.gone(heard, watch.sequence, &watch.phase, self.silence)
            .unwrap_or_else(|| peer.lost(format!("{}: its connection ended", watch.phase)))
    }
}
