//! Memory of a GPU: an address that the host must not follow, freed when its holder goes.

use std::ops::Range;
use std::sync::Arc;

use super::{Device, code};
use crate::error::{Error, Result};
use crate::sys::ccl::Library;

/// Bytes of a GPU's memory.
pub struct Memory {
    device: Arc<Device>,
    /// Whose memory it is: of NCCL or RCCL, or of the driver where there is none.
    library: Option<Arc<Library>>,
    address: u64,
    byte_count: usize,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Memory({} bytes on {})", self.byte_count, self.device.name())
    }
}

impl Memory {
    /// Takes bytes whose content is not defined; none are taken for 0.
    ///
    /// # Errors
    /// `Exhausted` naming the GPU, what was asked and what is free; `Vendor`.
    pub fn take(device: &Arc<Device>, byte_count: usize) -> Result<Self> {
        Self::take_from(device, None, byte_count)
    }

    /// As [`Memory::take`], of a collective library where it gives some, so that it can move them without a copy.
    ///
    /// # Errors
    /// As [`Memory::take`].
    pub fn take_from(
        device: &Arc<Device>,
        library: Option<&Arc<Library>>,
        byte_count: usize,
    ) -> Result<Self> {
        let mut taken = Self { device: Arc::clone(device), library: None, address: 0, byte_count };
        if byte_count > 0
            && let Some(library) = library
            && let Some(allocate) = library.table().mem_alloc
        {
            let _current = device.enter()?;
            let mut address = std::ptr::null_mut();
            // SAFETY: the function writes one address, which lives until it returns; the GPU is current.
            let result = unsafe { allocate(&raw mut address, byte_count) };
            if result == code::SUCCESS && !address.is_null() {
                taken.library = Some(Arc::clone(library));
                taken.address = address.addr() as u64;
                return Ok(taken);
            }
            // What is in the way there need not be here, and this one says what is free.
            tracing::debug!(result, device = device.name(), "ncclMemAlloc gave no memory");
        }
        if byte_count > 0 {
            let current = device.enter()?;
            let mut address = 0;
            // SAFETY: the function writes one address, which lives until it returns; the context is current.
            let result = unsafe { (device.table().allocate)(&raw mut address, byte_count) };
            drop(current);
            device.check(device.table().names.allocate, result, byte_count)?;
            taken.address = address;
        }
        Ok(taken)
    }

    /// The GPU.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The address of the first byte, in the GPU's terms; 0 where there is none.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// The address of a range that must lie within.
    ///
    /// # Errors
    /// `Invalid` if it does not.
    pub fn within(&self, range: &Range<usize>) -> Result<u64> {
        if range.start <= range.end && range.end <= self.byte_count {
            return Ok(self.address + range.start as u64);
        }
        let reason = format!("must lie within {} bytes on {}", self.byte_count, self.device.name());
        Err(Error::invalid("byte range", format!("{}..{}", range.start, range.end), "GPU memory", reason))
    }

    /// Lets the bytes be until the process ends: work that does not end may still use them.
    pub fn leak(mut self) {
        self.address = 0;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address == 0 || !self.device.is_callable() {
            return;
        }
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: the address is one that `take` got and that is freed nowhere else; whoever queued work on it has waited for
        // its end. A failure leaves nothing to do.
        let result = unsafe {
            match self.library.as_ref().and_then(|library| library.table().mem_free) {
                Some(free) => {
                    let address = usize::try_from(self.address).unwrap_or(0);
                    free(std::ptr::without_provenance_mut(address))
                }
                None => (self.device.table().free)(self.address),
            }
        };
        if result != code::SUCCESS {
            tracing::debug!(result, device = self.device.name(), "memory of a GPU was not freed");
        }
    }
}
