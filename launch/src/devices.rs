//! `uform devices`: what the library sees in this machine and what this process may use of it.

use std::fmt::Write;

use clap::Args;
use serde_json::json;
use uform::device;
use uform::topology::Survey;

use crate::Failure;

/// Shows the cores, memory domains and GPUs of this machine, and what the library can use of them.
#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is shown.
struct Found {
    survey: Survey,
    allowed: Vec<u32>,
    quota: Option<u32>,
    memory_allowance: Option<u64>,
    compiled: String,
    available: String,
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    let view = device::view()?;
    let found = Found {
        survey: view.survey,
        allowed: view.cores,
        quota: view.quota_cores,
        memory_allowance: view.memory_allowance,
        compiled: device::capabilities_compiled(),
        available: device::capabilities_available()?,
    };
    crate::print(&if options.json { found.as_json() } else { found.as_text() })?;
    Ok(0)
}

impl Found {
    fn as_json(&self) -> String {
        let value = json!({
            "survey": self.survey,
            "allowed_cores": self.allowed,
            "quota_cores": self.quota,
            "memory_allowance_bytes": self.memory_allowance,
            "capabilities_compiled": self.compiled.split_whitespace().collect::<Vec<_>>(),
            "capabilities_available": self.available.split_whitespace().collect::<Vec<_>>(),
        });
        format!("{value:#}\n")
    }

    fn as_text(&self) -> String {
        let survey = &self.survey;
        let mut text = format!("host {}\n", survey.host_name);
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {name:<18} {value}");
        };
        line("cores", format!("{} ({})", survey.cores.len(), ranges(&survey.cores)));
        line("allowed here", format!("{} ({})", self.allowed.len(), ranges(&self.allowed)));
        line("time quota", self.quota.map_or_else(|| "none".into(), |cores| format!("{cores} cores")));
        line("memory allowance", self.memory_allowance.map_or_else(|| "no limit".into(), bytes));
        for domain in &survey.memory_domains {
            let cores = if domain.cores.is_empty() { "none".into() } else { ranges(&domain.cores) };
            line(
                &format!("memory domain {}", domain.ordinal),
                format!("{}, cores {cores}", bytes(domain.memory_bytes)),
            );
        }
        if survey.gpus.is_empty() {
            line("GPUs", "none".into());
        }
        for (ordinal, gpu) in survey.gpus.iter().enumerate() {
            let size = bytes(gpu.memory_bytes);
            line(&format!("GPU {ordinal}"), format!("{}, {size}, {} units", gpu.name, gpu.compute_units));
        }
        line("compiled", self.compiled.clone());
        line("available", self.available.clone());
        text
    }
}

/// Ascending numbers as `0-3,8`.
fn ranges(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let shown = parts.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| count >> shift > 0) {
        // Lengths of memory fit a float as far as one decimal needs it.
        Some((unit, shift)) => format!("{:.1} {unit}", count as f64 / (1_u64 << shift) as f64),
        None => format!("{count} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_for_people() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(
            (bytes(512), bytes(1536), bytes(3 << 30)),
            ("512 B".into(), "1.5 KiB".into(), "3.0 GiB".into())
        );
    }
}
