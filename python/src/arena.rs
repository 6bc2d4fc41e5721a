//! `Arena`: memory that the processes of a host share, or that is on a process's GPUs, handed out as arrays.

use pyo3::prelude::*;
use uform::vocabulary::Dtype;

use crate::argument;
use crate::array::{Array, byte_count, shape_of};
use crate::error::to_python;
use crate::vocabulary::Enumeration;

/// Memory of this process that the processes of its host see, or on the GPUs of the mesh's executor; made by Mesh.arena.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Arena {
    pub(crate) inner: uform::mesh::Arena,
}

#[pymethods]
impl Arena {
    /// The bytes of this process's own part, on each GPU if it is on GPUs.
    #[getter]
    fn byte_count(&self) -> usize {
        self.inner.byte_count()
    }

    /// Takes the next free bytes as an Array, zero at first; nothing is given back before the arena goes.
    ///
    /// shape: an integer or a sequence of them; () is a single value. Arrays begin at multiples of 64 bytes.
    /// device: on which GPU, as a position of the executor's; 0 for host memory. Raises ExhaustedError with what is left.
    #[pyo3(
        signature = (shape, dtype=None, *, device=None),
        text_signature = "($self, shape, dtype=uform.Dtype.F32, *, device=0)"
    )]
    fn array(
        &self,
        py: Python<'_>,
        shape: &Bound<'_, PyAny>,
        dtype: Option<&Bound<'_, PyAny>>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Array> {
        let device = argument::count_or("device", device, 0)?;
        let dtype = dtype.map_or(Ok(Dtype::F32), |given| Dtype::of_argument("dtype", given))?;
        let shape = shape_of(shape)?;
        let array = byte_count(&shape, dtype)
            .and_then(|bytes| self.inner.take_on(device, bytes))
            .and_then(|range| Array::over_arena(&self.inner, device, range, &shape, dtype));
        array.map_err(|error| to_python(py, &error))
    }

    fn __repr__(&self) -> String {
        format!("<uform.Arena of {} bytes>", self.inner.byte_count())
    }
}
