//! Runs members under the real mpirun of the MPI that this build is linked to: the test binary starts itself through it.

#![allow(
    dead_code,
    reason = "the harness and the conformance suite are whole, and this binary uses a part of them"
)]

mod member;
mod run;

#[path = "../harness/mod.rs"]
mod harness;

/// The conformance suite of communicators, as the other test binary has it.
#[path = "../conformance"]
mod conformance {
    pub(crate) mod communicator;
    pub(crate) mod members;
    pub(crate) mod parts;
}

/// The roles of the modules that are shared; mpirun starts the members of this binary's own.
const ROLES: &[&[(&str, harness::Role)]] = &[harness::ROLES, conformance::communicator::ROLES];
