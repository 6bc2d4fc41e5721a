//! Host memory between hosts over MPI, for jobs that run under it. MPI moves bytes only; reductions are ours.
//!
//! What members say to each other, and in which order they add, is that of `tcp`: MPI takes the place of its connections.
//! A member that dies is seen where its launcher leaves the others alive and its library tells; else the deadline names it.

use std::sync::Arc;

use super::Communicator;
use super::carrier::Carrier;
use super::tcp::{Links, TcpCommunicator};
use crate::error::Result;
use crate::sys::mpi::{self, Medium, World};
use crate::topology::{Group, Roster};

/// Joins a group of members whose ranks in `world` are their indexes. Nothing is said for it.
///
/// A world carries one group.
///
/// # Errors
/// `Invalid` for a group that this member has no seat in, or that has a member outside of the roster.
pub fn join(world: &World, roster: &Roster, group: &Group) -> Result<Arc<TcpCommunicator>> {
    of_links(links(world, roster, group)?, |links| TcpCommunicator::join(links, group))
}

/// Joins with pieces of another size, which may differ between members.
///
/// # Errors
/// As [`join`].
pub fn join_with(
    world: &World,
    roster: &Roster,
    group: &Group,
    piece_bytes: usize,
) -> Result<Arc<TcpCommunicator>> {
    of_links(links(world, roster, group)?, |links| TcpCommunicator::join_with(links, group, piece_bytes))
}

fn links(world: &World, roster: &Roster, group: &Group) -> Result<Links> {
    let channel = |rank: usize, medium: Medium| Carrier::Mpi(world.channel(rank, medium));
    let channels =
        |rank: usize| [Medium::Control, Medium::Data, Medium::Pair].map(|medium| channel(rank, medium));
    Links::of_mpi(roster, world.rank(), &group.seats, channels)
}

fn of_links(
    links: Links,
    join: impl FnOnce(Links) -> Result<Arc<TcpCommunicator>>,
) -> Result<Arc<TcpCommunicator>> {
    let joined = join(links)?;
    let left = Arc::downgrade(&joined);
    // One that is still open when the process ends: those that wait for it are told.
    mpi::before_end(move || {
        if let Some(group) = left.upgrade() {
            group.close();
        }
    });
    Ok(joined)
}
