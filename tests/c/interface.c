/* Calls every verb of the header, as one of `count` processes that meet in a directory, and checks what it promises.
 *
 * interface INDEX COUNT DIRECTORY; the exit status is 0 if everything holds. */
#define _POSIX_C_SOURCE 200809L
#include <uform.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures = 0;
static size_t own_index = 0, own_count = 1;

static void fail(int line, char const *what, char const *said) {
    fprintf(stderr, "index %d, line %d: %s: %s\n", (int)own_index, line, what, said);
    failures++;
}

static void check(int line, int holds, char const *what) {
    if (!holds) fail(line, what, "not so");
}

static void check_success(int line, uform_status_t status, char const *what) {
    char error[1024] = "";
    if (status == uform_status_success_k) return;
    uform_last_error(error, sizeof error);
    fail(line, what, error);
}

static void check_refusal(int line, uform_status_t status, uform_status_t wanted, char const *words, char const *what) {
    char error[1024] = "";
    uform_last_error(error, sizeof error);
    if (status != wanted) {
        char const *name = uform_status_name(status);
        fail(line, what, name == NULL ? "no status" : name);
    } else if (strstr(error, words) == NULL) {
        fail(line, what, error);
    }
}

#define EXPECT(condition) check(__LINE__, (condition) ? 1 : 0, #condition)
#define SUCCEED(call) check_success(__LINE__, (call), #call)
#define REFUSE(status, words, call) check_refusal(__LINE__, (call), uform_status_##status##_k, (words), #call)

/* The whole text of a verb that copies one, which the caller frees. */
typedef uform_status_t (*copier_t)(uform_mesh_t const *mesh, char *text, size_t capacity, size_t *length);

static char *copied(uform_mesh_t const *mesh, copier_t copy) {
    size_t length = 0, again = 0;
    char *text;
    SUCCEED(copy(mesh, NULL, 0, &length));
    text = (char *)malloc(length + 1);
    if (text == NULL) exit(3);
    SUCCEED(copy(mesh, text, length + 1, &again));
    EXPECT(again == length && strlen(text) == length);
    return text;
}

static void use_texts(void) {
    char text[4096], cut[5], error[256];
    size_t length = 0, needed = 0;

    EXPECT(uform_last_error(error, sizeof error) == 0 && error[0] == 0);
    EXPECT(strcmp(uform_status_name(uform_status_timed_out_k), "timed_out") == 0);
    EXPECT(uform_status_name((uform_status_t)99) == NULL);

    SUCCEED(uform_capabilities_compiled(NULL, 0, &needed));
    SUCCEED(uform_capabilities_compiled(text, sizeof text, &length));
    EXPECT(length == needed && strlen(text) == length && strstr(text, "serial") != NULL);
    SUCCEED(uform_capabilities_compiled(cut, sizeof cut, NULL));
    EXPECT(strlen(cut) == sizeof cut - 1 && strncmp(cut, text, sizeof cut - 1) == 0);
    SUCCEED(uform_capabilities_available(text, sizeof text, NULL));
    EXPECT(strstr(text, "serial") != NULL);
    REFUSE(invalid, "text = NULL", uform_capabilities_available(NULL, 1, NULL));
    printf("uform %s: %s\n", uform_version(), text);
}

static void use_devices(void) {
    uform_gpu_device_t devices[4] = {UFORM_GPU_DEVICE_INIT};
    size_t count = 99, position;
    SUCCEED(uform_gpu_devices(NULL, 0, &count));
    SUCCEED(uform_gpu_devices(devices, 4, &count));
    for (position = 0; position < count && position < 4; position++) {
        EXPECT(devices[position].struct_size == sizeof devices[0] && devices[position].name[0] != 0);
    }
    REFUSE(invalid, "count = NULL", uform_gpu_devices(devices, 4, NULL));
    REFUSE(invalid, "devices = NULL", uform_gpu_devices(NULL, 4, &count));
    devices[0].struct_size = 3;
    REFUSE(invalid, "struct_size of devices", uform_gpu_devices(devices, 4, &count));
}

