//! Where Python code calls: the file and the line of the frame that runs, for the record of calls.
#![allow(unsafe_code, reason = "the frame that runs has no safe wrapper; every block names its fact")]

use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use libloading::os::unix::Library;
use pyo3::types::PyString;
use pyo3::{ffi, intern, prelude::*};
use uform::recorder::Site;

/// How many places of calls are remembered.
const KNOWN: usize = 64;

/// A place that was looked up: the interpreter walks a function's table of lines from its beginning to find one.
struct Known {
    /// Held, so that no other code gets its address.
    code: Py<PyAny>,
    instruction: i32,
    site: Site,
}

/// `PyFrame_GetLasti`: every CPython from 3.11 on has it, but outside of the stable interface, so that it is looked for.
type LastInstruction = unsafe extern "C" fn(*mut ffi::PyFrameObject) -> c_int;

static LAST_INSTRUCTION: LazyLock<Option<LastInstruction>> = LazyLock::new(|| {
    // SAFETY: the function has had this signature since it was made public.
    unsafe { Library::this().get::<LastInstruction>(b"PyFrame_GetLasti\0") }.ok().map(|symbol| *symbol)
});

/// Where in its code a frame is; `None` where it does not say.
fn instruction_of(frame: &Bound<'_, PyAny>) -> Option<i32> {
    match *LAST_INSTRUCTION {
        // SAFETY: attached, and it is a frame.
        Some(last) => Some(unsafe { last(frame.as_ptr().cast()) }),
        None => frame.getattr(intern!(frame.py(), "f_lasti")).ok()?.extract().ok(),
    }
}

static KNOWN_PLACES: Mutex<[Option<Known>; KNOWN]> = Mutex::new([const { None }; KNOWN]);

/// The line of Python code that called this extension; unknown where there is none.
pub(crate) fn of_caller(py: Python<'_>) -> Site {
    // SAFETY: this thread holds the interpreter's lock, as `py` shows; the call gives a borrowed frame, or null where no code runs.
    let Some(frame) = (unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyEval_GetFrame().cast()) }) else {
        return Site::default();
    };
    // SAFETY: it is a frame; the call gives a new reference, never null.
    let code =
        unsafe { Bound::from_owned_ptr_or_opt(py, ffi::PyFrame_GetCode(frame.as_ptr().cast()).cast()) };
    let (Some(code), Some(instruction)) = (code, instruction_of(&frame)) else { return Site::default() };
    let place = (code.as_ptr().addr() / 16) ^ instruction.unsigned_abs() as usize;
    if let Some(known) = &places()[place % KNOWN]
        && known.instruction == instruction
        && known.code.is(&code)
    {
        return known.site;
    }
    let site = look_up(&frame, &code);
    let known = Known { code: code.unbind(), instruction, site };
    let former = places()[place % KNOWN].replace(known);
    // Without the lock: the end of a function's code may run any other code.
    drop(former);
    site
}

fn places() -> MutexGuard<'static, [Option<Known>; KNOWN]> {
    KNOWN_PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look_up(frame: &Bound<'_, PyAny>, code: &Bound<'_, PyAny>) -> Site {
    // SAFETY: attached, and it is the frame that called, which does not go on before this returns.
    let line = unsafe { ffi::PyFrame_GetLineNumber(frame.as_ptr().cast()) };
    let name = code.getattr(intern!(frame.py(), "co_filename"));
    let name = name.as_ref().ok().and_then(|name| name.cast::<PyString>().ok());
    match (name.and_then(|name| name.to_str().ok()), u32::try_from(line)) {
        (Some(name), Ok(line)) => Site::named(name, line),
        _ => Site::default(),
    }
}
