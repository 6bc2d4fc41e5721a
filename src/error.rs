//! The one error of the crate, cut by what the caller can do next.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::vocabulary::Status;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// A second source that says something else than the refused one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// The other value.
    pub value: String,
    /// Where the other value comes from: a variable, an argument, a launcher.
    pub origin: String,
}

/// A member that did not come, with the last that was heard of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its index in the run.
    pub index: usize,
    /// The last word: what it was last seen doing and where, or that nothing was heard.
    pub last_word: String,
}

/// What went wrong, who was concerned, and what to do about it.
///
/// Display is one lower-case line with the values in it; a cause is `source()` and is not repeated.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This build, machine or version cannot do it; take another way.
    #[error("{what} is not supported: {why}")]
    Unsupported {
        /// The thing asked for.
        what: String,
        /// The reason, and another way where there is one.
        why: String,
    },
    /// Another call holds what this one needs; wait, or take another executor.
    #[error("{what} is held by {holder} (waited {}); retry when it has returned, or use another executor", Seconds(*waited))]
    Contended {
        /// What is held.
        what: String,
        /// The call that holds it.
        holder: String,
        /// How long this call waited for it.
        waited: Duration,
    },
    /// A wrong argument or variable; fix the call or the variable.
    #[error("{argument} = {value} ({origin}) is invalid: {reason}{}", Beside(contradiction))]
    Invalid {
        /// The argument or variable.
        argument: String,
        /// Its value as it was given.
        value: String,
        /// Where the value comes from.
        origin: String,
        /// What would be valid, or why this is not.
        reason: String,
        /// Another source that says something else.
        contradiction: Option<Contradiction>,
    },
    /// The object was closed before, or made before a fork; open another.
    #[error("{what} is closed: {why}")]
    Closed {
        /// The object.
        what: String,
        /// Why and by what it was closed.
        why: String,
    },
    /// The deadline passed; look at the members named.
    #[error("{phase} timed out after {}: {}", Seconds(*waited), Absent(missing))]
    TimedOut {
        /// What was being done, and by whom.
        phase: String,
        /// How long it was waited for.
        waited: Duration,
        /// The members that have not come, by index.
        missing: Vec<Missing>,
    },
    /// Members say different things; fix the deployment or the code.
    #[error("members disagree on {field}: here {mine}, index {index} {theirs}")]
    Disagreed {
        /// What they disagree on.
        field: String,
        /// What this member says, with its index.
        mine: String,
        /// What the other says.
        theirs: String,
        /// The other's index.
        index: usize,
    },
    /// A member is gone; restart from a checkpoint, or shrink.
    #[error("lost index {index} (host {host}, pid {pid}) in {phase}")]
    Lost {
        /// Its index in the run.
        index: usize,
        /// Its host.
        host: String,
        /// Its process.
        pid: u32,
        /// The phase or call it was last seen in, and how it ended where that is known.
        phase: String,
    },
    /// Memory, descriptors or space ran out; use less, or raise the limit.
    #[error("{place} cannot give {wanted_bytes} bytes (free: {free_bytes}); {remedy}")]
    Exhausted {
        /// What ran out, and where.
        place: String,
        /// Bytes asked for.
        wanted_bytes: u64,
        /// Bytes that were free.
        free_bytes: u64,
        /// What to do.
        remedy: String,
    },
    /// A vendor's library reported an error; its manual knows more.
    #[error("{library}: {call} returned {code}: {text}")]
    Vendor {
        /// The library.
        library: String,
        /// The function called.
        call: String,
        /// The number returned.
        code: i64,
        /// The library's own text.
        text: String,
    },
    /// The operating system refused an operation; fix the path, the rights or the disk.
    #[error("cannot {operation} {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as a verb.
        operation: String,
        /// What the system answered.
        source: std::io::Error,
    },
    /// Stored data is damaged; take another checkpoint.
    #[error("{} is corrupt at byte {offset}: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The caller's interrupt check ended the wait (Ctrl-C in Python).
    #[error("interrupted in {phase} after {}", Seconds(*waited))]
    Interrupted {
        /// What was being done.
        phase: String,
        /// How long it had lasted.
        waited: Duration,
    },
}

impl Error {
    /// The number that C returns for this error.
    #[must_use]
    pub const fn status(&self) -> Status {
        match self {
            Self::Unsupported { .. } => Status::Unsupported,
            Self::Contended { .. } => Status::Contended,
            Self::Invalid { .. } => Status::Invalid,
            Self::Closed { .. } => Status::Closed,
            Self::TimedOut { .. } => Status::TimedOut,
            Self::Disagreed { .. } => Status::Disagreed,
            Self::Lost { .. } => Status::Lost,
            Self::Exhausted { .. } => Status::Exhausted,
            Self::Vendor { .. } => Status::Vendor,
            Self::Io { .. } => Status::Io,
            Self::Corrupt { .. } => Status::Corrupt,
            Self::Interrupted { .. } => Status::Interrupted,
        }
    }