static uform_executor_t *use_executors(void) {
    uform_host_options_t options = UFORM_HOST_OPTIONS_INIT;
    uform_vram_options_t gpus = UFORM_VRAM_OPTIONS_INIT;
    uform_executor_t *executor = NULL, *other = NULL;
    uform_cpu_class_t cpu_class = (uform_cpu_class_t)0;
    uform_mood_t mood = uform_mood_busy_k;
    size_t threads = 0, deferred_limit = 0;
    uint32_t domain = 4095;
    int is_closed = 1;

    options.threads = 2;
    options.deferred_limit = 3;
    options.cpu_class = uform_cpu_class_serial_k;
    SUCCEED(uform_executor_for_ram(&options, &executor));
    SUCCEED(uform_executor_threads(executor, &threads));
    SUCCEED(uform_executor_deferred_limit(executor, &deferred_limit));
    SUCCEED(uform_executor_cpu_class(executor, &cpu_class));
    EXPECT(threads == 2 && deferred_limit == 3 && cpu_class == uform_cpu_class_serial_k);
    SUCCEED(uform_executor_drain(executor, uform_mood_parked_k, NULL));
    SUCCEED(uform_executor_mood(executor, &mood));
    SUCCEED(uform_executor_is_closed(executor, &is_closed));
    EXPECT(mood == uform_mood_parked_k && is_closed == 0);
    REFUSE(invalid, "mood = 7", uform_executor_drain(executor, (uform_mood_t)7, NULL));

    SUCCEED(uform_executor_for_ram(NULL, &other));
    SUCCEED(uform_executor_close(other, NULL));
    SUCCEED(uform_executor_close(other, NULL));
    SUCCEED(uform_executor_is_closed(other, &is_closed));
    EXPECT(is_closed == 1);
    REFUSE(closed, "executor", uform_executor_drain(other, uform_mood_parked_k, NULL));
    SUCCEED(uform_executor_free(other));
    REFUSE(closed, "freed", uform_executor_free(other));
    REFUSE(closed, "freed", uform_executor_threads(other, &threads));
    SUCCEED(uform_executor_free(NULL));

    options.memory_domains = &domain;
    options.memory_domain_count = 1;
    REFUSE(invalid, "memory", uform_executor_for_ram(&options, &other));
    EXPECT(other == NULL);
    options.memory_domains = NULL;
    REFUSE(invalid, "memory_domains = NULL", uform_executor_for_ram(&options, &other));
    options.memory_domain_count = 0;
    options.cpu_class = (uform_cpu_class_t)99;
    REFUSE(invalid, "cpu_class = 99", uform_executor_for_ram(&options, &other));
    REFUSE(invalid, "executor = NULL", uform_executor_for_ram(NULL, NULL));
    REFUSE(unsupported, "pool", uform_executor_on_pool(&domain, NULL, &other));
    gpus.gpu_class = (uform_gpu_class_t)99;
    REFUSE(invalid, "gpu_class = 99", uform_executor_for_vram(&gpus, &other));
    if (uform_executor_for_vram(NULL, &other) == uform_status_success_k) SUCCEED(uform_executor_free(other));
    return executor;
}

static int answer(void *user) {
    return *(int *)user;
}

static uform_mesh_t *use_bootstrap(uform_executor_t const *executor, char const *directory) {
    uform_mesh_options_t options = UFORM_MESH_OPTIONS_INIT;
    uform_mesh_t *mesh = NULL;
    int stop = 0;
    REFUSE(invalid, "mesh = NULL", uform_mesh_bootstrap(executor, NULL, NULL));
    options.struct_size = 5;
    REFUSE(invalid, "struct_size of options", uform_mesh_bootstrap(executor, &options, &mesh));
    options.struct_size = sizeof options;
    options.timeout_seconds = -1.0;
    options.host_domain_count = 1;
    REFUSE(invalid, "timeout_seconds", uform_mesh_bootstrap(executor, &options, &mesh));
    EXPECT(mesh == NULL);
    options.host_domain_index = own_index;
    options.host_domain_count = own_count;
    options.directory = directory;
    options.job = "interface";
    options.timeout_seconds = 120.0;
    options.interrupt = answer;
    options.interrupt_user = &stop;
    REFUSE(unsupported, "feature `mpi`", uform_mesh_bootstrap_over_mpi(executor, &options, NULL, &mesh));
    EXPECT(mesh == NULL);
    SUCCEED(uform_mesh_bootstrap(executor, &options, &mesh));
    if (mesh == NULL) exit(2);
    return mesh;
}

static void use_looks(uform_mesh_t const *mesh) {
    uform_mesh_description_t description = UFORM_MESH_DESCRIPTION_INIT;
    uform_executor_t *lent = NULL;
    uform_mesh_t *other = NULL;
    uint64_t color = 1;
    size_t index = 99, count = 99, threads = 0;
    char *tree, *json;
    SUCCEED(uform_mesh_index(mesh, &index));
    SUCCEED(uform_mesh_count(mesh, &count));
    EXPECT(index == own_index && count == own_count);
    SUCCEED(uform_mesh_describe(mesh, &description));
    EXPECT(description.host_domain_index == own_index && description.struct_size == sizeof description);
    EXPECT(description.gpus_per_colocated_domain == 0 ? description.gpu_class == 0 : 1);
    tree = copied(mesh, uform_mesh_topology);
    json = copied(mesh, uform_mesh_topology_json);
    EXPECT(tree[0] != 0 && tree[strlen(tree) - 1] != '\n' && json[0] == '{');
    free(tree);
    free(json);

    SUCCEED(uform_mesh_executor(mesh, &lent));
    SUCCEED(uform_executor_threads(lent, &threads));
    EXPECT(threads == 2);
    if (uform_mesh_on(mesh, lent, &other) == uform_status_success_k) {
        SUCCEED(uform_mesh_barrier(other, NULL));
        SUCCEED(uform_mesh_free(other));
    }
    SUCCEED(uform_executor_free(lent));
    color = own_index % 2;
    SUCCEED(uform_mesh_split(mesh, &color, -(int64_t)own_index, NULL, &other));
    SUCCEED(uform_mesh_count(other, &count));
    SUCCEED(uform_mesh_index(other, &index));
    EXPECT(count == (own_count + 1 - own_index % 2) / 2 && index == count - 1 - own_index / 2);
    SUCCEED(uform_mesh_barrier(other, NULL));
    SUCCEED(uform_mesh_free(other));
    SUCCEED(uform_mesh_split(mesh, NULL, 0, NULL, &other));
    EXPECT(other == NULL);
    SUCCEED(uform_mesh_domain(mesh, uform_mesh_domain_host_k, NULL, &other));
    SUCCEED(uform_mesh_count(other, &count));
    EXPECT(count == own_count);
    SUCCEED(uform_mesh_close(other));
    SUCCEED(uform_mesh_free(other));
    REFUSE(invalid, "domain", uform_mesh_domain(mesh, (uform_mesh_domain_t)77, NULL, &other));
    /* A mesh of its own: the one that shrinks is closed. */
    SUCCEED(uform_mesh_split(mesh, &color, (int64_t)own_index, NULL, &other));
    SUCCEED(uform_mesh_count(other, &count));
    uform_mesh_t *survivors = NULL;
    SUCCEED(uform_mesh_shrink(other, NULL, &survivors));
    size_t shrunk_count = 0;
    SUCCEED(uform_mesh_count(survivors, &shrunk_count));
    EXPECT(shrunk_count == count);
    SUCCEED(uform_mesh_barrier(survivors, NULL));
    REFUSE(closed, "close was called", uform_mesh_barrier(other, NULL));
    SUCCEED(uform_mesh_free(survivors));
    SUCCEED(uform_mesh_free(other));
}

