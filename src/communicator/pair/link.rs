//! One stream between two members: what has come and was not received, what waits to go, and whose bytes are on their way.
//!
//! Every thread in a call with that member moves the stream on: it sends what waits, takes what comes, and leaves bytes that
//! are for another thread's array to that thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::frame::{Ask, FRAME_BYTES, Frame};
use crate::communicator::carrier::Trouble;
use crate::error::{Error, Result};
use crate::sys::network::Moved;
use crate::sys::{Span, SpanMut};

/// What a message that is sent whole counts beside its bytes.
pub(super) const OVERHEAD: u64 = 64;
/// The most bytes of a large message between two frames.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// Offers that may wait for their receives; a member makes one for each of its executors.
const OFFER_LIMIT: usize = 4096;

/// A stream of bytes to one member and from it; nothing here blocks.
pub(in crate::communicator) trait Passage: Send + Sync {
    /// Opens this member's end, once.
    ///
    /// # Errors
    /// `Exhausted` and `Io` if there is no memory for it.
    fn open(&self) -> Result<()>;

    /// Sends as much as fits now; `is_awaited` if the other side is in a call that takes it.
    fn send(&self, source: Span<'_>, is_awaited: bool) -> Moved;

    /// Takes what has come, as far as the target holds it; the target must not be empty.
    fn receive(&self, target: &mut SpanMut<'_>) -> Moved;

    /// Whether what was sent arrives without any more calls here.
    fn is_sent(&self) -> bool;

    /// Bytes of messages that may be on their way without a receive, with 64 bytes for each.
    fn buffer_bytes(&self) -> u64;

    /// Waits until something may have come, or there may be room to send, or for any other reason.
    fn rest(&self, writes: bool, patience: &super::Patience, limit: std::time::Duration);
}

pub(super) type Attempted<T> = std::result::Result<T, Trouble>;

/// A message that has come and was not received.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) ask: Ask,
    /// Its bytes; `None` if they wait on the other side.
    pub(super) bytes: Option<Vec<u8>>,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Accepted,
    Refused(Ask),
}

/// What is being taken from the stream.
#[derive(Debug)]
enum Incoming {
    Frame(usize),
    Whole(Ask, Vec<u8>, usize),
    /// Bytes for the receive that accepted this offer.
    Chunk(u64, u64),
}

/// The state of one stream.
#[derive(Debug)]
pub(super) struct Link {
    outbox: Vec<u8>,
    /// Bytes of the outbox that have gone.
    gone: usize,
    /// Bytes that were put into the outbox, and that have left it, ever.
    queued: u64,
    flushed: u64,
    /// Whether somebody is between a chunk's frame and its end.
    is_mid_chunk: bool,
    heading: [u8; FRAME_BYTES],
    incoming: Incoming,
    arrivals: VecDeque<Arrival>,
    replies: BTreeMap<u64, Reply>,
    /// Offers of the other side that were accepted here and have not wholly come.
    accepted: BTreeSet<u64>,
    pub(super) sends: u64,
    pub(super) receives: u64,
    /// What was sent whole here, and how much of it was received there.
    spent: u64,
    credited: u64,
    /// What was sent whole there and was received here, and how much of that was told.
    consumed: u64,
    told: u64,
    /// What has arrived whole there and waits here.
    waiting: u64,
    /// The receive that the other side was last known to wait in.
    want: Option<Ask>,
    has_ended: bool,
}

impl Default for Link {
    fn default() -> Self {
        Self {
            outbox: Vec::new(),
            gone: 0,
            queued: 0,
            flushed: 0,
            is_mid_chunk: false,
            heading: [0; FRAME_BYTES],
            incoming: Incoming::Frame(0),
            arrivals: VecDeque::new(),
            replies: BTreeMap::new(),
            accepted: BTreeSet::new(),
            sends: 0,
            receives: 0,
            spent: 0,
            credited: 0,
            consumed: 0,
            told: 0,
            waiting: 0,
            want: None,
            has_ended: false,
        }
    }
}

/// Bytes of a message that is sent whole, as they count against the buffer.
fn cost(ask: &Ask) -> u64 {
    ask.byte_count().saturating_add(OVERHEAD)
}

fn memory(byte_count: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let wanted = usize::try_from(byte_count).unwrap_or(usize::MAX);
    bytes.try_reserve_exact(wanted).map_err(|_| Error::Exhausted {
        place: "this process's memory, for messages that wait to be received".to_owned(),
        wanted_bytes: byte_count,
        free_bytes: 0,
        remedy: "use less memory".to_owned(),
    })?;
    bytes.resize(wanted, 0);
    Ok(bytes)
}

impl Link {
    /// Puts a frame, and what follows it, behind all that waits to go; gives the place that tells when it has gone.
    pub(super) fn post(&mut self, frame: &Frame, bytes: Span<'_>) -> Result<u64> {
        self.outbox.extend(frame.encode());
        let start = self.outbox.len();
        self.outbox.resize(start + bytes.byte_count(), 0);
        SpanMut::of(&mut self.outbox[start..]).copy_from(bytes)?;
        self.queued += (FRAME_BYTES + bytes.byte_count()) as u64;
        Ok(self.queued)
    }

