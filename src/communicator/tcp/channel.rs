//! Messages between members of different hosts, over the connections that agree on calls.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::wire::Frame;
use super::{TcpCommunicator, Turn};
use crate::communicator::carrier::Patience;
use crate::communicator::control::{Channel, Life};
use crate::communicator::descriptor::{self, Cause};
use crate::error::Result;

impl Channel for TcpCommunicator {
    fn post(&self, seat: usize, message: &[u8]) -> bool {
        let peer = self.peers.get(seat).and_then(Option::as_ref);
        peer.is_some_and(|peer| peer.post_letter(message))
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        let mut turn = self.gate.hold();
        let mut letters = Vec::new();
        for (seat, (peer, heard)) in self.peers.iter().zip(&mut turn.heard).enumerate() {
            let Some(peer) = peer else { continue };
            peer.flush();
            peer.listen(heard);
            letters.extend(heard.letters.drain(..).map(|letter| (seat, letter)));
        }
        letters
    }

    fn life(&self, seat: usize) -> Life {
        let Some(peer) = self.peers.get(seat).and_then(Option::as_ref) else { return Life::Lives };
        let turn = self.gate.hold();
        let Some(heard) = turn.heard.get(seat) else { return Life::Lives };
        if let Some(words) = &heard.successor {
            return Life::WentOn(words.clone());
        }
        match peer.gone(heard, u64::MAX, "the last call", self.silence) {
            Some(error) => Life::Ended(error.to_string()),
            None => Life::Lives,
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        let mut turn = self.gate.hold();
        for (peer, heard) in self.peers.iter().zip(&mut turn.heard) {
            let Some(peer) = peer else { continue };
            peer.flush();
            peer.listen(heard);
            let cause = self.cause(peer, heard, u64::MAX);
            let gone = cause.or_else(|| peer.gone(heard, u64::MAX, "the next call", self.silence));
            if let Some(error) = gone {
                return Err(error);
            }
        }
        Ok(())
    }

    fn rest(&self, limit: Duration) {
        let turn = self.gate.hold();
        let awaited = self.controls(&turn.heard);
        if awaited.is_empty() && !self.is_mpi() {
            std::thread::sleep(limit);
        } else {
            Patience::default().rest(&awaited, self.is_mpi(), limit);
        }
    }

    fn went_on(&self, words: &str) {
        if self.closed().is_none() {
            let frame = Frame::WentOn(words.to_owned());
            self.peers().for_each(|peer| peer.post(&frame));
        }
    }

    fn entered(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    fn entering(&self) -> Option<(u64, Vec<usize>)> {
        let lagging = self.lagging.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (!lagging.is_empty()).then(|| (self.entered(), lagging))
    }

    fn ask(&self, seat: usize, question: &[u8]) {
        if let Some(Some(peer)) = self.peers.get(seat) {
            peer.post(&Frame::Question(question.to_vec()));
        }
    }

    fn asked(&self) -> Vec<(usize, Vec<u8>)> {
        let take = |turn: &mut Turn| {
            let mut asked = Vec::new();
            for (seat, (peer, heard)) in self.peers.iter().zip(&mut turn.heard).enumerate() {
                let Some(peer) = peer else { continue };
                peer.flush();
                peer.listen(heard);
                asked.extend(heard.questions.drain(..).map(|question| (seat, question)));
            }
            asked
        };
        self.gate.peek(take).unwrap_or_default()
    }

    fn cross(&self, words: &str) {
        self.abandon_for(&Cause::crossed(words), descriptor::crossed(self.gate.name(), words));
    }
}
