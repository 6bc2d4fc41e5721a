//! Memory of the run: what every member of a host sees, or what lies on a member's GPUs. `Mesh::arena` gives either.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::communicator::SharedArena;
use crate::error::{Error, Result};
use crate::executor::DeviceArena;
use crate::sys::gpu::{ForeignStream, GpuSpan, Part, Region, Stream};
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::GpuVendor;

/// Arrays of an arena begin at multiples of this many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Memory of all members, each with a part of its own: shared on a host, or on each GPU of the member's executor.
///
/// A handle: the memory goes when the last clone on each member has gone. One on GPUs holds them open.
#[derive(Clone)]
pub struct Arena {
    place: Place,
    /// What was taken: of the part, or of that on each GPU.
    taken: Arc<Vec<Mutex<usize>>>,
}

#[derive(Clone)]
enum Place {
    Host(Arc<dyn SharedArena>),
    Gpus(Arc<DeviceArena>),
}

/// Bytes of an arena on one GPU, which keep it: the host cannot read them where they lie.
#[derive(Clone)]
pub struct DeviceBytes {
    arena: Arc<DeviceArena>,
    position: usize,
    range: Range<usize>,
}

impl std::fmt::Debug for DeviceBytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DeviceBytes({:?} of GPU {})", self.range, self.position)
    }
}

impl DeviceBytes {
    fn region(&self) -> Result<&Region> {
        self.arena.region(self.position).ok_or_else(|| no_gpu(self.position, self.arena.count()))
    }

    /// The bytes as a call takes them.
    ///
    /// # Errors
    /// None for bytes that [`Arena::device_bytes`] gave.
    pub fn span(&self) -> Result<GpuSpan<'_>> {
        self.region()?.span(&self.range)
    }

    /// The stream that work of this project on them is on.
    fn own_stream(&self) -> Result<&Arc<Stream>> {
        Ok(self.region()?.stream())
    }

    /// How many bytes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.range.len()
    }

    /// Their address in the GPU's terms, 0 where there are none.
    ///
    /// # Errors
    /// None for bytes that [`Arena::device_bytes`] gave.
    pub fn address(&self) -> Result<u64> {
        self.region()?.address(&self.range)
    }

    /// Who made the GPU.
    ///
    /// # Errors
    /// As [`DeviceBytes::address`].
    pub fn vendor(&self) -> Result<GpuVendor> {
        let gpu = self.arena.gpu(self.position);
        gpu.map(|gpu| gpu.vendor).ok_or_else(|| no_gpu(self.position, self.arena.count()))
    }

    /// The number by which the vendor's runtime knows the GPU in this process.
    ///
    /// # Errors
    /// As [`DeviceBytes::address`].
    pub fn device_number(&self) -> Result<usize> {
        Ok(self.region()?.stream().device().number())
    }

    /// The handle of the stream that work of this project on them is on, as a number.
    ///
    /// # Errors
    /// As [`DeviceBytes::address`].
    pub fn stream(&self) -> Result<usize> {
        Ok(self.region()?.stream().handle().addr())
    }

    /// Has a stream of another library wait for the work of this project on them.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn precede(&self, other: ForeignStream) -> Result<()> {
        self.own_stream()?.precede(other)
    }

    /// Has the work of this project on them wait for a stream of another library.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn follow(&self, other: ForeignStream) -> Result<()> {
        self.own_stream()?.follow(other)
    }

    /// Copies as many bytes of the host there, behind the work on them, and waits for the end.
    ///
    /// # Errors
    /// `Invalid` for another length; `TimedOut`, `Interrupted`, `Vendor`.
    pub fn write(&self, source: Span<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.region()?.write(&self.range, source, deadline)
    }

    /// Copies them to the host, behind the work on them, and waits for the end.
    ///
    /// # Errors
    /// As [`DeviceBytes::write`].
    pub fn read(&self, target: SpanMut<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.region()?.read(&self.range, target, deadline)
    }
}

fn no_gpu(position: usize, count: usize) -> Error {
    let reason = match count {
        0 => "the arena is in host memory".to_owned(),
        _ => format!("the arena lies on {count} GPUs, counted from 0 in the order of its executor"),
    };
    Error::invalid("device", position, "argument", reason)
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Arena({} bytes here)", self.byte_count())
    }
}

impl Arena {
    pub(super) fn new(shared: Arc<dyn SharedArena>) -> Self {
        Self { place: Place::Host(shared), taken: Arc::new(vec![Mutex::new(0)]) }
    }

