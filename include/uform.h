/**
 *  The C interface of uform: collective operations and data-parallel training over host and GPU memory.
 *
 *  A process joins its run with `uform_mesh_bootstrap` and calls the verbs of the mesh; a trainer lives on a mesh.
 *
 *  Results. A verb returns a `uform_status_t`: 0 for success, else the kind of error. The text of the calling thread's
 *  last error is read with `uform_last_error`. Results go to the pointers at the end of the arguments. After an error
 *  they are untouched, but for handles and pointers to memory, which are NULL then. No verb ends the process, and none
 *  lets a panic or an exception out. Callbacks must let none in: they return, and do not throw or jump.
 *
 *  Handles. `uform_executor_t`, `uform_mesh_t` and the others are opaque. Each is released with its `_free`, which takes
 *  NULL too. A handle that was freed is `uform_status_closed_k`; what is no handle, or one of another kind, is
 *  `uform_status_invalid_k`; neither touches memory. Any thread may use any handle. A forked child makes its own.
 *
 *  Structs. Each begins with `struct_size`, and each has an initialiser, `UFORM_..._INIT`, with all defaults:
 *      uform_mesh_options_t options = UFORM_MESH_OPTIONS_INIT;
 *  Later versions add fields at the end. A program that was compiled with an older header works with a newer library,
 *  with the defaults of what it does not know. With an older library it works as long as what is new stays zero.
 *  Where a pointer to options may be NULL, NULL means all defaults.
 *
 *  Arrays. Counts are elements of a `uform_dtype_t`, and arrays are contiguous and aligned to their elements. Verbs of a
 *  mesh are collective: all processes call the same ones in the same order, with matching counts. Where the executor of a
 *  mesh is one of GPU streams, arrays may be in the memory of its GPU: of `uform_arena_take_on`, or any that CUDA's driver
 *  knows, whose earlier work has ended. All arrays of a call, of all processes, are then on GPUs, and each GPU takes the
 *  place of a process: `root`, `counts` and the order of parts count the GPUs of all processes, in the order of indexes and
 *  then of their executors. A process with several GPUs gives one array for each, see `uform_call_options_t`.
 *
 *  Numbers of enumerations, once published, never change. Enumerations have the size of an `int`.
 */
#ifndef UFORM_H
#define UFORM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The CPU family that kernels dispatch as. */
typedef enum uform_cpu_class_t {
    /** Portable code without special instructions. */
    uform_cpu_class_serial_k = 1,
    /** AVX2, F16C and FMA. */
    uform_cpu_class_intel_haswell_k = 2,
    /** Haswell with AVX-VNNI-INT8 and without AVX-512. */
    uform_cpu_class_intel_sierra_k = 3,
    /** AVX-512 F, CD, DQ, BW and VL. */
    uform_cpu_class_intel_skylake_k = 4,
    /** Skylake with VNNI, IFMA, BITALG, VBMI, VBMI2 and VPOPCNTDQ. */
    uform_cpu_class_intel_icelake_k = 5,
    /** Ice Lake with AVX512-BF16. */
    uform_cpu_class_amd_genoa_k = 6,
    /** AVX512-FP16, BF16, AVX-VNNI and AMX. */
    uform_cpu_class_intel_sapphire_k = 7,
    /** Sapphire Rapids with AMX-FP16. */
    uform_cpu_class_intel_granite_k = 8,
    /** AVX10.2 and APX. */
    uform_cpu_class_intel_diamond_k = 9,
    /** Neoverse N1: dot product and half precision. */
    uform_cpu_class_aws_g2_k = 10,
    /** Apple M2: bfloat16 and i8mm, no SVE. */
    uform_cpu_class_apple_m2_k = 11,
    /** Apple M4: SME and SME2. */
    uform_cpu_class_apple_m4_k = 12,
    /** Neoverse V3: SVE2 of 128 bits, bfloat16, i8mm. */
    uform_cpu_class_aws_g5_k = 13,
    /** NVIDIA Olympus cores: SVE2, bfloat16, i8mm, FP8. */
    uform_cpu_class_nvidia_vera_k = 14,
    /** XuanTie C930: RVV 1.0 of 256 bits. */
    uform_cpu_class_alibaba_c930_k = 15,
    /** WebAssembly with SIMD of 128 bits. */
    uform_cpu_class_wasm32_v128_k = 16,
    /** 64-bit WebAssembly with relaxed SIMD. */
    uform_cpu_class_wasm64_extended_k = 17,
    /** One version, fixed when the library was compiled. */
    uform_cpu_class_monoversioned_k = 18
} uform_cpu_class_t;

/** The GPU generation that kernels dispatch as. */
typedef enum uform_gpu_class_t {
    /** Compute capability 8.0 to 8.8. */
    uform_gpu_class_nvidia_ampere_k = 1,
    /** Compute capability 8.9. */
    uform_gpu_class_nvidia_ada_k = 2,
    /** Compute capability 9.0. */
    uform_gpu_class_nvidia_hopper_k = 3,
    /** Compute capability 10.0 to 11.0, data centre. */
    uform_gpu_class_nvidia_blackwell_k = 4,
    /** Compute capability 12.0 and 12.1. */
    uform_gpu_class_nvidia_blackwellrtx_k = 5,
    /** Compute capability 10.7. */
    uform_gpu_class_nvidia_rubin_k = 6,
    /** gfx942. */
    uform_gpu_class_amd_cdna3_k = 7,
    /** gfx950. */
    uform_gpu_class_amd_cdna4_k = 8,
    /** gfx1250. */
    uform_gpu_class_amd_cdna5_k = 9,
    /** Apple GPU family 7. */
    uform_gpu_class_apple_metal7_k = 10,
    /** Apple GPU family 9. */
    uform_gpu_class_apple_metal9_k = 11,
    /** Apple GPU family 10. */
    uform_gpu_class_apple_metal10_k = 12
} uform_gpu_class_t;

