//! GPU memory: NCCL and RCCL, one adapter over two function tables.

use std::sync::Arc;

use super::Communicator;
use crate::error::Result;
use crate::sys::{Deadline, absent};
use crate::topology::Group;

/// Joins a group of GPUs that one multimem domain, or the run, holds together.
///
/// # Errors
/// `Unsupported` in this version.
pub fn join(group: &Group, _deadline: &Deadline<'_>) -> Result<Arc<dyn Communicator>> {
    let what = format!("group {} of {} members over GPU memory", group.name, group.seats.len());
    absent::open_ccl(&what).map(|never| match never {})
}
