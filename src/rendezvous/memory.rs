//! Meeting of threads of one process, and of a process that is alone; nothing outside the process is touched.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::reason::Reason;
use super::{Exchange, RunKey};
use crate::error::{Error, Missing, Result};
use crate::sys::{Deadline, random};
use crate::topology::{Introduction, Member, Process, Roster};

/// The place where the threads of one process meet, once.
#[derive(Clone, Debug)]
pub struct Hall {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    count: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Option<Member>>,
    formed: Option<(Arc<Roster>, RunKey)>,
    phases: Vec<Phase>,
    reason: Option<Reason>,
}

#[derive(Debug)]
struct Phase {
    name: String,
    payloads: Vec<Option<Vec<u8>>>,
}

impl Phase {
    fn whole(&self) -> Option<Vec<Vec<u8>>> {
        self.payloads.iter().cloned().collect()
    }
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it held the lock left whole values: every change is one assignment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` gives something, a member gave up, or the deadline passes.
    fn wait<T>(
        &self,
        who: (usize, &Process),
        phase: &str,
        deadline: &Deadline<'_>,
        done: impl Fn(&mut State) -> Option<T>,
        missing: impl Fn(&State) -> Vec<Missing>,
    ) -> Result<T> {
        let (index, process) = who;
        let mut state = self.lock();
        loop {
            if let Some(value) = done(&mut state) {
                return Ok(value);
            }
            if let Some(reason) = &state.reason {
                return Err(reason.error(index, process));
            }
            if let Err(error) = deadline.check(phase, || missing(&state)) {
                state.reason = Some(Reason::of(&error, index, process));
                self.changed.notify_all();
                return Err(error);
            }
            state = match self.changed.wait_timeout(state, deadline.pause()) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Hall {
    /// A place for `count` threads.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let state = State { members: vec![None; count], ..State::default() };
        Self { place: Arc::new(Place { count, state: Mutex::new(state), changed: Condvar::new() }) }
    }

    /// Enters as `index` and waits until all have entered.
    ///
    /// # Errors
    /// `Invalid` for an index outside the count, `Disagreed` on both for an index that is taken, `TimedOut` naming
    /// who has not come, the reason of one that gave up, and `Interrupted`.
    pub fn enter(
        &self,
        index: usize,
        introduction: Introduction,
        deadline: &Deadline<'_>,
    ) -> Result<Box<dyn Exchange>> {
        let place = &self.place;
        if index >= place.count {
            let reason = format!("must be below the count, {}", place.count);
            return Err(Error::invalid("host_domain_index", index, "argument", reason));
        }
        let process = introduction.process.clone();
        let member = Member { index, nonce: random::nonce()?, introduction };
        let key = RunKey(random::bytes()?);
        {
            let mut state = place.lock();
            if let Some(other) = &state.members[index] {
                let reason = Reason::duplicate(index, &other.introduction.process, &process);
                let error = reason.error(index, &process);
                // A hall that has formed stays as it is: only the late one is told.
                if state.formed.is_none() {
                    state.reason = Some(reason);
                    place.changed.notify_all();
                }
                return Err(error);
            }
            state.members[index] = Some(member);
            if let Some(members) = state.members.iter().cloned().collect::<Option<Vec<_>>>()
                && state.reason.is_none()
            {
                let run = match place.count {
                    1 => format!("alone in pid {}", process.pid),
                    _ => format!("threads of pid {}", process.pid),
                };
                state.formed = Some((Arc::new(Roster { run, members }), key));
            }
            place.changed.notify_all();
        }
        let (roster, key) = place.wait(
            (index, &process),
            "rendezvous, registration",
            deadline,
            |state| state.formed.clone(),
            |state| absent(state.members.iter().map(Option::is_some), "has not entered"),
        )?;
        Ok(Box::new(Entered { place: Arc::clone(place), index, process, roster, key, phase: 0 }))
    }
}

fn absent(present: impl Iterator<Item = bool>, last_word: &str) -> Vec<Missing> {
    let numbered = present.enumerate().filter(|(_, here)| !here);
    numbered.map(|(index, _)| Missing { index, last_word: last_word.to_owned() }).collect()
}

/// The meeting of one process that is alone: complete at once, without a file.
///
/// # Errors
/// `Io` if the kernel gives no random bytes.
pub fn lone(introduction: Introduction) -> Result<Box<dyn Exchange>> {
    Hall::new(1).enter(0, introduction, &Deadline::after(std::time::Duration::from_secs(1)))
}

struct Entered {
    place: Arc<Place>,
    index: usize,
    process: Process,
    roster: Arc<Roster>,
    key: RunKey,
    phase: usize,
}

impl Exchange for Entered {
    fn index(&self) -> usize {
        self.index
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn key(&self) -> &RunKey {
        &self.key
    }

    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let number = self.phase;
        self.phase += 1;
        {
            let mut state = self.place.lock();
            if state.phases.len() == number {
                let payloads = vec![None; self.place.count];
                state.phases.push(Phase { name: phase.to_owned(), payloads });
            }
            match state.phases.get_mut(number) {
                Some(current) if current.name == phase => {
                    current.payloads[self.index] = Some(payload.to_vec());
                }
                // An earlier phase has failed, so this one was never opened; the wait below reports why.
                None => {}
                Some(current) => {
                    let first = current.payloads.iter().position(Option::is_some).unwrap_or(0);
                    let (mine, theirs) = (phase.to_owned(), current.name.clone());
                    let field = "the phase of the rendezvous".to_owned();
                    let error = Error::Disagreed { field, mine, theirs, index: first };
                    state.reason.get_or_insert(Reason::of(&error, self.index, &self.process));
                }
            }
            self.place.changed.notify_all();
        }
        self.place.wait(
            (self.index, &self.process),
            &format!("rendezvous, {phase}"),
            deadline,
            |state| state.phases.get(number).filter(|current| current.name == phase)?.whole(),
            |state| {
                let payloads = state.phases.get(number).map_or(&[][..], |current| &current.payloads);
                absent(payloads.iter().map(Option::is_some), "entered, has not published")
            },
        )
    }

    fn give_up(&mut self, reason: &Error) {
        let mut state = self.place.lock();
        state.reason.get_or_insert(Reason::of(reason, self.index, &self.process));
        self.place.changed.notify_all();
    }

    fn close(&mut self) {}
}
