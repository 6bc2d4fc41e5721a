//! Arrays in: what callers pass is read in place, by the buffer protocol, `__array_interface__` or DLPack.
#![allow(
    unsafe_code,
    reason = "Py_buffer has no safe wrapper that takes 0-d arrays; every block names its fact"
)]

use std::any::Any;
use std::ffi::CStr;

use pyo3::exceptions::PyAttributeError;
use pyo3::ffi;
use pyo3::prelude::*;
use uform::sys::gpu::{ForeignStream, Stream};
use uform::sys::{Layout, Span, SpanMut};
use uform::vocabulary::{Dtype, GpuVendor};
use uform::{Error, GpuArrays, GpuSpan, Mesh};

use crate::array::Array;
use crate::error::{chained, invalid, to_python};
use crate::shape::Shape;
use crate::{dlpack, interface};

/// An array as a protocol describes it, not checked yet.
pub(crate) struct Description {
    pub(crate) address: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    /// In bytes; `None` for C-contiguous.
    pub(crate) strides: Option<Vec<isize>>,
    pub(crate) read_only: bool,
    /// Whose memory it is in; `None` for the host's.
    pub(crate) gpu: Option<Gpu>,
}

/// Who made a GPU, and its number in this process.
pub(crate) type Gpu = (GpuVendor, usize);

/// What keeps a caller's memory in place while it is there.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// A caller's array, held in place until this is dropped.
pub(crate) struct Buffer {
    lent: Lent,
    dtype: Dtype,
    shape: Shape,
    read_only: bool,
    _owner: Owner,
}

impl Buffer {
    /// Takes `given` for reading; memory of a GPU only for a mesh, on whose stream it may be read from then on.
    pub(crate) fn for_reading(
        argument: &str,
        given: &Bound<'_, PyAny>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let py = given.py();
        let (owner, description) = take(argument, given, mesh)?;
        let refuse = |reason: &str| invalid(py, argument, given, reason);
        if description.shape.len() > MOST_DIMENSIONS {
            return Err(refuse("must have at most 64 dimensions"));
        }
        let item_bytes = description.dtype.size_bytes();
        let wanted =
            description.shape.iter().try_fold(item_bytes, |bytes, extent| bytes.checked_mul(*extent));
        let byte_count = wanted
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| refuse("must have fewer than 2^63 bytes"))?;
        if byte_count > 0 && description.address == 0 {
            return Err(refuse("has no memory"));
        }
        let layout = match &description.strides {
            Some(strides) if !is_contiguous(&description) => {
                let layout = Layout::new(&description.shape, strides, item_bytes);
                Some(Box::new(layout.map_err(|error| refuse(&error.to_string()))?))
            }
            _ => None,
        };
        let Description { address, dtype, shape, read_only, gpu, .. } = description;
        // The lowest element comes first in memory, and not the first one where strides are negative.
        let (address, byte_count) = match &layout {
            Some(layout) => (address.wrapping_sub(layout.offset()), layout.extent_bytes()),
            None => (address, byte_count),
        };
        Ok(Self { lent: Lent { address, byte_count, gpu, layout }, dtype, shape, read_only, _owner: owner })
    }

    /// Takes `given` for reading, if its elements follow each other.
    pub(crate) fn contiguous(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = Self::for_reading(argument, given, None)?;
        if buffer.lent.layout.is_some() {
            let reason = "must be C-contiguous; pass numpy.ascontiguousarray(array)";
            return Err(invalid(given.py(), argument, given, reason));
        }
        Ok(buffer)
    }

    /// Takes `given` for writing; else as `for_reading`.
    #[inline(always)]
    pub(crate) fn for_writing(
        argument: &str,
        given: &Bound<'_, PyAny>,
        mesh: Option<&Mesh>,
    ) -> PyResult<Self> {
        let buffer = Self::for_reading(argument, given, mesh)?;
        if buffer.read_only {
            return Err(invalid(given.py(), argument, given, "must be writable, it is read-only"));
        }
        Ok(buffer)
    }

    /// The element type.
    pub(crate) fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Whether it is in a GPU's memory.
    pub(crate) fn is_on_gpu(&self) -> bool {
        self.lent.gpu.is_some()
    }

    /// The extent of each dimension; empty for a 0-d array.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes, for reading: those between elements of a strided array are never touched. None are on a GPU.
    pub(crate) fn span(&self) -> Span<'_> {
        if self.is_on_gpu() {
            return Span::empty();
        }
        // SAFETY: the owner keeps `byte_count` bytes readable while it lives, or those of them that are elements of the
        // layout, which the borrow of self outlasts. Other Python threads may write them, as `from_raw` allows.
        unsafe { Span::from_raw(self.lent.address as *const u8, self.lent.byte_count) }
    }
}

