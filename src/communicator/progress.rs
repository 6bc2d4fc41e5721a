//! Telling somebody how far a call has come, at a bounded rate.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The least time between two reports, but for the last one.
const INTERVAL: Duration = Duration::from_millis(50);

/// Gets the bytes that are done and the bytes of the whole call.
pub type ProgressCallback<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// Reports of one call to one callback: at most one in 50 ms, and at success a last one of (total, total).
///
/// A handle: clones count together. Whoever runs the call [starts](Self::start) and [finishes](Self::finish) it, and what
/// moves payload [advances](Self::advance) it. The callback runs on the thread that moves the payload, and delays it.
#[derive(Clone)]
pub struct Progress<'a> {
    callback: ProgressCallback<'a>,
    state: Arc<State>,
}

struct State {
    start: Instant,
    total: AtomicU64,
    done: AtomicU64,
    /// When the last report was made, in nanoseconds after the start.
    told: AtomicU64,
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
}

impl std::fmt::Debug for Progress<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (done, total) = (&self.state.done, &self.state.total);
        let [done, total] = [done, total].map(|count| count.load(Ordering::Relaxed));
        write!(formatter, "Progress({done} of {total} bytes)")
    }
}

impl<'a> Progress<'a> {
    /// Reports to `callback`.
    #[must_use]
    pub fn new(callback: ProgressCallback<'a>) -> Self {
        let state = State {
            start: Instant::now(),
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            told: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Self { callback, state: Arc::new(state) }
    }

    /// Begins a call of so many bytes.
    pub fn start(&self, total: u64) {
        self.state.total.store(total, Ordering::Relaxed);
        self.state.done.store(0, Ordering::Relaxed);
    }

    /// Counts bytes that are done, and reports if the last report is old enough.
    pub fn advance(&self, byte_count: u64) {
        let before = self.state.done.fetch_add(byte_count, Ordering::Relaxed);
        let now = u64::try_from(self.state.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let told = self.state.told.load(Ordering::Relaxed);
        if Duration::from_nanos(now.saturating_sub(told)) >= INTERVAL {
            self.state.told.store(now, Ordering::Relaxed);
            let total = self.state.total.load(Ordering::Relaxed);
            self.tell((before + byte_count).min(total), total);
        }
    }

    /// Makes the last report of a call that succeeded.
    ///
    /// # Errors
    /// `Invalid` if the callback has panicked, which ended its reports and nothing else.
    pub fn finish(&self) -> Result<()> {
        let total = self.state.total.load(Ordering::Relaxed);
        self.tell(total, total);
        match self.state.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            None => Ok(()),
            Some(text) => {
                Err(Error::invalid("progress", "callback", "argument", format!("it panicked: {text}")))
            }
        }
    }

    fn tell(&self, done: u64, total: u64) {
        if self.state.has_failed.load(Ordering::Relaxed) {
            return;
        }
        // Not through the communicator: the peers wait for the rest of the call.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.callback)(done, total))) {
            self.state.has_failed.store(true, Ordering::Relaxed);
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_else(|| "without a message".to_owned());
            *self.state.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_rare_and_the_last_one_is_whole() {
        let told = Mutex::new(Vec::new());
        let callback = |done, total| told.lock().expect("no panic").push((done, total));
        let progress = Progress::new(&callback);
        progress.start(1000);
        let start = Instant::now();
        while start.elapsed() < INTERVAL * 3 {
            progress.clone().advance(1);
        }
        let elapsed = start.elapsed();
        progress.finish().expect("no panic");
        let told = told.into_inner().expect("no panic");
        let limit = elapsed.as_nanos() / INTERVAL.as_nanos() + 1;
        assert!(told.len() >= 2 && told.len() as u128 <= limit + 1, "{told:?}");
        assert!(told.is_sorted() && told.last() == Some(&(1000, 1000)));
    }

    #[test]
    fn a_panic_in_the_callback_is_reported_at_the_end() {
        let callback = |_, _| panic!("out of paper");
        let progress = Progress::new(&callback);
        progress.start(7);
        let error = progress.finish().expect_err("it panicked");
        assert!(error.to_string().contains("out of paper"), "{error}");
        progress.finish().expect("said once");
    }
}
