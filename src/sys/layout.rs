//! Where the elements of a strided array lie: packed into contiguous memory, unpacked from it, and compared with others.

use super::{Span, SpanMut};
use crate::error::{Error, Result};

/// The places of an array's elements within a span that begins at the lowest of them.
///
/// Elements are taken in the order of C: the last dimension runs fastest. Strides are bytes and may be negative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    item_bytes: usize,
    /// Extent and stride; dimensions of one element are left out, and those that follow each other are one.
    dimensions: Vec<(usize, isize)>,
    /// Bytes from the lowest address to the first element.
    offset: usize,
    /// Bytes from the lowest address to the end of the highest element.
    extent_bytes: usize,
    byte_count: usize,
}

impl Layout {
    /// The layout of an array with so many elements, and so many bytes from one to the next, in each dimension.
    ///
    /// # Errors
    /// `Invalid` for a number of strides that is not that of extents, and for an array beyond what an address can reach.
    pub fn new(shape: &[usize], strides: &[isize], item_bytes: usize) -> Result<Self> {
        let wrong = |reason: &str| {
            Err(Error::invalid("strides", format!("{strides:?} of shape {shape:?}"), "array", reason))
        };
        if strides.len() != shape.len() {
            return wrong("must have one number for each dimension");
        }
        let bytes = shape.iter().try_fold(item_bytes, |bytes, extent| bytes.checked_mul(*extent));
        let Some(byte_count) = bytes.filter(|bytes| isize::try_from(*bytes).is_ok()) else {
            return wrong("must have fewer than 2^63 bytes");
        };
        if byte_count == 0 {
            return Ok(Self { item_bytes, dimensions: Vec::new(), offset: 0, extent_bytes: 0, byte_count });
        }
        let (mut below, mut above) = (0_isize, isize::try_from(item_bytes).unwrap_or(isize::MAX));
        let mut dimensions: Vec<(usize, isize)> = Vec::with_capacity(shape.len());
        for (extent, stride) in shape.iter().copied().zip(strides.iter().copied()) {
            let reach = isize::try_from(extent - 1).ok().and_then(|steps| steps.checked_mul(stride));
            let place = if stride < 0 { &mut below } else { &mut above };
            let Some(moved) = reach.and_then(|reach| place.checked_add(reach)) else {
                return wrong("reach beyond all memory");
            };
            *place = moved;
            match dimensions.last_mut() {
                _ if extent == 1 => {}
                Some((outer, outer_stride))
                    if isize::try_from(extent).ok().and_then(|extent| stride.checked_mul(extent))
                        == Some(*outer_stride) =>
                {
                    (*outer, *outer_stride) = (*outer * extent, stride);
                }
                _ => dimensions.push((extent, stride)),
            }
        }
        let Some(extent_bytes) = above.checked_sub(below) else {
            return wrong("reach beyond all memory");
        };
        let (offset, extent_bytes) = (below.unsigned_abs(), extent_bytes.unsigned_abs());
        Ok(Self { item_bytes, dimensions, offset, extent_bytes, byte_count })
    }

    /// The layout of elements that follow each other.
    #[must_use]
    pub fn contiguous(byte_count: usize) -> Self {
        let dimensions = if byte_count > 1 { vec![(byte_count, 1)] } else { Vec::new() };
        Self { item_bytes: 1, dimensions, offset: 0, extent_bytes: byte_count, byte_count }
    }

