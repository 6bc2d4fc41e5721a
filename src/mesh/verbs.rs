//! The verbs of a mesh: what is checked and held before the communicator moves a byte.

use std::sync::Arc;
use std::time::Duration;

use crate::communicator::{Call, Progress};
use crate::error::{Error, Result};
use crate::executor::Hold;
use crate::mesh::order::Lane;
use crate::mesh::{Admission, Arena, Mesh, arrays, crossed};
use crate::recorder::Site;
use crate::sys::{Deadline, Element, Span, SpanMut};
use crate::vocabulary::{ReduceOp, Verb};

/// How long a verb may take where nobody says otherwise, in seconds.
pub const VERB_TIMEOUT_SECONDS: f64 = 1800.0;

/// Calls on arrays from this size on are shared among the threads of their executor: below, waking them takes as long as they save.
const CREW_BYTES: usize = 8 << 20;

/// The bytes of the longer array of a call.
fn longest(call: &Call<'_>) -> usize {
    call.output.byte_count().max(call.input.map_or(0, |input| input.byte_count()))
}

impl Mesh {
    /// The deadline of a verb; 0 seconds mean 1,800.
    ///
    /// # Errors
    /// `Invalid` for a negative number, NaN, or infinity.
    pub fn verb_deadline(seconds: f64) -> Result<Deadline<'static>> {
        Deadline::after_seconds(seconds, VERB_TIMEOUT_SECONDS, "timeout_seconds")
    }

    /// The deadline of a verb that was given none.
    pub(super) fn patience() -> Deadline<'static> {
        Deadline::after(Duration::from_secs_f64(VERB_TIMEOUT_SECONDS))
    }

    /// Runs one call; the typed verbs and the shims come through here.
    ///
    /// A call that is refused here takes no place in the order of calls, touches no payload, and is told to the peers:
    /// they keep waiting, and a retry may succeed.
    ///
    /// # Errors
    /// `Contended`, `Closed`, `Invalid` and `Unsupported` before anything moves; `Disagreed`, after which the mesh stays
    /// usable; `Lost`, `TimedOut` and `Interrupted`, after which only `close` is legal.
    #[track_caller]
    pub fn run(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let (verb, lane) = (call.verb, Lane::of(&call));
        call.site = call.site.or_caller();
        self.refusing(verb, || {
            self.check_open()?;
            self.check_call(&call)?;
            let admission = self.admitted_in(verb, lane, deadline)?;
            self.carry(call, Some(admission.hold()), deadline)
        })?
    }

    /// What can be said of a call without the group.
    pub(super) fn check_call(&self, call: &Call<'_>) -> Result<()> {
        check_verb(call.verb)?;
        // On GPUs both count places, which are known once the group of GPUs is there.
        if call.gpu.is_some() {
            return self.check_gpu_call(call);
        }
        if !matches!(call.verb, Verb::Send | Verb::Receive) {
            check_root(call.root, self.count())?;
        }
        arrays::check(call, self.index())
    }

    /// Runs `moves` and reports what it advances of `total` bytes.
    ///
    /// With an executor, one whose progress is reported runs on its threads while the caller waits; without, the calling
    /// thread is one of them. Inside of the success is what became of the reports.
    pub(super) fn reported(
        &self,
        verb: Verb,
        (progress, total): (Option<Progress<'_>>, usize),
        executor: Option<&Hold>,
        deadline: &Deadline<'_>,
        moves: impl FnOnce(&Deadline<'_>) -> Result<()> + Send,
    ) -> Result<Result<()>> {
        let Some(progress) = progress else { return moves(deadline).map(Ok) };
        progress.start(total as u64);
        let run = |deadline: &Deadline<'_>| {
            moves(deadline)?;
            Ok(progress.finish())
        };
        match executor {
            None => run(deadline),
            Some(hold) => hold.attended(deadline, run).unwrap_or_else(|| {
                let why = "its thread ended before it".to_owned();
                Err(Error::Closed { what: verb.word().to_owned(), why })
            }),
        }
    }

    /// Hands a call whose arrays are contiguous to the group.
    #[inline]
    pub(super) fn to_group(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        call.kernels = self.executor().kernels();
        self.make_one_sided(&mut call)?;
        if matches!(call.verb, Verb::Send | Verb::Receive) {
            return self.communicator().run(call, deadline);
        }
        if call.gpu.is_some() || longest(&call) < CREW_BYTES {
            let watch = crossed::Watch::new(self, call.verb, call.site);
            let look = || watch.look();
            let result = self.communicator().run(call, &deadline.unless_vain(&look));
            return watch.end(result);
        }
        self.executor().with_crew(|crew| {
            self.watched((call.verb, call.site), deadline, |deadline| {
                self.communicator().run(Call { crew, ..call }, deadline)
            })
        })
    }

    /// Runs a call of all members of the group, which ends where it is part of a circle of waits.
    fn watched<T>(
        &self,
        (verb, site): (Verb, Site),
        deadline: &Deadline<'_>,
        run: impl FnOnce(&Deadline<'_>) -> Result<T>,
    ) -> Result<T> {
        let watch = crossed::Watch::new(self, verb, site);
        let look = || watch.look();
        let result = run(&deadline.unless_vain(&look));
        watch.end(result)
    }

    /// Leaves a member only the arrays that it has a use for: on a mesh all members may give the same ones.
    fn make_one_sided(&self, call: &mut Call<'_>) -> Result<()> {
        let is_root = call.root == self.index();
        match call.verb {
            // A group broadcasts in place: what the root gives goes to its output first.
            Verb::Broadcast => {
                if let Some(input) = call.input.take() {
                    check_equal(input, &call.output)?;
                    if is_root {
                        call.output.copy_from(input)?;
                    }
                }
            }
            Verb::Reduce if !is_root => {
                let output = std::mem::replace(&mut call.output, SpanMut::empty());
                call.input.get_or_insert(output.into_span());
            }
            Verb::Gather if !is_root => call.output = SpanMut::empty(),
            Verb::Scatter if !is_root => call.input = None,
            _ => {}
        }
        Ok(())
    }

    /// Takes the executor and the turn; a wait for them that ends is told to the peers, since the call has not begun.
    pub(super) fn admitted(&self, verb: Verb, deadline: &Deadline<'_>) -> Result<Admission<'_>> {
        self.admitted_in(verb, Lane::Group, deadline)
    }

    /// As [`Mesh::admitted`], in a lane of the mesh.
    #[inline]
    fn admitted_in(&self, verb: Verb, lane: Lane, deadline: &Deadline<'_>) -> Result<Admission<'_>> {
        self.admit_in(verb.word(), lane, deadline).inspect_err(|error| {
            if matches!(error, Error::TimedOut { .. } | Error::Interrupted { .. }) {
                self.refuse(verb, error);
            }
        })
    }

    /// Tells the peers why this member refused to make its next call, where that is known only outside of this crate.
    pub fn refuse(&self, verb: Verb, reason: &Error) {
        if self.check_open().is_ok() {
            self.communicator().refuse(verb, reason);
        }
    }

    /// Passes an error that came before the call began on to the peers, whose deadline then names it.
    #[inline(always)]
    pub(super) fn refusing<T>(&self, verb: Verb, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = call();
        if let Err(error @ (Error::Contended { .. } | Error::Invalid { .. } | Error::Unsupported { .. })) =
            &result
        {
            self.communicator().refuse(verb, error);
        }
        result
    }

    /// Reduces `array` over all members, in place: n elements everywhere.
    ///
    /// Additions are made in the order of indexes, so that all members and all runs get the same bits.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, array: &mut [T], op: ReduceOp) -> Result<()> {
        self.typed(Verb::AllReduce, op, 0, None, array)
    }

    /// Copies the root's `array` to all members: n elements everywhere.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn broadcast<T: Element>(&self, array: &mut [T], root: usize) -> Result<()> {
        self.typed(Verb::Broadcast, ReduceOp::Sum, root, None, array)
    }

    /// Puts the arrays of all members one after the other: n elements in, n * count out.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn all_gather<T: Element>(&self, array: &[T], out: &mut [T]) -> Result<()> {
        self.typed(Verb::AllGather, ReduceOp::Sum, 0, Some(Span::of(array)), out)
    }

    /// Reduces over all members and gives each its part: n * count elements in, n out.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn reduce_scatter<T: Element>(&self, array: &[T], out: &mut [T], op: ReduceOp) -> Result<()> {
        self.typed(Verb::ReduceScatter, op, 0, Some(Span::of(array)), out)
    }

    /// Reduces `array` over all members to the root, in place: n elements everywhere, which only the root's change.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn reduce<T: Element>(&self, array: &mut [T], root: usize, op: ReduceOp) -> Result<()> {
        self.typed(Verb::Reduce, op, root, None, array)
    }

    /// Puts the arrays of all members one after the other at the root: n elements in, n * count out; `out` may be empty
    /// elsewhere.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn gather<T: Element>(&self, array: &[T], out: &mut [T], root: usize) -> Result<()> {
        self.typed(Verb::Gather, ReduceOp::Sum, root, Some(Span::of(array)), out)
    }

    /// Gives every member its part of the root's `array`: n * count elements in, n out; `array` may be empty elsewhere.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn scatter<T: Element>(&self, array: &[T], out: &mut [T], root: usize) -> Result<()> {
        self.typed(Verb::Scatter, ReduceOp::Sum, root, Some(Span::of(array)), out)
    }

    /// Gives every member one part of every other: n * count elements in, by the member that they are for, n * count out, by
    /// the member that they are from.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, array: &[T], out: &mut [T]) -> Result<()> {
        self.typed(Verb::AllToAll, ReduceOp::Sum, 0, Some(Span::of(array)), out)
    }

    /// Gives `array` to the member `destination`, which receives it with the same tag: n elements on both sides.
    ///
    /// Messages of one tag are received in the order of their sends, and other tags do not wait for them. What fits into 64 KiB
    /// together with all that was sent there and not received, 64 bytes counted for each message, is sent before its receive
    /// (over MPI 1 KiB); the send of more ends when the other side receives.
    ///
    /// # Errors
    /// As [`Mesh::run`]; `Invalid` for this member itself. `Disagreed` on both sides where counts or types differ; of a message
    /// that was sent before its receive only the receiving side learns it.
    #[track_caller]
    pub fn send<T: Element>(&self, array: &[T], destination: usize, tag: u64) -> Result<()> {
        let call =
            Call::of::<T>(Verb::Send, ReduceOp::Sum, destination, Some(Span::of(array)), SpanMut::empty());
        self.run(Call { tag, ..call }, &Self::patience())
    }

    /// Takes what the member `source` sends with this tag: n elements on both sides.
    ///
    /// # Errors
    /// As [`Mesh::send`].
    #[track_caller]
    pub fn receive<T: Element>(&self, array: &mut [T], source: usize, tag: u64) -> Result<()> {
        let call = Call::of::<T>(Verb::Receive, ReduceOp::Sum, source, None, SpanMut::of(array));
        self.run(Call { tag, ..call }, &Self::patience())
    }

    /// Returns when all members have come.
    ///
    /// # Errors
    /// As [`Mesh::run`].
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.typed::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, &mut [])
    }

    /// The byte strings of all members, by index; lengths may differ.
    ///
    /// # Errors
    /// As [`Mesh::run`], and `Exhausted` where this member cannot hold what all of them give.
    #[track_caller]
    pub fn exchange(&self, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let site = Site::caller();
        self.refusing(Verb::Exchange, || {
            self.check_open()?;
            let _admission = self.admitted(Verb::Exchange, deadline)?;
            self.exchange_here(payload, site, deadline)
        })
    }

    /// An exchange whose turn has come.
    pub(super) fn exchange_here(
        &self,
        payload: &[u8],
        site: Site,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        self.exchange_as((Verb::Exchange, site), payload, deadline)
    }

    /// An exchange that members compare and messages name as another verb.
    pub(super) fn exchange_as(
        &self,
        (verb, site): (Verb, Site),
        payload: &[u8],
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let count = self.count();
        let mut lengths = vec![0_u64; count];
        self.gather_equal((verb, site), &[payload.len() as u64], &mut lengths, deadline)?;
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let mut all = zeroed(longest, count)?;
        let longest = longest as usize;
        let mut padded = zeroed(longest as u64, 1)?;
        padded[..payload.len()].copy_from_slice(payload);
        self.gather_equal((verb, site), &padded, &mut all, deadline)?;
        let parts = lengths.iter().enumerate();
        Ok(parts.map(|(index, length)| all[index * longest..][..*length as usize].to_vec()).collect())
    }

    /// Memory of all members, `byte_count` bytes of this one, which may differ from the others'. It is zero at first.
    ///
    /// It is shared on a host; on an executor of GPU streams it is as many bytes on each of its GPUs. All members have executors of
    /// one of the two kinds.
    ///
    /// # Errors
    /// `Exhausted` on all members, naming the one that could not reserve its part; else as [`Mesh::run`].
    #[track_caller]
    pub fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arena> {
        let site = Site::caller();
        self.refusing(Verb::Arena, || {
            self.check_open()?;
            let _admission = self.admitted(Verb::Arena, deadline)?;
            self.arena_here(byte_count, site, deadline)
        })
    }

    /// An arena in a call that has the turn, as a trainer's.
    pub(crate) fn arena_in_turn(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arena> {
        self.arena_here(byte_count, Site::given(), deadline)
    }

    /// The making of an arena whose turn has come.
    pub(super) fn arena_here(&self, byte_count: usize, site: Site, deadline: &Deadline<'_>) -> Result<Arena> {
        if !self.executor().gpus().is_empty() {
            return self.arena_on_gpus(byte_count, site, deadline);
        }
        let make = |deadline: &Deadline<'_>| site.during(|| self.communicator().arena(byte_count, deadline));
        let make = || self.watched((Verb::Arena, site), deadline, make);
        self.executor().near_memory(make).map(Arena::new)
    }

    /// One on the GPUs of this handle's executor: the members agree on the call, take their parts, and hear who could not.
    fn arena_on_gpus(&self, byte_count: usize, site: Site, deadline: &Deadline<'_>) -> Result<Arena> {
        // An arena of no bytes: other calls of other members are told as ever.
        let agree = |deadline: &Deadline<'_>| site.during(|| self.communicator().arena(0, deadline));
        drop(self.watched((Verb::Arena, site), deadline, agree)?);
        let taken = self.executor().device_arena(byte_count, deadline);
        let said = match &taken {
            Ok(_) => Vec::new(),
            Err(Error::Exhausted { place, wanted_bytes, free_bytes, .. }) => {
                let numbers = [wanted_bytes.to_le_bytes(), free_bytes.to_le_bytes()].concat();
                [numbers.as_slice(), place.as_bytes()].concat()
            }
            Err(error) => [&[0; 16], error.chain().as_bytes()].concat(),
        };
        let all = self.exchange_as((Verb::Exchange, site), &said, deadline)?;
        let Some(arena) = taken? else {
            return Err(Error::Closed { what: "the executor".into(), why: "it was closed meanwhile".into() });
        };
        match all.iter().position(|said| !said.is_empty()) {
            None => {
                let arena = Arc::new(arena);
                self.register(&arena);
                Ok(Arena::on_gpus(arena))
            }
            Some(index) => Err(refused_part(index, &all[index])),
        }
    }

    /// One gathering of a call that holds the executor already.
    fn gather_equal<T: Element>(
        &self,
        (verb, site): (Verb, Site),
        own: &[T],
        all: &mut [T],
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let mut call = Call::of::<T>(verb, ReduceOp::Sum, 0, Some(Span::of(own)), SpanMut::of(all));
        call.site = site;
        self.watched((verb, site), deadline, |deadline| self.communicator().run(call, deadline))
    }

    #[track_caller]
    fn typed<T: Element>(
        &self,
        verb: Verb,
        op: ReduceOp,
        root: usize,
        input: Option<Span<'_>>,
        output: &mut [T],
    ) -> Result<()> {
        let call = Call::of::<T>(verb, op, root, input, SpanMut::of(output));
        self.run(call, &Self::patience())
    }
}