/** Who made a GPU. */
typedef enum uform_gpu_vendor_t {
    /** NVIDIA. */
    uform_gpu_vendor_nvidia_k = 1,
    /** AMD. */
    uform_gpu_vendor_amd_k = 2,
    /** Apple. */
    uform_gpu_vendor_apple_k = 3
} uform_gpu_vendor_t;

/** How the NVLink domains of a run reduce. */
typedef enum uform_multimem_tier_t {
    /** Every multimem domain of two or more GPUs can reduce in the switch. */
    uform_multimem_tier_switch_reduced_k = 0,
    /** GPUs read each other's memory; also without GPUs, with one, and on AMD. */
    uform_multimem_tier_peer_read_k = 1
} uform_multimem_tier_t;

/** Which of the processes of a mesh belong together because of where they are. */
typedef enum uform_mesh_domain_t {
    /** Those whose first GPU is in the multimem domain of this one's first GPU. */
    uform_mesh_domain_multimem_k = 0,
    /** Those that share memory: the host domains of one host. */
    uform_mesh_domain_host_k = 1,
    /** Those of the colocated domain: all of them. */
    uform_mesh_domain_colocated_k = 2
} uform_mesh_domain_t;

/** What idle threads of an executor do. */
typedef enum uform_mood_t {
    /** Spin: lowest latency. */
    uform_mood_busy_k = 0,
    /** Sleep: no CPU time. */
    uform_mood_parked_k = 1
} uform_mood_t;

/** How a collective combines the values of its members. */
typedef enum uform_reduce_op_t {
    /** The sum, added in the order of member indexes. */
    uform_reduce_op_sum_k = 0,
    /** The product. */
    uform_reduce_op_product_k = 1,
    /** The smallest value; a NaN of any member gives NaN. */
    uform_reduce_op_min_k = 2,
    /** The largest value; a NaN of any member gives NaN. */
    uform_reduce_op_max_k = 3,
    /** The sum divided by the number of members; integers round toward zero. */
    uform_reduce_op_average_k = 4,
    /** Bitwise and, integers only. */
    uform_reduce_op_bitwise_and_k = 5,
    /** Bitwise or, integers only. */
    uform_reduce_op_bitwise_or_k = 6,
    /** Bitwise exclusive or, integers only. */
    uform_reduce_op_bitwise_xor_k = 7
} uform_reduce_op_t;

/** The element type of an array. */
typedef enum uform_dtype_t {
    /** IEEE 754 binary64. */
    uform_dtype_f64_k = 1,
    /** IEEE 754 binary32. */
    uform_dtype_f32_k = 2,
    /** IEEE 754 binary16. */
    uform_dtype_f16_k = 3,
    /** bfloat16. */
    uform_dtype_bf16_k = 4,
    /** Signed 8 bits. */
    uform_dtype_i8_k = 5,
    /** Unsigned 8 bits. */
    uform_dtype_u8_k = 6,
    /** Signed 16 bits. */
    uform_dtype_i16_k = 7,
    /** Unsigned 16 bits. */
    uform_dtype_u16_k = 8,
    /** Signed 32 bits. */
    uform_dtype_i32_k = 9,
    /** Unsigned 32 bits. */
    uform_dtype_u32_k = 10,
    /** Signed 64 bits. */
    uform_dtype_i64_k = 11,
    /** Unsigned 64 bits. */
    uform_dtype_u64_k = 12,
    /** One byte, 0 or 1. */
    uform_dtype_bool_k = 13
} uform_dtype_t;

/** What a C verb returns: 0 for success, else the kind of error. */
typedef enum uform_status_t {
    /** The call did what it says. */
    uform_status_success_k = 0,
    /** Not to be had here; another way is needed. */
    uform_status_unsupported_k = 1,
    /** Held by another call. */
    uform_status_contended_k = 2,
    /** A wrong argument or variable. */
    uform_status_invalid_k = 3,
    /** Closed before the call. */
    uform_status_closed_k = 4,
    /** The deadline passed. */
    uform_status_timed_out_k = 5,
    /** Members say different things. */
    uform_status_disagreed_k = 6,
    /** A member is gone. */
    uform_status_lost_k = 7,
    /** Memory, descriptors or disk ran out. */
    uform_status_exhausted_k = 8,
    /** A vendor's library failed. */
    uform_status_vendor_k = 9,
    /** The operating system refused a file operation. */
    uform_status_io_k = 10,
    /** Stored data is damaged. */
    uform_status_corrupt_k = 11,
    /** The caller's interrupt check ended the wait. */
    uform_status_interrupted_k = 12
} uform_status_t;

/** A build with shorter enumerations would pass other structs. */
typedef char uform_enumerations_are_int_t[sizeof(uform_status_t) == sizeof(int) ? 1 : -1];

/** Threads or streams that run the calls of one process, one call at a time. */
typedef struct uform_executor_t uform_executor_t;
/** The processes of a run, met and connected. */
typedef struct uform_mesh_t uform_mesh_t;
/** Memory that the processes of a host share. */
typedef struct uform_arena_t uform_arena_t;
/** The byte strings of all processes, as an exchange gave them. */
typedef struct uform_payloads_t uform_payloads_t;
/** Parameters, gradients and the state of an optimizer. */
typedef struct uform_trainer_t uform_trainer_t;
/**
 *  A call that goes on after it was submitted, on the threads of its executor.
 *
 *  The verbs of a mesh on arrays, `uform_mesh_exchange`, `uform_mesh_arena`, and the step, save and load of a trainer are
 *  deferred by the field `deferred` of their options: they return as soon as they have checked their arguments. Calls run in
 *  the order in which they were submitted, and deadlines count from submission.
 *
 *  Arrays must stay where they are until the call has ended. What it gives otherwise goes, when `uform_deferred_wait` has
 *  success, to the pointers that were given with the call; without that wait they are not used.
 */
typedef struct uform_deferred_t uform_deferred_t;

/**
 *  Asked at least every 50 ms while a call waits; another answer than 0 ends the call with
 *  `uform_status_interrupted_k`. It may be called on any thread until the call returns.
 *
 *  A signal handler that sets a flag, and an answer that reads it, end a wait on Ctrl-C.
 */
