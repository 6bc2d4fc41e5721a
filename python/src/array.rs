//! `Array`: memory of uform as Python sees it, shared in place by the buffer protocol and by DLPack.
#![allow(
    unsafe_code,
    reason = "a view is filled by the rules of the buffer protocol; every block names its fact"
)]

use std::any::Any;
use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use uform::Error;
use uform::mesh::{Arena, DeviceBytes};
use uform::sys::Span;
use uform::sys::gpu::ForeignStream;
use uform::trainer::{View, ViewMut};
use uform::vocabulary::{Dtype, GpuVendor};

use crate::argument::is_flag;
use crate::buffer::{Description, MOST_DIMENSIONS};
use crate::dlpack::{self, Export};
use crate::error::{invalid, to_python};
use crate::vocabulary::Enumeration;

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
/// It is exported by the buffer protocol, where BF16 comes as unsigned 16-bit integers, and by DLPack, where it comes as
/// bfloat16: torch.from_dlpack(array) and jax.dlpack.from_dlpack(array) share its memory too.
#[pyclass(frozen, module = "uform")]
pub(crate) struct Array {
    address: usize,
    byte_count: usize,
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
    dtype: Dtype,
    access: Access,
    /// Where it is on a GPU; `None` for host memory.
    bytes: Option<DeviceBytes>,
    /// What keeps the memory mapped.
    owner: Arc<dyn Any + Send + Sync>,
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
            bytes: None,
            owner,
        })
    }

    /// Bytes of an arena on a GPU.
    fn over_gpu(bytes: DeviceBytes, shape: &[usize], dtype: Dtype, access: Access) -> uform::Result<Self> {
        let range = (bytes.address()? as *const u8, bytes.byte_count());
        let owner = Arc::new(bytes.clone());
        // SAFETY: nothing here reads or writes the bytes of an array that has `bytes`: its address is handed on to those who use
        // the GPU, and its owner keeps it.
        let array = unsafe { Self::over(owner, range, shape, dtype, access) }?;
        Ok(Self { bytes: Some(bytes), ..array })
    }

    /// Bytes that were taken of this process's part of an arena, on the GPU at a position of its executor's if it is on GPUs.
    pub(crate) fn over_arena(
        arena: &Arena,
        device: usize,
        range: Range<usize>,
        shape: &[usize],
        dtype: Dtype,
    ) -> uform::Result<Self> {
        if arena.device_count() > 0 {
            return Self::over_gpu(arena.device_bytes(device, range)?, shape, dtype, Access::Write);
        }
        let span = arena.own(range)?;
        let (address, byte_count) = (span.pointer().cast_const(), span.byte_count());
        let owner = Arc::new(arena.clone());
        // SAFETY: the handle keeps the memory mapped and writable, and the core reads it by pointer only.
        unsafe { Self::over(owner, (address, byte_count), shape, dtype, Access::Write) }
    }

    /// A gradient of a trainer, or a parameter in an edit.
    pub(crate) fn over_view(view: ViewMut, access: Access) -> uform::Result<Self> {
        if let Some(bytes) = view.device_bytes() {
            return Self::over_gpu(bytes.clone(), view.shape(), view.dtype(), access);
        }
        let (address, byte_count) =
            view.with_span(|span| (span.pointer().cast_const(), span.byte_count()))?;
        let (shape, dtype) = (view.shape().to_vec(), view.dtype());
        // SAFETY: the view keeps its memory mapped and writable for as long as it lives, and reads it by pointer only.
        unsafe { Self::over(Arc::new(view), (address, byte_count), &shape, dtype, access) }
    }

    /// A parameter of a trainer, read-only.
    pub(crate) fn over_parameter(view: View) -> uform::Result<Self> {
        if let Some(bytes) = view.device_bytes() {
            return Self::over_gpu(bytes.clone(), view.shape(), view.dtype(), Access::Read);
        }
        let span = view.span()?;
        let (address, byte_count) = (span.pointer(), span.byte_count());
        let (shape, dtype) = (view.shape().to_vec(), view.dtype());
        // SAFETY: as above, for reading.
        unsafe { Self::over(Arc::new(view), (address, byte_count), &shape, dtype, Access::Read) }
    }

    /// What DLPack hands on: this memory, or a copy of it.
    fn export(&self, is_copied: bool) -> Export {
        let numbers =
            |values: &[ffi::Py_ssize_t]| values.iter().map(|value| *value as i64).collect::<Vec<_>>();
        let item_bytes = self.dtype.size_bytes() as i64;
        let (owner, address) = if is_copied {
            // SAFETY: the owner keeps the bytes readable while it lives, which is longer than this.
            let bytes = unsafe { Span::from_raw(self.address as *const u8, self.byte_count) }.to_vec();
            let address = bytes.as_ptr() as usize;
            (Arc::new(bytes) as Arc<dyn Any + Send + Sync>, address)
        } else {
            (Arc::clone(&self.owner), self.address)
        };
        Export {
            owner,
            // The protocol wants no address where there is nothing.
            address: if self.byte_count == 0 { 0 } else { address },
            device: dlpack::HOST_DEVICE,
            shape: numbers(&self.shape),
            strides: numbers(&self.strides).iter().map(|stride| stride / item_bytes).collect(),
            dtype: self.dtype,
            read_only: !is_copied && !self.is_writable(),
            is_copied,
        }
    }

    /// What a verb takes of it.
    pub(crate) fn describe(&self) -> uform::Result<Description> {
        let gpu = match &self.bytes {
            Some(bytes) => Some((bytes.vendor()?, bytes.device_number()?)),
            None => None,
        };
        Ok(Description {
            address: self.address,
            dtype: self.dtype,
            shape: self.shape.iter().map(|extent| *extent as usize).into(),
            strides: None,
            read_only: !self.is_writable(),
            gpu,
        })
    }

    /// Where it is, as DLPack numbers it.
    fn device(&self) -> uform::Result<(i32, i32)> {
        let Some(bytes) = &self.bytes else { return Ok(dlpack::HOST_DEVICE) };
        let kind = if bytes.vendor()? == GpuVendor::Amd { dlpack::ROCM } else { dlpack::CUDA };
        Ok((kind, i32::try_from(bytes.device_number()?).unwrap_or(i32::MAX)))
    }

    /// What DLPack hands on of an array on a GPU.
    fn export_of_gpu(&self) -> uform::Result<Export> {
        let numbers =
            |values: &[ffi::Py_ssize_t]| values.iter().map(|value| *value as i64).collect::<Vec<_>>();
        let item_bytes = self.dtype.size_bytes() as i64;
        Ok(Export {
            owner: Arc::clone(&self.owner),
            address: if self.byte_count == 0 { 0 } else { self.address },
            device: self.device()?,
            shape: numbers(&self.shape),
            strides: numbers(&self.strides).iter().map(|stride| stride / item_bytes).collect(),
            dtype: self.dtype,
            read_only: !self.is_writable(),
            is_copied: false,
        })
    }

    fn is_writable(&self) -> bool {
        match &self.access {
            Access::Read => false,
            Access::Write => true,
            Access::WriteWhile(flag) => flag.load(Ordering::Acquire),
        }
    }
}

