//! The structs of `include/uform.h`, each with what a field means that its caller's version lacks.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use crate::handle::Deferred;
use crate::versioned::versioned;
pub use crate::versioned::{Field, Layout};

/// Asked at least every 50 ms while a call waits; another number than 0 ends the call.
pub type Interrupt = Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>;

/// Told how many bytes of how many are done.
pub type Progress = Option<unsafe extern "C" fn(done: u64, total: u64, user: *mut c_void)>;

/// Called once when a deferred call has ended.
pub type Ended = Option<unsafe extern "C" fn(user: *mut c_void)>;

versioned! {
    /// What a caller asks of an executor of host threads.
    HostOptions, c "uform_host_options_t" {
        /// How many threads; 0 is the core budget.
        threads: usize = 0;
        /// The memory domains to sit on; null for all.
        memory_domains: *const u32 = ptr::null();
        /// How many they are.
        memory_domain_count: usize = 0;
        /// How many deferred calls may wait.
        deferred_limit: usize = 0;
        /// The class that kernels dispatch as; 0 takes the best.
        cpu_class: c_int = 0;
        /// Must be 0.
        reserved: c_int = 0;
    }

    /// What a caller asks of an executor of GPU streams.
    VramOptions, c "uform_vram_options_t" {
        /// The ordinals of the GPUs; null for all.
        devices: *const usize = ptr::null();
        /// How many they are.
        device_count: usize = 0;
        /// Bytes of scratch memory per GPU; 0 for no limit.
        scratch_limit: u64 = 0;
        /// How many deferred calls may wait.
        deferred_limit: usize = 0;
        /// The memory domains for the host's threads; null for all.
        memory_domains: *const u32 = ptr::null();
        /// How many they are.
        memory_domain_count: usize = 0;
        /// The class that GPU kernels dispatch as; 0 takes that of the GPUs.
        gpu_class: c_int = 0;
        /// The class that host kernels dispatch as; 0 takes the best.
        cpu_class: c_int = 0;
    }

    /// What a caller says about the run; a zero or null means "find it out".
    MeshOptions, c "uform_mesh_options_t" {
        /// The index of this process.
        host_domain_index: usize = 0;
        /// How many processes the run has.
        host_domain_count: usize = 0;
        /// Cuts multimem domains into groups of so many GPUs.
        gpus_per_multimem_domain: usize = 0;
        /// The directory that all processes share.
        directory: *const c_char = ptr::null();
        /// The name of the run.
        job: *const c_char = ptr::null();
        /// How long bootstrap may take.
        timeout_seconds: f64 = 0.0;
        /// Asked while bootstrap waits.
        interrupt: Interrupt = None;
        /// Given to it.
        interrupt_user: *mut c_void = ptr::null_mut();
    }

    /// How one call is made.
    CallOptions, c "uform_call_options_t" {
        /// The deadline of the call; 0 means 1,800 seconds.
        timeout_seconds: f64 = 0.0;
        /// Asked while the call waits.
        interrupt: Interrupt = None;
        /// Given to it.
        interrupt_user: *mut c_void = ptr::null_mut();
        /// Told how far the call has come.
        progress: Progress = None;
        /// Given to it.
        progress_user: *mut c_void = ptr::null_mut();
        /// Where the handle of a deferred call goes; null for a call that is waited for.
        deferred: *mut *mut Deferred = ptr::null_mut();
        /// 1 for bits that do not depend on how members are spread over hosts.
        reproducible: u64 = 0;
        /// The call's first array on each further GPU of this process, in the order of its executor; null for none.
        further_arrays: *const *const c_void = ptr::null();
        /// The call's `out` on each of them, for verbs with one; null for none.
        further_outs: *const *mut c_void = ptr::null();
        /// How many further GPUs.
        further_count: usize = 0;
    }

    /// The place of one process in its run.
    MeshDescription, c "uform_mesh_description_t" {
        /// The GPUs of this process.
        gpus_per_host_domain: usize = 0;
        /// The GPUs of the multimem domain of this process's first GPU.
        gpus_per_multimem_domain: usize = 0;
        /// All GPUs of the run.
        gpus_per_colocated_domain: usize = 0;
        /// The index of this process.
        host_domain_index: usize = 0;
        /// The GPUs of the processes before this one.
        first_gpu_index: usize = 0;
        /// How the run's multimem domains reduce.
        multimem_tier: c_int = 0;
        /// The class of all GPUs; 0 for none or a mixture.
        gpu_class: c_int = 0;
    }

    /// One GPU.
    GpuDevice, c "uform_gpu_device_t" {
        /// Who made it.
        vendor: c_int = 0;
        /// The vendor's own number.
        vendor_ordinal: u32 = 0;
        /// The generation it dispatches as; 0 if it is not known.
        gpu_class: c_int = 0;
        /// Multiprocessors or compute units.
        compute_units: u32 = 0;
        /// Device memory in bytes.
        memory_bytes: u64 = 0;
        /// The product name, zero-ended.
        name: [c_char; 128] = [0; 128];
    }

    /// One parameter as a member declares it.
    Parameter, c "uform_parameter_t" {
        /// Its name, unique in the trainer.
        name: *const c_char = ptr::null();
        /// Its extents.
        shape: *const usize = ptr::null();
        /// How many they are; 0 for a scalar.
        dimension_count: usize = 0;
        /// Its element type.
        dtype: c_int = 0;
        /// Its initial values; null for zeros.
        values: *const c_void = ptr::null();
    }

    /// Stochastic gradient descent.
    Sgd, c "uform_sgd_t" {
        /// The step size.
        learning_rate: f64 = 0.0;
        /// What is kept of the last direction.
        momentum: f64 = 0.0;
        /// Decay, added to the gradient.
        weight_decay: f64 = 0.0;
        /// Whether it looks one step of the momentum ahead.
        nesterov: c_int = 0;
        /// Must be 0.
        reserved: c_int = 0;
    }

    /// AdamW.
    Adamw, c "uform_adamw_t" {
        /// The step size.
        learning_rate: f64 = 0.0;
        /// The decay of the first moment.
        beta1: f64 = 0.9;
        /// The decay of the second moment.
        beta2: f64 = 0.999;
        /// Keeps the denominator from 0.
        epsilon: f64 = 1e-8;
        /// Decay, apart from the gradient.
        weight_decay: f64 = 0.01;
    }

    /// How a trainer updates; one optimizer is given.
    TrainerOptions, c "uform_trainer_options_t" {
        /// Null if it is another optimizer.
        sgd: *const Sgd = ptr::null();
        /// Null if it is another optimizer.
        adamw: *const Adamw = ptr::null();
        /// The norm to which all gradients together are clipped; 0 for none.
        clip_norm: f64 = 0.0;
    }

    /// What one step did.
    StepReport, c "uform_step_report_t" {
        /// How many updates the parameters have seen.
        step: u64 = 0;
        /// The norm of the mean gradient before clipping.
        gradient_norm: f64 = 0.0;
        /// The sum of the members' weights.
        weight: f64 = 0.0;
        /// The time spent waiting for the others.
        communication_seconds: f64 = 0.0;
        /// The whole time of the call.
        seconds: f64 = 0.0;
        /// Whether nothing was updated.
        skipped: c_int = 0;
        /// Whether the norm was computed.
        has_gradient_norm: c_int = 0;
    }
}
