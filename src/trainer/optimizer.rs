//! The optimizers a user can name, and the state one member keeps for its shards.

use crate::error::{Error, Result};
pub use crate::sys::kernel::optimizer::Optimizer;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::Dtype;

impl Optimizer {
    /// The name in checkpoints and messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Sgd { .. } => "sgd",
            Self::AdamW { .. } => "adamw",
        }
    }

    /// The names of the arrays that the optimizer keeps for each parameter.
    #[must_use]
    pub fn states(&self) -> &'static [&'static str] {
        match self {
            Self::Sgd { momentum, .. } if *momentum == 0.0 => &[],
            Self::Sgd { .. } => &["momentum"],
            Self::AdamW { .. } => &["first_moment", "second_moment"],
        }
    }

    /// The hyper-parameters by name, in a fixed order; `nesterov` is 0 or 1.
    #[must_use]
    pub fn hyper_parameters(&self) -> Vec<(&'static str, f64)> {
        match *self {
            Self::Sgd { learning_rate, momentum, nesterov, weight_decay } => vec![
                ("learning_rate", learning_rate),
                ("momentum", momentum),
                ("nesterov", f64::from(u8::from(nesterov))),
                ("weight_decay", weight_decay),
            ],
            Self::AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } => vec![
                ("learning_rate", learning_rate),
                ("beta1", beta1),
                ("beta2", beta2),
                ("epsilon", epsilon),
                ("weight_decay", weight_decay),
            ],
        }
    }

    /// Refuses numbers that make no sense.
    ///
    /// # Errors
    /// `Invalid`, naming the argument.
    pub fn check(&self) -> Result<()> {
        for (name, value) in self.hyper_parameters() {
            let decay = name.starts_with("beta");
            if !value.is_finite() || value < 0.0 || (decay && value >= 1.0) {
                let reason =
                    if decay { "must be at least 0 and below 1" } else { "must be finite, 0 or more" };
                return Err(Error::invalid(name, value, "argument", reason));
            }
        }
        match self {
            Self::Sgd { momentum, nesterov: true, .. } if *momentum == 0.0 => {
                Err(Error::invalid("nesterov", true, "argument", "needs a momentum above 0"))
            }
            _ => Ok(()),
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self::F64(Vec::new())
    }
}

/// Private numbers of one element type.
#[derive(Debug)]
pub(crate) enum Buffer {
    F64(Vec<f64>),
    F32(Vec<f32>),
}

impl Buffer {
    /// Zeros in so many bytes.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(crate) fn zeros(dtype: Dtype, byte_count: usize) -> Result<Self> {
        fn filled<T: Clone + Default>(byte_count: usize) -> Result<Vec<T>> {
            let (count, mut numbers) = (byte_count / size_of::<T>(), Vec::new());
            numbers.try_reserve_exact(count).map_err(|_| Error::Exhausted {
                place: "the memory of this process".to_owned(),
                wanted_bytes: byte_count as u64,
                free_bytes: 0,
                remedy: "use more processes, so that each owns less of the optimizer's state".to_owned(),
            })?;
            numbers.resize(count, T::default());
            Ok(numbers)
        }
        match dtype {
            Dtype::F64 => Ok(Self::F64(filled(byte_count)?)),
            Dtype::F32 => Ok(Self::F32(filled(byte_count)?)),
            _ => Err(Error::unsupported(format!("optimizer state of {dtype}"), "parameters are F32 or F64")),
        }
    }

    pub(crate) fn span(&self) -> Span<'_> {
        match self {
            Self::F64(numbers) => Span::of(numbers),
            Self::F32(numbers) => Span::of(numbers),
        }
    }

    pub(crate) fn span_mut(&mut self) -> SpanMut<'_> {
        match self {
            Self::F64(numbers) => SpanMut::of(numbers),
            Self::F32(numbers) => SpanMut::of(numbers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SGD: Optimizer =
        Optimizer::Sgd { learning_rate: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };

    #[test]
    fn numbers_that_make_no_sense_are_refused_by_name() {
        SGD.check().unwrap();
        let adamw = |beta1, epsilon| Optimizer::AdamW {
            learning_rate: 0.1,
            beta1,
            beta2: 0.999,
            epsilon,
            weight_decay: 0.0,
        };
        adamw(0.9, 0.0).check().unwrap();
        for (optimizer, name) in [
            (adamw(1.0, 1e-8), "beta1"),
            (adamw(0.9, f64::NAN), "epsilon"),
            (adamw(0.9, -1.0), "epsilon"),
            (
                Optimizer::Sgd { learning_rate: 0.1, momentum: 0.0, nesterov: true, weight_decay: 0.0 },
                "nesterov",
            ),
            (
                Optimizer::Sgd {
                    learning_rate: f64::INFINITY,
                    momentum: 0.0,
                    nesterov: false,
                    weight_decay: 0.0,
                },
                "learning_rate",
            ),
        ] {
            let error = optimizer.check().unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn the_rule_keeps_as_many_states_as_are_named() {
        let momentum =
            Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0 };
        for optimizer in [SGD, momentum] {
            assert_eq!(optimizer.state_count(), optimizer.states().len());
        }
    }

    #[test]
    fn more_state_than_memory_is_exhausted() {
        let error = Buffer::zeros(Dtype::F64, usize::MAX - 7).unwrap_err();
        assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        assert_eq!(Buffer::zeros(Dtype::F32, 64).unwrap().span().byte_count(), 64);
    }
}
