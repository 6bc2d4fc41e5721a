//! The centre: one straight line from a process that knows nothing to a mesh that can reduce.
//!
//! The only room that joins what decides (`topology`) with what acts (`sys`, through the rooms above it).

mod arena;
mod arrays;
mod crossed;
mod deferred;
mod gpu;
mod group;
mod mpi;
mod network;
mod order;
mod record;
mod shrink;
mod split;
mod trial;
mod verbs;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use arena::{ALIGNMENT, Arena, DeviceBytes};
pub use deferred::DeferredMesh;
pub(crate) use order::Admission;
pub use verbs::VERB_TIMEOUT_SECONDS;

use crate::communicator::Communicator;
use crate::communicator::ccl::GpuGroup;
use crate::communicator::shared::Listener;
use crate::device;
use crate::environment::interface::Network;
use crate::environment::{Launch, MeshOptions, Seen};
use crate::error::{Error, Result};
use crate::executor::{DeviceArena, Executor};
use crate::recorder::{Recorder, StackSource};
use crate::rendezvous::directory::Meeting;
use crate::rendezvous::{self, Exchange, RunKey, directory, memory};
use crate::sys::mpi::{Handle as MpiCommunicator, World};
use crate::sys::{self, Deadline, InterruptCheck, process};
use crate::topology::{Introduction, MeshDescription, Roster, Topology};

use self::group::{Between, Forming, Lease, form};

/// The group of all members of a run.
const RUN: &str = "run";

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
    /// The group's name, for messages.
    name: String,
    /// The executor that bootstrap made, if it made one: the last of the meshes that hold it closes it.
    lease: Mutex<Option<Lease>>,
    communicator: Arc<dyn Communicator>,
    /// The same members' GPUs, from their first call on GPU memory on.
    gpus: Mutex<Option<Arc<GpuGroup>>>,
    /// The arenas on GPUs that were made of it: their memory is known to that group.
    arenas: Mutex<Vec<Weak<DeviceArena>>>,
    /// What members prove to each other; those of groups made later are derived from it.
    key: RunKey,
    network: Network,
    /// The meshes that this one was split from, and that were split from it.
    family: Arc<crossed::Family>,
    /// How many groups were made of its members.
    split_count: AtomicU64,
    recorder: Arc<Recorder>,
    /// Whether shrink has begun; it is tried once.
    is_shrinking: AtomicBool,
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

    /// Has this member leave the stacks of its interpreter where a call fails, here or on another member of its host: for shims.
    ///
    /// # Errors
    /// `Io` without a further thread.
    #[doc(hidden)]
    pub fn give_stacks(&self, source: Arc<dyn StackSource>) -> Result<()> {
        self.inner.recorder.give_stacks(source)
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
        let meeting_files = sys::network::open_files() + MEETING_FILES;
        phase("open files", || check_files(launch.index.value, count, meeting_files))?;
        let listener = phase("listener", || listen(count))?;
        introduction.driven_gpus = executor.and_then(driven);
        introduction.socket = listener.as_ref().map(Listener::address).unwrap_or_default();
        let mut exchange = phase("rendezvous", || match &world {
            Some(world) => rendezvous::mpi::meet(world, introduction, &deadline),
            None => meet(&launch, introduction, &deadline),
        })?;
        let wanted = meeting_files + FILES_OF_A_MEMBER * near(exchange.as_ref());
        let checked = phase("hosts", || check_hosts(&launch, exchange.roster()))
            .and_then(|()| phase("open files", || check_files(exchange.index(), count, wanted)));
        if let Err(error) = checked {
            exchange.give_up(&error);
            return Err(error);
        }
        let gpus_per_multimem_domain = launch.gpus_per_multimem_domain;
        let between = Between { network: &network, world };
        let forming = Forming {
            name: RUN,
            executor,
            lease: None,
            gpus_per_multimem_domain,
            between,
            recorder: None,
            family: None,
        };
        form(exchange.as_mut(), listener, forming, &deadline)
    }

    /// A mesh of members that met by another exchange, such as threads of one process.
    ///
    /// The listener is the one whose address is in this member's introduction; a lone member needs none.
    ///
    /// # Errors
    /// As [`Mesh::bootstrap`].
    pub fn of_exchange(
        mut exchange: Box<dyn Exchange>,
        listener: Option<Listener>,
        executor: Option<&Executor>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let network = phase("environment", network::read)?;
        let between = Between { network: &network, world: None };
        let forming = Forming {
            name: RUN,
            executor,
            lease: None,
            gpus_per_multimem_domain: 0,
            between,
            recorder: None,
            family: None,
        };
        form(exchange.as_mut(), listener, forming, deadline)
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
        // A forked child may find the lock held for ever, and makes no calls.
        if process::pid() == self.inner.pid {
            self.inner.family.lend(executor);
        }
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

    /// The record of this member's last calls.
    #[must_use]
    pub fn recorder(&self) -> &Arc<Recorder> {
        &self.inner.recorder
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
        let closed = |why: String| {
            let group = if self.name == RUN { String::new() } else { format!(" of {}", self.name) };
            Error::Closed { what: format!("the mesh of index {}{group}", self.index), why }
        };
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
        // Before the group that tells the others that this member ends.
        gpu::close(&self.gpus);
        self.communicator.close();
        self.order.wake();
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        lease.map_or(Ok(()), Lease::end)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(%error, index = self.index, "a mesh was dropped before its executor was idle");
        }
    }
}

