#[cfg(any(feature = "nccl", feature = "rccl"))]
use std::process::Command;

use super::*;

/// A library compiled from C, in a folder of its own that goes with it.
#[cfg(any(feature = "nccl", feature = "rccl"))]
struct Built {
    folder: PathBuf,
    path: PathBuf,
}

#[cfg(any(feature = "nccl", feature = "rccl"))]
impl Drop for Built {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Compiles a library that has the needed functions, but for one, and says this version.
#[cfg(any(feature = "nccl", feature = "rccl"))]
fn built(version: u32, without: &str, more: &str) -> Built {
    let nonce = crate::sys::random::nonce().expect("random bytes");
    let folder = std::env::temp_dir().join(format!("uform-test-ccl-{nonce}"));
    std::fs::create_dir_all(&folder).expect("a folder in the temporary folder");
    let needed = FUNCTIONS.iter().filter(|(name, since)| *since == OLDEST && *name != without);
    let mut source = format!("int ncclGetVersion(int *v) {{ *v = {version}; return 0; }}\n{more}\n");
    source.push_str("int ncclGetUniqueId(char *id) { id[0] = 1; return 3; }\n");
    source
        .push_str("char *ncclGetErrorString(int code) { return code == 3 ? \"internal error\" : \"?\"; }\n");
    source.push_str("char *ncclGetLastError(void *comm) { return \"no socket\"; }\n");
    let rest = needed.filter(|(name, _)| !source.contains(name));
    let rest = rest.map(|(name, _)| format!("int {name}(void) {{ return 1; }}\n")).collect::<String>();
    source.push_str(&rest);
    let (code, path) = (folder.join("stub.c"), folder.join("libstub.so"));
    std::fs::write(&code, source).expect("written");
    let arguments = [code.as_os_str(), "-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), path.as_os_str()];
    // The linker driver that builds this test is the same program.
    assert!(Command::new("cc").args(arguments).status().expect("cc runs").success());
    Built { folder, path }
}

fn named(path: &Path) -> Places {
    Places { named: Some((path.to_owned(), "UFORM_NCCL")), packages: Vec::new() }
}

#[cfg(any(feature = "nccl", feature = "rccl"))]
fn refused(vendor: GpuVendor, built: &Built) -> String {
    let refusal = Library::open(vendor, &named(&built.path)).expect_err("of no use");
    assert!(!refusal.is_absent);
    let text = refusal.error("a GPU group").to_string();
    assert!(text.contains(&built.path.display().to_string()), "{text}");
    text
}

#[cfg(feature = "nccl")]
#[test]
fn what_is_of_no_use_is_named_with_path_version_and_remedy() {
    let old = refused(GpuVendor::Nvidia, &built(21403, "", ""));
    assert!(
        old.contains("is version 2.14.3, and 2.18.1 is the oldest") && old.contains("UFORM_NCCL"),
        "{old}"
    );
    let other = refused(GpuVendor::Nvidia, &built(22105, "", "int ncclAllToAllv(void) { return 0; }"));
    assert!(other.contains("is RCCL 2.21.5, and NCCL is wanted"), "{other}");
    let part = refused(GpuVendor::Nvidia, &built(22105, "ncclCommSplit", ""));
    assert!(part.contains("is version 2.21.5 and has no function ncclCommSplit"), "{part}");
}

#[cfg(feature = "rccl")]
#[test]
fn rccl_is_told_from_nccl() {
    let built = built(22105, "", "int mscclLoadAlgo(void) { return 0; }");
    let library = Library::open(GpuVendor::Amd, &named(&built.path)).expect("it is RCCL");
    assert_eq!(
        (library.vendor(), library.version(), library.path()),
        (GpuVendor::Amd, Version(22105), &*built.path)
    );
    let text = refused(GpuVendor::Amd, &self::built(22105, "", ""));
    assert!(text.contains("is NCCL 2.21.5, and RCCL is wanted"), "{text}");
}

#[cfg(feature = "nccl")]
#[test]
fn functions_that_came_later_are_not_taken_from_older_versions() {
    let more =
        "int ncclMemAlloc(void **p, long s) { return 0; } int ncclCommRevoke(void *c, int f) { return 0; }";
    let (old, new) = (built(21803, "", more), built(22807, "", more));
    let table = |built: &Built| {
        let library = Library::open(GpuVendor::Nvidia, &named(&built.path)).expect("new enough");
        assert_eq!(library.found(), Found::Named("UFORM_NCCL"));
        (
            library.table().mem_alloc.is_some(),
            library.table().comm_revoke.is_some(),
            library.table().gather.is_some(),
        )
    };
    assert_eq!((table(&old), table(&new)), ((false, false, false), (true, true, false)));
}

#[cfg(feature = "nccl")]
#[test]
fn an_error_of_the_library_has_its_words() {
    let built = built(22703, "", "");
    let library = Library::open(GpuVendor::Nvidia, &named(&built.path)).expect("new enough");
    let text = library.unique_id().expect_err("the stub fails").to_string();
    for part in ["NCCL 2.27.3", "ncclGetUniqueId", "3", "internal error; no socket"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    library.check("ncclGetUniqueId", 0).expect("success");
}

#[test]
fn an_absent_library_is_told_apart_from_one_of_no_use() {
    let named = named(Path::new("/nonexistent/libnccl.so.2"));
    let refusal = Library::open(GpuVendor::Nvidia, &named).expect_err("there is none");
    assert_eq!(refusal.is_absent, cfg!(not(feature = "nccl")), "{}", refusal.reason);
    let apple = Library::open(GpuVendor::Apple, &Places::default()).expect_err("there is none");
    assert!(apple.is_absent);
}

#[test]
fn a_config_has_the_size_of_the_version_it_is_for() {
    let size = |vendor, version| Config::new(vendor, Version(version)).size();
    for (version, wanted) in [
        (21801, 48),
        (22602, 48),
        (22703, 72),
        (22803, 80),
        (22902, 88),
        (23003, 96),
        (23007, 96),
        (23203, 120),
        (24001, 120),
    ] {
        assert_eq!(size(GpuVendor::Nvidia, version), wanted, "{version}");
    }
    assert_eq!(size(GpuVendor::Amd, 23102), 96);
    assert_eq!(Config::new(GpuVendor::Amd, Version(23102)).version(), Version(23003));
    assert_eq!(Config::new(GpuVendor::Nvidia, Version(24001)).version(), NEWEST);
    assert_eq!(FIELDS.last().map(|field| field.end.next_multiple_of(8)), Some(size_of::<Config>()));
}

#[test]
fn versions_read_as_people_write_them() {
    let text = |version| Version(version).to_string();
    assert_eq!((text(23203), text(21801), text(2708)), ("2.32.3".into(), "2.18.1".into(), "2.7.8".into()));
    assert_eq!(format!("{:?}", UniqueId([7; 128])), "UniqueId(secret)");
}
