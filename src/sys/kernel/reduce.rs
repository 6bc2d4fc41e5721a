//! Combining the values of several members, element by element, in the order they are given.
//!
//! A reduction starts with one member's values, adds the others', and finishes into the result. In between the values
//! lie in a wider type where the result would else depend on rounding or overflow: f16 and bf16 in f32, the sums of
//! integer averages in 64 or 128 bits.

use half::{bf16, f16};

use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// A value of an array, and how it lies in an accumulator of `Wide`.
trait Lane<Wide>: Copy {
    fn widen(self) -> Wide;
    fn narrow(wide: Wide) -> Self;
}

/// One operation on accumulators.
trait Combine<Wide> {
    fn apply(one: Wide, other: Wide) -> Wide;
    fn finish(wide: Wide, _member_count: u32) -> Wide {
        wide
    }
}

struct Sum;
struct Average;
struct Product;
struct Min;
struct Max;
struct And;
struct Or;
struct Xor;

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

macro_rules! half_lanes {
    ($( $rust:ty ),+) => { $(
        impl Lane<f32> for $rust {
            #[inline(always)]
            fn widen(self) -> f32 { self.to_f32() }
            #[inline(always)]
            fn narrow(wide: f32) -> Self { Self::from_f32(wide) }
        }
    )+ };
}
half_lanes!(f16, bf16);

macro_rules! wide_lanes {
    ($( $rust:ty => $wide:ty ),+) => { $(
        impl Lane<$wide> for $rust {
            #[inline(always)]
            fn widen(self) -> $wide { <$wide>::from(self) }
            #[inline(always)]
            // An average lies between the smallest and the largest value, so it fits.
            fn narrow(wide: $wide) -> Self { wide as Self }
        }
    )+ };
}
wide_lanes!(i8 => i64, u8 => i64, i16 => i64, u16 => i64, i32 => i64, u32 => i64, i64 => i128, u64 => i128);

/// A truth value: any byte but 0 is true, and 1 is written.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Truth(u8);

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

macro_rules! integer_operations {
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
integer_operations!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! float_operations {
    ($( $rust:ty ),+) => { $(
        impl Combine<$rust> for Sum {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one + other }
        }
        impl Combine<$rust> for Average {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one + other }
            #[inline(always)]
            fn finish(wide: $rust, member_count: u32) -> $rust { wide / (member_count as $rust) }
        }
        impl Combine<$rust> for Product {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { one * other }
        }
        // A NaN of either side stays: every comparison with it is false, and only `other` is asked for being one.
        impl Combine<$rust> for Min {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { if other < one || other.is_nan() { other } else { one } }
        }
        impl Combine<$rust> for Max {
            #[inline(always)]
            fn apply(one: $rust, other: $rust) -> $rust { if other > one || other.is_nan() { other } else { one } }
        }
    )+ };
}
float_operations!(f32, f64);

macro_rules! average_operations {
    ($( $wide:ty ),+) => { $(
        impl Combine<$wide> for Average {
            // Sums of 2^32 members of the narrow type fit: nothing wraps.
            #[inline(always)]
            fn apply(one: $wide, other: $wide) -> $wide { one.wrapping_add(other) }
            #[inline(always)]
            fn finish(wide: $wide, member_count: u32) -> $wide { wide / <$wide>::from(member_count) }
        }
    )+ };
}
average_operations!(i64, i128);

