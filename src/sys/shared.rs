//! Memory that several processes map: memory files without a name, reserved before they are mapped.
//!
//! Other processes write it at any time, so it is handed out as spans and as atomic words, never as plain references.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};
use crate::sys::fork::Private;
use crate::sys::{Span, SpanMut, cgroup};

/// Reserved in steps, so that a shrinking allowance is seen before the kernel has to kill somebody.
const RESERVE_STEP: usize = 64 << 20;

/// A memory file that is mapped here, and whose size nobody can change any more.
#[derive(Debug)]
pub struct Segment {
    file: Private,
    /// Those of the mapping.
    pointer: NonNull<u8>,
    byte_count: usize,
    _mapping: Arc<Mapping>,
}

/// A mapping of a file. A process maps a file once, so that what looks for races sees one memory where members are threads.
#[derive(Debug)]
struct Mapping {
    pointer: NonNull<u8>,
    byte_count: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives until drop; nothing but its address is read.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// The device and the number of a file, and its mapping while a segment has one.
type Known = ((u64, u64), Weak<Mapping>);

/// The files that are mapped.
static MAPPED: Mutex<Vec<Known>> = Mutex::new(Vec::new());

// SAFETY: the mapping belongs to the process, not to a thread, and lives until drop; all access is by spans and
// atomic words, for which concurrent writers are expected.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

fn place(name: &str) -> PathBuf {
    PathBuf::from(format!("memfd:{name}"))
}

fn exhausted(place: String, wanted: usize, free: u64) -> Error {
    let remedy = "ask for less, or raise the memory limit of the container or job".to_owned();
    Error::Exhausted { place, wanted_bytes: wanted as u64, free_bytes: free, remedy }
}

/// What the machine has left, file pages that can be dropped included.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes.saturating_mul(1024))
}

/// The narrower of the two limits, and its name.
fn limit() -> (&'static str, u64) {
    let free = free_memory();
    match cgroup::memory_allowance() {
        Some(allowed) if allowed < free => ("the memory cgroup", allowed),
        _ => ("the machine's memory", free),
    }
}

impl Segment {
    /// Makes a segment of `byte_count` zero bytes whose pages exist, so that touching them cannot fail later.
    ///
    /// Pages are taken from the memory near the calling thread. Zero bytes are legal.
    ///
    /// # Errors
    /// `Exhausted` if the memory cgroup or the machine cannot give so much, naming which.
    pub fn reserve(name: &str, byte_count: usize) -> Result<Self> {
        let length = byte_count.max(1);
        // Asked before the first page is taken: a cgroup's limit kills, it does not refuse.
        let (place_of_limit, free) = limit();
        if length as u64 > free {
            return Err(exhausted(place_of_limit.to_owned(), byte_count, free));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags)
            .map_err(|errno| Self::refused(name, "create", byte_count, errno))?;
        rustix::fs::ftruncate(&file, length as u64)
            .map_err(|errno| Self::refused(name, "size", byte_count, errno))?;
        let mut start = 0;
        while start < length {
            let step = RESERVE_STEP.min(length - start);
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), start as u64, step as u64) {
                Ok(()) => start += step,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Self::refused(name, "reserve", byte_count, errno)),
            }
        }
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| Error::io(place(name), "seal", errno.into()))?;
        Self::map(name, file, byte_count)
    }

    /// Maps a segment that another process made and sent.
    ///
    /// # Errors
    /// `Corrupt` if it has not exactly `byte_count` bytes or its size could still change; `Exhausted` without room to map it.
    pub fn adopt(name: &str, file: OwnedFd, byte_count: usize) -> Result<Self> {
        let corrupt = |reason: String| Error::Corrupt { path: place(name), offset: 0, reason };
        let seals = rustix::fs::fcntl_get_seals(&file)
            .map_err(|errno| corrupt(format!("not a memory file that can be sealed: {errno}")))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(corrupt("its size is not sealed".to_owned()));
        }
        let found =
            rustix::fs::fstat(&file).map_err(|errno| Error::io(place(name), "look at", errno.into()))?;
        if u64::try_from(found.st_size) != Ok(byte_count.max(1) as u64) {
            return Err(corrupt(format!("has {} bytes where {byte_count} were announced", found.st_size)));
        }
        Self::map(name, file, byte_count)
    }

    fn map(name: &str, file: OwnedFd, byte_count: usize) -> Result<Self> {
        let found =
            rustix::fs::fstat(&file).map_err(|errno| Error::io(place(name), "look at", errno.into()))?;
        let identity = (found.st_dev, found.st_ino);
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|(_, mapping)| mapping.strong_count() > 0);
        let known = mapped.iter().find(|(known, _)| *known == identity);
        let mapping = match known.and_then(|(_, mapping)| mapping.upgrade()) {
            // The size of the file is sealed, and was compared.
            Some(mapping) if mapping.byte_count == byte_count => mapping,
            _ => {
                let made = Mapping::new(&file, byte_count);
                let made = Arc::new(made.map_err(|errno| Self::refused(name, "map", byte_count, errno))?);
                mapped.push((identity, Arc::downgrade(&made)));
                made
            }
        };
        Ok(Self { file: Private::new(file), pointer: mapping.pointer, byte_count, _mapping: mapping })
    }

    fn refused(name: &str, operation: &str, byte_count: usize, errno: Errno) -> Error {
        match errno {
            Errno::NOSPC | Errno::NOMEM | Errno::FBIG | Errno::INVAL => {
                exhausted("the machine's memory".to_owned(), byte_count, free_memory())
            }
            Errno::MFILE | Errno::NFILE => Error::Exhausted {
                place: "the table of open files".to_owned(),
                wanted_bytes: byte_count as u64,
                free_bytes: 0,
                remedy: "raise the limit of open files (ulimit -n)".to_owned(),
            },
            errno @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS) if operation == "create" => {
                let why =
                    format!("memfd_create says: {errno}; let the seccomp filter of the container allow it");
                Error::unsupported("shared memory in this process", why)
            }
            errno => Error::io(place(name), operation, errno.into()),
        }
    }

    /// How many bytes it has.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// The file, to be sent to another process.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// All bytes, for reading.
    #[must_use]
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the mapping has this many bytes and lives as long as `self`.
        unsafe { Span::from_raw(self.pointer.as_ptr(), self.byte_count) }
    }

    /// All bytes, for writing; several such spans may exist at a time, here and in other processes.
    #[must_use]
    pub fn span_mut(&self) -> SpanMut<'_> {
        // SAFETY: as in `span`; no Rust reference other than to atomic words is ever made to these bytes.
        unsafe { SpanMut::from_raw(self.pointer.as_ptr(), self.byte_count) }
    }

    fn word_at(&self, offset: usize, size: usize) -> Option<*mut u8> {
        let end = offset.checked_add(size)?;
        (end <= self.byte_count && offset.is_multiple_of(size))
            .then(|| self.pointer.as_ptr().wrapping_add(offset))
    }

    /// The 32-bit word at a byte offset that is a multiple of 4; `None` if it does not lie within.
    #[must_use]
    pub fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        let pointer = self.word_at(offset, 4)?;
        // SAFETY: aligned, since a mapping starts at a page; mapped as long as `self`; accessed as an atomic by all.
        Some(unsafe { AtomicU32::from_ptr(pointer.cast()) })
    }

    /// The 64-bit word at a byte offset that is a multiple of 8; `None` if it does not lie within.
    #[must_use]
    pub fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let pointer = self.word_at(offset, 8)?;
        // SAFETY: as for `word32`.
        Some(unsafe { AtomicU64::from_ptr(pointer.cast()) })
    }

    /// The eight 64-bit words of the line at a byte offset that is a multiple of 64; `None` if it does not lie within.
    #[inline]
    #[must_use]
    pub fn line(&self, offset: usize) -> Option<&[AtomicU64; 8]> {
        let pointer = self.word_at(offset, 64)?;
        // SAFETY: as for `word32`, for eight words one after the other.
        Some(unsafe { &*pointer.cast() })
    }

    /// Where an address lies in it, if `byte_count` bytes from there on do.
    #[must_use]
    pub fn offset_of(&self, pointer: *const u8, byte_count: usize) -> Option<usize> {
        let offset = pointer.addr().checked_sub(self.pointer.addr().get())?;
        (offset.checked_add(byte_count)? <= self.byte_count).then_some(offset)
    }
}

