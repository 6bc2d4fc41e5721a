//! Where everything of a trainer lies in the memory of one member's GPU.
//!
//! Pure: members with the same parameters derive the same slab without a message.

use std::ops::Range;

use super::bucket::{ALIGNMENT, Layout};
use crate::vocabulary::Dtype;

/// The parameters of one element type on a GPU. Every member owns as many bytes, so that one call gathers them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    /// The element type.
    pub(super) dtype: Dtype,
    /// The bytes that it covers in the layout; in the slab unused bytes follow, up to the shards of all members.
    pub(super) bytes: Range<usize>,
    /// The bytes that each member owns.
    pub(super) shard: usize,
    /// Where the parameters begin.
    pub(super) parameters: usize,
    /// Where the gradients begin.
    pub(super) gradients: usize,
    /// Where the reduced gradients of the member's shard begin; a lone member's gradients are reduced.
    pub(super) reduced: usize,
    /// Where each state of the member's shard begins.
    pub(super) states: Vec<usize>,
    /// The bytes of a shard that are reduced at a time.
    pub(super) piece: usize,
}

/// The memory of a trainer on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slab {
    pub(super) sections: Vec<Section>,
    /// Gradients on their way: a piece for each member.
    pub(super) scratch: Range<usize>,
    /// What looks at values adds up here.
    pub(super) sums: Range<usize>,
    /// The size of the whole.
    pub(super) byte_count: usize,
}

impl Slab {
    /// Places the parameters of `layout` for `count` members, with so many states, and at most `limit` bytes of scratch, of
    /// which `sums_of` says how many are for sums of a number of elements; sizes beyond memory stay beyond memory.
    pub(super) fn derive(
        layout: &Layout,
        count: usize,
        states: usize,
        limit: usize,
        sums_of: impl Fn(usize, usize) -> usize,
    ) -> Self {
        let mut end = 0_usize;
        let mut take = |byte_count: usize| {
            let start = end;
            end = end.saturating_add(byte_count);
            start
        };
        let count = count.max(1);
        let mut sections = Vec::new();
        for region in &layout.regions {
            let lines = region.bytes.len() / ALIGNMENT;
            let shard = lines.div_ceil(count) * ALIGNMENT;
            let whole = shard.saturating_mul(count);
            let (parameters, gradients) = (take(whole), take(whole));
            let reduced = if count == 1 { gradients } else { take(shard) };
            let states = (0..states).map(|_| take(shard)).collect();
            let (dtype, bytes) = (region.dtype, region.bytes.clone());
            sections.push(Section {
                dtype,
                bytes,
                shard,
                parameters,
                gradients,
                reduced,
                states,
                piece: shard,
            });
        }
        let largest = sections.iter().map(|section| section.shard / section.dtype.size_bytes()).max();
        let sums = take(sums_of(largest.unwrap_or(0), limit / 4));
        let sums = sums..take(0);
        // The least that works is taken even where the limit is less.
        let most = (limit.saturating_sub(sums.len()) / count / ALIGNMENT).max(1) * ALIGNMENT;
        let mut widest = 0;
        for section in sections.iter_mut().filter(|_| count > 1) {
            section.piece = section.shard.min(most);
            widest = widest.max(section.piece);
        }
        let scratch = take(widest.saturating_mul(count));
        let scratch = scratch..take(0);
        Self { sections, scratch, sums, byte_count: end }
    }

    /// Where bytes of the layout lie among those that begin at `start` of their section; `None` for bytes of several.
    pub(super) fn place(
        &self,
        bytes: &Range<usize>,
        start: impl Fn(&Section) -> usize,
    ) -> Option<Range<usize>> {
        let holds = |section: &&Section| section.bytes.start <= bytes.start && bytes.end <= section.bytes.end;
        let section = self.sections.iter().find(holds)?;
        let first = start(section) + (bytes.start - section.bytes.start);
        Some(first..first + bytes.len())
    }
}

