//! The run derived from its roster and findings: hosts, GPUs, multimem domains, and how these reduce.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::domain::{Domain, Joined};
use super::machine::{GpuDevice, Survey};
use super::placement::{Seeker, divide_gpus};
use super::{Findings, Member, Roster};
use crate::error::{Error, Result};
use crate::vocabulary::{GpuClass, MultimemTier};

/// Members that share memory: each has opened the memory of every other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The host's name, for people.
    pub name: String,
    /// The kernel's boot identity; several hosts of a run may have the same one, if they are containers.
    pub boot_id: String,
    /// The indexes of its members, ascending.
    pub members: Vec<usize>,
    /// Whether every member can read every other's private memory directly.
    pub readable: bool,
}

/// One GPU of the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunGpu {
    /// The index of the member that drives it.
    pub owner: usize,
    /// Its ordinal in that member's `gpu_devices()`.
    pub ordinal: usize,
    /// What it is.
    pub device: GpuDevice,
}

/// An address at which a member listened while the run formed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Address {
    /// The address with its port.
    pub address: String,
    /// The interface it belongs to.
    pub interface: String,
    /// Why it was published.
    pub reason: String,
}

/// What a member told those of other hosts of its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Listening {
    /// Where it listened.
    pub addresses: Vec<Address>,
    /// Which addresses it left out, each with the reason.
    pub left_out: Vec<String>,
}

/// What one process may know of its place, as the public interface fixes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeshDescription {
    /// The GPUs of this process.
    pub gpus_per_host_domain: usize,
    /// The GPUs of the multimem domain of this process's first GPU, 0 without GPUs.
    pub gpus_per_multimem_domain: usize,
    /// All GPUs of the run.
    pub gpus_per_colocated_domain: usize,
    /// The index of this process.
    pub host_domain_index: usize,
    /// The GPUs of the processes before this one.
    pub first_gpu_index: usize,
    /// How the run's multimem domains reduce.
    pub multimem_tier: MultimemTier,
    /// The class every GPU dispatches as; `None` without GPUs or for a mixture.
    pub gpu_class: Option<GpuClass>,
}

/// Who is in the run and what is near to what; the same value on every member.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    pub(super) roster: Roster,
    pub(super) hosts: Vec<Host>,
    /// In the order of members, and of each member's ordinals.
    pub(super) gpus: Vec<RunGpu>,
    /// By their first GPU.
    pub(super) domains: Vec<Domain>,
    pub(super) tier: MultimemTier,
    pub(super) tier_reason: String,
    pub(super) gpu_class: Option<GpuClass>,
    /// By index; empty where nobody listened.
    pub(super) listening: Vec<Listening>,
}

impl Topology {
    /// Derives the run; `findings` are by index, and `gpus_per_multimem_domain` cuts domains unless it is 0.
    ///
    /// # Errors
    /// `Invalid` for a roster or findings that contradict themselves, for a GPU that two members own, naming both,
    /// and for a cut that does not divide the domains found.
    pub fn derive(roster: &Roster, findings: &[Findings], gpus_per_multimem_domain: usize) -> Result<Self> {
        check_roster(roster, findings)?;
        let hosts = find_hosts(&roster.members, findings);
        let gpus = find_gpus(&roster.members)?;
        let joined = Joined { roster, findings, gpus: &gpus };
        let domains = joined.domains(gpus_per_multimem_domain)?;
        let (tier, tier_reason) = joined.tier(&domains);
        let first = gpus.first().and_then(|gpu| gpu.device.gpu_class);
        let gpu_class = first.filter(|class| gpus.iter().all(|gpu| gpu.device.gpu_class == Some(*class)));
        let (roster, listening) = (roster.clone(), Vec::new());
        Ok(Self { roster, hosts, gpus, domains, tier, tier_reason, gpu_class, listening })
    }

    /// The same run with what its members, by index, told each other of their addresses.
    #[must_use]
    pub fn listening(self, listening: Vec<Listening>) -> Self {
        Self { listening, ..self }
    }

    /// The addresses that a member published to other hosts, and why; `None` if none listened, as within one host.
    #[must_use]
    pub fn addresses_of(&self, index: usize) -> Option<&Listening> {
        self.listening.get(index)
    }

    /// The groups of members that share memory, by their first member.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The host of a member; `None` if there is no such member.
    #[must_use]
    pub fn host_of(&self, index: usize) -> Option<&Host> {
        self.hosts.iter().find(|host| host.members.contains(&index))
    }

    /// Whether all these members share memory.
    #[must_use]
    pub fn share_memory(&self, seats: &[usize]) -> bool {
        self.hosts.iter().any(|host| seats.iter().all(|seat| host.members.contains(seat)))
    }

    /// The run's name for people.
    #[must_use]
    pub fn run(&self) -> &str {
        &self.roster.run
    }

