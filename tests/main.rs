//! The one integration binary.

mod conformance;
mod contract;
mod device;
mod failure;
mod harness;
mod vendor;

/// The roles of all modules; a module adds its own table as one line.
const ROLES: &[&[(&str, harness::Role)]] = &[
    harness::ROLES,
    conformance::arrays::ROLES,
    conformance::ccl::ROLES,
    conformance::communicator::ROLES,
    conformance::deferred::ROLES,
    conformance::gpu::ROLES,
    conformance::gpus::ROLES,
    conformance::group::ROLES,
    conformance::large::ROLES,
    conformance::multicast::ROLES,
    conformance::remote::ROLES,
    conformance::threads::ROLES,
    conformance::trainer::ROLES,
    conformance::vram::ROLES,
    contract::machines::ROLES,
    device::ROLES,
    failure::communicator::ROLES,
    failure::crossed::ROLES,
    failure::device::ROLES,
    failure::fork::ROLES,
    failure::hosts::ROLES,
    failure::limits::ROLES,
    failure::mesh::ROLES,
    failure::network::ROLES,
    failure::nfs_like::ROLES,
    failure::odd::ROLES,
    failure::pairs::ROLES,
    failure::rendezvous::ROLES,
    failure::sandbox::ROLES,
    failure::shrink::ROLES,
    failure::soak::ROLES,
    failure::verbs::ROLES,
];
