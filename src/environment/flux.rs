//! `flux run` and `flux submit`.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::Result;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&["FLUX_TASK_RANK", "FLUX_JOB_SIZE"]) else {
        return Ok(match reading.is_set("FLUX_URI") {
            true => Reply::Aside(
                "FLUX_URI names an instance, and no task of it: `flux run` starts several".into(),
            ),
            false => Reply::Absent,
        });
    };
    let index = reading.required("FLUX_TASK_RANK", first)?;
    let mut found = Launcher::new("Flux", index, reading.required("FLUX_JOB_SIZE", first)?)?;
    // It counts shells, and a test instance has several of them on a host: only 1 is sure.
    found.host_count = reading.number("FLUX_JOB_NNODES")?;
    found = found.on_host(reading.number("FLUX_TASK_LOCAL_ID")?, None)?;
    found.job =
        reading.glance("FLUX_JOB_ID").map(|id| (Sourced::new(format!("flux-{id}"), "FLUX_JOB_ID"), true));
    scene.name_job(&mut found, "flux", &["flux-shell"]);
    Ok(Reply::Found(Box::new(found)))
}
