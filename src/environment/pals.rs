//! mpiexec and aprun of HPE's PALS.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use super::reading::missing;
use crate::error::Result;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&["PALS_RANKID", "PALS_SIZE"]) else { return Ok(Reply::Absent) };
    let index = reading.required("PALS_RANKID", first)?;
    let count = reading.first_number(&["PALS_SIZE", "PMI_SIZE"])?;
    let count = count.ok_or_else(|| missing("PALS_SIZE", first))?;
    let found = Launcher::new("PALS", index, count)?;
    let mut found =
        found.on_host(reading.number("PALS_LOCAL_RANKID")?, reading.number("PALS_LOCAL_SIZE")?)?;
    found.job = reading.glance("PALS_APID").map(|id| (Sourced::new(format!("pals-{id}"), "PALS_APID"), true));
    scene.name_job(&mut found, "pals", &["palsd"]);
    Ok(Reply::Found(Box::new(found)))
}
