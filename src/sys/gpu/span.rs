//! Bytes of a GPU's memory as address and length, whoever took them: the host must not follow the address.

use std::marker::PhantomData;
use std::ops::Range;

use crate::error::{Error, Result};
use crate::vocabulary::GpuVendor;

/// Bytes of a GPU's memory that may be read and written for as long as `'a`.
#[derive(Clone, Copy, Debug)]
pub struct GpuSpan<'a> {
    vendor: GpuVendor,
    number: usize,
    address: u64,
    byte_count: usize,
    lifetime: PhantomData<&'a [u8]>,
}

impl GpuSpan<'_> {
    /// No bytes.
    pub const EMPTY: Self =
        Self { vendor: GpuVendor::Nvidia, number: 0, address: 0, byte_count: 0, lifetime: PhantomData };

    /// So many bytes that are nowhere: what a call is compared by before anybody knows where its arrays are.
    #[must_use]
    pub const fn of_length(byte_count: usize) -> Self {
        Self { byte_count, ..Self::EMPTY }
    }

    /// Bytes at an address of the GPU that the vendor's runtime shows under a number in this process.
    ///
    /// # Safety
    /// So many bytes there are that GPU's memory for the whole of `'a`, and may be read and written by it.
    #[must_use]
    pub const unsafe fn from_raw(vendor: GpuVendor, number: usize, address: u64, byte_count: usize) -> Self {
        Self { vendor, number, address, byte_count, lifetime: PhantomData }
    }

    /// Who made the GPU, and the number by which the vendor's runtime shows it in this process.
    #[must_use]
    pub const fn gpu(&self) -> (GpuVendor, usize) {
        (self.vendor, self.number)
    }

    /// The address of the first byte, in the GPU's terms.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Some of the bytes.
    ///
    /// # Errors
    /// `Invalid` if they are not within.
    pub fn part(&self, range: &Range<usize>) -> Result<Self> {
        if range.start <= range.end && range.end <= self.byte_count {
            return Ok(Self {
                address: self.address.saturating_add(range.start as u64),
                byte_count: range.len(),
                ..*self
            });
        }
        let reason = format!("must lie within {} bytes of a GPU's memory", self.byte_count);
        Err(Error::invalid("byte range", format!("{}..{}", range.start, range.end), "GPU memory", reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within() {
        // SAFETY: nothing follows the address.
        let span = unsafe { GpuSpan::from_raw(GpuVendor::Amd, 3, 4096, 16) };
        let part = span.part(&(4..12)).expect("within");
        assert_eq!((part.address(), part.byte_count(), part.gpu()), (4100, 8, (GpuVendor::Amd, 3)));
        assert!(part.part(&(0..9)).is_err());
        assert_eq!(part.part(&(8..8)).expect("within").byte_count(), 0);
    }
}
