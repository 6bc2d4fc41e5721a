//! Streams: work of a GPU in an order, which the host puts there and does not wait for.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Device, Handle, Memory, code};
use crate::error::{Error, Missing, Result};
use crate::sys::{Deadline, Span, SpanMut};

/// Streams that do not wait for the default stream of their GPU.
const NON_BLOCKING: u32 = 1;
/// Events that tell of an order and not of a time.
const WITHOUT_TIME: u32 = 2;

/// A stream of another library on one GPU, by its driver's handle.
#[derive(Clone, Copy, Debug)]
pub struct ForeignStream(Handle);

// SAFETY: a driver's handle, which is handed to the driver alone; drivers allow that on any thread.
unsafe impl Send for ForeignStream {}
// SAFETY: as above.
unsafe impl Sync for ForeignStream {}

impl ForeignStream {
    /// A stream by its handle, or by a number that the driver takes for a default one.
    ///
    /// # Safety
    /// It is a stream of the GPU that it will be used for, and lives while it is used.
    #[must_use]
    pub const unsafe fn from_raw(handle: usize) -> Self {
        Self(std::ptr::without_provenance_mut(handle))
    }
}

/// A stream of this process on one GPU.
pub struct Stream {
    device: Arc<Device>,
    handle: Handle,
}

// SAFETY: drivers allow a stream to be used on any thread that has made its context current.
unsafe impl Send for Stream {}
// SAFETY: as above; what two threads put there comes in some order.
unsafe impl Sync for Stream {}

impl std::fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Stream({:?} on {})", self.handle, self.device.name())
    }
}

/// An event that lives for one act: what was recorded and waited for stays in order without it.
struct Event<'a> {
    device: &'a Device,
    handle: Handle,
}

impl Drop for Event<'_> {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: the event was made by `mark` and is destroyed once; drivers keep what waits for it until that is done.
            let _ = unsafe { (self.device.table().event_destroy)(self.handle) };
        }
    }
}

impl Stream {
    /// Makes a stream.
    ///
    /// # Errors
    /// `Vendor` and `Exhausted`, naming the GPU.
    pub fn open(device: &Arc<Device>) -> Result<Self> {
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the function writes one handle, which lives until it returns; the context is current.
        let result = unsafe { (device.table().stream_create)(&raw mut handle, NON_BLOCKING) };
        device.check(device.table().names.stream_create, result, 0)?;
        Ok(Self { device: Arc::clone(device), handle })
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The driver's handle, which other libraries take as a number; valid while this lives.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        self.handle
    }

    /// Whether all that was put there has ended.
    ///
    /// # Errors
    /// `Vendor` naming the GPU if work on it has failed; `Closed` in a forked child.
    pub fn is_idle(&self) -> Result<bool> {
        let _current = self.device.enter()?;
        // SAFETY: the stream is this value's own; its context is current.
        let result = unsafe { (self.device.table().stream_query)(self.handle) };
        if result == code::NOT_READY {
            return Ok(false);
        }
        self.device.check(self.device.table().names.stream_query, result, 0).map(|()| true)
    }

    /// Waits until all that was put there has ended.
    ///
    /// # Errors
    /// As [`Stream::is_idle`]; `TimedOut` naming the GPU; `Interrupted`.
    pub fn wait(&self, deadline: &Deadline<'_>) -> Result<()> {
        const LONGEST: Duration = Duration::from_millis(1);
        let mut pause = Duration::from_micros(5);
        while !self.is_idle()? {
            deadline.check(&format!("waiting for {}", self.device.name()), Vec::<Missing>::new)?;
            std::thread::sleep(pause.min(deadline.pause()));
            pause = (pause * 2).min(LONGEST);
        }
        Ok(())
    }

    /// Puts a copy from the host there.
    ///
    /// # Errors
    /// `Invalid` if the range is not as long as the source or not within; `Vendor`.
    ///
    /// # Safety
    /// The source stays as it is until the stream is idle.
    pub unsafe fn copy_in(&self, target: &Memory, range: &Range<usize>, source: Span<'_>) -> Result<()> {
        let address = self.place(target, range, source.byte_count())?;
        if source.is_empty() {
            return Ok(());
        }
        let _current = self.device.enter()?;
        let (function, from) = (self.device.table().copy_in, source.pointer().cast());
        // SAFETY: both sides have as many bytes: checked above, and by the caller's promise until the copy has ended.
        let result = unsafe { function(address, from, source.byte_count(), self.handle) };
        self.device.check(self.device.table().names.copy_in, result, 0)
    }

    /// Puts a copy to the host there.
    ///
    /// # Errors
    /// As [`Stream::copy_in`].
    ///
    /// # Safety
    /// The target is written and read by nobody else until the stream is idle.
    pub unsafe fn copy_out(&self, target: SpanMut<'_>, source: &Memory, range: &Range<usize>) -> Result<()> {
        let address = self.place(source, range, target.byte_count())?;
        if target.is_empty() {
            return Ok(());
        }
        let _current = self.device.enter()?;
        let (function, to) = (self.device.table().copy_out, target.pointer().cast());
        // SAFETY: as in `copy_in`.
        let result = unsafe { function(to, address, target.byte_count(), self.handle) };
        self.device.check(self.device.table().names.copy_out, result, 0)
    }

