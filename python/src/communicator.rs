//! Communicators of mpi4py, as the core takes them.
#![allow(unsafe_code, reason = "mpi4py gives the address of its handle; the block names its fact")]

use pyo3::prelude::*;
use uform::MpiCommunicator;

use crate::error::invalid;

/// Reads the handle of a `mpi4py.MPI.Comm`.
///
/// mpi4py is asked by its own functions, so that none of its types is compiled in.
pub(crate) fn read(given: &Bound<'_, PyAny>) -> PyResult<MpiCommunicator> {
    let py = given.py();
    let refused = |_: PyErr| invalid(py, "communicator", given, "must be a mpi4py.MPI.Comm or None");
    // Not imported for an object that is none of its own: that would initialise MPI.
    let modules = py.import("sys")?.getattr("modules")?;
    let module = modules.get_item("mpi4py.MPI").map_err(refused)?;
    if !given.is_instance(&module.getattr("Comm")?)? {
        return Err(invalid(py, "communicator", given, "must be a mpi4py.MPI.Comm or None"));
    }
    let address: usize = module.getattr("_addressof")?.call1((given,))?.extract()?;
    // SAFETY: mpi4py gives the address of the handle in `given`, which lives until the call that reads it has returned. That it
    // is one of the library that this build is linked to is checked before MPI gets it.
    Ok(unsafe { MpiCommunicator::read(std::ptr::with_exposed_provenance(address)) })
}
