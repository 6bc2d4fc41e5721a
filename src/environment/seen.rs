//! Launchers that are told of and never taken for this process's place: Horovod and PBS.

use super::launcher::{Reply, Scene};
use crate::error::{Error, Result};

/// horovodrun. Its processes are Horovod's: a lone one of several would train alone, so that is refused.
pub(super) fn read_horovod(scene: &Scene<'_>) -> Result<Reply> {
    let Some(size) = scene.reading.number("HOROVOD_SIZE")? else { return Ok(Reply::Absent) };
    if size.value > 1 {
        return Err(Error::unsupported(
            format!("reading the variables of Horovod (HOROVOD_SIZE={})", size.value),
            "start the processes with another launcher, or pass host_domain_index, host_domain_count and directory, or \
             set UFORM_INDEX, UFORM_COUNT and UFORM_DIRECTORY",
        ));
    }
    Ok(Reply::Aside("HOROVOD_SIZE says one process".into()))
}

/// A job of PBS, whose processes another launcher starts.
pub(super) fn read_pbs(scene: &Scene<'_>) -> Result<Reply> {
    Ok(match scene.reading.is_set("PBS_JOBID") {
        true => Reply::Aside("PBS_JOBID names a job, and no task of it: `mpiexec` starts several".into()),
        false => Reply::Absent,
    })
}
