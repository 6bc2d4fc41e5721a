//! `Arena`: memory that the processes of a host share, handed out as arrays.

use pyo3::prelude::*;
use uform::vocabulary::Dtype;

use crate::array::{Array, byte_count, shape_of};
use crate::error::to_python;
use crate::vocabulary::Enumeration;

/// Memory of this process that the processes of its host see; made by Mesh.arena.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Arena {
    pub(crate) inner: uform::mesh::Arena,
}

#[pymethods]
impl Arena {
    /// The bytes of this process's own part.
    #[getter]
    fn byte_count(&self) -> usize {
        self.inner.byte_count()
    }

    /// Takes the next free bytes as an Array, zero at first; nothing is given back before the arena goes.
    ///
    /// shape: an integer or a sequence of them; () is a single value. Arrays begin at multiples of 64 bytes.
    /// Raises ExhaustedError with what is left.
    #[pyo3(signature = (shape, dtype=None), text_signature = "($self, shape, dtype=uform.Dtype.F32)")]
    fn array(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Array> {
        let dtype = dtype.map_or(Ok(Dtype::F32), |given| Dtype::of_argument("dtype", given))?;
        let shape = shape_of(shape)?;
        let array = byte_count(&shape, dtype)
            .and_then(|bytes| self.inner.take(bytes))
            .and_then(|range| Array::over_arena(&self.inner, range, &shape, dtype));
        array.map_err(|error| to_python(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("<uform.Arena of {} bytes>", self.inner.byte_count())
    }
}
