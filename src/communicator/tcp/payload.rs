//! What each verb moves between hosts, once all members have agreed on the call.
//!
//! Small contributions ride beside the calls. Large arrays are cut into one part for each member: everybody sends its
//! contribution to a part straight to the member that owns it, which combines all of them in the order of seats and
//! sends the result to all. So every byte crosses twice at most, and the order of additions is that of shared memory. A
//! broadcast goes in parts too: the root gives each member one, and the members give them to each other.

use std::ops::Range;

use super::flow::{Flow, Incoming, Lane, Outgoing, Place, Reduction};
use super::peer::{End, Heard, Peer};
use super::{Call, TcpCommunicator, Turn, Watch};
use crate::communicator::Progress;
use crate::communicator::carrier::Trouble;
use crate::communicator::descriptor::Descriptor;
use crate::communicator::parts::{self, places};
use crate::communicator::reduce::share;
use crate::communicator::small;
use crate::error::{Error, Result};
use crate::sys::{CHECK_INTERVAL, Span};
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

/// What goes to each peer, what comes from it, and what this member makes of it.
struct Moves {
    lanes: Vec<Lane>,
    /// The part of the output that this member makes final.
    own: Range<usize>,
    reduction: Option<Reduction>,
}

impl TcpCommunicator {
    /// Whether the contribution of a call rides beside it.
    fn is_small(&self, verb: Verb, is_counted: bool, byte_count: usize) -> bool {
        let members = self.seats.len();
        !is_counted && is_small(small::contribution_bytes(verb, byte_count, members), members)
    }

    /// This member's small contribution, or its counts; empty if the call is large, or if this member has none.
    pub(in crate::communicator) fn contribution(&self, call: &Call<'_>, count: usize) -> Result<Vec<u8>> {
        if let Some(pairs) = parts::pairs(call) {
            return Ok(pairs);
        }
        let part_bytes = count.saturating_mul(call.dtype.size_bytes());
        if call.gpu.is_some() || !self.is_small(call.verb, call.counts.is_some(), part_bytes) {
            return Ok(Vec::new());
        }
        let contribution = small::contribution(call, self.own, part_bytes)?;
        Ok(contribution.map_or_else(Vec::new, |contribution| contribution.to_vec()))
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
        let (own, members, size) = (self.own, self.seats.len(), descriptor.dtype.size_bytes());
        let count = usize::try_from(descriptor.count).unwrap_or(usize::MAX);
        let is_counted = descriptor.is_counted();
        if descriptor.verb == Verb::Barrier || (count == 0 && !is_counted) {
            return Ok(());
        }
        let is_small = self.is_small(descriptor.verb, is_counted, count.saturating_mul(size));
        if call.gpu.is_none() && is_small {
            let part_bytes = count.saturating_mul(size);
            let byte_count = small::contribution_bytes(descriptor.verb, part_bytes, members);
            let contributed = |seat: usize| self.contributed(turn, inline, seat, byte_count);
            return small::settle(call, own, members, part_bytes, contributed);
        }
        if descriptor.verb == Verb::AllToAll && is_counted {
            let row = |seat: usize| match turn.heard[seat].calls.front() {
                _ if seat == own => inline.to_vec(),
                heard => heard.map_or_else(Vec::new, |(_, inline, _)| inline.clone()),
            };
            parts::check_pairs(&(0..members).map(row).collect::<Vec<_>>(), own, &self.seats)?;
        }
        if call.gpu.is_some() {
            return Ok(());
        }
        let given = places(call.counts, count, members, size);
        let taken = match descriptor.verb {
            Verb::AllToAll => places(call.receive_counts, count, members, size),
            _ => given.clone(),
        };
        let moves = self.moves(watch, descriptor, call, &given, &taken);
        let (input, mut output) = (call.input, call.output.reborrow());
        // What stays here goes over no connection.
        let is_root = call.root == own;
        match (call.input, descriptor.verb) {
            (Some(input), Verb::AllGather | Verb::Exchange | Verb::Split) => {
                output.part(given[own].clone())?.copy_from(input)?
            }
            (Some(input), Verb::Gather) if is_root => output.part(given[own].clone())?.copy_from(input)?,
            (Some(input), Verb::Scatter) if is_root => output.copy_from(input.part(given[own].clone())?)?,
            (Some(input), Verb::AllToAll) => {
                output.part(taken[own].clone())?.copy_from(input.part(given[own].clone())?)?;
            }
            _ => {}
        }
        let Turn { heard, scratch, .. } = turn;
        let Moves { lanes, own, reduction } = moves;
        let flow = Flow { input, output, own, reduction, scratch, lanes, ready: 0, done: 0 };
        self.flow(heard, watch, flow, call.progress.as_ref())
    }

