//! A call as the members of a group compare it, whatever carries it: what is checked before it counts, and how it fails.

use super::Call;
use crate::error::{Error, Result};
use crate::sys::kernel::reduce;
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// A call as the members of a group compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) sequence: u64,
    pub(super) verb: Verb,
    pub(super) dtype: Dtype,
    pub(super) op: ReduceOp,
    pub(super) count: u64,
    pub(super) root: u64,
    /// Where the array lies in an arena of the group; not compared.
    pub(super) lies: Option<Lies>,
}

/// A place in a member's own part of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lies {
    /// The number of the arena in the group, from 1.
    pub(super) arena: u64,
    pub(super) offset: u64,
}

impl Descriptor {
    /// The descriptor of a call without payload.
    pub(super) fn bare(verb: Verb, sequence: u64) -> Self {
        Self { sequence, verb, dtype: Dtype::U8, op: ReduceOp::Sum, count: 0, root: 0, lies: None }
    }

    /// The field in which two calls differ, if one does that matters for their verb.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        let is_rooted = self.verb == Verb::Broadcast;
        let reduces = matches!(self.verb, Verb::AllReduce | Verb::ReduceScatter);
        if self.sequence != other.sequence {
            Some("the number of the call")
        } else if self.verb != other.verb {
            Some("the verb")
        } else if self.dtype != other.dtype {
            Some("the element type")
        } else if reduces && self.op != other.op {
            Some("the operation")
        } else if self.count != other.count {
            Some("the count")
        } else if is_rooted && self.root != other.root {
            Some("the root")
        } else {
            None
        }
    }
}

impl std::fmt::Display for Descriptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} #{}", self.verb.word(), self.sequence)?;
        match self.verb {
            Verb::AllReduce | Verb::ReduceScatter => {
                write!(formatter, "({} {}, {})", self.count, self.dtype, self.op)
            }
            Verb::Broadcast => write!(formatter, "({} {}, root {})", self.count, self.dtype, self.root),
            Verb::Barrier | Verb::Arena => Ok(()),
            _ => write!(formatter, "({} {})", self.count, self.dtype),
        }
    }
}

/// Why a member left: the member that it blames, and what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The index that was lost, `None` if nobody else is to blame.
    pub(super) lost: Option<usize>,
    pub(super) text: String,
}

impl Cause {
    /// The cause that a member gives which leaves the call `phase` with `error`.
    pub(super) fn of(error: &Error, phase: &str) -> Self {
        match error {
            Error::Lost { index, phase, .. } => Self { lost: Some(*index), text: phase.clone() },
            other => Self { lost: None, text: format!("left {phase}: {other}") },
        }
    }
}

/// Compares the calls of all seats; all members find the same, since each is compared with that of the first seat.
///
/// # Errors
/// `Disagreed` naming this member's call and the first that differs.
pub(super) fn compare(
    own: &Descriptor,
    seat: usize,
    calls: &[Option<Descriptor>],
    seats: &[usize],
) -> Result<()> {
    let first = calls.first().copied().flatten();
    let differs = |call: &Option<Descriptor>| {
        first.zip(*call).is_none_or(|(one, other)| one.difference(&other).is_some())
    };
    let Some(other) = calls.iter().position(differs) else { return Ok(()) };
    let mine_differs = calls.get(seat).is_none_or(differs);
    let other = if mine_differs { 0 } else { other };
    let theirs = calls.get(other).copied().flatten();
    let field = theirs.and_then(|theirs| own.difference(&theirs)).unwrap_or("the call");
    Err(Error::Disagreed {
        field: format!("{field} of a call"),
        mine: format!("{own}, index {}", seats[seat]),
        theirs: theirs.map_or_else(|| "no readable call".to_owned(), |theirs| theirs.to_string()),
        index: seats[other],
    })
}

/// The same error once more, for the calls after the one that met it.
pub(super) fn again(error: &Error) -> Error {
    match error {
        Error::Lost { index, host, pid, phase } => {
            Error::Lost { index: *index, host: host.clone(), pid: *pid, phase: phase.clone() }
        }
        Error::TimedOut { phase, waited, missing } => {
            Error::TimedOut { phase: phase.clone(), waited: *waited, missing: missing.clone() }
        }
        Error::Interrupted { phase, waited } => Error::Interrupted { phase: phase.clone(), waited: *waited },
        other => {
            Error::Closed { what: "the group".to_owned(), why: format!("an earlier call failed: {other}") }
        }
    }
}

pub(super) fn invalid(argument: &str, value: usize, reason: String) -> Error {
    Error::invalid(argument, format!("{value} bytes"), "call", reason)
}

/// Checks a call before it takes a number; gives its count.
pub(super) fn check(call: &Call<'_>, members: usize) -> Result<usize> {
    let size = call.dtype.size_bytes();
    let output = call.output.byte_count();
    let input = call.input.map(|input| input.byte_count());
    if !output.is_multiple_of(size) {
        return Err(invalid("output", output, format!("must be whole elements of {size} bytes")));
    }
    let expect = |argument: &str, value: usize, wanted: usize| {
        let reason = format!("must be {wanted} bytes, since the output has {output}");
        if value == wanted { Ok(()) } else { Err(invalid(argument, value, reason)) }
    };
    let mut count = output / size;
    match call.verb {
        Verb::AllReduce => {
            reduce::check(call.dtype, call.op)?;
            expect("input", input.unwrap_or(output), output)?;
        }
        Verb::Broadcast => {
            if call.root >= members {
                let reason = format!("must be below {members}");
                return Err(Error::invalid("root", call.root, "call", reason));
            }
            if let Some(input) = input {
                return Err(invalid("input", input, "must be none: a broadcast works in place".to_owned()));
            }
        }
        Verb::AllGather | Verb::Exchange => {
            if !count.is_multiple_of(members) {
                let reason = format!("must be a multiple of {members} elements of {size} bytes");
                return Err(invalid("output", output, reason));
            }
            count /= members;
            expect("input", input.unwrap_or(count * size), count * size)?;
        }
        Verb::ReduceScatter => {
            reduce::check(call.dtype, call.op)?;
            let Some(input) = input else {
                return Err(invalid(
                    "input",
                    0,
                    "must be given: there is no reduce_scatter in place".to_owned(),
                ));
            };
            expect("input", input, output.saturating_mul(members))?;
        }
        Verb::Barrier => {
            expect("input", input.unwrap_or(0), 0)?;
            if output != 0 {
                return Err(invalid("output", output, "must be empty: a barrier moves nothing".to_owned()));
            }
        }
        _ => return Err(Error::unsupported(call.verb.word(), "it is not in this version")),
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_matters_for_a_verb_is_compared() {
        let one = Descriptor {
            sequence: 1,
            verb: Verb::Broadcast,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            count: 1,
            root: 0,
            lies: None,
        };
        assert_eq!(one.difference(&Descriptor { op: ReduceOp::Max, ..one }), None);
        assert_eq!(one.difference(&Descriptor { root: 1, ..one }), Some("the root"));
        assert_eq!(one.difference(&Descriptor { dtype: Dtype::F64, ..one }), Some("the element type"));
    }
}
