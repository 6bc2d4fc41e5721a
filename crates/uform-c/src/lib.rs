//! The C interface: translates arguments and results of `include/uform.h`, and decides nothing.
//!
//! Every exported function catches panics, since unwinding into C is undefined.
#![allow(unsafe_code, reason = "C passes pointers; every block names its fact")]

pub mod arena;
mod argument;
mod call;
pub mod collective;
pub mod deferred;
pub mod device;
pub mod executor;
pub mod handle;
pub mod mesh;
pub mod payloads;
mod site;
pub mod structure;
mod text;
pub mod trainer;
mod versioned;

use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use uform::error::{Error, Result};
use uform::recorder::Site;
use uform::vocabulary::Status;

/// The version for messages.
const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// The version as C reads it: zero-ended.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Declares verbs of the header: functions of C that return a status and let no panic out.
macro_rules! verbs {
    ($( $(#[$meta:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block )+) => {
        $(
            $(#[$meta])*
            ///
            /// # Safety
            /// Each pointer is null or what `include/uform.h` says of it, until the call returns or for as long as it
            /// says there.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
                $crate::verb(stringify!($name), move || {
                    // SAFETY: the caller keeps the promise of this function's contract.
                    #[allow(unused_unsafe, reason = "some verbs touch nothing of the caller's themselves")]
                    unsafe {
                        $body
                    }
                })
            }
        )+
    };
}

pub(crate) use verbs;

/// Runs a verb, keeps the text of its error for the thread, and returns its status.
fn verb(name: &str, body: impl FnOnce() -> Result<()>) -> c_int {
    // Unless the header's macro has said where C code calls, that is not known, and the shim's own lines are nobody's.
    let outcome = catch_unwind(AssertUnwindSafe(|| Site::default().during(body)))
        .unwrap_or_else(|payload| Err(panicked(name, &*payload)));
    match outcome {
        Ok(()) => Status::Success.number(),
        Err(error) => {
            text::keep(&error.chain());
            error.status().number()
        }
    }
}

/// The error of a verb that panicked: a fault of this library, reported as any other library's.
fn panicked(name: &str, payload: &(dyn std::any::Any + Send)) -> Error {
    let words = payload.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| payload.downcast_ref::<String>().cloned());
    Error::Vendor {
        library: "uform".to_owned(),
        call: name.to_owned(),
        code: -1,
        text: words.unwrap_or_else(|| "panicked without words".to_owned()),
    }
}

/// Notes where the calling thread's next collective verb is called: the macros of the header call it.
///
/// # Safety
/// `file` is null or a zero-ended string that is not changed as long as the program runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uform_call_site(file: *const c_char, line: c_int) -> c_int {
    site::note(file, line);
    Status::Success.number()
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn uform_version() -> *const c_char {
    VERSION.as_ptr().cast()
}

/// The lower-case name of a status, or a null pointer.
#[unsafe(no_mangle)]
pub extern "C" fn uform_status_name(status: c_int) -> *const c_char {
    Status::from_number(status).map_or(std::ptr::null(), |status| text::status_name(status).as_ptr())
}

/// Copies the text of this thread's last error and returns its whole length.
///
/// # Safety
/// `text` is null, or valid for writes of `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uform_last_error(text: *mut c_char, capacity: usize) -> usize {
    text::with_last(|last| {
        // SAFETY: the caller keeps the promise of this function's contract until it returns.
        unsafe { text::copy(last, text, capacity) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_status_and_a_text() {
        let status = verb("uform_test", || panic!("index {} of 3", 7));
        assert_eq!(status, Status::Vendor.number());
        text::with_last(|last| assert_eq!(last, "uform: uform_test returned -1: index 7 of 3"));
    }

    #[test]
    fn errors_are_kept_per_thread() {
        let status = verb("uform_test", || Err(Error::unsupported("this", "a test says so")));
        assert_eq!(status, Status::Unsupported.number());
        let other = std::thread::spawn(|| text::with_last(str::len)).join();
        assert_eq!(other.expect("joined"), 0);
        text::with_last(|last| assert!(last.contains("a test says so")));
    }
}
