/* CUDA's driver, as far as the project calls it. */
#include "stand_in.h"

#include <stdio.h>
#include <string.h>

enum { DEPTH = 64, MULTIPROCESSORS = 16, MAJOR = 75, MINOR = 76, MULTICAST = 132 };

typedef struct {
    unsigned char bytes[16];
} uuid_t;

static int is_started;
/* The contexts of this thread, the current one last. */
static _Thread_local device_t *stack[DEPTH];
static _Thread_local int depth;

#define ENTER(name)                            \
    do {                                       \
        int code_ = enter(name);               \
        if (code_) return code_;               \
        if (!is_started) return NOT_INITIALIZED; \
    } while (0)

/* What needs a context must have one: a call without it is a fault of the caller. */
static device_t *current(char const *name) {
    device_t *own = depth ? stack[depth - 1] : NULL;
    if (!own) violation("%s: no context is current", name);
    if (!own->retained) violation("%s: the current context was released", name);
    return own;
}

device_t *cuda_device(void) { return current("NCCL"); }
int cuda_is_started(void) { return is_started; }

/* Only what the caller could have is a device: numbers are those of cuDeviceGet. */
static device_t *device_of(int device) { return visible(NVIDIA, device); }

int cuInit(unsigned flags) {
    int code = enter("cuInit");
    if (code) return code;
    if (flags) return INVALID_VALUE;
    if (visible_count(NVIDIA) == 0) return NO_DEVICE;
    is_started = 1;
    return SUCCESS;
}

/* This alone needs no start. */
int cuDriverGetVersion(int *version) {
    int code = enter("cuDriverGetVersion");
    *version = cuda_version;
    return code;
}