/// The three loops of one element type and operation, over checked lengths.
#[derive(Clone, Copy)]
struct Loops {
    wide_bytes: usize,
    start: fn(Span<'_>, &mut [u128]),
    add: fn(Span<'_>, &mut [u128]),
    finish: fn(&[u128], u32, &mut SpanMut<'_>),
}

fn count_of<T>(byte_count: usize, accumulator_bytes: usize, wide_bytes: usize) -> usize {
    (byte_count / size_of::<T>()).min(accumulator_bytes / wide_bytes)
}

fn start<T: Lane<W>, W: Copy>(source: Span<'_>, accumulator: &mut [u128]) {
    let count = count_of::<T>(source.byte_count(), size_of_val(accumulator), size_of::<W>());
    let (from, to) = (source.pointer().cast::<T>(), accumulator.as_mut_ptr().cast::<W>());
    for position in 0..count {
        // SAFETY: `count` elements lie in the source by its span and in the accumulator by its length; the accumulator is
        // aligned for every type here, the source need not be.
        unsafe { to.add(position).write(from.add(position).read_unaligned().widen()) };
    }
}

fn add<T: Lane<W>, W: Copy, O: Combine<W>>(source: Span<'_>, accumulator: &mut [u128]) {
    let count = count_of::<T>(source.byte_count(), size_of_val(accumulator), size_of::<W>());
    let (from, to) = (source.pointer().cast::<T>(), accumulator.as_mut_ptr().cast::<W>());
    for position in 0..count {
        // SAFETY: as in `start`; the values there were written by `start`, and every bit pattern of `W` is valid.
        unsafe {
            let target = to.add(position);
            target.write(O::apply(target.read(), from.add(position).read_unaligned().widen()));
        }
    }
}

fn finish<T: Lane<W>, W: Copy, O: Combine<W>>(
    accumulator: &[u128],
    member_count: u32,
    target: &mut SpanMut<'_>,
) {
    let count = count_of::<T>(target.byte_count(), size_of_val(accumulator), size_of::<W>());
    let (from, to) = (accumulator.as_ptr().cast::<W>(), target.pointer().cast::<T>());
    for position in 0..count {
        // SAFETY: as in `start`, with source and target exchanged.
        unsafe {
            let value = O::finish(from.add(position).read(), member_count);
            to.add(position).write_unaligned(T::narrow(value));
        }
    }
}

fn loops<T: Lane<W>, W: Copy, O: Combine<W>>() -> Loops {
    Loops { wide_bytes: size_of::<W>(), start: start::<T, W>, add: add::<T, W, O>, finish: finish::<T, W, O> }
}

fn float_loops<T, W>(op: ReduceOp) -> Option<Loops>
where
    T: Lane<W>,
    W: Copy,
    Sum: Combine<W>,
    Average: Combine<W>,
    Product: Combine<W>,
    Min: Combine<W>,
    Max: Combine<W>,
{
    Some(match op {
        ReduceOp::Sum => loops::<T, W, Sum>(),
        ReduceOp::Average => loops::<T, W, Average>(),
        ReduceOp::Product => loops::<T, W, Product>(),
        ReduceOp::Min => loops::<T, W, Min>(),
        ReduceOp::Max => loops::<T, W, Max>(),
        ReduceOp::BitwiseAnd | ReduceOp::BitwiseOr | ReduceOp::BitwiseXor => return None,
    })
}

fn integer_loops<T, W>(op: ReduceOp) -> Loops
where
    T: Lane<T> + Lane<W>,
    W: Copy,
    Average: Combine<W>,
    Sum: Combine<T>,
    Product: Combine<T>,
    Min: Combine<T>,
    Max: Combine<T>,
    And: Combine<T>,
    Or: Combine<T>,
    Xor: Combine<T>,
{
    match op {
        ReduceOp::Sum => loops::<T, T, Sum>(),
        ReduceOp::Average => loops::<T, W, Average>(),
        ReduceOp::Product => loops::<T, T, Product>(),
        ReduceOp::Min => loops::<T, T, Min>(),
        ReduceOp::Max => loops::<T, T, Max>(),
        ReduceOp::BitwiseAnd => loops::<T, T, And>(),
        ReduceOp::BitwiseOr => loops::<T, T, Or>(),
        ReduceOp::BitwiseXor => loops::<T, T, Xor>(),
    }
}

/// Truth values: sum and maximum are `or`, product and minimum are `and`; there is no average.
fn truth_loops(op: ReduceOp) -> Option<Loops> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitwiseOr => loops::<Truth, u8, Or>(),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitwiseAnd => loops::<Truth, u8, And>(),
        ReduceOp::BitwiseXor => loops::<Truth, u8, Xor>(),
        ReduceOp::Average => return None,
    })
}

