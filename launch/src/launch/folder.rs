//! Where the processes of one launch meet, and the run id they meet under.

use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::Failure;

/// What the names of private folders begin with; the launcher's pid, its start in clock ticks and a nonce follow.
const PREFIX: &str = "uform-launch-";

/// The file in a private folder that its launcher keeps locked as long as it lives.
const LOCK: &str = "launcher.lock";

/// A private folder without a lock file that is younger than this may still be in the making.
const MAKING: Duration = Duration::from_secs(600);

/// A directory and a run id.
pub(super) struct Meeting {
    directory: Option<PathBuf>,
    job: String,
    /// Set for a private folder: keeps other launchers from taking it for abandoned.
    lock: Option<File>,
}

impl Meeting {
    /// Takes the given directory, or makes a private folder where more than one process is to meet.
    pub(super) fn open(given: Option<&Path>, count: usize, job: String) -> Result<Self, Failure> {
        if let Some(given) = given {
            let action = || format!("use --directory {}", given.display());
            let directory = std::path::absolute(given).map_err(|error| Failure::system(action(), error))?;
            if !directory.is_dir() {
                let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
                made.map_err(|error| Failure::system(action(), error))?;
            }
            return Ok(Self { directory: Some(directory), job, lock: None });
        }
        if count == 1 {
            return Ok(Self { directory: None, job, lock: None });
        }
        let mut refusals = Vec::new();
        for base in bases() {
            reclaim(&base);
            match make(&base) {
                Ok((directory, lock)) => {
                    return Ok(Self { directory: Some(directory), job, lock: Some(lock) });
                }
                Err(error) => refusals.push((base, error)),
            }
        }
        let (base, error) =
            refusals.pop().unwrap_or_else(|| (std::env::temp_dir(), ErrorKind::NotFound.into()));
        let action = format!("make a folder in {} (set TMPDIR, or give --directory)", base.display());
        Err(Failure::system(action, error))
    }

    /// The directory, absolute; `None` for a lone process.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The run id, unique to this start.
    pub(super) fn job(&self) -> &str {
        &self.job
    }

    /// Removes what was made for this launch.
    pub(super) fn close(self) {}
}

impl Drop for Meeting {
    fn drop(&mut self) {
        let Some(directory) = &self.directory else { return };
        if self.lock.is_none() {
            // The user's directory stays; what killed processes and death notes left of this run goes.
            if let Err(error) = uform::rendezvous::directory::remove_job(directory, &self.job) {
                tracing::debug!("what run {} left stays: {}", self.job, error.chain());
            }
        } else if let Err(error) = std::fs::remove_dir_all(directory) {
            tracing::warn!(%error, "the folder {} stays", directory.display());
        }
    }
}

/// Folders in which a private one may be made, the best first.
fn bases() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.filter(|path| path.is_absolute() && owned(path));
    runtime.into_iter().chain([std::env::temp_dir()]).collect()
}

/// Whether this is a true folder of this user, no symbolic link.
fn owned(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid)
}

fn make(base: &Path) -> std::io::Result<(PathBuf, File)> {
    let pid = std::process::id();
    let ticks = uform::sys::process::start_ticks(pid).unwrap_or(0);
    let nonce = uform::sys::random::nonce().map_err(std::io::Error::other)?;
    let directory = std::path::absolute(base)?.join(format!("{PREFIX}{pid}-{ticks}-{nonce}"));
    DirBuilder::new().mode(0o700).create(&directory)?;
    let locked = || {
        // Locked under another name first: whoever sees the lock file finds it locked.
        let early = directory.join("launcher.early");
        let lock = File::create_new(&early)?;
        lock.lock()?;
        std::fs::rename(&early, directory.join(LOCK))?;
        Ok(lock)
    };
    match locked() {
        Ok(lock) => Ok((directory, lock)),
        Err(error) => {
            // The first error is the one to tell of.
            let _ = std::fs::remove_dir_all(&directory);
            Err(error)
        }
    }
}

/// Removes the private folders of launchers of this user that were killed.
fn reclaim(base: &Path) {
    let Ok(entries) = std::fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if is_private_name(&entry.file_name().to_string_lossy()) && owned(&path) && is_abandoned(&path) {
            tracing::debug!("removing {}, left by a killed launcher", path.display());
            // Another launcher may be removing it too.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn is_private_name(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(|rest| {
        let parts: Vec<&str> = rest.split('-').collect();
        parts.len() == 3 && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

/// Whether the lock is free, or was never there.
///
/// The lock and not the pid decides, since a live launcher's pid may be of another container's count.
fn is_abandoned(folder: &Path) -> bool {
    match File::open(folder.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let age = folder.symlink_metadata().and_then(|found| found.modified()).map(|time| time.elapsed());
            age.is_ok_and(|age| age.is_ok_and(|age| age > MAKING))
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_abandoned_when_its_lock_is_free() {
        let base = std::env::temp_dir().join(format!("uform-folder-test-{}", std::process::id()));
        std::fs::create_dir(&base).expect("made");
        let (folder, lock) = make(&base).expect("made");
        assert_eq!(folder.metadata().expect("there").mode() & 0o777, 0o700);
        assert!(is_private_name(&folder.file_name().expect("named").to_string_lossy()));
        std::fs::create_dir(base.join("uform-launch-other")).expect("made");
        reclaim(&base);
        assert!(folder.exists(), "a live launcher keeps its folder");
        drop(lock);
        reclaim(&base);
        assert!(!folder.exists());
        assert!(base.join("uform-launch-other").exists(), "a foreign name stays");
        std::fs::remove_dir_all(&base).expect("removed");
    }

    #[test]
    fn a_lone_process_needs_no_folder() {
        let meeting = Meeting::open(None, 1, "job".into()).expect("nothing can fail");
        assert_eq!(meeting.directory(), None);
    }
}
