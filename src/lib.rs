//! Collective operations and data-parallel training over host and GPU memory, with one mesh bootstrap for every
//! launcher.

pub mod communicator;
pub mod device;
pub mod environment;
pub mod error;
pub mod rendezvous;
pub mod sys;
pub mod topology;
pub mod vocabulary;

pub use environment::MeshOptions;
pub use error::{Error, Result};
