//! `Mesh`: how processes join, and the verbs that end before they return.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyType};
use uform::communicator::Call;
use uform::sys::SpanMut;
use uform::vocabulary::{MeshDomain, ReduceOp, Verb};

use crate::arena::Arena;
use crate::argument;
use crate::communicator;
use crate::deferred::DeferredMesh;
use crate::detached::Detached;
use crate::error::invalid;
use crate::executor::Executor;
use crate::interrupt::blocking;
use crate::options::MeshOptions;
use crate::stacks;
use crate::structseq;
use crate::topology::Topology;
use crate::verb::{Given, Request, verbs, within};
use crate::vocabulary::Enumeration;

/// The processes of a run, joined; usable in `with`, which closes it.
///
/// Its verbs are collective: all processes call the same ones in the same order. They work in place unless out is
/// given, on arrays of host memory that have the buffer protocol, __array_interface__ or __dlpack__: those of NumPy,
/// bfloat16 of ml_dtypes included, tensors of torch, a uform.Array and others; or, all of a call, on arrays of the GPU of the
/// executor that have __dlpack__ or __cuda_array_interface__. Arrays may have any strides; those that are
/// not C-contiguous are copied, and refused on a GPU. array and out may be the same memory or apart, and nothing between. Verbs release the
/// interpreter's lock, and Ctrl-C ends them; after that, as after LostError and TimedOutError, only close is legal.
///
/// timeout_seconds of a verb is its deadline; 0 means 1800. progress is called with (done, total) in bytes, at most 20
/// times a second and a last time at the end, on threads of the executor. An exception in it ends its calls and is raised
/// when the verb has ended; calls that need the same executor raise ContendedError in it.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Mesh {
    pub(crate) inner: Detached<uform::Mesh>,
    executor: Py<Executor>,
}

verbs!(Mesh -> ());

#[pymethods]
impl Mesh {
    /// Joins the processes of the run that this process belongs to.
    ///
    /// executor: what runs the calls; None makes one from the topology. options: None reads the launch environment
    /// (uform launch, torchrun, mpirun, srun and others); without a launcher it is a mesh of one process.
    ///
    /// Raises InvalidError for contradicting options and variables, TimedOutError naming who has not come,
    /// DisagreedError, LostError, IoError for the shared directory.
    #[classmethod]
    #[pyo3(signature = (executor, options, /), text_signature = "($cls, executor, options, /)")]
    fn bootstrap(cls: &Bound<'_, PyType>, executor: Given<'_, '_>, options: Given<'_, '_>) -> PyResult<Self> {
        join(cls.py(), executor, options, |own, options, interrupt| {
            uform::Mesh::bootstrap_within(own, options, interrupt)
        })
    }

