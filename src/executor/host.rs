//! Host threads: a rayon pool of a placement's size, each thread pinned to the placement's cores.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Missing, Result};
use crate::sys::{Deadline, affinity, clock};
use crate::topology::Placement;
use crate::vocabulary::CpuClass;

use super::idle::Idle;

/// What a caller asks of an executor of host threads; the default asks for this process's core budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// How many threads; 0 is the core budget: affinity, cgroup quota and the share among members of the host.
    pub threads: usize,
    /// The memory domains (NUMA nodes) to sit on; `None` for all that this process's cores touch.
    pub memory_domains: Option<Vec<u32>>,
    /// How many deferred calls may wait behind the one that holds the executor.
    pub deferred_limit: usize,
    /// The class that kernels dispatch as; `None` takes the best that is compiled and available.
    pub cpu_class: Option<CpuClass>,
}

/// A pool whose threads can be waited for.
pub(super) struct Pool {
    /// `None` once the threads were told to end.
    workers: Option<Arc<rayon::ThreadPool>>,
    idle: Arc<Idle>,
    handles: Vec<JoinHandle<()>>,
    /// The system's numbers of the threads, for their clocks.
    numbers: Arc<Mutex<Vec<i32>>>,
}

impl Pool {
    /// Starts the threads; thread i runs on core i of the placement, counted around.
    pub(super) fn open(placement: &Placement) -> Result<Self> {
        let handles = Arc::new(Mutex::new(Vec::with_capacity(placement.threads)));
        let started = Arc::clone(&handles);
        let cores = placement.cores.clone();
        let numbers = Arc::new(Mutex::new(Vec::with_capacity(placement.threads)));
        let known = Arc::clone(&numbers);
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(placement.threads)
            .thread_name(|index| format!("uform-{index}"))
            .spawn_handler(move |thread| {
                let seat = seat_cores(&cores, thread.index());
                let mut builder = std::thread::Builder::new();
                if let Some(name) = thread.name() {
                    builder = builder.name(name.to_owned());
                }
                let known = Arc::clone(&known);
                let handle = builder.spawn(move || {
                    known.lock().unwrap_or_else(PoisonError::into_inner).push(clock::thread_number());
                    // A sandbox may forbid pinning; the thread then runs within the process's mask, which is right too.
                    if let Err(error) = affinity::narrow_current_thread(&seat) {
                        tracing::debug!(%error, "a pool thread is not pinned");
                    }
                    thread.run();
                })?;
                started.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
                Ok(())
            })
            .build()
            .map_err(|error| Error::Exhausted {
                place: format!("this process's thread limit ({error})"),
                wanted_bytes: placement.threads as u64 * 8 * 1024 * 1024,
                free_bytes: 0,
                remedy: "ask for fewer threads, or raise `ulimit -u` or the pids cgroup".to_owned(),
            })?;
        let handles = std::mem::take(&mut *handles.lock().unwrap_or_else(PoisonError::into_inner));
        // The caller needs a core too.
        let usable = affinity::get_affinity().map_or(0, |cores| cores.len());
        let idle = Idle::new(placement.threads >= usable);
        Ok(Self { workers: Some(Arc::new(workers)), idle, handles, numbers })
    }

    /// The threads, and where they look for work while they spin; `None` once they were told to end.
    pub(super) fn parts(&self) -> Option<(Arc<rayon::ThreadPool>, Arc<Idle>)> {
        self.workers.clone().map(|workers| (workers, Arc::clone(&self.idle)))
    }

    /// The CPU time of all threads that have started, in seconds.
    pub(super) fn thread_seconds(&self) -> Option<f64> {
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let times =
            numbers.into_iter().map(|number| clock::thread_time(number).map(|time| time.as_secs_f64()));
        times.sum()
    }

    /// Ends the threads and waits for them; after an error it may be called again.
    ///
    /// The caller makes sure that no call uses the pool: a thread ends only when its work is done.
    pub(super) fn end(&mut self, deadline: &Deadline<'_>) -> Result<()> {
        self.idle.rest();
        self.workers = None;
        // Closed from one of its own threads: all end when that one's work returns, which is after this.
        let own = std::thread::current().id();
        if self.handles.iter().any(|handle| handle.thread().id() == own) {
            self.handles.clear();
        }
        let mut pause = Duration::from_micros(50);
        while self.handles.iter().any(|handle| !handle.is_finished()) {
            deadline.check("closing an executor's threads", Vec::<Missing>::new)?;
            std::thread::sleep(pause.min(deadline.pause()));
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        for handle in self.handles.drain(..) {
            // A panic in a pool thread was reported where it happened.
            let _ = handle.join();
        }
        Ok(())
    }
}

/// The cores of one thread: one core where there is one for each thread, else all of them.
fn seat_cores(cores: &[u32], thread: usize) -> Vec<u32> {
    match cores.get(thread) {
        Some(core) => vec![*core],
        None => cores.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_beyond_the_cores_float() {
        assert_eq!(seat_cores(&[2, 5], 1), [5]);
        assert_eq!(seat_cores(&[2, 5], 2), [2, 5]);
        assert!(seat_cores(&[], 0).is_empty());
    }
}
