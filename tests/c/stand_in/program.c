/* Modules and launches, and the compilers NVRTC and HIPRTC. What is compiled is the product's own source, as C: a launch calls the
 * function once for each thread, one after the other, on the thread of the stream. */
#include "stand_in.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The product's kernels ------------------------------------------------------------------------------------- */

static _Thread_local unsigned long long position, stride, row;
#define KERNEL static void
#define POSITION position
#define STRIDE stride
#define ROW row
#define ROOT(value) __builtin_sqrt(value)
#include "../../../src/sys/kernel/gpu/step.cu"

enum { ARGUMENTS = 16, MODULE = 0x30d, UNLOADED = 0x0dead2, UNSUPPORTED_PTX = 222, NOT_FOUND = 500 };

typedef union { uint64_t word; double real; int flag; void *pointer; } argument_t;

/* The bytes that an address stands for, all of them there; the host's address takes its place. */
static void in(argument_t *a, size_t bytes, char const *what) {
    if (a->word || bytes) a->pointer = host_address(a->word, bytes, what);
}

#define CALLS(REAL, NAME)                                                                                             \
    static void prepare_scale_##NAME(argument_t *a, uint64_t threads, uint64_t rows) {                                \
        (void)threads;                                                                                                \
        in(&a[0], rows * a[3].word * sizeof(REAL), "uform_scale");                                                    \
        in(&a[1], ((rows - 1) * a[4].word + a[3].word) * sizeof(REAL), "uform_scale");                                \
    }                                                                                                                 \
    static void call_scale_##NAME(argument_t *a) {                                                                    \
        uform_scale_##NAME(a[0].pointer, a[1].pointer, a[2].real, a[3].word, a[4].word);                              \
    }                                                                                                                 \
    static void prepare_inspect_##NAME(argument_t *a, uint64_t threads, uint64_t rows) {                              \
        (void)rows;                                                                                                   \
        in(&a[0], a[1].word * sizeof(REAL), "uform_inspect");                                                         \
        in(&a[2], threads * sizeof(double), "uform_inspect"), in(&a[3], threads * sizeof(double), "uform_inspect");   \
    }                                                                                                                 \
    static void call_inspect_##NAME(argument_t *a) {                                                                  \
        uform_inspect_##NAME(a[0].pointer, a[1].word, a[2].pointer, a[3].pointer);                                    \
    }                                                                                                                 \
    static void prepare_sgd_##NAME(argument_t *a, uint64_t threads, uint64_t rows) {                                  \
        (void)threads, (void)rows;                                                                                    \
        for (int i = 0; i < 2 + (a[6].real != 0.0); ++i) in(&a[i], a[3].word * sizeof(REAL), "uform_sgd");            \
    }                                                                                                                 \
    static void call_sgd_##NAME(argument_t *a) {                                                                      \
        uform_sgd_##NAME(a[0].pointer, a[1].pointer, a[2].pointer, a[3].word, a[4].real, a[5].real, a[6].real,        \
            a[7].real, a[8].flag);                                                                                    \
    }                                                                                                                 \
    static void prepare_adamw_##NAME(argument_t *a, uint64_t threads, uint64_t rows) {                                \
        (void)threads, (void)rows;                                                                                    \
        for (int i = 0; i < 4; ++i) in(&a[i], a[4].word * sizeof(REAL), "uform_adamw");                               \
    }                                                                                                                 \
    static void call_adamw_##NAME(argument_t *a) {                                                                    \
        uform_adamw_##NAME(a[0].pointer, a[1].pointer, a[2].pointer, a[3].pointer, a[4].word, a[5].real, a[6].real,   \
            a[7].real, a[8].real, a[9].real, a[10].real, a[11].real);                                                 \
    }
CALLS(float, f32)
CALLS(double, f64)

static void prepare_fold(argument_t *a, uint64_t threads, uint64_t rows) {
    (void)rows;
    in(&a[0], (threads > a[1].word ? threads : a[1].word) * sizeof(double), "uform_fold");
}

static void call_fold(argument_t *a) { uform_fold(a[0].pointer, a[1].word); }

/* How many arguments there are, and which of them are ints: the rest have eight bytes. */
typedef struct {
    char const *name;
    int arguments, flag;
    void (*prepare)(argument_t *, uint64_t, uint64_t);
    void (*call)(argument_t *);
} function_t;

