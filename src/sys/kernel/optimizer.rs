//! The arithmetic of a training step over plain memory: the weighted mean of gradients, and the update rules.
//!
//! Gradients and parameters may lie in memory that other processes write; they are read and written through raw
//! pointers, element by element. `Table` checks lengths and alignment before the first access. No product and sum are
//! fused into one rounding, so that all classes give the same bits.

use crate::error::{Error, Result};
use crate::sys::{Element, Span};

/// Elements that are summed in a buffer of the stack before they are used.
const BLOCK: usize = 256;

/// A floating-point type that can be trained.
pub(super) trait Real: Element + Default {
    /// The nearest value of this type.
    fn narrow(value: f64) -> Self;
    /// The same value in binary64.
    fn widen(self) -> f64;
    /// Whether it is neither infinite nor a NaN.
    fn is_finite(self) -> bool;
}

impl Real for f64 {
    #[inline(always)]
    fn narrow(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
    }
}

impl Real for f32 {
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation, reason = "rounding to the narrower type is what it is for")]
    fn narrow(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn widen(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn is_finite(self) -> bool {
        self.is_finite()
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
/// # Safety
/// `values` must be aligned and valid for `count` elements.
#[inline(always)]
pub(super) unsafe fn all_finite<R: Real>(values: *const R, count: usize) -> bool {
    let mut start = 0;
    while start < count {
        let end = count.min(start + BLOCK);
        let mut finite = true;
        for position in start..end {
            // SAFETY: the caller's promise.
            finite &= unsafe { values.add(position).read() }.is_finite();
        }
        if !finite {
            return false;
        }
        start = end;
    }
    true
}

/// Writes the weighted sum of all sources, added in their order, and returns the sum of its squares in the order of
/// elements.
///
/// # Safety
/// The target and each source must be aligned and valid for `count` elements.
#[inline(always)]
pub(super) unsafe fn weighted_sum<R: Real>(sources: &[Source<'_>], target: *mut R, count: usize) -> f64 {
    let (mut sums, mut squares, mut start) = ([0.0; BLOCK], 0.0, 0);
    while start < count {
        let length = BLOCK.min(count - start);
        let sums = &mut sums[..length];
        // SAFETY: the caller's promise.
        unsafe {
            sum_block::<R>(sources, start, sums);
            let target = target.add(start);
            for (position, sum) in sums.iter_mut().enumerate() {
                let value = R::narrow(*sum);
                target.add(position).write(value);
                *sum = value.widen() * value.widen();
            }
        }
        // Apart from the loop above, which the compiler can take several at once.
        for square in sums {
            squares += *square;
        }
        start += length;
    }
    squares
}

/// Updates parameters and state with the weighted sum of all sources, added in their order.
///
/// # Safety
/// The parameters, each source, and as many states as the rule keeps must be aligned and valid for `count` elements.
#[inline(always)]
pub(super) unsafe fn update<R: Real>(
    rule: &Rule<'_>,
    sources: &[Source<'_>],
    parameters: *mut R,
    [first, second]: [*mut R; 2],
    count: usize,
) {
    let adam = Adam::new(rule);
    let (mut sums, mut start) = ([0.0; BLOCK], 0);
    while start < count {
        let sums = &mut sums[..BLOCK.min(count - start)];
        // SAFETY: the caller's promise; a state that the rule does not keep is not touched.
        unsafe {
            sum_block::<R>(sources, start, sums);
            let (parameters, first, second) = (parameters.add(start), first.add(start), second.add(start));
            match (*rule.optimizer, &adam) {
                (Optimizer::Sgd { learning_rate, momentum: 0.0, weight_decay, .. }, _) => {
                    descend(sums, parameters, learning_rate, weight_decay);
                }
                (Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay }, _) => {
                    let rates = [learning_rate, weight_decay, momentum];
                    // Apart, so that no loop asks for each element.
                    if nesterov {
                        roll::<R, true>(sums, parameters, first, rates);
                    } else {
                        roll::<R, false>(sums, parameters, first, rates);
                    }
                }
                (Optimizer::AdamW { .. }, adam) => adapt(sums, parameters, [first, second], adam),
            }
        }
        start += sums.len();
    }
}

/// One block of gradient descent without momentum.
///
/// # Safety
/// The parameters must be aligned and valid for as many elements as there are gradients.
#[inline(always)]
unsafe fn descend<R: Real>(gradients: &[f64], parameters: *mut R, learning_rate: f64, weight_decay: f64) {
    for (position, gradient) in gradients.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let place = parameters.add(position);
            let value = place.read().widen();
            let direction = R::narrow(*gradient).widen() + weight_decay * value;
            place.write(R::narrow(value - learning_rate * direction));
        }
    }
}

/// One block of gradient descent with momentum.
///
/// # Safety
/// As [`descend`], and the state likewise.
#[inline(always)]
unsafe fn roll<R: Real, const NESTEROV: bool>(
    gradients: &[f64],
    parameters: *mut R,
    state: *mut R,
    [learning_rate, weight_decay, momentum]: [f64; 3],
) {
    for (position, gradient) in gradients.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let (place, state) = (parameters.add(position), state.add(position));
            let value = place.read().widen();
            let direction = R::narrow(*gradient).widen() + weight_decay * value;
            // The state starts at zero, so the first direction is the gradient, as torch has it.
            let kept = momentum * state.read().widen() + direction;
            state.write(R::narrow(kept));
            let direction = if NESTEROV { direction + momentum * kept } else { kept };
            place.write(R::narrow(value - learning_rate * direction));
        }
    }
}

