/* The stand-in of vendors' libraries, for tests: one shared library under the names of all of them, so that they see each other's
 * memory and streams. README.md tells what the text file STAND_IN_ANSWERS holds, and what is checked. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stddef.h>
#include <stdint.h>

enum { DEVICES = 16, INSTANCES = 16, NVIDIA = 0, AMD = 1, VENDORS = 2 };

/* Numbers that CUDA and HIP share. */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
};

typedef struct {
    int parent;
    char uuid[96], name[96];
    unsigned gpu_instance, compute_instance, multiprocessors;
    unsigned long long memory;
} instance_t;

typedef struct stream stream_t;
typedef struct event event_t;

typedef struct {
    /* What the file says. */
    int handle_code, code, major, minor, mig, multicast;
    char uuid[96], name[96], pci[32];
    unsigned char identity[16];
    unsigned bus, cores, switch_links, peer_bus, peer_links, state, status, clique, mask;
    unsigned long long memory;
    instance_t instances[INSTANCES];
    unsigned instance_count;
    /* What has become of it. */
    int vendor, ordinal, retained, poison;
    unsigned streams, events, allocations, modules;
    unsigned long long used;
    stream_t *default_stream;
} device_t;

extern int init_code, cuda_version;
extern unsigned counts[VENDORS];
extern device_t devices[VENDORS][DEVICES];

/* Reads the file, once. */
void configure(void);

/* Notes a call; the number that a rule of the file gives it, else 0. Ends the process in a forked child. */
int enter(char const *name);

/* Adds a line to the file of calls. */
void write_down(char const *text);

/* The device that is current on this thread. */
device_t *cuda_device(void);
device_t *hip_device(void);
int cuda_is_started(void);
int hip_is_started(void);

/* Says what the caller did wrong, and ends the process. */
_Noreturn void violation(char const *format, ...) __attribute__((format(printf, 1, 2)));

/* The device that a process sees under a number, NULL for none: the file's order, and the vendor's variable. */
device_t *visible(int vendor, int number);
int visible_count(int vendor);

/* The rest is on the device that is current, which the caller has looked up; each gives a vendor's number. */
int stream_open(device_t *device, stream_t **stream);
int stream_close(stream_t *stream);
int stream_query(device_t *current, stream_t *stream);
int event_open(device_t *device, event_t **event);
int event_close(event_t *event);
int event_record(device_t *current, event_t *event, stream_t *stream);
int event_query(event_t *event);
int stream_wait(device_t *current, stream_t *stream, event_t *event);
int memory_take(device_t *device, int is_collective, size_t bytes, uint64_t *address);
int memory_give(device_t *device, int is_collective, uint64_t address);

/* A communicator knows the memory, or forgets it. */
void memory_register(uint64_t address, size_t bytes, int is_known);

/* The device whose memory an address is, NULL for none. */
device_t *memory_owner(uint64_t address);
int memory_free_bytes(device_t *device, size_t *free_bytes, size_t *total_bytes);

/* A copy between addresses, each of a device or of the host as the flags say, in a stream's order. */
int stream_copy(device_t *current, stream_t *stream, uint64_t target, int target_is_device, uint64_t source,
    int source_is_device, size_t bytes);
int stream_fill(device_t *current, stream_t *stream, uint64_t target, unsigned char value, size_t bytes);

/* Work in a stream's order, for libraries that launch some: `work` gets what was given, on the stream's thread. */
int stream_call(device_t *current, stream_t *stream, void (*work)(void *), void *given);

/* Code for a device, functions of it, and their launches: the current device comes first. */
struct module;
struct entry;
int module_load(device_t *device, struct module **result, char const *image);
int module_unload(struct module *module);
int module_function(device_t *current, struct entry **entry, struct module *module, char const *name);
int module_launch(device_t *current, struct entry *entry, unsigned const grid[3], unsigned const block[3], unsigned shared,
    stream_t *stream, void **arguments, void **extra);

/* The host's address of device memory, for such work; ends the process for memory that is not there. */
void *host_address(uint64_t address, size_t bytes, char const *what);

#endif
