//! The backend for members of different hosts: two streams between every two of them, and no thread of its own.
//!
//! Payload is neither encrypted nor proved after the connection has proved the run's key: who can change packets between
//! the hosts can change the numbers.

mod address;
mod channel;
mod connect;
mod dial;
mod flow;
mod pairs;
mod payload;
mod peer;
mod wire;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use address::{Admits, Publication, Published, Selection};
pub use connect::{Links, Listener, Run};

pub(super) use self::flow::{Flow, Incoming, Lane, Outgoing, Place, Reduction};
pub(super) use self::payload::is_small;

use self::flow::Scratch;
use self::peer::{Heard, Peer};
use self::wire::Frame;
use super::announcement::{self, Part};
use super::carrier::{Carrier, Patience};
use super::descriptor::{self, Cause, Descriptor, again};
use super::gate::{self, Gate};
use super::pair::Pair;
use super::parts;
use super::warning::{PATIENCE, names};
use super::{Call, Communicator, SharedArena};
use crate::error::{Error, Missing, Result};
use crate::sys::network::Awaited;
use crate::sys::shared::Segment;
use crate::sys::{CHECK_INTERVAL, Deadline, Span, SpanMut};
use crate::topology::{Group, Process};
use crate::vocabulary::Verb;

/// Bytes of one piece: contributions are combined piece by piece.
const PIECE_BYTES: usize = 256 << 10;
/// Refusals of one call that peers are told of.
const REFUSAL_LIMIT: u32 = 8;

/// A group whose members are connected over the network.
///
/// One call at a time: a second one at the same time is `Contended`.
pub struct TcpCommunicator {
    seats: Vec<usize>,
    own: usize,
    process: Process,
    piece_bytes: usize,
    silence: Duration,
    /// By seat; this member has no peer in itself.
    peers: Vec<Option<Peer>>,
    /// The number of the call that was begun last.
    sequence: AtomicU64,
    gate: Gate<Turn>,
    /// By seat, for sends and receives.
    pairs: Vec<Option<Pair<Carrier>>>,
    /// What ended the group outside of its calls.
    ended: OnceLock<Error>,
    /// Those that have not entered the call that this member waits in.
    lagging: Mutex<Vec<usize>>,
    /// After which call the last refusals were, and how many of them were told.
    refusals: Mutex<(u64, u32)>,
}

/// What only the member in a call touches.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// By seat.
    pub(super) heard: Vec<Heard>,
    pub(super) scratch: Scratch,
    ended: Option<Error>,
}

impl gate::Turn for Turn {
    fn ended(&self) -> Option<&Error> {
        self.ended.as_ref()
    }
}

/// One call as its waits see it.
pub(super) struct Watch<'a> {
    pub(super) sequence: u64,
    pub(super) phase: String,
    deadline: &'a Deadline<'a>,
    was_warned: Cell<bool>,
    looked: Cell<Instant>,
    patience: Patience,
}

/// Memory of this member alone: no other host sees it.
#[derive(Debug)]
struct OwnPart {
    segment: Segment,
    seat: usize,
}

impl SharedArena for OwnPart {
    fn part(&self, seat: usize) -> Option<Span<'_>> {
        (seat == self.seat).then(|| self.segment.span())
    }

    fn part_mut(&self, seat: usize) -> Option<SpanMut<'_>> {
        (seat == self.seat).then(|| self.segment.span_mut())
    }

    fn seat(&self) -> usize {
        self.seat
    }
}

impl std::fmt::Debug for TcpCommunicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TcpCommunicator({}, seat {} of {})", self.gate.name(), self.own, self.seats.len())
    }
}

impl TcpCommunicator {
    /// Joins a group of members that this one is connected to. Collective, and nothing is said for it.
    ///
    /// # Errors
    /// `Invalid` for a group that this member has no seat in, or with a member that it is not connected to.
    pub fn join(links: Links, group: &Group) -> Result<Arc<Self>> {
        Self::join_with(links, group, PIECE_BYTES)
    }

