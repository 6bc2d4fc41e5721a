/**
 *  The C interface of uform: collective operations and data-parallel training over host and GPU memory.
 *
 *  A verb returns a `uform_status_t`: 0 for success, else the kind of error. The text of the calling thread's last
 *  error is read with `uform_last_error`. No verb lets a panic or an exception cross into the caller.
 *
 *  This version has the numbers of the interface, its version and the capabilities of the build and the machine.
 *  Executors, meshes and trainers are reached from Rust and Python.
 */
#ifndef UFORM_H
#define UFORM_H

#include <stddef.h>

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

#ifdef __cplusplus
}
#endif

#endif