impl Section {
    /// The bytes that a member owns, in the layout: fewer than the shard, or none, for the last ones.
    pub(super) fn owned(&self, seat: usize) -> Range<usize> {
        let cut = |position: usize| {
            let end = position.saturating_mul(self.shard).saturating_add(self.bytes.start);
            end.min(self.bytes.end)
        };
        cut(seat)..cut(seat.saturating_add(1))
    }

    /// A member's shard of what begins at `start` and is there for all members.
    pub(super) fn shard_at(&self, start: usize, seat: usize) -> Range<usize> {
        start + seat * self.shard..start + (seat + 1) * self.shard
    }

    /// All of what begins at `start` and is there for all of `count` members.
    pub(super) fn whole_at(&self, start: usize, count: usize) -> Range<usize> {
        start..start + self.shard * count.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::bucket::Shape;
    use super::*;
    use proptest::prelude::*;

    fn layout(single: usize, double: usize) -> Layout {
        let shape = |name: &str, dtype, count| Shape { name: name.to_owned(), extents: vec![count], dtype };
        let shapes = [shape("single", Dtype::F32, single), shape("double", Dtype::F64, double)];
        Layout::derive(&shapes).expect("two parameters")
    }

    proptest! {
        #[test]
        fn nothing_overlaps_and_every_byte_has_one_owner(
            single in 0_usize..5000, double in 0_usize..300, count in 1_usize..9, states in 0_usize..3, limit in 0_usize..9000,
        ) {
            let layout = layout(single, double);
            let slab = Slab::derive(&layout, count, states, limit, |elements, _| elements.div_ceil(256) * 64);
            let mut taken = vec![slab.scratch.clone(), slab.sums.clone()];
            for section in &slab.sections {
                taken.push(section.whole_at(section.parameters, count));
                taken.push(section.whole_at(section.gradients, count));
                if count > 1 {
                    taken.push(section.reduced..section.reduced + section.shard);
                    prop_assert!(section.piece * count <= slab.scratch.len());
                }
                taken.extend(section.states.iter().map(|state| *state..state + section.shard));
                let mut end = section.bytes.start;
                for seat in 0..count {
                    let owned = section.owned(seat);
                    prop_assert_eq!(owned.start, end);
                    end = owned.end;
                }
                prop_assert_eq!(end, section.bytes.end);
                prop_assert!(section.shard % ALIGNMENT == 0 && section.piece % ALIGNMENT == 0);
            }
            taken.retain(|range| !range.is_empty());
            taken.sort_by_key(|range| range.start);
            prop_assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "{:?}", taken);
            prop_assert!(taken.last().is_none_or(|range| range.end <= slab.byte_count));
            prop_assert!(taken.iter().all(|range| range.start % ALIGNMENT == 0));
            let least = ALIGNMENT * count;
            prop_assert!(slab.scratch.len() <= limit.max(least), "{} of {}", slab.scratch.len(), limit);
        }
    }

    #[test]
    fn parameters_are_found_in_their_section() {
        let layout = layout(40, 9);
        let slab = Slab::derive(&layout, 3, 2, 1 << 20, |_, _| 0);
        for entry in &layout.entries {
            let place = slab.place(&entry.bytes(), |section| section.gradients).expect("it lies in one");
            let section = slab.sections.iter().find(|section| section.dtype == entry.shape.dtype);
            let section = section.expect("of its type");
            assert_eq!(place.start, section.gradients + entry.offset - section.bytes.start);
            assert_eq!(place.len(), entry.bytes().len());
        }
        assert_eq!(slab.place(&(0..layout.byte_count), |section| section.parameters), None);
        // A lone member reduces nothing, and needs no scratch for it.
        let alone = Slab::derive(&layout, 1, 0, 1 << 20, |_, _| 64);
        assert!(alone.scratch.is_empty() && alone.sums.len() == 64);
        assert!(alone.sections.iter().all(|section| section.reduced == section.gradients));
    }
}
