//! Environment variables as a value, and how single ones are read and refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use super::Sourced;
use crate::error::{Error, Result};

/// The environment variables of a process, as a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Variables(BTreeMap<OsString, OsString>);

impl Variables {
    /// Those of this process, as they are now.
    #[must_use]
    pub fn read() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// The value of one variable, if it is set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&OsString> {
        self.0.get(std::ffi::OsStr::new(name))
    }

    /// The value of one variable, if it is set and is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.to_str()
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Variables {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// One look at the variables.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a>(pub(super) &'a Variables);

impl<'a> Reading<'a> {
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.0.get(name).is_some()
    }

    /// The first of these that is set.
    pub(super) fn first_set(&self, names: &[&'static str]) -> Option<&'static str> {
        names.iter().copied().find(|name| self.is_set(name))
    }

    /// The value, where it does not matter what else it could be: not set, empty and not text are the same.
    pub(super) fn glance(&self, name: &str) -> Option<&'a str> {
        self.0.text(name).filter(|text| !text.is_empty())
    }

    /// A path; empty is refused.
    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        match self.0.get(name) {
            Some(value) if value.is_empty() => Err(empty(name)),
            other => Ok(other.map(PathBuf::from)),
        }
    }

    /// A text; empty and not UTF-8 are refused.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        match value.to_str() {
            Some("") => Err(empty(name)),
            Some(text) => Ok(Some(text.to_owned())),
            None => Err(Error::invalid(name, value.to_string_lossy(), "environment", "is not UTF-8")),
        }
    }

    /// A number of 0 or more, digits only.
    pub(super) fn number(&self, name: &str) -> Result<Option<Sourced<usize>>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<usize>() {
            Ok(value) if digits => Ok(Some(Sourced::new(value, name))),
            _ => Err(Error::invalid(name, text, "environment", "must be a number, 0 or more")),
        }
    }

    /// The number of the first of these that is set.
    pub(super) fn first_number(&self, names: &[&'static str]) -> Result<Option<Sourced<usize>>> {
        self.first_set(names).map_or(Ok(None), |name| self.number(name))
    }

    /// A number that must be there, because `beside` is.
    pub(super) fn required(&self, name: &str, beside: &str) -> Result<Sourced<usize>> {
        self.number(name)?.ok_or_else(|| missing(name, beside))
    }
}

pub(super) fn missing(name: &str, beside: &str) -> Error {
    let reason = format!("is missing although {beside} is set: set it too, or unset {beside}");
    Error::invalid(name, "(not set)", "environment", reason)
}

fn empty(name: &str) -> Error {
    Error::invalid(name, "''", "environment", "is empty: give it a value, or unset it")
}
