/* NVIDIA's management library: it answers from the file, and starts nothing.
 *
 * OLD leaves out what drivers of some years ago lack. */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_FOUND = 6, MISMATCH = 25 };

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
    char bus_id[32];
} pci_info_t;

typedef struct {
    unsigned long long total, free, used;
} memory_t;

typedef struct {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
} fabric_t;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned mask;
} fabric_v2_t;

typedef struct {
    unsigned multiprocessors, others[7];
    unsigned long long memory_megabytes;
} attributes_t;

/* How often it was started and not ended. */
static int holds;

/* The instance that a handle is, or NULL for a whole device. */
static instance_t *instance_of(void *handle) {
    for (int d = 0; d < DEVICES; ++d) {
        device_t *own = &devices[NVIDIA][d];
        for (unsigned i = 0; i < own->instance_count; ++i)
            if (handle == &own->instances[i]) return &own->instances[i];
    }
    return NULL;
}

static int code_of(void *handle) {
    /* A handle that is used after the library was shut down is a fault of the caller. */
    if (!holds) violation("a handle of NVML that was shut down");
    return instance_of(handle) ? SUCCESS : ((device_t *)handle)->code;
}

static int give(char const *text, char *buffer, unsigned length) {
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

char const *nvmlErrorString(int code) {
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlInit_v2(void) {
    int code = enter("nvmlInit_v2");
    if (!code) code = init_code;
    holds += code == SUCCESS;
    return code;
}

int nvmlShutdown(void) {
    int code = enter("nvmlShutdown");
    if (!holds) violation("nvmlShutdown: nobody has it open");
    --holds;
    return code;
}

int nvmlSystemGetDriverVersion(char *buffer, unsigned length) { return give("570.124.06", buffer, length); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = cuda_version;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *found) {
    *found = counts[NVIDIA];
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= DEVICES) return NVML_INVALID_ARGUMENT;
    *handle = &devices[NVIDIA][index];
    return devices[NVIDIA][index].handle_code;
}

int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length) {
    instance_t *own = instance_of(handle);
    int code = code_of(handle);
    return code ? code : give(own ? own->uuid : ((device_t *)handle)->uuid, buffer, length);
}

int nvmlDeviceGetName(void *handle, char *buffer, unsigned length) {
    instance_t *own = instance_of(handle);
    int code = code_of(handle);
    return code ? code : give(own ? own->name : ((device_t *)handle)->name, buffer, length);
}

static int place(unsigned bus, pci_info_t *found) {
    memset(found, 0, sizeof *found);
    found->bus = bus;
    snprintf(found->bus_id, sizeof found->bus_id, "00000000:%02X:00.0", bus & 0xffu);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_info_t *found) {
    int code = code_of(handle);
    return code ? code : place(((device_t *)handle)->bus, found);
}

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *found) {
    instance_t *own = instance_of(handle);
    found->total = own ? own->memory : ((device_t *)handle)->memory;
    found->free = found->used = 1;
    return code_of(handle);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    *major = ((device_t *)handle)->major;
    *minor = ((device_t *)handle)->minor;
    return code_of(handle);
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *state) {
    device_t *own = handle;
    if (link >= 18) return NVML_INVALID_ARGUMENT;
    *state = link < own->switch_links + own->peer_links;
    return *state ? code_of(handle) : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, pci_info_t *found) {
    device_t *own = handle;
    int code = code_of(handle);
    return code ? code : place(link < own->switch_links ? 0 : own->peer_bus, found);
}

#ifndef OLD
int nvmlDeviceGetNumGpuCores(void *handle, unsigned *cores) {
    *cores = ((device_t *)handle)->cores;
    return code_of(handle);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *type) {
    *type = link < ((device_t *)handle)->switch_links ? 2 : 0;
    return code_of(handle);
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v2_t *found) {
    device_t *own = handle;
    if (found->version != (sizeof *found | 2u << 24)) return MISMATCH;
    memset(found->cluster, own->clique ? 0xab : 0, sizeof found->cluster);
    found->status = own->status, found->clique = own->clique, found->state = (unsigned char)own->state;
    found->mask = own->mask;
    return code_of(handle);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    if (((device_t *)handle)->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)((device_t *)handle)->mig;
    return code_of(handle);
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *found) {
    *found = 7;
    return code_of(handle);
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **found) {
    device_t *own = handle;
    if (index >= own->instance_count) return NOT_FOUND;
    *found = &own->instances[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *found) {
    *found = instance_of(handle)->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *found) {
    *found = instance_of(handle)->compute_instance;
    return SUCCESS;
}

int nvmlDeviceGetAttributes_v2(void *handle, attributes_t *found) {
    memset(found, 0xff, sizeof *found);
    found->multiprocessors = instance_of(handle)->multiprocessors;
    return SUCCESS;
}
#else
int nvmlDeviceGetGpuFabricInfo(void *handle, fabric_t *found) {
    device_t *own = handle;
    memset(found->cluster, own->clique ? 0xab : 0, sizeof found->cluster);
    found->status = own->status, found->clique = own->clique, found->state = (unsigned char)own->state;
    return code_of(handle);
}
#endif
