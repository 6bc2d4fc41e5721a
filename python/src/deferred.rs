//! Calls that go on after they were submitted: `Deferred`, and the classes whose calls return one.
//!
//! Awaiting is Python code (`uform/_await.py`): a frame of Rust must not be under code that runs in a loop of a thread which
//! the end of the interpreter may end. What is here neither runs Python code nor lets another thread in.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use pyo3::exceptions::PyBaseException;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::OnceLockExt;
use pyo3::types::{PyBytes, PyList};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use uform::sys::Deadline;
use uform::vocabulary::Verb;

use crate::arena::Arena;
use crate::argument;
use crate::detached::Detached;
use crate::error::{invalid, to_python};
use crate::executor::Executor;
use crate::progress::Report;
use crate::site;
use crate::trainer::StepReport;
use crate::verb::{Given, Request, deadline, verbs, within};

/// A call of the core with any result.
trait Pending: Send + Sync {
    fn name(&self) -> &'static str;

    /// Refuses a forked child.
    fn check(&self) -> uform::Result<()>;

    fn is_done(&self) -> bool;

    fn wait_done(&self, deadline: &Deadline<'_>) -> uform::Result<()>;

    fn on_done(&self, hook: uform::executor::DoneHook);

    /// The result of a call that is done, once.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

struct Waited<T, F> {
    call: uform::Deferred<T>,
    convert: F,
}

impl<T, F> Pending for Waited<T, F>
where
    T: Send,
    F: Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.call.call()
    }

    fn check(&self) -> uform::Result<()> {
        self.call.check_process()
    }

    fn is_done(&self) -> bool {
        self.call.is_done()
    }

    fn wait_done(&self, deadline: &Deadline<'_>) -> uform::Result<()> {
        self.call.wait_done(deadline)
    }

    fn on_done(&self, hook: uform::executor::DoneHook) {
        self.call.on_done(hook);
    }

    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.call.wait(&Deadline::after(Duration::ZERO)) {
            Ok(value) => (self.convert)(py, value),
            Err(error) => Err(to_python(py, &error)),
        }
    }
}

/// A call that was submitted: it runs on the threads of its executor, whether or not anybody waits for it.
///
/// `await` it, from any number of tasks, in any loop; or call wait. Each gives the result, or raises what the call ended with.
/// A task that is cancelled leaves the call running. If nobody waits, the call still runs, and a failure is logged.
#[pyclass(frozen, generic, module = "uform")]
pub(crate) struct Deferred {
    call: Box<dyn Pending>,
    report: Option<Arc<Report>>,
    executor: Py<Executor>,
    outcome: OnceLock<Outcome>,
}

/// What a call ended with; an exception knows frames, and so maybe the Deferred that keeps it.
enum Outcome {
    Value(Py<PyAny>),
    Raised(Py<PyBaseException>),
}

impl Deferred {
    fn new<T: Send + 'static>(
        executor: &Py<Executor>,
        py: Python<'_>,
        call: uform::Deferred<T>,
        convert: impl Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + Sync + 'static,
    ) -> Self {
        let (executor, outcome) = (executor.clone_ref(py), OnceLock::new());
        Self { call: Box::new(Waited { call, convert }), report: None, executor, outcome }
    }
}

