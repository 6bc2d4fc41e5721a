//! The arithmetic of a training step over plain memory: the weighted mean of gradients, and the update rules.
//!
//! Gradients and parameters may lie in memory that other processes write; they are read and written through raw
//! pointers, element by element. Lengths and alignment are checked before the first access.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::sys::{Element, Span, SpanMut};

/// Elements that are summed in a buffer of the stack before they are used.
const BLOCK: usize = 256;

/// A floating-point type that can be trained.
pub trait Real: Element + Default {
    /// The nearest value of this type.
    fn narrow(value: f64) -> Self;
    /// The same value in binary64.
    fn widen(self) -> f64;
}

impl Real for f64 {
    fn narrow(value: f64) -> Self {
        value
    }
    fn widen(self) -> f64 {
        self
    }
}

impl Real for f32 {
    #[allow(clippy::cast_possible_truncation, reason = "rounding to the narrower type is what it is for")]
    fn narrow(value: f64) -> Self {
        value as f32
    }
    fn widen(self) -> f64 {
        f64::from(self)
    }
}

/// One member's gradients and the share of the whole that they count for.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// What each of its elements is multiplied by.
    pub share: f64,
    /// Its gradients.
    pub gradients: Span<'a>,
}

/// How parameters follow from gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Stochastic gradient descent with the semantics of `torch.optim.SGD` and dampening 0: the first direction is the
    /// gradient itself, and weight decay is added to the gradient.
    Sgd {
        /// The step size, 0 or more.
        learning_rate: f64,
        /// What is kept of the last direction, 0 or more; with 0 there is no state.
        momentum: f64,
        /// Looks one step of the momentum ahead (Sutskever, Martens, Dahl and Hinton, ICML 2013); needs momentum.
        nesterov: bool,
        /// The multiple of the parameter that is added to its gradient, 0 or more.
        weight_decay: f64,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019), with the semantics of `torch.optim.AdamW`.
    AdamW {
        /// The step size, 0 or more.
        learning_rate: f64,
        /// The decay of the first moment, from 0 up to, not including, 1.
        beta1: f64,
        /// The decay of the second moment, from 0 up to, not including, 1.
        beta2: f64,
        /// What is added to the root of the second moment, 0 or more.
        epsilon: f64,
        /// The multiple of learning rate and parameter that is taken from the parameter, 0 or more.
        weight_decay: f64,
    },
}

/// An optimizer at one of its updates.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    /// How parameters follow from gradients.
    pub optimizer: &'a Optimizer,
    /// How many updates there were, this one included; the bias correction of Adam follows from it.
    pub update: u64,
}

impl Optimizer {
    /// How many state arrays it keeps per parameter array.
    #[must_use]
    pub fn state_count(&self) -> usize {
        match self {
            Self::Sgd { momentum, .. } if *momentum == 0.0 => 0,
            Self::Sgd { .. } => 1,
            Self::AdamW { .. } => 2,
        }
    }
}

/// Whether all elements are finite.
///
/// # Errors
/// `Invalid` for a span that does not hold whole, aligned elements.
pub fn all_finite<T: Real>(values: Span<'_>) -> Result<bool> {
    let count = elements::<T>(values.pointer(), values.byte_count())?;
    let pointer = values.pointer().cast::<T>();
    let mut start = 0;
    while start < count {
        let end = count.min(start + BLOCK);
        // A product with 0 is NaN exactly for what is not finite, and a NaN stays in the sum.
        let mut sum = 0.0;
        for position in start..end {
            // SAFETY: `position < count`, and `elements` checked that `count` aligned elements lie in the span.
            sum += unsafe { pointer.add(position).read() }.widen() * 0.0;
        }
        if sum != 0.0 {
            return Ok(false);
        }
        start = end;
    }
    Ok(true)
}