/// As many as NumPy has.
pub(crate) const MOST_DIMENSIONS: usize = 64;

/// One array that is read, one that is written.
pub(crate) type Pair = (Option<Buffer>, Option<Buffer>);

/// The arrays of a call that goes on without the interpreter.
///
/// They are given back by whoever is attached next once this is dropped, so that the thread that drops it need not be.
pub(crate) struct Loan {
    arrays: Vec<(Option<Lent>, Option<Lent>)>,
    _held: Py<Held>,
}

/// An array without what keeps it.
#[derive(Clone)]
struct Lent {
    address: usize,
    byte_count: usize,
    gpu: Option<Gpu>,
    /// Where the elements lie from `address` on; `None` where they follow each other.
    layout: Option<Box<Layout>>,
}

/// The arrays of a call as the core takes them.
pub(crate) struct Spans<'a> {
    pub(crate) input: Option<Span<'a>>,
    pub(crate) output: SpanMut<'a>,
    pub(crate) gpu: Option<GpuArrays<'a>>,
    pub(crate) layouts: [Option<&'a Layout>; 2],
}

/// Arrays as an object, which any thread may let go.
#[pyclass(frozen)]
struct Held {
    _arrays: Vec<Pair>,
}

impl Loan {
    /// What is written was taken for writing.
    pub(crate) fn new(py: Python<'_>, arrays: Vec<Pair>) -> PyResult<Self> {
        let lent = |buffer: &Option<Buffer>| buffer.as_ref().map(|buffer| buffer.lent.clone());
        let pair = |(input, output): &Pair| (lent(input), lent(output));
        Ok(Self { arrays: arrays.iter().map(pair).collect(), _held: Py::new(py, Held { _arrays: arrays })? })
    }

    /// The bytes to read and those to write, of each pair.
    pub(crate) fn spans(&mut self) -> impl Iterator<Item = Spans<'_>> {
        // SAFETY: the arrays are held by `_held`, which the borrow of self outlasts; only what was taken for writing is an output.
        self.arrays.iter_mut().map(|(input, output)| unsafe { spans_of(input.as_ref(), output.as_ref()) })
    }
}

/// What the core is given of arrays.
///
/// # Safety
/// Their memory is kept and may be read, and that of the output written, for the whole of `'a`; no Rust reference to it exists.
unsafe fn spans_of<'a>(input: Option<&'a Lent>, output: Option<&'a Lent>) -> Spans<'a> {
    let on_gpu = |lent: &'a Lent| {
        // SAFETY: by the caller's promise.
        lent.gpu.map(|(vendor, number)| unsafe {
            GpuSpan::from_raw(vendor, number, lent.address as u64, lent.byte_count)
        })
    };
    let arrays = GpuArrays { input: input.and_then(on_gpu), output: output.and_then(on_gpu) };
    let is_on_gpu = arrays.input.is_some() || arrays.output.is_some();
    let of_host = |lent: &&Lent| lent.gpu.is_none();
    // SAFETY: by the caller's promise; other Python threads may write them, as `from_raw` allows.
    let read = |lent: &Lent| unsafe { Span::from_raw(lent.address as *const u8, lent.byte_count) };
    // SAFETY: as above.
    let write = |lent: &Lent| unsafe { SpanMut::from_raw(lent.address as *mut u8, lent.byte_count) };
    Spans {
        input: input.filter(of_host).map(read),
        output: output.filter(of_host).map_or(SpanMut::empty(), write),
        gpu: is_on_gpu.then_some(arrays),
        layouts: [input, output].map(|lent| lent.and_then(|lent| lent.layout.as_deref())),
    }
}

