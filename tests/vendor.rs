//! The real NCCL and NVRTC of NVIDIA's wheels, without a GPU: `make vendor` puts them where these tests look.

#[cfg(feature = "nccl")]
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;

use uform::GpuVendor;
use uform::sys::ccl::{Config, FIELDS, Version};
#[cfg(feature = "nccl")]
use uform::sys::ccl::{FUNCTIONS, Library};
#[cfg(feature = "nccl")]
use uform::sys::compiler::{Compiler, Form};
#[cfg(feature = "nccl")]
use uform::sys::kernel::gpu;
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

/// The compilers that `make vendor` installs: the one that the package's PTX is of, and one that knows Blackwell.
#[cfg(feature = "nccl")]
const COMPILERS: [&str; 2] = ["12.0.76", "12.9.86"];

/// The compiler of a version; `None` as for [`wheels`].
#[cfg(feature = "nccl")]
fn compiler(version: &str) -> Option<Compiler> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(".vendor");
    let file = root.join(format!("nvrtc-{version}/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
    if !file.is_file() {
        let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
        let is_required = required.split(',').any(|word| word == "nccl");
        assert!(!is_required, "UFORM_REQUIRE names nccl: {} is not there (make vendor)", file.display());
        println!("skipped: {} is not there (make vendor)", file.display());
        return None;
    }
    let places = Places { named: Some((file, "a test")), packages: Vec::new() };
    Some(Compiler::open(GpuVendor::Nvidia, &places).unwrap_or_else(|reason| panic!("{reason}")))
}

#[cfg(feature = "nccl")]
#[test]
fn the_kernels_compile_for_every_generation_without_a_gpu() {
    let source = CString::new(gpu::SOURCE).expect("plain text");
    let Some(compiler) = compiler(COMPILERS[1]) else { return };
    assert_eq!(compiler.name(), "NVRTC 12.9");
    for architecture in ["sm_80", "sm_90", "sm_100", "sm_120"] {
        let image = compiler.compile(&source, Some(architecture), Form::Binary);
        let image = image.unwrap_or_else(|reason| panic!("{architecture}: {reason}"));
        // An object file of NVIDIA's, with every function.
        assert_eq!(image[..4], *b"\x7fELF", "{architecture}");
        for name in ["uform_fold", "uform_scale_f32", "uform_inspect_f64", "uform_sgd_f32", "uform_adamw_f64"]
        {
            assert!(
                image.windows(name.len()).any(|bytes| bytes == name.as_bytes()),
                "{architecture}: {name}"
            );
        }
    }
    let refused = compiler.compile(&source, Some("sm_1"), Form::Binary).expect_err("there is no such GPU");
    assert!(refused.contains("NVRTC 12.9 could not compile"), "{refused}");
    let wrong = compiler.compile(c"int main( {", Some("sm_90"), Form::Binary).expect_err("no program");
    assert!(wrong.contains("error"), "{wrong}");
}

/// Where it differs, `UFORM_WRITE_PTX=1 make test-vendor` writes it anew.
#[cfg(feature = "nccl")]
#[test]
fn the_ptx_of_the_package_is_what_its_compiler_makes() {
    let source = CString::new(gpu::SOURCE).expect("plain text");
    let Some(compiler) = compiler(COMPILERS[0]) else { return };
    let made = compiler.compile(&source, Some(gpu::PORTABLE), Form::Portable);
    let mut made = made.unwrap_or_else(|reason| panic!("{reason}"));
    assert_eq!(made.pop(), Some(0), "a text of C");
    let made = String::from_utf8(made).expect("PTX is plain text");
    if std::env::var_os("UFORM_WRITE_PTX").is_some() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sys/kernel/gpu/step.ptx");
        std::fs::write(file, &made).expect("written");
    }
    assert!(
        made == gpu::PTX,
        "the source has changed: write the PTX anew (UFORM_WRITE_PTX=1 make test-vendor)"
    );
    // Drivers of CUDA 12.0 and newer know this version.
    assert!(made.contains(".version 8.0\n") && made.contains(".target sm_80\n"));
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