/// The type in `__cuda_array_interface__`; `None` where it has none.
const fn typestr_of(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::I8 => "|i1",
        Dtype::U8 => "|u1",
        Dtype::I16 => "<i2",
        Dtype::U16 => "<u2",
        Dtype::I32 => "<i4",
        Dtype::U32 => "<u4",
        Dtype::I64 => "<i8",
        Dtype::U64 => "<u8",
        Dtype::Bool => "|b1",
        Dtype::Bf16 => return None,
    })
}

/// The stream that a consumer gave, as the driver's handle; `None` if nothing shall wait.
fn stream_of(py: Python<'_>, kind: i32, given: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    let Some(given) = given else { return Ok(Some(usize::from(kind == dlpack::CUDA))) };
    let reason =
        "must be None, -1, or a stream of the array's GPU: in CUDA 1, 2 or a handle, in HIP 0 or a handle";
    let refuse = || invalid(py, "stream", given, reason);
    let number = given.extract::<i64>().map_err(|_| refuse())?;
    match (kind, number) {
        (_, -1) => Ok(None),
        (dlpack::CUDA, 0) | (dlpack::ROCM, 1 | 2) => Err(refuse()),
        _ => usize::try_from(number).map(Some).map_err(|_| refuse()),
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

    /// The device of its memory, as DLPack numbers it: host memory is (1, 0).
    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(i32, i32)> {
        self.device().map_err(|error| to_python(py, &error))
    }

    /// The memory on a GPU for libraries that read this interface, of version 3, with the stream to wait for.
    ///
    /// Raises AttributeError for host memory, and for BF16, which has no type there.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (Some(bytes), Some(kind)) = (&self.bytes, typestr_of(self.dtype)) else {
            return Err(PyAttributeError::new_err("__cuda_array_interface__"));
        };
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("typestr", kind)?;
        interface
            .set_item("data", (if self.byte_count == 0 { 0 } else { self.address }, !self.is_writable()))?;
        interface.set_item("strides", py.None())?;
        interface.set_item("version", 3)?;
        interface.set_item("stream", bytes.stream().map_err(|error| to_python(py, &error))?)?;
        Ok(interface)
    }

    /// A DLPack capsule of its memory.
    ///
    /// stream: the consumer's stream on the array's GPU, which waits for the work on the array: 1 or None the default one and 2
    /// that of the thread in CUDA, 0 or None the default one in HIP, else a handle; -1 waits for nothing. None for host memory.
    /// max_version: the newest version that the consumer reads; None means a
    /// consumer from before version 1, who gets no read-only array. A read-only array says so in the capsule; torch does not look
    /// there, so that its tensor of a parameter must be cloned before it is written. dl_device: None or where it is. copy: True copies, in host
    /// memory alone.
    ///
    /// Raises BufferError for what cannot be exported.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<&Bound<'py, PyAny>>,
        dl_device: Option<&Bound<'py, PyAny>>,
        copy: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let (None, Some(stream)) = (&self.bytes, stream) {
            return Err(invalid(py, "stream", stream, "must be None, host memory has no streams"));
        }
        let newest = max_version
            .map(|given| {
                let reason = "must be (major, minor) or None";
                given.extract::<(u32, u32)>().map_err(|_| invalid(py, "max_version", given, reason))
            })
            .transpose()?;
        if let Some(device) = dl_device {
            let reason = "must be (type, ordinal) or None";
            let wanted =
                device.extract::<(i32, i32)>().map_err(|_| invalid(py, "dl_device", device, reason))?;
            let own = self.__dlpack_device__(py)?;
            if wanted != own {
                return Err(PyBufferError::new_err(format!(
                    "this array is on dl_device {own:?}, and stays there"
                )));
            }
        }
        let copies = match copy {
            Some(given) => given
                .extract::<bool>()
                .map_err(|_| invalid(py, "copy", given, "must be True, False or None"))?,
            None => false,
        };
        if let Some(bytes) = &self.bytes {
            if copies {
                return Err(PyBufferError::new_err(
                    "arrays on a GPU are not copied here; copy what you import",
                ));
            }
            let export = self.export_of_gpu().map_err(|error| to_python(py, &error))?;
            if let Some(stream) = stream_of(py, export.device.0, stream)? {
                // SAFETY: the consumer says that it is a stream of the array's GPU, and that it lives.
                let stream = unsafe { ForeignStream::from_raw(stream) };
                bytes.precede(stream).map_err(|error| to_python(py, &error))?;
            }
            return dlpack::give(py, export, newest);
        }
        dlpack::give(py, self.export(copies), newest)
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
        if array.bytes.is_some() {
            return Err(PyBufferError::new_err(
                "this array is on a GPU, whose memory the host cannot read; import it by DLPack or __cuda_array_interface__",
            ));
        }
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
    let refuse = |reason: &str| invalid(given.py(), "shape", given, reason);
    let extent = |item: &Bound<'_, PyAny>| if is_flag(item) { None } else { item.extract::<usize>().ok() };
    if let Some(extent) = extent(given) {
        return Ok(vec![extent]);
    }
    let reason = "must be an integer or a sequence of integers, each 0 or more";
    let items = given.extract::<Vec<Bound<'_, PyAny>>>().map_err(|_| refuse(reason))?;
    if items.len() > MOST_DIMENSIONS {
        return Err(refuse("must have at most 64 dimensions"));
    }
    items.iter().map(extent).collect::<Option<_>>().ok_or_else(|| refuse(reason))
}
