//! Messages between the members of one host, over the unix sockets that proved them to each other.

use std::time::Duration;

use super::SharedCommunicator;
use super::control::State;
use super::proof::Mate;
use crate::communicator::control::{Channel, Life};
use crate::error::Result;
use crate::sys::socket;

/// What a letter of this channel starts with; other messages on the same sockets have other beginnings.
const PREFIX: &[u8] = b"uform-letter-001";

impl SharedCommunicator {
    fn mate(&self, seat: usize) -> Option<&Mate> {
        self.seats.get(seat).and_then(|index| self.proof.0.mates.get(index))
    }
}

impl Channel for SharedCommunicator {
    fn post(&self, seat: usize, message: &[u8]) -> bool {
        let whole = [PREFIX, message].concat();
        self.mate(seat).is_some_and(|mate| mate.conversation.send(&whole, None))
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        let mut letters = Vec::new();
        for seat in 0..self.seats.len() {
            let Some(mate) = self.mate(seat) else { continue };
            while let Ok(Some((bytes, _))) = mate.letter(PREFIX, "") {
                letters.push((seat, bytes));
            }
        }
        letters
    }

    fn life(&self, seat: usize) -> Life {
        let Some(control) = self.controls.get(seat).filter(|_| seat != self.own) else { return Life::Lives };
        let is_gone = self.is_gone(seat);
        match control.state() {
            State::WentOn => Life::WentOn(control.successor()),
            State::Closed => Life::Ended("closed the group".to_owned()),
            _ if is_gone => Life::Ended("its process ended".to_owned()),
            State::Live | State::Left if self.is_stopped(seat) => Life::Stopped,
            State::Live | State::Left => Life::Lives,
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        let others = (0..self.seats.len()).filter(|seat| *seat != self.own);
        let mut checked =
            others.map(|seat| self.check_life(seat, self.is_gone(seat), || "the next call".to_owned()));
        checked.find(Result::is_err).unwrap_or(Ok(()))
    }

    fn rest(&self, limit: Duration) {
        let mates = (0..self.seats.len()).filter_map(|seat| self.mate(seat));
        let living = mates.filter(|mate| !mate.conversation.has_ended());
        let sockets = living.map(|mate| mate.conversation.descriptor()).collect::<Vec<_>>();
        if sockets.is_empty() {
            std::thread::sleep(limit);
        } else {
            socket::wait_readable(&sockets, limit);
        }
    }

    fn went_on(&self, words: &str) {
        if self.closed().is_none() {
            self.own_control().go_on(words);
        }
    }
}
