//! The messages that agree on calls between hosts, as bytes: a length, a kind, fixed fields.
//!
//! Only members that have proved the run's key are read. Still nothing is believed: a length above the limit, a kind or a
//! number that is none, and bytes that are left over make the whole message unreadable.

use crate::communicator::control::LETTER_LIMIT;
use crate::communicator::descriptor::{Cause, Descriptor};
use crate::communicator::handshake::Reader;
use crate::recorder::{SITE_BYTES, Site};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// The largest contribution that rides beside a call.
pub(super) const INLINE_BYTES: usize = 8 << 10;
/// The longest message without its length.
pub(super) const FRAME_LIMIT: usize = INLINE_BYTES + 64 + SITE_BYTES;
/// The longest text in a message.
const TEXT_LIMIT: usize = 1024;
/// Bytes of a length.
pub(super) const PREFIX: usize = 4;

/// One message between members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The sender is in this call, made at this place of its code; a small contribution rides along.
    Enter(Descriptor, Vec<u8>, String),
    /// The sender left the group in the call with this number.
    Leave(u64, Cause),
    /// The sender closed the group after the call with this number.
    Close(u64),
    /// The sender refused to make the call after the one with this number.
    Refusal(u64, String),
    /// A message outside of calls.
    Letter(Vec<u8>),
    /// The sender is in another group now.
    WentOn(String),
    /// The sender asks whether its waits go round in a circle.
    Question(Vec<u8>),
}

fn cut(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(TEXT_LIMIT)]
}

fn text(bytes: &[u8]) -> Option<String> {
    (bytes.len() <= TEXT_LIMIT).then(|| String::from_utf8_lossy(bytes).replace(char::is_control, " "))
}

impl Frame {
    /// The message with its length in front.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; PREFIX];
        match self {
            Self::Enter(call, inline, site) => {
                bytes.push(1);
                bytes.extend(call.sequence.to_le_bytes());
                let kinds = [call.verb.number(), call.dtype.number(), call.op.number()];
                // Numbers of the vocabulary are small; one that is not is none that the reader knows.
                bytes.extend(kinds.map(|kind| u8::try_from(kind).unwrap_or(u8::MAX)));
                bytes.push(u8::from(call.on_gpu));
                bytes.extend(call.count.to_le_bytes());
                bytes.extend(call.root.to_le_bytes());
                bytes.extend(call.shape.to_le_bytes());
                let site = &site.as_bytes()[..site.floor_char_boundary(SITE_BYTES)];
                bytes.push(u8::try_from(site.len()).unwrap_or(0));
                bytes.extend(site);
                bytes.extend_from_slice(inline);
            }
            Self::Leave(sequence, cause) => {
                bytes.push(2);
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(cause.blame().to_le_bytes());
                bytes.extend(cut(&cause.text));
            }
            Self::Close(sequence) => {
                bytes.push(3);
                bytes.extend(sequence.to_le_bytes());
            }
            Self::Refusal(sequence, text) => {
                bytes.push(4);
                bytes.extend(sequence.to_le_bytes());
                bytes.extend(cut(text));
            }
            Self::Letter(letter) => {
                bytes.push(5);
                bytes.extend(0u64.to_le_bytes());
                bytes.extend_from_slice(letter);
            }
            Self::WentOn(text) => {
                bytes.push(6);
                bytes.extend(0u64.to_le_bytes());
                bytes.extend(cut(text));
            }
            Self::Question(question) => {
                bytes.push(7);
                bytes.extend(0u64.to_le_bytes());
                bytes.extend_from_slice(question);
            }
        }
        let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
        bytes[..PREFIX].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// The message in `bytes`, its length left out; `None` if it is none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let mut reader = Reader(rest);
        let sequence = reader.long()?;
        match kind {
            1 => {
                let [verb, dtype, op, on_gpu] = reader.take()?;
                if on_gpu > 1 {
                    return None;
                }
                let descriptor = Descriptor {
                    sequence,
                    verb: Verb::from_number(i32::from(verb))?,
                    dtype: Dtype::from_number(i32::from(dtype))?,
                    op: ReduceOp::from_number(i32::from(op))?,
                    count: reader.long()?,
                    root: reader.long()?,
                    shape: reader.long()?,
                    on_gpu: on_gpu == 1,
                    lies: None,
                    site: Site::default(),
                };
                let [length] = reader.take::<1>()?;
                let (site, inline) = reader.0.split_at_checked(usize::from(length))?;
                let is_whole = site.len() <= SITE_BYTES && inline.len() <= INLINE_BYTES;
                let site = text(site)?;
                is_whole.then(|| Self::Enter(descriptor, inline.to_vec(), site))
            }
            2 => {
                let blame = reader.long()?;
                Some(Self::Leave(sequence, Cause::blaming(blame, text(reader.0)?)))
            }
            3 => reader.0.is_empty().then_some(Self::Close(sequence)),
            4 => Some(Self::Refusal(sequence, text(reader.0)?)),
            5 => (reader.0.len() <= LETTER_LIMIT).then(|| Self::Letter(reader.0.to_vec())),
            6 => Some(Self::WentOn(text(reader.0)?)),
            7 => (reader.0.len() <= LETTER_LIMIT).then(|| Self::Question(reader.0.to_vec())),
            _ => None,
        }
    }
}

