//! The topology as a tree for people and as JSON for programs.

use std::fmt;

use serde_json::{Value, json};

use super::run::Topology;

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "run {}: {}, {}, {}",
            self.run(),
            counted(self.count(), "process"),
            counted(self.hosts.len(), "host"),
            match self.gpus.len() {
                0 => "no GPUs".to_owned(),
                count => format!(
                    "{}{} in {}, tier {}",
                    counted(count, "GPU"),
                    self.gpu_class.map_or_else(String::new, |class| format!(" {class}")),
                    counted(self.domains.len(), "multimem domain"),
                    self.tier
                ),
            }
        )?;
        for (position, host) in self.hosts.iter().enumerate() {
            let last = position + 1 == self.hosts.len();
            let (branch, stem) = if last { ("└─", "   ") } else { ("├─", "│  ") };
            write!(formatter, "\n{branch} host {}: {}", host.name, self.machine_line(position))?;
            for (seat, index) in host.members.iter().enumerate() {
                let branch = if seat + 1 == host.members.len() { "└─" } else { "├─" };
                write!(formatter, "\n{stem}{branch} index {index}: {}", self.member_line(*index))?;
            }
        }
        Ok(())
    }
}

impl Topology {
    /// The topology as one JSON object: `run`, `count`, `hosts`, `members`, `gpus`, `multimem_domains`,
    /// `multimem_tier`, `gpu_class`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let members = self.members().iter().map(|member| {
            let introduction = &member.introduction;
            let host = self.hosts.iter().position(|host| host.members.contains(&member.index));
            json!({
                "index": member.index,
                "host": host,
                "host_name": introduction.process.host_name,
                "pid": introduction.process.pid,
                "launcher": introduction.launcher,
                "local_index": introduction.local_index,
                "cores": introduction.cores,
                "quota_cores": introduction.quota_cores,
                "gpus": self.gpu_positions(member.index),
            })
        });
        let hosts = self.hosts.iter().map(|host| {
            let survey = host.members.first().and_then(|index| self.survey(*index));
            json!({
                "name": host.name,
                "boot_id": host.boot_id,
                "members": host.members,
                "readable": host.readable,
                "cores": survey.map(|survey| survey.cores.len()),
                "memory_domains": survey.map(|survey| &survey.memory_domains),
                "cpu_class": survey.and_then(|survey| survey.cpu_classes.last()).map(|class| class.name()),
            })
        });
        let value = json!({
            "run": self.run(),
            "count": self.count(),
            "hosts": hosts.collect::<Vec<_>>(),
            "members": members.collect::<Vec<Value>>(),
            "gpus": self.gpus,
            "multimem_domains": self.domains,
            "multimem_tier": self.tier.name(),
            "gpu_class": self.gpu_class.map(|class| class.name()),
        });
        format!("{value:#}")
    }

    fn gpu_positions(&self, index: usize) -> Vec<usize> {
        (0..self.gpus.len()).filter(|position| self.gpus[*position].owner == index).collect()
    }

    fn machine_line(&self, position: usize) -> String {
        let host = &self.hosts[position];
        let mut parts = vec![counted(host.members.len(), "process")];
        if let Some(survey) = host.members.first().and_then(|index| self.survey(*index)) {
            let bytes = survey
                .memory_domains
                .iter()
                .fold(0_u64, |sum, domain| sum.saturating_add(domain.memory_bytes));
            parts.push(counted(survey.cores.len(), "core"));
            parts.push(counted(survey.memory_domains.len(), "memory domain"));
            parts.push(format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
            parts.extend(survey.cpu_classes.last().map(|class| class.name().to_owned()));
        }
        let same = |other: &&super::Host| other.boot_id == host.boot_id;
        if self.hosts.iter().filter(same).count() > 1 {
            parts.push("shares its machine with another host of the run, but no memory".to_owned());
        }
        parts.join(", ")
    }

    fn member_line(&self, index: usize) -> String {
        let introduction = &self.members()[index].introduction;
        let mut parts = vec![format!("pid {}", introduction.process.pid)];
        parts.push(format!("cores {}", ranges(&introduction.cores)));
        parts.extend(introduction.quota_cores.map(|quota| format!("quota {quota}")));
        let gpus = self.gpu_positions(index);
        for (number, domain) in self.domains.iter().enumerate() {
            let own =
                gpus.iter().filter(|position| domain.contains(position)).map(|position| *position as u32);
            let own = own.collect::<Vec<_>>();
            if !own.is_empty() {
                let name = &self.gpus[own[0] as usize].device.name;
                parts.push(format!("GPUs {} ({name}) in multimem domain {number}", ranges(&own)));
            }
        }
        parts.join(", ")
    }
}

/// A number and its noun.
fn counted(count: usize, noun: &str) -> String {
    match (count, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{count} {noun}es"),
        (_, false) => format!("{count} {noun}s"),
    }
}

/// Ascending numbers, as the kernel writes them: `0-3,8`.
fn ranges(numbers: &[u32]) -> String {
    let mut parts = Vec::<(u32, u32)>::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let write = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(write).collect::<Vec<_>>().join(",")
}
