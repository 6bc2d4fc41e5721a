//! What is in this machine, and what this build can do with it.

use std::ffi::{c_char, c_int};

use uform::vocabulary::GpuClass;

use crate::argument::Out;
use crate::structure::GpuDevice;
use crate::versioned::Place;
use crate::{text, verbs};

verbs! {
    /// Copies what this build can do.
    fn uform_capabilities_compiled(text: *mut c_char, capacity: usize, length: *mut usize) {
        text::give(&uform::device::capabilities_compiled(), text, capacity, length)
    }

    /// Copies what this build can do on this machine.
    fn uform_capabilities_available(text: *mut c_char, capacity: usize, length: *mut usize) {
        text::give(&uform::device::capabilities_available()?, text, capacity, length)
    }

    /// Lists the GPUs that this process may use.
    fn uform_gpu_devices(devices: *mut GpuDevice, capacity: usize, count: *mut usize) {
        let count = Out::new(count, "count")?;
        let place = if capacity == 0 { None } else { Some(Place::new(devices, "devices")?) };
        let found = uform::device::gpu_devices()?;
        if let Some(first) = place {
            for (position, device) in found.iter().take(capacity).enumerate() {
                first.element(position).put(&device_of(device));
            }
        }
        count.put(found.len());
        Ok(())
    }
}

fn device_of(device: &uform::GpuDevice) -> GpuDevice {
    let mut name = [0; 128];
    // SAFETY: the array has as many bytes as are told.
    unsafe { text::copy(&device.name, name.as_mut_ptr(), name.len()) };
    GpuDevice {
        vendor: device.vendor.number(),
        vendor_ordinal: device.vendor_ordinal,
        gpu_class: class_number(device.gpu_class),
        compute_units: device.compute_units,
        memory_bytes: device.memory_bytes,
        name,
        ..GpuDevice::default()
    }
}

/// The number of a class that may be unknown: 0 is none of its numbers.
pub(crate) fn class_number(class: Option<GpuClass>) -> c_int {
    class.map_or(0, GpuClass::number)
}
