//! A Slurm of a test's own: one controller and three nodes, each in namespaces of its own for network, processes and host name.
//!
//! Needs root, `unshare` and the packages of the Makefile's `slurm` target. Everything lives in the process namespaces of four
//! guards, which end with the test's thread: whatever happens to the test, the kernel ends what runs in them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long starting the cluster may take, and how long one command in it.
const DEADLINE: Duration = Duration::from_secs(100);

/// How many nodes there are, and cores and fake GPUs in each: enough for the scripts in `slurm`.
const NODES: usize = 3;
const CORES: usize = 64;
const GPUS: usize = 8;

/// A host of the cluster: the guard that holds its namespaces, and the first process in them.
struct Host {
    guard: Child,
    first: u32,
}

/// The cluster; it ends when dropped, its folder last.
pub(crate) struct Cluster {
    nodes: Vec<Option<Host>>,
    head: Host,
    folder: Folder,
}

/// A folder that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How the names of the folders begin; the process that made one follows.
const PREFIX: &str = "uform-slurm-";

/// Removes the folders of tests that were killed. Their processes and mounts the kernel has ended.
fn reclaim() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
        if pid.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
            // Another test may have been quicker.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A cluster, `None` where this machine cannot have one, which is said.
///
/// # Panics
/// If `UFORM_REQUIRE` names `slurm` and it cannot.
pub(crate) fn cluster() -> Option<Cluster> {
    match Cluster::make() {
        Ok(cluster) => Some(cluster),
        Err(reason) => {
            let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|word| word == "slurm"), "UFORM_REQUIRE names slurm: {reason}");
            println!("skipped: {reason}");
            None
        }
    }
}

