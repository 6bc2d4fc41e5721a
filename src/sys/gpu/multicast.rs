//! Multicast objects: memory of several GPUs that their switch writes and reduces at once, made to see whether it can be.
//!
//! An object is made by one process for a number of GPUs; every process adds its own, and binds memory on each once all have been
//! added. Binding before that blocks in the driver without a limit: whoever calls it has heard of all others.

use std::ffi::{c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::{Device, code};
use crate::error::{Error, Result};

/// What a multicast object is made of: `CUmulticastObjectProp`.
#[repr(C)]
pub(in crate::sys) struct ObjectProperties {
    device_count: c_uint,
    byte_count: usize,
    handle_kinds: c_ulonglong,
    flags: c_ulonglong,
}

/// What memory is made of: `CUmemAllocationProp`.
#[repr(C)]
pub(in crate::sys) struct MemoryProperties {
    kind: c_int,
    handle_kinds: c_int,
    place_kind: c_int,
    place: c_int,
    security: *mut c_void,
    compression: c_uchar,
    is_for_network: c_uchar,
    usage: c_ushort,
    reserved: [c_uchar; 4],
}

/// Memory that stays on its GPU, which is a place of this kind.
const PINNED: c_int = 1;
const ON_A_GPU: c_int = 1;
/// Handles that are files of one machine, and handles of a fabric.
const FILE: c_int = 1;
const FABRIC: c_int = 8;
/// The smallest size that is allowed.
const LEAST: c_int = 0;

/// The functions; drivers have them since CUDA 12.1.
pub(in crate::sys) struct MulticastTable {
    pub(in crate::sys) granularity: unsafe extern "C" fn(*mut usize, *const ObjectProperties, c_int) -> c_int,
    pub(in crate::sys) create: unsafe extern "C" fn(*mut c_ulonglong, *const ObjectProperties) -> c_int,
    pub(in crate::sys) add: unsafe extern "C" fn(c_ulonglong, c_int) -> c_int,
    pub(in crate::sys) bind:
        unsafe extern "C" fn(c_ulonglong, usize, c_ulonglong, usize, usize, c_ulonglong) -> c_int,
    pub(in crate::sys) unbind: unsafe extern "C" fn(c_ulonglong, c_int, usize, usize) -> c_int,
    pub(in crate::sys) take:
        unsafe extern "C" fn(*mut c_ulonglong, usize, *const MemoryProperties, c_ulonglong) -> c_int,
    pub(in crate::sys) release: unsafe extern "C" fn(c_ulonglong) -> c_int,
    pub(in crate::sys) export: unsafe extern "C" fn(*mut c_void, c_ulonglong, c_int, c_ulonglong) -> c_int,
    pub(in crate::sys) import: unsafe extern "C" fn(*mut c_ulonglong, *mut c_void, c_int) -> c_int,
}

/// How an object goes to other processes.
#[derive(Debug)]
pub enum Shared {
    /// On one machine, over a unix socket.
    File(OwnedFd),
    /// Over a fabric, as bytes: whoever has them and is in the fabric's domain of sharing can open it.
    Fabric([u8; 64]),
}

/// A multicast object and what this process has bound to it; given back when it is dropped.
pub struct Multicast {
    /// One of this process's GPUs, whose driver is asked.
    device: Arc<Device>,
    handle: c_ulonglong,
    byte_count: usize,
    /// GPUs with the memory that is bound on each.
    bound: Vec<(Arc<Device>, c_ulonglong)>,
}

impl std::fmt::Debug for Multicast {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Multicast({} bytes, {} bound)", self.byte_count, self.bound.len())
    }
}

impl Device {
    /// Whether the driver says that it can be part of multicast objects. In a virtual machine, or behind a sick fabric manager, it
    /// says so and making one fails.
    #[must_use]
    pub fn claims_multicast(&self) -> bool {
        let Some(ask) = self.table().attribute else { return false };
        let mut found: c_int = 0;
        // SAFETY: the function writes one int, which lives until it returns.
        let result = unsafe { ask(&raw mut found, code::MULTICAST, self.device) };
        result == code::SUCCESS && found != 0
    }

    fn multicast(&self) -> Result<&'static MulticastTable> {
        self.table().multicast.as_ref().ok_or_else(|| {
            let why = "the driver lacks cuMulticastCreate, which came with CUDA 12.1: install a newer driver";
            Error::unsupported(format!("a multicast object on {}", self.name()), why)
        })
    }
}

impl Multicast {
    /// Makes an object of the smallest size for so many GPUs, on one machine or over a fabric.
    ///
    /// # Errors
    /// `Unsupported` for a driver without multicast; `Vendor` naming the GPU.
    pub fn create(device: &Arc<Device>, gpu_count: usize, spans_machines: bool) -> Result<Self> {
        let (table, _current) = (device.multicast()?, device.enter()?);
        let mut properties = ObjectProperties {
            device_count: c_uint::try_from(gpu_count).unwrap_or(c_uint::MAX),
            byte_count: 0,
            handle_kinds: kind(spans_machines) as c_ulonglong,
            flags: 0,
        };
        let mut byte_count = 0;
        // SAFETY: the function reads the properties and writes one size; both live until it returns.
        let result = unsafe { (table.granularity)(&raw mut byte_count, &raw const properties, LEAST) };
        device.check("cuMulticastGetGranularity", result, 0)?;
        properties.byte_count = byte_count;
        let mut handle = 0;
        // SAFETY: the function reads the properties and writes one handle; both live until it returns.
        let result = unsafe { (table.create)(&raw mut handle, &raw const properties) };
        device.check("cuMulticastCreate", result, 0)?;
        Ok(Self { device: Arc::clone(device), handle, byte_count, bound: Vec::new() })
    }

