//! mpiexec of MPICH and of Intel MPI, both named Hydra.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::Result;

/// Programs that start the processes of a host.
pub(super) const STARTERS: &[&str] = &["hydra_pmi_proxy", "mpiexec.hydra"];

/// What only Hydra sets beside the numbers of PMI.
const MARKS: [&str; 4] = ["MPI_LOCALRANKID", "MPI_LOCALNRANKS", "HYDI_CONTROL_FD", "I_MPI_HYDRA_UUID"];

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(mark) = reading.first_set(&MARKS) else { return Ok(Reply::Absent) };
    let uuid = reading.glance("I_MPI_HYDRA_UUID");
    let intel = uuid.is_some() || reading.is_set("I_MPI_HYDRA_TOPOLIB");
    let name = if intel { "Intel MPI" } else { "MPICH" };
    let index = reading.required("PMI_RANK", mark)?;
    let found = Launcher::new(name, index, reading.required("PMI_SIZE", mark)?)?;
    let mut found = found.on_host(reading.number("MPI_LOCALRANKID")?, reading.number("MPI_LOCALNRANKS")?)?;
    found.job = uuid.map(|uuid| (Sourced::new(format!("intel-mpi-{uuid}"), "I_MPI_HYDRA_UUID"), true));
    scene.name_job(&mut found, if intel { "intel-mpi" } else { "mpich" }, STARTERS);
    Ok(Reply::Found(Box::new(found)))
}
