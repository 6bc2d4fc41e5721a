//! NVIDIA's GPUs: what the driver answers through NVML, and what follows from the answers.
//!
//! CUDA is never started here: that alone would break it in processes forked later.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;

use super::visibility::{Card, Instance};
use crate::error::Error;
use crate::sys::nvml::{self, LinkEnd, Nvml};
use crate::sys::pci;
use crate::topology::{
    Fabric, FabricHealth, FabricState, GpuDevice, GpuLink, Mig, MigInstance, NvidiaAnswers, NvidiaDevice,
    NvidiaFabric, NvidiaLink,
};
use crate::vocabulary::{GpuClass, GpuVendor};

/// What a link to an NVLink switch goes to.
const SWITCH: &str = "switch";

/// The GPUs of a machine, whole or cut, with what their visibility is decided from.
#[derive(Default)]
pub(super) struct Found {
    /// Every GPU that a process could use, in the order of NVML's indexes.
    pub(super) devices: Vec<GpuDevice>,
    pub(super) cards: Vec<Card>,
    /// For each card the positions of its devices: itself, or its instances.
    pub(super) positions: Vec<Vec<usize>>,
    /// What is there and cannot be used.
    pub(super) notes: Vec<String>,
}

/// The driver's answers on the real machine; empty on one without NVIDIA's driver.
///
/// They are kept: starting NVML takes long where no other process holds the driver open.
pub(super) fn ask() -> NvidiaAnswers {
    static KEPT: Mutex<Option<NvidiaAnswers>> = Mutex::new(None);
    // Never waited for: in a forked child it may be held by a thread that is not there.
    let Ok(mut kept) = KEPT.try_lock() else { return ask_library() };
    if let Some(answers) = &*kept {
        return answers.clone();
    }
    let answers = ask_library();
    if answers.problem.is_none() && !answers.devices.is_empty() {
        *kept = Some(answers.clone());
    }
    answers
}

fn ask_library() -> NvidiaAnswers {
    let with = |error: Error| NvidiaAnswers { problem: Some(error.to_string()), ..NvidiaAnswers::default() };
    match Nvml::open() {
        Ok(Some(library)) => match library.count() {
            Ok(count) => NvidiaAnswers {
                problem: None,
                driver_version: library.driver_version().unwrap_or_default(),
                cuda_version: library.cuda_version().map(cuda_version).unwrap_or_default(),
                devices: (0..count).filter_map(|index| ask_device(&library, index)).collect(),
            },
            Err(error) => with(error),
        },
        Ok(None) => NvidiaAnswers::default(),
        Err(error) => with(error),
    }
}

fn cuda_version(code: u32) -> String {
    format!("{}.{}", code / 1000, code % 1000 / 10)
}

/// `None` for a device that this process may not use: others may be in its place.
fn ask_device(library: &Nvml, index: u32) -> Option<NvidiaDevice> {
    let lost =
        |error: Error| NvidiaDevice { index, problem: Some(error.to_string()), ..NvidiaDevice::default() };
    let device = match library.device(index) {
        Ok(device) => device?,
        Err(error) => return Some(lost(error)),
    };
    let answers = device.uuid().and_then(|uuid| Ok((uuid, device.memory_bytes()?)));
    let (uuid, memory_bytes) = match answers {
        Ok(answers) => answers,
        Err(error) => return Some(lost(error)),
    };
    let (major, minor) = device.compute_capability().unwrap_or_default();
    Some(NvidiaDevice {
        index,
        problem: None,
        uuid,
        name: device.name().unwrap_or_default(),
        pci_address: device.pci_address().unwrap_or_default(),
        compute_capability: if major == 0 { String::new() } else { format!("{major}.{minor}") },
        memory_bytes,
        cores: device.cores().unwrap_or(0),
        multicast: None,
        fabric: device.fabric().map(|found| fabric_of(&found)),
        links: links_of(device.links()),
        mig: device
            .instances()
            .map(|instances| Mig { instances: instances.iter().filter_map(instance_of).collect() }),
    })
}

