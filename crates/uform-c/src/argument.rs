//! Arguments of C: null pointers, numbers of enumerations, text, arrays.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use uform::error::{Error, Result};
use uform::sys::{Span, SpanMut};
use uform::vocabulary::Dtype;

/// The error for a null pointer.
pub(crate) fn null(argument: &str) -> Error {
    Error::invalid(argument, "NULL", "argument", "must not be NULL")
}

/// A place for one value, checked before the call that fills it.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

// SAFETY: the maker of a place vouched for it until its last use, on whatever thread, and only plain values go there.
unsafe impl<T> Send for Out<T> {}
// SAFETY: as above; whoever fills it is the only one to touch it.
unsafe impl<T> Sync for Out<T> {}

impl<T> Out<T> {
    /// Checks a place that must be there.
    ///
    /// # Errors
    /// `Invalid` for a null pointer.
    ///
    /// # Safety
    /// `pointer` is null, or valid for writes until the last use of the place.
    pub(crate) unsafe fn new(pointer: *mut T, argument: &str) -> Result<Self> {
        if pointer.is_null() { Err(null(argument)) } else { Ok(Self(pointer)) }
    }

    /// Fills it.
    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, and the maker of this place vouched for it; C may have aligned it as it likes.
        unsafe { self.0.write_unaligned(value) };
    }
}

impl<T> Out<*mut T> {
    /// A place for a handle: it is NULL until the call succeeds.
    ///
    /// # Errors
    /// As [`Out::new`].
    ///
    /// # Safety
    /// As [`Out::new`].
    pub(crate) unsafe fn handle(pointer: *mut *mut T, argument: &str) -> Result<Self> {
        // SAFETY: the caller of this function keeps the same promise.
        let place = unsafe { Self::new(pointer, argument) }?;
        place.put(std::ptr::null_mut());
        Ok(place)
    }
}

/// The value of an enumeration.
///
/// # Errors
/// `Invalid` for a number that it does not have.
pub(crate) fn number<T>(argument: &str, number: c_int, from_number: fn(i32) -> Option<T>) -> Result<T> {
    from_number(number)
        .ok_or_else(|| Error::invalid(argument, number, "argument", "is no number of the enumeration"))
}

/// The same; 0 leaves it open.
///
/// # Errors
/// As [`number`].
pub(crate) fn optional_number<T>(
    argument: &str,
    given: c_int,
    from_number: fn(i32) -> Option<T>,
) -> Result<Option<T>> {
    if given == 0 { Ok(None) } else { number(argument, given, from_number).map(Some) }
}

/// The bytes of a zero-ended text; `None` for a null pointer.
///
/// # Safety
/// `text` is null, or zero-ended and valid for the lifetime.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so the caller vouches for a zero-ended text.
    Some(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A zero-ended text; `None` for a null pointer.
///
/// # Errors
/// `Invalid` for bytes that are no UTF-8.
///
/// # Safety
/// `text` is null, or zero-ended and valid for the lifetime.
pub(crate) unsafe fn optional_text<'a>(argument: &str, text: *const c_char) -> Result<Option<&'a str>> {
    // SAFETY: the caller of this function keeps the same promise.
    let Some(bytes) = (unsafe { bytes(text) }) else { return Ok(None) };
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Error::invalid(argument, String::from_utf8_lossy(bytes), "argument", "must be UTF-8"))?;
    Ok(Some(text))
}

/// A zero-ended text.
///
/// # Errors
/// `Invalid` for a null pointer and bytes that are no UTF-8.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn text<'a>(argument: &str, given: *const c_char) -> Result<&'a str> {
    // SAFETY: the caller of this function keeps the same promise.
    unsafe { optional_text(argument, given) }?.ok_or_else(|| null(argument))
}

/// A path, of any bytes; `None` for a null pointer.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn optional_path(path: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller of this function keeps the same promise.
    unsafe { bytes(path) }.map(|bytes| PathBuf::from(OsStr::from_bytes(bytes)))
}

/// A path, of any bytes.
///
/// # Errors
/// `Invalid` for a null pointer.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn path(argument: &str, given: *const c_char) -> Result<PathBuf> {
    // SAFETY: the caller of this function keeps the same promise.
    unsafe { optional_path(given) }.ok_or_else(|| null(argument))
}

