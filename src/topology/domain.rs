//! Which GPUs of a run one fabric joins, how each such domain reduces, and why.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::run::{RunGpu, name_of};
use super::{Findings, Roster};
use crate::error::{Error, Result};
use crate::vocabulary::{GpuVendor, MultimemTier};

/// The name of an NVLink switch among the peers of a GPU's links.
pub(super) const SWITCH: &str = "switch";

/// One multimem domain: GPUs that one fabric joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Domain {
    /// Positions among the GPUs of the run, ascending; at least one.
    pub gpus: Vec<usize>,
    /// How it could reduce if it were alone in the run.
    pub tier: MultimemTier,
    /// What its tier follows from.
    pub reason: String,
    /// Whether all that is known speaks for its switch, and its members, whose executors drive its GPUs, have tried nothing yet.
    #[serde(skip)]
    pub awaits_trial: bool,
}

impl Domain {
    /// Whether the GPU at this position of the run is in it.
    #[must_use]
    pub fn contains(&self, position: usize) -> bool {
        self.gpus.binary_search(&position).is_ok()
    }
}

/// What domains and tiers follow from.
pub(super) struct Joined<'a> {
    pub(super) roster: &'a Roster,
    pub(super) findings: &'a [Findings],
    pub(super) gpus: &'a [RunGpu],
}

