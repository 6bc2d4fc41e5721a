//! `Mesh`, and how its verbs run: arrays in, the interpreter's lock released, errors out.
#![allow(clippy::too_many_arguments, reason = "the signatures are those of the Python interface")]

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyType};
use uform::communicator::Call;
use uform::sys::{Deadline, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};

use crate::arena::Arena;
use crate::argument;
use crate::buffer::{Buffer, same_dtype};
use crate::error::{invalid, to_python, unsupported};
use crate::executor::Executor;
use crate::interrupt::blocking;
use crate::options::MeshOptions;
use crate::structseq;
use crate::topology::Topology;
use crate::vocabulary::Enumeration;

type Given<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// The processes of a run, joined; usable in `with`, which closes it.
///
/// Its verbs are collective: all processes call the same ones in the same order. They work in place unless out is
/// given, on C-contiguous arrays of host memory that have the buffer protocol, __array_interface__ or __dlpack__: those
/// of NumPy, bfloat16 of ml_dtypes included, tensors of torch, a uform.Array and others. They release the interpreter's lock, and Ctrl-C ends them;
/// after that, as after LostError and TimedOutError, only close is legal.
///
/// timeout_seconds of a verb is its deadline; 0 means 1800.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Mesh {
    pub(crate) inner: uform::Mesh,
    executor: Py<Executor>,
}

#[pymethods]
impl Mesh {
    /// Joins the processes of the run that this process belongs to.
    ///
    /// executor: what runs the calls; None makes one from the topology. options: None reads the launch environment
    /// (uform launch, torchrun); without a launcher it is a mesh of one process.
    ///
    /// Raises InvalidError for contradicting options and variables, TimedOutError naming who has not come,
    /// DisagreedError, LostError, IoError for the shared directory.
    #[classmethod]
    #[pyo3(signature = (executor, options, /), text_signature = "($cls, executor, options, /)")]
    fn bootstrap(cls: &Bound<'_, PyType>, executor: Given<'_, '_>, options: Given<'_, '_>) -> PyResult<Self> {
        let py = cls.py();
        let executor = executor
            .map(|given| {
                let reason = "must be a uform.Executor or None";
                given.cast::<Executor>().map_err(|_| invalid(py, "executor", given, reason))
            })
            .transpose()?;
        let options = options
            .map(|given| {
                let reason = "must be a uform.MeshOptions or None";
                let options =
                    given.cast::<MeshOptions>().map_err(|_| invalid(py, "options", given, reason))?;
                Ok::<_, PyErr>(options.get().to_core())
            })
            .transpose()?;
        let own = executor.map(|executor| &*executor.get().inner);
        let inner =
            blocking(py, |interrupt| uform::Mesh::bootstrap_within(own, options.as_ref(), interrupt))?;
        let executor = match executor {
            Some(executor) => executor.clone().unbind(),
            None => Py::new(py, Executor::new(inner.executor().clone()))?,
        };
        Ok(Self { inner, executor })
    }

    /// The index of this process in the run, 0 to count - 1.
    #[getter]
    fn index(&self) -> usize {
        self.inner.index()
    }

    /// How many processes the run has.
    #[getter]
    fn count(&self) -> usize {
        self.inner.count()
    }

    /// The executor that runs the calls.
    #[getter]
    fn executor(&self, py: Python<'_>) -> Py<Executor> {
        self.executor.clone_ref(py)
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Where this process stands in the mesh, a MeshDescription.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        structseq::mesh_description(py, &self.inner.describe())
    }

    /// Who is in the run and what is near what, a Topology; str() of it is a tree.
    fn topology(&self) -> Topology {
        Topology { inner: self.inner.topology().clone() }
    }

    /// Makes memory of this process that the processes of its host see; collective, sizes may differ.
    ///
    /// byte_count: bytes of this process. Verbs on arrays of an arena copy nothing on their way.
    /// Raises ExhaustedError on all processes, naming the one that could not reserve.
    #[pyo3(signature = (byte_count, /))]
    fn arena(&self, py: Python<'_>, byte_count: &Bound<'_, PyAny>) -> PyResult<Arena> {
        let byte_count = argument::count("byte_count", byte_count)?;
        let arena = within(py, None, |deadline| self.inner.arena(byte_count, deadline))?;
        Ok(Arena { inner: arena })
    }

