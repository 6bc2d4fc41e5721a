//! Where Python code calls: the file and the line of the frame that runs, for the record of calls.
#![allow(unsafe_code, reason = "the frame that runs has no safe wrapper; every block names its fact")]

use pyo3::types::PyString;
use pyo3::{ffi, intern, prelude::*};
use uform::recorder::Site;

/// The line of Python code that called this extension; unknown where there is none.
pub(crate) fn of_caller(py: Python<'_>) -> Site {
    // SAFETY: this thread holds the interpreter's lock, as `py` shows.
    let frame = unsafe { ffi::PyEval_GetFrame() };
    if frame.is_null() {
        return Site::default();
    }
    // SAFETY: the frame is borrowed from the code that called, which does not go on before this returns.
    let line = unsafe { ffi::PyFrame_GetLineNumber(frame) };
    // SAFETY: as above; the call gives a new reference, never null.
    let code = unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyFrame_GetCode(frame).cast()) };
    let name = code.and_then(|code| code.getattr(intern!(py, "co_filename")).ok());
    let name =
        name.as_ref().and_then(|name| name.cast::<PyString>().ok()).and_then(|name| name.to_str().ok());
    match (name, u32::try_from(line)) {
        (Some(name), Ok(line)) => Site::named(name, line),
        _ => Site::default(),
    }
}
