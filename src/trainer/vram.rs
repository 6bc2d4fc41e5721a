//! A trainer in the memory of GPUs: one or several of each member, each of which holds a copy of all parameters and gradients of its
//! own, and owns a shard.
//!
//! A step multiplies gradients by their shares and reduces them to shards, piece by piece, looks at what came out, updates each
//! GPU's shard where it lies, and gathers all shards. The host sees one sum of squares and one flag of each member. A member's
//! weight is that of the mean of its GPUs' gradients.

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

/// The memory of a trainer on this member's GPUs, and what works on it.
pub(super) struct Vram {
    slab: Slab,
    /// Before the kernels: what is left of both waits for their streams.
    arena: Arena,
    /// One for each GPU, in the order of the executor.
    kernels: Vec<Kernels>,
    /// With the executor whose GPUs they are.
    mesh: Mesh,
    seat: usize,
    /// The place of this member's first GPU among those of all, and how many these are.
    first: usize,
    count: usize,
}

/// What one GPU's shard of a section is, as the host reads it for a checkpoint.
pub(super) struct Copied {
    pub(super) parameters: Buffer,
    pub(super) states: Vec<Buffer>,
}

impl Vram {
    /// Takes the memory on the GPUs of every member, and makes the kernels; collective.
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
        let seat = members.seat();
        let made = mesh.executor().gpu_kernels();
        let told = |kernels: &Vec<Kernels>| (kernels.len() as u64).to_le_bytes().to_vec();
        let (kernels, all) = members.outcome(made, told, deadline)?;
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes) as usize;
        let (first, count) = (all[..seat].iter().map(number).sum(), all.iter().map(number).sum());
        let origin = kernels.first().map(Kernels::origin);
        tracing::debug!(index = seat, gpus = kernels.len(), code = origin, "kernels of a trainer");
        let limit = match usize::try_from(mesh.executor().scratch_limit()).unwrap_or(usize::MAX) {
            0 => SCRATCH,
            limit => limit,
        };
        let slab = Slab::derive(layout, count, optimizer.states().len(), limit, Kernels::inspection_bytes);
        let arena = mesh.arena_in_turn(slab.byte_count, deadline)?;
        Ok(Self { slab, arena, kernels, mesh: mesh.clone(), seat, first, count })
    }

    /// How many GPUs this member has.
    pub(super) fn gpu_count(&self) -> usize {
        self.kernels.len()
    }

    /// This member's GPUs: the position of each, and its place among all.
    fn gpus(&self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.kernels.len()).map(|gpu| (gpu, self.first + gpu))
    }

    /// Where bytes of the layout lie among the parameters on a GPU.
    pub(super) fn parameter(&self, gpu: usize, bytes: &Range<usize>) -> Result<DeviceBytes> {
        self.bytes(gpu, bytes, |section| section.parameters)
    }

    /// Where they lie among its gradients.
    pub(super) fn gradient(&self, gpu: usize, bytes: &Range<usize>) -> Result<DeviceBytes> {
        self.bytes(gpu, bytes, |section| section.gradients)
    }

    fn bytes(
        &self,
        gpu: usize,
        bytes: &Range<usize>,
        start: impl Fn(&Section) -> usize,
    ) -> Result<DeviceBytes> {
        // A parameter without elements may lie in no section.
        let range = self.slab.place(bytes, start).unwrap_or(0..0);
        self.arena.device_bytes(gpu, range)
    }

    /// Runs a call of all members on ranges of the arena, the same on each GPU.
    fn call(
        &self,
        (verb, op): (Verb, ReduceOp),
        section: &Section,
        input: Option<Range<usize>>,
        output: &Range<usize>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let arrays = |(gpu, _): (usize, usize)| {
            let span = |range: &Range<usize>| self.arena.part_on_gpu(gpu, range)?.span();
            Ok(GpuArrays { input: input.as_ref().map(span).transpose()?, output: Some(span(output)?) })
        };
        let arrays = self.gpus().map(arrays).collect::<Result<Vec<_>>>()?;
        self.mesh.to_gpus(Call::on_gpus(verb, section.dtype, op, 0, arrays), deadline)
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
        self.follow_default()?;
        let share = shares.get(self.seat).copied().unwrap_or(0.0) / self.gpu_count().max(1) as f64;
        let mut found = Inspection { squares: 0.0, finite: true };
        for section in self.slab.sections.iter().filter(|section| section.shard > 0) {
            if self.count > 1 {
                self.reduce(section, share, watch, deadline)?;
            }
            let range = section.reduced..section.reduced + section.shard;
            for (gpu, kernels) in self.kernels.iter().enumerate() {
                let reduced = self.arena.part_on_gpu(gpu, &range)?;
                let sums = self.arena.part_on_gpu(gpu, &self.slab.sums)?;
                let seen = kernels.inspect(section.dtype, reduced, sums, deadline)?;
                found.squares += seen.squares;
                found.finite &= seen.finite;
            }
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
            for (gpu, kernels) in self.kernels.iter().enumerate() {
                kernels.scale(
                    section.dtype,
                    self.arena.part_on_gpu(gpu, &scratch)?,
                    self.arena.part_on_gpu(gpu, &reach)?,
                    share,
                    (self.count, section.shard / width),
                )?;
            }
            let output = section.reduced + start..section.reduced + start + piece;
            let verb = (Verb::ReduceScatter, ReduceOp::Sum);
            watch.time(|| self.call(verb, section, Some(scratch), &output, deadline))?;
            start += piece;
        }
        Ok(())
    }

    /// Updates the shard of each of this member's GPUs.
    fn update(&self, section: &Section, rule: Rule<'_>, scale: f64) -> Result<()> {
        for (gpu, place) in self.gpus() {
            let part = |start: usize| self.arena.part_on_gpu(gpu, &(start..start + section.shard));
            let states = section.states.iter().map(|state| part(*state)).collect::<Result<Vec<_>>>()?;
            let parameters = self.arena.part_on_gpu(gpu, &section.shard_at(section.parameters, place))?;
            let reduced = (part(section.reduced)?, scale);
            self.kernels[gpu].update(section.dtype, &rule, reduced, parameters, &states)?;
        }
        Ok(())
    }

    /// Has the work of all GPUs wait for what is on their default streams.
    fn follow_default(&self) -> Result<()> {
        self.kernels.iter().try_for_each(Kernels::follow_default)
    }

    fn wait(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.kernels.iter().try_for_each(|kernels| kernels.wait(deadline))
    }

    /// Gives all GPUs all shards; when it returns they have done everything.
    pub(super) fn gather(&self, deadline: &Deadline<'_>) -> Result<()> {
        for section in self.slab.sections.iter().filter(|section| section.shard > 0 && self.count > 1) {
            let whole = section.whole_at(section.parameters, self.count);
            self.call((Verb::AllGather, ReduceOp::Sum), section, None, &whole, deadline)?;
        }
        self.wait(deadline)
    }

    /// Gives all GPUs the parameters of index 0, those of its first one.
    pub(super) fn spread(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.follow_default()?;
        for section in self.slab.sections.iter().filter(|section| section.shard > 0 && self.count > 1) {
            let whole = section.whole_at(section.parameters, self.count);
            self.call((Verb::Broadcast, ReduceOp::Sum), section, None, &whole, deadline)?;
        }
        self.wait(deadline)
    }

    /// The shards of this member's GPUs: GPU by GPU, and for each one after the other of the element types.
    fn shards(&self) -> impl Iterator<Item = (usize, usize, &Section)> {
        let sections = &self.slab.sections;
        self.gpus().flat_map(move |(gpu, place)| sections.iter().map(move |section| (gpu, place, section)))
    }

    /// The bytes of the layout that this member owns, one range for each shard.
    pub(super) fn owned(&self) -> impl Iterator<Item = Range<usize>> {
        self.shards().map(|(_, place, section)| section.owned(place))
    }

    /// Copies this member's shards to the host, in the order of [`Vram::owned`].
    pub(super) fn copied(&self, deadline: &Deadline<'_>) -> Result<Vec<Copied>> {
        let copy = |(gpu, place, section): (usize, usize, &Section)| {
            let owned = section.owned(place).len();
            let read = |start: usize| {
                let mut buffer = Buffer::zeros(section.dtype, owned)?;
                self.arena.part_on_gpu(gpu, &(start..start + owned))?.read(buffer.span_mut(), deadline)?;
                Ok(buffer)
            };
            let parameters = read(section.shard_at(section.parameters, place).start)?;
            let states = section.states.iter().map(|state| read(*state)).collect::<Result<_>>()?;
            Ok(Copied { parameters, states })
        };
        self.shards().map(copy).collect()
    }

    /// Zeros for this member's shards, for what a checkpoint holds of them.
    pub(super) fn blank(&self) -> Result<Vec<Copied>> {
        let blank = |(_, place, section): (usize, usize, &Section)| {
            let zeros = || Buffer::zeros(section.dtype, section.owned(place).len());
            let states = section.states.iter().map(|_| zeros()).collect::<Result<_>>()?;
            Ok(Copied { parameters: zeros()?, states })
        };
        self.shards().map(blank).collect()
    }

    /// Takes what the host has read for this member's shards.
    pub(super) fn take(&self, copied: &[Copied], deadline: &Deadline<'_>) -> Result<()> {
        for ((gpu, place, section), copied) in self.shards().zip(copied) {
            let write = |start: usize, values: Span<'_>| {
                let part = self.arena.part_on_gpu(gpu, &(start..start + values.byte_count()))?;
                part.write(values, deadline)
            };
            write(section.shard_at(section.parameters, place).start, copied.parameters.span())?;
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
