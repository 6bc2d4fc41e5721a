//! DLPack in and out: tensors of other libraries are read in place, arrays of ours are handed on in place.
#![allow(unsafe_code, reason = "the protocol is C structs in capsules; every block names its fact")]

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use uform::Mesh;
use uform::vocabulary::{Dtype, GpuVendor};

use crate::buffer::{Description, Gpu, stream_of};
use crate::error::{chained, invalid, unsupported_because};

/// The newest version that is written and read; minor versions only add.
const VERSION: Version = Version { major: 1, minor: 0 };

/// Host memory, in the numbers of DLPack.
pub(crate) const HOST_DEVICE: (i32, i32) = (1, 0);
/// Device types that are host memory: plain, and pinned by CUDA or ROCm.
const HOSTS: [i32; 3] = [1, 3, 11];
/// Memory of an NVIDIA GPU, and of an AMD one.
pub(crate) const CUDA: i32 = 2;
pub(crate) const ROCM: i32 = 10;

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

const LEGACY_NAME: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    ordinal: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ElementType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct TensorView {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: ElementType,
    shape: *mut i64,
    /// In elements; null for C-contiguous.
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Legacy {
    tensor: TensorView,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct Versioned {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: TensorView,
}

impl ElementType {
    fn of(dtype: Dtype) -> Self {
        let code = match dtype {
            Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64 => 0,
            Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => 1,
            Dtype::F16 | Dtype::F32 | Dtype::F64 => 2,
            Dtype::Bf16 => 4,
            Dtype::Bool => 6,
        };
        // At most 64.
        Self { code, bits: 8 * dtype.size_bytes() as u8, lanes: 1 }
    }

    fn dtype(self) -> Result<Dtype, String> {
        let same = |dtype: &&Dtype| {
            let known = Self::of(**dtype);
            (known.code, known.bits, known.lanes) == (self.code, self.bits, self.lanes)
        };
        Dtype::ALL.iter().find(same).copied().ok_or_else(|| {
            format!(
                "has an element type that uform does not know (DLPack code {}, {} bits, {} lanes)",
                self.code, self.bits, self.lanes
            )
        })
    }
}

/// A tensor that another library handed over, and that is given back when this is dropped.
pub(crate) struct Tensor(Managed);

enum Managed {
    Old(NonNull<Legacy>),
    New(NonNull<Versioned>),
}

// SAFETY: the consumer owns the managed tensor, which DLPack allows to be used and given back on any thread.
unsafe impl Send for Tensor {}
// SAFETY: a shared reference gives no access to it.
unsafe impl Sync for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        // Producers written in Python release objects: after the interpreter's end there is nothing to give back to.
        Python::try_attach(|_| match self.0 {
            // SAFETY: attached; the tensor is ours, and it is given back only here.
            Managed::Old(managed) => unsafe {
                let managed = managed.as_ptr();
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            },
            // SAFETY: as above; the deleter keeps its place in every version.
            Managed::New(managed) => unsafe {
                let managed = managed.as_ptr();
                if let Some(deleter) = (*managed).deleter {
                    deleter(managed);
                }
            },
        });
    }
}

/// Takes the tensor of an object that has `__dlpack__`, and what it describes.
///
/// Memory of a GPU is taken for a mesh alone: its producer puts its work in front of the mesh's stream.
pub(crate) fn take(
    argument: &str,
    given: &Bound<'_, PyAny>,
    mesh: Option<&Mesh>,
) -> PyResult<(Tensor, Description)> {
    let py = given.py();
    let refuse = |cause: PyErr| {
        let reason = "must be readable by DLPack, whose __dlpack__ or __dlpack_device__ failed";
        chained(py, invalid(py, argument, given, reason), cause)
    };
    let device = given.call_method0("__dlpack_device__").and_then(|device| device.extract::<(i32, i32)>());
    let device = device.map_err(refuse)?;
    let gpu = gpu_of(device).filter(|_| mesh.is_some());
    let stream = match (mesh, gpu) {
        (Some(mesh), Some(gpu)) => Some(stream_of(py, mesh, gpu)?),
        _ => {
            check_device(py, argument, device.0)?;
            None
        }
    };
    let handle = stream.as_ref().map(|stream| stream.handle().addr());
    let capsule = export_of(given, handle).map_err(refuse)?;
    let Some(tensor) = consume(&capsule) else {
        return Err(invalid(py, argument, given, "must give a fresh DLPack capsule in __dlpack__"));
    };
    let (view, flags) = match tensor.0 {
        Managed::New(managed) => {
            // SAFETY: the tensor is alive; the version comes first in every version.
            let version = unsafe { (*managed.as_ptr()).version };
            if version.major != VERSION.major {
                let reason = format!("must be of DLPack 1, not {}.{}", version.major, version.minor);
                return Err(invalid(py, argument, given, &reason));
            }
            // SAFETY: alive, and of the layout of major version 1.
            unsafe { (&raw const (*managed.as_ptr()).tensor, (*managed.as_ptr()).flags) }
        }
        // SAFETY: the tensor is alive.
        Managed::Old(managed) => (unsafe { &raw const (*managed.as_ptr()).tensor }, 0),
    };
    // SAFETY: the view is within the tensor, which outlives this borrow and which nobody changes.
    let view = unsafe { &*view };
    if gpu.is_none() {
        check_device(py, argument, view.device.kind)?;
    } else if (view.device.kind, view.device.ordinal) != device {
        let (kind, ordinal) = (view.device.kind, view.device.ordinal);
        let reason =
            format!("must be where its __dlpack_device__ says, {device:?}, not on ({kind}, {ordinal})");
        return Err(invalid(py, argument, given, &reason));
    }
    let description = describe(view, flags).map_err(|reason| invalid(py, argument, given, &reason))?;
    Ok((tensor, Description { gpu, ..description }))
}

