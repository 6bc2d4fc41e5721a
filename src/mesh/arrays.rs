//! The arrays of a call before a communicator sees them: in place or apart, packed if they are strided, many as one.

use super::Mesh;
use crate::communicator::Call;
use crate::error::{Error, Result};
use crate::executor::Hold;
use crate::recorder::Site;
use crate::sys::gpu::GpuSpan;
use crate::sys::{Deadline, Element, Layout, Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// How the two arrays of a call lie to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meeting {
    Apart,
    /// Exactly the same memory.
    Same,
    /// The input is this member's part of the gathered output.
    OwnPart,
    Partial,
}

/// Whether this member has no use for one of its arrays, wherever they lie.
fn uses_both(call: &Call<'_>, index: usize) -> bool {
    call.root == index || !matches!(call.verb, Verb::Reduce | Verb::Gather | Verb::Scatter)
}

/// First addresses and lengths of input and output, wherever they are, if neither is empty.
fn ranges(call: &Call<'_>) -> Option<((usize, usize), (usize, usize))> {
    let ranges = match &call.gpu {
        Some(arrays) => {
            let range = |span: GpuSpan<'_>| (usize::try_from(span.address()).unwrap_or(0), span.byte_count());
            (range(arrays.input?), range(arrays.output?))
        }
        None => {
            let (input, output) = (call.input?, call.output.as_span());
            ((input.pointer().addr(), input.byte_count()), (output.pointer().addr(), output.byte_count()))
        }
    };
    (ranges.0.1 > 0 && ranges.1.1 > 0).then_some(ranges)
}

fn meeting(call: &Call<'_>, index: usize) -> Meeting {
    let Some(((start, length), (other, other_length))) = ranges(call) else { return Meeting::Apart };
    if start.saturating_add(length) <= other || other.saturating_add(other_length) <= start {
        return Meeting::Apart;
    }
    if (start, length) == (other, other_length) && call.input_layout == call.output_layout {
        return Meeting::Same;
    }
    if call.input_layout.is_none() && call.output_layout.is_none() {
        let size = call.dtype.size_bytes();
        let before = match call.counts {
            Some(counts) => counts.iter().take(index).fold(0, |sum: usize, count| sum.saturating_add(*count)),
            None => index.saturating_mul(length / size),
        };
        let is_own_part = start == other.saturating_add(before.saturating_mul(size));
        return if call.verb == Verb::AllGather && is_own_part { Meeting::OwnPart } else { Meeting::Partial };
    }
    let (input, output) = (call.input.unwrap_or(Span::empty()), call.output.as_span());
    let whole = |span: Span<'_>| Layout::contiguous(span.byte_count());
    let input_layout = call.input_layout.cloned().unwrap_or_else(|| whole(input));
    let output_layout = call.output_layout.cloned().unwrap_or_else(|| whole(output));
    if input_layout.meets(input, &output_layout, output) { Meeting::Partial } else { Meeting::Apart }
}

/// Refuses arrays that overlap without being the same, arrays written in two ways, and spans that their layouts do not fit.
pub(super) fn check(call: &Call<'_>, index: usize) -> Result<()> {
    let fits = |argument: &str, span: Span<'_>, layout: Option<&Layout>| match layout {
        Some(layout) if layout.extent_bytes() != span.byte_count() => {
            let reason = format!("must be the {} bytes that its layout reaches", layout.extent_bytes());
            Err(Error::invalid(argument, format!("{} bytes", span.byte_count()), "call", reason))
        }
        _ => Ok(()),
    };
    if let Some(input) = call.input {
        fits("input", input, call.input_layout)?;
    }
    fits("output", call.output.as_span(), call.output_layout)?;
    if uses_both(call, index) && meeting(call, index) == Meeting::Partial {
        let (input, output) = ranges(call).unwrap_or_default();
        let words =
            |(start, length): (usize, usize)| format!("{start:#x}..{:#x}", start.saturating_add(length));
        let reason =
            format!("overlaps out, {}; both must be the same memory, in place, or apart", words(output));
        return Err(Error::invalid("array", words(input), "argument", reason));
    }
    let is_in_place = matches!(call.verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast);
    if call.gpu.is_some() && uses_both(call, index) && !is_in_place && meeting(call, index) == Meeting::Same {
        let reason = format!(
            "is out too, and {} on a GPU does not work in place: index {index} must give another out",
            call.verb.word()
        );
        return Err(Error::invalid("array", "GPU memory", "argument", reason));
    }
    if call.output_layout.is_some_and(Layout::may_repeat) {
        let reason = "must not have two elements in one place, it is written";
        return Err(Error::invalid("out", "a strided array", "argument", reason));
    }
    Ok(())
}

