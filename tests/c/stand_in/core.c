/* Devices, memory and streams of the stand-in: what the tables of CUDA and HIP are made of. */
#include "stand_in.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { RULES = 64, FORGOTTEN = 0x0dead0, STREAM = 0x57e4, EVENT = 0xe7e7 };

typedef enum { COPY, FILL, RECORD, WAIT, CALL } work_t;

typedef struct operation {
    work_t work;
    unsigned char *target, *source;
    uint64_t target_address, source_address; /* Of device memory, else 0. */
    size_t bytes;
    unsigned char value;
    event_t *event;
    uint64_t ticket;
    void (*function)(void *);
    void *given;
    struct operation *next;
} operation_t;

struct stream {
    int magic;
    device_t *device;
    operation_t *first, *last; /* The first one is being done. */
    int is_closing;
};

struct event {
    int magic;
    device_t *device;
    uint64_t recorded, done;
};

typedef struct allocation {
    uint64_t address;
    size_t bytes, mapped;
    unsigned char *shadow;
    device_t *device;
    int is_given_back, is_collective;
    unsigned registrations;
    struct allocation *next;
} allocation_t;

typedef struct {
    char name[64];
    int is_stall, nth, value, seen;
} rule_t;

int init_code, cuda_version = 12080;
unsigned counts[VENDORS];
device_t devices[VENDORS][DEVICES];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static rule_t rules[RULES];
static unsigned rule_count, delay_microseconds;
static allocation_t *allocations;
static pid_t owner;

static void rest(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (nanosleep(&time, &time) == -1 && errno == EINTR) {}
}

void violation(char const *format, ...) {
    va_list values;
    fputs("stand-in: ", stderr);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
    abort();
}

/* The 16 bytes of an identity such as GPU-0123...: its hexadecimal digits, the rest 0. */
static void identity_of(char const *uuid, unsigned char identity[16]) {
    unsigned digits = 0;
    memset(identity, 0, 16);
    char const *text = strchr(uuid, '-');
    for (; text && *text && digits < 32; ++text) {
        char const *all = "0123456789abcdef", *found = strchr(all, *text | 0x20);
        if (*text == '-' || !found) continue;
        identity[digits / 2] |= (unsigned char)((unsigned)(found - all) << (digits % 2 ? 0 : 4));
        ++digits;
    }
}

static void read_line(char const *line) {
    device_t d;
    instance_t i;
    rule_t r;
    int index;
    int after = 0;
    char const *own = getenv("UFORM_TEST_INDEX");
    if (sscanf(line, "at %d %n", &index, &after) == 1 && after) {
        if (own && atoi(own) == index) read_line(line + after);
        return;
    }
    memset(&d, 0, sizeof d), memset(&i, 0, sizeof i), memset(&r, 0, sizeof r);
    if (sscanf(line, "init %d", &init_code) == 1 || sscanf(line, "count %u", &counts[NVIDIA]) == 1) return;
    if (sscanf(line, "cuda %d", &cuda_version) == 1 || sscanf(line, "delay %u", &delay_microseconds) == 1) return;
    if (sscanf(line, "device %d %d %d %95s %x %d %d %u %llu %u %x %u %u %u %u %u %d %95[^\n]", &index, &d.handle_code,
            &d.code, d.uuid, &d.bus, &d.major, &d.minor, &d.cores, &d.memory, &d.switch_links, &d.peer_bus,
            &d.peer_links, &d.state, &d.status, &d.clique, &d.mask, &d.mig, d.name) == 18 &&
        index >= 0 && index < DEVICES) {
        d.vendor = NVIDIA, d.ordinal = index;
        snprintf(d.pci, sizeof d.pci, "0000:%02x:00.0", d.bus & 0xffu);
        identity_of(d.uuid, d.identity);
        devices[NVIDIA][index] = d;
    } else if (sscanf(line, "amd %d %31s %llu %95[^\n]", &index, d.pci, &d.memory, d.name) == 4 && index >= 0 &&
        index < DEVICES) {
        d.vendor = AMD, d.ordinal = index;
        devices[AMD][index] = d;
        if (counts[AMD] <= (unsigned)index) counts[AMD] = (unsigned)index + 1;
    } else if (sscanf(line, "instance %d %95s %u %u %llu %u %95[^\n]", &i.parent, i.uuid, &i.gpu_instance,
                   &i.compute_instance, &i.memory, &i.multiprocessors, i.name) == 7 &&
        i.parent >= 0 && i.parent < DEVICES && devices[NVIDIA][i.parent].instance_count < INSTANCES) {
        device_t *parent = &devices[NVIDIA][i.parent];
        parent->instances[parent->instance_count++] = i;
    } else if (sscanf(line, "multicast %d", &index) == 1 && index >= 0 && index < DEVICES) {
        devices[NVIDIA][index].multicast = 1;
    } else if ((sscanf(line, "fault %63s %d %d", r.name, &r.nth, &r.value) == 3 ||
                   (r.is_stall = sscanf(line, "stall %63s %d %d", r.name, &r.nth, &r.value) == 3)) &&
        rule_count < RULES) {
        rules[rule_count++] = r;
    } else violation("this line says nothing: %s", line);
}

