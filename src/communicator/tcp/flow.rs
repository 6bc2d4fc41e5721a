//! Payload on its way: every lane sends and receives at once, and what has come from all is combined piece by piece.
//!
//! Both sides know from the agreed call how many bytes go which way; a header repeats it, so that a member that counts
//! otherwise is found out. Contributions wait for nothing, so they always arrive; results follow as they become final. So no
//! member waits in a circle, and one slow connection holds up nothing but what depends on it.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use crate::communicator::carrier::{Carrier, Trouble};
use crate::error::{Error, Result};
use crate::sys::kernel::Table;
use crate::sys::network::Moved;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// Pieces of one peer's contribution that may wait to be combined.
const SLOTS: usize = 4;
/// Number of the call, and bytes that follow.
const HEADER: usize = 16;

/// Whose memory bytes lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::communicator) enum Place {
    Input,
    Output,
}

/// Bytes for one peer.
#[derive(Clone, Debug)]
pub(in crate::communicator) struct Outgoing {
    pub(in crate::communicator) place: Place,
    pub(in crate::communicator) range: Range<usize>,
    /// Whether this is the own part of the output, and goes only as far as that is final.
    pub(in crate::communicator) is_result: bool,
}

/// Bytes of one peer.
#[derive(Clone, Debug)]
pub(in crate::communicator) enum Incoming {
    /// A contribution of so many bytes to the own part.
    Contribution(usize),
    /// Final bytes of the output.
    Final(Range<usize>),
    /// The own part of the output, made by that peer: it is final as far as it has come.
    Own(Range<usize>),
}

impl Incoming {
    fn byte_count(&self) -> usize {
        match self {
            Self::Contribution(byte_count) => *byte_count,
            Self::Final(range) | Self::Own(range) => range.len(),
        }
    }
}

/// How contributions become the own part.
#[derive(Clone, Copy, Debug)]
pub(in crate::communicator) struct Reduction {
    pub(in crate::communicator) dtype: Dtype,
    pub(in crate::communicator) op: ReduceOp,
    pub(in crate::communicator) kernels: Table,
    /// Where this member's own contribution lies, and where it starts.
    pub(in crate::communicator) place: Place,
    pub(in crate::communicator) start: usize,
    /// This member's position among the contributors, in the order of additions.
    pub(in crate::communicator) position: usize,
    /// How many contributors an average has, where some of them were added before.
    pub(in crate::communicator) contributors: usize,
}

/// The memory that contributions wait in, kept from call to call.
#[derive(Debug, Default)]
pub(in crate::communicator) struct Scratch {
    rings: Vec<Vec<u8>>,
    own: Vec<u8>,
    zeros: Vec<u8>,
    piece: usize,
}

impl Scratch {
    /// Makes room for pieces of `piece` bytes from `count` peers.
    ///
    /// # Errors
    /// `Exhausted` if there is no such memory.
    pub(in crate::communicator) fn prepare(&mut self, count: usize, piece: usize) -> Result<()> {
        if self.piece == piece && self.rings.len() >= count {
            return Ok(());
        }
        let grow = |bytes: &mut Vec<u8>, wanted: usize| {
            bytes.clear();
            let room = bytes.try_reserve_exact(wanted).map_err(|_| Error::Exhausted {
                place: "this process's memory, for contributions of other hosts".to_owned(),
                wanted_bytes: wanted as u64,
                free_bytes: 0,
                remedy: "use less memory".to_owned(),
            });
            bytes.resize(room.map(|()| wanted)?, 0);
            Ok(())
        };
        self.rings.resize_with(count.max(self.rings.len()), Vec::new);
        for ring in &mut self.rings {
            grow(ring, SLOTS * piece)?;
        }
        grow(&mut self.own, piece)?;
        grow(&mut self.zeros, piece)?;
        self.piece = piece;
        Ok(())
    }
}

/// What goes to one peer and comes from it.
#[derive(Debug)]
pub(in crate::communicator) struct Lane {
    pub(in crate::communicator) seat: usize,
    outgoing: VecDeque<Outgoing>,
    incoming: VecDeque<Incoming>,
    header: [u8; HEADER],
    expected: [u8; HEADER],
    heading: [u8; HEADER],
    /// Bytes of the headers that went and came.
    headed: (usize, usize),
    /// Bytes of the first outgoing and of the first incoming that are done.
    sent: usize,
    received: usize,
    /// Bytes of the contribution that have come.
    contributed: usize,
    contributes: bool,
    pub(in crate::communicator) moved: Instant,
}

