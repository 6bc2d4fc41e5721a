//! Names of runs: what tells one start of a program from every other.

use super::Sourced;
use super::reading::Reading;

/// Variables that hold the id of a batch job.
const BATCH: [(&str, &str); 4] =
    [("slurm", "SLURM_JOB_ID"), ("lsf", "LSB_JOBID"), ("pbs", "PBS_JOBID"), ("flux", "FLUX_JOB_ID")];

/// The name of the batch job that this process runs in.
pub(super) fn of_batch(reading: &Reading<'_>) -> Option<Sourced<String>> {
    let found = BATCH.iter().find_map(|(system, name)| Some((system, name, reading.glance(name)?)));
    found.map(|(system, name, id)| Sourced::new(format!("{system}-{id}"), *name))
}

/// A short word that stands for a long one (FNV-1a), where the long one is nobody's business.
pub(super) fn digest(text: &str) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.bytes().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Whether a text is a UUID, which nobody draws twice.
pub(super) fn is_uuid(text: &str) -> bool {
    let parts = text.split('-').map(str::len);
    parts.eq([8, 4, 4, 4, 12]) && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_told_from_names() {
        assert!(is_uuid("3f2b8c1e-9d4a-4c6b-8f0e-7a1b2c3d4e5f"));
        for other in [
            "none",
            "",
            "12345",
            "3f2b8c1e-9d4a-4c6b-8f0e-7a1b2c3d4e5",
            "zf2b8c1e-9d4a-4c6b-8f0e-7a1b2c3d4e5f",
        ] {
            assert!(!is_uuid(other), "{other}");
        }
        assert_eq!(digest("").len(), 16);
        assert_ne!(digest("a"), digest("b"));
    }
}
