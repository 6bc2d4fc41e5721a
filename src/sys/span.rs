//! Bytes as pointer and length: memory that other processes or foreign code may write while we read it.
//!
//! A span is never turned into a Rust reference. Reads and writes go through raw pointers, and whoever reads
//! checks what was read, since a peer may change it at any time.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::vocabulary::Dtype;

/// A type whose values can be elements of an array.
///
/// Sealed: every bit pattern of an implementor is a valid value, and its size is that of its [`Dtype`].
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The element type that this Rust type stands for.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($( $rust:ty => $dtype:ident ),+ $(,)?) => {
        $(
            impl sealed::Sealed for $rust {}
            impl Element for $rust {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )+
    };
}

elements! {
    f64 => F64, f32 => F32, half::f16 => F16, half::bf16 => Bf16, i8 => I8, u8 => U8,
    i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, u64 => U64,
}

/// Bytes that may be read.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pointer: *const u8,
    byte_count: usize,
    lifetime: PhantomData<&'a [u8]>,
}

/// Bytes that may be read and written.
#[derive(Debug)]
pub struct SpanMut<'a> {
    pointer: *mut u8,
    byte_count: usize,
    lifetime: PhantomData<&'a mut [u8]>,
}

// SAFETY: a span is an address range that lives as long as 'a; all access is by raw pointer, so moving it to
// another thread adds no aliasing that its maker did not already allow.
unsafe impl Send for Span<'_> {}
// SAFETY: as above; shared spans only read.
unsafe impl Sync for Span<'_> {}
// SAFETY: as above; a writable span is not Clone, so one holder at a time writes through it.
unsafe impl Send for SpanMut<'_> {}
// SAFETY: a `&SpanMut` gives only pointers and read access.
unsafe impl Sync for SpanMut<'_> {}

fn check(range: &Range<usize>, byte_count: usize) -> Result<()> {
    if range.start <= range.end && range.end <= byte_count {
        return Ok(());
    }
    let reason = format!("must lie within {byte_count} bytes");
    Err(Error::invalid("byte range", format!("{}..{}", range.start, range.end), "span", reason))
}

impl<'a> Span<'a> {
    /// The bytes of a slice.
    #[must_use]
    pub fn of<T: Element>(slice: &'a [T]) -> Self {
        Self { pointer: slice.as_ptr().cast(), byte_count: size_of_val(slice), lifetime: PhantomData }
    }

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { pointer: std::ptr::without_provenance(64), byte_count: 0, lifetime: PhantomData }
    }

    /// Bytes at an address.
    ///
    /// # Safety
    /// `byte_count` bytes at `pointer` must be readable for the whole of `'a`. Others may write them meanwhile.
    #[must_use]
    #[allow(unsafe_code, reason = "the one way in for foreign memory")]
    pub unsafe fn from_raw(pointer: *const u8, byte_count: usize) -> Self {
        if byte_count == 0 { Self::empty() } else { Self { pointer, byte_count, lifetime: PhantomData } }
    }

    /// How many bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.byte_count == 0
    }

    /// The address of the first byte.
    #[must_use]
    pub const fn pointer(&self) -> *const u8 {
        self.pointer
    }

    /// Whether no byte is in both.
    #[must_use]
    pub fn is_apart(&self, other: &Span<'_>) -> bool {
        let ends_before = |one: &Span<'_>, other: &Span<'_>| {
            one.pointer.addr().saturating_add(one.byte_count) <= other.pointer.addr()
        };
        ends_before(self, other) || ends_before(other, self)
    }

    /// A part of it.
    ///
    /// # Errors
    /// `Invalid` if the range is not within.
    pub fn part(&self, range: Range<usize>) -> Result<Self> {
        check(&range, self.byte_count)?;
        Ok(Self {
            pointer: self.pointer.wrapping_add(range.start),
            byte_count: range.end - range.start,
            lifetime: PhantomData,
        })
    }

    /// A copy of the bytes as they were while they were read.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.byte_count];
        let mut target = SpanMut::of(&mut bytes[..]);
        // Equal lengths: the copy cannot fail.
        let _ = target.copy_from(*self);
        bytes
    }
}

