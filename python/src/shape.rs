//! The extents of an array's dimensions: those of few dimensions need no memory of their own.

use std::ops::Deref;

/// How many dimensions need none.
const FEW: usize = 4;

/// One extent for each dimension; none for a 0-d array.
#[derive(Debug)]
pub(crate) enum Shape {
    Few([usize; FEW], usize),
    Many(Box<[usize]>),
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match self {
            Self::Few(extents, count) => &extents[..*count],
            Self::Many(extents) => extents,
        }
    }
}

impl<I: ExactSizeIterator<Item = usize>> From<I> for Shape {
    fn from(given: I) -> Self {
        if given.len() > FEW {
            return Self::Many(given.collect());
        }
        let (mut extents, count) = ([0; FEW], given.len());
        for (extent, given) in extents.iter_mut().zip(given) {
            *extent = given;
        }
        Self::Few(extents, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_what_was_given() {
        for count in [0, 1, FEW, FEW + 1, 64] {
            let given = (0..count).map(|extent| 3 * extent).collect::<Vec<_>>();
            assert_eq!(*Shape::from(given.iter().copied()), *given);
        }
    }
}
