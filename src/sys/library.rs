//! Shared libraries of vendors, found and loaded at run time.
//!
//! Candidates are tried in one order for all: the file that the user named, and no other; one that is in this process
//! already; the names that the dynamic linker knows; the wheels in folders of Python packages.

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

/// Where a library may be, besides what the dynamic linker knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// The file that the user named, and the variable that did.
    pub named: Option<(PathBuf, &'static str)>,
    /// Folders in which wheels are unpacked, the first one first.
    pub packages: Vec<PathBuf>,
}

/// What a library is called wherever it may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names {
    /// What its file's name begins with in any version.
    pub(super) file: &'static str,
    /// What the dynamic linker is asked for, the newest first.
    pub(super) linker: &'static [&'static str],
    /// Its files below a folder of packages, the newest first.
    pub(super) wheels: &'static [&'static str],
}

/// How a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A variable names it.
    Named(&'static str),
    /// It was in this process already.
    Loaded,
    /// The dynamic linker knows it.
    Linker,
    /// It lies in a wheel.
    Wheel,
}

impl std::fmt::Display for Found {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(variable) => write!(formatter, "named by {variable}"),
            Self::Loaded => formatter.write_str("in this process already"),
            Self::Linker => formatter.write_str("by the dynamic linker"),
            Self::Wheel => formatter.write_str("in a Python package"),
        }
    }
}

/// A library that was loaded; dropping it gives it back to the dynamic linker.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) library: Library,
    /// Its file, or the name that it was asked for by where nothing tells the file.
    pub(super) path: PathBuf,
    pub(super) found: Found,
}

/// A candidate that was not taken, and why.
pub(super) type Refused = (PathBuf, String);

/// Loads the first candidate that `accept` takes; otherwise tells of all that were tried.
///
/// Initialisation functions of candidates run. Those of a file that the user named are the user's choice.
pub(super) fn open<T>(
    names: &Names,
    places: &Places,
    accept: impl Fn(Loaded) -> Result<T, Refused>,
) -> Result<T, Vec<Refused>> {
    let mut refused = Vec::new();
    for (candidate, found) in candidates(names, places) {
        // A file that is not there is not worth the linker's words; one that the user named is.
        if found == Found::Wheel && !candidate.is_file() {
            continue;
        }
        let tried = load(&candidate).and_then(|library| {
            accept(Loaded { path: file_of(&candidate), library, found }).map_err(|(_, reason)| reason)
        });
        match tried {
            Ok(taken) => return Ok(taken),
            Err(reason) => refused.push((candidate, reason)),
        }
    }
    Err(refused)
}

fn candidates(names: &Names, places: &Places) -> Vec<(PathBuf, Found)> {
    if let Some((path, variable)) = &places.named {
        return vec![(path.clone(), Found::Named(variable))];
    }
    let loaded = loaded(names.file).into_iter().map(|path| (path, Found::Loaded));
    let linker = names.linker.iter().map(|name| (PathBuf::from(name), Found::Linker));
    let packages = places.packages.iter().filter(|folder| folder.is_absolute());
    let wheels =
        packages.flat_map(|folder| names.wheels.iter().map(|file| (folder.join(file), Found::Wheel)));
    loaded.chain(linker).chain(wheels).collect()
}

/// The files in this process whose names begin so, in the order in which they were loaded.
pub(super) fn loaded(beginning: &str) -> Vec<PathBuf> {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
        // SAFETY: the linker gives a whole entry, whose name is a string or null, and the pointer that `loaded` passed on,
        // which nobody else uses until the walk has ended.
        unsafe {
            let name = (*info).dlpi_name;
            if !name.is_null() {
                let name = Path::new(OsStr::from_bytes(CStr::from_ptr(name).to_bytes()));
                (*found.cast::<Vec<PathBuf>>()).push(name.to_owned());
            }
        }
        0
    }
    let mut found = Vec::<PathBuf>::new();
    // SAFETY: the function above is called for each entry until this returns, with a pointer to `found`.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
    let begins = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_bytes().starts_with(beginning.as_bytes()))
    };
    found.retain(begins);
    found
}

/// Loads a file, or what the linker knows by this name.
fn load(candidate: &Path) -> Result<Library, String> {
    // SAFETY: loading runs the library's initialisation functions. It is a vendor's library by its name, or the file that
    // the user chose; both are trusted as much as this program's own libraries.
    unsafe { Library::open(Some(candidate), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| text(&error))
}

/// The linker's own words, which libloading keeps as the cause.
pub(super) fn text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The file of a library that has just been loaded by this name.
fn file_of(candidate: &Path) -> PathBuf {
    let Some(name) = candidate.file_name().and_then(OsStr::to_str) else { return candidate.to_owned() };
    if candidate.is_absolute() {
        return candidate.to_owned();
    }
    loaded(name).pop().unwrap_or_else(|| candidate.to_owned())
}

/// Whether a library has this function.
pub(super) fn has(library: &Library, name: &str) -> bool {
    let Ok(name) = std::ffi::CString::new(name) else { return false };
    // SAFETY: the address is compared with null and not used.
    unsafe { library.get::<*const c_void>(name.as_bytes_with_nul()) }
        .is_ok_and(|found| !found.as_raw_ptr().is_null())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        file: "libuform-none.so",
        linker: &["libuform-none.so.2", "libuform-none.so.1"],
        wheels: &["none/lib.so"],
    };

    fn refuse(loaded: Loaded) -> Result<Loaded, Refused> {
        Err((loaded.path, "is of no use".to_owned()))
    }

    #[test]
    fn a_file_that_is_named_is_the_only_candidate() {
        let named = Some((PathBuf::from("/nonexistent/library.so"), "UFORM_NCCL"));
        let places = Places { named, packages: vec!["/packages".into()] };
        let refused = open(&NAMES, &places, Ok).expect_err("there is none");
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].0, Path::new("/nonexistent/library.so"));
        assert!(refused[0].1.contains("No such file"), "{refused:?}");
    }

    #[test]
    fn candidates_come_in_their_order_and_relative_folders_not_at_all() {
        let places =
            Places { named: None, packages: vec!["relative".into(), "/first".into(), "/second".into()] };
        let found = candidates(&NAMES, &places);
        let paths = found.iter().map(|(path, _)| path.to_str().expect("text")).collect::<Vec<_>>();
        let wanted =
            ["libuform-none.so.2", "libuform-none.so.1", "/first/none/lib.so", "/second/none/lib.so"];
        assert_eq!(paths, wanted);
    }

    #[test]
    fn a_library_of_this_process_is_found_before_others() {
        let names = Names { file: "libc.so", ..NAMES };
        let taken = open(&names, &Places::default(), Ok).expect("this process has it");
        assert_eq!(taken.found, Found::Loaded);
        assert!(taken.path.is_file() && has(&taken.library, "malloc") && !has(&taken.library, "uform_none"));
        let refused = open(&names, &Places::default(), refuse).expect_err("refused");
        assert_eq!(refused.last().expect("the last").0, Path::new("libuform-none.so.1"));
        assert_eq!(refused[0].1, "is of no use");
    }
}
