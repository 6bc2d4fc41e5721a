//! The trial multicast object of each domain that claims to reduce in its switch: made by one member, bound by all of the domain.
//!
//! All members take the same steps, since they derive from one topology which domains are tried: the first member of a domain makes
//! the object and shares it, every member adds its GPUs, and once all have been added each binds memory on its own. A driver may
//! answer none of that, so that each step is on a thread of its own, within a limit.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::communicator::shared::Proof;
use crate::error::{Error, Missing, Result};
use crate::executor::Executor;
use crate::rendezvous::Exchange;
use crate::sys::gpu::{Device, Multicast, Shared};
use crate::sys::{CHECK_INTERVAL, Deadline};
use crate::topology::{Findings, Topology};

/// How long one step may take of a driver.
const LIMIT: Duration = Duration::from_secs(20);

/// The name under which the file of a domain's object goes to the other members.
const FILE: &str = "uform-multicast";

/// One domain that is tried, as this member sees it.
struct Trial {
    /// Its number in the topology.
    number: usize,
    gpu_count: usize,
    spans_machines: bool,
    /// The members that drive its GPUs, the one that makes the object first.
    owners: Vec<usize>,
    /// This member's own GPUs in it.
    devices: Vec<Arc<Device>>,
    object: Option<Multicast>,
}

/// What the maker of an object tells of it: how many bytes it has, and its handle if it goes over a fabric.
#[derive(Clone, Copy)]
struct Made {
    byte_count: usize,
    fabric: [u8; 64],
}

/// Tries the domains that await it, and adds to the findings what came of it. Without such domains nothing is exchanged.
///
/// # Errors
/// Those of the exchange; what a driver refuses is a finding.
pub(super) fn run(
    exchange: &mut dyn Exchange,
    proof: &Proof,
    topology: &Topology,
    executor: Option<&Executor>,
    findings: &mut Findings,
    deadline: &Deadline<'_>,
) -> Result<bool> {
    let index = exchange.index();
    let mut trials = trials(topology, executor, index);
    if trials.is_empty() {
        return Ok(false);
    }
    let is_own = trials.iter().any(|trial| trial.owners.contains(&index));
    let mut problem = String::new();
    let mut note = |result: Result<()>| {
        if let Err(error) = result
            && problem.is_empty()
        {
            problem = error.chain();
        }
    };
    let mut made = Vec::new();
    for trial in &mut trials {
        let result = trial.make(index, proof, deadline);
        made.push(result.as_ref().ok().copied().flatten());
        note(result.map(|_| ()));
    }
    let all = exchange.exchange("multicast made", &encode(&made), deadline)?;
    for (position, trial) in trials.iter_mut().enumerate() {
        let said = all.get(trial.owners[0]).and_then(|bytes| decode(bytes, position));
        note(trial.add(index, said, proof, deadline));
    }
    let added = trials.iter().map(|trial| u8::from(trial.object.is_some())).collect::<Vec<_>>();
    let all = exchange.exchange("multicast added", &added, deadline)?;
    for (position, trial) in trials.iter_mut().enumerate() {
        // To bind where a GPU is missing would block.
        let is_missing =
            |owner: &usize| all.get(*owner).and_then(|said| said.get(position)).copied() != Some(1);
        if !trial.owners.iter().any(is_missing) {
            note(trial.bind(deadline));
        }
    }
    if is_own {
        findings.multicast = Some(problem.is_empty());
        findings.multicast_problem = problem;
    }
    Ok(true)
}

/// The domains to try, the same on all members, with this one's GPUs.
fn trials(topology: &Topology, executor: Option<&Executor>, index: usize) -> Vec<Trial> {
    let devices = executor.and_then(Executor::devices);
    let device_of = |identity: &str| {
        let devices = devices.as_ref()?;
        let position = devices.gpus().position(|gpu| gpu.identity == identity)?;
        devices.streams().nth(position).map(|stream| Arc::clone(stream.device()))
    };
    let domains = topology.multimem_domains().iter().enumerate().filter(|(_, domain)| domain.awaits_trial);
    let trial = |(number, domain): (usize, &crate::topology::Domain)| {
        let gpus = domain.gpus.iter().filter_map(|place| topology.gpus().get(*place)).collect::<Vec<_>>();
        let mut owners = gpus.iter().map(|gpu| gpu.owner).collect::<Vec<_>>();
        owners.dedup();
        let machine = |owner: &usize| {
            topology.members().get(*owner).map(|member| member.introduction.process.boot_id.as_str())
        };
        let spans_machines = owners.iter().any(|owner| machine(owner) != machine(&owners[0]));
        let own = gpus.iter().filter(|gpu| gpu.owner == index);
        let devices = own.filter_map(|gpu| device_of(&gpu.device.identity)).collect();
        Trial { number, gpu_count: gpus.len(), spans_machines, owners, devices, object: None }
    };
    domains.map(trial).collect()
}

impl Trial {
    fn device(&self) -> Result<Arc<Device>> {
        let why = "the executor drives none of its GPUs";
        let none = || Error::unsupported(format!("a multicast object of domain {}", self.number), why);
        self.devices.first().cloned().ok_or_else(none)
    }

    fn check_claims(&self) -> Result<()> {
        let Some(device) = self.devices.iter().find(|device| !device.claims_multicast()) else {
            return Ok(());
        };
        let why = "the driver says that the GPU cannot be part of one";
        Err(Error::unsupported(format!("a multicast object on {}", device.name()), why))
    }

