//! What two members say to each other about sends and receives, as bytes of fixed length.
//!
//! Only members that have proved the run's key are read. Still nothing is believed: a kind or an element type that is none, and
//! a length that its count does not have, make the whole stream unreadable.

use std::ops::Range;

use crate::communicator::handshake::Reader;
use crate::vocabulary::Dtype;

/// Bytes of a frame without what follows it.
pub(super) const FRAME_BYTES: usize = 40;

/// One side of a send or a receive: the number of the call between these two members, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) number: u64,
    pub(super) tag: u64,
    pub(super) dtype: Dtype,
    pub(super) count: u64,
    /// Whether its elements are in a GPU's memory: then none of them come this way.
    pub(super) on_gpu: bool,
}

/// One word between two members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A send whose bytes follow.
    Whole(Ask),
    /// A send whose bytes wait for the other side's receive.
    Offer(Ask),
    /// The offer with this number has its receive: its bytes may come.
    Accept(u64),
    /// The offer with this number met a receive that differs: that receive.
    Refuse(u64, Ask),
    /// So many bytes of the offer with this number follow.
    Chunk(u64, u64),
    /// So much of what was sent whole, all in all, has been received.
    Credit(u64),
    /// A receive that has waited for a while.
    Want(Ask),
}

impl Frame {
    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let none = Ask { number: 0, tag: 0, dtype: Dtype::U8, count: 0, on_gpu: false };
        let (kind, ask, extra) = match *self {
            Self::Whole(ask) => (1, ask, 0),
            Self::Offer(ask) => (2, ask, 0),
            Self::Accept(number) => (3, none, number),
            Self::Refuse(number, ask) => (4, ask, number),
            Self::Chunk(number, byte_count) => (5, Ask { count: byte_count, ..none }, number),
            Self::Credit(total) => (6, none, total),
            Self::Want(ask) => (7, ask, 0),
        };
        let mut bytes = [0; FRAME_BYTES];
        bytes[0] = kind;
        // Numbers of the vocabulary are small; one that is not is none that the reader knows.
        bytes[1] = u8::try_from(ask.dtype.number()).unwrap_or(u8::MAX);
        bytes[2] = u8::from(ask.on_gpu);
        let mut put = |range: Range<usize>, word: u64| bytes[range].copy_from_slice(&word.to_le_bytes());
        put(8..16, ask.number);
        put(16..24, ask.tag);
        put(24..32, ask.count);
        put(32..40, extra);
        bytes
    }

    /// The frame in these bytes; `None` if it is none.
    pub(super) fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [kind, dtype, on_gpu, padding @ ..]: [u8; 8] = reader.take()?;
        let (number, tag) = (reader.long()?, reader.long()?);
        let (count, extra) = (reader.long()?, reader.long()?);
        let dtype = Dtype::from_number(i32::from(dtype))?;
        let ask = Ask { number, tag, dtype, count, on_gpu: on_gpu == 1 };
        if padding != [0; 5] || on_gpu > 1 {
            return None;
        }
        // Bytes that no memory can hold are none that anybody sends.
        count.checked_mul(dtype.size_bytes() as u64)?;
        match kind {
            1 => Some(Self::Whole(ask)),
            2 => Some(Self::Offer(ask)),
            3 => Some(Self::Accept(extra)),
            4 => Some(Self::Refuse(extra, ask)),
            5 => Some(Self::Chunk(extra, count)),
            6 => Some(Self::Credit(extra)),
            7 => Some(Self::Want(ask)),
            _ => None,
        }
    }
}

impl Ask {
    /// The bytes of its elements.
    pub(super) fn byte_count(&self) -> u64 {
        self.count.saturating_mul(self.dtype.size_bytes() as u64)
    }

    /// The field in which two sides of one message differ.
    pub(super) fn difference(&self, other: &Self) -> Option<&'static str> {
        if self.on_gpu != other.on_gpu {
            Some("the memory")
        } else if self.dtype != other.dtype {
            Some("the element type")
        } else if self.count != other.count {
            Some("the count")
        } else {
            None
        }
    }
}

impl std::fmt::Display for Ask {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let memory = if self.on_gpu { " on GPU memory" } else { "" };
        write!(formatter, "({} {}, tag {}){memory}", self.count, self.dtype, self.tag)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> [Frame; 7] {
        let ask = Ask { number: 7, tag: u64::MAX, dtype: Dtype::Bf16, count: 1 << 40, on_gpu: true };
        [
            Frame::Whole(ask),
            Frame::Offer(ask),
            Frame::Accept(9),
            Frame::Refuse(3, ask),
            Frame::Chunk(5, 65536),
            Frame::Credit(1 << 50),
            Frame::Want(ask),
        ]
    }

    #[test]
    fn frames_come_back() {
        for frame in frames() {
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_that_comes_back_or_none(bytes in any::<[u8; FRAME_BYTES]>(), kind in 0u8..9) {
            let mut bytes = bytes;
            bytes[0] = kind;
            bytes[2..8].fill(0);
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert_eq!(Frame::decode(&frame.encode()), Some(frame));
            }
        }
    }
}