#define LENGTH 20000

/* Verbs whose members bring or get different parts; who has no use for an array gives none. */
static void use_parts(uform_mesh_t const *mesh, double *array, double *out) {
    uform_dtype_t const f64 = uform_dtype_f64_k;
    size_t const root = own_count - 1;
    int const is_root = own_index == root;
    size_t counts[8] = {0}, received[8] = {0}, member, start = 0;
    double const own = 1e6 * (double)own_index, last = 1e6 * (double)root;
    if (own_count > 8) exit(3);
    SUCCEED(uform_mesh_reduce(mesh, array, is_root ? out : NULL, LENGTH, f64, uform_reduce_op_max_k, root, NULL));
    if (is_root) EXPECT(out[9] == last + 9.0);
    SUCCEED(uform_mesh_all_to_all(mesh, array, out, LENGTH, NULL, NULL, f64, NULL));
    EXPECT(out[1] == (double)(own_index * LENGTH + 1));
    EXPECT(out[root * LENGTH + 1] == last + (double)(own_index * LENGTH + 1));
    SUCCEED(uform_mesh_gather(mesh, array, is_root ? out : NULL, LENGTH, NULL, f64, root, NULL));
    if (is_root) EXPECT(out[2] == 2.0 && out[root * LENGTH + 2] == last + 2.0);
    SUCCEED(uform_mesh_scatter(mesh, is_root ? array : NULL, out, LENGTH, NULL, f64, root, NULL));
    EXPECT(out[3] == last + (double)(own_index * LENGTH + 3));

    /* Member i has i + 1 elements. */
    for (member = 0; member < own_count; member++) {
        counts[member] = member + 1;
        start += member < own_index ? counts[member] : 0;
    }
    SUCCEED(uform_mesh_all_gather(mesh, array, out, 0, counts, f64, NULL));
    EXPECT(out[0] == 0.0 && out[start] == own && out[start + own_index] == own + (double)own_index);
    SUCCEED(uform_mesh_gather(mesh, array, out, 0, counts, f64, root, NULL));
    SUCCEED(uform_mesh_scatter(mesh, array, out, 0, counts, f64, root, NULL));
    EXPECT(out[own_index] == last + (double)(start + own_index));
    SUCCEED(uform_mesh_reduce_scatter(mesh, array, out, 0, counts, f64, uform_reduce_op_min_k, NULL));
    EXPECT(out[0] == (double)start);
    /* Everybody gets as much from each as it has members before it, and one. */
    for (member = 0; member < own_count; member++) received[member] = own_index + 1;
    SUCCEED(uform_mesh_all_to_all(mesh, array, out, 0, counts, received, f64, NULL));
    EXPECT(out[0] == (double)start && out[root * (own_index + 1)] == last + (double)start);
    received[(own_index + 1) % own_count] += 1;
    if (own_count == 1) REFUSE(invalid, "keeps", uform_mesh_all_to_all(mesh, array, out, 0, counts, received, f64, NULL));
    else REFUSE(disagreed, "index", uform_mesh_all_to_all(mesh, array, out, 0, counts, received, f64, NULL));
    REFUSE(invalid, "counts", uform_mesh_all_to_all(mesh, array, out, 1, counts, NULL, f64, NULL));
    REFUSE(invalid, "root", uform_mesh_gather(mesh, array, out, 1, NULL, f64, own_count, NULL));
}

/* Calls that differ between processes are named with their lines on all of them. */
static void use_call_sites(uform_mesh_t const *mesh) {
    uform_dtype_t const f64 = uform_dtype_f64_k;
    double array[3] = {1.0, 2.0, 3.0};
    char error[2048] = "", wanted[2][64];
    uform_status_t status;
    int turn, line = 0;
    if (own_count == 1) return;
    for (turn = 0; turn < 2; turn++) {
        if (turn == 0) {
            line = __LINE__;
            if (own_index == 0) status = uform_mesh_all_reduce(mesh, array, array, 3, f64, uform_reduce_op_sum_k, NULL);
            else status = uform_mesh_broadcast(mesh, array, 3, f64, 0, NULL);
            snprintf(wanted[0], sizeof wanted[0], "interface.c:%d", line + 1);
            snprintf(wanted[1], sizeof wanted[1], "interface.c:%d", line + 2);
        } else {
            /* A binding says where its own language calls. */
            uform_call_site(own_index == 0 ? "model.f90" : "other.f90", 12 + (int)own_index);
            if (own_index == 0) status = (uform_mesh_barrier)(mesh, NULL);
            else status = (uform_mesh_broadcast)(mesh, array, 3, f64, 0, NULL);
            snprintf(wanted[0], sizeof wanted[0], "model.f90:12");
            snprintf(wanted[1], sizeof wanted[1], "other.f90:%d", own_index == 0 ? 13 : 12 + (int)own_index);
        }
        uform_last_error(error, sizeof error);
        check(line, status == uform_status_disagreed_k, "calls that differ");
        if (strstr(error, wanted[0]) == NULL) fail(line, wanted[0], error);
        if (strstr(error, wanted[1]) == NULL) fail(line, wanted[1], error);
    }
    /* What a verb was told is not that of the next one. */
    if (own_index == 0) status = (uform_mesh_barrier)(mesh, NULL);
    else status = (uform_mesh_broadcast)(mesh, array, 3, f64, 0, NULL);
    uform_last_error(error, sizeof error);
    check(__LINE__, status == uform_status_disagreed_k && strstr(error, ".f90") == NULL, error);
    SUCCEED(uform_mesh_barrier(mesh, NULL));
}

