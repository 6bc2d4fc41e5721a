//! What follows from nodes of the driver.

use super::*;

fn node(number: u32, pairs: &[(&str, u64)], links: &[(u32, u64)]) -> Node {
    let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), *value));
    Node { number, gpu_id: 1, properties: pairs.collect(), memory_bytes: 1 << 30, links: links.to_vec() }
}

#[test]
fn targets_have_their_names_and_classes() {
    for (version, name, expected) in [
        (90_402, "gfx942", Some(GpuClass::AmdCdna3)),
        (90_500, "gfx950", Some(GpuClass::AmdCdna4)),
        (120_500, "gfx1250", Some(GpuClass::AmdCdna5)),
        (90_010, "gfx90a", None),
        (110_502, "gfx1152", None),
        (0, "gfx000", None),
    ] {
        assert_eq!(target(version), name);
        assert_eq!(class(&target(version)), expected, "{name}");
    }
    assert!(class(&target(u64::MAX)).is_none());
}

#[test]
fn partitions_of_one_gpu_differ_by_their_number() {
    let at = |number: u32, unique: u64, location: u64| {
        node(number, &[("unique_id", unique), ("location_id", location)], &[])
    };
    let nodes = [
        at(1, 0xaa, 0x100),
        at(2, 0xaa, 0x1000_0100),
        at(3, 0xbb, 0x200),
        at(4, 0, 0x300),
        at(5, 0xbb, 0x200),
    ];
    let places = nodes.iter().map(Place::of).collect::<Vec<_>>();
    assert_eq!(
        identities(&nodes, &places),
        [
            "GPU-00000000000000aa/0",
            "GPU-00000000000000aa/1",
            "GPU-00000000000000bb/0",
            "0000:03:00.0",
            "GPU-00000000000000bb/0, node 5"
        ]
    );
}

#[test]
fn links_over_xgmi_join_and_others_do_not() {
    let nodes =
        [node(1, &[], &[(0, 2), (1, 11), (2, 11), (3, 2), (9, 11)]), node(2, &[], &[]), node(3, &[], &[])];
    let identities = ["a", "b", "c"].map(str::to_owned);
    assert_eq!(links(&nodes[0], &nodes, &identities), [GpuLink { peer: "b".into(), count: 1 }]);
}

#[test]
fn units_are_never_divided_by_nothing() {
    assert_eq!(units(&node(1, &[("simd_count", 1216), ("simd_per_cu", 4)], &[])), 304);
    assert_eq!(units(&node(1, &[("simd_count", 1216)], &[])), 0);
    assert_eq!(units(&node(1, &[("simd_count", u64::MAX), ("simd_per_cu", 1)], &[])), 0);
}

#[test]
fn places_order_as_the_vendors_tool_does() {
    let place = |location: u64| Place::of(&node(0, &[("location_id", location), ("domain", 1)], &[]));
    assert_eq!(place(0x3000_0c09).address(), "0001:0c:01.1");
    assert_eq!(place(0x3000_0c09).partition, 3);
    assert!(place(0x0c00) < place(0x1000_0c00) && place(0x1000_0c00) < place(0x0d00));
}
