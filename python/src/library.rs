//! Hands the folders that Python imports from to the core, which looks there for the vendors' wheels.

use std::path::PathBuf;

use pyo3::prelude::*;

/// Takes `sys.path` as it is now.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let mut folders = Vec::new();
    for entry in module.py().import("sys")?.getattr("path")?.try_iter()? {
        // Other kinds of entries are for import hooks, and name no folder.
        folders.extend(entry?.extract::<PathBuf>().ok());
    }
    uform::device::set_package_folders(folders);
    Ok(())
}
