//! Threads that share the pieces of one caller's work: borrowed work is lent to them, and the caller goes on when all have let go.
//!
//! The caller takes pieces too, one after the other, so that work whose helpers come late, or never, is done all the same.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::deadline::CHECK_INTERVAL;
use super::{SpanMut, futex, settle};
use crate::error::{Error, Result};

/// Looks of a helper at whether there is work before it sleeps, where threads have cores of their own.
const SPINS: u32 = 4000;
/// How often it gives its core away before it sleeps, where they have not.
const YIELDS: u32 = 8;
/// The bit of `door` that is set while helpers may enter the work; the bits below count those that are inside.
const OPEN: usize = 1 << (usize::BITS - 1);
/// Pieces for each thread, so that one that is held up leaves its share to the others.
const TURNS: usize = 4;
/// The least bytes of a piece: below this, taking the next one shows.
const LEAST_PIECE: usize = 16 << 10;

/// One work, in the memory of its caller.
struct Work<'w> {
    act: &'w (dyn Fn(usize) -> Result<()> + Sync),
    count: usize,
    next: AtomicUsize,
    failure: Mutex<Option<Failure>>,
}

/// Why a work ended early.
enum Failure {
    Error(Error),
    Panic(Box<dyn std::any::Any + Send>),
}

/// One caller and the threads that help it.
#[derive(Debug)]
pub struct Crew {
    threads: usize,
    shares_cores: bool,
    /// Changes when there is other work, and at the end.
    epoch: AtomicU32,
    sleepers: AtomicUsize,
    has_ended: AtomicBool,
    /// Whether a caller has work in hand; another one at the same time does its own alone.
    is_busy: AtomicBool,
    door: AtomicUsize,
    /// The work behind the door, alive as long as that is open or anybody inside.
    work: AtomicPtr<Work<'static>>,
}

/// Ends a crew, however the work between ends.
pub struct Ending<'c>(&'c Crew);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::SeqCst);
        self.0.ring();
    }
}

impl Work<'_> {
    /// Does pieces until none is left.
    fn go(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            if piece >= self.count {
                return;
            }
            let failure = match catch_unwind(AssertUnwindSafe(|| (self.act)(piece))) {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => Failure::Error(error),
                Err(panic) => Failure::Panic(panic),
            };
            // Nobody begins another piece.
            self.next.store(self.count, Ordering::Relaxed);
            self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
            return;
        }
    }

    fn outcome(self) -> Result<()> {
        match self.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(Failure::Error(error)) => Err(error),
            Some(Failure::Panic(panic)) => resume_unwind(panic),
        }
    }
}

impl Crew {
    /// A crew of so many threads, the caller's among them; `shares_cores` if they have fewer cores than they are.
    #[must_use]
    pub const fn new(threads: usize, shares_cores: bool) -> Self {
        Self {
            threads,
            shares_cores,
            epoch: AtomicU32::new(0),
            sleepers: AtomicUsize::new(0),
            has_ended: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            door: AtomicUsize::new(0),
            work: AtomicPtr::new(null_mut()),
        }
    }

    /// How many threads it has, the caller's among them.
    #[must_use]
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// Ends the crew when it is dropped.
    #[must_use]
    pub const fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    /// Helps until the crew ends: what each thread but the caller's does.
    pub fn help(&self) {
        let mut seen = 0;
        loop {
            seen = self.await_change(seen);
            if self.has_ended.load(Ordering::SeqCst) {
                return;
            }
            self.enter();
        }
    }

