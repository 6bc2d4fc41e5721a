//! Moving and reducing bytes inside one group: the trait every backend implements, and its conformance rules.

mod announcement;
mod carrier;
pub mod ccl;
pub mod control;
mod descriptor;
mod gate;
mod handshake;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod hostile;
pub mod mpi;
mod pair;
mod parts;
mod progress;
pub mod recorded;
mod reduce;
pub mod shared;
mod small;
mod spread;
pub mod tcp;
pub mod tiered;
mod warning;

use std::sync::Arc;

pub use control::Channel;
pub(crate) use handshake::derived_key;
pub use progress::{Progress, ProgressCallback};

use crate::error::{Error, Result};
use crate::recorder::{Mark, Site};
use crate::sys::crew::Crew;
use crate::sys::gpu::GpuSpan;
use crate::sys::kernel::Table;
use crate::sys::{Deadline, Element, Layout, Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// What one member asks of its group.
///
/// Counts are elements of `dtype`. `input` holds this member's contribution and `output` what it gets; a verb in
/// place has no input of its own and finds its contribution in `output`:
/// - all_reduce: input n (or in place), output n;
/// - reduce: input n (in place at the root only), output n at the root, nothing elsewhere;
/// - broadcast: the root's output is its contribution, n everywhere;
/// - all_gather: input n (or in place), output n * count, in the order of seats;
/// - gather: input n, output n * count at the root, nothing elsewhere;
/// - scatter: input n * count at the root, none elsewhere, output n;
/// - reduce_scatter: input n * count, output n;
/// - all_to_all: input n * count, the part for each seat in their order, output n * count, the part from each;
/// - send: input n, output nothing; `root` is the seat that it is for, `tag` tells messages apart;
/// - receive: output n; `root` is the seat that it is from;
/// - barrier: neither.
///
/// With `counts`, part `seat` of an array of all seats has `counts[seat]` elements instead of n.
///
/// A communicator takes arrays whose elements follow each other; a mesh packs others first. An input may be the memory of the
/// output only where a mesh made it a call in place.
#[derive(Debug)]
pub struct Call<'a> {
    /// The verb.
    pub verb: Verb,
    /// The element type.
    pub dtype: Dtype,
    /// How to combine; ignored by verbs that do not reduce.
    pub op: ReduceOp,
    /// The seat that broadcasts, scatters, gathers or reduces; ignored by verbs without a root.
    pub root: usize,
    /// The elements of each seat's part, where they differ: of the gathered or scattered array, the same on all members; in
    /// all_to_all those sent to each seat.
    pub counts: Option<&'a [usize]>,
    /// In all_to_all with `counts`: the elements that come from each seat.
    pub receive_counts: Option<&'a [usize]>,
    /// The kernels that combine; a mesh puts those of the executor that it holds.
    pub kernels: Table,
    /// The threads that share large copies and reductions; a mesh puts those of the executor that it holds. No bit depends on it.
    pub crew: Option<&'a Crew>,
    /// This member's contribution, `None` in place.
    pub input: Option<Span<'a>>,
    /// What this member gets.
    pub output: SpanMut<'a>,
    /// The arrays instead of `input` and `output` where they are in a GPU's memory: the group then agrees on the call and moves
    /// nothing. Each GPU takes the place of a member: `root`, `counts` and the order of parts count the GPUs of all members, in the
    /// order of members and then of their executors.
    pub gpu: Option<GpuArrays<'a>>,
    /// The arrays on this member's further GPUs, in the order of its executor; none where it drives one.
    pub further_gpus: Vec<GpuArrays<'a>>,
    /// Which place its arrays have among how many, where places are not the seats of the group; a mesh puts that of a GPU.
    pub place: Option<(usize, usize)>,
    /// Where the elements of `input` lie in it; `None` where they follow each other.
    pub input_layout: Option<&'a Layout>,
    /// Where the elements of `output` lie in it; `None` where they follow each other.
    pub output_layout: Option<&'a Layout>,
    /// Whether the bits of a reduction must not depend on how members are spread over hosts: values are then combined in the
    /// order of seats alone, and each of them crosses to every host. The same on all members.
    pub reproducible: bool,
    /// Stands for the list of arrays that lie in `output` one after the other, equal for equal lists; 0 for a lone array.
    pub list: u64,
    /// In send and receive: which messages the call is about; those of one tag are received in the order of their sends.
    pub tag: u64,
    /// Who is told how far the call has come; what moves payload advances it by the bytes of `output` that are there.
    pub progress: Option<Progress<'a>>,
    /// Where in the user's code it was made.
    pub site: Site,
    /// Its place in this member's record; a recorded group puts it here.
    pub mark: Option<Mark<'a>>,
}

