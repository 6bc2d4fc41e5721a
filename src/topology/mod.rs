//! The run as a value: who is in it, and what follows from that.
//!
//! Pure: no file, no clock, no environment, no machine. Every member derives the same topology from the same roster
//! and findings, without a message.

mod domain;
mod json;
mod machine;
pub mod picture;
mod placement;
mod plan;
mod recorded;
mod run;
mod tree;
mod words;

use serde::{Deserialize, Serialize};

pub use domain::Domain;
pub use machine::{Fabric, GpuDevice, GpuLink, MemoryDomain, Survey};
pub use placement::{Placement, Request, Seeker, THREAD_LIMIT};
pub use plan::{Group, Plan};
pub use recorded::{
    Damage, FabricHealth, FabricState, Mig, MigInstance, NvidiaAnswers, NvidiaDevice, NvidiaFabric,
    NvidiaLink, RecordedMachine, variables_from_json,
};
pub use run::{Address, Host, Listening, MeshDescription, RunGpu, Topology};
pub use words::{counted, ranges, size};

use crate::error::{Error, Result};
use crate::vocabulary::Nonce;

/// One process as others may identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The host name, for people only.
    pub host_name: String,
    /// The kernel's boot identity.
    pub boot_id: String,
    /// The process number in its own namespace.
    pub pid: u32,
    /// When it started, in clock ticks after boot: with boot identity and pid it is one process for ever.
    pub start_ticks: u64,
    /// Its command line, cut to 200 characters, for messages.
    pub command: String,
}

impl std::fmt::Display for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "host {}, pid {}, started at tick {}, command `{}`",
            self.host_name, self.pid, self.start_ticks, self.command
        )
    }
}

/// What one process says of itself when it registers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Introduction {
    /// Who it is.
    pub process: Process,
    /// The cores it may run on, ascending.
    pub cores: Vec<u32>,
    /// The cores' worth of time its cgroup allows, rounded down, at least 1; `None` without a quota.
    pub quota_cores: Option<u32>,
    /// The identities of the GPUs it sees, in the order of its ordinals.
    #[serde(default)]
    pub visible_gpus: Vec<String>,
    /// Those of them that its own executor drives; `None` leaves to the run which are its own.
    #[serde(default)]
    pub driven_gpus: Option<Vec<String>>,
    /// Whether others may drive one of these too: the user wants it, and the vendor's library can.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shares_gpus: bool,
    /// The name of its abstract unix socket, or a path; empty if it listens nowhere.
    pub socket: String,
    /// The launcher's name and the local index it gave, for messages and checks.
    pub launcher: String,
    /// The launcher's local index, `None` if it gave none.
    #[serde(default)]
    pub local_index: Option<usize>,
    /// The machine.
    pub survey: Survey,
}

/// One member of a committed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// Its index in the run.
    pub index: usize,
    /// Its nonce: this start of this process and no other.
    pub nonce: Nonce,
    /// What it said of itself.
    pub introduction: Introduction,
}

/// All members of a committed run, by index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Roster {
    /// The run's name for people: job and attempt.
    pub run: String,
    /// The members; position is index.
    pub members: Vec<Member>,
}

/// What one member tried and found, exchanged once more after the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Findings {
    /// The indexes whose memory this member really opened, itself included, ascending.
    pub opened: Vec<usize>,
    /// The indexes whose private memory it could read directly, ascending.
    #[serde(default)]
    pub readable: Vec<usize>,
    /// Whether its part of a trial multicast object could be made and bound; `None` if it was not tried.
    #[serde(default)]
    pub multicast: Option<bool>,
    /// What was in the way of it, for people; empty if nothing was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub multicast_problem: String,
}

impl Findings {
    /// The bytes that go to the other members.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        // Lists of numbers in a vector of bytes: nothing here can fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What the member with this index sent.
    ///
    /// # Errors
    /// `Disagreed` naming the member, for bytes that are no findings: it runs another version.
    pub fn from_bytes(bytes: &[u8], index: usize) -> Result<Self> {
        serde_json::from_slice(bytes).map_err(|error| Error::Disagreed {
            field: "the form of findings".to_owned(),
            mine: format!("version {}", env!("CARGO_PKG_VERSION")),
            theirs: format!("sent what this version cannot read ({error})"),
            index,
        })
    }
}