    /// The members by index.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.roster.members
    }

    /// How many processes the run has.
    #[must_use]
    pub fn count(&self) -> usize {
        self.roster.members.len()
    }

    /// The GPUs of the run, in the order of members and of each member's ordinals.
    #[must_use]
    pub fn gpus(&self) -> &[RunGpu] {
        &self.gpus
    }

    /// The multimem domains by their first GPU; their GPUs are positions in [`Topology::gpus`].
    #[must_use]
    pub fn multimem_domains(&self) -> &[Domain] {
        &self.domains
    }

    /// The multimem domain of the GPU at this position of the run; `None` if there is no such GPU.
    #[must_use]
    pub fn domain_of(&self, position: usize) -> Option<&Domain> {
        self.domains.iter().find(|domain| domain.contains(position))
    }

    /// How the multimem domains of the run reduce.
    #[must_use]
    pub fn multimem_tier(&self) -> MultimemTier {
        self.tier
    }

    /// What the tier follows from, for people.
    #[must_use]
    pub fn tier_reason(&self) -> &str {
        &self.tier_reason
    }

    /// The machine of a member; `None` if there is no such member.
    #[must_use]
    pub fn survey(&self, index: usize) -> Option<&Survey> {
        self.roster.members.get(index).map(|member| &member.introduction.survey)
    }

    /// What the member with this index may know of its place.
    #[must_use]
    pub fn describe(&self, index: usize) -> MeshDescription {
        let first = self.gpus.iter().position(|gpu| gpu.owner == index);
        let domain = first.and_then(|first| self.domain_of(first));
        MeshDescription {
            gpus_per_host_domain: self.gpus.iter().filter(|gpu| gpu.owner == index).count(),
            gpus_per_multimem_domain: domain.map_or(0, |domain| domain.gpus.len()),
            gpus_per_colocated_domain: self.gpus.len(),
            host_domain_index: index,
            first_gpu_index: self.gpus.iter().filter(|gpu| gpu.owner < index).count(),
            multimem_tier: self.tier,
            gpu_class: self.gpu_class,
        }
    }
}

/// A member for messages.
pub(super) fn name_of(member: &Member) -> String {
    let process = &member.introduction.process;
    format!("index {} (pid {}, host {})", member.index, process.pid, process.host_name)
}

fn check_roster(roster: &Roster, findings: &[Findings]) -> Result<()> {
    let count = roster.members.len();
    let refuse = |value: String, reason: &str| Err(Error::invalid("roster", value, "rendezvous", reason));
    if count == 0 {
        return refuse("[]".into(), "has no member");
    }
    let mut nonces = BTreeMap::new();
    for (position, member) in roster.members.iter().enumerate() {
        if member.index != position {
            let reason = format!("stands at position {position}, which is another index");
            return refuse(name_of(member), &reason);
        }
        if let Some(other) = nonces.insert(&member.nonce, position) {
            let reason = format!("has the nonce of {}", name_of(&roster.members[other]));
            return refuse(name_of(member), &reason);
        }
    }
    if findings.len() != count {
        let reason = format!("must be one for each of {count} members");
        return Err(Error::invalid("findings", findings.len(), "bootstrap", reason));
    }
    for (index, own) in findings.iter().enumerate() {
        if let Some(odd) = own.opened.iter().chain(&own.readable).find(|other| **other >= count) {
            let origin = name_of(&roster.members[index]);
            return Err(Error::invalid("findings", odd, origin, format!("must be an index below {count}")));
        }
    }
    Ok(())
}

/// Members join the first host whose every member they have opened and that have opened them.
fn find_hosts(members: &[Member], findings: &[Findings]) -> Vec<Host> {
    let sets = |list: fn(&Findings) -> &Vec<usize>| {
        findings.iter().map(|own| list(own).iter().copied().collect::<BTreeSet<_>>()).collect::<Vec<_>>()
    };
    let (opened, readable) = (sets(|own| &own.opened), sets(|own| &own.readable));
    // A finding that one of two denies is denied for both.
    let mutual = |sets: &[BTreeSet<usize>], one: usize, other: usize| {
        one == other || (sets[one].contains(&other) && sets[other].contains(&one))
    };
    let mut hosts = Vec::<Host>::new();
    let mut by_boot = BTreeMap::<&str, Vec<usize>>::new();
    for member in members {
        let process = &member.introduction.process;
        let candidates = by_boot.entry(&process.boot_id).or_default();
        let found = candidates.iter().copied().find(|position| {
            hosts[*position].members.iter().all(|other| mutual(&opened, *other, member.index))
        });
        if let Some(position) = found {
            let host = &mut hosts[position];
            host.readable &= host.members.iter().all(|other| mutual(&readable, *other, member.index));
            host.members.push(member.index);
        } else {
            candidates.push(hosts.len());
            hosts.push(Host {
                name: process.host_name.clone(),
                boot_id: process.boot_id.clone(),
                members: vec![member.index],
                readable: true,
            });
        }
    }
    hosts
}

/// Each member's GPUs: its own visible ones, or its share of those that several members all see.
fn find_gpus(members: &[Member]) -> Result<Vec<RunGpu>> {
    let seekers = members.iter().map(Seeker::of).collect::<Vec<_>>();
    let owned = divide_gpus(&seekers)?;
    let mut gpus = Vec::new();
    for (member, ordinals) in members.iter().zip(owned) {
        let introduction = &member.introduction;
        for ordinal in ordinals {
            let identity = &introduction.visible_gpus[ordinal];
            let device = introduction.survey.gpus.iter().find(|gpu| gpu.identity == *identity);
            let Some(device) = device else {
                let reason = "is visible there, and its survey does not list it";
                return Err(Error::invalid("gpu", identity, name_of(member), reason));
            };
            gpus.push(RunGpu { owner: member.index, ordinal, device: device.clone() });
        }
    }
    Ok(gpus)
}
