//! Launchers known by the variables of PMI alone, and PMIx, which keeps the size to its own library.

use super::Sourced;
use super::launcher::{Launcher, Reply, Scene};
use crate::error::{Error, Result};

/// PMI-1 and PMI-2, where no launcher set more.
pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&["PMI_RANK", "PMI_SIZE"]) else { return Ok(Reply::Absent) };
    let id = reading.glance("PMI_JOBID");
    let name = if id.is_some() && reading.is_set("PMI_FD") { "PMI2" } else { "PMI" };
    let index = reading.required("PMI_RANK", first)?;
    let found = Launcher::new(name, index, reading.required("PMI_SIZE", first)?)?;
    let mut found = found.on_host(reading.number("PMI_LOCAL_RANK")?, reading.number("PMI_LOCAL_SIZE")?)?;
    found.job = id.map(|id| (Sourced::new(format!("pmi-{id}"), "PMI_JOBID"), false));
    scene.name_job(&mut found, "pmi", &["slurmstepd"]);
    Ok(Reply::Found(Box::new(found)))
}

/// PMIx without a launcher that says more. `UFORM_COUNT` gives the count.
pub(super) fn read_pmix(scene: &Scene<'_>) -> Result<Reply> {
    let reading = &scene.reading;
    let Some(index) = reading.number("PMIX_RANK")? else { return Ok(Reply::Absent) };
    let count = reading.number("UFORM_COUNT")?.ok_or_else(|| {
        let reason = format!(
            "is missing: a PMIx launcher gives the index (PMIX_RANK={}) and keeps the count to its library; set \
             UFORM_COUNT, or pass host_domain_index, host_domain_count and directory",
            index.value
        );
        Error::invalid("UFORM_COUNT", "(not set)", "environment", reason)
    })?;
    let mut found = Launcher::new("PMIx", index, count)?;
    found.job = reading
        .glance("PMIX_NAMESPACE")
        .map(|space| (Sourced::new(format!("pmix-{space}"), "PMIX_NAMESPACE"), false));
    scene.name_job(&mut found, "pmix", &["prterun", "prted", "prte"]);
    Ok(Reply::Found(Box::new(found)))
}
