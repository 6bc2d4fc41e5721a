//! What this version, build or machine does not have, under the names that it will have.
//!
//! Every question here is answered: nothing is found, or the call is `Unsupported` with the reason.

use std::convert::Infallible;

use crate::error::{Error, Result};

/// Opens GPUs for an executor.
///
/// # Errors
/// `Unsupported` always.
pub fn open_gpus(what: &str) -> Result<Infallible> {
    Err(Error::unsupported(what, "GPU memory is not in this version; Executor::for_ram works on host memory"))
}

/// Loads NCCL or RCCL.
///
/// # Errors
/// `Unsupported` always.
pub fn open_ccl(what: &str) -> Result<Infallible> {
    Err(Error::unsupported(
        what,
        "NCCL and RCCL are not in this version; groups of one host use shared memory",
    ))
}

/// Joins the MPI that the launcher started.
///
/// # Errors
/// `Unsupported` always.
pub fn open_mpi(what: &str) -> Result<Infallible> {
    Err(Error::unsupported(what, "MPI is not in this version; processes meet through a shared directory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_absence_is_an_answer() {
        let answers = [open_gpus("for_vram"), open_ccl("a GPU group"), open_mpi("an MPI group")];
        for answer in answers {
            let error = answer.expect_err("absent in this version");
            assert!(error.to_string().contains("not in this version"), "{error}");
        }
    }
}
