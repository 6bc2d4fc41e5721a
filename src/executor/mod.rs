//! Threads that run the work of one call at a time, and who holds them.
//!
//! A blocking call takes the executor and runs on its caller's thread; pool threads join where the work is large enough to
//! pay for them. A deferred call runs on a pool thread. Calls that find the executor held stand in one line behind it, as
//! far as there is room.

mod arena;
mod crew;
mod deferred;
mod host;
mod idle;
mod line;
mod stream;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

pub use deferred::{Deferred, DoneHook};
pub use host::HostOptions;
pub use stream::VramOptions;

use crate::device;
use crate::error::{Error, Result};
use crate::sys::kernel::Table;
use crate::sys::kernel::gpu::Kernels;
use crate::sys::{CHECK_INTERVAL, Deadline, InterruptCheck, numa, process};
use crate::topology::{GpuDevice, Placement, Request, Seeker};
use crate::vocabulary::{CpuClass, GpuClass, Mood};

pub(crate) use arena::DeviceArena;
pub(crate) use line::Job;
use line::{Line, Next, Seat};
use stream::{Choice, Devices};

/// How long dropping the last handle waits for the threads to end.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// The threads of one process, used by one call at a time.
///
/// A handle: clones share the threads, and dropping the last one ends them.
#[derive(Clone)]
pub struct Executor(Arc<Inner>);

struct Inner {
    line: Line,
    /// `None` once closed; taken by close only, when nobody holds the executor.
    pool: Mutex<Option<host::Pool>>,
    /// The GPUs, for an executor of streams; `None` once closed. Arenas may hold them longer.
    devices: Mutex<Option<Arc<Devices>>>,
    placement: Placement,
    cpu_class: CpuClass,
    /// Of `cpu_class`.
    kernels: Table,
    deferred_limit: usize,
    /// The process that made it: a forked child has none of its threads.
    pid: u32,
    mood: AtomicI32,
    /// How many wait for the end of deferred calls that have not ended.
    awaited: AtomicUsize,
}

/// The right to use an executor, given back when dropped.
pub struct Hold {
    executor: Executor,
    /// The thread that is marked as inside of the call; 0 for none.
    thread: usize,
    /// Whether it still holds.
    is_live: bool,
}

/// A call that has entered: it holds the executor, or stands in the line. Dropped, it leaves.
#[must_use]
pub(crate) struct Place {
    /// `None` once the call has it.
    executor: Option<Executor>,
    thread: usize,
    /// `None` for one that holds.
    seat: Option<Arc<Seat>>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Executor(threads: {}, cpu_class: {})", self.threads(), self.0.cpu_class)
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Hold({:?})", self.executor)
    }
}

impl Executor {
    /// An executor of host threads for this process alone, pinned to the cores it may use.
    ///
    /// # Errors
    /// `Invalid` for too many threads, for memory domains that do not exist or have no core here, and
    /// for a class that this machine cannot run; `Exhausted` if threads cannot be started.
    pub fn for_ram(options: &HostOptions) -> Result<Self> {
        let view = device::view()?;
        let request = Request {
            threads: options.threads,
            memory_domains: options.memory_domains.clone(),
            ..Request::alone(seeker(&view), &view.survey)
        };
        let placement = Placement::derive(&request)?;
        Self::placed(placement, options.deferred_limit, options.cpu_class)
    }

    /// Host threads where the placement says.
    ///
    /// # Errors
    /// As [`Executor::for_ram`].
    pub fn placed(placement: Placement, deferred_limit: usize, cpu_class: Option<CpuClass>) -> Result<Self> {
        Self::with(placement, deferred_limit, device::cpu_class(cpu_class)?, None)
    }