    /// Joins with pieces of another size, which may differ between members.
    ///
    /// # Errors
    /// As [`TcpCommunicator::join`].
    pub fn join_with(mut links: Links, group: &Group, piece_bytes: usize) -> Result<Arc<Self>> {
        if group.seats.get(group.own) != Some(&links.index) {
            let reason = format!("must be the seat of index {} in {:?}", links.index, group.seats);
            return Err(Error::invalid("own", group.own, "group", reason));
        }
        let (mut peers, mut pairs) = (Vec::with_capacity(group.seats.len()), Vec::new());
        for (seat, index) in group.seats.iter().enumerate() {
            let link = if seat == group.own { None } else { links.links.remove(index) };
            if link.is_none() && seat != group.own {
                return Err(Error::invalid("group", index, group.name.clone(), "is not connected"));
            }
            let (link, pair) = link.map(|link| (link.link, Pair::new(link.pair))).unzip();
            peers.push(link.map(|link| Peer::new(*index, link)));
            pairs.push(pair);
        }
        let heard = peers.iter().map(|_| Heard::default()).collect();
        Ok(Arc::new(Self {
            seats: group.seats.clone(),
            own: group.own,
            process: links.own,
            piece_bytes: payload::piece_bytes(piece_bytes, group.seats.len()),
            silence: links.silence,
            peers,
            sequence: AtomicU64::new(0),
            gate: Gate::new(group.name.clone(), Turn { heard, ..Turn::default() }),
            pairs,
            ended: OnceLock::new(),
            lagging: Mutex::default(),
            refusals: Mutex::new((0, 0)),
        }))
    }

