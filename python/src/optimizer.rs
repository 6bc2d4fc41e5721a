//! `SGD` and `AdamW`: what a trainer steps with.

use pyo3::prelude::*;
use uform::trainer::Optimizer;

use crate::argument;
use crate::error::{invalid, to_python};

/// Stochastic gradient descent, with momentum if it is not 0.
///
/// learning_rate: the length of a step. momentum: the part of the last step that is kept, 0 to 1.
/// nesterov: looks ahead by the momentum. weight_decay: added to the gradient, times the parameter.
#[pyclass(frozen, module = "uform", name = "SGD")]
pub(crate) struct Sgd {
    #[pyo3(get)]
    learning_rate: f64,
    #[pyo3(get)]
    momentum: f64,
    #[pyo3(get)]
    nesterov: bool,
    #[pyo3(get)]
    weight_decay: f64,
}

#[pymethods]
impl Sgd {
    #[new]
    #[pyo3(
        signature = (learning_rate, *, momentum=None, nesterov=None, weight_decay=None),
        text_signature = "(learning_rate, *, momentum=0.0, nesterov=False, weight_decay=0.0)"
    )]
    fn new(
        learning_rate: &Bound<'_, PyAny>,
        momentum: Option<&Bound<'_, PyAny>>,
        nesterov: Option<&Bound<'_, PyAny>>,
        weight_decay: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let flag = |given: &Bound<'_, PyAny>| {
            given.extract().map_err(|_| invalid(given.py(), "nesterov", given, "must be True or False"))
        };
        let made = Self {
            learning_rate: argument::number("learning_rate", learning_rate)?,
            momentum: argument::number_or("momentum", momentum, 0.0)?,
            nesterov: nesterov.map_or(Ok(false), flag)?,
            weight_decay: argument::number_or("weight_decay", weight_decay, 0.0)?,
        };
        made.to_core().check().map_err(|error| to_python(learning_rate.py(), &error))?;
        Ok(made)
    }

    fn __repr__(&self) -> String {
        let nesterov = if self.nesterov { "True" } else { "False" };
        format!(
            "SGD({:?}, momentum={:?}, nesterov={nesterov}, weight_decay={:?})",
            self.learning_rate, self.momentum, self.weight_decay
        )
    }
}

/// Adam with decoupled weight decay.
///
/// learning_rate: the length of a step. beta1, beta2: how much of the running means of gradients and of their squares is
/// kept. epsilon: added to the divisor. weight_decay: times the learning rate and the parameter, taken from it.
#[pyclass(frozen, module = "uform", name = "AdamW")]
pub(crate) struct AdamW {
    #[pyo3(get)]
    learning_rate: f64,
    #[pyo3(get)]
    beta1: f64,
    #[pyo3(get)]
    beta2: f64,
    #[pyo3(get)]
    epsilon: f64,
    #[pyo3(get)]
    weight_decay: f64,
}

#[pymethods]
impl AdamW {
    #[new]
    #[pyo3(
        signature = (learning_rate, *, beta1=None, beta2=None, epsilon=None, weight_decay=None),
        text_signature = "(learning_rate, *, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01)"
    )]
    fn new(
        learning_rate: &Bound<'_, PyAny>,
        beta1: Option<&Bound<'_, PyAny>>,
        beta2: Option<&Bound<'_, PyAny>>,
        epsilon: Option<&Bound<'_, PyAny>>,
        weight_decay: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let made = Self {
            learning_rate: argument::number("learning_rate", learning_rate)?,
            beta1: argument::number_or("beta1", beta1, 0.9)?,
            beta2: argument::number_or("beta2", beta2, 0.999)?,
            epsilon: argument::number_or("epsilon", epsilon, 1e-8)?,
            weight_decay: argument::number_or("weight_decay", weight_decay, 0.01)?,
        };
        made.to_core().check().map_err(|error| to_python(learning_rate.py(), &error))?;
        Ok(made)
    }

    fn __repr__(&self) -> String {
        format!(
            "AdamW({:?}, beta1={:?}, beta2={:?}, epsilon={:?}, weight_decay={:?})",
            self.learning_rate, self.beta1, self.beta2, self.epsilon, self.weight_decay
        )
    }
}

impl Sgd {
    fn to_core(&self) -> Optimizer {
        Optimizer::Sgd {
            learning_rate: self.learning_rate,
            momentum: self.momentum,
            nesterov: self.nesterov,
            weight_decay: self.weight_decay,
        }
    }
}

impl AdamW {
    fn to_core(&self) -> Optimizer {
        Optimizer::AdamW {
            learning_rate: self.learning_rate,
            beta1: self.beta1,
            beta2: self.beta2,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
        }
    }
}

/// The optimizer that a caller gave.
pub(crate) fn of_argument(given: &Bound<'_, PyAny>) -> PyResult<Optimizer> {
    if let Ok(sgd) = given.cast::<Sgd>() {
        return Ok(sgd.get().to_core());
    }
    if let Ok(adam) = given.cast::<AdamW>() {
        return Ok(adam.get().to_core());
    }
    Err(invalid(given.py(), "optimizer", given, "must be a uform.SGD or a uform.AdamW"))
}
