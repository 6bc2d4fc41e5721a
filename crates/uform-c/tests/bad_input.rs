//! The C verbs on wrong types, sizes, handles and orders of calls: always a status, never a crash.

use proptest::prelude::*;

use super::fuzz_body;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_ends_in_statuses(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        fuzz_body::run(&bytes);
    }
}

#[test]
fn a_sequence_of_nothing_makes_and_frees_a_mesh() {
    fuzz_body::run(&[]);
}

#[test]
fn one_byte_over_and_over_calls_one_verb_in_one_way() {
    for byte in 0..=u8::MAX {
        fuzz_body::run(&[byte; 300]);
    }
}