    /// Joins the processes of an MPI communicator; the index of each is its rank.
    ///
    /// communicator: one of mpi4py, or None for MPI_COMM_WORLD. bootstrap does so by itself under the mpirun of the library
    /// that this build is linked to, if nobody names a directory. MPI is started if it does not run, and finalised at the end
    /// of the process; one that mpi4py has started is left to mpi4py.
    ///
    /// Raises UnsupportedError in a build without MPI and for a thread level below MPI_THREAD_SERIALIZED, InvalidError for
    /// another MPI library in this process and for a launcher that says another number than MPI, and what bootstrap raises.
    #[classmethod]
    #[pyo3(
        signature = (executor, options, communicator=None, /),
        text_signature = "($cls, executor, options, communicator=None, /)"
    )]
    fn bootstrap_over_mpi(
        cls: &Bound<'_, PyType>,
        executor: Given<'_, '_>,
        options: Given<'_, '_>,
        communicator: Given<'_, '_>,
    ) -> PyResult<Self> {
        let communicator = communicator.map(communicator::read).transpose()?;
        join(cls.py(), executor, options, |own, options, interrupt| {
            uform::Mesh::bootstrap_over_mpi(own, options, communicator, interrupt)
        })
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
    pub(crate) fn executor(&self, py: Python<'_>) -> Py<Executor> {
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

    /// Returns when all processes have called it.
    #[pyo3(signature = (*, timeout_seconds=None), text_signature = "($self, *, timeout_seconds=0.0)")]
    fn barrier(&self, py: Python<'_>, timeout_seconds: Given<'_, '_>) -> PyResult<()> {
        within(py, timeout_seconds, |deadline| {
            let call = Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty());
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

    /// The same mesh, its verbs on that executor: one order of calls, and closing one closes the other.
    #[pyo3(signature = (executor, /))]
    pub(crate) fn on(&self, executor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let executor = executor_of(executor)?;
        Ok(Self {
            inner: Detached::new(self.inner.on(&executor.get().inner)),
            executor: executor.clone().unbind(),
        })
    }

    /// The same verbs, each returning a Deferred, on that executor; None stands for the one of this mesh.
    #[pyo3(signature = (executor=None, /))]
    fn deferred(&self, py: Python<'_>, executor: Given<'_, '_>) -> PyResult<DeferredMesh> {
        let executor = executor.map(executor_of).transpose()?;
        let core = executor.map(|executor| &**executor.get().inner);
        let executor =
            executor.map_or_else(|| self.executor.clone_ref(py), |executor| executor.clone().unbind());
        Ok(DeferredMesh::new(self.inner.deferred(core), executor))
    }

    /// One mesh for the processes of each color, in the order of their keys and then of their indexes; all call it.
    ///
    /// color: an integer of 0 or more, or None, which joins none and gives None. The new mesh uses the executor of this one,
    /// and either may be closed first.
    #[pyo3(signature = (color, key=None), text_signature = "($self, color, key=0)")]
    fn split(&self, py: Python<'_>, color: &Bound<'_, PyAny>, key: Given<'_, '_>) -> PyResult<Option<Self>> {
        let color = if color.is_none() { None } else { Some(argument::color("color", color)?) };
        let key = key.map_or(Ok(0), |key| argument::key("key", key))?;
        let part = within(py, None, |deadline| self.inner.split_within(color, key, deadline))?;
        Ok(part.map(|part| self.beside(py, part)))
    }

    /// The mesh of the processes that are in the same domain as this one, in the order of indexes; all call it.
    #[pyo3(signature = (domain, /))]
    fn domain(&self, py: Python<'_>, domain: &Bound<'_, PyAny>) -> PyResult<Self> {
        let domain = MeshDomain::of_argument("domain", domain)?;
        let part = within(py, None, |deadline| self.inner.domain_within(domain, deadline))?;
        Ok(self.beside(py, part))
    }

    /// A mesh of the members that are left after a call raised LostError or TimedOutError, in the order of indexes.
    ///
    /// All that are left call it. More than half of the members go on, or exactly half with index 0; the others get
    /// ClosedError. This mesh is closed, its arenas and trainers with it.
    fn shrink(&self, py: Python<'_>) -> PyResult<Self> {
        let survivors = within(py, None, |deadline| self.inner.shrink_within(deadline))?;
        Ok(self.beside(py, survivors))
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
    /// A mesh on the executor of this one.
    fn beside(&self, py: Python<'_>, inner: uform::Mesh) -> Self {
        Self { inner: Detached::new(inner), executor: self.executor.clone_ref(py) }
    }

    fn carry(&self, py: Python<'_>, request: Request<'_, '_>) -> PyResult<()> {
        request.run(py, &self.inner)
    }
}

/// Makes a mesh by one of the ways of the core.
fn join(
    py: Python<'_>,
    executor: Given<'_, '_>,
    options: Given<'_, '_>,
    way: impl FnOnce(
        Option<&uform::Executor>,
        Option<&uform::MeshOptions>,
        Option<uform::InterruptCheck<'_>>,
    ) -> uform::Result<uform::Mesh>
    + Send,
) -> PyResult<Mesh> {
    let executor = executor.map(executor_of).transpose()?;
    let options = options
        .map(|given| {
            let reason = "must be a uform.MeshOptions or None";
            let options = given.cast::<MeshOptions>().map_err(|_| invalid(py, "options", given, reason))?;
            Ok::<_, PyErr>(options.get().to_core())
        })
        .transpose()?;
    let own = executor.map(|executor| &**executor.get().inner);
    let inner = blocking(py, |interrupt| way(own, options.as_ref(), interrupt))?;
    stacks::give(py, &inner);
    let executor = match executor {
        Some(executor) => executor.clone().unbind(),
        None => Py::new(py, Executor::new(inner.executor().clone()))?,
    };
    Ok(Mesh { inner: Detached::new(inner), executor })
}

/// The executor that a caller gave.
pub(crate) fn executor_of<'a, 'py>(given: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, Executor>> {
    given.cast::<Executor>().map_err(|_| invalid(given.py(), "executor", given, "must be a uform.Executor"))
}