/// The bytes to read and those to write of a pair that stays with its caller; what is written was taken for writing.
pub(crate) fn spans((input, output): &mut Pair) -> Spans<'_> {
    // SAFETY: the pair keeps the arrays, which the borrow of it outlasts; only what was taken for writing is an output.
    unsafe { spans_of(input.as_ref().map(|buffer| &buffer.lent), output.as_ref().map(|buffer| &buffer.lent)) }
}

/// Asks the protocols one after the other; the first that an object has decides.
fn take(argument: &str, given: &Bound<'_, PyAny>, mesh: Option<&Mesh>) -> PyResult<(Owner, Description)> {
    let py = given.py();
    if let Ok(array) = given.cast::<Array>() {
        let description = array.get().describe().map_err(|error| to_python(py, &error))?;
        match (mesh, description.gpu) {
            (_, None) => return Ok((Box::new(given.clone().unbind()), description)),
            (Some(mesh), Some(gpu)) => {
                stream_of(py, mesh, gpu)?;
                return Ok((Box::new(given.clone().unbind()), description));
            }
            // What reads host memory alone asks on, and is told why not.
            (None, Some(_)) => {}
        }
    }
    let refused = match PyView::of(given) {
        Ok(view) => {
            let description = view.describe().map_err(|reason| invalid(py, argument, given, &reason))?;
            return Ok((view, description));
        }
        Err(refused) => refused,
    };
    // An exporter may refuse one element type by the buffer protocol, as NumPy does bfloat16, and give it another way.
    if let Some(found) = attribute(argument, given, "__array_interface__")? {
        return interface::take(argument, given, &found);
    }
    if attribute(argument, given, "__dlpack__")?.is_some() {
        let (tensor, description) = dlpack::take(argument, given, mesh)?;
        return Ok((Box::new(tensor), description));
    }
    if let (Some(mesh), Some(found)) = (mesh, attribute(argument, given, "__cuda_array_interface__")?) {
        let (owner, description, stream) = interface::take_of_gpu(argument, given, &found, mesh)?;
        if let (Some(gpu), Some(stream)) = (description.gpu, stream) {
            // SAFETY: the producer says that it is a stream of the array's GPU, and keeps it while the array is there.
            let stream = unsafe { ForeignStream::from_raw(stream) };
            stream_of(py, mesh, gpu)?.follow(stream).map_err(|error| to_python(py, &error))?;
        }
        return Ok((owner, description));
    }
    let reason = "must be an array with the buffer protocol, __array_interface__, __dlpack__ or, on a GPU, \
                  __cuda_array_interface__, such as a NumPy array, a torch tensor or a uform.Array";
    Err(chained(py, invalid(py, argument, given, reason), refused))
}

/// The stream that a mesh's calls on a GPU's memory run on.
pub(crate) fn stream_of(py: Python<'_>, mesh: &Mesh, gpu: Gpu) -> PyResult<std::sync::Arc<Stream>> {
    mesh.gpu_stream(gpu).map_err(|error| to_python(py, &error))
}

/// An attribute that an object may have; it may be a property, which may fail.
fn attribute<'py>(
    argument: &str,
    given: &Bound<'py, PyAny>,
    name: &str,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = given.py();
    match given.getattr(name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_instance_of::<PyAttributeError>(py) => Ok(None),
        Err(error) => {
            let reason = format!("has a {name} that failed");
            Err(chained(py, invalid(py, argument, given, &reason), error))
        }
    }
}

/// Whether elements follow each other in the order of C; the stride of a dimension with one element says nothing.
pub(crate) fn is_contiguous(description: &Description) -> bool {
    let Some(strides) = &description.strides else { return true };
    let item_bytes = description.dtype.size_bytes();
    strides.len() == description.shape.len()
        && follow_each_other(item_bytes, &description.shape, strides.iter().copied())
}

