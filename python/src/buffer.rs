//! Arrays in and out by the buffer protocol: what callers pass is read in place, what is ours is exported in place.
#![allow(
    unsafe_code,
    reason = "Py_buffer has no safe wrapper that takes 0-d arrays; every block names its fact"
)]

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use uform::Error;
use uform::mesh::Arena;
use uform::sys::{Span, SpanMut};
use uform::trainer::{View, ViewMut};
use uform::vocabulary::Dtype;

use crate::error::{invalid, to_python};
use crate::vocabulary::Enumeration;

/// A caller's array, held in place until this is dropped.
pub(crate) struct Buffer {
    // Boxed, since an exporter may let `shape` point into the view itself.
    view: Box<ffi::Py_buffer>,
    dtype: Dtype,
}

// SAFETY: the view's memory stays valid wherever the value is, since the exporter is held by `view.obj`; it is released
// only while attached to the interpreter (see Drop).
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads the view's fields, which nobody changes until it is released.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes `given` for reading.
    pub(crate) fn for_reading(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = given.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: attached, `given` is alive, and `view` is an empty buffer at an address that stays.
        let status =
            unsafe { ffi::PyObject_GetBuffer(given.as_ptr(), &raw mut *view, ffi::PyBUF_RECORDS_RO) };
        if status != 0 {
            let refusal = PyErr::fetch(py);
            let reason = format!(
                "must be an array with the buffer protocol, such as a NumPy array or a uform.Array ({})",
                refusal.value(py)
            );
            return Err(invalid(py, argument, given, &reason));
        }
        // From here on the view is released on every path.
        let mut buffer = Self { view, dtype: Dtype::U8 };
        buffer.dtype = buffer.element_type().map_err(|reason| invalid(py, argument, given, &reason))?;
        // SAFETY: the view was filled by GetBuffer above.
        if unsafe { ffi::PyBuffer_IsContiguous(&raw const *buffer.view, b'C' as c_char) } == 0 {
            let reason =
                "must be C-contiguous; pass numpy.ascontiguousarray(array) and copy back what is written";
            return Err(invalid(py, argument, given, reason));
        }
        Ok(buffer)
    }

    /// Takes `given` for writing.
    pub(crate) fn for_writing(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::for_reading(argument, given)?;
        if buffer.view.readonly != 0 {
            return Err(invalid(given.py(), argument, given, "must be writable, it is read-only"));
        }
        Ok(buffer)
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The extent of each dimension; empty for a 0-d array.
    pub(crate) fn shape(&self) -> Vec<usize> {
        let count = usize::try_from(self.view.ndim).unwrap_or(0);
        // SAFETY: RECORDS_RO asked for the shape: `ndim` numbers that live until the view is released, or null for none.
        let extent = |dimension| unsafe { *self.view.shape.add(dimension) };
        if self.view.shape.is_null() {
            return Vec::new();
        }
        (0..count).map(|dimension| usize::try_from(extent(dimension)).unwrap_or(0)).collect()
    }

    /// The bytes, for reading.
    pub(crate) fn span(&self) -> Span<'_> {
        // SAFETY: `len` bytes at `buf` are readable until the view is released, which the borrow of self outlasts; the view
        // is contiguous. Other Python threads may write them, as `from_raw` allows.
        unsafe { Span::from_raw(self.view.buf.cast(), self.byte_count()) }
    }

    /// The bytes, for writing.
    pub(crate) fn span_mut(&mut self) -> SpanMut<'_> {
        // SAFETY: as in `span`; only `for_writing` leads here, which refuses read-only views, and no Rust reference to
        // Python's memory exists.
        unsafe { SpanMut::from_raw(self.view.buf.cast(), self.byte_count()) }
    }

    fn byte_count(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }

    fn element_type(&self) -> Result<Dtype, String> {
        let format = if self.view.format.is_null() {
            "B".into()
        } else {
            // SAFETY: a non-null format is a null-terminated string that lives until the view is released.
            unsafe { CStr::from_ptr(self.view.format) }.to_string_lossy()
        };
        let item_bytes = usize::try_from(self.view.itemsize).unwrap_or(0);
        dtype_of(&format, item_bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // After the interpreter's end there is nothing to release to.
        Python::try_attach(|_| {
            // SAFETY: attached, and the view was filled by GetBuffer and is released only here.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
        });
    }
}

