//! Which of this host's addresses other hosts are told, and why the others are not.
//!
//! Decides from a list of interfaces and touches nothing. What others published is text that another process wrote.

use std::net::{IpAddr, SocketAddr};

use crate::error::{Error, Result};
use crate::sys::network::Interface;

/// The most addresses and notes of one member that are believed.
const LINE_LIMIT: usize = 64;
/// The longest line that is believed.
const LINE_BYTES: usize = 200;
/// How many letters of a reason are told.
const REASON_LENGTH: usize = 100;

/// How many bytes of published text are read.
const TEXT_LIMIT: usize = LINE_LIMIT * LINE_BYTES;

/// Names under which hosts keep bridges to their own containers: no other host is behind them.
const BRIDGES: &[&str] = &["docker", "virbr", "br-", "cni", "podman", "lxcbr", "lxdbr", "veth", "tailscale"];

/// Whether an address of an interface is among those that the user chose.
pub type Admits<'a> = &'a dyn Fn(&str, IpAddr) -> bool;

/// The user's choice of interfaces.
#[derive(Clone, Copy)]
pub struct Selection<'a> {
    /// The variable that holds it.
    pub variable: &'a str,
    /// Its value, for messages.
    pub text: &'a str,
    /// Whether it names the chosen ones, and not those that are left out.
    pub names_the_chosen: bool,
    /// The choice.
    pub admits: Admits<'a>,
}

/// One address of a member as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Where it listens.
    pub address: SocketAddr,
    /// The interface.
    pub name: String,
    /// Why it is published.
    pub reason: String,
}

/// Where a member listens, as others are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publication {
    /// Each address with the interface it belongs to, and why it was taken.
    pub addresses: Vec<Published>,
    /// What was left out and why, one sentence each.
    pub notes: Vec<String>,
}

impl std::fmt::Display for Publication {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let addresses = self.addresses.iter().map(|one| format!("{} ({})", one.address, one.name));
        write!(formatter, "{}", addresses.collect::<Vec<_>>().join(", "))?;
        if !self.notes.is_empty() {
            write!(formatter, "; left out: {}", self.notes.join(", "))?;
        }
        Ok(())
    }
}

impl Publication {
    /// The text that goes to the other members: a line for each address, a line for each note.
    pub(super) fn encode(&self) -> Vec<u8> {
        let cut =
            |text: &str| text.replace(char::is_control, " ").chars().take(REASON_LENGTH).collect::<String>();
        let line = |one: &Published| format!("a {} {} {}\n", one.address, one.name, cut(&one.reason));
        let addresses = self.addresses.iter().map(line);
        let notes = self.notes.iter().map(|note| format!("n {}\n", note.replace('\n', " ")));
        let lines = addresses.take(LINE_LIMIT).chain(notes.take(LINE_LIMIT));
        lines.filter(|line| line.len() <= LINE_BYTES).collect::<String>().into_bytes()
    }

    /// What a member published; lines that are none are left out.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2 * TEXT_LIMIT)]);
        let mut found = Self::default();
        for line in text.lines().take(2 * LINE_LIMIT).filter(|line| line.len() <= LINE_BYTES) {
            let line = line.replace(char::is_control, " ");
            if let Some(note) = line.strip_prefix("n ") {
                found.notes.push(note.to_owned());
            } else if let Some((address, rest)) =
                line.strip_prefix("a ").and_then(|rest| rest.split_once(' '))
                && let Ok(address) = address.parse::<SocketAddr>()
                && address.port() != 0
                && !address.ip().is_unspecified()
                && !address.ip().is_multicast()
            {
                let (name, reason) = rest.split_once(' ').unwrap_or((rest, ""));
                let (name, reason) = (name.to_owned(), reason.to_owned());
                found.addresses.push(Published { address, name, reason });
            }
        }
        found
    }
}

/// An address to listen at, and why.
type Chosen = (Interface, String);

