//! What the members of a trainer tell each other: which call they are in, how it went, and why it failed.
//!
//! Everything received was written by another process and is checked before it is used.

use std::path::PathBuf;
use std::sync::Arc;

use crate::communicator::{Call, Communicator, SharedArena};
use crate::error::{Error, Result};
use crate::sys::kernel::gpu::Inspection;
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Status, Verb};

/// The calls of a trainer that all members make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Entry {
    Step = 1,
    Edit = 2,
    EndEdit = 3,
    Save = 4,
    Load = 5,
}

impl Entry {
    const ALL: [Self; 5] = [Self::Step, Self::Edit, Self::EndEdit, Self::Save, Self::Load];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Step => "trainer.step",
            Self::Edit => "trainer.edit",
            Self::EndEdit => "the end of trainer.edit",
            Self::Save => "trainer.save",
            Self::Load => "trainer.load",
        }
    }
}

/// What a member brings into a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contribution {
    /// The weight of its gradients.
    pub(crate) weight: f64,
    /// Whether it found all of them finite; `true` also where it did not look.
    pub(crate) finite: bool,
}

/// The words of a header: call, argument, weight, whether all is finite.
const HEADER_WORDS: usize = 4;

/// The longest message believed.
const MESSAGE_LIMIT: u64 = 1 << 30;

/// The members of a trainer.
#[derive(Clone)]
pub(crate) struct Members(Arc<dyn Communicator>);

impl Members {
    pub(crate) fn new(group: Arc<dyn Communicator>) -> Self {
        Self(group)
    }

    pub(crate) fn seat(&self) -> usize {
        self.0.seat()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.count()
    }

