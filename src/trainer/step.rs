//! One step: weights agreed, shards reduced from all gradients, parameters updated, all together.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::sys::kernel::Table;
use crate::sys::kernel::optimizer::{Rule, Source};
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::Dtype;

use super::agreement::{Contribution, Entry};
use super::host::Sums;
use super::optimizer::Buffer;
use super::{Progress, Shard, Trainer, part};

/// Bytes that are worked on between two looks at the deadline.
const PIECE: usize = 1 << 20;

/// Keeps the scale finite for a norm of 0, as `torch.nn.utils.clip_grad_norm_` does.
const NORM_GUARD: f64 = 1e-6;

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// How many updates the parameters have seen, this one included.
    pub step: u64,
    /// The norm of the mean gradient before clipping; `None` without clipping.
    pub gradient_norm: Option<f64>,
    /// The sum of the members' weights.
    pub weight: f64,
    /// Whether nothing was updated, since a gradient or the norm was not finite.
    pub skipped: bool,
    /// The part of the time in which this member waited for the others.
    pub communication_seconds: f64,
    /// The whole time of the call.
    pub seconds: f64,
}

/// What gradients of this norm are multiplied by so that their norm is at most `limit`.
pub(super) fn clip_scale(limit: f64, norm: f64) -> f64 {
    (limit / (norm + NORM_GUARD)).min(1.0)
}

/// Adds up the time spent in waits.
#[derive(Default)]
pub(super) struct Watch(Duration);

impl Watch {
    pub(super) fn time<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        self.0 += start.elapsed();
        result
    }
}

/// What a member updates of one region.
struct Owned<'a> {
    dtype: Dtype,
    start: usize,
    states: &'a mut [Buffer],
}

impl Shard {
    /// What is updated, and the reduced gradients it is updated from with clipping.
    fn split(&mut self) -> (Owned<'_>, Option<&Buffer>) {
        let owned =
            Owned { dtype: self.region.dtype, start: self.bytes.start, states: self.states.as_mut_slice() };
        (owned, self.reduced.as_ref())
    }
}

