//! Clocks: how much CPU time a thread of this process has used, and a counter that is read in a few nanoseconds.

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

/// A counter of time that is read in a few nanoseconds: the processor's own where all cores have one and the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    is_counter: bool,
}

impl Ticks {
    /// The best counter of this machine.
    #[must_use]
    pub fn choose() -> Self {
        Self { is_counter: cfg!(target_arch = "x86_64") && has_counter() }
    }

    /// The time now. Its unit is the counter's: two moments that are known by both clocks tell it.
    #[inline]
    #[must_use]
    pub fn now(self) -> u64 {
        #[cfg(target_arch = "x86_64")]
        if self.is_counter {
            // SAFETY: every processor of this architecture has the instruction, and `choose` found that the kernel itself
            // takes time from it.
            return unsafe { std::arch::x86_64::_rdtsc() };
        }
        nanoseconds(libc::CLOCK_MONOTONIC)
    }
}

/// Nanoseconds since 1970 by the clock of this host.
#[must_use]
pub fn wall() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// What a clock says. By the C library, since the other way looks for the kernel's pages in a way that valgrind does not survive.
fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one timespec is written into `time`, which lives through the call; both clocks exist on every kernel.
    let _ = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec).wrapping_mul(1_000_000_000).wrapping_add(part(time.tv_nsec))
}

/// Whether the kernel takes time from the processor's counter, which then runs alike on all cores and never stops.
fn has_counter() -> bool {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(path).unwrap_or_default();
    matches!(source.trim(), "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_goes_forward() {
        let ticks = Ticks::choose();
        let (start, wall_start) = (ticks.now(), wall());
        std::thread::sleep(Duration::from_millis(2));
        assert!(ticks.now() > start && wall() > wall_start && wall_start > 1_600_000_000_000_000_000);
    }

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