impl Host {
    /// Namespaces with this name, in which `setup` has run.
    fn new(folder: &Path, name: &str, setup: &str) -> Result<Self, String> {
        let ready = folder.join(format!("{name}.ready"));
        let script = format!(
            "hostname {name} && mount --bind {hosts} /etc/hosts && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && \
             ip link set lo up && {setup} touch {ready}; trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done",
            hosts = folder.join("hosts").display(),
            ready = ready.display()
        );
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--uts",
            "--mount",
            "--ipc",
            "--pid",
            "--fork",
        ]);
        command.args(["--propagation", "private", "--kill-child", "--mount-proc", "sh", "-c", &script]);
        let log =
            std::fs::File::create(folder.join(format!("{name}.log"))).map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let guard = command.spawn().map_err(|error| format!("cannot run `setpriv`: {error}"))?;
        let mut host = Self { guard, first: 0 };
        let start = Instant::now();
        while !ready.exists() {
            let log = || std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
            if let Ok(Some(status)) = host.guard.try_wait() {
                return Err(format!("cannot make namespaces ({status}): {}", log()));
            }
            if start.elapsed() > DEADLINE {
                return Err(format!("host {name} did not start: {}", log()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let pid = host.guard.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.map_err(|error| error.to_string())?;
        let first = children.split_ascii_whitespace().next().and_then(|word| word.parse().ok());
        host.first = first.ok_or("the namespaces have no process")?;
        Ok(host)
    }

    /// A command that runs `words` in the host.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.first.to_string(), "-n", "-u", "-m", "-i", "-p", "--wd=/", "--"]);
        command.args(words).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if ["UFORM_", "SLURM_", "OMPI_", "PMI"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    fn run(&self, folder: &Path, words: &[&str]) -> Result<String, String> {
        let mut command = self.command(words);
        let output = command.env("SLURM_CONF", folder.join("slurm.conf")).output();
        let output = output.map_err(|error| format!("cannot run `nsenter`: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        Err(format!("`{}`: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel ends all processes of the namespace before its first, for which the guard waits.
        let first = i32::try_from(self.first).ok().and_then(Pid::from_raw);
        if first.is_none_or(|first| kill_process(first, Signal::KILL).is_err()) {
            let _ = self.guard.kill();
        }
        let _ = self.guard.wait();
    }
}

impl Cluster {
    fn make() -> Result<Self, String> {
        for program in ["munged", "slurmctld", "slurmd", "srun", "unshare", "ip", "setpriv"] {
            let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];
            if !found.iter().any(|folder| Path::new(folder).join(program).exists()) {
                return Err(format!("no Slurm tests: {program} is not installed"));
            }
        }
        if !rustix::process::geteuid().is_root() {
            return Err("no Slurm tests: only root makes namespaces".to_owned());
        }
        let failed = |error: std::io::Error| error.to_string();
        let nonce = uform::sys::random::nonce().map_err(|error| error.to_string())?;
        reclaim();
        let name = format!("{PREFIX}{}-{nonce}", std::process::id());
        let owned = Folder(std::env::temp_dir().join(name));
        let folder = owned.0.clone();
        std::fs::create_dir(&folder).map_err(failed)?;
        for name in ["state", "log", "shared"] {
            std::fs::create_dir(folder.join(name)).map_err(failed)?;
        }
        let mut hosts = "127.0.0.1 localhost\n10.78.0.254 head\n".to_owned();
        for number in 1..=NODES {
            hosts.push_str(&format!("10.78.0.{number} n{number}\n"));
        }
        std::fs::write(folder.join("hosts"), hosts).map_err(failed)?;
        configure(&folder).map_err(failed)?;
        let bridge = "ip link add br0 type bridge stp_state 0 forward_delay 0 && ip addr add 10.78.0.254/24 dev br0 && \
                      ip link set br0 up &&";
        let head = Host::new(&folder, "head", bridge)?;
        let mut cluster = Self { nodes: Vec::new(), head, folder: owned };
        for number in 1..=NODES {
            let node = Host::new(&folder, &format!("n{number}"), "")?;
            cluster.wire(number, &node)?;
            cluster.nodes.push(Some(node));
        }
        cluster.start()?;
        Ok(cluster)
    }

    fn wire(&self, number: usize, node: &Host) -> Result<(), String> {
        // A process's network is named by its number, and the head sees only its own processes: so from here.
        let name = format!("v{number}");
        let (head, node_pid) = (self.head.first.to_string(), node.first.to_string());
        let words =
            ["-t", &head, "-n", "ip", "link", "add", &name, "type", "veth", "peer", "name", "eth0", "netns"];
        let made =
            Command::new("nsenter").args(words).arg(&node_pid).output().map_err(|error| error.to_string())?;
        if !made.status.success() {
            return Err(format!("no link to node {number}: {}", String::from_utf8_lossy(&made.stderr)));
        }
        self.head.run(&self.folder.0, &["ip", "link", "set", &name, "master", "br0", "up"])?;
        node.run(&self.folder.0, &["ip", "addr", "add", &format!("10.78.0.{number}/24"), "dev", "eth0"])?;
        node.run(&self.folder.0, &["ip", "link", "set", "eth0", "up"])?;
        Ok(())
    }

    fn start(&self) -> Result<(), String> {
        let path = |name: &str| self.folder.0.join(name).display().to_string();
        self.head.run(
            &self.folder.0,
            &[
                "/usr/sbin/munged",
                &format!("--key-file={}", path("munge.key")),
                &format!("--socket={}", path("munge.sock")),
                &format!("--pid-file={}", path("munged.pid")),
                &format!("--log-file={}", path("log/munged.log")),
                &format!("--seed-file={}", path("munge.seed")),
                "--num-threads=2",
                "--force",
            ],
        )?;
        self.head.run(&self.folder.0, &["/usr/sbin/slurmctld", "-f", &path("slurm.conf")])?;
        for (position, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let name = format!("n{}", position + 1);
            node.run(&self.folder.0, &["/usr/sbin/slurmd", "-f", &path("slurm.conf"), "-N", &name])?;
        }
        let start = Instant::now();
        loop {
            let idle =
                self.head.run(&self.folder.0, &["sinfo", "-h", "-N", "-p", "p", "-t", "idle", "-o", "%N"]);
            if idle.as_ref().is_ok_and(|names| names.lines().count() == NODES) {
                return Ok(());
            }
            if start.elapsed() > DEADLINE {
                return Err(format!("the nodes are not idle: {idle:?}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A folder that all nodes see.
    pub(crate) fn shared(&self) -> PathBuf {
        self.folder.0.join("shared")
    }

    /// Starts a command on the head; `UFORM_DIRECTORY` names the shared folder.
    pub(crate) fn spawn(&self, words: &[&str]) -> Child {
        let limit = DEADLINE.as_secs().to_string();
        let mut all = vec!["timeout", "-k", "3", &limit];
        all.extend_from_slice(words);
        let mut command = self.head.command(&all);
        command.env("SLURM_CONF", self.folder.0.join("slurm.conf")).env("UFORM_DIRECTORY", self.shared());
        command.env("UFORM_TIMEOUT", "60").env("UFORM_SILENCE", "2");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("nsenter was there")
    }

    /// Runs a command on the head to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.spawn(words).wait_with_output().expect("a child of this process")
    }

    /// Waits until `ready` holds.
    ///
    /// # Panics
    /// If it does not in time, with what the controller has written.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, mut ready: impl FnMut() -> bool) {
        let start = Instant::now();
        while !ready() {
            let log = || std::fs::read_to_string(self.folder.0.join("log/slurmctld.log")).unwrap_or_default();
            assert!(start.elapsed() < DEADLINE, "no {what}\n{}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Turns a node off: all its processes end at once, and its network with them.
    pub(crate) fn crash(&mut self, position: usize) {
        let name = format!("v{}", position + 1);
        self.head.run(&self.folder.0, &["ip", "link", "set", &name, "down"]).expect("the head is there");
        self.nodes[position] = None;
    }
}

/// Writes the files that Slurm and munge read.
fn configure(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let key = uform::sys::random::bytes::<128>().map_err(std::io::Error::other)?;
    std::fs::write(folder.join("munge.key"), key)?;
    std::fs::set_permissions(folder.join("munge.key"), std::fs::Permissions::from_mode(0o600))?;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    let place = folder.display();
    let mut text = format!(
        "ClusterName=test\nSlurmctldHost=head(10.78.0.254)\nSlurmctldPort=6817\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={place}/munge.sock\nCredType=cred/munge\nStateSaveLocation={place}/state\n\
         SlurmctldPidFile={place}/slurmctld.pid\nSlurmctldLogFile={place}/log/slurmctld.log\n\
         SlurmdSpoolDir={place}/spool.%n\nTmpFS={place}/tmp.%n\nSlurmdPidFile={place}/slurmd.%n.pid\n\
         SlurmdLogFile={place}/log/slurmd.%n.log\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n\
         JobCompType=jobcomp/none\nSwitchType=switch/none\nMpiDefault=none\nSchedulerType=sched/backfill\n\
         SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1\nMailProg=/bin/true\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nPropagateResourceLimits=NONE\n\
         ReturnToService=2\nSlurmctldTimeout=30\nSlurmdTimeout=30\nMessageTimeout=10\nKillWait=2\nInactiveLimit=0\n\
         MinJobAge=30\nUnkillableStepTimeout=15\nGresTypes=gpu\n\
         PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
    );
    for number in 1..=NODES {
        std::fs::create_dir(folder.join(format!("spool.n{number}")))?;
        std::fs::create_dir(folder.join(format!("tmp.n{number}")))?;
        text.push_str(&format!(
            "NodeName=n{number} NodeHostname=n{number} NodeAddr=10.78.0.{number} Port=6818 CPUs={CORES} RealMemory=1024 \
             Gres=gpu:{GPUS} State=UNKNOWN\n"
        ));
    }
    text.push_str(
        "PartitionName=p Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 GraceTime=20 State=UP\n\
         PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF State=UP\n",
    );
    std::fs::write(folder.join("slurm.conf"), text)?;
    for number in 0..GPUS {
        // Slurm wants devices; these are /dev/null's.
        let file = folder.join(format!("gpu{number}"));
        let made = Command::new("mknod").arg(&file).args(["c", "1", "3"]).status()?;
        if !made.success() {
            return Err(std::io::Error::other("mknod failed"));
        }
    }
    let last = GPUS - 1;
    std::fs::write(
        folder.join("gres.conf"),
        format!("AutoDetect=off\nNodeName=n[1-{NODES}] Name=gpu File={place}/gpu[0-{last}]\n"),
    )?;
    std::fs::write(folder.join("cgroup.conf"), "CgroupAutomount=no\n")
}