    fn with(
        placement: Placement,
        deferred_limit: usize,
        cpu_class: CpuClass,
        devices: Option<Devices>,
    ) -> Result<Self> {
        let pool = host::Pool::open(&placement)?;
        Ok(Self(Arc::new(Inner {
            line: Line::new(deferred_limit),
            pool: Mutex::new(Some(pool)),
            devices: Mutex::new(devices.map(Arc::new)),
            placement,
            cpu_class,
            kernels: Table::of(cpu_class),
            deferred_limit,
            pid: process::pid(),
            mood: AtomicI32::new(Mood::Parked.number()),
            awaited: AtomicUsize::new(0),
        })))
    }

    /// An executor on a pool of the caller's.
    ///
    /// # Errors
    /// `Unsupported`, always: a foreign pool gives no way to wait for its threads or to pin them.
    pub fn on_pool(_pool: usize) -> Result<Self> {
        let why = "a foreign pool cannot be pinned, drained or closed; use for_ram with as many threads";
        Err(Error::unsupported("an executor on a foreign pool", why))
    }

    /// An executor of one stream for each GPU, with host threads near them.
    ///
    /// This starts the GPUs' driver, after which a forked child may not use it.
    ///
    /// ```no_run
    /// let executor = uform::Executor::for_vram(&uform::VramOptions::default())?;
    /// assert_eq!(executor.gpus().len(), uform::device::gpu_devices()?.len());
    /// # Ok::<(), uform::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` for an ordinal that is not there or is listed twice, for a class that a GPU cannot run, and as
    /// [`Executor::for_ram`]; `Unsupported` without GPUs, and without a driver that starts and is new enough; `Vendor` and
    /// `Exhausted` naming the GPU; `TimedOut` if the driver does not start within 300 seconds.
    pub fn for_vram(options: &VramOptions) -> Result<Self> {
        Self::for_vram_within(options, None)
    }

    /// As [`Executor::for_vram`], asking `interrupt` at least every 50 ms while it waits.
    ///
    /// # Errors
    /// As [`Executor::for_vram`], and `Interrupted`.
    pub fn for_vram_within(options: &VramOptions, interrupt: Option<InterruptCheck<'_>>) -> Result<Self> {
        let deadline = Deadline::after(stream::OPEN_LIMIT);
        let deadline = match interrupt {
            Some(interrupt) => deadline.interruptible(interrupt),
            None => deadline,
        };
        // Before the mesh that would name it, a member is named by its launcher.
        let named = |error: Error| match device::launched_index() {
            Some(index) => error.of_member(index),
            None => error,
        };
        let view = device::view()?;
        let choice = Choice::of(&view, options).map_err(named)?;
        let cpu_class = device::cpu_class(options.cpu_class)?;
        let request = Request::alone(seeker(&view), &view.survey);
        let placement = choice.placement(request, options.memory_domains.clone())?;
        let devices = choice.open(&deadline).map_err(named)?;
        Self::with(placement, options.deferred_limit, cpu_class, Some(devices))
    }

    /// The GPUs whose streams it has, in the order that was asked for; empty for one of host threads, and once closed.
    #[must_use]
    pub fn gpus(&self) -> Vec<GpuDevice> {
        self.devices().map_or_else(Vec::new, |devices| devices.gpus().cloned().collect())
    }

    /// The class that GPU kernels dispatch as on it; `None` without GPUs, for a mixture, and for GPUs of no known class.
    #[must_use]
    pub fn gpu_class(&self) -> Option<GpuClass> {
        self.devices().and_then(|devices| devices.gpu_class())
    }

    /// The bytes of scratch memory that its calls may take of each GPU; 0 for no limit.
    #[must_use]
    pub fn scratch_limit(&self) -> u64 {
        self.devices().map_or(0, |devices| devices.scratch_limit())
    }

    /// As many bytes on each of its GPUs; `None` for an executor of host threads.
    ///
    /// # Errors
    /// `Exhausted` naming the GPU; `TimedOut`, `Interrupted`, `Vendor`.
    pub(crate) fn device_arena(
        &self,
        byte_count: usize,
        deadline: &Deadline<'_>,
    ) -> Result<Option<DeviceArena>> {
        self.devices().map(|devices| DeviceArena::take(devices, byte_count, deadline)).transpose()
    }

