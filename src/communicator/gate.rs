//! One call of a group at a time, and none once the group has ended, is closed, or belongs to a parent process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::descriptor::again;
use crate::error::{Error, Result};
use crate::sys::process;
use crate::vocabulary::Verb;

/// The name of the group of a whole run.
const RUN: &str = "run";
/// How the name of a group begins that is the part on one host of another.
pub(super) const INSIDE: &str = "host of ";

/// What only the member in a call touches.
pub(super) trait Turn {
    /// What ended the group.
    fn ended(&self) -> Option<&Error>;
}

/// Who may make a call.
pub(super) struct Gate<T> {
    name: String,
    /// What tells a call of this group from one of the run's: empty, or ` of ` and the name.
    suffix: String,
    pid: u32,
    is_closed: AtomicBool,
    turn: Mutex<T>,
    /// Held by those who look at the turn outside of a call.
    peeking: Mutex<()>,
}

impl<T: Turn> Gate<T> {
    /// The gate of an open group of this process.
    pub(super) fn new(name: String, turn: T) -> Self {
        let whole = name.strip_prefix(INSIDE).unwrap_or(&name);
        let suffix = if whole == RUN { String::new() } else { format!(" of {whole}") };
        Self {
            name,
            suffix,
            pid: process::pid(),
            is_closed: AtomicBool::new(false),
            turn: Mutex::new(turn),
            peeking: Mutex::new(()),
        }
    }

    /// What messages put after the name of a call: nothing for the group of a whole run.
    pub(super) fn suffix(&self) -> &str {
        &self.suffix
    }

    /// The name of the group.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Why this process makes no call, if it closed the group or was forked from the one that joined it.
    pub(super) fn closed(&self) -> Option<Error> {
        let why = if process::pid() != self.pid {
            "it was made before a fork; open another in this process"
        } else if self.is_closed.load(Ordering::SeqCst) {
            "it was closed by this member"
        } else {
            return None;
        };
        Some(Error::Closed { what: format!("the group {}", self.name), why: why.to_owned() })
    }

    /// Does something short with the turn, if no call has it; a call that begins meanwhile waits.
    pub(super) fn peek<R>(&self, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let _peeking = self.peeking.lock().unwrap_or_else(PoisonError::into_inner);
        match self.turn.try_lock() {
            Ok(mut turn) => Some(act(&mut turn)),
            Err(TryLockError::Poisoned(turn)) => Some(act(&mut turn.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The error of a member that the others went on without.
    pub(super) fn left_behind(&self, words: &str) -> Error {
        let why = format!("{words}; this member had not come: end this process");
        Error::Closed { what: format!("the group {}", self.name), why }
    }

    /// What only the member in a call touches, once no call goes on.
    pub(super) fn hold(&self) -> MutexGuard<'_, T> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn, or says why this group makes no more calls.
    pub(super) fn begin(&self, verb: Verb) -> Result<MutexGuard<'_, T>> {
        if let Some(error) = self.closed() {
            return Err(error);
        }
        let taken = match self.turn.try_lock() {
            // Whoever peeks holds it for a moment; a call keeps it.
            Err(TryLockError::WouldBlock) => {
                let _peeking = self.peeking.lock().unwrap_or_else(PoisonError::into_inner);
                self.turn.try_lock()
            }
            taken => taken,
        };
        let turn = match taken {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let what = format!("the group {}", self.name);
                let holder = format!("another call than this {}", verb.word());
                return Err(Error::Contended { what, holder, waited: Duration::ZERO });
            }
        };
        match turn.ended() {
            Some(error) => Err(again(error)),
            None => Ok(turn),
        }
    }

    /// Lets no more calls in; whether this was the first time, in the process that joined.
    pub(super) fn close(&self) -> bool {
        process::pid() == self.pid && !self.is_closed.swap(true, Ordering::SeqCst)
    }
}
