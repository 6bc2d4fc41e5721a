//! How one call is made: its deadline, and the caller's interrupt check.

use std::ffi::c_void;

use uform::error::{Error, Result};
use uform::sys::Deadline;

use crate::structure::{CallOptions, Interrupt};
use crate::versioned;

/// The options of a call and the deadline that began when they were read.
pub(crate) struct Calling {
    deadline: Deadline<'static>,
    interrupt: Interrupt,
    user: *mut c_void,
}

impl Calling {
    /// Reads the options of a call; a null pointer gives the defaults.
    ///
    /// # Errors
    /// `Invalid` for a struct of no version and a wrong `timeout_seconds`.
    ///
    /// # Safety
    /// `options` is null or valid for reads of its `struct_size`; what it points to is valid until the call returns.
    pub(crate) unsafe fn read(options: *const CallOptions) -> Result<Self> {
        // SAFETY: the caller of this function keeps the same promise.
        let options = unsafe { versioned::read_or_default(options, "options") }?;
        let deadline = uform::Mesh::verb_deadline(options.timeout_seconds)?;
        Ok(Self { deadline, interrupt: options.interrupt, user: options.interrupt_user })
    }

    /// Runs a call within its deadline.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) fn run<T>(&self, call: impl FnOnce(&Deadline<'_>) -> Result<T>) -> Result<T> {
        with_interrupt(self.interrupt, self.user, |check| match check {
            Some(check) => call(&self.deadline.interruptible(check)),
            None => call(&self.deadline),
        })
    }
}

/// Something of the caller's that it lets any thread of this library use until the call returns.
struct Shared(*mut c_void);

// SAFETY: the header asks for a check and a user pointer that any thread may use until the call returns.
unsafe impl Sync for Shared {}

impl Shared {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// Runs `call` with the caller's interrupt check, as the core takes it.
///
/// # Errors
/// Those of the call.
pub(crate) fn with_interrupt<T>(
    interrupt: Interrupt,
    user: *mut c_void,
    call: impl FnOnce(Option<uform::InterruptCheck<'_>>) -> Result<T>,
) -> Result<T> {
    let Some(interrupt) = interrupt else { return call(None) };
    let user = Shared(user);
    // SAFETY: the header asks for a function that may be called with this pointer until the call returns.
    let check = move || unsafe { interrupt(user.pointer()) } != 0;
    call(Some(&check))
}

/// The error of a part of a call that this version does not have.
pub(crate) fn absent(what: &str, verb: &str) -> Error {
    Error::unsupported(format!("{what} of {verb}"), "not in this version; pass NULL")
}
