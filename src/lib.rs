//! Collective operations and data-parallel training over host and GPU memory, with one mesh bootstrap for every
//! launcher.

pub mod checkpoint;
pub mod communicator;
pub mod device;
pub mod environment;
pub mod error;
pub mod executor;
pub mod mesh;
pub mod rendezvous;
pub mod sys;
pub mod topology;
pub mod trainer;
pub mod vocabulary;

pub use environment::MeshOptions;
pub use error::{Error, Result};
pub use executor::{Executor, HostOptions};
pub use mesh::{Arena, Mesh};
pub use sys::{Deadline, Element, InterruptCheck, Span, SpanMut};
pub use topology::{GpuDevice, MeshDescription, Topology};
pub use trainer::{Optimizer, Parameter, StepReport, Trainer};
pub use vocabulary::{CpuClass, Dtype, GpuClass, GpuVendor, Mood, MultimemTier, ReduceOp, Status, Verb};
