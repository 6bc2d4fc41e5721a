/* Verbs on two GPUs of each process, as one of two processes that meet in a directory: gpus INDEX DIRECTORY. */
#include <uform.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GPUs of a process, processes, and elements of an array. */
#define OWN 2
#define MEMBERS 2
#define PLACES (OWN * MEMBERS)
#define COUNT 5

typedef int (*retain_t)(void **, int);
typedef int (*release_t)(int);
typedef int (*push_t)(void *);
typedef int (*pop_t)(void **);
typedef int (*in_t)(uint64_t, void const *, size_t, void *);
typedef int (*out_t)(void *, uint64_t, size_t, void *);
typedef int (*query_t)(void *);

static int failures;
static size_t own_index;
static void *driver;
static void *contexts[OWN];

static void fail(char const *what, int line) {
    char error[1024] = "";
    uform_last_error(error, sizeof error);
    fprintf(stderr, "line %d: %s: %s\n", line, what, error);
    failures++;
}

#define EXPECT(condition)                           \
    do {                                            \
        if (!(condition)) fail(#condition, __LINE__); \
    } while (0)
#define SUCCEED(call) EXPECT((call) == uform_status_success_k)

/* A function of the driver; ISO C has no conversion for it. */
static void *function(char const *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) fail(name, __LINE__);
    return found;
}

#define DRIVER(type, name, pointer)                            \
    do {                                                       \
        void *found = function(name);                          \
        memcpy(&(pointer), &found, sizeof(pointer)); \
    } while (0)

/* Copies bytes to a GPU of this process or from it, on its default stream, and waits. */
static void copy(size_t gpu, uint64_t address, void *bytes, size_t length, int is_read) {
    void *popped, *stream = NULL;
    push_t push;
    pop_t pop;
    in_t in;
    out_t out;
    query_t query;
    DRIVER(push_t, "cuCtxPushCurrent_v2", push);
    DRIVER(pop_t, "cuCtxPopCurrent_v2", pop);
    DRIVER(in_t, "cuMemcpyHtoDAsync_v2", in);
    DRIVER(out_t, "cuMemcpyDtoHAsync_v2", out);
    DRIVER(query_t, "cuStreamQuery", query);
    EXPECT(push(contexts[gpu]) == 0);
    EXPECT((is_read ? out(bytes, address, length, stream) : in(address, bytes, length, stream)) == 0);
    while (query(stream) == 600) {
    }
    EXPECT(pop(&popped) == 0);
}

/* What the array of a place holds first. */
static float value(size_t place, size_t position) { return (float)(place * 100 + position); }

/* Arrays of so many elements on both GPUs, with the values of their places. */
static void fresh(uform_arena_t *arena, size_t count, void **arrays) {
    size_t gpu, position;
    float values[PLACES * COUNT];
    for (gpu = 0; gpu < OWN; gpu++) {
        uint64_t address = 0;
        SUCCEED(uform_arena_take_on(arena, gpu, count * sizeof(float), &address));
        for (position = 0; position < count; position++) values[position] = value(OWN * own_index + gpu, position);
        copy(gpu, address, values, count * sizeof(float), 0);
        arrays[gpu] = (void *)(uintptr_t)address;
    }
}

static void expect(size_t gpu, void *array, float const *wanted, size_t count, int line) {
    float found[PLACES * COUNT];
    copy(gpu, (uint64_t)(uintptr_t)array, found, count * sizeof(float), 1);
    if (memcmp(found, wanted, count * sizeof(float)) != 0) fail("other values", line);
}

