//! `uform devices`: what the library sees in this machine and what this process may use of it.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::json;
use uform::device::{self, View};
use uform::topology::{GpuDevice, MemoryDomain, counted, ranges, size};
use uform::vocabulary::GpuVendor;

use crate::Failure;

/// Shows the cores, memory domains and GPUs of this machine, and what this process and the library can use of them.
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is shown.
struct Found {
    view: View,
    compiled: String,
    available: String,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let found = Found {
        view: device::view()?,
        compiled: device::capabilities_compiled(),
        available: device::capabilities_available()?,
    };
    crate::print(&if options.json { found.as_json() } else { found.as_text() })?;
    Ok(0)
}

/// Lines of two columns.
struct Columns(String);

impl Columns {
    fn line(&mut self, name: &str, value: &str) {
        self.0.push_str(format!("  {name:<18} {value}").trim_end());
        self.0.push('\n');
    }
}

impl Found {
    fn as_json(&self) -> String {
        let view = &self.view;
        let variables = view.variables.iter().map(|(name, value)| ((*name).to_owned(), value.as_str()));
        let value = json!({
            "survey": view.survey,
            "allowed_cores": view.cores,
            "quota_cores": view.quota_cores,
            "memory_allowance_bytes": self.view.memory_allowance,
            "gpus": view.gpus,
            "visibility_variables": variables.collect::<BTreeMap<_, _>>(),
            "notes": view.notes,
            "capabilities_compiled": self.compiled.split_whitespace().collect::<Vec<_>>(),
            "capabilities_available": self.available.split_whitespace().collect::<Vec<_>>(),
        });
        format!("{value:#}\n")
    }

    fn as_text(&self) -> String {
        let (view, survey) = (&self.view, &self.view.survey);
        let mut text = Columns(format!("host {}\n", survey.host_name));
        text.line("cores", &format!("{} ({})", survey.cores.len(), ranges(&survey.cores)));
        text.line("physical cores", &self.physical_cores());
        text.line("allowed here", &format!("{} ({})", view.cores.len(), ranges(&view.cores)));
        let quota = view.quota_cores.map_or_else(|| "none".into(), |cores| counted(cores as usize, "core"));
        text.line("time quota", &quota);
        text.line("memory allowance", &self.view.memory_allowance.map_or_else(|| "no limit".into(), size));
        let empty = |domain: &&MemoryDomain| domain.cores.is_empty() && domain.memory_bytes == 0;
        for domain in survey.memory_domains.iter().filter(|domain| !empty(domain)) {
            let cores = match domain.cores.as_slice() {
                [] => "no cores".to_owned(),
                cores => format!("{} {}", counted(cores.len(), "core"), ranges(cores)),
            };
            let name = format!("memory domain {}", domain.ordinal);
            text.line(&name, &format!("{}, {cores}", size(domain.memory_bytes)));
        }
        if survey.memory_domains.iter().any(|domain| empty(&domain)) {
            let rest = survey.memory_domains.iter().filter(empty).map(|domain| domain.ordinal);
            text.line("without anything", &format!("memory domains {}", ranges(&rest.collect::<Vec<_>>())));
        }
        self.gpus(&mut text);
        for note in &view.notes {
            text.line("note", note);
        }
        for (name, value) in &view.variables {
            text.line("variable", &format!("{name}={value}"));
        }
        text.line("compiled", &self.compiled);
        text.line("available", &self.available);
        text.0
    }

    fn physical_cores(&self) -> String {
        let survey = &self.view.survey;
        let more = survey.siblings.iter().map(|group| group.len() - 1).sum::<usize>();
        match survey.siblings.iter().map(Vec::len).max() {
            None => format!("{}, one thread each", survey.cores.len()),
            Some(threads) => format!("{}, up to {threads} threads each", survey.cores.len() - more),
        }
    }