    pub(crate) fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        self.0.arena(byte_count, deadline)
    }

    /// Tells the peers that this member did not make its call.
    pub(crate) fn refuse(&self, reason: &Error) {
        self.0.refuse(Verb::AllGather, reason);
    }

    /// Ends the group: this member cannot finish what the others wait for. They learn why, and may shrink their mesh.
    pub(crate) fn leave(&self, error: &Error) {
        self.0.give_up(error, "a call of the trainer");
    }

    /// Waits until all members have entered the same call with the same argument, and gives their contributions.
    ///
    /// # Errors
    /// `Disagreed` on all members if one is in another call; else as [`Communicator::run`].
    pub(crate) fn enter(
        &self,
        entry: Entry,
        argument: u64,
        own: Contribution,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Contribution>> {
        let header = [entry as u64, argument, own.weight.to_bits(), u64::from(own.finite)];
        let all = self.all_gather::<HEADER_WORDS>(header, deadline)?;
        let word = |header: &[u64; HEADER_WORDS]| {
            let name = Entry::ALL.into_iter().find(|entry| *entry as u64 == header[0]);
            format!("{} with {}", name.map_or("an unknown call", Entry::word), header[1])
        };
        let other = all.iter().position(|theirs| theirs[..2] != header[..2]);
        if let Some(index) = other {
            let mine = format!("{} (index {})", word(&header), self.seat());
            return Err(Error::Disagreed {
                field: "the call of the trainer".to_owned(),
                mine,
                theirs: word(&all[index]),
                index,
            });
        }
        let read = |header: &[u64; HEADER_WORDS]| Contribution {
            weight: f64::from_bits(header[2]),
            finite: header[3] != 0,
        };
        Ok(all.iter().map(read).collect())
    }

    /// The sum of everybody's numbers, added in the order of seats.
    pub(crate) fn sum(&self, number: f64, deadline: &Deadline<'_>) -> Result<f64> {
        let all = self.all_gather([number.to_bits()], deadline)?;
        Ok(all.iter().fold(0.0, |sum, [bits]| sum + f64::from_bits(*bits)))
    }

    /// What all members found together in their shards: squares are added in the order of seats.
    pub(crate) fn inspected(
        &self,
        squares: f64,
        finite: bool,
        deadline: &Deadline<'_>,
    ) -> Result<Inspection> {
        let all = self.all_gather([squares.to_bits(), u64::from(finite)], deadline)?;
        let squares = all.iter().fold(0.0, |sum, [bits, _]| sum + f64::from_bits(*bits));
        Ok(Inspection { squares, finite: all.iter().all(|[_, finite]| *finite != 0) })
    }

    /// Everybody's number, in the order of seats.
    pub(crate) fn numbers(&self, number: u64, deadline: &Deadline<'_>) -> Result<Vec<u64>> {
        let all = self.all_gather([number], deadline)?;
        Ok(all.into_iter().map(|[number]| number).collect())
    }

    /// Passes bytes from every member to every other: so many to and from each seat, one after the other.
    pub(crate) fn pass(
        &self,
        input: Span<'_>,
        given: &[usize],
        output: SpanMut<'_>,
        taken: &[usize],
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let call = Call::new(Verb::AllToAll, Dtype::U8, ReduceOp::Sum, 0, Some(input), output);
        self.0.run(call.counted(given, Some(taken)), deadline)
    }

    /// Takes the bytes of index 0.
    pub(crate) fn broadcast(&self, output: SpanMut<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.run(Verb::Broadcast, Dtype::U8, None, output, deadline)
    }

    /// Waits until all members are here.
    pub(crate) fn fence(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.run(Verb::Barrier, Dtype::U8, None, SpanMut::empty(), deadline)
    }

    /// Everybody's bytes, in the order of seats.
    pub(crate) fn gather(&self, bytes: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let lengths = self.all_gather([bytes.len() as u64], deadline)?;
        let longest = lengths.iter().map(|[length]| *length).max().unwrap_or(0);
        if longest > MESSAGE_LIMIT {
            let index = lengths.iter().position(|[length]| *length == longest).unwrap_or(0);
            return Err(garbled(index));
        }
        let longest = usize::try_from(longest).unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); self.count()]);
        }
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * self.count()];
        let input = Some(Span::of(&padded));
        self.run(Verb::AllGather, Dtype::U8, input, SpanMut::of(&mut all), deadline)?;
        let cut = |(part, [length]): (&[u8], &[u64; 1])| {
            part[..usize::try_from(*length).unwrap_or(0).min(longest)].to_vec()
        };
        Ok(all.chunks(longest).zip(&lengths).map(cut).collect())
    }

    /// How a part of a call went on all members: this one's result and everybody's message about theirs, or an error
    /// on every member.
    ///
    /// # Errors
    /// That of the lowest member that failed, so that all decide alike; the others get it with its index.
    pub(crate) fn outcome<T>(
        &self,
        own: Result<T>,
        message: impl FnOnce(&T) -> Vec<u8>,
        deadline: &Deadline<'_>,
    ) -> Result<(T, Vec<Vec<u8>>)> {
        let bytes = match &own {
            Ok(result) => [&[0], &message(result)[..]].concat(),
            Err(error) => encode(error),
        };
        let all = self.gather(&bytes, deadline)?;
        let failed = all.iter().position(|message| message.first() != Some(&0));
        match (failed, own) {
            (Some(index), Err(error)) if index == self.seat() => Err(error),
            (Some(index), _) => Err(decode(&all[index], index)),
            // A message of this member's own that came back as another one.
            (None, Err(error)) => Err(error),
            (None, Ok(own)) => Ok((own, all.into_iter().map(|mut message| message.split_off(1)).collect())),
        }
    }

    fn all_gather<const WORDS: usize>(
        &self,
        words: [u64; WORDS],
        deadline: &Deadline<'_>,
    ) -> Result<Vec<[u64; WORDS]>> {
        let mut all = vec![0u64; WORDS * self.count()];
        self.run(Verb::AllGather, Dtype::U64, Some(Span::of(&words)), SpanMut::of(&mut all), deadline)?;
        let (chunks, _) = all.as_chunks::<WORDS>();
        Ok(chunks.to_vec())
    }

    fn run(
        &self,
        verb: Verb,
        dtype: Dtype,
        input: Option<Span<'_>>,
        output: SpanMut<'_>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        self.0.run(Call::new(verb, dtype, ReduceOp::Sum, 0, input, output), deadline)
    }
}

fn garbled(index: usize) -> Error {
    Error::Disagreed {
        field: "the messages of a trainer".to_owned(),
        mine: "this version's".to_owned(),
        theirs: "something else".to_owned(),
        index,
    }
}

/// Writes fields one after the other, each after its length.
pub(crate) fn pack<'a>(fields: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in fields {
        bytes.extend_from_slice(&(field.len() as u64).to_le_bytes());
        bytes.extend_from_slice(field);
    }
    bytes
}

/// The fields that [`pack`] wrote; `None` if these bytes are something else.
pub(crate) fn unpack(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (field, rest) = rest.split_at_checked(length)?;
        fields.push(field);
        bytes = rest;
    }
    Some(fields)
}