/// The GPU of a device; `None` for any other.
fn gpu_of((kind, ordinal): (i32, i32)) -> Option<Gpu> {
    let vendor = match kind {
        CUDA => GpuVendor::Nvidia,
        ROCM => GpuVendor::Amd,
        _ => return None,
    };
    usize::try_from(ordinal).ok().map(|number| (vendor, number))
}

fn check_device(py: Python<'_>, argument: &str, kind: i32) -> PyResult<()> {
    if HOSTS.contains(&kind) {
        return Ok(());
    }
    let name = match kind {
        2 => "a CUDA GPU".to_owned(),
        8 => "a Metal GPU".to_owned(),
        10 => "a ROCm GPU".to_owned(),
        13 => "CUDA managed memory".to_owned(),
        other => format!("device type {other} of DLPack"),
    };
    let what = format!("{argument} on {name}");
    Err(unsupported_because(py, &what, "this takes host memory: copy it to the host first"))
}

/// What `__dlpack__` gives: without a copy, and the versioned kind where the producer knows it; on a GPU for the stream that is
/// going to use it.
fn export_of<'py>(given: &Bound<'py, PyAny>, stream: Option<usize>) -> PyResult<Bound<'py, PyAny>> {
    let py = given.py();
    let old = PyDict::new(py);
    if let Some(stream) = stream {
        old.set_item("stream", stream)?;
    }
    let keywords = old.copy()?;
    keywords.set_item("max_version", (VERSION.major, VERSION.minor))?;
    keywords.set_item("copy", false)?;
    match given.call_method("__dlpack__", (), Some(&keywords)) {
        // Producers from before version 1 know neither keyword.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            given.call_method("__dlpack__", (), Some(&old))
        }
        other => other,
    }
}

/// Makes the tensor of a capsule ours; `None` if it is no capsule, or one that was taken before.
fn consume(capsule: &Bound<'_, PyAny>) -> Option<Tensor> {
    let take = |name: &CStr, used: &'static CStr| {
        // SAFETY: attached; any object may be asked.
        if unsafe { ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) } == 0 {
            return None;
        }
        // SAFETY: a valid capsule of this name; renaming it says that the tensor has a new owner, and the name is 'static.
        unsafe {
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr());
            ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr());
            NonNull::new(pointer)
        }
    };
    let new = take(VERSIONED_NAME, VERSIONED_USED).map(|pointer| Managed::New(pointer.cast()));
    new.or_else(|| take(LEGACY_NAME, LEGACY_USED).map(|pointer| Managed::Old(pointer.cast()))).map(Tensor)
}

