//! Each bad finding, made up.

use uform::MeshOptions;
use uform::environment::{self, OwnFacts, Variables};

use super::super::directory::kind;
use super::super::facts::{Installed, Unusable};
use super::*;

const NFS: u64 = 0x6969;
const TMPFS: u64 = 0x0102_1994;
const FUSE: u64 = 0x6573_5546;

/// The place that these `NAME=value` words give.
fn launch(words: &str) -> Result<Launch, String> {
    let own = OwnFacts {
        uid: 7,
        runtime_folder: None,
        temporary_folder: "/tmp".into(),
        host_name: "n1".into(),
        processes: Vec::new(),
        sees_launchers: true,
    };
    let variables = words.split_whitespace().filter_map(|word| word.split_once('=')).collect::<Variables>();
    environment::resolve(&MeshOptions::default(), &variables, &own).map_err(|error| error.chain())
}

const TWO_HOSTS: &str = "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_NUM_NODES=2 \
                         SLURM_LOCALID=0 SLURM_GTIDS=0,1 SLURM_STEP_NODELIST=n[1-2] UFORM_DIRECTORY=/shared ";
const UNKNOWN_HOSTS: &str = "PMI_RANK=0 PMI_SIZE=4 UFORM_DIRECTORY=/shared ";

/// A host on which everything is as it should be.
fn healthy() -> Facts {
    Facts {
        launch: launch(TWO_HOSTS),
        seen: Vec::new(),
        host_name: "n1".into(),
        directory: Some(Directory {
            path: "/shared".into(),
            origin: "UFORM_DIRECTORY".into(),
            file_system: kind(NFS),
            usable: Ok(()),
            locks: Ok(true),
            free_bytes: 1 << 40,
            left: Vec::new(),
            oldest_seconds: 0,
        }),
        memory: Memory { allowance_bytes: None, shm_bytes: Some((8 << 30, 8 << 30)), segment: Ok(()) },
        cores: Cores { allowed: 16, online: 16, quota: None, threads: None },
        memory_domains: (2, 2),
        descriptor_limit: Some(1024),
        gpus: Gpus { names: Vec::new(), visibility: Vec::new(), notes: Vec::new(), device_files: Vec::new() },
        capabilities: (vec!["serial".into()], vec!["serial".into()]),
        installed: vec![Installed {
            what: "MPI launcher",
            path: "/usr/bin/mpirun".into(),
            version: Some("4.1".into()),
        }],
        unusable: Vec::new(),
        network: Ok(vec![address("lo", "127.0.0.1", true, true), address("eth0", "10.0.0.1", true, false)]),
    }
}

fn address(interface: &str, address: &str, is_up: bool, is_loopback: bool) -> Address {
    let is_link_local = address.starts_with("fe80");
    Address {
        interface: interface.into(),
        address: address.into(),
        is_up,
        is_loopback,
        is_link_local,
        is_chosen: true,
    }
}

/// The findings that are not ok, as lines.
fn bad(change: impl FnOnce(&mut Facts)) -> Vec<String> {
    let mut facts = healthy();
    change(&mut facts);
    let bad = judge(&facts).into_iter().filter(|finding| finding.level != Level::Ok);
    let lines = bad.map(|finding| {
        let remedy = finding.remedy.expect("a bad finding has a remedy");
        assert!(!remedy.is_empty(), "{}", finding.text);
        format!("{} {}: {} -> {remedy}", finding.level.word(), finding.area, finding.text)
    });
    lines.collect()
}

/// One bad finding that begins so, and whose remedy has this part.
fn one(change: impl FnOnce(&mut Facts), start: &str, remedy: &str) {
    let lines = bad(change);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with(start) && lines[0].contains(remedy), "{lines:?}");
}