impl Mapping {
    fn new(file: &OwnedFd, byte_count: usize) -> std::result::Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing, and the size of the file is sealed,
        // so no access within it can fault.
        let pointer = unsafe {
            let null = std::ptr::null_mut();
            rustix::mm::mmap(null, byte_count.max(1), protection, MapFlags::SHARED, file, 0)
        }?;
        let pointer = NonNull::new(pointer.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { pointer, byte_count })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; spans and words borrow segments that keep it, so none is
        // left.
        let _ = unsafe { rustix::mm::munmap(self.pointer.as_ptr().cast(), self.byte_count.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_segments_of_one_file_show_the_same_bytes_at_one_address() {
        let one = Segment::reserve("uform-test", 5000).expect("5000 bytes are free");
        let file = one.file().try_clone_to_owned().expect("descriptors are free");
        let two = Segment::adopt("uform-test", file, 5000).expect("it is sealed");
        one.word64(4096).expect("within").store(7, Ordering::SeqCst);
        assert_eq!(two.word64(4096).expect("within").load(Ordering::SeqCst), 7);
        assert_eq!(one.span().pointer(), two.span().pointer());
        drop(one);
        assert_eq!(two.word64(4096).expect("within").load(Ordering::SeqCst), 7, "as long as one is left");
        let one = two;
        assert!(one.word64(4997).is_none() && one.word32(5000).is_none() && one.word32(2).is_none());
        assert_eq!(one.offset_of(one.span().pointer().wrapping_add(10), 4990), Some(10));
        assert_eq!(one.offset_of(one.span().pointer().wrapping_add(10), 4991), None);
    }

    #[test]
    fn a_size_that_could_change_or_differs_is_refused() {
        let file = rustix::fs::memfd_create("uform-test", MemfdFlags::ALLOW_SEALING).expect("memory is free");
        rustix::fs::ftruncate(&file, 100).expect("it can grow");
        assert!(matches!(Segment::adopt("uform-test", file, 100), Err(Error::Corrupt { .. })));
        let sealed = Segment::reserve("uform-test", 100).expect("memory is free");
        let file = sealed.file().try_clone_to_owned().expect("descriptors are free");
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(matches!(Segment::adopt("uform-test", file, 101), Err(Error::Corrupt { .. })));
    }

    #[test]
    fn more_than_there_is_is_exhausted() {
        let error = Segment::reserve("uform-test", usize::MAX / 4).expect_err("too much");
        assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        assert_eq!(Segment::reserve("uform-test", 0).expect("nothing is legal").byte_count(), 0);
    }
}
