//! Where every parameter lies in the flat memory of a trainer, and which part of it each member owns.
//!
//! Pure: members with the same parameters derive the same layout and the same shards without a message.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::vocabulary::Dtype;

/// What offsets and shards are multiples of: one cache line, so that no two members write the same one.
pub(crate) const ALIGNMENT: usize = 64;

/// The element types that can be trained, in the order of their regions.
const TRAINED: [Dtype; 2] = [Dtype::F64, Dtype::F32];

/// A parameter as a member declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its name, unique in the trainer.
    pub(crate) name: String,
    /// Its extents; empty for a scalar.
    pub(crate) extents: Vec<usize>,
    /// Its element type.
    pub(crate) dtype: Dtype,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {:?}", self.dtype, self.extents)
    }
}

/// A parameter with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// What was declared.
    pub(crate) shape: Shape,
    /// Where its first byte is.
    pub(crate) offset: usize,
    /// How many elements it has.
    pub(crate) element_count: usize,
}

impl Entry {
    /// The bytes it covers.
    #[must_use]
    pub(crate) fn bytes(&self) -> Range<usize> {
        self.offset..self.offset + self.element_count * self.shape.dtype.size_bytes()
    }
}

/// The parameters of one element type, side by side, with unused elements between them that stay zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The element type.
    pub(crate) dtype: Dtype,
    /// The bytes it covers; both ends are multiples of [`ALIGNMENT`].
    pub(crate) bytes: Range<usize>,
}

impl Region {
    /// The bytes of it that `seat` of `count` owns: whole cache lines, none for some members of a small region.
    #[must_use]
    pub(crate) fn shard(&self, seat: usize, count: usize) -> Range<usize> {
        let lines = (self.bytes.end - self.bytes.start) / ALIGNMENT;
        // In 128 bits, since the product of two sizes may pass 64.
        let cut = |position: usize| {
            let line = lines as u128 * position as u128 / count.max(1) as u128;
            self.bytes.start + usize::try_from(line).unwrap_or(lines) * ALIGNMENT
        };
        cut(seat)..cut(seat + 1)
    }
}

/// All parameters of a trainer with their places, ordered by element type and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The parameters.
    pub(crate) entries: Vec<Entry>,
    /// One region for each element type that occurs.
    pub(crate) regions: Vec<Region>,
    /// The size of the whole.
    pub(crate) byte_count: usize,
}

impl Layout {
    /// Places these parameters; their order does not matter.
    ///
    /// # Errors
    /// `Invalid` for no parameter, two of one name, an empty name, or more elements than memory can hold; `Unsupported`
    /// for an element type that cannot be trained.
    pub(crate) fn derive(shapes: &[Shape]) -> Result<Self> {
        let mut names = BTreeSet::new();
        for shape in shapes {
            if shape.name.is_empty() || !names.insert(&shape.name) {
                let reason = "must be a name of its own that is not empty";
                return Err(Error::invalid("parameters", format!("`{}`", shape.name), "argument", reason));
            }
            if !TRAINED.contains(&shape.dtype) {
                let what = format!("parameter `{}` of {}", shape.name, shape.dtype);
                return Err(Error::unsupported(what, "parameters are F32 or F64; convert it"));
            }
        }
        if shapes.is_empty() {
            return Err(Error::invalid("parameters", "{}", "argument", "must hold at least one parameter"));
        }
        let (mut entries, mut regions, mut offset) = (Vec::with_capacity(shapes.len()), Vec::new(), 0usize);
        for dtype in TRAINED {
            let mut members = shapes.iter().filter(|shape| shape.dtype == dtype).collect::<Vec<_>>();
            members.sort_by(|one, other| one.name.cmp(&other.name));
            let start = offset;
            for shape in &members {
                let (element_count, end) = end_of(shape, offset)?;
                entries.push(Entry { shape: (*shape).clone(), offset, element_count });
                offset = end;
            }
            if !members.is_empty() {
                regions.push(Region { dtype, bytes: start..offset });
            }
        }
        Ok(Self { entries, regions, byte_count: offset })
    }

    /// The parameter of this name.
    #[must_use]
    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.shape.name == name)
    }

    /// The first parameter in which two sets differ: its name, what is here and what is there.
    #[must_use]
    pub(crate) fn difference(mine: &[Shape], theirs: &[Shape]) -> Option<(String, String, String)> {
        let find = |shapes: &[Shape], name: &str| shapes.iter().find(|shape| shape.name == name).cloned();
        let names = mine.iter().chain(theirs).map(|shape| shape.name.as_str()).collect::<BTreeSet<_>>();
        let word =
            |shape: Option<Shape>| shape.map_or("no such parameter".to_owned(), |shape| shape.to_string());
        names.into_iter().find_map(|name| {
            let (here, there) = (find(mine, name), find(theirs, name));
            (here != there).then(|| (name.to_owned(), word(here), word(there)))
        })
    }
}

