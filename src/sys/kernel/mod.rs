//! Arithmetic over plain memory: loops that the callers cut into pieces and spread over threads.
//!
//! Each loop is written once and compiled for each CPU class with that class's instructions. Rooms above see a [`Table`]
//! alone, and no instruction set.

mod class;
pub mod gpu;
mod lane;
pub mod optimizer;
pub mod reduce;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use table::{COMPILED, Table};
