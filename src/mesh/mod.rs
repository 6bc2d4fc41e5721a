//! The centre: one straight line from a process that knows nothing to a mesh that can reduce.
//!
//! The only room that joins what decides (`topology`) with what acts (`sys`, through the rooms above it).

mod arena;
mod deferred;
mod mpi;
mod network;
mod order;
mod verbs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub use arena::{ALIGNMENT, Arena};
pub use deferred::DeferredMesh;
pub(crate) use order::Admission;
pub use verbs::VERB_TIMEOUT_SECONDS;

use crate::communicator::Communicator;
use crate::communicator::shared::{Listener, Proof, SharedCommunicator};
use crate::device;
use crate::environment::interface::Network;
use crate::environment::{Launch, MeshOptions, Seen};
use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::rendezvous::directory::Meeting;
use crate::rendezvous::{self, Exchange, directory, memory};
use crate::sys::mpi::{Handle as MpiCommunicator, World};
use crate::sys::{Deadline, InterruptCheck, process};
use crate::topology::{Findings, Group, Introduction, MeshDescription, Placement, Plan, Request, Topology};

/// How long a member that lost another one looks for what that one said.
const REASON_LIMIT: Duration = Duration::from_secs(3);

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
pub struct Mesh {
    inner: Arc<Inner>,
    /// What the verbs of this handle run on.
    executor: Executor,
}

struct Inner {
    index: usize,
    topology: Topology,
    order: order::Order,
    /// The executor of bootstrap.
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
        write!(
            formatter,
            "Mesh(index {} of {}, run {})",
            self.index(),
            self.count(),
            self.inner.topology.run()
        )
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
        let launch = phase("environment", || mpi::read(options))?;
        Self::join(executor, options, launch, interrupt)
    }

    /// Joins the processes of an MPI communicator, `MPI_COMM_WORLD` without one; the index of each is its rank.
    ///
    /// [`Mesh::bootstrap`] does so by itself under the mpirun of the library that this build is linked to, if nobody names a
    /// directory. MPI is started if it does not run, and finalised at the end of the process; one that somebody else has
    /// started, such as mpi4py, is adopted and left to them.
    ///
    /// # Errors
    /// As [`Mesh::bootstrap`]; `Unsupported` in a build without MPI and for a thread level below `MPI_THREAD_SERIALIZED`;
    /// `Invalid` for another MPI library in this process, and for a launcher that says another number than MPI.
    pub fn bootstrap_over_mpi(
        executor: Option<&Executor>,
        options: Option<&MeshOptions>,
        communicator: Option<MpiCommunicator>,
        interrupt: Option<InterruptCheck<'_>>,
    ) -> Result<Self> {
        let launch = phase("environment", || mpi::read_for(options, communicator))?;
        Self::join(executor, options, launch, interrupt)
    }

    fn join(
        executor: Option<&Executor>,
        options: Option<&MeshOptions>,
        (launch, way): (Launch, mpi::Way),
        interrupt: Option<InterruptCheck<'_>>,
    ) -> Result<Self> {
        note(&launch);
        let network = phase("environment", network::read)?;
        let deadline = Deadline::after(Duration::from_secs_f64(launch.timeout_seconds));
        let deadline = match interrupt {
            Some(interrupt) => deadline.interruptible(interrupt),
            None => deadline,
        };
        let world = phase("MPI", || way.world(&launch, options, &deadline))?;
        let mut introduction = phase("survey", || device::introduction(&launch, String::new()))?;
        let count = world.as_ref().map_or(launch.count.value, World::count);
        let listener = phase("listener", || listen(count))?;
        introduction.socket = listener.as_ref().map(Listener::address).unwrap_or_default();
        let exchange = phase("rendezvous", || match &world {
            Some(world) => rendezvous::mpi::meet(world, introduction, &deadline),
            None => meet(&launch, introduction, &deadline),
        })?;
        let between =
            Between { gpus_per_multimem_domain: launch.gpus_per_multimem_domain, network: &network, world };
        form(exchange, listener, executor, &between, &deadline)
    }

    /// A mesh of members that met by another exchange, such as threads of one process.
    ///
    /// The listener is the one whose address is in this member's introduction; a lone member needs none.
    ///
    /// # Errors
    /// As [`Mesh::bootstrap`].
    pub fn of_exchange(
        exchange: Box<dyn Exchange>,
        listener: Option<Listener>,
        executor: Option<&Executor>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let network = phase("environment", network::read)?;
        let between = Between { gpus_per_multimem_domain: 0, network: &network, world: None };
        form(exchange, listener, executor, &between, deadline)
    }

    /// The index of this process in the run.
    #[must_use]
    pub fn index(&self) -> usize {
        self.inner.index
    }

    /// How many processes the run has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.topology.count()
    }

    /// The executor that runs the calls of this handle.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// The same mesh, its verbs on that executor: the order of calls stays one, whatever they run on.
    #[must_use]
    pub fn on(&self, executor: &Executor) -> Self {
        Self { inner: Arc::clone(&self.inner), executor: executor.clone() }
    }

    /// Who is in the run and what is near to what; its Display is a tree.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.inner.topology
    }

    /// What this process may know of its place.
    #[must_use]
    pub fn describe(&self) -> MeshDescription {
        self.inner.topology.describe(self.inner.index)
    }

    /// The group of all members, for rooms above.
    pub(crate) fn communicator(&self) -> &Arc<dyn Communicator> {
        &self.inner.communicator
    }

    /// Whether the mesh is closed here.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }

    /// Leaves the run: peers that call later get `Lost` saying that this member closed. Closing twice is harmless.
    ///
    /// # Errors
    /// `TimedOut` if a call on the mesh's own executor does not end within 5 seconds.
    pub fn close(&self) -> Result<()> {
        self.inner.close()
    }

    /// Refuses a closed mesh and one of a parent process.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.inner.check_open()
    }
}

