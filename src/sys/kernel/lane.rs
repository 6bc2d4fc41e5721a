//! Values of arrays, the wider values that they are combined in, and what combining means.
//!
//! Everything here is inlined into the loops of a class, so that the compiler uses that class's instructions.

use half::{bf16, f16};

/// A value of an array, or a register full of them, and how it lies in an accumulator of `Wide`.
pub(super) trait Lane<Wide>: Copy {
    fn widen(self) -> Wide;
    fn narrow(wide: Wide) -> Self;
}

/// One operation on accumulators.
pub(super) trait Combine<Wide> {
    fn apply(one: Wide, other: Wide) -> Wide;
    #[inline(always)]
    fn finish(wide: Wide, _members: u32) -> Wide {
        wide
    }
}

/// A floating-point number, or a register full of them.
pub(super) trait Float: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// Divides by the count of members.
    fn divide(self, members: u32) -> Self;
    /// The smaller one; the first of equal ones, and a NaN if there is one.
    fn smaller(self, other: Self) -> Self;
    /// The larger one; the first of equal ones, and a NaN if there is one.
    fn larger(self, other: Self) -> Self;
}

/// How an element type lies in arrays and accumulators: one by one, and as many at once as a class has instructions for.
///
/// `Many` has the size of a whole number of `One`, `ManyWide` of as many `OneWide`.
pub(super) trait Layout {
    type One: Lane<Self::OneWide>;
    type OneWide: Copy;
    type Many: Lane<Self::ManyWide>;
    type ManyWide: Copy;
}

/// Left to the compiler to take several at once.
pub(super) struct Plain<T, W>(std::marker::PhantomData<(T, W)>);

impl<T: Lane<W>, W: Copy> Layout for Plain<T, W> {
    type One = T;
    type OneWide = W;
    type Many = T;
    type ManyWide = W;
}

pub(super) struct Sum;
pub(super) struct Average;
pub(super) struct Product;
pub(super) struct Min;
pub(super) struct Max;
pub(super) struct And;
pub(super) struct Or;
pub(super) struct Xor;

impl<F: Float> Combine<F> for Sum {
    #[inline(always)]
    fn apply(one: F, other: F) -> F {
        one.add(other)
    }
}

impl<F: Float> Combine<F> for Average {
    #[inline(always)]
    fn apply(one: F, other: F) -> F {
        one.add(other)
    }
    #[inline(always)]
    fn finish(wide: F, members: u32) -> F {
        wide.divide(members)
    }
}

impl<F: Float> Combine<F> for Product {
    #[inline(always)]
    fn apply(one: F, other: F) -> F {
        one.multiply(other)
    }
}

impl<F: Float> Combine<F> for Min {
    #[inline(always)]
    fn apply(one: F, other: F) -> F {
        one.smaller(other)
    }
}

impl<F: Float> Combine<F> for Max {
    #[inline(always)]
    fn apply(one: F, other: F) -> F {
        one.larger(other)
    }
}

macro_rules! floats {
    ($( $rust:ty ),+) => { $(
        impl Float for $rust {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self { self * other }
            #[inline(always)]
            #[allow(clippy::cast_precision_loss, reason = "counts of members are small")]
            fn divide(self, members: u32) -> Self { self / (members as $rust) }
            // A NaN of either side stays: every comparison with it is false, and only `other` is asked for being one.
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { if other < self || other.is_nan() { other } else { self } }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { if other > self || other.is_nan() { other } else { self } }
        }
    )+ };
}
floats!(f32, f64);

macro_rules! integers {
    ($( $rust:ty ),+) => { $(
        impl Combine<$rust> for Sum {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one.wrapping_add(other) }
        }
        impl Combine<$rust> for Product {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one.wrapping_mul(other) }
        }
        impl Combine<$rust> for Min {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one.min(other) }
        }
        impl Combine<$rust> for Max {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one.max(other) }
        }
        impl Combine<$rust> for And {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one & other }
        }
        impl Combine<$rust> for Or {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one | other }
        }
        impl Combine<$rust> for Xor {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one ^ other }
        }
    )+ };
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

/// The sums of averages of integers of 64 bits.
impl Combine<i128> for Average {
    #[inline(always)]
    fn apply(one: i128, other: i128) -> i128 {
        one.wrapping_add(other)
    }
    #[inline(always)]
    fn finish(wide: i128, members: u32) -> i128 {
        wide / i128::from(members)
    }
}

