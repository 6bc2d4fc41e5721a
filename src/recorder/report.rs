//! The report that a member leaves which a call has failed: who was where, and a call for the stacks of all that can give them.

use std::fmt::Write;
use std::path::Path;

use super::layout::FILE_BYTES;
use super::read;
use crate::error::Error;
use crate::sys::process;

/// Asks all members of this host for their stacks, and writes what this member saw.
pub(super) fn write(folder: &Path, index: usize, pid: u32, error: &Error) {
    let (records, damages) = read::read_folder(folder);
    let boot_id = process::boot_id().unwrap_or_default();
    for record in &records {
        let identity = &record.identity;
        let is_here = identity.boot_id == boot_id && process::is_alive(identity.pid, identity.start_ticks);
        // Once: the stacks lie behind the record.
        if record.signal != 0 && is_here && record.byte_count <= FILE_BYTES as u64 {
            process::signal(identity.pid, record.signal);
        }
    }
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
