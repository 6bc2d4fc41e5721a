//! A call on GPU memory as steps of the vendors' libraries: flat, or through the tiers of the run.

use std::ops::Range;

use super::tier::Tiers;
use crate::communicator::descriptor::{self, reduces};
use crate::communicator::parts::places;
use crate::communicator::{Call, GpuArrays};
use crate::error::{Error, Result};
use crate::sys::ccl::{self, Act, Operation, Step};
use crate::sys::gpu::GpuSpan;
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// What one member puts on its streams for a call that all have agreed on.
pub struct Work<'a> {
    pub(super) steps: Vec<Step<'a>>,
    /// The call, for messages.
    pub(super) words: String,
}

/// Refuses what the libraries cannot do.
///
/// # Errors
/// `Unsupported`, with what to do instead.
pub fn check_supported(call: &Call<'_>, index: usize) -> Result<()> {
    let refuse = |what: String| {
        let why = "NCCL and RCCL have no such thing; copy to host memory and call the verb there";
        Err(Error::unsupported(format!("{what} on GPU memory, by index {index},"), why))
    };
    let verb = call.verb.word();
    if ccl::number_of_dtype(call.dtype).is_none() {
        return refuse(format!("{verb} of {}", call.dtype));
    }
    if reduces(call.verb) && ccl::number_of_op(call.op).is_none() {
        return refuse(format!("{verb} by {}", call.op));
    }
    if call.reproducible {
        return refuse(format!("{verb} with reproducible"));
    }
    Ok(())
}

/// What one GPU brings to a call: its arrays, and beside them what the root of a broadcast reads if that is not its output.
pub struct Share<'a> {
    /// The call with the arrays of this GPU alone, at its place.
    pub call: Call<'a>,
    /// `None` in place.
    pub source: Option<GpuSpan<'a>>,
}

/// Some operations within one tier.
type Part<'a> = (usize, Vec<Operation<'a>>);

