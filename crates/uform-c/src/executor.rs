//! Executors: what runs the calls of one process.

use std::ffi::{c_int, c_void};

use uform::error::{Error, Result};
use uform::vocabulary::{CpuClass, GpuClass, Mood};

use crate::argument::{self, Out};
use crate::call::Calling;
use crate::handle::{self, Executor, Handled};
use crate::structure::{CallOptions, HostOptions, VramOptions};
use crate::{verbs, versioned};

/// An executor as C holds it.
pub(crate) struct Held {
    pub(crate) inner: uform::Executor,
    /// Whether freeing the handle closes the executor: not for one that a mesh lent.
    closes: bool,
}

impl Handled for Held {
    type Handle = Executor;
    const NOUN: &'static str = "executor";
}

impl Held {
    /// A mesh's executor, lent.
    pub(crate) fn lent(inner: uform::Executor) -> Self {
        Self { inner, closes: false }
    }

    fn made(inner: uform::Executor) -> Self {
        Self { inner, closes: true }
    }
}

verbs! {
    /// Makes an executor of host threads.
    fn uform_executor_for_ram(options: *const HostOptions, executor: *mut *mut Executor) {
        let executor = Out::handle(executor, "executor")?;
        let options = host_options(options)?;
        executor.put(handle::give(Held::made(uform::Executor::for_ram(&options)?)));
        Ok(())
    }

    /// Makes an executor on a pool of the caller's.
    fn uform_executor_on_pool(pool: *mut c_void, options: *const HostOptions, executor: *mut *mut Executor) {
        let executor = Out::handle(executor, "executor")?;
        host_options(options)?;
        executor.put(handle::give(Held::made(uform::Executor::on_pool(pool.addr())?)));
        Ok(())
    }

    /// Makes an executor of one stream per GPU.
    fn uform_executor_for_vram(options: *const VramOptions, executor: *mut *mut Executor) {
        let executor = Out::handle(executor, "executor")?;
        let options = versioned::read_or_default(options, "options")?;
        let memory_domains =
            argument::numbers("memory_domains", options.memory_domains, options.memory_domain_count)?;
        let options = uform::VramOptions {
            devices: argument::numbers("devices", options.devices, options.device_count)?,
            scratch_limit: options.scratch_limit,
            deferred_limit: options.deferred_limit,
            gpu_class: argument::optional_number("gpu_class", options.gpu_class, GpuClass::from_number)?,
            memory_domains,
            cpu_class: argument::optional_number("cpu_class", options.cpu_class, CpuClass::from_number)?,
        };
        executor.put(handle::give(Held::made(uform::Executor::for_vram(&options)?)));
        Ok(())
    }

    /// How many threads it has.
    fn uform_executor_threads(executor: *const Executor, threads: *mut usize) {
        let threads = Out::new(threads, "threads")?;
        threads.put(handle::get::<Held>(executor)?.inner.threads());
        Ok(())
    }

    /// The class that kernels dispatch as on it.
    fn uform_executor_cpu_class(executor: *const Executor, cpu_class: *mut c_int) {
        let cpu_class = Out::new(cpu_class, "cpu_class")?;
        cpu_class.put(handle::get::<Held>(executor)?.inner.cpu_class().number());
        Ok(())
    }

    /// How many deferred calls may wait behind the one that holds it.
    fn uform_executor_deferred_limit(executor: *const Executor, deferred_limit: *mut usize) {
        let deferred_limit = Out::new(deferred_limit, "deferred_limit")?;
        deferred_limit.put(handle::get::<Held>(executor)?.inner.deferred_limit());
        Ok(())
    }

    /// What its idle threads do.
    fn uform_executor_mood(executor: *const Executor, mood: *mut c_int) {
        let mood = Out::new(mood, "mood")?;
        mood.put(handle::get::<Held>(executor)?.inner.mood().number());
        Ok(())
    }

    /// Whether it is closed.
    fn uform_executor_is_closed(executor: *const Executor, is_closed: *mut c_int) {
        let is_closed = Out::new(is_closed, "is_closed")?;
        is_closed.put(c_int::from(handle::get::<Held>(executor)?.inner.is_closed()));
        Ok(())
    }

    /// Waits for its calls, then sets what idle threads do.
    fn uform_executor_drain(executor: *const Executor, mood: c_int, options: *const CallOptions) {
        let executor = handle::get::<Held>(executor)?;
        let mood = argument::number("mood", mood, Mood::from_number)?;
        Calling::read(options)?
            .blocking("executor.drain")?
            .run(|deadline| executor.inner.drain(mood, deadline))
    }

    /// Waits for its calls and ends its threads.
    fn uform_executor_close(executor: *const Executor, options: *const CallOptions) {
        let executor = handle::get::<Held>(executor)?;
        Calling::read(options)?.blocking("executor.close")?.run(|deadline| executor.inner.close(deadline))
    }

    /// Closes an executor that was made and releases the handle.
    fn uform_executor_free(executor: *mut Executor) {
        match handle::take::<Held>(executor)? {
            Some(executor) if executor.closes => {
                let deadline = uform::Mesh::verb_deadline(0.0)?;
                executor.inner.finish(&deadline)
            }
            _ => Ok(()),
        }
    }
}

/// Reads what a caller asks of host threads.
///
/// # Safety
/// `options` is null or valid for reads of its `struct_size`; what it points to is valid until the call returns.
unsafe fn host_options(options: *const HostOptions) -> Result<uform::HostOptions> {
    // SAFETY: the caller of this function keeps the same promise.
    let options = unsafe { versioned::read_or_default(options, "options") }?;
    if options.reserved != 0 {
        return Err(Error::invalid("reserved", options.reserved, "argument", "must be 0"));
    }
    // SAFETY: as above.
    let memory_domains =
        unsafe { argument::numbers("memory_domains", options.memory_domains, options.memory_domain_count) }?;
    Ok(uform::HostOptions {
        threads: options.threads,
        memory_domains,
        deferred_limit: options.deferred_limit,
        cpu_class: argument::optional_number("cpu_class", options.cpu_class, CpuClass::from_number)?,
    })
}
