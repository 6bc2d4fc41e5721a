//! Where C code calls: what the macros of the header have said last on this thread.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};

use uform::recorder::Site;

thread_local! {
    /// The file, zero-ended and there for as long as the program runs, and the line; null if nothing was said.
    static NOTED: Cell<(*const c_char, c_int)> = const { Cell::new((std::ptr::null(), 0)) };
}

/// Notes the place of the next collective verb of this thread.
pub(crate) fn note(file: *const c_char, line: c_int) {
    NOTED.set((file, line));
}

/// Takes what was noted, as the site of the verb that this thread is in.
pub(crate) fn take() {
    let (file, line) = NOTED.replace((std::ptr::null(), 0));
    if file.is_null() {
        return;
    }
    // SAFETY: not null, so the caller of `uform_call_site` vouches for a zero-ended string that lives on.
    let name = unsafe { CStr::from_ptr(file) };
    if let (Ok(name), Ok(line)) = (name.to_str(), u32::try_from(line)) {
        Site::named(name, line).give();
    }
}
