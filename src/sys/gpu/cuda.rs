//! The table of NVIDIA's driver; types, and the signatures that it is checked against, are cudarc's.
//!
//! Functions are looked up here and not by cudarc, which ends the process by a panic where a library or a function is missing,
//! and prefers another name of the library than the driver's own.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use cudarc::driver::sys;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::multicast::{MemoryProperties, MulticastTable, ObjectProperties};
use super::{Currency, Handle, Identity, Names, Table, Text, code};
use crate::error::{Error, Result};

/// The name that the dynamic linker is asked for.
const SONAME: &str = "libcuda.so.1";

/// The oldest CUDA whose driver is taken, as 1000 * major + 10 * minor.
const OLDEST: c_int = 11_040;

/// What the table needs is what cudarc declares: this does not compile where they differ in a number or an order of arguments.
const _: () = {
    use sys::{
        CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAllocationHandleType,
        CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocationType,
        CUmemorytype, CUmodule, CUmulticastGranularity_flags, CUmulticastObjectProp, CUpointer_attribute,
        CUresult, CUstream, CUuuid,
    };
    type Shared = CUmemGenericAllocationHandle;
    let _: unsafe fn(*mut usize, *const CUmulticastObjectProp, CUmulticastGranularity_flags) -> CUresult =
        sys::cuMulticastGetGranularity;
    let _: unsafe fn(*mut Shared, *const CUmulticastObjectProp) -> CUresult = sys::cuMulticastCreate;
    let _: unsafe fn(Shared, CUdevice) -> CUresult = sys::cuMulticastAddDevice;
    let _: unsafe fn(Shared, usize, Shared, usize, usize, c_ulonglong) -> CUresult = sys::cuMulticastBindMem;
    let _: unsafe fn(Shared, CUdevice, usize, usize) -> CUresult = sys::cuMulticastUnbind;
    let _: unsafe fn(*mut Shared, usize, *const CUmemAllocationProp, c_ulonglong) -> CUresult =
        sys::cuMemCreate;
    let _: unsafe fn(Shared) -> CUresult = sys::cuMemRelease;
    let _: unsafe fn(*mut c_void, Shared, CUmemAllocationHandleType, c_ulonglong) -> CUresult =
        sys::cuMemExportToShareableHandle;
    let _: unsafe fn(*mut Shared, *mut c_void, CUmemAllocationHandleType) -> CUresult =
        sys::cuMemImportFromShareableHandle;
    assert!(size_of::<CUmulticastObjectProp>() == size_of::<ObjectProperties>());
    assert!(size_of::<CUmemAllocationProp>() == size_of::<MemoryProperties>() && size_of::<Shared>() == 8);
    assert!(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0 == 1);
    assert!(CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0 == 8);
    assert!(CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_int == 1);
    assert!(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_int == 1);
    assert!(CUmulticastGranularity_flags::CU_MULTICAST_GRANULARITY_MINIMUM as c_int == 0);
    assert!(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED as c_int == code::MULTICAST);
    let _: unsafe fn(c_uint) -> CUresult = sys::cuInit;
    let _: unsafe fn(*mut c_int) -> CUresult = sys::cuDriverGetVersion;
    let _: unsafe fn(*mut c_int) -> CUresult = sys::cuDeviceGetCount;
    let _: unsafe fn(*mut CUdevice, c_int) -> CUresult = sys::cuDeviceGet;
    let _: unsafe fn(*mut CUuuid, CUdevice) -> CUresult = sys::cuDeviceGetUuid_v2;
    let _: unsafe fn(*mut usize, *mut usize) -> CUresult = sys::cuMemGetInfo_v2;
    let _: unsafe fn(*mut CUdeviceptr, usize) -> CUresult = sys::cuMemAlloc_v2;
    let _: unsafe fn(CUdeviceptr) -> CUresult = sys::cuMemFree_v2;
    let _: unsafe fn(*mut CUstream, c_uint) -> CUresult = sys::cuStreamCreate;
    let _: unsafe fn(CUstream) -> CUresult = sys::cuStreamDestroy_v2;
    let _: unsafe fn(CUstream) -> CUresult = sys::cuStreamQuery;
    let _: unsafe fn(CUstream, CUevent, c_uint) -> CUresult = sys::cuStreamWaitEvent;
    let _: unsafe fn(*mut CUevent, c_uint) -> CUresult = sys::cuEventCreate;
    let _: unsafe fn(CUevent) -> CUresult = sys::cuEventDestroy_v2;
    let _: unsafe fn(CUevent, CUstream) -> CUresult = sys::cuEventRecord;
    let _: unsafe fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult = sys::cuMemcpyHtoDAsync_v2;
    let _: unsafe fn(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult = sys::cuMemcpyDtoHAsync_v2;
    let _: unsafe fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult = sys::cuMemcpyDtoDAsync_v2;
    let _: unsafe fn(CUdeviceptr, u8, usize, CUstream) -> CUresult = sys::cuMemsetD8Async;
    let _: unsafe fn(*mut c_void, CUpointer_attribute, CUdeviceptr) -> CUresult = sys::cuPointerGetAttribute;
    let _: unsafe fn(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult = sys::cuDeviceGetAttribute;
    let _: unsafe fn(*mut CUmodule, *const c_void) -> CUresult = sys::cuModuleLoadData;
    let _: unsafe fn(CUmodule) -> CUresult = sys::cuModuleUnload;
    let _: unsafe fn(*mut CUfunction, CUmodule, *const c_char) -> CUresult = sys::cuModuleGetFunction;
    // Grid, block and shared memory are all of one type: their order is the manual's.
    #[allow(clippy::type_complexity, reason = "the driver's function has eleven arguments")]
    let _: unsafe fn(
        CUfunction,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        CUstream,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> CUresult = sys::cuLaunchKernel;
    let _: unsafe fn(*mut CUcontext, CUdevice) -> CUresult = sys::cuDevicePrimaryCtxRetain;
    let _: unsafe fn(CUdevice) -> CUresult = sys::cuDevicePrimaryCtxRelease_v2;
    let _: unsafe fn(CUcontext) -> CUresult = sys::cuCtxPushCurrent_v2;
    let _: unsafe fn(*mut CUcontext) -> CUresult = sys::cuCtxPopCurrent_v2;
    let _: unsafe fn(CUresult, *mut *const c_char) -> CUresult = sys::cuGetErrorString;
    // Results are read as numbers: a driver may know one that this build does not.
    assert!(size_of::<CUresult>() == size_of::<c_int>() && size_of::<CUuuid>() == 16);
    assert!(size_of::<CUdeviceptr>() == size_of::<u64>() && size_of::<CUdevice>() == size_of::<c_int>());
    assert!(size_of::<CUstream>() == size_of::<Handle>());
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_int == code::MEMORY_KIND);
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_int == code::IS_MANAGED);
    assert!(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_int == code::MEMORY_DEVICE);
    assert!(
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int == code::CAPABILITY[0]
            && CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_int
                == code::CAPABILITY[1]
    );
    assert!(sys::CUresult::CUDA_ERROR_INVALID_PTX as c_int == code::INVALID_PTX);
    assert!(sys::CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION as c_int == code::UNSUPPORTED_PTX);
    assert!(sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU as c_int == code::NO_BINARY);
    assert!(CUmemorytype::CU_MEMORYTYPE_DEVICE as u32 == code::GPU_MEMORY);
    assert!(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as c_int == code::OUT_OF_MEMORY);
    assert!(sys::CUresult::CUDA_ERROR_NOT_READY as c_int == code::NOT_READY);
    assert!(sys::CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE as c_int == code::DEVICE_UNAVAILABLE);
    assert!(sys::CUresult::CUDA_ERROR_SYSTEM_NOT_READY as c_int == code::SYSTEM_NOT_READY);
    assert!(sys::CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as c_int == code::SYSTEM_DRIVER_MISMATCH);
};

/// Loads the driver's library, which starts nothing.
pub(super) fn load() -> Result<Table> {
    // SAFETY: loading runs the library's initialisation functions. The name is NVIDIA's own driver's.
    let library = unsafe { Library::open(Some(SONAME), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let why = format!(
            "the driver of NVIDIA's GPUs is not here: install it, or give the container its libraries; Executor::for_ram \
             works on host memory ({cause})"
        );
        Error::unsupported("CUDA on this machine", why)
    })?;
    // Never unloaded: drivers have threads, and every table below points into it.
    let library: &'static Library = Box::leak(Box::new(library));
    let version = version(library)?;
    if version < OLDEST {
        return Err(too_old(version, "every function that is needed came with it"));
    }
    let missing = |name: &str| too_old(version, &format!("the driver lacks {name}"));
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: cudarc declares this name with these arguments, as the check above holds; the result is an enumeration
            // of C, which is an int. The library is never unloaded.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| missing($name))?
        };
    }
    Ok(Table {
        library: SONAME.to_owned(),
        names: NAMES,
        init: function!("cuInit"),
        count: function!("cuDeviceGetCount"),
        device: function!("cuDeviceGet"),
        memory_info: function!("cuMemGetInfo_v2"),
        allocate: function!("cuMemAlloc_v2"),
        free: function!("cuMemFree_v2"),
        stream_create: function!("cuStreamCreate"),
        stream_destroy: function!("cuStreamDestroy_v2"),
        stream_query: function!("cuStreamQuery"),
        stream_wait: function!("cuStreamWaitEvent"),
        event_create: function!("cuEventCreate"),
        event_destroy: function!("cuEventDestroy_v2"),
        event_record: function!("cuEventRecord"),
        copy_in: function!("cuMemcpyHtoDAsync_v2"),
        copy_out: function!("cuMemcpyDtoHAsync_v2"),
        copy: function!("cuMemcpyDtoDAsync_v2"),
        fill: function!("cuMemsetD8Async"),
        pointer: Some(function!("cuPointerGetAttribute")),
        attribute: Some(function!("cuDeviceGetAttribute")),
        multicast: multicast(library),
        module_load: function!("cuModuleLoadData"),
        module_unload: function!("cuModuleUnload"),
        module_function: function!("cuModuleGetFunction"),
        launch: function!("cuLaunchKernel"),
        identity: Identity::Uuid(function!("cuDeviceGetUuid_v2")),
        currency: Currency::Context {
            retain: function!("cuDevicePrimaryCtxRetain"),
            release: function!("cuDevicePrimaryCtxRelease_v2"),
            push: function!("cuCtxPushCurrent_v2"),
            pop: function!("cuCtxPopCurrent_v2"),
        },
        text: Text::Written(function!("cuGetErrorString")),
    })
}