/// The same of extents and as many strides.
fn follow_each_other(
    item_bytes: usize,
    shape: &[usize],
    strides: impl DoubleEndedIterator<Item = isize>,
) -> bool {
    let mut expected = item_bytes as isize;
    shape.contains(&0)
        || shape.iter().rev().zip(strides.rev()).all(|(extent, stride)| {
            let fits = *extent == 1 || stride == expected;
            expected = expected.saturating_mul(*extent as isize);
            fits
        })
}

/// A view of an object with the buffer protocol, given back when this is dropped.
pub(crate) struct PyView(ffi::Py_buffer);

// SAFETY: the view's memory stays valid wherever the value is, since the exporter is held by `obj`; it is given back
// only while attached to the interpreter (see Drop).
unsafe impl Send for PyView {}
// SAFETY: a shared reference only reads the view's fields, which nobody changes until it is given back.
unsafe impl Sync for PyView {}

impl PyView {
    /// Asks for a view with shape, strides and format. It stays where it is: an exporter may let `shape` point into it.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Box<Self>> {
        let mut view = Box::new(Self(ffi::Py_buffer::new()));
        // SAFETY: attached, `given` is alive, and `view` is an empty buffer at an address that stays.
        let status =
            unsafe { ffi::PyObject_GetBuffer(given.as_ptr(), &raw mut view.0, ffi::PyBUF_RECORDS_RO) };
        // One that was not filled has no exporter, and nothing is given back.
        if status == 0 { Ok(view) } else { Err(PyErr::fetch(given.py())) }
    }

    pub(crate) fn byte_count(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// What it describes, or why that is no array for us.
    pub(crate) fn describe(&self) -> Result<Description, String> {
        let view = &self.0;
        let format = if view.format.is_null() {
            c"B"
        } else {
            // SAFETY: a non-null format is a null-terminated string that lives until the view is given back.
            unsafe { CStr::from_ptr(view.format) }
        };
        let dtype = match (format.to_bytes(), view.itemsize) {
            // What most arrays have.
            (b"f", 4) => Dtype::F32,
            (b"d", 8) => Dtype::F64,
            (_, item_bytes) => dtype_of(&format.to_string_lossy(), usize::try_from(item_bytes).unwrap_or(0))?,
        };
        let dimensions = usize::try_from(view.ndim).unwrap_or(0);
        let numbers = |start: *const ffi::Py_ssize_t| {
            // SAFETY: RECORDS_RO asked for `ndim` numbers that live until the view is given back; null is not read.
            (0..dimensions).map(move |dimension| unsafe { *start.add(dimension) })
        };
        let shape = if view.shape.is_null() {
            // Allowed for one dimension of plain bytes.
            Shape::from(std::iter::once(self.byte_count() / dtype.size_bytes()))
        } else {
            Shape::from(numbers(view.shape).map(|extent| usize::try_from(extent).unwrap_or(0)))
        };
        let follows = || {
            shape.len() == dimensions && follow_each_other(dtype.size_bytes(), &shape, numbers(view.strides))
        };
        let strides = (!view.strides.is_null() && !follows()).then(|| numbers(view.strides).collect());
        let (address, read_only) = (view.buf as usize, view.readonly != 0);
        Ok(Description { address, dtype, shape, strides, read_only, gpu: None })
    }
}

impl Drop for PyView {
    fn drop(&mut self) {
        // After the interpreter's end there is nothing to give back to.
        Python::try_attach(|_| {
            // SAFETY: attached, and the view was filled by GetBuffer and is given back only here.
            unsafe { ffi::PyBuffer_Release(&raw mut self.0) };
        });
    }
}

/// The element type that a format of the `struct` module means, or why there is none.
pub(crate) fn dtype_of(format: &str, item_bytes: usize) -> Result<Dtype, String> {
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

/// Refuses the argument `array` unless its elements are of the type that another argument has.
pub(crate) fn same_dtype(py: Python<'_>, array: &Buffer, (other, dtype): (&str, Dtype)) -> PyResult<()> {
    if array.dtype == dtype {
        return Ok(());
    }
    let reason = format!("must have the element type of {other}, {dtype}");
    Err(to_python(py, &Error::invalid("array", array.dtype, "argument", reason)))
}
