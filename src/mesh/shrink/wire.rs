//! What members say to each other in a shrink, as bytes. What another process sent decodes to `None` if it is nothing of this.

use std::collections::BTreeMap;

use super::agreement::{Ballot, Message, Proposal};

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// A word of the agreement; a proposal comes with the key of the new mesh.
    Word(Message, Option<[u8; 32]>),
    /// One member's payload of a phase of a trial.
    Payload(Ballot, u64, Vec<u8>),
}

/// The longest text.
const TEXT_LIMIT: usize = 4096;

fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_LIMIT)]
}

/// The bytes of a message.
pub(super) fn encode(said: &Said) -> Vec<u8> {
    let (kind, ballot) = match said {
        Said::Word(message, _) => match message {
            Message::Ask(ballot) => (1, ballot),
            Message::Answer(ballot, _) => (2, ballot),
            Message::Propose(proposal) => (3, &proposal.ballot),
            Message::Formed(ballot) => (4, ballot),
            Message::Failed(ballot, _) => (5, ballot),
            Message::Commit(ballot) => (6, ballot),
            Message::Stop(ballot, _) => (7, ballot),
            Message::Higher(ballot, _) => (9, ballot),
        },
        Said::Payload(ballot, ..) => (8, ballot),
    };
    let mut bytes = vec![kind];
    bytes.extend(ballot.round.to_le_bytes());
    bytes.extend((ballot.leader as u64).to_le_bytes());
    match said {
        Said::Word(Message::Answer(_, text) | Message::Failed(_, text) | Message::Stop(_, text), _) => {
            bytes.extend(cut(text));
        }
        Said::Word(Message::Propose(proposal), key) => {
            bytes.extend(key.unwrap_or_default());
            for (index, address) in &proposal.members {
                let address = cut(address);
                bytes.extend((*index as u64).to_le_bytes());
                bytes.extend((address.len() as u64).to_le_bytes());
                bytes.extend(address);
            }
        }
        Said::Word(Message::Higher(_, round), _) => bytes.extend(round.to_le_bytes()),
        Said::Word(Message::Ask(_) | Message::Formed(_) | Message::Commit(_), _) => {}
        Said::Payload(_, number, payload) => {
            bytes.extend(number.to_le_bytes());
            bytes.extend(payload);
        }
    }
    bytes
}

fn long(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}

fn text(bytes: &[u8]) -> Option<String> {
    (bytes.len() <= TEXT_LIMIT).then(|| String::from_utf8_lossy(bytes).replace(char::is_control, " "))
}

fn members(mut bytes: &[u8]) -> Option<BTreeMap<usize, String>> {
    let mut members = BTreeMap::new();
    while !bytes.is_empty() {
        let index = usize::try_from(long(&mut bytes)?).ok()?;
        let length = usize::try_from(long(&mut bytes)?).ok()?;
        let (address, rest) = bytes.split_at_checked(length)?;
        members.insert(index, text(address)?);
        bytes = rest;
    }
    Some(members)
}

/// The message in `bytes`.
pub(super) fn decode(bytes: &[u8]) -> Option<Said> {
    let (kind, rest) = bytes.split_first()?;
    let (round, mut rest) = rest.split_first_chunk::<4>()?;
    let leader = usize::try_from(long(&mut rest)?).ok()?;
    let ballot = Ballot { round: u32::from_le_bytes(*round), leader };
    let bare = |rest: &[u8], message: Message| rest.is_empty().then_some(message);
    let message = match kind {
        1 => bare(rest, Message::Ask(ballot))?,
        2 => Message::Answer(ballot, text(rest)?),
        3 => {
            let (key, rest) = rest.split_first_chunk::<32>()?;
            let proposal = Proposal { ballot, members: members(rest)? };
            return Some(Said::Word(Message::Propose(proposal), Some(*key)));
        }
        4 => bare(rest, Message::Formed(ballot))?,
        5 => Message::Failed(ballot, text(rest)?),
        6 => bare(rest, Message::Commit(ballot))?,
        7 => Message::Stop(ballot, text(rest)?),
        8 => {
            let number = long(&mut rest)?;
            return Some(Said::Payload(ballot, number, rest.to_vec()));
        }
        9 => {
            let (round, rest) = rest.split_first_chunk::<4>()?;
            bare(rest, Message::Higher(ballot, u32::from_le_bytes(*round)))?
        }
        _ => return None,
    };
    Some(Said::Word(message, None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_come_back_and_others_are_refused() {
        let ballot = Ballot { round: 7, leader: 2 };
        let members = BTreeMap::from([(0, "@a b".to_owned()), (2, String::new())]);
        let words = [
            Said::Word(Message::Ask(ballot), None),
            Said::Word(Message::Answer(ballot, "there".into()), None),
            Said::Word(Message::Propose(Proposal { ballot, members }), Some([5; 32])),
            Said::Word(Message::Formed(ballot), None),
            Said::Word(Message::Failed(ballot, "why".into()), None),
            Said::Word(Message::Commit(ballot), None),
            Said::Word(Message::Stop(ballot, String::new()), None),
            Said::Word(Message::Higher(ballot, u32::MAX), None),
            Said::Payload(ballot, 3, vec![9; 5000]),
        ];
        for said in words {
            let bytes = encode(&said);
            assert_eq!(decode(&bytes), Some(said));
            assert_eq!(decode(&bytes[..12]), None);
            assert_eq!(decode(&[&[99], &bytes[1..]].concat()), None);
        }
        assert_eq!(decode(&[]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(said) = decode(&bytes) {
                prop_assert!(encode(&said).len() <= 4 * bytes.len());
            }
        }
    }
}
