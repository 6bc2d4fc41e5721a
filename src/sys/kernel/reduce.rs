//! Combining the values of several members, element by element, in the order they are given.
//!
//! In between the values lie in a wider type where the result would else depend on rounding or overflow: f16 and bf16 in
//! f32, the sums of integer averages in f64 or 128 bits.

use super::class::Class;
use super::lane::{
    And, Average, Combine, Float, Lane, Layout, Max, Min, Or, Plain, Product, Sum, Truth, Xor,
};
use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp};

/// The most members whose integer averages are exact in binary64.
const MEMBER_LIMIT: usize = 1 << 20;

/// Wide values of one block: they stay in the first cache.
const BLOCK_BYTES: usize = 8 << 10;

/// Wide values on their way from several members to one result.
#[repr(align(64))]
struct Block(std::mem::MaybeUninit<[u8; BLOCK_BYTES]>);

/// Combines two sources into a target of so many elements, for so many members.
type Pair = unsafe fn(*const u8, *const u8, *mut u8, usize, u32);

/// The loops of one class, element type and operation.
///
/// Counts are elements. Sources and targets are valid for so many, at any alignment, and a target may be a source;
/// accumulators are valid for as many wide values, and aligned like a [`Block`].
#[derive(Clone, Copy)]
pub(super) struct Loops {
    element_bytes: usize,
    wide_bytes: usize,
    /// Works without an accumulator; `None` where that is rarely asked.
    pair: Option<Pair>,
    /// Writes the wide values of a source.
    start: unsafe fn(*const u8, *mut u8, usize),
    /// Combines wide values with a source.
    add: unsafe fn(*const u8, *mut u8, usize),
    /// Writes the results of wide values for so many members.
    finish: unsafe fn(*const u8, *mut u8, usize, u32),
}

/// How many elements are taken many at once, and how many elements that is of each.
const fn many<L: Layout>(count: usize) -> (usize, usize) {
    let factor = size_of::<L::Many>() / size_of::<L::One>();
    (count / factor, count / factor * factor)
}

/// # Safety
/// As [`Loops`] says.
#[inline(always)]
pub(super) unsafe fn pair<L, O>(one: *const u8, other: *const u8, target: *mut u8, count: usize, members: u32)
where
    L: Layout,
    O: Combine<L::OneWide> + Combine<L::ManyWide>,
{
    let (whole, done) = many::<L>(count);
    let bytes = done * size_of::<L::One>();
    // SAFETY: the caller's promise; `done` elements are `whole` times as many as `Many` holds, and the rest follows.
    unsafe {
        pair_of::<L::Many, L::ManyWide, O>(one, other, target, whole, members);
        if count > done {
            let (one, other, target) = (one.add(bytes), other.add(bytes), target.add(bytes));
            pair_of::<L::One, L::OneWide, O>(one, other, target, count - done, members);
        }
    }
}

/// Not a closure: that would be compiled apart, without the instructions of the class.
#[inline(always)]
fn both<T: Lane<W>, W, O: Combine<W>>(one: T, other: T, members: u32) -> T {
    T::narrow(O::finish(O::apply(one.widen(), other.widen()), members))
}

/// # Safety
/// As [`pair`], counted in `T`.
#[inline(always)]
unsafe fn pair_of<T, W, O>(one: *const u8, other: *const u8, target: *mut u8, count: usize, members: u32)
where
    T: Lane<W>,
    O: Combine<W>,
{
    let (one, other, target) = (one.cast::<T>(), other.cast::<T>(), target.cast::<T>());
    // SAFETY: the caller's promise. The loops are written for each case, so that the compiler sees one address where two
    // are equal: it then takes many at once, which it does not where a write might change what is read later.
    unsafe {
        if target.cast_const() == one {
            for position in 0..count {
                let place = target.add(position);
                let value =
                    both::<T, W, O>(place.read_unaligned(), other.add(position).read_unaligned(), members);
                place.write_unaligned(value);
            }
        } else if target.cast_const() == other {
            for position in 0..count {
                let place = target.add(position);
                let value =
                    both::<T, W, O>(one.add(position).read_unaligned(), place.read_unaligned(), members);
                place.write_unaligned(value);
            }
        } else {
            for position in 0..count {
                let (one, other) = (one.add(position).read_unaligned(), other.add(position).read_unaligned());
                let value = both::<T, W, O>(one, other, members);
                target.add(position).write_unaligned(value);
            }
        }
    }
}