fn instance_of(device: &nvml::Device<'_>) -> Option<MigInstance> {
    let (gpu_instance, compute_instance) = device.instance_numbers();
    Some(MigInstance {
        uuid: device.uuid().ok()?,
        name: device.name().unwrap_or_default(),
        gpu_instance,
        compute_instance,
        memory_bytes: device.memory_bytes().unwrap_or(0),
        compute_units: device.multiprocessors().unwrap_or(0),
    })
}

fn fabric_of(found: &nvml::Fabric) -> NvidiaFabric {
    let hexadecimal = found.cluster.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)].map(|(from, to)| &hexadecimal[from..to]);
    // Each pair of bits is 1 for yes.
    let said = |mask: u32, shift: u32| mask >> shift & 3 == 1;
    NvidiaFabric {
        cluster: parts.join("-"),
        clique: found.clique,
        state: match found.state {
            2 => FabricState::InProgress,
            3 => FabricState::Completed,
            _ => FabricState::NotStarted,
        },
        status: found.status.unsigned_abs(),
        health: match found.health_mask {
            None | Some(0) => FabricHealth::Unknown,
            // Route recovery, route unhealthy, access timeout recovery.
            Some(mask) if [2, 4, 6].iter().any(|shift| said(mask, *shift)) => FabricHealth::Unhealthy,
            Some(mask) if said(mask, 0) => FabricHealth::Degraded,
            Some(_) => FabricHealth::Healthy,
        },
    }
}

fn links_of(ends: Vec<LinkEnd>) -> Vec<NvidiaLink> {
    let mut counts = BTreeMap::<String, u32>::new();
    for end in ends {
        let peer = match end {
            LinkEnd::Switch => SWITCH.to_owned(),
            LinkEnd::Device(address) => address,
        };
        *counts.entry(peer).or_default() += 1;
    }
    counts.into_iter().map(|(peer, count)| NvidiaLink { peer, count }).collect()
}

/// What follows from the answers; `root` is the file tree that tells which memory a slot is near.
pub(super) fn find(answers: &NvidiaAnswers, root: &Path) -> Found {
    let mut found = Found::default();
    found.notes.extend(answers.problem.iter().map(|why| format!("NVIDIA's driver answers nothing: {why}")));
    let usable = answers.devices.iter().filter(|device| device.problem.is_none()).collect::<Vec<_>>();
    for device in &answers.devices {
        let why = device.problem.iter();
        found.notes.extend(why.map(|why| format!("NVIDIA GPU {} cannot be used: {why}", device.index)));
    }
    for device in &usable {
        let whole = whole_device(device, &usable, root);
        let speed = capability(&device.compute_capability).unwrap_or_default();
        let first = found.devices.len();
        let instances = device.mig.as_ref().map(|mig| &mig.instances);
        match instances {
            None => found.devices.push(whole),
            Some(instances) => {
                if instances.is_empty() {
                    let index = device.index;
                    found.notes.push(format!(
                        "NVIDIA GPU {index} cannot be used: MIG is on, and it has no instance"
                    ));
                }
                found.devices.extend(instances.iter().map(|own| part_of(&whole, own)));
            }
        }
        found.positions.push((first..found.devices.len()).collect());
        found.cards.push(Card {
            uuid: device.uuid.clone(),
            speed: (device.cores, speed.0, speed.1),
            instances: instances.map(|instances| {
                let names = instances.iter().map(|own| Instance {
                    uuid: own.uuid.clone(),
                    numbers: (own.gpu_instance, own.compute_instance),
                });
                names.collect()
            }),
        });
    }
    found
}

