//! Which files the user named for libraries of vendors that are found at run time.

use std::path::PathBuf;

/// The variable that names NCCL's file.
pub const NCCL_VARIABLE: &str = "UFORM_NCCL";

/// The variable that names RCCL's file.
pub const RCCL_VARIABLE: &str = "UFORM_RCCL";

/// The file that a variable names; `None` if it is not set, or empty.
///
/// It is read at each call, as a library is looked for when it is first needed.
#[must_use]
pub fn library_file(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// NVIDIA's variable that lets several members of a communicator have one GPU.
const MULTI_RANK_VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// Whether the user wants members to share GPUs.
#[must_use]
pub fn shares_gpus() -> bool {
    std::env::var(MULTI_RANK_VARIABLE).is_ok_and(|value| value == "1")
}
