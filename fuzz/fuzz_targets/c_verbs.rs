//! The verbs of the C interface on whatever the fuzzer thinks of.
#![no_main]

#[path = "../../crates/uform-c/tests/fuzz_body.rs"]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_body::run(data));