static void use_arrays(uform_mesh_t const *mesh) {
    size_t const large = LENGTH * own_count;
    double *array = (double *)malloc(large * sizeof *array), *out = (double *)malloc(large * sizeof *out);
    uform_call_options_t options = UFORM_CALL_OPTIONS_INIT;
    size_t position, member;
    double sum, sum_of_indexes = 0.5 * (double)(own_count * (own_count - 1));
    int holds = 1;
    if (array == NULL || out == NULL) exit(3);
    options.timeout_seconds = 120.0;

    /* Every value depends on its index, and sums are exact. */
    for (position = 0; position < large; position++) array[position] = 1e6 * (double)own_index + (double)position;
    SUCCEED(uform_mesh_all_reduce(mesh, array, out, LENGTH, uform_dtype_f64_k, uform_reduce_op_sum_k, &options));
    for (position = 0; position < LENGTH; position++) {
        sum = 1e6 * sum_of_indexes + (double)(own_count * position);
        holds = holds && out[position] == sum && array[position] == 1e6 * (double)own_index + (double)position;
    }
    EXPECT(holds);
    memcpy(out, array, LENGTH * sizeof *out);
    SUCCEED(uform_mesh_all_reduce(mesh, out, out, LENGTH, uform_dtype_f64_k, uform_reduce_op_max_k, &options));
    EXPECT(out[7] == 1e6 * (double)(own_count - 1) + 7.0);

    memcpy(out, array, LENGTH * sizeof *out);
    SUCCEED(uform_mesh_broadcast(mesh, out, LENGTH, uform_dtype_f64_k, own_count - 1, &options));
    EXPECT(out[LENGTH - 1] == 1e6 * (double)(own_count - 1) + LENGTH - 1);

    {
        void *many[3] = {out, out + 3, out + 5};
        size_t lengths[3] = {3, 0, 7};
        uform_call_options_t same_bits = UFORM_CALL_OPTIONS_INIT;
        same_bits.reproducible = 1;
        memcpy(out, array, LENGTH * sizeof *out);
        SUCCEED(uform_mesh_all_reduce_many(mesh, many, lengths, 3, uform_dtype_f64_k, uform_reduce_op_sum_k, &same_bits));
        EXPECT(out[2] == 1e6 * sum_of_indexes + (double)(own_count * 2) && out[3] == array[3]);
        EXPECT(out[11] == 1e6 * sum_of_indexes + (double)(own_count * 11) && out[12] == array[12]);
        SUCCEED(uform_mesh_broadcast_many(mesh, many, lengths, 3, uform_dtype_f64_k, 0, NULL));
        many[1] = out + 2;
        lengths[1] = 2;
        REFUSE(invalid, "overlaps another", uform_mesh_broadcast_many(mesh, many, lengths, 3, uform_dtype_f64_k, 0, NULL));
        same_bits.reproducible = 2;
        REFUSE(invalid, "reproducible",
               uform_mesh_all_reduce(mesh, out, out, 1, uform_dtype_f64_k, uform_reduce_op_sum_k, &same_bits));
    }

    SUCCEED(uform_mesh_all_gather(mesh, array, out, LENGTH, NULL, uform_dtype_f64_k, &options));
    for (member = 0, holds = 1; member < own_count; member++) {
        holds = holds && out[member * LENGTH + 5] == 1e6 * (double)member + 5.0;
    }
    EXPECT(holds);
    /* In place: what this process gives lies where it goes. */
    memset(out, 0, large * sizeof *out);
    memcpy(out + own_index * LENGTH, array, LENGTH * sizeof *out);
    SUCCEED(uform_mesh_all_gather(mesh, out + own_index * LENGTH, out, LENGTH, NULL, uform_dtype_f64_k, NULL));
    EXPECT(out[0] == 0.0 && out[large - 1] == 1e6 * (double)(own_count - 1) + LENGTH - 1);

    SUCCEED(uform_mesh_reduce_scatter(mesh, array, out, LENGTH, NULL, uform_dtype_f64_k, uform_reduce_op_sum_k, NULL));
    EXPECT(out[3] == 1e6 * sum_of_indexes + (double)(own_count * (own_index * LENGTH + 3)));

    use_parts(mesh, array, out);

    /* Nothing at all is legal, with and without addresses. */
    SUCCEED(uform_mesh_all_reduce(mesh, NULL, NULL, 0, uform_dtype_f64_k, uform_reduce_op_sum_k, NULL));
    SUCCEED(uform_mesh_barrier(mesh, NULL));
    free(array);
    free(out);
}

