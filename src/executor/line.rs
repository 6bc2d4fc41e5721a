//! The line behind an executor: who holds it, who waits for it, and in which order.
//!
//! One lock guards everything. It is held for a few instructions and never while other code runs; where nobody else comes
//! it costs one atomic to take.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Error, Missing, Result};
use crate::sys::Deadline;

use super::Hold;

/// A deferred call in the line: told that the executor is its own, or why it never will be.
///
/// It runs to its end, gives the executor up, and returns the deferred call that follows it.
pub(crate) struct Job {
    pub(super) call: &'static str,
    pub(super) run: Run,
}

/// What a job does with the executor.
type Run = Box<dyn FnOnce(Result<Hold>) -> Option<(Hold, Job)> + Send>;

impl Job {
    /// Ends a call that never had the executor.
    pub(crate) fn refuse(self, error: Error) {
        let _ = (self.run)(Err(error));
    }
}

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const CLOSED: u8 = 2;

/// A thread that waits in the line.
pub(super) struct Seat {
    call: &'static str,
    /// Whether it counts against the limit of the line.
    counts: bool,
    state: AtomicU8,
    changed: Condvar,
}

enum Waiter {
    Thread(Arc<Seat>),
    Deferred(Job),
}

impl Waiter {
    fn counts(&self) -> bool {
        match self {
            Self::Thread(seat) => seat.counts,
            Self::Deferred(_) => true,
        }
    }
}

/// Who comes after the call that leaves.
pub(super) enum Next {
    Nobody,
    /// A thread, which was told.
    Thread,
    /// A deferred call, for which the caller finds a thread.
    Deferred(Job),
}

#[derive(Default)]
struct Desk {
    /// The call that holds the executor.
    holder: Option<&'static str>,
    waiting: VecDeque<Waiter>,
    /// The threads that are inside of a call: in the line, holding, or running it.
    inside: Vec<usize>,
    /// Deferred calls that have left the executor and whose end is not published yet.
    settling: usize,
    /// Threads that wait for it to become quiet.
    listeners: usize,
    is_closed: bool,
}

/// The holder of an executor and those behind it.
pub(super) struct Line {
    /// How many calls may wait.
    limit: usize,
    desk: Mutex<Desk>,
    /// Rung when the executor becomes free, and when the last call has settled.
    quiet: Condvar,
}