    /// Whether elements follow each other in the order of C.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        match self.dimensions[..] {
            [] => true,
            [(_, stride)] => usize::try_from(stride) == Ok(self.item_bytes),
            _ => false,
        }
    }

    /// Bytes from the lowest address to the first element.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes from the lowest address to the end of the highest element.
    #[must_use]
    pub const fn extent_bytes(&self) -> usize {
        self.extent_bytes
    }

    /// Bytes of all elements, packed.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Whether no two elements are sure to have memory of their own; such an array cannot be written.
    #[must_use]
    pub fn may_repeat(&self) -> bool {
        self.dimensions.iter().any(|(_, stride)| *stride == 0) || self.runs().is_none()
    }

    /// Copies the elements one after the other to `target`.
    ///
    /// # Errors
    /// `Invalid` for spans of other lengths than the layout has.
    pub fn pack(&self, source: Span<'_>, target: &mut SpanMut<'_>) -> Result<()> {
        self.check(source.byte_count(), target.byte_count())?;
        let (strided, packed) = (source.pointer(), target.pointer());
        // SAFETY: the spans have the lengths that the layout asks for, and are readable and writable by their contracts; a
        // packed target is staging memory of ours, apart from the source.
        unsafe {
            self.each(|place, done, step, count| {
                copy(
                    strided.add(place),
                    step,
                    packed.add(done),
                    self.item_bytes as isize,
                    self.item_bytes,
                    count,
                )
            })
        };
        Ok(())
    }

    /// Copies elements that lie one after the other in `source` to their places in `target`, and nothing beside them.
    ///
    /// # Errors
    /// As [`Layout::pack`].
    pub fn unpack(&self, source: Span<'_>, target: &mut SpanMut<'_>) -> Result<()> {
        self.check(target.byte_count(), source.byte_count())?;
        let (packed, strided) = (source.pointer(), target.pointer());
        // SAFETY: as in `pack`, the other way round.
        unsafe {
            self.each(|place, done, step, count| {
                copy(
                    packed.add(done),
                    self.item_bytes as isize,
                    strided.add(place),
                    step,
                    self.item_bytes,
                    count,
                )
            })
        };
        Ok(())
    }

    fn check(&self, strided: usize, packed: usize) -> Result<()> {
        if (strided, packed) == (self.extent_bytes, self.byte_count) {
            return Ok(());
        }
        let reason = format!("must be {} bytes, packed {}", self.extent_bytes, self.byte_count);
        Err(Error::invalid("layout", format!("{strided} bytes, packed {packed}"), "span", reason))
    }

    /// Visits the innermost dimension in every place of the others: its offset, the bytes before it when packed, its stride and
    /// its extent.
    fn each(&self, mut visit: impl FnMut(usize, usize, isize, usize)) {
        if self.byte_count == 0 {
            return;
        }
        let (inner, outer) = match self.dimensions.split_last() {
            Some((inner, outer)) => (*inner, outer),
            None => ((1, self.item_bytes as isize), &[][..]),
        };
        let mut steps = vec![0_usize; outer.len()];
        let (mut place, mut done) = (self.offset, 0);
        loop {
            visit(place, done, inner.1, inner.0);
            done += inner.0 * self.item_bytes;
            let mut dimension = outer.len();
            loop {
                let Some(next) = dimension.checked_sub(1) else { return };
                dimension = next;
                let (extent, stride) = outer[dimension];
                steps[dimension] += 1;
                place = place.wrapping_add_signed(stride);
                if steps[dimension] < extent {
                    break;
                }
                steps[dimension] = 0;
                // Fits: `new` has checked how far all dimensions reach.
                place = place.wrapping_sub((extent as isize).wrapping_mul(stride) as usize);
            }
        }
    }

    /// The memory of the elements as ascending runs; `None` where dimensions interleave, so that they may meet.
    fn runs(&self) -> Option<Runs> {
        let strides = self.dimensions.iter().filter(|(_, stride)| *stride != 0);
        let mut strides =
            strides.map(|(extent, stride)| (*extent, stride.unsigned_abs())).collect::<Vec<_>>();
        strides.sort_by_key(|(_, stride)| *stride);
        let (mut length, mut size) = (self.item_bytes, self.item_bytes);
        let mut outer = Vec::new();
        for (extent, stride) in strides {
            if stride < size {
                return None;
            }
            size += stride * (extent - 1);
            if outer.is_empty() && stride == length {
                length *= extent;
            } else {
                outer.push((extent, stride));
            }
        }
        let steps = vec![0; outer.len()];
        Some(Runs { length, outer, steps, place: 0, has_more: self.byte_count > 0 })
    }

    /// Whether an element of this array at `own` shares a byte with one of `other` at `place`; where that is too hard to tell, true.
    #[must_use]
    pub fn meets(&self, own: Span<'_>, other: &Self, place: Span<'_>) -> bool {
        let (start, other_start) = (own.pointer().addr(), place.pointer().addr());
        if own.is_empty()
            || place.is_empty()
            || start + own.byte_count() <= other_start
            || other_start + place.byte_count() <= start
        {
            return false;
        }
        let (Some(mut one), Some(mut two)) = (self.runs(), other.runs()) else { return true };
        let (mut mine, mut theirs) = (one.next(), two.next());
        while let (Some(run), Some(other)) = (&mine, &theirs) {
            let (run, other) =
                (start + run.start..start + run.end, other_start + other.start..other_start + other.end);
            if run.end <= other.start {
                mine = one.next();
            } else if other.end <= run.start {
                theirs = two.next();
            } else {
                return true;
            }
        }
        false
    }
}

