//! A recorded machine as values: what its `machine.json`, `gpus.json` and `environment.json` say.
//!
//! The same values hold what a real NVIDIA driver answered, so that everything above is one code. What a file means is
//! described for users in `docs/machines.md`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What `machine.json` says of a recorded machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedMachine {
    /// The host name, for people.
    pub host_name: String,
    /// The boot identity: processes with the same one are on one host.
    pub boot_id: String,
    /// The cores that a process there may run on, as the kernel lists them (`0-3,8`); `None` for all online ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_cores: Option<String>,
    /// What its processor said it can do; `None` for portable code only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<String>,
    /// Engines found there, as capability words: `nccl-2.27.5`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub engines: Vec<String>,
}

/// What the NVIDIA driver answered through NVML; `gpus.json` holds it for a recorded machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvidiaAnswers {
    /// Why the driver answers nothing, in the vendor's words; there are no devices then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The driver's version, empty if it did not tell.
    #[serde(default)]
    pub driver_version: String,
    /// The newest CUDA version that the driver can run, such as `12.8`; empty if it did not tell.
    #[serde(default)]
    pub cuda_version: String,
    /// Every device in the order of its indexes.
    #[serde(default)]
    pub devices: Vec<NvidiaDevice>,
}

/// One device as NVML tells of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvidiaDevice {
    /// NVML's index, the number that nvidia-smi shows.
    pub index: u32,
    /// Why the device cannot be used, in the vendor's words; such a device is absent, and nothing else of it counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// `GPU-` and its identity.
    #[serde(default)]
    pub uuid: String,
    /// The product's name.
    #[serde(default)]
    pub name: String,
    /// The PCI address, such as `0000:1b:00.0`.
    #[serde(default)]
    pub pci_address: String,
    /// Major and minor number, such as `9.0`; empty if it did not tell.
    #[serde(default)]
    pub compute_capability: String,
    /// Device memory.
    #[serde(default)]
    pub memory_bytes: u64,
    /// CUDA cores, 0 if the driver is too old to tell.
    #[serde(default)]
    pub cores: u32,
    /// Whether it has the multicast attribute; `None` where only the CUDA driver knows, as on every real machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multicast: Option<bool>,
    /// Its place in an NVLink fabric, `None` if it knows of no fabric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<NvidiaFabric>,
    /// Active NVLinks by what is at their other end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<NvidiaLink>,
    /// The instances it is cut into; `None` unless MIG is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Mig>,
}

/// A device's registration with its fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvidiaFabric {
    /// The cluster's identity as a UUID; zeros where the fabric is within one machine.
    pub cluster: String,
    /// The part of the cluster that is joined.
    #[serde(default)]
    pub clique: u32,
    /// How far registration has come.
    pub state: FabricState,
    /// NVML's status of a completed registration, 0 for success.
    #[serde(default)]
    pub status: u32,
    /// How well it works.
    #[serde(default)]
    pub health: FabricHealth,
}

/// How far a device's registration with its fabric has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricState {
    /// Nobody has started it: the fabric manager does not run.
    #[default]
    NotStarted,
    /// It has not ended.
    InProgress,
    /// It has ended, well or not: see status and health.
    Completed,
}

/// How well a registered device's fabric works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricHealth {
    /// The driver does not tell.
    #[default]
    Unknown,
    /// Nothing is known to be wrong.
    Healthy,
    /// It works with less bandwidth.
    Degraded,
    /// Routes are lost, or recovery is under way.
    Unhealthy,
}

/// Active NVLinks of one device that go to one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvidiaLink {
    /// The PCI address of the device at the other end, or `switch`.
    pub peer: String,
    /// How many links go there.
    pub count: u32,
}

/// What a device with MIG on is cut into.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// Its compute instances; none if nobody has made any.
    #[serde(default)]
    pub instances: Vec<MigInstance>,
}

/// One MIG device: a compute instance with its GPU instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigInstance {
    /// `MIG-` and its identity.
    pub uuid: String,
    /// The name that nvidia-smi shows.
    pub name: String,
    /// The number of its GPU instance.
    #[serde(default)]
    pub gpu_instance: u32,
    /// The number of the compute instance within.
    #[serde(default)]
    pub compute_instance: u32,
    /// Its device memory.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Its multiprocessors, 0 if the driver did not tell.
    #[serde(default)]
    pub compute_units: u32,
}

/// Where a text is damaged, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The byte that could not be understood.
    pub offset: u64,
    /// What was expected.
    pub reason: String,
}

