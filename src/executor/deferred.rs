//! A call that goes on after it was submitted, and the one who waits for its end.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::error::{Error, Missing, Result};
use crate::sys::{Deadline, process};

use super::line::Job;
use super::{Executor, Hold, Inner};

/// Called once when a deferred call has ended.
pub type DoneHook = Box<dyn FnOnce() + Send>;

/// A submitted call: it runs on the threads of its executor, whether or not anybody waits for it.
///
/// Its result is given once, by [`Deferred::wait`] or by awaiting it. Dropped before that, the call still runs, and an error
/// that nobody took is logged.
#[must_use = "a deferred call reports its error only to whoever waits for it"]
pub struct Deferred<T> {
    core: Arc<Core<T>>,
}

struct Core<T> {
    call: &'static str,
    executor: Weak<Inner>,
    /// The process that made it: in a forked child nobody runs it.
    pid: u32,
    is_done: AtomicBool,
    slot: Mutex<Slot<T>>,
    changed: Condvar,
}

struct Slot<T> {
    outcome: Outcome<T>,
    waker: Option<Waker>,
    hooks: Vec<DoneHook>,
    /// Counts those who are to be told, as one.
    watched: Option<Watched>,
    /// Whether nobody is left to take the outcome.
    is_abandoned: bool,
}

/// One who waits for the end of a call, counted by its executor.
struct Watched(Weak<Inner>);

impl Watched {
    fn of(executor: &Weak<Inner>) -> Self {
        if let Some(executor) = executor.upgrade() {
            executor.awaited.fetch_add(1, Ordering::SeqCst);
        }
        Self(Weak::clone(executor))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(executor) = self.0.upgrade() {
            executor.awaited.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

enum Outcome<T> {
    Pending,
    Ready(Result<T>),
    Taken,
}

impl<T> std::fmt::Debug for Deferred<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_done() { "done" } else { "not done" };
        write!(formatter, "Deferred({}, {state})", self.core.call)
    }
}

impl<T: Send + 'static> Deferred<T> {
    /// A call on an executor, and the job that ends it; `settle` says that the job leaves an executor.
    pub(super) fn pair(
        call: &'static str,
        executor: &Executor,
        work: impl FnOnce(&Hold) -> Result<T> + Send + 'static,
    ) -> (Self, Job) {
        let core = Arc::new(Core {
            call,
            executor: Arc::downgrade(&executor.0),
            pid: process::pid(),
            is_done: AtomicBool::new(false),
            slot: Mutex::new(Slot {
                outcome: Outcome::Pending,
                waker: None,
                hooks: Vec::new(),
                watched: None,
                is_abandoned: false,
            }),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&core);
        let run = move |granted: Result<Hold>| match granted {
            Err(error) => {
                drop(work);
                own.complete(Err(error));
                None
            }
            Ok(hold) => {
                let result = catch_unwind(AssertUnwindSafe(|| work(&hold)));
                let result = result.unwrap_or_else(|panic| Err(panicked(call, &*panic)));
                let executor = hold.executor().clone();
                // Free before it is done: whoever waited finds the executor free. Settled after: drain finds it done.
                let next = hold.leave_settling();
                own.complete(result);
                executor.0.line.settled();
                next
            }
        };
        (Self { core }, Job { call, run: Box::new(run) })
    }
}

impl<T> Deferred<T> {
    /// A call that ended before it began.
    pub fn failed(call: &'static str, error: Error) -> Self {
        Self {
            core: Arc::new(Core {
                call,
                executor: Weak::new(),
                pid: process::pid(),
                is_done: AtomicBool::new(true),
                slot: Mutex::new(Slot {
                    outcome: Outcome::Ready(Err(error)),
                    waker: None,
                    hooks: Vec::new(),
                    watched: None,
                    is_abandoned: false,
                }),
                changed: Condvar::new(),
            }),
        }
    }

    /// The name of the call, for messages.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.core.call
    }

