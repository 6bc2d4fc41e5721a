//! Saying once for whom a wait lasts long.

use std::cell::Cell;
use std::time::Duration;

use crate::error::Missing;
use crate::sys::socket::Namespaces;
use crate::sys::{Deadline, process};
use crate::topology::Roster;

/// When a wait says for whom it lasts.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// When it says so if a signal or a debugger has stopped one that it waits for.
pub(super) const STOPPED_PATIENCE: Duration = Duration::from_secs(1);

/// How often it is asked whether one is stopped: an answer costs a file for each of them.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// The word of a member that a signal or a debugger has stopped.
pub(super) const STOPPED: &str = "stopped by a signal";

/// What one wait says at most once.
#[derive(Debug)]
pub(super) struct Warning {
    /// What had passed of the deadline when the wait began.
    since: Duration,
    /// When it was asked last whether one is stopped.
    asked: Cell<Duration>,
    was_given: Cell<bool>,
}

impl Warning {
    /// Of a wait that begins now.
    pub(super) fn new(deadline: &Deadline<'_>) -> Self {
        let since = deadline.waited();
        Self { since, asked: Cell::new(since + STOPPED_PATIENCE), was_given: Cell::new(false) }
    }

    /// Says which members index `own` waits for in `phase`, once the wait lasts long, or sooner if one of them is stopped.
    pub(super) fn if_late(
        &self,
        deadline: &Deadline<'_>,
        is_any_stopped: impl FnOnce() -> bool,
        (own, phase): (usize, &str),
        missing: impl FnOnce() -> Vec<Missing>,
    ) {
        let now = deadline.waited();
        if self.was_given.get() || now < self.asked.get() {
            return;
        }
        self.asked.set(now + ASK_INTERVAL);
        if now.saturating_sub(self.since) > PATIENCE || is_any_stopped() {
            self.was_given.set(true);
            tracing::warn!("index {own} waits in {phase} for {}", names(missing()));
        }
    }
}

/// Members as a warning names them.
pub(super) fn names(missing: Vec<Missing>) -> String {
    let names = missing.into_iter().map(|one| format!("index {} ({})", one.index, one.last_word));
    names.collect::<Vec<_>>().join("; ")
}

/// Whether a signal or a debugger has stopped a member; false where its number means nothing in this process's namespace.
pub(super) fn is_stopped(roster: &Roster, own: usize, index: usize) -> bool {
    let [Some(own), Some(other)] =
        [own, index].map(|index| roster.members.get(index).map(|member| &member.introduction))
    else {
        return false;
    };
    let process = &other.process;
    own.process.boot_id == process.boot_id
        && Namespaces::own().share_numbers(&other.socket)
        && process::is_alive(process.pid, process.start_ticks)
        && process::is_stopped(process.pid)
}
