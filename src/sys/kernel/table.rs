//! The kernels of one CPU class as a value: chosen once for an executor, and carried by every call on it.

use crate::error::Result;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{CpuClass, Dtype, ReduceOp};

use super::reduce;

/// The classes that this build has kernels of their own for, in the order of their numbers.
pub const COMPILED: &[CpuClass] = &[CpuClass::Serial];

/// The kernels of one CPU class.
///
/// All classes give the same bits. A table is always safe to call: one for a class that this processor cannot run has the
/// kernels of a lower class.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Table {
    class: CpuClass,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Table({})", self.class)
    }
}

impl Table {
    /// Portable code, for calls that combine nothing or little.
    pub const SERIAL: Self = Self { class: CpuClass::Serial };

    /// The kernels that calls of a class run, on this processor.
    #[must_use]
    pub fn of(_class: CpuClass) -> Self {
        Self::SERIAL
    }

    /// The class whose kernels these are.
    #[must_use]
    pub fn class(self) -> CpuClass {
        self.class
    }

    /// Combines equally long contributions, first one first, into `target`, which may be one of them.
    ///
    /// # Errors
    /// `Unsupported` as [`reduce::check`]; `Invalid` for spans of unequal length, or that do not hold whole elements.
    pub fn reduce(
        self,
        dtype: Dtype,
        op: ReduceOp,
        sources: &[Span<'_>],
        target: &mut SpanMut<'_>,
    ) -> Result<()> {
        reduce::reduce(dtype, op, sources, target)
    }
}