/// Ascending byte ranges.
struct Runs {
    length: usize,
    /// Extents and strides, the smallest stride first.
    outer: Vec<(usize, usize)>,
    steps: Vec<usize>,
    place: usize,
    has_more: bool,
}

impl Iterator for Runs {
    type Item = std::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.has_more {
            return None;
        }
        let run = self.place..self.place + self.length;
        self.has_more = false;
        for ((extent, stride), step) in self.outer.iter().zip(&mut self.steps) {
            *step += 1;
            if *step < *extent {
                self.place += stride;
                self.has_more = true;
                break;
            }
            self.place -= stride * (*step - 1);
            *step = 0;
        }
        Some(run)
    }
}

/// Copies `count` elements from one stride to another.
///
/// # Safety
/// Every element is readable at its place in `from` and writable at its place in `to`, and none of `from` is one of `to`.
unsafe fn copy(from: *const u8, step: isize, to: *mut u8, to_step: isize, item_bytes: usize, count: usize) {
    let item = item_bytes as isize;
    // SAFETY: the caller's promise; arrays of bytes need no alignment.
    unsafe {
        if step == item && to_step == item {
            return std::ptr::copy_nonoverlapping(from, to, item_bytes * count);
        }
        match item_bytes {
            1 => copy_items::<1>(from, step, to, to_step, count),
            2 => copy_items::<2>(from, step, to, to_step, count),
            4 => copy_items::<4>(from, step, to, to_step, count),
            8 => copy_items::<8>(from, step, to, to_step, count),
            _ => {
                for position in 0..count as isize {
                    let (from, to) = (from.offset(position * step), to.offset(position * to_step));
                    std::ptr::copy_nonoverlapping(from, to, item_bytes);
                }
            }
        }
    }
}

