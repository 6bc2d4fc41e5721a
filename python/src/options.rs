//! `MeshOptions`: what a caller may say to bootstrap.
#![allow(clippy::too_many_arguments, reason = "the signature is that of the Python interface")]

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use uform::sys::Deadline;

use crate::argument;
use crate::error::to_python;

/// What `Mesh.bootstrap` is told instead of finding it out. Immutable.
///
/// A zero or None means "find it out".
///
/// host_domain_index, host_domain_count: the index of this process and the number of processes. With a count above 0
/// both are explicit, index 0 included; with count 0 both come from the launcher.
/// gpus_per_multimem_domain: cuts the multimem domains found into groups of so many GPUs.
/// directory: the folder that all processes share; str or os.PathLike.
/// job: the name of the run in that folder.
/// timeout_seconds: the deadline of bootstrap in seconds; 0 means 300.
///
/// Raises InvalidError for an argument of the wrong type, a negative number, NaN or infinity.
#[pyclass(frozen, eq, module = "uform")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MeshOptions {
    /// The index of this process.
    #[pyo3(get)]
    host_domain_index: usize,
    /// The number of processes; 0 stands for the launcher's.
    #[pyo3(get)]
    host_domain_count: usize,
    /// GPUs in one multimem domain; 0 stands for what is found.
    #[pyo3(get)]
    gpus_per_multimem_domain: usize,
    directory: Option<PathBuf>,
    /// The name of the run; None stands for the launcher's.
    #[pyo3(get)]
    job: Option<String>,
    /// The deadline of bootstrap in seconds; 0 stands for 300.
    #[pyo3(get)]
    timeout_seconds: f64,
}

#[pymethods]
impl MeshOptions {
    #[new]
    #[pyo3(
        signature = (
            *, host_domain_index=None, host_domain_count=None, gpus_per_multimem_domain=None, directory=None, job=None,
            timeout_seconds=None
        ),
        text_signature = "(*, host_domain_index=0, host_domain_count=0, gpus_per_multimem_domain=0, directory=None, \
                          job=None, timeout_seconds=0.0)"
    )]
    fn new(
        py: Python<'_>,
        host_domain_index: Option<&Bound<'_, PyAny>>,
        host_domain_count: Option<&Bound<'_, PyAny>>,
        gpus_per_multimem_domain: Option<&Bound<'_, PyAny>>,
        directory: Option<&Bound<'_, PyAny>>,
        job: Option<&Bound<'_, PyAny>>,
        timeout_seconds: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let seconds = argument::number_or("timeout_seconds", timeout_seconds, 0.0)?;
        Deadline::after_seconds(seconds, 0.0, "timeout_seconds").map_err(|error| to_python(py, &error))?;
        let multimem = argument::count_or("gpus_per_multimem_domain", gpus_per_multimem_domain, 0)?;
        Ok(Self {
            host_domain_index: argument::count_or("host_domain_index", host_domain_index, 0)?,
            host_domain_count: argument::count_or("host_domain_count", host_domain_count, 0)?,
            gpus_per_multimem_domain: multimem,
            directory: directory.map(|given| argument::path("directory", given)).transpose()?,
            job: job.map(|given| argument::text("job", given)).transpose()?,
            timeout_seconds: seconds,
        })
    }

    /// The folder that all processes share, as str; None stands for the launcher's or a private one.
    #[getter]
    fn directory<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.directory.as_ref().map(|path| Ok(path.as_os_str().into_pyobject(py)?.into_any())).transpose()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut parts = Vec::new();
        for (name, value) in self.keywords(py)?.iter() {
            parts.push(format!("{name}={}", value.repr()?));
        }
        Ok(format!("MeshOptions({})", parts.join(", ")))
    }

    /// What pickle calls the class with.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        Ok((PyTuple::empty(py), self.keywords(py)?))
    }
}

impl MeshOptions {
    /// The options as the core takes them.
    pub(crate) fn to_core(&self) -> uform::MeshOptions {
        uform::MeshOptions {
            host_domain_index: self.host_domain_index,
            host_domain_count: self.host_domain_count,
            gpus_per_multimem_domain: self.gpus_per_multimem_domain,
            directory: self.directory.clone(),
            job: self.job.clone(),
            timeout_seconds: self.timeout_seconds,
        }
    }

    fn keywords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let keywords = PyDict::new(py);
        keywords.set_item("host_domain_index", self.host_domain_index)?;
        keywords.set_item("host_domain_count", self.host_domain_count)?;
        keywords.set_item("gpus_per_multimem_domain", self.gpus_per_multimem_domain)?;
        keywords.set_item("directory", self.directory(py)?)?;
        keywords.set_item("job", &self.job)?;
        keywords.set_item("timeout_seconds", self.timeout_seconds)?;
        Ok(keywords)
    }
}
