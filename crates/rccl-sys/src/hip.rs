//! The table of HIP: what an executor of streams needs of it, loaded at run time.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// The names that the dynamic linker is asked for, newest first: their number is that of ROCm.
pub const SONAMES: [&str; 4] = ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"];

/// Why HIP cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No candidate could be loaded.
    #[error("{}", crate::attempts(tried))]
    Absent {
        /// Each candidate with the dynamic linker's answer.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded, but it has no such function.
    #[error("{library} has no function {function}")]
    Foreign {
        /// The library that was loaded.
        library: String,
        /// The function that it lacks.
        function: &'static str,
    },
}

/// A stream or an event of HIP.
pub type Handle = *mut c_void;

/// Declares the table, and how it is looked up.
macro_rules! table {
    ($( #[doc = $text:literal] $field:ident = $name:literal: fn($($argument:ty),*) -> $result:ty; )+) => {
        /// A loaded HIP. It is never unloaded: its threads run until the process ends.
        ///
        /// Addresses of device memory are written as numbers, which C passes as it passes pointers.
        #[derive(Clone, Debug)]
        pub struct Hip {
            /// The name it was loaded by.
            pub name: String,
            $( #[doc = $text] pub $field: unsafe extern "C" fn($($argument),*) -> $result, )+
        }

        impl Hip {
            #[allow(unsafe_code, reason = "looks functions up by their C names")]
            fn of(library: &'static Library, name: &str) -> Result<Self, Error> {
                Ok(Self {
                    $(
                        // SAFETY: HIP's header gives this name this signature since ROCm 5; the library is never unloaded.
                        $field: *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                            .map_err(|_| Error::Foreign { library: name.to_owned(), function: $name })?,
                    )+
                    name: name.to_owned(),
                })
            }
        }
    };
}

table! {
    /// Starts it.
    init = "hipInit": fn(c_uint) -> c_int;
    /// The text of an error.
    get_error_string = "hipGetErrorString": fn(c_int) -> *const c_char;
    /// How many devices this process sees.
    get_device_count = "hipGetDeviceCount": fn(*mut c_int) -> c_int;
    /// The handle of a device.
    device_get = "hipDeviceGet": fn(*mut c_int, c_int) -> c_int;
    /// Its PCI address.
    device_get_pci_bus_id = "hipDeviceGetPCIBusId": fn(*mut c_char, c_int, c_int) -> c_int;
    /// The device of this thread.
    get_device = "hipGetDevice": fn(*mut c_int) -> c_int;
    /// Changes it.
    set_device = "hipSetDevice": fn(c_int) -> c_int;
    /// Free and all memory of it.
    mem_get_info = "hipMemGetInfo": fn(*mut usize, *mut usize) -> c_int;
    /// Takes memory.
    malloc = "hipMalloc": fn(*mut u64, usize) -> c_int;
    /// Gives it back.
    free = "hipFree": fn(u64) -> c_int;
    /// Makes a stream.
    stream_create_with_flags = "hipStreamCreateWithFlags": fn(*mut Handle, c_uint) -> c_int;
    /// Ends it.
    stream_destroy = "hipStreamDestroy": fn(Handle) -> c_int;
    /// Whether its work has ended.
    stream_query = "hipStreamQuery": fn(Handle) -> c_int;
    /// Has it wait for an event.
    stream_wait_event = "hipStreamWaitEvent": fn(Handle, Handle, c_uint) -> c_int;
    /// Makes an event.
    event_create_with_flags = "hipEventCreateWithFlags": fn(*mut Handle, c_uint) -> c_int;
    /// Ends it.
    event_destroy = "hipEventDestroy": fn(Handle) -> c_int;
    /// Puts it into a stream.
    event_record = "hipEventRecord": fn(Handle, Handle) -> c_int;
    /// Copies from the host.
    memcpy_htod_async = "hipMemcpyHtoDAsync": fn(u64, *const c_void, usize, Handle) -> c_int;
    /// Copies to the host.
    memcpy_dtoh_async = "hipMemcpyDtoHAsync": fn(*mut c_void, u64, usize, Handle) -> c_int;
    /// Copies within devices.
    memcpy_dtod_async = "hipMemcpyDtoDAsync": fn(u64, u64, usize, Handle) -> c_int;
    /// Sets bytes to a value.
    memset_d8_async = "hipMemsetD8Async": fn(u64, u8, usize, Handle) -> c_int;
    /// Loads code.
    module_load_data = "hipModuleLoadData": fn(*mut Handle, *const c_void) -> c_int;
    /// Unloads it.
    module_unload = "hipModuleUnload": fn(Handle) -> c_int;
    /// A function of it.
    module_get_function = "hipModuleGetFunction": fn(*mut Handle, Handle, *const c_char) -> c_int;
    /// Puts a function into a stream: the grid, the block, shared memory, the stream, and a pointer to each argument.
    module_launch_kernel = "hipModuleLaunchKernel": fn(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    ) -> c_int;
}

impl Hip {
    /// Loads HIP by its names. Initialisation functions of the library run; no device is started.
    ///
    /// # Errors
    /// `Absent` with each name and the reason, `Foreign` for a library that lacks a function.
    #[allow(unsafe_code, reason = "loads a library")]
    pub fn open() -> Result<Self, Error> {
        let mut tried = Vec::new();
        for name in SONAMES {
            // SAFETY: loading runs the library's initialisation functions. It is HIP by its name, and is trusted as much as
            // this program's own libraries.
            match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => return Self::of(Box::leak(Box::new(library)), name),
                Err(error) => tried.push((name.to_owned(), crate::text(&error))),
            }
        }
        Err(Error::Absent { tried })
    }
}