/// The element type that a format of the `struct` module means, or why there is none.
fn dtype_of(format: &str, item_bytes: usize) -> Result<Dtype, String> {
    let foreign = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '<'] };
    let code = format.trim_start_matches(['@', '=', '<', '>', '!']);
    if item_bytes > 1 && format.starts_with(foreign) {
        return Err(format!("must be in this machine's byte order (its format is {format:?})"));
    }
    let dtype = match (code, item_bytes) {
        ("d", 8) => Dtype::F64,
        ("f", 4) => Dtype::F32,
        ("e", 2) => Dtype::F16,
        ("?", 1) => Dtype::Bool,
        ("b", 1) => Dtype::I8,
        ("B", 1) => Dtype::U8,
        ("h", 2) => Dtype::I16,
        ("H", 2) => Dtype::U16,
        // The sizes of these depend on the prefix and the platform: the item size decides.
        ("i" | "l" | "q" | "n", 4) => Dtype::I32,
        ("I" | "L" | "Q" | "N", 4) => Dtype::U32,
        ("i" | "l" | "q" | "n", 8) => Dtype::I64,
        ("I" | "L" | "Q" | "N", 8) => Dtype::U64,
        _ => {
            return Err(format!(
                "has an element type that uform does not know (format {format:?}, {item_bytes} bytes)"
            ));
        }
    };
    Ok(dtype)
}

/// The format by which an array of ours is exported; the one that NumPy calls the plain type of that size.
fn format_of(dtype: Dtype) -> &'static CStr {
    match dtype {
        Dtype::F64 => c"d",
        Dtype::F32 => c"f",
        Dtype::F16 => c"e",
        Dtype::I8 => c"b",
        Dtype::U8 => c"B",
        Dtype::I16 => c"h",
        // There is no format for bfloat16: its bits come as unsigned integers.
        Dtype::U16 | Dtype::Bf16 => c"H",
        Dtype::I32 => c"i",
        Dtype::U32 => c"I",
        Dtype::I64 => c"l",
        Dtype::U64 => c"L",
        Dtype::Bool => c"?",
    }
}

/// Whether an array may be written through.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// Never.
    Read,
    /// Always.
    Write,
    /// While the flag is true; views taken before keep what they were.
    WriteWhile(Arc<AtomicBool>),
}

/// An array in memory of uform, C-contiguous; numpy.asarray(array) shares its memory, and keeps it alive.
///
/// An Array of BF16 exports its bits as unsigned 16-bit integers.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Array {
    address: usize,
    byte_count: usize,
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
    dtype: Dtype,
    access: Access,
    /// What keeps the memory mapped.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Array {
    /// An array over bytes that `owner` keeps.
    ///
    /// # Safety
    /// `byte_count` bytes at `address` must stay readable for as long as `owner` lives, and writable too where `access` is
    /// not `Read`; no Rust reference to them may exist.
    unsafe fn over(
        owner: Arc<dyn Any + Send + Sync>,
        (address, byte_count): (*const u8, usize),
        shape: &[usize],
        dtype: Dtype,
        access: Access,
    ) -> uform::Result<Self> {
        let extents = extents_of(shape, dtype).filter(|(_, bytes)| *bytes == byte_count);
        let Some((shape, _)) = extents else {
            let reason = format!("must describe exactly {byte_count} bytes of {dtype}");
            return Err(Error::invalid("shape", format!("{shape:?}"), "argument", reason));
        };
        let mut strides = vec![0; shape.len()];
        // Fits: each stride is at most the byte count, which fits. An extent of 0 counts as 1, as NumPy does.
        let mut stride = dtype.size_bytes() as ffi::Py_ssize_t;
        for (position, extent) in shape.iter().enumerate().rev() {
            strides[position] = stride;
            stride = stride.saturating_mul((*extent).max(1));
        }
        Ok(Self {
            address: address as usize,
            byte_count,
            shape: shape.into(),
            strides: strides.into(),
            dtype,
            access,
            _owner: owner,
        })
    }

    /// Bytes that were taken of this process's part of an arena.
    pub(crate) fn over_arena(
        arena: &Arena,
        range: Range<usize>,
        shape: &[usize],
        dtype: Dtype,
    ) -> uform::Result<Self> {
        let span = arena.own(range)?;
        let (address, byte_count) = (span.pointer().cast_const(), span.byte_count());
        let owner = Arc::new(arena.clone());
        // SAFETY: the handle keeps the memory mapped and writable, and the core reads it by pointer only.
        unsafe { Self::over(owner, (address, byte_count), shape, dtype, Access::Write) }
    }

    /// A gradient of a trainer, or a parameter in an edit.
    pub(crate) fn over_view(view: ViewMut, access: Access) -> uform::Result<Self> {
        let (address, byte_count) =
            view.with_span(|span| (span.pointer().cast_const(), span.byte_count()))?;
        let (shape, dtype) = (view.shape().to_vec(), view.dtype());
        // SAFETY: the view keeps its memory mapped and writable for as long as it lives, and reads it by pointer only.
        unsafe { Self::over(Arc::new(view), (address, byte_count), &shape, dtype, access) }
    }

    /// A parameter of a trainer, read-only.
    pub(crate) fn over_parameter(view: View) -> uform::Result<Self> {
        let span = view.span()?;
        let (address, byte_count) = (span.pointer(), span.byte_count());
        let (shape, dtype) = (view.shape().to_vec(), view.dtype());
        // SAFETY: as above, for reading.
        unsafe { Self::over(Arc::new(view), (address, byte_count), &shape, dtype, Access::Read) }
    }

    fn is_writable(&self) -> bool {
        match &self.access {
            Access::Read => false,
            Access::Write => true,
            Access::WriteWhile(flag) => flag.load(Ordering::Acquire),
        }
    }
}

