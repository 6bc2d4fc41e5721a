//! One machine as a value: what a survey found, and nothing that was decided.

use serde::{Deserialize, Serialize};

use crate::vocabulary::{CpuClass, GpuClass, GpuVendor};

/// One GPU as this process may use it, in the order of `gpu_devices()`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuDevice {
    /// Who made it.
    pub vendor: GpuVendor,
    /// The vendor's own number, whatever the visibility variables say.
    pub vendor_ordinal: u32,
    /// The generation it dispatches as, `None` if it is not known.
    pub gpu_class: Option<GpuClass>,
    /// Multiprocessors or compute units.
    pub compute_units: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// The vendor's product name.
    pub name: String,
    /// The identity over processes and containers: UUID, or PCI address where there is none.
    pub identity: String,
    /// The PCI address, empty where there is none.
    #[serde(default)]
    pub pci_address: String,
    /// The memory domain that its PCI slot is near, `None` if not known.
    #[serde(default)]
    pub memory_domain: Option<u32>,
    /// Whether it has the multicast attribute.
    #[serde(default)]
    pub multicast: bool,
    /// The fabric it belongs to, `None` without one.
    #[serde(default)]
    pub fabric: Option<Fabric>,
    /// Direct links to other GPUs.
    #[serde(default)]
    pub links: Vec<GpuLink>,
}

/// A GPU's place in a fabric that may span machines.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// The identity of the fabric's cluster.
    pub cluster: String,
    /// The part of the cluster that is joined.
    pub clique: u32,
    /// Whether registration with the fabric is complete and healthy.
    pub complete: bool,
}

/// A direct link of a GPU: NVLink or xGMI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuLink {
    /// The `identity` of the GPU at the other end, or `switch` for an NVLink switch.
    pub peer: String,
    /// How many links go there.
    pub count: u32,
}

/// One memory domain (NUMA node).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryDomain {
    /// The system's number of the node.
    pub ordinal: u32,
    /// Its cores, ascending; empty for memory without cores.
    pub cores: Vec<u32>,
    /// Its memory in bytes; 0 for cores without memory.
    pub memory_bytes: u64,
}

/// One machine, the same value for every process that looks at the same machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Survey {
    /// The host name, for people only; never an identity.
    pub host_name: String,
    /// The kernel's boot identity.
    pub boot_id: String,
    /// Online cores, ascending.
    pub cores: Vec<u32>,
    /// Memory domains by ordinal; at least one.
    pub memory_domains: Vec<MemoryDomain>,
    /// Cores that are threads of one physical core, where it has several; each list ascending, the lists by their first.
    #[serde(default)]
    pub siblings: Vec<Vec<u32>>,
    /// Classes this machine can run, best last.
    pub cpu_classes: Vec<CpuClass>,
    /// All GPUs that any process could see here.
    #[serde(default)]
    pub gpus: Vec<GpuDevice>,
}
