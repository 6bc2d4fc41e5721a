//! Joining members of different hosts: each listens where others can reach it, tells them, and connects to all.

use std::sync::Arc;

use super::group::{Between, apart};
use super::phase;
use crate::communicator::Communicator;
use crate::communicator::mpi;
use crate::communicator::shared::Proof;
use crate::communicator::tcp::{Links, Listener, Publication, Published, Run, Selection, TcpCommunicator};
use crate::communicator::tiered::TieredCommunicator;
use crate::environment::interface::{self, INTERFACES_VARIABLE, Network};
use crate::error::Result;
use crate::rendezvous::Exchange;
use crate::sys::socket::Namespaces;
use crate::sys::{Deadline, network};
use crate::topology::{Address, Group, Host, Listening, Roster, Topology};

/// What this process's variables say about the network.
pub(super) fn read() -> Result<Network> {
    interface::network(&network::summary)
}

/// Connects all members of a run over several hosts, over MPI if they met over it; collective. Gives what the members told of
/// their addresses too, by index; nothing over MPI.
///
/// Members that share memory use it among them.
pub(super) fn join(
    exchange: &mut dyn Exchange,
    proof: Proof,
    topology: &Topology,
    group: &Group,
    between: &Between<'_>,
    deadline: &Deadline<'_>,
) -> Result<(Arc<dyn Communicator>, Vec<Listening>)> {
    let roster = exchange.roster().clone();
    let (world, told) = match &between.world {
        Some(world) => (phase("communicators", || mpi::join(world, &roster, group))?, Vec::new()),
        None => connect(exchange, &roster, topology, group, between.network, deadline)?,
    };
    let seats = |host: &Host| host.members.clone();
    let hosts = topology.hosts().iter().map(seats).collect::<Vec<_>>();
    if hosts.len() == group.seats.len() {
        return Ok((world, told));
    }
    let tiered = phase("communicators", || TieredCommunicator::join(world, proof, group, &hosts, deadline))?;
    Ok((tiered, told))
}

/// Connects all members of a group over the network: each listens where others may reach it, and tells them.
fn connect(
    exchange: &mut dyn Exchange,
    roster: &Roster,
    topology: &Topology,
    group: &Group,
    network: &Network,
    deadline: &Deadline<'_>,
) -> Result<(Arc<TcpCommunicator>, Vec<Listening>)> {
    let index = exchange.index();
    let apart = apart(topology).unwrap_or_default();
    let admits =
        |name: &str, address| network.selector.as_ref().is_none_or(|selector| selector.admits(name, address));
    let selection = network.selector.as_ref().map(|selector| Selection {
        variable: INTERFACES_VARIABLE,
        text: selector.text(),
        names_the_chosen: selector.names_the_chosen(),
        admits: &admits,
    });
    let listener = phase("listener", || Listener::open(selection, is_one_namespace(roster, index), &apart))?;
    tracing::info!(index, "listens for members of other hosts at {}", listener.describe());
    let published = phase("addresses", || exchange.exchange("addresses", &listener.publication(), deadline))?;
    let key = exchange.key();
    let run = Run { roster, index, key, published: &published, silence: network.silence };
    let links = phase("communicators", || Links::connect(listener, run, &group.seats, deadline))?;
    let told = published.iter().map(|bytes| listening(Publication::decode(bytes))).collect();
    Ok((TcpCommunicator::join(links, group)?, told))
}

/// What a member published, for the report.
fn listening(publication: Publication) -> Listening {
    let address = |one: Published| Address {
        address: one.address.to_string(),
        interface: one.name,
        reason: one.reason,
    };
    let addresses = publication.addresses.into_iter().map(address).collect();
    Listening { addresses, left_out: publication.notes }
}

/// Whether the loopback interface of this process is that of all members.
fn is_one_namespace(roster: &Roster, index: usize) -> bool {
    let Some(own) = roster.members.get(index) else { return false };
    let namespaces = Namespaces::own();
    roster.members.iter().all(|member| {
        let introduction = &member.introduction;
        introduction.process.boot_id == own.introduction.process.boot_id
            && namespaces.reach(&introduction.socket)
    })
}
