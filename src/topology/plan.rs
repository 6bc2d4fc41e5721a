//! Which groups one process joins, narrow to wide.

use serde::Serialize;

use super::run::Topology;
use crate::vocabulary::MeshDomain;

/// Members that reduce together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The tier: `multimem`, `host` or `run`.
    pub name: String,
    /// The members' indexes in the run, ascending; a seat is a position here.
    pub seats: Vec<usize>,
    /// The seat of this process.
    pub own: usize,
}

/// The groups this process reduces in, narrowest tier first.
///
/// Derived from the topology alone, so processes agree on it without a message. A tier with one seat is left out,
/// since reducing alone is a copy, and so is one with the seats of a wider tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The groups, each with two seats or more.
    pub groups: Vec<Group>,
    world: Group,
}

impl Plan {
    /// The plan of the member with this index, which must be below the count.
    #[must_use]
    pub fn derive(topology: &Topology, index: usize) -> Self {
        let group = |name: &str, seats: Vec<usize>| {
            let own = seats.iter().position(|seat| *seat == index).unwrap_or(0);
            Group { name: name.to_owned(), seats, own }
        };
        let world = group("run", (0..topology.count()).collect());
        let members = |domain: MeshDomain| topology.members_of(domain, index);
        let mut groups =
            vec![group("multimem", members(MeshDomain::Multimem)), group("host", members(MeshDomain::Host))];
        // A domain may be smaller or larger than a host.
        groups.sort_by_key(|group| group.seats.len());
        groups.push(world.clone());
        let mut kept = Vec::<Group>::new();
        for group in groups.into_iter().rev() {
            if group.seats.len() > 1 && kept.iter().all(|wider| wider.seats != group.seats) {
                kept.push(group);
            }
        }
        kept.reverse();
        Self { groups: kept, world }
    }

    /// The group of all members, also of a single one.
    #[must_use]
    pub fn world(&self) -> &Group {
        &self.world
    }
}

impl Topology {
    /// The members that are in one domain with this one, ascending; itself alone if it is in none.
    #[must_use]
    pub fn members_of(&self, domain: MeshDomain, index: usize) -> Vec<usize> {
        match domain {
            MeshDomain::Multimem => multimem_seats(self, index),
            MeshDomain::Host => self.host_of(index).map_or_else(|| vec![index], |host| host.members.clone()),
            MeshDomain::Colocated => (0..self.count()).collect(),
        }
    }
}

/// The members whose first GPU is in the domain of this one's first GPU.
fn multimem_seats(topology: &Topology, index: usize) -> Vec<usize> {
    let mut first = vec![None; topology.count()];
    for (position, gpu) in topology.gpus().iter().enumerate() {
        first[gpu.owner].get_or_insert(position);
    }
    let Some(own) = first.get(index).copied().flatten() else { return vec![index] };
    let Some(domain) = topology.domain_of(own) else { return vec![index] };
    (0..topology.count()).filter(|other| first[*other].is_some_and(|gpu| domain.contains(gpu))).collect()
}
