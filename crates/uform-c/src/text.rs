//! Text between Rust and C: the last error of each thread, and copies into the caller's bytes.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};
use std::sync::LazyLock;

use uform::error::{Error, Result};
use uform::vocabulary::Status;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The lower-case name of every status, in the order of `Status::ALL`.
static NAMES: LazyLock<Vec<std::ffi::CString>> = LazyLock::new(|| {
    let names = Status::ALL.iter().map(|status| status.name().to_lowercase());
    // A name of the table holds no zero byte; one that did would have no name in C.
    names.map(|name| std::ffi::CString::new(name).unwrap_or_default()).collect()
});

/// Keeps the text of this thread's last error. A thread that is ending keeps none.
pub(crate) fn keep(text: &str) {
    let _ = LAST.try_with(|last| text.clone_into(&mut last.borrow_mut()));
}

/// Gives the text of this thread's last error, empty if there was none.
pub(crate) fn with_last<T>(use_text: impl Fn(&str) -> T) -> T {
    LAST.try_with(|last| use_text(&last.borrow())).unwrap_or_else(|_| use_text(""))
}

/// The lower-case name of a status.
pub(crate) fn status_name(status: Status) -> &'static CStr {
    let position = Status::ALL.iter().position(|own| *own == status);
    position.and_then(|position| NAMES.get(position)).map_or(c"", |name| name.as_c_str())
}

/// Copies as much of `source` as fits with a zero after it, and returns the length of the whole.
///
/// A cut never parts the bytes of one character.
///
/// # Safety
/// `target` is null, or valid for writes of `capacity` bytes.
pub(crate) unsafe fn copy(source: &str, target: *mut c_char, capacity: usize) -> usize {
    if !target.is_null() && capacity > 0 {
        let kept = source.floor_char_boundary(capacity - 1);
        // SAFETY: `kept` + 1 is at most `capacity`, for which the caller vouches; C's bytes and ours do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(source.as_ptr(), target.cast(), kept);
            *target.add(kept) = 0;
        }
    }
    source.len()
}

/// Copies a text and its length out.
///
/// # Errors
/// `Invalid` for a null pointer with a capacity.
///
/// # Safety
/// `target` is null or valid for writes of `capacity` bytes; `length` is null or valid for a write.
pub(crate) unsafe fn give(
    source: &str,
    target: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> Result<()> {
    if target.is_null() && capacity > 0 {
        let reason = format!("a capacity of {capacity} bytes needs a place to write to");
        return Err(Error::invalid("text", "NULL", "argument", reason));
    }
    // SAFETY: the caller of this function keeps the same promise.
    let whole = unsafe { copy(source, target, capacity) };
    if !length.is_null() {
        // SAFETY: not null, so the caller vouches for a write.
        unsafe { *length = whole };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_keeps_whole_characters_and_the_zero() {
        let mut target = [1 as c_char; 8];
        // SAFETY: the array has as many bytes as are told.
        let whole = unsafe { copy("ab\u{e9}cd", target.as_mut_ptr(), 4) };
        assert_eq!(whole, 6);
        assert_eq!(target.map(|byte| byte as u8), [b'a', b'b', 0, 1, 1, 1, 1, 1]);
        // SAFETY: nothing may be written to a null pointer.
        assert_eq!(unsafe { copy("abc", std::ptr::null_mut(), 0) }, 3);
    }

    #[test]
    fn a_null_pointer_with_a_capacity_is_refused() {
        // SAFETY: a null pointer is refused before it is used.
        let error = unsafe { give("abc", std::ptr::null_mut(), 3, std::ptr::null_mut()) };
        assert!(matches!(error, Err(Error::Invalid { .. })));
    }

    #[test]
    fn every_status_has_a_name() {
        assert_eq!(status_name(Status::Success), c"success");
        assert_eq!(status_name(Status::TimedOut), c"timed_out");
        assert!(Status::ALL.iter().all(|status| !status_name(*status).is_empty()));
    }
}
