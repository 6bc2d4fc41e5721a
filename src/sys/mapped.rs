//! A file of fixed size that is mapped: what is written to it stays when the process is killed.
//!
//! Handed out as spans and atomic words, never as plain references: other processes read it while it is written.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};

/// Mapped bytes, of a file or of nothing.
#[derive(Debug)]
pub struct Mapped {
    pointer: NonNull<u8>,
    byte_count: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives until drop; all access is by spans and
// atomic words, for which concurrent writers are expected.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapped {
    /// Makes the file, which must not exist, with `byte_count` zero bytes that are reserved on the disk, and maps it.
    ///
    /// Only this user may read it. Whoever cuts it short while it is mapped ends this process by a signal: it belongs in a folder
    /// that only this user may write.
    ///
    /// # Errors
    /// `Io` if it exists, or cannot be made, reserved or mapped.
    pub fn create(path: &Path, byte_count: usize) -> Result<Self> {
        let failed = |operation: &str, errno: Errno| Error::io(path, operation, errno.into());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(path, flags, mode).map_err(|errno| failed("create", errno))?;
        let made = reserve(&file, byte_count).map_err(|errno| failed("reserve", errno)).and_then(|()| {
            // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the whole range lies in the file,
            // in a folder that only this user may write, so that no access within it faults.
            let pointer = unsafe {
                rustix::mm::mmap(std::ptr::null_mut(), byte_count, PROTECTION, MapFlags::SHARED, &file, 0)
            };
            Self::of(pointer, byte_count).map_err(|errno| failed("map", errno))
        });
        made.inspect_err(|_| {
            let _ = rustix::fs::unlink(path);
        })
    }

    /// Maps a file that [`Mapped::create`] of another member made.
    ///
    /// # Errors
    /// `Io` if it cannot be opened or mapped, is no file of this user, or is shorter than `byte_count`.
    pub fn open(path: &Path, byte_count: usize) -> Result<Self> {
        let failed = |operation: &str, errno: Errno| Error::io(path, operation, errno.into());
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed("open", errno))?;
        let found = rustix::fs::fstat(&file).map_err(|errno| failed("look at", errno))?;
        let is_ours = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            && found.st_uid == rustix::process::geteuid().as_raw();
        if !is_ours || u64::try_from(found.st_size).unwrap_or(0) < byte_count as u64 {
            return Err(failed("map", Errno::INVAL));
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the whole range lies in the file, which
        // only this user may cut short, and no member of a run does.
        let pointer = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), byte_count, PROTECTION, MapFlags::SHARED, &file, 0)
        };
        Self::of(pointer, byte_count).map_err(|errno| failed("map", errno))
    }

    /// Maps `byte_count` zero bytes of this process alone.
    ///
    /// # Errors
    /// `Io` without memory.
    pub fn anonymous(byte_count: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let pointer = unsafe {
            let null = std::ptr::null_mut();
            rustix::mm::mmap_anonymous(null, byte_count, PROTECTION, MapFlags::PRIVATE)
        };
        Self::of(pointer, byte_count).map_err(|errno| Error::io("memory", "map", errno.into()))
    }

    fn of(
        pointer: std::result::Result<*mut std::ffi::c_void, Errno>,
        byte_count: usize,
    ) -> std::result::Result<Self, Errno> {
        let pointer = NonNull::new(pointer?.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { pointer, byte_count })
    }

    /// All bytes, for reading.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the mapping has this many bytes and lives as long as `self`.
        unsafe { Span::from_raw(self.pointer.as_ptr(), self.byte_count) }
    }

    /// All bytes, for writing; several such spans may exist at a time.
    #[must_use]
    pub fn span_mut(&self) -> SpanMut<'_> {
        // SAFETY: as in `span`; no Rust reference other than to atomic words is ever made to these bytes.
        unsafe { SpanMut::from_raw(self.pointer.as_ptr(), self.byte_count) }
    }

    /// The 64-bit word at a byte offset; offsets beyond the end, and odd ones, fall on the first word.
    #[inline]
    #[must_use]
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let offset = if offset.is_multiple_of(8) && offset + 8 <= self.byte_count { offset } else { 0 };
        // SAFETY: aligned, since a mapping starts at a page; within the mapping, which has at least a page and lives as long
        // as `self`; accessed as an atomic by all.
        unsafe { AtomicU64::from_ptr(self.pointer.as_ptr().add(offset).cast()) }
    }

    /// The eight 64-bit words of the line at a byte offset; what is no line within falls on the first.
    #[inline]
    #[must_use]
    pub fn line(&self, offset: usize) -> &[AtomicU64; 8] {
        let offset = if offset.is_multiple_of(64) && offset + 64 <= self.byte_count { offset } else { 0 };
        // SAFETY: as in `word`, for eight of them; a mapping has at least a page.
        unsafe { &*self.pointer.as_ptr().add(offset).cast() }
    }

    /// The 32-bit word at a byte offset, for [`futex`](super::futex); never one that is used as a part of a longer word too.
    #[must_use]
    pub fn short_word(&self, offset: usize) -> &AtomicU32 {
        let offset = if offset.is_multiple_of(8) && offset + 8 <= self.byte_count { offset } else { 0 };
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.pointer.as_ptr().add(offset).cast()) }
    }
}

/// Reserves the bytes on the disk; where the file system cannot, by writing them.
fn reserve(file: &OwnedFd, byte_count: usize) -> std::result::Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, byte_count as u64) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => break,
            Err(errno) => return Err(errno),
        }
    }
    let zeros = [0u8; 4096];
    let mut written = 0;
    while written < byte_count {
        match rustix::io::write(file, &zeros[..zeros.len().min(byte_count - written)]) {
            Ok(count) => written += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    rustix::fs::fsync(file)
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by a constructor and is unmapped once; spans and words borrow `self`.
        let _ = unsafe { rustix::mm::munmap(self.pointer.as_ptr().cast(), self.byte_count) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_written_is_in_the_file_at_once() {
        let nonce = crate::sys::random::nonce().expect("random");
        let path = std::env::temp_dir().join(format!("uform-mapped-{nonce}"));
        let map = Mapped::create(&path, 8192).expect("made");
        map.word(4096).store(0x0102, Ordering::Relaxed);
        let bytes = std::fs::read(&path).expect("readable");
        assert_eq!((bytes.len(), bytes[4096], bytes[4097]), (8192, 2, 1));
        assert!(Mapped::create(&path, 8192).is_err(), "it exists");
        let other = Mapped::open(&path, 8192).expect("whole");
        other.short_word(8).store(5, Ordering::Relaxed);
        assert_eq!(map.short_word(8).load(Ordering::Relaxed), 5);
        assert!(Mapped::open(&path, 8193).is_err(), "it is shorter");
        drop(map);
        std::fs::remove_file(&path).expect("removed");
        let map = Mapped::anonymous(4096).expect("memory is free");
        map.word(9).store(3, Ordering::Relaxed);
        assert_eq!(map.word(1 << 40).load(Ordering::Relaxed), 3, "what lies outside is the first word");
    }
}
