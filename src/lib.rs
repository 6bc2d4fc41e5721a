//! Collective operations and data-parallel training over host and GPU memory, with one mesh bootstrap for every
//! launcher.
//!
//! A [`Mesh`] is the processes of a run, met and connected. Its verbs are collective: all members call the same ones in
//! the same order. Started alone, a program is a mesh of one; started by `uform launch`, torchrun, mpirun or srun, its
//! processes find each other.
//!
//! ```
//! use uform::{Mesh, ReduceOp};
//!
//! let mesh = Mesh::bootstrap(None, None)?;
//! let mut gradients = vec![0.5f64; 1000];
//! mesh.all_reduce(&mut gradients, ReduceOp::Average)?;
//! println!("{}", mesh.topology());
//! mesh.close()?;
//! # Ok::<(), uform::Error>(())
//! ```
//!
//! Errors say what happened, which member was concerned, and what to do: see [`Error`]. Every wait has a deadline.
//! This version works on host memory, within a host and, but for the trainer, between hosts over TCP.

pub mod checkpoint;
pub mod communicator;
pub mod device;
pub mod environment;
pub mod error;
pub mod executor;
pub mod mesh;
pub mod recorder;
pub mod rendezvous;
pub mod sys;
pub mod topology;
pub mod trainer;
pub mod vocabulary;

pub use communicator::{Call, GpuArrays, Progress, ProgressCallback};
pub use environment::MeshOptions;
pub use error::{Error, Result};
pub use executor::{Deferred, Executor, HostOptions, VramOptions};
pub use mesh::{Arena, DeferredMesh, Mesh};
pub use sys::gpu::GpuSpan;
pub use sys::mpi::Handle as MpiCommunicator;
pub use sys::{Deadline, Element, InterruptCheck, Span, SpanMut};
pub use topology::{GpuDevice, MeshDescription, Topology};
pub use trainer::{DeferredTrainer, Optimizer, Parameter, StepReport, Trainer};
pub use vocabulary::{
    CpuClass, Dtype, GpuClass, GpuVendor, MeshDomain, Mood, MultimemTier, ReduceOp, Status, Verb,
};