/// A call on a GPU that works in place, as one without an input.
pub(super) fn in_place(mut call: Call<'_>, place: usize) -> Call<'_> {
    let is_in_place = matches!(call.verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast);
    let meeting = meeting(&call, place);
    if meeting == Meeting::OwnPart || (meeting == Meeting::Same && is_in_place) {
        call.gpu.iter_mut().for_each(|arrays| arrays.input = None);
    }
    call
}

/// Bytes of the input and of the output, packed.
fn packed_bytes(call: &Call<'_>) -> (usize, usize) {
    let bytes =
        |layout: Option<&Layout>, span: Span<'_>| layout.map_or(span.byte_count(), Layout::byte_count);
    if call.gpu.is_some() {
        return (call.input_bytes().unwrap_or(0), call.output_bytes());
    }
    let input = call.input.map_or(0, |input| bytes(call.input_layout, input));
    (input, bytes(call.output_layout, call.output.as_span()))
}

fn pack(layout: Option<&Layout>, source: Span<'_>, target: &mut SpanMut<'_>) -> Result<()> {
    match layout {
        Some(layout) => layout.pack(source, target),
        None => target.copy_from(source),
    }
}

/// Zeros, in memory that may be missing.
fn staging(byte_count: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(byte_count).map_err(|_| Error::Exhausted {
        place: "this process's memory, for arrays packed into one".to_owned(),
        wanted_bytes: byte_count as u64,
        free_bytes: 0,
        remedy: "pass arrays whose elements follow each other, or fewer at a time".to_owned(),
    })?;
    bytes.resize(byte_count, 0);
    Ok(bytes)
}

/// Whether a member gets anything in its output.
fn is_written(call: &Call<'_>, index: usize) -> bool {
    match call.verb {
        Verb::Reduce | Verb::Gather => call.root == index,
        Verb::Send => false,
        // In place the root has its values already.
        Verb::Broadcast => call.root != index || call.input.is_some(),
        _ => true,
    }
}

impl Mesh {
    /// Runs a checked call whose turn has come, whatever its arrays are; see [`Mesh::reported`].
    #[inline(always)]
    pub(super) fn carry(
        &self,
        mut call: Call<'_>,
        executor: Option<&Hold>,
        deadline: &Deadline<'_>,
    ) -> Result<Result<()>> {
        let mut is_plain = call.input_layout.or(call.output_layout).is_none();
        match (meeting(&call, self.index()), call.verb) {
            // Where arrays lie to each other there depends on places.
            _ if call.gpu.is_some() => {}
            (Meeting::Same, Verb::AllReduce | Verb::Reduce | Verb::Broadcast) | (Meeting::OwnPart, _) => {
                (call.input, call.input_layout) = (None, None);
            }
            (Meeting::Same, _) => is_plain = false,
            _ => {}
        }
        if is_plain && call.gpu.is_none() && call.progress.is_none() {
            return self.to_group(call, deadline).map(Ok);
        }
        let (input_bytes, output_bytes) = packed_bytes(&call);
        let bytes = if call.verb == Verb::Send { input_bytes } else { output_bytes };
        let report = (call.progress.clone(), bytes);
        self.reported(call.verb, report, executor, deadline, |deadline| match is_plain {
            _ if call.gpu.is_some() => self.to_gpus(call, deadline),
            true => self.to_group(call, deadline),
            false => self.to_group_packed(call, deadline),
        })
    }

    /// Packs what is strided, and an input that is its output; puts the result where it belongs if the call succeeds.
    fn to_group_packed(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let (index, is_same) = (self.index(), meeting(&call, self.index()) == Meeting::Same);
        let (is_written, (input_bytes, output_bytes)) = (is_written(&call, index), packed_bytes(&call));
        let packs_input = call.input_layout.is_some() || is_same;
        let is_ignored = call.verb == Verb::Scatter && call.root != index;
        let mut staged_input = staging(if packs_input && !is_ignored { input_bytes } else { 0 })?;
        let mut staged = staging(if call.output_layout.is_some() { output_bytes } else { 0 })?;
        // From here on it lives as long as the memory that it is packed into.
        let mut call = call;
        let layout = call.input_layout.take();
        match call.input {
            Some(_) if is_ignored => call.input = None,
            Some(input) if packs_input => {
                pack(layout, input, &mut SpanMut::of(&mut staged_input))?;
                call.input = Some(Span::of(&staged_input));
            }
            _ => {}
        }
        let Some(layout) = call.output_layout.take() else { return self.to_group(call, deadline) };
        if call.input.is_none() {
            layout.pack(call.output.as_span(), &mut SpanMut::of(&mut staged))?;
        }
        let mut output = std::mem::replace(&mut call.output, SpanMut::empty());
        self.to_group(Call { output: SpanMut::of(&mut staged), ..call }, deadline)?;
        if is_written { layout.unpack(Span::of(&staged), &mut output) } else { Ok(()) }
    }

    /// Runs the calls of a list as one for each element type: [`Mesh::run_many`] once its turn has come.
    pub(super) fn carry_many(
        &self,
        (verb, site): (Verb, Site),
        mut calls: Vec<Call<'_>>,
        executor: Option<&Hold>,
        deadline: &Deadline<'_>,
    ) -> Result<Result<()>> {
        if calls.len() == 1
            && let Some(call) = calls.pop()
        {
            return self.carry(Call { site, ..call }, executor, deadline);
        }
        let list = list_of(&calls);
        let progress = calls.first().and_then(|call| call.progress.clone());
        let total = calls.iter().map(|call| packed_bytes(call).1).sum();
        self.reported(verb, (progress, total), executor, deadline, move |deadline| {
            if calls.is_empty() {
                let none = Call::new(verb, Dtype::U8, ReduceOp::Sum, 0, None, SpanMut::empty());
                return self.to_group(Call { list, site, ..none }, deadline);
            }
            if calls.iter().any(|call| call.gpu.is_some()) {
                // The list is agreed on first; on a GPU its arrays are not packed.
                let none = Call::new(verb, Dtype::U8, ReduceOp::Sum, 0, None, SpanMut::empty());
                self.to_group(Call { list, site, ..none }, deadline)?;
                return calls.drain(..).try_for_each(|call| {
                    self.carry(Call { site, progress: None, ..call }, None, deadline)?
                });
            }
            Dtype::ALL.iter().try_for_each(|dtype| {
                let (group, others) =
                    std::mem::take(&mut calls).into_iter().partition(|call| call.dtype == *dtype);
                calls = others;
                self.to_group_many(group, (list, site), deadline)
            })
        })
    }

    /// Runs calls of one element type as one.
    fn to_group_many(
        &self,
        mut calls: Vec<Call<'_>>,
        (list, site): (u64, Site),
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let index = self.index();
        let Some(first) = calls.first() else { return Ok(()) };
        let (verb, dtype, op, root) = (first.verb, first.dtype, first.op, first.root);
        let (reproducible, progress) = (first.reproducible, first.progress.clone());
        let mut staged = staging(calls.iter().map(|call| packed_bytes(call).1).sum())?;
        let mut start = 0;
        for call in &calls {
            let bytes = packed_bytes(call).1;
            let mut place = SpanMut::of(&mut staged[start..start + bytes]);
            start += bytes;
            // What others than the root bring to a broadcast is nothing.
            match call.input {
                _ if verb == Verb::Broadcast && root != index => {}
                Some(input) => pack(call.input_layout, input, &mut place)?,
                None => pack(call.output_layout, call.output.as_span(), &mut place)?,
            }
        }
        let one = Call::new(verb, dtype, op, root, None, SpanMut::of(&mut staged));
        self.to_group(Call { reproducible, list, progress, site, ..one }, deadline)?;
        let mut start = 0;
        for call in &mut calls {
            let bytes = packed_bytes(call).1;
            let place = Span::of(&staged[start..start + bytes]);
            start += bytes;
            match call.output_layout {
                _ if !is_written(call, index) => {}
                Some(layout) => layout.unpack(place, &mut call.output)?,
                None => call.output.copy_from(place)?,
            }
        }
        Ok(())
    }

    /// Runs many calls of one verb as one: they are packed together and agreed on once for each element type.
    ///
    /// For all_reduce, reduce and broadcast, whose calls have the same operation, root and flags on all members, and arrays of
    /// the same lengths in the same order. It pays for small arrays: each byte is copied twice more.
    ///
    /// # Errors
    /// As [`Mesh::run`]; `Invalid` for calls that are not alike, or of another verb.
    #[track_caller]
    pub fn run_many(&self, verb: Verb, calls: Vec<Call<'_>>, deadline: &Deadline<'_>) -> Result<()> {
        let site = Site::caller();
        self.refusing(verb, || {
            self.check_open()?;
            self.check_many(verb, &calls)?;
            let admission = self.admitted(verb, deadline)?;
            self.carry_many((verb, site), calls, Some(admission.hold()), deadline)
        })?
    }

    /// Reduces every array over all members, in place, as one call; arrays have the same lengths on all members.
    ///
    /// # Errors
    /// As [`Mesh::run_many`].
    #[track_caller]
    pub fn all_reduce_many<T: Element>(&self, arrays: &mut [&mut [T]], op: ReduceOp) -> Result<()> {
        self.typed_many(Verb::AllReduce, op, 0, arrays)
    }

    /// Copies every array of the root to all members as one call; arrays have the same lengths on all members.
    ///
    /// # Errors
    /// As [`Mesh::run_many`].
    #[track_caller]
    pub fn broadcast_many<T: Element>(&self, arrays: &mut [&mut [T]], root: usize) -> Result<()> {
        self.typed_many(Verb::Broadcast, ReduceOp::Sum, root, arrays)
    }

    #[track_caller]
    fn typed_many<T: Element>(
        &self,
        verb: Verb,
        op: ReduceOp,
        root: usize,
        arrays: &mut [&mut [T]],
    ) -> Result<()> {
        let calls = arrays.iter_mut().map(|array| {
            let output = SpanMut::of(&mut array[..]);
            Call::of::<T>(verb, op, root, None, output)
        });
        self.run_many(verb, calls.collect(), &Self::patience())
    }

    /// What can be said of a list of calls without the group.
    pub(super) fn check_many(&self, verb: Verb, calls: &[Call<'_>]) -> Result<()> {
        if !matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast) {
            let reason = "takes one array at a time; lists are for all_reduce, reduce and broadcast";
            return Err(Error::invalid("verb", verb.word(), "argument", reason));
        }
        for call in calls {
            self.check_call(call)?;
            let first = &calls[0];
            let is_alike = call.verb == verb
                && (call.op, call.root, call.reproducible) == (first.op, first.root, first.reproducible);
            if !is_alike || call.counts.is_some() {
                let reason = "must be alike in verb, operation, root and reproducible";
                return Err(Error::invalid(
                    "calls",
                    format!("{} and {}", first.op, call.op),
                    "argument",
                    reason,
                ));
            }
            let (input, output) = packed_bytes(call);
            if call.gpu.is_some() != first.gpu.is_some() {
                return Err(self.mixed());
            }
            if call.input_bytes().is_some() && input != output {
                let reason = format!("must be as long as its output, {output} bytes");
                return Err(Error::invalid("input", format!("{input} bytes"), "call", reason));
            }
        }
        check_apart(calls)
    }
}

fn range_of(span: Span<'_>) -> String {
    format!("{:#x}..{:#x}", span.pointer().addr(), span.pointer().addr() + span.byte_count())
}

/// Refuses a list in which one call writes what another one reads or writes.
fn check_apart(calls: &[Call<'_>]) -> Result<()> {
    let mut arrays = Vec::with_capacity(calls.len());
    for (position, call) in calls.iter().enumerate() {
        arrays.push((call.output.as_span(), call.output_layout, position, true));
        arrays.extend(call.input.map(|input| (input, call.input_layout, position, false)));
    }
    arrays.retain(|(span, ..)| !span.is_empty());
    arrays.sort_unstable_by_key(|(span, ..)| span.pointer().addr());
    let layout = |layout: Option<&Layout>, span: Span<'_>| {
        layout.cloned().unwrap_or_else(|| Layout::contiguous(span.byte_count()))
    };
    // Those that reach beyond the start of the next one.
    let mut reaching = Vec::new();
    for (span, own, position, is_written) in arrays {
        let ends_later = |(other, ..): &(Span<'_>, Option<&Layout>, usize, bool)| {
            other.pointer().addr() + other.byte_count() > span.pointer().addr()
        };
        reaching.retain(ends_later);
        for (other, their, its_position, is_other_written) in &reaching {
            if (is_written || *is_other_written)
                && position != *its_position
                && layout(own, span).meets(span, &layout(*their, *other), *other)
            {
                let reason = format!("overlaps another array of the list, {}", range_of(*other));
                return Err(Error::invalid("array", range_of(span), "argument", reason));
            }
        }
        reaching.push((span, own, position, is_written));
    }
    Ok(())
}

/// What a list of arrays comes to: their element types and lengths, in order.
fn list_of(calls: &[Call<'_>]) -> u64 {
    // A hash that finds mistakes, not malice.
    let mix = |hash: u64, number: u64| (hash ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    let start = mix(0xcbf2_9ce4_8422_2325, calls.len() as u64);
    let hash = calls.iter().fold(start, |hash, call| {
        mix(mix(hash, u64::from(call.dtype.number().unsigned_abs())), packed_bytes(call).1 as u64)
    });
    // A list is told apart from a lone array, and leaves the highest bit free.
    (hash >> 1).max(1)
}
