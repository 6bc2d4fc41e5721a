//! How processes meet: each ends with the same roster, or each with an error that says why.

pub mod directory;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
pub mod memory;
pub mod mpi;
mod reason;
mod record;
mod stored;

pub(crate) use reason::Reason;

use crate::error::{Error, Result};
use crate::sys::Deadline;
use crate::topology::Roster;

/// The secret of one run, 32 random bytes drawn by its leader; whoever proves it belongs to the run.
#[derive(Clone)]
pub struct RunKey(pub [u8; 32]);

impl std::fmt::Debug for RunKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("RunKey(..)")
    }
}

/// A place where the members of one run have met: the roster is committed, and all members agree on it.
///
/// The place closes when bootstrap ends; nothing touches it afterwards.
pub trait Exchange: Send {
    /// The index of this member.
    fn index(&self) -> usize;

    /// How many members there are.
    fn count(&self) -> usize {
        self.roster().members.len()
    }

    /// The committed roster.
    fn roster(&self) -> &Roster;

    /// The run's key.
    fn key(&self) -> &RunKey;

    /// Gives everybody's payload for `phase`, in the order of indexes.
    ///
    /// All members call it with the same phases in the same order. If it returns on one member it returns on all,
    /// even if that one dies at once.
    ///
    /// # Errors
    /// `TimedOut` naming who is missing, `Lost` for a member that died before it published, the reason of one that
    /// gave up, and `Io`.
    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>>;

    /// Tells the others why this member leaves before the mesh is formed; best effort, never blocks long.
    fn give_up(&mut self, reason: &Error);

    /// Leaves the meeting place after success; removes what is this member's to remove.
    fn close(&mut self);
}
