//! mpirun_rsh and mpiexec of MVAPICH: version 2, and those after it.

use super::hydra;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::Result;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    const NEW: [&str; 4] = [
        "MVP_COMM_WORLD_RANK",
        "MVP_COMM_WORLD_SIZE",
        "MVP_COMM_WORLD_LOCAL_RANK",
        "MVP_COMM_WORLD_LOCAL_SIZE",
    ];
    const OLD: [&str; 4] = [
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ];
    let reading = &scene.reading;
    for (name, variables) in [("MVAPICH", NEW), ("MVAPICH2", OLD)] {
        let Some(first) = reading.first_set(&variables[..2]) else { continue };
        let [index, count, local_index, local_count] = variables;
        let found = Launcher::new(name, reading.required(index, first)?, reading.required(count, first)?)?;
        let mut found = found.on_host(reading.number(local_index)?, reading.number(local_count)?)?;
        let starters = [&["mpispawn", "mpirun_rsh"], hydra::STARTERS].concat();
        scene.name_job(&mut found, "mvapich", &starters);
        return Ok(Reply::Found(Box::new(found)));
    }
    Ok(Reply::Absent)
}
