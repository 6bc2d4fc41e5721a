//! GPUs: one adapter over the drivers of two vendors, whose tables are loaded at run time.
//!
//! A call is made with the GPU's context current on the calling thread, and leaves that thread as it was: other libraries of
//! this process keep their own. Nothing here waits for a GPU; whoever waits asks [`Stream::is_idle`] under a deadline.

#[cfg(feature = "nccl")]
mod cuda;
#[cfg(feature = "rccl")]
mod hip;
mod memory;
mod module;
mod multicast;
mod region;
mod span;
mod stream;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

#[cfg(not(feature = "nccl"))]
use super::absent::cuda;
#[cfg(not(feature = "rccl"))]
use super::absent::hip;
use super::process;
use crate::error::{Error, Result};
use crate::vocabulary::GpuVendor;

pub use memory::Memory;
pub(in crate::sys) use module::{Argument, Module};
use multicast::MulticastTable;
pub use multicast::{Multicast, Shared};
pub use region::{Part, Region};
pub use span::GpuSpan;
pub use stream::{ForeignStream, Stream};

/// Numbers that both vendors' drivers share.
mod code {
    use std::ffi::c_int;
    pub(super) const SUCCESS: c_int = 0;
    pub(super) const OUT_OF_MEMORY: c_int = 2;
    pub(super) const DEVICE_UNAVAILABLE: c_int = 46;
    pub(super) const NO_DEVICE: c_int = 100;
    pub(super) const MEMORY_FAULT: c_int = 214;
    pub(super) const NOT_READY: c_int = 600;
    pub(super) const ILLEGAL_ADDRESS: c_int = 700;
    pub(super) const LAUNCH_FAILED: c_int = 719;
    pub(super) const SYSTEM_NOT_READY: c_int = 802;
    /// What CUDA's driver is asked about an address, and its answer for memory of a GPU.
    pub(super) const MEMORY_KIND: c_int = 2;
    pub(super) const IS_MANAGED: c_int = 8;
    pub(super) const MEMORY_DEVICE: c_int = 9;
    pub(super) const GPU_MEMORY: u32 = 2;
    pub(super) const SYSTEM_DRIVER_MISMATCH: c_int = 803;
    pub(super) const INVALID_PTX: c_int = 218;
    pub(super) const UNSUPPORTED_PTX: c_int = 222;
    pub(super) const NO_BINARY: c_int = 209;
    /// What CUDA's driver is asked about a GPU: what code it runs.
    pub(super) const CAPABILITY: [c_int; 2] = [75, 76];
    /// And whether it can be part of multicast objects.
    pub(super) const MULTICAST: c_int = 132;
    pub(super) const COMPATIBILITY: c_int = 804;
}

/// A driver's handle: its own address, never followed here.
type Handle = *mut c_void;

/// Puts a function on a stream: the grid, the block, shared memory, the stream, and a pointer to each argument.
type Launch = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// The functions of a loaded driver, in the shape that both vendors' have.
pub(super) struct Table {
    /// The name that the library was loaded by.
    pub(super) library: String,
    /// The functions' names as the vendor writes them, for messages.
    pub(super) names: Names,
    pub(super) init: unsafe extern "C" fn(c_uint) -> c_int,
    pub(super) count: unsafe extern "C" fn(*mut c_int) -> c_int,
    pub(super) device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    pub(super) memory_info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
    pub(super) allocate: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    pub(super) free: unsafe extern "C" fn(u64) -> c_int,
    pub(super) stream_create: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    pub(super) stream_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) stream_query: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) stream_wait: unsafe extern "C" fn(Handle, Handle, c_uint) -> c_int,
    pub(super) event_create: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    pub(super) event_destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) event_record: unsafe extern "C" fn(Handle, Handle) -> c_int,
    pub(super) copy_in: unsafe extern "C" fn(u64, *const c_void, usize, Handle) -> c_int,
    pub(super) copy_out: unsafe extern "C" fn(*mut c_void, u64, usize, Handle) -> c_int,
    pub(super) copy: unsafe extern "C" fn(u64, u64, usize, Handle) -> c_int,
    pub(super) fill: unsafe extern "C" fn(u64, u8, usize, Handle) -> c_int,
    /// What the driver knows of an address, if it can be asked.
    pub(super) pointer: Option<unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int>,
    /// Multicast objects, if the driver has them.
    pub(super) multicast: Option<MulticastTable>,
    /// What the driver knows of a GPU by a number, if it can be asked.
    pub(super) attribute: Option<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>,
    pub(super) module_load: unsafe extern "C" fn(*mut Handle, *const c_void) -> c_int,
    pub(super) module_unload: unsafe extern "C" fn(Handle) -> c_int,
    pub(super) module_function: unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> c_int,
    pub(super) launch: Launch,
    pub(super) identity: Identity,
    pub(super) currency: Currency,
    pub(super) text: Text,
}