impl<'a> Work<'a> {
    /// What the GPUs of a member do for a call: each with its share, by their places. `scratch` is as many bytes on each GPU of
    /// all members.
    ///
    /// # Errors
    /// `Invalid` for arrays of other lengths, with the position of the GPU among the shares.
    pub(super) fn of(
        shares: &[Share<'a>],
        tiers: Option<&Tiers>,
        scratch: &[GpuSpan<'a>],
    ) -> std::result::Result<Self, (usize, Error)> {
        let mut parts = Vec::with_capacity(shares.len());
        let mut words = String::new();
        let mut first = None;
        for (position, share) in shares.iter().enumerate() {
            let (place, places) = share.call.place.unwrap_or((0, 1));
            let at = |error| (position, error);
            let count = descriptor::check(&share.call, place, places).map_err(at)?;
            let expected = *first.get_or_insert(count);
            if count != expected {
                let reason = format!("must have {expected} elements, as that of the first GPU");
                let value = format!("{count} elements");
                return Err(at(Error::invalid("array", value, "call", reason)));
            }
            words = format!("{} of {} {} on GPU memory", share.call.verb.word(), count, share.call.dtype);
            let scratch = scratch.get(position).copied();
            let one = One { share, place, places, count };
            let tiered = tiers.and_then(|tiers| one.tiered(tiers, scratch).transpose()).transpose();
            parts.push(match tiered.map_err(at)? {
                Some(parts) => parts,
                None => vec![(0, one.flat().map_err(at)?)],
            });
        }
        Ok(Self { steps: steps(parts), words })
    }
}

/// The parts of all GPUs, each of which has as many in the same tiers, as steps.
fn steps(parts: Vec<Vec<Part<'_>>>) -> Vec<Step<'_>> {
    let mut steps = Vec::<Step<'_>>::new();
    for (gpu, parts) in parts.into_iter().enumerate() {
        for (number, (tier, mut operations)) in parts.into_iter().enumerate() {
            // All members leave the same ones out: those of no elements.
            operations.retain(|operation| operation.count > 0);
            match steps.get_mut(number).filter(|_| gpu > 0) {
                Some(step) => step.operations.push(operations),
                None => steps.push(Step { tier, operations: vec![operations] }),
            }
        }
    }
    steps.retain(|step| step.operations.iter().any(|operations| !operations.is_empty()));
    steps
}

/// The share of one GPU, and its place.
struct One<'s, 'a> {
    share: &'s Share<'a>,
    place: usize,
    places: usize,
    /// What its call was checked to have.
    count: usize,
}

fn at<'a>(span: Option<GpuSpan<'a>>, range: &Range<usize>) -> Result<Option<GpuSpan<'a>>> {
    span.map(|span| span.part(range)).transpose()
}

impl<'a> One<'_, 'a> {
    fn call(&self) -> &Call<'a> {
        &self.share.call
    }

    fn arrays(&self) -> GpuArrays<'a> {
        self.call().gpu.unwrap_or_default()
    }

    fn operation(
        &self,
        act: Act,
        count: usize,
        input: Option<GpuSpan<'a>>,
        output: Option<GpuSpan<'a>>,
    ) -> Operation<'a> {
        Operation { act, dtype: self.call().dtype, count, input, output }
    }

    /// As operations of the communicator of all GPUs.
    fn flat(&self) -> Result<Vec<Operation<'a>>> {
        let (call, count, place) = (self.call(), self.count, self.place);
        let (arrays, size) = (self.arrays(), call.dtype.size_bytes());
        let (input, output) = (arrays.input.or(arrays.output), arrays.output);
        // Where the parts of all GPUs lie in the array that has them, and in the one that is received.
        let parts = places(call.counts, count, self.places, size);
        let received = places(call.receive_counts.or(call.counts), count, self.places, size);
        let (is_root, is_counted) = (call.root == place, call.counts.is_some());
        let mut operations = Vec::new();
        match call.verb {
            Verb::AllReduce => operations.push(self.operation(Act::AllReduce(call.op), count, input, output)),
            Verb::Reduce => {
                operations.push(self.operation(Act::Reduce(call.op, call.root), count, input, output));
            }
            Verb::Broadcast => {
                let read = self.share.source.or(input);
                operations.push(self.operation(Act::Broadcast(call.root), count, read, output));
            }
            Verb::AllGather if is_counted => {
                for (root, part) in parts.iter().enumerate() {
                    let own = if root == place { arrays.input } else { None };
                    let to = at(output, part)?;
                    operations.push(self.operation(Act::Broadcast(root), part.len() / size, own.or(to), to));
                }
            }
            Verb::AllGather => {
                operations.push(self.operation(Act::AllGather, count, self.gathered(&parts)?, output));
            }
            Verb::ReduceScatter if is_counted => {
                for (root, part) in parts.iter().enumerate() {
                    let to = if root == place { output } else { None };
                    let act = Act::Reduce(call.op, root);
                    operations.push(self.operation(act, part.len() / size, at(input, part)?, to));
                }
            }
            Verb::ReduceScatter => {
                operations.push(self.operation(Act::ReduceScatter(call.op), count, input, output));
            }
            Verb::AllToAll => {
                for (other, (sent, taken)) in parts.iter().zip(&received).enumerate() {
                    let (from, to) = (at(input, sent)?, at(output, taken)?);
                    operations.push(self.operation(Act::Send(other), sent.len() / size, from, None));
                    operations.push(self.operation(Act::Receive(other), taken.len() / size, None, to));
                }
            }
            Verb::Gather => {
                let own = parts[place].len() / size;
                operations.push(self.operation(Act::Send(call.root), own, input, None));
                for (other, part) in parts.iter().enumerate().filter(|_| is_root) {
                    let to = at(output, part)?;
                    operations.push(self.operation(Act::Receive(other), part.len() / size, None, to));
                }
            }
            Verb::Scatter => {
                let own = parts[place].len() / size;
                operations.push(self.operation(Act::Receive(call.root), own, None, output));
                for (other, part) in parts.iter().enumerate().filter(|_| is_root) {
                    let from = at(input, part)?;
                    operations.push(self.operation(Act::Send(other), part.len() / size, from, None));
                }
            }
            Verb::Send => operations.push(self.operation(Act::Send(call.root), count, input, None)),
            Verb::Receive => operations.push(self.operation(Act::Receive(call.root), count, None, output)),
            _ => {}
        }
        Ok(operations)
    }

    /// What this GPU brings to an all_gather of equal parts.
    fn gathered(&self, parts: &[Range<usize>]) -> Result<Option<GpuSpan<'a>>> {
        let arrays = self.arrays();
        if arrays.input.is_some() { Ok(arrays.input) } else { at(arrays.output, &parts[self.place]) }
    }

    /// As operations inside of domains and across them; `None` for a call that goes to all GPUs at once. All members and GPUs
    /// choose the same, since they choose by what they have agreed on.
    fn tiered(&self, tiers: &Tiers, scratch: Option<GpuSpan<'a>>) -> Result<Option<Vec<Part<'a>>>> {
        let (call, size) = (self.call(), self.call().dtype.size_bytes());
        let wide = if call.verb == Verb::AllReduce { 1 } else { self.places };
        let byte_count = self.count.saturating_mul(size).saturating_mul(wide);
        // The mean of means is the mean, but not where each is rounded to a whole number.
        let is_exact = call.op != ReduceOp::Average || is_float(call.dtype);
        if call.counts.is_some() || byte_count < Tiers::LEAST_BYTES || (reduces(call.verb) && !is_exact) {
            return Ok(None);
        }
        match call.verb {
            Verb::AllReduce => self.tiered_all_reduce(tiers).map(Some),
            Verb::AllGather => self.tiered_all_gather(tiers).map(Some),
            Verb::ReduceScatter => self.tiered_reduce_scatter(tiers, scratch),
            _ => Ok(None),
        }
    }

    /// Each GPU of a domain reduces a share of it, which is then reduced across, and gathered inside.
    fn tiered_all_reduce(&self, tiers: &Tiers) -> Result<Vec<Part<'a>>> {
        let (arrays, op) = (self.arrays(), self.call().op);
        let (input, output) = (arrays.input.or(arrays.output), arrays.output);
        let size = self.call().dtype.size_bytes();
        let share = self.count / tiers.gpus;
        let (whole, own) = (share * tiers.gpus, tiers.inside(self.place).rank);
        let reach = 0..whole * size;
        let place = at(output, &(own * share * size..(own + 1) * share * size))?;
        let rest = whole * size..self.count * size;
        let rest =
            self.operation(Act::AllReduce(op), self.count - whole, at(input, &rest)?, at(output, &rest)?);
        Ok(vec![
            (Tiers::INSIDE, vec![self.operation(Act::ReduceScatter(op), share, at(input, &reach)?, place)]),
            (Tiers::ACROSS, vec![self.operation(Act::AllReduce(op), share, place, place)]),
            (Tiers::INSIDE, vec![self.operation(Act::AllGather, share, place, at(output, &reach)?)]),
            // Fewer elements than a domain has GPUs.
            (Tiers::ALL, vec![rest]),
        ])
    }

    /// Each GPU takes the parts of those that have its place in the other domains, and all parts are then gathered inside.
    fn tiered_all_gather(&self, tiers: &Tiers) -> Result<Vec<Part<'a>>> {
        let (output, size) = (self.arrays().output, self.call().dtype.size_bytes());
        let parts = places(None, self.count, self.places, size);
        let own = self.gathered(&parts)?;
        let (inside, across) = (tiers.inside(self.place).rank, tiers.across(self.place).rank);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for domain in 0..tiers.domains {
            let at_place = at(output, &parts[domain * tiers.gpus + inside])?;
            let read = if domain == across { own } else { at_place };
            first.push(self.operation(Act::Broadcast(domain), self.count, read, at_place));
            let of_domain = at(output, &tiers.range(domain, self.count * size))?;
            second.push(self.operation(Act::AllGather, self.count, at_place, of_domain));
        }
        Ok(vec![(Tiers::ACROSS, first), (Tiers::INSIDE, second)])
    }

    /// Each domain reduces the parts of all GPUs to those of its own that have the part's place, which reduce them across.
    fn tiered_reduce_scatter(
        &self,
        tiers: &Tiers,
        scratch: Option<GpuSpan<'a>>,
    ) -> Result<Option<Vec<Part<'a>>>> {
        let (arrays, op, size) = (self.arrays(), self.call().op, self.call().dtype.size_bytes());
        let Some(scratch) = scratch else { return Ok(None) };
        let most = scratch.byte_count() / (tiers.domains * size);
        if most == 0 {
            return Ok(None);
        }
        let (inside, mut start, mut steps) = (tiers.inside(self.place).rank, 0, Vec::new());
        while start < self.count {
            let piece = most.min(self.count - start);
            let mut first = Vec::new();
            for domain in 0..tiers.domains {
                let sum = Some(scratch.part(&(domain * piece * size..(domain + 1) * piece * size))?);
                if piece == self.count {
                    let of_domain = at(arrays.input, &tiers.range(domain, self.count * size))?;
                    first.push(self.operation(Act::ReduceScatter(op), piece, of_domain, sum));
                    continue;
                }
                for root in 0..tiers.gpus {
                    let from = ((domain * tiers.gpus + root) * self.count + start) * size;
                    let read = at(arrays.input, &(from..from + piece * size))?;
                    let to = if root == inside { sum } else { None };
                    first.push(self.operation(Act::Reduce(op, root), piece, read, to));
                }
            }
            let sums = Some(scratch.part(&(0..tiers.domains * piece * size))?);
            let output = at(arrays.output, &(start * size..(start + piece) * size))?;
            steps.push((Tiers::INSIDE, first));
            steps.push((Tiers::ACROSS, vec![self.operation(Act::ReduceScatter(op), piece, sums, output)]));
            start += piece;
        }
        Ok(Some(steps))
    }
}

/// Whether the type has fractions.
const fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16)
}
