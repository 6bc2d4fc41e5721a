//! Blocking calls without the interpreter's lock, which signals end as they would end Python code.

use std::cell::Cell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use uform::sys::InterruptCheck;

use crate::error::to_python;
use crate::site;

/// How often a wait takes the interpreter's lock to look for signals; with the core's own interval below 100 ms.
const INTERVAL: Duration = Duration::from_millis(20);

/// Runs `call` detached from the interpreter.
///
/// `call` gets the check that it hands down. On the main thread, where alone Python runs signal handlers, it runs them;
/// what a handler raises ends the call and is raised here. Other threads get none, so that a daemon thread in a
/// call never takes the lock while the interpreter ends.
pub(crate) fn blocking<T: Send>(
    py: Python<'_>,
    call: impl FnOnce(Option<InterruptCheck<'_>>) -> uform::Result<T> + Send,
) -> PyResult<T> {
    let raised: Mutex<Option<PyErr>> = Mutex::new(None);
    let asked: Mutex<Option<Instant>> = Mutex::new(None);
    let check = || {
        {
            let mut asked = lock(&asked);
            if asked.is_some_and(|asked| asked.elapsed() < INTERVAL) {
                return lock(&raised).is_some();
            }
            *asked = Some(Instant::now());
        }
        let answer = Python::try_attach(|py| py.check_signals());
        if let Some(Err(error)) = answer {
            *lock(&raised) = Some(error);
        }
        lock(&raised).is_some()
    };
    let site = site::of_caller(py);
    let result = py.detach(|| site.during(|| call(if is_main() { Some(&check) } else { None })));
    match (lock(&raised).take(), result) {
        // What a handler raised is never lost, even where the call ended another way meanwhile.
        (Some(error), _) => Err(error),
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(to_python(py, &error)),
    }
}

/// Whether the calling thread is the main one; the system is asked once for each thread of each process.
fn is_main() -> bool {
    thread_local!(static KNOWN: Cell<(u32, bool)> = const { Cell::new((0, false)) });
    let pid = uform::sys::process::pid();
    let (known, is_main) = KNOWN.get();
    // The thread that forks is the main one of the child.
    if known == pid {
        return is_main;
    }
    let is_main = rustix::thread::gettid() == rustix::process::getpid();
    KNOWN.set((pid, is_main));
    is_main
}

/// A poisoned lock holds what it held: nothing here panics between two writes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
