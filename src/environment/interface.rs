//! Which network interfaces a run over several hosts may use, and how long a silent host is waited for.

use std::ffi::OsString;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::{Error, Result};

/// The variable that chooses network interfaces.
pub const INTERFACES_VARIABLE: &str = "UFORM_INTERFACES";
/// The variable that says after how many seconds a silent host is lost.
pub const SILENCE_VARIABLE: &str = "UFORM_SILENCE";

/// The seconds after which a host that answers nothing is lost, where nobody says otherwise.
pub const DEFAULT_SILENCE_SECONDS: f64 = 10.0;

/// The longest such time: a day.
const SILENCE_LIMIT_SECONDS: f64 = 86_400.0;

/// What the variables say about the network.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The interfaces that may be used; `None` for all that other hosts can reach.
    pub selector: Option<Selector>,
    /// How long a host may answer nothing before it counts as lost.
    pub silence: Duration,
}

/// One word of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Name(String),
    Prefix(String),
    Address(IpAddr),
    /// The addresses that share so many leading bits with this one.
    Range(IpAddr, u32),
}

/// A choice of interfaces: words joined by commas; with `^` in front, all but those.
///
/// A word is a name (`eth0`, or `=eth0`), the beginning of names (`eth*`), an address (`10.1.2.3`), or a range of addresses
/// (`10.0.0.0/8`, `fd00::/8`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    text: String,
    excludes: bool,
    items: Vec<Item>,
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence that goes on after the value.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let (excludes, words) = match text.trim().strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text.trim()),
        };
        let items =
            words.split(',').map(|word| Item::parse(word.trim())).collect::<std::result::Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), excludes, items })
    }

    /// Whether an address of an interface is chosen.
    #[must_use]
    pub fn admits(&self, name: &str, address: IpAddr) -> bool {
        self.items.iter().any(|item| item.matches(name, address)) != self.excludes
    }

    /// Whether the chosen ones are named, and not those that are left out.
    #[must_use]
    pub const fn names_the_chosen(&self) -> bool {
        !self.excludes
    }

    /// The selector as it was given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Item {
    fn parse(word: &str) -> std::result::Result<Self, String> {
        let is_name = |name: &str| {
            let is_legal = |character: char| character.is_ascii_graphic() && !"/*^=,".contains(character);
            !name.is_empty() && name.len() < 16 && name.chars().all(is_legal)
        };
        if word.is_empty() {
            return Err("has an empty word between its commas".to_owned());
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            return Ok(Self::Address(address));
        }
        if let Some((address, bits)) = word.split_once('/') {
            let address = address
                .parse::<IpAddr>()
                .map_err(|_| format!("has `{word}`, whose part before the slash is no address"))?;
            let limit = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse::<u32>().ok().filter(|bits| *bits <= limit);
            let bits = bits.ok_or_else(|| format!("has `{word}`, whose length must be 0 to {limit}"))?;
            return Ok(Self::Range(address, bits));
        }
        if let Some(start) = word.strip_suffix('*') {
            if is_name(start) {
                return Ok(Self::Prefix(start.to_owned()));
            }
        } else {
            let name = word.strip_prefix('=').unwrap_or(word);
            if is_name(name) {
                return Ok(Self::Name(name.to_owned()));
            }
        }
        Err(format!(
            "has `{word}`, which is no name (eth0), no beginning of names (eth*), no address and no range (10.0.0.0/8); \
             ^ stands once, in front of all words"
        ))
    }

    fn matches(&self, name: &str, address: IpAddr) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Prefix(start) => name.starts_with(start.as_str()),
            Self::Address(own) => *own == address,
            Self::Range(IpAddr::V4(own), bits) => match address {
                IpAddr::V4(address) => {
                    let shift = 32 - *bits;
                    u32::from(*own).checked_shr(shift).unwrap_or(0)
                        == u32::from(address).checked_shr(shift).unwrap_or(0)
                }
                IpAddr::V6(_) => false,
            },
            Self::Range(IpAddr::V6(own), bits) => match address {
                IpAddr::V6(address) => {
                    let shift = 128 - *bits;
                    u128::from(*own).checked_shr(shift).unwrap_or(0)
                        == u128::from(address).checked_shr(shift).unwrap_or(0)
                }
                IpAddr::V4(_) => false,
            },
        }
    }
}

/// Reads what this process's variables say about the network; `found` lists the interfaces of this host for a message.
///
/// # Errors
/// `Invalid` for a value that cannot be right, naming the variable and the interfaces found.
pub fn network(found: &dyn Fn() -> String) -> Result<Network> {
    resolve(&|name| std::env::var_os(name), found)
}

