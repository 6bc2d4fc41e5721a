//! Gathers the facts from this process and its host; decides nothing.

use std::path::Path;

use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};
use uform::environment::{self, OwnFacts, Variables, interface};
use uform::sys::{cgroup, network, shared::Segment};
use uform::{MeshOptions, device};

use super::facts::{Address, Cores, Facts, Gpus, Memory};
use super::{directory, program};

/// The variables by which vendors hide devices.
const VISIBILITY: [&str; 4] =
    ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"];

impl Facts {
    /// The facts of this process, for a run with these options.
    pub(super) fn gather(options: &MeshOptions) -> Self {
        let (variables, own) = (Variables::read(), OwnFacts::read());
        let launch = environment::resolve(options, &variables, &own).map_err(|error| error.chain());
        let chosen = launch.as_ref().ok().and_then(|launch| launch.directory.clone());
        // Without a place in the run, the directory that was named is worth a look all the same.
        let given = options.directory.clone().map(|path| (path, "argument".to_owned()));
        let chosen = chosen.map(|found| (found.value, found.origin)).or(given);
        let view = device::view();
        let notes = view.as_ref().map_or_else(|error| vec![error.chain()], |view| view.notes.clone());
        let (domains, allowed, online, quota, names) = match &view {
            Ok(view) => (
                view.survey.memory_domains.as_slice(),
                view.cores.as_slice(),
                view.survey.cores.len(),
                view.quota_cores,
                view.gpus.iter().map(|gpu| gpu.name.clone()).collect(),
            ),
            Err(_) => (&[][..], &[][..], 0, None, Vec::new()),
        };
        let own_domains =
            domains.iter().filter(|domain| domain.cores.iter().any(|core| allowed.contains(core)));
        let available = device::capabilities_available().unwrap_or_default();
        let (engines, unusable) = program::engines();
        Self {
            launch,
            seen: environment::seen(&variables, &own),
            host_name: own.host_name,
            directory: chosen.map(|(path, origin)| directory::look(&path, origin)),
            memory: memory(),
            cores: Cores {
                allowed: allowed.len(),
                online,
                quota,
                threads: variables.text("OMP_NUM_THREADS").and_then(|text| text.trim().parse().ok()),
            },
            memory_domains: (own_domains.count(), domains.len()),
            descriptor_limit: getrlimit(Resource::Nofile).current,
            gpus: gpus(&variables, names, notes),
            capabilities: (words(&available), words(&device::capabilities_compiled())),
            installed: engines
                .into_iter()
                .chain(program::message_passing())
                .chain(program::launchers())
                .collect(),
            unusable,
            network: network(),
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn memory() -> Memory {
    let shm = statvfs("/dev/shm").ok();
    Memory {
        allowance_bytes: cgroup::memory_allowance(),
        shm_bytes: shm.map(|found| {
            let of = |blocks: u64| blocks.saturating_mul(found.f_frsize);
            (of(found.f_blocks), of(found.f_bavail))
        }),
        segment: Segment::reserve("doctor", 1 << 20).map(drop).map_err(|error| error.chain()),
    }
}

fn gpus(variables: &Variables, names: Vec<String>, notes: Vec<String>) -> Gpus {
    let set = VISIBILITY.iter().filter_map(|name| Some(format!("{name}={}", variables.text(name)?)));
    let files = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd"];
    Gpus {
        names,
        visibility: set.collect(),
        notes,
        device_files: files
            .iter()
            .filter(|path| Path::new(path).exists())
            .map(|path| (*path).to_owned())
            .collect(),
    }
}

/// The addresses of this host, and which of them the user's choice admits.
fn network() -> Result<Vec<Address>, String> {
    let chosen = interface::network(&network::summary).map_err(|error| error.chain())?;
    let found = network::interfaces().map_err(|error| error.chain())?;
    let found = found.into_iter().map(|one| Address {
        is_chosen: chosen.selector.as_ref().is_none_or(|selector| selector.admits(&one.name, one.address)),
        is_up: one.is_up,
        is_loopback: one.is_loopback,
        is_link_local: one.is_link_local(),
        address: one.address.to_string(),
        interface: one.name,
    });
    Ok(found.collect())
}