impl Lane {
    pub(in crate::communicator) fn new(
        seat: usize,
        sequence: u64,
        outgoing: impl IntoIterator<Item = Outgoing>,
        incoming: impl IntoIterator<Item = Incoming>,
    ) -> Self {
        let outgoing = outgoing.into_iter().filter(|one| !one.range.is_empty()).collect::<VecDeque<_>>();
        let incoming = incoming.into_iter().filter(|one| one.byte_count() > 0).collect::<VecDeque<_>>();
        let header = |byte_count: usize| {
            let mut header = [0; HEADER];
            header[..8].copy_from_slice(&sequence.to_le_bytes());
            header[8..].copy_from_slice(&(byte_count as u64).to_le_bytes());
            header
        };
        let leaving = outgoing.iter().map(|one| one.range.len()).sum::<usize>();
        let coming = incoming.iter().map(Incoming::byte_count).sum::<usize>();
        Self {
            seat,
            contributes: incoming.iter().any(|one| matches!(one, Incoming::Contribution(_))),
            header: header(leaving),
            expected: header(coming),
            heading: [0; HEADER],
            headed: (if leaving == 0 { HEADER } else { 0 }, if coming == 0 { HEADER } else { 0 }),
            outgoing,
            incoming,
            sent: 0,
            received: 0,
            contributed: 0,
            moved: Instant::now(),
        }
    }

    pub(in crate::communicator) fn is_done(&self) -> bool {
        self.outgoing.is_empty() && self.incoming.is_empty()
    }
}

type Attempted = std::result::Result<bool, Trouble>;

/// One call's payload.
pub(in crate::communicator) struct Flow<'c> {
    pub(in crate::communicator) input: Option<Span<'c>>,
    pub(in crate::communicator) output: SpanMut<'c>,
    /// The part of the output that this member makes final.
    pub(in crate::communicator) own: Range<usize>,
    pub(in crate::communicator) reduction: Option<Reduction>,
    pub(in crate::communicator) scratch: &'c mut Scratch,
    /// By seat, this member left out.
    pub(in crate::communicator) lanes: Vec<Lane>,
    /// Bytes of the own part that are final.
    pub(in crate::communicator) ready: usize,
    /// Bytes that became final since this was asked last.
    pub(in crate::communicator) done: usize,
}

