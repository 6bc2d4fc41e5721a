//! Messages between the members of one host, over the unix sockets that proved them to each other.

use std::time::Duration;

use super::SharedCommunicator;
use super::control::{self, State};
use super::proof::Mate;
use crate::communicator::control::{Channel, Life};
use crate::communicator::descriptor::{self, Cause};
use crate::error::Result;
use crate::sys::socket;

/// What a letter of this channel starts with; other messages on the same sockets have other beginnings.
const PREFIX: &[u8] = b"uform-letter-001";
/// What a question starts with.
const QUESTION: &[u8] = b"uform-asking-001";

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

    fn entered(&self) -> u64 {
        control::call_of(self.own_control().progress()).0
    }

    fn entering(&self) -> Option<(u64, Vec<usize>)> {
        let (sequence, step) = control::call_of(self.own_control().progress());
        let target = control::place(sequence, 1);
        let is_behind = |seat: &usize| self.controls[*seat].progress() < target;
        let lagging = (0..self.seats.len()).filter(is_behind).collect::<Vec<_>>();
        // Who has shown its first piece early says so with the next step.
        (step >= 1 && !lagging.is_empty()).then_some((sequence, lagging))
    }

    fn ask(&self, seat: usize, question: &[u8]) {
        let whole = [QUESTION, question].concat();
        // A full queue takes none: another will be asked.
        let _ = self.mate(seat).is_some_and(|mate| mate.conversation.send(&whole, None));
    }

    fn asked(&self) -> Vec<(usize, Vec<u8>)> {
        let mut asked = Vec::new();
        for seat in 0..self.seats.len() {
            let Some(mate) = self.mate(seat) else { continue };
            while let Ok(Some((bytes, _))) = mate.letter(QUESTION, "") {
                asked.push((seat, bytes));
            }
        }
        asked
    }

    fn cross(&self, words: &str) {
        if self.closed().is_none() {
            let _ = self.ended.set(descriptor::crossed(self.gate.name(), words));
            self.own_control().leave(&Cause::crossed(words));
        }
    }
}
