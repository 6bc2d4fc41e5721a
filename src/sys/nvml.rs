//! NVIDIA's management library, loaded at run time: what it answers, and nothing that was decided.
//!
//! It starts no CUDA. Functions that a driver is too old to have are answered with `None`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use crate::error::{Error, Result};

/// The name that the dynamic linker is asked for.
pub const SONAME: &str = "libnvidia-ml.so.1";

/// The numbers of NVML's answers that mean something here.
mod code {
    use std::ffi::c_int;
    pub(super) const SUCCESS: c_int = 0;
    pub(super) const INVALID_ARGUMENT: c_int = 2;
    pub(super) const NOT_SUPPORTED: c_int = 3;
    pub(super) const NO_PERMISSION: c_int = 4;
    pub(super) const NOT_FOUND: c_int = 6;
    pub(super) const FUNCTION_NOT_FOUND: c_int = 13;
}

/// More links than any GPU has, and more devices and instances than any machine.
const LINK_LIMIT: c_uint = 96;
const DEVICE_LIMIT: c_uint = 1024;

/// NVML's handle of a device: its own address, never followed here.
type Handle = *mut c_void;

#[repr(C)]
struct PciInfo {
    bus_id_legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_device_id: c_uint,
    pci_sub_system_id: c_uint,
    bus_id: [u8; 32],
}

#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The first form of the fabric's state; the versioned forms have `version` before and the health after it.
#[repr(C)]
#[derive(Default)]
struct FabricInfo {
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
}

#[repr(C)]
#[derive(Default)]
struct FabricInfoV2 {
    version: c_uint,
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
    health_mask: c_uint,
}

#[repr(C)]
#[derive(Default)]
struct Attributes {
    multiprocessors: c_uint,
    shared_copy_engines: c_uint,
    shared_decoders: c_uint,
    shared_encoders: c_uint,
    shared_jpegs: c_uint,
    shared_ofas: c_uint,
    gpu_instance_slices: c_uint,
    compute_instance_slices: c_uint,
    memory_megabytes: u64,
}

/// Declares the table of functions: each is looked up once, and is `None` in a library that lacks it.
macro_rules! table {
    ($( $field:ident = $name:literal: fn($($argument:ty),*); )+) => {
        /// The functions of a loaded library.
        struct Table {
            $( $field: Option<unsafe extern "C" fn($($argument),*) -> c_int>, )+
            error_string: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
        }

        impl Table {
            fn of(library: &Library) -> Self {
                Self {
                    // SAFETY: NVML's header gives these names these signatures in every version. The pointers are
                    // copied out of the symbols; `Nvml` keeps the library beside them.
                    $( $field: unsafe { library.get(concat!($name, "\0").as_bytes()) }.ok().map(|found| *found), )+
                    // SAFETY: as above.
                    error_string: unsafe { library.get(b"nvmlErrorString\0") }.ok().map(|found| *found),
                }
            }
        }
    };
}