/// Compares the hosts that the launcher knows with those that came; members of one job alone can be on more.
///
/// Fewer are no error: a launcher may count shells or nodes, of which several share a machine.
fn check_hosts(launch: &Launch, roster: &Roster) -> Result<()> {
    let Some(told) = &launch.host_count else { return Ok(()) };
    let mut found: Vec<(&str, usize)> = Vec::new();
    for member in &roster.members {
        let boot_id = member.introduction.process.boot_id.as_str();
        if !found.iter().any(|(known, _)| *known == boot_id) {
            found.push((boot_id, member.index));
        }
    }
    let Some((_, beyond)) = found.get(told.value) else {
        if found.len() < told.value {
            let (index, said) = (launch.index.value, told.value);
            tracing::info!("index {index}: {} says {said} hosts, these are {}", launch.launcher, found.len());
        }
        return Ok(());
    };
    let name = |index: &usize| {
        let member = roster.members.iter().find(|member| member.index == *index);
        member.map_or("", |member| member.introduction.process.host_name.as_str()).to_owned()
    };
    let names: Vec<String> = found.iter().map(|(_, index)| name(index)).collect();
    Err(Error::Disagreed {
        field: "the number of hosts".to_owned(),
        mine: format!("{} ({}, index {})", told.value, told.origin, launch.index.value),
        theirs: format!("{} machines: {}", found.len(), names.join(", ")),
        index: *beyond,
    })
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

/// The identities of the GPUs that a caller's executor drives; `None` for one of host threads.
fn driven(executor: &Executor) -> Option<Vec<String>> {
    let gpus = executor.gpus();
    (!gpus.is_empty()).then(|| gpus.into_iter().map(|gpu| gpu.identity).collect())
}

/// A lone process listens nowhere.
fn listen(count: usize) -> Result<Option<Listener>> {
    if count == 1 { Ok(None) } else { Listener::open().map(Some) }
}

/// Files that a process has open at once while it meets the others.
const MEETING_FILES: usize = 16;
/// What every other member of this machine costs: a connection, its process, its memory, a file of the meeting.
const FILES_OF_A_MEMBER: usize = 4;

/// How many others run on this machine.
fn near(exchange: &dyn Exchange) -> usize {
    let members = &exchange.roster().members;
    let machine = |index: usize| members.get(index).map(|member| &member.introduction.process.boot_id);
    let own = machine(exchange.index());
    (0..members.len()).filter(|index| machine(*index) == own).count().saturating_sub(1)
}

/// Makes room for so many open files; each further group needs a few more.
fn check_files(index: usize, count: usize, wanted: usize) -> Result<()> {
    match sys::network::make_room(wanted) {
        Some(limit) if count > 1 => {
            let what = format!("the limit of open files of index {index}");
            let reason =
                format!("a run of {count} needs at least {wanted}; raise it where the run is started");
            Err(Error::invalid(what, limit, "RLIMIT_NOFILE, ulimit -n", reason))
        }
        _ => Ok(()),
    }
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
