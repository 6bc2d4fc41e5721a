//! Why a meeting ended without a run, as a value that every member can read and report.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Missing};
use crate::topology::Process;

/// What one side of a disagreement says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// The index that says it.
    pub(super) index: usize,
    /// What it says.
    pub(super) value: String,
}

/// The cause that all members of a failed meeting report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reason {
    /// The deadline of index `by` passed, and these had not come.
    TimedOut { by: usize, phase: String, waited_milliseconds: u64, missing: Vec<(usize, String)> },
    /// Two members say different things.
    Disagreed { field: String, sides: [Side; 2] },
    /// A member died, or gave up for a cause of its own that `phase` tells.
    Lost { index: usize, host: String, pid: u32, phase: String },
}

impl Reason {
    /// The reason of a member that leaves with `error` while it waited in `phase`.
    pub(crate) fn of(error: &Error, index: usize, process: &Process) -> Self {
        match error {
            Error::TimedOut { phase, waited, missing } => Self::TimedOut {
                by: index,
                phase: phase.clone(),
                waited_milliseconds: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
                missing: missing.iter().map(|one| (one.index, one.last_word.clone())).collect(),
            },
            Error::Disagreed { field, mine, theirs, index: other } => Self::Disagreed {
                field: field.clone(),
                sides: [Side { index, value: mine.clone() }, Side { index: *other, value: theirs.clone() }],
            },
            Error::Lost { index, host, pid, phase } => {
                Self::Lost { index: *index, host: host.clone(), pid: *pid, phase: phase.clone() }
            }
            other => Self::Lost {
                index,
                host: process.host_name.clone(),
                pid: process.pid,
                phase: format!("rendezvous, where it gave up: {}", other.chain()),
            },
        }
    }

    /// The bytes that go to the other members.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Numbers and texts in a vector of bytes: nothing here can fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What another member sent, if it is a reason.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// Two processes with one index.
    pub(super) fn duplicate(index: usize, first: &Process, second: &Process) -> Self {
        let side = |process: &Process| Side { index, value: process.to_string() };
        Self::Disagreed { field: format!("who is index {index}"), sides: [side(first), side(second)] }
    }

    /// Another index 0 removed the attempt of this one at `path`, and is not seen any more.
    pub(super) fn removed(own: &Process, path: &std::path::Path) -> Self {
        let theirs = format!("another process, which removed {}", path.display());
        let side = |value| Side { index: 0, value };
        Self::Disagreed { field: "who is index 0".to_owned(), sides: [side(own.to_string()), side(theirs)] }
    }

    /// Two members that were told different counts.
    pub(super) fn counts(first: (usize, usize), second: (usize, usize)) -> Self {
        let side = |(index, count): (usize, usize)| Side { index, value: format!("count {count}") };
        Self::Disagreed { field: "the count of processes".to_owned(), sides: [side(first), side(second)] }
    }

    /// The error that the member `index` reports; `process` tells it from another one with its index.
    pub(crate) fn error(&self, index: usize, process: &Process) -> Error {
        match self.clone() {
            Self::TimedOut { by, phase, waited_milliseconds, missing } => Error::TimedOut {
                phase: if by == index { phase } else { format!("{phase} (as index {by} saw it)") },
                waited: Duration::from_millis(waited_milliseconds),
                missing: missing.into_iter().map(|(index, last_word)| Missing { index, last_word }).collect(),
            },
            Self::Disagreed { field, sides: [first, second] } => {
                let own = process.to_string();
                let is_second = second.index == index && (first.index != index || second.value == own);
                let (mine, theirs) = if is_second { (second, first) } else { (first, second) };
                let said = if mine.index == index {
                    mine.value
                } else {
                    format!("index {} {}", mine.index, mine.value)
                };
                Error::Disagreed { field, mine: said, theirs: theirs.value, index: theirs.index }
            }
            Self::Lost { index, host, pid, phase } => Error::Lost { index, host, pid, phase },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> Process {
        Process { host_name: "h".into(), boot_id: "b".into(), pid, start_ticks: 1, command: "train".into() }
    }

    #[test]
    fn each_side_of_a_duplicate_is_told_of_the_other() {
        let reason = Reason::duplicate(2, &process(10), &process(11));
        let first = reason.error(2, &process(10)).to_string();
        let second = reason.error(2, &process(11)).to_string();
        assert!(first.contains("here host h, pid 10") && first.contains("index 2 host h, pid 11"), "{first}");
        assert!(
            second.contains("here host h, pid 11") && second.contains("index 2 host h, pid 10"),
            "{second}"
        );
    }

    #[test]
    fn unequal_counts_name_both_members() {
        let reason = Reason::counts((0, 2), (1, 3));
        let at_one = reason.error(1, &process(1)).to_string();
        assert!(at_one.contains("here count 3, index 0 count 2"), "{at_one}");
        let at_five = reason.error(5, &process(1)).to_string();
        assert!(at_five.contains("here index 0 count 2, index 1 count 3"), "{at_five}");
    }

    #[test]
    fn the_reason_of_one_is_reported_by_another() {
        let missing = vec![Missing { index: 3, last_word: "nothing heard".into() }];
        let error = Error::TimedOut { phase: "registration".into(), waited: Duration::from_secs(2), missing };
        let told = Reason::of(&error, 1, &process(4)).error(2, &process(5)).to_string();
        assert!(told.contains("as index 1 saw it") && told.contains("missing index 3"), "{told}");
        let full = Error::io("/full", "write", std::io::Error::from_raw_os_error(28));
        let told = Reason::of(&full, 1, &process(4)).error(2, &process(5)).to_string();
        assert!(told.contains("index 1") && told.contains("pid 4") && told.contains("No space"), "{told}");
    }
}
