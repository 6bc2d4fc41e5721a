//! What the threads of a pool do while no call needs them: sleep, or spin so that the next one starts at once.
//!
//! A spinning thread sits in one job of the pool and sees no other job: before a parallel section all of them leave.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Hold;
use super::line::Job;

/// Looks at the epoch between two offers of the core to others, where threads have no cores of their own.
const SPINS_PER_YIELD: u32 = 256;

/// Where idle threads find their next work.
pub(super) struct Idle {
    /// Changes when a spinning thread must look up.
    epoch: AtomicU32,
    /// Threads that spin for an older generation leave.
    generation: AtomicU32,
    /// How many threads look at the epoch now.
    spinners: AtomicUsize,
    handed: Mutex<Option<(Hold, Job)>>,
    /// Whether the threads and the caller's have fewer cores than they are.
    shares_cores: bool,
}

impl Idle {
    pub(super) fn new(shares_cores: bool) -> Arc<Self> {
        Arc::new(Self {
            epoch: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            spinners: AtomicUsize::new(0),
            handed: Mutex::new(None),
            shares_cores,
        })
    }

    /// Whether the threads and the caller's have fewer cores than they are.
    pub(super) const fn shares_cores(&self) -> bool {
        self.shares_cores
    }

    /// Has a thread of the pool run a deferred call that holds the executor.
    pub(super) fn hand(self: &Arc<Self>, workers: &rayon::ThreadPool, hold: Hold, job: Job) {
        // One call holds the executor at a time: the one before was taken before it left.
        *self.handed.lock().unwrap_or_else(PoisonError::into_inner) = Some((hold, job));
        self.epoch.fetch_add(1, Ordering::SeqCst);
        // A spinner that leaves after this look finds the call on its way out.
        if self.spinners.load(Ordering::SeqCst) == 0 {
            let own = Arc::clone(self);
            workers.spawn(move || own.run_handed());
        }
    }

    /// Lets all threads of the pool spin.
    pub(super) fn spin(self: &Arc<Self>, workers: &rayon::ThreadPool) {
        let generation = self.generation.load(Ordering::SeqCst);
        let own = Arc::clone(self);
        workers.spawn_broadcast(move |_| own.spin_here(generation));
    }

    /// Has spinning threads leave, without waiting for them.
    pub(super) fn rest(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    fn spin_here(&self, generation: u32) {
        while self.generation.load(Ordering::SeqCst) == generation {
            self.spinners.fetch_add(1, Ordering::SeqCst);
            let seen = self.epoch.load(Ordering::SeqCst);
            let mut turns = 0_u32;
            // What was handed, or changed, before the epoch was read is looked at below without a spin.
            let is_current = self.generation.load(Ordering::SeqCst) == generation && !self.has_handed();
            while is_current && self.epoch.load(Ordering::Acquire) == seen {
                turns = turns.wrapping_add(1);
                if self.shares_cores && turns.is_multiple_of(SPINS_PER_YIELD) {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
            self.spinners.fetch_sub(1, Ordering::SeqCst);
            self.run_handed();
        }
    }

    fn has_handed(&self) -> bool {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Runs the call that was handed, if no other thread took it, and those that follow it in the line.
    fn run_handed(&self) {
        let mut next = self.handed.lock().unwrap_or_else(PoisonError::into_inner).take();
        while let Some((mut hold, job)) = next {
            hold.mark();
            next = (job.run)(Ok(hold));
        }
    }
}