/// How many elements a parameter at `offset` has, and where the next one starts.
fn end_of(shape: &Shape, offset: usize) -> Result<(usize, usize)> {
    let count = shape.extents.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent));
    let bytes = count.and_then(|count| count.checked_mul(shape.dtype.size_bytes()));
    let end = bytes.and_then(|bytes| offset.checked_add(bytes)?.checked_next_multiple_of(ALIGNMENT));
    // The address space of one object ends at isize::MAX.
    match (count, end.filter(|end| isize::try_from(*end).is_ok())) {
        (Some(count), Some(end)) => Ok((count, end)),
        _ => {
            let argument = format!("shape of parameter `{}`", shape.name);
            let reason = "all parameters together must fit into the address space";
            Err(Error::invalid(argument, format!("{:?}", shape.extents), "argument", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(name: &str, extents: &[usize], dtype: Dtype) -> Shape {
        Shape { name: name.to_owned(), extents: extents.to_vec(), dtype }
    }

    #[test]
    fn parameters_lie_by_type_and_name_on_cache_lines() {
        let shapes = [
            shape("b", &[3], Dtype::F32),
            shape("z", &[], Dtype::F64),
            shape("a", &[2, 9], Dtype::F32),
            shape("empty", &[4, 0], Dtype::F32),
        ];
        let layout = Layout::derive(&shapes).unwrap();
        let names = layout.entries.iter().map(|entry| (entry.shape.name.as_str(), entry.offset));
        assert_eq!(names.collect::<Vec<_>>(), [("z", 0), ("a", 64), ("b", 192), ("empty", 256)]);
        assert_eq!(layout.byte_count, 256);
        assert_eq!(layout.regions.len(), 2);
        assert_eq!(layout.regions[1].bytes, 64..256);
        assert_eq!(layout.find("empty").unwrap().bytes(), 256..256);
        let mut turned = shapes.to_vec();
        turned.reverse();
        assert_eq!(Layout::derive(&turned).unwrap(), layout);
    }

    #[test]
    fn what_cannot_be_placed_is_named() {
        let twice = [shape("w", &[1], Dtype::F32), shape("w", &[1], Dtype::F64)];
        assert!(Layout::derive(&twice).unwrap_err().to_string().contains("`w`"));
        assert!(matches!(Layout::derive(&[]), Err(Error::Invalid { .. })));
        let odd = Layout::derive(&[shape("i", &[1], Dtype::I32)]).unwrap_err();
        assert!(matches!(odd, Error::Unsupported { .. }) && odd.to_string().contains("`i` of I32"), "{odd}");
        for extents in [&[usize::MAX, 2][..], &[usize::MAX / 8][..], &[1 << 62][..]] {
            assert!(Layout::derive(&[shape("large", extents, Dtype::F64)]).is_err());
        }
    }

    #[test]
    fn the_first_difference_is_named() {
        let mine = [shape("a", &[1], Dtype::F32), shape("b", &[2], Dtype::F32)];
        let theirs = [shape("b", &[2], Dtype::F64), shape("a", &[1], Dtype::F32)];
        let found = Layout::difference(&mine, &theirs).unwrap();
        assert_eq!(found, ("b".into(), "F32 [2]".into(), "F64 [2]".into()));
        assert_eq!(Layout::difference(&mine, &[mine[1].clone(), mine[0].clone()]), None);
        assert_eq!(Layout::difference(&mine, &mine[1..]).unwrap().2, "no such parameter");
    }

    proptest! {
        #[test]
        fn shards_cover_a_region_once(counts in proptest::collection::vec(0usize..300, 1..8), members in 1usize..40) {
            let shapes = counts.iter().enumerate().map(|(position, count)| {
                shape(&format!("p{position}"), &[*count], if position % 2 == 0 { Dtype::F32 } else { Dtype::F64 })
            });
            let layout = Layout::derive(&shapes.collect::<Vec<_>>()).unwrap();
            for region in &layout.regions {
                let mut next = region.bytes.start;
                for seat in 0..members {
                    let shard = region.shard(seat, members);
                    prop_assert_eq!(shard.start, next);
                    prop_assert!(shard.end >= shard.start && shard.start % ALIGNMENT == 0);
                    next = shard.end;
                }
                prop_assert_eq!(next, region.bytes.end);
            }
        }
    }
}