fn describe(view: &TensorView, flags: u64) -> Result<Description, String> {
    let dtype = view.dtype.dtype()?;
    let dimensions = usize::try_from(view.dimensions).map_err(|_| "has a negative number of dimensions")?;
    if dimensions > 0 && view.shape.is_null() {
        return Err("has no shape".to_owned());
    }
    let numbers = |start: *const i64| {
        // SAFETY: by the protocol `dimensions` numbers are there; checked not to be null where there are any.
        (0..dimensions).map(move |dimension| unsafe { *start.add(dimension) })
    };
    let shape = numbers(view.shape)
        .map(|extent| usize::try_from(extent).map_err(|_| "has a negative extent".to_owned()))
        .collect::<Result<Vec<_>, _>>()?;
    let item_bytes = dtype.size_bytes() as i64;
    let strides = (!view.strides.is_null() && dimensions > 0)
        .then(|| numbers(view.strides).map(|stride| stride.saturating_mul(item_bytes) as isize).collect());
    let address = (view.data as usize)
        .checked_add(usize::try_from(view.byte_offset).unwrap_or(usize::MAX))
        .ok_or("has an offset beyond its memory")?;
    // A copy may be read; what is written to it would be lost.
    let read_only = flags & (READ_ONLY | IS_COPIED) != 0;
    Ok(Description { address, dtype, shape: shape.into_iter().into(), strides, read_only, gpu: None })
}

/// What an array gives away: its memory, what keeps it, and what a consumer may do.
pub(crate) struct Export {
    /// What keeps the memory; only held.
    #[allow(dead_code, reason = "dropped with the export")]
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
    pub(crate) address: usize,
    /// Where it is, as `__dlpack_device__` says.
    pub(crate) device: (i32, i32),
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    pub(crate) dtype: Dtype,
    pub(crate) read_only: bool,
    pub(crate) is_copied: bool,
}

/// A capsule for consumers that read versions up to `newest`; `None` is from before there were versions.
pub(crate) fn give(
    py: Python<'_>,
    mut export: Export,
    newest: Option<(u32, u32)>,
) -> PyResult<Bound<'_, PyAny>> {
    let tensor = TensorView {
        data: export.address as *mut c_void,
        device: Device { kind: export.device.0, ordinal: export.device.1 },
        // At most 64.
        dimensions: export.shape.len() as i32,
        dtype: ElementType::of(export.dtype),
        shape: export.shape.as_mut_ptr(),
        strides: export.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    if newest.is_some_and(|(major, _)| major >= VERSION.major) {
        let (read_only, is_copied) = (u64::from(export.read_only), u64::from(export.is_copied));
        let flags = (read_only * READ_ONLY) | (is_copied * IS_COPIED);
        let managed = Versioned { version: VERSION, context, deleter: Some(delete), flags, tensor };
        return capsule(py, Kept { managed, _export: export }, VERSIONED_NAME, end_versioned);
    }
    if export.read_only {
        return Err(PyBufferError::new_err(
            "this array is read-only, which DLPack says from version 1 on; pass max_version=(1, 0), or copy it",
        ));
    }
    let managed = Legacy { tensor, context, deleter: Some(delete) };
    capsule(py, Kept { managed, _export: export }, LEGACY_NAME, end_legacy)
}

/// A managed tensor with what it points to, which does not move when this does.
#[repr(C)]
struct Kept<M> {
    managed: M,
    _export: Export,
}

fn capsule<'py, M>(
    py: Python<'py>,
    kept: Kept<M>,
    name: &'static CStr,
    end: ffi::PyCapsule_Destructor,
) -> PyResult<Bound<'py, PyAny>> {
    let kept = Box::into_raw(Box::new(kept));
    // SAFETY: attached; the pointer is not null and the name is 'static. The result is a new reference that nobody else
    // owns, or null with an exception set.
    let made = unsafe {
        let made = ffi::PyCapsule_New(kept.cast(), name.as_ptr(), Some(end));
        Bound::from_owned_ptr_or_err(py, made)
    };
    // SAFETY: no capsule has it, so it is still ours alone.
    made.inspect_err(|_| unsafe { drop(Box::from_raw(kept)) })
}

/// Frees a tensor of `capsule`; needs no interpreter.
unsafe extern "C" fn delete<M>(managed: *mut M) {
    // SAFETY: its owner calls this once, with the first field of a `Kept` that `capsule` made.
    unsafe { drop(Box::from_raw(managed.cast::<Kept<M>>())) };
}

/// The end of a capsule that nobody took: what was taken has another name.
unsafe extern "C" fn end_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this, attached, with a capsule of `give`.
    unsafe { end::<Versioned>(capsule, VERSIONED_NAME) };
}

unsafe extern "C" fn end_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe { end::<Legacy>(capsule, LEGACY_NAME) };
}

unsafe fn end<M>(capsule: *mut ffi::PyObject, name: &'static CStr) {
    // SAFETY: attached, with a capsule whose tensor is a `Kept<M>` of ours as long as it has this name.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
            delete::<M>(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast());
        }
    }
}
