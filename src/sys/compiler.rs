//! Compilers of GPU code: NVRTC and HIPRTC, one table of functions for both, loaded when something is to be compiled.
//!
//! Neither starts a GPU runtime: code for any GPU can be made where there is none.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::PathBuf;

use super::library::{self, Loaded, Names, Places};
use crate::vocabulary::GpuVendor;

const NVRTC: Names = Names {
    file: "libnvrtc.so",
    linker: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"],
    wheels: &["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"],
};

const HIPRTC: Names = Names {
    file: "libhiprtc.so",
    linker: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "/opt/rocm/lib/libhiprtc.so"],
    wheels: &[],
};

/// A program of the compiler's, never followed here.
type Program = *mut c_void;

/// What a size is asked for, or bytes are written by.
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type BytesOf = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The functions of a loaded compiler, in the shape that both vendors' have.
struct Table {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    text: unsafe extern "C" fn(c_int) -> *const c_char,
    log: (SizeOf, BytesOf),
    binary: (SizeOf, BytesOf),
    /// What NVIDIA's drivers translate for GPUs that came later; AMD's have no such thing.
    portable: Option<(SizeOf, BytesOf)>,
}

/// What is made of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Code for one kind of GPU.
    Binary,
    /// NVIDIA's PTX.
    Portable,
}

/// NVRTC or HIPRTC. It stays in the process, as other libraries of vendors do.
pub struct Compiler {
    vendor: GpuVendor,
    version: (c_int, c_int),
    path: PathBuf,
    table: Table,
    /// Never unloaded: the functions above are its.
    _loaded: ManuallyDrop<Loaded>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.name(), self.path.display())
    }
}

/// A program that is destroyed when it goes.
struct Made<'a> {
    table: &'a Table,
    program: Program,
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was made by `create` of the same table and is destroyed once.
        let _ = unsafe { (self.table.destroy)(&raw mut self.program) };
    }
}

impl Compiler {
    /// Loads a vendor's compiler: the first candidate that has the functions.
    ///
    /// # Errors
    /// Every candidate with its reason; also for a vendor without one, and one that this build leaves out.
    pub fn open(vendor: GpuVendor, places: &Places) -> Result<Self, String> {
        let (names, is_compiled) = match vendor {
            GpuVendor::Nvidia => (&NVRTC, cfg!(feature = "nccl")),
            GpuVendor::Amd => (&HIPRTC, cfg!(feature = "rccl")),
            GpuVendor::Apple => return Err("this version compiles nothing for Apple's GPUs".to_owned()),
        };
        if !is_compiled {
            return Err("this build leaves the vendor out".to_owned());
        }
        let accept = |loaded: Loaded| {
            let path = loaded.path.clone();
            Self::accept(vendor, loaded).map_err(|reason| (path, reason))
        };
        library::open(names, places, accept).map_err(|refused| {
            let tried = refused.iter().map(|(path, reason)| format!("{}: {reason}", path.display()));
            tried.collect::<Vec<_>>().join("; ")
        })
    }

    fn accept(vendor: GpuVendor, loaded: Loaded) -> Result<Self, String> {
        let is_hip = vendor == GpuVendor::Amd;
        let table = Table::of(&loaded, is_hip)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the function writes two ints, which live until it returns.
        let code = unsafe { (table.version)(&raw mut major, &raw mut minor) };
        if code != 0 {
            return Err(format!("does not tell its version ({code})"));
        }
        Ok(Self {
            vendor,
            version: (major, minor),
            path: loaded.path.clone(),
            table,
            _loaded: ManuallyDrop::new(loaded),
        })
    }

    /// What messages call it, with its version.
    #[must_use]
    pub fn name(&self) -> String {
        let name = if self.vendor == GpuVendor::Amd { "HIPRTC" } else { "NVRTC" };
        format!("{name} {}.{}", self.version.0, self.version.1)
    }