table! {
    init = "nvmlInit_v2": fn();
    shutdown = "nvmlShutdown": fn();
    driver_version = "nvmlSystemGetDriverVersion": fn(*mut c_char, c_uint);
    cuda_version = "nvmlSystemGetCudaDriverVersion_v2": fn(*mut c_int);
    count = "nvmlDeviceGetCount_v2": fn(*mut c_uint);
    handle = "nvmlDeviceGetHandleByIndex_v2": fn(c_uint, *mut Handle);
    uuid = "nvmlDeviceGetUUID": fn(Handle, *mut c_char, c_uint);
    name = "nvmlDeviceGetName": fn(Handle, *mut c_char, c_uint);
    pci = "nvmlDeviceGetPciInfo_v3": fn(Handle, *mut PciInfo);
    memory = "nvmlDeviceGetMemoryInfo": fn(Handle, *mut Memory);
    capability = "nvmlDeviceGetCudaComputeCapability": fn(Handle, *mut c_int, *mut c_int);
    cores = "nvmlDeviceGetNumGpuCores": fn(Handle, *mut c_uint);
    link_state = "nvmlDeviceGetNvLinkState": fn(Handle, c_uint, *mut c_uint);
    link_pci = "nvmlDeviceGetNvLinkRemotePciInfo_v2": fn(Handle, c_uint, *mut PciInfo);
    link_type = "nvmlDeviceGetNvLinkRemoteDeviceType": fn(Handle, c_uint, *mut c_uint);
    fabric = "nvmlDeviceGetGpuFabricInfo": fn(Handle, *mut FabricInfo);
    fabric_versioned = "nvmlDeviceGetGpuFabricInfoV": fn(Handle, *mut FabricInfoV2);
    mig_mode = "nvmlDeviceGetMigMode": fn(Handle, *mut c_uint, *mut c_uint);
    mig_count = "nvmlDeviceGetMaxMigDeviceCount": fn(Handle, *mut c_uint);
    mig_handle = "nvmlDeviceGetMigDeviceHandleByIndex": fn(Handle, c_uint, *mut Handle);
    gpu_instance = "nvmlDeviceGetGpuInstanceId": fn(Handle, *mut c_uint);
    compute_instance = "nvmlDeviceGetComputeInstanceId": fn(Handle, *mut c_uint);
    attributes = "nvmlDeviceGetAttributes_v2": fn(Handle, *mut Attributes);
}

/// The library, initialised; dropping it shuts it down.
pub struct Nvml {
    table: Table,
    /// Kept last: the functions above are valid while it is loaded.
    _library: Library,
}

/// A device or MIG device of an initialised library.
#[derive(Clone, Copy)]
pub struct Device<'library> {
    library: &'library Nvml,
    handle: Handle,
}

/// What is at the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkEnd {
    /// An NVLink switch.
    Switch,
    /// The device with this PCI address, of a kind that the driver does not tell or that is a GPU.
    Device(String),
}

/// A device's registration with its fabric, in NVML's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// The cluster's identity.
    pub cluster: [u8; 16],
    /// The part of the cluster.
    pub clique: u32,
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// NVML's status of a completed registration.
    pub status: i32,
    /// Pairs of bits, 1 for yes and 2 for no: degraded bandwidth, route recovery, route unhealthy, access timeout
    /// recovery; `None` if the driver does not tell.
    pub health_mask: Option<u32>,
}

/// One answer for each of a function's numbers.
type Numbers = (u32, u32);

impl std::fmt::Debug for Nvml {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Nvml")
    }
}

impl std::fmt::Debug for Device<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Device({:?})", self.handle)
    }
}

impl Nvml {
    /// Loads and initialises the library; `None` on a machine that has none.
    ///
    /// # Errors
    /// `Vendor` with the library's own number and text if it cannot be initialised: no driver is loaded, its version
    /// is another one, or this process may not use it. `Unsupported` for a library that lacks NVML's functions.
    pub fn open() -> Result<Option<Self>> {
        // SAFETY: loading runs the library's initialisation functions. The name is NVIDIA's own, and no function is
        // called before it was found there.
        let Ok(library) = (unsafe { Library::open(Some(SONAME), RTLD_LAZY | RTLD_LOCAL) }) else {
            return Ok(None);
        };
        let table = Table::of(&library);
        let needed =
            [table.init.is_some(), table.count.is_some(), table.handle.is_some(), table.uuid.is_some()];
        if needed.contains(&false) {
            let why = "it lacks a function that every NVML has";
            return Err(Error::unsupported(SONAME, why));
        }
        let init = table.init;
        let mut opened = Self { table, _library: library };
        // SAFETY: the signature is NVML's; it takes nothing.
        let result = init.map_or(code::FUNCTION_NOT_FOUND, |init| unsafe { init() });
        if let Err(error) = opened.check("nvmlInit_v2", result) {
            // What was not initialised is not shut down.
            opened.table.shutdown = None;
            return Err(error);
        }
        Ok(Some(opened))
    }

