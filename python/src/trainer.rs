//! `Trainer`, its report of a step, and the context in which parameters are written.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyMappingProxy};
use uform::trainer::Parameter;

use crate::argument;
use crate::array::{Access, Array};
use crate::buffer::Buffer;
use crate::deferred::DeferredTrainer;
use crate::detached::Detached;
use crate::error::{chained, invalid, to_python, unsupported};
use crate::mesh::{Mesh, executor_of};
use crate::optimizer;
use crate::verb::{Given, within};

/// Data-parallel steps over a mesh: parameters shared, gradients of each process, one optimizer for the run.
///
/// mesh: borrowed; close it after the last call. parameters: names and arrays of F32 or F64, C-contiguous; names,
/// shapes and types must be the same everywhere, the values of index 0 count. optimizer: SGD or AdamW. clip_norm: the
/// norm to which all gradients together are clipped; None does not.
///
/// On a mesh whose executor is of Executor.for_vram everything lies and is computed on the GPUs: parameters and gradients are arrays
/// there, for DLPack and __cuda_array_interface__. step and edit wait for the default stream of each GPU; wait for work that
/// writes gradients on others. Of several GPUs of a process each has the parameters, and gradients of its own.
///
/// Making it, step, edit, save and load are collective: all processes call them in the same order.
/// Raises InvalidError, DisagreedError naming the parameter, ExhaustedError.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Trainer {
    inner: Detached<uform::Trainer>,
    mesh: Py<Mesh>,
    parameters: Py<PyMappingProxy>,
    /// `None` on several GPUs, each of which has its own.
    gradients: Option<Py<PyMappingProxy>>,
}

#[pymethods]
impl Trainer {
    #[new]
    #[pyo3(signature = (mesh, parameters, optimizer, *, clip_norm=None))]
    fn new(
        py: Python<'_>,
        mesh: &Bound<'_, PyAny>,
        parameters: &Bound<'_, PyAny>,
        optimizer: &Bound<'_, PyAny>,
        clip_norm: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mesh = mesh.cast::<Mesh>().map_err(|_| invalid(py, "mesh", mesh, "must be a uform.Mesh"))?;
        let core = &*mesh.get().inner;
        let arrays = arrays_of(parameters)?;
        let optimizer = optimizer::of_argument(optimizer)?;
        let clip_norm = clip_norm.map(|given| argument::number("clip_norm", given)).transpose()?;
        let trainer = within(py, None, |deadline| {
            let parameters = arrays
                .iter()
                .map(|(name, array)| Parameter {
                    name: name.clone(),
                    shape: array.shape().to_vec(),
                    dtype: array.dtype(),
                    values: Some(array.span()),
                })
                .collect::<Vec<_>>();
            uform::Trainer::open(core, &parameters, optimizer, clip_norm, deadline)
        })?;
        let parameters = mapping(py, &trainer, |name| Array::over_parameter(trainer.parameter(name)?))?;
        let gradients = match trainer.device_count() {
            2.. => None,
            _ => {
                Some(mapping(py, &trainer, |name| Array::over_view(trainer.gradient(name)?, Access::Write))?)
            }
        };
        let inner = Detached::new(trainer);
        Ok(Self { inner, mesh: mesh.clone().unbind(), parameters, gradients })
    }