/// Writes the weighted sum of all sources, added in their order, and returns the sum of its squares.
///
/// # Errors
/// `Invalid` for spans of unequal length, or that do not hold whole, aligned elements.
pub fn combine<T: Real>(sources: &[Source<'_>], target: &SpanMut<'_>) -> Result<f64> {
    let count = elements::<T>(target.pointer(), target.byte_count())?;
    check_sources::<T>(sources, count)?;
    let pointer = target.pointer().cast::<T>();
    let (mut sums, mut squares, mut start) = ([0.0; BLOCK], 0.0, 0);
    while start < count {
        let end = count.min(start + BLOCK);
        sum_block::<T>(sources, start..end, &mut sums);
        for (offset, sum) in sums[..end - start].iter().enumerate() {
            let value = T::narrow(*sum);
            squares += value.widen() * value.widen();
            // SAFETY: `start + offset < count`, and `elements` checked that `count` aligned elements lie in the span.
            unsafe { pointer.add(start + offset).write(value) };
        }
        start = end;
    }
    Ok(squares)
}

/// Updates parameters and state with the weighted sum of all sources, added in their order.
///
/// `states` holds [`Optimizer::state_count`] spans of the parameters' length.
///
/// # Errors
/// `Invalid` for spans of unequal length, or that do not hold whole, aligned elements; nothing is changed then.
pub fn update<T: Real>(
    rule: Rule<'_>,
    sources: &[Source<'_>],
    parameters: &SpanMut<'_>,
    states: &[SpanMut<'_>],
) -> Result<()> {
    let count = elements::<T>(parameters.pointer(), parameters.byte_count())?;
    check_sources::<T>(sources, count)?;
    if states.len() != rule.optimizer.state_count() {
        let reason = format!("the rule keeps {} state arrays", rule.optimizer.state_count());
        return Err(Error::invalid("states", states.len(), "optimizer kernel", reason));
    }
    for state in states {
        check_equal(elements::<T>(state.pointer(), state.byte_count())?, count)?;
    }
    let parameters = parameters.pointer().cast::<T>();
    let state = |position: usize| states.get(position).map_or(parameters, |span| span.pointer().cast::<T>());
    let (first, second) = (state(0), state(1));
    let (mut sums, mut start) = ([0.0; BLOCK], 0);
    while start < count {
        let end = count.min(start + BLOCK);
        sum_block::<T>(sources, start..end, &mut sums);
        // SAFETY: `start..end` lies within `count` elements, which `elements` found aligned and within every span; a
        // state that the rule does not keep is never touched.
        unsafe {
            update_block(
                rule,
                &sums[..end - start],
                parameters.add(start),
                first.add(start),
                second.add(start),
            );
        }
        start = end;
    }
    Ok(())
}

/// One block of [`update`]: `gradients.len()` elements at each pointer.
///
/// # Safety
/// The parameters, and as many states as the rule keeps, must be valid for that many elements.
unsafe fn update_block<T: Real>(
    rule: Rule<'_>,
    gradients: &[f64],
    parameters: *mut T,
    first: *mut T,
    second: *mut T,
) {
    match *rule.optimizer {
        Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay } => {
            for (position, sum) in gradients.iter().enumerate() {
                // SAFETY: the caller's promise; the momentum is touched only where the rule keeps it.
                unsafe {
                    let value = parameters.add(position).read().widen();
                    let mut direction = T::narrow(*sum).widen() + weight_decay * value;
                    if momentum != 0.0 {
                        // The state starts at zero, so the first direction is the gradient, as torch has it.
                        let kept = momentum * first.add(position).read().widen() + direction;
                        first.add(position).write(T::narrow(kept));
                        direction = if nesterov { direction + momentum * kept } else { kept };
                    }
                    parameters.add(position).write(T::narrow(value - learning_rate * direction));
                }
            }
        }
        Optimizer::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } => {
            let power = |base: f64| base.powf(precise(rule.update));
            let step_size = learning_rate / (1.0 - power(beta1));
            let root = (1.0 - power(beta2)).sqrt();
            let keep = 1.0 - learning_rate * weight_decay;
            for (position, sum) in gradients.iter().enumerate() {
                let gradient = T::narrow(*sum).widen();
                // SAFETY: the caller's promise; this rule keeps both states.
                unsafe {
                    let value = parameters.add(position).read().widen() * keep;
                    let mean = first.add(position).read().widen();
                    let mean = mean + (1.0 - beta1) * (gradient - mean);
                    let square = second.add(position).read().widen() * beta2;
                    let square = square + (1.0 - beta2) * gradient * gradient;
                    first.add(position).write(T::narrow(mean));
                    second.add(position).write(T::narrow(square));
                    let change = step_size * mean / (square.sqrt() / root + epsilon);
                    parameters.add(position).write(T::narrow(value - change));
                }
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "the correction is 1 long before 2^53 updates")]
fn precise(update: u64) -> f64 {
    update as f64
}

/// Sums one block of all sources; the caller has checked them.
fn sum_block<T: Real>(sources: &[Source<'_>], range: Range<usize>, sums: &mut [f64; BLOCK]) {
    let sums = &mut sums[..range.end - range.start];
    sums.fill(0.0);
    for (position, source) in sources.iter().enumerate() {
        let pointer = source.gradients.pointer().cast::<T>();
        for (offset, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `check_sources` found the range's elements aligned and within the span.
            let term = source.share * unsafe { pointer.add(range.start + offset).read() }.widen();
            *sum = if position == 0 { term } else { *sum + term };
        }
    }
}

fn check_sources<T: Real>(sources: &[Source<'_>], count: usize) -> Result<()> {
    sources.iter().try_for_each(|source| {
        check_equal(elements::<T>(source.gradients.pointer(), source.gradients.byte_count())?, count)
    })
}

fn check_equal(count: usize, wanted: usize) -> Result<()> {
    if count == wanted {
        return Ok(());
    }
    let reason = format!("must hold {wanted} elements like the other arrays");
    Err(Error::invalid("element count", count, "optimizer kernel", reason))
}

/// How many elements lie at an address.
fn elements<T: Real>(pointer: *const u8, byte_count: usize) -> Result<usize> {
    if !byte_count.is_multiple_of(size_of::<T>()) || !pointer.cast::<T>().is_aligned() {
        let reason = format!("must be whole {} elements at an aligned address", T::DTYPE);
        return Err(Error::invalid("bytes", byte_count, "optimizer kernel", reason));
    }
    Ok(byte_count / size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 2 * BLOCK + 37;

    fn numbers(seed: f64) -> Vec<f64> {
        (0..COUNT).map(|position| (seed + position as f64 * 0.37).sin()).collect()
    }

    /// The rule of torch.optim.SGD, written the long way for one element.
    fn plain_sgd(gradients: &[f64], start: f64, momentum: f64, nesterov: bool) -> f64 {
        let (mut value, mut kept) = (start, None);
        for gradient in gradients {
            let gradient = gradient + 0.01 * value;
            let next = kept.map_or(gradient, |kept: f64| momentum * kept + gradient);
            kept = Some(next);
            value -= 0.1 * if nesterov { gradient + momentum * next } else { next };
        }
        value
    }

    #[test]
    fn sgd_is_what_torch_documents() {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            let optimizer = Optimizer::Sgd { learning_rate: 0.1, momentum, nesterov, weight_decay: 0.01 };
            let start = numbers(0.0);
            let (mut parameters, mut state) = (start.clone(), vec![0.0; COUNT]);
            let steps = (1..4).map(|step| numbers(f64::from(step))).collect::<Vec<_>>();
            for gradients in &steps {
                let sources = [Source { share: 1.0, gradients: Span::of(gradients) }];
                let states = [SpanMut::of(&mut state)];
                let states = &states[..optimizer.state_count()];
                let rule = Rule { optimizer: &optimizer, update: 1 };
                update::<f64>(rule, &sources, &SpanMut::of(&mut parameters), states).unwrap();
            }
            for position in [0, 1, BLOCK - 1, BLOCK, COUNT - 1] {
                let gradients = steps.iter().map(|step| step[position]).collect::<Vec<_>>();
                let wanted = plain_sgd(&gradients, start[position], momentum, nesterov);
                assert!((parameters[position] - wanted).abs() < 1e-14, "momentum {momentum} at {position}");
            }
        }
    }

    #[test]
    fn adamw_is_what_its_paper_says() {
        let start = numbers(0.0);
        let (mut parameters, mut first, mut second) = (start.clone(), vec![0.0; COUNT], vec![0.0; COUNT]);
        let steps = (1..5).map(|step| numbers(f64::from(step))).collect::<Vec<_>>();
        for (position, gradients) in steps.iter().enumerate() {
            let optimizer = Optimizer::AdamW {
                learning_rate: 0.01,
                beta1: 0.9,
                beta2: 0.99,
                epsilon: 1e-8,
                weight_decay: 0.1,
            };
            let rule = Rule { optimizer: &optimizer, update: position as u64 + 1 };
            let sources = [Source { share: 1.0, gradients: Span::of(gradients) }];
            let states = [SpanMut::of(&mut first), SpanMut::of(&mut second)];
            update::<f64>(rule, &sources, &SpanMut::of(&mut parameters), &states).unwrap();
        }
        for element in 0..COUNT {
            let (mut value, mut mean, mut square) = (start[element], 0.0f64, 0.0f64);
            for (position, gradients) in steps.iter().enumerate() {
                let gradient = gradients[element];
                mean = 0.9 * mean + 0.1 * gradient;
                square = 0.99 * square + 0.01 * gradient * gradient;
                let update = i32::try_from(position).unwrap() + 1;
                let mean_hat = mean / (1.0 - 0.9f64.powi(update));
                let square_hat = square / (1.0 - 0.99f64.powi(update));
                value = value - 0.01 * 0.1 * value - 0.01 * mean_hat / (square_hat.sqrt() + 1e-8);
            }
            assert!((parameters[element] - value).abs() < 1e-12, "element {element}");
        }
    }

    #[test]
    fn sums_are_weighted_and_added_in_order() {
        let (one, two) = (numbers(1.0), numbers(2.0));
        let sources = [
            Source { share: 0.25, gradients: Span::of(&one) },
            Source { share: 0.75, gradients: Span::of(&two) },
        ];
        let mut target = vec![0.0f64; COUNT];
        let squares = combine::<f64>(&sources, &SpanMut::of(&mut target)).unwrap();
        let wanted = one.iter().zip(&two).map(|(one, two)| 0.25 * one + 0.75 * two).collect::<Vec<_>>();
        assert_eq!(target, wanted);
        let sum = wanted.iter().map(|value| value * value).sum::<f64>();
        assert!((squares - sum).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_finite_is_found_at_any_place() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for position in [0, BLOCK, COUNT - 1] {
                let mut values = vec![f32::MAX; COUNT];
                assert!(all_finite::<f32>(Span::of(&values)).unwrap());
                values[position] = bad;
                assert!(!all_finite::<f32>(Span::of(&values)).unwrap());
            }
        }
        assert!(all_finite::<f64>(Span::empty()).unwrap());
    }

    #[test]
    fn unequal_lengths_are_refused() {
        let (short, mut long) = (vec![1.0f64; 3], vec![0.0f64; 4]);
        let sources = [Source { share: 1.0, gradients: Span::of(&short) }];
        assert!(combine::<f64>(&sources, &SpanMut::of(&mut long)).is_err());
        let mut odd = [0u8; 7];
        assert!(combine::<f32>(&[], &SpanMut::of(&mut odd)).is_err());
    }
}
