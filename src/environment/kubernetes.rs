//! Pods of a Kubernetes Job in Indexed mode, JobSets included: an index, and no count.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::{Error, Result};

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(index) = reading.number("JOB_COMPLETION_INDEX")? else { return Ok(Reply::Absent) };
    if !reading.is_set("KUBERNETES_SERVICE_HOST") && !reading.is_set("UFORM_COUNT") {
        return Ok(Reply::Aside("JOB_COMPLETION_INDEX is set outside of Kubernetes".into()));
    }
    let count = reading.number("UFORM_COUNT")?.ok_or_else(|| {
        let reason = format!(
            "is missing: an indexed Job gives the index (JOB_COMPLETION_INDEX={}) and no count; set UFORM_COUNT to its \
             completions, or to 1 where each pod works alone",
            index.value
        );
        Error::invalid("UFORM_COUNT", "(not set)", "environment", reason)
    })?;
    if count.value == 1 {
        let origin = "UFORM_COUNT, which says that each pod works alone";
        let found = Launcher::new("Kubernetes", Sourced::new(0, origin), count)?;
        return Ok(Reply::Found(Box::new(found)));
    }
    let mut found = Launcher::new("Kubernetes", index, count)?;
    // A pod's host name is that of its Job, a dash, and the index.
    let suffix = format!("-{}", found.index.value);
    found.job = scene.own.host_name.strip_suffix(&suffix).map(|job| {
        (Sourced::new(format!("kubernetes-{job}"), "the host name without JOB_COMPLETION_INDEX"), false)
    });
    Ok(Reply::Found(Box::new(found)))
}
