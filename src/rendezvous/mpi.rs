//! Meeting of the processes of one MPI world, without a directory.

use crate::error::Result;
use crate::rendezvous::Exchange;
use crate::sys::{Deadline, absent};
use crate::topology::Introduction;

/// Meets the other processes of the MPI world that the launcher started.
///
/// # Errors
/// `Unsupported` in this version.
pub fn meet(introduction: &Introduction, _deadline: &Deadline<'_>) -> Result<Box<dyn Exchange>> {
    let process = &introduction.process;
    let what = format!("a meeting of host {}, pid {} over MPI", process.host_name, process.pid);
    absent::open_mpi(&what).map(|never| match never {})
}
