//! The `uform` command.

fn main() {}
