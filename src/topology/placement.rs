//! Which threads, cores, memory domains and devices one process takes of its machine.

use std::collections::BTreeMap;

use super::Member;
use super::machine::{MemoryDomain, Survey};
use super::run::{Topology, name_of};
use crate::error::{Error, Result};

/// How many threads an executor may have.
pub const THREAD_LIMIT: usize = 4096;

/// One process that takes a part of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeker {
    /// Its index in the run.
    pub index: usize,
    /// Its name for messages.
    pub name: String,
    /// The machine's boot identity.
    pub boot_id: String,
    /// The cores it may run on.
    pub cores: Vec<u32>,
    /// The cores' worth of time its control group allows.
    pub quota_cores: Option<u32>,
    /// The identities of the GPUs it sees, in the order of its ordinals.
    pub visible_gpus: Vec<String>,
    /// Those of them that its own executor drives; `None` where the division says which are its own.
    pub driven_gpus: Option<Vec<String>>,
    /// Whether others may drive one of these too.
    pub shares_gpus: bool,
    /// The memory domain that each of these GPUs is near, `None` where it is not known.
    pub gpu_domains: Vec<Option<u32>>,
}

impl Seeker {
    /// A member as one that seeks a place.
    #[must_use]
    pub fn of(member: &Member) -> Self {
        let introduction = &member.introduction;
        let near = |identity: &String| {
            let gpus = introduction.survey.gpus.iter();
            gpus.filter(|gpu| gpu.identity == *identity).find_map(|gpu| gpu.memory_domain)
        };
        Self {
            index: member.index,
            name: name_of(member),
            boot_id: introduction.process.boot_id.clone(),
            cores: introduction.cores.clone(),
            quota_cores: introduction.quota_cores,
            visible_gpus: introduction.visible_gpus.clone(),
            driven_gpus: introduction.driven_gpus.clone(),
            shares_gpus: introduction.shares_gpus,
            gpu_domains: introduction.visible_gpus.iter().map(near).collect(),
        }
    }
}

/// What is asked for, and who else is on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The index of the process that asks.
    pub index: usize,
    /// The processes of its machine, itself included, by index.
    pub seekers: Vec<Seeker>,
    /// The machine's memory domains.
    pub machine: Vec<MemoryDomain>,
    /// The machine's cores that are threads of one physical core, as in its survey.
    pub siblings: Vec<Vec<u32>>,
    /// How many threads; 0 takes the core budget.
    pub threads: usize,
    /// The memory domains to stay in; `None` takes those of the cores.
    pub memory_domains: Option<Vec<u32>>,
}

impl Request {
    /// A process that shares its machine with nobody it knows of: `seeker` takes what it may.
    #[must_use]
    pub fn alone(seeker: Seeker, survey: &Survey) -> Self {
        Self {
            index: seeker.index,
            seekers: vec![seeker],
            machine: survey.memory_domains.clone(),
            siblings: survey.siblings.clone(),
            threads: 0,
            memory_domains: None,
        }
    }

    /// The member with this index among those of its machine; `None` if there is no such member.
    #[must_use]
    pub fn of(topology: &Topology, index: usize) -> Option<Self> {
        let own = topology.members().get(index)?;
        // Cores are shared by all that run under one kernel, whether or not they share memory.
        let boot_id = &own.introduction.process.boot_id;
        let near = topology.members().iter().filter(|other| other.introduction.process.boot_id == *boot_id);
        Some(Self {
            index,
            seekers: near.map(Seeker::of).collect(),
            machine: own.introduction.survey.memory_domains.clone(),
            siblings: own.introduction.survey.siblings.clone(),
            threads: 0,
            memory_domains: None,
        })
    }
}

/// What one process takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// How many threads, at least 1.
    pub threads: usize,
    /// The cores they run on, one each as far as there are so many, in the order of memory domains; empty if the
    /// mask is not known. Physical cores come before second threads of any, and cores near its GPUs before others.
    pub cores: Vec<u32>,
    /// The memory domains of these cores, or those asked for, ascending.
    pub memory_domains: Vec<u32>,
    /// Ordinals in this process's `gpu_devices()`.
    pub devices: Vec<usize>,
}

