//! torchrun and what sets the same variables.

use super::launcher::{Launcher, Reply, Scene};
use super::{Sourced, job};
use crate::error::Result;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    const NAMES: [&str; 5] = ["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
    let reading = &scene.reading;
    let Some(first) = reading.first_set(&NAMES) else { return Ok(Reply::Absent) };
    let index = reading.required("RANK", first)?;
    let mut found = Launcher::new("torchrun", index, reading.required("WORLD_SIZE", first)?)?;
    let agents = reading.number("GROUP_WORLD_SIZE")?;
    let local_index = reading.required("LOCAL_RANK", first)?;
    let local_count = reading.required("LOCAL_WORLD_SIZE", first)?;
    // Several agents may share a host and say that all their processes are theirs: then nobody knows.
    found.host_count = agents.clone().filter(|agents| agents.value > 1);
    found = found.on_host(Some(local_index), Some(local_count))?;
    found.job = Some(name(scene)?);
    Ok(Reply::Found(Box::new(found)))
}

/// torchrun's id with its restart count. The default id `none` is everybody's: the master's address tells them apart.
fn name(scene: &Scene<'_>) -> Result<(Sourced<String>, bool)> {
    let reading = &scene.reading;
    let id = reading.text("TORCHELASTIC_RUN_ID")?;
    let restart = reading.number("TORCHELASTIC_RESTART_COUNT")?.map_or(0, |count| count.value);
    // `--standalone` draws a UUID at each start; any other id was chosen by somebody, and may be chosen again.
    let unique = id.as_deref().is_some_and(job::is_uuid);
    let mut origins = vec!["TORCHELASTIC_RUN_ID"];
    let mut words = vec![id.unwrap_or_else(|| "none".to_owned())];
    if words[0] == "none" {
        for name in ["MASTER_ADDR", "MASTER_PORT"] {
            if let Some(word) = reading.text(name)? {
                words.push(word);
                origins.push(name);
            }
        }
    }
    words.push(format!("restart-{restart}"));
    origins.push("TORCHELASTIC_RESTART_COUNT");
    Ok((Sourced::new(words.join("-"), origins.join(", ")), unique))
}
