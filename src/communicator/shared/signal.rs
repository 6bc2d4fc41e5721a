//! What one member publishes and others wait for, over any memory: the words lie in a segment, or in a model that tries all orders.
//!
//! Every ordering of the handshake that `control.rs` describes stands here and nowhere else.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::sys::futex;
use crate::sys::shared::Segment;

/// Where words of 64 bits lie, and where one sleeps beside them.
pub(super) trait Memory {
    /// What names a word.
    type Word: Copy;

    fn load(&self, word: Self::Word, order: Ordering) -> u64;
    fn store(&self, word: Self::Word, value: u64, order: Ordering);
    fn swap(&self, word: Self::Word, value: u64, order: Ordering);
    fn add(&self, word: Self::Word, value: u64, order: Ordering);
    /// Sets bits of a word.
    fn set(&self, word: Self::Word, bits: u64, order: Ordering);
    /// Sleeps while the word holds `value`, at most `limit`; a full barrier precedes the look at the word.
    fn sleep(&self, word: Self::Word, value: u64, limit: Duration);
    /// Wakes all that sleep beside the word.
    fn wake(&self, word: Self::Word);
}

/// The words of one signal.
#[derive(Clone, Copy)]
pub(super) struct Words<W> {
    /// What is published, above one bit that says that the writer has ended its part; what is published only grows.
    pub(super) counter: W,
    /// How many sleep beside it.
    pub(super) sleepers: W,
    /// Not zero once its writer publishes no more.
    pub(super) state: Option<W>,
}

/// The bit of a counter that is set when its writer ends its part, so that who is about to sleep beside the old value does not.
///
/// A later publication takes it away again, and then is itself what changes the counter.
const ENDED: u64 = 1;

/// One signal, as its writer and those who wait for it see it.
pub(super) struct Signal<'m, M: Memory> {
    pub(super) memory: &'m M,
    pub(super) words: Words<M::Word>,
}

impl<M: Memory> Signal<'_, M> {
    /// What was published last; all that was written before it is seen from now on.
    pub(super) fn seen(&self) -> u64 {
        self.memory.load(self.words.counter, Ordering::Acquire) >> 1
    }

    /// Publishes a number, and wakes who waits for it.
    pub(super) fn publish(&self, value: u64) {
        // One exchange: the release of what was written, and the full barrier before the count is read.
        self.memory.swap(self.words.counter, value << 1, Ordering::SeqCst);
        self.ring();
    }

    fn ring(&self) {
        if self.memory.load(self.words.sleepers, Ordering::SeqCst) != 0 {
            self.memory.wake(self.words.counter);
        }
    }

    /// How its writer ended its part; zero while it has not.
    pub(super) fn state(&self) -> u64 {
        self.words.state.map_or(0, |state| self.memory.load(state, Ordering::Acquire))
    }

    /// Ends the writer's part, and wakes who waits; what was written before is seen by those who see the state.
    pub(super) fn end(&self, state: u64) {
        if let Some(word) = self.words.state {
            self.memory.store(word, state, Ordering::Release);
            self.memory.set(self.words.counter, ENDED, Ordering::SeqCst);
            self.ring();
        }
    }

    /// Sleeps while `seen` is what was published last and the writer has not ended its part, or less long for any other reason.
    ///
    /// The caller has looked at the state after it saw this. Who is killed here leaves its count, which only costs wakes.
    pub(super) fn sleep(&self, seen: u64, limit: Duration) {
        self.memory.add(self.words.sleepers, 1, Ordering::SeqCst);
        self.memory.sleep(self.words.counter, seen << 1, limit);
        self.memory.add(self.words.sleepers, 1_u64.wrapping_neg(), Ordering::SeqCst);
    }

    /// Waits until `target` is published; `look` says before each sleep how long it may be, or why there is none.
    pub(super) fn reach<E>(
        &self,
        target: u64,
        mut look: impl FnMut() -> Result<Duration, E>,
    ) -> Result<(), E> {
        loop {
            let seen = self.seen();
            if seen >= target {
                return Ok(());
            }
            self.sleep(seen, look()?);
        }
    }
}

/// Says that nothing is read or written any more for the call with this number.
pub(super) fn conclude<M: Memory>(memory: &M, done: M::Word, sequence: u64) {
    memory.store(done, sequence, Ordering::Release);
}

/// Whether that was said; what its writer did before has happened then.
pub(super) fn has_concluded<M: Memory>(memory: &M, done: M::Word, sequence: u64) -> bool {
    memory.load(done, Ordering::Acquire) >= sequence
}

fn word(segment: &Segment, offset: usize) -> &AtomicU64 {
    static NOWHERE: AtomicU64 = AtomicU64::new(0);
    // Every offset lies below the size that the owner of the segment asked for.
    segment.word64(offset).unwrap_or(&NOWHERE)
}

/// The half of a word that changes with every publication, which the kernel compares before a sleep.
///
/// Fewer than 2^31 places are published in a sleep, so equal halves are the same place.
const BELL: usize = if cfg!(target_endian = "little") { 0 } else { 4 };

/// A word is named by its offset.
impl Memory for Segment {
    type Word = usize;

    fn load(&self, offset: usize, order: Ordering) -> u64 {
        word(self, offset).load(order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        word(self, offset).store(value, order);
    }

    fn swap(&self, offset: usize, value: u64, order: Ordering) {
        word(self, offset).swap(value, order);
    }

    fn add(&self, offset: usize, value: u64, order: Ordering) {
        word(self, offset).fetch_add(value, order);
    }

    fn set(&self, offset: usize, bits: u64, order: Ordering) {
        word(self, offset).fetch_or(bits, order);
    }

    fn sleep(&self, offset: usize, value: u64, limit: Duration) {
        if let Some(bell) = self.word32(offset + BELL) {
            futex::wait(bell, value as u32, limit);
        }
    }

    fn wake(&self, offset: usize) {
        if let Some(bell) = self.word32(offset + BELL) {
            futex::wake(bell);
        }
    }
}
