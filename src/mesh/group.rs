//! Forming a mesh of members that can exchange: proofs, findings, topology, plan, executor, communicators.
//!
//! The same for all members of a run and for some of them: who they are is the exchange's to say.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Inner, Mesh, crossed, in_phase, network, order, phase, record, trial};
use crate::communicator::Communicator;
use crate::communicator::recorded::RecordedCommunicator;
use crate::communicator::shared::{Listener, Proof, SharedCommunicator};
use crate::environment::interface::Network;
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::recorder::Recorder;
use crate::rendezvous::Exchange;
use crate::sys::mpi::World;
use crate::sys::{Deadline, process};
use crate::topology::{Findings, Group, Placement, Plan, Request, Topology};

/// How long a member that lost another one looks for what that one said.
const REASON_LIMIT: Duration = Duration::from_secs(3);

/// How long closing waits for the executor that bootstrap made.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// What a mesh is formed with, besides its members.
pub(super) struct Forming<'a> {
    /// The group's name, the same on all members; that of another group of the same key is another.
    pub(super) name: &'a str,
    /// The executor of the mesh; `None` makes one on this process's part of its host.
    pub(super) executor: Option<&'a Executor>,
    /// What the mesh keeps so that the executor stays open, if another mesh made it.
    pub(super) lease: Option<Lease>,
    /// Cuts multimem domains unless it is 0.
    pub(super) gpus_per_multimem_domain: usize,
    /// What members of several hosts are connected by.
    pub(super) between: Between<'a>,
    /// The record of the mesh that it is a part of; `None` begins one.
    pub(super) recorder: Option<&'a Arc<Recorder>>,
    /// The family of the mesh that it is a part of; `None` begins one.
    pub(super) family: Option<&'a Arc<crossed::Family>>,
}

/// What members of several hosts are connected by.
pub(super) struct Between<'a> {
    /// What this process's variables say about the network.
    pub(super) network: &'a Network,
    /// The members as MPI has them, if they met over it.
    pub(super) world: Option<World>,
}

/// A share of an executor that bootstrap made: the last one to end closes it.
#[derive(Clone)]
pub(super) struct Lease(Arc<Executor>);

impl Lease {
    /// Gives the share back.
    ///
    /// # Errors
    /// `TimedOut` if it was the last one and a call does not end within 5 seconds.
    pub(super) fn end(self) -> Result<()> {
        let Some(executor) = Arc::into_inner(self.0) else { return Ok(()) };
        // The last call may hold the last handle: then its thread cannot wait for itself, and ends after it.
        if executor.is_inside() {
            executor.shut();
            return Ok(());
        }
        executor.close(&Deadline::after(CLOSE_LIMIT))
    }
}

/// From a committed roster to a mesh: all members form it, or all learn why not. Then the meeting place closes.
///
/// The members of `exchange` are those of the mesh, by their indexes in it; whatever let them meet, its key is of this group alone.
/// The listener is the one whose address is in this member's introduction.
///
/// # Errors
/// As [`Mesh::bootstrap`].
pub(super) fn form(
    exchange: &mut dyn Exchange,
    listener: Option<Listener>,
    forming: Forming<'_>,
    deadline: &Deadline<'_>,
) -> Result<Mesh> {
    let connected = connect(exchange, listener, forming, deadline);
    let ready =
        connected.and_then(|mesh| phase("ready", || exchange.exchange("ready", &[], deadline)).map(|_| mesh));
    match ready {
        Ok(mesh) => {
            exchange.close();
            tracing::info!(index = mesh.index(), count = mesh.count(), waited = ?deadline.waited(), "mesh formed");
            Ok(mesh)
        }
        Err(error) => {
            let error = reason_of(exchange, error, deadline);
            exchange.give_up(&error);
            Err(error)
        }
    }
}

/// A member that gave up looks lost to those that were connected to it: what it said at the meeting place counts more.
fn reason_of(exchange: &mut dyn Exchange, error: Error, deadline: &Deadline<'_>) -> Error {
    match &error {
        // What the meeting place told is the reason already.
        Error::Lost { phase, .. } if !phase.contains("rendezvous") => {}
        _ => return error,
    }
    match exchange.exchange("loss", &[], &deadline.sooner(REASON_LIMIT)) {
        Ok(_) | Err(Error::TimedOut { .. } | Error::Interrupted { .. }) => error,
        Err(reason) => in_phase("loss", reason),
    }
}

