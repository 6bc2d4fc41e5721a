//! The calls of a trainer on another executor, and those that return before they are done.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::executor::{Deferred, Executor};
use crate::sys::Deadline;

use super::agreement::Entry;
use super::{StepReport, Trainer};

/// A trainer whose calls return a [`Deferred`]: made by [`Trainer::deferred`].
///
/// They run in the order of submission, together with the other calls of the trainer's mesh; a deadline counts from
/// submission. Gradients must not be written, and parameters not be read, until the call is done.
#[derive(Clone, Debug)]
pub struct DeferredTrainer {
    trainer: Trainer,
}

impl Trainer {
    /// The same trainer, its calls on that executor.
    #[must_use]
    pub fn on(&self, executor: &Executor) -> Self {
        Self { mesh: self.mesh.as_ref().map(|mesh| mesh.on(executor)), ..self.clone() }
    }

    /// The same calls, each returning a [`Deferred`], on `executor` or on the mesh's own.
    #[must_use]
    pub fn deferred(&self, executor: Option<&Executor>) -> DeferredTrainer {
        let trainer = executor.map_or_else(|| self.clone(), |executor| self.on(executor));
        DeferredTrainer { trainer }
    }
}

impl DeferredTrainer {
    /// As [`Trainer::step`].
    pub fn step(&self, weight: f64, deadline: Deadline<'static>) -> Deferred<StepReport> {
        self.submit(Entry::Step, deadline, move |trainer, deadline| trainer.step(weight, deadline))
    }

    /// As [`Trainer::save`].
    pub fn save(&self, directory: PathBuf, step: u64, deadline: Deadline<'static>) -> Deferred<()> {
        self.submit(Entry::Save, deadline, move |trainer, deadline| trainer.save(&directory, step, deadline))
    }

    /// As [`Trainer::load`].
    pub fn load(&self, directory: PathBuf, deadline: Deadline<'static>) -> Deferred<u64> {
        self.submit(Entry::Load, deadline, move |trainer, deadline| trainer.load(&directory, deadline))
    }

    fn submit<T: Send + 'static>(
        &self,
        entry: Entry,
        deadline: Deadline<'static>,
        work: impl FnOnce(&Trainer, &Deadline<'_>) -> Result<T> + Send + 'static,
    ) -> Deferred<T> {
        let Some(mesh) = &self.trainer.mesh else {
            let why = "the trainer was made on a bare group, which has no executor";
            return Deferred::failed(entry.word(), Error::unsupported("a deferred call", why));
        };
        let members = self.trainer.core.members.clone();
        let admitted = Trainer { is_admitted: true, ..self.trainer.clone() };
        mesh.submit(
            entry.word(),
            deadline,
            move |_, error| members.refuse(error),
            move |_, deadline| work(&admitted, deadline),
        )
    }
}
