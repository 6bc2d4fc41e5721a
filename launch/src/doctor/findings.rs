//! What the facts mean for a run: pure, one finding for each line.

use serde::Serialize;
use uform::environment::Launch;

use super::facts::{Address, Cores, Directory, Facts, Gpus, Memory, Reach};

/// The least space in the directory: a thousand members write less.
const SPACE_LEAST: u64 = 16 << 20;
/// The least memory that a run of any size starts with.
const MEMORY_LEAST: u64 = 64 << 20;
/// What Docker gives to /dev/shm, too little for NCCL and for loaders of data.
const SHM_LITTLE: u64 = 64 << 20;
/// Descriptors of a process besides one for each other process of its host.
const SPARE_DESCRIPTORS: u64 = 64;
/// What runs left an hour ago belongs to no run that still meets.
const OLD_SECONDS: u64 = 3600;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// A run works, and not as well as it could.
    Warn,
    /// A run does not work.
    Fail,
}

impl Level {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) level: Level,
    pub(super) text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(area: &'static str, text: impl Into<String>) -> Self {
        Self { area, level: Level::Ok, text: text.into(), remedy: None }
    }

    pub(super) fn warn(area: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { area, level: Level::Warn, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn fail(area: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { area, level: Level::Fail, text: text.into(), remedy: Some(remedy.into()) }
    }
}

/// All findings, in the order in which bootstrap would meet them.
pub(super) fn judge(facts: &Facts) -> Vec<Finding> {
    let launch = facts.launch.as_ref().ok();
    let mut found = match &facts.launch {
        Ok(launch) => launcher(launch, &facts.host_name),
        Err(error) => {
            let remedy = "docs/environment.md lists what each launcher sets";
            let also = facts.seen.iter().map(|seen| format!("{}: {}", seen.launcher, seen.reason));
            let failed = std::iter::once(Finding::fail("launcher", error, remedy));
            failed.chain(also.map(|text| Finding::ok("also seen", text))).collect()
        }
    };
    found.extend(directory(facts.directory.as_ref(), launch));
    found.extend(memory(&facts.memory));
    found.extend(cores(&facts.cores, launch));
    let (own, all) = facts.memory_domains;
    found.push(Finding::ok("NUMA", format!("cores in {own} of {all} memory domains")));
    found.extend(descriptors(facts.descriptor_limit, launch));
    found.extend(gpus(&facts.gpus, launch));
    found.extend(engines(facts));
    found.extend(network(&facts.network, launch));
    found
}

fn launcher(launch: &Launch, host_name: &str) -> Vec<Finding> {
    let Launch { launcher, index, count, .. } = launch;
    let why = match launcher.as_str() {
        "none" => "none: one process".to_owned(),
        name => format!("{name}, the first whose variables are complete and consistent"),
    };
    let mut found = vec![Finding::ok("launcher", why)];
    for seen in &launch.others {
        found.push(Finding::ok("also seen", format!("{}, not taken: {}", seen.launcher, seen.reason)));
    }
    let origins = match index.origin == count.origin {
        true => index.origin.clone(),
        false => format!("{}; {}", index.origin, count.origin),
    };
    let place = format!("{} of {} ({origins})", index.value, count.value);
    found.push(Finding::ok("index", place));
    if let (Some(index), Some(count)) = (&launch.local_index, &launch.local_count) {
        found.push(Finding::ok("on host", format!("{} of {} ({})", index.value, count.value, count.origin)));
    }
    let names = launch.hosts.as_ref().map(|hosts| &hosts.value);
    match (&launch.host_count, names) {
        (Some(hosts), Some(names)) => {
            let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join(",");
            let more = if names.len() > 8 { ",..." } else { "" };
            found.push(Finding::ok("hosts", format!("{} ({shown}{more}; {})", hosts.value, hosts.origin)));
        }
        (Some(hosts), None) => {
            found.push(Finding::ok("hosts", format!("{} ({})", hosts.value, hosts.origin)))
        }
        (None, _) if count.value > 1 => {
            found.push(Finding::ok(
                "hosts",
                format!("{launcher} does not tell how many; this one is {host_name}"),
            ));
        }
        _ => {}
    }
    let unique = if launch.attempt_is_unique {
        "unique to this start"
    } else {
        "not unique; a nonce tells starts apart"
    };
    if count.value > 1 {
        found.push(Finding::ok("job", format!("{} ({}; {unique})", launch.job.value, launch.job.origin)));
    }
    found.extend(launch.notes.iter().map(|note| {
        let (text, remedy) = note.split_once(": ").unwrap_or((note, "see docs/environment.md"));
        Finding::warn("launcher", text, remedy)
    }));
    found
}

/// Whether a run may have a second host: `None` if nobody says.
fn several_hosts(launch: Option<&Launch>) -> Option<bool> {
    launch?.host_count.as_ref().map(|hosts| hosts.value > 1)
}

fn directory(directory: Option<&Directory>, launch: Option<&Launch>) -> Vec<Finding> {
    const AREA: &str = "directory";
    let Some(found) = directory else {
        // Without a place in the run, the launcher's finding says what is missing.
        return launch.map(|_| Finding::ok(AREA, "one process needs none")).into_iter().collect();
    };
    let path = found.path.display();
    let elsewhere = "name a directory that all hosts share by UFORM_DIRECTORY or --directory";
    if let Err(reason) = &found.usable {
        return vec![Finding::fail(AREA, format!("{path} ({}): {reason}", found.origin), elsewhere)];
    }
    let name = found.file_system.name;
    let place = format!("{path} ({}) on {name}", found.origin);
    let mut lines = vec![match (found.file_system.reach, several_hosts(launch)) {
        (Reach::Host, Some(true)) => {
            Finding::fail(AREA, format!("{place}, which other hosts do not see"), elsewhere)
        }
        (Reach::Host, None) if launch.is_some_and(|launch| launch.count.value > 1) => {
            let text = format!("{place}, which other hosts do not see; nobody says whether there are any");
            Finding::warn(AREA, text, elsewhere)
        }
        (Reach::Unknown, Some(true)) => Finding::warn(
            AREA,
            format!("{place}, of which it is not known whether other hosts see it"),
            "`uform topology` under the same launcher tries it",
        ),
        (Reach::Shared, _) => Finding::ok(AREA, format!("{place}, which hosts share")),
        _ => Finding::ok(AREA, place),
    }];
    if found.free_bytes < SPACE_LEAST {
        let text = format!("{path} has {} free", bytes(found.free_bytes));
        lines.push(Finding::fail(AREA, text, format!("free {} there, or name another", bytes(SPACE_LEAST))));
    } else {
        lines.push(Finding::ok("space", format!("{} free in {path}", bytes(found.free_bytes))));
    }
    lines.push(Finding::ok(
        "locks",
        match &found.locks {
            Ok(true) => "flock works there; nothing rests on it".to_owned(),
            Ok(false) => "flock is given twice there; nothing rests on it".to_owned(),
            Err(reason) => format!("flock does not work there ({reason}); nothing rests on it"),
        },
    ));
    if !found.left.is_empty() {
        let shown = found.left.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
        let text = format!("{} jobs met or meet in {path}: {shown}", found.left.len());
        lines.push(if found.oldest_seconds > OLD_SECONDS {
            let age = found.oldest_seconds / 3600;
            let remedy = "the next start there removes what dead processes left";
            Finding::warn("stale", format!("{text}; the oldest is {age} h old"), remedy)
        } else {
            Finding::ok("stale", text)
        });
    }
    lines
}

fn memory(memory: &Memory) -> Vec<Finding> {
    const AREA: &str = "memory";
    let mut found = Vec::new();
    found.push(match memory.allowance_bytes {
        Some(free) if free < MEMORY_LEAST => {
            let text = format!("the memory control group allows {} more", bytes(free));
            Finding::fail(AREA, text, "give the job or container more memory (--mem, --memory)")
        }
        Some(free) => Finding::ok(AREA, format!("the control group allows {} more", bytes(free))),
        None => Finding::ok(AREA, "no limit by control groups"),
    });
    found.push(match &memory.segment {
        Ok(()) => Finding::ok("segments", "shared memory can be made (memfd)"),
        Err(reason) => Finding::fail(
            "segments",
            format!("no shared memory can be made: {reason}"),
            "allow memfd_create and fallocate in this container or sandbox",
        ),
    });
    found.push(match memory.shm_bytes {
        Some((size, free)) if size <= SHM_LITTLE || free <= SHM_LITTLE / 4 => Finding::warn(
            "/dev/shm",
            format!(
                "{} of {} free; this library does not use it, NCCL and loaders of data do",
                bytes(free),
                bytes(size)
            ),
            "start the container with --shm-size=1g or more, or remove what is left in it",
        ),
        Some((size, free)) => Finding::ok("/dev/shm", format!("{} of {} free", bytes(free), bytes(size))),
        None => Finding::warn(
            "/dev/shm",
            "not mounted; this library does not use it, NCCL and loaders of data do",
            "mount a tmpfs there",
        ),
    });
    found
}

fn cores(cores: &Cores, launch: Option<&Launch>) -> Vec<Finding> {
    const AREA: &str = "cores";
    let quota = cores.quota.and_then(|quota| usize::try_from(quota).ok());
    let budget = quota.map_or(cores.allowed, |quota| quota.min(cores.allowed));
    let time = quota.map_or("no time quota".to_owned(), |quota| format!("time quota of {quota}"));
    let text = format!("{} of {} allowed, {time}", cores.allowed, cores.online);
    let mut found = vec![Finding::ok(AREA, text)];
    let sharers = launch.and_then(|launch| launch.local_count.as_ref()).map_or(1, |count| count.value);
    // A mask of one's own is narrower than the host; one that is not is shared by all.
    if sharers > budget && cores.allowed == cores.online {
        found.push(Finding::warn(
            AREA,
            format!(
                "{sharers} processes share {budget} cores' worth of time: they sleep where they would spin"
            ),
            "start fewer processes on this host, or give it more cores",
        ));
    }
    if let Some(threads) = cores.threads.filter(|threads| *threads > budget) {
        found.push(Finding::warn(
            AREA,
            format!("OMP_NUM_THREADS is {threads}, for {budget} cores' worth of time"),
            format!("set it to {budget} or less, or unset it"),
        ));
    }
    found
}

fn descriptors(limit: Option<u64>, launch: Option<&Launch>) -> Vec<Finding> {
    const AREA: &str = "open files";
    let Some(limit) = limit else { return vec![Finding::ok(AREA, "no limit")] };
    let peers = launch.map_or(1, |launch| launch.local_count.as_ref().unwrap_or(&launch.count).value);
    let wanted = u64::try_from(peers).unwrap_or(u64::MAX).saturating_mul(2).saturating_add(SPARE_DESCRIPTORS);
    vec![if limit < wanted {
        let text = format!("at most {limit}, and {peers} processes on a host need {wanted} each");
        Finding::fail(AREA, text, format!("raise the limit: ulimit -n {}", wanted.max(4096)))
    } else {
        Finding::ok(AREA, format!("at most {limit}"))
    }]
}

fn gpus(gpus: &Gpus, launch: Option<&Launch>) -> Vec<Finding> {
    const AREA: &str = "GPUs";
    let visibility = match gpus.visibility.is_empty() {
        true => String::new(),
        false => format!(" ({})", gpus.visibility.join(", ")),
    };
    let mut found = Vec::new();
    match gpus.names.len() {
        0 if !gpus.device_files.is_empty() && gpus.visibility.is_empty() => found.push(Finding::warn(
            AREA,
            format!("none is found, and the kernel shows {}", gpus.device_files.join(", ")),
            "install the vendor's driver libraries in this image, or pass them into the container",
        )),
        0 if !gpus.device_files.is_empty() => found.push(Finding::warn(
            AREA,
            format!("none is visible{visibility}, and the kernel shows {}", gpus.device_files.join(", ")),
            "unset the variable, or name devices that are there",
        )),
        0 => found.push(Finding::ok(AREA, format!("none{visibility}"))),
        count => found.push(Finding::ok(AREA, format!("{count}{visibility}: {}", gpus.names.join(", ")))),
    }
    for note in &gpus.notes {
        found.push(Finding::warn(AREA, note, "see what the vendor's own tool says (nvidia-smi, rocm-smi)"));
    }
    let sharers = launch.and_then(|launch| launch.local_count.as_ref()).map_or(1, |count| count.value);
    if gpus.names.len() > 1 && sharers > gpus.names.len() {
        found.push(Finding::warn(
            AREA,
            format!("{sharers} processes on this host, and {} GPUs", gpus.names.len()),
            "start one process for each GPU",
        ));
    }
    found
}

fn engines(facts: &Facts) -> Vec<Finding> {
    let (available, compiled) = &facts.capabilities;
    let mut found =
        vec![Finding::ok("library", format!("{} (built with {})", available.join(" "), compiled.join(" ")))];
    if facts.installed.is_empty() {
        found.push(Finding::ok("installed", "no NCCL, RCCL or MPI is found"));
    }
    for one in &facts.installed {
        let version = one.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        found.push(Finding::ok("installed", format!("{}{version} at {}", one.what, one.path.display())));
    }
    for one in &facts.unusable {
        found.push(Finding::warn("library", &one.reason, &one.remedy));
    }
    let has = |words: &[String], name: &str| words.iter().any(|word| word.split('-').next() == Some(name));
    for (name, gpus, variable) in [("nccl", "CUDA_", "UFORM_NCCL"), ("rccl", "ROCR_", "UFORM_RCCL")] {
        let wanted =
            !facts.gpus.names.is_empty() && has(available, if gpus == "CUDA_" { "cuda" } else { "rocm" });
        let is_told = facts.unusable.iter().any(|one| one.reason.contains(&name.to_uppercase()));
        if wanted && has(compiled, name) && !has(available, name) && !is_told {
            found.push(Finding::warn(
                "library",
                format!("GPUs are there, and {} is not found", name.to_uppercase()),
                format!("install it, put its folder into LD_LIBRARY_PATH, or name its file by {variable}"),
            ));
        }
    }
    found
}

fn network(network: &Result<Vec<Address>, String>, launch: Option<&Launch>) -> Vec<Finding> {
    const AREA: &str = "network";
    let addresses = match network {
        Ok(addresses) => addresses,
        Err(reason) => return vec![Finding::fail(AREA, reason, "correct the variable, or unset it")],
    };
    let shown = |wanted: &dyn Fn(&Address) -> bool| {
        let wanted = addresses.iter().filter(|one| !one.is_loopback && wanted(one));
        wanted.map(|one| format!("{} {}", one.interface, one.address)).collect::<Vec<_>>().join(", ")
    };
    let usable = |one: &Address| one.is_up && one.is_chosen;
    let reachable = shown(&|one| usable(one) && !one.is_link_local);
    let reserve = shown(&|one| usable(one) && one.is_link_local);
    let mut found = Vec::new();
    if !reachable.is_empty() {
        found.push(Finding::ok(AREA, format!("other hosts could reach {reachable}")));
    } else if several_hosts(launch) != Some(true) {
        found.push(Finding::ok(AREA, "no address that another host could reach; one host needs none"));
    } else if !reserve.is_empty() {
        found.push(Finding::warn(
            AREA,
            format!("only link-local addresses, which hosts of one link reach: {reserve}"),
            "give the hosts' interfaces addresses of one network",
        ));
    } else {
        found.push(Finding::fail(
            AREA,
            "no address that another host could reach",
            "bring an interface up, give the container the host's network (--network=host), or see UFORM_INTERFACES",
        ));
    }
    for (why, left) in [
        ("left out by UFORM_INTERFACES", shown(&|one| one.is_up && !one.is_chosen)),
        ("switched off", shown(&|one| !one.is_up)),
    ] {
        if !left.is_empty() {
            found.push(Finding::ok(AREA, format!("{why}: {left}")));
        }
    }
    found
}

fn bytes(count: u64) -> String {
    uform::topology::size(count)
}

#[cfg(test)]
mod tests;