impl<'a> Call<'a> {
    /// A call on elements of one Rust type, without reports of its progress.
    #[must_use]
    pub fn of<T: Element>(
        verb: Verb,
        op: ReduceOp,
        root: usize,
        input: Option<Span<'a>>,
        output: SpanMut<'a>,
    ) -> Self {
        Self::new(verb, T::DTYPE, op, root, input, output)
    }

    /// A call without reports of its progress.
    #[must_use]
    pub fn new(
        verb: Verb,
        dtype: Dtype,
        op: ReduceOp,
        root: usize,
        input: Option<Span<'a>>,
        output: SpanMut<'a>,
    ) -> Self {
        Self {
            verb,
            dtype,
            op,
            root,
            counts: None,
            receive_counts: None,
            kernels: Table::SERIAL,
            crew: None,
            input,
            output,
            gpu: None,
            further_gpus: Vec::new(),
            place: None,
            input_layout: None,
            output_layout: None,
            reproducible: false,
            list: 0,
            tag: 0,
            progress: None,
            site: Site::default(),
            mark: None,
        }
    }

    /// A call on memory of this member's GPU, without reports of its progress.
    #[must_use]
    pub fn on_gpu(verb: Verb, dtype: Dtype, op: ReduceOp, root: usize, arrays: GpuArrays<'a>) -> Self {
        Self { gpu: Some(arrays), ..Self::new(verb, dtype, op, root, None, SpanMut::empty()) }
    }

    /// A call on memory of this member's GPUs, one pair of arrays for each in the order of its executor.
    #[must_use]
    pub fn on_gpus(
        verb: Verb,
        dtype: Dtype,
        op: ReduceOp,
        root: usize,
        arrays: impl IntoIterator<Item = GpuArrays<'a>>,
    ) -> Self {
        let mut arrays = arrays.into_iter();
        let gpu = Some(arrays.next().unwrap_or_default());
        let further_gpus = arrays.collect();
        Self { gpu, further_gpus, ..Self::new(verb, dtype, op, root, None, SpanMut::empty()) }
    }

    /// The arrays on each of this member's GPUs; none for a call in host memory.
    pub fn gpu_arrays(&self) -> impl Iterator<Item = &GpuArrays<'a>> {
        self.gpu.iter().chain(&self.further_gpus)
    }

    /// The bytes of the input, wherever it is; `None` without one.
    #[must_use]
    pub fn input_bytes(&self) -> Option<usize> {
        match &self.gpu {
            Some(arrays) => arrays.input.map(|input| input.byte_count()),
            None => self.input.map(|input| input.byte_count()),
        }
    }

    /// The bytes of the output, wherever it is.
    #[must_use]
    pub fn output_bytes(&self) -> usize {
        match &self.gpu {
            Some(arrays) => arrays.output.map_or(0, |output| output.byte_count()),
            None => self.output.byte_count(),
        }
    }

    /// The same call with parts of different lengths; `receive_counts` is for all_to_all alone.
    #[must_use]
    pub fn counted(self, counts: &'a [usize], receive_counts: Option<&'a [usize]>) -> Self {
        Self { counts: Some(counts), receive_counts, ..self }
    }

    /// Records the number of the call in its group.
    #[inline]
    pub fn numbered(&self, sequence: u64) {
        if let Some(mark) = self.mark {
            mark.numbered(sequence);
        }
    }

    /// Records that all members have made the call.
    #[inline]
    pub fn matched(&self) {
        if let Some(mark) = self.mark {
            mark.matched();
        }
    }

    /// As [`Call::matched`], where the call ends without another wait.
    #[inline]
    pub fn matched_last(&self) {
        if let Some(mark) = self.mark {
            mark.matched_last();
        }
    }
}