    /// The driver's version; `None` if it does not tell.
    #[must_use]
    pub fn driver_version(&self) -> Option<String> {
        let call = self.table.driver_version?;
        // SAFETY: the pointer and length are those of the buffer, which lives through the call.
        text(|buffer, length| unsafe { call(buffer, length) }).ok()
    }

    /// The newest CUDA version that the driver can run, as 1000 * major + 10 * minor; `None` if it does not tell.
    #[must_use]
    pub fn cuda_version(&self) -> Option<u32> {
        let call = self.table.cuda_version?;
        let mut version: c_int = 0;
        // SAFETY: the function writes one int, and `version` lives until it returns.
        let result = unsafe { call(&raw mut version) };
        (result == code::SUCCESS).then_some(())?;
        u32::try_from(version).ok()
    }

    /// How many devices there are, those included that this process may not use.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn count(&self) -> Result<u32> {
        let mut count: c_uint = 0;
        // SAFETY: the function writes one number, and `count` lives until it returns.
        let result =
            self.table.count.map_or(code::FUNCTION_NOT_FOUND, |call| unsafe { call(&raw mut count) });
        self.check("nvmlDeviceGetCount_v2", result)?;
        Ok(count.min(DEVICE_LIMIT))
    }

    /// The device with this index; `None` if this process may not use it.
    ///
    /// # Errors
    /// `Vendor` for a device that is there and does not work.
    pub fn device(&self, index: u32) -> Result<Option<Device<'_>>> {
        let mut handle = std::ptr::null_mut();
        let result = self
            .table
            .handle
            // SAFETY: the function writes one handle, and `handle` lives until it returns.
            .map_or(code::FUNCTION_NOT_FOUND, |call| unsafe { call(index, &raw mut handle) });
        if matches!(result, code::NO_PERMISSION | code::NOT_FOUND | code::INVALID_ARGUMENT) {
            return Ok(None);
        }
        self.check("nvmlDeviceGetHandleByIndex_v2", result)?;
        Ok(Some(Device { library: self, handle }))
    }

    fn check(&self, call: &str, result: c_int) -> Result<()> {
        if result == code::SUCCESS {
            return Ok(());
        }
        let text = self.table.error_string.map_or(std::ptr::null(), |function| {
            // SAFETY: the function takes any number, and answers with a text that lives as long as the library.
            unsafe { function(result) }
        });
        let text = if text.is_null() {
            "the library has no text for it".to_owned()
        } else {
            // SAFETY: the pointer is not null, and NVML ends its texts with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Vendor {
            library: SONAME.to_owned(),
            call: call.to_owned(),
            code: i64::from(result),
            text,
        })
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        if let Some(shutdown) = self.table.shutdown {
            // SAFETY: the library was initialised by `open`, and no handle of it outlives this value, as they
            // borrow it. A failure leaves nothing to do.
            let _ = unsafe { shutdown() };
        }
    }
}