/// An error as a message: the number of its kind, then its fields as text.
fn encode(error: &Error) -> Vec<u8> {
    let path = |path: &PathBuf| path.to_string_lossy().into_owned();
    let fields = match error {
        Error::Io { path: place, operation, source } => {
            vec![
                path(place),
                operation.clone(),
                source.raw_os_error().unwrap_or(0).to_string(),
                source.to_string(),
            ]
        }
        Error::Corrupt { path: place, offset, reason } => {
            vec![path(place), offset.to_string(), reason.clone()]
        }
        Error::Exhausted { place, wanted_bytes, free_bytes, remedy } => {
            vec![place.clone(), wanted_bytes.to_string(), free_bytes.to_string(), remedy.clone()]
        }
        Error::Invalid { argument, value, origin, reason, .. } => {
            vec![argument.clone(), value.clone(), origin.clone(), reason.clone()]
        }
        Error::Unsupported { what, why } => vec![what.clone(), why.clone()],
        other => vec![other.chain()],
    };
    let mut bytes = vec![u8::try_from(error.status().number()).unwrap_or(u8::MAX)];
    bytes.extend(pack(fields.iter().map(String::as_bytes)));
    bytes
}

/// The error that `index` met, with its index in the text.
fn decode(message: &[u8], index: usize) -> Error {
    let Some((number, rest)) = message.split_first() else { return garbled(index) };
    let Some(fields) = unpack(rest) else { return garbled(index) };
    let fields = fields.into_iter().map(|field| String::from_utf8_lossy(field).into_owned());
    let fields = fields.collect::<Vec<_>>();
    let number_at = |position: usize| fields[position].parse::<u64>().unwrap_or(0);
    match (Status::from_number(i32::from(*number)), &fields[..]) {
        (Some(Status::Io), [path, operation, errno, text]) => {
            let source = match errno.parse() {
                Ok(0) | Err(_) => std::io::Error::other(text.clone()),
                Ok(errno) => std::io::Error::from_raw_os_error(errno),
            };
            Error::io(path, format!("{operation} (index {index})"), source)
        }
        (Some(Status::Corrupt), [path, _, reason]) => Error::Corrupt {
            path: path.into(),
            offset: number_at(1),
            reason: format!("{reason} (found by index {index})"),
        },
        (Some(Status::Exhausted), [place, _, _, remedy]) => Error::Exhausted {
            place: format!("index {index}: {place}"),
            wanted_bytes: number_at(1),
            free_bytes: number_at(2),
            remedy: remedy.clone(),
        },
        (Some(Status::Invalid), [argument, value, origin, reason]) => {
            Error::invalid(argument, value, format!("index {index}, {origin}"), reason)
        }
        (Some(Status::Unsupported), [what, why]) => Error::unsupported(format!("index {index}: {what}"), why),
        (Some(_), [text]) => Error::Disagreed {
            field: "how the call went".to_owned(),
            mine: "without an error".to_owned(),
            theirs: text.clone(),
            index,
        },
        _ => garbled(index),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_travel_with_the_index_of_who_met_them() {
        let errors = [
            Error::io("/a", "write", std::io::Error::from_raw_os_error(28)),
            Error::Corrupt { path: "/b".into(), offset: 17, reason: "odd".into() },
            Error::Exhausted { place: "p".into(), wanted_bytes: 9, free_bytes: 2, remedy: "r".into() },
            Error::invalid("argument", 3, "argument", "reason"),
            Error::unsupported("what", "why"),
            Error::Closed { what: "x".into(), why: "y".into() },
        ];
        for error in errors {
            let told = decode(&encode(&error), 5);
            assert!(told.to_string().contains("index 5"), "{told}");
            if !matches!(error, Error::Closed { .. }) {
                assert_eq!(told.status(), error.status());
            }
        }
        let told = decode(&encode(&Error::io("/a", "write", std::io::Error::from_raw_os_error(28))), 5);
        assert!(told.chain().contains("No space left"), "{}", told.chain());
    }

    #[test]
    fn foreign_bytes_are_refused() {
        for bytes in
            [&[][..], &[10], &[10, 1, 2, 3], &[255; 40], &[10, 255, 255, 255, 255, 255, 255, 255, 255]]
        {
            assert!(matches!(decode(bytes, 1), Error::Disagreed { index: 1, .. }));
        }
        let fields = [&b"one"[..], b"", b"three"];
        assert_eq!(unpack(&pack(fields)).unwrap(), fields);
        assert_eq!(unpack(&[9, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
