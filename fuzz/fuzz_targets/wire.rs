//! What members send each other over sockets, on whatever the fuzzer thinks of.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| uform::communicator::hostile::read(data));
