//! What members write for each other in a meeting place, and how it is told apart from damage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::reason::Reason;
use crate::topology::{Introduction, Process};
use crate::vocabulary::Nonce;

/// The most bytes of a record about one process.
pub(super) const RECORD_LIMIT: usize = 4 << 20;
/// The most bytes that one member may publish in a phase.
pub(super) const PAYLOAD_LIMIT: usize = 64 << 20;
/// The most bytes of a roster or of the outcome of a phase.
pub(super) const OUTCOME_LIMIT: usize = 1 << 30;

/// One start of one process, as others may know it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) index: usize,
    pub(super) nonce: Nonce,
    /// How many members this process was told there are.
    pub(super) count: usize,
    /// The namespace of its process number.
    pub(super) namespace: String,
    pub(super) process: Process,
}

/// What is known of another process without asking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Alive,
    Dead,
    /// It is on another host, or its number is of another namespace.
    Unknown,
}

impl Identity {
    /// The reason of its death in `phase`.
    pub(super) fn lost(&self, phase: &str) -> Reason {
        Reason::Lost {
            index: self.index,
            host: self.process.host_name.clone(),
            pid: self.process.pid,
            phase: phase.to_owned(),
        }
    }
}

/// The claim of an epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) identity: Identity,
    /// The hash of the leader's survey, so that members of its host need not store it again.
    pub(super) survey: String,
}

/// What a launcher says of a child that died.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) poster: Identity,
    /// The process that died, in the poster's numbers.
    pub(super) pid: u32,
    pub(super) text: String,
}

/// One member's registration; its survey is stored apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Registration {
    pub(super) identity: Identity,
    pub(super) survey: String,
    pub(super) introduction: serde_json::Value,
}

/// The proposed roster: registrations by index, and each distinct survey once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Proposal {
    pub(super) registrations: Vec<Registration>,
    pub(super) surveys: BTreeMap<String, serde_json::Value>,
}

impl Registration {
    /// The registration of `identity`, and its survey as text.
    pub(super) fn of(identity: &Identity, introduction: &Introduction) -> serde_json::Result<(Self, String)> {
        let mut value = serde_json::to_value(introduction)?;
        let survey = value.as_object_mut().and_then(|fields| fields.remove("survey")).unwrap_or_default();
        let text = survey.to_string();
        let registration =
            Self { identity: identity.clone(), survey: fingerprint(text.as_bytes()), introduction: value };
        Ok((registration, text))
    }
}

impl Proposal {
    /// The introduction of the member at `index`.
    pub(super) fn introduction(&self, index: usize) -> Option<Introduction> {
        let registration = self.registrations.get(index)?;
        let mut value = registration.introduction.clone();
        value.as_object_mut()?.insert("survey".to_owned(), self.surveys.get(&registration.survey)?.clone());
        serde_json::from_value(value).ok()
    }
}

/// How a meeting or a phase ended: everybody's payload, or why there is none.
pub(super) type Outcome = std::result::Result<Vec<Vec<u8>>, Reason>;

/// An outcome as bytes.
pub(super) fn encode_outcome(outcome: &Outcome) -> Vec<u8> {
    match outcome {
        Ok(payloads) => {
            let mut bytes = vec![b'C'];
            bytes.extend((payloads.len() as u64).to_le_bytes());
            for payload in payloads {
                bytes.extend((payload.len() as u64).to_le_bytes());
                bytes.extend_from_slice(payload);
            }
            bytes
        }
        Err(reason) => {
            let mut bytes = vec![b'A'];
            // A reason is strings and numbers: it always has a text.
            bytes.extend(serde_json::to_vec(reason).unwrap_or_default());
            bytes
        }
    }
}

/// The outcome in `bytes`, `None` if they are none.
pub(super) fn decode_outcome(bytes: &[u8]) -> Option<Outcome> {
    match bytes.split_first()? {
        (b'A', text) => serde_json::from_slice(text).ok().map(Err),
        (b'C', mut rest) => {
            let count = take_number(&mut rest)?;
            let mut payloads = Vec::new();
            for _ in 0..count {
                let length = take_number(&mut rest)?;
                payloads.push(rest.split_off(..length)?.to_vec());
            }
            rest.is_empty().then_some(Ok(payloads))
        }
        _ => None,
    }
}

fn take_number(rest: &mut &[u8]) -> Option<usize> {
    let bytes = rest.split_off(..8)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

/// A payload with the name of its phase.
pub(super) fn encode_payload(phase: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (phase.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(phase.as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The name of the phase and the payload in `bytes`.
pub(super) fn decode_payload(mut bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let length = take_number(&mut bytes)?;
    let phase = std::str::from_utf8(bytes.split_off(..length)?).ok()?.to_owned();
    Some((phase, bytes.to_vec()))
}

/// 32 hexadecimal digits that tell contents apart (FNV-1a of 128 bits; no protection against intent).
pub(super) fn fingerprint(bytes: &[u8]) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in bytes {
        hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0100_0000_0000_0000_0000_013b);
    }
    format!("{hash:032x}")
}

/// The index and the rest of a name `<index>-<rest>`.
pub(super) fn split_name(name: &str) -> Option<(usize, &str)> {
    let (index, rest) = name.split_once('-')?;
    Some((index.parse().ok()?, rest))
}

/// The folder of a job: one path component whatever the job's name holds.
pub(super) fn job_folder(job: &str) -> String {
    let mut escaped = String::from("uform-");
    for byte in job.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    if escaped.len() > 120 {
        escaped.truncate(80);
        escaped.push('~');
        escaped.push_str(&fingerprint(job.as_bytes()));
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back_and_damage_does_not() {
        let whole: Outcome = Ok(vec![b"one".to_vec(), Vec::new(), vec![7; 300]]);
        let bytes = encode_outcome(&whole);
        assert_eq!(decode_outcome(&bytes), Some(whole));
        for cut in 0..bytes.len() {
            assert_eq!(decode_outcome(&bytes[..cut]), None, "cut at {cut}");
        }
        let huge = [b"C".as_slice(), &u64::MAX.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
        assert_eq!(decode_outcome(&huge), None);
        let deep = format!("A{}", "[".repeat(100_000));
        assert_eq!(decode_outcome(deep.as_bytes()), None);
        let reason: Outcome = Err(Reason::counts((0, 2), (1, 3)));
        assert_eq!(decode_outcome(&encode_outcome(&reason)), Some(reason));
        assert_eq!(decode_payload(&encode_payload("ready", b"x")), Some(("ready".into(), b"x".to_vec())));
        assert_eq!(decode_payload(&[0xff; 20]), None);
    }

    #[test]
    fn job_names_are_one_component() {
        let long = "x".repeat(5000);
        for job in ["a/b", "..", "/", "a\0b", "ü", long.as_str()] {
            let folder = job_folder(job);
            assert!(!folder.contains('/') && !folder.contains('\0') && folder.len() <= 120, "{folder}");
            assert!(folder.starts_with("uform-"));
        }
        assert_ne!(job_folder("a/b"), job_folder("a%2Fb"));
        assert_ne!(job_folder(&long), job_folder(&"x".repeat(5001)));
    }
}
