//! Where the files of a run's records lie, and how many runs are kept.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::read;
use crate::error::{Error, Result};
use crate::sys::file::Folder;
use crate::sys::mapped::Mapped;
use crate::sys::process;

/// How many runs that have ended are kept in the folder of a user, the newest.
pub const KEPT_RUNS: usize = 8;
/// Members of one index and process: threads, or one mesh after the other.
const NAMES: usize = 1000;

/// Where a record is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A folder for runs; made where only its last component is absent.
    pub folder: PathBuf,
    /// The user's folder within it, for a folder that others write too.
    pub user: Option<String>,
    /// The name of the run's folder, the same for all its members and for no other run.
    pub run: String,
    /// Whether the file goes when the run ends well, and old runs go when another starts.
    pub is_temporary: bool,
    /// Whether this member removes what older runs left: one of each host.
    pub reclaims: bool,
}

impl Place {
    /// Makes the file of one member.
    pub(super) fn create(&self, index: usize, pid: u32, byte_count: usize) -> Result<(Mapped, PathBuf)> {
        let root = Folder::root(&self.folder)?;
        let root = self.user.as_deref().map_or(Ok(root), |user| Folder::root(&self.folder)?.make(user))?;
        let name = legal(&self.run);
        if self.is_temporary && self.reclaims {
            reclaim(&root, &name);
        }
        let folder = root.make(&name)?;
        for number in 0..NAMES {
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            let path = folder.path().join(format!("index-{index}.{pid}{suffix}.calls"));
            match Mapped::create(&path, byte_count) {
                Ok(map) => return Ok((map, path)),
                Err(error) if is_taken(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::invalid("index", index, "record", format!("has {NAMES} records in {}", self.run)))
    }
}

fn is_taken(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
}

/// A name for a folder, of any name of a run.
fn legal(name: &str) -> String {
    let is_legal = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let name = name.chars().map(|letter| if is_legal(letter) { letter } else { '_' }).collect::<String>();
    let start = name.len().saturating_sub(120);
    let name = name[start..].trim_start_matches('.');
    if name.is_empty() { "run".to_owned() } else { name.to_owned() }
}

/// Removes a file, and its folder if it was the last one.
pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
    if let Some(folder) = path.parent() {
        let _ = std::fs::remove_dir(folder);
    }
}

/// Removes the oldest runs of which no member lives, so that the new one is the last that is kept.
fn reclaim(root: &Folder, own: &str) {
    let mut ended = Vec::new();
    for name in root.list().unwrap_or_default() {
        if name != own && !is_running(&root.path().join(&name)) {
            let changed = std::fs::metadata(root.path().join(&name)).and_then(|found| found.modified());
            ended.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), name));
        }
    }
    ended.sort();
    let surplus = ended.len().saturating_sub(KEPT_RUNS - 1);
    ended.iter().take(surplus).for_each(|(_, name)| root.remove_tree(name));
}

fn is_running(folder: &Path) -> bool {
    let boot_id = process::boot_id().unwrap_or_default();
    let mut records = read::heads(folder).into_iter().map(|head| head.identity);
    // A record of another kernel is of a host that is not here, or of a time before this one was started.
    records.any(|one| one.boot_id == boot_id && process::is_alive(one.pid, one.start_ticks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Identity, Recorder};

    #[test]
    fn of_runs_that_were_killed_the_newest_are_kept_and_living_ones_are_left_alone() {
        let nonce = crate::sys::random::nonce().expect("random");
        let folder = std::env::temp_dir().join(format!("uform-folder-{nonce}"));
        std::fs::create_dir(&folder).expect("made");
        let open = |number: usize, identity: &Identity| {
            let place = Place {
                folder: folder.clone(),
                user: Some("records".to_owned()),
                run: format!("run {number}"),
                is_temporary: true,
                reclaims: true,
            };
            Recorder::open(identity, Some(&place)).expect("memory is free")
        };
        let pid = process::pid();
        let own = Identity {
            pid,
            start_ticks: process::start_ticks(pid).expect("it lives"),
            boot_id: process::boot_id().expect("it runs"),
            ..Identity::default()
        };
        let living = open(0, &own);
        // A record that is forgotten is what a kill leaves.
        (1..=12).for_each(|number| std::mem::forget(open(number, &Identity::default())));
        let names = || {
            let entries = std::fs::read_dir(folder.join("records")).expect("there").flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let kept = names();
        assert_eq!(kept.len(), KEPT_RUNS + 1, "{kept:?}");
        assert!(["run_0", "run_12"].iter().all(|name| kept.iter().any(|kept| kept == name)), "{kept:?}");
        living.close();
        assert!(!names().contains(&"run_0".to_owned()), "it has ended well");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