/// # Safety
/// As [`Loops`] says.
#[inline(always)]
pub(super) unsafe fn start<L: Layout>(source: *const u8, accumulator: *mut u8, count: usize) {
    #[inline(always)]
    unsafe fn run<T: Lane<W>, W>(source: *const u8, accumulator: *mut u8, count: usize) {
        let (source, accumulator) = (source.cast::<T>(), accumulator.cast::<W>());
        for position in 0..count {
            // SAFETY: the caller's promise.
            unsafe { accumulator.add(position).write(source.add(position).read_unaligned().widen()) };
        }
    }
    let (whole, done) = many::<L>(count);
    // SAFETY: as in `pair`; a register of wide values has the size of as many wide values.
    unsafe {
        run::<L::Many, L::ManyWide>(source, accumulator, whole);
        let rest = accumulator.add(done * size_of::<L::OneWide>());
        run::<L::One, L::OneWide>(source.add(done * size_of::<L::One>()), rest, count - done);
    }
}

/// # Safety
/// As [`Loops`] says, and the accumulator was written by [`start`].
#[inline(always)]
pub(super) unsafe fn add<L, O>(source: *const u8, accumulator: *mut u8, count: usize)
where
    L: Layout,
    O: Combine<L::OneWide> + Combine<L::ManyWide>,
{
    #[inline(always)]
    unsafe fn run<T: Lane<W>, W, O: Combine<W>>(source: *const u8, accumulator: *mut u8, count: usize) {
        let (source, accumulator) = (source.cast::<T>(), accumulator.cast::<W>());
        for position in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let place = accumulator.add(position);
                place.write(O::apply(place.read(), source.add(position).read_unaligned().widen()));
            }
        }
    }
    let (whole, done) = many::<L>(count);
    // SAFETY: as in `start`.
    unsafe {
        run::<L::Many, L::ManyWide, O>(source, accumulator, whole);
        let rest = accumulator.add(done * size_of::<L::OneWide>());
        run::<L::One, L::OneWide, O>(source.add(done * size_of::<L::One>()), rest, count - done);
    }
}

/// # Safety
/// As [`add`].
#[inline(always)]
pub(super) unsafe fn finish<L, O>(accumulator: *const u8, target: *mut u8, count: usize, members: u32)
where
    L: Layout,
    O: Combine<L::OneWide> + Combine<L::ManyWide>,
{
    #[inline(always)]
    unsafe fn run<T: Lane<W>, W, O: Combine<W>>(
        accumulator: *const u8,
        target: *mut u8,
        count: usize,
        members: u32,
    ) {
        let (accumulator, target) = (accumulator.cast::<W>(), target.cast::<T>());
        for position in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let value = O::finish(accumulator.add(position).read(), members);
                target.add(position).write_unaligned(T::narrow(value));
            }
        }
    }
    let (whole, done) = many::<L>(count);
    // SAFETY: as in `start`.
    unsafe {
        run::<L::Many, L::ManyWide, O>(accumulator, target, whole, members);
        let rest = accumulator.add(done * size_of::<L::OneWide>());
        run::<L::One, L::OneWide, O>(rest, target.add(done * size_of::<L::One>()), count - done, members);
    }
}

fn loops<C, L, O>() -> Loops
where
    C: Class,
    L: Layout,
    O: Combine<L::OneWide> + Combine<L::ManyWide>,
{
    Loops { pair: Some(C::pair::<L, O>), ..block_loops::<C, L, O>() }
}

/// As [`loops`], without the one for pairs: what is rarely asked for is compiled into less code.
fn block_loops<C, L, O>() -> Loops
where
    C: Class,
    L: Layout,
    O: Combine<L::OneWide> + Combine<L::ManyWide>,
{
    Loops {
        element_bytes: size_of::<L::One>(),
        wide_bytes: size_of::<L::OneWide>(),
        pair: None,
        start: C::start::<L>,
        add: C::add::<L, O>,
        finish: C::finish::<L, O>,
    }
}