static void use_payloads(uform_mesh_t const *mesh) {
    uform_payloads_t *payloads = NULL;
    void const *payload = NULL;
    char own[32];
    size_t count = 0, byte_count = 0, member;
    sprintf(own, "%.*s from %d", (int)own_index, "xxxxxxxx", (int)own_index);
    SUCCEED(uform_mesh_exchange(mesh, own, strlen(own), NULL, &payloads));
    SUCCEED(uform_payloads_count(payloads, &count));
    EXPECT(count == own_count);
    for (member = 0; member < count; member++) {
        char theirs[32];
        sprintf(theirs, "%.*s from %d", (int)member, "xxxxxxxx", (int)member);
        SUCCEED(uform_payloads_get(payloads, member, &payload, &byte_count));
        EXPECT(byte_count == strlen(theirs) && memcmp(payload, theirs, byte_count) == 0);
    }
    REFUSE(invalid, "index", uform_payloads_get(payloads, count, &payload, &byte_count));
    SUCCEED(uform_payloads_free(payloads));
    REFUSE(closed, "freed", uform_payloads_free(payloads));
    SUCCEED(uform_payloads_free(NULL));
}

static void use_arenas(uform_mesh_t const *mesh) {
    uform_arena_t *arena = NULL;
    void *taken = NULL, *part = NULL;
    size_t byte_count = 0, bytes = 4096 * sizeof(float), device_count = 1, position;
    uint64_t address = 0;
    float *numbers;
    int holds = 1;
    SUCCEED(uform_mesh_arena(mesh, bytes + 64, NULL, &arena));
    SUCCEED(uform_arena_byte_count(arena, &byte_count));
    EXPECT(byte_count >= bytes + 64);
    SUCCEED(uform_arena_device_count(arena, &device_count));
    EXPECT(device_count == 0);
    REFUSE(invalid, "host memory", uform_arena_take_on(arena, 0, 1, &address));
    SUCCEED(uform_arena_take(arena, 1, &taken));
    SUCCEED(uform_arena_take(arena, bytes, &taken));
    EXPECT((size_t)taken % 64 == 0);
    REFUSE(exhausted, "arena", uform_arena_take(arena, byte_count, &part));
    EXPECT(part == NULL);
    numbers = (float *)taken;
    for (position = 0; position < 4096; position++) numbers[position] = (float)(own_index + position);
    SUCCEED(uform_mesh_all_reduce(mesh, numbers, numbers, 4096, uform_dtype_f32_k, uform_reduce_op_sum_k, NULL));
    for (position = 0; position < 4096; position++) {
        holds = holds && numbers[position] == (float)(own_count * (own_count - 1) / 2 + own_count * position);
    }
    EXPECT(holds);
    /* The other process's call has returned too, and so its own part is whole. */
    SUCCEED(uform_mesh_barrier(mesh, NULL));
    SUCCEED(uform_arena_part(arena, own_count - 1, &part, &byte_count));
    EXPECT(part != NULL && byte_count >= bytes && ((float *)part)[16 + 1] == numbers[1]);
    REFUSE(invalid, "index", uform_arena_part(arena, own_count, &part, &byte_count));
    /* All have read before anybody lets go. */
    SUCCEED(uform_mesh_barrier(mesh, NULL));
    SUCCEED(uform_arena_free(arena));
    REFUSE(closed, "freed", uform_arena_byte_count(arena, &byte_count));
    SUCCEED(uform_arena_free(NULL));
}

static void use_messages(uform_mesh_t const *mesh) {
    size_t const peer = (own_index + 1) % own_count;
    float in[4] = {0}, out[4] = {0};
    uform_dtype_t const f32 = uform_dtype_f32_k;
    size_t position;
    REFUSE(invalid, "destination", uform_mesh_send(mesh, in, 4, f32, own_index, 0, NULL));
    REFUSE(invalid, "source", uform_mesh_receive(mesh, out, 4, f32, own_index, 0, NULL));
    REFUSE(invalid, "destination", uform_mesh_send(mesh, in, 4, f32, own_count, 0, NULL));
    if (own_count != 2) return;
    for (position = 0; position < 4; position++) in[position] = (float)(100 * own_index + position);
    SUCCEED(uform_mesh_send(mesh, in, 4, f32, peer, 7, NULL));
    SUCCEED(uform_mesh_receive(mesh, out, 4, f32, peer, 7, NULL));
    for (position = 0; position < 4; position++) EXPECT(out[position] == (float)(100 * peer + position));
}

static void note(uint64_t done, uint64_t total, void *user) {
    uint64_t *told = (uint64_t *)user;
    told[0] = done;
    told[1] = total;
}

/* Written on another thread, and read after a wait. */
static void count_end(void *user) {
    *(int volatile *)user += 1;
}