macro_rules! same_lanes {
    ($( $rust:ty ),+) => { $(
        impl Lane<$rust> for $rust {
            #[inline(always)]
            fn widen(self) -> $rust { self }
            #[inline(always)]
            fn narrow(wide: $rust) -> Self { wide }
        }
    )+ };
}
same_lanes!(f64, f32, i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! average_lanes {
    ($( $rust:ty => $wide:ty ),+) => { $(
        impl Lane<$wide> for $rust {
            #[inline(always)]
            fn widen(self) -> $wide { <$wide>::from(self) }
            #[inline(always)]
            // An average lies between the smallest and the largest value, so it fits; what follows the point is cut.
            fn narrow(wide: $wide) -> Self { wide as Self }
        }
    )+ };
}
// Sums of up to `reduce::MEMBER_LIMIT` integers of 32 bits are exact in binary64, and so is the cut quotient.
average_lanes!(i8 => f64, u8 => f64, i16 => f64, u16 => f64, i32 => f64, u32 => f64, i64 => i128, u64 => i128);

impl Lane<f32> for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_half(self.to_bits())
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(narrow_to_half(wide))
    }
}

impl Lane<f32> for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        // To nearest, ties to even.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet = bits | 0x40_0000;
        let bits = if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded };
        // As a signed number, which the oldest instructions can narrow.
        Self::from_bits((bits.cast_signed() >> 16) as i16 as u16)
    }
}

/// Binary16 as binary32, without a branch, so that the compiler takes several at once. Exact; a NaN keeps its bits.
#[inline(always)]
fn widen_half(half: u16) -> f32 {
    const EXPONENT: u32 = 0x7c00 << 13;
    let magnitude = u32::from(half & 0x7fff) << 13;
    let exponent = magnitude & EXPONENT;
    let normal = magnitude + (112 << 23);
    // One more step of the exponent, and that step taken away again as a number, which shifts the digits up.
    let small = f32::from_bits(magnitude + (113 << 23)) - f32::from_bits(113 << 23);
    let large = magnitude + (224 << 23);
    let bits = if exponent == 0 { small.to_bits() } else { normal };
    let bits = if exponent == EXPONENT { large } else { bits };
    f32::from_bits(bits | u32::from(half & 0x8000) << 16)
}

/// The nearest binary16, ties to even, without a branch. A NaN becomes quiet and keeps its upper bits.
#[inline(always)]
fn narrow_to_half(wide: f32) -> u16 {
    /// Adding it to a number below 2^-14 leaves the digits of a subnormal half at the low end.
    const SHIFT: u32 = 126 << 23;
    let bits = wide.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let small = (f32::from_bits(magnitude) + f32::from_bits(SHIFT)).to_bits().wrapping_sub(SHIFT);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let nan = magnitude >> 13 & 0x3ff | 0x7e00;
    let half = if magnitude < 113 << 23 { small } else { normal };
    let half = if magnitude >= 143 << 23 { 0x7c00 } else { half };
    let half = if magnitude > 0x7f80_0000 { nan } else { half };
    // As a signed number, which the oldest instructions can narrow.
    ((half & 0x7fff).cast_signed() | bits.cast_signed() >> 31 << 15) as i16 as u16
}

/// A truth value: any byte but 0 is true, and 1 is written.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Lane<u8> for Truth {
    #[inline(always)]
    fn widen(self) -> u8 {
        u8::from(self.0 != 0)
    }
    #[inline(always)]
    fn narrow(wide: u8) -> Self {
        Self(wide)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_those_of_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
            if half.is_nan() {
                assert!(widen_half(bits).is_nan());
            } else {
                assert_eq!(widen_half(bits).to_bits(), half.to_f32_const().to_bits(), "{bits:#x}");
            }
            let back = <f16 as Lane<f32>>::narrow(half.widen());
            assert_eq!(back.to_bits(), f16::from_f32_const(half.to_f32_const()).to_bits(), "{bits:#x}");
            let back = <bf16 as Lane<f32>>::narrow(brain.widen());
            assert_eq!(back.to_bits(), bf16::from_f32_const(brain.to_f32_const()).to_bits(), "{bits:#x}");
            // Around each value and around each tie between two of them.
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let wide = f32::from_bits(u32::from(bits) << 16 | low);
                assert_eq!(narrow_to_half(wide), f16::from_f32_const(wide).to_bits(), "{wide:e}");
                let narrow = <bf16 as Lane<f32>>::narrow(wide);
                assert_eq!(narrow.to_bits(), bf16::from_f32_const(wide).to_bits(), "{wide:e}");
            }
        }
    }
}
