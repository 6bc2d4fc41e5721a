//! Waiting for the other members of a call, and noticing those that will not come.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::control::{self, Control, State};
use super::{SPINS, SharedCommunicator, YIELDS};
use crate::communicator::warning::{PATIENCE, STOPPED, STOPPED_PATIENCE, names};
use crate::error::{Error, Missing, Result};
use crate::sys::peer::Peer;
use crate::sys::{CHECK_INTERVAL, Deadline};
use crate::vocabulary::Verb;

/// The longest a failed call waits until its peers have let go of its memory.
const LINGER: Duration = Duration::from_secs(1);

/// One call as its waits see it.
pub(super) struct Watch<'a> {
    pub(super) sequence: u64,
    verb: Verb,
    /// What tells a call of this group from one of the run's.
    suffix: &'a str,
    pub(super) deadline: &'a Deadline<'a>,
    /// Whether peers may read this member's private arrays.
    pub(super) is_lending: Cell<bool>,
    was_warned: Cell<bool>,
    /// When everything that ends a wait was looked at last.
    looked: Cell<Option<Instant>>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(verb: Verb, sequence: u64, suffix: &'a str, deadline: &'a Deadline<'a>) -> Self {
        let (is_lending, was_warned) = (Cell::new(false), Cell::new(false));
        Self { sequence, verb, suffix, deadline, is_lending, was_warned, looked: Cell::new(None) }
    }

    /// The call as messages name it.
    pub(super) fn phase(&self) -> String {
        format!("{} #{}{}", self.verb.word(), self.sequence, self.suffix)
    }

    /// Whether it is time to look at everything that ends a wait, in a call that does not wait.
    fn is_due(&self) -> bool {
        match self.looked.get() {
            Some(looked) => looked.elapsed() >= CHECK_INTERVAL,
            None => {
                self.looked.set(Some(Instant::now()));
                false
            }
        }
    }
}

impl SharedCommunicator {
    /// Waits until the needed seats have published a step of this call.
    ///
    /// # Errors
    /// `Lost`, `TimedOut`, `Interrupted`, and `Closed` if this member closed meanwhile.
    pub(super) fn reach(&self, watch: &Watch<'_>, step: u64, needs: &dyn Fn(usize) -> bool) -> Result<()> {
        let target = control::place(watch.sequence, step);
        for (seat, control) in self.controls.iter().enumerate() {
            if seat == self.own || !needs(seat) {
                continue;
            }
            self.await_briefly(control, target);
            control.signal().reach(target, || {
                self.look(watch, target, needs)?;
                Ok(watch.deadline.pause())
            })?;
            // One that came and gave up has left this call to nobody, unless it gave up later. Its state lies beside its
            // progress; where it concludes is a line that a call which goes well never reads.
            if let Some(error) = self.departure(seat)
                && !control.has_concluded(watch.sequence)
            {
                return Err(error);
            }
        }
        // A call of many steps that never has to wait is asked for its interrupt too.
        if step > 1 && watch.is_due() {
            self.look(watch, target, needs)?;
        }
        Ok(())
    }

    /// Waits without a sleep, as long as one would cost.
    fn await_briefly(&self, control: &Control, target: u64) {
        let mut looks = 0;
        let limit = if self.has_cores { SPINS } else { YIELDS };
        while control.progress() < target && looks < limit {
            looks += 1;
            if self.has_cores {
                std::hint::spin_loop();
            } else {
                // The core may be the one that the other member needs.
                std::thread::yield_now();
            }
        }
    }

    fn is_behind(&self, seat: usize, target: u64) -> bool {
        seat != self.own && self.controls[seat].progress() < target
    }

    /// Everything that ends a wait but its success.
    fn look(&self, watch: &Watch<'_>, target: u64, needs: &dyn Fn(usize) -> bool) -> Result<()> {
        watch.looked.set(Some(Instant::now()));
        if let Some(error) = self.closed() {
            return Err(error);
        }
        self.check_ended()?;
        watch.deadline.check_interrupt_of(|| watch.phase())?;
        let behind = || (0..self.seats.len()).filter(|seat| needs(*seat) && self.is_behind(*seat, target));
        for seat in behind() {
            self.check_seat(seat, target, watch)?;
        }
        self.warn_if_late(watch, &|| behind().collect());
        if watch.deadline.passed() {
            let missing = self.missing(&self.kept_by(behind().collect(), watch.sequence));
            // The last of them may just have come: then there is nobody to name, and the wait has ended.
            if !missing.is_empty() {
                let (phase, waited) = (watch.phase(), watch.deadline.waited());
                return Err(Error::TimedOut { phase, waited, missing });
            }
        }
        Ok(())
    }

    /// Says once for whom a call waits long.
    pub(super) fn warn_if_late(&self, watch: &Watch<'_>, behind: &dyn Fn() -> Vec<usize>) {
        let waited = watch.deadline.waited();
        let is_late = |limit| waited > limit && !watch.was_warned.get();
        if is_late(PATIENCE)
            || is_late(STOPPED_PATIENCE) && behind().into_iter().any(|seat| self.is_stopped(seat))
        {
            watch.was_warned.set(true);
            let names = names(self.missing(&behind()));
            tracing::warn!("index {} waits in {} for {names}", self.seats[self.own], watch.phase());
        }
    }