/// The numbers of one update of AdamW that are the same for all elements.
pub(super) struct Adam {
    pub(super) beta1: f64,
    pub(super) beta2: f64,
    pub(super) epsilon: f64,
    /// The learning rate with the bias correction of the first moment.
    pub(super) step_size: f64,
    /// The root of the bias correction of the second moment.
    pub(super) root: f64,
    /// What weight decay leaves of a parameter.
    pub(super) keep: f64,
}

impl Adam {
    /// Zeros for another optimizer.
    pub(super) fn new(rule: &Rule<'_>) -> Self {
        let Optimizer::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } = *rule.optimizer else {
            return Self { beta1: 0.0, beta2: 0.0, epsilon: 0.0, step_size: 0.0, root: 0.0, keep: 0.0 };
        };
        let power = |base: f64| base.powf(precise(rule.update));
        Self {
            beta1,
            beta2,
            epsilon,
            step_size: learning_rate / (1.0 - power(beta1)),
            root: (1.0 - power(beta2)).sqrt(),
            keep: 1.0 - learning_rate * weight_decay,
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "the correction is 1 long before 2^53 updates")]
fn precise(update: u64) -> f64 {
    update as f64
}

/// One block of AdamW.
///
/// # Safety
/// As [`descend`], and both states likewise.
#[inline(always)]
unsafe fn adapt<R: Real>(gradients: &[f64], parameters: *mut R, [first, second]: [*mut R; 2], adam: &Adam) {
    let Adam { beta1, beta2, epsilon, step_size, root, keep } = *adam;
    for (position, gradient) in gradients.iter().enumerate() {
        let gradient = R::narrow(*gradient).widen();
        // SAFETY: the caller's promise.
        unsafe {
            let (place, first, second) =
                (parameters.add(position), first.add(position), second.add(position));
            let value = place.read().widen() * keep;
            let mean = first.read().widen();
            let mean = mean + (1.0 - beta1) * (gradient - mean);
            let square = second.read().widen() * beta2;
            let square = square + (1.0 - beta2) * gradient * gradient;
            first.write(R::narrow(mean));
            second.write(R::narrow(square));
            let change = step_size * mean / (square.sqrt() / root + epsilon);
            place.write(R::narrow(value - change));
        }
    }
}

