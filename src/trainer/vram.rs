//! A trainer in the memory of GPUs: one of each member, which holds a copy of all parameters.
//!
//! A step multiplies gradients by their shares and reduces them to shards, piece by piece, looks at what came out, updates the
//! member's shard where it lies, and gathers all shards. The host sees one sum of squares and one flag of each member.

use std::ops::Range;

use crate::communicator::{Call, GpuArrays};
use crate::error::{Error, Result};
use crate::mesh::{Arena, DeviceBytes, Mesh};
use crate::sys::kernel::gpu::{Inspection, Kernels};
use crate::sys::kernel::optimizer::Rule;
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::{ReduceOp, Verb};

use super::agreement::Members;
use super::bucket::Layout;
use super::optimizer::{Buffer, Optimizer};
use super::slab::{Section, Slab};
use super::step::{Watch, clip_scale};

/// The scratch of a step where the executor sets no limit.
const SCRATCH: usize = 256 << 20;

/// The memory of a trainer on this member's GPU, and what works on it.
pub(super) struct Vram {
    slab: Slab,
    /// Before the kernels: what is left of both waits for their stream.
    arena: Arena,
    kernels: Kernels,
    /// With the executor whose GPU it is.
    mesh: Mesh,
    seat: usize,
    count: usize,
}

/// What one member's shard of a section is, as the host reads it for a checkpoint.
pub(super) struct Copied {
    pub(super) parameters: Buffer,
    pub(super) states: Vec<Buffer>,
}

impl Vram {
    /// Takes the memory on the GPU of every member, and makes the kernels; collective.
    ///
    /// # Errors
    /// `Exhausted` and `Unsupported` on all members, naming member and GPU; as the group's calls.
    pub(super) fn open(
        mesh: &Mesh,
        members: &Members,
        layout: &Layout,
        optimizer: &Optimizer,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let (seat, count) = (members.seat(), members.count());
        let made = mesh.executor().gpu_kernels();
        let (kernels, _) = members.outcome(made, |_| Vec::new(), deadline)?;
        tracing::debug!(index = seat, code = kernels.origin(), "kernels of a trainer");
        let limit = match usize::try_from(mesh.executor().scratch_limit()).unwrap_or(usize::MAX) {
            0 => SCRATCH,
            limit => limit,
        };
        let slab = Slab::derive(layout, count, optimizer.states().len(), limit, Kernels::inspection_bytes);
        let arena = mesh.arena_in_turn(slab.byte_count, deadline)?;
        Ok(Self { slab, arena, kernels, mesh: mesh.clone(), seat, count })
    }

    /// Where bytes of the layout lie among the parameters.
    pub(super) fn parameter(&self, bytes: &Range<usize>) -> Result<DeviceBytes> {
        self.bytes(bytes, |section| section.parameters)
    }

    /// Where they lie among the gradients.
    pub(super) fn gradient(&self, bytes: &Range<usize>) -> Result<DeviceBytes> {
        self.bytes(bytes, |section| section.gradients)
    }

    fn bytes(&self, bytes: &Range<usize>, start: impl Fn(&Section) -> usize) -> Result<DeviceBytes> {
        // A parameter without elements may lie in no section.
        let range = self.slab.place(bytes, start).unwrap_or(0..0);
        self.arena.device_bytes(0, range)
    }

    /// Runs a call of all members on ranges of the arena.
    fn call(
        &self,
        (verb, op): (Verb, ReduceOp),
        section: &Section,
        input: Option<Range<usize>>,
        output: &Range<usize>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let input = input.map(|range| self.arena.part_on_gpu(&range)?.span()).transpose()?;
        let output = Some(self.arena.part_on_gpu(output)?.span()?);
        let call = Call::on_gpu(verb, section.dtype, op, 0, GpuArrays { input, output });
        self.mesh.to_gpus(call, deadline)
    }

    /// Reduces and updates, as the step of a host does: the norm of the gradient, and whether nothing was updated.
    pub(super) fn apply(
        &self,
        members: &Members,
        rule: Rule<'_>,
        (clip_norm, shares): (Option<f64>, &[f64]),
        watch: &mut Watch,
        deadline: &Deadline<'_>,
    ) -> Result<(Option<f64>, bool)> {
        self.kernels.follow_default()?;
        let share = shares.get(self.seat).copied().unwrap_or(0.0);
        let mut found = Inspection { squares: 0.0, finite: true };
        for section in self.slab.sections.iter().filter(|section| section.shard > 0) {
            if self.count > 1 {
                self.reduce(section, share, watch, deadline)?;
            }
            let reduced = self.arena.part_on_gpu(&(section.reduced..section.reduced + section.shard))?;
            let sums = self.arena.part_on_gpu(&self.slab.sums)?;
            let section = self.kernels.inspect(section.dtype, reduced, sums, deadline)?;
            found.squares += section.squares;
            found.finite &= section.finite;
        }
        let all = watch.time(|| members.inspected(found.squares, found.finite, deadline))?;
        let gradient_norm = clip_norm.map(|_| all.squares.sqrt());
        if !all.finite || gradient_norm.is_some_and(|norm| !norm.is_finite()) {
            return Ok((gradient_norm, true));
        }
        let scale = match (clip_norm, gradient_norm) {
            (Some(limit), Some(norm)) => clip_scale(limit, norm),
            _ => 1.0,
        };
        for section in self.slab.sections.iter().filter(|section| section.shard > 0) {
            self.update(section, rule, scale)?;
        }
        watch.time(|| self.gather(deadline))?;
        Ok((gradient_norm, false))
    }

