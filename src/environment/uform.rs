//! `uform launch`, or a person in its place.

use super::launcher::{Launcher, Reply, Scene};
use crate::error::Result;

/// Variables that give an index and no count; beside them `UFORM_COUNT` alone gives the count.
pub(super) const INDEX_ONLY: [&str; 2] = ["PMIX_RANK", "JOB_COMPLETION_INDEX"];

/// The variable that says who set the others.
pub(super) const LAUNCHER_PID: &str = "UFORM_LAUNCHER_PID";

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    const NAMES: [&str; 4] = ["UFORM_INDEX", "UFORM_COUNT", "UFORM_LOCAL_INDEX", "UFORM_LOCAL_COUNT"];
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&NAMES) else { return Ok(Reply::Absent) };
    if first == NAMES[1]
        && reading.first_set(&NAMES[2..]).is_none()
        && reading.first_set(&INDEX_ONLY).is_some()
    {
        return Ok(Reply::Absent);
    }
    let by_launcher = reading.is_set(LAUNCHER_PID);
    let name = if by_launcher { "uform launch" } else { "UFORM_* variables" };
    let index = reading.required(NAMES[0], first)?;
    let mut found = Launcher::new(name, index, reading.required(NAMES[1], first)?)?;
    if let Some(local) = reading.first_set(&NAMES[2..]) {
        let index = reading.required(NAMES[2], local)?;
        found = found.on_host(Some(index), Some(reading.required(NAMES[3], local)?))?;
    }
    if let Some(count) = reading.number("UFORM_HOST_COUNT")? {
        found.host_count = Some(count);
    }
    found.draws_fresh_jobs = by_launcher;
    let pid = reading.glance(LAUNCHER_PID).and_then(|text| text.parse().ok());
    found.distance = pid.and_then(|pid| scene.own.distance(pid));
    Ok(Reply::Found(Box::new(found)))
}
