//! Hosts of our own for tests: network namespaces joined by a bridge, with cables that can be pulled.
//!
//! Needs root and `ip` of iproute2. Nothing leads out of them, so all tests use the same addresses. They go when dropped;
//! what a killed test left goes with the next one.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The variable that names the network of a member.
pub(super) const VARIABLE: &str = "UFORM_TEST_NETWORK";

/// How the names of all namespaces of tests begin.
const PREFIX: &str = "uform-test-";

/// Hosts by position, and the hub that joins them.
pub(crate) struct Hosts {
    hub: String,
    names: Vec<String>,
}

/// Runs `ip` with these words.
fn ip(words: &str) -> Result<String, String> {
    let output = Command::new("ip").args(words.split(' ')).output();
    let output = output.map_err(|error| format!("cannot run `ip`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("`ip {words}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// Whether this kernel has IPv6 at all.
pub(crate) fn has_ipv6() -> bool {
    PathBuf::from("/proc/sys/net/ipv6").exists()
}

/// Removes what tests left whose process has gone.
fn reclaim() -> Result<(), String> {
    for line in ip("netns list")?.lines() {
        let name = line.split(' ').next().unwrap_or_default();
        let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !PathBuf::from(format!("/proc/{pid}")).exists()) {
            // Another test may have been quicker.
            let _ = ip(&format!("netns del {name}"));
        }
    }
    Ok(())
}

impl Hosts {
    /// `count` hosts that reach each other over IPv4, and IPv6 where the kernel has it; `None` where this machine cannot, which is said.
    ///
    /// # Panics
    /// If `UFORM_REQUIRE` names `netns` and it cannot.
    pub(crate) fn new(count: usize) -> Option<Self> {
        match Self::make(count) {
            Ok(hosts) => Some(hosts),
            Err(reason) => {
                let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
                assert!(
                    !required.split(',').any(|word| word == "netns"),
                    "UFORM_REQUIRE names netns: {reason}"
                );
                println!("skipped: {reason}");
                None
            }
        }
    }

    fn make(count: usize) -> Result<Self, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        reclaim()?;
        let base = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let hub = format!("{base}-hub");
        ip(&format!("netns add {hub}"))?;
        let mut hosts = Self { hub: hub.clone(), names: Vec::new() };
        ip(&format!("-n {hub} link add br0 type bridge stp_state 0 forward_delay 0"))?;
        ip(&format!("-n {hub} link set br0 up"))?;
        for number in 1..=count {
            let name = format!("{base}-{number}");
            ip(&format!("netns add {name}"))?;
            hosts.names.push(name.clone());
            ip(&format!("-n {hub} link add v{number} type veth peer name eth0 netns {name}"))?;
            ip(&format!("-n {hub} link set v{number} master br0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} addr add 10.77.0.{number}/24 dev eth0"))?;
            if has_ipv6() {
                ip(&format!("-n {name} addr add fd77::{number}/64 dev eth0 nodad"))?;
            }
            ip(&format!("-n {name} link set eth0 up"))?;
        }
        Ok(hosts)
    }

    /// Where the network of the host at `position` can be entered, for [`super::Setup::networks`].
    pub(crate) fn network(&self, position: usize) -> String {
        format!("/run/netns/{}", self.names[position])
    }

    /// The networks of all hosts.
    pub(crate) fn networks(&self) -> Vec<String> {
        (0..self.names.len()).map(|position| self.network(position)).collect()
    }

    /// Pulls the cable of a host: what it sends, and what is sent to it, is lost without a word.
    pub(crate) fn cut(&self, position: usize) {
        ip(&format!("-n {} link set v{} down", self.hub, position + 1)).expect("the hub is there");
    }

    /// Plugs it in again.
    pub(crate) fn heal(&self, position: usize) {
        ip(&format!("-n {} link set v{} up", self.hub, position + 1)).expect("the hub is there");
    }

    /// Takes all but the loopback interface from a host.
    pub(crate) fn isolate(&self, position: usize) {
        ip(&format!("-n {} link del eth0", self.names[position])).expect("the host is there");
    }

    /// Runs `ip` within a host.
    pub(crate) fn configure(&self, position: usize, words: &str) {
        ip(&format!("-n {} {words}", self.names[position])).expect("the host is there");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.hub]) {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// Moves this thread, and those it starts, into the network that the harness gave to this member.
pub(super) fn enter() {
    let Ok(path) = std::env::var(VARIABLE) else { return };
    let file = std::fs::File::open(&path).expect("the network is there");
    use std::os::fd::AsFd;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("this is root");
}

#[test]
fn hosts_reach_each_other_and_leave_nothing() {
    let Some(hosts) = Hosts::new(2) else { return };
    let path = hosts.network(1);
    assert!(PathBuf::from(&path).exists());
    hosts.cut(1);
    hosts.heal(1);
    hosts.isolate(1);
    drop(hosts);
    assert!(!PathBuf::from(&path).exists());
}
