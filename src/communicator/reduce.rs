//! Cutting a reduction into parts, and combining the contributions of all members in the order of their seats.

use std::ops::Range;

use crate::error::Result;
use crate::sys::kernel::reduce::Accumulator;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// Elements combined at a time: wide values of one block stay in the first cache.
const BLOCK_ELEMENTS: usize = 1024;

/// Combines equally long contributions, first seat first, into `target`, which may be one of them.
pub(super) fn combine(
    dtype: Dtype,
    op: ReduceOp,
    sources: &[Span<'_>],
    target: &mut SpanMut<'_>,
) -> Result<()> {
    let size = dtype.size_bytes();
    let byte_count = target.byte_count();
    let mut accumulator = Accumulator::new(dtype, op, BLOCK_ELEMENTS.min(byte_count / size))?;
    let mut start = 0;
    while start < byte_count {
        let end = byte_count.min(start + BLOCK_ELEMENTS * size);
        for (position, source) in sources.iter().enumerate() {
            let block = source.part(start..end)?;
            if position == 0 { accumulator.start(block)? } else { accumulator.add(block)? }
        }
        accumulator.finish(sources.len(), &mut target.part(start..end)?)?;
        start = end;
    }
    Ok(())
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

    #[test]
    fn more_than_a_block_is_combined_whole() {
        let one = (0..5000).map(|value| value as f32).collect::<Vec<_>>();
        let two = vec![1.0f32; 5000];
        let mut result = vec![0.0f32; 5000];
        let sources = [Span::of(&one[..]), Span::of(&two[..])];
        combine(Dtype::F32, ReduceOp::Sum, &sources, &mut SpanMut::of(&mut result)).expect("fits");
        assert!(result.iter().enumerate().all(|(position, value)| *value == position as f32 + 1.0));
    }
}
