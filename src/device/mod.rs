//! What is in this machine: cores, memory domains, GPUs, and what the library can use of them.
//!
//! Nothing here initialises a GPU runtime, so that a process may fork afterwards.

mod amd;
mod cpu;
mod library;
mod machine;
mod nvidia;
mod visibility;

use std::path::Path;

use crate::environment::{self, Launch, MeshOptions};
use crate::error::Result;
use crate::sys::{cgroup, engine, host, mpi, process};
use crate::topology::{GpuDevice, Introduction, Process, Survey};
use crate::vocabulary::{CpuClass, GpuVendor};
use machine::Machine;

pub use cpu::{classes, cpu_class};
pub use library::{collective_library, package_places, set_package_folders};

/// What one process sees of its machine.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The machine, as every process on it sees it.
    pub survey: Survey,
    /// The cores that this thread may run on, ascending.
    pub cores: Vec<u32>,
    /// The whole cores' worth of time that this process's control groups allow, at least 1; `None` without a quota.
    pub quota_cores: Option<u32>,
    /// The bytes that this process's memory control groups still allow; `None` without a limit.
    pub memory_allowance: Option<u64>,
    /// The GPUs that this process may use; an ordinal is a position here.
    pub gpus: Vec<GpuDevice>,
    /// The visibility variables in effect, by name.
    pub variables: Vec<(&'static str, String)>,
    /// What is there and cannot be used, and what variables contradict each other, one sentence each.
    pub notes: Vec<String>,
}

/// Looks at the machine: the real one, or the recorded one that `UFORM_MACHINE` names.
///
/// # Errors
/// `Io` if `/proc` is not mounted; for a recorded machine `Invalid`, `Corrupt` or `Io`, naming the file.
pub fn view() -> Result<View> {
    view_of(&Machine::open()?)
}

/// Looks at the machine that is recorded in this folder, whatever `UFORM_MACHINE` says.
///
/// # Errors
/// `Invalid`, `Corrupt` or `Io`, naming the file.
pub fn recorded(folder: &Path) -> Result<View> {
    view_of(&Machine::recorded(folder)?)
}

fn view_of(machine: &Machine) -> Result<View> {
    let cores = machine.cores()?;
    let gpus = Gpus::of(machine);
    Ok(View {
        survey: Survey {
            host_name: machine.host_name(),
            boot_id: machine.boot_id()?,
            memory_domains: machine.memory_domains(&cores)?,
            siblings: host::siblings(machine.root(), &cores),
            cores,
            cpu_classes: cpu_classes(machine),
            gpus: gpus.all,
        },
        cores: machine.usable_cores()?,
        quota_cores: machine.quota_cores(),
        memory_allowance: cgroup::memory_allowance_of(machine.root()),
        gpus: gpus.visible,
        variables: machine.visibility().in_effect(),
        notes: gpus.notes,
    })
}

/// The machine, as every process on it sees it.
///
/// # Errors
/// As [`view`].
pub fn survey() -> Result<Survey> {
    view().map(|view| view.survey)
}

/// The index that a launcher gave to this process, if it started more than one.
#[must_use]
pub fn launched_index() -> Option<usize> {
    let launch = environment::read_without_directory(&MeshOptions::default()).ok()?;
    (launch.count.value > 1).then_some(launch.index.value)
}

/// What this process says of itself to the others; `socket` is where it listens, empty for nowhere.
///
/// # Errors
/// As [`view`].
pub fn introduction(launch: &Launch, socket: String) -> Result<Introduction> {
    let view = view()?;
    for note in &view.notes {
        tracing::warn!(index = launch.index.value, "{note}");
    }
    let pid = process::pid();
    Ok(Introduction {
        process: Process {
            host_name: view.survey.host_name.clone(),
            boot_id: view.survey.boot_id.clone(),
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            command: process::command(),
        },
        cores: view.cores,
        quota_cores: view.quota_cores,
        visible_gpus: view.gpus.into_iter().map(|device| device.identity).collect(),
        driven_gpus: None,
        shares_gpus: library::shares_gpus(),
        socket,
        launcher: launch.launcher.clone(),
        local_index: launch.local_index.as_ref().map(|local| local.value),
        survey: view.survey,
    })
}

/// The whole cores' worth of time that this process's control groups allow, at least 1; `None` without a quota.
#[must_use]
pub fn quota_cores() -> Option<u32> {
    Machine::open().ok()?.quota_cores()
}

/// The GPUs that this process may use: NVIDIA's first, then AMD's. An ordinal is a position here.
///
/// No GPU is an empty list. No GPU runtime is started: a process may fork afterwards.
///
/// # Errors
/// As [`view`] for a recorded machine; none on a real one.
pub fn gpu_devices() -> Result<Vec<GpuDevice>> {
    let gpus = Gpus::of(&Machine::open()?);
    for note in &gpus.notes {
        tracing::warn!("{note}");
    }
    Ok(gpus.visible)
}

