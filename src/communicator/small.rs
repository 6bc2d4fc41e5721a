//! Calls so small that what each member brings rides beside its descriptor: who brings what, and what becomes of it.

use super::Call;
use super::reduce::with_spans;
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
    let dealt = |seat: usize| contributed(seat)?.part(part(own));
    let is_dealt = matches!(call.verb, Verb::ReduceScatter | Verb::AllToAll);
    match call.verb {
        Verb::Reduce | Verb::Gather if root != own => return Ok(()),
        Verb::Broadcast if root == own => return Ok(()),
        Verb::Broadcast => return output.copy_from(contributed(root)?),
        Verb::Scatter => return output.copy_from(contributed(root)?.part(part(own))?),
        _ => {}
    }
    let source = |seat: usize| if is_dealt { dealt(seat) } else { contributed(seat) };
    if matches!(call.verb, Verb::AllReduce | Verb::Reduce | Verb::ReduceScatter) {
        let (kernels, dtype, op) = (call.kernels, call.dtype, call.op);
        return with_spans(members, source, |sources| kernels.reduce(dtype, op, sources, output));
    }
    (0..members).try_for_each(|seat| output.part(part(seat))?.copy_from(source(seat)?))
}
