//! Another process of this machine: whether it lives, and what lies in its memory.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sys::fork::Private;
use crate::sys::{SpanMut, process};

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// One live process, known by its number and start, watched by a descriptor that no later process can take over.
#[derive(Debug)]
pub struct Peer {
    pid: u32,
    descriptor: Option<Private>,
}

impl Peer {
    /// Opens the process with this number if it is the one that started then.
    ///
    /// `None` if there is no such process, or if this process's namespace hides it.
    #[must_use]
    pub fn open(pid: u32, start_ticks: u64) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        // Before Linux 5.3 there is no such descriptor: the start time alone then tells.
        let descriptor = pidfd_open(number, PidfdFlags::empty()).ok().map(Private::new);
        // Compared after opening: the descriptor now holds whatever process had this number, and that one is checked.
        process::is_alive(pid, start_ticks).then_some(Self { pid, descriptor })
    }

    /// Its number in this process's namespace.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return process::start_ticks(self.pid).is_some();
        };
        let mut polled = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
        // Readable means ended. An interrupted poll says nothing, and is repeated by the caller's next look.
        !matches!(poll(&mut polled, Some(&NO_TIME)), Ok(1))
    }

    /// Whether it is stopped by a signal or a debugger.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        process::is_stopped(self.pid)
    }

    /// Copies what lies at an address of that process, in whole or not at all as far as the caller may believe.
    ///
    /// False if the system forbids it or the address is not mapped there.
    #[must_use]
    pub fn read(&self, address: u64, target: &mut SpanMut<'_>) -> bool {
        let (Ok(pid), Ok(address)) = (libc::pid_t::try_from(self.pid), usize::try_from(address)) else {
            return false;
        };
        let mut done = 0;
        while done < target.byte_count() {
            let Some(remote_address) = address.checked_add(done) else { return false };
            let rest = target.byte_count() - done;
            let local = libc::iovec { iov_base: target.pointer().wrapping_add(done).cast(), iov_len: rest };
            let remote =
                libc::iovec { iov_base: std::ptr::without_provenance_mut(remote_address), iov_len: rest };
            // SAFETY: the local range is writable as the span promises; the remote one is only an address, which the
            // kernel checks in the other process.
            let count = unsafe { libc::process_vm_readv(pid, &raw const local, 1, &raw const remote, 1, 0) };
            match usize::try_from(count) {
                Ok(count) if count > 0 => done += count,
                Ok(_) => return false,
                Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn an_ended_process_is_seen_and_another_start_is_refused() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("cat is installed");
        let start = process::start_ticks(child.id()).expect("it runs");
        assert!(Peer::open(child.id(), start + 1).is_none());
        let peer = Peer::open(child.id(), start).expect("it runs");
        assert!(peer.is_alive() && !peer.is_stopped());
        drop(child.stdin.take());
        child.wait().expect("it ends");
        assert!(!peer.is_alive());
        let mut bytes = [0u8; 8];
        assert!(!peer.read(4096, &mut SpanMut::of(&mut bytes)));
    }

    #[test]
    fn this_process_can_read_itself_where_the_system_allows_it() {
        let start = process::start_ticks(process::pid()).expect("/proc is mounted");
        let peer = Peer::open(process::pid(), start).expect("this process lives");
        let source = [1u8, 2, 3, 4, 5];
        let mut target = [0u8; 5];
        if peer.read(source.as_ptr().addr() as u64, &mut SpanMut::of(&mut target)) {
            assert_eq!(target, source);
        }
        assert!(!peer.read(0, &mut SpanMut::of(&mut target)));
    }
}
