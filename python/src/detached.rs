//! Values whose end may wait for threads: dropped without the interpreter's lock, which those threads may need.

use std::ops::Deref;

use pyo3::prelude::*;

/// A value of the core within an object of Python.
pub(crate) struct Detached<T: Send>(Option<T>);

impl<T: Send> Detached<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T: Send> Deref for Detached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // There until the drop.
        self.0.as_ref().expect("not dropped")
    }
}

impl<T: Send> Drop for Detached<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Where there is no interpreter any more there is no lock either.
        Python::try_attach(|py| py.detach(move || drop(value)));
    }
}
