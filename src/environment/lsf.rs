//! jsrun of LSF.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::Result;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"]) else {
        return Ok(match reading.is_set("LSB_JOBID") {
            true => {
                Reply::Aside("LSB_JOBID names a job, and no task of jsrun: `jsrun` starts several".into())
            }
            false => Reply::Absent,
        });
    };
    let index = reading.required("JSM_NAMESPACE_RANK", first)?;
    let found = Launcher::new("jsrun", index, reading.required("JSM_NAMESPACE_SIZE", first)?)?;
    let local_index = reading.number("JSM_NAMESPACE_LOCAL_RANK")?;
    let mut found = found.on_host(local_index, reading.number("JSM_NAMESPACE_LOCAL_SIZE")?)?;
    // One job may call jsrun several times, and nothing tells the calls apart.
    found.job = reading.glance("LSB_JOBID").map(|id| match reading.glance("LSB_JOBINDEX") {
        Some(part) if part != "0" => {
            (Sourced::new(format!("lsf-{id}[{part}]"), "LSB_JOBID, LSB_JOBINDEX"), false)
        }
        _ => (Sourced::new(format!("lsf-{id}"), "LSB_JOBID"), false),
    });
    scene.name_job(&mut found, "lsf", &["jsmd", "jsrun"]);
    Ok(Reply::Found(Box::new(found)))
}
