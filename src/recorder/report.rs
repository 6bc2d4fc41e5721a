//! The report that a member leaves in which a call has failed: who was where.

use std::fmt::Write;
use std::path::Path;

use super::read;
use crate::error::Error;

/// Writes what this member saw.
pub(super) fn write(folder: &Path, index: usize, pid: u32, error: &Error) {
    let (records, damages) = read::read_folder(folder);
    let mut text = format!("index {index}: {}\n", error.chain());
    if let Error::TimedOut { missing, .. } = error {
        for one in missing {
            let _ = writeln!(text, "  missing index {}: {}", one.index, one.last_word);
        }
    }
    let _ = writeln!(text, "\nWhere the members were, by their records in this folder:");
    for record in &records {
        let _ = writeln!(text, "  index {}: {}", record.identity.index, record.last_words());
    }
    for damage in damages {
        let _ = writeln!(text, "  {}", damage.chain());
    }
    let path = folder.join(format!("index-{index}.{pid}.txt"));
    if let Err(source) = std::fs::write(&path, text) {
        tracing::warn!("index {index} leaves no report: {}", Error::io(path, "write", source).chain());
    }
}
