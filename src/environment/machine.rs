//! Which machine is looked at, and which of its GPUs the vendors' variables leave visible.

use std::path::PathBuf;

/// The variable that names the folder of a recorded machine.
pub const MACHINE_VARIABLE: &str = "UFORM_MACHINE";

/// The folder of the recorded machine that this process shall take for its own; `None` for the real machine.
#[must_use]
pub fn machine_folder() -> Option<PathBuf> {
    std::env::var_os(MACHINE_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The variables by which a process is given a part of its machine's GPUs, as they are; each vendor has its own rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visibility {
    /// `CUDA_VISIBLE_DEVICES`, which AMD's runtime reads too.
    pub cuda: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub cuda_order: Option<String>,
    /// `ROCR_VISIBLE_DEVICES`.
    pub rocr: Option<String>,
    /// `HIP_VISIBLE_DEVICES`.
    pub hip: Option<String>,
}

impl Visibility {
    /// The names of the variables.
    pub const NAMES: [&'static str; 4] =
        ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"];

    /// Reads this process's variables as they are now; `assumed` gives those that are not set.
    #[must_use]
    pub fn read(assumed: &dyn Fn(&str) -> Option<String>) -> Self {
        let [cuda, cuda_order, rocr, hip] = Self::NAMES.map(|name| match std::env::var_os(name) {
            // What is no text names no device, in each of the vendors' rules.
            Some(value) => Some(value.to_string_lossy().into_owned()),
            None => assumed(name),
        });
        Self { cuda, cuda_order, rocr, hip }
    }

    /// Those that are set, by name.
    #[must_use]
    pub fn in_effect(&self) -> Vec<(&'static str, String)> {
        let values = [&self.cuda, &self.cuda_order, &self.rocr, &self.hip];
        let set = Self::NAMES.into_iter().zip(values);
        set.filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}