    /// Bytes of one piece.
    pub(super) const fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().flatten()
    }

    /// Whether MPI carries, which wakes nobody and moves bytes only while it is called.
    fn is_mpi(&self) -> bool {
        self.peers().any(|peer| matches!(peer.control, Carrier::Mpi(_)))
    }

    fn closed(&self) -> Option<Error> {
        self.gate.closed()
    }

    /// Takes the turn, or says why this group makes no more calls.
    pub(super) fn begin(&self, verb: Verb) -> Result<MutexGuard<'_, Turn>> {
        let turn = self.gate.begin(verb)?;
        self.check_ended()?;
        Ok(turn)
    }

    pub(super) fn watch<'a>(&self, verb: Verb, deadline: &'a Deadline<'a>) -> Watch<'a> {
        // Only the holder of the turn counts.
        let sequence = self.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        let phase = format!("{} #{sequence}{}", verb.word(), self.gate.suffix());
        let (was_warned, looked) = (Cell::new(false), Cell::new(Instant::now()));
        Watch { sequence, phase, deadline, was_warned, looked, patience: Patience::default() }
    }

    /// Tells everybody the call, waits for everybody's, and compares them.
    pub(super) fn enter(
        &self,
        turn: &mut Turn,
        watch: &Watch<'_>,
        own: &Descriptor,
        inline: Vec<u8>,
    ) -> Result<()> {
        let frame = Frame::Enter(*own, inline, own.site.text().to_owned());
        self.peers().for_each(|peer| peer.post(&frame));
        let heard = &mut turn.heard;
        loop {
            for (peer, heard) in self.peers.iter().zip(&mut *heard) {
                if let (Some(peer), true) = (peer, heard.calls.is_empty()) {
                    peer.listen(heard);
                }
            }
            let is_lagging = |seat: &usize| *seat != self.own && heard[*seat].calls.is_empty();
            let lagging = (0..self.seats.len()).filter(is_lagging).collect::<Vec<_>>();
            if lagging.is_empty() {
                break;
            }
            if watch.looked.get().elapsed() >= CHECK_INTERVAL || watch.deadline.passed() {
                self.note_lagging(&lagging);
                let looked = self.look(watch, heard, &lagging);
                self.note_lagging(&[]);
                looked?;
            }
            let lagging = lagging.into_iter().filter(|seat| heard[*seat].calls.is_empty());
            for seat in lagging {
                let Some(peer) = &self.peers[seat] else { continue };
                // Why it left comes before that it closed: both may have been heard at once.
                let cause = self.cause(peer, &heard[seat], watch.sequence);
                let gone = || peer.gone(&heard[seat], watch.sequence, &watch.phase, self.silence);
                if let Some(error) = cause.or_else(gone) {
                    return Err(error);
                }
            }
            watch.patience.rest(&self.controls(heard), self.is_mpi(), watch.deadline.pause());
        }
        // One that came and gave up has left this call to nobody.
        for (peer, heard) in self.peers.iter().zip(&*heard) {
            let cause = peer.as_ref().and_then(|peer| self.cause(peer, heard, watch.sequence));
            if let Some(error) = cause {
                return Err(error);
            }
        }
        let call = |seat: usize| {
            if seat == self.own { Some(*own) } else { heard[seat].calls.front().map(|(call, ..)| *call) }
        };
        let calls = (0..self.seats.len()).map(call).collect::<Vec<_>>();
        let site = |seat: usize| match heard[seat].calls.front() {
            _ if seat == self.own => own.site.text().to_owned(),
            Some((_, _, site)) => site.clone(),
            None => String::new(),
        };
        descriptor::compare(own, self.own, &calls, &self.seats, self.gate.suffix(), &site)
    }

    fn note_lagging(&self, seats: &[usize]) {
        seats.clone_into(&mut self.lagging.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The control connections as they are waited for; one that has ended has nothing to say.
    fn controls(&self, heard: &[Heard]) -> Vec<Awaited<'_>> {
        let living = self.peers.iter().zip(heard).filter(|(_, heard)| heard.end.is_none());
        living
            .filter_map(|(peer, _)| peer.as_ref())
            .filter_map(|peer| peer.control.awaited(true, peer.flush()))
            .collect()
    }

    /// Everything that ends a wait but its success; hears what all peers have said.
    fn look(&self, watch: &Watch<'_>, heard: &mut [Heard], lagging: &[usize]) -> Result<()> {
        watch.looked.set(Instant::now());
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        watch.deadline.check_interrupt(&watch.phase)?;
        for (peer, heard) in self.peers.iter().zip(&mut *heard) {
            let Some(peer) = peer else { continue };
            peer.flush();
            peer.listen(heard);
            if let Some(error) = self.cause(peer, heard, watch.sequence) {
                return Err(error);
            }
        }
        let missing = || {
            let word = |seat: &usize| Missing {
                index: self.seats[*seat],
                last_word: self.peers[*seat]
                    .as_ref()
                    .map_or_else(String::new, |peer| peer.last_word(&heard[*seat], watch.sequence)),
            };
            lagging.iter().map(word).collect::<Vec<_>>()
        };
        if watch.deadline.waited() > PATIENCE && !watch.was_warned.replace(true) {
            let names = names(missing());
            tracing::warn!("index {} waits in {} for {names}", self.seats[self.own], watch.phase);
        }
        if watch.deadline.passed() && !lagging.is_empty() {
            let (phase, waited) = (watch.phase.clone(), watch.deadline.waited());
            return Err(Error::TimedOut { phase, waited, missing: missing() });
        }
        Ok(())
    }

    /// The error of a peer that has left this call, or an earlier one.
    fn cause(&self, peer: &Peer, heard: &Heard, sequence: u64) -> Option<Error> {
        if let Some(words) = &heard.successor {
            return Some(self.gate.left_behind(words));
        }
        let (_, cause) = heard.left.as_ref().filter(|(left, _)| *left <= sequence)?;
        if let Some(error) = cause.disagreement(peer.index) {
            return Some(error);
        }
        let index = cause.lost.unwrap_or(peer.index);
        let blamed = self.peers().find(|peer| peer.index == index).map(|peer| &peer.process);
        let process = if index == self.seats[self.own] { Some(&self.process) } else { blamed };
        Some(Error::Lost {
            index,
            host: process.map_or_else(String::new, |process| process.host_name.clone()),
            pid: process.map_or(0, |process| process.pid),
            phase: cause.text.clone(),
        })
    }

    /// Whether all members that entered have the memory they were asked for; `failure` is why this one has not.
    ///
    /// # Errors
    /// That of the first that has not, on all members the same.
    pub(super) fn all_reserved(&self, turn: &Turn, failure: Option<&Error>) -> Result<()> {
        for (seat, index) in self.seats.iter().enumerate() {
            let said = turn.heard[seat].calls.front().map_or(&[][..], |(_, said, _)| said);
            match (seat == self.own, failure) {
                (true, Some(failure)) => return Err(announcement::decoded(failure, *index)),
                (true, None) => {}
                (false, _) => {
                    if let Part::Failed(error) = announcement::decode(said, *index) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until what this member has sent arrives whatever it does next.
    fn settle(&self, turn: &mut Turn, watch: &Watch<'_>) -> Result<()> {
        loop {
            let is_pending = |seat: &usize| self.peers[*seat].as_ref().is_some_and(|peer| !peer.is_settled());
            let pending = (0..self.seats.len()).filter(is_pending).collect::<Vec<_>>();
            if pending.is_empty() || !self.is_mpi() {
                return Ok(());
            }
            if watch.looked.get().elapsed() >= CHECK_INTERVAL || watch.deadline.passed() {
                self.look(watch, &mut turn.heard, &pending)?;
            }
            watch.patience.rest(&[], true, watch.deadline.pause());
        }
    }

    /// Ends a call: its messages are forgotten, or, after an error that others cannot follow, the group is ended.
    pub(super) fn finish(&self, turn: &mut Turn, watch: &Watch<'_>, result: Result<()>) -> Result<()> {
        let result = match result {
            Ok(()) | Err(Error::Disagreed { .. } | Error::Exhausted { .. }) => {
                self.settle(turn, watch).and(result)
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) | Err(Error::Disagreed { .. } | Error::Exhausted { .. }) => {
                for heard in &mut turn.heard {
                    heard.calls.pop_front();
                }
                result
            }
            Err(error) => {
                let frame = Frame::Leave(watch.sequence, Cause::of(&error, &watch.phase));
                self.peers().for_each(|peer| peer.post(&frame));
                turn.ended = Some(again(&error));
                let _ = self.ended.set(again(&error));
                Err(error)
            }
        }
    }
}

impl Communicator for TcpCommunicator {
    fn seat(&self) -> usize {
        self.own
    }

    fn count(&self) -> usize {
        self.seats.len()
    }

    fn run(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if descriptor::is_paired(call.verb) {
            return self.pair(&mut call, deadline);
        }
        let count = descriptor::check(&call, self.own, self.seats.len())?;
        parts::check_room(&call, self.seats.len(), wire::INLINE_BYTES)?;
        let mut turn = self.begin(call.verb)?;
        let inline = self.contribution(&call, count)?;
        let reduces = matches!(call.verb, Verb::AllReduce | Verb::ReduceScatter | Verb::Reduce);
        if reduces && inline.is_empty() && count > 0 && call.gpu.is_none() {
            let prepared = turn.scratch.prepare(self.seats.len() - 1, self.piece_bytes);
            prepared.inspect_err(|error| self.refuse(call.verb, error))?;
        }
        let watch = self.watch(call.verb, deadline);
        call.numbered(watch.sequence);
        let descriptor = Descriptor {
            sequence: watch.sequence,
            verb: call.verb,
            dtype: call.dtype,
            op: call.op,
            count: count as u64,
            root: call.root as u64,
            shape: descriptor::shape(&call),
            on_gpu: call.gpu.is_some(),
            lies: None,
            site: call.site,
        };
        let entered = self.enter(&mut turn, &watch, &descriptor, inline.clone());
        let entered = entered.inspect(|()| call.matched());
        let result = entered.and_then(|()| self.carry(&mut turn, &watch, &descriptor, &inline, &mut call));
        self.finish(&mut turn, &watch, result)
    }

    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        let mut turn = self.begin(Verb::Arena)?;
        let reserved = Segment::reserve("uform-arena", byte_count);
        let said = announcement::encode(&reserved.as_ref().map(|segment| segment.byte_count() as u64));
        let watch = self.watch(Verb::Arena, deadline);
        let descriptor = Descriptor::bare(Verb::Arena, watch.sequence);
        let entered = self.enter(&mut turn, &watch, &descriptor, said);
        let mut segment = None;
        let agreed = entered.and_then(|()| {
            self.all_reserved(&turn, reserved.as_ref().err())?;
            segment = reserved.ok();
            Ok(())
        });
        self.finish(&mut turn, &watch, agreed)?;
        let seat = self.own;
        segment
            .map(|segment| Arc::new(OwnPart { segment, seat }) as Arc<dyn SharedArena>)
            .ok_or_else(|| Error::Closed { what: "the arena".to_owned(), why: "it was not made".to_owned() })
    }

    fn refuse(&self, verb: Verb, reason: &Error) {
        if self.closed().is_none() {
            let sequence = self.sequence.load(Ordering::SeqCst);
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            *refusals = if refusals.0 == sequence { (sequence, refusals.1 + 1) } else { (sequence, 1) };
            // One that tries again and again must not fill the connection: its reader may be busy.
            if refusals.1 > REFUSAL_LIMIT {
                return;
            }
            let text = format!("refused {}: {reason}", verb.word());
            let frame = Frame::Refusal(sequence, text);
            self.peers().for_each(|peer| peer.post(&frame));
        }
    }

    fn give_up(&self, error: &Error, phase: &str) {
        self.abandon(error, phase);
    }

    fn close(&self) {
        if self.gate.close() {
            let frame = Frame::Close(self.sequence.load(Ordering::SeqCst));
            for peer in self.peers() {
                peer.post(&frame);
                peer.control.finish();
                peer.data.finish();
            }
            self.pairs.iter().flatten().for_each(|pair| pair.passage.finish());
        }
    }
}

impl Drop for TcpCommunicator {
    fn drop(&mut self) {
        self.close();
    }
}

/// Bytes of a peer as frames and as published addresses.
#[cfg(any(test, fuzzing))]
pub(super) fn read_hostile(bytes: &[u8]) {
    let Some((step, stream)) = bytes.split_first() else { return };
    let mut inbox = wire::Inbox::default();
    for part in stream.chunks(usize::from(*step) + 1) {
        inbox.push(part);
        loop {
            match inbox.next() {
                wire::Next::Frame(frame) => {
                    // Text that is no UTF-8 grows when it is made readable, and is cut to its limit once.
                    let bytes = frame.encode();
                    let again = wire::Frame::decode(&bytes[wire::PREFIX..]);
                    assert_eq!(again.map(|again| again.encode()), Some(bytes));
                }
                wire::Next::Part => break,
                wire::Next::Garbled => return,
            }
        }
    }
    let found = address::Publication::decode(bytes);
    assert_eq!(address::Publication::decode(&found.encode()).addresses, found.addresses);
    let _ = found.to_string();
}