/// Sums all sources from an element on.
///
/// # Safety
/// Each source must be aligned and valid for `sums.len()` elements from `start`.
#[inline(always)]
unsafe fn sum_block<R: Real>(sources: &[Source<'_>], start: usize, sums: &mut [f64]) {
    let Some((first, others)) = sources.split_first() else {
        sums.fill(0.0);
        return;
    };
    // SAFETY: the caller's promise.
    unsafe {
        let pointer = first.gradients.pointer().cast::<R>().add(start);
        for (offset, sum) in sums.iter_mut().enumerate() {
            *sum = first.share * pointer.add(offset).read().widen();
        }
        for source in others {
            let pointer = source.gradients.pointer().cast::<R>().add(start);
            for (offset, sum) in sums.iter_mut().enumerate() {
                *sum += source.share * pointer.add(offset).read().widen();
            }
        }
    }
}

/// Whether the sources hold `count` elements each.
pub(super) fn check_sources<R: Real>(sources: &[Source<'_>], count: usize) -> Result<()> {
    sources.iter().try_for_each(|source| {
        check_equal(elements::<R>(source.gradients.pointer(), source.gradients.byte_count())?, count)
    })
}

pub(super) fn check_equal(count: usize, wanted: usize) -> Result<()> {
    if count == wanted {
        return Ok(());
    }
    let reason = format!("must hold {wanted} elements like the other arrays");
    Err(Error::invalid("element count", count, "optimizer kernel", reason))
}

/// How many elements lie at an address.
pub(super) fn elements<R: Real>(pointer: *const u8, byte_count: usize) -> Result<usize> {
    if !byte_count.is_multiple_of(size_of::<R>()) || !pointer.cast::<R>().is_aligned() {
        let reason = format!("must be whole {} elements at an aligned address", R::DTYPE);
        return Err(Error::invalid("bytes", byte_count, "optimizer kernel", reason));
    }
    Ok(byte_count / size_of::<R>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::SpanMut;
    use crate::sys::kernel::Table;
    use crate::vocabulary::Dtype;

    const TABLE: Table = Table::SERIAL;

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
                let mut states = [SpanMut::of(&mut state)];
                let states = &mut states[..optimizer.state_count()];
                let rule = Rule { optimizer: &optimizer, update: 1 };
                let mut parameters = SpanMut::of(&mut parameters);
                TABLE.update(Dtype::F64, &rule, &sources, &mut parameters, states).unwrap();
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
            let states = &mut [SpanMut::of(&mut first), SpanMut::of(&mut second)];
            TABLE.update(Dtype::F64, &rule, &sources, &mut SpanMut::of(&mut parameters), states).unwrap();
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
        let squares = TABLE.weighted_sum(Dtype::F64, &sources, &mut SpanMut::of(&mut target)).unwrap();
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
                assert!(TABLE.all_finite(Dtype::F32, Span::of(&values)).unwrap());
                values[position] = bad;
                assert!(!TABLE.all_finite(Dtype::F32, Span::of(&values)).unwrap());
            }
        }
        assert!(TABLE.all_finite(Dtype::F64, Span::empty()).unwrap());
    }

    #[test]
    fn unequal_lengths_are_refused() {
        let (short, mut long) = (vec![1.0f64; 3], vec![0.0f64; 4]);
        let sources = [Source { share: 1.0, gradients: Span::of(&short) }];
        assert!(TABLE.weighted_sum(Dtype::F64, &sources, &mut SpanMut::of(&mut long)).is_err());
        let mut odd = [0u8; 7];
        assert!(TABLE.weighted_sum(Dtype::F32, &[], &mut SpanMut::of(&mut odd)).is_err());
        let half = TABLE.all_finite(Dtype::F16, Span::empty()).unwrap_err();
        assert!(half.to_string().contains("parameters are F32 or F64"), "{half}");
    }
}