fn connect(
    exchange: &mut dyn Exchange,
    listener: Option<Listener>,
    forming: Forming<'_>,
    deadline: &Deadline<'_>,
) -> Result<Mesh> {
    let Forming { name, executor, lease, gpus_per_multimem_domain, between, recorder, family } = forming;
    // Before the others wait for this member.
    let records = phase("environment", record::read)?;
    let index = exchange.index();
    let roster = exchange.roster().clone();
    let proof = phase("proofs", || Proof::gather(listener, &roster, index, exchange.key(), deadline))?;
    let mut own = proof.findings();
    let findings = phase("findings", || share_findings(exchange, "findings", &own, deadline))?;
    let topology = phase("topology", || Topology::derive(&roster, &findings, gpus_per_multimem_domain))?;
    // What only the GPUs' drivers know is tried where everything else speaks for it, and goes around once more.
    let tried = phase("multicast", || trial::run(exchange, &proof, &topology, executor, &mut own, deadline))?;
    let topology = if tried {
        let findings = phase("findings", || share_findings(exchange, "multicast findings", &own, deadline))?;
        phase("topology", || Topology::derive(&roster, &findings, gpus_per_multimem_domain))?
    } else {
        topology
    };
    let plan = phase("plan", || Ok(Plan::derive(&topology, index)))?;
    let (executor, own) = phase("executor", || choose_executor(executor, &topology, index))?;
    let group = Group { name: name.to_owned(), ..plan.world().clone() };
    let (communicator, topology) = match apart(&topology) {
        None => (phase("communicators", || join(proof, &group, deadline))?, topology),
        Some(_) => {
            let (joined, told) = network::join(exchange, proof, &topology, &group, &between, deadline)?;
            (joined, topology.listening(told))
        }
    };
    let recorder = match recorder {
        Some(recorder) => Arc::clone(recorder),
        None => phase("record", || record::open(&records, &topology, index))?,
    };
    let communicator = RecordedCommunicator::new(communicator, Arc::clone(&recorder), &group.name);
    let family = match family {
        Some(family) => Arc::clone(family),
        None => crossed::Family::new()?,
    };
    family.lend(&executor);
    let inner = Inner {
        index,
        topology,
        order: order::Order::default(),
        name: group.name,
        lease: Mutex::new(own.or(lease)),
        communicator,
        gpus: Mutex::new(None),
        arenas: Mutex::default(),
        recorder,
        key: exchange.key().clone(),
        network: between.network.clone(),
        family,
        split_count: AtomicU64::new(0),
        is_shrinking: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        pid: process::pid(),
    };
    let inner = Arc::new(inner);
    inner.family.join(&inner);
    Ok(Mesh { inner, executor })
}

fn share_findings(
    exchange: &mut dyn Exchange,
    phase: &str,
    own: &Findings,
    deadline: &Deadline<'_>,
) -> Result<Vec<Findings>> {
    let all = exchange.exchange(phase, &own.to_bytes(), deadline)?;
    all.iter().enumerate().map(|(index, bytes)| Findings::from_bytes(bytes, index)).collect()
}

/// The group's communicator where all members share memory.
fn join(proof: Proof, group: &Group, deadline: &Deadline<'_>) -> Result<Arc<dyn Communicator>> {
    Ok(SharedCommunicator::join(proof, group, deadline)?)
}

/// Which two members share no memory, and why; the same two on all members, since they come from the topology alone.
pub(super) fn apart(topology: &Topology) -> Option<String> {
    let [host, other, ..] = topology.hosts() else { return None };
    let name = |index: usize| match topology.members().get(index).map(|member| &member.introduction.process) {
        Some(process) => format!("index {index} (host {}, pid {})", process.host_name, process.pid),
        None => format!("index {index}"),
    };
    let relation = if host.boot_id == other.boot_id {
        "run under one kernel but cannot open each other's memory (containers, or users, or network namespaces apart)"
    } else {
        "are on different hosts"
    };
    Some(format!("{} and {} {relation}", name(*host.members.first()?), name(*other.members.first()?)))
}

/// The caller's executor, or one on this process's part of its host.
fn choose_executor(
    executor: Option<&Executor>,
    topology: &Topology,
    index: usize,
) -> Result<(Executor, Option<Lease>)> {
    if let Some(executor) = executor {
        // A closed one is refused here, not in the first verb.
        executor.check_open()?;
        return Ok((executor.clone(), None));
    }
    let request = Request::of(topology, index)
        .ok_or_else(|| Error::invalid("index", index, "roster", "has no member with it"))?;
    let executor = Executor::placed(Placement::derive(&request)?, 0, None)?;
    let lease = Lease(Arc::new(executor.clone()));
    Ok((executor, Some(lease)))
}
