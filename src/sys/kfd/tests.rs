//! Trees of the driver, whole and damaged.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// A file tree in a folder of its own, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let nonce = crate::sys::random::nonce().expect("random bytes");
        let root = std::env::temp_dir().join(format!("uform-test-kfd-{nonce}"));
        for (path, bytes) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("a file has a folder"))
                .expect("folders can be made");
            std::fs::write(path, bytes).expect("files can be written");
        }
        std::fs::create_dir_all(&root).expect("folders can be made");
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

#[test]
fn nodes_have_their_memory_and_links() {
    let path = |rest: &str| format!("{NODES}/{rest}");
    let files = [
        (path("0/gpu_id"), "0\n"),
        (path("0/properties"), "cpu_cores_count 96\nsimd_count 0\n"),
        (path("10/gpu_id"), "4711\n"),
        (path("10/properties"), "simd_count 1216\nodd\nname text\nunique_id 18446744073709551615\n"),
        (path("10/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 100\n"),
        (path("10/mem_banks/1/properties"), "heap_type 2\nsize_in_bytes 20\n"),
        (path("10/mem_banks/2/properties"), "heap_type 0\nsize_in_bytes 3\n"),
        (path("10/io_links/0/properties"), "type 11\nnode_to 2\n"),
        (path("10/io_links/1/properties"), "type 2\nnode_to 0\n"),
        (path("10/p2p_links/0/properties"), "type 11\nnode_to 2\n"),
        (path("10/p2p_links/1/properties"), "type 11\nnode_to 99999999999\n"),
        // What the device control group forbids: an empty file.
        (path("2/gpu_id"), "815\n"),
        (path("2/properties"), ""),
        (path("02/gpu_id"), "1\n"),
        (path("02/properties"), "simd_count 4\n"),
    ];
    let files = files.iter().map(|(path, text)| (path.as_str(), text.as_bytes())).collect::<Vec<_>>();
    let tree = Tree::new(&files);
    let found = nodes(&tree.0);
    assert_eq!(found.iter().map(|node| node.number).collect::<Vec<_>>(), [0, 10]);
    assert_eq!(found[1].memory_bytes, 120);
    assert_eq!(found[1].links, [(0, 2), (2, 11)]);
    assert_eq!(found[1].property("unique_id"), u64::MAX);
    assert_eq!((found[1].property("name"), found[1].property("absent")), (0, 0));
}

#[test]
fn render_devices_and_names_are_looked_up() {
    let ids = b"# names\n74A1,\t00,\tAMD Instinct MI300X\n74A1,\t01,\t\n75A0,\t00,\tAMD Instinct MI350X\n";
    let tree = Tree::new(&[
        ("dev/dri/renderD128", b""),
        ("usr/share/libdrm/amdgpu.ids", ids),
        ("opt/rocm/.info/version", b"6.4.1-83\n"),
    ]);
    assert!(may_render(&tree.0, 128) && !may_render(&tree.0, 129));
    assert!(may_render(Path::new("/nowhere"), 129));
    assert_eq!(marketing_name(&tree.0, 0x75a0, 0).as_deref(), Some("AMD Instinct MI350X"));
    assert_eq!(marketing_name(&tree.0, 0x74a1, 1), None);
    assert_eq!(marketing_name(&tree.0, 0x74a1, 2), None);
    assert_eq!(rocm_version(&tree.0).as_deref(), Some("6.4.1"));
    let odd = Tree::new(&[("opt/rocm/.info/version", b"unknown build")]);
    assert_eq!(rocm_version(&odd.0), None);
    assert!(nodes(&odd.0).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_are_too_odd(
        texts in proptest::collection::vec(
            prop_oneof![
                "([a-z_]{1,12} -?[0-9]{1,22}\n){0,6}".prop_map(String::into_bytes),
                proptest::collection::vec(any::<u8>(), 0..80),
            ],
            4,
        )
    ) {
        let path = |rest: &str| format!("{NODES}/{rest}");
        let paths = [path("1/gpu_id"), path("1/properties"), path("1/mem_banks/0/properties"), path("1/io_links/0/properties")];
        let files = paths.iter().zip(&texts).map(|(path, bytes)| (path.as_str(), bytes.as_slice())).collect::<Vec<_>>();
        let tree = Tree::new(&files);
        prop_assert!(nodes(&tree.0).len() <= 1);
    }
}
