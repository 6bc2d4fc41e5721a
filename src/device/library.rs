//! Where this process looks for the libraries of vendors: what the user named, and the packages of its Python.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::environment::{self, NCCL_VARIABLE, RCCL_VARIABLE, library_file};
use crate::sys::ccl::{Library, Refusal, Version};
use crate::sys::library::Places;
use crate::vocabulary::GpuVendor;

/// The folders of packages that the embedding language has named.
static PACKAGES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Says in which folders packages of the embedding language are unpacked, the first one first.
///
/// The `nvidia-*` wheels there are looked at after what the dynamic linker knows. Nothing is searched: each library has one
/// place below such a folder. Relative folders are left out.
pub fn set_package_folders(folders: Vec<PathBuf>) {
    *PACKAGES.lock().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// Loads the NCCL or RCCL that a mesh of this process would use. No GPU runtime is started.
///
/// The file that `UFORM_NCCL` or `UFORM_RCCL` names, and no other; else one that is in this process already, one that the
/// dynamic linker knows, one in a wheel. Loading RCCL loads HIP.
///
/// # Errors
/// The candidates with their reasons, and the remedy.
pub fn collective_library(vendor: GpuVendor) -> Result<Library, Refusal> {
    let variable = if vendor == GpuVendor::Amd { RCCL_VARIABLE } else { NCCL_VARIABLE };
    let packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let named = library_file(variable).map(|path| (path, variable));
    Library::open(vendor, &Places { named, packages })
}

/// Where the packages of the embedding language may have libraries that nobody names, as compilers of GPU code.
#[must_use]
pub fn package_places() -> Places {
    let packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Places { named: None, packages }
}

/// The first NCCL that takes several members of a communicator on one GPU.
const SHARING: Version = Version(23000);

/// Whether this process may have a GPU that other members have too: the user says so, and NCCL can. It is loaded for that.
pub(super) fn shares_gpus() -> bool {
    environment::shares_gpus()
        && collective_library(GpuVendor::Nvidia).is_ok_and(|library| library.version() >= SHARING)
}
