//! Code of a GPU: a module that its driver has loaded, and functions of it that are put on a stream.

use std::ffi::{CStr, c_char, c_uint, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::{Handle, Stream, code};
use crate::error::{Error, Result};
use crate::sys::Deadline;

/// How long dropping a module waits for work on its stream.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// Code that a driver has loaded for one GPU, run on one stream.
pub(in crate::sys) struct Module {
    stream: Arc<Stream>,
    handle: Handle,
}

// SAFETY: drivers allow a module to be used on any thread that has made its context current, which `enter` does.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl std::fmt::Debug for Module {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Module({})", self.stream.device().name())
    }
}

/// One argument of a function, by its value.
#[derive(Clone, Copy, Debug)]
pub(in crate::sys) enum Argument {
    Address(u64),
    Count(u64),
    Real(f64),
    Flag(bool),
}

impl Module {
    /// Loads code that ends with a zero: of this kind of GPU, or PTX, which the driver translates.
    ///
    /// # Errors
    /// `Vendor` naming the GPU.
    pub(in crate::sys) fn load(stream: &Arc<Stream>, image: &[u8]) -> Result<Self> {
        let device = stream.device();
        if image.last() != Some(&0) {
            let value = format!("{} bytes", image.len());
            return Err(Error::invalid("image", value, "module", "must end with a zero"));
        }
        let _current = device.enter()?;
        let mut handle = std::ptr::null_mut();
        let load = device.table().module_load;
        // SAFETY: the function writes one handle and reads the image, which tells its own end; the context is current.
        let result = unsafe { load(&raw mut handle, image.as_ptr().cast()) };
        device.check(device.table().names.module_load, result, 0)?;
        Ok(Self { stream: Arc::clone(stream), handle })
    }

    /// The stream that its functions are put on.
    pub(in crate::sys) fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Puts a function on the stream: so many rows of so many blocks of so many threads.
    ///
    /// # Errors
    /// `Vendor` naming the GPU.
    ///
    /// # Safety
    /// The function has these arguments in this order; all memory that it uses lives until the stream is idle, and is of the
    /// stream's GPU.
    pub(in crate::sys) unsafe fn launch(
        &self,
        name: &CStr,
        (rows, blocks, threads): (u32, u32, u32),
        arguments: &[Argument],
    ) -> Result<()> {
        let (device, names) = (self.stream.device(), &self.stream.device().table().names);
        let _current = device.enter()?;
        let mut function: Handle = std::ptr::null_mut();
        let find = device.table().module_function;
        let text: *const c_char = name.as_ptr();
        // SAFETY: the function writes one handle and reads a string; the module is live, its context is current.
        let result = unsafe { find(&raw mut function, self.handle, text) };
        device.check(names.module_function, result, 0)?;
        // Each value lies where its pointer says until the call returns, which copies it.
        let mut values = arguments.iter().map(|argument| argument.bits()).collect::<Vec<u64>>();
        let mut pointers =
            values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()).collect::<Vec<_>>();
        let (one, none): (c_uint, c_uint) = (1, 0);
        // SAFETY: the function is of this module; the arguments are its own by the caller's promise, which also keeps the memory.
        let result = unsafe {
            (device.table().launch)(
                function,
                blocks,
                rows,
                one,
                threads,
                one,
                one,
                none,
                self.stream.handle(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        device.check(names.launch, result, 0)
    }
}

impl Argument {
    /// The value in the first bytes of a word, as the driver copies as many as the argument has.
    fn bits(self) -> u64 {
        match self {
            Self::Address(value) | Self::Count(value) => value,
            Self::Real(value) => value.to_bits(),
            // Both processors that drivers run on begin a word with its lowest byte.
            Self::Flag(value) => u64::from(value),
        }
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let device = self.stream.device();
        if !device.is_callable() {
            return;
        }
        if let Err(error @ (Error::TimedOut { .. } | Error::Closed { .. })) =
            self.stream.wait(&Deadline::after(DROP_LIMIT))
        {
            // Work that goes on runs it.
            tracing::debug!(%error, "code of a GPU is left to the work on it");
            return;
        }
        let Ok(_current) = device.enter() else { return };
        // SAFETY: the module was made by `load` and is unloaded once; nothing that runs uses it, as the stream is idle.
        let result = unsafe { (device.table().module_unload)(self.handle) };
        if result != code::SUCCESS {
            tracing::debug!(result, device = device.name(), "code of a GPU was not unloaded");
        }
    }
}
