//! What a forked child must not keep open: descriptors whose last copy tells others that this process has ended.
//!
//! In a child each of them is replaced by one of `/dev/null`: peers see that the parent has ended although the child lives, and
//! the number stays taken, so that closing it there hits nothing else.

use std::cell::UnsafeCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags};

/// The numbers of the descriptors that children lose.
struct Registry {
    is_locked: AtomicBool,
    numbers: UnsafeCell<Vec<RawFd>>,
}

// SAFETY: `numbers` is touched by whoever has set `is_locked`, and by nobody else until it is taken back.
unsafe impl Sync for Registry {}

static REGISTRY: Registry =
    Registry { is_locked: AtomicBool::new(false), numbers: UnsafeCell::new(Vec::new()) };

/// Open for as long as the process lives; -1 where there is nothing to put in the place of a descriptor.
static NOTHING: AtomicI32 = AtomicI32::new(-1);

/// Whether the handlers below are called at every fork.
static IS_WATCHED: AtomicBool = AtomicBool::new(false);

/// The number of this process where it was asked for since the last fork, else 0.
static OWN_PID: AtomicU32 = AtomicU32::new(0);

/// The number of this process: the system is asked once, where forks are watched.
pub(super) fn own_pid() -> u32 {
    // Relaxed: the number is the same for all threads, and a child, which has one thread, forgets it before that returns.
    let known = OWN_PID.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let pid = std::process::id();
    if IS_WATCHED.load(Ordering::Acquire) {
        OWN_PID.store(pid, Ordering::Relaxed);
    }
    pid
}

impl Registry {
    // Not a mutex of std: it is taken by one function before a fork and given back by another after it, in two processes.
    fn lock(&self) {
        while self.is_locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            std::thread::yield_now();
        }
    }

    fn unlock(&self) {
        self.is_locked.store(false, Ordering::Release);
    }

    fn with(&self, change: impl FnOnce(&mut Vec<RawFd>)) {
        self.lock();
        // SAFETY: the lock is held until after the reference is gone, and nothing in `change` forks or locks again.
        change(unsafe { &mut *self.numbers.get() });
        self.unlock();
    }
}

extern "C" fn before() {
    REGISTRY.lock();
}

extern "C" fn after_in_parent() {
    REGISTRY.unlock();
}

/// Allocates nothing, and calls only what may be called after a fork of a process with threads.
extern "C" fn after_in_child() {
    OWN_PID.store(0, Ordering::Relaxed);
    let nothing = NOTHING.load(Ordering::Relaxed);
    // SAFETY: the thread that forked took the lock in `before`, and it is the only thread of the child.
    let numbers = unsafe { &mut *REGISTRY.numbers.get() };
    for number in numbers.iter() {
        // SAFETY: both numbers are descriptors of this process: the registry's are taken out before they are closed.
        let code = if nothing < 0 { -1 } else { unsafe { libc::dup3(nothing, *number, libc::O_CLOEXEC) } };
        if code < 0 {
            // SAFETY: as above. The number may then be given to another descriptor of the child.
            unsafe { libc::close(*number) };
        }
    }
    numbers.clear();
    REGISTRY.unlock();
}

/// Has children of this process lose what is registered, from the first registration on.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        if let Ok(null) = null {
            NOTHING.store(null.into_raw_fd(), Ordering::Relaxed);
        }
        // SAFETY: the functions are as long there as this library, which is never unloaded: it has thread locals and threads.
        let code = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
        if code == 0 {
            IS_WATCHED.store(true, Ordering::Release);
        } else {
            tracing::warn!(code, "forked children keep connections of this process open");
        }
    });
}

/// A descriptor of this process alone: a forked child has `/dev/null` in its place.
#[derive(Debug)]
pub struct Private(OwnedFd);

impl Private {
    /// Takes over a descriptor.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        watch();
        REGISTRY.with(|numbers| numbers.push(descriptor.as_raw_fd()));
        Self(descriptor)
    }
}

impl From<OwnedFd> for Private {
    fn from(descriptor: OwnedFd) -> Self {
        Self::new(descriptor)
    }
}

impl AsFd for Private {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Private {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // Before it is closed: from then on the number may be another descriptor's.
        let own = self.0.as_raw_fd();
        REGISTRY.with(|numbers| {
            if let Some(position) = numbers.iter().position(|number| *number == own) {
                numbers.swap_remove(position);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a descriptor is `/dev/null`; nothing here allocates or locks.
    fn is_null(number: RawFd) -> bool {
        // SAFETY: all bits zero are a valid `stat`, which the kernel fills; any number may be asked for.
        let mut found = unsafe { std::mem::zeroed::<libc::stat>() };
        // SAFETY: as above.
        let code = unsafe { libc::fstat(number, &raw mut found) };
        code == 0 && found.st_rdev == libc::makedev(1, 3)
    }

    #[test]
    fn a_child_has_nothing_in_the_place_of_a_descriptor() {
        let (one, other) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::STREAM,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .expect("descriptors are free");
        let (number, private) = (one.as_raw_fd(), Private::new(one));
        let closed = Private::new(other.try_clone().expect("descriptors are free"));
        let free = closed.as_raw_fd();
        drop(closed);
        // SAFETY: the child calls only functions that may be called after a fork, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let kept = is_null(other.as_raw_fd());
            let right = is_null(number) && !kept && !is_null(free);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        assert!(child > 0, "processes are free");
        let mut status = 0;
        // SAFETY: `status` lives through the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0), "the child saw what it should");
        assert!(!is_null(number), "the parent keeps its own");
        drop(private);
        REGISTRY.with(|numbers| assert!(!numbers.contains(&number)));
    }
}