typedef int (*uform_interrupt_t)(void *user);

/**
 *  Told how far a call has come: how many of how many bytes, at most once in 50 ms, and at its success a last time.
 *
 *  It runs on a thread of the executor, until the call ends, and delays the call. A call that it makes on the same
 *  executor is `uform_status_contended_k`.
 */
typedef void (*uform_progress_t)(uint64_t done, uint64_t total, void *user);

/** Called once when a deferred call has ended. */
typedef void (*uform_ended_t)(void *user);

/** How one call is made. */
typedef struct uform_call_options_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The deadline of the call; 0 means 1,800 seconds. Negative, NaN and infinite numbers are invalid. */
    double timeout_seconds;
    /** May end the call early; NULL for none. */
    uform_interrupt_t interrupt;
    /** Given to `interrupt`. */
    void *interrupt_user;
    /** Told how far a verb on arrays has come; NULL for none. */
    uform_progress_t progress;
    /** Given to `progress`. */
    void *progress_user;
    /** Where the handle of a deferred call goes; NULL waits for the call. See `uform_deferred_t`. */
    uform_deferred_t **deferred;
    /** 1: the bits of a reduction of floats do not depend on how members are spread over hosts, which costs more between
     *  hosts; 0: values of one host are combined first. The same on all members. */
    uint64_t reproducible;
    /** Where this process drives several GPUs: the call's `array` on each one after the first, in the order of the executor;
     *  the arguments of the call are those of the first GPU. NULL for none. An entry may be NULL where the call's could be. */
    void const *const *further_arrays;
    /** The call's `out` on each of them, for verbs with one; NULL for none. */
    void *const *further_outs;
    /** How many they are: one less than the executor's GPUs, or 0. */
    size_t further_count;
} uform_call_options_t;

/** All defaults of `uform_call_options_t`. */
#define UFORM_CALL_OPTIONS_INIT                                                                              \
    {sizeof(uform_call_options_t), 0.0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, 0}

/** What is asked of an executor of host threads. */
typedef struct uform_host_options_t {
    /** The size of this struct. */
    size_t struct_size;
    /** How many threads; 0 is the core budget: affinity, control group and the share among processes of the host. */
    size_t threads;
    /** The memory domains (NUMA nodes) to sit on; NULL for all that this process's cores touch. */
    uint32_t const *memory_domains;
    /** How many `memory_domains` there are. */
    size_t memory_domain_count;
    /** How many deferred calls may wait behind the one that holds the executor. */
    size_t deferred_limit;
    /** The class that kernels dispatch as; 0 takes the best that was compiled and this machine can run. */
    uform_cpu_class_t cpu_class;
    /** Must be 0. */
    int reserved;
} uform_host_options_t;

/** All defaults of `uform_host_options_t`. */
#define UFORM_HOST_OPTIONS_INIT {sizeof(uform_host_options_t), 0, NULL, 0, 0, (uform_cpu_class_t)0, 0}

/** What is asked of an executor of GPU streams. */
typedef struct uform_vram_options_t {
    /** The size of this struct. */
    size_t struct_size;
    /** Positions in `uform_gpu_devices`; NULL for all. */
    size_t const *devices;
    /** How many `devices` there are. */
    size_t device_count;
    /** Bytes of scratch memory per GPU; 0 for no limit. */
    uint64_t scratch_limit;
    /** How many deferred calls may wait behind the one that holds the executor. */
    size_t deferred_limit;
    /** The memory domains for the host's threads; NULL for those near the GPUs. */
    uint32_t const *memory_domains;
    /** How many `memory_domains` there are. */
    size_t memory_domain_count;
    /** The class that GPU kernels dispatch as; 0 takes that of the GPUs. */
    uform_gpu_class_t gpu_class;
    /** The class that host kernels dispatch as; 0 takes the best. */
    uform_cpu_class_t cpu_class;
} uform_vram_options_t;

/** All defaults of `uform_vram_options_t`. */
#define UFORM_VRAM_OPTIONS_INIT                                                                              \
    {sizeof(uform_vram_options_t), NULL, 0, 0, 0, NULL, 0, (uform_gpu_class_t)0, (uform_cpu_class_t)0}

/** What a process says about its run; a zero or NULL means "find it out". */
typedef struct uform_mesh_options_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The index of this process; taken as given if `host_domain_count` is above 0, and else 0. */
    size_t host_domain_index;
    /** How many processes the run has; 0 takes both numbers from the launcher. */
    size_t host_domain_count;
    /** Cuts the multimem domains found into groups of so many GPUs. */
    size_t gpus_per_multimem_domain;
    /** The directory that all processes of the run see. */
    char const *directory;
    /** The name of the run, the same in all its processes. */
    char const *job;
    /** How long bootstrap may take; 0 means 300 seconds. */
    double timeout_seconds;
    /** May end bootstrap early; NULL for none. */
    uform_interrupt_t interrupt;
    /** Given to `interrupt`. */
    void *interrupt_user;
} uform_mesh_options_t;

/** All defaults of `uform_mesh_options_t`. */
#define UFORM_MESH_OPTIONS_INIT {sizeof(uform_mesh_options_t), 0, 0, 0, NULL, NULL, 0.0, NULL, NULL}

/** The place of one process in its run. */
typedef struct uform_mesh_description_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The GPUs of this process. */
    size_t gpus_per_host_domain;
    /** The GPUs of the multimem domain of this process's first GPU; 0 without GPUs. */
    size_t gpus_per_multimem_domain;
    /** All GPUs of the run. */
    size_t gpus_per_colocated_domain;
    /** The index of this process. */
    size_t host_domain_index;
    /** The GPUs of the processes before this one. */
    size_t first_gpu_index;
    /** How the run's multimem domains reduce. */
    uform_multimem_tier_t multimem_tier;
    /** The class that every GPU of the run dispatches as; 0 for none or a mixture. */
    uform_gpu_class_t gpu_class;
} uform_mesh_description_t;

