//! The variables of the processes: their place in the run, and nothing of what outer launchers said about theirs.

use std::process::Command;

use super::folder::Meeting;
use super::hosts::Part;
use super::{Options, output, share};

/// Variables by which outer launchers give a process its place; they tell of another run.
const FOREIGN: [&str; 44] = [
    "UFORM_INDEX",
    "UFORM_COUNT",
    "UFORM_LOCAL_INDEX",
    "UFORM_LOCAL_COUNT",
    "UFORM_HOST_COUNT",
    "UFORM_RESTART_COUNT",
    "UFORM_DIRECTORY",
    "UFORM_JOB",
    "UFORM_LAUNCHER_PID",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "FLUX_TASK_RANK",
    "FLUX_TASK_LOCAL_ID",
    "JOB_COMPLETION_INDEX",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEPID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_MPI_TYPE",
];

/// What the names of such variables begin with; all of them go.
const FOREIGN_PREFIXES: [&str; 11] = [
    "TORCHELASTIC_",
    "OMPI_",
    "PRTE_",
    "PMIX_",
    "PMI_",
    "SLURM_PMIX",
    "PALS_",
    "MV2_COMM_WORLD_",
    "MVP_COMM_WORLD_",
    "JSM_NAMESPACE_",
    "HOROVOD_",
];

/// Settings of Open MPI itself, which a person made: they stay.
const SETTINGS: &str = "OMPI_MCA_";

/// Of those, what a launcher sets for its own run.
const LAUNCH_SETTINGS: [&str; 3] = ["OMPI_MCA_orte_", "OMPI_MCA_ess_", "OMPI_MCA_pmix"];

/// Whether a variable tells a process its place in another run.
pub(crate) fn is_foreign(name: &str) -> bool {
    if name.starts_with(SETTINGS) {
        return LAUNCH_SETTINGS.iter().any(|prefix| name.starts_with(prefix));
    }
    FOREIGN.contains(&name) || FOREIGN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Sets the variables of the process that is `local` among those of this host.
pub(super) fn set(
    command: &mut Command,
    options: &Options,
    meeting: &Meeting,
    shares: &share::Shares,
    (part, local, restarts): (&Part, usize, u32),
) {
    for (name, _) in std::env::vars_os() {
        if is_foreign(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    let index = part.first + local;
    command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", part.count.to_string());
    command.env("UFORM_LOCAL_INDEX", local.to_string());
    command.env("UFORM_LOCAL_COUNT", shares.count().to_string());
    command.env("UFORM_HOST_COUNT", part.hosts.to_string());
    command.env("UFORM_RESTART_COUNT", restarts.to_string());
    command.env("UFORM_JOB", meeting.job()).env("UFORM_LAUNCHER_PID", std::process::id().to_string());
    if let Some(directory) = meeting.directory() {
        command.env("UFORM_DIRECTORY", directory);
    }
    if let Some(timeout) = options.timeout {
        command.env("UFORM_TIMEOUT", timeout.to_string());
    }
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", shares.thread_count(local).to_string());
    }
    if std::env::var_os("PYTHONUNBUFFERED").is_none() {
        command.env("PYTHONUNBUFFERED", "1");
    }
    if let (Some(columns), None) = (output::columns(part.count), std::env::var_os("COLUMNS")) {
        command.env("COLUMNS", columns.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::is_foreign;

    #[test]
    fn places_in_other_runs_go_and_settings_stay() {
        for name in
            ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"]
        {
            assert!(is_foreign(name), "{name}");
        }
        for name in
            ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "OMPI_MCA_btl", "UFORM_LOG", "UFORM_TIMEOUT", "PATH"]
        {
            assert!(!is_foreign(name), "{name}");
        }
    }
}
