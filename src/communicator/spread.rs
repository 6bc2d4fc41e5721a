//! Sharing the copies and reductions of a call among the threads of its executor: the same bytes, whoever makes them.

use crate::communicator::reduce::with_spans;
use crate::error::Result;
use crate::sys::crew::Crew;
use crate::sys::kernel::Table;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// Below this a copy or a reduction is one thread's.
const LEAST_BYTES: usize = 64 << 10;

/// The threads that share a call; none where its executor has one, or where the call is too small.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread<'c>(pub(super) Option<&'c Crew>);

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// Through the caches.
    Kept,
    /// Past them; others see it after the fence that precedes each step.
    Poured,
}

impl Store {
    /// Copies on the calling thread.
    pub(super) fn copy(self, target: &mut SpanMut<'_>, source: Span<'_>) -> Result<()> {
        match self {
            Self::Kept => target.copy_from(source),
            Self::Poured => target.pour_from(source),
        }
    }
}

impl<'c> Spread<'c> {
    /// How many threads share what is large enough.
    pub(super) fn threads(self) -> usize {
        self.0.map_or(1, Crew::threads)
    }

    /// The crew, for so many bytes.
    pub(super) fn of(self, byte_count: usize) -> Option<&'c Crew> {
        self.0.filter(|_| byte_count >= LEAST_BYTES)
    }

    /// Copies.
    ///
    /// # Errors
    /// `Invalid` for spans of unequal length.
    pub(super) fn copy(self, target: &mut SpanMut<'_>, source: Span<'_>, store: Store) -> Result<()> {
        match self.of(source.byte_count()) {
            // What overlaps is copied in one direction, and unequal lengths are refused as ever.
            Some(crew)
                if source.byte_count() == target.byte_count() && source.is_apart(&target.as_span()) =>
            {
                crew.parts(target, &|range, part| store.copy(part, source.part(range)?))
            }
            _ => store.copy(target, source),
        }
    }

    /// Combines equally long contributions, first one first.
    ///
    /// # Errors
    /// As [`Table::reduce`].
    pub(super) fn reduce(
        self,
        kernels: Table,
        (dtype, op): (Dtype, ReduceOp),
        sources: &[Span<'_>],
        target: &mut SpanMut<'_>,
    ) -> Result<()> {
        let length = target.byte_count();
        let is_equal = sources.iter().all(|source| source.byte_count() == length);
        // A source may be the target, element by element, and nothing between.
        let is_apart = |source: &Span<'_>| {
            source.pointer() == target.pointer().cast_const() || source.is_apart(&target.as_span())
        };
        match self.of(length) {
            Some(crew) if is_equal && sources.iter().all(is_apart) => crew.parts(target, &|range, part| {
                let source = |position: usize| sources[position].part(range.clone());
                with_spans(sources.len(), source, |sources| kernels.reduce(dtype, op, sources, part))
            }),
            _ => kernels.reduce(dtype, op, sources, target),
        }
    }
}
