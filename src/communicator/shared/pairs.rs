//! Sends and receives between members of one host: a ring of bytes for each way, made when two of them first need it.
//!
//! The member that sends into a ring makes it, and passes it over the socket between the two. `HEAD` counts the bytes that were
//! put in, `TAIL` those that were taken out; each has one writer, releases what lies before it, and makes with its count of
//! sleepers the handshake that `control.rs` describes. What the other side wrote is checked: a ring never gives more than it has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::control::State;
use super::join::{self, Label};
use super::signal::{Signal, Words};
use super::{Proof, SPINS, SharedCommunicator, YIELDS};
use crate::communicator::Call;
use crate::communicator::descriptor::{self, again};
use crate::communicator::pair::{BUFFER_BYTES, Group, Pair, Passage, Patience};
use crate::error::{Error, Result};
use crate::sys::network::Moved;
use crate::sys::shared::Segment;
use crate::sys::{Deadline, Span, SpanMut, socket};

/// Bytes of a ring: more than messages without a receive and words take together, and few enough for the second cache.
const RING_BYTES: usize = 256 << 10;
const NAME: &str = "uform-pair";
const HEAD: usize = 0;
const READERS: usize = 64;
const TAIL: usize = 128;
const WRITERS: usize = 192;
const BYTES: usize = 256;

/// The two rings between this member and another one.
pub(super) struct Rings {
    proof: Proof,
    index: usize,
    label: Label,
    has_cores: bool,
    outgoing: OnceLock<Segment>,
    incoming: OnceLock<Segment>,
    is_passed: AtomicBool,
    /// What was put into the outgoing ring and taken out of the incoming one.
    head: AtomicU64,
    tail: AtomicU64,
}

/// How many bytes were put into a ring, for those who take them out.
const fn head(segment: &Segment) -> Signal<'_, Segment> {
    Signal { memory: segment, words: Words { counter: HEAD, sleepers: READERS, state: None } }
}

/// How many bytes were taken out of a ring, for those who put more into it.
const fn tail(segment: &Segment) -> Signal<'_, Segment> {
    Signal { memory: segment, words: Words { counter: TAIL, sleepers: WRITERS, state: None } }
}

impl Rings {
    fn new(proof: Proof, index: usize, label: Label, has_cores: bool) -> Self {
        let (outgoing, incoming) = (OnceLock::new(), OnceLock::new());
        let is_passed = AtomicBool::new(false);
        let (head, tail) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { proof, index, label, has_cores, outgoing, incoming, is_passed, head, tail }
    }

    /// Passes the outgoing ring, if the socket has room.
    fn pass(&self) {
        if self.is_passed.load(Ordering::Relaxed) {
            return;
        }
        if let (Some(segment), Some(mate)) = (self.outgoing.get(), self.proof.0.mates.get(&self.index))
            && mate.conversation.send(&[&self.label[..], &[1]].concat(), Some(segment.file()))
        {
            self.is_passed.store(true, Ordering::Relaxed);
        }
    }

    /// The incoming ring, if it has come.
    fn taken(&self) -> std::result::Result<Option<&Segment>, Moved> {
        if let Some(segment) = self.incoming.get() {
            return Ok(Some(segment));
        }
        let Some(mate) = self.proof.0.mates.get(&self.index) else { return Err(Moved::End) };
        let broken = |error: Error| Moved::Broken(std::io::Error::other(error.chain()));
        match mate.letter(&self.label, "sends and receives") {
            Ok(Some((_, Some(file)))) => {
                let segment = Segment::adopt(NAME, file, BYTES + RING_BYTES).map_err(broken)?;
                let _ = self.incoming.set(segment);
                Ok(self.incoming.get())
            }
            Ok(Some((_, None))) => Err(broken(socket::unfiled(self.index))),
            Ok(None) => Ok(None),
            Err(_) => Err(Moved::End),
        }
    }
}

impl Passage for Rings {
    fn open(&self) -> Result<()> {
        if self.outgoing.get().is_none() {
            let _ = self.outgoing.set(Segment::reserve(NAME, BYTES + RING_BYTES)?);
        }
        Ok(())
    }

    fn send(&self, source: Span<'_>, _is_awaited: bool) -> Moved {
        self.pass();
        let Some(segment) = self.outgoing.get() else { return Moved::Busy };
        let put = self.head.load(Ordering::Relaxed);
        let used = put.wrapping_sub(tail(segment).seen());
        let Some(free) = (RING_BYTES as u64).checked_sub(used) else {
            return Moved::Broken(std::io::Error::other("more was taken than was sent"));
        };
        let start = (put % RING_BYTES as u64) as usize;
        let count = source.byte_count().min(free as usize).min(RING_BYTES - start);
        if count == 0 {
            return Moved::Busy;
        }
        let mut whole = segment.span_mut();
        let copied = source
            .part(0..count)
            .and_then(|source| whole.part(BYTES + start..BYTES + start + count)?.copy_from(source));
        if let Err(error) = copied {
            return Moved::Broken(std::io::Error::other(error));
        }
        self.head.store(put + count as u64, Ordering::Relaxed);
        head(segment).publish(put + count as u64);
        Moved::Bytes(count)
    }