fn float_loops<C, L>(op: ReduceOp) -> Option<Loops>
where
    C: Class,
    L: Layout<OneWide: Float, ManyWide: Float>,
{
    Some(match op {
        ReduceOp::Sum => loops::<C, L, Sum>(),
        ReduceOp::Average => loops::<C, L, Average>(),
        ReduceOp::Product => loops::<C, L, Product>(),
        ReduceOp::Min => loops::<C, L, Min>(),
        ReduceOp::Max => loops::<C, L, Max>(),
        ReduceOp::BitwiseAnd | ReduceOp::BitwiseOr | ReduceOp::BitwiseXor => return None,
    })
}

/// `U` is the unsigned type of the size of `T`: what wraps is the same for both. What works by bits works by bytes.
fn integer_loops<C, T, U, W>(op: ReduceOp) -> Loops
where
    C: Class,
    T: Lane<T> + Lane<W>,
    U: Lane<U>,
    W: Copy,
    Average: Combine<W>,
    Sum: Combine<U>,
    Product: Combine<U>,
    Min: Combine<T>,
    Max: Combine<T>,
{
    match op {
        ReduceOp::Sum => loops::<C, Plain<U, U>, Sum>(),
        ReduceOp::Average => block_loops::<C, Plain<T, W>, Average>(),
        ReduceOp::Product => block_loops::<C, Plain<U, U>, Product>(),
        ReduceOp::Min => block_loops::<C, Plain<T, T>, Min>(),
        ReduceOp::Max => block_loops::<C, Plain<T, T>, Max>(),
        ReduceOp::BitwiseAnd => block_loops::<C, Plain<u8, u8>, And>(),
        ReduceOp::BitwiseOr => block_loops::<C, Plain<u8, u8>, Or>(),
        ReduceOp::BitwiseXor => block_loops::<C, Plain<u8, u8>, Xor>(),
    }
}

/// Truth values: sum and maximum are `or`, product and minimum are `and`; there is no average.
fn truth_loops<C: Class>(op: ReduceOp) -> Option<Loops> {
    Some(match op {
        ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitwiseOr => block_loops::<C, Plain<Truth, u8>, Or>(),
        ReduceOp::Product | ReduceOp::Min | ReduceOp::BitwiseAnd => block_loops::<C, Plain<Truth, u8>, And>(),
        ReduceOp::BitwiseXor => block_loops::<C, Plain<Truth, u8>, Xor>(),
        ReduceOp::Average => return None,
    })
}

/// The loops of a class; `None` where the operation means nothing for the type.
pub(super) fn choose<C: Class>(dtype: Dtype, op: ReduceOp) -> Option<Loops> {
    match dtype {
        Dtype::F64 => float_loops::<C, Plain<f64, f64>>(op),
        Dtype::F32 => float_loops::<C, Plain<f32, f32>>(op),
        Dtype::F16 => float_loops::<C, C::Halves>(op),
        Dtype::Bf16 => float_loops::<C, C::Brains>(op),
        Dtype::I8 => Some(integer_loops::<C, i8, u8, f64>(op)),
        Dtype::U8 => Some(integer_loops::<C, u8, u8, f64>(op)),
        Dtype::I16 => Some(integer_loops::<C, i16, u16, f64>(op)),
        Dtype::U16 => Some(integer_loops::<C, u16, u16, f64>(op)),
        Dtype::I32 => Some(integer_loops::<C, i32, u32, f64>(op)),
        Dtype::U32 => Some(integer_loops::<C, u32, u32, f64>(op)),
        Dtype::I64 => Some(integer_loops::<C, i64, u64, i128>(op)),
        Dtype::U64 => Some(integer_loops::<C, u64, u64, i128>(op)),
        Dtype::Bool => truth_loops::<C>(op),
    }
}

/// Whether values of this type can be combined so.
///
/// # Errors
/// `Unsupported` for bitwise operations on floating-point numbers and averages of truth values.
pub fn check(dtype: Dtype, op: ReduceOp) -> Result<()> {
    let bitwise = matches!(op, ReduceOp::BitwiseAnd | ReduceOp::BitwiseOr | ReduceOp::BitwiseXor);
    let why = match (dtype, op) {
        (Dtype::Bool, ReduceOp::Average) => "truth values have no average",
        _ if bitwise && dtype.is_float() => "it is for integers only",
        _ => return Ok(()),
    };
    Err(Error::unsupported(format!("{op} of {dtype}"), why))
}