impl Device<'_> {
    /// Its identity: `GPU-` or `MIG-` and a UUID.
    ///
    /// # Errors
    /// `Vendor`, such as for a GPU that fell off its bus.
    pub fn uuid(&self) -> Result<String> {
        self.text("nvmlDeviceGetUUID", self.table().uuid)
    }

    /// Its name.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn name(&self) -> Result<String> {
        self.text("nvmlDeviceGetName", self.table().name)
    }

    /// Its PCI address, as NVML writes it.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn pci_address(&self) -> Result<String> {
        let mut found = PciInfo::empty();
        // SAFETY: the signature is that of version 3, whose structure `PciInfo` is; `found` lives until it returns.
        let result = self.table().pci.map(|call| unsafe { call(self.handle, &raw mut found) });
        self.ask("nvmlDeviceGetPciInfo_v3", result)?;
        Ok(found.address())
    }

    /// All its memory in bytes.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn memory_bytes(&self) -> Result<u64> {
        let mut found = Memory::default();
        // SAFETY: the function writes one structure, and `found` lives until it returns.
        let result = self.table().memory.map(|call| unsafe { call(self.handle, &raw mut found) });
        // A GPU whose memory is the host's has none of its own to tell of.
        if result == Some(code::NOT_SUPPORTED) {
            return Ok(0);
        }
        self.ask("nvmlDeviceGetMemoryInfo", result)?;
        Ok(found.total)
    }

    /// Major and minor compute capability; `None` if the driver does not tell.
    #[must_use]
    pub fn compute_capability(&self) -> Option<Numbers> {
        let call = self.table().capability?;
        let (mut major, mut minor): (c_int, c_int) = (0, 0);
        // SAFETY: the function writes two ints, which live until it returns.
        let result = unsafe { call(self.handle, &raw mut major, &raw mut minor) };
        (result == code::SUCCESS).then_some(())?;
        Some((major.try_into().ok()?, minor.try_into().ok()?))
    }

    /// Its CUDA cores; `None` if the driver does not tell.
    #[must_use]
    pub fn cores(&self) -> Option<u32> {
        self.number(self.table().cores)
    }

    /// The other ends of its active links, one for each link.
    #[must_use]
    pub fn links(&self) -> Vec<LinkEnd> {
        const ACTIVE: c_uint = 1;
        const SWITCH: c_uint = 2;
        let Some(state_of) = self.table().link_state else { return Vec::new() };
        let mut ends = Vec::new();
        for link in 0..LINK_LIMIT {
            let mut state: c_uint = 0;
            // SAFETY: the function writes one number, and `state` lives until it returns.
            let result = unsafe { state_of(self.handle, link, &raw mut state) };
            if result != code::SUCCESS || state != ACTIVE {
                continue;
            }
            let mut kind: c_uint = 0;
            // SAFETY: the function writes one number, and `kind` lives until it returns.
            let told = self.table().link_type.map(|call| unsafe { call(self.handle, link, &raw mut kind) });
            if told == Some(code::SUCCESS) && kind == SWITCH {
                ends.push(LinkEnd::Switch);
                continue;
            }
            let mut other = PciInfo::empty();
            // SAFETY: the signature is that of version 2, whose structure `PciInfo` is; `other` lives until it returns.
            let told = self.table().link_pci.map(|call| unsafe { call(self.handle, link, &raw mut other) });
            if told == Some(code::SUCCESS) {
                ends.push(LinkEnd::Device(other.address()));
            }
        }
        ends
    }

    /// Its registration with a fabric; `None` if it knows of no fabric, or the driver does not tell.
    #[must_use]
    pub fn fabric(&self) -> Option<Fabric> {
        let table = self.table();
        // The size and, in the highest byte, the version of the structure.
        let version = size_of::<FabricInfoV2>() as c_uint | 2 << 24;
        let mut found = FabricInfoV2 { version, ..FabricInfoV2::default() };
        // SAFETY: `version` tells the function which structure it may write, and `found` lives until it returns.
        let result = table.fabric_versioned.map(|call| unsafe { call(self.handle, &raw mut found) });
        let fabric = match result {
            Some(code::SUCCESS) => Fabric {
                cluster: found.cluster,
                clique: found.clique,
                state: found.state,
                status: found.status,
                health_mask: Some(found.health_mask),
            },
            // Another driver knows another version of the structure, and all know the first form.
            _ => {
                let call = table.fabric?;
                let mut found = FabricInfo::default();
                // SAFETY: the function writes one structure of the first form, and `found` lives until it returns.
                let result = unsafe { call(self.handle, &raw mut found) };
                (result == code::SUCCESS).then_some(())?;
                Fabric {
                    cluster: found.cluster,
                    clique: found.clique,
                    state: found.state,
                    status: found.status,
                    health_mask: None,
                }
            }
        };
        (fabric.state != 0).then_some(fabric)
    }

    /// Its MIG devices; `None` unless MIG is on.
    #[must_use]
    pub fn instances(&self) -> Option<Vec<Self>> {
        let table = self.table();
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        let mode = table.mig_mode?;
        // SAFETY: the function writes two numbers, which live until it returns.
        let result = unsafe { mode(self.handle, &raw mut current, &raw mut pending) };
        (result == code::SUCCESS && current == 1).then_some(())?;
        let count = self.number(table.mig_count).unwrap_or(0).min(DEVICE_LIMIT);
        let mut found = Vec::new();
        for index in 0..count {
            let mut handle = std::ptr::null_mut();
            // SAFETY: the function writes one handle, and `handle` lives until it returns.
            let result = table.mig_handle.map(|call| unsafe { call(self.handle, index, &raw mut handle) });
            if result == Some(code::SUCCESS) {
                found.push(Self { library: self.library, handle });
            }
        }
        Some(found)
    }

    /// The numbers of a MIG device's GPU instance and compute instance; zeros if the driver does not tell.
    #[must_use]
    pub fn instance_numbers(&self) -> Numbers {
        let table = self.table();
        (self.number(table.gpu_instance).unwrap_or(0), self.number(table.compute_instance).unwrap_or(0))
    }

    /// The multiprocessors of a MIG device; `None` if the driver does not tell.
    #[must_use]
    pub fn multiprocessors(&self) -> Option<u32> {
        let call = self.table().attributes?;
        let mut found = Attributes::default();
        // SAFETY: the function writes one structure, and `found` lives until it returns.
        let result = unsafe { call(self.handle, &raw mut found) };
        (result == code::SUCCESS).then_some(found.multiprocessors)
    }

    fn table(&self) -> &Table {
        &self.library.table
    }

    fn ask(&self, call: &str, result: Option<c_int>) -> Result<()> {
        self.library.check(call, result.unwrap_or(code::FUNCTION_NOT_FOUND))
    }

    fn text(
        &self,
        name: &str,
        call: Option<unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int>,
    ) -> Result<String> {
        let call = call.ok_or(code::FUNCTION_NOT_FOUND);
        // SAFETY: the pointer and length are those of the buffer, which lives through the call.
        let answer =
            call.and_then(|call| text(|buffer, length| unsafe { call(self.handle, buffer, length) }));
        match answer {
            Ok(answer) => Ok(answer),
            Err(result) => Err(self.library.check(name, result).err().unwrap_or_else(|| {
                Error::unsupported(format!("{SONAME}: {name}"), "it succeeded without an answer")
            })),
        }
    }

    fn number(&self, call: Option<unsafe extern "C" fn(Handle, *mut c_uint) -> c_int>) -> Option<u32> {
        let mut found: c_uint = 0;
        // SAFETY: the function writes one number, and `found` lives until it returns.
        let result = unsafe { call?(self.handle, &raw mut found) };
        (result == code::SUCCESS).then_some(found)
    }
}

