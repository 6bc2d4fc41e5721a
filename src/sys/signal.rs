//! Signals that a thread sends to itself, so that a handler runs on it and disturbs no other thread.

use std::mem::MaybeUninit;

/// The handler of a signal; `None` for a number that is none.
fn handler(number: i32) -> Option<libc::sighandler_t> {
    let mut found = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action the call only writes the one that there is, into memory that lives through it.
    let code = unsafe { libc::sigaction(number, std::ptr::null(), found.as_mut_ptr()) };
    // SAFETY: all bits zero are a valid action, and the call has filled it.
    (code == 0).then(|| unsafe { found.assume_init() }.sa_sigaction)
}

/// The real-time signals of which nobody has a handler, the last one first.
#[must_use]
pub fn free() -> Vec<i32> {
    let numbers = libc::SIGRTMIN() + 1..libc::SIGRTMAX();
    numbers.rev().filter(|number| handler(*number) == Some(libc::SIG_DFL)).collect()
}

/// Has the calling thread run the handler of a signal now; false, and nothing happens, where the signal has none.
#[must_use]
pub fn run_handler(number: i32) -> bool {
    if handler(number).is_none_or(|handler| handler == libc::SIG_DFL || handler == libc::SIG_IGN) {
        return false;
    }
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set lives through the calls, and the first one fills it; only this thread's own mask is changed, and the
    // signal has a handler, which runs before `raise` returns.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::raise(number) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};

    use super::*;

    static RUN: AtomicI32 = AtomicI32::new(0);

    extern "C" fn note(number: i32) {
        RUN.store(number, Ordering::SeqCst);
    }

    #[test]
    fn a_handler_runs_on_this_thread_and_a_signal_without_one_is_not_sent() {
        let number = *free().last().expect("some are free");
        assert!(!run_handler(number) && !run_handler(0) && !run_handler(1 << 20));
        // SAFETY: the handler only stores a number.
        unsafe { libc::signal(number, note as *const () as libc::sighandler_t) };
        assert!(!free().contains(&number));
        assert!(run_handler(number));
        assert_eq!(RUN.load(Ordering::SeqCst), number);
        // SAFETY: as it was before.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
}