static void read_file(void) {
    char line[512];
    char const *path = getenv("STAND_IN_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) violation("STAND_IN_ANSWERS names no file that can be read");
    while (fgets(line, sizeof line, file))
        if (line[0] != '\n' && line[0] != '#') read_line(line);
    fclose(file);
    owner = getpid();
}

void configure(void) { pthread_once(&once, read_file); }

static void note(char const *text) {
    char const *path = getenv("STAND_IN_CALLS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\n", text);
    fclose(file);
}

/* What a rule of the file says of this call of a name; the lock is held. */
static rule_t *rule_of(char const *name) {
    rule_t *found = NULL;
    for (unsigned r = 0; r < rule_count; ++r) {
        if (strcmp(rules[r].name, name)) continue;
        ++rules[r].seen;
        if (!found && (rules[r].nth == rules[r].seen || (rules[r].nth <= 0 && rules[r].seen >= -rules[r].nth)))
            found = &rules[r];
    }
    return found;
}

int enter(char const *name) {
    configure();
    if (getpid() != owner) violation("%s: called in a forked child", name);
    pthread_mutex_lock(&lock);
    note(name);
    rule_t *rule = rule_of(name);
    int is_stall = rule && rule->is_stall, value = rule ? rule->value : 0;
    pthread_mutex_unlock(&lock);
    if (is_stall) rest(value * 1000L);
    return is_stall ? SUCCESS : value;
}

/* The positions that a list of numbers or identities names, as far as it is right. */
static int listed(int vendor, int *positions) {
    int found = 0;
    char const *list = getenv(vendor == NVIDIA ? "CUDA_VISIBLE_DEVICES" : "HIP_VISIBLE_DEVICES");
    if (!list) {
        for (unsigned d = 0; d < counts[vendor] && d < DEVICES; ++d) positions[found++] = (int)d;
        return found;
    }
    while (*list && found < DEVICES) {
        size_t length = strcspn(list, ",");
        int position = -1;
        for (unsigned d = 0; d < counts[vendor] && d < DEVICES; ++d) {
            char number[16];
            snprintf(number, sizeof number, "%u", d);
            if (strlen(number) == length && !strncmp(list, number, length)) position = (int)d;
            if (length > 4 && !strncmp(list, devices[vendor][d].uuid, length)) position = (int)d;
        }
        if (position < 0) break;
        positions[found++] = position;
        list += length + (list[length] == ',');
    }
    return found;
}

int visible_count(int vendor) {
    int positions[DEVICES];
    return listed(vendor, positions);
}

device_t *visible(int vendor, int number) {
    int positions[DEVICES], found = listed(vendor, positions);
    return number < 0 || number >= found ? NULL : &devices[vendor][positions[number]];
}

/* --- Memory --------------------------------------------------------------------------------------------------- */

/* The allocation that holds these bytes, NULL for none; the lock is held. */
static allocation_t *allocation_of(uint64_t address, size_t bytes) {
    for (allocation_t *a = allocations; a; a = a->next)
        if (!a->is_given_back && address >= a->address && address - a->address <= a->bytes &&
            bytes <= a->bytes - (address - a->address))
            return a;
    return NULL;
}

void *host_address(uint64_t address, size_t bytes, char const *what) {
    pthread_mutex_lock(&lock);
    allocation_t *found = allocation_of(address, bytes);
    pthread_mutex_unlock(&lock);
    if (!found) violation("%s: %zu bytes at 0x%llx are not device memory", what, bytes, (unsigned long long)address);
    return found->shadow + (address - found->address);
}

device_t *memory_owner(uint64_t address) {
    pthread_mutex_lock(&lock);
    allocation_t *found = allocation_of(address, 1);
    pthread_mutex_unlock(&lock);
    return found ? found->device : NULL;
}

/* The address that programs see cannot be read by the host, as on most machines; its bytes lie elsewhere, and are not zero. */
int memory_take(device_t *device, int is_collective, size_t bytes, uint64_t *address) {
    if (bytes == 0) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int code = device->poison;
    if (!code && bytes > device->memory - device->used) code = OUT_OF_MEMORY;
    if (!code) {
        allocation_t *made = calloc(1, sizeof *made);
        size_t mapped = (bytes + 0xffff) / 0x10000 * 0x10000;
        void *seen = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        unsigned char *shadow = malloc(bytes);
        if (!made || seen == MAP_FAILED || !shadow) violation("the host has no memory for it");
        memset(shadow, 0xa5, bytes);
        *made = (allocation_t){(uint64_t)(uintptr_t)seen, bytes, mapped, shadow, device, 0, is_collective, 0, allocations};
        allocations = made;
        device->used += bytes, device->allocations += 1;
        *address = made->address;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* Whether an operation that has not ended touches an allocation; the lock is held. */
static int is_touched(allocation_t *a);

int memory_give(device_t *device, int is_collective, uint64_t address) {
    pthread_mutex_lock(&lock);
    allocation_t *found = NULL;
    for (allocation_t *a = allocations; a && !found; a = a->next)
        if (a->address == address) found = a;
    if (!found) violation("free: 0x%llx is not the start of device memory", (unsigned long long)address);
    if (found->is_given_back) violation("free: 0x%llx was freed before", (unsigned long long)address);
    if (found->device != device) violation("free: memory of another device than the current one");
    if (found->is_collective != is_collective) violation("free: by another library than the one that gave it");
    if (found->registrations) violation("free: a communicator knows 0x%llx", (unsigned long long)address);
    if (is_touched(found)) violation("free: work that has not ended uses 0x%llx", (unsigned long long)address);
    /* The address stays taken, so that no later one is the same. */
    found->is_given_back = 1;
    free(found->shadow);
    device->used -= found->bytes, device->allocations -= 1;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

void memory_register(uint64_t address, size_t bytes, int is_known) {
    pthread_mutex_lock(&lock);
    allocation_t *found = allocation_of(address, bytes);
    if (!found) violation("register: %zu bytes at 0x%llx are not device memory", bytes, (unsigned long long)address);
    found->registrations += is_known ? 1u : -1u;
    pthread_mutex_unlock(&lock);
}

int memory_free_bytes(device_t *device, size_t *free_bytes, size_t *total_bytes) {
    pthread_mutex_lock(&lock);
    *free_bytes = device->memory - device->used, *total_bytes = device->memory;
    int code = device->poison;
    pthread_mutex_unlock(&lock);
    return code;
}

/* --- Streams -------------------------------------------------------------------------------------------------- */

static stream_t *streams[1024];
static unsigned stream_count;

static int is_touched(allocation_t *a) {
    for (unsigned s = 0; s < stream_count; ++s)
        for (operation_t *o = streams[s]->first; o; o = o->next) {
            int writes = o->target_address >= a->address && o->target_address < a->address + a->mapped;
            int reads = o->source_address >= a->address && o->source_address < a->address + a->mapped;
            if (writes || reads) return 1;
        }
    return 0;
}

static void run(operation_t *o) {
    switch (o->work) {
    case COPY: memmove(o->target, o->source, o->bytes); break;
    case FILL: memset(o->target, o->value, o->bytes); break;
    case CALL: o->function(o->given); break;
    case RECORD: case WAIT: break;
    }
}

/* Does one operation after the other; a device that has failed does none, and loses none of its events. */
static void *serve(void *given) {
    stream_t *stream = given;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->is_closing) pthread_cond_wait(&changed, &lock);
        operation_t *o = stream->first;
        if (!o) break;
        while (o->work == WAIT && o->event->done < o->ticket && !stream->device->poison)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        if (delay_microseconds) rest(delay_microseconds);
        pthread_mutex_lock(&lock);
        rule_t *rule = rule_of("work");
        int stall = rule && rule->is_stall ? rule->value : 0;
        if (rule && !rule->is_stall) stream->device->poison = rule->value;
        int is_well = !stream->device->poison;
        pthread_mutex_unlock(&lock);
        if (stall) rest(stall * 1000L);
        if (is_well) run(o);
        pthread_mutex_lock(&lock);
        if (o->work == RECORD && o->event->done < o->ticket) o->event->done = o->ticket;
        stream->first = o->next;
        if (!stream->first) stream->last = NULL;
        free(o);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* The lock is held. */
static stream_t *start(device_t *device) {
    stream_t *made = calloc(1, sizeof *made);
    pthread_t thread;
    if (!made || stream_count == sizeof streams / sizeof *streams) violation("too many streams");
    made->magic = STREAM, made->device = device;
    streams[stream_count++] = made;
    if (pthread_create(&thread, NULL, serve, made)) violation("the host has no thread for a stream");
    pthread_detach(thread);
    return made;
}

int stream_open(device_t *device, stream_t **stream) {
    pthread_mutex_lock(&lock);
    int code = device->poison;
    if (!code) *stream = start(device), device->streams += 1;
    pthread_mutex_unlock(&lock);
    return code;
}

/* The stream that a handle is: 0, 1 and 2 are the default one of the current device. The lock is held. */
static stream_t *stream_of(device_t *current, stream_t *handle, char const *what) {
    if ((uintptr_t)handle <= 2) {
        if (!current->default_stream) current->default_stream = start(current);
        return current->default_stream;
    }
    if (handle->magic == FORGOTTEN) violation("%s: a stream that was destroyed", what);
    if (handle->magic != STREAM) violation("%s: no stream", what);
    return handle;
}

int stream_close(stream_t *handle) {
    pthread_mutex_lock(&lock);
    if ((uintptr_t)handle <= 2) violation("destroy: a default stream");
    stream_t *stream = stream_of(NULL, handle, "destroy");
    if (stream->first && !stream->device->poison) violation("destroy: a stream with work that has not ended");
    stream->magic = FORGOTTEN, stream->is_closing = 1, stream->device->streams -= 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int stream_query(device_t *current, stream_t *handle) {
    pthread_mutex_lock(&lock);
    stream_t *stream = stream_of(current, handle, "query");
    int code = stream->device->poison ? stream->device->poison : stream->first ? NOT_READY : SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Puts an operation behind the others of a stream of the current device; the lock is held. */
static int put(device_t *current, stream_t *handle, operation_t operation, char const *what) {
    stream_t *stream = stream_of(current, handle, what);
    if (stream->device != current) violation("%s: a stream of another device than the current one", what);
    if (current->poison) return current->poison;
    operation_t *made = malloc(sizeof *made);
    if (!made) violation("the host has no memory for an operation");
    *made = operation, made->next = NULL;
    if (stream->last) stream->last->next = made;
    else stream->first = made;
    stream->last = made;
    pthread_cond_broadcast(&changed);
    return SUCCESS;
}

/* Where bytes lie on the host; the lock is held. */
static unsigned char *place(uint64_t address, int is_device, size_t bytes, char const *what) {
    if (!is_device) return (unsigned char *)(uintptr_t)address;
    allocation_t *found = allocation_of(address, bytes);
    if (!found) violation("%s: %zu bytes at 0x%llx are not device memory", what, bytes, (unsigned long long)address);
    return found->shadow + (address - found->address);
}

int stream_copy(device_t *current, stream_t *stream, uint64_t target, int target_is_device, uint64_t source,
    int source_is_device, size_t bytes) {
    if (bytes == 0) return SUCCESS;
    pthread_mutex_lock(&lock);
    operation_t o = {.work = COPY, .bytes = bytes};
    o.target = place(target, target_is_device, bytes, "copy"), o.target_address = target_is_device ? target : 0;
    o.source = place(source, source_is_device, bytes, "copy"), o.source_address = source_is_device ? source : 0;
    int code = put(current, stream, o, "copy");
    pthread_mutex_unlock(&lock);
    return code;
}

int stream_fill(device_t *current, stream_t *stream, uint64_t target, unsigned char value, size_t bytes) {
    if (bytes == 0) return SUCCESS;
    pthread_mutex_lock(&lock);
    operation_t o = {.work = FILL, .bytes = bytes, .value = value, .target_address = target};
    o.target = place(target, 1, bytes, "fill");
    int code = put(current, stream, o, "fill");
    pthread_mutex_unlock(&lock);
    return code;
}

int stream_call(device_t *current, stream_t *stream, void (*work)(void *), void *given) {
    pthread_mutex_lock(&lock);
    operation_t o = {.work = CALL, .function = work, .given = given};
    int code = put(current, stream, o, "launch");
    pthread_mutex_unlock(&lock);
    return code;
}

/* --- Events --------------------------------------------------------------------------------------------------- */

static void check_event(event_t *event, char const *what) {
    if (event && event->magic == FORGOTTEN) violation("%s: an event that was destroyed", what);
    if (!event || event->magic != EVENT) violation("%s: no event", what);
}

int event_open(device_t *device, event_t **event) {
    pthread_mutex_lock(&lock);
    int code = device->poison;
    if (!code) {
        *event = calloc(1, sizeof **event);
        if (!*event) violation("the host has no memory for an event");
        (*event)->magic = EVENT, (*event)->device = device;
        device->events += 1;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* What waits for it goes on to do so: it is never freed. */
int event_close(event_t *event) {
    pthread_mutex_lock(&lock);
    check_event(event, "destroy");
    event->magic = FORGOTTEN, event->device->events -= 1;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int event_record(device_t *current, event_t *event, stream_t *stream) {
    pthread_mutex_lock(&lock);
    check_event(event, "record");
    if (event->device != current) violation("record: an event of another device than the current one");
    operation_t o = {.work = RECORD, .event = event, .ticket = event->recorded + 1};
    int code = put(current, stream, o, "record");
    if (!code) event->recorded += 1;
    pthread_mutex_unlock(&lock);
    return code;
}

int event_query(event_t *event) {
    pthread_mutex_lock(&lock);
    check_event(event, "query");
    int code = event->device->poison ? event->device->poison : event->done < event->recorded ? NOT_READY : SUCCESS;
    pthread_mutex_unlock(&lock);
    return code;
}

int stream_wait(device_t *current, stream_t *stream, event_t *event) {
    pthread_mutex_lock(&lock);
    check_event(event, "wait");
    operation_t o = {.work = WAIT, .event = event, .ticket = event->recorded};
    int code = put(current, stream, o, "wait");
    pthread_mutex_unlock(&lock);
    return code;
}

void write_down(char const *text) {
    if (owner == getpid()) note(text);
}

/* At the end of the process: what was opened and not closed. */
__attribute__((destructor)) static void leave(void) {
    char line[160];
    if (owner != getpid()) return;
    for (int v = 0; v < VENDORS; ++v)
        for (int d = 0; d < DEVICES; ++d) {
            device_t *own = &devices[v][d];
            if (!own->retained && !own->streams && !own->events && !own->allocations && !own->modules)
                continue;
            snprintf(line, sizeof line, "left on %s %d: %d contexts, %u streams, %u events, %u allocations",
                v == NVIDIA ? "NVIDIA" : "AMD", d, own->retained, own->streams, own->events, own->allocations);
            if (own->modules) snprintf(line + strlen(line), sizeof line - strlen(line), ", %u modules", own->modules);
            note(line);
        }
}
