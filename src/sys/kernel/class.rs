//! One set of the loops for each CPU class, compiled with that class's instructions.

use half::{bf16, f16};

use super::lane::{Combine, Float, Layout, Plain};
use super::optimizer::{self, Real, Rule, Source};
use super::reduce;
use crate::vocabulary::CpuClass;

#[cfg(target_arch = "x86_64")]
use super::x86::{BrainsBy16, HalvesBy8, HalvesBy16};

/// The loops of `reduce` and `optimizer` as one class runs them.
///
/// # Safety
/// Every function: the processor must run the class, and the arguments must be as the loop of the same name wants them.
pub(super) trait Class {
    const CLASS: CpuClass;
    type Halves: Layout<One = f16, OneWide = f32, ManyWide: Float>;
    type Brains: Layout<One = bf16, OneWide = f32, ManyWide: Float>;

    /// Whether this processor, under this system, has every instruction that the loops are compiled with.
    fn is_runnable() -> bool;

    unsafe fn pair<L, O>(one: *const u8, other: *const u8, target: *mut u8, count: usize, members: u32)
    where
        L: Layout,
        O: Combine<L::OneWide> + Combine<L::ManyWide>;
    unsafe fn start<L: Layout>(source: *const u8, accumulator: *mut u8, count: usize);
    unsafe fn add<L, O>(source: *const u8, accumulator: *mut u8, count: usize)
    where
        L: Layout,
        O: Combine<L::OneWide> + Combine<L::ManyWide>;
    unsafe fn finish<L, O>(accumulator: *const u8, target: *mut u8, count: usize, members: u32)
    where
        L: Layout,
        O: Combine<L::OneWide> + Combine<L::ManyWide>;
    unsafe fn all_finite<R: Real>(values: *const R, count: usize) -> bool;
    unsafe fn weighted_sum<R: Real>(sources: &[Source<'_>], target: *mut R, count: usize) -> f64;
    unsafe fn update<R: Real>(
        rule: &Rule<'_>,
        sources: &[Source<'_>],
        parameters: *mut R,
        states: [*mut R; 2],
        count: usize,
    );
}

/// Declares a class: its instructions, and how it takes halves.
macro_rules! class {
    ($name:ident, $class:ident, $halves:ty, $brains:ty, [ $( $feature:tt ),* ]) => {
        pub(super) struct $name;

        impl Class for $name {
            const CLASS: CpuClass = CpuClass::$class;
            type Halves = $halves;
            type Brains = $brains;

            fn is_runnable() -> bool {
                true $( && std::is_x86_feature_detected!($feature) )*
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn pair<L, O>(
                one: *const u8,
                other: *const u8,
                target: *mut u8,
                count: usize,
                members: u32,
            ) where
                L: Layout,
                O: Combine<L::OneWide> + Combine<L::ManyWide>,
            {
                // SAFETY: the caller's promise.
                unsafe { reduce::pair::<L, O>(one, other, target, count, members) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn start<L: Layout>(source: *const u8, accumulator: *mut u8, count: usize) {
                // SAFETY: the caller's promise.
                unsafe { reduce::start::<L>(source, accumulator, count) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn add<L, O>(source: *const u8, accumulator: *mut u8, count: usize)
            where
                L: Layout,
                O: Combine<L::OneWide> + Combine<L::ManyWide>,
            {
                // SAFETY: the caller's promise.
                unsafe { reduce::add::<L, O>(source, accumulator, count) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn finish<L, O>(accumulator: *const u8, target: *mut u8, count: usize, members: u32)
            where
                L: Layout,
                O: Combine<L::OneWide> + Combine<L::ManyWide>,
            {
                // SAFETY: the caller's promise.
                unsafe { reduce::finish::<L, O>(accumulator, target, count, members) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn all_finite<R: Real>(values: *const R, count: usize) -> bool {
                // SAFETY: the caller's promise.
                unsafe { optimizer::all_finite(values, count) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn weighted_sum<R: Real>(sources: &[Source<'_>], target: *mut R, count: usize) -> f64 {
                // SAFETY: the caller's promise.
                unsafe { optimizer::weighted_sum(sources, target, count) }
            }

            $( #[target_feature(enable = $feature)] )*
            unsafe fn update<R: Real>(
                rule: &Rule<'_>,
                sources: &[Source<'_>],
                parameters: *mut R,
                states: [*mut R; 2],
                count: usize,
            ) {
                // SAFETY: the caller's promise.
                unsafe { optimizer::update(rule, sources, parameters, states, count) }
            }
        }
    };
}

class!(Serial, Serial, Plain<f16, f32>, Plain<bf16, f32>, []);

#[cfg(target_arch = "x86_64")]
class!(
    Haswell,
    IntelHaswell,
    HalvesBy8,
    Plain<bf16, f32>,
    [
        "avx2", "f16c", "fma"
    ]
);

#[cfg(target_arch = "x86_64")]
class!(
    Skylake,
    IntelSkylake,
    HalvesBy16,
    Plain<bf16, f32>,
    [
        "avx2", "f16c", "fma", "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl"
    ]
);

#[cfg(target_arch = "x86_64")]
class!(
    Icelake,
    IntelIcelake,
    HalvesBy16,
    Plain<bf16, f32>,
    [
        "avx2", "f16c", "fma", "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl", "avx512ifma",
        "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq"
    ]
);

#[cfg(target_arch = "x86_64")]
class!(
    Genoa,
    AmdGenoa,
    HalvesBy16,
    BrainsBy16,
    [
        "avx2",
        "f16c",
        "fma",
        "avx512f",
        "avx512cd",
        "avx512dq",
        "avx512bw",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vnni",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512bf16"
    ]
);

#[cfg(target_arch = "x86_64")]
class!(
    Sapphire,
    IntelSapphire,
    HalvesBy16,
    BrainsBy16,
    [
        "avx2",
        "f16c",
        "fma",
        "avx512f",
        "avx512cd",
        "avx512dq",
        "avx512bw",
        "avx512vl",
        "avx512ifma",
        "avx512vbmi",
        "avx512vbmi2",
        "avx512vnni",
        "avx512bitalg",
        "avx512vpopcntdq",
        "avx512bf16",
        "avx512fp16",
        "avxvnni"
    ]
);
