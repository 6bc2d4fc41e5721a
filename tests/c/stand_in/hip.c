/* HIP, as far as the project calls it. */
#include "stand_in.h"

#include <stdio.h>

static int is_started;
/* The device of this thread, by its number. */
static _Thread_local int chosen;

#define ENTER(name)                            \
    do {                                       \
        int code_ = enter(name);               \
        if (code_) return code_;               \
        if (!is_started) return NOT_INITIALIZED; \
    } while (0)

static device_t *current(char const *name) {
    device_t *own = visible(AMD, chosen);
    if (!own) violation("%s: no device is current", name);
    return own;
}

device_t *hip_device(void) { return current("RCCL"); }
int hip_is_started(void) { return is_started; }

int hipInit(unsigned flags) {
    int code = enter("hipInit");
    if (code) return code;
    if (flags) return INVALID_VALUE;
    if (visible_count(AMD) == 0) return NO_DEVICE;
    is_started = 1;
    return SUCCESS;
}

int hipDriverGetVersion(int *version) {
    int code = enter("hipDriverGetVersion");
    *version = 60443483;
    return code;
}

char const *hipGetErrorString(int code) {
    switch (code) {
    case OUT_OF_MEMORY: return "out of memory";
    case NO_DEVICE: return "no ROCm-capable device is detected";
    case ILLEGAL_ADDRESS: return "an illegal memory access was encountered";
    default: return "unknown error";
    }
}

int hipGetDeviceCount(int *count) {
    ENTER("hipGetDeviceCount");
    *count = visible_count(AMD);
    return SUCCESS;
}

int hipDeviceGet(int *device, int ordinal) {
    ENTER("hipDeviceGet");
    if (!visible(AMD, ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int hipDeviceGetPCIBusId(char *text, int length, int device) {
    ENTER("hipDeviceGetPCIBusId");
    if (!visible(AMD, device)) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", visible(AMD, device)->pci);
    return SUCCESS;
}

int hipGetDevice(int *device) {
    ENTER("hipGetDevice");
    *device = chosen;
    return SUCCESS;
}

int hipSetDevice(int device) {
    ENTER("hipSetDevice");
    if (!visible(AMD, device)) return INVALID_DEVICE;
    if (visible(AMD, device)->code) return visible(AMD, device)->code;
    chosen = device;
    return SUCCESS;
}

int hipMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    ENTER("hipMemGetInfo");
    return memory_free_bytes(current("hipMemGetInfo"), free_bytes, total_bytes);
}

int hipMalloc(uint64_t *address, size_t bytes) {
    ENTER("hipMalloc");
    return memory_take(current("hipMalloc"), 0, bytes, address);
}

int hipFree(uint64_t address) {
    ENTER("hipFree");
    return memory_give(current("hipFree"), 0, address);
}

int hipStreamCreateWithFlags(stream_t **stream, unsigned flags) {
    ENTER("hipStreamCreateWithFlags");
    if (flags != 1) violation("hipStreamCreateWithFlags: a stream that waits for the default one");
    return stream_open(current("hipStreamCreateWithFlags"), stream);
}

int hipStreamDestroy(stream_t *stream) {
    ENTER("hipStreamDestroy");
    return stream_close(stream);
}

int hipStreamQuery(stream_t *stream) {
    ENTER("hipStreamQuery");
    return stream_query(current("hipStreamQuery"), stream);
}

int hipStreamWaitEvent(stream_t *stream, event_t *event, unsigned flags) {
    ENTER("hipStreamWaitEvent");
    if (flags) return INVALID_VALUE;
    return stream_wait(current("hipStreamWaitEvent"), stream, event);
}

int hipEventCreateWithFlags(event_t **event, unsigned flags) {
    ENTER("hipEventCreateWithFlags");
    if (flags != 2) violation("hipEventCreateWithFlags: an event that measures time");
    return event_open(current("hipEventCreateWithFlags"), event);
}

int hipEventDestroy(event_t *event) {
    ENTER("hipEventDestroy");
    return event_close(event);
}

int hipEventRecord(event_t *event, stream_t *stream) {
    ENTER("hipEventRecord");
    return event_record(current("hipEventRecord"), event, stream);
}

int hipEventQuery(event_t *event) {
    ENTER("hipEventQuery");
    return event_query(event);
}

int hipMemcpyHtoDAsync(uint64_t target, void *source, size_t bytes, stream_t *stream) {
    ENTER("hipMemcpyHtoDAsync");
    return stream_copy(current("hipMemcpyHtoDAsync"), stream, target, 1, (uint64_t)(uintptr_t)source, 0, bytes);
}

int hipMemcpyDtoHAsync(void *target, uint64_t source, size_t bytes, stream_t *stream) {
    ENTER("hipMemcpyDtoHAsync");
    return stream_copy(current("hipMemcpyDtoHAsync"), stream, (uint64_t)(uintptr_t)target, 0, source, 1, bytes);
}

int hipMemcpyDtoDAsync(uint64_t target, uint64_t source, size_t bytes, stream_t *stream) {
    ENTER("hipMemcpyDtoDAsync");
    return stream_copy(current("hipMemcpyDtoDAsync"), stream, target, 1, source, 1, bytes);
}

int hipMemsetD8Async(uint64_t target, unsigned char value, size_t bytes, stream_t *stream) {
    ENTER("hipMemsetD8Async");
    return stream_fill(current("hipMemsetD8Async"), stream, target, value, bytes);
}

int hipModuleLoadData(struct module **module, void const *image) {
    ENTER("hipModuleLoadData");
    return module_load(current("hipModuleLoadData"), module, image);
}

int hipModuleUnload(struct module *module) {
    ENTER("hipModuleUnload");
    current("hipModuleUnload");
    return module_unload(module);
}

int hipModuleGetFunction(struct entry **function, struct module *module, char const *name) {
    ENTER("hipModuleGetFunction");
    return module_function(current("hipModuleGetFunction"), function, module, name);
}

int hipModuleLaunchKernel(struct entry *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, stream_t *stream, void **arguments, void **extra) {
    ENTER("hipModuleLaunchKernel");
    unsigned const grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    return module_launch(current("hipModuleLaunchKernel"), function, grid, block, shared, stream, arguments, extra);
}
