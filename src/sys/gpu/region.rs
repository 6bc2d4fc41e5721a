//! A region of a GPU's memory with the stream that its work is on: what is freed only when that work has ended.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{GpuSpan, Memory, Stream};
use crate::error::{Error, Result};
use crate::sys::ccl::{Library, Registration};
use crate::sys::{Deadline, Span, SpanMut};

/// How long dropping a region waits for work on its stream.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Some bytes of a region, for as long as that lives.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    region: &'a Region,
    start: usize,
    byte_count: usize,
}

impl<'a> Part<'a> {
    /// How many bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// The region.
    #[must_use]
    pub const fn region(&self) -> &'a Region {
        self.region
    }

    fn range(&self) -> Range<usize> {
        self.start..self.start + self.byte_count
    }

    /// The address in the GPU's terms.
    ///
    /// # Errors
    /// None: it is within.
    pub fn address(&self) -> Result<u64> {
        self.region.address(&self.range())
    }

    /// The bytes as a call takes them.
    ///
    /// # Errors
    /// None: they are within.
    pub fn span(&self) -> Result<GpuSpan<'a>> {
        self.region.span(&self.range())
    }

    /// Some of the bytes.
    ///
    /// # Errors
    /// `Invalid` if they are not within.
    pub fn part(&self, range: &Range<usize>) -> Result<Self> {
        if range.start <= range.end && range.end <= self.byte_count {
            return Ok(Self { start: self.start + range.start, byte_count: range.len(), ..*self });
        }
        let reason = format!("must lie within {} bytes of a GPU's memory", self.byte_count);
        Err(Error::invalid("byte range", format!("{}..{}", range.start, range.end), "GPU memory", reason))
    }

    /// As [`Region::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, source: Span<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.region.write(&self.range(), source, deadline)
    }

    /// As [`Region::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, target: SpanMut<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.region.read(&self.range(), target, deadline)
    }

    /// Copies as many bytes of the same region's GPU there, behind what is on the stream.
    ///
    /// # Errors
    /// `Invalid` for another length or another stream; `Vendor`.
    pub fn copy_from(&self, source: &Part<'_>) -> Result<()> {
        let stream = self.region.stream();
        let (Some(to), Some(from)) = (&self.region.memory, &source.region.memory) else { return Ok(()) };
        if !Arc::ptr_eq(stream, source.region.stream()) {
            return Err(Error::invalid(
                "source",
                "another stream",
                "GPU memory",
                "must have the same stream",
            ));
        }
        // SAFETY: both regions have this stream, and are given back when it is idle.
        unsafe { stream.copy((to, &self.range()), (from, &source.range())) }
    }
}

/// Bytes of a GPU's memory, and a stream of that GPU.
pub struct Region {
    /// `None` once they were left to work that did not end.
    memory: Option<Memory>,
    stream: Arc<Stream>,
    /// The communicators that know the memory; they forget it before it is freed.
    registrations: Mutex<Vec<Registration>>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Region({:?})", self.memory)
    }
}

impl Region {
    /// Takes bytes on the stream's GPU, which are zero for all that is put on the stream from now on.
    ///
    /// # Errors
    /// `Exhausted` naming the GPU, what was asked and what is free; `Vendor`.
    pub fn take(stream: &Arc<Stream>, byte_count: usize) -> Result<Self> {
        Self::take_from(stream, None, byte_count)
    }

    /// As [`Region::take`], of a collective library where it gives some.
    ///
    /// # Errors
    /// As [`Region::take`].
    pub fn take_from(
        stream: &Arc<Stream>,
        library: Option<&Arc<Library>>,
        byte_count: usize,
    ) -> Result<Self> {
        let memory = Memory::take_from(stream.device(), library, byte_count)?;
        let region =
            Self { memory: Some(memory), stream: Arc::clone(stream), registrations: Mutex::default() };
        if let Some(memory) = &region.memory {
            // SAFETY: the memory is freed by the drop of `region` alone, which waits for the stream.
            unsafe { stream.fill(memory, &(0..byte_count), 0) }?;
        }
        Ok(region)
    }

    /// How many bytes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.memory.as_ref().map_or(0, Memory::byte_count)
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// The communicators that know the memory.
    pub(in crate::sys) fn registrations(&self) -> MutexGuard<'_, Vec<Registration>> {
        self.registrations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of a range in the GPU's terms; the host must not follow it. 0 where there are no bytes.
    ///
    /// # Errors
    /// `Invalid` if it is not within.
    pub fn address(&self, range: &Range<usize>) -> Result<u64> {
        self.memory.as_ref().map_or(Ok(0), |memory| memory.within(range))
    }

    /// A range of them.
    ///
    /// # Errors
    /// `Invalid` if it is not within.
    pub fn span(&self, range: &Range<usize>) -> Result<GpuSpan<'_>> {
        let (address, device) = (self.address(range)?, self.stream.device());
        // SAFETY: the range is within memory of this GPU, which is freed when `self` goes.
        Ok(unsafe { GpuSpan::from_raw(device.vendor(), device.number(), address, range.len()) })
    }

    /// A range of them that keeps its region borrowed.
    ///
    /// # Errors
    /// `Invalid` if it is not within.
    pub fn part(&self, range: &Range<usize>) -> Result<Part<'_>> {
        self.address(range)?;
        Ok(Part { region: self, start: range.start, byte_count: range.len() })
    }

    /// Copies bytes of the host there, behind what is on the stream, and waits for the end.
    ///
    /// # Errors
    /// `Invalid` if the range is not within or not as long; `TimedOut`, `Interrupted`, `Vendor`.
    pub fn write(&self, range: &Range<usize>, source: Span<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let bytes = source.to_vec();
        // SAFETY: the copy reads `bytes`, which live until the stream is idle, or for ever.
        unsafe { self.stream.copy_in(memory, range, Span::of(&bytes)) }?;
        self.stream.wait(deadline).inspect_err(|_| std::mem::forget(bytes))
    }

    /// Copies bytes to the host, behind what is on the stream, and waits for the end.
    ///
    /// # Errors
    /// As [`Region::write`]; the target is then as it was.
    pub fn read(&self, range: &Range<usize>, mut target: SpanMut<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let mut bytes = vec![0_u8; target.byte_count()];
        // SAFETY: the copy writes `bytes`, which live until the stream is idle, or for ever, and are not read before.
        unsafe { self.stream.copy_out(SpanMut::of(&mut bytes[..]), memory, range) }?;
        if let Err(error) = self.stream.wait(deadline) {
            std::mem::forget(bytes);
            return Err(error);
        }
        target.copy_from(Span::of(&bytes))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        match self.stream.wait(&Deadline::after(DROP_LIMIT)) {
            // A GPU that has failed does nothing more with it.
            Ok(()) | Err(Error::Vendor { .. }) => {
                let registrations = std::mem::take(&mut *self.registrations());
                if registrations.into_iter().all(Registration::end) {
                    drop(memory);
                } else {
                    tracing::debug!("memory of a GPU is left to a communicator that works");
                    memory.leak();
                }
            }
            Err(error) => {
                tracing::debug!(%error, "memory of a GPU is left to the work on it");
                memory.leak();
            }
        }
    }
}