static void use_deferred_calls(uform_mesh_t const *mesh, uform_executor_t const *executor) {
    uform_call_options_t submit = UFORM_CALL_OPTIONS_INIT, wait = UFORM_CALL_OPTIONS_INIT;
    uform_deferred_t *sum = NULL, *exchange = NULL, *other = NULL;
    uform_payloads_t *payloads = NULL;
    uform_arena_t *arena = NULL;
    uint64_t told[2] = {0, 0};
    struct pollfd event;
    double *array = (double *)malloc(LENGTH * sizeof *array);
    size_t position, count = 0;
    int stop = 1, done = 0, ends = 0;
    if (array == NULL) exit(3);
    for (position = 0; position < LENGTH; position++) array[position] = (double)(own_index + position);
    submit.deferred = &sum;
    submit.progress = note;
    submit.progress_user = told;
    wait.timeout_seconds = 120.0;
    SUCCEED(uform_mesh_all_reduce(mesh, array, array, LENGTH, uform_dtype_f64_k, uform_reduce_op_sum_k, &submit));
    submit.progress = NULL;
    submit.deferred = &exchange;
    SUCCEED(uform_mesh_exchange(mesh, "four", 4, &submit, &payloads));
    EXPECT(payloads == NULL);
    SUCCEED(uform_deferred_on_done(sum, count_end, &ends));
    SUCCEED(uform_deferred_descriptor(sum, &event.fd));
    SUCCEED(uform_deferred_descriptor(sum, &done));
    EXPECT(event.fd == done && event.fd >= 0);
    event.events = POLLIN;
    EXPECT(poll(&event, 1, 120000) == 1 && (event.revents & POLLIN) != 0);
    SUCCEED(uform_deferred_done(sum, &done));
    EXPECT(done == 1);
    SUCCEED(uform_deferred_wait(sum, &wait));
    EXPECT(array[3] == (double)(own_count * (own_count - 1) / 2 + own_count * 3));
    EXPECT(told[0] == LENGTH * sizeof *array && told[1] == told[0]);
    REFUSE(closed, "before", uform_deferred_wait(sum, &wait));
    SUCCEED(uform_deferred_wait(exchange, NULL));
    SUCCEED(uform_payloads_count(payloads, &count));
    EXPECT(count == own_count);
    SUCCEED(uform_payloads_free(payloads));
    submit.deferred = &other;
    SUCCEED(uform_mesh_arena(mesh, 64, &submit, &arena));
    SUCCEED(uform_deferred_wait(other, NULL));
    EXPECT(arena != NULL);
    SUCCEED(uform_arena_free(arena));
    SUCCEED(uform_deferred_free(other));
    SUCCEED(uform_deferred_free(exchange));
    SUCCEED(uform_deferred_free(sum));
    REFUSE(closed, "freed", uform_deferred_done(sum, &done));
    SUCCEED(uform_deferred_free(NULL));

    /* An error comes when the call is waited for, and to one that nobody waits for nothing happens. */
    SUCCEED(uform_mesh_broadcast(mesh, array, 1, uform_dtype_f64_k, own_count, &submit));
    REFUSE(invalid, "root", uform_deferred_wait(other, NULL));
    SUCCEED(uform_deferred_free(other));
    SUCCEED(uform_mesh_barrier(mesh, &submit));
    SUCCEED(uform_deferred_free(other));
    SUCCEED(uform_executor_drain(executor, uform_mood_parked_k, NULL));
    EXPECT(ends == 1);

    /* A wait can be ended, and the call goes on. */
    if (own_index == 0) {
        SUCCEED(uform_mesh_barrier(mesh, &submit));
        wait.interrupt = answer;
        wait.interrupt_user = &stop;
        if (own_count > 1) REFUSE(interrupted, "waiting for barrier", uform_deferred_wait(other, &wait));
        SUCCEED(uform_mesh_exchange(mesh, NULL, 0, NULL, &payloads));
        SUCCEED(uform_deferred_wait(other, NULL));
        SUCCEED(uform_deferred_free(other));
    } else {
        sleep(1);
        SUCCEED(uform_mesh_barrier(mesh, NULL));
        SUCCEED(uform_mesh_exchange(mesh, NULL, 0, NULL, &payloads));
    }
    SUCCEED(uform_payloads_free(payloads));

    submit.interrupt = answer;
    submit.interrupt_user = &stop;
    REFUSE(invalid, "interrupt", uform_mesh_barrier(mesh, &submit));
    submit.interrupt = NULL;
    REFUSE(unsupported, "deferred of", uform_executor_drain(executor, uform_mood_parked_k, &submit));
    submit.deferred = NULL;
    submit.progress = note;
    REFUSE(unsupported, "progress of", uform_mesh_arena(mesh, 64, &submit, &arena));
    SUCCEED(uform_mesh_all_reduce(mesh, array, array, LENGTH, uform_dtype_f64_k, uform_reduce_op_min_k, &submit));
    EXPECT(told[0] == LENGTH * sizeof *array);
    free(array);
}