/** An empty `uform_mesh_description_t`. */
#define UFORM_MESH_DESCRIPTION_INIT                                                                          \
    {sizeof(uform_mesh_description_t), 0, 0, 0, 0, 0, (uform_multimem_tier_t)0, (uform_gpu_class_t)0}

/** One GPU. */
typedef struct uform_gpu_device_t {
    /** The size of this struct. */
    size_t struct_size;
    /** Who made it. */
    uform_gpu_vendor_t vendor;
    /** The vendor's own number, whatever the visibility variables say. */
    uint32_t vendor_ordinal;
    /** The generation it dispatches as; 0 if it is not known. */
    uform_gpu_class_t gpu_class;
    /** Multiprocessors or compute units. */
    uint32_t compute_units;
    /** Device memory in bytes. */
    uint64_t memory_bytes;
    /** The product name, zero-ended; a longer one is cut. */
    char name[128];
} uform_gpu_device_t;

/** An empty `uform_gpu_device_t`. */
#define UFORM_GPU_DEVICE_INIT                                                                                \
    {sizeof(uform_gpu_device_t), (uform_gpu_vendor_t)0, 0, (uform_gpu_class_t)0, 0, 0, {0}}

/** One parameter of a trainer. */
typedef struct uform_parameter_t {
    /** The size of this struct. */
    size_t struct_size;
    /** Its name, unique in the trainer. */
    char const *name;
    /** Its extents, row-major; any of them may be 0. NULL for a scalar. */
    size_t const *shape;
    /** How many extents there are; 0 for a scalar. */
    size_t dimension_count;
    /** Its element type, F32 or F64. */
    uform_dtype_t dtype;
    /** Its initial values, of which those of index 0 count; NULL for zeros. */
    void const *values;
} uform_parameter_t;

/** An empty `uform_parameter_t`. */
#define UFORM_PARAMETER_INIT {sizeof(uform_parameter_t), NULL, NULL, 0, (uform_dtype_t)0, NULL}

/** Stochastic gradient descent with the semantics of `torch.optim.SGD` and dampening 0. */
typedef struct uform_sgd_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The step size, 0 or more. */
    double learning_rate;
    /** What is kept of the last direction, 0 or more. */
    double momentum;
    /** Decay, added to the gradient, 0 or more. */
    double weight_decay;
    /** Another number than 0 looks one step of the momentum ahead. */
    int nesterov;
    /** Must be 0. */
    int reserved;
} uform_sgd_t;

/** All defaults of `uform_sgd_t`; `learning_rate` is yours to set. */
#define UFORM_SGD_INIT {sizeof(uform_sgd_t), 0.0, 0.0, 0.0, 0, 0}

/** AdamW: decay apart from the gradient (Loshchilov and Hutter, ICLR 2019). */
typedef struct uform_adamw_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The step size, 0 or more. */
    double learning_rate;
    /** The decay of the first moment, from 0 to below 1. */
    double beta1;
    /** The decay of the second moment, from 0 to below 1. */
    double beta2;
    /** Keeps the denominator from 0. */
    double epsilon;
    /** Decay of the parameters, 0 or more. */
    double weight_decay;
} uform_adamw_t;

/** All defaults of `uform_adamw_t`; `learning_rate` is yours to set. */
#define UFORM_ADAMW_INIT {sizeof(uform_adamw_t), 0.0, 0.9, 0.999, 1e-8, 0.01}

/** How a trainer updates its parameters. */
typedef struct uform_trainer_options_t {
    /** The size of this struct. */
    size_t struct_size;
    /** The optimizer, NULL if it is another one. Exactly one is given. */
    uform_sgd_t const *sgd;
    /** The optimizer, NULL if it is another one. Exactly one is given. */
    uform_adamw_t const *adamw;
    /** The norm to which all gradients together are clipped; 0 for no clipping. */
    double clip_norm;
} uform_trainer_options_t;

/** All defaults of `uform_trainer_options_t`; an optimizer is yours to set. */
#define UFORM_TRAINER_OPTIONS_INIT {sizeof(uform_trainer_options_t), NULL, NULL, 0.0}

/** What one step did. */
typedef struct uform_step_report_t {
    /** The size of this struct. */
    size_t struct_size;
    /** How many updates the parameters have seen, this one included. */
    uint64_t step;
    /** The norm of the mean gradient before clipping; see `has_gradient_norm`. */
    double gradient_norm;
    /** The sum of the processes' weights. */
    double weight;
    /** The part of the time in which this process waited for the others. */
    double communication_seconds;
    /** The whole time of the call. */
    double seconds;
    /** 1 if nothing was updated, since a gradient or the norm was not finite. */
    int skipped;
    /** 1 if the norm was computed, which only clipping needs. */
    int has_gradient_norm;
} uform_step_report_t;

/** An empty `uform_step_report_t`. */
#define UFORM_STEP_REPORT_INIT {sizeof(uform_step_report_t), 0, 0.0, 0.0, 0.0, 0.0, 0, 0}

/** The version of the library as `major.minor.patch`, zero-ended, valid for ever. */
char const *uform_version(void);

/** The lower-case name of a status, zero-ended, valid for ever; NULL for a number that is no status. */
char const *uform_status_name(uform_status_t status);

/**
 *  Copies the text of this thread's last error.
 *
 *  The text stays until the thread's next verb that fails. At most `capacity` bytes are written, a zero at the end
 *  included; a longer text is cut. Nothing is written where `text` is NULL or `capacity` is 0.
 *
 *  @return the length of the whole text in bytes without its zero; 0 if no verb of this thread has failed.
 */
size_t uform_last_error(char *text, size_t capacity);

/**
 *  What this build can do: words separated by spaces, in a fixed order, such as CPU classes and engines.
 *
 *  At most `capacity` bytes are written, a zero at the end included; a longer text is cut. With `text` NULL and
 *  `capacity` 0 only the length is asked for.
 *
 *  @param length receives the length of the whole text in bytes without its zero; may be NULL.
 *  @return `uform_status_invalid_k` if `text` is NULL and `capacity` is not 0.
 */
