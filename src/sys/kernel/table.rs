//! The kernels of one CPU class as a value: chosen once for an executor, and carried by every call on it.

use super::class::{Class, Serial};
use super::optimizer::{Real, Rule, Source, check_equal, check_sources, elements};
use super::reduce::{self, Loops};
use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{CpuClass, Dtype, ReduceOp};

#[cfg(target_arch = "x86_64")]
use super::class::{Genoa, Haswell, Icelake, Sapphire, Skylake};

/// The classes that this build has kernels of their own for, in the order of their numbers.
pub const COMPILED: &[CpuClass] = &{
    let mut classes = [CpuClass::Serial; ALL.len()];
    let mut position = 0;
    while position < ALL.len() {
        classes[position] = ALL[position].class;
        position += 1;
    }
    classes
};

/// The kernels of every class of this build, in the order of their numbers.
#[cfg(target_arch = "x86_64")]
static ALL: [Kernels; 6] = [
    kernels::<Serial>(),
    kernels::<Haswell>(),
    kernels::<Skylake>(),
    kernels::<Icelake>(),
    kernels::<Genoa>(),
    kernels::<Sapphire>(),
];

/// The kernels of every class of this build: elsewhere the instructions that every processor of the target has.
#[cfg(not(target_arch = "x86_64"))]
static ALL: [Kernels; 1] = [kernels::<Serial>()];

/// What one class runs.
struct Kernels {
    class: CpuClass,
    is_runnable: fn() -> bool,
    reduction: fn(Dtype, ReduceOp) -> Option<Loops>,
    single: Training<f32>,
    double: Training<f64>,
}

/// The arithmetic of a training step for one element type; see `optimizer` for what each wants.
struct Training<R> {
    all_finite: unsafe fn(*const R, usize) -> bool,
    weighted_sum: unsafe fn(&[Source<'_>], *mut R, usize) -> f64,
    update: unsafe fn(&Rule<'_>, &[Source<'_>], *mut R, [*mut R; 2], usize),
}

const fn kernels<C: Class>() -> Kernels {
    Kernels {
        class: C::CLASS,
        is_runnable: C::is_runnable,
        reduction: reduce::choose::<C>,
        single: training::<C, f32>(),
        double: training::<C, f64>(),
    }
}

const fn training<C: Class, R: Real>() -> Training<R> {
    Training { all_finite: C::all_finite::<R>, weighted_sum: C::weighted_sum::<R>, update: C::update::<R> }
}

/// The kernels of one CPU class.
///
/// All classes give the same bits, but for which of several NaNs is left. A table is always safe to use: one for a class
/// that this processor cannot run, or that the build has no kernels for, has those of the best class below it.
#[derive(Clone, Copy)]
pub struct Table(&'static Kernels);

impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        self.class() == other.class()
    }
}

impl Eq for Table {}

impl std::fmt::Debug for Table {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Table({})", self.class())
    }
}

impl Table {
    /// Portable code, for calls that combine nothing or little.
    pub const SERIAL: Self = Self(&ALL[0]);

    /// The kernels that calls of a class run, on this processor.
    #[must_use]
    pub fn of(class: CpuClass) -> Self {
        // What is handed out here is what this processor runs, whatever a recorded machine says.
        let runnable = |kernels: &&Kernels| kernels.class <= class && (kernels.is_runnable)();
        ALL.iter().rev().find(runnable).map_or(Self::SERIAL, Self)
    }

    /// The kernels of the best class that this build has and this processor runs.
    #[must_use]
    pub fn best() -> Self {
        COMPILED.last().map_or(Self::SERIAL, |class| Self::of(*class))
    }

    /// The class whose kernels these are.
    #[must_use]
    pub fn class(self) -> CpuClass {
        self.0.class
    }