impl PciInfo {
    const fn empty() -> Self {
        Self {
            bus_id_legacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pci_device_id: 0,
            pci_sub_system_id: 0,
            bus_id: [0; 32],
        }
    }

    /// As the kernel names the device's folder, function 0.
    fn address(&self) -> String {
        format!("{:04x}:{:02x}:{:02x}.0", self.domain, self.bus & 0xff, self.device & 0x1f)
    }
}

/// A text that a function writes, up to its zero or the end of the buffer.
fn text(write: impl FnOnce(*mut c_char, c_uint) -> c_int) -> std::result::Result<String, c_int> {
    // The longest that NVML writes are 96 bytes.
    let mut buffer = [0_u8; 256];
    let result = write(buffer.as_mut_ptr().cast(), buffer.len() as c_uint);
    if result != code::SUCCESS {
        return Err(result);
    }
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_nvmls_sizes() {
        assert_eq!(size_of::<PciInfo>(), 68);
        assert_eq!(size_of::<FabricInfo>(), 28);
        assert_eq!(size_of::<FabricInfoV2>(), 36);
        assert_eq!(size_of::<Attributes>(), 40);
    }

    #[test]
    fn addresses_are_the_kernels() {
        let info = PciInfo { domain: 1, bus: 0x1b, device: 2, ..PciInfo::empty() };
        assert_eq!(info.address(), "0001:1b:02.0");
    }
}