uform_status_t uform_capabilities_compiled(char *text, size_t capacity, size_t *length);

/** What this build can do on this machine; arguments and result as in `uform_capabilities_compiled`. */
uform_status_t uform_capabilities_available(char *text, size_t capacity, size_t *length);

/**
 *  Lists the GPUs that this process may use, NVIDIA devices first, then AMD. No GPU runtime is started.
 *
 *  @param devices an array whose first element has its `struct_size`; may be NULL if `capacity` is 0.
 *  @param count receives how many there are, which may be more than `capacity`; only `capacity` are written.
 */
uform_status_t uform_gpu_devices(uform_gpu_device_t *devices, size_t capacity, size_t *count);

/* --- Executors ------------------------------------------------------------------------------------------------ */

/**
 *  Makes an executor of host threads, pinned to cores that this process may use.
 *
 *  @param options NULL for the core budget of this process.
 */
uform_status_t uform_executor_for_ram(uform_host_options_t const *options, uform_executor_t **executor);

/** Returns `uform_status_unsupported_k`: the threads of a foreign pool cannot be pinned, drained or closed. */
uform_status_t uform_executor_on_pool(void *pool, uform_host_options_t const *options, uform_executor_t **executor);

/**
 *  Makes an executor of one stream per GPU, with host threads near them.
 *
 *  It starts the GPUs' driver, after which a forked child may not use it. Wrong ordinals and classes are
 *  `uform_status_invalid_k`; no GPU, and a driver that is missing, too old or does not start, `uform_status_unsupported_k`.
 *
 *  @param options NULL for all GPUs of this process.
 */
uform_status_t uform_executor_for_vram(uform_vram_options_t const *options, uform_executor_t **executor);

/** Tells how many threads it has. */
uform_status_t uform_executor_threads(uform_executor_t const *executor, size_t *threads);

/** Tells the class that kernels dispatch as on it. */
uform_status_t uform_executor_cpu_class(uform_executor_t const *executor, uform_cpu_class_t *cpu_class);

/** Tells how many deferred calls may wait behind the one that holds it. */
uform_status_t uform_executor_deferred_limit(uform_executor_t const *executor, size_t *deferred_limit);

/** Tells what its idle threads do. */
uform_status_t uform_executor_mood(uform_executor_t const *executor, uform_mood_t *mood);

/** Tells whether it is closed: 1 or 0. */
uform_status_t uform_executor_is_closed(uform_executor_t const *executor, int *is_closed);

/** Waits for every call that was made before, then sets what idle threads do. */
uform_status_t uform_executor_drain(uform_executor_t const *executor, uform_mood_t mood,
                                    uform_call_options_t const *options);

/**
 *  Waits for the call that holds it and ends its threads. Calls that wait in its line, and later ones, are
 *  `uform_status_closed_k`; drain it first to let them run. Closing twice is harmless.
 */
uform_status_t uform_executor_close(uform_executor_t const *executor, uform_call_options_t const *options);

/**
 *  Releases the handle. An executor that was made is drained and closed first; one that `uform_mesh_executor` gave is
 *  not. The handle is gone whatever the status.
 */
uform_status_t uform_executor_free(uform_executor_t *executor);

/* --- Meshes --------------------------------------------------------------------------------------------------- */

/**
 *  Joins the run that this process belongs to.
 *
 *  @param executor runs the calls, and must live as long as the mesh is used; NULL makes one from the topology.
 *  @param options NULL reads the environment of the launcher; without a launcher it is a mesh of one process.
 */
uform_status_t uform_mesh_bootstrap(uform_executor_t const *executor, uform_mesh_options_t const *options,
                                    uform_mesh_t **mesh);

/**
 *  Joins the processes of an MPI communicator; the index of each is its rank.
 *
 *  `uform_mesh_bootstrap` does so by itself under the mpirun of the library that this one is linked to, if nobody names a
 *  directory. MPI is started if it does not run, and finalised at the end of the process; one that the program has started
 *  is left to it, and must give `MPI_THREAD_SERIALIZED`. A library that was built without MPI answers `unsupported`.
 *
 *  @param executor, options as in `uform_mesh_bootstrap`.
 *  @param communicator points to an `MPI_Comm`; NULL stands for `MPI_COMM_WORLD`.
 */
uform_status_t uform_mesh_bootstrap_over_mpi(uform_executor_t const *executor, uform_mesh_options_t const *options,
                                             void const *communicator, uform_mesh_t **mesh);

/** Tells the index of this process in the run. */
uform_status_t uform_mesh_index(uform_mesh_t const *mesh, size_t *index);

/** Tells how many processes the run has. */
uform_status_t uform_mesh_count(uform_mesh_t const *mesh, size_t *count);

/** Tells whether the mesh is closed here: 1 or 0. */
uform_status_t uform_mesh_is_closed(uform_mesh_t const *mesh, int *is_closed);

/** Gives the executor that runs the mesh's calls. Its handle is freed too, which does not close it. */
uform_status_t uform_mesh_executor(uform_mesh_t const *mesh, uform_executor_t **executor);

/** Tells the place of this process in the run. */
uform_status_t uform_mesh_describe(uform_mesh_t const *mesh, uform_mesh_description_t *description);

/**
 *  Copies who is in the run and what is near to what, as a tree for people.
 *
 *  Arguments and result as in `uform_capabilities_compiled`.
 */
uform_status_t uform_mesh_topology(uform_mesh_t const *mesh, char *text, size_t capacity, size_t *length);

/** Copies the same as JSON. */
uform_status_t uform_mesh_topology_json(uform_mesh_t const *mesh, char *text, size_t capacity, size_t *length);

/**
 *  Reduces the arrays of all processes: `count` elements in, `count` out, everywhere.
 *
 *  Additions are made in the order of indexes: all processes and all runs get the same bits.
 *
 *  @param array what this process gives; the same pointer as `out` works in place, and no other overlap is legal.
 */
uform_status_t uform_mesh_all_reduce(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                     uform_dtype_t dtype, uform_reduce_op_t op,
                                     uform_call_options_t const *options);

