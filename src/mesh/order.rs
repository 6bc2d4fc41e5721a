//! The order of the calls of one mesh, whatever executors they run on.
//!
//! All members must make their calls in one order, so a mesh makes one at a time, in the order of submission. Sends and receives
//! have an order for each member and tag, and wait for no others. A call takes its
//! ticket and its place in an executor's line in one act, under one lock: so the lines of all executors and the tickets of
//! all meshes follow one order, that of submission. Therefore nothing can wait in a circle: of all calls that have not ended,
//! the one submitted first has nobody before it in its line and no lower ticket of its mesh before it, and runs.
//! Locks are taken in one order too, first that of a mesh, then that of an executor, and neither is held while a call runs.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Inner, Mesh, crossed};
use crate::communicator::Call;
use crate::error::{Error, Missing, Result};
use crate::executor::{Deferred, Executor, Hold};
use crate::sys::{Deadline, process};
use crate::vocabulary::Verb;

/// The tickets of the calls that have not ended.
#[derive(Default)]
pub(super) struct Order {
    turns: Mutex<Turns>,
    changed: Condvar,
}

#[derive(Default)]
struct Turns {
    next: u64,
    outstanding: VecDeque<Turn>,
}

/// Calls of one lane of a mesh run one after the other; those of different lanes do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// Calls of all members.
    Group,
    /// Sends to a member, or receives from it, with one tag.
    Pair(Verb, usize, u64),
}

impl Lane {
    pub(super) fn of(call: &Call<'_>) -> Self {
        match call.verb {
            // The libraries of GPUs take all calls of one GPU in one order.
            Verb::Send | Verb::Receive if call.gpu.is_none() => Self::Pair(call.verb, call.root, call.tag),
            _ => Self::Group,
        }
    }
}

/// A call that has entered.
struct Turn {
    lane: Lane,
    number: u64,
    call: &'static str,
    executor: Executor,
}

/// A call's place in the order of its mesh, given back when dropped.
struct Ticket<M: Deref<Target = Inner>> {
    mesh: M,
    lane: Lane,
    number: u64,
}

/// One call's right to the executor and to the group of its mesh.
pub(crate) struct Admission<'m> {
    // Before the executor: a call that finds it free finds the mesh free too.
    _ticket: Ticket<&'m Inner>,
    hold: Hold,
}

impl Admission<'_> {
    /// The executor.
    pub(crate) fn hold(&self) -> &Hold {
        &self.hold
    }
}

impl Order {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The executor of the first call of all members that has not ended.
    pub(super) fn first_executor(&self) -> Option<usize> {
        let turns = self.turns();
        let first = turns.outstanding.iter().find(|turn| turn.lane == Lane::Group);
        first.map(|turn| turn.executor.identity())
    }

    /// How many calls were ever submitted.
    pub(super) fn submitted(&self) -> u64 {
        self.turns().next
    }

    /// Has those that wait for their turn look up.
    pub(super) fn wake(&self) {
        self.changed.notify_all();
    }
}

impl Turns {
    /// Refuses a call of a thread that is inside of another one of this mesh: it would wait for itself.
    fn check(&self) -> Result<()> {
        match self.outstanding.iter().find(|turn| turn.executor.is_inside()) {
            None => Ok(()),
            Some(turn) => Err(Error::Contended {
                what: "the mesh".to_owned(),
                holder: turn.call.to_owned(),
                waited: Duration::ZERO,
            }),
        }
    }

    /// Gives the number of the call, and whether no other of its lane has to end before.
    fn take(&mut self, call: &'static str, lane: Lane, executor: &Executor) -> (u64, bool) {
        self.next += 1;
        let is_first = self.outstanding.iter().all(|turn| turn.lane != lane);
        self.outstanding.push_back(Turn { lane, number: self.next, call, executor: executor.clone() });
        (self.next, is_first)
    }
}

