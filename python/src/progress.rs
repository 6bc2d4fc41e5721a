//! `progress=`: a callback of Python that the executor's threads call.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;

use crate::error::invalid;
use crate::exit::Passage;

/// Reports of one call; an exception ends them and is raised by whoever waits for the call.
pub(crate) struct Report {
    callback: Py<PyAny>,
    failure: Mutex<Failure>,
}

#[derive(Default)]
struct Failure {
    has_failed: bool,
    /// Until somebody raises it, with its text, which can be logged without the interpreter.
    error: Option<(PyErr, String)>,
}

impl Report {
    /// Takes what a caller gave.
    pub(crate) fn new(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if !given.is_callable() {
            let reason =
                "must be a callable that takes the bytes that are done and the bytes of the whole call";
            return Err(invalid(given.py(), "progress", given, reason));
        }
        Ok(Self { callback: given.clone().unbind(), failure: Mutex::default() })
    }

    /// What is called back.
    pub(crate) fn callback(&self) -> &Py<PyAny> {
        &self.callback
    }

    /// Calls back, holding the interpreter's lock meanwhile.
    pub(crate) fn tell(&self, done: u64, total: u64) {
        if self.failure().has_failed {
            return;
        }
        let Some(_passage) = Passage::enter() else { return };
        Python::try_attach(|py| {
            if let Err(error) = self.callback.call1(py, (done, total)) {
                let text = error.to_string();
                let mut failure = self.failure();
                failure.has_failed = true;
                failure.error = Some((error, text));
            }
        });
    }

    /// The exception that the callback raised, once.
    pub(crate) fn take_error(&self) -> Option<PyErr> {
        self.failure().error.take().map(|(error, _)| error)
    }

    /// What a call ends with: its own error, or else what its callback raised.
    pub(crate) fn outcome<T>(&self, py: Python<'_>, result: PyResult<T>) -> PyResult<T> {
        match (result, self.take_error()) {
            (result, None) => result,
            (Ok(_), Some(raised)) => Err(raised),
            (Err(error), Some(raised)) => {
                error.set_context(py, Some(raised));
                Err(error)
            }
        }
    }

    fn failure(&self) -> std::sync::MutexGuard<'_, Failure> {
        // Nothing here panics between two writes that belong together.
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some((_, text)) = self.failure().error.take() {
            tracing::error!("a progress callback raised {text}, and nobody waited for its call");
        }
    }
}
