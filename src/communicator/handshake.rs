//! What two members say to each other before one believes the other, as bytes.
//!
//! The one with the higher index connects and says hello; each then proves that it knows the run's key by a MAC over
//! the medium, both indexes and both nonces. What a stranger sends decodes to `None`.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::rendezvous::RunKey;

/// The key of a group of members that all know `key`; `name` tells it from others. Who knows one of them knows no other.
pub(crate) fn derived_key(key: &RunKey, name: &str) -> RunKey {
    let mac = Hmac::<Sha256>::new_from_slice(&key.0).ok().map(|mut mac| {
        mac.update(b"uform-group\0");
        mac.update(name.as_bytes());
        mac.finalize().into_bytes().into()
    });
    // A MAC takes keys of any length.
    RunKey(mac.unwrap_or([0; 32]))
}

/// Drawn by each side for one connection.
pub(super) type Challenge = [u8; 32];
/// Proof of the run's key.
pub(super) type Tag = [u8; 32];

/// What a connection is for: a proof for one medium is none for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Medium {
    /// A unix socket between members of one host.
    Unix,
    /// The connection that agrees on calls between hosts, and tells of death.
    Control,
    /// The connection that carries payload between hosts.
    Data,
    /// The connection for sends and receives between hosts.
    Pair,
}

impl Medium {
    /// The first bytes of every message: medium and version.
    const fn magic(self) -> &'static [u8; 8] {
        match self {
            Self::Unix => b"uform-s1",
            Self::Control => b"uform-c1",
            Self::Data => b"uform-d1",
            Self::Pair => b"uform-p1",
        }
    }
}

/// Which way a proof goes: one side's proof is none for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The member that was connected to.
    Lower,
    /// The member that connected.
    Higher,
}

/// One message of the handshake; memory files travel beside the last two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Greeting {
    /// From the higher index: who it claims to be, whom it wants, its challenge.
    Hello { from: u32, to: u32, challenge: Challenge },
    /// From the lower index: its challenge and its proof.
    Answer { challenge: Challenge, tag: Tag },
    /// From the higher index: its proof, and where its trial memory lies in its address space.
    Proof { tag: Tag, address: u64 },
    /// From the lower index: it believes; where its trial memory lies.
    Welcome { address: u64 },
}

/// The bytes of the longest greeting.
pub(super) const GREETING_LIMIT: usize = 8 + 1 + 32 + 32;

impl Greeting {
    pub(super) fn encode(&self, medium: Medium) -> Vec<u8> {
        let mut bytes = medium.magic().to_vec();
        match self {
            Self::Hello { from, to, challenge } => {
                bytes.push(1);
                bytes.extend(from.to_le_bytes());
                bytes.extend(to.to_le_bytes());
                bytes.extend(challenge);
            }
            Self::Answer { challenge, tag } => {
                bytes.push(2);
                bytes.extend(challenge);
                bytes.extend(tag);
            }
            Self::Proof { tag, address } => {
                bytes.push(3);
                bytes.extend(tag);
                bytes.extend(address.to_le_bytes());
            }
            Self::Welcome { address } => {
                bytes.push(4);
                bytes.extend(address.to_le_bytes());
            }
        }
        bytes
    }

    /// The greeting in `bytes`, if it is a whole one of this medium.
    pub(super) fn decode(bytes: &[u8], medium: Medium) -> Option<Self> {
        let (kind, rest) = bytes.strip_prefix(medium.magic())?.split_first()?;
        let mut reader = Reader(rest);
        let greeting = match kind {
            1 => Self::Hello { from: reader.number()?, to: reader.number()?, challenge: reader.take()? },
            2 => Self::Answer { challenge: reader.take()?, tag: reader.take()? },
            3 => Self::Proof { tag: reader.take()?, address: reader.long()? },
            4 => Self::Welcome { address: reader.long()? },
            _ => return None,
        };
        reader.0.is_empty().then_some(greeting)
    }
}

/// Takes fixed parts off the front of bytes that another process wrote.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const COUNT: usize>(&mut self) -> Option<[u8; COUNT]> {
        let (first, rest) = self.0.split_first_chunk::<COUNT>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

/// One connection between two indexes, as both sides know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) medium: Medium,
    pub(super) lower: u32,
    pub(super) higher: u32,
    pub(super) lower_challenge: Challenge,
    pub(super) higher_challenge: Challenge,
}

impl Pair {
    fn mac(&self, key: &RunKey, side: Side) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key.0).ok()?;
        mac.update(self.medium.magic());
        mac.update(match side {
            Side::Lower => b"lower",
            Side::Higher => b"upper",
        });
        mac.update(&self.lower.to_le_bytes());
        mac.update(&self.higher.to_le_bytes());
        mac.update(&self.lower_challenge);
        mac.update(&self.higher_challenge);
        Some(mac)
    }

    /// The proof of one side.
    pub(super) fn tag(&self, key: &RunKey, side: Side) -> Tag {
        self.mac(key, side).map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether that is the proof of that side, compared in constant time.
    pub(super) fn is_proved(&self, key: &RunKey, side: Side, tag: &Tag) -> bool {
        self.mac(key, side).is_some_and(|mac| mac.verify_slice(tag).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_and_others_are_refused() {
        let greetings = [
            Greeting::Hello { from: 3, to: 1, challenge: [7; 32] },
            Greeting::Answer { challenge: [1; 32], tag: [2; 32] },
            Greeting::Proof { tag: [3; 32], address: 5 },
            Greeting::Welcome { address: 9 },
        ];
        for greeting in greetings {
            let mut bytes = greeting.encode(Medium::Unix);
            assert!(bytes.len() <= GREETING_LIMIT);
            assert_eq!(Greeting::decode(&bytes, Medium::Unix), Some(greeting));
            assert_eq!(Greeting::decode(&bytes, Medium::Data), None);
            bytes.push(0);
            assert_eq!(Greeting::decode(&bytes, Medium::Unix), None);
            bytes.truncate(bytes.len() - 2);
            assert_eq!(Greeting::decode(&bytes, Medium::Unix), None);
        }
        assert_eq!(Greeting::decode(b"GET / HTTP/1.1", Medium::Unix), None);
        assert_eq!(Greeting::decode(b"", Medium::Unix), None);
    }

    #[test]
    fn a_proof_counts_for_one_side_one_pair_one_medium_and_one_key() {
        let medium = Medium::Control;
        let pair = Pair { medium, lower: 0, higher: 1, lower_challenge: [1; 32], higher_challenge: [2; 32] };
        let key = RunKey([9; 32]);
        let tag = pair.tag(&key, Side::Higher);
        assert!(pair.is_proved(&key, Side::Higher, &tag));
        assert!(!pair.is_proved(&key, Side::Lower, &tag));
        assert!(!pair.is_proved(&RunKey([8; 32]), Side::Higher, &tag));
        assert!(!Pair { medium: Medium::Data, ..pair }.is_proved(&key, Side::Higher, &tag));
        assert!(!Pair { higher: 2, ..pair }.is_proved(&key, Side::Higher, &tag));
        assert!(!Pair { lower_challenge: [3; 32], ..pair }.is_proved(&key, Side::Higher, &tag));
    }
}