/* The square of the distance to a target, from a sum over processes that see different parts of it. */
static void use_trainers(uform_mesh_t const *mesh, char const *directory) {
    uform_parameter_t parameters[2] = {UFORM_PARAMETER_INIT, UFORM_PARAMETER_INIT};
    uform_adamw_t adamw = UFORM_ADAMW_INIT;
    uform_sgd_t sgd = UFORM_SGD_INIT;
    uform_trainer_options_t trainer_options = UFORM_TRAINER_OPTIONS_INIT;
    uform_step_report_t report = UFORM_STEP_REPORT_INIT;
    uform_trainer_t *trainer = NULL, *other = NULL, *elsewhere = NULL;
    uform_executor_t *lent = NULL;
    uform_call_options_t submit = UFORM_CALL_OPTIONS_INIT;
    uform_deferred_t *deferred = NULL;
    size_t const shape[2] = {3, 5};
    size_t byte_count = 0, count = 0, length = 0, position;
    uint64_t step = 0, updates = 99;
    void const *pointer = NULL;
    void *writable = NULL;
    double const *weights, *others;
    double *gradient;
    char name[16], checkpoints[1024];

    parameters[0].name = "weights";
    parameters[0].shape = shape;
    parameters[0].dimension_count = 2;
    parameters[0].dtype = uform_dtype_f64_k;
    parameters[1].name = "bias";
    parameters[1].dtype = uform_dtype_f32_k;
    adamw.learning_rate = 0.1;
    REFUSE(invalid, "exactly one", uform_trainer_open(mesh, parameters, 2, &trainer_options, NULL, &trainer));
    trainer_options.adamw = &adamw;
    trainer_options.clip_norm = 1.0;
    SUCCEED(uform_trainer_open(mesh, parameters, 2, &trainer_options, NULL, &trainer));
    SUCCEED(uform_trainer_parameter_count(trainer, &count));
    SUCCEED(uform_trainer_parameter_name(trainer, 1, name, sizeof name, &length));
    EXPECT(count == 2 && length == 4 && strcmp(name, "bias") == 0);
    REFUSE(invalid, "position", uform_trainer_parameter_name(trainer, 2, name, sizeof name, NULL));
    SUCCEED(uform_trainer_parameter(trainer, "weights", &pointer, &byte_count));
    EXPECT(pointer != NULL && byte_count == 15 * sizeof(double));
    weights = (double const *)pointer;
    SUCCEED(uform_trainer_gradient(trainer, "weights", &writable, &byte_count));
    EXPECT(writable != NULL && byte_count == 15 * sizeof(double));
    gradient = (double *)writable;
    REFUSE(invalid, "the trainer has weights", uform_trainer_gradient(trainer, "height", &writable, &byte_count));
    {
        void const *same = NULL;
        void *same_gradient = NULL;
        SUCCEED(uform_trainer_parameter_on(trainer, "weights", 0, &same, &byte_count));
        SUCCEED(uform_trainer_gradient_on(trainer, "weights", 0, &same_gradient, &byte_count));
        EXPECT(same == pointer && same_gradient == gradient);
        REFUSE(invalid, "device = 1", uform_trainer_parameter_on(trainer, "weights", 1, &same, &byte_count));
        REFUSE(invalid, "device = 1", uform_trainer_gradient_on(trainer, "weights", 1, &same_gradient, &byte_count));
    }
    REFUSE(invalid, "edit", uform_trainer_editable(trainer, "weights", &writable, &byte_count));

    SUCCEED(uform_trainer_begin_edit(trainer, NULL));
    SUCCEED(uform_trainer_editable(trainer, "weights", &writable, &byte_count));
    for (position = 0; position < 15; position++) ((double *)writable)[position] = (double)(own_index + position);
    SUCCEED(uform_trainer_end_edit(trainer, NULL));
    EXPECT(weights[0] == 0.0 && weights[14] == 14.0);

    for (position = 0; position < 15; position++) gradient[position] = (double)(own_index + 1);
    SUCCEED(uform_trainer_step(trainer, 2.0, NULL, &report));
    EXPECT(report.step == 1 && report.weight == 2.0 * (double)own_count && report.skipped == 0);
    EXPECT(report.has_gradient_norm == 1 && report.gradient_norm > 1.0 && report.seconds >= 0.0);
    EXPECT(weights[14] < 14.0 && weights[14] > 13.0);
    SUCCEED(uform_trainer_step(trainer, 1.0, NULL, NULL));
    sprintf(checkpoints, "%.1000s/checkpoints", directory);
    SUCCEED(uform_trainer_save(trainer, checkpoints, 77, NULL));

    SUCCEED(uform_trainer_open(mesh, parameters, 2, &trainer_options, NULL, &other));
    SUCCEED(uform_trainer_load(other, checkpoints, NULL, &step));
    SUCCEED(uform_trainer_updates(other, &updates));
    SUCCEED(uform_trainer_parameter(other, "weights", &pointer, &byte_count));
    others = (double const *)pointer;
    EXPECT(step == 77 && updates == 2 && memcmp(weights, others, 15 * sizeof *weights) == 0);
    SUCCEED(uform_trainer_free(other));

    trainer_options.adamw = NULL;
    trainer_options.sgd = &sgd;
    sgd.learning_rate = 1.0;
    sgd.momentum = 0.5;
    sgd.nesterov = 1;
    SUCCEED(uform_trainer_open(mesh, parameters, 2, &trainer_options, NULL, &other));
    SUCCEED(uform_trainer_step(other, 1.0, NULL, NULL));
    SUCCEED(uform_mesh_barrier(mesh, NULL));
    SUCCEED(uform_mesh_executor(mesh, &lent));
    SUCCEED(uform_trainer_on(other, lent, &elsewhere));
    submit.deferred = &deferred;
    report.struct_size = sizeof report;
    SUCCEED(uform_trainer_step(elsewhere, 3.0, &submit, &report));
    SUCCEED(uform_deferred_wait(deferred, NULL));
    EXPECT(report.step == 2 && report.weight == 3.0 * (double)own_count && report.has_gradient_norm == 1);
    SUCCEED(uform_deferred_free(deferred));
    SUCCEED(uform_trainer_free(elsewhere));
    SUCCEED(uform_executor_free(lent));
    SUCCEED(uform_trainer_free(other));
    REFUSE(closed, "freed", uform_trainer_step(other, 1.0, NULL, NULL));
    SUCCEED(uform_trainer_free(trainer));
    SUCCEED(uform_trainer_free(NULL));
}