    /// One on the GPUs of the member's executor.
    pub(super) fn on_gpus(arena: Arc<DeviceArena>) -> Self {
        let taken = (0..arena.count()).map(|_| Mutex::new(0)).collect();
        Self { place: Place::Gpus(arena), taken: Arc::new(taken) }
    }

    /// On how many GPUs of this member it lies; 0 for one in host memory.
    #[must_use]
    pub fn device_count(&self) -> usize {
        match &self.place {
            Place::Host(_) => 0,
            Place::Gpus(arena) => arena.count(),
        }
    }

    /// The bytes of this member's own part, on each GPU where it lies on several.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        match &self.place {
            Place::Host(shared) => shared.part(shared.seat()).map_or(0, |part| part.byte_count()),
            Place::Gpus(arena) => arena.region(0).map_or(0, Region::byte_count),
        }
    }

    /// Takes the next free bytes of this member's part, on its first GPU if it has some, aligned to [`ALIGNMENT`]; nothing is
    /// given back.
    ///
    /// # Errors
    /// `Exhausted` with what is left.
    pub fn take(&self, byte_count: usize) -> Result<Range<usize>> {
        self.take_on(0, byte_count)
    }

    /// As [`Arena::take`], on the GPU at a position of the executor's; in host memory there is the position 0 alone.
    ///
    /// # Errors
    /// As [`Arena::take`], and `Invalid` if there is no such position.
    pub fn take_on(&self, device: usize, byte_count: usize) -> Result<Range<usize>> {
        let taken = self.taken.get(device).ok_or_else(|| no_gpu(device, self.device_count()))?;
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let start = taken.next_multiple_of(ALIGNMENT);
        let free = self.byte_count().saturating_sub(start);
        if byte_count > free {
            return Err(Error::Exhausted {
                place: format!("this member's arena of {} bytes", self.byte_count()),
                wanted_bytes: byte_count as u64,
                free_bytes: free as u64,
                remedy: "make the arena larger; arrays begin at multiples of 64 bytes".to_owned(),
            });
        }
        *taken = start + byte_count;
        Ok(start..start + byte_count)
    }

    /// The part that member `index` brought; `None` if there is no such member, and for one on GPUs. Any member may write it at any time.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<Span<'_>> {
        match &self.place {
            Place::Host(shared) => shared.part(index),
            Place::Gpus(_) => None,
        }
    }

    /// The same for writing.
    #[must_use]
    pub fn part_mut(&self, index: usize) -> Option<SpanMut<'_>> {
        match &self.place {
            Place::Host(shared) => shared.part_mut(index),
            Place::Gpus(_) => None,
        }
    }

    /// A range of this member's own part, for writing.
    ///
    /// # Errors
    /// `Invalid` if it is not within; `Unsupported` for one on GPUs, which the host cannot read.
    pub fn own(&self, range: Range<usize>) -> Result<SpanMut<'_>> {
        let total = self.byte_count();
        let outside = || {
            let reason = format!("must lie within the {total} bytes of this member's part");
            Error::invalid("byte range", format!("{}..{}", range.start, range.end), "arena", reason)
        };
        let Place::Host(shared) = &self.place else {
            let why = "its memory is a GPU's, which the host cannot read; take Arena::device_bytes";
            return Err(Error::unsupported("an arena's bytes as host memory", why));
        };
        let part = shared.part_mut(shared.seat()).ok_or_else(outside)?;
        part.into_part(range.clone())
    }

    /// A range of this member's part on the GPU at a position of the executor's, for kernels.
    ///
    /// # Errors
    /// As [`Arena::device_bytes`].
    pub(crate) fn part_on_gpu(&self, device: usize, range: &Range<usize>) -> Result<Part<'_>> {
        let Place::Gpus(arena) = &self.place else { return Err(no_gpu(device, 0)) };
        arena.region(device).ok_or_else(|| no_gpu(device, arena.count()))?.part(range)
    }

    /// A range of this member's part on the GPU at a position of the executor's.
    ///
    /// # Errors
    /// `Invalid` if it is not within, if there is no such position, and for an arena in host memory.
    pub fn device_bytes(&self, device: usize, range: Range<usize>) -> Result<DeviceBytes> {
        let Place::Gpus(arena) = &self.place else { return Err(no_gpu(device, 0)) };
        let region = arena.region(device).ok_or_else(|| no_gpu(device, arena.count()))?;
        region.address(&range)?;
        Ok(DeviceBytes { arena: Arc::clone(arena), position: device, range })
    }
}