impl Placement {
    /// Divides the machine and gives the asking process its part; a mask is never widened.
    ///
    /// # Errors
    /// `Invalid` for too many threads, for a memory domain that does not exist, has none of this process's cores, or has no
    /// memory, listing those that do, and for a GPU that two processes see without seeing all the same, naming both.
    pub fn derive(request: &Request) -> Result<Self> {
        let Some(position) = request.seekers.iter().position(|seeker| seeker.index == request.index) else {
            return Err(Error::invalid(
                "index",
                request.index,
                "placement",
                "is none of the machine's processes",
            ));
        };
        if request.threads > THREAD_LIMIT {
            let reason = format!("must be at most {THREAD_LIMIT}; 0 takes the core budget");
            return Err(Error::invalid("threads", request.threads, "argument", reason));
        }
        let mut devices = divide_gpus(&request.seekers)?;
        let order = Order::new(request);
        let near = request.seekers.iter().zip(&devices).map(|(seeker, own)| order.near(seeker, own));
        let near = near.collect::<Vec<_>>();
        let share = divide_cores(&request.seekers, &near, &order).swap_remove(position);
        let asked = asked_domains(request, position)?;
        let mut cores = match &asked {
            None => share,
            Some(asked) => restrict(request, position, share, asked),
        };
        let budget = budget(request, position, cores.len());
        let threads = if request.threads == 0 { budget } else { request.threads };
        order.choose(&mut cores, threads, near[position]);
        let memory_domains = asked.unwrap_or_else(|| domains_of(&request.machine, &cores));
        Ok(Self { threads, cores, memory_domains, devices: devices.swap_remove(position) })
    }
}

/// The threads that fit: one a core, no more than this process's part of the quota, at least 1.
fn budget(request: &Request, position: usize, cores: usize) -> usize {
    let own = &request.seekers[position];
    let quota = own.quota_cores.map_or(usize::MAX, |quota| {
        // Those with whom it shares cores are taken to share the quota: several may be in one control group.
        let sharers = request.seekers.iter().filter(|other| {
            other.index == own.index || other.cores.iter().any(|core| own.cores.contains(core))
        });
        let (count, before) = sharers.fold((0, 0), |(count, before), other| {
            (count + 1, before + usize::from(other.index < own.index))
        });
        part(quota as usize, count, before)
    });
    cores.min(quota).max(1)
}

/// The size of part `position` of `whole` cut into `count` parts, the first ones larger by one.
fn part(whole: usize, count: usize, position: usize) -> usize {
    whole / count + usize::from(position < whole % count)
}

/// The order in which cores are handed out: by memory domain, then threads of one physical core together.
struct Order<'a> {
    machine: &'a [MemoryDomain],
    /// The position of each core's memory domain.
    domains: BTreeMap<u32, usize>,
    /// The first thread of each core's physical core, where it has several.
    physical: BTreeMap<u32, u32>,
}

impl<'a> Order<'a> {
    fn new(request: &'a Request) -> Self {
        let mut domains = BTreeMap::new();
        for (position, domain) in request.machine.iter().enumerate() {
            for core in &domain.cores {
                domains.entry(*core).or_insert(position);
            }
        }
        let threads = request.siblings.iter().filter_map(|group| Some((*group.first()?, group)));
        let physical = threads.flat_map(|(first, group)| group.iter().map(move |core| (*core, first)));
        Self { machine: &request.machine, domains, physical: physical.collect() }
    }

    fn domain(&self, core: u32) -> usize {
        self.domains.get(&core).copied().unwrap_or(usize::MAX)
    }

    fn physical(&self, core: u32) -> u32 {
        self.physical.get(&core).copied().unwrap_or(core)
    }

    fn rank(&self, core: u32) -> (usize, u32, u32) {
        (self.domain(core), self.physical(core), core)
    }

    /// The position of the memory domain that a process's first GPU is near; the last of all if that is not known.
    fn near(&self, seeker: &Seeker, gpus: &[usize]) -> usize {
        let domain = gpus.iter().find_map(|gpu| *seeker.gpu_domains.get(*gpu)?);
        let position = |ordinal| self.machine.iter().position(|domain| domain.ordinal == ordinal);
        domain.and_then(position).unwrap_or(usize::MAX)
    }

    /// Leaves the best of these cores for so many threads.
    fn choose(&self, cores: &mut Vec<u32>, threads: usize, near: usize) {
        cores.sort_by_key(|core| self.rank(*core));
        // How many threads of its physical core come before each.
        let mut seen = BTreeMap::<u32, usize>::new();
        let mut choice = cores
            .iter()
            .map(|core| {
                let count = seen.entry(self.physical(*core)).or_default();
                *count += 1;
                (*count, self.domain(*core) != near, self.rank(*core))
            })
            .collect::<Vec<_>>();
        choice.sort_unstable();
        choice.truncate(threads);
        *cores = choice.into_iter().map(|(_, _, (_, _, core))| core).collect();
        cores.sort_by_key(|core| (self.domain(*core), *core));
    }
}