impl Flow<'_> {
    /// Whether everything has gone and come.
    pub(in crate::communicator) fn is_done(&self) -> bool {
        self.lanes.iter().all(Lane::is_done) && (self.reduction.is_none() || self.ready == self.own.len())
    }

    /// Bytes of the first outgoing that may go now.
    fn sendable(&self, lane: &Lane) -> usize {
        lane.outgoing.front().map_or(0, |one| {
            let end = if one.is_result { self.ready.min(one.range.len()) } else { one.range.len() };
            end - lane.sent.min(end)
        })
    }

    /// Bytes for which there is room now.
    fn receivable(&self, lane: &Lane) -> usize {
        match lane.incoming.front() {
            None => 0,
            Some(Incoming::Contribution(byte_count)) => {
                let capacity = SLOTS * self.scratch.piece;
                let free = capacity - (lane.contributed - self.ready).min(capacity);
                let contiguous = capacity - lane.contributed % capacity.max(1);
                free.min(contiguous).min(byte_count - lane.received)
            }
            Some(Incoming::Final(range) | Incoming::Own(range)) => range.len() - lane.received,
        }
    }

    /// Whether a lane waits for its connection to give, and to take.
    pub(in crate::communicator) fn waits(&self, position: usize) -> (bool, bool) {
        let lane = &self.lanes[position];
        let reads = lane.headed.1 < HEADER || self.receivable(lane) > 0;
        let writes = lane.headed.0 < HEADER || self.sendable(lane) > 0;
        (reads && !lane.incoming.is_empty(), writes && !lane.outgoing.is_empty())
    }

    /// Sends and receives once on a lane, as far as its connection takes and gives; whether bytes moved.
    pub(in crate::communicator) fn advance(&mut self, position: usize, stream: &Carrier) -> Attempted {
        let sent = self.send(position, stream)?;
        let received = self.receive(position, stream)?;
        if sent || received {
            self.lanes[position].moved = Instant::now();
        }
        Ok(sent || received)
    }

    fn send(&mut self, position: usize, stream: &Carrier) -> Attempted {
        let sendable = self.sendable(&self.lanes[position]);
        let lane = &mut self.lanes[position];
        if lane.outgoing.is_empty() {
            return Ok(false);
        }
        if lane.headed.0 < HEADER {
            let count = moved(stream.send(Span::of(&lane.header[lane.headed.0..]), true))?;
            lane.headed.0 += count;
            return Ok(count > 0);
        }
        let (Some(one), true) = (lane.outgoing.front(), sendable > 0) else { return Ok(false) };
        let start = one.range.start + lane.sent;
        let whole = match one.place {
            Place::Input => self.input.unwrap_or(Span::empty()),
            Place::Output => self.output.as_span(),
        };
        let count = moved(stream.send(whole.part(start..start + sendable)?, true))?;
        lane.sent += count;
        if lane.sent == one.range.len() {
            lane.outgoing.pop_front();
            lane.sent = 0;
        }
        Ok(count > 0)
    }

    fn receive(&mut self, position: usize, stream: &Carrier) -> Attempted {
        let receivable = self.receivable(&self.lanes[position]);
        let piece = self.scratch.piece;
        let lane = &mut self.lanes[position];
        let Some(one) = lane.incoming.front() else { return Ok(false) };
        if lane.headed.1 < HEADER {
            let count = moved(stream.receive(&mut SpanMut::of(&mut lane.heading[lane.headed.1..])))?;
            lane.headed.1 += count;
            if lane.headed.1 == HEADER && lane.heading != lane.expected {
                return Err(Trouble::Odd);
            }
            return Ok(count > 0);
        }
        if receivable == 0 {
            return Ok(false);
        }
        let count = match one {
            Incoming::Contribution(_) => {
                let start = lane.contributed % (SLOTS * piece);
                let ring = &mut self.scratch.rings[position][start..start + receivable];
                let count = moved(stream.receive(&mut SpanMut::of(ring)))?;
                lane.contributed += count;
                count
            }
            Incoming::Final(range) | Incoming::Own(range) => {
                let start = range.start + lane.received;
                let count = moved(stream.receive(&mut self.output.part(start..start + receivable)?))?;
                if matches!(one, Incoming::Own(_)) {
                    self.ready += count;
                }
                self.done += count;
                count
            }
        };
        lane.received += count;
        if lane.received == one.byte_count() {
            lane.incoming.pop_front();
            lane.received = 0;
        }
        Ok(count > 0)
    }

    /// Combines the next piece if it has come from everybody; whether it did.
    pub(in crate::communicator) fn combine(&mut self) -> Attempted {
        let Some(reduction) = self.reduction else { return Ok(false) };
        let piece = self.scratch.piece;
        let range = self.ready..self.own.len().min(self.ready + piece);
        let has_come = |lane: &Lane| !lane.contributes || lane.contributed >= range.end;
        if range.is_empty() || !self.lanes.iter().all(has_come) {
            return Ok(false);
        }
        let mine = reduction.start + range.start..reduction.start + range.end;
        let mine = match reduction.place {
            Place::Input => self.input.unwrap_or(Span::empty()).part(mine)?,
            Place::Output => {
                // The result takes its place in the output, so it is read from a copy.
                let mut copy = SpanMut::of(&mut self.scratch.own[..range.len()]);
                copy.copy_from(self.output.as_span().part(mine)?)?;
                Span::of(&self.scratch.own[..range.len()])
            }
        };
        let slot = self.ready % (SLOTS * piece);
        let mut sources = Vec::with_capacity(self.lanes.len() + 1);
        for (lane, ring) in self.lanes.iter().zip(&self.scratch.rings) {
            if lane.contributes {
                sources.push(Span::of(&ring[slot..slot + range.len()]));
            }
        }
        sources.insert(reduction.position.min(sources.len()), mine);
        if reduction.op == ReduceOp::Average {
            let missing = reduction.contributors.saturating_sub(sources.len());
            sources.extend(std::iter::repeat_n(Span::of(&self.scratch.zeros[..range.len()]), missing));
        }
        let mut target = self.output.part(self.own.start + range.start..self.own.start + range.end)?;
        reduction.kernels.reduce(reduction.dtype, reduction.op, &sources, &mut target)?;
        self.ready = range.end;
        self.done += range.len();
        Ok(true)
    }
}

fn moved(moved: Moved) -> std::result::Result<usize, Trouble> {
    match moved {
        Moved::Bytes(count) => Ok(count),
        Moved::Busy => Ok(0),
        Moved::End => Err(Trouble::Ended(None)),
        Moved::Broken(error) => Err(Trouble::Ended(Some(error))),
    }
}
