//! The table of AMD's HIP, in the shape of CUDA's driver.

use rccl_sys::hip::{Error as Refusal, Hip};

use super::{Currency, Identity, Names, Table, Text};
use crate::error::{Error, Result};

/// Loads HIP's library, which starts nothing.
pub(super) fn load() -> Result<Table> {
    let hip = Hip::open().map_err(|refusal| {
        let what = "HIP on this machine";
        match refusal {
            Refusal::Absent { .. } => {
                let why = format!(
                    "the runtime of AMD's GPUs is not here: install ROCm, or put its folder into LD_LIBRARY_PATH; \
                     Executor::for_ram works on host memory ({refusal})"
                );
                Error::unsupported(what, why)
            }
            _ => Error::unsupported(what, format!("install a newer ROCm: {refusal}")),
        }
    })?;
    Ok(Table {
        library: hip.name,
        names: NAMES,
        init: hip.init,
        count: hip.get_device_count,
        device: hip.device_get,
        memory_info: hip.mem_get_info,
        allocate: hip.malloc,
        free: hip.free,
        stream_create: hip.stream_create_with_flags,
        stream_destroy: hip.stream_destroy,
        stream_query: hip.stream_query,
        stream_wait: hip.stream_wait_event,
        event_create: hip.event_create_with_flags,
        event_destroy: hip.event_destroy,
        event_record: hip.event_record,
        copy_in: hip.memcpy_htod_async,
        copy_out: hip.memcpy_dtoh_async,
        copy: hip.memcpy_dtod_async,
        fill: hip.memset_d8_async,
        // What it answers was numbered anew between two of its versions.
        pointer: None,
        multicast: None,
        attribute: None,
        module_load: hip.module_load_data,
        module_unload: hip.module_unload,
        module_function: hip.module_get_function,
        launch: hip.module_launch_kernel,
        // Not by its UUID, which has another form than the one that the kernel's driver tells.
        identity: Identity::Address(hip.device_get_pci_bus_id),
        currency: Currency::Number { get: hip.get_device, set: hip.set_device },
        text: Text::Returned(hip.get_error_string),
    })
}

const NAMES: Names = Names {
    runtime: "HIP",
    init: "hipInit",
    count: "hipGetDeviceCount",
    device: "hipDeviceGet",
    identity: "hipDeviceGetPCIBusId",
    memory_info: "hipMemGetInfo",
    allocate: "hipMalloc",
    stream_create: "hipStreamCreateWithFlags",
    stream_query: "hipStreamQuery",
    stream_wait: "hipStreamWaitEvent",
    event_create: "hipEventCreateWithFlags",
    event_record: "hipEventRecord",
    copy_in: "hipMemcpyHtoDAsync",
    copy_out: "hipMemcpyDtoHAsync",
    copy: "hipMemcpyDtoDAsync",
    fill: "hipMemsetD8Async",
    module_load: "hipModuleLoadData",
    module_function: "hipModuleGetFunction",
    launch: "hipModuleLaunchKernel",
    enter: "hipSetDevice",
};
