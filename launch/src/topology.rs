//! `uform topology`: forms a mesh like any other program would, and shows the run as its members see it.

use clap::Args;
use uform::{Mesh, MeshOptions};

use crate::Failure;

/// Forms a mesh and prints the run: hosts, processes, cores and GPUs.
///
/// Alone it shows this process; under `uform launch` or torchrun index 0 shows all of them. It ends as soon as the
/// mesh has formed, so that it also tells whether a run would form.
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// How long to wait for the others, in seconds; 0 takes UFORM_TIMEOUT, else 300
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    timeout: f64,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let given = MeshOptions { timeout_seconds: options.timeout, ..MeshOptions::default() };
    let mesh = Mesh::bootstrap(None, Some(&given))?;
    // One barrier shows that bytes move, too.
    mesh.barrier()?;
    if mesh.index() == 0 {
        let topology = mesh.topology();
        let text = if options.json { topology.to_json() } else { topology.to_string() };
        crate::print(&format!("{text}\n"))?;
    }
    mesh.close()?;
    Ok(0)
}
