//! The mesh: joining a run, looking at it, leaving it.

use std::ffi::{c_char, c_int, c_void};

use uform::error::Result;
use uform::vocabulary::MeshDomain;

use crate::argument::{self, Out};
use crate::call::{Calling, with_interrupt};
use crate::handle::{self, Executor, Handled, Mesh};
use crate::structure::{CallOptions, MeshDescription, MeshOptions};
use crate::versioned::Place;
use crate::{device, executor, text, verbs, versioned};

/// A mesh as C holds it.
pub(crate) struct Held {
    pub(crate) inner: uform::Mesh,
    /// Whether freeing the handle leaves the run: not for the same mesh on another executor.
    closes: bool,
}

impl Handled for Held {
    type Handle = Mesh;
    const NOUN: &'static str = "mesh";
}

verbs! {
    /// Joins the run that the options or the launcher describe.
    fn uform_mesh_bootstrap(executor: *const Executor, options: *const MeshOptions, mesh: *mut *mut Mesh) {
        join(executor, options, mesh, |executor, options, interrupt| {
            uform::Mesh::bootstrap_within(executor, options, interrupt)
        })
    }

    /// Joins the processes of an MPI communicator.
    fn uform_mesh_bootstrap_over_mpi(
        executor: *const Executor,
        options: *const MeshOptions,
        communicator: *const c_void,
        mesh: *mut *mut Mesh,
    ) {
        let given = if communicator.is_null() { None } else { Some(uform::MpiCommunicator::read(communicator)) };
        join(executor, options, mesh, |executor, options, interrupt| {
            uform::Mesh::bootstrap_over_mpi(executor, options, given, interrupt)
        })
    }

    /// The index of this process in the run.
    fn uform_mesh_index(mesh: *const Mesh, index: *mut usize) {
        let index = Out::new(index, "index")?;
        index.put(handle::get::<Held>(mesh)?.inner.index());
        Ok(())
    }

    /// How many processes the run has.
    fn uform_mesh_count(mesh: *const Mesh, count: *mut usize) {
        let count = Out::new(count, "count")?;
        count.put(handle::get::<Held>(mesh)?.inner.count());
        Ok(())
    }

    /// Whether the mesh is closed here.
    fn uform_mesh_is_closed(mesh: *const Mesh, is_closed: *mut c_int) {
        let is_closed = Out::new(is_closed, "is_closed")?;
        is_closed.put(c_int::from(handle::get::<Held>(mesh)?.inner.is_closed()));
        Ok(())
    }

    /// The executor that runs the mesh's calls.
    fn uform_mesh_executor(mesh: *const Mesh, executor: *mut *mut Executor) {
        let executor = Out::handle(executor, "executor")?;
        let lent = handle::get::<Held>(mesh)?.inner.executor().clone();
        executor.put(handle::give(executor::Held::lent(lent)));
        Ok(())
    }

    /// What this process may know of its place.
    fn uform_mesh_describe(mesh: *const Mesh, description: *mut MeshDescription) {
        let place = Place::new(description, "description")?;
        let found = handle::get::<Held>(mesh)?.inner.describe();
        place.put(&MeshDescription {
            gpus_per_host_domain: found.gpus_per_host_domain,
            gpus_per_multimem_domain: found.gpus_per_multimem_domain,
            gpus_per_colocated_domain: found.gpus_per_colocated_domain,
            host_domain_index: found.host_domain_index,
            first_gpu_index: found.first_gpu_index,
            multimem_tier: found.multimem_tier.number(),
            gpu_class: device::class_number(found.gpu_class),
            ..MeshDescription::default()
        });
        Ok(())
    }

    /// Copies the topology as a tree for people.
    fn uform_mesh_topology(mesh: *const Mesh, text: *mut c_char, capacity: usize, length: *mut usize) {
        let tree = handle::get::<Held>(mesh)?.inner.topology().to_string();
        text::give(tree.trim_end(), text, capacity, length)
    }

    /// Copies the topology as JSON.
    fn uform_mesh_topology_json(mesh: *const Mesh, text: *mut c_char, capacity: usize, length: *mut usize) {
        text::give(&handle::get::<Held>(mesh)?.inner.topology().to_json(), text, capacity, length)
    }

    /// The same mesh with its verbs on another executor.
    fn uform_mesh_on(mesh: *const Mesh, executor: *const Executor, other: *mut *mut Mesh) {
        let other = Out::handle(other, "other")?;
        let mesh = handle::get::<Held>(mesh)?;
        let inner = mesh.inner.on(&handle::get::<executor::Held>(executor)?.inner);
        other.put(handle::give(Held { inner, closes: false }));
        Ok(())
    }

    /// A mesh for the members of each color.
    fn uform_mesh_split(
        mesh: *const Mesh,
        color: *const u64,
        key: i64,
        options: *const CallOptions,
        part: *mut *mut Mesh,
    ) {
        let part = Out::handle(part, "part")?;
        let mesh = handle::get::<Held>(mesh)?;
        let color = if color.is_null() { None } else { Some(color.read_unaligned()) };
        let split = Calling::read(options)?.blocking("split")?.run(|deadline| mesh.inner.split_within(color, key, deadline))?;
        if let Some(inner) = split {
            part.put(handle::give(Held { inner, closes: true }));
        }
        Ok(())
    }

    /// A mesh of the members of this one's domain.
    fn uform_mesh_domain(mesh: *const Mesh, domain: c_int, options: *const CallOptions, part: *mut *mut Mesh) {
        let part = Out::handle(part, "part")?;
        let domain = argument::number("domain", domain, MeshDomain::from_number)?;
        let mesh = handle::get::<Held>(mesh)?;
        let calling = Calling::read(options)?.blocking("domain")?;
        let inner = calling.run(|deadline| mesh.inner.domain_within(domain, deadline))?;
        part.put(handle::give(Held { inner, closes: true }));
        Ok(())
    }

    /// A mesh of the members that are left.
    fn uform_mesh_shrink(mesh: *const Mesh, options: *const CallOptions, survivors: *mut *mut Mesh) {
        let survivors = Out::handle(survivors, "survivors")?;
        let mesh = handle::get::<Held>(mesh)?;
        let calling = Calling::read(options)?.blocking("shrink")?;
        let inner = calling.run(|deadline| mesh.inner.shrink_within(deadline))?;
        survivors.put(handle::give(Held { inner, closes: true }));
        Ok(())
    }

    /// Leaves the run.
    fn uform_mesh_close(mesh: *const Mesh) {
        handle::get::<Held>(mesh)?.inner.close()
    }

    /// Leaves the run and releases the handle.
    fn uform_mesh_free(mesh: *mut Mesh) {
        match handle::take::<Held>(mesh)? {
            Some(mesh) if mesh.closes => mesh.inner.close(),
            _ => Ok(()),
        }
    }
}

