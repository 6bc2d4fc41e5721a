//! Which GPU runtimes and engines this build can load, and which of them are on this machine.
//!
//! Nothing here starts a GPU runtime: a library is found by its name, and asked for nothing but its version.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};

use super::kfd;

/// The words for runtimes and engines, in the fixed order of capability strings.
pub const WORDS: [&str; 5] = ["cuda", "rocm", "nccl", "rccl", "mpi"];

/// Where packages put the libraries of ROCm.
const ROCM_FOLDERS: [&str; 5] =
    ["opt/rocm/lib", "opt/rocm/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib"];

/// Whether this build has the code for a word.
#[must_use]
pub fn is_compiled(word: &str) -> bool {
    let (nccl, rccl, mpi) = (cfg!(feature = "nccl"), cfg!(feature = "rccl"), cfg!(feature = "mpi"));
    let built = [("cuda", nccl), ("nccl", nccl), ("rocm", rccl), ("rccl", rccl), ("mpi", mpi)];
    built.contains(&(word, true))
}

/// Whether the CUDA driver's library can be loaded. It is not started.
#[must_use]
pub fn has_cuda() -> bool {
    load("libcuda.so.1").is_some()
}

/// ROCm's version as a word's end, empty if it is not known; `None` if HIP's library is not where packages put it.
#[must_use]
pub fn rocm(root: &Path) -> Option<String> {
    let version = kfd::rocm_version(root);
    version.or_else(|| installed(root, "libamdhip64.so").then(String::new))
}

/// Whether RCCL is where packages put it.
///
/// It is not loaded: that would load HIP too.
#[must_use]
pub fn has_rccl(root: &Path) -> bool {
    installed(root, "librccl.so")
}

/// Whether a folder of ROCm has this library in any version.
fn installed(root: &Path, name: &str) -> bool {
    let versions =
        |entry: std::fs::DirEntry| entry.file_name().to_str().is_some_and(|own| own.starts_with(name));
    ROCM_FOLDERS
        .iter()
        .any(|folder| std::fs::read_dir(root.join(folder)).into_iter().flatten().flatten().any(versions))
}

fn load(name: &str) -> Option<Library> {
    // SAFETY: loading runs the library's initialisation functions, which for these two register code and start
    // nothing; no function is called before it was found.
    unsafe { Library::open(Some(name), RTLD_LAZY | RTLD_LOCAL) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_rocm_are_found_where_packages_put_them() {
        let nonce = crate::sys::random::nonce().expect("random bytes");
        let root = std::env::temp_dir().join(format!("uform-test-engine-{nonce}"));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a file has a folder"))
                .expect("folders can be made");
            std::fs::write(path, text).expect("files can be written");
        };
        assert_eq!((rocm(&root), has_rccl(&root)), (None, false));
        write("usr/lib64/libamdhip64.so.6", "");
        write("opt/rocm/lib/librccl.so.1.0", "");
        assert_eq!((rocm(&root), has_rccl(&root)), (Some(String::new()), true));
        write("opt/rocm/.info/version", "6.4.1-83\n");
        assert_eq!(rocm(&root).as_deref(), Some("6.4.1"));
        std::fs::remove_dir_all(&root).expect("it is this test's own");
    }

    #[test]
    fn words_come_with_their_features_alone() {
        assert_eq!(is_compiled("cuda"), is_compiled("nccl"));
        assert_eq!(is_compiled("rocm"), is_compiled("rccl"));
        assert!(!is_compiled("serial"));
    }
}
