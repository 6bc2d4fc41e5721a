//! Tables of what each vendor's variables leave, and properties that hold for every text.

use proptest::prelude::*;

use super::*;

const UUIDS: [&str; 4] = ["GPU-1111aaaa", "GPU-1111bbbb", "GPU-22220000", "GPU-33330000"];

/// Four equal cards.
fn cards() -> Vec<Card> {
    UUIDS.map(|uuid| Card { uuid: uuid.into(), speed: (100, 9, 0), instances: None }).to_vec()
}

/// As [`cards`], the second one cut in two.
fn cut_cards() -> Vec<Card> {
    let mut cards = cards();
    let instance = |uuid: &str, numbers| Instance { uuid: uuid.into(), numbers };
    cards[1].instances = Some(vec![instance("MIG-aa11", (1, 0)), instance("MIG-aa22", (2, 0))]);
    cards
}

fn whole(positions: &[usize]) -> Vec<Seat> {
    positions.iter().map(|position| (*position, None)).collect()
}

#[test]
fn cuda_lists() {
    let all = [0, 1, 2, 3];
    for (visible, expected) in [
        (None, &all[..]),
        (Some(""), &[]),
        (Some("  "), &[]),
        (Some("0,1,2,3"), &all),
        (Some("2,0"), &[2, 0]),
        (Some(" 2 , 0 "), &[2, 0]),
        (Some("-1"), &[]),
        (Some("0,2,-1,1"), &[0, 2]),
        (Some("0,4,1"), &[0]),
        (Some("4"), &[]),
        (Some("1,"), &[1]),
        (Some(",1"), &[]),
        (Some("1,,2"), &[1]),
        (Some("1,1"), &[]),
        (Some("0,1,0"), &[]),
        (Some("1gpu,2"), &[1, 2]),
        (Some("+1"), &[1]),
        (Some("gpu1"), &[]),
        (Some("0x1"), &[0]),
        (Some("NoDevFiles"), &[]),
        (Some("99999999999999999999"), &[]),
        (Some("GPU-22220000"), &[2]),
        (Some("GPU-3,GPU-2"), &[3, 2]),
        (Some("GPU-1111"), &[]),
        (Some("GPU-2,GPU-1111,GPU-3"), &[2]),
        (Some("GPU-2,GPU-9,GPU-3"), &[2]),
        (Some("GPU-2,GPU-22"), &[]),
        (Some("GPU-2,1"), &[2]),
        (Some("1,GPU-2"), &[1]),
        (Some("GPU-222200001"), &[]),
        (Some("gpu-2"), &[]),
        (Some("MIG-aa11"), &[]),
        (Some("all"), &[]),
    ] {
        assert_eq!(cuda(&cards(), visible, None), whole(expected), "{visible:?}");
    }
    assert_eq!(cuda(&[], Some("0"), None), []);
}

#[test]
fn cuda_sees_one_instance_and_then_nothing_else() {
    let cards = cut_cards();
    for (visible, expected) in [
        (None, vec![(1, Some(0))]),
        (Some("0,2"), whole(&[0, 2])),
        (Some("1"), vec![(1, Some(0))]),
        (Some("0,1"), vec![(1, Some(0))]),
        (Some("MIG-aa22"), vec![(1, Some(1))]),
        (Some("MIG-aa22,MIG-aa11"), vec![(1, Some(1))]),
        (Some("MIG-aa"), vec![]),
        (Some("MIG-zz"), vec![]),
        (Some("MIG-aa1,MIG-aa1"), vec![]),
        (Some("GPU-1111b"), vec![(1, Some(0))]),
        (Some("MIG-GPU-1111bbbb/2/0"), vec![(1, Some(1))]),
        (Some("MIG-GPU-1111bbbb/3/0"), vec![]),
        (Some("MIG-GPU-1111bbbb/2"), vec![]),
        (Some("MIG-GPU-22220000/1/0"), vec![]),
        (Some("MIG-GPU-"), vec![]),
    ] {
        assert_eq!(cuda(&cards, visible, None), expected, "{visible:?}");
    }
    let mut empty = cards.clone();
    empty[1].instances = Some(Vec::new());
    assert_eq!(cuda(&empty, None, None), whole(&[0, 2, 3]));
    assert_eq!(cuda(&empty, Some("1"), None), whole(&[2]));
}

#[test]
fn cuda_numbers_the_fastest_first_unless_told_otherwise() {
    let mut cards = cards();
    cards[2].speed = (200, 9, 0);
    cards[3].speed = (100, 10, 0);
    for (order, expected) in [
        (None, [2, 3, 0, 1]),
        (Some("FASTEST_FIRST"), [2, 3, 0, 1]),
        (Some("pci_bus_id"), [2, 3, 0, 1]),
        (Some(""), [2, 3, 0, 1]),
        (Some("PCI_BUS_ID"), [0, 1, 2, 3]),
    ] {
        assert_eq!(cuda(&cards, None, order), whole(&expected), "{order:?}");
        assert_eq!(cuda(&cards, Some("0"), order), whole(&expected[..1]), "{order:?}");
        assert_eq!(cuda(&cards, Some("GPU-33330000"), order), whole(&[3]));
    }
}