    /// An `Invalid` of one source.
    pub fn invalid(
        argument: impl Into<String>,
        value: impl fmt::Display,
        origin: impl Into<String>,
        reason: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            argument: argument.into(),
            value: value.to_string(),
            origin: origin.into(),
            reason: reason.into(),
            contradiction: None,
        }
    }

    /// An `Unsupported`.
    pub fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), why: why.into() }
    }

    /// An `Io` for a path.
    pub fn io(path: impl Into<PathBuf>, operation: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), operation: operation.into(), source }
    }

    /// The same error, saying which member of the run it happened to.
    #[must_use]
    pub(crate) fn of_member(self, index: usize) -> Self {
        let named = |text: String| {
            if text.starts_with("index ") { text } else { format!("index {index}: {text}") }
        };
        match self {
            Self::Unsupported { what, why } => Self::Unsupported { what: named(what), why },
            Self::Invalid { argument, value, origin, reason, contradiction } => {
                Self::Invalid { argument, value, origin, reason: named(reason), contradiction }
            }
            Self::TimedOut { phase, waited, missing } => {
                Self::TimedOut { phase: named(phase), waited, missing }
            }
            Self::Exhausted { place, wanted_bytes, free_bytes, remedy } => {
                Self::Exhausted { place: named(place), wanted_bytes, free_bytes, remedy }
            }
            Self::Vendor { library, call, code, text } => {
                Self::Vendor { library: named(library), call, code, text }
            }
            other => other,
        }
    }

    /// The whole line for people: the error and, after a colon, each cause.
    #[must_use]
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(inner) = cause {
            text.push_str(": ");
            text.push_str(&inner.to_string());
            cause = inner.source();
        }
        text
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 { write!(formatter, "{seconds:.2} s") } else { write!(formatter, "{seconds:.0} s") }
    }
}

struct Beside<'a>(&'a Option<Contradiction>);

impl fmt::Display for Beside<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(other) => write!(formatter, "; {} says {}", other.origin, other.value),
            None => Ok(()),
        }
    }
}

struct Absent<'a>(&'a [Missing]);

impl fmt::Display for Absent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A run of thousands must not print thousands of lines: the first ones show the pattern.
        const SHOWN: usize = 16;
        if self.0.is_empty() {
            return formatter.write_str("nobody is missing, the work itself took too long");
        }
        for (position, missing) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if position == 0 { "" } else { "; " };
            write!(formatter, "{comma}missing index {} ({})", missing.index, missing.last_word)?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(rest) if rest > 0 => write!(formatter, "; and {rest} more"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_lower_case_line() {
        let error = Error::Invalid {
            argument: "host_domain_index".into(),
            value: "3".into(),
            origin: "argument".into(),
            reason: "must be below host_domain_count".into(),
            contradiction: Some(Contradiction { value: "2".into(), origin: "WORLD_SIZE".into() }),
        };
        assert_eq!(
            error.to_string(),
            "host_domain_index = 3 (argument) is invalid: must be below host_domain_count; WORLD_SIZE says 2"
        );
        assert_eq!(error.status(), Status::Invalid);
    }

    #[test]
    fn a_member_is_named_once_and_before_the_rest() {
        let error = Error::unsupported("CUDA on this machine", "install the driver").of_member(3);
        assert_eq!(
            error.of_member(4).to_string(),
            "index 3: CUDA on this machine is not supported: install the driver"
        );
        let error = Error::invalid("devices", "7", "argument", "there is no GPU 7").of_member(1);
        assert_eq!(error.to_string(), "devices = 7 (argument) is invalid: index 1: there is no GPU 7");
    }

    #[test]
    fn many_missing_members_are_summed_up() {
        let missing =
            (0..40).map(|index| Missing { index, last_word: "nothing heard".into() }).collect::<Vec<_>>();
        let text = Error::TimedOut { phase: "registration".into(), waited: Duration::from_secs(3), missing }
            .to_string();
        assert!(text.starts_with("registration timed out after 3.00 s: missing index 0 (nothing heard)"));
        assert!(text.ends_with("and 24 more"), "{text}");
    }

    #[test]
    fn a_cause_follows_in_the_chain_only() {
        let error = Error::io("/nowhere", "open", std::io::Error::from_raw_os_error(2));
        assert_eq!(error.to_string(), "cannot open /nowhere");
        assert!(error.chain().contains("No such file"));
    }
}
