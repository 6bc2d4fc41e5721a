//! Which MPI library is loaded, and whether it is the only one.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ::mpi::ffi;

use crate::error::{Contradiction, Error, Result};

/// What the files of MPI libraries are called, whoever made them.
const NAMES: [&str; 3] = ["libmpi.so", "libmpich.so", "libmpi_abi.so"];
/// Room for a library's version and for its longest error text; MPI's own limits are 8192 and 512 or less.
const TEXT_BYTES: usize = 16 << 10;

/// An MPI library: what it says of itself, and the file it was loaded from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The first line of its own version text.
    pub version: String,
    /// Its file, empty if the dynamic linker does not know.
    pub path: PathBuf,
}

impl Library {
    /// Its file, empty if the dynamic linker does not know.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number in its version text, such as `4.1.4`; empty if there is none.
    #[must_use]
    pub fn number(&self) -> &str {
        let is_number =
            |word: &&str| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.');
        let words = self.version.split(|letter: char| letter.is_whitespace() || ",:".contains(letter));
        let mut words = words.map(|word| word.trim_start_matches('v'));
        words.find(is_number).unwrap_or_default()
    }

    /// The name and number alone.
    #[must_use]
    pub(super) fn name(&self) -> String {
        let family = if self.version.starts_with("Open MPI") { "Open MPI" } else { "MPI" };
        format!("{family} {}", self.number())
    }
}

impl std::fmt::Display for Library {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} ({})", self.version, self.path.display())
    }
}

type VersionCall = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;

/// What a library says of itself.
///
/// # Safety
/// `call` must be a library's `MPI_Get_library_version`.
unsafe fn version_of(call: VersionCall) -> String {
    let mut text = vec![0u8; TEXT_BYTES];
    let mut length: c_int = 0;
    // SAFETY: by the contract; it may be called at any time, and writes less than the room there is.
    let code = unsafe { call(text.as_mut_ptr().cast(), &raw mut length) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
    let line = text.lines().next().unwrap_or_default().split(", package").next().unwrap_or_default();
    if code == 0 { line.replace('\t', " ") } else { String::new() }
}

/// The library that this build's calls go to. It is not started.
#[must_use]
pub fn library() -> Option<&'static Library> {
    Some(own())
}

pub(super) fn own() -> &'static Library {
    static OWN: OnceLock<Library> = OnceLock::new();
    OWN.get_or_init(|| {
        // SAFETY: the function that this build is linked to.
        let version = unsafe { version_of(ffi::MPI_Get_library_version) };
        let mut found = libc::Dl_info {
            dli_fname: std::ptr::null(),
            dli_fbase: std::ptr::null_mut(),
            dli_sname: std::ptr::null(),
            dli_saddr: std::ptr::null_mut(),
        };
        let address = ffi::MPI_Get_library_version as *const c_void;
        // SAFETY: the linker fills `found` with names that live as long as the library, which is never unloaded.
        let path = unsafe {
            if libc::dladdr(address, &raw mut found) != 0 && !found.dli_fname.is_null() {
                PathBuf::from(OsStr::from_bytes(CStr::from_ptr(found.dli_fname).to_bytes()))
            } else {
                PathBuf::new()
            }
        };
        Library { version, path }
    })
}

/// The text that MPI has for a code.
pub(super) fn error_text(code: c_int) -> String {
    let mut text = vec![0u8; TEXT_BYTES];
    let mut length: c_int = 0;
    // SAFETY: it may be called at any time, and writes less than the room there is.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &raw mut length) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Refuses a process in which another MPI is loaded than the one that this build was made for.
///
/// # Errors
/// `Invalid` naming both with path and version.
pub(super) fn check() -> Result<()> {
    let own = own();
    // The two families differ in the size of a handle, and so does what was compiled.
    let is_open_mpi = size_of::<ffi::MPI_Comm>() == size_of::<*const c_void>();
    if is_open_mpi != own.version.starts_with("Open MPI") {
        let built = if is_open_mpi { "Open MPI" } else { "MPICH or one that is compatible with it" };
        return Err(refused(own, format!("uform was built for {built}"), String::new()));
    }
    for path in loaded() {
        if is_same_file(&path, &own.path) {
            continue;
        }
        let other = Library { version: version_at(&path), path };
        let reason =
            "is loaded in this process (by mpi4py, or by another library), and uform is linked to another: \
                      build uform or the other with the same mpicc"
                .to_owned();
        return Err(refused(&other, own.to_string(), reason));
    }
    Ok(())
}

fn refused(library: &Library, other: String, reason: String) -> Error {
    let reason = if reason.is_empty() { "is not what this build is for".to_owned() } else { reason };
    Error::Invalid {
        argument: "MPI library".to_owned(),
        value: library.to_string(),
        origin: "this process".to_owned(),
        reason,
        contradiction: Some(Contradiction { value: other, origin: "this build".to_owned() }),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// The files of all MPI libraries in this process.
fn loaded() -> Vec<PathBuf> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the linker gives a whole entry, whose name is a string or null, and the pointer that `loaded` passed on,
        // which nobody else uses until the walk has ended.
        let (name, found) = unsafe {
            let name = (*info).dlpi_name;
            let name = if name.is_null() { &[][..] } else { CStr::from_ptr(name).to_bytes() };
            (Path::new(OsStr::from_bytes(name)), &mut *found.cast::<Vec<PathBuf>>())
        };
        let file = name.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        if NAMES.iter().any(|one| file.starts_with(one)) {
            found.push(name.to_owned());
        }
        0
    }
    let mut found = Vec::<PathBuf>::new();
    // SAFETY: the function above is called for each entry until this returns, with a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    found
}

/// What a library says that is loaded already; empty if it does not say.
fn version_at(path: &Path) -> String {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return String::new() };
    // SAFETY: a library that is loaded already is found again and not started; the symbol is called as MPI defines it, and
    // the library is not let go before.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_LOCAL);
        if library.is_null() {
            return String::new();
        }
        let call = libc::dlsym(library, c"MPI_Get_library_version".as_ptr());
        let version = if call.is_null() {
            String::new()
        } else {
            version_of(std::mem::transmute::<*mut c_void, VersionCall>(call))
        };
        libc::dlclose(library);
        version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_in_every_family_s_text() {
        let number =
            |version: &str| Library { version: version.to_owned(), path: PathBuf::new() }.number().to_owned();
        assert_eq!(number("Open MPI v4.1.4"), "4.1.4");
        assert_eq!(number("MPICH Version: 4.0.2"), "4.0.2");
        assert_eq!(number("Intel(R) MPI Library 2021.17 for Linux* OS"), "2021.17");
        assert_eq!(number(""), "");
    }

    #[test]
    fn the_library_of_this_build_is_the_only_one() {
        let own = own();
        assert!(!own.number().is_empty() && own.path.is_file(), "{own}");
        check().expect("no other is loaded");
    }
}
