//! The verbs of a mesh: what is checked and held before the communicator moves a byte.

use crate::communicator::Call;
use crate::error::{Error, Result};
use crate::mesh::{Arena, Mesh};
use crate::sys::{Deadline, Element, Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// How long a verb may take where nobody says otherwise, in seconds.
pub const VERB_TIMEOUT_SECONDS: f64 = 1800.0;

impl Mesh {
    /// The deadline of a verb; 0 seconds mean 1,800.
    ///
    /// # Errors
    /// `Invalid` for a negative number, NaN, or infinity.
    pub fn verb_deadline(seconds: f64) -> Result<Deadline<'static>> {
        Deadline::after_seconds(seconds, VERB_TIMEOUT_SECONDS, "timeout_seconds")
    }

    /// Runs one call; the typed verbs and the shims come through here.
    ///
    /// A call that is refused here takes no place in the order of calls, touches no payload, and is told to the peers.
    ///
    /// # Errors
    /// `Contended`, `Closed`, `Invalid` and `Unsupported` before anything moves; `Disagreed`, after which the mesh stays
    /// usable; `Lost`, `TimedOut` and `Interrupted`, after which only `close` is legal.
    pub fn run(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let verb = call.verb;
        self.refusing(verb, || {
            self.check_open()?;
            check_root(call.root, self.count())?;
            self.executor().hold(verb.word())
        })
        .and_then(|_hold| self.communicator().run(call, deadline))
    }

    /// Passes an error before a call on to the peers, whose deadline then names it.
    fn refusing<T>(&self, verb: Verb, check: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = check();
        match &result {
            Err(error) if !matches!(error, Error::Closed { .. }) => self.communicator().refuse(verb, error),
            _ => {}
        }
        result
    }

    /// Reduces `array` over all members, in place: n elements everywhere.
    ///
    /// Additions are made in the order of indexes, so that all members and all runs get the same bits.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn all_reduce<T: Element>(&self, array: &mut [T], op: ReduceOp) -> Result<()> {
        self.typed(Verb::AllReduce, op, 0, None, array)
    }

    /// Copies the root's `array` to all members: n elements everywhere.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn broadcast<T: Element>(&self, array: &mut [T], root: usize) -> Result<()> {
        self.typed(Verb::Broadcast, ReduceOp::Sum, root, None, array)
    }

    /// Puts the arrays of all members one after the other: n elements in, n * count out.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn all_gather<T: Element>(&self, array: &[T], out: &mut [T]) -> Result<()> {
        self.typed(Verb::AllGather, ReduceOp::Sum, 0, Some(Span::of(array)), out)
    }

    /// Reduces over all members and gives each its part: n * count elements in, n out.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn reduce_scatter<T: Element>(&self, array: &[T], out: &mut [T], op: ReduceOp) -> Result<()> {
        self.typed(Verb::ReduceScatter, op, 0, Some(Span::of(array)), out)
    }

    /// Returns when all members have come.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn barrier(&self) -> Result<()> {
        self.typed::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, &mut [])
    }

    /// The byte strings of all members, by index; lengths may differ.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    pub fn exchange(&self, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let mut lengths = vec![0u64; self.count()];
        let own = [payload.len() as u64];
        self.gather_within(&own, &mut lengths, deadline)?;
        let longest = lengths.iter().max().copied().unwrap_or(0) as usize;
        let mut padded = payload.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * self.count()];
        self.gather_within(&padded, &mut all, deadline)?;
        let parts = lengths.iter().enumerate();
        Ok(parts.map(|(index, length)| all[index * longest..][..*length as usize].to_vec()).collect())
    }

    /// Shared memory of all members: `byte_count` bytes of this one, which may differ from the others'.
    ///
    /// # Errors
    /// `Exhausted` on all members, naming the one that could not reserve its part; else as [`Mesh::run`].
    pub fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arena> {
        let hold = self.refusing(Verb::Arena, || {
            self.check_open()?;
            self.executor().hold(Verb::Arena.word())
        })?;
        let arena = self.communicator().arena(byte_count, deadline)?;
        drop(hold);
        Ok(Arena::new(arena))
    }

    fn gather_within<T: Element>(&self, own: &[T], all: &mut [T], deadline: &Deadline<'_>) -> Result<()> {
        let call = Call {
            verb: Verb::AllGather,
            dtype: T::DTYPE,
            op: ReduceOp::Sum,
            root: 0,
            input: Some(Span::of(own)),
            output: SpanMut::of(all),
        };
        self.run(call, deadline)
    }

    fn typed<T: Element>(
        &self,
        verb: Verb,
        op: ReduceOp,
        root: usize,
        input: Option<Span<'_>>,
        output: &mut [T],
    ) -> Result<()> {
        let dtype: Dtype = T::DTYPE;
        let call = Call { verb, dtype, op, root, input, output: SpanMut::of(output) };
        self.run(call, &Self::verb_deadline(0.0)?)
    }
}

fn check_root(root: usize, count: usize) -> Result<()> {
    if root < count {
        return Ok(());
    }
    let reason = format!("must be an index below {count}");
    Err(Error::invalid("root", root, "argument", reason))
}