#[test]
fn a_healthy_host_has_nothing_bad() {
    assert_eq!(bad(|_| {}), Vec::<String>::new());
    let facts = healthy();
    let text = judge(&facts)
        .iter()
        .map(|finding| format!("{} {}\n", finding.area, finding.text))
        .collect::<String>();
    for part in [
        "launcher srun, the first",
        "index 0 of 4 (SLURM_PROCID; SLURM_STEP_NUM_TASKS)",
        "hosts 2 (n1,n2; SLURM_STEP_NUM_NODES)",
        "unique to this start",
        "on NFS, which hosts share",
        "other hosts could reach eth0 10.0.0.1",
        "MPI launcher 4.1 at /usr/bin/mpirun",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn launchers() {
    let without = TWO_HOSTS.replace("UFORM_DIRECTORY=/shared", "");
    let change = |facts: &mut Facts| {
        facts.launch = launch(&without);
        facts.directory = None;
    };
    one(change, "fail launcher: directory = None", "docs/environment.md");
    let change = |facts: &mut Facts| facts.launch = launch(&format!("{TWO_HOSTS}SLURM_GPUS_PER_TASK=1"));
    one(change, "warn launcher: SLURM_GPUS_PER_TASK lets each task see", "--gpu-bind=none");
    let broken = "PMI_RANK=0 SLURM_JOB_ID=1";
    let variables = broken.split(' ').filter_map(|word| word.split_once('=')).collect::<Variables>();
    let change = |facts: &mut Facts| {
        (facts.launch, facts.directory) = (launch(broken), None);
        facts.seen = environment::seen(&variables, &OwnFacts::read());
    };
    let mut facts = healthy();
    change(&mut facts);
    let seen = judge(&facts).into_iter().filter(|finding| finding.area == "also seen");
    let seen = seen.map(|finding| finding.text).collect::<Vec<_>>();
    assert!(
        seen.len() == 2 && seen[0].starts_with("srun: inside") && seen[1].starts_with("PMI: PMI_SIZE"),
        "{seen:?}"
    );
    let stale = Facts { launch: launch(&format!("{TWO_HOSTS}RANK=0")), ..healthy() };
    let text = judge(&stale).into_iter().find(|finding| finding.area == "also seen").expect("told").text;
    assert!(text.starts_with("torchrun, not taken: WORLD_SIZE"), "{text}");
}

#[test]
fn directories() {
    let set = |change: fn(&mut Directory)| {
        move |facts: &mut Facts| change(facts.directory.as_mut().expect("there"))
    };
    let broken = set(|found| found.usable = Err("no file can be made: Permission denied".into()));
    one(broken, "fail directory: /shared (UFORM_DIRECTORY): no file can be made", "UFORM_DIRECTORY");
    one(
        set(|found| found.file_system = kind(TMPFS)),
        "fail directory: /shared (UFORM_DIRECTORY) on tmpfs, which other",
        "UFORM_DIRECTORY",
    );
    one(
        set(|found| found.file_system = kind(FUSE)),
        "warn directory: /shared (UFORM_DIRECTORY) on FUSE",
        "uform topology",
    );
    let unknown = |facts: &mut Facts| {
        facts.launch = launch(UNKNOWN_HOSTS);
        facts.directory.as_mut().expect("there").file_system = kind(TMPFS);
    };
    one(
        unknown,
        "warn directory: /shared (UFORM_DIRECTORY) on tmpfs, which other hosts do not see; nobody",
        "UFORM_DIRECTORY",
    );
    one(set(|found| found.free_bytes = 1 << 20), "fail directory: /shared has 1.0 MiB free", "16.0 MiB");
    let old = set(|found| (found.left, found.oldest_seconds) = (vec!["uform-x".into()], 7300));
    one(old, "warn stale: 1 jobs met or meet in /shared: uform-x; the oldest is 2 h old", "removes");
    // Nothing rests on locks.
    assert_eq!(bad(set(|found| found.locks = Err("ENOLCK".into()))).len(), 0);
    assert_eq!(bad(set(|found| found.left = vec!["uform-x".into()])).len(), 0);
    // One process needs no directory.
    assert_eq!(bad(|facts| (facts.launch, facts.directory) = (launch(""), None)).len(), 0);
}

#[test]
fn memory_and_cores() {
    one(
        |facts| facts.memory.allowance_bytes = Some(1 << 20),
        "fail memory: the memory control group allows 1.0 MiB",
        "--mem",
    );
    one(
        |facts| facts.memory.segment = Err("EPERM".into()),
        "fail segments: no shared memory can be made: EPERM",
        "memfd_create",
    );
    one(
        |facts| facts.memory.shm_bytes = Some((64 << 20, 64 << 20)),
        "warn /dev/shm: 64.0 MiB of 64.0 MiB free",
        "--shm-size",
    );
    one(
        |facts| facts.memory.shm_bytes = Some((8 << 30, 1 << 20)),
        "warn /dev/shm: 1.0 MiB of 8.0 GiB free",
        "remove what is left",
    );
    one(|facts| facts.memory.shm_bytes = None, "warn /dev/shm: not mounted", "mount");
    one(|facts| facts.cores.quota = Some(1), "warn cores: 2 processes share 1 cores", "fewer");
    one(|facts| facts.cores.threads = Some(64), "warn cores: OMP_NUM_THREADS is 64, for 16", "16");
    // Pinned to one core each: no sharing.
    assert_eq!(bad(|facts| facts.cores.allowed = 1).len(), 0);
    one(
        |facts| facts.descriptor_limit = Some(20),
        "fail open files: at most 20, and 2 processes",
        "ulimit -n",
    );
}

#[test]
fn devices_and_engines() {
    let files = |facts: &mut Facts| facts.gpus.device_files = vec!["/dev/nvidia0".into()];
    one(files, "warn GPUs: none is found, and the kernel shows /dev/nvidia0", "driver");
    let hidden = |facts: &mut Facts| {
        files(facts);
        facts.gpus.visibility = vec!["CUDA_VISIBLE_DEVICES=-1".into()];
    };
    one(hidden, "warn GPUs: none is visible (CUDA_VISIBLE_DEVICES=-1)", "unset");
    one(|facts| facts.gpus.notes = vec!["GPU 3 is lost".into()], "warn GPUs: GPU 3 is lost", "nvidia-smi");
    let few = |facts: &mut Facts| {
        facts.gpus.names = vec!["H100".into(), "H100".into()];
        facts.launch = launch(&TWO_HOSTS.replace("SLURM_GTIDS=0,1", "SLURM_GTIDS=0,1,2"));
    };
    one(few, "warn GPUs: 3 processes on this host, and 2 GPUs", "each GPU");
    let engine = |facts: &mut Facts| {
        facts.gpus.names = vec!["H100".into(), "H100".into()];
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        facts.capabilities = (words("serial cuda"), words("serial cuda nccl"));
    };
    one(engine, "warn library: GPUs are there, and NCCL is not found", "LD_LIBRARY_PATH");
    // One that is of no use is told once, with its own reason.
    let old = |facts: &mut Facts| {
        engine(facts);
        let reason = "no NCCL of version 2.18.1 or newer can be used: libnccl.so.2: is version 2.14.3".into();
        facts.unusable = vec![Unusable { reason, remedy: "name another file by UFORM_NCCL".into() }];
    };
    one(
        old,
        "warn library: no NCCL of version 2.18.1 or newer can be used: libnccl.so.2: is version",
        "UFORM_NCCL",
    );
}

#[test]
fn networks() {
    let local = |facts: &mut Facts| {
        facts.network =
            Ok(vec![address("lo", "127.0.0.1", true, true), address("eth0", "10.0.0.1", false, false)]);
    };
    one(local, "fail network: no address that another host could reach", "--network=host");
    let wrong = "UFORM_INTERFACES = a b (environment) is invalid: has `a b`";
    one(|facts| facts.network = Err(wrong.into()), "fail network: UFORM_INTERFACES = a b", "unset");
    let unchosen = |facts: &mut Facts| {
        facts.network.as_mut().expect("there").iter_mut().for_each(|one| one.is_chosen = false);
    };
    one(unchosen, "fail network: no address that another host could reach", "UFORM_INTERFACES");
    let link = |facts: &mut Facts| facts.network = Ok(vec![address("eth0", "fe80::1", true, false)]);
    one(
        link,
        "warn network: only link-local addresses, which hosts of one link reach: eth0 fe80::1",
        "one network",
    );
    let alone = |facts: &mut Facts| {
        local(facts);
        (facts.launch, facts.directory) = (launch(""), None);
    };
    assert_eq!(bad(alone).len(), 0, "one host needs none");
}
