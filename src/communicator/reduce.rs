//! Cutting a reduction into parts.

use std::ops::Range;

use crate::error::Result;
use crate::sys::Span;

/// So many spans need no allocation.
const FEW: usize = 16;

/// Does something with one span of each member, in their order.
pub(super) fn with_spans<'s, R>(
    members: usize,
    mut span: impl FnMut(usize) -> Result<Span<'s>>,
    act: impl FnOnce(&[Span<'s>]) -> Result<R>,
) -> Result<R> {
    let mut few = [Span::empty(); FEW];
    if let Some(few) = few.get_mut(..members) {
        for (seat, place) in few.iter_mut().enumerate() {
            *place = span(seat)?;
        }
        return act(few);
    }
    act(&(0..members).map(span).collect::<Result<Vec<_>>>()?)
}

/// The part of `count` elements that falls to one of `parts`; they differ by one element at most.
pub(super) fn share(count: usize, parts: usize, position: usize) -> Range<usize> {
    let (each, rest) = (count / parts, count % parts);
    let start = each * position + position.min(rest);
    start..start + each + usize::from(position < rest)
}

/// Consecutive ranges of at most `length` elements that cover `count`.
pub(super) fn pieces(count: usize, length: usize) -> impl Iterator<Item = Range<usize>> {
    let length = length.max(1);
    (0..count.div_ceil(length)).map(move |piece| piece * length..count.min((piece + 1) * length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_come_in_order_however_many() {
        let numbers = (0..3 * FEW as u8).collect::<Vec<_>>();
        for members in [0, 1, FEW, FEW + 1, 3 * FEW] {
            let span = |seat: usize| Span::of(&numbers).part(seat..seat + 1);
            let bytes = with_spans(members, span, |spans| {
                Ok(spans.iter().flat_map(Span::to_vec).collect::<Vec<_>>())
            });
            assert_eq!(bytes.expect("within"), numbers[..members]);
            assert!(with_spans(members + 1, |_| Span::empty().part(0..1), |_| Ok(())).is_err());
        }
    }

    #[test]
    fn shares_and_pieces_cover_everything_once() {
        for count in 0..40 {
            for parts in 1..7 {
                let shares = (0..parts).flat_map(|position| share(count, parts, position));
                assert_eq!(shares.collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
                assert_eq!(
                    pieces(count, parts).flatten().collect::<Vec<_>>(),
                    (0..count).collect::<Vec<_>>()
                );
            }
        }
    }
}