/// What a vendor calls the functions.
pub(super) struct Names {
    pub(super) runtime: &'static str,
    pub(super) init: &'static str,
    pub(super) count: &'static str,
    pub(super) device: &'static str,
    pub(super) identity: &'static str,
    pub(super) memory_info: &'static str,
    pub(super) allocate: &'static str,
    pub(super) stream_create: &'static str,
    pub(super) stream_query: &'static str,
    pub(super) stream_wait: &'static str,
    pub(super) event_create: &'static str,
    pub(super) event_record: &'static str,
    pub(super) copy_in: &'static str,
    pub(super) copy_out: &'static str,
    pub(super) copy: &'static str,
    pub(super) fill: &'static str,
    pub(super) module_load: &'static str,
    pub(super) module_function: &'static str,
    pub(super) launch: &'static str,
    pub(super) enter: &'static str,
}

/// How a driver says which GPU a number is.
#[allow(dead_code, reason = "a build has the vendors that it was built for")]
pub(super) enum Identity {
    /// By the sixteen bytes of its UUID.
    Uuid(unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int),
    /// By its PCI address.
    Address(unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int),
}

/// How a thread says which GPU its calls are for.
#[allow(dead_code, reason = "a build has the vendors that it was built for")]
pub(super) enum Currency {
    /// By a context of the process, put on a stack and taken off it.
    Context {
        retain: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
        release: unsafe extern "C" fn(c_int) -> c_int,
        push: unsafe extern "C" fn(Handle) -> c_int,
        pop: unsafe extern "C" fn(*mut Handle) -> c_int,
    },
    /// By its number.
    Number { get: unsafe extern "C" fn(*mut c_int) -> c_int, set: unsafe extern "C" fn(c_int) -> c_int },
}

/// How a driver puts an error into words.
#[allow(dead_code, reason = "a build has the vendors that it was built for")]
pub(super) enum Text {
    /// Through a pointer that it writes.
    Written(unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int),
    /// As its result.
    Returned(unsafe extern "C" fn(c_int) -> *const c_char),
}

impl Table {
    /// The driver's words for a number.
    fn text(&self, code: c_int) -> String {
        let mut found: *const c_char = std::ptr::null();
        match self.text {
            Text::Written(function) => {
                // SAFETY: the function takes any number, and writes one pointer, which lives until it returns.
                let result = unsafe { function(code, &raw mut found) };
                if result != code::SUCCESS {
                    found = std::ptr::null();
                }
            }
            // SAFETY: the function takes any number.
            Text::Returned(function) => found = unsafe { function(code) },
        }
        if found.is_null() {
            return "the driver has no text for it".to_owned();
        }
        // SAFETY: the pointer is not null; the driver ends its texts with a zero and keeps them for as long as it is loaded,
        // which is until the process ends.
        unsafe { CStr::from_ptr(found) }.to_string_lossy().into_owned()
    }

    /// Fails with what a call returned, on the library as a whole.
    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == code::SUCCESS {
            return Ok(());
        }
        let text = format!("{}; {}", remedy(code), self.text(code));
        Err(Error::Vendor { library: self.library.clone(), call: call.to_owned(), code: code.into(), text })
    }
}

