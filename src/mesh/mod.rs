//! The centre: one straight line from a process that knows nothing to a mesh that can reduce.
//!
//! The only room that joins what decides (`topology`) with what acts (`sys`, through the rooms above it).

mod arena;
mod verbs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use arena::Arena;

use crate::communicator::Communicator;
use crate::communicator::shared::{Listener, Proof, SharedCommunicator};
use crate::device;
use crate::environment::{self, Launch, MeshOptions};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::rendezvous::directory::Meeting;
use crate::rendezvous::{Exchange, directory, memory};
use crate::sys::{Deadline, InterruptCheck, process};
use crate::topology::{Findings, MeshDescription, Placement, Plan, Request, Topology};

/// How long closing waits for the executor that bootstrap made.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// The processes of a run, met and connected.
///
/// A handle: clones are the same mesh. Verbs are called by all members in the same order.
///
/// ```
/// let mesh = uform::Mesh::bootstrap(None, None)?;
/// let mut numbers = [1.0f32, 2.0];
/// mesh.all_reduce(&mut numbers, uform::ReduceOp::Sum)?;
/// assert_eq!(mesh.count(), 1);
/// # Ok::<(), uform::Error>(())
/// ```
#[derive(Clone)]
pub struct Mesh(Arc<Inner>);

struct Inner {
    index: usize,
    topology: Topology,
    executor: Executor,
    /// Whether bootstrap made the executor, so that the mesh closes it.
    owns_executor: bool,
    communicator: Arc<dyn Communicator>,
    closed: AtomicBool,
    /// The process that made it: a forked child must not touch what its parent shares with peers.
    pid: u32,
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Mesh(index {} of {}, run {})", self.index(), self.count(), self.0.topology.run())
    }
}

impl Mesh {
    /// Joins the run that the options or the launcher describe; without either, a mesh of one process.
    ///
    /// An executor that is given is adopted; without one the mesh makes its own, of this process's part of the cores.
    ///
    /// # Errors
    /// `Invalid` and `Unsupported` for options, variables and hosts that cannot form a run; `TimedOut` naming the
    /// members that have not come; `Lost` for a member that died; `Disagreed`; `Io` for the directory; `Exhausted`.
    pub fn bootstrap(executor: Option<&Executor>, options: Option<&MeshOptions>) -> Result<Self> {
        Self::bootstrap_within(executor, options, None)
    }

    /// As [`Mesh::bootstrap`], asking `interrupt` at least every 50 ms while it waits.
    ///
    /// # Errors
    /// As [`Mesh::bootstrap`], and `Interrupted`.
    pub fn bootstrap_within(
        executor: Option<&Executor>,
        options: Option<&MeshOptions>,
        interrupt: Option<InterruptCheck<'_>>,
    ) -> Result<Self> {
        let launch = environment_phase(options)?;
        let mut deadline = Deadline::after(Duration::from_secs_f64(launch.timeout_seconds));
        if let Some(interrupt) = interrupt {
            deadline = deadline.interruptible(interrupt);
        }
        let listener = listener_phase(&launch)?;
        let mut exchange = rendezvous_phase(&launch, &listener, &deadline)?;
        let formed = form(exchange.as_mut(), listener, executor, &launch, &deadline);
        finish(exchange, formed, &deadline)
    }

    /// A mesh of members that met by another exchange, such as threads of one process.
    ///
    /// # Errors
    /// As [`Mesh::bootstrap`].
    pub fn of_exchange(
        mut exchange: Box<dyn Exchange>,
        listener: Listener,
        executor: Option<&Executor>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let launch = environment_of(exchange.as_ref())?;
        let formed = form(exchange.as_mut(), listener, executor, &launch, deadline);
        finish(exchange, formed, deadline)
    }

    /// The index of this process in the run.
    #[must_use]
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// How many processes the run has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.topology.count()
    }

    /// The executor that runs this mesh's calls.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.0.executor
    }

    /// Who is in the run and what is near to what; its Display is a tree.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.0.topology
    }

    /// What this process may know of its place.
    #[must_use]
    pub fn describe(&self) -> MeshDescription {
        self.0.topology.describe(self.0.index)
    }

    /// The group of all members, for rooms above.
    pub(crate) fn communicator(&self) -> &dyn Communicator {
        self.0.communicator.as_ref()
    }

    /// Whether the mesh is closed here.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Acquire)
    }

    /// Leaves the run: peers that call later get `Lost` saying that this member closed. Closing twice is harmless.
    ///
    /// # Errors
    /// `TimedOut` if a call on the mesh's own executor does not end within 5 seconds.
    pub fn close(&self) -> Result<()> {
        self.0.close()
    }

    /// Refuses a closed mesh and one of a parent process.
    pub(crate) fn check_open(&self) -> Result<()> {
        let what = format!("the mesh of index {}", self.0.index);
        if process::pid() != self.0.pid {
            let why = format!("it was made before a fork, in process {}; bootstrap in this process", self.0.pid);
            return Err(Error::Closed { what, why });
        }
        if self.is_closed() {
            return Err(Error::Closed { what, why: "close was called; bootstrap another".to_owned() });
        }
        Ok(())
    }
}

