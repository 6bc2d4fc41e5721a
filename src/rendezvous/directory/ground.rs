//! What the protocol stands on: folders of records, random names and keys, and the life of processes.
//!
//! The machine's is here; the tests put a simulated one in its place, so that the same protocol meets every fault of
//! a file system and of a schedule.

use std::cell::RefCell;
use std::fmt::{Debug, Display, Formatter};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::rendezvous::record::{Identity, Life};
use crate::sys::{file, process, random};
use crate::vocabulary::Nonce;

/// An open folder of [`Ground`]; its operations mean what those of [`file::Folder`] mean.
pub(super) type Folder = Box<dyn Place>;

/// What the protocol does in a folder.
pub(super) trait Place: Debug + Send {
    fn path(&self) -> &Path;
    fn open(&self, name: &str) -> Result<Folder>;
    fn make(&self, name: &str) -> Result<Folder>;
    fn list(&self) -> Result<Vec<String>>;
    fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>>;
    fn objection(&self, name: &str) -> Option<String>;
    fn create(&self, name: &str, payload: &[u8]) -> Result<bool>;
    fn remove(&self, name: &str);
    fn remove_hidden(&self);
    fn remove_empty(&self, name: &str) -> bool;
    fn remove_tree(&self, name: &str);
}

/// Where a meeting takes place.
pub(super) trait Ground: Debug + Send + Sync {
    fn root(&self, path: &Path) -> Result<Folder>;
    fn nonce(&self) -> Result<Nonce>;
    fn key(&self) -> Result<[u8; 32]>;
    /// Whether a process of this host and namespace lives.
    fn is_alive(&self, pid: u32, start_ticks: u64) -> bool;
}

/// This machine, and the directories that it sees.
#[derive(Debug)]
pub(super) struct Machine;

/// An operation on a file or folder, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slow {
    operation: &'static str,
    path: PathBuf,
    took: Duration,
}

impl Display for Slow {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        let Self { operation, path, took } = self;
        write!(formatter, "took {:.2} s to {operation} {}", took.as_secs_f64(), path.display())
    }
}

thread_local! {
    /// The slowest operation of this thread's meeting.
    static SLOWEST: RefCell<Option<Slow>> = const { RefCell::new(None) };
}

/// Begins to watch for the slowest operation of this thread.
pub(super) fn forget_slowest() {
    SLOWEST.set(None);
}

/// The slowest operation of this thread, if it took a part of the time waited so far that matters.
pub(super) fn slowest(waited: Duration) -> Option<Slow> {
    // Below a tenth of a second a disk may be busy, and from a twentieth of the wait on it was not the disk alone.
    let matters = |slow: &Slow| slow.took >= Duration::from_millis(100) && slow.took * 20 >= waited;
    SLOWEST.with_borrow(Clone::clone).filter(matters)
}

/// Does an operation on a name in a folder, and takes its time.
fn timed<T>(operation: &'static str, folder: &Path, name: &str, act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = act();
    let took = start.elapsed();
    SLOWEST.with_borrow_mut(|slowest| {
        if slowest.as_ref().is_none_or(|known| known.took < took) {
            let path = if name.is_empty() { folder.to_owned() } else { folder.join(name) };
            *slowest = Some(Slow { operation, path, took });
        }
    });
    done
}

impl Ground for Machine {
    fn root(&self, path: &Path) -> Result<Folder> {
        Ok(Box::new(timed("open", path, "", || file::Folder::root(path))?))
    }

    fn nonce(&self) -> Result<Nonce> {
        random::nonce()
    }

    fn key(&self) -> Result<[u8; 32]> {
        random::bytes()
    }

    fn is_alive(&self, pid: u32, start_ticks: u64) -> bool {
        process::is_alive(pid, start_ticks)
    }
}

impl Place for file::Folder {
    fn path(&self) -> &Path {
        self.path()
    }

    fn open(&self, name: &str) -> Result<Folder> {
        Ok(Box::new(timed("open", self.path(), name, || self.open(name))?))
    }

    fn make(&self, name: &str) -> Result<Folder> {
        Ok(Box::new(timed("make and open", self.path(), name, || self.make(name))?))
    }

    fn list(&self) -> Result<Vec<String>> {
        timed("list", self.path(), "", || self.list())
    }

    fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        timed("read", self.path(), name, || self.read(name, limit))
    }

    fn objection(&self, name: &str) -> Option<String> {
        self.objection(name)
    }

    fn create(&self, name: &str, payload: &[u8]) -> Result<bool> {
        timed("create", self.path(), name, || self.create(name, payload))
    }

    fn remove(&self, name: &str) {
        timed("remove", self.path(), name, || self.remove(name));
    }

    fn remove_hidden(&self) {
        timed("clean", self.path(), "", || self.remove_hidden());
    }

    fn remove_empty(&self, name: &str) -> bool {
        timed("remove", self.path(), name, || self.remove_empty(name))
    }

    fn remove_tree(&self, name: &str) {
        timed("remove", self.path(), name, || self.remove_tree(name));
    }
}

/// This process as a member, and as one that looks at others.
#[derive(Clone, Debug)]
pub(super) struct Own {
    identity: Identity,
    ground: Arc<dyn Ground>,
}

impl Own {
    pub(super) fn new(identity: Identity, ground: Arc<dyn Ground>) -> Self {
        Self { identity, ground }
    }

    pub(super) fn ground(&self) -> &dyn Ground {
        &*self.ground
    }

    /// Whether `other` lives, as far as this process can see.
    pub(super) fn life_of(&self, other: &Identity) -> Life {
        let near = self.process.boot_id == other.process.boot_id
            && self.namespace == other.namespace
            && !self.namespace.is_empty();
        if !near {
            Life::Unknown
        } else if self.ground.is_alive(other.process.pid, other.process.start_ticks) {
            Life::Alive
        } else {
            Life::Dead
        }
    }

    /// Where another process is and whether it lives, for a last word.
    pub(super) fn describe(&self, other: &Identity) -> String {
        let life = match self.life_of(other) {
            Life::Alive => "alive",
            Life::Dead => "dead",
            Life::Unknown => "not visible from here",
        };
        format!("host {}, pid {}, {life}", other.process.host_name, other.process.pid)
    }
}

impl Deref for Own {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}
