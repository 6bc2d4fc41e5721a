//! What one member says of itself, on whatever the fuzzer thinks of, and the topology of a run with it.
#![no_main]

#[path = "../run.rs"]
mod run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some(introduction) = uform::rendezvous::hostile::read_member(data) else { return };
    let mut own = introduction.clone();
    own.process.pid = own.process.pid.wrapping_add(1);
    run::derive(vec![own, introduction]);
});
