//! Arithmetic over plain memory: loops that the callers cut into pieces and spread over threads.

pub mod optimizer;
pub mod reduce;
mod table;

pub use table::{COMPILED, Table};