impl Mesh {
    /// Takes the executor and this mesh's turn for a call of the calling thread.
    ///
    /// # Errors
    /// As [`Executor::hold_within`]; `Contended` from inside of another call of this mesh; `Closed`.
    pub(crate) fn admit(&self, call: &'static str, deadline: &Deadline<'_>) -> Result<Admission<'_>> {
        self.admit_in(call, Lane::Group, deadline)
    }

    /// As [`Mesh::admit`], in a lane of the mesh.
    pub(super) fn admit_in(
        &self,
        call: &'static str,
        lane: Lane,
        deadline: &Deadline<'_>,
    ) -> Result<Admission<'_>> {
        self.check_open()?;
        let (place, ticket, is_first) = {
            let mut turns = self.inner.order.turns();
            turns.check()?;
            let place = self.executor.enter(call)?;
            let (number, is_first) = turns.take(call, lane, &self.executor);
            (place, Ticket { mesh: &*self.inner, lane, number }, is_first)
        };
        let has_waited = !place.is_held();
        let hold = place.wait(deadline)?;
        // One that came to a free executor in its turn has spent no time.
        if has_waited || !is_first {
            ticket.wait(call, deadline)?;
        }
        self.check_open()?;
        Ok(Admission { _ticket: ticket, hold })
    }

    /// Submits a call that runs on the executor's threads in this mesh's order; `refused` learns why it did not begin.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        call: &'static str,
        deadline: Deadline<'static>,
        refused: impl Fn(&Self, &Error) + Send + Sync + 'static,
        work: impl FnOnce(&Self, &Deadline<'_>) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        self.submit_in(call, Lane::Group, deadline, refused, work)
    }

    /// As [`Mesh::submit`], in a lane of the mesh.
    pub(super) fn submit_in<T: Send + 'static>(
        &self,
        call: &'static str,
        lane: Lane,
        deadline: Deadline<'static>,
        refused: impl Fn(&Self, &Error) + Send + Sync + 'static,
        work: impl FnOnce(&Self, &Deadline<'_>) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        if let Err(error) = self.check_open() {
            return Deferred::failed(call, error);
        }
        let refused = Arc::new(refused);
        let (own, told) = (self.clone(), Arc::clone(&refused));
        let (outcome, deferred) = {
            let mut turns = self.inner.order.turns();
            if let Err(error) = turns.check() {
                drop(turns);
                refused(self, &error);
                return Deferred::failed(call, error);
            }
            let (number, _) = turns.take(call, lane, &self.executor);
            let ticket = Ticket { mesh: Arc::clone(&self.inner), lane, number };
            let (deferred, job) = self.executor.prepare(call, move |_hold| {
                let begun = ticket.wait(call, &deadline).and_then(|()| own.check_open());
                begun.inspect_err(|error| told(&own, error))?;
                crossed::deferred(|| work(&own, &deadline))
            });
            (self.executor.join(job), deferred)
        };
        match outcome {
            Ok(job) => self.executor.start(job),
            Err((job, error)) => {
                refused(self, &error);
                // Without the lock: the ticket is given back here.
                job.refuse(error);
            }
        }
        deferred
    }
}

impl<M: Deref<Target = Inner>> Ticket<M> {
    /// The first call before this one in its lane that has not ended.
    fn before(&self, turns: &Turns) -> Option<&'static str> {
        let mut earlier = turns.outstanding.iter().take_while(|turn| turn.number < self.number);
        earlier.find(|turn| turn.lane == self.lane).map(|turn| turn.call)
    }

    /// Waits until all calls before this one have ended.
    fn wait(&self, call: &str, deadline: &Deadline<'_>) -> Result<()> {
        let order = &self.mesh.order;
        loop {
            let mut turns = order.turns();
            if self.before(&turns).is_some() {
                let waited = order.changed.wait_timeout(turns, deadline.pause());
                turns = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let earlier = self.before(&turns);
            let (first, before) = (earlier.is_none(), earlier.unwrap_or("another call"));
            drop(turns);
            // Without the lock: the interrupt check may run any code. A call that stood in line past its deadline has
            // timed out, whether or not its turn has come.
            deadline.check(&format!("{call} waiting for {before} of the same mesh"), Vec::<Missing>::new)?;
            if first {
                return Ok(());
            }
            self.mesh.check_open()?;
        }
    }
}

impl<M: Deref<Target = Inner>> Drop for Ticket<M> {
    fn drop(&mut self) {
        // In a forked child the lock may be one that a thread of the parent held.
        if process::pid() != self.mesh.pid {
            return;
        }
        let order = &self.mesh.order;
        let mut turns = order.turns();
        let position = turns.outstanding.iter().position(|turn| turn.number == self.number);
        let turn = position.and_then(|position| turns.outstanding.remove(position));
        let is_last = turns.outstanding.is_empty();
        drop(turns);
        // Without the lock: it may be the last handle of its executor.
        drop(turn);
        if !is_last {
            order.changed.notify_all();
        }
    }
}
