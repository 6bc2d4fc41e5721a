//! What happens when a member dies, stops or misbehaves, phase by phase.

pub(crate) mod calls;
pub(crate) mod communicator;
pub(crate) mod crossed;
pub(crate) mod device;
pub(crate) mod fork;
pub(crate) mod hosts;
pub(crate) mod limits;
pub(crate) mod mesh;
pub(crate) mod network;
pub(crate) mod nfs_like;
pub(crate) mod odd;
pub(crate) mod pairs;
pub(crate) mod rendezvous;
pub(crate) mod sandbox;
pub(crate) mod shrink;
pub(crate) mod soak;
pub(crate) mod verbs;
pub(crate) mod warning;
