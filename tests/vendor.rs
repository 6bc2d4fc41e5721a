//! The real NCCL of NVIDIA's wheels, without a GPU: `make vendor` puts them where these tests look.

use std::path::{Path, PathBuf};
use std::process::Command;

use uform::GpuVendor;
use uform::sys::ccl::{Config, FIELDS, Version};
#[cfg(feature = "nccl")]
use uform::sys::ccl::{FUNCTIONS, Library};
#[cfg(feature = "nccl")]
use uform::sys::library::Places;

/// The versions that `make vendor` installs, each in a folder of its own.
const VERSIONS: [Version; 3] = [Version(21803), Version(22602), Version(23203)];

/// The folder of each version's wheel. Without them, says so; `UFORM_REQUIRE` with the word `nccl` makes that a failure.
fn wheels() -> Vec<(Version, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".vendor");
    let folders = VERSIONS.map(|version| (version, root.join(format!("nccl-{version}/nvidia/nccl"))));
    let found = folders.into_iter().filter(|(_, folder)| folder.join("lib/libnccl.so.2").is_file());
    let found = found.collect::<Vec<_>>();
    if found.len() < VERSIONS.len() {
        let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|word| word == "nccl");
        assert!(!is_required, "UFORM_REQUIRE names nccl: not all of {VERSIONS:?} are in {}", root.display());
        println!("skipped: the wheels of NCCL are not in {} (make vendor)", root.display());
        return Vec::new();
    }
    found
}

#[cfg(feature = "nccl")]
fn open(folder: &Path) -> Library {
    let named = Some((folder.join("lib/libnccl.so.2"), "UFORM_NCCL"));
    let places = Places { named, packages: Vec::new() };
    Library::open(GpuVendor::Nvidia, &places).unwrap_or_else(|refusal| panic!("{}", refusal.reason))
}

#[cfg(feature = "nccl")]
#[test]
fn every_function_is_there_from_its_version_on_and_not_before() {
    for (version, folder) in wheels() {
        let library = open(&folder);
        assert_eq!(library.version(), version);
        for (function, since) in FUNCTIONS {
            assert_eq!(library.has(function), version >= *since, "{function} in {version}");
        }
        let table = library.table();
        assert_eq!(table.mem_alloc.is_some(), version >= Version(21901), "{version}");
        assert_eq!(table.comm_revoke.is_some(), version >= Version(22807), "{version}");
    }
}

#[cfg(feature = "nccl")]
#[test]
fn ids_are_drawn_without_a_gpu_and_differ() {
    for (version, folder) in wheels() {
        let library = open(&folder);
        let ids = [(); 2].map(|()| library.unique_id().unwrap_or_else(|error| panic!("{version}: {error}")));
        assert!(ids[0] != ids[1] && ids[0].0.iter().any(|byte| *byte != 0), "{version}");
    }
}

/// Init asks for a GPU before it reads the settings, in each of these versions, so that no call shows without a GPU that they
/// are accepted. What a version reads is what its header declares: the compiler is asked for that.
#[test]
fn the_config_is_that_of_each_versions_header() {
    for (version, folder) in wheels() {
        let scratch = std::env::temp_dir().join(format!("uform-vendor-{version}-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).expect("a folder in the temporary folder");
        let write = |name: &str, text: &str| std::fs::write(scratch.join(name), text).expect("written");
        // The types that the header takes from CUDA, of which it needs no more than the names.
        write(
            "cuda_runtime.h",
            "typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;\n",
        );
        write("cuda_fp16.h", "");
        let known = FIELDS.iter().filter(|field| field.since <= version).collect::<Vec<_>>();
        let lines = known.iter().map(|field| {
            let name = field.name;
            format!("printf(\"{name} %zu %zu\\n\", offsetof(ncclConfig_t, {name}), offsetof(ncclConfig_t, {name}) + sizeof c.{name});\n")
        });
        let source = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <limits.h>\n#include <nccl.h>\nint main(void) {{\n\
             ncclConfig_t c = NCCL_CONFIG_INITIALIZER;\nprintf(\"size %zu %u %u\\n\", c.size, c.magic, c.version);\n{}return 0; }}\n",
            lines.collect::<String>()
        );
        write("layout.c", &source);
        let built = Command::new("cc")
            .args(["-w", "-I"])
            .arg(&scratch)
            .arg("-I")
            .arg(folder.join("include"))
            .arg(scratch.join("layout.c"))
            .arg("-o")
            .arg(scratch.join("layout"))
            .output()
            .expect("cc runs");
        assert!(built.status.success(), "{version}: {}", String::from_utf8_lossy(&built.stderr));
        let printed = Command::new(scratch.join("layout")).output().expect("it runs").stdout;
        std::fs::remove_dir_all(&scratch).expect("it is this test's own");
        let config = Config::new(GpuVendor::Nvidia, version);
        let mut wanted = format!("size {} {} {}\n", config.size(), 0xcafe_beef_u32, config.version().0);
        for field in known {
            wanted.push_str(&format!("{} {} {}\n", field.name, field.offset, field.end));
        }
        assert_eq!(String::from_utf8_lossy(&printed), wanted, "{version}");
    }
}