    /// The kernels of a trainer for its first GPU.
    ///
    /// # Errors
    /// `Closed` without one; `Unsupported` naming the GPU and what to install; `Vendor`.
    pub(crate) fn gpu_kernels(&self) -> Result<Vec<Kernels>> {
        let closed = || Error::Closed { what: "the executor".into(), why: "it has no open GPU".into() };
        let devices = self.devices().ok_or_else(closed)?;
        (0..devices.gpus().count()).map(|position| devices.kernels(position)).collect()
    }

    /// The GPUs, while it is open, in the process that opened them.
    pub(crate) fn devices(&self) -> Option<Arc<Devices>> {
        if process::pid() != self.0.pid {
            return None;
        }
        lock(&self.0.devices).clone()
    }

    /// How many threads its pool has.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.0.placement.threads
    }

    /// Where its threads sit.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.0.placement
    }

    /// The class that kernels dispatch as on it.
    #[must_use]
    pub fn cpu_class(&self) -> CpuClass {
        self.0.cpu_class
    }

    /// The kernels of that class.
    #[must_use]
    pub fn kernels(&self) -> Table {
        self.0.kernels
    }

    /// Runs work on the calling thread, whose new memory comes from this executor's memory domains where the system can.
    pub fn near_memory<R>(&self, work: impl FnOnce() -> R) -> R {
        numa::near(&self.0.placement.memory_domains, work)
    }

    /// How many calls may wait behind the one that holds it.
    #[must_use]
    pub fn deferred_limit(&self) -> usize {
        self.0.deferred_limit
    }

    /// What its idle threads do.
    #[must_use]
    pub fn mood(&self) -> Mood {
        Mood::from_number(self.0.mood.load(Ordering::Relaxed)).unwrap_or(Mood::Parked)
    }

    /// Whether it is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // A forked child must not touch a lock that a thread of its parent may have held.
        process::pid() != self.0.pid || self.0.line.is_closed()
    }

    /// Takes the executor for one call at once; `call` names it to those who find it held.
    ///
    /// # Errors
    /// `Contended` naming the call that holds it; `Closed` after close, and in a forked child.
    pub fn hold(&self, call: &'static str) -> Result<Hold> {
        self.check_process()?;
        self.0.line.enter(call, false, true)?;
        Ok(Hold::of(self.clone(), line::this_thread()))
    }

    /// Takes the executor for one call, waiting in the line behind it if there is room.
    ///
    /// # Errors
    /// `Contended` at once if the line is full, with `deferred_limit` 0 always, and from inside of a call on this executor:
    /// from its progress callback, or from a signal's handler while it waits. `TimedOut` naming the call that holds it;
    /// `Interrupted`; `Closed` after close, and in a forked child.
    pub fn hold_within(&self, call: &'static str, deadline: &Deadline<'_>) -> Result<Hold> {
        self.enter(call)?.wait(deadline)
    }

    /// Submits a call that runs on a thread of the pool, in its turn, and returns at once.
    ///
    /// A panic in `work` becomes an error of the call. What `work` owns is dropped on the thread that ran it.
    ///
    /// The error of the returned call is `Contended` if the executor is held and the line is full, and from inside of a call on
    /// this executor; `Closed` after close, and in a forked child; else what `work` returned.
    pub fn submit<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Hold) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        if let Err(error) = self.check_process() {
            return Deferred::failed(call, error);
        }
        let (deferred, job) = self.prepare(call, work);
        match self.join(job) {
            Ok(job) => self.start(job),
            Err((job, error)) => job.refuse(error),
        }
        deferred
    }

    /// Waits for every call that was submitted before and for the GPUs, then sets what idle threads do.
    ///
    /// Stands in the line whatever its limit. [`Mood::Parked`] threads sleep and use no CPU; [`Mood::Busy`] threads spin, so
    /// that a deferred call or a parallel section starts within microseconds. A new call wakes either.
    ///
    /// # Errors
    /// `TimedOut` naming the call that still holds it, or the GPU that still works; `Interrupted`; `Contended` from inside of a
    /// call on it; `Closed`; `Vendor` naming the GPU whose work has failed.
    pub fn drain(&self, mood: Mood, deadline: &Deadline<'_>) -> Result<()> {
        self.check_process()?;
        let seat = self.0.line.enter("drain", true, false)?;
        let hold = Place::of(self, seat).wait(deadline)?;
        self.0.line.wait_settled(deadline)?;
        if let Some(devices) = self.devices() {
            devices.wait(deadline)?;
        }
        self.set_mood(mood);
        drop(hold);
        Ok(())
    }

    /// Waits for every call that was submitted before, then closes: what leaving `with` does in Python.
    ///
    /// # Errors
    /// As [`Executor::drain`], but for `Closed`: closing twice is harmless.
    pub fn finish(&self, deadline: &Deadline<'_>) -> Result<()> {
        match self.drain(Mood::Parked, deadline) {
            Err(error @ Error::Contended { .. }) => Err(error),
            Ok(()) | Err(Error::Closed { .. }) => self.close(deadline),
            Err(error) => {
                // Closed for new calls all the same.
                self.refuse_all();
                Err(error)
            }
        }
    }

    /// Refuses new calls, ends those in the line with `Closed`, waits for the call that holds it, and ends the threads.
    ///
    /// - From another thread while a call runs: that call goes on to its end, within this deadline.
    /// - Twice: harmless; the second one waits for the same end.
    /// - From inside of a call on this executor: `Contended`, and it stays open.
    /// - In a forked child: nothing happens. The child has none of the threads, and every call there is `Closed`.
    ///
    /// Drain first, or use [`Executor::finish`], to let the calls of the line run. A closed executor never opens again.
    ///
    /// # Errors
    /// `TimedOut` naming the call that still holds it, and `Interrupted`; it is then closed for new calls all the same.
    pub fn close(&self, deadline: &Deadline<'_>) -> Result<()> {
        if process::pid() != self.0.pid {
            return Ok(());
        }
        if self.0.line.is_inside() {
            let (what, holder) = ("the executor".to_owned(), "the call that closes it".to_owned());
            return Err(Error::Contended { what, holder, waited: Duration::ZERO });
        }
        self.refuse_all();
        self.0.line.wait_free(deadline)?;
        // Its own hold of the GPUs; the last one closes them, after it has waited for their work.
        let devices = lock(&self.0.devices).take();
        drop(devices);
        // Taken out, so that nobody waits for this lock while threads end.
        let Some(mut pool) = lock(&self.0.pool).take() else { return Ok(()) };
        let ended = pool.end(deadline);
        if ended.is_err() {
            *lock(&self.0.pool) = Some(pool);
        }
        ended
    }

    /// The CPU time that the threads of its pool have used, in seconds; `None` once closed, or where the system does not tell.
    #[must_use]
    pub fn thread_seconds(&self) -> Option<f64> {
        if process::pid() != self.0.pid {
            return None;
        }
        lock(&self.0.pool).as_ref().and_then(host::Pool::thread_seconds)
    }

    /// Refuses a closed executor and one of a parent process.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if self.0.line.is_closed() { Err(line::closed()) } else { Ok(()) }
    }

    /// What tells this executor from all others that live.
    pub(crate) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// Whether anybody waits for the end of a deferred call on it, or has asked to be told of one.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.awaited.load(Ordering::SeqCst) > 0
    }

    /// Whether the calling thread is inside of a call on this executor: entering, holding or running it.
    pub(crate) fn is_inside(&self) -> bool {
        process::pid() == self.0.pid && self.0.line.is_inside()
    }

    /// Takes the executor or a place in its line, without waiting.
    pub(crate) fn enter(&self, call: &'static str) -> Result<Place> {
        self.check_process()?;
        let seat = self.0.line.enter(call, true, true)?;
        Ok(Place::of(self, seat))
    }

    /// A deferred call and the job that ends it, for [`Executor::join`].
    pub(crate) fn prepare<T: Send + 'static>(
        &self,
        call: &'static str,
        work: impl FnOnce(&Hold) -> Result<T> + Send + 'static,
    ) -> (Deferred<T>, Job) {
        Deferred::pair(call, self, work)
    }

    /// Refuses new calls and those in the line from now on, and waits for nothing.
    pub(crate) fn shut(&self) {
        if process::pid() == self.0.pid {
            self.refuse_all();
        }
    }

    /// Takes the executor for a job, which comes back to be started, or puts it in the line.
    pub(crate) fn join(&self, job: Job) -> std::result::Result<Option<Job>, (Job, Error)> {
        match self.check_process() {
            Ok(()) => self.0.line.join(job),
            Err(error) => Err((job, error)),
        }
    }

    /// Starts a job that has taken the executor.
    pub(crate) fn start(&self, job: Option<Job>) {
        if let Some(job) = job {
            self.run_on_pool(job);
        }
    }

    fn run_on_pool(&self, job: Job) {
        let hold = Hold::of(self.clone(), 0);
        // The lock is given back first: without a pool the job runs here, and may take it.
        let pool = lock(&self.0.pool).as_ref().and_then(host::Pool::parts);
        match pool {
            Some((workers, idle)) => idle.hand(&workers, hold, job),
            // Cannot be: close takes the pool only when nobody holds the executor.
            None => job.refuse(line::closed()),
        }
    }

    fn set_mood(&self, mood: Mood) {
        if self.0.mood.swap(mood.number(), Ordering::Relaxed) == mood.number() {
            return;
        }
        if let Some((workers, idle)) = lock(&self.0.pool).as_ref().and_then(host::Pool::parts) {
            match mood {
                Mood::Busy => idle.spin(&workers),
                Mood::Parked => idle.rest(),
            }
        }
    }

    fn refuse_all(&self) {
        for job in self.0.line.close() {
            job.refuse(line::closed());
        }
    }

    fn check_process(&self) -> Result<()> {
        if process::pid() == self.0.pid {
            return Ok(());
        }
        let why = format!("it was made before a fork, in process {}; make one in this process", self.0.pid);
        Err(Error::Closed { what: "the executor".to_owned(), why })
    }
}

