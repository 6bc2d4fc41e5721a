//! One suite per trait, run against every backend.

pub(crate) mod arrays;
pub(crate) mod ccl;
pub(crate) mod communicator;
pub(crate) mod deferred;
pub(crate) mod exchange;
pub(crate) mod gpu;
pub(crate) mod gpus;
pub(crate) mod group;
pub(crate) mod large;
pub(crate) mod members;
pub(crate) mod multicast;
pub(crate) mod pairs;
pub(crate) mod parts;
pub(crate) mod remote;
pub(crate) mod sanitizer;
pub(crate) mod threads;
pub(crate) mod trainer;
pub(crate) mod vram;