    /// The parameters by name: Arrays that share the trainer's memory, read-only; step changes them in place.
    ///
    /// On several GPUs they are those of the first one.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> Py<PyMappingProxy> {
        self.parameters.clone_ref(py)
    }

    /// This process's gradients by name: writable Arrays that share the trainer's memory, zero at first.
    ///
    /// Write all of them before each step, which leaves them as they are. Raises InvalidError on several GPUs, each of which has
    /// gradients of its own: see gradients_on.
    #[getter]
    fn gradients(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        match &self.gradients {
            Some(gradients) => Ok(gradients.clone_ref(py)),
            // The core says why not.
            None => {
                mapping(py, &self.inner, |name| Array::over_view(self.inner.gradient(name)?, Access::Write))
            }
        }
    }

    /// The parameters on the GPU at a position of the executor's; 0 for host memory.
    #[pyo3(signature = (device, /))]
    fn parameters_on(&self, py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Py<PyMappingProxy>> {
        let device = argument::count("device", device)?;
        mapping(py, &self.inner, |name| Array::over_parameter(self.inner.parameter_on(name, device)?))
    }

    /// This process's gradients on the GPU at a position of the executor's; 0 for host memory.
    ///
    /// The process's gradient is the mean of those of its GPUs, and its weight in step is that of the mean.
    #[pyo3(signature = (device, /))]
    fn gradients_on(&self, py: Python<'_>, device: &Bound<'_, PyAny>) -> PyResult<Py<PyMappingProxy>> {
        let device = argument::count("device", device)?;
        mapping(py, &self.inner, |name| {
            Array::over_view(self.inner.gradient_on(name, device)?, Access::Write)
        })
    }

    /// Lets the reduction of a finished gradient start; raises UnsupportedError: not in this version.
    fn ready(&self, py: Python<'_>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let _ = name;
        Err(unsupported(py, "Trainer.ready"))
    }

    /// Updates all parameters with the weighted mean of everybody's gradients, and returns a StepReport; collective.
    ///
    /// weight: usually the number of samples that this process's gradients are the mean of. The gradients of a process
    /// with weight 0 are not read. If a gradient is not finite, all processes skip the update and report it.
    ///
    /// Raises InvalidError for a weight that is negative or not finite, or if all are 0.
    #[pyo3(signature = (*, weight=None), text_signature = "($self, *, weight=1.0)")]
    fn step(&self, py: Python<'_>, weight: Option<&Bound<'_, PyAny>>) -> PyResult<StepReport> {
        let weight = argument::number_or("weight", weight, 1.0)?;
        let inner = within(py, None, |deadline| self.inner.step(weight, deadline))?;
        Ok(StepReport { inner })
    }

    /// A collective context in which parameters are written: `with trainer.edit() as parameters`.
    ///
    /// It gives writable Arrays by name. Every process enters and leaves it; what index 0 wrote holds for all, what
    /// others wrote does not. Do not write through views of these Arrays afterwards.
    #[pyo3(signature = ())]
    fn edit(slf: Bound<'_, Self>) -> Edit {
        Edit { trainer: slf.unbind(), open: Arc::new(AtomicBool::new(false)) }
    }

    /// Writes parameters and optimizer state as one step of a directory that all processes see; collective.
    ///
    /// step: the number of the step, which load gives back. The step is there when save returns, and not at all if
    /// any process died or failed before. Any number of processes can load it.
    ///
    /// Raises IoError, ExhaustedError; InvalidError for a directory that holds something else.
    #[pyo3(signature = (directory, *, step))]
    fn save(&self, py: Python<'_>, directory: &Bound<'_, PyAny>, step: &Bound<'_, PyAny>) -> PyResult<()> {
        let directory = argument::path("directory", directory)?;
        let step = argument::count("step", step)? as u64;
        within(py, None, |deadline| self.inner.save(&directory, step, deadline))
    }

    /// Reads the newest step of a directory and returns its number; collective.
    ///
    /// Raises IoError if there is none, CorruptError for damaged files, DisagreedError for other parameters.
    #[pyo3(signature = (directory))]
    fn load(&self, py: Python<'_>, directory: &Bound<'_, PyAny>) -> PyResult<u64> {
        let directory = argument::path("directory", directory)?;
        within(py, None, |deadline| self.inner.load(&directory, deadline))
    }

    /// The same trainer, its calls on that executor.
    #[pyo3(signature = (executor, /))]
    fn on(&self, py: Python<'_>, executor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let core = executor_of(executor)?;
        Ok(Self {
            inner: Detached::new(self.inner.on(&core.get().inner)),
            mesh: Py::new(py, self.mesh.get().on(executor)?)?,
            parameters: self.parameters.clone_ref(py),
            gradients: self.gradients.as_ref().map(|gradients| gradients.clone_ref(py)),
        })
    }

    /// The calls step, save and load, each returning a Deferred, on that executor; None stands for the one of the mesh.
    #[pyo3(signature = (executor=None, /))]
    fn deferred(&self, py: Python<'_>, executor: Given<'_, '_>) -> PyResult<DeferredTrainer> {
        let executor = match executor {
            Some(executor) => executor_of(executor)?.clone().unbind(),
            None => self.mesh.get().executor(py),
        };
        Ok(DeferredTrainer::new(self.inner.deferred(Some(&executor.get().inner)), executor))
    }
}