    /// The first member makes the object, and gives it to the others of its machine.
    fn make(&mut self, index: usize, proof: &Proof, deadline: &Deadline<'_>) -> Result<Option<Made>> {
        if self.owners[0] != index {
            return Ok(None);
        }
        let (device, gpu_count, spans_machines) = (self.device()?, self.gpu_count, self.spans_machines);
        let is_shared = self.owners.len() > 1;
        self.check_claims()?;
        let (object, shared) = apart("making a multicast object", deadline, move || {
            let object = Multicast::create(&device, gpu_count, spans_machines)?;
            let shared = if is_shared { Some(object.share(spans_machines)?) } else { None };
            Ok((object, shared))
        })?;
        let mut fabric = [0; 64];
        match shared {
            Some(Shared::Fabric(bytes)) => fabric = bytes,
            Some(Shared::File(file)) => {
                for owner in &self.owners[1..] {
                    if !proof.give_file(*owner, &self.file(), &file) {
                        let why = "it shares no memory with this member, as in containers or as users apart";
                        return Err(Error::unsupported(
                            format!("a multicast object with index {owner}"),
                            why,
                        ));
                    }
                }
            }
            None => {}
        }
        let byte_count = object.byte_count();
        self.object = Some(object);
        Ok(Some(Made { byte_count, fabric }))
    }

    /// The name of the object's file.
    fn file(&self) -> String {
        format!("{FILE}-{}\0", self.number)
    }

    /// Every member adds its GPUs.
    fn add(
        &mut self,
        index: usize,
        said: Option<Made>,
        proof: &Proof,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let leader = self.owners[0];
        // Why it was not made is the maker's to tell.
        let Some(made) = said.filter(|_| self.owners.contains(&index)) else { return Ok(()) };
        self.check_claims()?;
        let (device, devices, own) = (self.device()?, self.devices.clone(), self.object.take());
        let shared = match (&own, self.spans_machines) {
            (Some(_), _) => None,
            (None, true) => Some(Shared::Fabric(made.fabric)),
            (None, false) => {
                Some(Shared::File(proof.take_file(leader, &self.file(), &limit_of(deadline))?))
            }
        };
        self.object = Some(apart("adding GPUs to a multicast object", deadline, move || {
            let object = match (own, shared) {
                (Some(object), _) => object,
                (None, Some(shared)) => Multicast::adopt(&device, &shared, made.byte_count)?,
                (None, None) => {
                    return Err(Error::unsupported("a trial multicast object", "it was not shared"));
                }
            };
            devices.iter().try_for_each(|device| object.add(device))?;
            Ok(object)
        })?);
        Ok(())
    }

    /// Every member binds memory on its GPUs, which all have been added.
    fn bind(&mut self, deadline: &Deadline<'_>) -> Result<()> {
        let (Some(mut object), devices) = (self.object.take(), self.devices.clone()) else { return Ok(()) };
        apart("binding memory to a multicast object", deadline, move || {
            devices.iter().try_for_each(|device| object.bind(device))?;
            Ok(object)
        })
        .map(drop)
    }
}

/// A part of what is left, so that bootstrap goes on without an answer.
fn limit_of<'a>(deadline: &Deadline<'a>) -> Deadline<'a> {
    deadline.sooner(LIMIT.min(deadline.remaining() / 4))
}

/// Calls a driver on a thread of its own, within a limit; what comes later is given back there.
fn apart<T: Send + 'static>(
    phase: &str,
    deadline: &Deadline<'_>,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let (give, take) = mpsc::channel();
    let started = std::thread::Builder::new().name("uform-multicast".to_owned()).spawn(move || {
        // Without a receiver nobody waits any more.
        let _ = give.send(call());
    });
    started.map_err(|error| Error::unsupported(phase, format!("no thread could be started ({error})")))?;
    let limit = limit_of(deadline);
    loop {
        match take.recv_timeout(CHECK_INTERVAL / 2) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) => limit.check(phase, Vec::<Missing>::new)?,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::unsupported(phase, "the thread that did it ended by a panic"));
            }
        }
    }
}

/// What a member tells of the objects that it made: one entry for each domain that is tried.
fn encode(made: &[Option<Made>]) -> Vec<u8> {
    made.iter()
        .flat_map(|made| {
            let made = made.unwrap_or(Made { byte_count: 0, fabric: [0; 64] });
            [&(made.byte_count as u64).to_le_bytes()[..], &made.fabric].concat()
        })
        .collect()
}

fn decode(bytes: &[u8], position: usize) -> Option<Made> {
    let entry = bytes.chunks_exact(72).nth(position)?;
    let (count, fabric) = entry.split_at(8);
    let byte_count = usize::try_from(u64::from_le_bytes(count.try_into().ok()?)).ok()?;
    (byte_count > 0).then_some(Made { byte_count, fabric: fabric.try_into().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_objects_is_read_again() {
        let made = Made { byte_count: 2 << 20, fabric: [7; 64] };
        let bytes = encode(&[None, Some(made)]);
        assert!(
            decode(&bytes, 0).is_none() && decode(&bytes, 2).is_none() && decode(&bytes[..100], 1).is_none()
        );
        let read = decode(&bytes, 1).expect("it was made");
        assert_eq!((read.byte_count, read.fabric), (2 << 20, [7; 64]));
    }
}