/**
 *  Reduces many arrays of all processes as one call, in place: packed together, agreed on once. It pays for small arrays.
 *
 *  @param arrays `array_count` of them, which must not overlap.
 *  @param counts how many elements each has, the same numbers in the same order everywhere; else
 *      `uform_status_disagreed_k`.
 */
uform_status_t uform_mesh_all_reduce_many(uform_mesh_t const *mesh, void *const *arrays, size_t const *counts,
                                          size_t array_count, uform_dtype_t dtype, uform_reduce_op_t op,
                                          uform_call_options_t const *options);

/** Copies many arrays of `root` to all processes as one call; else as `uform_mesh_all_reduce_many`. */
uform_status_t uform_mesh_broadcast_many(uform_mesh_t const *mesh, void *const *arrays, size_t const *counts,
                                         size_t array_count, uform_dtype_t dtype, size_t root,
                                         uform_call_options_t const *options);

/** Copies the array of `root` to all processes. */
uform_status_t uform_mesh_broadcast(uform_mesh_t const *mesh, void *array, size_t count, uform_dtype_t dtype,
                                    size_t root, uform_call_options_t const *options);

/**
 *  Puts the arrays of all processes one after the other, by index: `count` elements in, those of all out.
 *
 *  @param array what this process gives; it may be its own part of `out`, or all of `out`, and no other overlap is legal.
 *  @param counts NULL: all give `count`. Else how many elements each process gives, the same numbers everywhere; `count` is
 *      then not looked at.
 */
uform_status_t uform_mesh_all_gather(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                     size_t const *counts, uform_dtype_t dtype,
                                     uform_call_options_t const *options);

/**
 *  Reduces the arrays of all processes and gives each its part, by index: those of all in, `count` elements out.
 *
 *  @param array `count` elements for each process; it must not overlap `out`, but may be all of it for one process.
 *  @param counts NULL: all get `count`. Else how many elements each process gets, the same numbers everywhere; `count` is
 *      then not looked at.
 */
uform_status_t uform_mesh_reduce_scatter(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                         size_t const *counts, uform_dtype_t dtype, uform_reduce_op_t op,
                                         uform_call_options_t const *options);

/**
 *  Gives the reduction of all to `root`: `count` elements in, `count` out at `root`.
 *
 *  @param array what this process gives; at `root` it may be the same pointer as `out`, and no other overlap is legal.
 *  @param out not looked at elsewhere than at `root`.
 */
uform_status_t uform_mesh_reduce(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                 uform_dtype_t dtype, uform_reduce_op_t op, size_t root,
                                 uform_call_options_t const *options);

/**
 *  Gives every process one part of every other: the part for each process in, by index, and the part from each out.
 *
 *  @param array `count` elements for each process; the same pointer as `out` with as many elements works in place, and no
 *      other overlap is legal.
 *  @param send_counts NULL, as `receive_counts`: all parts have `count` elements. Else how many go to each process.
 *  @param receive_counts how many come from each process; a pair that counts differently is `uform_status_disagreed_k`.
 */
uform_status_t uform_mesh_all_to_all(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                     size_t const *send_counts, size_t const *receive_counts,
                                     uform_dtype_t dtype, uform_call_options_t const *options);

/**
 *  Gives `root` the arrays of all, one after the other, by index: `count` elements in, those of all out at `root`.
 *
 *  @param out not looked at elsewhere than at `root`; it must not overlap `array`.
 *  @param counts as in `uform_mesh_all_gather`.
 */
uform_status_t uform_mesh_gather(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                 size_t const *counts, uform_dtype_t dtype, size_t root,
                                 uform_call_options_t const *options);

/**
 *  Gives every process its part of the array of `root`, by index: those of all in at `root`, `count` elements out.
 *
 *  @param array not looked at elsewhere than at `root`; it must not overlap `out`.
 *  @param counts as in `uform_mesh_reduce_scatter`.
 */
uform_status_t uform_mesh_scatter(uform_mesh_t const *mesh, void const *array, void *out, size_t count,
                                  size_t const *counts, uform_dtype_t dtype, size_t root,
                                  uform_call_options_t const *options);

/**
 *  Gives `count` elements to the process with the index `destination`, which receives as many with the same tag.
 *
 *  Messages of one tag are received in the order of their sends, and other tags do not wait for them. What fits into 64 KiB
 *  together with all that was sent there and not received, 64 bytes counted for each message, is sent before its receive (over
 *  MPI 1 KiB); the send of more ends when the other side receives.
 */
uform_status_t uform_mesh_send(uform_mesh_t const *mesh, void const *array, size_t count, uform_dtype_t dtype,
                               size_t destination, uint64_t tag, uform_call_options_t const *options);

/** Takes `count` elements that the process with the index `source` sends with this tag. */
uform_status_t uform_mesh_receive(uform_mesh_t const *mesh, void *array, size_t count, uform_dtype_t dtype,
                                  size_t source, uint64_t tag, uform_call_options_t const *options);

/** Returns when all processes have called it. */
uform_status_t uform_mesh_barrier(uform_mesh_t const *mesh, uform_call_options_t const *options);

/**
 *  Gives the byte strings of all processes, by index.
 *
 *  @param payload what this process gives; lengths may differ.
 */
uform_status_t uform_mesh_exchange(uform_mesh_t const *mesh, void const *payload, size_t byte_count,
                                   uform_call_options_t const *options, uform_payloads_t **payloads);

/**
 *  Makes memory that the processes of a host share; collective. Verbs on its arrays copy nothing on their way.
 *
 *  @param byte_count the bytes of this process's own part; they may differ between processes.
 */
uform_status_t uform_mesh_arena(uform_mesh_t const *mesh, size_t byte_count, uform_call_options_t const *options,
                                uform_arena_t **arena);

/** Gives the same mesh with its verbs on another executor; its handle is freed too, which does not leave the run. */
uform_status_t uform_mesh_on(uform_mesh_t const *mesh, uform_executor_t const *executor, uform_mesh_t **other);

