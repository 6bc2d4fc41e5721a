//! What the doctor knows before it judges: values alone, so that a test can make up any machine.

use std::path::PathBuf;

use uform::environment::{Launch, Seen};

/// Everything that is judged.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// This process's place, or why it has none.
    pub(super) launch: Result<Launch, String>,
    /// Every launcher that left something in the variables.
    pub(super) seen: Vec<Seen>,
    /// The host's name.
    pub(super) host_name: String,
    /// The directory that a run would meet in; `None` if it needs none, or if none is known.
    pub(super) directory: Option<Directory>,
    pub(super) memory: Memory,
    pub(super) cores: Cores,
    /// The memory domains that this process's cores are in, and all of the host.
    pub(super) memory_domains: (usize, usize),
    /// The limit on open files; `None` without one.
    pub(super) descriptor_limit: Option<u64>,
    pub(super) gpus: Gpus,
    /// Words of what the library can use here, and of what it was built with.
    pub(super) capabilities: (Vec<String>, Vec<String>),
    /// Libraries and launchers that were found.
    pub(super) installed: Vec<Installed>,
    /// Libraries that were found and cannot be used.
    pub(super) unusable: Vec<Unusable>,
    /// The addresses of this host, or why they are not known.
    pub(super) network: Result<Vec<Address>, String>,
}

/// What was tried in the directory.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    /// Where the choice comes from.
    pub(super) origin: String,
    /// The file system's name.
    pub(super) file_system: FileSystem,
    /// What a run does with files there: `Err` names the operation that failed.
    pub(super) usable: Result<(), String>,
    /// Whether a second lock is refused while the first is held; `Err` if there are no locks.
    pub(super) locks: Result<bool, String>,
    pub(super) free_bytes: u64,
    /// What earlier runs left: folder names, and the age of the oldest in seconds.
    pub(super) left: Vec<String>,
    pub(super) oldest_seconds: u64,
}

/// A file system by its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSystem {
    pub(super) name: &'static str,
    pub(super) reach: Reach,
}

/// Who sees what is written to a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// This host alone.
    Host,
    /// All hosts that mount it.
    Shared,
    /// It depends on what is behind it.
    Unknown,
}

#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// What the memory control groups still allow; `None` without a limit.
    pub(super) allowance_bytes: Option<u64>,
    /// The size and the free space of `/dev/shm`; `None` if it is not there.
    pub(super) shm_bytes: Option<(u64, u64)>,
    /// Whether a shared segment could be made; `Err` with the reason.
    pub(super) segment: Result<(), String>,
}

#[derive(Clone, Debug)]
pub(super) struct Cores {
    /// What this process's mask allows.
    pub(super) allowed: usize,
    pub(super) online: usize,
    /// Whole cores' worth of time that the control groups allow; `None` without a quota.
    pub(super) quota: Option<u32>,
    /// `OMP_NUM_THREADS`, if it is a number.
    pub(super) threads: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Gpus {
    /// The names of those that this process may use.
    pub(super) names: Vec<String>,
    /// The vendors' variables that are set, as `NAME=value`.
    pub(super) visibility: Vec<String>,
    /// What is there and cannot be used, one sentence each.
    pub(super) notes: Vec<String>,
    /// Devices of vendors that the kernel shows, such as `/dev/nvidia0`.
    pub(super) device_files: Vec<String>,
}

/// A library or a program.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    pub(super) what: &'static str,
    pub(super) path: PathBuf,
    /// Its version, if it tells.
    pub(super) version: Option<String>,
}

/// A library that a run could not use.
#[derive(Clone, Debug)]
pub(super) struct Unusable {
    /// Which one, its version if it tells, and why.
    pub(super) reason: String,
    pub(super) remedy: String,
}

/// One address of one network interface.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) interface: String,
    pub(super) address: String,
    pub(super) is_up: bool,
    /// Whether it leads back to this host only.
    pub(super) is_loopback: bool,
    /// Whether it is valid on one link alone.
    pub(super) is_link_local: bool,
    /// Whether UFORM_INTERFACES admits it, or is not set.
    pub(super) is_chosen: bool,
}
