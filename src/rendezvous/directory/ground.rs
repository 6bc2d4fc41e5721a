//! What the protocol stands on: folders of records, random names and keys, and the life of processes.
//!
//! The machine's is here; the tests put a simulated one in its place, so that the same protocol meets every fault of
//! a file system and of a schedule.

use std::fmt::Debug;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

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

impl Ground for Machine {
    fn root(&self, path: &Path) -> Result<Folder> {
        Ok(Box::new(file::Folder::root(path)?))
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
        Ok(Box::new(self.open(name)?))
    }

    fn make(&self, name: &str) -> Result<Folder> {
        Ok(Box::new(self.make(name)?))
    }

    fn list(&self) -> Result<Vec<String>> {
        self.list()
    }

    fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        self.read(name, limit)
    }

    fn objection(&self, name: &str) -> Option<String> {
        self.objection(name)
    }

    fn create(&self, name: &str, payload: &[u8]) -> Result<bool> {
        self.create(name, payload)
    }

    fn remove(&self, name: &str) {
        self.remove(name);
    }

    fn remove_hidden(&self) {
        self.remove_hidden();
    }

    fn remove_empty(&self, name: &str) -> bool {
        self.remove_empty(name)
    }

    fn remove_tree(&self, name: &str) {
        self.remove_tree(name);
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
