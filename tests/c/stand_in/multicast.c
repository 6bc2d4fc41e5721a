/* Multicast objects of CUDA's driver: which GPUs of which processes are one's own, and what is bound; nothing is moved. */
#include "stand_in.h"

/* Drivers before CUDA 12.1 have none of it. */
#ifndef NO_MULTICAST
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { GRANULE = 1 << 14, HANDLES = 64, MEMBERS = 72, NOT_SUPPORTED = 801, FILE_KIND = 1, FABRIC_KIND = 8, MAGIC = 0x3c57 };

typedef struct { unsigned device_count; size_t size; unsigned long long handle_types, flags; } object_prop_t;
typedef struct {
    int type, handle_types, location_type, location;
    void *metadata;
    unsigned char flags[8];
} memory_prop_t;

/* What all processes see of an object. */
typedef struct {
    int magic;
    unsigned device_count;
    size_t size;
    unsigned long long handle_types;
    atomic_uint added;
    char uuids[MEMBERS][96];
} shared_t;

typedef struct { int is_used, fd, device; shared_t *shared; size_t bytes; unsigned long long bound_to; } handle_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* From 1 on. */
static handle_t handles[HANDLES];

#define ENTER(name)                                          \
    do {                                                     \
        int code_ = enter(name);                             \
        if (code_) return code_;                             \
        if (!cuda_is_started()) return NOT_INITIALIZED;      \
    } while (0)

static handle_t *of(unsigned long long handle, int is_object, char const *what) {
    if (handle == 0 || handle >= HANDLES || !handles[handle].is_used) violation("%s: no handle, or one that was released", what);
    if ((handles[handle].shared != NULL) != is_object) violation("%s: a handle of another kind", what);
    return &handles[handle];
}

static unsigned long long keep(handle_t made) {
    pthread_mutex_lock(&lock);
    unsigned long long free = 1;
    while (free < HANDLES && handles[free].is_used) ++free;
    if (free == HANDLES) violation("too many handles");
    made.is_used = 1;
    handles[free] = made;
    pthread_mutex_unlock(&lock);
    return free;
}

static int open_shared(int fd, unsigned long long *handle) {
    shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED) return INVALID_VALUE;
    if (shared->magic != MAGIC) violation("import: what is no multicast object");
    *handle = keep((handle_t){.fd = fd, .shared = shared, .device = -1, .bytes = shared->size});
    return SUCCESS;
}

int cuMulticastGetGranularity(size_t *granularity, object_prop_t const *prop, int option) {
    ENTER("cuMulticastGetGranularity");
    if (prop->device_count == 0 || option > 1) return INVALID_VALUE;
    *granularity = GRANULE;
    return SUCCESS;
}

int cuMulticastCreate(unsigned long long *handle, object_prop_t const *prop) {
    ENTER("cuMulticastCreate");
    if (prop->device_count < 2 || prop->device_count > MEMBERS || prop->size == 0 || prop->size % GRANULE || prop->flags)
        return INVALID_VALUE;
    if (!cuda_device()->multicast) return NOT_SUPPORTED;
    int fd = memfd_create("stand-in-multicast", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(shared_t))) violation("the host has no memory for an object");
    shared_t made = {.magic = MAGIC, .device_count = prop->device_count, .size = prop->size, .handle_types = prop->handle_types};
    if (pwrite(fd, &made, offsetof(shared_t, uuids), 0) < 0) violation("the host has no memory for an object");
    return open_shared(fd, handle);
}

int cuMulticastAddDevice(unsigned long long handle, int device) {
    ENTER("cuMulticastAddDevice");
    handle_t *own = of(handle, 1, "cuMulticastAddDevice");
    device_t *added = visible(NVIDIA, device);
    if (!added) return INVALID_DEVICE;
    if (!added->multicast) return NOT_SUPPORTED;
    unsigned place = atomic_fetch_add(&own->shared->added, 1);
    if (place >= own->shared->device_count) violation("cuMulticastAddDevice: more devices than the object is for");
    for (unsigned before = 0; before < place; ++before)
        if (!strcmp(own->shared->uuids[before], added->uuid)) violation("cuMulticastAddDevice: a device that was added before");
    snprintf(own->shared->uuids[place], sizeof own->shared->uuids[place], "%s", added->uuid);
    return SUCCESS;
}