impl<'a> SpanMut<'a> {
    /// The bytes of a slice.
    #[must_use]
    pub fn of<T: Element>(slice: &'a mut [T]) -> Self {
        let byte_count = size_of_val(slice);
        Self { pointer: slice.as_mut_ptr().cast(), byte_count, lifetime: PhantomData }
    }

    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self { pointer: std::ptr::without_provenance_mut(64), byte_count: 0, lifetime: PhantomData }
    }

    /// Bytes at an address.
    ///
    /// # Safety
    /// `byte_count` bytes at `pointer` must be readable and writable for the whole of `'a`, and no Rust reference to
    /// them may be used meanwhile. Other processes may write them.
    #[must_use]
    #[allow(unsafe_code, reason = "the one way in for foreign memory")]
    pub unsafe fn from_raw(pointer: *mut u8, byte_count: usize) -> Self {
        if byte_count == 0 { Self::empty() } else { Self { pointer, byte_count, lifetime: PhantomData } }
    }

    /// How many bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.byte_count == 0
    }

    /// The address of the first byte.
    #[must_use]
    pub const fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// The same bytes for reading.
    #[must_use]
    pub const fn as_span(&self) -> Span<'_> {
        Span { pointer: self.pointer, byte_count: self.byte_count, lifetime: PhantomData }
    }

    /// The same bytes for reading only, from now on.
    #[must_use]
    pub const fn into_span(self) -> Span<'a> {
        Span { pointer: self.pointer, byte_count: self.byte_count, lifetime: PhantomData }
    }

    /// The same bytes, lent for a shorter time.
    #[must_use]
    pub const fn reborrow(&mut self) -> SpanMut<'_> {
        SpanMut { pointer: self.pointer, byte_count: self.byte_count, lifetime: PhantomData }
    }

    /// The same bytes twice, to be read and written in place: what reads an element reads it before it is written.
    #[must_use]
    pub const fn in_place(&mut self) -> (Span<'_>, SpanMut<'_>) {
        let source = Span { pointer: self.pointer, byte_count: self.byte_count, lifetime: PhantomData };
        (source, SpanMut { pointer: self.pointer, byte_count: self.byte_count, lifetime: PhantomData })
    }

    /// A part of it, lent for as long as the whole is not used.
    ///
    /// # Errors
    /// `Invalid` if the range is not within.
    pub fn part(&mut self, range: Range<usize>) -> Result<SpanMut<'_>> {
        self.reborrow().into_part(range)
    }

    /// A part of it, for as long as the whole was lent.
    ///
    /// # Errors
    /// `Invalid` if the range is not within.
    pub fn into_part(self, range: Range<usize>) -> Result<SpanMut<'a>> {
        check(&range, self.byte_count)?;
        Ok(SpanMut {
            pointer: self.pointer.wrapping_add(range.start),
            byte_count: range.end - range.start,
            lifetime: PhantomData,
        })
    }

    /// Copies all bytes of `source`, which may overlap.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ.
    #[allow(unsafe_code, reason = "raw copy between spans")]
    pub fn copy_from(&mut self, source: Span<'_>) -> Result<()> {
        if source.byte_count != self.byte_count {
            let reason = format!("must be {} bytes like the target", self.byte_count);
            return Err(Error::invalid("source span", source.byte_count, "span", reason));
        }
        // SAFETY: both ranges are valid for their spans' lifetimes by the contracts of `of` and `from_raw`, and `copy`
        // allows them to overlap.
        unsafe { std::ptr::copy(source.pointer, self.pointer, self.byte_count) };
        Ok(())
    }

    /// As [`SpanMut::copy_from`], past the caches where the processor can: for what is too large to stay in them.
    ///
    /// An ordinary store reads the line that it changes; such a one does not.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ.
    pub fn stream_from(&mut self, source: Span<'_>) -> Result<()> {
        self.pour_from(source)?;
        settle();
        Ok(())
    }

    /// As [`SpanMut::stream_from`], for many pieces: others see them only after [`settle`], which takes as long as a small piece.
    ///
    /// # Errors
    /// `Invalid` if the lengths differ.
    #[allow(unsafe_code, reason = "raw copy between spans")]
    pub fn pour_from(&mut self, source: Span<'_>) -> Result<()> {
        let count = self.byte_count;
        if !source.is_apart(&self.as_span()) || source.byte_count != count || !cfg!(target_arch = "x86_64") {
            return self.copy_from(source);
        }
        // SAFETY: both ranges have `count` bytes by the contracts of `of` and `from_raw`, and do not overlap.
        unsafe { stream(source.pointer, self.pointer, count) };
        Ok(())
    }

    /// Sets all bytes to zero.
    #[allow(unsafe_code, reason = "raw write to a span")]
    pub fn clear(&mut self) {
        // SAFETY: the range is writable for the span's lifetime by the contracts of `of` and `from_raw`.
        unsafe { std::ptr::write_bytes(self.pointer, 0, self.byte_count) };
    }
}

