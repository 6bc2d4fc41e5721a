//! A call as the members of a group compare it, whatever carries it: what is checked before it counts, and how it fails.

use super::Call;
use super::control::CROSSED;
use crate::error::{Error, Result};
use crate::recorder::Site;
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
    /// What the counts of its parts come to, 0 for equal parts; of a verb without parts what its list of arrays comes to, with
    /// the lowest bit for a reproducible one.
    pub(super) shape: u64,
    /// Whether the arrays are in the members' GPUs' memory.
    pub(super) on_gpu: bool,
    /// Where the array lies in an arena of the group; not compared.
    pub(super) lies: Option<Lies>,
    /// Where this member makes the call; not compared, and of other members in words beside it.
    pub(super) site: Site,
}

/// A place in a member's own part of an arena, or in its private memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lies {
    /// The number of the arena in the group, from 1.
    pub(super) arena: u64,
    pub(super) offset: u64,
    /// Where the output lies, for private memory.
    pub(super) output: u64,
}

impl Descriptor {
    /// The descriptor of a call without payload.
    pub(super) fn bare(verb: Verb, sequence: u64) -> Self {
        Self {
            sequence,
            verb,
            dtype: Dtype::U8,
            op: ReduceOp::Sum,
            count: 0,
            root: 0,
            shape: 0,
            on_gpu: false,
            lies: None,
            site: Site::given(),
        }
    }

    /// Whether its parts are counted.
    pub(super) const fn is_counted(&self) -> bool {
        self.shape != 0 && has_parts(self.verb)
    }

    /// The field in which two calls differ, if one does that matters for their verb.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.sequence != other.sequence {
            Some("the number of the call")
        } else if self.verb != other.verb {
            Some("the verb")
        } else if self.on_gpu != other.on_gpu {
            Some("the memory")
        } else if self.dtype != other.dtype {
            Some("the element type")
        } else if reduces(self.verb) && self.op != other.op {
            Some("the operation")
        } else if self.count != other.count {
            Some("the count")
        } else if is_rooted(self.verb) && self.root != other.root {
            Some("the root")
        } else if !has_parts(self.verb) && self.shape ^ other.shape == 1 {
            Some("reproducible")
        } else if self.shape != other.shape {
            Some("the counts")
        } else {
            None
        }
    }
}

impl std::fmt::Display for Descriptor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} #{}", self.verb.word(), self.sequence)?;
        if !has_parts(self.verb) && self.shape & 1 == 1 {
            write!(formatter, " reproducible")?;
        }
        if !has_parts(self.verb) && self.shape > 1 {
            write!(formatter, " of a list")?;
        }
        match self.verb {
            Verb::AllReduce | Verb::ReduceScatter => {
                write!(formatter, "({} {}, {})", self.count, self.dtype, self.op)
            }
            Verb::Reduce => {
                write!(formatter, "({} {}, {}, root {})", self.count, self.dtype, self.op, self.root)
            }
            verb if is_rooted(verb) => {
                write!(formatter, "({} {}, root {})", self.count, self.dtype, self.root)
            }
            Verb::Barrier | Verb::Arena => Ok(()),
            _ => write!(formatter, "({} {})", self.count, self.dtype),
        }?;
        if self.on_gpu { write!(formatter, " on GPU memory") } else { Ok(()) }
    }
}

/// Why a member left: the member that it blames, and what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The index that was lost, `None` if nobody else is to blame.
    pub(super) lost: Option<usize>,
    /// Whether it left since calls were crossed; then `text` is the call that it waits in.
    pub(super) is_crossed: bool,
    pub(super) text: String,
}

/// What stands for nobody in the number of the member that a cause blames.
const NOBODY: u64 = u64::MAX;
/// What stands there for calls that were crossed.
const ORDER: u64 = u64::MAX - 1;

impl Cause {
    /// The cause that a member gives which leaves the call `phase` with `error`.
    pub(super) fn of(error: &Error, phase: &str) -> Self {
        match error {
            Error::Lost { index, phase, .. } => {
                Self { lost: Some(*index), is_crossed: false, text: phase.clone() }
            }
            other => Self { lost: None, is_crossed: false, text: format!("left {phase}: {other}") },
        }
    }