impl Inner {
    fn check_open(&self) -> Result<()> {
        let closed = |why: String| Error::Closed { what: format!("the mesh of index {}", self.index), why };
        if process::pid() != self.pid {
            let pid = self.pid;
            return Err(closed(format!(
                "it was made before a fork, in process {pid}; bootstrap in this process"
            )));
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(closed("close was called; bootstrap another".to_owned()));
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        if process::pid() != self.pid || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.communicator.close();
        self.order.wake();
        if !self.owns_executor {
            return Ok(());
        }
        // The last call may hold the last handle: then its thread cannot wait for itself, and ends after it.
        if self.executor.is_inside() {
            self.executor.shut();
            return Ok(());
        }
        self.executor.close(&Deadline::after(CLOSE_LIMIT))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, index = self.index, "a mesh was dropped before its executor was idle");
        }
    }
}

/// Runs one phase: its name is in the trace, and in errors that say where a wait ended.
fn phase<T>(name: &'static str, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let result = run().map_err(|error| in_phase(name, error));
    match &result {
        Ok(_) => tracing::debug!(phase = name, elapsed = ?start.elapsed(), "bootstrap"),
        Err(error) => {
            tracing::debug!(phase = name, elapsed = ?start.elapsed(), error = error.chain(), "bootstrap")
        }
    }
    result
}

fn in_phase(name: &str, mut error: Error) -> Error {
    if let Error::TimedOut { phase, .. } | Error::Interrupted { phase, .. } | Error::Lost { phase, .. } =
        &mut error
        && !phase.starts_with("bootstrap")
    {
        *phase = if phase.starts_with(name) {
            format!("bootstrap, {phase}")
        } else {
            format!("bootstrap, {name}: {phase}")
        };
    }
    error
}

/// Says what somebody should know who wonders about the run.
fn note(launch: &Launch) {
    for seen in &launch.others {
        let (index, Seen { launcher, reason }) = (launch.index.value, seen);
        // One process where a launcher left something is what somebody may not have meant.
        if launch.launcher == "none" {
            tracing::warn!("index {index}: {launcher} was seen and not taken: {reason}");
        } else {
            tracing::info!("index {index}: {launcher} was seen and not taken: {reason}");
        }
    }
    for note in &launch.notes {
        tracing::info!("index {}: {note}", launch.index.value);
    }
}

/// A lone process listens nowhere.
fn listen(count: usize) -> Result<Option<Listener>> {
    if count == 1 { Ok(None) } else { Listener::open().map(Some) }
}

fn meet(launch: &Launch, introduction: Introduction, deadline: &Deadline<'_>) -> Result<Box<dyn Exchange>> {
    match &launch.directory {
        Some(folder) if launch.count.value > 1 => {
            let meeting = Meeting {
                directory: folder.value.clone(),
                job: launch.job.value.clone(),
                attempt_is_unique: launch.attempt_is_unique,
                index: launch.index.value,
                count: launch.count.value,
                introduction,
            };
            directory::meet(meeting, deadline)
        }
        _ => memory::lone(introduction),
    }
}

