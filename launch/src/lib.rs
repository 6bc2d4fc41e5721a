//! The commands of `uform`.