    fn gpus(&self, text: &mut Columns) {
        let view = &self.view;
        if view.gpus.is_empty() {
            text.line(
                "GPUs",
                if view.survey.gpus.is_empty() { "none" } else { "none that this process sees" },
            );
        }
        for (ordinal, gpu) in view.gpus.iter().enumerate() {
            text.line(&format!("GPU {ordinal}"), &what(gpu));
            text.line("", &place(gpu));
            let joined = self.joined(gpu);
            if !joined.is_empty() {
                text.line("", &joined);
            }
        }
        let hidden = |gpu: &&GpuDevice| view.gpus.iter().all(|seen| seen.identity != gpu.identity);
        for gpu in view.survey.gpus.iter().filter(hidden) {
            text.line("not visible here", &format!("{}; {}", what(gpu), place(gpu)));
        }
    }

    /// Links, fabric and multicast of a GPU.
    fn joined(&self, gpu: &GpuDevice) -> String {
        let mut ends = BTreeMap::<u32, (bool, Vec<u32>, usize)>::new();
        for link in gpu.links.iter().filter(|link| link.count > 0) {
            let (switch, seen, hidden) = ends.entry(link.count).or_default();
            match self.view.gpus.iter().position(|other| other.identity == link.peer) {
                Some(ordinal) => seen.push(ordinal as u32),
                None if link.peer == "switch" => *switch = true,
                None => *hidden += 1,
            }
        }
        let kind = if gpu.vendor == GpuVendor::Amd { "xGMI link" } else { "NVLink" };
        let mut parts = Vec::new();
        for (count, (switch, mut seen, hidden)) in ends {
            seen.sort_unstable();
            let each = if seen.len() + hidden + usize::from(switch) > 1 { "each " } else { "" };
            let to = [
                switch.then(|| "the switch".to_owned()),
                (!seen.is_empty()).then(|| format!("GPU {}", ranges(&seen))),
                (hidden > 0).then(|| format!("{} not visible here", counted(hidden, "GPU"))),
            ];
            let to = to.into_iter().flatten().collect::<Vec<_>>().join(" and ");
            parts.push(format!("{} {each}to {to}", counted(count as usize, kind)));
        }
        if let Some(fabric) = &gpu.fabric {
            let state = if fabric.complete { "complete" } else { "not complete" };
            parts.push(format!("fabric {} clique {} {state}", fabric.cluster, fabric.clique));
        }
        if gpu.multicast {
            parts.push("multicast".to_owned());
        }
        parts.join(", ")
    }
}

/// What a GPU is.
fn what(gpu: &GpuDevice) -> String {
    let mut parts = vec![gpu.name.clone()];
    parts.push(gpu.gpu_class.map_or_else(|| "class not known".to_owned(), |class| class.name().to_owned()));
    parts.push(match gpu.memory_bytes {
        0 => "memory not told".to_owned(),
        bytes => size(bytes),
    });
    if gpu.compute_units > 0 {
        parts.push(counted(gpu.compute_units as usize, "unit"));
    }
    parts.join(", ")
}

/// Where a GPU is, and what its vendor calls it.
fn place(gpu: &GpuDevice) -> String {
    let vendor = gpu.vendor.name();
    let mut parts = vec![match gpu.identity.rsplit_once('/') {
        _ if gpu.identity.starts_with("MIG-") => format!("instance of {vendor} {}", gpu.vendor_ordinal),
        Some((whole, part)) => format!("{vendor} {}, partition {part} of {whole}", gpu.vendor_ordinal),
        None => format!("{vendor} {}", gpu.vendor_ordinal),
    }];
    if !gpu.pci_address.is_empty() {
        parts.push(format!("PCI {}", gpu.pci_address));
    }
    parts.extend(gpu.memory_domain.map(|domain| format!("near memory domain {domain}")));
    if gpu.identity != gpu.pci_address {
        parts.push(gpu.identity.clone());
    }
    parts.join(", ")
}