fn amd() -> Vec<String> {
    ["GPU-00000000000000aa", "GPU-00000000000000bb", "", "GPU-00000000000000dd"].map(str::to_owned).to_vec()
}

#[test]
fn rocr_lists() {
    for (list, expected) in [
        ("", &[][..]),
        ("0,1,2,3", &[0, 1, 2, 3]),
        ("3, 0", &[3, 0]),
        ("0,", &[0]),
        ("0,-1,1", &[0]),
        ("0,4,1", &[0]),
        ("1,1,2", &[1]),
        ("0x1,01", &[1]),
        ("0X2", &[2]),
        ("08", &[]),
        ("1a", &[]),
        ("0x", &[]),
        ("0x+1", &[]),
        ("GPU-00000000000000bb", &[1]),
        ("gpu-00000000000000BB,0", &[1, 0]),
        ("GPU-0000", &[]),
        ("GPU-00000000000000aaa", &[]),
        ("GPU-", &[]),
        ("G", &[]),
        (",0", &[]),
    ] {
        assert_eq!(hip(&amd(), Some(list), None, None), expected, "{list:?}");
    }
}

#[test]
fn hip_numbers_what_rocr_leaves() {
    for (rocr, own, cuda, expected) in [
        (None, None, None, &[0, 1, 2, 3][..]),
        (None, Some("2,1"), None, &[2, 1]),
        (None, Some(""), None, &[0, 1, 2, 3]),
        (None, None, Some("3"), &[3]),
        (None, None, Some(""), &[0, 1, 2, 3]),
        (None, Some(""), Some("3"), &[3]),
        (None, Some("1"), Some("3"), &[1]),
        (Some("3,1"), Some("1"), None, &[1]),
        (Some("3,1"), None, Some("0"), &[3]),
        (Some("3,1"), Some("2"), None, &[]),
        (Some(""), Some("0"), None, &[]),
        (None, Some("1,1,0"), None, &[1, 0]),
        (None, Some("1,-1,0"), None, &[1]),
        (None, Some("1, 0"), None, &[1]),
        (None, Some("01"), None, &[]),
        (None, Some("+1"), None, &[]),
        (None, Some("0,"), None, &[0]),
        (None, Some("0,,1"), None, &[0]),
        (None, Some("GPU-00000000000000dd,0"), None, &[3, 0]),
        (None, Some("GPU-ff"), None, &[]),
        (Some("1,3"), Some("GPU-00000000000000aa"), None, &[]),
    ] {
        assert_eq!(hip(&amd(), rocr, own, cuda), expected, "{rocr:?} {own:?} {cuda:?}");
    }
}

/// Texts near the grammar, and any text.
fn lists() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "-?[0-9]{1,3}",
        "(0x)?[0-9a-f]{0,4}",
        "(GPU-|MIG-|MIG-GPU-|)[123abd0]{0,8}(/[0-9]){0,2}",
        Just("GPU-00000000000000bb".to_owned()),
        ".{0,4}",
    ];
    prop_oneof![proptest::collection::vec(word, 0..6).prop_map(|words| words.join(",")), ".{0,20}"]
}

proptest! {
    #[test]
    fn a_device_is_seen_once_and_only_if_it_is_there(list in lists(), order in proptest::option::of(".{0,12}")) {
        for cards in [cards(), cut_cards(), Vec::new()] {
            let seats = cuda(&cards, Some(&list), order.as_deref());
            for (at, (card, instance)) in seats.iter().enumerate() {
                prop_assert!(!seats[..at].contains(&(*card, *instance)));
                let own = cards[*card].instances.as_ref().map(Vec::len);
                prop_assert_eq!(own.is_some(), instance.is_some());
                prop_assert!(instance.is_none_or(|instance| instance < own.unwrap_or(0) && seats.len() == 1));
            }
        }
    }

    #[test]
    fn a_list_is_cut_at_its_first_fault(numbers in proptest::collection::vec(0_usize..6, 1..6)) {
        let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let valid = numbers.iter().take_while(|number| **number < 4).copied().collect::<Vec<_>>();
        let repeated = (0..valid.len()).find(|at| valid[..*at].contains(&valid[*at]));
        let seen = cuda(&cards(), Some(&list), Some("PCI_BUS_ID"));
        prop_assert_eq!(seen, if repeated.is_some() { Vec::new() } else { whole(&valid) });
        prop_assert_eq!(hip(&amd(), Some(&list), None, None), valid[..repeated.unwrap_or(valid.len())].to_vec());
    }

    #[test]
    fn amd_devices_are_seen_once_and_only_if_rocr_left_them(
        rocr in proptest::option::of(lists()), own in proptest::option::of(lists()), cuda in proptest::option::of(lists())
    ) {
        let left = hip(&amd(), rocr.as_deref(), None, None);
        let seen = hip(&amd(), rocr.as_deref(), own.as_deref(), cuda.as_deref());
        for (at, position) in seen.iter().enumerate() {
            prop_assert!(!seen[..at].contains(position) && left.contains(position));
        }
    }
}
