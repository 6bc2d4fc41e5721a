//! `__array_interface__`: arrays that say where their memory is; the only way in for NumPy's bfloat16.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use uform::Mesh;
use uform::sys::Layout;
use uform::vocabulary::{Dtype, GpuVendor};

use crate::buffer::{Description, Owner, PyView, dtype_of, is_contiguous};
use crate::error::invalid;

/// Reads the interface of an object that has one.
pub(crate) fn take(
    argument: &str,
    given: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyAny>,
) -> PyResult<(Owner, Description)> {
    let refuse = |reason: String| invalid(given.py(), argument, given, &reason);
    let interface = interface
        .cast::<PyDict>()
        .map_err(|_| refuse("must have a dict as its __array_interface__".to_owned()))?;
    let field = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
    let malformed = |name: &str| refuse(format!("has an __array_interface__ whose {name} is not understood"));
    if field("mask")?.is_some() {
        return Err(refuse("has a mask, which reductions would not see; fill it first".to_owned()));
    }
    let text = field("typestr")?.ok_or_else(|| malformed("typestr"))?;
    let text = text.cast::<PyString>().map_err(|_| malformed("typestr"))?.to_string();
    let dtype = dtype_of_text(&text, given).map_err(refuse)?;
    let shape = field("shape")?.ok_or_else(|| malformed("shape"))?;
    let shape = shape.cast::<PyTuple>().map_err(|_| malformed("shape"))?;
    let shape = shape.extract::<Vec<usize>>().map_err(|_| malformed("shape"))?;
    let strides = match field("strides")? {
        Some(strides) => Some(strides.extract::<Vec<isize>>().map_err(|_| malformed("strides"))?),
        None => None,
    };
    let data = field("data")?.ok_or_else(|| malformed("data"))?;
    if let Ok((address, read_only)) = data.extract::<(usize, bool)>() {
        // The object keeps the memory; what made the description may keep something too.
        let owner = Box::new((given.clone().unbind(), interface.clone().unbind()));
        return Ok((
            owner,
            Description { address, dtype, shape: shape.into_iter().into(), strides, read_only, gpu: None },
        ));
    }
    let view = PyView::of(&data).map_err(|_| malformed("data"))?;
    let bytes = view.describe().map_err(|_| malformed("data"))?;
    let offset = match field("offset")? {
        Some(offset) => offset.extract::<usize>().map_err(|_| malformed("offset"))?,
        None => 0,
    };
    // The first element may have others before it, where strides are negative.
    let (before, wanted) = match &strides {
        Some(strides) => match Layout::new(&shape, strides, dtype.size_bytes()) {
            Ok(layout) => (layout.offset(), Some(layout.extent_bytes())),
            Err(_) => return Err(malformed("strides")),
        },
        None => (0, shape.iter().try_fold(dtype.size_bytes(), |bytes, extent| bytes.checked_mul(*extent))),
    };
    let start = offset.checked_sub(before);
    let end = start.zip(wanted).and_then(|(start, bytes)| start.checked_add(bytes));
    let fits = end.is_some_and(|end| end <= view.byte_count());
    if !fits || !is_contiguous(&bytes) {
        return Err(malformed("data"));
    }
    let (address, read_only) = (bytes.address + offset, bytes.read_only);
    Ok((view, Description { address, dtype, shape: shape.into_iter().into(), strides, read_only, gpu: None }))
}

