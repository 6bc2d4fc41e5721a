//! One stream per GPU: the executors of device memory.

use std::convert::Infallible;

use crate::error::Result;
use crate::sys::absent;

/// Opens these ordinals of `gpu_devices()`, all for `None`.
///
/// # Errors
/// `Unsupported` in this version.
pub(super) fn open(devices: Option<&[usize]>) -> Result<Infallible> {
    let what = match devices {
        Some(devices) => format!("an executor of GPU streams on devices {devices:?}"),
        None => "an executor of GPU streams".to_owned(),
    };
    absent::open_gpus(&what)
}