impl Place {
    /// The place of the calling thread, which has just entered.
    fn of(executor: &Executor, seat: Option<Arc<Seat>>) -> Self {
        Self { executor: Some(executor.clone()), thread: line::this_thread(), seat }
    }

    /// Whether the executor was free, and is this call's.
    pub(crate) const fn is_held(&self) -> bool {
        self.seat.is_none()
    }

    /// Waits until the executor is free for this call.
    pub(crate) fn wait(mut self, deadline: &Deadline<'_>) -> Result<Hold> {
        if let (Some(seat), Some(executor)) = (&self.seat, &self.executor) {
            executor.0.line.wait(seat, deadline)?;
        }
        // There until here; a place whose executor is taken leaves nothing behind when it is dropped.
        self.executor.take().map(|executor| Hold::of(executor, self.thread)).ok_or_else(line::closed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(executor) = self.executor.take() else { return };
        if self.seat.as_ref().is_some_and(|seat| executor.0.line.give_up(seat)) {
            executor.0.line.unmark(self.thread);
        } else {
            drop(Hold::of(executor, self.thread));
        }
    }
}

impl Hold {
    fn of(executor: Executor, thread: usize) -> Self {
        Self { executor, thread, is_live: true }
    }

    /// The executor that is held.
    #[must_use]
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Runs work on the pool and waits for it.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match self.executor.section() {
            Some(section) => section.workers.install(work),
            None => work(),
        }
    }

