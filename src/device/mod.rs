//! What is in this machine: cores, memory domains, GPUs, and what the library can use of them.
//!
//! Nothing here initialises a GPU runtime, so that a process may fork afterwards.

mod cpu;

use std::path::Path;

use crate::environment::Launch;
use crate::error::Result;
use crate::sys::{absent, affinity, cgroup, host, process};
use crate::topology::{GpuDevice, Introduction, MemoryDomain, Process, Survey};
use crate::vocabulary::CpuClass;

pub use cpu::{classes, cpu_class};

/// The machine, as every process on it sees it.
///
/// # Errors
/// `Io` if `/proc` is not mounted.
pub fn survey() -> Result<Survey> {
    let root = Path::new(host::ROOT);
    let cores = host::cores(root)?;
    let memory_domains = host::memory_domains(root, &cores)?.into_iter().map(|domain| MemoryDomain {
        ordinal: domain.ordinal,
        cores: domain.cores,
        memory_bytes: domain.memory_bytes,
    });
    Ok(Survey {
        host_name: process::host_name(),
        boot_id: process::boot_id()?,
        memory_domains: memory_domains.collect(),
        cores,
        cpu_classes: cpu::available(),
        gpus: gpu_devices(),
    })
}

/// What this process says of itself to the others; `socket` is where it listens, empty for nowhere.
///
/// # Errors
/// `Io` if `/proc` is not mounted.
pub fn introduction(launch: &Launch, socket: String) -> Result<Introduction> {
    let survey = survey()?;
    let pid = process::pid();
    Ok(Introduction {
        process: Process {
            host_name: survey.host_name.clone(),
            boot_id: survey.boot_id.clone(),
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            command: process::command(),
        },
        cores: usable_cores()?,
        quota_cores: quota_cores(),
        visible_gpus: gpu_devices().into_iter().map(|device| device.identity).collect(),
        socket,
        launcher: launch.launcher.clone(),
        local_index: launch.local_index.as_ref().map(|local| local.value),
        survey,
    })
}

/// The cores that this thread's mask allows.
///
/// # Errors
/// `Io` if the system does not tell.
pub fn usable_cores() -> Result<Vec<u32>> {
    affinity::get_affinity()
}

/// The whole cores' worth of time that this process's control groups allow, at least 1; `None` without a quota.
#[must_use]
pub fn quota_cores() -> Option<u32> {
    cgroup::quota_cores(Path::new(host::ROOT))
}

/// The GPUs that this process may use; an ordinal is a position here. Empty: this version reads no GPU runtime.
#[must_use]
pub fn gpu_devices() -> Vec<GpuDevice> {
    Vec::new()
}

/// What the library was built with: CPU classes in the order of their numbers, then GPU runtimes and engines.
///
/// A CPU class is named only if the build has kernels of its own for it. A machine of another class, such as
/// `INTEL_GRANITE`, is dispatched as the best of those that it can run.
#[must_use]
pub fn capabilities_compiled() -> String {
    words(cpu::compiled(), absent::engines_compiled())
}

/// What of it this machine can use, in the same order.
#[must_use]
pub fn capabilities_available() -> String {
    words(&cpu::available(), absent::engines_available())
}

fn words(classes: &[CpuClass], engines: Vec<String>) -> String {
    let mut words = classes.iter().map(|class| class.name().to_lowercase()).collect::<Vec<_>>();
    words.extend(engines);
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_name_what_is_there_and_in_order() {
        let compiled = capabilities_compiled();
        let available = capabilities_available();
        assert!(compiled.starts_with("serial") && available.starts_with("serial"));
        let mut rest = compiled.split(' ');
        // Each available word comes later in the compiled ones than the word before it.
        assert!(
            available.split(' ').all(|word| rest.any(|other| other == word)),
            "{available} in {compiled}"
        );
    }

    #[test]
    fn a_survey_is_the_same_for_every_look() {
        let found = survey().expect("this machine can be surveyed");
        assert_eq!(found, survey().expect("this machine can be surveyed"));
        assert!(!found.cores.is_empty() && !found.memory_domains.is_empty());
    }

    #[test]
    fn an_introduction_names_this_process() {
        let options = crate::environment::MeshOptions {
            host_domain_count: 1,
            ..crate::environment::MeshOptions::default()
        };
        let launch = crate::environment::read(&options).expect("one process needs nothing");
        let introduction = introduction(&launch, "address".into()).expect("this process can be looked at");
        assert_eq!(introduction.process.pid, std::process::id());
        assert!(introduction.process.start_ticks > 0);
        assert!(introduction.cores.iter().all(|core| introduction.survey.cores.contains(core)));
    }
}