    /// The cause of a member that found calls to be crossed.
    pub(super) fn crossed(words: &str) -> Self {
        Self { lost: None, is_crossed: true, text: words.to_owned() }
    }

    /// Its kind as others read it.
    pub(super) fn blame(&self) -> u64 {
        match self.lost {
            Some(index) => index as u64,
            None if self.is_crossed => ORDER,
            None => NOBODY,
        }
    }

    /// The cause of that kind.
    pub(super) fn blaming(blame: u64, text: String) -> Self {
        let lost = if blame == NOBODY || blame == ORDER { None } else { usize::try_from(blame).ok() };
        Self { lost, is_crossed: blame == ORDER, text }
    }

    /// What the call of another member ends in where the member `index` left because calls were crossed.
    pub(super) fn disagreement(&self, index: usize) -> Option<Error> {
        self.is_crossed.then(|| Error::Disagreed {
            field: CROSSED.to_owned(),
            mine: "a call".to_owned(),
            theirs: self.text.clone(),
            index,
        })
    }
}

/// Compares the calls of all seats, `suffix` naming the group and `site` where a seat has made its call; all members find the same, since each is compared with that of the first seat.
///
/// # Errors
/// `Disagreed` naming this member's call and the first that differs.
pub(super) fn compare(
    own: &Descriptor,
    seat: usize,
    calls: &[Option<Descriptor>],
    seats: &[usize],
    suffix: &str,
    site: &dyn Fn(usize) -> String,
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
    let place = |seat: usize| match site(seat) {
        site if site.is_empty() => site,
        site => format!(" at {site}"),
    };
    let theirs = theirs.map(|theirs| format!("{theirs}{suffix}{}", place(other)));
    Err(Error::Disagreed {
        field: format!("{field} of a call"),
        mine: format!("{own}{suffix}{}, index {}", place(seat), seats[seat]),
        theirs: theirs.unwrap_or_else(|| "no readable call".to_owned()),
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

/// Why a group makes no more calls in which calls were crossed.
pub(super) fn crossed(name: &str, words: &str) -> Error {
    let why =
        format!("calls were made in crossed order, a member waits in {words}; shrink it, or open another");
    Error::Closed { what: format!("the group {name}"), why }
}

/// Whether an error of a call ends its group: others cannot follow it.
pub(super) const fn ends_group(error: &Error) -> bool {
    !matches!(
        error,
        Error::Disagreed { .. } | Error::Exhausted { .. } | Error::Invalid { .. } | Error::Closed { .. }
    )
}

/// Whether two members alone take part in the verb.
pub(super) const fn is_paired(verb: Verb) -> bool {
    matches!(verb, Verb::Send | Verb::Receive)
}

pub(super) fn invalid(argument: &str, value: usize, reason: String) -> Error {
    Error::invalid(argument, format!("{value} bytes"), "call", reason)
}

/// Whether one seat of the verb differs from the others.
pub(super) const fn is_rooted(verb: Verb) -> bool {
    matches!(verb, Verb::Broadcast | Verb::Reduce | Verb::Gather | Verb::Scatter)
}

/// Whether the verb combines elements.
pub(super) const fn reduces(verb: Verb) -> bool {
    matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::ReduceScatter)
}

/// Whether arrays of the verb have a part for each seat.
const fn has_parts(verb: Verb) -> bool {
    matches!(verb, Verb::AllGather | Verb::Gather | Verb::Scatter | Verb::ReduceScatter | Verb::AllToAll)
}

/// Checks a call before it takes a number; gives its count: the elements of one part, of all parts if they are counted,
/// and 0 for a counted all_to_all, whose members need not have the same.
pub(super) fn check(call: &Call<'_>, seat: usize, members: usize) -> Result<usize> {
    let (seat, members) = call.place.unwrap_or((seat, members));
    let size = call.dtype.size_bytes();
    if call.input_layout.or(call.output_layout).is_some() {
        return Err(Error::invalid("layout", "strided", "call", "must be packed before it comes to a group"));
    }
    if reduces(call.verb) {
        reduce::check(call.dtype, call.op)?;
    }
    if is_rooted(call.verb) && call.root >= members {
        let reason = format!("must be below {members}");
        return Err(Error::invalid("root", call.root, "call", reason));
    }
    if is_paired(call.verb) && (call.root >= members || call.root == seat) {
        let argument = if call.verb == Verb::Send { "destination" } else { "source" };
        let reason = format!("must be another member's index, below {members}; this is index {seat}");
        return Err(Error::invalid(argument, call.root, "call", reason));
    }
    let is_root = call.root == seat;
    let counts = Counts::check(call, seat, members)?;
    let output = Length { argument: "output", size, bytes: Some(call.output_bytes()) };
    let input = Length { argument: "input", size, bytes: call.input_bytes() };
    let (length, given) = (output.elements()?, input.elements()?);
    match call.verb {
        Verb::Send => output.exactly(0).and_then(|_| input.given(given)),
        Verb::Receive => match input.bytes {
            Some(_) => Err(input.wrong("must be none: a receive has an output alone")),
            None => Ok(length),
        },
        Verb::AllReduce => input.optional(length),
        Verb::Broadcast => match input.bytes {
            Some(_) => Err(input.wrong("must be none: a broadcast works in place")),
            None => Ok(length),
        },
        Verb::Reduce if is_root => input.optional(length),
        Verb::Reduce => output.exactly(0).and_then(|_| input.given(given)),
        Verb::AllGather | Verb::Exchange | Verb::Split => match counts {
            None => output.parts(members).and_then(|each| input.optional(each)),
            Some(counts) => {
                output.exactly(counts.total)?;
                input.optional(counts.own).map(|_| counts.total)
            }
        },
        Verb::Gather => {
            let each = input.given(counts.as_ref().map_or(given, |counts| counts.own))?;
            let total = counts.as_ref().map_or(each.saturating_mul(members), |counts| counts.total);
            output.exactly(if is_root { total } else { 0 })?;
            Ok(counts.map_or(each, |counts| counts.total))
        }
        Verb::Scatter => {
            let total = counts.as_ref().map_or(length.saturating_mul(members), |counts| counts.total);
            match (is_root, input.bytes) {
                (true, _) => input.given(total).map(|_| ())?,
                (false, Some(_)) => return Err(input.wrong("must be none: only the root gives")),
                (false, None) => {}
            }
            output.exactly(counts.as_ref().map_or(length, |counts| counts.own))?;
            Ok(counts.map_or(length, |counts| counts.total))
        }
        Verb::ReduceScatter => match counts {
            None => input.given(length.saturating_mul(members)).map(|_| length),
            Some(counts) => {
                output.exactly(counts.own)?;
                input.given(counts.total)
            }
        },
        Verb::AllToAll => match counts {
            None => {
                let each = output.parts(members)?;
                input.given(length).map(|_| each)
            }
            Some(counts) => {
                output.exactly(counts.received)?;
                input.given(counts.total).map(|_| 0)
            }
        },
        Verb::Barrier => {
            input.optional(0)?;
            output.exactly(0)
        }
        _ => Err(Error::unsupported(call.verb.word(), "it is not in this version")),
    }
}

/// One array of a call, as it is checked; lengths are elements.
struct Length {
    argument: &'static str,
    size: usize,
    bytes: Option<usize>,
}

impl Length {
    fn wrong(&self, reason: impl Into<String>) -> Error {
        invalid(self.argument, self.bytes.unwrap_or(0), reason.into())
    }

    fn elements(&self) -> Result<usize> {
        let bytes = self.bytes.unwrap_or(0);
        if bytes.is_multiple_of(self.size) {
            return Ok(bytes / self.size);
        }
        Err(self.wrong(format!("must be whole elements of {} bytes", self.size)))
    }

    fn exactly(&self, wanted: usize) -> Result<usize> {
        if self.bytes.unwrap_or(0) == wanted.saturating_mul(self.size) {
            return Ok(wanted);
        }
        Err(self.wrong(format!("must be {wanted} elements of {} bytes", self.size)))
    }

    /// It may be absent, in place.
    fn optional(&self, wanted: usize) -> Result<usize> {
        if self.bytes.is_none() { Ok(wanted) } else { self.exactly(wanted) }
    }

    fn given(&self, wanted: usize) -> Result<usize> {
        if self.bytes.is_none() {
            return Err(self.wrong(format!("must be given, {wanted} elements of {} bytes", self.size)));
        }
        self.exactly(wanted)
    }

    /// The elements of each of so many equal parts.
    fn parts(&self, members: usize) -> Result<usize> {
        let length = self.elements()?;
        if length.is_multiple_of(members) {
            return Ok(length / members);
        }
        Err(self.wrong(format!("must be a multiple of {members} elements of {} bytes", self.size)))
    }
}

/// The counts of a call, as they are checked.
struct Counts {
    own: usize,
    total: usize,
    received: usize,
}

impl Counts {
    fn check(call: &Call<'_>, seat: usize, members: usize) -> Result<Option<Self>> {
        let total = |argument: &str, counts: &[usize]| {
            let wrong = |reason: String| Error::invalid(argument, format!("{counts:?}"), "call", reason);
            if counts.len() != members {
                return Err(wrong(format!("must be {members} numbers, one for each member")));
            }
            let total = counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count));
            let total = total.filter(|total| total.checked_mul(call.dtype.size_bytes()).is_some());
            total.ok_or_else(|| wrong("is more than memory has addresses for".to_owned()))
        };
        let is_counted = has_parts(call.verb);
        let refuse = |argument: &str, counts: &[usize], reason: &str| {
            Err(Error::invalid(argument, format!("{counts:?}"), "call", reason))
        };
        match (call.counts, call.receive_counts) {
            (None, None) => Ok(None),
            (Some(counts), _) if !is_counted => {
                refuse("counts", counts, "must be none: this verb has no parts")
            }
            (Some(counts), None) if call.verb == Verb::AllToAll => {
                refuse("counts", counts, "needs the counts that are received, too")
            }
            (Some(counts), Some(received)) if call.verb == Verb::AllToAll => {
                let (total, received_total) = (total("counts", counts)?, total("receive_counts", received)?);
                if counts.get(seat) != received.get(seat) {
                    let reason = "must agree with counts on the part that this member keeps";
                    return refuse("receive_counts", received, reason);
                }
                Ok(Some(Self { own: 0, total, received: received_total }))
            }
            (_, Some(received)) => refuse("receive_counts", received, "is for all_to_all with counts"),
            (Some(counts), None) => {
                let total = total("counts", counts)?;
                Ok(Some(Self { own: counts.get(seat).copied().unwrap_or(0), total, received: 0 }))
            }
        }
    }
}

/// What the counts of a call come to, the same for equal counts: 0 without, and 1 for all_to_all, where each pair compares
/// its own. For a verb without parts: its list of arrays, and whether it is reproducible.
pub(super) fn shape(call: &Call<'_>) -> u64 {
    match call.counts {
        // Verbs with parts reduce in the order of seats, whoever asks for it.
        None if has_parts(call.verb) => 0,
        None => (call.list << 1) | u64::from(call.reproducible),
        Some(_) if call.verb == Verb::AllToAll => 1,
        // A hash that finds mistakes, not malice: members of one run have proved its key.
        Some(counts) => counts
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, count| {
                (hash ^ *count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
            })
            .max(2),
    }
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
            shape: 0,
            on_gpu: false,
            lies: None,
            site: Site::default(),
        };
        assert_eq!(one.difference(&Descriptor { on_gpu: true, ..one }), Some("the memory"));
        assert_eq!(one.difference(&Descriptor { op: ReduceOp::Max, ..one }), None);
        assert_eq!(one.difference(&Descriptor { root: 1, ..one }), Some("the root"));
        assert_eq!(one.difference(&Descriptor { dtype: Dtype::F64, ..one }), Some("the element type"));
    }
}