    /// Which bytes of a call go where: `given` and `taken` are the parts of an array of all seats.
    fn moves(
        &self,
        watch: &Watch<'_>,
        descriptor: &Descriptor,
        call: &Call<'_>,
        given: &[Range<usize>],
        taken: &[Range<usize>],
    ) -> Moves {
        let (own, members, size) = (self.own, self.seats.len(), descriptor.dtype.size_bytes());
        let count = usize::try_from(descriptor.count).unwrap_or(usize::MAX);
        // An array of one part, and the share of it that a seat makes final.
        let (whole, root) = (0..count.saturating_mul(size), call.root);
        let segment = |seat: usize| {
            let part = share(count, members, seat);
            part.start * size..part.end * size
        };
        let length = given[own].len();
        let place = if call.input.is_some() { Place::Input } else { Place::Output };
        let reduction = |place: Place, start: usize| {
            let (dtype, op, kernels) = (call.dtype, call.op, call.kernels);
            Some(Reduction { dtype, op, kernels, place, start, position: own, contributors: members })
        };
        let (own_part, reduction) = match descriptor.verb {
            Verb::AllReduce => (segment(own), reduction(place, segment(own).start)),
            Verb::ReduceScatter => (0..length, reduction(Place::Input, given[own].start)),
            Verb::Reduce if own == root => (whole.clone(), reduction(place, 0)),
            Verb::Broadcast => (segment(own), None),
            _ => (0..0, None),
        };
        let lane = |seat: usize| {
            let (outgoing, incoming) = match descriptor.verb {
                Verb::AllReduce => (
                    vec![send(place, segment(seat)), result(segment(own))],
                    vec![Incoming::Contribution(segment(own).len()), Incoming::Final(segment(seat))],
                ),
                Verb::ReduceScatter => {
                    (vec![send(Place::Input, given[seat].clone())], vec![Incoming::Contribution(length)])
                }
                Verb::Reduce if own == root => (Vec::new(), vec![Incoming::Contribution(whole.len())]),
                Verb::Reduce if seat == root => (vec![send(Place::Input, whole.clone())], Vec::new()),
                Verb::Broadcast if own == root => {
                    (vec![send(Place::Output, segment(seat)), send(Place::Output, segment(own))], Vec::new())
                }
                Verb::Broadcast if seat == root => {
                    (Vec::new(), vec![Incoming::Own(segment(own)), Incoming::Final(segment(root))])
                }
                Verb::Broadcast => (vec![result(segment(own))], vec![Incoming::Final(segment(seat))]),
                Verb::AllGather | Verb::Exchange | Verb::Split => {
                    let start = if place == Place::Input { 0 } else { given[own].start };
                    (vec![send(place, start..start + length)], vec![Incoming::Final(given[seat].clone())])
                }
                Verb::Gather if own == root => (Vec::new(), vec![Incoming::Final(given[seat].clone())]),
                Verb::Gather if seat == root => (vec![send(Place::Input, 0..length)], Vec::new()),
                Verb::Scatter if own == root => (vec![send(Place::Input, given[seat].clone())], Vec::new()),
                Verb::Scatter if seat == root => (Vec::new(), vec![Incoming::Final(0..length)]),
                Verb::AllToAll => (
                    vec![send(Place::Input, given[seat].clone())],
                    vec![Incoming::Final(taken[seat].clone())],
                ),
                _ => (Vec::new(), Vec::new()),
            };
            Lane::new(seat, watch.sequence, outgoing, incoming)
        };
        let lanes = (0..members).filter(|seat| *seat != own).map(lane).collect();
        Moves { lanes, own: own_part, reduction }
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
            found => found.map(|(_, inline, _)| inline.as_slice()),
        };
        let found = found.filter(|found| found.len() == byte_count);
        found.map(Span::of).ok_or_else(|| self.odd(seat))
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
            if has_moved {
                watch.patience.renew();
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
                awaited.extend(peer.data.awaited(reads, writes));
            }
        }
        watch.patience.rest(&awaited, self.is_mpi(), watch.deadline.pause());
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