/// Reads the `__cuda_array_interface__` of an object that has one; also gives the stream to wait for, if there is one.
///
/// The interface does not say which GPU it is: the driver does, or the mesh has only one.
pub(crate) fn take_of_gpu(
    argument: &str,
    given: &Bound<'_, PyAny>,
    interface: &Bound<'_, PyAny>,
    mesh: &Mesh,
) -> PyResult<(Owner, Description, Option<usize>)> {
    let refuse = |reason: String| invalid(given.py(), argument, given, &reason);
    let interface = interface
        .cast::<PyDict>()
        .map_err(|_| refuse("must have a dict as its __cuda_array_interface__".to_owned()))?;
    let field = |name: &str| Ok::<_, PyErr>(interface.get_item(name)?.filter(|value| !value.is_none()));
    let malformed =
        |name: &str| refuse(format!("has a __cuda_array_interface__ whose {name} is not understood"));
    if field("mask")?.is_some() {
        return Err(refuse("has a mask, which reductions would not see; fill it first".to_owned()));
    }
    let text = field("typestr")?.ok_or_else(|| malformed("typestr"))?;
    let text = text.cast::<PyString>().map_err(|_| malformed("typestr"))?.to_string();
    let dtype = dtype_of_text(&text, given).map_err(refuse)?;
    let shape = field("shape")?.ok_or_else(|| malformed("shape"))?;
    let shape = shape.extract::<Vec<usize>>().map_err(|_| malformed("shape"))?;
    let strides = match field("strides")? {
        Some(strides) => Some(strides.extract::<Vec<isize>>().map_err(|_| malformed("strides"))?),
        None => None,
    };
    let data = field("data")?.ok_or_else(|| malformed("data"))?;
    let (address, read_only) = data.extract::<(usize, bool)>().map_err(|_| malformed("data"))?;
    let stream = match field("stream")? {
        None => None,
        Some(stream) => match stream.extract::<usize>() {
            // Which of the two default streams it is would not be known.
            Ok(0) | Err(_) => return Err(malformed("stream")),
            Ok(stream) => Some(stream),
        },
    };
    let gpu = mesh.gpu_at(address as u64).or_else(|| match mesh.executor().gpus().as_slice() {
        [gpu] if gpu.vendor == GpuVendor::Amd || address == 0 => mesh.gpu_alone(),
        _ => None,
    });
    let Some(gpu) = gpu else {
        let reason = format!(
            "is memory of no GPU that index {} drives: give the mesh an executor of Executor.for_vram with its GPU, or copy the \
             array to host memory",
            mesh.index()
        );
        return Err(refuse(reason));
    };
    let owner = Box::new((given.clone().unbind(), interface.clone().unbind()));
    Ok((
        owner,
        Description { address, dtype, shape: shape.into_iter().into(), strides, read_only, gpu: Some(gpu) },
        stream,
    ))
}

/// The element type that a text such as `<f4` means, or why there is none.
fn dtype_of_text(text: &str, given: &Bound<'_, PyAny>) -> Result<Dtype, String> {
    let unknown = || format!("has an element type that uform does not know ({text:?})");
    let mut signs = text.chars();
    let (order, kind) = (signs.next().ok_or_else(unknown)?, signs.next().ok_or_else(unknown)?);
    let item_bytes = signs.as_str().parse::<usize>().map_err(|_| unknown())?;
    // The interface has no word for bfloat16: its elements come as two unnamed bytes, and the array says what they are.
    if (order, kind, item_bytes) == ('<', 'V', 2) {
        let name = given.getattr("dtype").and_then(|dtype| dtype.getattr("name"));
        let is_bfloat = name.is_ok_and(|name| name.cast::<PyString>().is_ok_and(|name| name == "bfloat16"));
        return if is_bfloat { Ok(Dtype::Bf16) } else { Err(unknown()) };
    }
    let code = match (kind, item_bytes) {
        ('b', 1) => "?",
        ('i', 1) => "b",
        ('u', 1) => "B",
        ('i', 2) => "h",
        ('u', 2) => "H",
        ('i', _) => "q",
        ('u', _) => "Q",
        ('f', 2) => "e",
        ('f', 4) => "f",
        ('f', 8) => "d",
        _ => return Err(unknown()),
    };
    let order = if order == '|' { '=' } else { order };
    dtype_of(&format!("{order}{code}"), item_bytes).map_err(|_| unknown())
}
