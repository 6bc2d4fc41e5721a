//! Host memory between hosts over TCP, where there is no MPI.

use std::sync::Arc;

use super::Communicator;
use crate::error::Result;
use crate::sys::{Deadline, absent};
use crate::topology::Group;

/// Joins a group whose members do not share memory; `apart` says which, for messages.
///
/// # Errors
/// `Unsupported` in this version, with `apart` as the reason.
pub fn join(group: &Group, apart: &str, _deadline: &Deadline<'_>) -> Result<Arc<dyn Communicator>> {
    let what = format!("group {} of {} members over several hosts", group.name, group.seats.len());
    absent::open_network(&what, apart).map(|never| match never {})
}