    /// Combines equally long contributions, first one first, into `target`, which may be one of them.
    ///
    /// # Errors
    /// `Unsupported` as [`reduce::check`]; `Invalid` for no source, more than 2^20 of them, spans of unequal length, or
    /// parts of elements; nothing is changed then.
    pub fn reduce(
        self,
        dtype: Dtype,
        op: ReduceOp,
        sources: &[Span<'_>],
        target: &mut SpanMut<'_>,
    ) -> Result<()> {
        reduce::reduce(self.0.reduction, dtype, op, sources, target)
    }

    /// Whether all elements are finite.
    ///
    /// # Errors
    /// `Invalid` for a span that does not hold whole, aligned elements; `Unsupported` for a type that is not trained.
    pub fn all_finite(self, dtype: Dtype, values: Span<'_>) -> Result<bool> {
        match dtype {
            Dtype::F64 => self.0.double.all_finite(values),
            Dtype::F32 => self.0.single.all_finite(values),
            _ => Err(not_trained(dtype)),
        }
    }

    /// Writes the weighted sum of all sources, added in their order, and returns the sum of its squares.
    ///
    /// # Errors
    /// `Invalid` for spans of unequal length, or that do not hold whole, aligned elements; `Unsupported` for a type that is
    /// not trained; nothing is changed then.
    pub fn weighted_sum(self, dtype: Dtype, sources: &[Source<'_>], target: &mut SpanMut<'_>) -> Result<f64> {
        match dtype {
            Dtype::F64 => self.0.double.weighted_sum(sources, target),
            Dtype::F32 => self.0.single.weighted_sum(sources, target),
            _ => Err(not_trained(dtype)),
        }
    }

    /// Updates parameters and state with the weighted sum of all sources, added in their order.
    ///
    /// `states` holds as many spans of the parameters' length as the rule's optimizer keeps.
    ///
    /// # Errors
    /// As [`Table::weighted_sum`].
    pub fn update(
        self,
        dtype: Dtype,
        rule: &Rule<'_>,
        sources: &[Source<'_>],
        parameters: &mut SpanMut<'_>,
        states: &mut [SpanMut<'_>],
    ) -> Result<()> {
        match dtype {
            Dtype::F64 => self.0.double.update(rule, sources, parameters, states),
            Dtype::F32 => self.0.single.update(rule, sources, parameters, states),
            _ => Err(not_trained(dtype)),
        }
    }
}

fn not_trained(dtype: Dtype) -> Error {
    Error::unsupported(format!("training of {dtype}"), "parameters are F32 or F64")
}

impl<R: Real> Training<R> {
    fn all_finite(&self, values: Span<'_>) -> Result<bool> {
        let count = elements::<R>(values.pointer(), values.byte_count())?;
        // SAFETY: `elements` found `count` aligned elements in the span; a table is one that this processor runs.
        Ok(unsafe { (self.all_finite)(values.pointer().cast(), count) })
    }

    fn weighted_sum(&self, sources: &[Source<'_>], target: &mut SpanMut<'_>) -> Result<f64> {
        let count = elements::<R>(target.pointer(), target.byte_count())?;
        check_sources::<R>(sources, count)?;
        // SAFETY: `count` aligned elements were found in the target and in each source; as above.
        Ok(unsafe { (self.weighted_sum)(sources, target.pointer().cast(), count) })
    }

    fn update(
        &self,
        rule: &Rule<'_>,
        sources: &[Source<'_>],
        parameters: &mut SpanMut<'_>,
        states: &mut [SpanMut<'_>],
    ) -> Result<()> {
        let count = elements::<R>(parameters.pointer(), parameters.byte_count())?;
        check_sources::<R>(sources, count)?;
        let wanted = rule.optimizer.state_count();
        if states.len() != wanted {
            let reason = format!("the rule keeps {wanted} state arrays");
            return Err(Error::invalid("states", states.len(), "optimizer kernel", reason));
        }
        let mut pointers = [parameters.pointer().cast::<R>(); 2];
        for (pointer, state) in pointers.iter_mut().zip(states.iter()) {
            check_equal(elements::<R>(state.pointer(), state.byte_count())?, count)?;
            *pointer = state.pointer().cast();
        }
        // SAFETY: `count` aligned elements were found in every span; a state that the rule does not keep is never touched.
        unsafe { (self.update)(rule, sources, parameters.pointer().cast(), pointers, count) };
        Ok(())
    }
}