    /// Compiles a source for a kind of GPU, as the vendor calls it (`sm_90`, `compute_80`, `gfx942`); `None` for the one that is
    /// current on this thread. Products and sums keep their own roundings.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compile(&self, source: &CStr, architecture: Option<&str>, form: Form) -> Result<Vec<u8>, String> {
        let (target, rounding) = match self.vendor {
            GpuVendor::Amd => ("--offload-arch", "-ffp-contract=off"),
            _ => ("--gpu-architecture", "--fmad=false"),
        };
        let options = architecture.map(|architecture| format!("{target}={architecture}"));
        let options = options.into_iter().chain([rounding.to_owned()]);
        let options = options.map(CString::new).collect::<Result<Vec<_>, _>>();
        let options = options.map_err(|_| "an architecture has no zeros in its name".to_owned())?;
        let pointers = options.iter().map(|option| option.as_ptr()).collect::<Vec<_>>();
        let count = c_int::try_from(pointers.len()).unwrap_or(0);
        let mut program = std::ptr::null_mut();
        // SAFETY: the function writes one handle and reads two strings, all of which live until it returns; there are no headers.
        let code = unsafe {
            (self.table.create)(
                &raw mut program,
                source.as_ptr(),
                c"step.cu".as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        self.check("create", code)?;
        let made = Made { table: &self.table, program };
        // SAFETY: the program is live, and so are the options until the function returns.
        let code = unsafe { (self.table.compile)(made.program, count, pointers.as_ptr()) };
        if code != 0 {
            let log = self.taken(&made, self.table.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).replace(['\0', '\n'], " ");
            let said = self.check("compile", code).err().unwrap_or_default();
            return Err(format!("{said}: {}", log.trim()));
        }
        match form {
            Form::Binary => self.taken(&made, self.table.binary),
            Form::Portable => match self.table.portable {
                Some(functions) => self.taken(&made, functions),
                None => Err(format!("{} makes nothing that is portable", self.name())),
            },
        }
    }

    /// What a pair of functions gives: its size, then its bytes.
    fn taken(&self, made: &Made<'_>, (size, bytes): (SizeOf, BytesOf)) -> Result<Vec<u8>, String> {
        let mut byte_count = 0;
        // SAFETY: the program is live; the function writes one size, which lives until it returns.
        self.check("ask a size", unsafe { size(made.program, &raw mut byte_count) })?;
        let mut taken = vec![0_u8; byte_count];
        // SAFETY: the function writes as many bytes as it said before, which is the length of `taken`.
        self.check("take bytes", unsafe { bytes(made.program, taken.as_mut_ptr().cast()) })?;
        Ok(taken)
    }

    fn check(&self, what: &str, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number, and gives a string that lives as long as the library, or null.
        let text = unsafe { (self.table.text)(code) };
        // SAFETY: not null; see above.
        let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(format!("{} could not {what} ({code}: {})", self.name(), text.unwrap_or_default()))
    }
}

impl Table {
    fn of(loaded: &Loaded, is_hip: bool) -> Result<Self, String> {
        macro_rules! function {
            ($nvrtc:literal, $hiprtc:literal) => {{
                let name = if is_hip { concat!($hiprtc, "\0") } else { concat!($nvrtc, "\0") };
                // SAFETY: both vendors' headers give these names these signatures, an enumeration of C being an int and a
                // program a pointer; whoever keeps the table keeps the library.
                *unsafe { loaded.library.get(name.as_bytes()) }
                    .map_err(|error| format!("has no function {} ({})", name.trim_end_matches('\0'), library::text(&error)))?
            }};
        }
        Ok(Self {
            version: function!("nvrtcVersion", "hiprtcVersion"),
            create: function!("nvrtcCreateProgram", "hiprtcCreateProgram"),
            compile: function!("nvrtcCompileProgram", "hiprtcCompileProgram"),
            destroy: function!("nvrtcDestroyProgram", "hiprtcDestroyProgram"),
            text: function!("nvrtcGetErrorString", "hiprtcGetErrorString"),
            log: (
                function!("nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize"),
                function!("nvrtcGetProgramLog", "hiprtcGetProgramLog"),
            ),
            binary: (
                function!("nvrtcGetCUBINSize", "hiprtcGetCodeSize"),
                function!("nvrtcGetCUBIN", "hiprtcGetCode"),
            ),
            portable: if is_hip {
                None
            } else {
                Some((
                    function!("nvrtcGetPTXSize", "hiprtcGetCodeSize"),
                    function!("nvrtcGetPTX", "hiprtcGetCode"),
                ))
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_compiler_is_told_with_what_was_tried() {
        let named = Some((PathBuf::from("/nonexistent/libnvrtc.so"), "a test"));
        let places = Places { named, packages: Vec::new() };
        for vendor in [GpuVendor::Nvidia, GpuVendor::Amd, GpuVendor::Apple] {
            let reason = Compiler::open(vendor, &places).expect_err("there is none");
            let is_tried = reason.contains("/nonexistent/libnvrtc.so") && reason.contains("No such file");
            assert!(is_tried || reason.contains("Apple") || reason.contains("this build"), "{reason}");
        }
    }
}
