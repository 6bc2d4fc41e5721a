//! What this version, build or machine does not have, under the names that it will have.
//!
//! Every question here is answered: nothing is found, or the call is `Unsupported` with the reason.

/// CUDA, for a build without the feature `nccl`.
#[cfg(any(test, not(feature = "nccl")))]
pub(super) mod cuda {
    use crate::error::{Error, Result};
    use crate::sys::gpu::Table;

    /// Loads the driver of NVIDIA's GPUs.
    pub(in crate::sys) fn load() -> Result<Table> {
        Err(Error::unsupported("CUDA", "this build has none: build with the feature `nccl`"))
    }
}

/// HIP, for a build without the feature `rccl`.
#[cfg(any(test, not(feature = "rccl")))]
pub(super) mod hip {
    use crate::error::{Error, Result};
    use crate::sys::gpu::Table;

    /// Loads the runtime of AMD's GPUs.
    pub(in crate::sys) fn load() -> Result<Table> {
        Err(Error::unsupported("HIP", "this build has none: build with the feature `rccl`"))
    }
}

/// MPI, for a build without the feature `mpi`.
pub mod mpi {
    use std::convert::Infallible;
    use std::ffi::c_void;
    use std::time::Duration;

    use crate::error::{Error, Result};
    use crate::sys::network::Moved;
    use crate::sys::{Deadline, Span, SpanMut};

    /// Whether this build has MPI.
    #[must_use]
    pub const fn is_compiled() -> bool {
        false
    }

    /// The processes of `MPI_COMM_WORLD`, as far as this build can know.
    #[must_use]
    pub const fn running_count() -> Option<usize> {
        None
    }

    /// A communicator of the caller's.
    #[derive(Clone, Copy, Debug)]
    pub struct Handle(());

    impl Handle {
        /// Stands for the `MPI_Comm` at an address, which is not read.
        ///
        /// # Safety
        /// None is needed here; the build that has MPI reads it.
        #[must_use]
        pub const unsafe fn read(_address: *const c_void) -> Self {
            Self(())
        }
    }

    /// What a channel is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Medium {
        /// Where the processes meet.
        Meeting = 1,
        /// Agrees on calls.
        Control = 2,
        /// Carries payload.
        Data = 3,
        /// Carries sends and receives.
        Pair = 4,
    }

    /// The processes of a communicator; there is none.
    #[derive(Clone, Debug)]
    pub struct World(Infallible);

    /// A stream of bytes between two of them; there is none.
    #[derive(Debug)]
    pub struct Channel(Infallible);

    /// The MPI library of a build; there is none.
    #[derive(Debug)]
    pub struct Library(Infallible);

    impl std::fmt::Display for Library {
        fn fmt(&self, _formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            match self.0 {}
        }
    }

    impl Library {
        /// The number in its version text.
        #[must_use]
        pub fn number(&self) -> &str {
            match self.0 {}
        }

        /// Its file.
        #[must_use]
        pub fn path(&self) -> &std::path::Path {
            match self.0 {}
        }
    }

    /// The library that this build's calls go to.
    #[must_use]
    pub const fn library() -> Option<&'static Library> {
        None
    }

    /// Has something closed before MPI is finalised.
    pub fn before_end(_act: impl Fn() + Send + 'static) {}

    /// Waits a moment between two looks at MPI.
    pub fn rest(_looks: u32, _limit: Duration) {}

    impl World {
        /// Joins the processes of a communicator.
        ///
        /// # Errors
        /// `Unsupported` always.
        pub fn join(_handle: Option<Handle>, _deadline: &Deadline<'_>) -> Result<Self> {
            Err(Error::unsupported(
                "meeting over MPI",
                "this build has no MPI: build with the feature `mpi`, or name a shared directory, by which processes meet \
                 under mpirun and srun too",
            ))
        }

        /// The rank of this process.
        #[must_use]
        pub const fn rank(&self) -> usize {
            match self.0 {}
        }

        /// How many processes there are.
        #[must_use]
        pub const fn count(&self) -> usize {
            match self.0 {}
        }

        /// Says that every message on it has been received.
        pub const fn release(&self) {
            match self.0 {}
        }

        /// One end of a stream of bytes.
        #[must_use]
        pub const fn channel(&self, _rank: usize, _medium: Medium) -> Channel {
            match self.0 {}
        }
    }

    impl Channel {
        /// Sends as much as there is room for now.
        #[must_use]
        pub const fn send(&self, _source: Span<'_>, _is_awaited: bool) -> Moved {
            match self.0 {}
        }

        /// Takes what has come.
        #[must_use]
        pub const fn receive(&self, _target: &mut SpanMut<'_>) -> Moved {
            match self.0 {}
        }

        /// Whether the other side has begun to receive everything that was sent.
        #[must_use]
        pub const fn is_sent(&self) -> bool {
            match self.0 {}
        }

        /// Says that nothing more will be sent.
        pub const fn finish(&self) {
            match self.0 {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_absence_is_an_answer() {
        for (answer, feature) in [(cuda::load(), "`nccl`"), (hip::load(), "`rccl`")] {
            let error = answer.err().expect("absent in this build").to_string();
            assert!(error.contains(feature), "{error}");
        }
        let deadline = crate::sys::Deadline::after(std::time::Duration::from_secs(1));
        let error = mpi::World::join(None, &deadline).expect_err("absent in this build");
        assert!(error.to_string().contains("feature `mpi`"), "{error}");
        assert!(!mpi::is_compiled() && mpi::running_count().is_none() && mpi::library().is_none());
    }
}
