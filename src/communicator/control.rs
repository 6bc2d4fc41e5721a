//! Small messages between every two members of a group, over the connections that exist.
//!
//! They go on when the group has ended, so that those that are left can agree on what comes next. A message comes whole, in the
//! order of its sender, at most once; it is lost only if its receiver ends or can no longer be reached.

use std::time::Duration;

use crate::error::Result;

/// Bytes of one message, at most.
pub const LETTER_LIMIT: usize = 960;

/// The field of the `Disagreed` that members raise who wait for each other in several groups.
pub const CROSSED: &str = "the order of calls in meshes that overlap";

/// How another member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is there, as far as this member can tell.
    Lives,
    /// A signal or a debugger has stopped its process.
    Stopped,
    /// It ended, closed the group, or cannot be reached any more: how.
    Ended(String),
    /// It went on in another group: in which.
    WentOn(String),
}

/// The messages of one member. Whoever uses it makes no call of the group at the same time.
pub trait Channel: Send + Sync {
    /// Sends a message of 1 to [`LETTER_LIMIT`] bytes; false if the connection does not take it now, and for ever if nobody reads.
    fn post(&self, seat: usize, message: &[u8]) -> bool;

    /// Takes all messages that have come, each with the seat of its sender.
    fn letters(&self) -> Vec<(usize, Vec<u8>)>;

    /// How a seat stands; what it sent before it ended has come when this says that it did.
    fn life(&self, seat: usize) -> Life;

    /// Whether all members may still make the group's next call.
    ///
    /// # Errors
    /// What that call would end in: `Lost` for one that ended, closed the group, or gave up, `Closed` if some went on.
    fn check(&self) -> Result<()>;

    /// Sleeps until a message may have come, at most so long.
    fn rest(&self, limit: Duration);

    /// Tells the other members, those that are stopped now too, that this one has gone on in another group: their calls in
    /// this one raise `Closed` saying so.
    fn went_on(&self, words: &str);

    /// The number of the last call that this member has entered.
    fn entered(&self) -> u64 {
        0
    }

    /// The call of this member that others have not entered, and their seats; `None` where all have.
    fn entering(&self) -> Option<(u64, Vec<usize>)> {
        None
    }

    /// Puts a question of at most [`LETTER_LIMIT`] bytes to a seat, also during a call. It may be lost.
    fn ask(&self, _seat: usize, _question: &[u8]) {}

    /// Takes the questions that have come, each with the seat of its asker; none while a call of this group goes on here.
    fn asked(&self) -> Vec<(usize, Vec<u8>)> {
        Vec::new()
    }

    /// Ends the group since calls were made in crossed order: members that wait in it, or call later, raise `Disagreed` on
    /// [`CROSSED`], in which `words` say what this member waits in.
    fn cross(&self, _words: &str) {}
}