impl RecordedMachine {
    /// Reads the text of `machine.json`.
    ///
    /// # Errors
    /// Where and why it is no such text.
    pub fn from_json(text: &str) -> Result<Self, Damage> {
        let machine: Self = parse(text)?;
        for (name, value) in [("host_name", &machine.host_name), ("boot_id", &machine.boot_id)] {
            if value.trim().is_empty() {
                return Err(Damage { offset: 0, reason: format!("{name} is empty") });
            }
        }
        Ok(machine)
    }
}

impl NvidiaAnswers {
    /// Reads the text of `gpus.json`.
    ///
    /// # Errors
    /// Where and why it is no such text; also for two devices with one index or one identity.
    pub fn from_json(text: &str) -> Result<Self, Damage> {
        let mut answers: Self = parse(text)?;
        answers.devices.sort_by_key(|device| device.index);
        answers.check().map_err(|reason| Damage { offset: 0, reason })?;
        Ok(answers)
    }

    fn check(&self) -> Result<(), String> {
        let mut identities = BTreeMap::new();
        for (position, device) in self.devices.iter().enumerate() {
            let index = device.index;
            if position > 0 && self.devices[position - 1].index == index {
                return Err(format!("two devices have the index {index}"));
            }
            if device.problem.is_some() {
                continue;
            }
            if device.uuid.is_empty() {
                return Err(format!("the device with the index {index} has neither uuid nor problem"));
            }
            let instances = device.mig.iter().flat_map(|mig| &mig.instances).map(|instance| &instance.uuid);
            for uuid in std::iter::once(&device.uuid).chain(instances) {
                if let Some(other) = identities.insert(uuid, index) {
                    return Err(format!("{uuid} is in the devices with the indexes {other} and {index}"));
                }
            }
        }
        Ok(())
    }
}

/// Reads the text of `environment.json`: variables and their values.
///
/// # Errors
/// Where and why it is no such text.
pub fn variables_from_json(text: &str) -> Result<BTreeMap<String, String>, Damage> {
    parse(text)
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Damage> {
    serde_json::from_str(text).map_err(|error| {
        // The parser counts lines and columns from 1, columns in bytes; 0 stands for the start.
        let before =
            text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let offset = (before + error.column().saturating_sub(1)).min(text.len()) as u64;
        Damage { offset, reason: error.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_the_order_of_indexes() {
        let text = r#"{"driver_version": "570.86", "devices": [
            {"index": 1, "problem": "GPU is lost"},
            {"index": 0, "uuid": "GPU-a", "links": [{"peer": "switch", "count": 18}],
             "fabric": {"cluster": "0", "state": "completed", "health": "healthy"}}]}"#;
        let answers = NvidiaAnswers::from_json(text).expect("well formed");
        assert_eq!(answers.devices[0].uuid, "GPU-a");
        assert_eq!(answers.devices[1].problem.as_deref(), Some("GPU is lost"));
        let again = serde_json::to_string(&answers).expect("values can be written");
        assert_eq!(NvidiaAnswers::from_json(&again).expect("what was written can be read"), answers);
    }

    #[test]
    fn damage_is_told_with_its_place() {
        let damage =
            NvidiaAnswers::from_json("{\n  \"devices\": [{\"index\": \"one\"}]\n}").expect_err("text");
        assert!(damage.offset > 15 && damage.reason.contains("expected u32"), "{damage:?}");
        let damage = NvidiaAnswers::from_json(r#"{"device": []}"#).expect_err("an unknown field");
        assert!(damage.reason.contains("unknown field `device`"), "{damage:?}");
        for (text, reason) in [
            (r#"{"devices": [{"index": 0}]}"#, "neither uuid nor problem"),
            (r#"{"devices": [{"index": 0, "uuid": "a"}, {"index": 0, "uuid": "b"}]}"#, "the index 0"),
            (r#"{"devices": [{"index": 0, "uuid": "a"}, {"index": 1, "uuid": "a"}]}"#, "indexes 0 and 1"),
        ] {
            let damage = NvidiaAnswers::from_json(text).expect_err(reason);
            assert!(damage.reason.contains(reason), "{damage:?}");
        }
        let damage = RecordedMachine::from_json(r#"{"host_name": "a", "boot_id": " "}"#).expect_err("empty");
        assert!(damage.reason.contains("boot_id is empty"), "{damage:?}");
        assert!(RecordedMachine::from_json("").is_err() && variables_from_json("[]").is_err());
    }
}