impl Trainer {
    /// Updates all parameters with the weighted mean of all members' gradients; collective.
    ///
    /// The mean is `sum(weight * gradient) / sum(weight)`, added in the order of indexes; a weight is usually the number
    /// of samples. The gradients of a member with weight 0 are not read. If a gradient that counts is not finite, all
    /// members skip the update and say so. Gradients stay as they are: write all of them before the next step.
    ///
    /// # Errors
    /// `Invalid` for a weight that is negative or not finite (here only), or if all weights are 0 (on all members);
    /// `Contended`, `Closed`, `Disagreed`, and `Lost`, `TimedOut`, `Interrupted`, which close the trainer.
    pub fn step(&self, weight: f64, deadline: &Deadline<'_>) -> Result<StepReport> {
        let (start, mut watch) = (Instant::now(), Watch::default());
        let mut progress = self.hold(Entry::Step, deadline)?;
        let kernels = progress.kernels();
        if !weight.is_finite() || weight < 0.0 {
            let error = Error::invalid("weight", weight, "argument", "must be finite, 0 or more");
            self.core.members.refuse(&error);
            return Err(error);
        }
        // With clipping the norm shows it; without, every gradient must be known to be finite before the first update.
        // On GPUs it is seen in what the gradients are reduced to.
        let is_seen_later = self.core.clip_norm.is_some() || self.core.vram().is_some();
        let finite = weight == 0.0 || is_seen_later || {
            let found = self.own_gradients_are_finite(kernels, deadline);
            found.inspect_err(|error| self.core.members.refuse(error))?
        };
        let own = Some(Contribution { weight, finite });
        let all = watch.time(|| self.enter(Entry::Step, progress.updates, own, deadline))?;
        let total = all.iter().fold(0.0, |sum, member| sum + member.weight);
        if !total.is_finite() || total <= 0.0 {
            let reason = "the weights of all members must have a finite sum above 0";
            return Err(Error::invalid("weight", total, "sum over all members", reason));
        }
        let shares = all.iter().map(|member| member.weight / total).collect::<Vec<_>>();
        let mut skipped = all.iter().any(|member| member.weight > 0.0 && !member.finite);
        let mut gradient_norm = None;
        if !skipped {
            let apply = match self.core.vram() {
                None => self.apply(kernels, &mut progress, &shares, &mut watch, deadline),
                Some(vram) => {
                    let update = progress.updates.saturating_add(1);
                    let rule = Rule { optimizer: &self.core.optimizer, update };
                    let (members, clip_norm) = (&self.core.members, self.core.clip_norm);
                    vram.apply(members, rule, (clip_norm, &shares), &mut watch, deadline)
                        .map_err(|error| error.of_member(members.seat()))
                }
            };
            (gradient_norm, skipped) = self.broken(apply)?;
        }
        if !skipped {
            progress.updates = progress.updates.saturating_add(1);
        }
        Ok(StepReport {
            step: progress.updates,
            gradient_norm,
            weight: total,
            skipped,
            communication_seconds: watch.0.as_secs_f64(),
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    /// Reduces and updates: the norm of the gradient, and whether nothing was updated because of it.
    fn apply(
        &self,
        kernels: Table,
        progress: &mut Progress,
        shares: &[f64],
        watch: &mut Watch,
        deadline: &Deadline<'_>,
    ) -> Result<(Option<f64>, bool)> {
        let update = progress.updates.saturating_add(1);
        let rule = Rule { optimizer: &self.core.optimizer, update };
        let Progress { shards, crossing, .. } = progress;
        let sums = if self.core.ram()?.hosts.is_one() {
            None
        } else {
            Some(watch.time(|| self.cross_gradients(kernels, crossing, shares, deadline))?)
        };
        let mut gradient_norm = None;
        match self.core.clip_norm {
            None => self.update_shards(kernels, shards, rule, (sums.as_ref(), shares), deadline)?,
            Some(limit) => {
                let squares = self.reduce_shards(kernels, shards, (sums.as_ref(), shares), deadline)?;
                let norm = watch.time(|| self.core.members.sum(squares, deadline))?.sqrt();
                gradient_norm = Some(norm);
                if !norm.is_finite() {
                    return Ok((gradient_norm, true));
                }
                update_from_reduced(self, kernels, shards, rule, clip_scale(limit, norm), deadline)?;
            }
        }
        watch.time(|| {
            self.cross_parameters(crossing, deadline)?;
            self.core.members.fence(deadline)
        })?;
        Ok((gradient_norm, false))
    }

    fn own_gradients_are_finite(&self, kernels: Table, deadline: &Deadline<'_>) -> Result<bool> {
        let gradients = part(&*self.core.ram()?.gradients, self.core.members.seat())?;
        for region in &self.core.layout.regions {
            for piece in pieces(region.bytes.clone()) {
                deadline.check_interrupt("trainer.step")?;
                let span = gradients.part(piece)?;
                if !kernels.all_finite(region.dtype, span)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Reduces and updates in one pass.
    fn update_shards(
        &self,
        kernels: Table,
        shards: &mut [Shard],
        rule: Rule<'_>,
        (sums, shares): (Option<&Sums<'_>>, &[f64]),
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let mut offset = 0;
        for shard in shards {
            for piece in pieces(shard.bytes.clone()) {
                deadline.check("trainer.step", Vec::new)?;
                let sources = self.sources(sums, shares, &piece, offset)?;
                offset += piece.len();
                self.update_piece(kernels, shard.split().0, rule, &sources, piece)?;
            }
        }
        Ok(())
    }

    /// Reduces into private memory and gives the sum of squares of what this member owns.
    fn reduce_shards(
        &self,
        kernels: Table,
        shards: &mut [Shard],
        (sums, shares): (Option<&Sums<'_>>, &[f64]),
        deadline: &Deadline<'_>,
    ) -> Result<f64> {
        let (mut squares, mut offset) = (0.0, 0);
        for shard in shards {
            let Some(reduced) = &mut shard.reduced else { continue };
            for piece in pieces(shard.bytes.clone()) {
                deadline.check("trainer.step", Vec::new)?;
                let sources = self.sources(sums, shares, &piece, offset)?;
                offset += piece.len();
                let mut whole = reduced.span_mut();
                let mut target = whole.part(below(&piece, shard.bytes.start))?;
                squares += kernels.weighted_sum(shard.region.dtype, &sources, &mut target)?;
            }
        }
        Ok(squares)
    }

    fn update_piece(
        &self,
        kernels: Table,
        owned: Owned<'_>,
        rule: Rule<'_>,
        sources: &[Source<'_>],
        piece: Range<usize>,
    ) -> Result<()> {
        let mut parameters = self.core.ram()?.parameters()?;
        let mut parameters = parameters.part(piece.clone())?;
        let mut wholes = owned.states.iter_mut().map(Buffer::span_mut).collect::<Vec<_>>();
        let range = below(&piece, owned.start);
        let states = wholes.iter_mut().map(|whole| whole.part(range.clone()));
        let mut states = states.collect::<Result<Vec<SpanMut<'_>>>>()?;
        kernels.update(owned.dtype, &rule, sources, &mut parameters, &mut states)
    }
}

/// The second pass with clipping: from the reduced gradients, scaled.
fn update_from_reduced(
    trainer: &Trainer,
    kernels: Table,
    shards: &mut [Shard],
    rule: Rule<'_>,
    scale: f64,
    deadline: &Deadline<'_>,
) -> Result<()> {
    for shard in shards {
        for piece in pieces(shard.bytes.clone()) {
            deadline.check("trainer.step", Vec::new)?;
            let (owned, reduced) = shard.split();
            let gradients = reduced.map_or(Span::empty(), Buffer::span).part(below(&piece, owned.start))?;
            trainer.update_piece(kernels, owned, rule, &[Source { share: scale, gradients }], piece)?;
        }
    }
    Ok(())
}

/// The range counted from `start`.
fn below(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}

/// The range in pieces of [`PIECE`] bytes.
pub(super) fn pieces(bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = bytes.end;
    bytes.step_by(PIECE).map(move |start| start..end.min(start + PIECE))
}