/// What members of several hosts are connected by, and how domains are cut.
struct Between<'a> {
    gpus_per_multimem_domain: usize,
    network: &'a Network,
    /// The processes of the run as MPI has them, if they met over it.
    world: Option<World>,
}

/// From a committed roster to a mesh: all members form it, or all learn why not. Then the meeting place closes.
fn form(
    mut exchange: Box<dyn Exchange>,
    listener: Option<Listener>,
    executor: Option<&Executor>,
    between: &Between<'_>,
    deadline: &Deadline<'_>,
) -> Result<Mesh> {
    let connected = connect(exchange.as_mut(), listener, executor, between, deadline);
    let ready =
        connected.and_then(|mesh| phase("ready", || exchange.exchange("ready", &[], deadline)).map(|_| mesh));
    match ready {
        Ok(mesh) => {
            exchange.close();
            tracing::info!(index = mesh.index(), count = mesh.count(), waited = ?deadline.waited(), "mesh formed");
            Ok(mesh)
        }
        Err(error) => {
            let error = reason_of(exchange.as_mut(), error, deadline);
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
    executor: Option<&Executor>,
    between: &Between<'_>,
    deadline: &Deadline<'_>,
) -> Result<Mesh> {
    let index = exchange.index();
    let roster = exchange.roster().clone();
    let proof = phase("proofs", || Proof::gather(listener, &roster, index, exchange.key(), deadline))?;
    let findings = phase("findings", || share_findings(exchange, &proof.findings(), deadline))?;
    let topology =
        phase("topology", || Topology::derive(&roster, &findings, between.gpus_per_multimem_domain))?;
    let plan = phase("plan", || Ok(Plan::derive(&topology, index)))?;
    let (executor, owns_executor) = phase("executor", || choose_executor(executor, &topology, index))?;
    let world = plan.world();
    let communicator = match apart(&topology) {
        None => phase("communicators", || join(proof, world, deadline))?,
        Some(_) => network::join(exchange, proof, &topology, world, between, deadline)?,
    };
    let (closed, pid) = (AtomicBool::new(false), process::pid());
    let order = order::Order::default();
    let inner = Inner {
        index,
        topology,
        order,
        executor: executor.clone(),
        owns_executor,
        communicator,
        closed,
        pid,
    };
    Ok(Mesh { inner: Arc::new(inner), executor })
}

fn share_findings(
    exchange: &mut dyn Exchange,
    own: &Findings,
    deadline: &Deadline<'_>,
) -> Result<Vec<Findings>> {
    let all = exchange.exchange("findings", &own.to_bytes(), deadline)?;
    all.iter().enumerate().map(|(index, bytes)| Findings::from_bytes(bytes, index)).collect()
}

/// The run's communicator where all members share memory.
fn join(proof: Proof, world: &Group, deadline: &Deadline<'_>) -> Result<Arc<dyn Communicator>> {
    Ok(SharedCommunicator::join(proof, world, deadline)?)
}

/// Which two members share no memory, and why; the same two on all members, since they come from the topology alone.
fn apart(topology: &Topology) -> Option<String> {
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
) -> Result<(Executor, bool)> {
    if let Some(executor) = executor {
        // A closed one is refused here, not in the first verb.
        executor.check_open()?;
        return Ok((executor.clone(), false));
    }
    let request = Request::of(topology, index)
        .ok_or_else(|| Error::invalid("index", index, "roster", "has no member with it"))?;
    Ok((Executor::placed(Placement::derive(&request)?, 0, None)?, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_waiting_name_the_phase_once() {
        let lost =
            || Error::Lost { index: 1, host: "h".into(), pid: 2, phase: "rendezvous, registration".into() };
        let text = in_phase("ready", in_phase("rendezvous", lost())).to_string();
        assert_eq!(text, "lost index 1 (host h, pid 2) in bootstrap, rendezvous, registration");
        let text = in_phase("proofs", lost()).to_string();
        assert!(text.ends_with("in bootstrap, proofs: rendezvous, registration"), "{text}");
        let invalid = in_phase("proofs", Error::invalid("a", 1, "b", "c")).to_string();
        assert_eq!(invalid, Error::invalid("a", 1, "b", "c").to_string());
    }
}