/**
 *  Makes a mesh of the processes that give the same color; all processes of the mesh call it.
 *
 *  The part runs on the executor of `mesh`, and either may be closed first. It is freed as a mesh is.
 *
 *  @param color NULL joins none, and `part` is then NULL.
 *  @param key puts the processes of a color in order; equal keys are in the order of indexes.
 */
uform_status_t uform_mesh_split(uform_mesh_t const *mesh, uint64_t const *color, int64_t key,
                                uform_call_options_t const *options, uform_mesh_t **part);

/** Makes a mesh of the processes in the same domain as this one, in the order of indexes; all processes of the mesh call it. */
uform_status_t uform_mesh_domain(uform_mesh_t const *mesh, uform_mesh_domain_t domain,
                                 uform_call_options_t const *options, uform_mesh_t **part);

/**
 *  Makes a mesh of the processes that are left, in the order of indexes, after a call has ended in `uform_status_lost_k`,
 *  `uform_status_timed_out_k` or `uform_status_interrupted_k`; all that are left call it. More than half of the mesh go on, or
 *  exactly half with index 0; for others it is `uform_status_closed_k`, and the message says who went on. The old mesh is closed.
 */
uform_status_t uform_mesh_shrink(uform_mesh_t const *mesh, uform_call_options_t const *options,
                                 uform_mesh_t **survivors);

/** Leaves the run: others that call later get `uform_status_lost_k`. Closing twice is harmless. */
uform_status_t uform_mesh_close(uform_mesh_t const *mesh);

/** Leaves the run, as `uform_mesh_close` does it, and releases the handle, which is gone whatever the status. */
uform_status_t uform_mesh_free(uform_mesh_t *mesh);

/* --- Deferred calls ------------------------------------------------------------------------------------------- */

/** Tells whether the call has ended: 1 or 0. */
uform_status_t uform_deferred_done(uform_deferred_t const *deferred, int *done);

/**
 *  Waits for the end of the call and returns what it ended with; its results are given once.
 *
 *  If the deadline or the interrupt of `options` ends the wait, the call goes on and can be waited for again.
 */
uform_status_t uform_deferred_wait(uform_deferred_t const *deferred, uform_call_options_t const *options);

/**
 *  Gives a file descriptor that is readable once the call has ended, for poll and event loops.
 *
 *  It belongs to the handle, which closes it when it is freed: do not close it, and do not read from it.
 */
uform_status_t uform_deferred_descriptor(uform_deferred_t const *deferred, int *descriptor);

/**
 *  Has `callback` called once when the call has ended: on a thread of the executor, or here and now if it has ended.
 *
 *  It delays the next call of the executor: it wakes somebody and returns.
 */
uform_status_t uform_deferred_on_done(uform_deferred_t const *deferred, uform_ended_t callback, void *user);

/** Releases the handle. A call that has not ended goes on; keep its arrays until `uform_executor_drain` returns. */
uform_status_t uform_deferred_free(uform_deferred_t *deferred);

/* --- Arenas and payloads -------------------------------------------------------------------------------------- */

/** Tells the bytes of this process's own part, on each GPU where it lies on several. */
uform_status_t uform_arena_byte_count(uform_arena_t const *arena, size_t *byte_count);

/**
 *  Takes the next free bytes of this process's part, aligned to 64; nothing is given back before the arena is freed.
 *
 *  @param pointer receives their address, valid until `uform_arena_free`.
 */
uform_status_t uform_arena_take(uform_arena_t const *arena, size_t byte_count, void **pointer);

/** Tells on how many GPUs of this process the arena lies: those of its mesh's executor; 0 for one in host memory. */
uform_status_t uform_arena_device_count(uform_arena_t const *arena, size_t *device_count);

/**
 *  Takes the next free bytes on the GPU at a position of the executor's, as `uform_arena_take` does in host memory.
 *
 *  @param address receives their address in the GPU's terms, which the host cannot follow; valid until `uform_arena_free`.
 */
uform_status_t uform_arena_take_on(uform_arena_t const *arena, size_t device, size_t byte_count, uint64_t *address);

/** Tells where the part of process `index` lies here; its owner may write it at any time. Valid as above. */
uform_status_t uform_arena_part(uform_arena_t const *arena, size_t index, void **pointer, size_t *byte_count);

/** Releases the arena; the memory goes when all processes have released it. */
uform_status_t uform_arena_free(uform_arena_t *arena);

/** Tells how many payloads there are: one of each process. */
uform_status_t uform_payloads_count(uform_payloads_t const *payloads, size_t *count);

/** Tells where the bytes of process `index` lie, valid until `uform_payloads_free`. */
uform_status_t uform_payloads_get(uform_payloads_t const *payloads, size_t index, void const **payload,
                                  size_t *byte_count);

/** Releases them. */
uform_status_t uform_payloads_free(uform_payloads_t *payloads);

/* --- Trainers ------------------------------------------------------------------------------------------------- */

/**
 *  Makes a trainer on a mesh; collective.
 *
 *  Names, shapes, element types and options are the same on all processes; the initial values of index 0 count.
 *
 *  @param parameters an array of `parameter_count` structs, all of one `struct_size`.
 */
uform_status_t uform_trainer_open(uform_mesh_t const *mesh, uform_parameter_t const *parameters,
                                  size_t parameter_count, uform_trainer_options_t const *trainer_options,
                                  uform_call_options_t const *options, uform_trainer_t **trainer);

/** Tells how many parameters it has. */
uform_status_t uform_trainer_parameter_count(uform_trainer_t const *trainer, size_t *count);

/** Copies the name of the parameter that was given at `position`; the others as in `uform_capabilities_compiled`. */
uform_status_t uform_trainer_parameter_name(uform_trainer_t const *trainer, size_t position, char *text,
                                            size_t capacity, size_t *length);

/**
 *  Tells where a parameter lies. The processes of a host share it: it changes in a step, a load and an edit of index 0
 *  only, and must not be written elsewhere. On a mesh of GPUs it is an address of this process's GPU, which the host must not
 *  follow, and so it is with gradients. Valid until `uform_trainer_free`.
 */