    /// Reduces the gradients of all members times their shares, to the shard of this one.
    fn reduce(
        &self,
        section: &Section,
        share: f64,
        watch: &mut Watch,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let width = section.dtype.size_bytes();
        let mut start = 0;
        while start < section.shard {
            let piece = section.piece.min(section.shard - start);
            // From the first shard's piece to the last one's.
            let first = section.gradients + start;
            let reach = first..first + section.shard * (self.count - 1) + piece;
            let scratch = self.slab.scratch.start..self.slab.scratch.start + piece * self.count;
            self.kernels.scale(
                section.dtype,
                self.arena.part_on_gpu(&scratch)?,
                self.arena.part_on_gpu(&reach)?,
                share,
                (self.count, section.shard / width),
            )?;
            let output = section.reduced + start..section.reduced + start + piece;
            let verb = (Verb::ReduceScatter, ReduceOp::Sum);
            watch.time(|| self.call(verb, section, Some(scratch), &output, deadline))?;
            start += piece;
        }
        Ok(())
    }

    /// Updates this member's shard.
    fn update(&self, section: &Section, rule: Rule<'_>, scale: f64) -> Result<()> {
        let part = |start: usize| self.arena.part_on_gpu(&(start..start + section.shard));
        let states = section.states.iter().map(|state| part(*state)).collect::<Result<Vec<_>>>()?;
        let parameters = self.arena.part_on_gpu(&section.shard_at(section.parameters, self.seat))?;
        self.kernels.update(section.dtype, &rule, (part(section.reduced)?, scale), parameters, &states)
    }

    /// Gives all members all shards; when it returns the GPU has done everything.
    pub(super) fn gather(&self, deadline: &Deadline<'_>) -> Result<()> {
        for section in self.slab.sections.iter().filter(|section| section.shard > 0 && self.count > 1) {
            let whole = section.whole_at(section.parameters, self.count);
            self.call((Verb::AllGather, ReduceOp::Sum), section, None, &whole, deadline)?;
        }
        self.kernels.wait(deadline)
    }

    /// Gives all members the parameters of index 0.
    pub(super) fn spread(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.kernels.follow_default()?;
        for section in self.slab.sections.iter().filter(|section| section.shard > 0 && self.count > 1) {
            let whole = section.whole_at(section.parameters, self.count);
            self.call((Verb::Broadcast, ReduceOp::Sum), section, None, &whole, deadline)?;
        }
        self.kernels.wait(deadline)
    }

    /// The bytes of the layout that this member owns, one range for each element type.
    pub(super) fn owned(&self) -> impl Iterator<Item = Range<usize>> {
        self.slab.sections.iter().map(|section| section.owned(self.seat))
    }

    /// Copies this member's shards to the host, in the order of [`Vram::owned`].
    pub(super) fn copied(&self, deadline: &Deadline<'_>) -> Result<Vec<Copied>> {
        let copy = |section: &Section| {
            let owned = section.owned(self.seat).len();
            let read = |start: usize| {
                let mut buffer = Buffer::zeros(section.dtype, owned)?;
                self.arena.part_on_gpu(&(start..start + owned))?.read(buffer.span_mut(), deadline)?;
                Ok(buffer)
            };
            let parameters = read(section.shard_at(section.parameters, self.seat).start)?;
            let states = section.states.iter().map(|state| read(*state)).collect::<Result<_>>()?;
            Ok(Copied { parameters, states })
        };
        self.slab.sections.iter().map(copy).collect()
    }

    /// Zeros for this member's shards, for what a checkpoint holds of them.
    pub(super) fn blank(&self) -> Result<Vec<Copied>> {
        let blank = |section: &Section| {
            let zeros = || Buffer::zeros(section.dtype, section.owned(self.seat).len());
            let states = section.states.iter().map(|_| zeros()).collect::<Result<_>>()?;
            Ok(Copied { parameters: zeros()?, states })
        };
        self.slab.sections.iter().map(blank).collect()
    }

    /// Takes what the host has read for this member's shards.
    pub(super) fn take(&self, copied: &[Copied], deadline: &Deadline<'_>) -> Result<()> {
        for (section, copied) in self.slab.sections.iter().zip(copied) {
            let write = |start: usize, values: Span<'_>| {
                let part = self.arena.part_on_gpu(&(start..start + values.byte_count()))?;
                part.write(values, deadline)
            };
            write(section.shard_at(section.parameters, self.seat).start, copied.parameters.span())?;
            for (state, values) in section.states.iter().zip(&copied.states) {
                write(*state, values.span())?;
            }
        }
        Ok(())
    }
}

/// Copies an array of a GPU to the host, with the patience of a verb.
pub(super) fn read(bytes: &DeviceBytes, target: SpanMut<'_>) -> Result<()> {
    bytes.read(target, &Mesh::verb_deadline(0.0)?)
}

/// Copies an array of the host to a GPU, with the patience of a verb.
pub(super) fn write(bytes: &DeviceBytes, source: Span<'_>) -> Result<()> {
    bytes.write(source, &Mesh::verb_deadline(0.0)?)
}

/// The error for one who wants to read an array where it lies.
pub(super) fn unreadable() -> Error {
    let why = "it is in a GPU's memory, which the host cannot read: copy it, or give its address to code of the GPU";
    Error::unsupported("an array of a trainer as host memory", why)
}