/// The GPUs of a machine, and those that this process sees.
struct Gpus {
    all: Vec<GpuDevice>,
    visible: Vec<GpuDevice>,
    notes: Vec<String>,
}

impl Gpus {
    fn of(machine: &Machine) -> Self {
        let variables = machine.visibility();
        let nvidia = nvidia::find(&machine.nvidia(), machine.root());
        let amd = amd::find(machine.root());
        let cuda = variables.cuda.as_deref();
        let seats = visibility::cuda(&nvidia.cards, cuda, variables.cuda_order.as_deref());
        let seen = seats.iter().filter_map(|(card, instance)| {
            let position = nvidia.positions.get(*card)?.get(instance.unwrap_or(0))?;
            nvidia.devices.get(*position)
        });
        let (rocr, hip) = (variables.rocr.as_deref(), variables.hip.as_deref());
        let positions = visibility::hip(&amd.names, rocr, hip, cuda);
        let seen = seen.chain(positions.iter().filter_map(|position| amd.devices.get(*position)));
        let visible = seen.cloned().collect();
        let mut notes = [nvidia.notes, amd.notes].concat();
        if !amd.devices.is_empty() {
            let set = [
                ("ROCR_VISIBLE_DEVICES", rocr),
                ("HIP_VISIBLE_DEVICES", hip),
                ("CUDA_VISIBLE_DEVICES", cuda),
            ];
            let set =
                set.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| *name).collect::<Vec<_>>();
            if set.len() > 1 {
                let (names, all) = (set.join(" and "), if set.len() == 2 { "both" } else { "all" });
                notes.push(format!("{names} are {all} set: each one numbers anew what the one before left"));
            }
        }
        Self { all: [nvidia.devices, amd.devices].concat(), visible, notes }
    }
}

/// The classes that the machine can run, best last. Those of a recorded one do not depend on this build.
fn cpu_classes(machine: &Machine) -> Vec<CpuClass> {
    machine.processor().map_or_else(cpu::available, cpu::classes)
}

/// What the library was built with: CPU classes in the order of their numbers, then GPU runtimes and engines.
///
/// A CPU class is named only if the build has kernels of its own for it. A machine of another class, such as
/// `INTEL_GRANITE`, is dispatched as the best of those that it can run.
#[must_use]
pub fn capabilities_compiled() -> String {
    let engines = engine::WORDS.into_iter().filter(|word| engine::is_compiled(word));
    words(cpu::compiled(), engines.map(str::to_owned).collect())
}

/// What of it this machine has, in the same order, with versions where they are known: `nccl-2.27.5`.
///
/// # Errors
/// As [`view`] for a recorded machine; none on a real one.
pub fn capabilities_available() -> Result<String> {
    let machine = Machine::open()?;
    let mut found = match machine.engines() {
        Some(engines) => engines.to_vec(),
        None => engines_of_this_machine(),
    };
    let cuda = machine.nvidia().cuda_version;
    if !cuda.is_empty() && (machine.is_recorded() || engine::has_cuda()) {
        found.push(word("cuda", &cuda));
    }
    found.extend(engine::rocm(machine.root()).map(|version| word("rocm", &version)));
    found.extend(engine::has_rccl(machine.root()).then(|| "rccl".to_owned()));
    let base = |word: &str| word.split('-').next().unwrap_or_default().to_owned();
    let ordered = engine::WORDS.into_iter().filter(|word| engine::is_compiled(word));
    let engines = ordered.filter_map(|word| found.iter().find(|own| base(own) == word).cloned());
    let mut classes = cpu_classes(&machine);
    classes.retain(|class| cpu::compiled().contains(class));
    Ok(words(&classes, engines.collect()))
}

fn engines_of_this_machine() -> Vec<String> {
    // One that cannot be used is not available; `uform doctor` tells why.
    let nccl = collective_library(GpuVendor::Nvidia).ok();
    let nccl = nccl.map(|library| word("nccl", &library.version().to_string()));
    // A build that has MPI is linked to it, and runs nowhere without it. It is asked for its version and not started.
    let mpi = mpi::library().map(|library| word("mpi", library.number()));
    nccl.into_iter().chain(mpi).collect()
}

fn word(name: &str, version: &str) -> String {
    if version.is_empty() { name.to_owned() } else { format!("{name}-{version}") }
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
        let available = capabilities_available().expect("this machine can be looked at");
        assert!(compiled.starts_with("serial") && available.starts_with("serial"));
        let mut rest = compiled.split(' ');
        // Each available word comes later in the compiled ones than the word before it; its version is of this machine.
        let stem = |word: &str| word.split('-').next().unwrap_or_default().to_owned();
        assert!(
            available.split(' ').all(|word| rest.any(|other| other == stem(word))),
            "{available} in {compiled}"
        );
    }

    #[test]
    fn versions_join_their_words() {
        assert_eq!((word("nccl", "2.32.4").as_str(), word("rocm", "").as_str()), ("nccl-2.32.4", "rocm"));
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