uform_status_t uform_trainer_parameter(uform_trainer_t const *trainer, char const *name, void const **pointer,
                                       size_t *byte_count);

/**
 *  Tells where this process's gradient of a parameter lies: written by you before each step, and left as it is by it.
 *  Valid until `uform_trainer_free`.
 */
uform_status_t uform_trainer_gradient(uform_trainer_t const *trainer, char const *name, void **pointer,
                                      size_t *byte_count);

/** As `uform_trainer_parameter`, on the GPU at a position of the executor's; 0 for host memory. */
uform_status_t uform_trainer_parameter_on(uform_trainer_t const *trainer, char const *name, size_t device,
                                          void const **pointer, size_t *byte_count);

/**
 *  As `uform_trainer_gradient`, on the GPU at a position of the executor's; 0 for host memory. Where this process drives
 *  several GPUs, its gradient is the mean of theirs, and `uform_trainer_gradient` is invalid.
 */
uform_status_t uform_trainer_gradient_on(uform_trainer_t const *trainer, char const *name, size_t device, void **pointer,
                                         size_t *byte_count);

/**
 *  Updates all parameters with the weighted mean of all processes' gradients; collective.
 *
 *  @param weight what this process's gradients count for, such as its number of samples; with 0 they are not read.
 *  @param report may be NULL.
 */
uform_status_t uform_trainer_step(uform_trainer_t const *trainer, double weight,
                                  uform_call_options_t const *options, uform_step_report_t *report);

/** Waits until all processes are here; from then to `uform_trainer_end_edit`, index 0 may write parameters. */
uform_status_t uform_trainer_begin_edit(uform_trainer_t const *trainer, uform_call_options_t const *options);

/** Tells where a parameter can be written during an edit, valid until its end. What others than index 0 write is lost. */
uform_status_t uform_trainer_editable(uform_trainer_t const *trainer, char const *name, void **pointer,
                                      size_t *byte_count);

/** Waits until all processes are here; what index 0 wrote holds for all. */
uform_status_t uform_trainer_end_edit(uform_trainer_t const *trainer, uform_call_options_t const *options);

/**
 *  Writes a checkpoint of parameters and the optimizer's state; collective.
 *
 *  @param directory the same for all; the checkpoint is a folder in it, named after `step`.
 */
uform_status_t uform_trainer_save(uform_trainer_t const *trainer, char const *directory, uint64_t step,
                                  uform_call_options_t const *options);

/**
 *  Reads the newest checkpoint of a directory that is whole; collective, with any number of processes.
 *
 *  @param step receives the one it was saved with; may be NULL.
 */
uform_status_t uform_trainer_load(uform_trainer_t const *trainer, char const *directory,
                                  uform_call_options_t const *options, uint64_t *step);

/** Gives the same trainer with its calls on another executor; its handle is freed too. */
uform_status_t uform_trainer_on(uform_trainer_t const *trainer, uform_executor_t const *executor,
                                uform_trainer_t **other);

/** Tells how many updates the parameters have seen. */
uform_status_t uform_trainer_updates(uform_trainer_t const *trainer, uint64_t *updates);

/** Releases the trainer and its memory. Free it before its mesh. */
uform_status_t uform_trainer_free(uform_trainer_t *trainer);

/* --- Call sites ----------------------------------------------------------------------------------------------- */

/**
 *  Notes the place of the calling thread's next call of a verb that processes make together, for messages and the record of
 *  calls; always a success.
 *
 *  The macros below call it. A binding for another language calls it with a place in that language.
 *
 *  @param file stays where it is, unchanged, for as long as the program runs; NULL for none.
 */
uform_status_t uform_call_site(char const *file, int line);

#ifdef __cplusplus
}
#endif

/*
 *  Errors of calls that differ between processes, and reports, name the file and the line of each call. These macros have the names of
 *  the functions, whose addresses are still to be had; without them, by UFORM_NO_CALL_SITES, places are not known.
 */
#ifndef UFORM_NO_CALL_SITES
#define uform_mesh_all_reduce(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_all_reduce(__VA_ARGS__))
#define uform_mesh_all_reduce_many(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_all_reduce_many(__VA_ARGS__))
#define uform_mesh_broadcast_many(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_broadcast_many(__VA_ARGS__))
#define uform_mesh_broadcast(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_broadcast(__VA_ARGS__))
#define uform_mesh_all_gather(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_all_gather(__VA_ARGS__))
#define uform_mesh_reduce_scatter(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_reduce_scatter(__VA_ARGS__))
#define uform_mesh_reduce(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_reduce(__VA_ARGS__))
#define uform_mesh_all_to_all(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_all_to_all(__VA_ARGS__))
#define uform_mesh_gather(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_gather(__VA_ARGS__))
#define uform_mesh_scatter(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_scatter(__VA_ARGS__))
#define uform_mesh_send(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_send(__VA_ARGS__))
#define uform_mesh_receive(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_receive(__VA_ARGS__))
#define uform_mesh_barrier(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_barrier(__VA_ARGS__))
#define uform_mesh_exchange(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_exchange(__VA_ARGS__))
#define uform_mesh_arena(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_arena(__VA_ARGS__))
#define uform_mesh_split(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_split(__VA_ARGS__))
#define uform_mesh_domain(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_domain(__VA_ARGS__))
#define uform_mesh_shrink(...) \
    (uform_call_site(__FILE__, __LINE__), uform_mesh_shrink(__VA_ARGS__))
#define uform_trainer_open(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_open(__VA_ARGS__))
#define uform_trainer_step(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_step(__VA_ARGS__))
#define uform_trainer_begin_edit(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_begin_edit(__VA_ARGS__))
#define uform_trainer_end_edit(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_end_edit(__VA_ARGS__))
#define uform_trainer_save(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_save(__VA_ARGS__))
#define uform_trainer_load(...) \
    (uform_call_site(__FILE__, __LINE__), uform_trainer_load(__VA_ARGS__))
#endif

#endif
