//! A folder as a client of NFS sees it (`tests/c/nfs_like`): built once, and loaded into a test's processes, each a client of its own.

use std::path::Path;

use super::Setup;
use super::stand_in::build;

/// How bad the mount is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NfsLike {
    /// How long names, absent names, attributes and listings are believed.
    pub(crate) seconds: f64,
    /// Of a thousand opens, listings and reads, how many answer ESTALE.
    pub(crate) stale: u32,
    /// Of a thousand creations and removals, how many are made and answered as if they had been made before.
    pub(crate) lost: u32,
    /// How many milliseconds every open takes.
    pub(crate) slow: u32,
}

impl NfsLike {
    /// A run that meets in `folder`, which its processes see so.
    pub(crate) fn apply(self, setup: Setup, folder: &Path) -> Setup {
        setup
            .meeting(folder)
            .variable("LD_PRELOAD", &build("nfs_like", &[]).display().to_string())
            .variable("NFS_LIKE_FOLDER", &folder.display().to_string())
            .variable("NFS_LIKE_SECONDS", &self.seconds.to_string())
            .variable("NFS_LIKE_STALE", &self.stale.to_string())
            .variable("NFS_LIKE_LOST", &self.lost.to_string())
            .variable("NFS_LIKE_SLOW", &self.slow.to_string())
    }
}
