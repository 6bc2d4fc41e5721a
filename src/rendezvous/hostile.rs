//! All that this room reads of others, on bytes that anybody may have written: for the fuzz targets and the properties.

use super::record::{
    Claim, Identity, Note, Proposal, Registration, decode_outcome, decode_payload, encode_outcome, split_name,
};
use super::{Reason, mpi, stored};
use crate::sys::file;
use crate::topology::{Introduction, Process};

/// The process that reads, for messages.
fn reader() -> Process {
    Process {
        host_name: "here".to_owned(),
        boot_id: String::new(),
        pid: 1,
        start_ticks: 0,
        command: String::new(),
    }
}

/// Reads `bytes` as every kind of record, and gives the introductions in them.
#[must_use]
pub fn read(bytes: &[u8]) -> Vec<Introduction> {
    let mut found = read_payload(bytes);
    if let Some(payload) = file::unframe(bytes.to_vec()) {
        found.extend(read_payload(&payload));
    }
    found
}

/// Reads `bytes` as what one member says of itself: its introduction, or its registration and the survey of its machine.
#[must_use]
pub fn read_member(bytes: &[u8]) -> Option<Introduction> {
    let registered = || {
        let (registration, survey) =
            serde_json::from_slice::<(Registration, serde_json::Value)>(bytes).ok()?;
        let surveys = [(registration.survey.clone(), survey)].into();
        Proposal { registrations: vec![registration], surveys }.introduction(0)
    };
    serde_json::from_slice(bytes).ok().or_else(registered)
}

fn read_payload(bytes: &[u8]) -> Vec<Introduction> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = split_name(text);
    }
    let _ = decode_payload(bytes);
    if let Some(outcome) = decode_outcome(bytes) {
        assert_eq!(decode_outcome(&encode_outcome(&outcome)), Some(outcome));
    }
    if let Some(reason) = Reason::from_bytes(bytes) {
        // Every member must be able to say it.
        assert!(!reason.error(1, &reader()).to_string().is_empty());
    }
    let _ = serde_json::from_slice::<Identity>(bytes).map(|identity| identity.lost("a phase"));
    let _ = serde_json::from_slice::<Claim>(bytes);
    let _ = serde_json::from_slice::<Note>(bytes);
    let _ = serde_json::from_slice::<Registration>(bytes);
    let proposal = stored::decode(bytes);
    if let Some(proposal) = &proposal {
        let stored = stored::encode(proposal).unwrap_or_default();
        let listed = stored::decode(&stored).map_or(0, |again| again.registrations.len());
        assert_eq!(listed, proposal.registrations.len());
    }
    let listed = proposal.iter().flat_map(|proposal| {
        (0..proposal.registrations.len()).filter_map(|index| proposal.introduction(index))
    });
    listed.chain(mpi::read_hostile(bytes)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::topology::Survey;

    /// A proposal of three members on two machines, as a leader writes it.
    fn proposal(is_compact: bool) -> Vec<u8> {
        let members = (0..3_u32).map(|index| {
            let survey = Survey {
                host_name: format!("n{}", index / 2),
                boot_id: "b".to_owned(),
                cores: (0..4).collect(),
                memory_domains: Vec::new(),
                siblings: Vec::new(),
                cpu_classes: Vec::new(),
                gpus: Vec::new(),
            };
            let introduction = Introduction {
                process: Process { pid: 10 + index, ..reader() },
                cores: vec![index],
                quota_cores: Some(2),
                visible_gpus: vec!["GPU-1".to_owned()],
                driven_gpus: None,
                shares_gpus: false,
                socket: "name".to_owned(),
                launcher: "srun".to_owned(),
                local_index: Some(1),
                survey,
            };
            let identity = Identity {
                index: index as usize,
                nonce: "abc".to_owned(),
                count: 3,
                namespace: "pid:[1]".to_owned(),
                process: introduction.process.clone(),
            };
            let (registration, survey) = Registration::of(&identity, &introduction).expect("text");
            (registration, survey)
        });
        let (mut registrations, mut surveys) = (Vec::new(), std::collections::BTreeMap::new());
        for (registration, survey) in members {
            surveys.insert(registration.survey.clone(), serde_json::from_str(&survey).expect("text"));
            registrations.push(registration);
        }
        let proposal = Proposal { registrations, surveys };
        let stored = if is_compact { stored::encode(&proposal) } else { serde_json::to_vec(&proposal) };
        stored.expect("text")
    }

    #[test]
    fn a_member_is_read_in_both_forms() {
        let proposal = stored::decode(&proposal(true)).expect("whole");
        let introduction = proposal.introduction(2).expect("whole");
        let registration = &proposal.registrations[2];
        let registered = serde_json::to_vec(&(registration, &proposal.surveys[&registration.survey]));
        for bytes in [serde_json::to_vec(&introduction), registered] {
            assert_eq!(read_member(&bytes.expect("text")), Some(introduction.clone()));
        }
        assert_eq!(read_member("[".repeat(100_000).as_bytes()), None);
    }

    #[test]
    fn the_seeds_of_the_fuzz_targets_are_read() {
        for seed in [
            include_bytes!("../../fuzz/seeds/member/introduction.json").as_slice(),
            include_bytes!("../../fuzz/seeds/member/registration.json"),
        ] {
            assert_eq!(read_member(seed).map(|found| found.survey.gpus.len()), Some(2));
        }
        assert_eq!(read(include_bytes!("../../fuzz/seeds/roster/proposal.json")).len(), 2);
    }

    #[test]
    fn a_whole_proposal_is_read() {
        for is_compact in [false, true] {
            let found = read(&proposal(is_compact));
            assert_eq!(found.iter().map(|one| one.process.pid).collect::<Vec<_>>(), [10, 11, 12]);
            assert_eq!(found[2].survey.host_name, "n1");
        }
    }

    #[test]
    fn text_of_any_depth_is_refused() {
        for open in ["[", "{\"a\":", "[{\"identity\":"] {
            assert!(read(open.repeat(100_000).as_bytes()).is_empty());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_proposal_with_bytes_changed_is_read_or_refused(
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
            is_compact in any::<bool>(),
            cut in any::<Option<proptest::sample::Index>>(),
        ) {
            let mut bytes = proposal(is_compact);
            for (position, byte) in changes {
                let position = position.index(bytes.len());
                bytes[position] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            prop_assert!(read(&bytes).len() <= 3);
        }
    }
}
