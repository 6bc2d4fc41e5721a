//! Tasks of a Slurm step, told from batch scripts, shells of an allocation, and variables that somebody left behind.

use super::Sourced;
use super::hostlist::{self, Counts};
use super::launcher::{Launcher, Reply, Scene};
use super::reading::Reading;
use crate::error::Result;

/// From this number on a step id means a batch script, an interactive shell or an external process.
const SPECIAL_STEPS: u64 = 0xffff_fff0;

pub(super) fn read(scene: &Scene<'_>) -> Result<Reply> {
    const MARKS: [&str; 5] =
        ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_STEPID"];
    let reading = &scene.reading;
    if reading.first_set(&MARKS).is_none() {
        return Ok(Reply::Absent);
    }
    let Some(step) = step(reading).filter(|_| reading.is_set("SLURM_STEP_NUM_TASKS")) else {
        return Ok(Reply::Aside(no_step(reading)));
    };
    if let Some(reason) = left_behind(scene) {
        return Ok(Reply::Aside(reason));
    }
    let index = reading.required("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")?;
    let count = reading.number("SLURM_STEP_NUM_TASKS")?;
    let Some(count) = count else { return Ok(Reply::Absent) };
    let mut found = Launcher::new("srun", index, count)?;
    found.host_count = reading.first_number(&["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])?;
    let hosts = match hosts(reading) {
        Ok(hosts) => hosts,
        Err(error) => {
            found.notes.push(format!("the names of the hosts are not known: {error}"));
            None
        }
    };
    let local_count = match local_count(scene, hosts.as_deref().unwrap_or_default())? {
        Ok(local_count) => local_count,
        Err(reason) => return Ok(Reply::Aside(reason)),
    };
    found = found.on_host(reading.number("SLURM_LOCALID")?, local_count)?;
    let listed =
        hosts.filter(|hosts| found.host_count.as_ref().is_none_or(|count| count.value == hosts.len()));
    found.hosts = listed.map(|hosts| Sourced::new(hosts, "SLURM_STEP_NODELIST"));
    found.job = name(reading, step);
    found.distance = task_pid(reading).and_then(|pid| scene.own.distance(pid));
    if found.job.is_none() {
        scene.name_job(&mut found, "srun", &["slurmstepd"]);
    }
    found.notes.extend(narrowed_gpus(reading));
    Ok(Reply::Found(Box::new(found)))
}

/// The id of the step, if it is one that srun made.
fn step(reading: &Reading<'_>) -> Option<u64> {
    let text = reading.glance("SLURM_STEP_ID").or_else(|| reading.glance("SLURM_STEPID"))?;
    text.parse::<u64>().ok().filter(|step| *step < SPECIAL_STEPS)
}

fn no_step(reading: &Reading<'_>) -> String {
    let tasks = reading.glance("SLURM_NTASKS").filter(|tasks| *tasks != "1");
    let several = tasks.map(|tasks| format!("; its {tasks} tasks are started by `srun` alone"));
    let several = several.unwrap_or_default();
    format!(
        "inside a Slurm allocation and not in a step of srun: one process; `srun` starts several{several}"
    )
}

fn task_pid(reading: &Reading<'_>) -> Option<u32> {
    reading.glance("SLURM_TASK_PID")?.parse().ok()
}

/// Why the variables are those of another process, as after ssh or in a shell that exported them.
fn left_behind(scene: &Scene<'_>) -> Option<String> {
    let own = scene.own;
    let pid = task_pid(&scene.reading);
    if pid.is_some_and(|pid| own.distance(pid).is_some()) {
        return None;
    }
    if let Some(pid) = pid.filter(|_| own.sees_launchers && !own.processes.is_empty()) {
        return Some(format!(
            "left behind: SLURM_TASK_PID is {pid}, which is neither this process nor an ancestor of it"
        ));
    }
    // A container may have process numbers and a host name of its own, but not the name of another host of the step.
    let node = scene.reading.glance("SLURMD_NODENAME")?;
    let here = short(&own.host_name);
    let hosts = hosts(&scene.reading).ok().flatten().unwrap_or_default();
    let elsewhere = !here.eq_ignore_ascii_case(short(node)) && hosts.iter().any(|host| short(host) == here);
    elsewhere.then(|| format!("left behind: SLURMD_NODENAME is {node}, and this host is {}", own.host_name))
}

/// A host's name without its domain.
fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn hosts(reading: &Reading<'_>) -> Result<Option<Vec<String>>> {
    let name = "SLURM_STEP_NODELIST";
    reading.glance(name).map(|list| hostlist::expand(list, name)).transpose()
}

/// How many tasks this host has; the inner `Err` says why the variables belong to two steps.
fn local_count(
    scene: &Scene<'_>,
    hosts: &[String],
) -> Result<std::result::Result<Option<Sourced<usize>>, String>> {
    let reading = &scene.reading;
    let listed = reading.glance("SLURM_GTIDS").map(|ids| ids.split(',').count());
    let node = reading.number("SLURM_NODEID")?.map(|node| node.value);
    let counts = reading.glance("SLURM_STEP_TASKS_PER_NODE");
    let counts = counts.map(|counts| Counts::parse(counts, "SLURM_STEP_TASKS_PER_NODE")).transpose()?;
    let counted = counts.and_then(|counts| counts.of(node?));
    // Parts of a heterogeneous step count their own hosts, or all of them, as the version has it.
    if reading.is_set("SLURM_HET_SIZE") {
        return Ok(Ok(listed.map(|count| Sourced::new(count, "SLURM_GTIDS"))));
    }
    if let (Some(listed), Some(counted)) = (listed, counted)
        && listed != counted
    {
        return Ok(Err(format!(
            "left behind: SLURM_GTIDS lists {listed} tasks of this host, and SLURM_STEP_TASKS_PER_NODE {counted}: they \
             are of two steps"
        )));
    }
    if let (Some(node), Some(host)) =
        (reading.glance("SLURMD_NODENAME"), node.and_then(|node| hosts.get(node)))
        && node != host
        && !hosts.iter().any(|host| host == node)
    {
        return Ok(Err(format!(
            "left behind: SLURMD_NODENAME is {node}, which SLURM_STEP_NODELIST does not list"
        )));
    }
    let listed = listed.map(|count| Sourced::new(count, "SLURM_GTIDS"));
    Ok(Ok(listed.or(counted.map(|count| Sourced::new(count, "SLURM_STEP_TASKS_PER_NODE")))))
}

/// Job, step and restart count: no other start has the same three.
fn name(reading: &Reading<'_>, step: u64) -> Option<(Sourced<String>, bool)> {
    // All parts of a heterogeneous job have the id of its first part in common.
    let (variable, id) = ["SLURM_JOB_ID_HET_GROUP_0", "SLURM_JOB_ID", "SLURM_JOBID"]
        .into_iter()
        .find_map(|name| Some((name, reading.glance(name)?)))?;
    let cluster = reading.glance("SLURM_CLUSTER_NAME").map(|name| format!("{name}-")).unwrap_or_default();
    let restart = reading.glance("SLURM_RESTART_COUNT").unwrap_or("0");
    let name = format!("slurm-{cluster}{id}.{step}-restart-{restart}");
    Some((Sourced::new(name, format!("{variable}, SLURM_STEP_ID, SLURM_RESTART_COUNT")), true))
}

/// What `--gpus-per-task` takes from the tasks of a host.
fn narrowed_gpus(reading: &Reading<'_>) -> Option<String> {
    let asked = reading.first_set(&["SLURM_GPUS_PER_TASK"])?;
    let bound = ["SLURM_GPU_BIND", "SLURM_TRES_BIND"].iter().find_map(|name| reading.glance(name));
    if bound.is_some_and(|bound| bound.contains("none")) {
        return None;
    }
    Some(format!(
        "{asked} lets each task see its own GPUs alone, so that no task reads another's GPU memory: ask \
         for GPUs by --gpus-per-node, or, where the nodes confine devices, add --gpu-bind=none"
    ))
}
