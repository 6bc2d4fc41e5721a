//! mpirun of Open MPI: versions up to 4 (ORTE) and from 5 on (PRRTE).

use super::launcher::{Launcher, Reply, Scene, check_equal};
use super::{Sourced, job};
use crate::error::Result;

/// Programs that start the processes of a host.
const STARTERS: &[&str] = &[
    "mpirun",
    "mpirun.openmpi",
    "mpiexec",
    "mpiexec.openmpi",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "prte",
];

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]) else {
        return Ok(Reply::Absent);
    };
    let name = match reading.first_set(&["OMPI_MCA_orte_hnp_uri", "OMPI_WORLD_SIZE"]) {
        Some("OMPI_WORLD_SIZE") => "Open MPI 5",
        Some(_) => "Open MPI 4",
        None => "Open MPI",
    };
    let index = reading.required("OMPI_COMM_WORLD_RANK", first)?;
    let count = reading.required("OMPI_COMM_WORLD_SIZE", first)?;
    if let Some(other) = reading.number("OMPI_WORLD_SIZE")? {
        check_equal(&other, &count)?;
    }
    if let Some(other) = reading.number("PMIX_RANK")?.filter(|other| other.value != index.value) {
        // mpirun sets both for each process, so that another PMIx launcher came after it.
        return Ok(Reply::Aside(format!(
            "OMPI_COMM_WORLD_RANK is {} and PMIX_RANK, which mpirun sets to the same, is {}: left from an outer mpirun",
            index.value, other.value
        )));
    }
    let local_index = reading.number("OMPI_COMM_WORLD_LOCAL_RANK")?;
    let local_count = reading.number("OMPI_COMM_WORLD_LOCAL_SIZE")?;
    let mut found = Launcher::new(name, index, count)?.on_host(local_index, local_count)?;
    found.job = drawn_key(scene);
    scene.name_job(&mut found, "openmpi", STARTERS);
    if found.job.as_ref().is_none_or(|(_, unique)| !unique)
        && let Some(space) = reading.glance("PMIX_NAMESPACE")
    {
        // The number of mpirun's process on its host: another mpirun may get the same later.
        found.job = Some((Sourced::new(format!("openmpi-{space}"), "PMIX_NAMESPACE"), false));
    }
    Ok(Reply::Found(Box::new(found)))
}

/// Version 4 draws a key at each start for the network cards; all its processes have the same.
fn drawn_key(scene: &Scene<'_>) -> Option<(Sourced<String>, bool)> {
    const KEY: &str = "OMPI_MCA_orte_precondition_transports";
    let key = scene.reading.glance(KEY).filter(|key| key.len() >= 32)?;
    let space = scene.reading.glance("PMIX_NAMESPACE").unwrap_or("mpirun");
    let name = format!("openmpi-{space}-{}", job::digest(key));
    Some((Sourced::new(name, format!("PMIX_NAMESPACE, {KEY}")), true))
}
