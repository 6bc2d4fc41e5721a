//! AMD's GPUs: what the kernel driver shows in `/sys`, and what follows from it.
//!
//! HIP is never started here: that alone would break it in processes forked later.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sys::kfd::{self, Node};
use crate::sys::pci;
use crate::topology::{GpuDevice, GpuLink};
use crate::vocabulary::{GpuClass, GpuVendor};

/// The driver's number for links over xGMI.
const XGMI: u64 = 11;

/// The GPUs of a machine, with what their visibility is decided from.
#[derive(Default)]
pub(super) struct Found {
    /// Every GPU or partition that a process could use, in the order of ROCm.
    pub(super) devices: Vec<GpuDevice>,
    /// What `ROCR_VISIBLE_DEVICES` calls each of them, empty where the hardware has no identity.
    pub(super) names: Vec<String>,
    /// What is there and cannot be used.
    pub(super) notes: Vec<String>,
}

/// Where a GPU is on the bus, and which partition of the GPU there it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    domain: u64,
    bus: u64,
    device: u64,
    function: u64,
    partition: u64,
}

impl Place {
    fn of(node: &Node) -> Self {
        let location = node.property("location_id");
        Self {
            domain: node.property("domain"),
            bus: location >> 8 & 0xff,
            device: location >> 3 & 0x1f,
            function: location & 7,
            partition: location >> 28 & 15,
        }
    }

    fn address(self) -> String {
        format!("{:04x}:{:02x}:{:02x}.{}", self.domain, self.bus, self.device, self.function)
    }
}

/// The GPUs that the driver shows under this root.
pub(super) fn find(root: &Path) -> Found {
    let mut found = Found::default();
    let is_gpu = |node: &Node| node.gpu_id != 0 && node.property("simd_count") > 0;
    let mut nodes = kfd::nodes(root).into_iter().filter(is_gpu).collect::<Vec<_>>();
    nodes.retain(|node| {
        let minor = node.property("drm_render_minor");
        let usable = kfd::may_render(root, minor);
        if !usable {
            let address = Place::of(node).address();
            let why = format!(
                "this process may not open /dev/dri/renderD{minor}: is its user in the group `render`?"
            );
            found.notes.push(format!("AMD GPU at {address} cannot be used: {why}"));
        }
        usable
    });
    let places = nodes.iter().map(Place::of).collect::<Vec<_>>();
    let identities = identities(&nodes, &places);
    let mut order = (0..nodes.len()).collect::<Vec<_>>();
    // The order of rocm-smi.
    order.sort_by_key(|position| places[*position]);
    for (position, node) in nodes.iter().enumerate() {
        let place = places[position];
        let target = target(node.property("gfx_target_version"));
        let rank = order.iter().position(|other| *other == position).unwrap_or(position);
        found.devices.push(GpuDevice {
            vendor: GpuVendor::Amd,
            vendor_ordinal: rank as u32,
            gpu_class: class(&target),
            compute_units: units(node),
            memory_bytes: node.memory_bytes,
            name: name(root, node, place, &target),
            identity: identities[position].clone(),
            pci_address: place.address(),
            memory_domain: pci::memory_domain(root, &place.address()),
            multicast: false,
            fabric: None,
            links: links(node, &nodes, &identities),
        });
        found.names.push(unique_name(node));
    }
    found
}

/// What ROCm calls a GPU by its identity; empty where the hardware has none.
fn unique_name(node: &Node) -> String {
    match node.property("unique_id") {
        0 => String::new(),
        number => format!("GPU-{number:016x}"),
    }
}

/// The identity of each: that of the hardware, else the PCI address. Partitions of one GPU are told apart by number.
fn identities(nodes: &[Node], places: &[Place]) -> Vec<String> {
    let whole = nodes.iter().zip(places).map(|(node, place)| match unique_name(node) {
        name if name.is_empty() => place.address(),
        name => name,
    });
    let whole = whole.collect::<Vec<_>>();
    let mut counts = BTreeMap::<String, u32>::new();
    for name in &whole {
        *counts.entry(name.clone()).or_default() += 1;
    }
    let parts = whole.iter().zip(places).map(|(name, place)| match counts.get(name) {
        Some(1) | None => name.clone(),
        Some(_) => format!("{name}/{}", place.partition),
    });
    let mut parts = parts.collect::<Vec<_>>();
    // A driver that gives two nodes one place and one partition: their numbers still differ.
    for position in 0..parts.len() {
        if parts[..position].contains(&parts[position]) {
            parts[position] = format!("{}, node {}", parts[position], nodes[position].number);
        }
    }
    parts
}

/// The compiler's name of a target, such as `gfx942`.
fn target(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100)
}

/// The class of a target; `None` for one that this version does not know.
fn class(target: &str) -> Option<GpuClass> {
    match target {
        "gfx942" => Some(GpuClass::AmdCdna3),
        "gfx950" => Some(GpuClass::AmdCdna4),
        "gfx1250" => Some(GpuClass::AmdCdna5),
        _ => None,
    }
}

fn units(node: &Node) -> u32 {
    let count = node.property("simd_count").checked_div(node.property("simd_per_cu"));
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

/// The product's name as its board says it, or the vendor's table; else the target.
fn name(root: &Path, node: &Node, place: Place, target: &str) -> String {
    let address = place.address();
    pci::product_name(root, &address)
        .or_else(|| {
            let revision = pci::revision(root, &address)?;
            kfd::marketing_name(root, node.property("device_id"), u64::from(revision))
        })
        .unwrap_or_else(|| format!("AMD {target}"))
}

/// Links over xGMI to other GPUs of this list.
fn links(node: &Node, nodes: &[Node], identities: &[String]) -> Vec<GpuLink> {
    let to = node.links.iter().filter(|(_, kind)| *kind == XGMI).map(|(to, _)| *to);
    let mut found = to
        .filter(|to| *to != node.number)
        .filter_map(|to| nodes.iter().position(|other| other.number == to))
        .map(|position| GpuLink { peer: identities[position].clone(), count: 1 })
        .collect::<Vec<_>>();
    found.dedup();
    found
}

#[cfg(test)]
mod tests;