#[pymethods]
impl Deferred {
    /// Whether the call has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.call.check().map_err(|error| to_python(py, &error))?;
        Ok(self.call.is_done())
    }

    /// Waits for the end of the call; returns its result, or raises what it ended with.
    ///
    /// timeout_seconds: how long this wait may last; 0 means 1800. After TimedOutError of the wait, as after Ctrl-C, the call
    /// goes on and can be waited for again.
    #[pyo3(signature = (timeout_seconds=None), text_signature = "($self, timeout_seconds=0.0)")]
    fn wait(&self, py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<Py<PyAny>> {
        within(py, timeout_seconds, |deadline| self.call.wait_done(deadline))?;
        self._result(py)
    }

    /// The result of a call that is done.
    fn _result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let outcome = self.outcome.get_or_init_py_attached(py, || {
            let result = self.call.take(py);
            let result = match &self.report {
                Some(report) => report.outcome(py, result),
                None => result,
            };
            match result {
                Ok(value) => Outcome::Value(value),
                Err(error) => Outcome::Raised(error.into_value(py)),
            }
        });
        match outcome {
            Outcome::Value(value) => Ok(value.clone_ref(py)),
            Outcome::Raised(error) => Err(PyErr::from_value(error.bind(py).clone().into_any())),
        }
    }

    /// Lets the collector see what is kept, once the call is done: until then its callback may be called.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.outcome.get() {
            Some(Outcome::Value(value)) => visit.call(value)?,
            Some(Outcome::Raised(error)) => visit.call(error)?,
            None => {}
        }
        match &self.report {
            Some(report) if self.call.is_done() => visit.call(report.callback()),
            _ => Ok(()),
        }
    }

    /// What runs the call.
    #[getter]
    fn _executor(&self, py: Python<'_>) -> Py<Executor> {
        self.executor.clone_ref(py)
    }

    /// A bell for the loop that awaits the call.
    fn _bell(&self, py: Python<'_>) -> PyResult<Bell> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let descriptor = made.map_err(|error| {
            let source = error.into();
            to_python(py, &uform::Error::io("/proc/self/fd", "make an eventfd", source))
        })?;
        Ok(Bell { descriptor: Arc::new(descriptor) })
    }

    /// Has the bell rung when the call has ended; now if it has.
    fn _ring(&self, py: Python<'_>, bell: &Bell) -> PyResult<()> {
        self.call.check().map_err(|error| to_python(py, &error))?;
        let bell = Arc::downgrade(&bell.descriptor);
        self.call.on_done(Box::new(move || ring(&bell)));
        Ok(())
    }

    fn __repr__(&self) -> String {
        let state = if self.call.is_done() { "done" } else { "not done" };
        format!("<uform.Deferred {}, {state}>", self.call.name())
    }
}

/// A descriptor that becomes readable when a call has ended; closed with the last reference.
#[pyclass(frozen, module = "uform", name = "_Bell")]
pub(crate) struct Bell {
    descriptor: Arc<OwnedFd>,
}

#[pymethods]
impl Bell {
    fn fileno(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    /// Makes it silent again.
    fn hear(&self) {
        // Nothing to read is what is wanted.
        let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
    }
}

/// On a thread of the executor: wakes the loop, if it still listens.
fn ring(bell: &Weak<OwnedFd>) {
    if let Some(bell) = bell.upgrade() {
        // It fails only where 2^64 - 2 rings were not heard.
        let _ = rustix::io::write(&bell, &1_u64.to_ne_bytes());
    }
}

/// The verbs of a mesh, each of which returns a Deferred at once; made by Mesh.deferred.
///
/// Calls run in the order in which they were submitted, on the executor's own threads, and a call's arrays must be left alone
/// until it is done. Wrong arguments are raised at once; everything else by whoever waits, ContendedError included: behind the
/// call that holds the executor as many may wait as its deferred_limit says. timeout_seconds counts from submission.
#[pyclass(frozen, module = "uform")]
pub(crate) struct DeferredMesh {
    inner: Detached<uform::DeferredMesh>,
    executor: Py<Executor>,
}

verbs!(DeferredMesh -> Deferred);

#[pymethods]
impl DeferredMesh {
    /// Done when all processes have called it.
    #[pyo3(signature = (*, timeout_seconds=None), text_signature = "($self, *, timeout_seconds=0.0)")]
    fn barrier(&self, py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<Deferred> {
        let deadline = deadline(py, timeout_seconds)?;
        let site = site::of_caller(py);
        let call = py.detach(|| site.during(|| self.inner.barrier(deadline)));
        Ok(Deferred::new(&self.executor, py, call, |py, ()| Ok(py.None())))
    }

    /// Gives everybody's payload, in the order of indexes: a list of bytes.
    ///
    /// payload: bytes of any length, which may differ between processes.
    #[pyo3(
        signature = (payload, /, *, timeout_seconds=None),
        text_signature = "($self, payload, /, *, timeout_seconds=0.0)"
    )]
    fn exchange(
        &self,
        py: Python<'_>,
        payload: &Bound<'_, PyAny>,
        timeout_seconds: Given<'_, '_>,
    ) -> PyResult<Deferred> {
        let bytes = payload.cast::<PyBytes>();
        let bytes = bytes.map_err(|_| invalid(py, "payload", payload, "must be bytes"))?.as_bytes().to_vec();
        let deadline = deadline(py, timeout_seconds)?;
        let site = site::of_caller(py);
        let call = py.detach(|| site.during(|| self.inner.exchange(bytes, deadline)));
        Ok(Deferred::new(&self.executor, py, call, |py, payloads: Vec<Vec<u8>>| {
            let payloads = payloads.iter().map(|payload| PyBytes::new(py, payload));
            Ok(PyList::new(py, payloads)?.into_any().unbind())
        }))
    }