fn resolve(variables: &dyn Fn(&str) -> Option<OsString>, found: &dyn Fn() -> String) -> Result<Network> {
    let text = |name: &str| match variables(name).map(OsString::into_string) {
        None => Ok(None),
        Some(Ok(text)) if text.trim().is_empty() => Ok(None),
        Some(Ok(text)) => Ok(Some(text)),
        Some(Err(odd)) => {
            Err(Error::invalid(name, format!("{odd:?}"), "environment", "must be readable as UTF-8"))
        }
    };
    let selector = text(INTERFACES_VARIABLE)?.map(|text| {
        Selector::parse(&text).map_err(|reason| {
            let reason = format!("{reason}; interfaces found: {}", found());
            Error::invalid(INTERFACES_VARIABLE, text, "environment", reason)
        })
    });
    let silence = match text(SILENCE_VARIABLE)? {
        None => DEFAULT_SILENCE_SECONDS,
        Some(text) => match text.trim().parse::<f64>() {
            Ok(seconds) if (1.0..=SILENCE_LIMIT_SECONDS).contains(&seconds) => seconds,
            _ => {
                let reason = format!("must be a number of seconds from 1 to {SILENCE_LIMIT_SECONDS}");
                return Err(Error::invalid(SILENCE_VARIABLE, text, "environment", reason));
            }
        },
    };
    Ok(Network { selector: selector.transpose()?, silence: Duration::from_secs_f64(silence) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(selector: &str, name: &str, address: &str) -> bool {
        let address = address.parse().expect("an address");
        Selector::parse(selector).expect("a selector").admits(name, address)
    }

    #[test]
    fn one_grammar_for_names_beginnings_exclusions_ranges_and_addresses() {
        let table = [
            ("eth0", "eth0", "10.0.0.1", true),
            ("eth0", "eth01", "10.0.0.1", false),
            ("=eth0", "eth0", "10.0.0.1", true),
            ("eth*", "eth12", "10.0.0.1", true),
            ("eth*", "xeth1", "10.0.0.1", false),
            ("^lo,docker*", "lo", "127.0.0.1", false),
            ("^lo,docker*", "docker0", "172.17.0.1", false),
            ("^lo,docker*", "eth0", "10.0.0.1", true),
            ("ib0, eth0", "eth0", "10.0.0.1", true),
            ("10.0.0.0/8", "any", "10.255.0.1", true),
            ("10.0.0.0/8", "any", "11.0.0.1", false),
            ("10.0.0.0/8", "any", "fd00::1", false),
            ("^10.0.0.0/8", "any", "10.0.0.1", false),
            ("0.0.0.0/0", "any", "192.0.2.1", true),
            ("10.1.2.3", "any", "10.1.2.3", true),
            ("10.1.2.3/32", "any", "10.1.2.3", true),
            ("10.1.2.3", "any", "10.1.2.4", false),
            ("fd00::/8", "any", "fd12::1", true),
            ("fd00::/8", "any", "fe80::1", false),
            ("::/0", "any", "fe80::1", true),
            ("fd00::5", "any", "fd00::5", true),
        ];
        for (selector, name, address, expected) in table {
            assert_eq!(admits(selector, name, address), expected, "{selector} of {name} {address}");
        }
    }

    #[test]
    fn odd_values_name_the_variable_and_the_interfaces() {
        for text in
            ["eth0,,eth1", "10.0.0.0/33", "eth/8", "a b", "eth0,^lo", "*", "10.0.0/8", "=", "fd00::/129"]
        {
            let variables = |name: &str| (name == INTERFACES_VARIABLE).then(|| OsString::from(text));
            let error = resolve(&variables, &|| "lo 127.0.0.1, eth7 10.0.0.9".to_owned()).expect_err("odd");
            let error = error.to_string();
            assert!(error.contains(INTERFACES_VARIABLE) && error.contains("eth7 10.0.0.9"), "{error}");
        }
        for text in ["0", "0.5", "-1", "nan", "inf", "ten", "86401"] {
            let variables = |name: &str| (name == SILENCE_VARIABLE).then(|| OsString::from(text));
            let error = resolve(&variables, &String::new).expect_err("odd").to_string();
            assert!(error.contains(SILENCE_VARIABLE), "{error}");
        }
    }

    #[test]
    fn nothing_set_means_all_interfaces_and_ten_seconds() {
        let network = resolve(&|_| None, &String::new).expect("nothing is wrong");
        assert_eq!(network, Network { selector: None, silence: Duration::from_secs(10) });
        let empty = resolve(&|_| Some(OsString::from(" ")), &String::new).expect("nothing is wrong");
        assert_eq!(empty, network);
    }
}