/// Makes a mesh by one of the ways of the core.
///
/// # Safety
/// As for the verbs that call it: `options` and `mesh` are null or valid, with all that the options point to.
unsafe fn join(
    executor: *const Executor,
    options: *const MeshOptions,
    mesh: *mut *mut Mesh,
    way: impl FnOnce(
        Option<&uform::Executor>,
        Option<&uform::MeshOptions>,
        Option<uform::InterruptCheck<'_>>,
    ) -> Result<uform::Mesh>,
) -> Result<()> {
    // SAFETY: the caller of this function keeps the same promises.
    let (mesh, given, options) = unsafe {
        let mesh = Out::handle(mesh, "mesh")?;
        let given = if options.is_null() { None } else { Some(versioned::read(options, "options")?) };
        let options = given.map(|given| mesh_options(&given)).transpose()?;
        (mesh, given.unwrap_or_default(), options)
    };
    let executor = if executor.is_null() { None } else { Some(handle::get::<executor::Held>(executor)?) };
    let executor = executor.as_ref().map(|executor| &executor.inner);
    let inner = with_interrupt(given.interrupt, given.interrupt_user, |interrupt| {
        way(executor, options.as_ref(), interrupt)
    })?;
    mesh.put(handle::give(Held { inner, closes: true }));
    Ok(())
}

/// What the caller says about the run, as the core takes it.
///
/// # Safety
/// Its texts are null, or zero-ended and valid until the call returns.
unsafe fn mesh_options(given: &MeshOptions) -> Result<uform::MeshOptions> {
    // SAFETY: the caller of this function keeps the same promise.
    let (directory, job) =
        unsafe { (argument::optional_path(given.directory), argument::optional_text("job", given.job)?) };
    Ok(uform::MeshOptions {
        host_domain_index: given.host_domain_index,
        host_domain_count: given.host_domain_count,
        gpus_per_multimem_domain: given.gpus_per_multimem_domain,
        directory,
        job: job.map(str::to_owned),
        timeout_seconds: given.timeout_seconds,
    })
}