/// What a person can do about a number.
fn remedy(code: c_int) -> &'static str {
    match code {
        code::NO_DEVICE => {
            "the driver sees no GPU: look at the visibility variables, and at whether the container has the GPUs' devices"
        }
        code::DEVICE_UNAVAILABLE => {
            "another process holds it for itself: end that one, or change the GPU's compute mode"
        }
        code::MEMORY_FAULT => "its memory has a fault: take it out of service",
        code::ILLEGAL_ADDRESS | code::LAUNCH_FAILED => {
            "work on it has failed, and nothing more runs on it in this process: start another process"
        }
        code::INVALID_PTX | code::UNSUPPORTED_PTX | code::NO_BINARY => {
            "the driver is older than the code, or does not know it: install a newer driver, or the compiler NVRTC (the package \
             nvidia-cuda-nvrtc-cu12) of the driver's CUDA"
        }
        code::SYSTEM_NOT_READY => "the fabric manager does not run yet: start it, or wait for it",
        code::SYSTEM_DRIVER_MISMATCH | code::COMPATIBILITY => {
            "the kernel's module and the library are of different versions: install one driver, and restart the machine"
        }
        _ => "the vendor's manual knows this number",
    }
}

/// A vendor's driver, loaded and started; it stays so until the process ends.
pub struct Driver {
    vendor: GpuVendor,
    table: Table,
    /// The process that started it: a forked child must not call it.
    pid: u32,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Driver({})", self.table.library)
    }
}

impl Driver {
    /// Loads and starts a vendor's driver, or gives the one that runs.
    ///
    /// It may take seconds, and nothing limits that: call it on a thread that nobody must wait for.
    ///
    /// # Errors
    /// `Unsupported` for a vendor that this build lacks, a machine without the driver, and a driver that is too old or does not
    /// start; `Closed` in a forked child of a process that had started it.
    pub fn open(vendor: GpuVendor) -> Result<&'static Self> {
        static CUDA: OnceLock<Driver> = OnceLock::new();
        static HIP: OnceLock<Driver> = OnceLock::new();
        static OPENING: Mutex<()> = Mutex::new(());
        let (kept, load): (_, fn() -> Result<Table>) = match vendor {
            GpuVendor::Nvidia => (&CUDA, cuda::load),
            GpuVendor::Amd => (&HIP, hip::load),
            GpuVendor::Apple => {
                let why =
                    "no library of Apple's moves memory between GPUs; Executor::for_ram works on host memory";
                return Err(Error::unsupported("an executor of Apple's GPUs", why));
            }
        };
        // Before the lock, which in a forked child may be held by a thread that is not there.
        if let Some(driver) = kept.get() {
            return driver.of_this_process();
        }
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.get().is_none() {
            let table = load()?;
            // SAFETY: the signature is the vendor's; 0 is the only flag there is.
            let result = unsafe { (table.init)(0) };
            if result != code::SUCCESS {
                let (init, text) = (table.names.init, table.text(result));
                let why = format!("{} ({init} returned {result}: {text})", remedy(result));
                return Err(Error::unsupported(format!("{} on this machine", table.names.runtime), why));
            }
            let _ = kept.set(Self { vendor, table, pid: process::pid() });
        }
        kept.get().ok_or_else(|| Error::unsupported("a GPU driver", "it was not kept"))?.of_this_process()
    }

    fn of_this_process(&'static self) -> Result<&'static Self> {
        if process::pid() == self.pid {
            return Ok(self);
        }
        let why = format!(
            "it was started before a fork, in process {}; start processes that use GPUs by spawn or forkserver",
            self.pid
        );
        Err(Error::Closed { what: format!("{} of this process", self.table.names.runtime), why })
    }

    /// How many GPUs it shows to this process.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn count(&self) -> Result<usize> {
        let mut count: c_int = 0;
        // SAFETY: the function writes one int, and `count` lives until it returns.
        let result = unsafe { (self.table.count)(&raw mut count) };
        self.table.check(self.table.names.count, result)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Which GPU it shows under a number: the hexadecimal digits of its UUID, or its PCI address, in lower case.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn identity(&self, number: usize) -> Result<String> {
        let device = self.device(number)?;
        match self.table.identity {
            Identity::Uuid(function) => {
                let mut bytes = [0_u8; 16];
                // SAFETY: the function writes sixteen bytes, which live until it returns.
                let result = unsafe { function(&raw mut bytes, device) };
                self.table.check(self.table.names.identity, result)?;
                Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            Identity::Address(function) => {
                let mut text = [0 as c_char; 64];
                // SAFETY: pointer and length are those of `text`, which lives until the function returns.
                let result = unsafe { function(text.as_mut_ptr(), text.len() as c_int, device) };
                self.table.check(self.table.names.identity, result)?;
                let bytes = text.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8);
                Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).to_lowercase())
            }
        }
    }

    /// The number of the GPU whose memory is at an address; `None` for the host's memory, memory that the host can read too,
    /// and a driver that does not tell.
    #[must_use]
    pub fn number_at(&self, address: u64) -> Option<usize> {
        let ask = |attribute: c_int| {
            let mut answer: c_uint = 0;
            // SAFETY: the function writes one unsigned number for each of these attributes, and `answer` lives until it returns;
            // any address may be asked about.
            let result = unsafe { (self.table.pointer?)((&raw mut answer).cast(), attribute, address) };
            (result == code::SUCCESS).then_some(answer)
        };
        let is_on_a_gpu = ask(code::MEMORY_KIND)? == code::GPU_MEMORY && ask(code::IS_MANAGED) != Some(1);
        if is_on_a_gpu {
            ask(code::MEMORY_DEVICE).and_then(|number| usize::try_from(number).ok())
        } else {
            None
        }
    }

    /// The driver's own number of a device.
    fn device(&self, number: usize) -> Result<c_int> {
        let mut device: c_int = 0;
        let ordinal = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the function writes one int, and `device` lives until it returns.
        let result = unsafe { (self.table.device)(&raw mut device, ordinal) };
        self.table.check(self.table.names.device, result)?;
        Ok(device)
    }
}

