//! The Python extension module `uform._uform`: it translates arguments, results and errors, and decides nothing.

mod arena;
mod argument;
mod array;
mod buffer;
mod command;
mod communicator;
mod deferred;
mod detached;
mod dlpack;
mod error;
mod executor;
mod exit;
mod interface;
mod interrupt;
mod library;
mod mesh;
mod optimizer;
mod options;
mod progress;
mod report;
mod shape;
mod site;
mod stacks;
mod structseq;
mod topology;
mod trainer;
mod verb;
mod vocabulary;

use pyo3::prelude::*;

#[pymodule]
fn _uform(module: &Bound<'_, PyModule>) -> PyResult<()> {
    report::start(module.py())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    library::register(module)?;
    exit::register(module)?;
    error::register(module)?;
    vocabulary::register(module)?;
    structseq::register(module)?;
    module.add_class::<options::MeshOptions>()?;
    module.add_class::<executor::Executor>()?;
    module.add_class::<topology::Topology>()?;
    module.add_class::<array::Array>()?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<mesh::Mesh>()?;
    module.add_class::<deferred::DeferredMesh>()?;
    module.add_class::<deferred::DeferredTrainer>()?;
    module.add_class::<deferred::Deferred>()?;
    let awaiting = module.py().import("uform._await")?.getattr("awaiting")?;
    module.py().get_type::<deferred::Deferred>().setattr("__await__", awaiting)?;
    module.add_class::<optimizer::Sgd>()?;
    module.add_class::<optimizer::AdamW>()?;
    module.add_class::<trainer::StepReport>()?;
    module.add_class::<trainer::Trainer>()?;
    module.add_function(wrap_pyfunction!(topology::capabilities_compiled, module)?)?;
    module.add_function(wrap_pyfunction!(topology::capabilities_available, module)?)?;
    module.add_function(wrap_pyfunction!(topology::gpu_devices, module)?)?;
    module.add_function(wrap_pyfunction!(command::run_command, module)?)?;
    // The package re-exports name by name; a star would take what is not for users too.
    module.delattr("__all__")
}