/// # Safety
/// As [`copy`].
unsafe fn copy_items<const SIZE: usize>(
    from: *const u8,
    step: isize,
    to: *mut u8,
    to_step: isize,
    count: usize,
) {
    for position in 0..count as isize {
        // SAFETY: the caller's promise.
        unsafe {
            let value = from.offset(position * step).cast::<[u8; SIZE]>().read();
            to.offset(position * to_step).cast::<[u8; SIZE]>().write(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The places of all elements, one by one.
    fn places(shape: &[usize], strides: &[isize]) -> Vec<isize> {
        let mut places = vec![0];
        for (extent, stride) in shape.iter().zip(strides) {
            let steps = |place: isize| (0..*extent as isize).map(move |step| place + step * stride);
            places = places.into_iter().flat_map(steps).collect();
        }
        places
    }

    proptest! {
        #[test]
        fn any_layout_packs_and_unpacks_in_the_order_of_c(
            dimensions in proptest::collection::vec((0_usize..5, -40_isize..40), 0..4),
            item in prop_oneof![Just(1_usize), Just(2), Just(4), Just(8), Just(3)],
        ) {
            let (shape, strides): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
            let layout = Layout::new(&shape, &strides, item).expect("small");
            let places = places(&shape, &strides);
            prop_assert_eq!(layout.byte_count(), places.len() * item);
            let lowest = places.iter().min().copied().unwrap_or(0);
            let memory = (0..layout.extent_bytes()).map(|byte| byte as u8).collect::<Vec<_>>();
            let mut packed = vec![0_u8; layout.byte_count()];
            layout.pack(Span::of(&memory), &mut SpanMut::of(&mut packed)).expect("lengths fit");
            let at = |place: isize| (place - lowest) as usize;
            let expected = places.iter().flat_map(|place| memory[at(*place)..at(*place) + item].to_vec());
            prop_assert_eq!(&packed, &expected.collect::<Vec<_>>());
            let mut bytes = places.iter().flat_map(|place| at(*place)..at(*place) + item).collect::<Vec<_>>();
            bytes.sort_unstable();
            let total = bytes.len();
            bytes.dedup();
            if !layout.may_repeat() {
                prop_assert_eq!(bytes.len(), total);
                let mut target = vec![0xee_u8; layout.extent_bytes()];
                layout.unpack(Span::of(&packed), &mut SpanMut::of(&mut target)).expect("lengths fit");
                for (byte, value) in target.iter().enumerate() {
                    let is_element = bytes.binary_search(&byte).is_ok();
                    prop_assert_eq!(*value, if is_element { memory[byte] } else { 0xee });
                }
            }
        }

        #[test]
        fn arrays_that_share_an_element_meet(
            one in proptest::collection::vec((1_usize..4, -12_isize..12), 0..3),
            two in proptest::collection::vec((1_usize..4, -12_isize..12), 0..3),
            gap in 0_usize..40,
        ) {
            let memory = [0_u8; 256];
            let layout = |dimensions: Vec<(usize, isize)>| {
                let (shape, strides): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
                let places = places(&shape, &strides);
                let lowest = places.iter().min().copied().unwrap_or(0);
                let bytes = places.iter().flat_map(|place| [place - lowest, place - lowest + 1]).collect::<Vec<_>>();
                (Layout::new(&shape, &strides, 2).expect("small"), bytes)
            };
            let ((one, bytes), (two, other)) = (layout(one), layout(two));
            let first = Span::of(&memory[..one.extent_bytes()]);
            let second = Span::of(&memory[gap..gap + two.extent_bytes()]);
            let shares = bytes.iter().any(|byte| other.contains(&(byte - gap as isize)));
            let meets = one.meets(first, &two, second);
            prop_assert!(meets || !shares);
            prop_assert_eq!(meets, two.meets(second, &one, first));
            if one.runs().is_some() && two.runs().is_some() {
                prop_assert_eq!(meets, shares);
            }
        }
    }

    #[test]
    fn layouts_that_no_memory_has_are_refused() {
        assert!(Layout::new(&[2, 2], &[8], 8).is_err());
        assert!(Layout::new(&[usize::MAX, 2], &[8, 8], 8).is_err());
        assert!(Layout::new(&[3], &[isize::MIN], 8).is_err());
        assert!(Layout::new(&[3, 3], &[isize::MAX / 2, isize::MIN / 2 + 1], 1).is_err());
        let empty = Layout::new(&[0, usize::MAX], &[isize::MAX, 8], 8).expect("has no elements");
        assert_eq!((empty.byte_count(), empty.extent_bytes()), (0, 0));
    }

    #[test]
    fn what_follows_each_other_is_contiguous() {
        let is = |shape: &[usize], strides: &[isize]| {
            Layout::new(shape, strides, 4).expect("small").is_contiguous()
        };
        assert!(is(&[2, 3], &[12, 4]) && is(&[], &[]) && is(&[1, 3], &[999, 4]) && is(&[0, 3], &[1, 1]));
        assert!(!is(&[2, 3], &[4, 8]) && !is(&[3], &[-4]) && !is(&[3], &[0]) && !is(&[2, 2], &[12, 4]));
    }
}