/// A GPU that this process has opened; dropping the last handle lets it go.
pub struct Device {
    driver: &'static Driver,
    /// Its position among those that the driver shows, which other libraries call it by.
    number: usize,
    /// The driver's own number.
    device: c_int,
    /// Null where the driver has no contexts.
    context: Handle,
    /// Its name for messages.
    name: String,
}

// SAFETY: drivers allow handles to be used on any thread that has made the context current, which `enter` does.
unsafe impl Send for Device {}
// SAFETY: as above; the drivers lock their own state.
unsafe impl Sync for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Device({})", self.name)
    }
}

impl Device {
    /// Opens the GPU that the driver shows under a number; `name` is what messages call it.
    ///
    /// # Errors
    /// `Vendor` and `Exhausted`, naming it.
    pub fn open(driver: &'static Driver, number: usize, name: &str) -> Result<Arc<Self>> {
        let device = driver.device(number)?;
        let mut opened =
            Self { driver, number, device, context: std::ptr::null_mut(), name: name.to_owned() };
        match driver.table.currency {
            Currency::Context { retain, .. } => {
                let mut context = std::ptr::null_mut();
                // SAFETY: the function writes one handle, and `context` lives until it returns.
                let result = unsafe { retain(&raw mut context, device) };
                opened.check("cuDevicePrimaryCtxRetain", result, 0)?;
                opened.context = context;
            }
            // The first call that sets it makes what the driver needs.
            Currency::Number { .. } => drop(opened.enter()?),
        }
        Ok(Arc::new(opened))
    }

    /// Its position among those that the driver shows to this process: what CUDA, HIP and DLPack number it by.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// What messages call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who made it.
    #[must_use]
    pub const fn vendor(&self) -> GpuVendor {
        self.driver.vendor
    }

    /// The driver that shows it.
    #[must_use]
    pub const fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The compute capability of an NVIDIA GPU; `None` where the driver does not tell one.
    #[must_use]
    pub fn capability(&self) -> Option<(u32, u32)> {
        let ask = self.table().attribute?;
        let mut found = [0; 2];
        for (number, attribute) in found.iter_mut().zip(code::CAPABILITY) {
            // SAFETY: the function writes one int, which lives until it returns.
            let result = unsafe { ask(number, attribute, self.device) };
            if result != code::SUCCESS {
                return None;
            }
        }
        Some((u32::try_from(found[0]).ok()?, u32::try_from(found[1]).ok()?))
    }