/// A number of the calling thread that no other live thread has.
pub(super) fn this_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl Line {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, desk: Mutex::new(Desk::default()), quiet: Condvar::new() }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        // Nothing here panics between two writes that belong together.
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the calling thread is inside of a call: another one of its own would wait for itself.
    pub(super) fn is_inside(&self) -> bool {
        let thread = this_thread();
        self.desk().inside.contains(&thread)
    }

    /// Says that the calling thread runs the call that holds the executor.
    pub(super) fn mark(&self) -> usize {
        let thread = this_thread();
        self.desk().inside.push(thread);
        thread
    }

    /// Takes the mark of a thread away.
    pub(super) fn unmark(&self, thread: usize) {
        self.desk().unmark(thread);
    }

    /// Takes the executor, `None`, or a place in the line if `may_wait` and there is room.
    ///
    /// The calling thread is marked as inside, until [`Line::leave`] or [`Line::cancel`].
    pub(super) fn enter(
        &self,
        call: &'static str,
        may_wait: bool,
        counts: bool,
    ) -> Result<Option<Arc<Seat>>> {
        let thread = this_thread();
        let mut desk = self.desk();
        let holder = desk.check(thread)?;
        let Some(holder) = holder else {
            desk.holder = Some(call);
            desk.inside.push(thread);
            return Ok(None);
        };
        if !may_wait || (counts && !desk.has_room(self.limit)) {
            return Err(contended(holder));
        }
        let (state, changed) = (AtomicU8::new(WAITING), Condvar::new());
        let seat = Arc::new(Seat { call, counts, state, changed });
        desk.waiting.push_back(Waiter::Thread(Arc::clone(&seat)));
        desk.inside.push(thread);
        Ok(Some(seat))
    }

    /// Takes the executor for a deferred call, which comes back for a thread to run it, or puts it in the line.
    pub(super) fn join(&self, job: Job) -> std::result::Result<Option<Job>, (Job, Error)> {
        let mut desk = self.desk();
        match desk.check(this_thread()) {
            Err(error) => Err((job, error)),
            Ok(None) => {
                desk.holder = Some(job.call);
                Ok(Some(job))
            }
            Ok(Some(_)) if desk.has_room(self.limit) => {
                desk.waiting.push_back(Waiter::Deferred(job));
                Ok(None)
            }
            Ok(Some(holder)) => Err((job, contended(holder))),
        }
    }

    /// Waits until the executor is handed to this seat.
    ///
    /// After an error the seat has left the line; the thread's mark stays until [`Line::unmark`].
    pub(super) fn wait(&self, seat: &Arc<Seat>, deadline: &Deadline<'_>) -> Result<()> {
        loop {
            let mut desk = self.desk();
            if seat.state.load(Ordering::Relaxed) == WAITING {
                let waited = seat.changed.wait_timeout(desk, deadline.pause());
                desk = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            match seat.state.load(Ordering::Relaxed) {
                GRANTED => return Ok(()),
                CLOSED => return Err(closed()),
                _ => {}
            }
            let holder = desk.holder.unwrap_or("nobody");
            drop(desk);
            // Without the lock: the interrupt check may run any code.
            let phase = format!("{} waiting in line for the executor, held by {holder},", seat.call);
            if let Err(error) = deadline.check(&phase, Vec::<Missing>::new) {
                return if self.give_up(seat) { Err(error) } else { Ok(()) };
            }
        }
    }

    /// Takes a seat out of the line; false if the executor was handed to it meanwhile.
    pub(super) fn give_up(&self, seat: &Arc<Seat>) -> bool {
        let mut desk = self.desk();
        let is_it = |waiter: &Waiter| matches!(waiter, Waiter::Thread(other) if Arc::ptr_eq(other, seat));
        if let Some(position) = desk.waiting.iter().position(is_it) {
            desk.waiting.remove(position);
        }
        seat.state.load(Ordering::Relaxed) != GRANTED
    }

    /// Hands the executor to the next in the line.
    ///
    /// `settles` says that the end of the call that leaves is published afterwards, with [`Line::settled`].
    pub(super) fn leave(&self, thread: usize, settles: bool) -> Next {
        let mut desk = self.desk();
        desk.unmark(thread);
        desk.settling += usize::from(settles);
        match desk.waiting.pop_front() {
            None => {
                desk.holder = None;
                // A notification is a system call, whether or not anybody waits.
                if desk.listeners > 0 {
                    self.quiet.notify_all();
                }
                Next::Nobody
            }
            Some(Waiter::Thread(seat)) => {
                desk.holder = Some(seat.call);
                seat.state.store(GRANTED, Ordering::Relaxed);
                seat.changed.notify_one();
                Next::Thread
            }
            Some(Waiter::Deferred(job)) => {
                desk.holder = Some(job.call);
                Next::Deferred(job)
            }
        }
    }

    /// Says that the end of a deferred call is published.
    pub(super) fn settled(&self) {
        let mut desk = self.desk();
        desk.settling = desk.settling.saturating_sub(1);
        if desk.settling == 0 {
            self.quiet.notify_all();
        }
    }

    /// Refuses new calls from now on, and gives the deferred ones of the line to be refused.
    pub(super) fn close(&self) -> Vec<Job> {
        let mut desk = self.desk();
        desk.is_closed = true;
        let mut jobs = Vec::new();
        for waiter in std::mem::take(&mut desk.waiting) {
            match waiter {
                Waiter::Thread(seat) => {
                    seat.state.store(CLOSED, Ordering::Relaxed);
                    seat.changed.notify_one();
                }
                Waiter::Deferred(job) => jobs.push(job),
            }
        }
        jobs
    }

    /// How many wait in the line.
    #[cfg(test)]
    pub(super) fn waiting_count(&self) -> usize {
        self.desk().waiting.len()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.desk().is_closed
    }

    /// Waits until the ends of all calls that have left are published.
    pub(super) fn wait_settled(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.wait_quiet(deadline, |desk| desk.settling == 0)
    }

    /// Waits until nobody holds the executor and all calls have settled.
    pub(super) fn wait_free(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.wait_quiet(deadline, |desk| desk.holder.is_none() && desk.settling == 0)
    }

    fn wait_quiet(&self, deadline: &Deadline<'_>, is_quiet: impl Fn(&Desk) -> bool) -> Result<()> {
        loop {
            let mut desk = self.desk();
            if !is_quiet(&desk) {
                desk.listeners += 1;
                let waited = self.quiet.wait_timeout(desk, deadline.pause());
                desk = waited.unwrap_or_else(PoisonError::into_inner).0;
                desk.listeners -= 1;
            }
            if is_quiet(&desk) {
                return Ok(());
            }
            let holder = desk.holder.unwrap_or("a call that ends");
            drop(desk);
            deadline.check(&format!("waiting for {holder} to leave the executor"), Vec::<Missing>::new)?;
        }
    }
}

impl Desk {
    /// The call that holds the executor, for a thread that wants it.
    fn check(&self, thread: usize) -> Result<Option<&'static str>> {
        if self.is_closed {
            return Err(closed());
        }
        if self.inside.contains(&thread) {
            // It would wait for itself.
            return Err(contended(self.holder.unwrap_or("a call")));
        }
        Ok(self.holder)
    }

    fn has_room(&self, limit: usize) -> bool {
        self.waiting.iter().filter(|waiter| waiter.counts()).count() < limit
    }

    fn unmark(&mut self, thread: usize) {
        if let Some(position) = self.inside.iter().position(|inside| *inside == thread) {
            self.inside.swap_remove(position);
        }
    }
}

/// Refused by the call that holds the executor.
fn contended(holder: &str) -> Error {
    Error::Contended { what: "the executor".to_owned(), holder: holder.to_owned(), waited: Duration::ZERO }
}

pub(super) fn closed() -> Error {
    Error::Closed { what: "the executor".to_owned(), why: "close was called; make another".to_owned() }
}
