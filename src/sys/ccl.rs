//! NCCL and RCCL: one table of functions for both, in any version since 2.18.
//!
//! RCCL has the names and signatures of the NCCL that it follows. Loading starts no GPU runtime; loading RCCL loads HIP.

mod communicator;
mod config;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use super::library::{self, Found, Loaded, Names, Places};
use crate::error::{Error, Result};
use crate::vocabulary::GpuVendor;

pub use communicator::{
    Act, Communicator, Operation, Registration, Seat, Step, number_of_dtype, number_of_op,
};
pub use config::{Config, FIELDS, Field, NEWEST};

/// The first version with all the functions that are needed.
pub const OLDEST: Version = Version(21801);

/// What every function of the table returns for success.
const SUCCESS: c_int = 0;

const NCCL: Names =
    Names { file: "libnccl.so", linker: &["libnccl.so.2"], wheels: &["nvidia/nccl/lib/libnccl.so.2"] };

const RCCL: Names =
    Names { file: "librccl.so", linker: &["librccl.so.1", "/opt/rocm/lib/librccl.so.1"], wheels: &[] };

/// Functions that RCCL has and NCCL has not.
const RCCL_ALONE: [&str; 2] = ["ncclAllToAllv", "mscclLoadAlgo"];

/// A version as the library says it: X * 10000 + Y * 100 + Z since 2.9, X * 1000 + Y * 100 + Z before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.0 < 10_000 { 1_000 } else { 10_000 };
        write!(formatter, "{}.{}.{}", self.0 / unit, self.0 % unit / 100, self.0 % 100)
    }
}

/// What makes a communicator: 128 bytes that hold an address and a secret.
///
/// Whoever holds it can connect, so that it goes over connections that are proved and into no file.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UniqueId(secret)")
    }
}

/// A communicator of the library's, never followed here.
pub type Comm = *mut c_void;

/// A stream of the vendor's, never followed here.
pub type Stream = *mut c_void;

/// Declares the table: functions that every version has, and those that came later, with the version that brought them.
macro_rules! table {
    (
        required { $($required:ident = $required_name:literal : fn($($required_type:ty),*) -> $required_result:ty;)+ }
        optional { $($optional:ident = $optional_name:literal since $since:literal : fn($($optional_type:ty),*);)+ }
    ) => {
        /// The functions of a loaded library, under the names of its header without their beginning.
        ///
        /// Each has the contract of the vendor's manual. What a version lacks is `None`.
        #[derive(Clone, Copy, Debug)]
        #[allow(missing_docs, reason = "the vendor's manual has them")]
        pub struct Table {
            $(pub $required: unsafe extern "C" fn($($required_type),*) -> $required_result,)+
            $(pub $optional: Option<unsafe extern "C" fn($($optional_type),*) -> c_int>,)+
        }

        /// Every function of the table, and the first version that has it: [`OLDEST`] for those that are needed.
        pub const FUNCTIONS: &[(&str, Version)] =
            &[$(($required_name, OLDEST),)+ $(($optional_name, Version($since)),)+];

        impl Table {
            /// Looks all functions up; `Err` names one that is needed and missing.
            fn of(loaded: &Loaded, version: Version) -> std::result::Result<Self, String> {
                // SAFETY: every name has this signature in all versions from the one that brought it, by the vendors' headers;
                // below that version it is not asked for. Whoever keeps the table keeps the library.
                unsafe {
                    Ok(Self {
                        $($required: *loaded.library.get(concat!($required_name, "\0").as_bytes()).map_err(|error| {
                            format!("has no function {} ({})", $required_name, library::text(&error))
                        })?,)+
                        $($optional: (version >= Version($since))
                            .then(|| loaded.library.get(concat!($optional_name, "\0").as_bytes()).ok().map(|found| *found))
                            .flatten(),)+
                    })
                }
            }
        }
    };
}