    /// Whether the call has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.core.is_done.load(Ordering::Acquire)
    }

    /// Waits for the end of the call and gives its result.
    ///
    /// If this wait's own deadline passes, or its interrupt check ends it, the call goes on and can be waited for again.
    ///
    /// # Errors
    /// What the call ended with; `TimedOut` and `Interrupted` of the wait; `Contended` from inside of a call on the same
    /// executor, which would wait for itself; `Closed` in a forked child, and if the result was given before.
    pub fn wait(&self, deadline: &Deadline<'_>) -> Result<T> {
        loop {
            self.wait_done(deadline)?;
            if let Some(result) = self.core.slot().take(self.core.call) {
                return result;
            }
        }
    }

    /// Waits for the end of the call and leaves its result where it is.
    ///
    /// # Errors
    /// As [`Deferred::wait`], but for what the call ended with.
    pub fn wait_done(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.core.check_process()?;
        if !self.is_done()
            && let Some(executor) = self.core.executor.upgrade()
            && executor.line.is_inside()
        {
            let what = format!("the end of {}", self.core.call);
            let holder = "a call on the same executor, which this thread is inside of,".to_owned();
            return Err(Error::Contended { what, holder, waited: Duration::ZERO });
        }
        let _watched = Watched::of(&self.core.executor);
        loop {
            let mut slot = self.core.slot();
            if matches!(slot.outcome, Outcome::Pending) {
                let waited = self.core.changed.wait_timeout(slot, deadline.pause());
                slot = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if !matches!(slot.outcome, Outcome::Pending) {
                return Ok(());
            }
            drop(slot);
            // Without the lock: the interrupt check may run any code.
            deadline.check(&format!("waiting for {}", self.core.call), Vec::<Missing>::new)?;
        }
    }

    /// Refuses a process that did not submit the call: in a forked child nobody runs it.
    ///
    /// # Errors
    /// `Closed` in a forked child.
    pub fn check_process(&self) -> Result<()> {
        self.core.check_process()
    }

    /// Has `hook` called when the call has ended: on the executor's thread, or here and now if it is done already.
    ///
    /// A hook delays the next call of the executor: it wakes somebody and returns.
    pub fn on_done(&self, hook: DoneHook) {
        if self.core.check_process().is_err() {
            return;
        }
        let mut slot = self.core.slot();
        if matches!(slot.outcome, Outcome::Pending) {
            slot.hooks.push(hook);
            slot.watched.get_or_insert_with(|| Watched::of(&self.core.executor));
        } else {
            drop(slot);
            run_hook(self.core.call, hook);
        }
    }
}

impl<T> Future for Deferred<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(error) = self.core.check_process() {
            return Poll::Ready(Err(error));
        }
        let mut slot = self.core.slot();
        match slot.take(self.core.call) {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(context.waker().clone());
                slot.watched.get_or_insert_with(|| Watched::of(&self.core.executor));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Deferred<T> {
    fn drop(&mut self) {
        // In a forked child the lock may be one that a thread of the parent held.
        if self.core.check_process().is_ok() {
            let mut slot = self.core.slot();
            slot.is_abandoned = true;
            slot.report(self.core.call);
        }
    }
}

impl<T> Core<T> {
    fn slot(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self) -> Result<()> {
        if process::pid() == self.pid {
            return Ok(());
        }
        let why = format!("it was submitted before a fork, in process {}", self.pid);
        Err(Error::Closed { what: format!("the deferred {}", self.call), why })
    }

    fn complete(&self, result: Result<T>) {
        let (waker, hooks, _watched) = {
            let mut slot = self.slot();
            slot.outcome = Outcome::Ready(result);
            slot.report(self.call);
            self.is_done.store(true, Ordering::Release);
            self.changed.notify_all();
            (slot.waker.take(), std::mem::take(&mut slot.hooks), slot.watched.take())
        };
        if let Some(waker) = waker {
            run_hook(self.call, Box::new(|| waker.wake()));
        }
        for hook in hooks {
            run_hook(self.call, hook);
        }
    }
}

impl<T> Slot<T> {
    /// Logs an error that nobody will take.
    fn report(&mut self, call: &str) {
        if self.is_abandoned
            && let Outcome::Ready(Err(error)) = &self.outcome
        {
            tracing::error!(call, error = error.chain(), "a deferred call failed, and nobody waited for it");
            self.outcome = Outcome::Taken;
        }
    }

    /// The result, once; `None` while it is not there.
    fn take(&mut self, call: &str) -> Option<Result<T>> {
        match std::mem::replace(&mut self.outcome, Outcome::Taken) {
            Outcome::Pending => {
                self.outcome = Outcome::Pending;
                None
            }
            Outcome::Ready(result) => Some(result),
            Outcome::Taken => {
                let (what, why) = (format!("the deferred {call}"), "its result was given before".to_owned());
                Some(Err(Error::Closed { what, why }))
            }
        }
    }
}

/// Runs a hook so that a panic in it ends nothing but the hook.
fn run_hook(call: &str, hook: DoneHook) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(hook)) {
        let error = panicked(call, &*panic);
        tracing::error!(call, error = error.chain(), "a hook of a deferred call panicked");
    }
}

/// The error of work that panicked.
pub(super) fn panicked(call: &str, panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    let reason = format!("it panicked: {}", text.as_deref().unwrap_or("without a message"));
    Error::invalid("work", call, "deferred call", reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::HostOptions;

    #[test]
    fn waiting_for_the_end_leaves_the_result() {
        let options = HostOptions { threads: 1, ..HostOptions::default() };
        let executor = Executor::for_ram(&options).expect("one thread");
        let deadline = Deadline::after(Duration::from_secs(60));
        let call = executor.submit("a sum", |_| Ok(3 + 4));
        call.check_process().expect("the same process");
        for _ in 0..2 {
            call.wait_done(&deadline).expect("it ends");
        }
        assert_eq!(call.wait(&deadline).expect("the result"), 7);
        call.wait_done(&deadline).expect("done is done");
        assert!(matches!(call.wait(&deadline), Err(Error::Closed { .. })));
    }
}
