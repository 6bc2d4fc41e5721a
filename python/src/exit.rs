//! The end of the interpreter: callbacks are not called once it has begun.
//!
//! A thread that runs Python code when the interpreter ends is ended by it, with all the frames it has. Frames of Rust cannot
//! be ended so, and the process would abort.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use uform::Error;
use uform::sys::Deadline;
use uform::vocabulary::Mood;

use crate::interrupt::blocking;

/// How long the end of the interpreter waits for calls that go on.
const DRAIN_LIMIT: Duration = Duration::from_secs(2);

/// How long it then waits for callbacks that go on.
const PASSAGE_LIMIT: Duration = Duration::from_secs(1);

/// Threads of executors that run Python code, or are about to.
static INSIDE: AtomicUsize = AtomicUsize::new(0);

static IS_ENDING: AtomicBool = AtomicBool::new(false);

static EXECUTORS: Mutex<Vec<Weak<uform::Executor>>> = Mutex::new(Vec::new());

/// The right of an executor's thread to run Python code; the interpreter does not end before it is dropped.
pub(crate) struct Passage(());

impl Passage {
    /// `None` once the interpreter has begun to end.
    pub(crate) fn enter() -> Option<Self> {
        // Counted before the flag is read: either the end sees the count, or the thread sees the end.
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let passage = Self(());
        if IS_ENDING.load(Ordering::SeqCst) { None } else { Some(passage) }
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        // Never below 0: a forked child begins anew, maybe within a passage.
        let _ = INSIDE.try_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
    }
}

/// Has the end of the interpreter wait for the calls of an executor.
pub(crate) fn watch(executor: &Arc<uform::Executor>) {
    let mut executors = EXECUTORS.lock().unwrap_or_else(PoisonError::into_inner);
    executors.retain(|executor| executor.strong_count() > 0);
    executors.push(Arc::downgrade(executor));
}

/// Waits for the calls that go on, and lets no callback begin afterwards; the interpreter calls it before it ends.
#[pyfunction]
fn end(py: Python<'_>) -> PyResult<()> {
    let executors = EXECUTORS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let drained = blocking(py, |interrupt| {
        let deadline = Deadline::after(DRAIN_LIMIT);
        let deadline = interrupt.map_or(deadline, |interrupt| deadline.interruptible(interrupt));
        for executor in executors.iter().filter_map(Weak::upgrade) {
            match executor.drain(Mood::Parked, &deadline) {
                Err(error @ Error::TimedOut { .. }) => {
                    tracing::warn!("the interpreter ends before a call does: {error}");
                }
                Err(error @ Error::Interrupted { .. }) => return Err(error),
                // Closed, or of the parent of this process: nothing goes on there.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    });
    IS_ENDING.store(true, Ordering::SeqCst);
    py.detach(|| {
        let deadline = Deadline::after(PASSAGE_LIMIT);
        while INSIDE.load(Ordering::SeqCst) > 0 && !deadline.passed() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    drained
}

/// A forked child has one thread, which is not on its way in.
#[pyfunction]
fn begin_in_child() {
    INSIDE.store(0, Ordering::SeqCst);
}

/// Has the interpreter call what is here.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    IS_ENDING.store(false, Ordering::SeqCst);
    py.import("atexit")?.call_method1("register", (wrap_pyfunction!(end, module)?,))?;
    let keywords = pyo3::types::PyDict::new(py);
    keywords.set_item("after_in_child", wrap_pyfunction!(begin_in_child, module)?)?;
    py.import("os")?.call_method("register_at_fork", (), Some(&keywords))?;
    Ok(())
}