table! {
    required {
        get_version = "ncclGetVersion": fn(*mut c_int) -> c_int;
        get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> c_int;
        get_error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
        get_last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
        comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> c_int;
        comm_split = "ncclCommSplit": fn(Comm, c_int, c_int, *mut Comm, *mut Config) -> c_int;
        comm_finalize = "ncclCommFinalize": fn(Comm) -> c_int;
        comm_destroy = "ncclCommDestroy": fn(Comm) -> c_int;
        comm_abort = "ncclCommAbort": fn(Comm) -> c_int;
        comm_get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut c_int) -> c_int;
        group_start = "ncclGroupStart": fn() -> c_int;
        group_end = "ncclGroupEnd": fn() -> c_int;
        all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Stream) -> c_int;
        broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream) -> c_int;
        send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
        receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, Stream) -> c_int;
    }
    optional {
        mem_alloc = "ncclMemAlloc" since 21901: fn(*mut *mut c_void, usize);
        mem_free = "ncclMemFree" since 21901: fn(*mut c_void);
        comm_register = "ncclCommRegister" since 21901: fn(Comm, *mut c_void, usize, *mut *mut c_void);
        comm_deregister = "ncclCommDeregister" since 21901: fn(Comm, *mut c_void);
        comm_init_rank_scalable = "ncclCommInitRankScalable" since 22304:
            fn(*mut Comm, c_int, c_int, c_int, *mut UniqueId, *mut Config);
        comm_window_register = "ncclCommWindowRegister" since 22703:
            fn(Comm, *mut c_void, usize, *mut *mut c_void, c_int);
        comm_window_deregister = "ncclCommWindowDeregister" since 22703: fn(Comm, *mut c_void);
        comm_shrink = "ncclCommShrink" since 22703: fn(Comm, *mut c_int, c_int, *mut Comm, *mut Config, c_int);
        all_to_all = "ncclAlltoAll" since 22803: fn(*const c_void, *mut c_void, usize, c_int, Comm, Stream);
        gather = "ncclGather" since 22803: fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
        scatter = "ncclScatter" since 22803: fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
        comm_revoke = "ncclCommRevoke" since 22807: fn(Comm, c_int);
    }
}

/// What a vendor calls its library, in messages.
#[must_use]
pub const fn name(vendor: GpuVendor) -> &'static str {
    match vendor {
        GpuVendor::Amd => "RCCL",
        _ => "NCCL",
    }
}

/// A loaded NCCL or RCCL. It stays in the process: threads that it starts, as for each id, run on when a call has returned.
#[derive(Debug)]
pub struct Library {
    vendor: GpuVendor,
    version: Version,
    path: PathBuf,
    found: Found,
    table: Table,
    /// Never unloaded: the functions above are its, and so is what its threads run.
    loaded: ManuallyDrop<Loaded>,
}

/// Why no library was loaded.
#[derive(Debug)]
pub struct Refusal {
    /// Whether there is none at all: no candidate was a file that the dynamic linker could read.
    pub is_absent: bool,
    /// The candidates, each with its reason.
    pub reason: String,
    /// What to do.
    pub remedy: String,
}

impl Refusal {
    fn absent(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { is_absent: true, reason: reason.into(), remedy: remedy.into() }
    }

    /// The error for a caller who needs the library for this.
    #[must_use]
    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::unsupported(what, format!("{}; {}", self.reason, self.remedy))
    }
}

impl Library {
    /// Loads a vendor's library: the first candidate that is of this vendor, new enough and whole.
    ///
    /// # Errors
    /// Every candidate with its reason, and the remedy; also for a vendor that this build leaves out.
    pub fn open(vendor: GpuVendor, places: &Places) -> std::result::Result<Self, Refusal> {
        let (names, feature, compiled) = match vendor {
            GpuVendor::Nvidia => (&NCCL, "nccl", cfg!(feature = "nccl")),
            GpuVendor::Amd => (&RCCL, "rccl", cfg!(feature = "rccl")),
            GpuVendor::Apple => {
                return Err(Refusal::absent("no library of Apple's has collectives", "use host memory"));
            }
        };
        if !compiled {
            let reason = format!("this build has no {}", name(vendor));
            return Err(Refusal::absent(reason, format!("build with the feature `{feature}`")));
        }
        library::open(names, places, |loaded| {
            let path = loaded.path.clone();
            Self::accept(vendor, loaded).map_err(|reason| (path, reason))
        })
        .map_err(|refused| refusal(vendor, places, &refused))
    }

    /// Takes a library that is of this vendor, new enough and whole.
    fn accept(vendor: GpuVendor, loaded: Loaded) -> std::result::Result<Self, String> {
        let version = version_of(&loaded)?;
        let is_rccl = RCCL_ALONE.iter().any(|function| library::has(&loaded.library, function));
        let is_wanted = is_rccl == (vendor == GpuVendor::Amd);
        if !is_wanted {
            let other = name(if is_rccl { GpuVendor::Amd } else { GpuVendor::Nvidia });
            return Err(format!("is {other} {version}, and {} is wanted", name(vendor)));
        }
        if version < OLDEST {
            return Err(format!("is version {version}, and {OLDEST} is the oldest that can be used"));
        }
        let table =
            Table::of(&loaded, version).map_err(|reason| format!("is version {version} and {reason}"))?;
        Ok(Self {
            vendor,
            version,
            path: loaded.path.clone(),
            found: loaded.found,
            table,
            loaded: ManuallyDrop::new(loaded),
        })
    }

