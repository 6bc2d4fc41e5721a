//! Records of a meeting place on whatever the fuzzer thinks of, and the topology of the members in them.
#![no_main]

#[path = "../run.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = uform::topology::Findings::from_bytes(data, 1);
    run::derive(uform::rendezvous::hostile::read(data));
});
