//! The fence: everything of this crate that touches the machine, all unsafe code, all vendor crates.
//!
//! What is here acts and never decides. What a build or a machine lacks is here too, under the same names, and
//! answers `Unsupported` (see `absent`), so that no caller writes a cfg.
#![allow(unsafe_code, reason = "the one room for it; every block names its fact")]

pub mod absent;
pub mod affinity;
pub mod ccl;
pub mod cgroup;
pub mod checksum;
pub mod clock;
pub mod compiler;
pub mod cpu;
pub mod crew;
mod deadline;
pub mod disk;
pub mod engine;
pub mod file;
pub mod fork;
pub mod futex;
pub mod gpu;
pub mod host;
pub mod kernel;
pub mod kfd;
mod layout;
pub mod library;
pub mod mapped;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod network;
pub mod numa;
pub mod nvml;
pub mod pci;
pub mod peer;
pub mod process;
pub mod random;
pub mod shared;
pub mod signal;
pub mod socket;
mod span;

#[cfg(not(feature = "mpi"))]
pub use absent::mpi;
pub use deadline::{CHECK_INTERVAL, Clock, Deadline, InterruptCheck};
pub use layout::Layout;
pub use span::{Element, Span, SpanMut, settle};
