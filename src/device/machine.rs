//! The machine that is looked at: the real one, or a recorded one in a folder.
//!
//! Both answer through the same file tree and the same values, so that everything above is one code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::environment::{self, MACHINE_VARIABLE, Visibility};
use crate::error::{Error, Result};
use crate::sys::cpu::Processor;
use crate::sys::{affinity, cgroup, engine, host, process};
use crate::topology::{Damage, MemoryDomain, NvidiaAnswers, RecordedMachine, variables_from_json};

use super::nvidia;

/// The file that makes a folder a recorded machine.
const MACHINE_FILE: &str = "machine.json";

/// One machine.
pub(super) struct Machine {
    /// The root of its file tree.
    root: PathBuf,
    /// What its files say that no file tree of a kernel does; `None` for the real machine.
    recorded: Option<Recorded>,
}

struct Recorded {
    machine: RecordedMachine,
    processor: Processor,
    nvidia: NvidiaAnswers,
    /// The variables that a process there starts with.
    variables: BTreeMap<String, String>,
}

impl Machine {
    /// The machine that `UFORM_MACHINE` names, else the real one.
    ///
    /// # Errors
    /// `Invalid` for a folder that holds no machine, naming what is missing; `Corrupt` for a damaged file; `Io`.
    pub(super) fn open() -> Result<Self> {
        match environment::machine_folder() {
            Some(folder) => Self::recorded(&folder),
            None => Ok(Self { root: PathBuf::from(host::ROOT), recorded: None }),
        }
    }

    /// The machine that is recorded in this folder.
    pub(super) fn recorded(folder: &Path) -> Result<Self> {
        let text = read(folder, MACHINE_FILE)?.ok_or_else(|| {
            let reason =
                format!("holds no {MACHINE_FILE}: name the folder of a recorded machine, or unset it");
            Error::invalid(MACHINE_VARIABLE, folder.display(), "environment", reason)
        })?;
        let machine =
            RecordedMachine::from_json(&text).map_err(|damage| corrupt(folder, MACHINE_FILE, damage))?;
        let processor = match &machine.processor {
            Some(text) => {
                let source = format!("processor in {}", folder.join(MACHINE_FILE).display());
                Processor::parse(text, &source)?
            }
            None => Processor::Other,
        };
        let nvidia = match read(folder, "gpus.json")? {
            Some(text) => {
                NvidiaAnswers::from_json(&text).map_err(|damage| corrupt(folder, "gpus.json", damage))?
            }
            None => NvidiaAnswers::default(),
        };
        let variables = match read(folder, "environment.json")? {
            Some(text) => {
                let variables = variables_from_json(&text);
                let variables = variables.map_err(|damage| corrupt(folder, "environment.json", damage))?;
                if let Some(odd) = variables.keys().find(|name| !Visibility::NAMES.contains(&name.as_str())) {
                    let reason = format!("{odd} is none of {}", Visibility::NAMES.join(", "));
                    return Err(corrupt(folder, "environment.json", Damage { offset: 0, reason }));
                }
                variables
            }
            None => BTreeMap::new(),
        };
        let found = Self {
            root: folder.to_owned(),
            recorded: Some(Recorded { machine, processor, nvidia, variables }),
        };
        found.usable_cores()?;
        found.check_engines()?;
        Ok(found)
    }

    fn check_engines(&self) -> Result<()> {
        let known = |word: &&String| word.split('-').next().is_some_and(|stem| engine::WORDS.contains(&stem));
        let Some(odd) = self.engines().unwrap_or_default().iter().find(|word| !known(word)) else {
            return Ok(());
        };
        let reason = format!("engines has {odd:?}, which is none of {}", engine::WORDS.join(", "));
        Err(corrupt(&self.root, MACHINE_FILE, Damage { offset: 0, reason }))
    }