fn choose(dtype: Dtype, op: ReduceOp) -> Result<Loops> {
    let found = match dtype {
        Dtype::F64 => float_loops::<f64, f64>(op),
        Dtype::F32 => float_loops::<f32, f32>(op),
        Dtype::F16 => float_loops::<f16, f32>(op),
        Dtype::Bf16 => float_loops::<bf16, f32>(op),
        Dtype::I8 => Some(integer_loops::<i8, i64>(op)),
        Dtype::U8 => Some(integer_loops::<u8, i64>(op)),
        Dtype::I16 => Some(integer_loops::<i16, i64>(op)),
        Dtype::U16 => Some(integer_loops::<u16, i64>(op)),
        Dtype::I32 => Some(integer_loops::<i32, i64>(op)),
        Dtype::U32 => Some(integer_loops::<u32, i64>(op)),
        Dtype::I64 => Some(integer_loops::<i64, i128>(op)),
        Dtype::U64 => Some(integer_loops::<u64, i128>(op)),
        Dtype::Bool => truth_loops(op),
    };
    found.ok_or_else(|| {
        let why =
            if dtype == Dtype::Bool { "truth values have no average" } else { "it is for integers only" };
        Error::unsupported(format!("{op} of {dtype}"), why)
    })
}

/// Values on their way from several members to one result.
pub struct Accumulator {
    loops: Loops,
    element_bytes: usize,
    capacity: usize,
    words: Vec<u128>,
}

impl std::fmt::Debug for Accumulator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Accumulator({} elements of {} bytes)", self.capacity, self.element_bytes)
    }
}

/// Whether values of this type can be combined so.
///
/// # Errors
/// `Unsupported` for bitwise operations on floating-point numbers and averages of truth values.
pub fn check(dtype: Dtype, op: ReduceOp) -> Result<()> {
    choose(dtype, op).map(|_| ())
}

impl Accumulator {
    /// Room for `capacity` elements.
    ///
    /// # Errors
    /// As [`check`].
    pub fn new(dtype: Dtype, op: ReduceOp, capacity: usize) -> Result<Self> {
        let loops = choose(dtype, op)?;
        let words = vec![0; (capacity.saturating_mul(loops.wide_bytes)).div_ceil(size_of::<u128>())];
        Ok(Self { loops, element_bytes: dtype.size_bytes(), capacity, words })
    }

    fn check(&self, byte_count: usize) -> Result<()> {
        if byte_count.is_multiple_of(self.element_bytes) && byte_count / self.element_bytes <= self.capacity {
            return Ok(());
        }
        let limit = self.capacity.saturating_mul(self.element_bytes);
        let reason = format!("must be at most {limit} bytes, and whole elements of {}", self.element_bytes);
        Err(Error::invalid("span", byte_count, "reduction", reason))
    }

    /// Forgets what was there and takes the first member's values.
    ///
    /// # Errors
    /// `Invalid` for more than the capacity, or parts of elements.
    pub fn start(&mut self, source: Span<'_>) -> Result<()> {
        self.check(source.byte_count())?;
        (self.loops.start)(source, &mut self.words);
        Ok(())
    }

    /// Combines with the next member's values.
    ///
    /// # Errors
    /// As [`Accumulator::start`].
    pub fn add(&mut self, source: Span<'_>) -> Result<()> {
        self.check(source.byte_count())?;
        (self.loops.add)(source, &mut self.words);
        Ok(())
    }

    /// Writes the result for so many members.
    ///
    /// # Errors
    /// As [`Accumulator::start`].
    pub fn finish(&self, member_count: usize, target: &mut SpanMut<'_>) -> Result<()> {
        self.check(target.byte_count())?;
        (self.loops.finish)(&self.words, u32::try_from(member_count).unwrap_or(u32::MAX).max(1), target);
        Ok(())
    }
}

/// Elements combined at a time: wide values of one block stay in the first cache.
const BLOCK_ELEMENTS: usize = 1024;

