//! Calls so small that what each member brings rides beside its descriptor: who brings what, and what becomes of it.

use super::Call;
use crate::error::Result;
use crate::sys::Span;
use crate::vocabulary::Verb;

/// The bytes that one member brings to a call whose parts have so many.
pub(super) const fn contribution_bytes(verb: Verb, part_bytes: usize, members: usize) -> usize {
    match verb {
        Verb::ReduceScatter | Verb::Scatter | Verb::AllToAll => part_bytes.saturating_mul(members),
        _ => part_bytes,
    }
}

/// What this member brings; `None` where the root alone brings something.
pub(super) fn contribution<'c>(
    call: &'c Call<'_>,
    own: usize,
    part_bytes: usize,
) -> Result<Option<Span<'c>>> {
    match (call.verb, call.input) {
        (Verb::Broadcast | Verb::Scatter, _) if call.root != own => Ok(None),
        (_, Some(input)) => Ok(Some(input)),
        (Verb::AllGather | Verb::Exchange | Verb::Split, None) => {
            call.output.as_span().part(own * part_bytes..(own + 1) * part_bytes).map(Some)
        }
        (_, None) => Ok(Some(call.output.as_span())),
    }
}

/// Makes the output from what all members bring; `contributed` gives the whole contribution of a seat.
pub(super) fn settle<'s>(
    call: &mut Call<'_>,
    own: usize,
    members: usize,
    part_bytes: usize,
    contributed: impl Fn(usize) -> Result<Span<'s>>,
) -> Result<()> {
    let (root, output) = (call.root, &mut call.output);
    let part = |seat: usize| seat * part_bytes..(seat + 1) * part_bytes;
    let whole = || (0..members).map(&contributed).collect::<Result<Vec<_>>>();
    let dealt = || (0..members).map(|seat| contributed(seat)?.part(part(own))).collect::<Result<Vec<_>>>();
    let sources = match call.verb {
        Verb::Reduce | Verb::Gather if root != own => return Ok(()),
        Verb::Broadcast if root == own => return Ok(()),
        Verb::Broadcast => return output.copy_from(contributed(root)?),
        Verb::Scatter => return output.copy_from(contributed(root)?.part(part(own))?),
        Verb::ReduceScatter | Verb::AllToAll => dealt()?,
        _ => whole()?,
    };
    if matches!(call.verb, Verb::AllReduce | Verb::Reduce | Verb::ReduceScatter) {
        return call.kernels.reduce(call.dtype, call.op, &sources, output);
    }
    let mut places = sources.iter().enumerate();
    places.try_for_each(|(seat, source)| output.part(part(seat))?.copy_from(*source))
}