    /// Whether all up to a place of [`Link::post`] has gone.
    pub(super) fn has_gone(&self, place: u64) -> bool {
        self.flushed >= place
    }

    /// Whether this member has never sent anything here.
    pub(super) fn is_silent(&self) -> bool {
        self.queued == 0 && self.sends == 0
    }

    /// Whether anything of this member waits to go.
    pub(super) fn is_pending(&self) -> bool {
        !self.outbox.is_empty() || self.is_mid_chunk
    }

    /// Whether a message may be sent whole; it then counts as sent.
    pub(super) fn spend(&mut self, ask: &Ask, limit: u64) -> bool {
        // The receive that waited for this tag waits no more.
        self.want = self.want.filter(|want| want.tag != ask.tag);
        let is_free = self.spent.saturating_sub(self.credited).saturating_add(cost(ask)) <= limit;
        if is_free {
            self.spent += cost(ask);
        }
        is_free
    }

    /// Sends what waits, as far as the stream takes it; whether bytes went.
    pub(super) fn flush(&mut self, passage: &dyn Passage) -> Attempted<bool> {
        let mut has_moved = false;
        while !self.is_mid_chunk && self.gone < self.outbox.len() {
            match passage.send(Span::of(&self.outbox[self.gone..]), false) {
                Moved::Bytes(count) => {
                    self.gone += count;
                    self.flushed += count as u64;
                    has_moved = true;
                }
                Moved::Busy => break,
                Moved::End => return Err(Trouble::Ended(None)),
                Moved::Broken(error) => return Err(Trouble::Ended(Some(error))),
            }
        }
        if self.gone == self.outbox.len() {
            self.outbox.clear();
            self.gone = 0;
        }
        Ok(has_moved)
    }

    /// Claims the stream for a chunk, if nothing else is on its way.
    pub(super) fn begin_chunk(&mut self) -> bool {
        let is_free = !self.is_pending();
        self.is_mid_chunk |= is_free;
        is_free
    }

    /// Gives the stream back.
    pub(super) fn end_chunk(&mut self) {
        self.is_mid_chunk = false;
    }

    /// Takes what has come, up to bytes that are for somebody's array; whether anything came.
    pub(super) fn listen(&mut self, passage: &dyn Passage) -> Attempted<bool> {
        let mut has_moved = false;
        loop {
            let mut target = match &mut self.incoming {
                Incoming::Chunk(..) => return Ok(has_moved),
                Incoming::Frame(filled) => SpanMut::of(&mut self.heading[*filled..]),
                Incoming::Whole(_, bytes, filled) => SpanMut::of(&mut bytes[*filled..]),
            };
            let count = if target.is_empty() {
                0
            } else if self.has_ended {
                return Err(Trouble::Ended(None));
            } else {
                match passage.receive(&mut target) {
                    Moved::Bytes(count) => count,
                    Moved::Busy => return Ok(has_moved),
                    Moved::End => {
                        self.has_ended = true;
                        return Err(Trouble::Ended(None));
                    }
                    Moved::Broken(error) => {
                        self.has_ended = true;
                        return Err(Trouble::Ended(Some(error)));
                    }
                }
            };
            has_moved = true;
            self.take(count, passage.buffer_bytes())?;
        }
    }

    /// Counts bytes that came, and understands what is whole.
    fn take(&mut self, count: usize, limit: u64) -> Attempted<()> {
        match &mut self.incoming {
            Incoming::Chunk(..) => {}
            Incoming::Frame(filled) => {
                *filled += count;
                if *filled == FRAME_BYTES {
                    self.incoming = Incoming::Frame(0);
                    let frame = Frame::decode(&self.heading).ok_or(Trouble::Odd)?;
                    self.hear(frame, limit)?;
                }
            }
            Incoming::Whole(ask, bytes, filled) => {
                *filled += count;
                if *filled == bytes.len() {
                    let (ask, bytes) = (*ask, std::mem::take(bytes));
                    self.incoming = Incoming::Frame(0);
                    self.arrivals.push_back(Arrival { ask, bytes: Some(bytes) });
                }
            }
        }
        Ok(())
    }

