//! How much CPU time a thread of this process has used.

use std::time::Duration;

/// The system's number of the calling thread.
#[must_use]
pub fn thread_number() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The CPU time that a live thread of this process has used, by its number; `None` if there is no such thread.
#[must_use]
pub fn thread_time(number: i32) -> Option<Duration> {
    // The kernel's form of a clock of one thread: its number's complement above three bits, which say that it is a
    // thread's and counts time on a core (`MAKE_THREAD_CPUCLOCK` with `CPUCLOCK_SCHED`). Unlike
    // `pthread_getcpuclockid` it may be asked for a thread that has ended.
    let clock = ((!number) << 3) | 0b110;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec into `time`, which lives through the call; any clock number is legal.
    let code = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (code == 0).then(|| Duration::new(seconds, nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_uses_time_and_one_that_has_ended_has_none() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let number = thread_number();
            while thread_time(number).expect("it lives") < Duration::from_millis(5) {
                std::hint::spin_loop();
            }
            sender.send(number).expect("the test waits");
        });
        let number = receiver.recv().expect("it works");
        thread.join().expect("it ends");
        // The kernel lets the number go a moment after the thread was joined.
        while thread_time(number).is_some() {
            std::thread::yield_now();
        }
        assert!(thread_time(thread_number()).is_some());
    }
}