/// As [`super::Table::reduce`], with the loops that `choose` gives.
pub(super) fn reduce(
    choose: fn(Dtype, ReduceOp) -> Option<Loops>,
    dtype: Dtype,
    op: ReduceOp,
    sources: &[Span<'_>],
    target: &mut SpanMut<'_>,
) -> Result<()> {
    check(dtype, op)?;
    let Some(loops) = choose(dtype, op) else {
        return Err(Error::unsupported(format!("{op} of {dtype}"), "there is no loop for it"));
    };
    let (size, byte_count) = (dtype.size_bytes(), target.byte_count());
    let invalid = |argument: &str, value: usize, reason: String| {
        Err(Error::invalid(argument, value, "reduction", reason))
    };
    if !byte_count.is_multiple_of(size) {
        return invalid("target bytes", byte_count, format!("must be whole elements of {size} bytes"));
    }
    if let Some(source) = sources.iter().find(|source| source.byte_count() != byte_count) {
        let reason = format!("must be {byte_count} like the target");
        return invalid("source bytes", source.byte_count(), reason);
    }
    if sources.is_empty() || sources.len() > MEMBER_LIMIT {
        return invalid("count of sources", sources.len(), format!("must be 1 to {MEMBER_LIMIT}"));
    }
    let members = sources.len() as u32;
    // Bytes, where the loops work by bits.
    let size = loops.element_bytes;
    if let ([one, other], Some(pair)) = (sources, loops.pair) {
        // SAFETY: both sources and the target are `byte_count` bytes by their spans, whole elements of this type; the table
        // that `choose` came from is one that this processor runs.
        unsafe {
            pair(one.pointer(), other.pointer(), target.pointer(), byte_count / size, members);
        }
        return Ok(());
    }
    let mut block = Block(std::mem::MaybeUninit::uninit());
    let wide = block.0.as_mut_ptr().cast::<u8>();
    let step = BLOCK_BYTES / loops.wide_bytes * size;
    let mut start = 0;
    while start < byte_count {
        let count = step.min(byte_count - start) / size;
        for (position, source) in sources.iter().enumerate() {
            let source = source.pointer().wrapping_add(start);
            // SAFETY: `count` elements lie within each span from `start`, and as many wide values in the block; the first
            // source writes them before another reads them.
            unsafe {
                if position == 0 {
                    (loops.start)(source, wide, count)
                } else {
                    (loops.add)(source, wide, count)
                }
            }
        }
        // SAFETY: as above.
        unsafe { (loops.finish)(wide, target.pointer().wrapping_add(start), count, members) };
        start += count * size;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::sys::Element;
    use crate::sys::kernel::Table;

    fn reduce<T: Element + Default>(op: ReduceOp, members: &[&[T]]) -> Vec<T> {
        let sources = members.iter().map(|member| Span::of(member)).collect::<Vec<_>>();
        let mut result = vec![T::default(); members[0].len()];
        let mut target = SpanMut::of(&mut result);
        Table::best().reduce(T::DTYPE, op, &sources, &mut target).expect("supported and equal");
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
        let table = Table::SERIAL;
        let mut target = [0u8; 12];
        let mut target = SpanMut::of(&mut target);
        let reduce = |sources: &[Span<'_>], target: &mut SpanMut<'_>| {
            table.reduce(Dtype::F32, ReduceOp::Sum, sources, target)
        };
        assert!(reduce(&[], &mut target).is_err(), "no source");
        assert!(reduce(&[Span::of(&[0u8; 8])], &mut target).is_err(), "unequal");
        let mut odd = [0u8; 7];
        assert!(reduce(&[Span::of(&[0u8; 7])], &mut SpanMut::of(&mut odd)).is_err(), "part of an element");
        let many = vec![Span::of(&[0u8; 12]); MEMBER_LIMIT + 1];
        assert!(reduce(&many, &mut target).is_err(), "too many");
    }
}