    /// Its free and all its memory in bytes.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn memory_bytes(&self) -> Result<(usize, usize)> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two sizes, which live until it returns; the context is current.
        let result = unsafe { (self.table().memory_info)(&raw mut free, &raw mut total) };
        self.check(self.table().names.memory_info, result, 0)?;
        Ok((free, total))
    }

    fn table(&self) -> &'static Table {
        &self.driver.table
    }

    /// Whether this process may call the driver: not a child that was forked afterwards.
    fn is_callable(&self) -> bool {
        process::pid() == self.driver.pid
    }

    /// Makes it the calling thread's GPU until the answer is dropped.
    pub(in crate::sys) fn enter(&self) -> Result<Current<'_>> {
        self.driver.of_this_process()?;
        let name = self.table().names.enter;
        match self.table().currency {
            Currency::Context { push, .. } => {
                // SAFETY: `self` holds the context.
                self.check(name, unsafe { push(self.context) }, 0)?;
                Ok(Current { device: self, before: None, thread: PhantomData })
            }
            Currency::Number { get, set } => {
                let mut before: c_int = 0;
                // SAFETY: the function writes one int, and `before` lives until it returns.
                self.check(name, unsafe { get(&raw mut before) }, 0)?;
                // SAFETY: any number may be given.
                self.check(name, unsafe { set(self.device) }, 0)?;
                Ok(Current { device: self, before: Some(before), thread: PhantomData })
            }
        }
    }

    /// Fails with what a call on it returned; `wanted_bytes` is what it asked for.
    fn check(&self, call: &str, code: c_int, wanted_bytes: usize) -> Result<()> {
        match code {
            code::SUCCESS => Ok(()),
            code::OUT_OF_MEMORY => {
                // Nothing is asked while opening: there is no context yet.
                let free = if wanted_bytes == 0 { Ok((0, 0)) } else { self.memory_bytes() };
                Err(Error::Exhausted {
                    place: self.name.clone(),
                    wanted_bytes: wanted_bytes as u64,
                    free_bytes: free.map_or(0, |(free, _)| free as u64),
                    remedy: format!(
                        "ask for less, or end what else uses it ({call} returned {code}: {})",
                        self.table().text(code)
                    ),
                })
            }
            _ => {
                let text = format!("{}; {}", remedy(code), self.table().text(code));
                let library = format!("{} on {}", self.table().library, self.name);
                Err(Error::Vendor { library, call: call.to_owned(), code: code.into(), text })
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Currency::Context { release, .. } = self.table().currency
            && !self.context.is_null()
            && self.is_callable()
        {
            // SAFETY: the hold that `open` took is given back once; what was made on it held this value, and has gone. A failure
            // leaves nothing to do.
            let result = unsafe { release(self.device) };
            if result != code::SUCCESS {
                tracing::debug!(result, device = self.name, "a GPU was not released");
            }
        }
    }
}

/// A GPU that is current on this thread; what was before is so again when this is dropped.
pub(in crate::sys) struct Current<'a> {
    device: &'a Device,
    before: Option<c_int>,
    /// It is the thread's, and stays on it.
    thread: PhantomData<*const ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let result = match (&self.device.table().currency, self.before) {
            (Currency::Context { pop, .. }, _) => {
                let mut popped = std::ptr::null_mut();
                // SAFETY: the function writes one handle, and `popped` lives until it returns; what `enter` pushed is on top.
                unsafe { pop(&raw mut popped) }
            }
            // SAFETY: the number is one that the driver gave.
            (Currency::Number { set, .. }, Some(before)) => unsafe { set(before) },
            (Currency::Number { .. }, None) => code::SUCCESS,
        };
        if result != code::SUCCESS {
            tracing::debug!(result, "a thread's GPU could not be put back");
        }
    }
}