static void use_wrong_arguments(uform_mesh_t const *mesh, uform_executor_t const *executor) {
    double numbers[8] = {0};
    uform_call_options_t options = UFORM_CALL_OPTIONS_INIT;
    uform_dtype_t const f64 = uform_dtype_f64_k;
    uform_reduce_op_t const sum = uform_reduce_op_sum_k;
    size_t counts[2] = {1, 1}, index = 0;
    char *bytes = (char *)numbers;
    REFUSE(invalid, "NULL", uform_mesh_all_reduce(NULL, numbers, numbers, 1, f64, sum, NULL));
    REFUSE(invalid, "array = NULL", uform_mesh_all_reduce(mesh, NULL, numbers, 1, f64, sum, NULL));
    REFUSE(invalid, "out = NULL", uform_mesh_all_reduce(mesh, numbers, NULL, 1, f64, sum, NULL));
    REFUSE(invalid, "dtype = 99", uform_mesh_all_reduce(mesh, numbers, numbers, 1, (uform_dtype_t)99, sum, NULL));
    REFUSE(invalid, "op = 99", uform_mesh_all_reduce(mesh, numbers, numbers, 1, f64, (uform_reduce_op_t)99, NULL));
    REFUSE(invalid, "overlaps", uform_mesh_all_reduce(mesh, numbers + 1, numbers, 2, f64, sum, NULL));
    REFUSE(invalid, "overlaps", uform_mesh_reduce_scatter(mesh, numbers + 1, numbers, 2, NULL, f64, sum, NULL));
    REFUSE(invalid, "aligned", uform_mesh_all_reduce(mesh, bytes + 1, bytes + 1, 1, f64, sum, NULL));
    REFUSE(invalid, "count", uform_mesh_all_reduce(mesh, numbers, numbers, (size_t)-1, f64, sum, NULL));
    REFUSE(invalid, "root", uform_mesh_broadcast(mesh, numbers, 1, f64, own_count, NULL));
    counts[0] = (size_t)-1;
    REFUSE(invalid, "count", uform_mesh_all_gather(mesh, numbers, numbers + 4, 1, counts, f64, NULL));
    options.timeout_seconds = -2.0;
    REFUSE(invalid, "timeout_seconds = -2", uform_mesh_barrier(mesh, &options));
    options.struct_size = 0;
    REFUSE(invalid, "struct_size of options", uform_mesh_barrier(mesh, &options));
    REFUSE(invalid, "kind", uform_mesh_barrier((uform_mesh_t const *)executor, NULL));
    REFUSE(invalid, "no handle", uform_mesh_index((uform_mesh_t const *)numbers, &index));
    REFUSE(invalid, "index = NULL", uform_mesh_index(mesh, NULL));
    /* Refusals leave the order of calls as it was. */
    SUCCEED(uform_mesh_barrier(mesh, NULL));
}

/* A child of a fork has a clear error for what its parent made, and may make its own. */
static void use_fork(uform_mesh_t *mesh, uform_executor_t *executor) {
    int status = -1;
    pid_t child;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        uform_executor_t *own = NULL;
        uform_host_options_t options = UFORM_HOST_OPTIONS_INIT;
        options.threads = 1;
        failures = 0;
        REFUSE(closed, "fork", uform_mesh_barrier(mesh, NULL));
        REFUSE(closed, "fork", uform_executor_drain(executor, uform_mood_parked_k, NULL));
        REFUSE(closed, "fork", uform_mesh_free(mesh));
        SUCCEED(uform_executor_for_ram(&options, &own));
        SUCCEED(uform_executor_free(own));
        /* Not by _exit: a checker of memory would look for the stacks of threads that no fork copies. */
        execlp(failures == 0 ? "true" : "false", "child", (char *)NULL);
        _exit(1);
    }
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* The last call: an interrupt ends the run for all. */
static void use_interrupt(uform_mesh_t *mesh) {
    uform_call_options_t options = UFORM_CALL_OPTIONS_INIT;
    int stop = 1, is_closed = 0;
    options.interrupt = answer;
    options.interrupt_user = &stop;
    options.timeout_seconds = 60.0;
    if (own_count > 1 && own_index == 0) {
        REFUSE(interrupted, "barrier", uform_mesh_barrier(mesh, &options));
    }
    SUCCEED(uform_mesh_is_closed(mesh, &is_closed));
    EXPECT(is_closed == 0);
    SUCCEED(uform_mesh_close(mesh));
    SUCCEED(uform_mesh_close(mesh));
    SUCCEED(uform_mesh_is_closed(mesh, &is_closed));
    EXPECT(is_closed == 1);
    REFUSE(closed, "mesh", uform_mesh_barrier(mesh, NULL));
}

int main(int argc, char **argv) {
    uform_executor_t *executor;
    uform_mesh_t *mesh;
    if (argc != 4) return 4;
    own_index = (size_t)atoi(argv[1]);
    own_count = (size_t)atoi(argv[2]);

    use_texts();
    use_devices();
    executor = use_executors();
    mesh = use_bootstrap(executor, argv[3]);
    use_looks(mesh);
    use_call_sites(mesh);
    use_arrays(mesh);
    use_payloads(mesh);
    use_arenas(mesh);
    use_messages(mesh);
    use_deferred_calls(mesh, executor);
    use_trainers(mesh, argv[3]);
    use_wrong_arguments(mesh, executor);
    use_fork(mesh, executor);
    SUCCEED(uform_mesh_barrier(mesh, NULL));
    use_interrupt(mesh);
    SUCCEED(uform_mesh_free(mesh));
    REFUSE(closed, "freed", uform_mesh_free(mesh));
    SUCCEED(uform_mesh_free(NULL));
    SUCCEED(uform_executor_free(executor));
    printf("index %d of %d: %d failures\n", (int)own_index, (int)own_count, failures);
    return failures == 0 ? 0 : 1;
}