/// The interfaces at which to listen, each with the reason, and a note for each that is left out.
///
/// Loopback is for members of one network namespace alone; link-local addresses and bridges to containers only if there
/// is nothing else.
///
/// # Errors
/// `Unsupported` if no address can be reached by another host; `Invalid` if the user's choice leaves none of them.
pub(super) fn choose(
    found: &[Interface],
    selection: Option<Selection<'_>>,
    is_one_namespace: bool,
    why_needed: &str,
) -> Result<(Vec<Chosen>, Vec<String>)> {
    let (mut chosen, mut reserve, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let why = |one: &Interface| match selection {
        Some(Selection { variable, text, names_the_chosen: true, .. }) => {
            format!("chosen by {variable} = {text}")
        }
        _ if one.is_loopback => "all members are in one network namespace".to_owned(),
        Some(Selection { variable, text, .. }) => format!("up, and not left out by {variable} = {text}"),
        None => "up, and not of this host alone".to_owned(),
    };
    let is_named = selection.is_some_and(|selection| selection.names_the_chosen);
    for one in found {
        let reason = if !one.is_up {
            "is down"
        } else if selection.is_some_and(|selection| !(selection.admits)(&one.name, one.address)) {
            "is not chosen"
        } else if one.is_loopback && !is_one_namespace {
            "a loopback address reaches its own host only"
        } else if !one.has_carrier {
            reserve.push((one.clone(), "has no carrier, and there is no other"));
            "has no carrier, and is used only if there is no other"
        } else if one.is_link_local() && !is_named {
            reserve.push((one.clone(), "link-local, and there is no other"));
            "a link-local address is used only if there is no other"
        } else if !is_named && BRIDGES.iter().any(|start| one.name.starts_with(start)) {
            reserve.push((one.clone(), "bridges this host's containers, and there is no other"));
            "bridges this host's containers, and is used only if there is no other"
        } else {
            chosen.push((one.clone(), why(one)));
            continue;
        };
        notes.push(format!("{one} ({reason})"));
    }
    if chosen.is_empty() {
        notes.retain(|note| !reserve.iter().any(|(one, _)| note.starts_with(&format!("{one} ("))));
        chosen = reserve.into_iter().map(|(one, reason)| (one, reason.to_owned())).collect();
    }
    if !chosen.is_empty() {
        return Ok((chosen, notes));
    }
    let notes = if notes.is_empty() { "there is none at all".to_owned() } else { notes.join(", ") };
    match selection {
        Some(selection) => {
            let reason = format!("leaves no interface that other hosts can reach; interfaces found: {notes}");
            Err(Error::invalid(selection.variable, selection.text, "environment", reason))
        }
        None => Err(Error::unsupported(
            "a run over several hosts",
            format!(
                "{why_needed}, and this host has no network address that another host can reach: {notes}"
            ),
        )),
    }
}

/// Where to connect to reach a published address: a link-local one is tried over every link of this host.
pub(super) fn expand(address: SocketAddr, own: &[Interface]) -> Vec<SocketAddr> {
    match address {
        SocketAddr::V6(found) if found.ip().is_unicast_link_local() => {
            let mut numbers = own
                .iter()
                .filter(|one| one.is_up && !one.is_loopback && one.address.is_ipv6())
                .map(|one| one.number)
                .collect::<Vec<_>>();
            numbers.sort_unstable();
            numbers.dedup();
            let over = |number: u32| {
                let mut address = found;
                address.set_scope_id(number);
                SocketAddr::V6(address)
            };
            numbers.into_iter().map(over).collect()
        }
        other => vec![other],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface(name: &str, number: u32, address: &str) -> Interface {
        let address = address.parse::<IpAddr>().expect("an address");
        let is_loopback = address.is_loopback();
        Interface { name: name.into(), number, address, is_up: true, has_carrier: true, is_loopback }
    }

    fn published(address: &str, name: &str, reason: &str) -> Published {
        let address = address.parse().expect("an address");
        Published { address, name: name.into(), reason: reason.into() }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", 1, "127.0.0.1"),
            interface("lo", 1, "::1"),
            interface("eth0", 2, "10.0.0.5"),
            interface("eth0", 2, "fd00::5"),
            interface("eth0", 2, "fe80::5"),
            interface("docker0", 3, "172.17.0.1"),
            Interface { is_up: false, ..interface("eth1", 4, "10.1.0.5") },
        ]
    }

    fn names(found: &[Interface], selection: Option<Selection<'_>>, one: bool) -> Vec<String> {
        let (chosen, _) = choose(found, selection, one, "needed").expect("some are left");
        chosen.iter().map(|(one, _)| one.to_string()).collect()
    }

    #[test]
    fn only_what_others_can_reach_is_published() {
        let all = machine();
        assert_eq!(names(&all, None, false), ["eth0 10.0.0.5", "eth0 fd00::5"]);
        assert_eq!(names(&all, None, true), ["lo 127.0.0.1", "lo ::1", "eth0 10.0.0.5", "eth0 fd00::5"]);
        let (_, notes) = choose(&all, None, false, "needed").expect("some are left");
        let notes = notes.join("\n");
        for word in
            ["lo 127.0.0.1 (a loopback", "fe80::5 (a link-local", "docker0", "eth1 10.1.0.5 (is down)"]
        {
            assert!(notes.contains(word), "{word}: {notes}");
        }
        // What is second choice is taken where nothing else is there.
        let (chosen, notes) = choose(&[all[0].clone(), all[4].clone()], None, false, "needed").expect("one");
        assert_eq!(chosen, [(all[4].clone(), "link-local, and there is no other".to_owned())]);
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(names(&[all[0].clone(), all[5].clone()], None, false), ["docker0 172.17.0.1"]);
        let young = Interface { has_carrier: false, ..all[2].clone() };
        assert_eq!(names(&[all[0].clone(), young.clone()], None, false), ["eth0 10.0.0.5"]);
        assert_eq!(names(&[young, all[3].clone()], None, false), ["eth0 fd00::5"]);
    }

    #[test]
    fn nothing_to_publish_says_why() {
        let error =
            choose(&machine()[..2], None, false, "index 0 and 1 are on different hosts").expect_err("lo");
        let text = error.to_string();
        assert!(text.contains("different hosts") && text.contains("lo 127.0.0.1 (a loopback"), "{text}");
        let selection = Selection {
            variable: "UFORM_INTERFACES",
            text: "ib*",
            names_the_chosen: true,
            admits: &|name, _| name.starts_with("ib"),
        };
        let text = choose(&machine(), Some(selection), false, "").expect_err("none").to_string();
        assert!(text.contains("UFORM_INTERFACES = ib*") && text.contains("eth0 10.0.0.5"), "{text}");
        let bridge = Selection { text: "docker0", admits: &|name, _| name == "docker0", ..selection };
        assert_eq!(names(&machine(), Some(bridge), false), ["docker0 172.17.0.1"]);
        let why = |selection| choose(&machine(), selection, false, "").expect("some are left").0[0].1.clone();
        assert_eq!(why(Some(bridge)), "chosen by UFORM_INTERFACES = docker0");
        assert_eq!(why(None), "up, and not of this host alone");
        let others =
            Selection { text: "^lo", names_the_chosen: false, admits: &|name, _| name != "lo", ..selection };
        assert_eq!(why(Some(others)), "up, and not left out by UFORM_INTERFACES = ^lo");
    }

    #[test]
    fn published_text_comes_back_and_odd_lines_do_not() {
        let own = Publication {
            addresses: vec![
                published("10.0.0.5:4000", "eth0", "chosen by UFORM_INTERFACES = eth0"),
                published("[fd00::5]:4001", "eth0", ""),
            ],
            notes: vec!["lo 127.0.0.1 (a loopback address)".into()],
        };
        assert_eq!(Publication::decode(&own.encode()), own);
        let odd = b"a 10.0.0.5:0 eth0\na 0.0.0.0:7 eth0\na name:80 eth0\nx\na\n\xff\na 224.0.0.1:9 eth0\n";
        assert_eq!(Publication::decode(odd), Publication::default());
    }

    #[test]
    fn a_link_local_address_is_tried_over_every_link() {
        let address = "[fe80::9]:80".parse().expect("an address");
        let over = expand(address, &machine());
        assert_eq!(over, ["[fe80::9%2]:80".parse().expect("an address")]);
        let other = "10.0.0.1:80".parse().expect("an address");
        assert_eq!(expand(other, &machine()), [other]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_publication(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let found = Publication::decode(&bytes);
            prop_assert!(found.addresses.len() + found.notes.len() <= 2 * LINE_LIMIT);
        }
    }
}
