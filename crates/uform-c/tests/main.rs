//! The C interface against its header, and C programs against the library.

mod bad_input;
mod fuzz_body;
mod harness;
mod header;
mod install;
mod large;
mod layout;
mod program;