    fn hear(&mut self, frame: Frame, limit: u64) -> Attempted<()> {
        match frame {
            Frame::Whole(ask) => {
                self.waiting = self.waiting.saturating_add(cost(&ask));
                if self.waiting > limit {
                    return Err(Trouble::Odd);
                }
                self.incoming = Incoming::Whole(ask, memory(ask.byte_count())?, 0);
            }
            Frame::Offer(ask) => {
                if self.arrivals.len() >= OFFER_LIMIT {
                    return Err(Trouble::Odd);
                }
                self.arrivals.push_back(Arrival { ask, bytes: None });
            }
            Frame::Accept(number) => self.reply(number, Reply::Accepted)?,
            Frame::Refuse(number, ask) => self.reply(number, Reply::Refused(ask))?,
            Frame::Chunk(number, byte_count) => {
                if !self.accepted.contains(&number) || byte_count == 0 || byte_count > CHUNK_BYTES as u64 {
                    return Err(Trouble::Odd);
                }
                self.incoming = Incoming::Chunk(number, byte_count);
            }
            Frame::Credit(total) => {
                if total > self.spent {
                    return Err(Trouble::Odd);
                }
                self.credited = self.credited.max(total);
            }
            Frame::Want(ask) => self.want = Some(ask),
        }
        Ok(())
    }

    fn reply(&mut self, number: u64, reply: Reply) -> Attempted<()> {
        if number > self.sends || self.replies.len() >= OFFER_LIMIT {
            return Err(Trouble::Odd);
        }
        self.replies.insert(number, reply);
        Ok(())
    }

    /// What became of an offer of this member, once.
    pub(super) fn answer(&mut self, number: u64) -> Option<Reply> {
        self.replies.remove(&number)
    }

    /// The first message with this tag that was not received; one that was sent whole is received now, and the other side is
    /// told when much was.
    pub(super) fn arrival(&mut self, tag: u64, limit: u64) -> Result<Option<Arrival>> {
        let Some(position) = self.arrivals.iter().position(|one| one.ask.tag == tag) else { return Ok(None) };
        let Some(arrival) = self.arrivals.remove(position) else { return Ok(None) };
        if arrival.bytes.is_some() {
            self.waiting = self.waiting.saturating_sub(cost(&arrival.ask));
            self.consumed += cost(&arrival.ask);
            if self.consumed - self.told >= limit / 4 {
                self.told = self.consumed;
                self.post(&Frame::Credit(self.consumed), Span::empty())?;
            }
        }
        Ok(Some(arrival))
    }

    /// Lets the bytes of an offer come; gives the place of the word that says so.
    pub(super) fn accept(&mut self, number: u64) -> Result<u64> {
        self.accepted.insert(number);
        self.post(&Frame::Accept(number), Span::empty())
    }

    /// Takes bytes of an accepted offer that have come; how many.
    pub(super) fn take_chunk(
        &mut self,
        passage: &dyn Passage,
        number: u64,
        target: &mut SpanMut<'_>,
    ) -> Attempted<usize> {
        let Incoming::Chunk(found, left) = &mut self.incoming else { return Ok(0) };
        if *found != number {
            return Ok(0);
        }
        if *left > target.byte_count() as u64 {
            return Err(Trouble::Odd);
        }
        let mut part = target.part(0..usize::try_from(*left).unwrap_or(0))?;
        match passage.receive(&mut part) {
            Moved::Bytes(count) => {
                *left -= count as u64;
                if *left == 0 {
                    self.incoming = Incoming::Frame(0);
                }
                Ok(count)
            }
            Moved::Busy => Ok(0),
            Moved::End => Err(Trouble::Ended(None)),
            Moved::Broken(error) => Err(Trouble::Ended(Some(error))),
        }
    }

    /// All bytes of an offer have come.
    pub(super) fn complete(&mut self, number: u64) {
        self.accepted.remove(&number);
    }

    /// What the other side was last known to want of this member, to follow what else is known of it.
    pub(super) fn last_word(&self) -> String {
        let want = self.want.map(|ask| format!(", waits in receive #{} from here {ask}", ask.number));
        let mut offers = self.arrivals.iter().filter(|one| one.bytes.is_none());
        let offer =
            offers.next_back().map(|one| format!(", waits in send #{} to here {}", one.ask.number, one.ask));
        let mut sent = self.arrivals.iter().filter(|one| one.bytes.is_some());
        let sent = sent.next_back().map(|one| format!(", has sent #{} {}", one.ask.number, one.ask));
        [want, offer, sent].into_iter().flatten().collect()
    }
}