    /// Every process gets the reduction of all.
    ///
    /// array: any shape, the same number of elements everywhere; F32, F64, I32 or I64. op: SUM, AVERAGE, MIN or MAX.
    /// out: like array; None works in place. The bits of the result are the same everywhere, and in every run.
    #[pyo3(
        signature = (array, /, op=None, *, out=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, /, op=uform.ReduceOp.SUM, *, out=None, timeout_seconds=0.0, progress=None)"
    )]
    fn all_reduce(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        op: Given<'_, '_>,
        out: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let request = Request::new(Verb::AllReduce, timeout_seconds, progress).reducing(op);
        match out {
            Some(out) => request.run(self, py, Some(array), ("out", out)),
            None => request.run(self, py, None, ("array", array)),
        }
    }

    /// The root gets the reduction of all; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, /, root=None, op=None, *, out=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, /, root=0, op=uform.ReduceOp.SUM, *, out=None, timeout_seconds=0.0, \
                          progress=None)"
    )]
    fn reduce(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        root: Given<'_, '_>,
        op: Given<'_, '_>,
        out: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, root, op, out, timeout_seconds, progress);
        self.refused(py, Verb::Reduce)
    }

    /// Every process gets the root's values.
    ///
    /// array: any shape and element type, the same number of elements everywhere. root: the index that gives.
    /// out: like array, gets the values everywhere, the root included; None works in place.
    #[pyo3(
        signature = (array, /, root=None, *, out=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, /, root=0, *, out=None, timeout_seconds=0.0, progress=None)"
    )]
    fn broadcast(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        root: Given<'_, '_>,
        out: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let request = Request::new(Verb::Broadcast, timeout_seconds, progress).rooted(root);
        match out {
            Some(out) => request.run(self, py, Some(array), ("out", out)),
            None => request.run(self, py, None, ("array", array)),
        }
    }

    /// Every process gets the values of all, one after the other, by index.
    ///
    /// array: n elements. out: n * count elements of the same type. counts: None; else not in this version.
    #[pyo3(
        signature = (array, out, /, *, counts=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, out, /, *, counts=None, timeout_seconds=0.0, progress=None)"
    )]
    fn all_gather(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        counts: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let request = Request::new(Verb::AllGather, timeout_seconds, progress).counted(counts);
        request.run(self, py, Some(array), ("out", out))
    }

    /// Every process gets its part of the reduction of all, by index.
    ///
    /// array: n * count elements. out: n elements of the same type. op: as in all_reduce. counts: None; else not in this
    /// version.
    #[pyo3(
        signature = (array, out, /, op=None, *, counts=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, out, /, op=uform.ReduceOp.SUM, *, counts=None, timeout_seconds=0.0, \
                          progress=None)"
    )]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        op: Given<'_, '_>,
        counts: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let request =
            Request::new(Verb::ReduceScatter, timeout_seconds, progress).reducing(op).counted(counts);
        request.run(self, py, Some(array), ("out", out))
    }

    /// Every process gets one part of every other; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, out, /, *, send_counts=None, receive_counts=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, out, /, *, send_counts=None, receive_counts=None, timeout_seconds=0.0, \
                          progress=None)"
    )]
    fn all_to_all(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        send_counts: Given<'_, '_>,
        receive_counts: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, out, send_counts, receive_counts, timeout_seconds, progress);
        self.refused(py, Verb::AllToAll)
    }

    /// The root gets the values of all; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, out, /, root=None, *, counts=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, out, /, root=0, *, counts=None, timeout_seconds=0.0, progress=None)"
    )]
    fn gather(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        root: Given<'_, '_>,
        counts: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, out, root, counts, timeout_seconds, progress);
        self.refused(py, Verb::Gather)
    }

    /// Every process gets its part of the root's values; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, out, /, root=None, *, counts=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, out, /, root=0, *, counts=None, timeout_seconds=0.0, progress=None)"
    )]
    fn scatter(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        root: Given<'_, '_>,
        counts: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, out, root, counts, timeout_seconds, progress);
        self.refused(py, Verb::Scatter)
    }

    /// Gives one other process an array; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, destination, /, *, tag=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, destination, /, *, tag=0, timeout_seconds=0.0, progress=None)"
    )]
    fn send(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        destination: &Bound<'_, PyAny>,
        tag: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, destination, tag, timeout_seconds, progress);
        self.refused(py, Verb::Send)
    }

    /// Takes an array from one other process; raises UnsupportedError: not in this version.
    #[pyo3(
        signature = (array, source, /, *, tag=None, timeout_seconds=None, progress=None),
        text_signature = "($self, array, source, /, *, tag=0, timeout_seconds=0.0, progress=None)"
    )]
    fn receive(
        &self,
        py: Python<'_>,
        array: &Bound<'_, PyAny>,
        source: &Bound<'_, PyAny>,
        tag: Given<'_, '_>,
        timeout_seconds: Given<'_, '_>,
        progress: Given<'_, '_>,
    ) -> PyResult<()> {
        let _ = (array, source, tag, timeout_seconds, progress);
        self.refused(py, Verb::Receive)
    }

    /// Returns when all processes have called it.
    #[pyo3(signature = (*, timeout_seconds=None), text_signature = "($self, *, timeout_seconds=0.0)")]
    fn barrier(&self, py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<()> {
        within(py, timeout_seconds, |deadline| {
            let call = Call::new(Verb::Barrier, Dtype::U8, ReduceOp::Sum, 0, None, SpanMut::empty());
            self.inner.run(call, deadline)
        })
    }

    /// Gives everybody's payload, in the order of indexes.
    ///
    /// payload: bytes of any length, which may differ between processes.
    #[pyo3(
        signature = (payload, /, *, timeout_seconds=None),
        text_signature = "($self, payload, /, *, timeout_seconds=0.0)"
    )]
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        payload: &Bound<'py, PyAny>,
        timeout_seconds: Given<'_, 'py>,
    ) -> PyResult<Bound<'py, PyList>> {
        let payload = payload
            .cast::<PyBytes>()
            .map_err(|_| invalid(py, "payload", payload, "must be bytes"))?
            .as_bytes();
        let payloads = within(py, timeout_seconds, |deadline| self.inner.exchange(payload, deadline))?;
        PyList::new(py, payloads.iter().map(|payload| PyBytes::new(py, payload)))
    }

    /// The same mesh, its verbs on that executor; raises UnsupportedError: not in this version.
    #[pyo3(signature = (executor, /))]
    fn on(&self, py: Python<'_>, executor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let _ = executor;
        Err(unsupported(py, "Mesh.on"))
    }

    /// The same verbs, each returning a Deferred; raises UnsupportedError: not in this version.
    #[pyo3(signature = (executor=None, /))]
    fn deferred(&self, py: Python<'_>, executor: Given<'_, '_>) -> PyResult<DeferredMesh> {
        let _ = executor;
        Err(unsupported(py, "Mesh.deferred"))
    }

    /// One mesh for each color; raises UnsupportedError: not in this version.
    #[pyo3(signature = (color, key=None), text_signature = "($self, color, key=0)")]
    fn split(&self, py: Python<'_>, color: &Bound<'_, PyAny>, key: Given<'_, '_>) -> PyResult<Option<Self>> {
        let _ = (color, key);
        Err(unsupported(py, "Mesh.split"))
    }

    /// A mesh of the survivors; raises UnsupportedError: not in this version.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        Err(unsupported(py, "Mesh.shrink"))
    }

    /// Leaves the run; others that call later get LostError saying so. Closing twice is harmless.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        blocking(py, |_| self.inner.close())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let _ = (kind, value, traceback);
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let closed = if self.inner.is_closed() { ", closed" } else { "" };
        format!("<uform.Mesh index {} of {}{closed}>", self.inner.index(), self.inner.count())
    }
}

