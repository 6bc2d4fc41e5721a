//! Raw tables of HIP and RCCL, loaded at run time.
//!
//! Nothing here is linked: a machine without RCCL builds this crate, and learns at [`Rccl::open`] what was looked
//! for. What the functions mean, and when they may be called, is decided by the core.

pub mod hip;

use std::ffi::{OsStr, OsString, c_int};
use std::path::Path;

use libloading::Library;

/// The name that the dynamic linker is asked for where no path is given.
pub const SONAME: &str = "librccl.so.1";

/// What `ncclGetVersion` and every other function of the table return for success.
pub const SUCCESS: c_int = 0;

type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Why RCCL cannot be used, with everything that was tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No candidate could be loaded.
    #[error("RCCL is not on this machine: {}", attempts(tried))]
    Absent {
        /// Each candidate with the dynamic linker's answer.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded, but it has no such function.
    #[error("{library} has no function {function}: {reason}")]
    Foreign {
        /// The library that was loaded.
        library: String,
        /// The function that it lacks.
        function: &'static str,
        /// The dynamic linker's answer.
        reason: String,
    },
    /// A function of the library failed.
    #[error("{library}: {function} returned {code}")]
    Failed {
        /// The library that was loaded.
        library: String,
        /// The function.
        function: &'static str,
        /// The number it returned.
        code: i32,
    },
}

fn attempts(tried: &[(String, String)]) -> String {
    let each = tried.iter().map(|(name, reason)| format!("{name} ({reason})"));
    each.collect::<Vec<_>>().join("; ")
}

/// A version of RCCL, in NCCL's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number.
    pub patch: u32,
}

impl Version {
    /// Reads a version code: major * 10000 + minor * 100 + patch; major * 1000 in codes of 2.8 and older.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        let unit = if code < 10_000 { 1_000 } else { 10_000 };
        Self { major: code / unit, minor: code % unit / 100, patch: code % 100 }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A loaded RCCL. Dropping it releases the library.
#[derive(Debug)]
pub struct Rccl {
    name: String,
    get_version: GetVersion,
    /// Kept last: the functions above are valid while it is loaded.
    _library: Library,
}

impl Rccl {
    /// Opens RCCL: the library at `path` and no other, or without a path the one the dynamic linker finds.
    ///
    /// Initialisation functions of the library run.
    ///
    /// # Errors
    /// `Absent` with each candidate and the reason, `Foreign` if the library is something else.
    pub fn open(path: Option<&Path>) -> Result<Self, Error> {
        let candidates: Vec<OsString> = match path {
            Some(path) => vec![path.as_os_str().to_owned()],
            None => vec![SONAME.into()],
        };
        let mut tried = Vec::new();
        for candidate in &candidates {
            match load(candidate) {
                Ok(library) => return Self::with(library, candidate.to_string_lossy().into_owned()),
                Err(reason) => tried.push((candidate.to_string_lossy().into_owned(), reason)),
            }
        }
        Err(Error::Absent { tried })
    }

    #[allow(unsafe_code, reason = "looks a function up by its C name")]
    fn with(library: Library, name: String) -> Result<Self, Error> {
        const FUNCTION: &str = "ncclGetVersion";
        // SAFETY: every NCCL and RCCL since 2.3 exports this name with this signature; a library without the name is
        // refused. The pointer is copied out of the symbol and kept beside the library, which outlives it.
        let found = unsafe { library.get::<GetVersion>(FUNCTION.as_bytes()) }.map(|symbol| *symbol);
        match found {
            Ok(get_version) => Ok(Self { name, get_version, _library: library }),
            Err(error) => Err(Error::Foreign { library: name, function: FUNCTION, reason: text(&error) }),
        }
    }

    /// The name or path it was loaded by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the library that was loaded.
    ///
    /// # Errors
    /// `Failed` with the library's number.
    #[allow(unsafe_code, reason = "calls the library")]
    pub fn version(&self) -> Result<Version, Error> {
        let mut code: c_int = 0;
        // SAFETY: the function writes one int, and `code` lives until it returns.
        let result = unsafe { (self.get_version)(&raw mut code) };
        let failed = |code| Error::Failed { library: self.name.clone(), function: "ncclGetVersion", code };
        if result != SUCCESS {
            return Err(failed(result));
        }
        u32::try_from(code).map(Version::from_code).map_err(|_| failed(code))
    }
}

#[allow(unsafe_code, reason = "loads a library")]
fn load(candidate: &OsStr) -> Result<Library, String> {
    // SAFETY: loading runs the library's initialisation functions. It is RCCL by its name, or the file that the caller
    // chose; both are trusted as much as this program's own libraries.
    unsafe { Library::new(candidate) }.map_err(|error| text(&error))
}

/// The linker's own words, which libloading keeps as the cause.
fn text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::process::Command;

    /// Compiles a shared library from C source in a folder of its own.
    fn library(name: &str, source: &str) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("rccl-sys-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder in the temporary folder");
        let (code, built) = (folder.join("stub.c"), folder.join("libstub.so"));
        std::fs::write(&code, source).expect("written");
        let arguments =
            [code.as_os_str(), "-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), built.as_os_str()];
        // The linker driver that builds this test is the same program.
        assert!(Command::new("cc").args(arguments).status().expect("cc runs").success());
        (folder, built)
    }

    #[test]
    fn a_missing_library_is_named_with_the_reason() {
        let path = Path::new("/nonexistent/librccl.so.1");
        let error = Rccl::open(Some(path)).expect_err("there is none").to_string();
        assert!(error.starts_with("RCCL is not on this machine: /nonexistent/librccl.so.1 ("), "{error}");
        assert!(error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_stub_answers_its_version() {
        let (folder, path) = library("version", "int ncclGetVersion(int *v) { *v = 22105; return 0; }");
        let rccl = Rccl::open(Some(&path)).expect("the stub loads");
        assert_eq!(rccl.version().expect("answers"), Version { major: 2, minor: 21, patch: 5 });
        assert_eq!(rccl.name(), path.to_string_lossy());
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn a_foreign_library_and_a_failing_one_are_refused() {
        let (folder, path) = library("foreign", "int other(void) { return 0; }");
        let error = Rccl::open(Some(&path)).expect_err("has no such function");
        assert!(matches!(&error, Error::Foreign { function: "ncclGetVersion", .. }), "{error}");
        std::fs::remove_dir_all(folder).expect("removed");

        let (folder, path) = library("failing", "int ncclGetVersion(int *v) { (void)v; return 3; }");
        let error = Rccl::open(Some(&path)).expect("the stub loads").version().expect_err("fails");
        assert!(matches!(error, Error::Failed { code: 3, .. }), "{error}");
        std::fs::remove_dir_all(folder).expect("removed");
    }

    #[test]
    fn version_codes_have_two_grammars() {
        assert_eq!(Version::from_code(2_804).to_string(), "2.8.4");
        assert_eq!(Version::from_code(21_003).to_string(), "2.10.3");
        assert_eq!(Version::from_code(23_102).to_string(), "2.31.2");
    }
}