    /// Whose GPUs it is for.
    #[must_use]
    pub const fn vendor(&self) -> GpuVendor {
        self.vendor
    }

    /// What it says of itself.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was found.
    #[must_use]
    pub const fn found(&self) -> Found {
        self.found
    }

    /// Its functions, valid as long as it lives.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Whether its file has a function of this name, whatever the table says.
    #[must_use]
    pub fn has(&self, function: &str) -> bool {
        library::has(&self.loaded.library, function)
    }

    /// Draws the id of a new communicator. The library then listens for those that hold it.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the function writes 128 bytes, and `id` lives until it returns.
        let code = unsafe { (self.table.get_unique_id)(&raw mut id) };
        self.check("ncclGetUniqueId", code)?;
        Ok(id)
    }

    /// Fails with what a call returned, in the library's words.
    ///
    /// # Errors
    /// `Vendor`, unless the code is that of success.
    pub fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and returns a text that is never freed; null is asked for below.
        let (text, last) = unsafe {
            ((self.table.get_error_string)(code), (self.table.get_last_error)(std::ptr::null_mut()))
        };
        let words = [text, last].map(|text| {
            // SAFETY: not null; both are strings that live as long as the library. The last error's may be written by other
            // calls of this process, which keep its end.
            (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        });
        let words = words.into_iter().flatten().filter(|text| !text.trim().is_empty());
        let words = std::iter::once(remedy(code).to_owned()).chain(words).collect::<Vec<_>>();
        let library = format!("{} {} ({})", name(self.vendor), self.version, self.path.display());
        Err(Error::Vendor { library, call: call.to_owned(), code: code.into(), text: words.join("; ") })
    }
}

/// What a person can do about a number; both libraries read the variables that are named.
const fn remedy(code: c_int) -> &'static str {
    match code {
        1 => "the GPU's driver refused something, as memory that it has not: NCCL_DEBUG=WARN prints what",
        2 => {
            "the system refused something: look at `ulimit -n`, at the space of /dev/shm, and at NCCL_SOCKET_IFNAME; \
             NCCL_DEBUG=WARN prints what"
        }
        3 => {
            "a fault in the library, or memory that was overwritten: NCCL_DEBUG=WARN prints where; try another version"
        }
        4 | 5 => {
            "what was asked is not allowed, as two members on one GPU without NCCL_MULTI_RANK_GPU_ENABLE=1: NCCL_DEBUG=WARN prints \
             what"
        }
        6 => {
            "another member or the network between them failed: look at its error first, then at the network; NCCL_DEBUG=WARN prints \
             which"
        }
        _ => "NCCL_DEBUG=WARN prints more",
    }
}

/// What a library says of itself. Nothing is started.
fn version_of(loaded: &Loaded) -> std::result::Result<Version, String> {
    const FUNCTION: &CStr = c"ncclGetVersion";
    // SAFETY: every NCCL and RCCL since 2.3 exports this name with this signature; a library without the name is refused.
    let call = unsafe {
        loaded.library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(FUNCTION.to_bytes_with_nul())
    };
    let call = call.map_err(|_| "has no function ncclGetVersion: it is another library".to_owned())?;
    let mut version: c_int = 0;
    // SAFETY: the function writes one int, and `version` lives until it returns.
    let code = unsafe { call(&raw mut version) };
    match u32::try_from(version) {
        Ok(version) if code == SUCCESS => Ok(Version(version)),
        _ => Err(format!("does not tell its version (ncclGetVersion returned {code})")),
    }
}

fn refusal(vendor: GpuVendor, places: &Places, refused: &[library::Refused]) -> Refusal {
    let (package, variable) = match vendor {
        GpuVendor::Amd => ("RCCL of ROCm, with its folder in LD_LIBRARY_PATH", "UFORM_RCCL"),
        _ => ("the package nvidia-nccl-cu12 or nvidia-nccl-cu13", "UFORM_NCCL"),
    };
    let tried = refused.iter().map(|(path, reason)| {
        // The linker repeats the name, which is said here.
        let path = path.to_string_lossy();
        let reason = reason.strip_prefix(&format!("{path}: ")).unwrap_or(reason);
        format!("{path}: {reason}")
    });
    let tried = tried.collect::<Vec<_>>().join("; ");
    let remedy = if places.named.is_some() {
        format!("name another file by {variable}, or unset it")
    } else {
        format!("install {package}, or name its file by {variable}")
    };
    let is_absent =
        places.named.is_none() && refused.iter().all(|(_, reason)| reason.contains("No such file"));
    let reason = format!("no {} of version {OLDEST} or newer can be used: {tried}", name(vendor));
    Refusal { is_absent, reason, remedy }
}

#[cfg(test)]
mod tests;
