//! Adds up one array over the processes of a run.
fn main() {}