    /// The bytes that each GPU binds.
    #[must_use]
    pub const fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// What another process adopts it by.
    ///
    /// # Errors
    /// `Vendor` naming the GPU.
    pub fn share(&self, spans_machines: bool) -> Result<Shared> {
        let (table, _current) = (self.device.multicast()?, self.device.enter()?);
        let (mut bytes, mut file): ([u8; 64], c_int) = ([0; 64], -1);
        let place = if spans_machines { bytes.as_mut_ptr().cast::<c_void>() } else { (&raw mut file).cast() };
        // SAFETY: the function writes an int for a file and 64 bytes for a fabric; the handle is live.
        let result = unsafe { (table.export)(place, self.handle, kind(spans_machines), 0) };
        self.device.check("cuMemExportToShareableHandle", result, 0)?;
        if spans_machines {
            return Ok(Shared::Fabric(bytes));
        }
        // SAFETY: the driver opened it for this caller, who owns it from now on.
        Ok(Shared::File(unsafe { OwnedFd::from_raw_fd(file) }))
    }

    /// Opens the object of another process, of so many bytes.
    ///
    /// # Errors
    /// `Vendor` naming the GPU.
    pub fn adopt(device: &Arc<Device>, shared: &Shared, byte_count: usize) -> Result<Self> {
        let (table, _current) = (device.multicast()?, device.enter()?);
        let mut handle = 0;
        let (place, kind) = match shared {
            Shared::File(file) => {
                let number = usize::try_from(file.as_raw_fd()).unwrap_or(0);
                (std::ptr::without_provenance_mut(number), FILE)
            }
            Shared::Fabric(bytes) => (bytes.as_ptr().cast_mut().cast::<c_void>(), FABRIC),
        };
        // SAFETY: a file comes as its number in the place of the pointer, a fabric's handle as a pointer to 64 bytes that are only
        // read; the function writes one handle, which lives until it returns.
        let result = unsafe { (table.import)(&raw mut handle, place, kind) };
        device.check("cuMemImportFromShareableHandle", result, 0)?;
        Ok(Self { device: Arc::clone(device), handle, byte_count, bound: Vec::new() })
    }

    /// Makes a GPU one of its own; for as long as the object lives.
    ///
    /// # Errors
    /// `Vendor` naming the GPU.
    pub fn add(&self, device: &Arc<Device>) -> Result<()> {
        let (table, _current) = (device.multicast()?, device.enter()?);
        // SAFETY: the handle is live.
        let result = unsafe { (table.add)(self.handle, device.device) };
        device.check("cuMulticastAddDevice", result, 0)
    }

    /// Binds memory on a GPU that was added. It blocks until all GPUs of the object have been added.
    ///
    /// # Errors
    /// `Exhausted` and `Vendor` naming the GPU.
    pub fn bind(&mut self, device: &Arc<Device>) -> Result<()> {
        let (table, _current) = (device.multicast()?, device.enter()?);
        let properties = MemoryProperties {
            kind: PINNED,
            handle_kinds: 0,
            place_kind: ON_A_GPU,
            place: device.device,
            security: std::ptr::null_mut(),
            compression: 0,
            is_for_network: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let mut memory = 0;
        // SAFETY: the function reads the properties and writes one handle; both live until it returns.
        let result = unsafe { (table.take)(&raw mut memory, self.byte_count, &raw const properties, 0) };
        device.check("cuMemCreate", result, self.byte_count)?;
        // SAFETY: both handles are live, and have as many bytes.
        let result = unsafe { (table.bind)(self.handle, 0, memory, 0, self.byte_count, 0) };
        if let Err(error) = device.check("cuMulticastBindMem", result, 0) {
            // SAFETY: the memory was made above, and nothing was bound to it.
            let _ = unsafe { (table.release)(memory) };
            return Err(error);
        }
        self.bound.push((Arc::clone(device), memory));
        Ok(())
    }
}

const fn kind(spans_machines: bool) -> c_int {
    if spans_machines { FABRIC } else { FILE }
}

impl Drop for Multicast {
    fn drop(&mut self) {
        let Ok(table) = self.device.multicast() else { return };
        if !self.device.is_callable() {
            return;
        }
        let mut result = code::SUCCESS;
        for (device, memory) in self.bound.drain(..) {
            let Ok(_current) = device.enter() else { continue };
            // SAFETY: the memory was bound by `bind`, and is released once, when nothing is bound to it. A failure leaves nothing to do.
            result |= unsafe { (table.unbind)(self.handle, device.device, 0, self.byte_count) };
            // SAFETY: as above.
            result |= unsafe { (table.release)(memory) };
        }
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: the handle was made or imported by this value, and is released once.
        result |= unsafe { (table.release)(self.handle) };
        if result != code::SUCCESS {
            tracing::debug!(result, device = self.device.name(), "a multicast object was not given back");
        }
    }
}