impl Mesh {
    fn refused(&self, py: Python<'_>, verb: Verb) -> PyResult<()> {
        Err(unsupported(py, &format!("Mesh.{}", verb.word())))
    }
}

/// Runs `call` within the deadline of a verb, detached.
pub(crate) fn within<T: Send>(
    py: Python<'_>,
    timeout_seconds: Given<'_, '_>,
    call: impl FnOnce(&Deadline<'_>) -> uform::Result<T> + Send,
) -> PyResult<T> {
    let seconds = argument::number_or("timeout_seconds", timeout_seconds, 0.0)?;
    let deadline = uform::Mesh::verb_deadline(seconds).map_err(|error| to_python(py, &error))?;
    blocking(py, |interrupt| match interrupt {
        Some(interrupt) => call(&deadline.interruptible(interrupt)),
        None => call(&deadline),
    })
}

/// One call of a verb as Python gave it.
struct Request<'a, 'py> {
    verb: Verb,
    op: Given<'a, 'py>,
    root: Given<'a, 'py>,
    counts: Given<'a, 'py>,
    timeout_seconds: Given<'a, 'py>,
    progress: Given<'a, 'py>,
}

impl<'a, 'py> Request<'a, 'py> {
    fn new(verb: Verb, timeout_seconds: Given<'a, 'py>, progress: Given<'a, 'py>) -> Self {
        Self { verb, op: None, root: None, counts: None, timeout_seconds, progress }
    }

    fn reducing(self, op: Given<'a, 'py>) -> Self {
        Self { op, ..self }
    }

    fn rooted(self, root: Given<'a, 'py>) -> Self {
        Self { root, ..self }
    }

    fn counted(self, counts: Given<'a, 'py>) -> Self {
        Self { counts, ..self }
    }

    /// Runs it, telling the peers if this process refuses to.
    fn run(
        self,
        mesh: &Mesh,
        py: Python<'py>,
        input: Given<'_, 'py>,
        (name, output): (&str, &Bound<'py, PyAny>),
    ) -> PyResult<()> {
        let arguments = self.arguments(py, input, (name, output));
        let (op, root, input, mut output) = arguments.inspect_err(|refusal| {
            let reason = refusal.value(py).to_string();
            let error = uform::Error::invalid("arguments", self.verb.word(), "argument", reason);
            mesh.inner.refuse(self.verb, &error);
        })?;
        let (verb, dtype, output) = (self.verb, output.dtype(), output.span_mut());
        within(py, self.timeout_seconds, |deadline| {
            let input = input.as_ref().map(Buffer::span);
            mesh.inner.run(Call::new(verb, dtype, op, root, input, output), deadline)
        })
    }

    /// What the core needs of them: op, root, input and output.
    fn arguments(
        &self,
        py: Python<'py>,
        input: Given<'_, 'py>,
        (name, output): (&str, &Bound<'py, PyAny>),
    ) -> PyResult<(ReduceOp, usize, Option<Buffer>, Buffer)> {
        for (part, given) in [("counts", self.counts), ("progress", self.progress)] {
            if given.is_some() {
                return Err(unsupported(py, &format!("{part} of Mesh.{}", self.verb.word())));
            }
        }
        let op = self.op.map_or(Ok(ReduceOp::Sum), |given| ReduceOp::of_argument("op", given))?;
        let root = argument::count_or("root", self.root, 0)?;
        let output = Buffer::for_writing(name, output)?;
        let input = input.map(|given| Buffer::for_reading("array", given)).transpose()?;
        if let Some(input) = &input {
            same_dtype(py, input, (name, output.dtype()))?;
        }
        Ok((op, root, input, output))
    }
}

/// The verbs of a mesh, each returning a Deferred; not in this version.
#[pyclass(frozen, module = "uform")]
pub(crate) struct DeferredMesh;

/// A call that goes on after it was submitted; not in this version.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Deferred;

#[pymethods]
impl Deferred {
    /// Whether the call has ended.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        Err(unsupported(py, "Deferred.done"))
    }

    /// Waits for the end of the call and raises what it raised.
    #[pyo3(signature = (timeout_seconds=None), text_signature = "($self, timeout_seconds=0.0)")]
    fn wait(&self, py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<()> {
        let _ = timeout_seconds;
        Err(unsupported(py, "Deferred.wait"))
    }

    fn __await__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Err(unsupported(py, "Deferred.__await__"))
    }
}