    /// Puts a copy within the GPU's memory there.
    ///
    /// # Errors
    /// As [`Stream::copy_in`].
    ///
    /// # Safety
    /// Both memories live until the stream is idle.
    pub unsafe fn copy(
        &self,
        (target, to): (&Memory, &Range<usize>),
        (source, from): (&Memory, &Range<usize>),
    ) -> Result<()> {
        let from_address = self.place(source, from, to.len())?;
        let to_address = self.place(target, to, from.len())?;
        if to.is_empty() {
            return Ok(());
        }
        let _current = self.device.enter()?;
        // SAFETY: both sides have as many bytes: checked above, and by the caller's promise until the copy has ended.
        let result = unsafe { (self.device.table().copy)(to_address, from_address, to.len(), self.handle) };
        self.device.check(self.device.table().names.copy, result, 0)
    }

    /// Has bytes set to a value, there.
    ///
    /// # Errors
    /// As [`Stream::copy_in`].
    ///
    /// # Safety
    /// The memory lives until the stream is idle.
    pub unsafe fn fill(&self, target: &Memory, range: &Range<usize>, value: u8) -> Result<()> {
        let address = self.place(target, range, range.len())?;
        if range.is_empty() {
            return Ok(());
        }
        let _current = self.device.enter()?;
        // SAFETY: the range is within, and lives by the caller's promise.
        let result = unsafe { (self.device.table().fill)(address, value, range.len(), self.handle) };
        self.device.check(self.device.table().names.fill, result, 0)
    }

    /// Has what is put here from now on wait for what was put into another library's stream before.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn follow(&self, other: ForeignStream) -> Result<()> {
        // SAFETY: its maker promised that it is a stream of this GPU, and this value's own is one.
        unsafe { self.mark(other.0, self.handle) }
    }

    /// Has what is put into another library's stream from now on wait for what was put here before.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn precede(&self, other: ForeignStream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.mark(self.handle, other.0) }
    }

    /// Has what is put here from now on wait for what was put into the default stream of its GPU, which itself waits for every
    /// stream that was made without saying that it does not.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn follow_default(&self) -> Result<()> {
        // SAFETY: a null handle stands for the default stream of the GPU that is current, which is there as long as that.
        unsafe { self.mark(std::ptr::null_mut(), self.handle) }
    }

    /// Has what is put here from now on wait for what was put into another stream of this process on the same GPU.
    ///
    /// # Errors
    /// `Vendor`; `Invalid` for one on another GPU.
    pub fn succeed(&self, other: &Self) -> Result<()> {
        if !Arc::ptr_eq(&self.device, &other.device) && self.device.number() != other.device.number() {
            let reason = format!("must be on {}", self.device.name());
            return Err(Error::invalid("stream", other.device.name(), "stream", reason));
        }
        // SAFETY: both are streams of this GPU and live.
        unsafe { self.mark(other.handle, self.handle) }
    }

    /// Has one stream wait for what is in another now.
    ///
    /// # Safety
    /// Both are streams of this GPU that live.
    unsafe fn mark(&self, first: Handle, second: Handle) -> Result<()> {
        let table = self.device.table();
        let _current = self.device.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the function writes one handle, which lives until it returns; the context is current.
        let result = unsafe { (table.event_create)(&raw mut handle, WITHOUT_TIME) };
        self.device.check(table.names.event_create, result, 0)?;
        let event = Event { device: &self.device, handle };
        // SAFETY: event and streams are of this GPU: by `event_create`, and by the caller's promise.
        let result = unsafe { (table.event_record)(event.handle, first) };
        self.device.check(table.names.event_record, result, 0)?;
        // SAFETY: as above; there is no flag.
        let result = unsafe { (table.stream_wait)(second, event.handle, 0) };
        self.device.check(table.names.stream_wait, result, 0)
    }

    /// The address of a range that has so many bytes, on this GPU.
    fn place(&self, memory: &Memory, range: &Range<usize>, byte_count: usize) -> Result<u64> {
        let address = memory.within(range)?;
        if range.len() != byte_count || !Arc::ptr_eq(memory.device(), &self.device) {
            let reason = format!("must be {byte_count} bytes on {}", self.device.name());
            let value = format!("{}..{} on {}", range.start, range.end, memory.device().name());
            return Err(Error::invalid("byte range", value, "stream", reason));
        }
        Ok(address)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.device.is_callable() {
            return;
        }
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: the stream was made by `open` and is destroyed once. A failure leaves nothing to do.
        let result = unsafe { (self.device.table().stream_destroy)(self.handle) };
        if result != code::SUCCESS {
            tracing::debug!(result, device = self.device.name(), "a stream was not destroyed");
        }
    }
}