    /// Runs work on a thread of the pool while the caller waits, asking its deadline's interrupt check on its own thread.
    ///
    /// The work gets the same deadline, whose check says whether the caller's has asked for an end. A panic in it is raised
    /// here. `None` cannot come: it stands for work that did not end.
    pub(crate) fn attended<R: Send>(
        &self,
        deadline: &Deadline<'_>,
        work: impl FnOnce(&Deadline<'_>) -> R + Send,
    ) -> Option<R> {
        let stop = AtomicBool::new(false);
        let (end, ended) = (Mutex::new(None), Condvar::new());
        let is_stopped = || stop.load(Ordering::Relaxed);
        let run = || {
            let thread = self.executor.0.line.mark();
            let result = catch_unwind(AssertUnwindSafe(|| work(&deadline.interruptible(&is_stopped))));
            self.executor.0.line.unmark(thread);
            *lock(&end) = Some(result);
            ended.notify_all();
        };
        match self.executor.section() {
            None => run(),
            Some(section) => section.workers.in_place_scope(|scope| {
                scope.spawn(|_| run());
                // The work looks at what was asked here as often again: together below 100 ms.
                loop {
                    let result = lock(&end);
                    let waited =
                        ended.wait_timeout_while(result, CHECK_INTERVAL / 2, |result| result.is_none());
                    if waited.unwrap_or_else(PoisonError::into_inner).0.is_some() {
                        break;
                    }
                    // Without the lock: the check may run any code.
                    if deadline.check_interrupt("a call").is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }),
        }
        let result = end.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        Some(result.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// The class that kernels dispatch as.
    #[must_use]
    pub fn cpu_class(&self) -> CpuClass {
        self.executor.cpu_class()
    }

    /// The kernels of that class.
    #[must_use]
    pub fn kernels(&self) -> Table {
        self.executor.0.kernels
    }

    /// Says that the calling thread runs the call.
    fn mark(&mut self) {
        self.thread = self.executor.0.line.mark();
    }

    /// Gives the executor up, with the end of the call still to be published; the deferred call that follows comes back.
    fn leave_settling(mut self) -> Option<(Self, Job)> {
        self.is_live = false;
        match self.executor.0.line.leave(self.thread, true) {
            Next::Deferred(job) => Some((Self::of(self.executor.clone(), 0), job)),
            Next::Nobody | Next::Thread => None,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_live
            && process::pid() == self.executor.0.pid
            && let Next::Deferred(job) = self.executor.0.line.leave(self.thread, false)
        {
            self.executor.run_on_pool(job);
        }
    }
}

/// The pool during parallel work.
struct Section {
    workers: Arc<rayon::ThreadPool>,
    idle: Arc<idle::Idle>,
    spins: bool,
}

impl Drop for Section {
    fn drop(&mut self) {
        if self.spins {
            self.idle.spin(&self.workers);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Not by its lock, which another thread may have held when this process was forked.
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A forked child has none of the threads: there is nothing to wait for, and no handle may be joined.
        if process::pid() != self.pid {
            std::mem::forget((pool, self.devices.get_mut().map(Option::take)));
            return;
        }
        if let Some(mut pool) = pool
            && let Err(error) = pool.end(&Deadline::after(DROP_LIMIT))
        {
            tracing::warn!(%error, "an executor was dropped before its threads had ended");
        }
    }
}

/// This process, as one that shares its machine with nobody it knows of.
fn seeker(view: &device::View) -> Seeker {
    Seeker {
        index: 0,
        name: format!("pid {}", process::pid()),
        boot_id: view.survey.boot_id.clone(),
        cores: view.cores.clone(),
        quota_cores: view.quota_cores,
        visible_gpus: view.gpus.iter().map(|gpu| gpu.identity.clone()).collect(),
        driven_gpus: None,
        shares_gpus: false,
        gpu_domains: view.gpus.iter().map(|gpu| gpu.memory_domain).collect(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere leaves these values whole: each is written in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
