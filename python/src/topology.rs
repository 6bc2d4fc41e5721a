//! `Topology`, and what this machine and build can do.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::to_python;
use crate::structseq;

/// Who is in a run and what is near what; str() gives a tree for people.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Topology {
    pub(crate) inner: uform::topology::Topology,
}

#[pymethods]
impl Topology {
    /// The whole topology as JSON text.
    fn to_json(&self) -> String {
        self.inner.to_json()
    }

    fn __str__(&self) -> String {
        self.inner.to_string().trim_end().to_owned()
    }

    fn __repr__(&self) -> String {
        format!("<uform.Topology\n{}>", self.__str__())
    }
}

/// The GPUs that this process sees, a tuple of GPUDevice; a GPU's ordinal is its position here.
///
/// NVIDIA devices come first, then AMD, each in its vendor's order. It initialises no GPU runtime: forking afterwards
/// is safe.
#[pyfunction]
#[pyo3(signature = ())]
pub(crate) fn gpu_devices(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let devices = uform::device::gpu_devices().map_err(|error| to_python(py, &error))?;
    let devices =
        devices.iter().map(|device| structseq::gpu_device(py, device)).collect::<PyResult<Vec<_>>>()?;
    PyTuple::new(py, devices)
}

/// What was compiled into this build: CPU classes, GPU runtimes and engines, words in a fixed order.
#[pyfunction]
#[pyo3(signature = ())]
pub(crate) fn capabilities_compiled() -> String {
    uform::device::capabilities_compiled()
}

/// What of it this machine has, words in a fixed order, with a version after a dash where one is known.
#[pyfunction]
#[pyo3(signature = ())]
pub(crate) fn capabilities_available(py: Python<'_>) -> PyResult<String> {
    uform::device::capabilities_available().map_err(|error| to_python(py, &error))
}