/// The extents as Python counts, and the bytes they need; `None` if either does not fit.
fn extents_of(shape: &[usize], dtype: Dtype) -> Option<(Vec<ffi::Py_ssize_t>, usize)> {
    let mut bytes = dtype.size_bytes();
    let mut extents = Vec::with_capacity(shape.len());
    for extent in shape {
        bytes = bytes.checked_mul(*extent)?;
        extents.push(ffi::Py_ssize_t::try_from(*extent).ok()?);
    }
    ffi::Py_ssize_t::try_from(bytes).ok()?;
    Some((extents, bytes))
}

/// How many bytes an array takes.
pub(crate) fn byte_count(shape: &[usize], dtype: Dtype) -> uform::Result<usize> {
    extents_of(shape, dtype).map(|(_, bytes)| bytes).ok_or_else(|| {
        Error::invalid("shape", format!("{shape:?}"), "argument", "must describe fewer than 2^63 bytes")
    })
}

#[pymethods]
impl Array {
    /// The extent of each dimension; () for a single value.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    /// The element type, a Dtype.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.dtype.to_member(py)
    }

    /// Whether views taken now may not be written.
    #[getter]
    fn read_only(&self) -> bool {
        !self.is_writable()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let kept = if self.is_writable() { "" } else { ", read-only" };
        Ok(format!("<uform.Array of shape {}, {}{kept}>", self.shape(py)?.repr()?, self.dtype))
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        // SAFETY: not null, and the protocol's caller gives a view that it alone holds.
        let view = unsafe { &mut *view };
        view.obj = std::ptr::null_mut();
        let array = slf.get();
        let writable = array.is_writable();
        let asks = |flag: c_int| flags & flag == flag;
        if asks(ffi::PyBUF_WRITABLE) && !writable {
            return Err(PyBufferError::new_err(
                "this array is read-only; parameters are written inside `with trainer.edit()`",
            ));
        }
        if asks(ffi::PyBUF_F_CONTIGUOUS) && array.shape.len() > 1 {
            return Err(PyBufferError::new_err("this array is C-contiguous, not Fortran-contiguous"));
        }
        view.buf = array.address as *mut std::ffi::c_void;
        // Within isize: checked when the array was made.
        view.len = array.byte_count as ffi::Py_ssize_t;
        view.itemsize = array.dtype.size_bytes() as ffi::Py_ssize_t;
        view.readonly = c_int::from(!writable);
        // NumPy's limit is 64 dimensions; a shape with more than c_int holds does not exist.
        view.ndim = array.shape.len() as c_int;
        let format = format_of(array.dtype).as_ptr().cast_mut();
        view.format = if asks(ffi::PyBUF_FORMAT) { format } else { std::ptr::null_mut() };
        let shape = array.shape.as_ptr().cast_mut();
        view.shape = if asks(ffi::PyBUF_ND) { shape } else { std::ptr::null_mut() };
        let strides = array.strides.as_ptr().cast_mut();
        view.strides = if asks(ffi::PyBUF_STRIDES) { strides } else { std::ptr::null_mut() };
        view.suboffsets = std::ptr::null_mut();
        view.internal = std::ptr::null_mut();
        // The view owns a reference to the array, and with it the memory, the shape and the strides.
        view.obj = slf.into_any().into_ptr();
        Ok(())
    }
}

/// The shape that a caller gave: an integer, or a sequence of them.
pub(crate) fn shape_of(given: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    if let Ok(extent) = given.extract::<usize>() {
        return Ok(vec![extent]);
    }
    let reason = "must be an integer or a sequence of integers, each 0 or more";
    let shape = given.extract::<Vec<usize>>().map_err(|_| invalid(given.py(), "shape", given, reason))?;
    if shape.len() > 64 {
        return Err(invalid(given.py(), "shape", given, "must have at most 64 dimensions"));
    }
    Ok(shape)
}

/// Refuses the argument `array` unless its elements are of the type that another argument has.
pub(crate) fn same_dtype(py: Python<'_>, array: &Buffer, (other, dtype): (&str, Dtype)) -> PyResult<()> {
    if array.dtype == dtype {
        return Ok(());
    }
    let reason = format!("must have the element type of {other}, {dtype}");
    Err(to_python(py, &Error::invalid("array", array.dtype, "argument", reason)))
}