int cuGetErrorString(int code, char const **text) {
    switch (code) {
    case OUT_OF_MEMORY: *text = "out of memory"; break;
    case NO_DEVICE: *text = "no CUDA-capable device is detected"; break;
    case NOT_READY: *text = "device not ready"; break;
    case ILLEGAL_ADDRESS: *text = "an illegal memory access was encountered"; break;
    case 214: *text = "uncorrectable ECC error encountered"; break;
    case 803: *text = "system has unsupported display driver / cuda driver combination"; break;
    case 999: *text = "unknown error"; break;
    default: *text = NULL; return INVALID_VALUE;
    }
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    ENTER("cuDeviceGetCount");
    *count = visible_count(NVIDIA);
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    ENTER("cuDeviceGet");
    if (!device_of(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return SUCCESS;
}

int cuDeviceGetUuid_v2(uuid_t *uuid, int device) {
    ENTER("cuDeviceGetUuid_v2");
    if (!device_of(device)) return INVALID_DEVICE;
    memcpy(uuid->bytes, device_of(device)->identity, sizeof uuid->bytes);
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
    ENTER("cuDeviceGetPCIBusId");
    if (!device_of(device)) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", device_of(device)->pci);
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER("cuDeviceGetAttribute");
    device_t *own = device_of(device);
    if (!own) return INVALID_DEVICE;
    switch (attribute) {
    case MULTIPROCESSORS: *value = (int)own->cores / 128; break;
    case MAJOR: *value = own->major; break;
    case MINOR: *value = own->minor; break;
    case MULTICAST: *value = own->multicast; break;
    default: *value = 0; break;
    }
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    device_t *own = device_of(device);
    if (!own) return INVALID_DEVICE;
    if (own->code) return own->code;
    own->retained += 1;
    *context = own;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER("cuDevicePrimaryCtxRelease_v2");
    device_t *own = device_of(device);
    if (!own) return INVALID_DEVICE;
    if (own->retained == 0) violation("release: a context that nobody retains");
    own->retained -= 1;
    if (own->retained == 0 && (own->streams || own->events || own->allocations || own->modules))
        violation("release: the last hold of a context with %u streams, %u events, %u allocations, %u modules",
            own->streams, own->events, own->allocations, own->modules);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context) {
    ENTER("cuCtxPushCurrent_v2");
    device_t *own = context;
    if (!own->retained) violation("push: a context that was released");
    if (depth == DEPTH) violation("push: too many contexts; each must be popped");
    stack[depth++] = own;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context) {
    ENTER("cuCtxPopCurrent_v2");
    if (!depth) return INVALID_CONTEXT;
    *context = stack[--depth];
    return SUCCESS;
}

int cuCtxGetCurrent(void **context) {
    ENTER("cuCtxGetCurrent");
    *context = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    ENTER("cuMemGetInfo_v2");
    return memory_free_bytes(current("cuMemGetInfo_v2"), free_bytes, total_bytes);
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    ENTER("cuMemAlloc_v2");
    return memory_take(current("cuMemAlloc_v2"), 0, bytes, address);
}

int cuMemFree_v2(uint64_t address) {
    ENTER("cuMemFree_v2");
    return memory_give(current("cuMemFree_v2"), 0, address);
}

/* The kind of memory is 2 for a device's; of managed memory there is none here. */
int cuPointerGetAttribute(void *data, int attribute, uint64_t address) {
    ENTER("cuPointerGetAttribute");
    device_t *owner = memory_owner(address);
    if (!owner || owner->vendor != NVIDIA) return INVALID_VALUE;
    int number = 0;
    while (visible(NVIDIA, number) && visible(NVIDIA, number) != owner) ++number;
    switch (attribute) {
    case 2: *(unsigned *)data = 2; return SUCCESS;
    case 8: *(unsigned *)data = 0; return SUCCESS;
    case 9: *(int *)data = number; return SUCCESS;
    default: violation("cuPointerGetAttribute: attribute %d is not known here", attribute);
    }
}

int cuStreamCreate(stream_t **stream, unsigned flags) {
    ENTER("cuStreamCreate");
    if (flags != 1) violation("cuStreamCreate: a stream that waits for the default one");
    return stream_open(current("cuStreamCreate"), stream);
}

int cuStreamDestroy_v2(stream_t *stream) {
    ENTER("cuStreamDestroy_v2");
    current("cuStreamDestroy_v2");
    return stream_close(stream);
}

int cuStreamQuery(stream_t *stream) {
    ENTER("cuStreamQuery");
    return stream_query(current("cuStreamQuery"), stream);
}

int cuStreamWaitEvent(stream_t *stream, event_t *event, unsigned flags) {
    ENTER("cuStreamWaitEvent");
    if (flags) return INVALID_VALUE;
    return stream_wait(current("cuStreamWaitEvent"), stream, event);
}

int cuEventCreate(event_t **event, unsigned flags) {
    ENTER("cuEventCreate");
    if (flags != 2) violation("cuEventCreate: an event that measures time");
    return event_open(current("cuEventCreate"), event);
}

int cuEventDestroy_v2(event_t *event) {
    ENTER("cuEventDestroy_v2");
    current("cuEventDestroy_v2");
    return event_close(event);
}

int cuEventRecord(event_t *event, stream_t *stream) {
    ENTER("cuEventRecord");
    return event_record(current("cuEventRecord"), event, stream);
}

int cuEventQuery(event_t *event) {
    ENTER("cuEventQuery");
    return event_query(event);
}

int cuMemcpyHtoDAsync_v2(uint64_t target, void const *source, size_t bytes, stream_t *stream) {
    ENTER("cuMemcpyHtoDAsync_v2");
    device_t *own = current("cuMemcpyHtoDAsync_v2");
    return stream_copy(own, stream, target, 1, (uint64_t)(uintptr_t)source, 0, bytes);
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, stream_t *stream) {
    ENTER("cuMemcpyDtoHAsync_v2");
    device_t *own = current("cuMemcpyDtoHAsync_v2");
    return stream_copy(own, stream, (uint64_t)(uintptr_t)target, 0, source, 1, bytes);
}

int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, stream_t *stream) {
    ENTER("cuMemcpyDtoDAsync_v2");
    return stream_copy(current("cuMemcpyDtoDAsync_v2"), stream, target, 1, source, 1, bytes);
}

int cuMemsetD8Async(uint64_t target, unsigned char value, size_t bytes, stream_t *stream) {
    ENTER("cuMemsetD8Async");
    return stream_fill(current("cuMemsetD8Async"), stream, target, value, bytes);
}

int cuModuleLoadData(struct module **module, void const *image) {
    ENTER("cuModuleLoadData");
    return module_load(current("cuModuleLoadData"), module, image);
}

int cuModuleUnload(struct module *module) {
    ENTER("cuModuleUnload");
    current("cuModuleUnload");
    return module_unload(module);
}

int cuModuleGetFunction(struct entry **function, struct module *module, char const *name) {
    ENTER("cuModuleGetFunction");
    return module_function(current("cuModuleGetFunction"), function, module, name);
}

int cuLaunchKernel(struct entry *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, stream_t *stream, void **arguments, void **extra) {
    ENTER("cuLaunchKernel");
    unsigned const grid[] = {grid_x, grid_y, grid_z}, block[] = {block_x, block_y, block_z};
    return module_launch(current("cuLaunchKernel"), function, grid, block, shared, stream, arguments, extra);
}