/// The functions of multicast objects; `None` for a driver that lacks one of them.
fn multicast(library: &'static Library) -> Option<MulticastTable> {
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: as for the table.
            *unsafe { library.get(concat!($name, "\0").as_bytes()) }.ok()?
        };
    }
    Some(MulticastTable {
        granularity: function!("cuMulticastGetGranularity"),
        create: function!("cuMulticastCreate"),
        add: function!("cuMulticastAddDevice"),
        bind: function!("cuMulticastBindMem"),
        unbind: function!("cuMulticastUnbind"),
        take: function!("cuMemCreate"),
        release: function!("cuMemRelease"),
        export: function!("cuMemExportToShareableHandle"),
        import: function!("cuMemImportFromShareableHandle"),
    })
}

/// The newest CUDA that the driver can run; asking starts nothing.
fn version(library: &'static Library) -> Result<c_int> {
    let missing = |_| Error::unsupported("CUDA on this machine", format!("{SONAME} is not NVIDIA's driver"));
    // SAFETY: every driver has this name with this signature.
    let function =
        unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0") }
            .map_err(missing)?;
    let mut version = 0;
    // SAFETY: the function writes one int, and `version` lives until it returns.
    let result = unsafe { function(&raw mut version) };
    if result == code::SUCCESS {
        return Ok(version);
    }
    let why = format!("its driver does not tell its version (cuDriverGetVersion returned {result})");
    Err(Error::unsupported("CUDA on this machine", why))
}