    /// The root of its file tree.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether it is a recorded one.
    pub(super) fn is_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    pub(super) fn host_name(&self) -> String {
        match &self.recorded {
            Some(recorded) => recorded.machine.host_name.clone(),
            None => process::host_name(),
        }
    }

    pub(super) fn boot_id(&self) -> Result<String> {
        match &self.recorded {
            Some(recorded) => Ok(recorded.machine.boot_id.clone()),
            None => process::boot_id(),
        }
    }

    /// The online cores.
    pub(super) fn cores(&self) -> Result<Vec<u32>> {
        if self.is_recorded() {
            // A recorded machine has the cores that it says; the mask of this process is another machine's.
            const ONLINE: &str = "sys/devices/system/cpu/online";
            let text = read(&self.root, ONLINE)?.unwrap_or_default();
            return match host::parse_list(&text) {
                Some(cores) if !cores.is_empty() => Ok(cores),
                _ => {
                    let reason = "must list the online cores, such as 0-7".to_owned();
                    Err(corrupt(&self.root, ONLINE, Damage { offset: 0, reason }))
                }
            };
        }
        host::cores(&self.root)
    }

    /// The cores that this process may run on.
    pub(super) fn usable_cores(&self) -> Result<Vec<u32>> {
        let Some(recorded) = &self.recorded else { return affinity::get_affinity() };
        let online = self.cores()?;
        let Some(text) = &recorded.machine.allowed_cores else { return Ok(online) };
        match host::parse_list(text) {
            Some(cores) if !cores.is_empty() && cores.iter().all(|core| online.contains(core)) => Ok(cores),
            _ => {
                let reason = format!(
                    "allowed_cores is {text:?}, and must list cores of sys/devices/system/cpu/online, such as 0-3,8"
                );
                Err(corrupt(&self.root, MACHINE_FILE, Damage { offset: 0, reason }))
            }
        }
    }

    /// The whole cores' worth of time that control groups allow.
    pub(super) fn quota_cores(&self) -> Option<u32> {
        cgroup::quota_cores(&self.root)
    }

    /// The memory domains by ordinal.
    pub(super) fn memory_domains(&self, cores: &[u32]) -> Result<Vec<MemoryDomain>> {
        let domains = host::memory_domains(&self.root, cores)?.into_iter().map(|domain| MemoryDomain {
            ordinal: domain.ordinal,
            cores: domain.cores,
            memory_bytes: domain.memory_bytes,
        });
        Ok(domains.collect())
    }

    /// What the NVIDIA driver answers; nothing on a machine without one.
    pub(super) fn nvidia(&self) -> NvidiaAnswers {
        match &self.recorded {
            Some(recorded) => recorded.nvidia.clone(),
            None => nvidia::ask(),
        }
    }

    /// What a recorded processor said; `None` for the real machine.
    pub(super) fn processor(&self) -> Option<&Processor> {
        self.recorded.as_ref().map(|recorded| &recorded.processor)
    }

    /// The engines that a recorded machine has, as capability words.
    pub(super) fn engines(&self) -> Option<&[String]> {
        self.recorded.as_ref().map(|recorded| recorded.machine.engines.as_slice())
    }

    /// The visibility variables of this process; what it does not set is as recorded.
    pub(super) fn visibility(&self) -> Visibility {
        let assumed = |name: &str| self.recorded.as_ref()?.variables.get(name).cloned();
        Visibility::read(&assumed)
    }
}

/// The text of a file of a recorded machine; `None` if there is no such file.
fn read(folder: &Path, name: &str) -> Result<Option<String>> {
    let path = folder.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => {
                let offset = error.utf8_error().valid_up_to() as u64;
                Err(corrupt(folder, name, Damage { offset, reason: "is no UTF-8 text".to_owned() }))
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, "read", error)),
    }
}

fn corrupt(folder: &Path, name: &str, damage: Damage) -> Error {
    Error::Corrupt { path: folder.join(name), offset: damage.offset, reason: damage.reason }
}
