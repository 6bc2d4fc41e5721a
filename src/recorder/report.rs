//! The report that a member leaves in which a call has failed: who was where.

use std::fmt::Write;
use std::path::Path;

use super::read;
use super::stacks::{self, Answer};
use crate::error::{Error, Result};
use crate::sys::file;

/// Writes what this member saw, beside its record and after what it wrote before; the members of this host are asked for their
/// stacks first.
pub(super) fn write(folder: &Path, record: &Path, index: usize, error: &Error) {
    let answers = stacks::gather(folder, record);
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
    if answers.iter().any(|(_, answer)| matches!(answer, Answer::Given(_) | Answer::Silent | Answer::Stopped))
    {
        text.push_str("\nStacks of the interpreters:\n");
        for (index, answer) in answers {
            let _ = writeln!(text, "  index {index}: {answer}");
        }
    }
    text.push('\n');
    if let Err(error) = put(&record.with_extension("txt"), &text) {
        tracing::warn!("index {index} leaves no report: {}", error.chain());
    }
}

fn put(path: &Path, text: &str) -> Result<()> {
    let mut target = file::append(path)?;
    std::io::Write::write_all(&mut target, text.as_bytes()).map_err(|source| Error::io(path, "write", source))
}
