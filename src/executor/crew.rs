//! The threads of an executor at the side of a call that runs on one of them, or on its caller's.

use super::{Executor, Section, host, lock};
use crate::sys::affinity;
use crate::sys::crew::Crew;
use crate::vocabulary::Mood;

impl Executor {
    /// Runs work on the calling thread with the threads of the pool at hand: as many together as the executor has.
    ///
    /// For who holds the executor. `None` where it has one thread.
    pub(crate) fn with_crew<R>(&self, work: impl FnOnce(Option<&Crew>) -> R) -> R {
        let threads = self.threads();
        let section = if threads > 1 { self.section() } else { None };
        let Some(section) = section else { return work(None) };
        let crew = Crew::new(threads, section.idle.shares_cores());
        section.workers.in_place_scope(|scope| {
            // One thread of the pool stays away: that whose core the caller is on.
            let cores = &self.0.placement.cores;
            let here = affinity::current_core();
            let own = section.workers.current_thread_index();
            let away = own.or_else(|| cores.iter().take(threads).position(|core| Some(*core) == here));
            let away = away.unwrap_or(threads - 1);
            let crew = &crew;
            scope.spawn_broadcast(move |_, context| {
                if context.index() != away {
                    crew.help();
                }
            });
            let _ending = crew.ending();
            work(Some(crew))
        })
    }

    /// The pool with all its threads, which spin again afterwards if that is their mood.
    pub(super) fn section(&self) -> Option<Section> {
        let (workers, idle) = lock(&self.0.pool).as_ref().and_then(host::Pool::parts)?;
        let spins = self.mood() == Mood::Busy;
        if spins {
            idle.rest();
        }
        Some(Section { workers, idle, spins })
    }
}