/// Zeros for `count` parts of a length that another member may have said.
fn zeroed(length: u64, count: usize) -> Result<Vec<u8>> {
    let wanted = length.saturating_mul(count as u64);
    let mut bytes = reserved(wanted).ok_or_else(|| Error::Exhausted {
        place: format!("this process's memory, for the payloads of {count} members"),
        wanted_bytes: wanted,
        free_bytes: 0,
        remedy: "exchange less at a time".to_owned(),
    })?;
    bytes.resize(wanted as usize, 0);
    Ok(bytes)
}

/// An empty vector with room for so many bytes, `None` if they cannot be had.
fn reserved(byte_count: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(byte_count).ok()?).ok()?;
    Some(bytes)
}

fn check_verb(verb: Verb) -> Result<()> {
    match verb {
        Verb::AllReduce
        | Verb::Reduce
        | Verb::Broadcast
        | Verb::AllGather
        | Verb::Gather
        | Verb::Scatter
        | Verb::ReduceScatter
        | Verb::AllToAll
        | Verb::Send
        | Verb::Receive
        | Verb::Barrier => Ok(()),
        Verb::Exchange | Verb::Arena | Verb::Split => {
            let reason = "is not a call on arrays; use the method of the mesh";
            Err(Error::invalid("verb", verb.word(), "argument", reason))
        }
    }
}

fn check_equal(input: Span<'_>, output: &SpanMut<'_>) -> Result<()> {
    if input.byte_count() == output.byte_count() {
        return Ok(());
    }
    let reason = format!("must be as long as the output, {} bytes", output.byte_count());
    Err(Error::invalid("input", format!("{} bytes", input.byte_count()), "call", reason))
}

fn check_root(root: usize, count: usize) -> Result<()> {
    if root < count {
        return Ok(());
    }
    let reason = format!("must be an index below {count}");
    Err(Error::invalid("root", root, "argument", reason))
}

/// What another member said of its part of an arena, which it could not take.
fn refused_part(index: usize, said: &[u8]) -> Error {
    let number = |at: usize| {
        said.get(at..at + 8)
            .map_or(0, |bytes| bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)))
    };
    let text = String::from_utf8_lossy(said.get(16..).unwrap_or_default()).into_owned();
    Error::Exhausted {
        place: format!("index {index}: {text}"),
        wanted_bytes: number(0),
        free_bytes: number(8),
        remedy: "ask for less on it, or end what else uses it".to_owned(),
    }
}