    fn receive(&self, target: &mut SpanMut<'_>) -> Moved {
        let segment = match self.taken() {
            Ok(Some(segment)) => segment,
            Ok(None) => return Moved::Busy,
            Err(moved) => return moved,
        };
        let taken = self.tail.load(Ordering::Relaxed);
        let used = head(segment).seen().wrapping_sub(taken);
        if used > RING_BYTES as u64 {
            return Moved::Broken(std::io::Error::other("more was sent than a ring holds"));
        }
        let start = (taken % RING_BYTES as u64) as usize;
        let count = target.byte_count().min(used as usize).min(RING_BYTES - start);
        if count == 0 {
            return Moved::Busy;
        }
        let source = segment.span().part(BYTES + start..BYTES + start + count);
        let copied = source.and_then(|source| target.part(0..count)?.copy_from(source));
        if let Err(error) = copied {
            return Moved::Broken(std::io::Error::other(error));
        }
        self.tail.store(taken + count as u64, Ordering::Relaxed);
        tail(segment).publish(taken + count as u64);
        Moved::Bytes(count)
    }

    fn is_sent(&self) -> bool {
        // The other side finds a ring in its socket whatever this member does next.
        self.pass();
        self.is_passed.load(Ordering::Relaxed)
    }

    fn buffer_bytes(&self) -> u64 {
        BUFFER_BYTES
    }

    fn rest(&self, writes: bool, _patience: &Patience, limit: Duration) {
        let signal = match (writes, self.outgoing.get(), self.incoming.get()) {
            (true, Some(segment), _) => tail(segment),
            (false, _, Some(segment)) => head(segment),
            _ => {
                if let Some(mate) = self.proof.0.mates.get(&self.index) {
                    socket::wait_readable(&[mate.conversation.descriptor()], limit);
                }
                return;
            }
        };
        // As it was when nothing could be moved: a full ring, or an empty one.
        let stood = if writes {
            self.head.load(Ordering::Relaxed).wrapping_sub(RING_BYTES as u64)
        } else {
            self.tail.load(Ordering::Relaxed)
        };
        let limit_looks = if self.has_cores { SPINS } else { YIELDS };
        for _ in 0..limit_looks {
            if signal.seen() != stood {
                return;
            }
            if self.has_cores { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        signal.sleep(stood, limit);
    }
}

/// One pair for each seat; none with itself.
pub(super) fn pairs(
    proof: &Proof,
    name: &str,
    seats: &[usize],
    own: usize,
    has_cores: bool,
) -> Vec<Option<Pair<Rings>>> {
    let label = join::label(name, seats, "pair", 0);
    let pair = |(seat, index): (usize, &usize)| {
        (seat != own).then(|| Pair::new(Rings::new(proof.clone(), *index, label, has_cores)))
    };
    seats.iter().enumerate().map(pair).collect()
}

impl Group for SharedCommunicator {
    fn own(&self) -> usize {
        self.seats[self.own]
    }

    fn index(&self, seat: usize) -> usize {
        self.seats[seat]
    }

    fn suffix(&self) -> &str {
        self.gate.suffix()
    }

    fn check(&self, seat: usize, phase: &str) -> Result<()> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        for other in (0..self.seats.len()).filter(|other| *other != self.own) {
            let is_gone = self.is_gone(other);
            let control = &self.controls[other];
            let text = match control.state() {
                State::Left => {
                    let cause = control.cause();
                    return Err(self.lost(cause.lost.unwrap_or(self.seats[other]), cause.text));
                }
                State::Closed if other == seat => "it closed the group after",
                State::Live if is_gone => "its process ended in",
                _ => continue,
            };
            return Err(self.lost(self.seats[other], format!("{phase}: {text} {}", self.doing(other))));
        }
        Ok(())
    }

    fn last_word(&self, seat: usize) -> String {
        Self::last_word(self, seat)
    }

    fn is_stopped(&self, seat: usize) -> bool {
        Self::is_stopped(self, seat)
    }

    fn lost(&self, seat: usize, phase: String) -> Error {
        Self::lost(self, self.seats[seat], phase)
    }
}

impl SharedCommunicator {
    /// Why the group ended outside of its calls, if it did.
    pub(super) fn check_ended(&self) -> Result<()> {
        self.ended.get().map_or(Ok(()), |error| Err(again(error)))
    }

    /// Runs a send or a receive.
    pub(in crate::communicator) fn pair(&self, call: &mut Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        descriptor::check(call, self.own, self.seats.len())?;
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        let Some(Some(pair)) = self.pairs.get(call.root) else { return Ok(()) };
        let result = pair.run(self, call, deadline);
        if let Err(error) = &result
            && descriptor::ends_group(error)
        {
            self.abandon(error, &format!("{} with index {}", call.verb.word(), self.seats[call.root]));
        }
        result
    }
}
