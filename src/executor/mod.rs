//! Threads that run the work of one call at a time, and who holds them.
//!
//! A blocking call takes the executor by one atomic and runs on its caller's thread; pool threads join where the work
//! is large enough to pay for them.

mod host;
mod stream;

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use host::HostOptions;

use crate::device;
use crate::error::{Error, Missing, Result};
use crate::sys::kernel::Table;
use crate::sys::{Deadline, process};
use crate::topology::{Placement, Request, Seeker};
use crate::vocabulary::{CpuClass, Mood};

/// How long dropping the last handle waits for the threads to end.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// The threads of one process, used by one call at a time.
///
/// A handle: clones share the threads, and dropping the last one ends them.
#[derive(Clone)]
pub struct Executor(Arc<Inner>);

struct Inner {
    /// `None` once closed.
    pool: Mutex<Option<host::Pool>>,
    placement: Placement,
    cpu_class: CpuClass,
    /// Of `cpu_class`.
    kernels: Table,
    deferred_limit: usize,
    held: AtomicBool,
    /// The call that holds it, for messages; written only by the holder.
    holder: Mutex<&'static str>,
    closed: AtomicBool,
    /// The process that made it: a forked child has none of its threads.
    pid: u32,
    mood: AtomicI32,
}

/// The right to use an executor, given back when dropped.
pub struct Hold {
    executor: Executor,
    workers: Option<Arc<rayon::ThreadPool>>,
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
            ..Request::alone(seeker(&view), view.survey.memory_domains)
        };
        let placement = Placement::derive(&request)?;
        Self::placed(placement, options.deferred_limit, options.cpu_class)
    }

    /// Host threads where the placement says.
    ///
    /// # Errors
    /// As [`Executor::for_ram`].
    pub fn placed(placement: Placement, deferred_limit: usize, cpu_class: Option<CpuClass>) -> Result<Self> {
        let cpu_class = device::cpu_class(cpu_class)?;
        let pool = host::Pool::open(&placement)?;
        Ok(Self(Arc::new(Inner {
            pool: Mutex::new(Some(pool)),
            placement,
            cpu_class,
            kernels: Table::of(cpu_class),
            deferred_limit,
            held: AtomicBool::new(false),
            holder: Mutex::new("nobody"),
            closed: AtomicBool::new(false),
            pid: process::pid(),
            mood: AtomicI32::new(Mood::Parked.number()),
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

    /// An executor of one stream per GPU.
    ///
    /// # Errors
    /// `Unsupported`: this version drives host memory only.
    pub fn for_vram(devices: Option<&[usize]>) -> Result<Self> {
        stream::open(devices).map(|never| match never {})
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

    /// How many deferred calls may wait behind the one that holds it.
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
        self.0.closed.load(Ordering::Acquire)
    }

    /// Takes the executor for one call; `call` names it to those who find it held.
    ///
    /// # Errors
    /// `Contended` naming the call that holds it; `Closed` after close, and in a forked child.
    pub fn hold(&self, call: &'static str) -> Result<Hold> {
        self.check_open()?;
        if self.0.held.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Contended {
                what: "the executor".to_owned(),
                holder: (*lock(&self.0.holder)).to_owned(),
                waited: Duration::ZERO,
            });
        }
        *lock(&self.0.holder) = call;
        let workers = lock(&self.0.pool).as_ref().and_then(|pool| pool.workers.clone());
        let hold = Hold { executor: self.clone(), workers };
        // A close that came between the two checks has taken the pool.
        if hold.workers.is_none() { Err(self.closed_error()) } else { Ok(hold) }
    }

    /// Waits for the call that holds it, then sets what idle threads do.
    ///
    /// In this version idle threads sleep in either mood; the mood is kept.
    ///
    /// # Errors
    /// `TimedOut` naming the call that still holds it; `Closed`.
    pub fn drain(&self, mood: Mood, deadline: &Deadline<'_>) -> Result<()> {
        let hold = self.hold_within("drain", deadline)?;
        self.0.mood.store(mood.number(), Ordering::Relaxed);
        drop(hold);
        Ok(())
    }

    /// Waits for the call that holds it and ends its threads. Closing twice is harmless.
    ///
    /// # Errors
    /// `TimedOut` naming the call that still holds it; it is then closed for new calls all the same.
    pub fn close(&self, deadline: &Deadline<'_>) -> Result<()> {
        if process::pid() != self.0.pid {
            return Ok(());
        }
        self.0.closed.store(true, Ordering::Release);
        self.wait_until_free(deadline)?;
        // Taken out, so that nobody waits for this lock while threads end.
        let Some(mut pool) = lock(&self.0.pool).take() else { return Ok(()) };
        let ended = pool.end(deadline);
        if ended.is_err() {
            *lock(&self.0.pool) = Some(pool);
        }
        ended
    }

    fn hold_within(&self, call: &'static str, deadline: &Deadline<'_>) -> Result<Hold> {
        loop {
            match self.hold(call) {
                Err(Error::Contended { .. }) => self.wait_until_free(deadline)?,
                other => return other,
            }
        }
    }

    fn wait_until_free(&self, deadline: &Deadline<'_>) -> Result<()> {
        let mut pause = Duration::from_micros(20);
        while self.0.held.load(Ordering::Acquire) {
            let holder = *lock(&self.0.holder);
            deadline.check(&format!("waiting for {holder} to leave the executor"), Vec::<Missing>::new)?;
            std::thread::sleep(pause.min(deadline.pause()));
            pause = (pause * 2).min(Duration::from_millis(2));
        }
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        if process::pid() != self.0.pid {
            return Err(Error::Closed {
                what: "the executor".to_owned(),
                why: format!(
                    "it was made before a fork, in process {}; make one in this process",
                    self.0.pid
                ),
            });
        }
        if self.is_closed() { Err(self.closed_error()) } else { Ok(()) }
    }

    fn closed_error(&self) -> Error {
        Error::Closed { what: "the executor".to_owned(), why: "close was called; make another".to_owned() }
    }
}

impl Hold {
    /// Runs work on the pool and waits for it.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            Some(workers) => workers.install(work),
            None => work(),
        }
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
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The pool must be free before the executor is: close takes it as soon as nobody holds.
        self.workers = None;
        self.executor.0.held.store(false, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Not by its lock, which another thread may have held when this process was forked.
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A forked child has none of the threads: there is nothing to wait for, and no handle may be joined.
        if process::pid() != self.pid {
            std::mem::forget(pool);
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
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A panic elsewhere leaves these values whole: each is written in one step.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::affinity;
    use crate::topology::THREAD_LIMIT;

    fn executor() -> Executor {
        Executor::for_ram(&HostOptions { threads: 2, ..HostOptions::default() }).expect("two threads")
    }

    #[test]
    fn one_call_at_a_time_and_the_holder_is_named() {
        let executor = executor();
        let hold = executor.hold("all_reduce").expect("free");
        let error = executor.hold("barrier").expect_err("held");
        assert!(error.to_string().contains("held by all_reduce"), "{error}");
        assert_eq!(hold.install(rayon::current_num_threads), 2);
        drop(hold);
        executor.hold("barrier").expect("free again");
    }

    #[test]
    fn a_closed_executor_says_so_and_closing_twice_is_harmless() {
        let executor = executor();
        let deadline = Deadline::after(Duration::from_secs(30));
        executor.drain(Mood::Busy, &deadline).expect("idle");
        assert_eq!(executor.mood(), Mood::Busy);
        executor.close(&deadline).expect("idle");
        executor.close(&deadline).expect("twice");
        assert!(matches!(executor.hold("barrier"), Err(Error::Closed { .. })));
        assert!(matches!(executor.drain(Mood::Parked, &deadline), Err(Error::Closed { .. })));
    }

    #[test]
    fn closing_waits_for_the_call_and_then_names_it() {
        let executor = executor();
        let hold = executor.hold("all_reduce").expect("free");
        let error = executor.close(&Deadline::after(Duration::from_millis(20))).expect_err("held");
        assert!(error.to_string().contains("all_reduce"), "{error}");
        assert_eq!(hold.install(|| 7), 7);
        drop(hold);
        executor.close(&Deadline::after(Duration::from_secs(60))).expect("free");
    }

    #[test]
    fn threads_stay_on_their_cores_and_the_callers_mask_is_left_alone() {
        let before = affinity::get_affinity().expect("a mask");
        let executor = Executor::for_ram(&HostOptions::default()).expect("the core budget");
        assert!(executor.threads() >= 1 && executor.threads() <= before.len());
        let hold = executor.hold("a look").expect("free");
        let masks = hold.install(|| rayon::broadcast(|_| affinity::get_affinity().expect("a mask")));
        assert_eq!(masks.len(), executor.threads());
        for (mask, core) in masks.iter().zip(&executor.placement().cores) {
            assert_eq!(mask, &[*core]);
            assert!(before.contains(core));
        }
        assert_eq!(affinity::get_affinity().expect("a mask"), before);
    }

    #[test]
    fn more_threads_than_cores_stay_within_the_mask() {
        let mask = affinity::get_affinity().expect("a mask");
        let options = HostOptions { threads: mask.len() + 3, deferred_limit: 9, ..HostOptions::default() };
        let executor = Executor::for_ram(&options).expect("more than cores");
        assert_eq!(executor.deferred_limit(), 9);
        let hold = executor.hold("a look").expect("free");
        let masks = hold.install(|| rayon::broadcast(|_| affinity::get_affinity().expect("a mask")));
        assert_eq!(masks.len(), mask.len() + 3);
        assert!(masks.iter().flatten().all(|core| mask.contains(core)));
    }

    #[test]
    fn an_executor_may_be_dropped_on_its_own_thread() {
        let executor = executor();
        let hold = executor.hold("a look").expect("free");
        let workers = hold.workers.clone().expect("open");
        drop(hold);
        let (sender, dropped) = std::sync::mpsc::channel();
        workers.spawn(move || {
            drop(executor);
            sender.send(()).expect("the test waits");
        });
        drop(workers);
        dropped.recv_timeout(Duration::from_secs(60)).expect("it does not wait for itself");
    }

    #[test]
    fn drain_waits_for_the_call() {
        let executor = executor();
        let _hold = executor.hold("all_reduce").expect("free");
        let error =
            executor.drain(Mood::Busy, &Deadline::after(Duration::from_millis(20))).expect_err("held");
        assert!(error.to_string().contains("all_reduce"), "{error}");
        assert_eq!(executor.mood(), Mood::Parked);
    }

    #[test]
    fn wrong_options_are_refused() {
        let many = HostOptions { threads: THREAD_LIMIT + 1, ..HostOptions::default() };
        assert!(matches!(Executor::for_ram(&many), Err(Error::Invalid { .. })));
        let domain = HostOptions { memory_domains: Some(vec![4095]), ..HostOptions::default() };
        assert!(matches!(Executor::for_ram(&domain), Err(Error::Invalid { .. })));
        let pin = HostOptions { cpu_class: Some(CpuClass::Wasm32V128), ..HostOptions::default() };
        assert!(Executor::for_ram(&pin).expect_err("no such machine").to_string().contains("WASM32_V128"));
        assert!(matches!(Executor::for_vram(None), Err(Error::Unsupported { .. })));
        assert!(matches!(Executor::on_pool(0), Err(Error::Unsupported { .. })));
    }
}
