//! Cutting a reduction into parts.

use std::ops::Range;

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
