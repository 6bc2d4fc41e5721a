//! How one call is made: its deadline, who may end it, who is told how far it is, and whether it is waited for.

use std::ffi::c_void;

use uform::error::{Error, Result};
use uform::sys::Deadline;

use crate::argument::{self, Out};
use crate::handle::Deferred;
use crate::site;
use crate::structure::{CallOptions, Interrupt, Progress};
use crate::versioned;

/// The options of a call and the deadline that began when they were read.
pub(crate) struct Calling {
    deadline: Deadline<'static>,
    interrupt: Interrupt,
    interrupt_user: *mut c_void,
    progress: Progress,
    progress_user: *mut c_void,
    deferred: Option<Out<*mut Deferred>>,
    reproducible: bool,
    further: Further,
}

/// Arrays on this process's further GPUs as C gave them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Further {
    pub(crate) arrays: Vec<*const c_void>,
    pub(crate) outs: Vec<*mut c_void>,
    pub(crate) count: usize,
}

/// A report of how far a call has come, as the core calls it.
pub(crate) type Report = Box<dyn Fn(u64, u64) + Send + Sync>;

impl Calling {
    /// Reads the options of a call; a null pointer gives the defaults.
    ///
    /// # Errors
    /// `Invalid` for a struct of no version, a wrong `timeout_seconds`, and an interrupt of a call that nobody waits in.
    ///
    /// # Safety
    /// `options` is null or valid for reads of its `struct_size`; what it points to is valid until the call returns, or
    /// ends if it is deferred.
    pub(crate) unsafe fn read(options: *const CallOptions) -> Result<Self> {
        site::take();
        // SAFETY: the caller of this function keeps the same promise.
        let options = unsafe { versioned::read_or_default(options, "options") }?;
        let deferred = if options.deferred.is_null() {
            None
        } else {
            // SAFETY: not null, so the caller vouches for a place.
            Some(unsafe { Out::handle(options.deferred, "deferred") }?)
        };
        if options.reproducible > 1 {
            return Err(Error::invalid("reproducible", options.reproducible, "options", "must be 0 or 1"));
        }
        let list = |is_null: bool| if is_null { 0 } else { options.further_count };
        let (arrays, outs) = (options.further_arrays, options.further_outs);
        // SAFETY: null, or the caller vouches for so many entries.
        let further = unsafe {
            Further {
                arrays: argument::numbers("further_arrays", arrays, list(arrays.is_null()))?
                    .unwrap_or_default(),
                outs: argument::numbers("further_outs", outs, list(outs.is_null()))?.unwrap_or_default(),
                count: options.further_count,
            }
        };
        let deadline = uform::Mesh::verb_deadline(options.timeout_seconds)?;
        if deferred.is_some() && options.interrupt.is_some() {
            let reason = "ends a wait, and a deferred call waits for nobody; give it to uform_deferred_wait";
            return Err(Error::invalid("interrupt", "a function", "options", reason));
        }
        Ok(Self {
            deadline,
            interrupt: options.interrupt,
            interrupt_user: options.interrupt_user,
            progress: options.progress,
            progress_user: options.progress_user,
            deferred,
            reproducible: options.reproducible == 1,
            further,
        })
    }

    /// The arrays on this process's further GPUs.
    pub(crate) fn further(&self) -> &Further {
        &self.further
    }

    /// The same; refuses arrays on further GPUs.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn of_one(self, call: &str) -> Result<Self> {
        if self.further.count > 0 { Err(absent("further_arrays", call)) } else { Ok(self) }
    }

    /// The same; refuses to defer it and to report its progress.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn blocking(self, call: &str) -> Result<Self> {
        if self.deferred.is_some() {
            return Err(absent("deferred", call));
        }
        self.silent(call)
    }

    /// The same; refuses to report its progress.
    ///
    /// # Errors
    /// `Unsupported`.
    pub(crate) fn silent(self, call: &str) -> Result<Self> {
        if self.progress.is_some() { Err(absent("progress", call)) } else { Ok(self) }
    }

    /// Where the handle of a deferred call goes; `None` for one that is waited for.
    pub(crate) fn deferred(&self) -> Option<Out<*mut Deferred>> {
        self.deferred
    }

    /// Whether the bits of a reduction must not depend on how members are spread over hosts.
    pub(crate) fn reproducible(&self) -> bool {
        self.reproducible
    }

    /// The deadline of a deferred call.
    pub(crate) fn deadline(&self) -> Deadline<'static> {
        self.deadline
    }

    /// Who is told how far the call has come.
    pub(crate) fn report(&self) -> Option<Report> {
        let progress = self.progress?;
        let user = Shared(self.progress_user);
        Some(Box::new(move |done, total| {
            // SAFETY: the header asks for a function that may be called with this pointer until the call ends.
            unsafe { progress(done, total, user.pointer()) }
        }))
    }

    /// Runs a call within its deadline.
    ///
    /// # Errors
    /// Those of the call.
    pub(crate) fn run<T>(&self, call: impl FnOnce(&Deadline<'_>) -> Result<T>) -> Result<T> {
        with_interrupt(self.interrupt, self.interrupt_user, |check| match check {
            Some(check) => call(&self.deadline.interruptible(check)),
            None => call(&self.deadline),
        })
    }
}

/// Something of the caller's that it lets any thread of this library use until the call ends.
pub(crate) struct Shared(*mut c_void);

// SAFETY: the header asks for functions and user pointers that any thread may use until the call ends.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

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
pub(crate) fn absent(what: &str, call: &str) -> Error {
    Error::unsupported(format!("{what} of {call}"), "not in this version; pass NULL")
}
