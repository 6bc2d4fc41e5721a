//! Where the records of calls are kept.

use std::path::PathBuf;

use super::own::OwnFacts;
use crate::error::{Error, Result};

/// The variable that names the folder of records.
pub const RECORD_VARIABLE: &str = "UFORM_RECORD";

/// A folder for the records of runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records {
    /// The folder.
    pub folder: PathBuf,
    /// The name of this user's folder within it, where others write too.
    pub user: Option<String>,
    /// Whether somebody asked for it: then the records stay after every end.
    pub is_chosen: bool,
}

impl Records {
    /// The folder in which each run has one of its own.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.user.as_ref().map_or_else(|| self.folder.clone(), |user| self.folder.join(user))
    }
}

/// The folder that the variable names, or one of this user under `XDG_RUNTIME_DIR` or the temporary folder.
///
/// # Errors
/// `Invalid` for a relative path.
pub fn records() -> Result<Records> {
    if let Some(value) = std::env::var_os(RECORD_VARIABLE).filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(value);
        if folder.is_relative() {
            let reason = "must be an absolute path of a folder";
            return Err(Error::invalid(RECORD_VARIABLE, folder.display(), "environment", reason));
        }
        return Ok(Records { folder, user: None, is_chosen: true });
    }
    let own = OwnFacts::read();
    let (folder, user) = match own.runtime_folder {
        Some(folder) => (folder, "uform-records".to_owned()),
        None => (own.temporary_folder, format!("uform-records-{}", own.uid)),
    };
    Ok(Records { folder, user: Some(user), is_chosen: false })
}