impl Joined<'_> {
    /// The domains by their first GPU, cut into consecutive parts of `size` unless that is 0.
    pub(super) fn domains(&self, size: usize) -> Result<Vec<Domain>> {
        let domain = |gpus: Vec<usize>| {
            let (tier, reason) = self.judge(&gpus);
            let awaits_trial = self.awaits_trial(&gpus);
            Domain { gpus, tier, reason, awaits_trial }
        };
        Ok(cut(self.join(), size)?.into_iter().map(domain).collect())
    }

    /// The tier of the run and why: the switch reduces only if it can in every domain of two or more.
    pub(super) fn tier(&self, domains: &[Domain]) -> (MultimemTier, String) {
        let wide = domains.iter().enumerate().filter(|(_, domain)| domain.gpus.len() > 1);
        let wide = wide.collect::<Vec<_>>();
        let peer_read = |reason: String| (MultimemTier::PeerRead, reason);
        match wide.iter().find(|(_, domain)| domain.tier == MultimemTier::PeerRead) {
            _ if self.gpus.is_empty() => peer_read("there are no GPUs".to_owned()),
            _ if wide.is_empty() => peer_read("no two GPUs are in one domain".to_owned()),
            Some((number, domain)) => peer_read(format!("domain {number}: {}", domain.reason)),
            None => {
                let reason = "every domain of two or more GPUs can reduce in its switch".to_owned();
                (MultimemTier::SwitchReduced, reason)
            }
        }
    }

    /// Joins the GPUs of one fabric, of one machine's NVLink switch, and at the two ends of a direct link.
    fn join(&self) -> Vec<Vec<usize>> {
        let machine = |gpu: &RunGpu| self.roster.members[gpu.owner].introduction.process.boot_id.as_str();
        // A link to a GPU outside the run joins nothing.
        let ends = self.gpus.iter().map(|gpu| (machine(gpu), gpu.device.identity.as_str()));
        let ends = ends.collect::<BTreeSet<_>>();
        let mut leader = (0..self.gpus.len()).collect::<Vec<_>>();
        // The first GPU seen with each key; GPUs with a key in common are joined.
        let mut first = BTreeMap::<(&str, &str, u32), usize>::new();
        for (position, gpu) in self.gpus.iter().enumerate() {
            let machine = machine(gpu);
            let mut keys = vec![(machine, gpu.device.identity.as_str(), 0)];
            let spanning = gpu
                .device
                .fabric
                .as_ref()
                .filter(|fabric| fabric.complete && spans_machines(&fabric.cluster));
            keys.extend(spanning.map(|fabric| ("fabric", fabric.cluster.as_str(), fabric.clique)));
            let links = gpu.device.links.iter().filter(|link| link.count > 0);
            let links = links.filter(|link| match link.peer.as_str() {
                // Cliques of one fabric may share a machine's switch, and do not reach each other through it.
                SWITCH => spanning.is_none(),
                peer => ends.contains(&(machine, peer)),
            });
            keys.extend(links.map(|link| (machine, link.peer.as_str(), 0)));
            for key in keys {
                let other = *first.entry(key).or_insert(position);
                join(&mut leader, other, position);
            }
        }
        let mut domains = BTreeMap::<usize, Vec<usize>>::new();
        for position in 0..self.gpus.len() {
            domains.entry(leader_of(&leader, position)).or_default().push(position);
        }
        domains.into_values().collect()
    }

    /// How one domain reduces, and why: the first GPU that cannot, and the first member that denies.
    fn judge(&self, domain: &[usize]) -> (MultimemTier, String) {
        if domain.len() < 2 {
            return (MultimemTier::PeerRead, "it has one GPU".to_owned());
        }
        match domain.iter().find_map(|position| self.obstacle(*position)) {
            Some(obstacle) => (MultimemTier::PeerRead, obstacle),
            None => {
                let reason = "all its GPUs support multicast, its fabric is complete, and every member could bind \
                     its part of a trial object";
                (MultimemTier::SwitchReduced, reason.to_owned())
            }
        }
    }

    /// Whether only a trial can tell how a domain reduces, and its members can try it: their own executors drive its GPUs.
    fn awaits_trial(&self, domain: &[usize]) -> bool {
        let can_try = |position: &usize| {
            let owner = self.gpus[*position].owner;
            let introduction = &self.roster.members[owner].introduction;
            introduction.driven_gpus.is_some() && self.findings[owner].multicast.is_none()
        };
        domain.len() > 1 && domain.iter().all(|position| self.lack(*position).is_none() && can_try(position))
    }

    /// Whether another member drives the same GPU.
    fn is_shared(&self, position: usize) -> bool {
        let same = |other: &usize| {
            *other != position && is_same(self.roster, &self.gpus[*other], &self.gpus[position])
        };
        (0..self.gpus.len()).any(|other| same(&other))
    }

    /// Why this GPU cannot reduce in a switch, if it cannot.
    fn obstacle(&self, position: usize) -> Option<String> {
        self.lack(position).or_else(|| {
            let owner = self.gpus[position].owner;
            let (name, findings) = (name_of(&self.roster.members[owner]), &self.findings[owner]);
            match findings.multicast {
                None => Some(format!("{name} has not tried to bind its part of a multicast object")),
                Some(false) if findings.multicast_problem.is_empty() => {
                    Some(format!("{name} could not bind its part of a trial multicast object"))
                }
                Some(false) => Some(format!(
                    "{name} could not bind its part of a trial multicast object: {}",
                    findings.multicast_problem
                )),
                Some(true) => None,
            }
        })
    }

    /// What this GPU lacks by what is known without a trial.
    fn lack(&self, position: usize) -> Option<String> {
        let gpu = &self.gpus[position];
        let name = || format!("GPU {position} ({})", gpu.device.name);
        if gpu.device.vendor != GpuVendor::Nvidia {
            return Some(format!("{} has no switch that reduces", name()));
        }
        if self.is_shared(position) {
            return Some(format!("{} is shared by several members", name()));
        }
        if !gpu.device.multicast {
            return Some(format!("{} does not support multicast", name()));
        }
        match &gpu.device.fabric {
            None => Some(format!("{} belongs to no fabric", name())),
            Some(fabric) if !fabric.complete => {
                Some(format!("the registration of {} with its fabric is not complete and healthy", name()))
            }
            Some(_) => None,
        }
    }
}

/// Whether two members drive one GPU.
pub(super) fn is_same(roster: &Roster, one: &RunGpu, other: &RunGpu) -> bool {
    let machine = |gpu: &RunGpu| &roster.members[gpu.owner].introduction.process.boot_id;
    one.device.identity == other.device.identity && machine(one) == machine(other)
}

/// Whether a fabric identity can join GPUs of several machines: drivers give zeros where there is one machine.
fn spans_machines(cluster: &str) -> bool {
    cluster.chars().any(|character| character != '0' && character != '-')
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
