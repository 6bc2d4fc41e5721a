//! Sends and receives between members that are connected: a connection of their own, apart from the group's calls.
//!
//! Whether a member lives is known from the control connections. A thread in a call of the group reads those; while there is
//! none, those in sends and receives do.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::wire::Frame;
use super::{TcpCommunicator, Turn};
use crate::communicator::Call;
use crate::communicator::carrier::Carrier;
use crate::communicator::descriptor::{self, Cause, again};
use crate::communicator::pair::{BUFFER_BYTES, Group, Passage, Patience};
use crate::error::{Error, Result};
use crate::sys::network::Moved;
use crate::sys::{Deadline, Span, SpanMut};

/// Over MPI: what its libraries send without a receive on the other side.
const MPI_BUFFER_BYTES: u64 = 1 << 10;

impl Passage for Carrier {
    fn open(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, source: Span<'_>, is_awaited: bool) -> Moved {
        Self::send(self, source, is_awaited)
    }

    fn receive(&self, target: &mut SpanMut<'_>) -> Moved {
        Self::receive(self, target)
    }

    fn is_sent(&self) -> bool {
        Self::is_sent(self)
    }

    fn buffer_bytes(&self) -> u64 {
        match self {
            Self::Network(_) => BUFFER_BYTES,
            Self::Mpi(_) => MPI_BUFFER_BYTES,
        }
    }

    fn rest(&self, writes: bool, patience: &Patience, limit: Duration) {
        let sockets = self.awaited(true, writes).into_iter().collect::<Vec<_>>();
        patience.rest(&sockets, matches!(self, Self::Mpi(_)), limit);
    }
}

impl Group for TcpCommunicator {
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
        // Whoever holds the turn hears the same, and ends the group.
        self.gate.peek(|turn| self.check_peers(turn, seat, phase)).unwrap_or(Ok(()))
    }

    fn last_word(&self, seat: usize) -> String {
        let next = self.sequence.load(Ordering::SeqCst) + 1;
        let peer = self.peers.get(seat).and_then(Option::as_ref);
        let word = |turn: &mut Turn| Some(peer?.last_word(turn.heard.get(seat)?, next));
        let busy = || "connected, while this member is in a call of all members".to_owned();
        self.gate.peek(word).flatten().unwrap_or_else(busy)
    }

    fn is_stopped(&self, _seat: usize) -> bool {
        // The network does not tell.
        false
    }

    fn lost(&self, seat: usize, phase: String) -> Error {
        match self.peers.get(seat) {
            Some(Some(peer)) => peer.lost(phase),
            _ => Error::Closed { what: "the group".to_owned(), why: phase },
        }
    }
}

impl TcpCommunicator {
    /// Hears what all peers have said, and whether one of them ends a wait for `seat`.
    fn check_peers(&self, turn: &mut Turn, seat: usize, phase: &str) -> Result<()> {
        let next = self.sequence.load(Ordering::SeqCst) + 1;
        for (other, (peer, heard)) in self.peers.iter().zip(&mut turn.heard).enumerate() {
            let Some(peer) = peer else { continue };
            peer.flush();
            peer.listen(heard);
            if let Some(error) = self.cause(peer, heard, u64::MAX) {
                return Err(error);
            }
            // Others may close the group when they need it no more.
            if let (true, Some(error)) =
                (other == seat || !heard.has_closed(), peer.gone(heard, next, phase, self.silence))
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Why the group ended outside of its calls, if it did.
    pub(super) fn check_ended(&self) -> Result<()> {
        self.ended.get().map_or(Ok(()), |error| Err(again(error)))
    }

    /// Ends the group because of what happened outside of its calls: peers that wait in it get this cause.
    pub(in crate::communicator) fn abandon(&self, error: &Error, phase: &str) {
        self.abandon_for(&Cause::of(error, phase), again(error));
    }

    /// Ends the group: peers get the cause, and later calls of this member the error.
    pub(super) fn abandon_for(&self, cause: &Cause, error: Error) {
        if self.closed().is_some() || self.ended.set(error).is_err() {
            return;
        }
        // A call that has begun ends too; one that has not is the one that this member never enters.
        let begun = self.sequence.load(Ordering::SeqCst);
        let sequence = if self.gate.peek(|_| ()).is_some() { begun + 1 } else { begun };
        let frame = Frame::Leave(sequence, cause.clone());
        self.peers().for_each(|peer| peer.post(&frame));
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
