//! Sleeping until another thread or process changes a word of shared memory.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex;

/// Sleeps while `word` holds `expected`, at most `limit`; wakes early for any reason, so the caller looks again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = futex::Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // A changed word, a signal and the limit are all reasons to look again: the caller needs no difference.
    // Without the private flag the kernel finds the word by its page, so that other mappings of it count.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&limit));
}

/// Wakes all threads of all processes that sleep on `word`.
pub fn wake(word: &AtomicU32) {
    // Only an unmapped address can fail, and a reference is mapped.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX.unsigned_abs());
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_changed_word_is_not_slept_on_and_a_wake_ends_a_sleep() {
        let word = AtomicU32::new(1);
        wait(&word, 0, Duration::from_secs(3600));
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                while word.load(Ordering::SeqCst) == 1 {
                    wait(&word, 1, Duration::from_secs(3600));
                }
            });
            word.store(2, Ordering::SeqCst);
            wake(&word);
            sleeper.join().expect("the sleeper ends");
        });
    }
}