    /// Those that are behind, and before them whoever is stopped within the call: one that is behind may wait for it.
    fn kept_by(&self, behind: Vec<usize>, sequence: u64) -> Vec<usize> {
        if behind.is_empty() {
            return behind;
        }
        let is_inside = |seat: &usize| *seat != self.own && !self.controls[*seat].has_concluded(sequence);
        let stopped = (0..self.seats.len()).filter(|seat| is_inside(seat) && self.is_stopped(*seat));
        let stopped = stopped.collect::<Vec<_>>();
        let others = behind.into_iter().filter(|seat| !stopped.contains(seat));
        stopped.iter().copied().chain(others).collect()
    }

    /// Seats as errors name them, with what they were last seen doing.
    pub(super) fn missing(&self, seats: &[usize]) -> Vec<Missing> {
        let missing = |seat: &usize| Missing { index: self.seats[*seat], last_word: self.last_word(*seat) };
        seats.iter().map(missing).collect()
    }

    /// Whether a seat that is behind can still come.
    pub(super) fn check_seat(&self, seat: usize, target: u64, watch: &Watch<'_>) -> Result<()> {
        let is_gone = self.is_gone(seat);
        // Looked at after the process: what it published before it ended counts.
        if !self.is_behind(seat, target) {
            return Ok(());
        }
        self.check_life(seat, is_gone, || watch.phase())
    }

    /// Whether a seat can still come; whether its process is gone was looked at before.
    pub(super) fn check_life(&self, seat: usize, is_gone: bool, phase: impl Fn() -> String) -> Result<()> {
        if let Some(error) = self.departure(seat) {
            return Err(error);
        }
        match self.controls[seat].state() {
            State::Closed => {
                let doing = self.doing(seat);
                Err(self.lost(self.seats[seat], format!("{}: it closed the group after {doing}", phase())))
            }
            State::Live if is_gone => {
                let doing = self.doing(seat);
                Err(self.lost(self.seats[seat], format!("{}: its process ended in {doing}", phase())))
            }
            State::Live | State::Left | State::WentOn => Ok(()),
        }
    }

    /// What a seat said that gave up, or went on without this member.
    fn departure(&self, seat: usize) -> Option<Error> {
        let control = &self.controls[seat];
        match control.state() {
            State::Left => {
                let cause = control.cause();
                if let Some(error) = cause.disagreement(self.seats[seat]) {
                    return Some(error);
                }
                Some(self.lost(cause.lost.unwrap_or(self.seats[seat]), cause.text))
            }
            State::WentOn => Some(self.gate.left_behind(&control.successor())),
            State::Live | State::Closed => None,
        }
    }

    pub(super) fn is_gone(&self, seat: usize) -> bool {
        let mate = self.seats.get(seat).and_then(|index| self.proof.0.mates.get(index));
        mate.is_some_and(|mate| !mate.is_alive() || mate.conversation.has_ended())
    }

    /// Whether a signal or a debugger has stopped its process.
    pub(super) fn is_stopped(&self, seat: usize) -> bool {
        let mate = self.seats.get(seat).and_then(|index| self.proof.0.mates.get(index));
        mate.and_then(|mate| mate.peer.as_ref()).is_some_and(Peer::is_stopped)
    }

    pub(super) fn lost(&self, index: usize, phase: String) -> Error {
        let mate = self.proof.0.mates.get(&index).map(|mate| &mate.process);
        let process = mate.unwrap_or(&self.proof.0.own);
        Error::Lost { index, host: process.host_name.clone(), pid: process.pid, phase }
    }

    /// The call that a member is in, or the one after which it runs the user's code.
    pub(super) fn doing(&self, seat: usize) -> String {
        let (sequence, _) = control::call_of(self.controls[seat].progress());
        if sequence == 0 {
            return "user code, before its first call".to_owned();
        }
        let descriptor = self.controls[seat].descriptor(sequence).filter(|call| call.sequence == sequence);
        let verb = descriptor.map_or("call", |call| call.verb.word());
        if self.controls[seat].has_concluded(sequence) {
            format!("user code since {verb} #{sequence}")
        } else {
            format!("{verb} #{sequence}")
        }
    }

    /// What a member was last seen doing.
    pub(super) fn last_word(&self, seat: usize) -> String {
        let (sequence, _) = control::call_of(self.controls[seat].progress());
        let life = if self.is_stopped(seat) { STOPPED } else { "alive" };
        let refusal =
            self.controls[seat].refusal(sequence).map_or_else(String::new, |text| format!(", {text}"));
        format!("{}, {life}{refusal}", self.doing(seat))
    }

    /// Waits a moment for live peers to leave the call too: until then they may read this member's arrays.
    pub(super) fn linger(&self, watch: &Watch<'_>) {
        if !watch.is_lending.get() {
            return;
        }
        let start = Instant::now();
        let is_inside = |seat: usize| {
            let (sequence, step) = control::call_of(self.controls[seat].progress());
            let is_live = self.controls[seat].state() == State::Live && !self.is_gone(seat);
            let has_ended = self.controls[seat].has_concluded(sequence);
            seat != self.own && is_live && sequence == watch.sequence && step > 0 && !has_ended
        };
        for seat in 0..self.seats.len() {
            loop {
                let place = self.controls[seat].progress();
                let waited = start.elapsed();
                if waited >= LINGER || !is_inside(seat) {
                    break;
                }
                self.controls[seat].signal().sleep(place, (LINGER - waited).min(CHECK_INTERVAL));
            }
        }
    }
}