/// Gives every process its cores: those it alone may use, and its part of those that several may.
///
/// Parts differ by at most one core where masks are equal. Processes without any core left to them, since there
/// are more processes than cores, get one that others use too. `near` is the memory domain, as a position, that each
/// process shall be near: those of the first domain are given the first cores.
fn divide_cores(seekers: &[Seeker], near: &[usize], order: &Order<'_>) -> Vec<Vec<u32>> {
    // Cores that the same processes may use make one cell.
    let mut users = BTreeMap::<u32, Vec<usize>>::new();
    for (position, seeker) in seekers.iter().enumerate() {
        for core in &seeker.cores {
            let list = users.entry(*core).or_default();
            if list.last() != Some(&position) {
                list.push(position);
            }
        }
    }
    let mut cells = BTreeMap::<Vec<usize>, Vec<u32>>::new();
    for (core, list) in users {
        cells.entry(list).or_default().push(core);
    }
    let mut cells = cells.into_iter().collect::<Vec<_>>();
    // The narrowest first, so that wide cells make up for what the narrow ones gave.
    cells.sort_by_key(|(list, _)| list.len());
    let mut shares = vec![Vec::new(); seekers.len()];
    for (list, cores) in &mut cells {
        cores.sort_by_key(|core| order.rank(*core));
        let mut counts = vec![0; list.len()];
        for _ in 0..cores.len() {
            // The one with the least; of several the first.
            let least = (0..list.len()).min_by_key(|at| shares[list[*at]].len() + counts[*at]).unwrap_or(0);
            counts[least] += 1;
        }
        let mut line = list.iter().copied().zip(counts).collect::<Vec<_>>();
        line.sort_by_key(|(position, _)| (near[*position], *position));
        let mut rest = cores.as_slice();
        for (position, count) in line {
            let (own, others) = rest.split_at(count);
            shares[position].extend_from_slice(own);
            rest = others;
        }
    }
    for (position, share) in shares.iter_mut().enumerate() {
        let mask = &seekers[position].cores;
        if share.is_empty() && !mask.is_empty() {
            share.push(mask[position % mask.len()]);
        }
    }
    shares
}

/// The memory domains asked for, checked and ascending.
fn asked_domains(request: &Request, position: usize) -> Result<Option<Vec<u32>>> {
    let Some(asked) = &request.memory_domains else { return Ok(None) };
    let mask = &request.seekers[position].cores;
    let has_cores = |domain: &MemoryDomain| {
        // Where the mask is not known, every core may be one of it.
        domain.cores.iter().any(|core| mask.is_empty() || mask.contains(core))
    };
    let list = |is_listed: &dyn Fn(&MemoryDomain) -> bool| {
        let listed = request.machine.iter().filter(|domain| is_listed(domain));
        let listed = listed.map(|domain| domain.ordinal.to_string()).collect::<Vec<_>>();
        if listed.is_empty() { "none".to_owned() } else { listed.join(", ") }
    };
    let fault = |ordinal: u32| {
        let Some(domain) = request.machine.iter().find(|domain| domain.ordinal == ordinal) else {
            return Some(format!(
                "there is no memory domain {ordinal}; this machine has {}",
                list(&|_| true)
            ));
        };
        if !has_cores(domain) {
            let having = list(&has_cores);
            return Some(format!(
                "memory domain {ordinal} has none of the cores that this process may run on; those that have some: {having}"
            ));
        }
        let having = list(&|domain| domain.memory_bytes > 0);
        (domain.memory_bytes == 0)
            .then(|| format!("memory domain {ordinal} has no memory; those that have some: {having}"))
    };
    let reason = match asked.as_slice() {
        [] => Some(format!("names none; this machine has {}", list(&|_| true))),
        asked => asked.iter().find_map(|ordinal| fault(*ordinal)),
    };
    if let Some(reason) = reason {
        return Err(Error::invalid("memory_domains", format!("{asked:?}"), "argument", reason));
    }
    let mut asked = asked.clone();
    asked.sort_unstable();
    asked.dedup();
    Ok(Some(asked))
}

/// The cores of the share in these domains; those of the mask where the share has none there.
fn restrict(request: &Request, position: usize, share: Vec<u32>, asked: &[u32]) -> Vec<u32> {
    let inside = request.machine.iter().filter(|domain| asked.contains(&domain.ordinal));
    let inside = inside.flat_map(|domain| domain.cores.iter().copied()).collect::<Vec<_>>();
    for cores in [&share, &request.seekers[position].cores] {
        let kept = cores.iter().copied().filter(|core| inside.contains(core)).collect::<Vec<_>>();
        if !kept.is_empty() {
            return kept;
        }
    }
    // The mask is not known.
    share
}