/// Bytes as they came, cut into messages.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    /// How many of them have been read.
    taken: usize,
}

/// What is next in an inbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Frame(Frame),
    /// Not whole yet.
    Part,
    /// No message of this version; what follows cannot be read either.
    Garbled,
}

impl Inbox {
    /// Adds what has come.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next message.
    pub(super) fn next(&mut self) -> Next {
        let rest = &self.bytes[self.taken..];
        let Some((length, body)) = rest.split_first_chunk::<PREFIX>() else { return Next::Part };
        let length = u32::from_le_bytes(*length) as usize;
        // Before anything is waited for: a length beyond the limit never becomes memory.
        if length > FRAME_LIMIT {
            return Next::Garbled;
        }
        let Some(body) = body.get(..length) else { return Next::Part };
        let frame = Frame::decode(body);
        self.taken += PREFIX + length;
        frame.map_or(Next::Garbled, Next::Frame)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> Vec<Frame> {
        let call = Descriptor {
            sequence: 7,
            verb: Verb::AllReduce,
            dtype: Dtype::Bf16,
            op: ReduceOp::Max,
            count: 1 << 40,
            root: 3,
            shape: 11,
            on_gpu: true,
            lies: None,
            site: Site::default(),
        };
        let site = "train.py:7".to_owned();
        vec![
            Frame::Enter(call, vec![5; INLINE_BYTES], "s".repeat(SITE_BYTES)),
            Frame::Enter(call, Vec::new(), site),
            Frame::Leave(9, Cause::blaming(2, "left".into())),
            Frame::Leave(9, Cause::blaming(u64::MAX, String::new())),
            Frame::Leave(9, Cause::crossed("barrier #1")),
            Frame::Question(vec![3; LETTER_LIMIT]),
            Frame::Close(u64::MAX),
            Frame::Refusal(1, "ä".repeat(100)),
            Frame::Letter(vec![7; LETTER_LIMIT]),
            Frame::WentOn("there".into()),
        ]
    }

    #[test]
    fn frames_come_back_however_they_are_cut() {
        let all = frames().iter().flat_map(Frame::encode).collect::<Vec<_>>();
        for step in [1, 3, 1000, all.len()] {
            let (mut inbox, mut found) = (Inbox::default(), Vec::new());
            for part in all.chunks(step) {
                inbox.push(part);
                while let Next::Frame(frame) = inbox.next() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames());
            assert_eq!(inbox.next(), Next::Part);
        }
    }

    #[test]
    fn lengths_beyond_the_limit_and_odd_fields_are_garbled() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::MAX.to_le_bytes());
        assert_eq!(inbox.next(), Next::Garbled);
        for frame in frames() {
            let mut bytes = frame.encode();
            bytes[PREFIX] = 77;
            assert_eq!(Frame::decode(&bytes[PREFIX..]), None);
        }
        assert_eq!(Frame::decode(&[]), None);
        let long = Frame::Close(1).encode();
        assert_eq!(Frame::decode(&[&long[PREFIX..], &[0]].concat()), None);
        let text = Frame::Refusal(1, "x".repeat(5000)).encode();
        assert_eq!(text.len(), PREFIX + 9 + TEXT_LIMIT);
    }

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..20)) {
            let mut inbox = Inbox::default();
            for part in &parts {
                inbox.push(part);
                while let Next::Frame(_) = inbox.next() {}
                prop_assert!(inbox.bytes.len() <= FRAME_LIMIT + PREFIX + 300);
                if inbox.next() == Next::Garbled {
                    break;
                }
            }
        }

        #[test]
        fn a_frame_with_one_byte_changed_is_read_or_refused(choice in 0usize..8, position in any::<usize>(), byte in any::<u8>()) {
            let mut bytes = frames()[choice].encode();
            let position = position % bytes.len();
            bytes[position] = byte;
            let mut inbox = Inbox::default();
            inbox.push(&bytes);
            while let Next::Frame(frame) = inbox.next() {
                prop_assert!(frame.encode().len() <= FRAME_LIMIT + PREFIX);
            }
        }
    }
}
