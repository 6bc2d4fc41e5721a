//! The topology as a tree for people.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::domain::{SWITCH, is_same};
use super::machine::MemoryDomain;
use super::placement::{Placement, Request};
use super::plan::Plan;
use super::run::{Address, Listening, RunGpu, Topology};
use super::words::{counted, index_ranges, ranges, size, some_of};
use crate::vocabulary::GpuVendor;

/// How many groups of one name are listed.
const GROUPS_SHOWN: usize = 8;

/// One line of the tree, and what belongs to it.
struct Branch {
    text: String,
    below: Vec<Branch>,
}

impl Branch {
    fn leaf(text: String) -> Self {
        Self { text, below: Vec::new() }
    }

    fn write(&self, formatter: &mut fmt::Formatter<'_>, indent: &str) -> fmt::Result {
        formatter.write_str(&self.text)?;
        for (position, branch) in self.below.iter().enumerate() {
            let last = position + 1 == self.below.len();
            let (sign, stem) = if last { ("└─", "   ") } else { ("├─", "│  ") };
            write!(formatter, "\n{indent}{sign} ")?;
            branch.write(formatter, &format!("{indent}{stem}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut below = (0..self.hosts.len()).map(|position| self.host_branch(position)).collect::<Vec<_>>();
        below.extend(self.domain_branches());
        below.push(self.group_branch());
        Branch { text: self.headline(), below }.write(formatter, "")
    }
}

impl Topology {
    /// The run in one line: name, processes, hosts, GPUs, tier.
    #[must_use]
    pub fn headline(&self) -> String {
        let gpus = match self.gpus.len() {
            0 => "no GPUs".to_owned(),
            count => format!(
                "{}{} in {}, tier {}",
                counted(count, "GPU"),
                self.gpu_class.map_or_else(String::new, |class| format!(" {class}")),
                counted(self.domains.len(), "multimem domain"),
                self.tier
            ),
        };
        let (processes, hosts) = (counted(self.count(), "process"), counted(self.hosts.len(), "host"));
        format!("run {}: {processes}, {hosts}, {gpus}", self.run())
    }

    /// What an executor takes that bootstrap makes for this member; `None` if its place cannot be derived.
    pub(super) fn share(&self, index: usize) -> Option<Placement> {
        Placement::derive(&Request::of(self, index)?).ok()
    }

    /// The positions of a member's GPUs.
    pub(super) fn gpus_of(&self, index: usize) -> Vec<usize> {
        (0..self.gpus.len()).filter(|position| self.gpus[*position].owner == index).collect()
    }

    /// The memory domains of a host that have anything, by ordinal: cores, memory, or a GPU near them.
    ///
    /// Some systems list domains for memory that may come later.
    pub(super) fn memory_domains_of(&self, host: usize) -> Vec<&MemoryDomain> {
        let survey = self.hosts[host].members.first().and_then(|index| self.survey(*index));
        let near = |ordinal| {
            let gpus = survey.iter().flat_map(|survey| &survey.gpus);
            gpus.filter_map(|gpu| gpu.memory_domain).any(|own| own == ordinal)
        };
        let domains = survey.iter().flat_map(|survey| &survey.memory_domains);
        let used = |domain: &&MemoryDomain| {
            !domain.cores.is_empty() || domain.memory_bytes > 0 || near(domain.ordinal)
        };
        domains.filter(used).collect()
    }

    /// A host's machine in one line.
    pub(super) fn machine_line(&self, position: usize) -> String {
        let host = &self.hosts[position];
        let mut parts = vec![counted(host.members.len(), "process")];
        if let Some(survey) = host.members.first().and_then(|index| self.survey(*index)) {
            let domains = self.memory_domains_of(position);
            let bytes = domains.iter().fold(0_u64, |sum, domain| sum.saturating_add(domain.memory_bytes));
            parts.push(counted(survey.cores.len(), "core"));
            parts.push(counted(domains.len(), "memory domain"));
            parts.push(size(bytes));
            parts.extend(survey.cpu_classes.last().map(|class| class.name().to_owned()));
        }
        let same = |other: &&super::Host| other.boot_id == host.boot_id;
        if self.hosts.iter().filter(same).count() > 1 {
            parts.push("shares its machine with another host of the run, but no memory".to_owned());
        }
        parts.join(", ")
    }

    /// A member's cores in words: its share, and what it may use where that is more.
    pub(super) fn cores_line(&self, index: usize) -> String {
        let introduction = &self.members()[index].introduction;
        let mut text = match self.share(index) {
            _ if introduction.cores.is_empty() => "cores not known".to_owned(),
            Some(share) if share.cores.len() < introduction.cores.len() => {
                let mut own = share.cores;
                own.sort_unstable();
                format!("cores {} of {}", ranges(&own), ranges(&introduction.cores))
            }
            _ => format!("cores {}", ranges(&introduction.cores)),
        };
        if let Some(quota) = introduction.quota_cores {
            text.push_str(&format!(", quota of {}", counted(quota as usize, "core")));
        }
        text
    }

    fn host_branch(&self, position: usize) -> Branch {
        let host = &self.hosts[position];
        let memory = self
            .memory_domains_of(position)
            .into_iter()
            .map(|domain| Branch::leaf(format!("memory domain {}: {}", domain.ordinal, memory_line(domain))));
        let members = host.members.iter().map(|index| {
            let introduction = &self.members()[*index].introduction;
            let gpus = self.gpus_of(*index).into_iter();
            let gpus = gpus.map(|gpu| Branch::leaf(format!("GPU {gpu}: {}", self.gpu_line(gpu))));
            let told = self.addresses_of(*index).into_iter();
            let told = told.flat_map(address_lines).map(Branch::leaf);
            Branch {
                text: format!("index {index}: pid {}, {}", introduction.process.pid, self.cores_line(*index)),
                below: gpus.chain(told).collect(),
            }
        });
        Branch {
            text: format!("host {}: {}", host.name, self.machine_line(position)),
            below: memory.chain(members).collect(),
        }
    }

    /// A GPU of the run in one line.
    fn gpu_line(&self, position: usize) -> String {
        let gpu = &self.gpus[position];
        let device = &gpu.device;
        let mut parts = vec![device.name.clone()];
        if device.memory_bytes > 0 {
            parts.push(size(device.memory_bytes));
        }
        parts.extend(device.memory_domain.map(|domain| format!("near memory domain {domain}")));
        parts.extend(self.links_of(position).iter().map(Ends::in_words));
        if let Some(fabric) = &device.fabric
            && !fabric.complete
        {
            parts.push("fabric not complete".to_owned());
        }
        let sharers = self.gpus.iter().filter(|other| other.owner != gpu.owner);
        let sharers = sharers.filter(|other| is_same(&self.roster, other, gpu)).map(|other| other.owner);
        let sharers = sharers.collect::<Vec<_>>();
        if !sharers.is_empty() {
            parts.push(format!("shared with index {}", index_ranges(&sharers)));
        }
        let domain = self.domains.iter().position(|domain| domain.contains(position));
        parts.extend(domain.map(|number| format!("multimem domain {number}")));
        parts.join(", ")
    }

    /// What a GPU's links lead to, those with equal counts together.
    pub(super) fn links_of(&self, position: usize) -> Vec<Ends> {
        let gpu = &self.gpus[position];
        let kind = link_kind(gpu);
        let mut by_count = BTreeMap::<u32, (Vec<usize>, usize)>::new();
        let mut found = Vec::new();
        for link in gpu.device.links.iter().filter(|link| link.count > 0) {
            if link.peer == SWITCH {
                found.push(Ends { kind, count: link.count, gpus: Vec::new(), outside: 0, switch: true });
                continue;
            }
            let (inside, outside) = by_count.entry(link.count).or_default();
            match self.gpu_named(gpu, &link.peer) {
                Some(peer) => inside.push(peer),
                None => *outside += 1,
            }
        }
        found.extend(by_count.into_iter().map(|(count, (mut gpus, outside))| {
            gpus.sort_unstable();
            Ends { kind, count, gpus, outside, switch: false }
        }));
        found
    }

    /// The position of the GPU with this identity on the machine of `near`.
    fn gpu_named(&self, near: &RunGpu, identity: &str) -> Option<usize> {
        let machine = |gpu: &RunGpu| &self.members()[gpu.owner].introduction.process.boot_id;
        self.gpus.iter().position(|gpu| gpu.device.identity == identity && machine(gpu) == machine(near))
    }

    fn domain_branches(&self) -> Vec<Branch> {
        if self.gpus.is_empty() {
            return Vec::new();
        }
        let domains = self.domains.iter().enumerate().map(|(number, domain)| {
            let (gpus, reason) = (index_ranges(&domain.gpus), &domain.reason);
            let noun = if domain.gpus.len() == 1 { "GPU" } else { "GPUs" };
            Branch::leaf(format!("multimem domain {number}: {noun} {gpus}, {}: {reason}", domain.tier))
        });
        let tier = Branch::leaf(format!("tier {}: {}", self.tier, self.tier_reason));
        domains.chain([tier]).collect()
    }

    fn group_branch(&self) -> Branch {
        match self.group_lines() {
            lines if lines.is_empty() => {
                Branch::leaf("groups: none, since the run has one member".to_owned())
            }
            lines => Branch {
                text: "groups, narrow to wide".to_owned(),
                below: lines.into_iter().map(Branch::leaf).collect(),
            },
        }
    }

    /// The groups of all plans in words, narrow to wide; none in a run of one.
    pub(super) fn group_lines(&self) -> Vec<String> {
        let groups = self.groups();
        let lines = groups.iter().map(|(name, seats)| {
            let lists = seats.iter().map(|seats| index_ranges(seats)).collect::<Vec<_>>();
            let members = match seats.first() {
                Some(first) if seats.iter().all(|seats| seats.len() == first.len()) => {
                    format!(" of {} members", first.len())
                }
                _ => String::new(),
            };
            let count = counted(seats.len(), "group");
            format!("{name}: {count}{members}: {}", some_of(&lists, GROUPS_SHOWN, "; "))
        });
        lines.collect()
    }

    /// The groups of all plans by name, narrow to wide, each with its members' indexes.
    fn groups(&self) -> Vec<(String, Vec<Vec<usize>>)> {
        let mut groups = BTreeMap::<String, BTreeSet<Vec<usize>>>::new();
        for index in 0..self.count() {
            for group in Plan::derive(self, index).groups {
                groups.entry(group.name).or_default().insert(group.seats);
            }
        }
        let mut groups = groups
            .into_iter()
            .map(|(name, seats)| (name, seats.into_iter().collect::<Vec<_>>()))
            .collect::<Vec<_>>();
        groups.sort_by_key(|(_, seats)| seats.iter().map(Vec::len).max());
        groups
    }
}

/// Where some of a GPU's links lead.
pub(super) struct Ends {
    /// The name of the technology.
    pub(super) kind: &'static str,
    /// How many links go to each.
    pub(super) count: u32,
    /// Positions of GPUs of the run, ascending.
    pub(super) gpus: Vec<usize>,
    /// How many GPUs they lead to that are not in the run.
    pub(super) outside: usize,
    /// Whether they lead to a switch.
    pub(super) switch: bool,
}

impl Ends {
    fn in_words(&self) -> String {
        let links = counted(self.count as usize, self.kind);
        let outside = match self.outside {
            0 => None,
            count => Some(format!("{} outside the run", counted(count, "GPU"))),
        };
        let inside = match self.gpus.as_slice() {
            [] => None,
            [one] => Some(format!("GPU {one}")),
            several => Some(format!("each of GPUs {}", index_ranges(several))),
        };
        let switch = self.switch.then(|| "the switch".to_owned());
        let ends = [switch, inside, outside].into_iter().flatten().collect::<Vec<_>>();
        format!("{links} to {}", ends.join(" and "))
    }
}

/// What a member told of its addresses, a line for each.
fn address_lines(told: &Listening) -> Vec<String> {
    let published = told.addresses.iter().map(|one| {
        let Address { address, interface, reason } = one;
        format!("published {address} of {interface}: {reason}")
    });
    published.chain(told.left_out.iter().map(|note| format!("left out {note}"))).collect()
}

/// What a vendor calls its links.
fn link_kind(gpu: &RunGpu) -> &'static str {
    match gpu.device.vendor {
        GpuVendor::Nvidia => "NVLink",
        GpuVendor::Amd => "xGMI link",
        GpuVendor::Apple => "link",
    }
}

/// A memory domain's cores and memory in words.
pub(super) fn memory_line(domain: &MemoryDomain) -> String {
    let cores = match domain.cores.as_slice() {
        [] => "no cores".to_owned(),
        cores => format!("{} {}", counted(cores.len(), "core"), ranges(cores)),
    };
    let memory = if domain.memory_bytes == 0 { "no memory".to_owned() } else { size(domain.memory_bytes) };
    format!("{cores}, {memory}")
}
