//! `Executor`: the threads that run the calls of one process.
#![allow(clippy::too_many_arguments, reason = "the signatures are those of the Python interface")]

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyType;
use uform::sys::{Deadline, InterruptCheck};
use uform::vocabulary::{GpuClass, Mood};
use uform::{HostOptions, VramOptions};

use crate::detached::Detached;
use crate::interrupt::blocking;
use crate::vocabulary::{Enumeration, of_optional_argument};
use crate::{argument, exit};

/// How long leaving `with` and drain wait for calls that go on: as long as a verb may last.
const WAIT: Duration = Duration::from_secs(1800);

/// The threads that run the calls of one process, one call at a time; usable in `with`, which closes it.
///
/// Made by for_ram, or by Mesh.bootstrap(None, ...) from the topology.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Executor {
    pub(crate) inner: Detached<Arc<uform::Executor>>,
}

impl Executor {
    pub(crate) fn new(inner: uform::Executor) -> Self {
        let inner = Arc::new(inner);
        exit::watch(&inner);
        Self { inner: Detached::new(inner) }
    }
}

#[pymethods]
impl Executor {
    /// An executor for host memory.
    ///
    /// threads: how many; 0 is the core budget: the cores that this process may use, within its cgroup's quota.
    /// memory_domains: the memory domains (NUMA nodes) whose cores to use; None for all that this process may use.
    /// deferred_limit: how many calls may wait behind the one that runs; one without room gets ContendedError.
    /// cpu_class: the kernels to use; None for the best that this machine runs.
    ///
    /// Raises InvalidError for what this machine does not have, UnsupportedError for a class that it cannot run.
    #[classmethod]
    #[pyo3(
        signature = (threads=None, *, memory_domains=None, deferred_limit=None, cpu_class=None),
        text_signature = "($cls, threads=0, *, memory_domains=None, deferred_limit=0, cpu_class=None)"
    )]
    fn for_ram(
        cls: &Bound<'_, PyType>,
        threads: Option<&Bound<'_, PyAny>>,
        memory_domains: Option<&Bound<'_, PyAny>>,
        deferred_limit: Option<&Bound<'_, PyAny>>,
        cpu_class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let options = host_options(threads, memory_domains, deferred_limit, cpu_class)?;
        let inner = blocking(cls.py(), |_| uform::Executor::for_ram(&options))?;
        Ok(Self::new(inner))
    }

    /// An executor on a thread pool that other code made; raises UnsupportedError: such a pool cannot be pinned, drained
    /// or closed. Use for_ram with as many threads.
    ///
    /// pool: the address of the pool.
    #[classmethod]
    #[pyo3(
        signature = (pool, /, *, memory_domains=None, deferred_limit=None, cpu_class=None),
        text_signature = "($cls, pool, /, *, memory_domains=None, deferred_limit=0, cpu_class=None)"
    )]
    fn on_pool(
        cls: &Bound<'_, PyType>,
        pool: &Bound<'_, PyAny>,
        memory_domains: Option<&Bound<'_, PyAny>>,
        deferred_limit: Option<&Bound<'_, PyAny>>,
        cpu_class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let pool = argument::count("pool", pool)?;
        host_options(None, memory_domains, deferred_limit, cpu_class)?;
        let inner = blocking(cls.py(), |_| uform::Executor::on_pool(pool))?;
        Ok(Self::new(inner))
    }

    /// An executor of one stream for each GPU, with host threads near them.
    ///
    /// devices: positions in gpu_devices(); None for all. scratch_limit: bytes that its calls may take of each, 0 for no limit.
    /// gpu_class: the class that GPU kernels dispatch as; None for that of the GPUs. The rest is as in for_ram; memory_domains
    /// None are those near the GPUs. It starts the GPUs' driver: processes forked afterwards cannot use GPUs.
    ///
    /// Raises UnsupportedError without GPUs or a driver that starts, InvalidError for a GPU that is not there or is listed
    /// twice and for a class that it cannot run, VendorError and ExhaustedError naming the GPU.
    #[classmethod]
    #[pyo3(
        signature = (
            devices=None, *, scratch_limit=None, deferred_limit=None, gpu_class=None, memory_domains=None, cpu_class=None
        ),
        text_signature = "($cls, devices=None, *, scratch_limit=0, deferred_limit=0, gpu_class=None, \
                          memory_domains=None, cpu_class=None)"
    )]
    fn for_vram(
        cls: &Bound<'_, PyType>,
        devices: Option<&Bound<'_, PyAny>>,
        scratch_limit: Option<&Bound<'_, PyAny>>,
        deferred_limit: Option<&Bound<'_, PyAny>>,
        gpu_class: Option<&Bound<'_, PyAny>>,
        memory_domains: Option<&Bound<'_, PyAny>>,
        cpu_class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let devices = devices.map(|given| argument::ordinals("devices", given)).transpose()?;
        let devices =
            devices.map(|devices| devices.iter().map(|device| *device as usize).collect::<Vec<_>>());
        let host = host_options(None, memory_domains, deferred_limit, cpu_class)?;
        let options = VramOptions {
            devices,
            scratch_limit: argument::count_or("scratch_limit", scratch_limit, 0)? as u64,
            deferred_limit: host.deferred_limit,
            gpu_class: of_optional_argument::<GpuClass>("gpu_class", gpu_class)?,
            memory_domains: host.memory_domains,
            cpu_class: host.cpu_class,
        };
        let inner = blocking(cls.py(), |interrupt| uform::Executor::for_vram_within(&options, interrupt))?;
        Ok(Self::new(inner))
    }

    /// How many threads it has, the caller's included.
    #[getter]
    fn threads(&self) -> usize {
        self.inner.threads()
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Waits for every call submitted before, deferred ones included, then sets what idle threads do.
    ///
    /// mood: Mood.PARKED (sleep) or Mood.BUSY (spin). Raises ClosedError, TimedOutError.
    #[pyo3(signature = (mood=None), text_signature = "($self, mood=uform.Mood.PARKED)")]
    fn drain(&self, py: Python<'_>, mood: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let mood = mood.map_or(Ok(Mood::Parked), |given| Mood::of_argument("mood", given))?;
        blocking(py, |interrupt| self.inner.drain(mood, &deadline(interrupt)))
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
        blocking(py, |interrupt| self.inner.finish(&deadline(interrupt)))
    }
}

fn host_options(
    threads: Option<&Bound<'_, PyAny>>,
    memory_domains: Option<&Bound<'_, PyAny>>,
    deferred_limit: Option<&Bound<'_, PyAny>>,
    cpu_class: Option<&Bound<'_, PyAny>>,
) -> PyResult<HostOptions> {
    Ok(HostOptions {
        threads: argument::count_or("threads", threads, 0)?,
        memory_domains: memory_domains
            .map(|given| argument::ordinals("memory_domains", given))
            .transpose()?,
        deferred_limit: argument::count_or("deferred_limit", deferred_limit, 0)?,
        cpu_class: of_optional_argument("cpu_class", cpu_class)?,
    })
}

fn deadline(interrupt: Option<InterruptCheck<'_>>) -> Deadline<'_> {
    let deadline = Deadline::after(WAIT);
    interrupt.map_or(deadline, |interrupt| deadline.interruptible(interrupt))
}
