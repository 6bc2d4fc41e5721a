//! What a member says of the memory it brings into a group, as bytes: its size, or why there is none.

use super::handshake::Reader;
use crate::error::Error;

/// What a member says of its part: its size, or why there is none.
pub(super) enum Part {
    Given(u64),
    Failed(Error),
}

/// The size of a part, or the error that kept it away.
pub(super) fn encode(part: &std::result::Result<u64, &Error>) -> Vec<u8> {
    match part {
        Ok(byte_count) => [&[0][..], &byte_count.to_le_bytes()].concat(),
        Err(error) => {
            let (place, wanted, free, remedy) = match error {
                Error::Exhausted { place, wanted_bytes, free_bytes, remedy } => {
                    (place.clone(), *wanted_bytes, *free_bytes, remedy.clone())
                }
                other => (format!("opening shared memory ({})", other.chain()), 0, 0, "see there".to_owned()),
            };
            let cut = |text: &str| text[..text.floor_char_boundary(300)].to_owned();
            let text = format!("{}\0{}", cut(&place), cut(&remedy));
            [&[1][..], &wanted.to_le_bytes(), &free.to_le_bytes(), text.as_bytes()].concat()
        }
    }
}

/// What the member `index` said; its index is in the text of a failure.
pub(super) fn decode(bytes: &[u8], index: usize) -> Part {
    let unreadable = || Error::Corrupt {
        path: format!("memory announced by index {index}").into(),
        offset: 0,
        reason: "is no announcement".to_owned(),
    };
    let parse = || {
        let (kind, rest) = bytes.split_first()?;
        let mut reader = Reader(rest);
        if *kind == 0 {
            return Some(Part::Given(reader.long()?));
        }
        let (wanted_bytes, free_bytes) = (reader.long()?, reader.long()?);
        let text = String::from_utf8_lossy(reader.0).into_owned();
        let (place, remedy) = text.split_once('\0')?;
        let is_named = place.starts_with("index ");
        let place = if is_named { place.to_owned() } else { format!("index {index}: {place}") };
        Some(Part::Failed(Error::Exhausted { place, wanted_bytes, free_bytes, remedy: remedy.to_owned() }))
    };
    parse().unwrap_or_else(|| Part::Failed(unreadable()))
}

impl Part {
    /// The error of a part that did not come.
    pub(super) fn failed(self) -> Error {
        match self {
            Self::Failed(error) => error,
            Self::Given(_) => Error::Corrupt {
                path: "memory announced by a member".into(),
                offset: 0,
                reason: "came without its file".to_owned(),
            },
        }
    }
}

/// An own failure as the others will read it, so that all report the same.
pub(super) fn decoded(error: &Error, index: usize) -> Error {
    decode(&encode(&Err(error)), index).failed()
}