/// A copy of `count` numbers; `None` for a null pointer with a count of 0.
///
/// # Errors
/// `Invalid` for a null pointer with a count.
///
/// # Safety
/// `numbers` is null or valid for reads of `count` of them.
pub(crate) unsafe fn numbers<T: Copy>(
    argument: &str,
    numbers: *const T,
    count: usize,
) -> Result<Option<Vec<T>>> {
    if numbers.is_null() {
        return if count == 0 { Ok(None) } else { Err(null(argument)) };
    }
    range(argument, numbers.addr(), count.checked_mul(size_of::<T>()), align_of::<T>())?;
    // SAFETY: not null, aligned, and the caller vouches for `count` of them.
    Ok(Some(unsafe { std::slice::from_raw_parts(numbers, count) }.to_vec()))
}

/// The bytes of `count` elements.
///
/// # Errors
/// `Invalid` for more than an address can reach.
pub(crate) fn byte_count(count: usize, dtype: Dtype) -> Result<usize> {
    let bytes = count.checked_mul(dtype.size_bytes()).filter(|bytes| isize::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| {
        Error::invalid("count", count, "argument", format!("elements of {dtype} exceed all memory"))
    })
}

/// Checks that bytes at an address can exist and that the first one is aligned.
fn range(argument: &str, address: usize, byte_count: Option<usize>, alignment: usize) -> Result<()> {
    let end = byte_count.filter(|bytes| isize::try_from(*bytes).is_ok());
    if end.and_then(|bytes| address.checked_add(bytes)).is_none() {
        let reason = "is longer than what lies above its address";
        return Err(Error::invalid(argument, format!("{address:#x}"), "argument", reason));
    }
    if !address.is_multiple_of(alignment) {
        let reason = format!("must be aligned to its elements, {alignment} bytes");
        return Err(Error::invalid(argument, format!("{address:#x}"), "argument", reason));
    }
    Ok(())
}

/// An array to read; a null pointer is legal for 0 bytes.
///
/// # Errors
/// `Invalid` for a null pointer with bytes, a range that cannot exist, and an address that is not aligned.
///
/// # Safety
/// `pointer` is null, or valid for reads of `byte_count` bytes for the whole lifetime.
pub(crate) unsafe fn span<'a>(
    argument: &str,
    pointer: *const c_void,
    byte_count: usize,
    alignment: usize,
) -> Result<Span<'a>> {
    if byte_count == 0 {
        return Ok(Span::empty());
    }
    if pointer.is_null() {
        return Err(null(argument));
    }
    range(argument, pointer.addr(), Some(byte_count), alignment)?;
    // SAFETY: not null, and the caller of this function vouches for the bytes.
    Ok(unsafe { Span::from_raw(pointer.cast(), byte_count) })
}

/// An array to write; else as [`span`].
///
/// # Errors
/// As [`span`].
///
/// # Safety
/// As [`span`], for reads and writes, and nothing of Rust refers to the bytes meanwhile.
pub(crate) unsafe fn span_mut<'a>(
    argument: &str,
    pointer: *mut c_void,
    byte_count: usize,
    alignment: usize,
) -> Result<SpanMut<'a>> {
    // SAFETY: the caller of this function keeps the same promise.
    let span = unsafe { span(argument, pointer, byte_count, alignment) }?;
    // SAFETY: checked above, and the caller of this function vouches for writes too.
    Ok(unsafe { SpanMut::from_raw(span.pointer().cast_mut(), span.byte_count()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_cannot_exist_are_refused() {
        for (address, bytes) in [(8, Some(usize::MAX)), (!7, Some(16)), (8, None)] {
            assert!(range("array", address, bytes, 8).is_err(), "{address} {bytes:?}");
        }
        assert!(range("array", 9, Some(8), 8).expect_err("odd").to_string().contains("aligned"));
        range("array", 8, Some(8), 8).expect("fits");
        assert!(byte_count(usize::MAX / 4, Dtype::F64).is_err());
        assert_eq!(byte_count(3, Dtype::F16).expect("fits"), 6);
    }

    #[test]
    fn text_must_be_there_and_readable() {
        // SAFETY: both texts are zero-ended and live for ever.
        unsafe {
            assert_eq!(text("job", c"run".as_ptr()).expect("text"), "run");
            assert!(text("job", c"\xff".as_ptr()).is_err());
            assert!(text("job", std::ptr::null()).expect_err("null").to_string().starts_with("job = NULL"));
            assert_eq!(path("directory", c"\xff".as_ptr()).expect("any bytes").as_os_str().len(), 1);
        }
    }
}