    /// Makes memory that the processes of a host share, an Arena; sizes may differ.
    #[pyo3(signature = (byte_count, /))]
    fn arena(&self, py: Python<'_>, byte_count: &Bound<'_, PyAny>) -> PyResult<Deferred> {
        let (byte_count, deadline) = (argument::count("byte_count", byte_count)?, deadline(py, None)?);
        let site = site::of_caller(py);
        let call = py.detach(|| site.during(|| self.inner.arena(byte_count, deadline)));
        Ok(Deferred::new(&self.executor, py, call, |py, inner| Ok(Py::new(py, Arena { inner })?.into_any())))
    }

    fn __repr__(&self) -> String {
        let mesh = self.inner.mesh();
        format!("<uform.DeferredMesh index {} of {}>", mesh.index(), mesh.count())
    }
}

impl DeferredMesh {
    pub(crate) fn new(inner: uform::DeferredMesh, executor: Py<Executor>) -> Self {
        Self { inner: Detached::new(inner), executor }
    }

    fn carry(&self, py: Python<'_>, request: Request<'_, '_>) -> PyResult<Deferred> {
        let (call, report) = request.submit(py, &self.inner)?;
        let deferred = Deferred::new(&self.executor, py, call, |py, _| Ok(py.None()));
        Ok(Deferred { report, ..deferred })
    }
}

/// The calls of a trainer, each of which returns a Deferred at once; made by Trainer.deferred.
///
/// Leave gradients and parameters alone until a call is done.
#[pyclass(frozen, module = "uform")]
pub(crate) struct DeferredTrainer {
    inner: Detached<uform::DeferredTrainer>,
    executor: Py<Executor>,
}

impl DeferredTrainer {
    pub(crate) fn new(inner: uform::DeferredTrainer, executor: Py<Executor>) -> Self {
        Self { inner: Detached::new(inner), executor }
    }
}

#[pymethods]
impl DeferredTrainer {
    /// Updates all parameters, as Trainer.step does; gives a StepReport.
    #[pyo3(signature = (*, weight=None), text_signature = "($self, *, weight=1.0)")]
    fn step(&self, py: Python<'_>, weight: Given<'_, '_>) -> PyResult<Deferred> {
        let (weight, deadline) = (argument::number_or("weight", weight, 1.0)?, deadline(py, None)?);
        let call = py.detach(|| self.inner.step(weight, deadline));
        Ok(Deferred::new(&self.executor, py, call, |py, inner| {
            Ok(Py::new(py, StepReport { inner })?.into_any())
        }))
    }

    /// Writes parameters and optimizer state, as Trainer.save does.
    #[pyo3(signature = (directory, *, step))]
    fn save(
        &self,
        py: Python<'_>,
        directory: &Bound<'_, PyAny>,
        step: &Bound<'_, PyAny>,
    ) -> PyResult<Deferred> {
        let directory = argument::path("directory", directory)?;
        let (step, deadline) = (argument::count("step", step)? as u64, deadline(py, None)?);
        let call = py.detach(|| self.inner.save(directory, step, deadline));
        Ok(Deferred::new(&self.executor, py, call, |py, ()| Ok(py.None())))
    }

    /// Reads the newest step of a directory, as Trainer.load does; gives its number.
    #[pyo3(signature = (directory))]
    fn load(&self, py: Python<'_>, directory: &Bound<'_, PyAny>) -> PyResult<Deferred> {
        let (directory, deadline) = (argument::path("directory", directory)?, deadline(py, None)?);
        let call = py.detach(|| self.inner.load(directory, deadline));
        Ok(Deferred::new(&self.executor, py, call, |py, step: u64| {
            Ok(step.into_pyobject(py)?.into_any().unbind())
        }))
    }
}