fn too_old(version: c_int, why: &str) -> Error {
    let written = |version: c_int| format!("{}.{}", version / 1000, version % 1000 / 10);
    let why = format!(
        "the driver is of CUDA {} and must be of {} or newer, since {why}: install a newer driver",
        written(version),
        written(OLDEST)
    );
    Error::unsupported("CUDA on this machine", why)
}

const NAMES: Names = Names {
    runtime: "CUDA",
    init: "cuInit",
    count: "cuDeviceGetCount",
    device: "cuDeviceGet",
    identity: "cuDeviceGetUuid_v2",
    memory_info: "cuMemGetInfo_v2",
    allocate: "cuMemAlloc_v2",
    stream_create: "cuStreamCreate",
    stream_query: "cuStreamQuery",
    stream_wait: "cuStreamWaitEvent",
    event_create: "cuEventCreate",
    event_record: "cuEventRecord",
    copy_in: "cuMemcpyHtoDAsync_v2",
    copy_out: "cuMemcpyDtoHAsync_v2",
    copy: "cuMemcpyDtoDAsync_v2",
    fill: "cuMemsetD8Async",
    module_load: "cuModuleLoadData",
    module_function: "cuModuleGetFunction",
    launch: "cuLaunchKernel",
    enter: "cuCtxPushCurrent_v2",
};