/// The domains that have these cores; all with memory if none does.
fn domains_of(machine: &[MemoryDomain], cores: &[u32]) -> Vec<u32> {
    let with_cores = machine.iter().filter(|domain| domain.cores.iter().any(|core| cores.contains(core)));
    let mut found = with_cores.map(|domain| domain.ordinal).collect::<Vec<_>>();
    if found.is_empty() {
        found =
            machine.iter().filter(|domain| domain.memory_bytes > 0).map(|domain| domain.ordinal).collect();
    }
    found.sort_unstable();
    found
}

/// The ordinals that each process drives: all it sees, or its part of those that several see alike.
///
/// Every GPU of a set is somebody's, so that two sets which overlap without being alike own some GPU twice.
///
/// # Errors
/// `Invalid` for a GPU that would be driven twice, naming it and both processes.
pub(super) fn divide_gpus(seekers: &[Seeker]) -> Result<Vec<Vec<usize>>> {
    // What an executor drives is its process's, and nobody else's, unless all members share.
    let is_shared = seekers.iter().all(|seeker| seeker.shares_gpus);
    let mut owners = BTreeMap::<(&str, &str), usize>::new();
    let mut owned = vec![Vec::new(); seekers.len()];
    for (position, seeker) in seekers.iter().enumerate() {
        for identity in seeker.driven_gpus.iter().flatten() {
            let other = owners.insert((&seeker.boot_id, identity), position);
            if let Some(other) = other.filter(|_| !is_shared) {
                return Err(driven_twice(identity, &seekers[other], seeker));
            }
            owned[position].extend(seeker.visible_gpus.iter().position(|own| own == identity));
        }
    }
    // Of the rest, processes of one machine that see the same set of GPUs, whatever its order, divide it.
    let left = |seeker: &Seeker, identity: &str| !owners.contains_key(&(&*seeker.boot_id, identity));
    let mut alike = BTreeMap::<(&str, Vec<&str>), Vec<usize>>::new();
    for (position, seeker) in seekers.iter().enumerate() {
        let mut seen = seeker.visible_gpus.iter().map(String::as_str).collect::<Vec<_>>();
        seen.sort_unstable();
        if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid("gpu", twice[0], seeker.name.clone(), "is listed twice there"));
        }
        seen.retain(|identity| left(seeker, identity));
        if !seen.is_empty() && seeker.driven_gpus.is_none() {
            alike.entry((seeker.boot_id.as_str(), seen)).or_default().push(position);
        }
    }
    for ((boot_id, seen), sharers) in alike {
        if sharers.len() > seen.len() {
            // Fewer GPUs than processes: the first is the one that two would have to drive.
            return Err(owned_twice(seen[0], &seekers[sharers[0]], &seekers[sharers[seen.len()]]));
        }
        let first = &seekers[sharers[0]];
        let reference = first.visible_gpus.iter().filter(|identity| seen.contains(&identity.as_str()));
        let reference = reference.collect::<Vec<_>>();
        let mut start = 0;
        for (at, position) in sharers.iter().enumerate() {
            let end = start + part(seen.len(), sharers.len(), at);
            for identity in &reference[start..end] {
                let identity = *identity;
                if let Some(other) = owners.insert((boot_id, identity.as_str()), *position) {
                    let (first, second) = (other.min(*position), other.max(*position));
                    return Err(owned_twice(identity, &seekers[first], &seekers[second]));
                }
                let ordinal = seekers[*position].visible_gpus.iter().position(|own| own == identity);
                owned[*position].extend(ordinal);
            }
            owned[*position].sort_unstable();
            start = end;
        }
    }
    Ok(owned)
}

fn driven_twice(identity: &str, first: &Seeker, second: &Seeker) -> Error {
    let ordinal = |seeker: &Seeker| {
        let position = seeker.visible_gpus.iter().position(|own| own == identity);
        position.map_or(String::new(), |position| format!(" as its GPU {position}"))
    };
    let reason = format!(
        "{}{} and {}{} both drive it: give Executor::for_vram of each process devices of its own, or share it with \
         NCCL_MULTI_RANK_GPU_ENABLE=1 on all processes and NCCL 2.30 or newer",
        first.name,
        ordinal(first),
        second.name,
        ordinal(second)
    );
    Error::invalid("gpu", identity, "roster", reason)
}

fn owned_twice(identity: &str, first: &Seeker, second: &Seeker) -> Error {
    let reason = format!(
        "{} and {} both own it: give each process GPUs of its own (CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES), or \
         start no more processes than there are GPUs",
        first.name, second.name
    );
    Error::invalid("gpu", identity, "roster", reason)
}