#define FUNCTIONS(NAME)                                                            \
    {"uform_scale_" #NAME, 5, -1, prepare_scale_##NAME, call_scale_##NAME},        \
        {"uform_inspect_" #NAME, 4, -1, prepare_inspect_##NAME, call_inspect_##NAME}, \
        {"uform_sgd_" #NAME, 9, 8, prepare_sgd_##NAME, call_sgd_##NAME},           \
        {"uform_adamw_" #NAME, 12, -1, prepare_adamw_##NAME, call_adamw_##NAME}

static function_t const functions[] = {{"uform_fold", 2, -1, prepare_fold, call_fold}, FUNCTIONS(f32), FUNCTIONS(f64)};

/* --- Modules --------------------------------------------------------------------------------------------------- */

typedef struct module { int magic; device_t *device; } module_t;
typedef struct entry { module_t *module; function_t const *function; } entry_t;

/* What the compilers below make, and the text of PTX in a version that the driver knows. */
static char const binary[] = "stand-in code for ";

int module_load(device_t *device, module_t **result, char const *image) {
    int major, minor;
    char const *version = strstr(image, ".version ");
    if (strncmp(image, binary, sizeof binary - 1)) {
        if (!version || sscanf(version, ".version %d.%d", &major, &minor) != 2) return 200; /* An invalid image. */
        /* PTX 8.0 came with CUDA 12.0, 7.4 with 11.4. */
        if (device->vendor != NVIDIA || (major + 4) * 1000 + minor * 10 > cuda_version) return UNSUPPORTED_PTX;
    }
    module_t *made = calloc(1, sizeof *made);
    if (!made) violation("the host has no memory for a module");
    made->magic = MODULE, made->device = device, device->modules += 1;
    *result = made;
    return SUCCESS;
}

static void check(module_t *module, char const *what) {
    if (module && module->magic == UNLOADED) violation("%s: a module that was unloaded", what);
    if (!module || module->magic != MODULE) violation("%s: no module", what);
}

int module_unload(module_t *module) {
    check(module, "unload");
    module->magic = UNLOADED, module->device->modules -= 1;
    return SUCCESS;
}

int module_function(device_t *current, entry_t **entry, module_t *module, char const *name) {
    check(module, "function");
    if (module->device != current) violation("function: a module of another device than the current one");
    for (size_t f = 0; f < sizeof functions / sizeof *functions; ++f) {
        if (strcmp(functions[f].name, name)) continue;
        *entry = malloc(sizeof **entry);
        if (!*entry) violation("the host has no memory for a function");
        **entry = (entry_t){module, &functions[f]};
        return SUCCESS;
    }
    return NOT_FOUND;
}

typedef struct { function_t const *function; unsigned blocks, rows, threads; argument_t arguments[ARGUMENTS]; } launch_t;

static void work(void *given) {
    launch_t *launch = given;
    stride = (unsigned long long)launch->blocks * launch->threads;
    launch->function->prepare(launch->arguments, stride, launch->rows);
    for (row = 0; row < launch->rows; ++row)
        for (position = 0; position < stride; ++position) launch->function->call(launch->arguments);
    free(launch);
}

int module_launch(device_t *current, entry_t *entry, unsigned const grid[3], unsigned const block[3], unsigned shared,
    stream_t *stream, void **arguments, void **extra) {
    check(entry->module, "launch");
    if (entry->module->device != current) violation("launch: a function of another device than the current one");
    if (!grid[0] || !grid[1] || grid[2] != 1 || grid[0] > 0x7fffffffu || grid[1] > 65535) return INVALID_VALUE;
    if (!block[0] || block[0] > 1024 || block[1] != 1 || block[2] != 1 || shared || extra) return INVALID_VALUE;
    launch_t *made = calloc(1, sizeof *made);
    if (!made) violation("the host has no memory for a launch");
    made->function = entry->function, made->blocks = grid[0], made->rows = grid[1], made->threads = block[0];
    /* The driver copies as many bytes as each argument has. */
    for (int a = 0; a < entry->function->arguments; ++a)
        memcpy(&made->arguments[a], arguments[a], a == entry->function->flag ? sizeof(int) : sizeof(uint64_t));
    int code = stream_call(current, stream, work, made);
    if (code) free(made);
    return code;
}

/* --- The compilers --------------------------------------------------------------------------------------------- */

enum { COMPILATION_ERROR = 6 };
typedef struct { char *source, made[128], log[256]; } program_t;

static int version_of(char const *name, int *major, int *minor) {
    int code = enter(name);
    *major = 12, *minor = 8;
    return code;
}

static int create(char const *name, program_t **program, char const *source, int headers) {
    int code = enter(name);
    if (code) return code;
    if (headers) violation("%s: headers are not known here", name);
    *program = calloc(1, sizeof **program);
    if (!*program || !((*program)->source = strdup(source))) violation("the host has no memory for a program");
    return SUCCESS;
}

/* Takes the product's own source, and the options without which it would be other arithmetic. */
static int compile(char const *name, program_t *program, int count, char const *const *options, char const *rounding) {
    int code = enter(name), keeps_roundings = 0;
    char const *target = "this device";
    for (int o = 0; o < count; ++o) {
        char const *value = strchr(options[o], '=');
        keeps_roundings |= !strcmp(options[o], rounding);
        if (value && strstr(options[o], "-arch")) target = value + 1;
    }
    if (!keeps_roundings) violation("%s: without %s", name, rounding);
    if (!strstr(program->source, "uform_adamw_##NAME")) violation("%s: another source", name);
    if (code) {
        snprintf(program->log, sizeof program->log, "error: %s is not known", target);
        return code;
    }
    snprintf(program->made, sizeof program->made, "%s%s", binary, target);
    return SUCCESS;
}

static int destroy(char const *name, program_t **program) {
    int code = enter(name);
    free((*program)->source), free(*program), *program = NULL;
    return code;
}

static int size(char const *text, size_t *bytes) { return *bytes = strlen(text) + 1, SUCCESS; }
static int give(char const *text, char *bytes) { return strcpy(bytes, text), SUCCESS; }
static char const *words(int code) { return code == COMPILATION_ERROR ? "compilation failed" : "some error"; }

int nvrtcVersion(int *major, int *minor) { return version_of("nvrtcVersion", major, minor); }
int nvrtcCreateProgram(program_t **program, char const *source, char const *name, int headers, void *texts, void *names) {
    (void)name, (void)texts, (void)names;
    return create("nvrtcCreateProgram", program, source, headers);
}
int nvrtcCompileProgram(program_t *program, int count, char const *const *options) {
    return compile("nvrtcCompileProgram", program, count, options, "--fmad=false");
}
int nvrtcDestroyProgram(program_t **program) { return destroy("nvrtcDestroyProgram", program); }
char const *nvrtcGetErrorString(int code) { return words(code); }
int nvrtcGetProgramLogSize(program_t *program, size_t *bytes) { return size(program->log, bytes); }
int nvrtcGetProgramLog(program_t *program, char *bytes) { return give(program->log, bytes); }
int nvrtcGetCUBINSize(program_t *program, size_t *bytes) { return size(program->made, bytes); }
int nvrtcGetCUBIN(program_t *program, char *bytes) { return give(program->made, bytes); }
int nvrtcGetPTXSize(program_t *program, size_t *bytes) { return size(program->made, bytes); }
int nvrtcGetPTX(program_t *program, char *bytes) { return give(program->made, bytes); }

int hiprtcVersion(int *major, int *minor) { return version_of("hiprtcVersion", major, minor); }
int hiprtcCreateProgram(program_t **program, char const *source, char const *name, int headers, void *texts, void *names) {
    (void)name, (void)texts, (void)names;
    return create("hiprtcCreateProgram", program, source, headers);
}
int hiprtcCompileProgram(program_t *program, int count, char const *const *options) {
    return compile("hiprtcCompileProgram", program, count, options, "-ffp-contract=off");
}
int hiprtcDestroyProgram(program_t **program) { return destroy("hiprtcDestroyProgram", program); }
char const *hiprtcGetErrorString(int code) { return words(code); }
int hiprtcGetProgramLogSize(program_t *program, size_t *bytes) { return size(program->log, bytes); }
int hiprtcGetProgramLog(program_t *program, char *bytes) { return give(program->log, bytes); }
int hiprtcGetCodeSize(program_t *program, size_t *bytes) { return size(program->made, bytes); }
int hiprtcGetCode(program_t *program, char *bytes) { return give(program->made, bytes); }