fn whole_device(device: &NvidiaDevice, all: &[&NvidiaDevice], root: &Path) -> GpuDevice {
    let capability = capability(&device.compute_capability);
    let gpu_class = capability.and_then(class);
    let fabric = device.fabric.as_ref().map(|fabric| Fabric {
        cluster: fabric.cluster.clone(),
        clique: fabric.clique,
        complete: fabric.state == FabricState::Completed
            && fabric.status == 0
            && fabric.health != FabricHealth::Unhealthy,
    });
    let links = links(device, all, root);
    GpuDevice {
        vendor: GpuVendor::Nvidia,
        vendor_ordinal: device.index,
        gpu_class,
        compute_units: capability.map_or(0, |capability| multiprocessors(device.cores, capability)),
        memory_bytes: device.memory_bytes,
        name: device.name.clone(),
        identity: device.uuid.clone(),
        pci_address: pci::normal(&device.pci_address).unwrap_or_default(),
        memory_domain: pci::memory_domain(root, &device.pci_address),
        multicast: device.multicast.unwrap_or_else(|| has_multicast(gpu_class, &links, fabric.as_ref())),
        fabric,
        links,
    }
}

/// An instance of a cut GPU: neither links nor a fabric nor multicast reach it.
fn part_of(whole: &GpuDevice, own: &MigInstance) -> GpuDevice {
    GpuDevice {
        compute_units: own.compute_units,
        memory_bytes: own.memory_bytes,
        name: own.name.clone(),
        identity: own.uuid.clone(),
        multicast: false,
        fabric: None,
        links: Vec::new(),
        ..whole.clone()
    }
}

/// Whether the attribute is to be expected: Hopper and later behind NVLink switches.
///
/// Only the CUDA driver knows it. This is a claim, which a trial at bootstrap confirms or denies.
fn has_multicast(class: Option<GpuClass>, links: &[GpuLink], fabric: Option<&Fabric>) -> bool {
    let generation =
        matches!(class, Some(GpuClass::NvidiaHopper | GpuClass::NvidiaBlackwell | GpuClass::NvidiaRubin));
    generation
        && (links.iter().any(|link| link.peer == SWITCH) || fabric.is_some_and(|fabric| fabric.complete))
}

/// Links to switches and to GPUs of this list, by identity. Links to what this process cannot use join nothing.
fn links(device: &NvidiaDevice, all: &[&NvidiaDevice], root: &Path) -> Vec<GpuLink> {
    /// The class of bridges of no other kind, which NVLink switches are.
    const BRIDGE: u32 = 0x0680;
    let mut counts = BTreeMap::<String, u32>::new();
    for link in device.links.iter().filter(|link| link.count > 0) {
        let address = pci::normal(&link.peer);
        let other = all.iter().find(|other| {
            link.peer == other.uuid || address.is_some() && pci::normal(&other.pci_address) == address
        });
        let peer = match other {
            Some(other) if other.index == device.index => continue,
            Some(other) => other.uuid.clone(),
            None if link.peer == SWITCH => SWITCH.to_owned(),
            None if pci::class(root, &link.peer).is_some_and(|class| class >> 8 == BRIDGE) => {
                SWITCH.to_owned()
            }
            None => continue,
        };
        let count = counts.entry(peer).or_default();
        *count = count.saturating_add(link.count);
    }
    counts.into_iter().map(|(peer, count)| GpuLink { peer, count }).collect()
}

/// `9.0` as two numbers.
fn capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The class of a compute capability; `None` for one that this version does not know.
fn class(capability: (u32, u32)) -> Option<GpuClass> {
    match capability {
        (8, 0 | 6..=8) => Some(GpuClass::NvidiaAmpere),
        (8, 9) => Some(GpuClass::NvidiaAda),
        (9, 0) => Some(GpuClass::NvidiaHopper),
        (10, 0 | 1 | 3) | (11, 0) => Some(GpuClass::NvidiaBlackwell),
        (10, 7) => Some(GpuClass::NvidiaRubin),
        (12, 0 | 1) => Some(GpuClass::NvidiaBlackwellRtx),
        _ => None,
    }
}

