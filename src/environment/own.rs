//! What this process knows of itself and of its host without any launcher's variable.

use std::path::PathBuf;

/// How many ancestors are looked at: far more than any launcher stacks up.
const ANCESTOR_LIMIT: usize = 64;

/// A process: this one or an ancestor of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnProcess {
    /// Its number.
    pub pid: u32,
    /// The name of its program, cut by the kernel to 15 letters.
    pub name: String,
    /// When it started, in clock ticks after boot.
    pub start_ticks: u64,
}

/// What the reading of variables needs to know besides them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnFacts {
    /// The user's number.
    pub uid: u32,
    /// `XDG_RUNTIME_DIR`, if it is an existing folder of this user.
    pub runtime_folder: Option<PathBuf>,
    /// The temporary folder.
    pub temporary_folder: PathBuf,
    /// The host's name.
    pub host_name: String,
    /// This process and its ancestors, this process first; empty where `/proc` does not tell.
    pub processes: Vec<OwnProcess>,
    /// Whether process numbers here are those that a launcher outside sees: no container has numbers of its own.
    pub sees_launchers: bool,
}

impl OwnFacts {
    /// The facts of this process.
    #[must_use]
    pub fn read() -> Self {
        use std::os::unix::fs::MetadataExt;
        // The owner of a process's own folder there is its effective user.
        let uid = std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
        let runtime_folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
            path.is_absolute()
                && std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid)
        });
        // A relative TMPDIR, or an empty one, would be another folder in each process.
        let temporary_folder = Some(std::env::temp_dir()).filter(|path| path.is_absolute());
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let processes = processes();
        Self {
            uid,
            runtime_folder,
            temporary_folder: temporary_folder.unwrap_or_else(|| "/tmp".into()),
            host_name: host_name.trim().to_owned(),
            sees_launchers: in_first_namespace() || processes.iter().any(|one| one.name == "slurmstepd"),
            processes,
        }
    }

    /// The folder of this user alone in which runs of one host meet.
    #[must_use]
    pub fn private_folder(&self) -> PathBuf {
        match &self.runtime_folder {
            Some(folder) => folder.join("uform"),
            None => self.temporary_folder.join(format!("uform-{}", self.uid)),
        }
    }

    pub(super) fn private_folder_origin(&self) -> &'static str {
        if self.runtime_folder.is_some() {
            "default under XDG_RUNTIME_DIR, as the launcher says that there is one host"
        } else {
            "default under the temporary folder, as the launcher says that there is one host"
        }
    }

    /// How many generations away this process is from the one with this number: 0 for itself, `None` for none.
    pub(super) fn distance(&self, pid: u32) -> Option<usize> {
        self.processes.iter().position(|process| process.pid == pid)
    }

    /// The nearest ancestor that runs one of these programs, and its distance.
    pub(super) fn starter(&self, names: &[&str]) -> Option<(usize, &OwnProcess)> {
        let found = self.processes.iter().enumerate().skip(1);
        let is_one = |process: &OwnProcess| names.iter().any(|name| process.name == cut(name));
        found.into_iter().find(|(_, process)| is_one(process))
    }
}

/// A program's name as the kernel keeps it.
fn cut(name: &str) -> &str {
    name.get(..15).unwrap_or(name)
}

/// The kernel's first namespace of process numbers has this fixed number.
fn in_first_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.to_string_lossy() == "pid:[4026531836]")
}

fn processes() -> Vec<OwnProcess> {
    let mut found = Vec::new();
    let mut pid = std::process::id();
    while pid > 0 && found.len() < ANCESTOR_LIMIT {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { break };
        let Some((process, parent)) = read_stat(pid, &stat) else { break };
        found.push(process);
        pid = parent;
    }
    found
}

/// The process and the number of its parent, from a line of `/proc/<pid>/stat`.
fn read_stat(pid: u32, stat: &str) -> Option<(OwnProcess, u32)> {
    // The name may hold parentheses and spaces itself: the last parenthesis ends it.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let mut fields = tail.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    // Field 22 of the line; the parent is field 4.
    let start_ticks = fields.nth(17)?.parse().ok()?;
    Some((OwnProcess { pid, name, start_ticks }, parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_comes_first_and_its_parent_next() {
        let facts = OwnFacts::read();
        assert_eq!(facts.processes[0].pid, std::process::id());
        assert_eq!(facts.processes[1].pid, std::os::unix::process::parent_id());
        assert_eq!(facts.distance(std::process::id()), Some(0));
        assert_eq!(facts.distance(u32::MAX), None);
        let parent = facts.processes[1].name.clone();
        assert_eq!(facts.starter(&[&parent]).map(|(distance, _)| distance), Some(1));
        assert!(!facts.host_name.is_empty());
    }

    #[test]
    fn a_name_may_hold_anything() {
        let line = "7 (a (b) c) S 3 7 7 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 1 0 4711 99 0";
        let (process, parent) = read_stat(7, line).expect("a line");
        assert_eq!((process.name.as_str(), process.start_ticks, parent), ("a (b) c", 4711, 3));
        assert_eq!(read_stat(7, "7 (a) S"), None);
    }
}