/// Has what this thread poured past the caches seen by others before anything that it stores later.
#[inline]
#[allow(unsafe_code, reason = "an instruction of the processor")]
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, which touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies with stores that bypass the caches, and are ordered by [`settle`] alone.
///
/// # Safety
/// `count` bytes must be readable at `source` and writable at `target`, and not overlap.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "raw copy between spans")]
unsafe fn stream(source: *const u8, target: *mut u8, count: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const LINE: usize = 64;
    let head = target.align_offset(LINE).min(count);
    let lines = (count - head) / LINE;
    // SAFETY: head, lines and tail are the `count` bytes of the caller, one after the other; the target of a line is aligned, and
    // every x86_64 processor has these instructions.
    unsafe {
        std::ptr::copy_nonoverlapping(source, target, head);
        for line in 0..lines {
            let start = head + line * LINE;
            let (from, to) = (source.add(start).cast::<__m128i>(), target.add(start).cast::<__m128i>());
            let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(from.add(word)));
            for (word, value) in words.into_iter().enumerate() {
                _mm_stream_si128(to.add(word), value);
            }
        }
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(source.add(done), target.add(done), count - done);
    }
}

/// Never called: elsewhere spans are copied.
///
/// # Safety
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
#[allow(unsafe_code, reason = "the same name everywhere")]
unsafe fn stream(_source: *const u8, _target: *mut u8, _count: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_copy_is_a_copy() {
        let source = (0..1000_u32).map(|number| number as u8).collect::<Vec<_>>();
        for (from, to, count) in [(0, 0, 0), (1, 3, 10), (5, 0, 64), (0, 7, 700), (3, 64, 129)] {
            let mut target = vec![0_u8; 1000];
            let part = Span::of(&source).part(from..from + count).expect("within");
            let mut whole = SpanMut::of(&mut target);
            whole.part(to..to + count).expect("within").stream_from(part).expect("equal");
            assert!(whole.stream_from(part).is_err(), "unequal");
            assert_eq!(target[to..to + count], source[from..from + count]);
            assert!(target[..to].iter().chain(&target[to + count..]).all(|byte| *byte == 0));
        }
    }

    #[test]
    fn parts_stay_within() {
        let mut numbers = [1.0f32, 2.0, 3.0, 4.0];
        let mut whole = SpanMut::of(&mut numbers);
        assert_eq!(whole.byte_count(), 16);
        assert!(whole.part(4..20).is_err());
        whole.part(4..8).expect("within").clear();
        assert_eq!(numbers, [1.0, 0.0, 3.0, 4.0]);
    }

    #[test]
    fn copies_need_equal_lengths() {
        let source = [7u8; 5];
        let mut target = [0u8; 5];
        assert!(SpanMut::of(&mut target[..4]).copy_from(Span::of(&source)).is_err());
        SpanMut::of(&mut target).copy_from(Span::of(&source)).expect("equal");
        assert_eq!(target, source);
        assert!(Span::empty().to_vec().is_empty());
    }
}