/* It blocks until all devices have been added, as the driver does. */
int cuMulticastBindMem(unsigned long long handle, size_t offset, unsigned long long memory, size_t memory_offset, size_t bytes,
    unsigned long long flags) {
    ENTER("cuMulticastBindMem");
    handle_t *own = of(handle, 1, "cuMulticastBindMem"), *bound = of(memory, 0, "cuMulticastBindMem");
    if (offset || memory_offset || flags || bytes % GRANULE || bytes > bound->bytes || bytes > own->shared->size)
        return INVALID_VALUE;
    if (bound->bound_to) violation("cuMulticastBindMem: memory that is bound");
    while (atomic_load(&own->shared->added) < own->shared->device_count) {
        struct timespec time = {0, 1000000};
        nanosleep(&time, &time);
    }
    int is_added = 0;
    for (unsigned place = 0; place < own->shared->device_count; ++place)
        is_added |= !strcmp(own->shared->uuids[place], visible(NVIDIA, bound->device)->uuid);
    if (!is_added) violation("cuMulticastBindMem: memory of a device that was not added");
    bound->bound_to = handle;
    return SUCCESS;
}

int cuMulticastUnbind(unsigned long long handle, int device, size_t offset, size_t bytes) {
    ENTER("cuMulticastUnbind");
    of(handle, 1, "cuMulticastUnbind");
    (void)offset, (void)bytes;
    for (int h = 1; h < HANDLES; ++h)
        if (handles[h].is_used && handles[h].bound_to == handle && handles[h].device == device) {
            handles[h].bound_to = 0;
            return SUCCESS;
        }
    violation("cuMulticastUnbind: nothing of this device is bound");
}

int cuMemCreate(unsigned long long *handle, size_t bytes, memory_prop_t const *prop, unsigned long long flags) {
    ENTER("cuMemCreate");
    if (prop->type != 1 || prop->location_type != 1 || flags || bytes % GRANULE || bytes == 0) return INVALID_VALUE;
    device_t *device = visible(NVIDIA, prop->location);
    if (!device) return INVALID_DEVICE;
    size_t free_bytes, total_bytes;
    memory_free_bytes(device, &free_bytes, &total_bytes);
    if (bytes > free_bytes) return OUT_OF_MEMORY;
    *handle = keep((handle_t){.fd = -1, .device = prop->location, .bytes = bytes});
    return SUCCESS;
}

int cuMemRelease(unsigned long long handle) {
    ENTER("cuMemRelease");
    pthread_mutex_lock(&lock);
    if (handle == 0 || handle >= HANDLES || !handles[handle].is_used) violation("cuMemRelease: no handle");
    handle_t *own = &handles[handle];
    if (own->bound_to) violation("cuMemRelease: memory that is bound");
    for (int h = 1; h < HANDLES && own->shared; ++h)
        if (handles[h].is_used && handles[h].bound_to == handle) violation("cuMemRelease: an object with memory bound to it");
    if (own->shared) munmap(own->shared, sizeof *own->shared), close(own->fd);
    memset(own, 0, sizeof *own);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuMemExportToShareableHandle(void *place, unsigned long long handle, int kind, unsigned long long flags) {
    ENTER("cuMemExportToShareableHandle");
    handle_t *own = of(handle, 1, "cuMemExportToShareableHandle");
    if (flags || !(own->shared->handle_types & (unsigned)kind)) return INVALID_VALUE;
    if (kind == FILE_KIND) {
        *(int *)place = fcntl(own->fd, F_DUPFD_CLOEXEC, 3);
        return SUCCESS;
    }
    if (kind != FABRIC_KIND) return NOT_SUPPORTED;
    memset(place, 0, 64);
    snprintf(place, 64, "/proc/%d/fd/%d", (int)getpid(), own->fd);
    return SUCCESS;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *given, int kind) {
    ENTER("cuMemImportFromShareableHandle");
    int fd;
    if (kind == FILE_KIND) {
        fd = fcntl((int)(intptr_t)given, F_DUPFD_CLOEXEC, 3);
    } else {
        char path[65] = "";
        memcpy(path, given, 64);
        fd = open(path, O_RDWR | O_CLOEXEC);
    }
    return fd < 0 ? INVALID_VALUE : open_shared(fd, handle);
}

/* At the end of the process: what was made and not released. */
__attribute__((destructor)) static void leave(void) {
    for (int h = 1; h < HANDLES; ++h)
        if (handles[h].is_used) write_down(handles[h].shared ? "left a multicast object" : "left memory of a multicast object");
}
#endif