int main(int argument_count, char **arguments) {
    uform_mesh_options_t options = UFORM_MESH_OPTIONS_INIT;
    uform_vram_options_t vram = UFORM_VRAM_OPTIONS_INIT;
    uform_call_options_t call = UFORM_CALL_OPTIONS_INIT;
    uform_executor_t *executor = NULL;
    uform_mesh_t *mesh = NULL;
    uform_arena_t *arena = NULL;
    uform_deferred_t *deferred = NULL;
    size_t ordinals[OWN], gpu, place, position;
    void *arrays[OWN], *outs[OWN];
    void const *further_arrays[1];
    float sums[COUNT], gathered[PLACES * COUNT];
    retain_t retain;
    release_t release;
    char error[1024];
    if (argument_count != 3) return 2;
    own_index = (size_t)strtoul(arguments[1], NULL, 10);
    for (gpu = 0; gpu < OWN; gpu++) ordinals[gpu] = OWN * own_index + gpu;
    vram.devices = ordinals;
    vram.device_count = OWN;
    vram.deferred_limit = 1;
    SUCCEED(uform_executor_for_vram(&vram, &executor));
    options.host_domain_index = own_index;
    options.host_domain_count = MEMBERS;
    options.directory = arguments[2];
    options.job = "gpus";
    SUCCEED(uform_mesh_bootstrap(executor, &options, &mesh));
    SUCCEED(uform_mesh_arena(mesh, 1 << 12, NULL, &arena));
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (failures || driver == NULL) return 1;
    DRIVER(retain_t, "cuDevicePrimaryCtxRetain", retain);
    DRIVER(release_t, "cuDevicePrimaryCtxRelease_v2", release);
    for (gpu = 0; gpu < OWN; gpu++) EXPECT(retain(&contexts[gpu], (int)ordinals[gpu]) == 0);
    for (position = 0; position < COUNT; position++)
        for (place = 0, sums[position] = 0; place < PLACES; place++) sums[position] += value(place, position);
    for (place = 0; place < PLACES; place++)
        for (position = 0; position < COUNT; position++) gathered[place * COUNT + position] = value(place, position);

    /* In place, and not waited for. */
    fresh(arena, COUNT, arrays);
    further_arrays[0] = arrays[1];
    call.further_arrays = further_arrays;
    call.further_outs = &arrays[1];
    call.further_count = 1;
    SUCCEED(uform_mesh_all_reduce(mesh, arrays[0], arrays[0], COUNT, uform_dtype_f32_k, uform_reduce_op_sum_k, &call));
    for (gpu = 0; gpu < OWN; gpu++) expect(gpu, arrays[gpu], sums, COUNT, __LINE__);
    fresh(arena, COUNT, arrays);
    fresh(arena, COUNT, outs);
    further_arrays[0] = arrays[1];
    call.further_outs = &outs[1];
    call.deferred = &deferred;
    SUCCEED(uform_mesh_all_reduce(mesh, arrays[0], outs[0], COUNT, uform_dtype_f32_k, uform_reduce_op_sum_k, &call));
    call.deferred = NULL;
    SUCCEED(uform_deferred_wait(deferred, NULL));
    SUCCEED(uform_deferred_free(deferred));
    for (gpu = 0; gpu < OWN; gpu++) expect(gpu, outs[gpu], sums, COUNT, __LINE__);

    /* Parts and roots count GPUs. */
    fresh(arena, PLACES * COUNT, outs);
    SUCCEED(uform_mesh_all_gather(mesh, arrays[0], outs[0], COUNT, NULL, uform_dtype_f32_k, &call));
    for (gpu = 0; gpu < OWN; gpu++) expect(gpu, outs[gpu], gathered, PLACES * COUNT, __LINE__);
    for (place = 0; place < PLACES; place++) {
        size_t const root_gpu = place % OWN;
        fresh(arena, COUNT, arrays);
        further_arrays[0] = arrays[1];
        SUCCEED(uform_mesh_broadcast(mesh, arrays[0], COUNT, uform_dtype_f32_k, place, &call));
        for (gpu = 0; gpu < OWN; gpu++) expect(gpu, arrays[gpu], &gathered[place * COUNT], COUNT, __LINE__);
        fresh(arena, COUNT, arrays);
        fresh(arena, PLACES * COUNT, outs);
        further_arrays[0] = arrays[1];
        if (place / OWN != own_index || root_gpu != 0) outs[0] = NULL;
        if (place / OWN != own_index || root_gpu != 1) outs[1] = NULL;
        SUCCEED(uform_mesh_gather(mesh, arrays[0], outs[0], COUNT, NULL, uform_dtype_f32_k, place, &call));
        for (gpu = 0; gpu < OWN; gpu++)
            if (outs[gpu] != NULL) expect(gpu, outs[gpu], gathered, PLACES * COUNT, __LINE__);
    }

    /* What is not one array for each GPU. */
    call.further_count = 0;
    EXPECT(uform_mesh_broadcast(mesh, arrays[0], COUNT, uform_dtype_f32_k, 0, &call) == uform_status_invalid_k);
    uform_last_error(error, sizeof error);
    EXPECT(strstr(error, "drives 2 GPUs") != NULL);
    call.further_count = 1;
    further_arrays[0] = arrays[0];
    EXPECT(uform_mesh_broadcast(mesh, arrays[0], COUNT, uform_dtype_f32_k, 0, &call) == uform_status_invalid_k);
    uform_last_error(error, sizeof error);
    EXPECT(strstr(error, "on that GPU already") != NULL);
    further_arrays[0] = sums;
    EXPECT(uform_mesh_broadcast(mesh, arrays[0], COUNT, uform_dtype_f32_k, 0, &call) == uform_status_invalid_k);
    uform_last_error(error, sizeof error);
    EXPECT(strstr(error, "further_arrays") != NULL);

    for (gpu = 0; gpu < OWN; gpu++) EXPECT(release((int)ordinals[gpu]) == 0);
    SUCCEED(uform_mesh_free(mesh));
    SUCCEED(uform_arena_free(arena));
    SUCCEED(uform_executor_free(executor));
    printf("index %lu: %d failures\n", (unsigned long)own_index, failures);
    return failures != 0;
}
