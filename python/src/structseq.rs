//! `GPUDevice` and `MeshDescription` as struct sequences, made with the C interface that pyo3 does not wrap.
#![allow(unsafe_code, reason = "struct sequences have no safe wrapper; every block names its fact")]

use std::ffi::{CStr, c_int};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use uform::topology::{GpuDevice, MeshDescription};

use crate::vocabulary::{Enumeration, to_optional_member};

/// A struct sequence class before it is made: each field is a name and what `help()` says of it.
struct Shape {
    name: &'static CStr,
    doc: &'static CStr,
    fields: &'static [(&'static CStr, &'static CStr)],
    cell: PyOnceLock<Py<PyType>>,
}

static GPU_DEVICE: Shape = Shape {
    name: c"uform.GPUDevice",
    doc: c"One GPU as this process may use it; its ordinal is its position in gpu_devices().",
    fields: &[
        (c"vendor", c"who made it, a GPUVendor"),
        (c"vendor_ordinal", c"the vendor's own number, whatever the visibility variables say"),
        (c"gpu_class", c"the GPUClass it dispatches as, None if it is not known"),
        (c"compute_units", c"multiprocessors or compute units"),
        (c"memory_bytes", c"device memory in bytes"),
        (c"name", c"the vendor's product name"),
    ],
    cell: PyOnceLock::new(),
};

static MESH_DESCRIPTION: Shape = Shape {
    name: c"uform.MeshDescription",
    doc: c"Where this process stands in its mesh.",
    fields: &[
        (c"gpus_per_host_domain", c"GPUs of this process"),
        (
            c"gpus_per_multimem_domain",
            c"GPUs in the multimem domain of this process's first GPU, 0 without GPUs",
        ),
        (c"gpus_per_colocated_domain", c"all GPUs of the run"),
        (c"host_domain_index", c"the index of this process"),
        (c"first_gpu_index", c"the sum of the GPU counts of the processes before this one"),
        (c"multimem_tier", c"how the multimem domains of the run reduce, a MultimemTier"),
        (c"gpu_class", c"the GPUClass that every GPU of the run dispatches as, None for none or a mixture"),
    ],
    cell: PyOnceLock::new(),
};

impl Shape {
    fn class<'py>(&'static self, py: Python<'py>) -> PyResult<&'py Bound<'py, PyType>> {
        Ok(self.cell.get_or_try_init(py, || self.make(py))?.bind(py))
    }

    fn make(&'static self, py: Python<'_>) -> PyResult<Py<PyType>> {
        let end = ffi::PyStructSequence_Field { name: std::ptr::null(), doc: std::ptr::null() };
        let mut fields = self
            .fields
            .iter()
            .map(|(name, doc)| ffi::PyStructSequence_Field { name: name.as_ptr(), doc: doc.as_ptr() })
            .chain([end])
            .collect::<Vec<_>>();
        let mut description = ffi::PyStructSequence_Desc {
            name: self.name.as_ptr(),
            doc: self.doc.as_ptr(),
            fields: fields.as_mut_ptr(),
            // A handful: the tables of this file.
            n_in_sequence: self.fields.len() as c_int,
        };
        // SAFETY: the interpreter is attached (`py`). The description and its array, which a null name ends, live until
        // the call returns; the strings are 'static, since the new type keeps pointers to them.
        let class = unsafe { ffi::PyStructSequence_NewType(&raw mut description) };
        // SAFETY: NewType gives a new reference that nobody else owns, or null with an exception set.
        let class = unsafe { Bound::from_owned_ptr_or_err(py, class.cast()) }?;
        Ok(class.cast_into::<PyType>()?.unbind())
    }

    /// A new instance; `values` has one object for each field.
    fn instance<'py>(
        &'static self,
        py: Python<'py>,
        values: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.class(py)?.call1((PyTuple::new(py, values)?,))
    }
}

/// Adds both classes to the module.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("GPUDevice", GPU_DEVICE.class(py)?)?;
    module.add("MeshDescription", MESH_DESCRIPTION.class(py)?)
}

/// A `GPUDevice`.
pub(crate) fn gpu_device<'py>(py: Python<'py>, device: &GpuDevice) -> PyResult<Bound<'py, PyAny>> {
    let values = vec![
        device.vendor.to_member(py)?,
        device.vendor_ordinal.into_pyobject(py)?.into_any(),
        to_optional_member(py, device.gpu_class)?,
        device.compute_units.into_pyobject(py)?.into_any(),
        device.memory_bytes.into_pyobject(py)?.into_any(),
        device.name.as_str().into_pyobject(py)?.into_any(),
    ];
    GPU_DEVICE.instance(py, values)
}

/// A `MeshDescription`.
pub(crate) fn mesh_description<'py>(
    py: Python<'py>,
    description: &MeshDescription,
) -> PyResult<Bound<'py, PyAny>> {
    let values = vec![
        description.gpus_per_host_domain.into_pyobject(py)?.into_any(),
        description.gpus_per_multimem_domain.into_pyobject(py)?.into_any(),
        description.gpus_per_colocated_domain.into_pyobject(py)?.into_any(),
        description.host_domain_index.into_pyobject(py)?.into_any(),
        description.first_gpu_index.into_pyobject(py)?.into_any(),
        description.multimem_tier.to_member(py)?,
        to_optional_member(py, description.gpu_class)?,
    ];
    MESH_DESCRIPTION.instance(py, values)
}