impl Inner {
    fn close(&self) -> Result<()> {
        if process::pid() != self.pid || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.communicator.close();
        if self.owns_executor { self.executor.close(&Deadline::after(CLOSE_LIMIT)) } else { Ok(()) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, index = self.index, "a mesh was dropped before its executor was idle");
        }
    }
}

fn environment_phase(options: Option<&MeshOptions>) -> Result<Launch> {
    let launch = environment::read(options.unwrap_or(&MeshOptions::default()))?;
    for note in &launch.notes {
        tracing::info!(index = launch.index.value, "{note}");
    }
    Ok(launch)
}

/// The place of a member whose exchange was made by other means.
fn environment_of(exchange: &dyn Exchange) -> Result<Launch> {
    environment::resolve(
        &MeshOptions {
            host_domain_index: exchange.index(),
            host_domain_count: exchange.count(),
            job: Some(exchange.roster().run.clone()),
            directory: Some(std::path::PathBuf::from("/")),
            ..MeshOptions::default()
        },
        &|_| None,
        &environment::HostFacts::read(),
    )
}

fn listener_phase(launch: &Launch) -> Result<Listener> {
    if launch.count.value == 1 { Ok(Listener::none()) } else { Listener::open() }
}

fn rendezvous_phase(
    launch: &Launch,
    listener: &Listener,
    deadline: &Deadline<'_>,
) -> Result<Box<dyn Exchange>> {
    let introduction = device::introduction(launch, listener.address().to_owned())?;
    match &launch.directory {
        Some(folder) if launch.count.value > 1 => directory::meet(
            Meeting {
                directory: folder.value.clone(),
                job: launch.job.value.clone(),
                attempt_is_unique: launch.attempt_is_unique,
                index: launch.index.value,
                count: launch.count.value,
                introduction,
            },
            deadline,
        ),
        _ => memory::lone(introduction),
    }
}

/// From the committed roster to connected communicators.
fn form(
    exchange: &mut dyn Exchange,
    listener: Listener,
    executor: Option<&Executor>,
    launch: &Launch,
    deadline: &Deadline<'_>,
) -> Result<Mesh> {
    let index = exchange.index();
    let proof = Proof::gather(listener, exchange.roster(), index, exchange.key(), deadline)?;
    let findings = findings_phase(exchange, &proof.findings(), deadline)?;
    let topology = Topology::derive(exchange.roster(), &findings, launch.gpus_per_multimem_domain)?;
    let plan = plan_phase(&topology, index)?;
    let (executor, owns_executor) = executor_phase(executor, &topology, index)?;
    let communicator: Arc<dyn Communicator> = SharedCommunicator::join(proof, plan.world(), deadline)?;
    let (closed, pid) = (AtomicBool::new(false), process::pid());
    Ok(Mesh(Arc::new(Inner { index, topology, executor, owns_executor, communicator, closed, pid })))
}

/// Everybody is ready, or everybody learns why not; then the meeting place closes.
fn finish(mut exchange: Box<dyn Exchange>, formed: Result<Mesh>, deadline: &Deadline<'_>) -> Result<Mesh> {
    let ready = formed.and_then(|mesh| exchange.exchange("ready", &[], deadline).map(|_| mesh));
    match ready {
        Ok(mesh) => {
            exchange.close();
            tracing::info!(index = mesh.index(), count = mesh.count(), waited = ?deadline.waited(), "mesh formed");
            Ok(mesh)
        }
        Err(error) => {
            exchange.give_up(&error);
            Err(error)
        }
    }
}

fn findings_phase(
    exchange: &mut dyn Exchange,
    own: &Findings,
    deadline: &Deadline<'_>,
) -> Result<Vec<Findings>> {
    let all = exchange.exchange("findings", &own.to_bytes(), deadline)?;
    all.iter().enumerate().map(|(index, bytes)| Findings::from_bytes(bytes, index)).collect()
}

/// The groups of this process; members without shared memory cannot reach each other in this version.
fn plan_phase(topology: &Topology, index: usize) -> Result<Plan> {
    let plan = Plan::derive(topology, index);
    let host = topology.host_of(0).map(|host| host.members.as_slice()).unwrap_or_default();
    let Some(apart) = (0..topology.count()).find(|other| !host.contains(other)) else { return Ok(plan) };
    let name = |index: usize| {
        let process = &topology.members()[index].introduction.process;
        format!("index {index} (host {}, pid {})", process.host_name, process.pid)
    };
    let why = format!(
        "{} and {} could not open each other's memory, and this version moves data within one host only; start all \
         processes on one host, outside containers that hide them from each other",
        name(0),
        name(apart)
    );
    Err(Error::unsupported("a run over several hosts", why))
}

/// The caller's executor, or one on this process's part of its host.
fn executor_phase(
    executor: Option<&Executor>,
    topology: &Topology,
    index: usize,
) -> Result<(Executor, bool)> {
    if let Some(executor) = executor {
        // A closed one is refused here, not in the first verb.
        drop(executor.hold("bootstrap")?);
        return Ok((executor.clone(), false));
    }
    let request = Request::of(topology, index)
        .ok_or_else(|| Error::invalid("index", index, "roster", "has no member with it"))?;
    Ok((Executor::placed(Placement::derive(&request)?, 0, None)?, true))
}