    /// Does `act` once for each number below `count`, on the threads that come.
    ///
    /// # Errors
    /// The first of `act`, after which no further piece is begun; a panic of it is raised here.
    pub fn each(&self, count: usize, act: &(dyn Fn(usize) -> Result<()> + Sync)) -> Result<()> {
        let work = Work { act, count, next: AtomicUsize::new(0), failure: Mutex::new(None) };
        if count < 2 || self.threads < 2 || self.is_busy.swap(true, Ordering::Acquire) {
            work.go();
            return work.outcome();
        }
        self.work.store((&raw const work).cast_mut().cast::<Work<'static>>(), Ordering::Release);
        self.door.fetch_or(OPEN, Ordering::Release);
        self.ring();
        work.go();
        self.door.fetch_and(!OPEN, Ordering::Relaxed);
        let mut looks = 0_u32;
        // What each of them wrote is seen from here on.
        while self.door.load(Ordering::Acquire) != 0 {
            looks = looks.wrapping_add(1);
            if self.shares_cores || looks > SPINS {
                // The core may be the one that the other thread needs.
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        self.is_busy.store(false, Ordering::Release);
        work.outcome()
    }

    /// Does `act` for consecutive ranges that cover `byte_count`, each a multiple of 64 bytes but the last.
    ///
    /// # Errors
    /// As [`Crew::each`].
    pub fn ranges(&self, byte_count: usize, act: &(dyn Fn(Range<usize>) -> Result<()> + Sync)) -> Result<()> {
        let length = byte_count.div_ceil(self.threads * TURNS).max(LEAST_PIECE).next_multiple_of(64);
        self.each(byte_count.div_ceil(length), &|piece| {
            act(piece * length..byte_count.min((piece + 1) * length))
        })
    }

    /// As [`Crew::ranges`] over the bytes of `target`, each range with the bytes that are in it.
    ///
    /// # Errors
    /// As [`Crew::each`].
    pub fn parts(
        &self,
        target: &mut SpanMut<'_>,
        act: &(dyn Fn(Range<usize>, &mut SpanMut<'_>) -> Result<()> + Sync),
    ) -> Result<()> {
        let whole = &*target;
        self.ranges(whole.byte_count(), &|range| {
            let first = whole.pointer().wrapping_add(range.start);
            // SAFETY: `ranges` gives ranges within `target` that do not overlap, each to one thread; `target` is lent to this
            // call alone, which ends after all of them.
            let mut part = unsafe { SpanMut::from_raw(first, range.len()) };
            act(range, &mut part)
        })
    }

    /// Has helpers look up.
    fn ring(&self) {
        // With the count of sleepers a handshake of two words in one order: a helper that counts itself after this addition
        // finds the epoch changed, one that did before is seen here.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            futex::wake(&self.epoch);
        }
    }

    /// Waits for an epoch other than `seen`.
    fn await_change(&self, seen: u32) -> u32 {
        let limit = if self.shares_cores { YIELDS } else { SPINS };
        let mut looks = 0;
        loop {
            let now = self.epoch.load(Ordering::SeqCst);
            if now != seen {
                return now;
            }
            looks += 1;
            if looks > limit {
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                futex::wait(&self.epoch, seen, CHECK_INTERVAL);
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            } else if self.shares_cores {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes part in the work, if there is one.
    fn enter(&self) {
        let mut door = self.door.load(Ordering::Relaxed);
        loop {
            if door & OPEN == 0 {
                return;
            }
            match self.door.compare_exchange_weak(door, door + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => door = now,
            }
        }
        // SAFETY: the door was open and this thread is counted: the caller, in whose frame the work lies, stays in `each` until the
        // count is zero. The pointer was stored before the door was opened, which was acquired.
        unsafe { &*self.work.load(Ordering::Relaxed) }.go();
        // What was stored past the caches is there before the caller goes on.
        settle();
        self.door.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Span;

    /// Runs `act` with a crew of so many threads, of which `late` come only when the work is over.
    fn with_crew(threads: usize, late: usize, act: impl Fn(&Crew)) {
        let crew = Crew::new(threads, true);
        std::thread::scope(|scope| {
            let ending = crew.ending();
            (1..threads - late).for_each(|_| drop(scope.spawn(|| crew.help())));
            act(&crew);
            drop(ending);
            (0..late).for_each(|_| drop(scope.spawn(|| crew.help())));
        });
    }

    #[test]
    fn every_piece_is_done_once_however_many_come() {
        for (threads, late) in [(1, 0), (2, 0), (3, 0), (3, 1), (4, 3)] {
            with_crew(threads, late, |crew| {
                for count in [0, 1, 2, 7, 1000] {
                    let done = (0..count).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>();
                    let act = |piece: usize| {
                        done[piece].fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    };
                    crew.each(count, &act).expect("no error");
                    assert!(done.iter().all(|done| done.load(Ordering::Relaxed) == 1));
                }
            });
        }
    }

    #[test]
    fn parts_cover_a_span_and_are_seen_by_the_caller() {
        let source = (0..100_003_u32).map(|number| number as u8).collect::<Vec<_>>();
        with_crew(3, 0, |crew| {
            for length in [0, 1, 63, LEAST_PIECE, LEAST_PIECE + 1, 100_003] {
                for round in 0..20 {
                    let mut target = vec![0_u8; length];
                    let from = Span::of(&source[..length]);
                    let act = |range: Range<usize>, part: &mut SpanMut<'_>| match round % 2 {
                        0 => part.copy_from(from.part(range)?),
                        _ => part.pour_from(from.part(range)?),
                    };
                    crew.parts(&mut SpanMut::of(&mut target), &act).expect("equal lengths");
                    settle();
                    assert!(target == source[..length]);
                }
            }
        });
    }

    #[test]
    fn helpers_do_the_work_of_a_caller_that_waits_for_them() {
        for shares_cores in [false, true] {
            let crew = Crew::new(3, shares_cores);
            let caller = std::thread::current().id();
            std::thread::scope(|scope| {
                let ending = crew.ending();
                (1..3).for_each(|_| drop(scope.spawn(|| crew.help())));
                for _ in 0..50 {
                    let helped = AtomicUsize::new(0);
                    let act = |_: usize| {
                        if std::thread::current().id() != caller {
                            helped.fetch_add(1, Ordering::SeqCst);
                        }
                        while helped.load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        Ok(())
                    };
                    crew.each(2, &act).expect("no error");
                    assert!(helped.into_inner() > 0);
                }
                drop(ending);
            });
        }
    }

    #[test]
    fn an_error_and_a_panic_end_the_work_and_not_the_crew() {
        with_crew(3, 0, |crew| {
            for _ in 0..20 {
                let error = crew
                    .each(100, &|piece| match piece {
                        7 => Err(Error::unsupported("seven", "of this test")),
                        _ => Ok(()),
                    })
                    .expect_err("one failed");
                assert!(error.to_string().contains("seven"), "{error}");
                let caught = catch_unwind(AssertUnwindSafe(|| {
                    crew.each(100, &|piece| if piece == 3 { panic!("in a piece") } else { Ok(()) })
                }));
                assert!(caught.is_err());
                crew.each(100, &|_| Ok(())).expect("it goes on");
            }
        });
    }

    #[test]
    fn a_work_within_a_work_is_done_alone() {
        with_crew(2, 0, |crew| {
            let done = AtomicUsize::new(0);
            let inner = |_: usize| {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            };
            crew.each(5, &|_| crew.each(5, &inner)).expect("no error");
            assert_eq!(done.into_inner(), 25);
        });
    }
}
