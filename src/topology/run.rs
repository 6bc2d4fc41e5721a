//! The run derived from its roster and findings: hosts, GPUs, multimem domains, and how these reduce.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::machine::{GpuDevice, Survey};
use super::placement::{Seeker, divide_gpus};
use super::{Findings, Member, Roster};
use crate::error::{Error, Result};
use crate::vocabulary::{GpuClass, GpuVendor, MultimemTier};

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
    /// Positions in `gpus`, each list ascending; the lists by their first.
    pub(super) domains: Vec<Vec<usize>>,
    pub(super) tier: MultimemTier,
    pub(super) gpu_class: Option<GpuClass>,
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
        let domains = cut(find_domains(roster, &gpus), gpus_per_multimem_domain)?;
        let tier = find_tier(&gpus, &domains, findings);
        let first = gpus.first().and_then(|gpu| gpu.device.gpu_class);
        let gpu_class = first.filter(|class| gpus.iter().all(|gpu| gpu.device.gpu_class == Some(*class)));
        Ok(Self { roster: roster.clone(), hosts, gpus, domains, tier, gpu_class })
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

    /// The multimem domains: positions in [`Topology::gpus`].
    #[must_use]
    pub fn multimem_domains(&self) -> &[Vec<usize>] {
        &self.domains
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
        let domain = first.and_then(|first| self.domains.iter().find(|domain| domain.contains(&first)));
        MeshDescription {
            gpus_per_host_domain: self.gpus.iter().filter(|gpu| gpu.owner == index).count(),
            gpus_per_multimem_domain: domain.map_or(0, Vec::len),
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

/// Whether a fabric identity can join GPUs of several machines: drivers give zeros where there is one machine.
fn spans_machines(cluster: &str) -> bool {
    cluster.chars().any(|character| character != '0' && character != '-')
}

/// Joins the GPUs of one fabric, of one NVLink switch, and at the two ends of a direct link.
fn find_domains(roster: &Roster, gpus: &[RunGpu]) -> Vec<Vec<usize>> {
    let mut leader = (0..gpus.len()).collect::<Vec<_>>();
    // The first GPU seen with each key; GPUs with a key in common are joined.
    let mut first = BTreeMap::<(&str, &str, u32), usize>::new();
    for (position, gpu) in gpus.iter().enumerate() {
        let machine = roster.members[gpu.owner].introduction.process.boot_id.as_str();
        let mut keys = vec![(machine, gpu.device.identity.as_str(), 0)];
        if let Some(fabric) = &gpu.device.fabric
            && fabric.complete
            && spans_machines(&fabric.cluster)
        {
            keys.push(("fabric", fabric.cluster.as_str(), fabric.clique));
        }
        keys.extend(
            gpu.device
                .links
                .iter()
                .filter(|link| link.count > 0)
                .map(|link| (machine, link.peer.as_str(), 0)),
        );
        for key in keys {
            let other = *first.entry(key).or_insert(position);
            join(&mut leader, other, position);
        }
    }
    let mut domains = BTreeMap::<usize, Vec<usize>>::new();
    for position in 0..gpus.len() {
        domains.entry(leader_of(&leader, position)).or_default().push(position);
    }
    domains.into_values().collect()
}

fn leader_of(leader: &[usize], mut position: usize) -> usize {
    while leader[position] != position {
        position = leader[position];
    }
    position
}

/// Joins two sets; the lower leader stays, so that a set is known by its first GPU.
fn join(leader: &mut [usize], one: usize, other: usize) {
    let (one, other) = (leader_of(leader, one), leader_of(leader, other));
    leader[one.max(other)] = one.min(other);
}

fn cut(domains: Vec<Vec<usize>>, size: usize) -> Result<Vec<Vec<usize>>> {
    if size == 0 {
        return Ok(domains);
    }
    if let Some(odd) = domains.iter().find(|domain| domain.len() % size != 0) {
        let sizes = domains.iter().map(|domain| domain.len().to_string()).collect::<Vec<_>>().join(", ");
        let reason = format!("does not divide a domain of {} GPUs; domains found: {sizes}", odd.len());
        return Err(Error::invalid("gpus_per_multimem_domain", size, "argument", reason));
    }
    Ok(domains.iter().flat_map(|domain| domain.chunks(size).map(<[usize]>::to_vec)).collect())
}

/// The switch reduces only if it can in every domain of two or more, and every owner's trial has shown it.
fn find_tier(gpus: &[RunGpu], domains: &[Vec<usize>], findings: &[Findings]) -> MultimemTier {
    let can = |position: &usize| {
        let gpu = &gpus[*position];
        gpu.device.vendor == GpuVendor::Nvidia
            && gpu.device.multicast
            && gpu.device.fabric.as_ref().is_some_and(|fabric| fabric.complete)
            && findings[gpu.owner].multicast == Some(true)
    };
    let mut wide = domains.iter().filter(|domain| domain.len() > 1).peekable();
    if wide.peek().is_some() && wide.all(|domain| domain.iter().all(can)) {
        MultimemTier::SwitchReduced
    } else {
        MultimemTier::PeerRead
    }
}
