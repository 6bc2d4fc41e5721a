//! The stand-in of vendors' libraries (`tests/c/stand_in`): built once, and put in the dynamic linker's way of a test's processes.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Folder, Setup};

/// The names that programs ask for: all are one library, so that they see each other's memory and streams.
const NAMES: &[&str] = &["libcuda.so.1", "libnvidia-ml.so.1", "libamdhip64.so.6"];

/// The compilers of kernels.
const COMPILERS: &[&str] = &["libnvrtc.so.12", "libhiprtc.so.6"];

/// What the stand-in compiles of the product: the source of the kernels.
const KERNELS: &str = "src/sys/kernel/gpu/step.cu";

/// A folder with the libraries, what they answer, and what was called.
pub(crate) struct StandIn(Folder);

impl StandIn {
    /// With all libraries.
    pub(crate) fn new(answers: &str) -> Self {
        Self::with(answers, NAMES, &[])
    }

    /// With all libraries, and NCCL or RCCL.
    pub(crate) fn collective(answers: &str, is_amd: bool) -> Self {
        let (name, flags): (_, &[&str]) =
            if is_amd { ("librccl.so.1", &["-DRCCL"]) } else { ("libnccl.so.2", &[]) };
        Self::with(answers, &[NAMES, &[name]].concat(), flags)
    }

    /// With all libraries, NCCL or RCCL, and the compilers of kernels.
    pub(crate) fn whole(answers: &str, is_amd: bool) -> Self {
        Self::collective(answers, is_amd).with_compilers()
    }

    /// With all libraries, an NCCL that is compiled with these flags, and the compilers of kernels.
    pub(crate) fn whole_of(answers: &str, flags: &[&str]) -> Self {
        Self::with(answers, &[NAMES, &["libnccl.so.2"]].concat(), flags).with_compilers()
    }

    fn with_compilers(self) -> Self {
        let whole = self;
        let library = fs::read_link(whole.path(NAMES[0])).expect("a link");
        for name in COMPILERS {
            symlink(&library, whole.path(name)).expect("the folder is writable");
        }
        whole
    }

    /// Puts an NCCL of a version where a wheel below a folder has it.
    pub(crate) fn wheel(folder: &Path, version: u32) {
        let place = folder.join("nvidia/nccl/lib");
        fs::create_dir_all(&place).expect("the folder is writable");
        let flag = format!("-DNCCL_VERSION={version}");
        let library = build("stand_in", &[flag.as_str()]);
        symlink(library, place.join("libnccl.so.2")).expect("the folder is writable");
    }

    /// With some of the libraries, compiled with these flags.
    pub(crate) fn with(answers: &str, names: &[&str], flags: &[&str]) -> Self {
        let folder = Folder::new();
        let library = build("stand_in", flags);
        for name in names {
            symlink(&library, folder.path().join(name)).expect("the folder is writable");
        }
        fs::write(folder.path().join("answers"), answers).expect("the folder is writable");
        Self(folder)
    }

    /// A run whose processes find them.
    pub(crate) fn apply(&self, setup: Setup) -> Setup {
        let _ = fs::remove_file(self.path("calls"));
        setup
            .variable("LD_LIBRARY_PATH", &self.0.path().display().to_string())
            .variable("STAND_IN_ANSWERS", &self.path("answers"))
            .variable("STAND_IN_CALLS", &self.path("calls"))
    }

    /// The functions that were called, in order, and what was left open at the end of a process.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// How often a function was called.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.calls().iter().filter(|call| *call == name).count()
    }

    /// Everything that was opened was closed again.
    pub(crate) fn assert_nothing_left(&self) {
        let left = self.calls().into_iter().filter(|call| call.starts_with("left ")).collect::<Vec<_>>();
        assert!(left.is_empty(), "{left:?}");
    }

    /// A file of the folder.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// The library of a folder of `tests/c` for these flags, compiled where no test has done so before.
pub(super) fn build(name: &str, flags: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let mut files = fs::read_dir(&source).expect("it is of the repository").flatten();
    let mut files = files.by_ref().map(|entry| entry.path()).collect::<Vec<_>>();
    files.sort();
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join(KERNELS);
    for file in files.iter().chain([&kernels]) {
        fs::read(file).expect("it is of the repository").hash(&mut hasher);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = folder.join(format!("{name}-{:016x}.so", hasher.finish()));
    if !library.exists() {
        // Put there when it is whole, and only once: to a process that runs, another file would be another library.
        let fresh = folder.join(format!("{name}-{}.so", std::process::id()));
        let sources = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "c"));
        let status = Command::new("cc")
            .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
            .args(["-pthread", "-Wl,-Bsymbolic", "-o"])
            .arg(&fresh)
            .args(flags)
            .args(sources)
            .arg("-lm")
            .status();
        assert!(status.expect("a C compiler can be run").success(), "{name} must compile");
        let put = fs::hard_link(&fresh, &library);
        fs::remove_file(&fresh).expect("the folder is writable");
        assert!(put.is_ok() || library.exists(), "{put:?}");
    }
    library
}
