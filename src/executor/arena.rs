//! Memory of an executor's GPUs: a part on each, which keeps them open.

use std::sync::Arc;

use super::stream::Devices;
use crate::error::Result;
use crate::sys::Deadline;
use crate::sys::gpu::Region;
use crate::topology::GpuDevice;

/// As many bytes on each GPU of an executor; the last holder of its GPUs closes them.
pub(crate) struct DeviceArena {
    /// Before the devices: given back first.
    regions: Vec<Region>,
    devices: Arc<Devices>,
}

impl DeviceArena {
    /// Takes the bytes on every GPU; all are zero.
    ///
    /// # Errors
    /// `Exhausted` naming the GPU; `TimedOut`, `Interrupted`, `Vendor`.
    pub(crate) fn take(devices: Arc<Devices>, byte_count: usize, deadline: &Deadline<'_>) -> Result<Self> {
        let library = devices.collective_library();
        let regions = devices.streams().map(|stream| Region::take_from(stream, library, byte_count));
        let arena = Self { regions: regions.collect::<Result<_>>()?, devices };
        for (position, region) in arena.regions.iter().enumerate() {
            let place = (region.address(&(0..0))?, region.byte_count(), position);
            arena.devices.places().push(place);
        }
        arena.devices.wait(deadline)?;
        Ok(arena)
    }

    /// The part on the GPU at a position of the executor's; `None` if there is no such position.
    pub(crate) fn region(&self, position: usize) -> Option<&Region> {
        self.regions.get(position)
    }

    /// The GPU at a position of the executor's.
    pub(crate) fn gpu(&self, position: usize) -> Option<&GpuDevice> {
        self.devices.gpus().nth(position)
    }

    /// All parts, in the executor's order.
    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// How many GPUs there are.
    pub(crate) fn count(&self) -> usize {
        self.regions.len()
    }
}

impl Drop for DeviceArena {
    fn drop(&mut self) {
        let own = self.regions.iter().filter_map(|region| region.address(&(0..0)).ok()).collect::<Vec<_>>();
        self.devices.places().retain(|(start, ..)| !own.contains(start));
    }
}