/// As [`super::Table::reduce`].
pub(super) fn reduce(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Element;

    fn reduce<T: Element + Default>(op: ReduceOp, members: &[&[T]]) -> Vec<T> {
        let mut accumulator = Accumulator::new(T::DTYPE, op, members[0].len()).expect("supported");
        accumulator.start(Span::of(members[0])).expect("fits");
        for member in &members[1..] {
            accumulator.add(Span::of(member)).expect("fits");
        }
        let mut result = vec![T::default(); members[0].len()];
        accumulator.finish(members.len(), &mut SpanMut::of(&mut result)).expect("fits");
        result
    }

    #[test]
    fn sums_wrap_and_averages_do_not() {
        assert_eq!(reduce(ReduceOp::Sum, &[&[i32::MAX, 1], &[1, 2]]), [i32::MIN, 3]);
        assert_eq!(reduce(ReduceOp::Average, &[&[i32::MAX, -7], &[i32::MAX, 4]]), [i32::MAX, -1]);
        assert_eq!(reduce(ReduceOp::Average, &[&[i64::MIN], &[i64::MIN], &[i64::MIN]]), [i64::MIN]);
        assert_eq!(reduce(ReduceOp::Average, &[&[u64::MAX], &[u64::MAX]]), [u64::MAX]);
        assert_eq!(reduce(ReduceOp::Average, &[&[1.0f32], &[2.0]]), [1.5]);
    }

    #[test]
    fn a_nan_of_any_member_stays() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            for place in 0..3 {
                let mut values = [[1.0f64], [2.0], [3.0]];
                values[place] = [f64::NAN];
                let members = values.iter().map(|value| &value[..]).collect::<Vec<_>>();
                assert!(reduce(op, &members)[0].is_nan(), "{op} at {place}");
            }
        }
        assert_eq!(reduce(ReduceOp::Min, &[&[1.0f32, -5.0], &[2.0, -6.0]]), [1.0, -6.0]);
        assert_eq!(reduce(ReduceOp::Max, &[&[1i64, -5], &[2, -6]]), [2, -5]);
    }

    #[test]
    fn halves_accumulate_in_f32() {
        // In f16 alone 2048 + 1 stays 2048 each time.
        let members = [[f16::from_f32(2048.0)], [f16::from_f32(1.0)], [f16::from_f32(1.0)]];
        let spans = members.iter().map(|member| &member[..]).collect::<Vec<_>>();
        assert_eq!(reduce(ReduceOp::Sum, &spans)[0].to_f32(), 2050.0);
    }

    #[test]
    fn odd_addresses_and_every_length_are_right() {
        for count in 0..70usize {
            let mut bytes = vec![0u8; count * 4 + 1];
            for position in 0..count {
                bytes[1 + position * 4..][..4].copy_from_slice(&(position as f32).to_le_bytes());
            }
            let mut accumulator = Accumulator::new(Dtype::F32, ReduceOp::Sum, count).expect("supported");
            accumulator.start(Span::of(&bytes[1..])).expect("fits");
            accumulator.add(Span::of(&bytes[1..])).expect("fits");
            let mut result = vec![0u8; count * 4 + 3];
            accumulator.finish(2, &mut SpanMut::of(&mut result[3..])).expect("fits");
            for position in 0..count {
                let value = f32::from_le_bytes(result[3 + position * 4..][..4].try_into().expect("four"));
                assert_eq!(value, 2.0 * position as f32);
            }
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let bitwise = matches!(op, ReduceOp::BitwiseAnd | ReduceOp::BitwiseOr | ReduceOp::BitwiseXor);
                let legal = if *dtype == Dtype::Bool {
                    *op != ReduceOp::Average
                } else {
                    !(bitwise && dtype.is_float())
                };
                assert_eq!(check(*dtype, *op).is_ok(), legal, "{op} of {dtype}");
            }
        }
        let mut accumulator = Accumulator::new(Dtype::F32, ReduceOp::Sum, 2).expect("supported");
        assert!(accumulator.start(Span::of(&[0u8; 12])).is_err());
        assert!(accumulator.add(Span::of(&[0u8; 7])).is_err());
    }
}