/// How many multiprocessors so many cores are; 0 if it is not known.
fn multiprocessors(cores: u32, capability: (u32, u32)) -> u32 {
    let each = match capability {
        (3, _) => 192,
        (5, _) | (6, 1 | 2) | (8, 6..=9) | (9 | 11, 0) | (10, 0 | 1 | 3) | (12, 0 | 1) => 128,
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => return 0,
    };
    if cores.is_multiple_of(each) { cores / each } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, capability: &str) -> NvidiaDevice {
        NvidiaDevice {
            index,
            uuid: format!("GPU-{index}"),
            name: "a name".into(),
            pci_address: format!("00000000:{:02X}:00.0", 0x1b + index),
            compute_capability: capability.into(),
            memory_bytes: 80 << 30,
            cores: 16896,
            ..NvidiaDevice::default()
        }
    }

    fn find_all(devices: Vec<NvidiaDevice>) -> Found {
        let answers = NvidiaAnswers { devices, ..NvidiaAnswers::default() };
        find(&answers, Path::new("/nowhere"))
    }

    fn link(peer: &str, count: u32) -> NvidiaLink {
        NvidiaLink { peer: peer.into(), count }
    }

    fn fabric(state: FabricState, status: u32, health: FabricHealth) -> Option<NvidiaFabric> {
        Some(NvidiaFabric { cluster: "0".into(), clique: 0, state, status, health })
    }

    #[test]
    fn capabilities_give_classes_and_unknown_ones_none() {
        let classes = [
            ("8.0", Some(GpuClass::NvidiaAmpere)),
            ("8.7", Some(GpuClass::NvidiaAmpere)),
            ("8.9", Some(GpuClass::NvidiaAda)),
            ("9.0", Some(GpuClass::NvidiaHopper)),
            ("10.3", Some(GpuClass::NvidiaBlackwell)),
            ("10.7", Some(GpuClass::NvidiaRubin)),
            ("11.0", Some(GpuClass::NvidiaBlackwell)),
            ("12.1", Some(GpuClass::NvidiaBlackwellRtx)),
            ("7.5", None),
            ("8.1", None),
            ("10.5", None),
            ("13.0", None),
            ("4294967296.0", None),
            ("nine", None),
            ("", None),
        ];
        for (text, expected) in classes {
            let found = find_all(vec![device(0, text)]);
            assert_eq!(found.devices[0].gpu_class, expected, "{text}");
            assert_eq!(found.devices[0].name, "a name");
        }
    }

    #[test]
    fn multiprocessors_follow_from_cores() {
        for (cores, capability, expected) in [
            (16896, (9, 0), 132),
            (6912, (8, 0), 108),
            (18944, (10, 0), 148),
            (16384, (8, 9), 128),
            (24064, (12, 0), 188),
            (0, (9, 0), 0),
            (100, (9, 0), 0),
            (16896, (13, 0), 0),
        ] {
            assert_eq!(multiprocessors(cores, capability), expected, "{cores} {capability:?}");
        }
    }

    #[test]
    fn multicast_is_expected_behind_switches_from_hopper_on() {
        let expected = |capability: &str, links: &[NvidiaLink], fabric: Option<NvidiaFabric>| {
            let device = NvidiaDevice { links: links.to_vec(), fabric, ..device(0, capability) };
            find_all(vec![device]).devices[0].multicast
        };
        let complete = || fabric(FabricState::Completed, 0, FabricHealth::Healthy);
        assert!(expected("9.0", &[link("switch", 18)], None));
        assert!(expected("10.0", &[], complete()));
        assert!(!expected("8.0", &[link("switch", 12)], None));
        assert!(!expected("9.0", &[link("0000:99:00.0", 12)], None));
        assert!(!expected("12.0", &[], None));
        let said =
            NvidiaDevice { multicast: Some(false), links: vec![link("switch", 18)], ..device(0, "9.0") };
        assert!(!find_all(vec![said]).devices[0].multicast);
    }

    #[test]
    fn a_fabric_is_complete_only_if_it_works() {
        for (found, complete) in [
            (fabric(FabricState::Completed, 0, FabricHealth::Healthy), true),
            (fabric(FabricState::Completed, 0, FabricHealth::Degraded), true),
            (fabric(FabricState::Completed, 0, FabricHealth::Unknown), true),
            (fabric(FabricState::Completed, 999, FabricHealth::Healthy), false),
            (fabric(FabricState::Completed, 0, FabricHealth::Unhealthy), false),
            (fabric(FabricState::InProgress, 0, FabricHealth::Healthy), false),
            (fabric(FabricState::NotStarted, 0, FabricHealth::Unknown), false),
        ] {
            let device = NvidiaDevice { fabric: found.clone(), ..device(0, "9.0") };
            let fabric = find_all(vec![device]).devices[0].fabric.clone().expect("there is one");
            assert_eq!(fabric.complete, complete, "{found:?}");
        }
    }

    #[test]
    fn numbers_of_a_fabric_get_their_names() {
        let found = nvml::Fabric {
            cluster: [0xab; 16],
            clique: 7,
            state: 3,
            status: 0,
            health_mask: Some(0b1010_1001),
        };
        let named = fabric_of(&found);
        assert_eq!(named.cluster, "abababab-abab-abab-abab-abababababab");
        assert_eq!((named.state, named.health), (FabricState::Completed, FabricHealth::Degraded));
        let health = |mask| fabric_of(&nvml::Fabric { health_mask: mask, ..found.clone() }).health;
        assert_eq!(health(None), FabricHealth::Unknown);
        assert_eq!(health(Some(0b1010_1010)), FabricHealth::Healthy);
        assert_eq!(health(Some(0b1001_1010)), FabricHealth::Unhealthy);
    }

    #[test]
    fn links_go_to_identities_and_to_nothing_that_is_hidden() {
        let first = NvidiaDevice {
            links: vec![
                link("0000:1c:00.0", 12),
                link("00000000:77:00.0", 4),
                link("GPU-0", 1),
                link("switch", 0),
            ],
            ..device(0, "9.0")
        };
        let second = NvidiaDevice { links: vec![link("GPU-0", 12)], ..device(1, "9.0") };
        let lost = NvidiaDevice { problem: Some("GPU is lost".into()), ..device(2, "9.0") };
        let found = find_all(vec![first, second, lost]);
        assert_eq!(found.devices.len(), 2);
        assert_eq!(found.devices[0].links, [GpuLink { peer: "GPU-1".into(), count: 12 }]);
        assert_eq!(found.devices[1].links, [GpuLink { peer: "GPU-0".into(), count: 12 }]);
        assert_eq!(found.notes, ["NVIDIA GPU 2 cannot be used: GPU is lost"]);
    }

    #[test]
    fn a_cut_gpu_is_its_instances() {
        let instance = |number: u32| MigInstance {
            uuid: format!("MIG-{number}"),
            name: "A100 MIG 3g.20gb".into(),
            gpu_instance: number,
            memory_bytes: 20 << 30,
            compute_units: 42,
            ..MigInstance::default()
        };
        let cut = NvidiaDevice {
            mig: Some(Mig { instances: vec![instance(1), instance(2)] }),
            links: vec![link("switch", 12)],
            ..device(0, "8.0")
        };
        let empty = NvidiaDevice { mig: Some(Mig::default()), ..device(1, "8.0") };
        let found = find_all(vec![cut, empty, device(2, "8.0")]);
        let identities = found.devices.iter().map(|gpu| gpu.identity.as_str()).collect::<Vec<_>>();
        assert_eq!(identities, ["MIG-1", "MIG-2", "GPU-2"]);
        assert_eq!(found.positions, [vec![0, 1], vec![], vec![2]]);
        assert_eq!(found.devices[1].vendor_ordinal, 0);
        assert_eq!((found.devices[1].compute_units, found.devices[1].memory_bytes), (42, 20 << 30));
        assert!(found.devices[1].links.is_empty() && found.notes[0].contains("GPU 1"), "{:?}", found.notes);
    }

    #[test]
    fn versions_of_cuda_are_read_from_their_numbers() {
        assert_eq!((cuda_version(12080), cuda_version(13040)), ("12.8".to_owned(), "13.4".to_owned()));
    }
}