/// The names and arrays that a caller gave.
fn arrays_of(parameters: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Buffer)>> {
    let reason = "must be a mapping of names to arrays";
    let py = parameters.py();
    let refuse = || invalid(py, "parameters", parameters, reason);
    let mut arrays = Vec::new();
    let items = parameters.cast::<PyMapping>().map_err(|_| refuse())?.items();
    for item in items.map_err(|cause| chained(py, refuse(), cause))?.iter() {
        let (name, array) = item.extract::<(String, Bound<'_, PyAny>)>().map_err(|_| refuse())?;
        let buffer = Buffer::contiguous(&format!("parameter {name:?}"), &array)?;
        arrays.push((name, buffer));
    }
    Ok(arrays)
}

/// A read-only mapping of the trainer's names to arrays, in the order in which they were given.
fn mapping(
    py: Python<'_>,
    trainer: &uform::Trainer,
    array: impl Fn(&str) -> uform::Result<Array>,
) -> PyResult<Py<PyMappingProxy>> {
    let arrays = PyDict::new(py);
    for name in trainer.names() {
        arrays.set_item(name, Py::new(py, array(name).map_err(|error| to_python(py, &error))?)?)?;
    }
    Ok(PyMappingProxy::new(py, arrays.as_mapping()).unbind())
}

/// The context of Trainer.edit.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Edit {
    trainer: Py<Trainer>,
    open: Arc<AtomicBool>,
}

#[pymethods]
impl Edit {
    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyMappingProxy>> {
        let trainer = &self.trainer.get().inner;
        within(py, None, |deadline| trainer.begin_edit(deadline))?;
        self.open.store(true, Ordering::Release);
        mapping(py, trainer, |name| {
            Array::over_view(trainer.editable(name)?, Access::WriteWhile(Arc::clone(&self.open)))
        })
    }

    #[pyo3(signature = (kind, value, traceback, /))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        // Also after an exception: the others wait for the end.
        let _ = (kind, value, traceback);
        self.open.store(false, Ordering::Release);
        within(py, None, |deadline| self.trainer.get().inner.end_edit(deadline))
    }
}

/// What one step did; the same on every process, except the times.
#[pyclass(frozen, module = "uform")]
pub(crate) struct StepReport {
    pub(crate) inner: uform::trainer::StepReport,
}

#[pymethods]
impl StepReport {
    /// How many updates the parameters have seen, this one included.
    #[getter]
    fn step(&self) -> u64 {
        self.inner.step
    }

    /// The norm of the mean gradient before clipping; None without clipping.
    #[getter]
    fn gradient_norm(&self) -> Option<f64> {
        self.inner.gradient_norm
    }

    /// The sum of everybody's weights.
    #[getter]
    fn weight(&self) -> f64 {
        self.inner.weight
    }

    /// Whether nothing was updated, since a gradient was not finite.
    #[getter]
    fn skipped(&self) -> bool {
        self.inner.skipped
    }

    /// The seconds in which this process waited for the others.
    #[getter]
    fn communication_seconds(&self) -> f64 {
        self.inner.communication_seconds
    }

    /// The seconds of the whole call.
    #[getter]
    fn seconds(&self) -> f64 {
        self.inner.seconds
    }

    fn __repr__(&self) -> String {
        let norm = self.inner.gradient_norm.map_or_else(|| "None".to_owned(), |norm| format!("{norm:?}"));
        let skipped = if self.inner.skipped { "True" } else { "False" };
        format!(
            "<uform.StepReport step={}, gradient_norm={norm}, weight={:?}, skipped={skipped}, \
             communication_seconds={:.6}, seconds={:.6}>",
            self.inner.step, self.inner.weight, self.inner.communication_seconds, self.inner.seconds
        )
    }
}