/// The arrays of a call in the memory of one GPU of a member; their lengths are those of [`Call`].
#[derive(Clone, Copy, Debug, Default)]
pub struct GpuArrays<'a> {
    /// This member's contribution; `None` in place.
    pub input: Option<GpuSpan<'a>>,
    /// What this member gets; `None` where it gets nothing.
    pub output: Option<GpuSpan<'a>>,
}

/// One group of members that call the same verbs in the same order.
///
/// Every call: descriptors are compared first, payload moves only if all match, else all members get `Disagreed` and
/// the group stays usable. A member that dies makes `Lost` on all others within a second; after `Lost`, `TimedOut` or
/// `Interrupted` in a call the group is broken, every later call returns the same cause, and only its [`Channel`] and `close`
/// are legal.
pub trait Communicator: Channel {
    /// This member's seat, 0 to `count() - 1`.
    fn seat(&self) -> usize;

    /// How many seats there are.
    fn count(&self) -> usize;

    /// Runs one call to its end.
    ///
    /// # Errors
    /// `Invalid` before a sequence number is taken; `Disagreed`, `Lost`, `TimedOut`, `Interrupted` as above.
    fn run(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()>;

    /// Runs a call whose payload `work` moves between the moment when all members have made it and that when all have done so.
    ///
    /// # Errors
    /// As [`Communicator::run`], and those of `work`, which ends the group where others cannot follow.
    fn attend(
        &self,
        call: Call<'_>,
        deadline: &Deadline<'_>,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let words = format!("{} of {} on GPU memory", call.verb.word(), call.dtype);
        let (verb, other, tag) = (call.verb, call.root, call.tag);
        self.run(call, deadline)?;
        work()?;
        // Nobody goes on, and maybe ends, before all have their results.
        let end = match verb {
            Verb::Send => {
                let arrays = GpuArrays { input: Some(GpuSpan::EMPTY), output: None };
                Call { tag, ..Call::on_gpu(verb, Dtype::U8, ReduceOp::Sum, other, arrays) }
            }
            Verb::Receive => {
                let arrays = GpuArrays { input: None, output: Some(GpuSpan::EMPTY) };
                Call { tag, ..Call::on_gpu(verb, Dtype::U8, ReduceOp::Sum, other, arrays) }
            }
            _ => Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty()),
        };
        self.run(Call { site: Site::given(), ..end }, deadline).map_err(|error| match error {
            Error::Lost { index, host, pid, phase } => {
                Error::Lost { index, host, pid, phase: format!("{words}: {phase}") }
            }
            Error::TimedOut { phase, waited, missing } => {
                Error::TimedOut { phase: format!("the end of {words}: {phase}"), waited, missing }
            }
            other => other,
        })
    }

    /// Makes an arena of `byte_count` bytes here; collective, sizes may differ between members.
    ///
    /// # Errors
    /// `Exhausted` on all members, naming the one that could not reserve; else as [`Communicator::run`].
    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>>;

    /// Tells the peers that this member refused to make its next call, so that their deadline can name the reason.
    fn refuse(&self, verb: Verb, reason: &Error);

    /// Ends the group because of an error outside of its calls, in `phase`: peers in a call, or calling later, get `Lost` with the
    /// error. As after a call that failed, its [`Channel`] goes on.
    fn give_up(&self, _error: &Error, _phase: &str) {
        self.close();
    }

    /// Leaves the group: peers in a call, or calling later, get `Lost` saying that this member closed.
    fn close(&self);
}

/// Memory of every member of a group that all members see.
pub trait SharedArena: Send + Sync {
    /// The bytes that `seat` brought; `None` if there is no such seat, or if its memory is on another host.
    ///
    /// Valid as long as the arena lives; any member may write at any time.
    fn part(&self, seat: usize) -> Option<Span<'_>>;

    /// The same for writing. Several writers of one place see some mixture of what was written.
    fn part_mut(&self, seat: usize) -> Option<SpanMut<'_>>;

    /// This member's seat.
    fn seat(&self) -> usize;
}
