//! Host lists and counts of launchers on whatever the fuzzer thinks of.
#![no_main]

use uform::environment::hostlist;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(names) = hostlist::expand(text, "SLURM_JOB_NODELIST") {
        assert!(!names.is_empty() && names.len() <= hostlist::NAME_LIMIT);
    }
    if let Ok(counts) = hostlist::Counts::parse(text, "SLURM_TASKS_PER_NODE") {
        assert_eq!(counts.of(counts.host_count()), None);
        let _ = counts.total();
    }
});
