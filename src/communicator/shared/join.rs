//! How the members of a group give each other a segment: all get all of them, or all get the reason of the one that could not.

use sha2::{Digest, Sha256};

use super::proof::{Mate, Proved};
use crate::communicator::announcement::{Part, decode, decoded, encode};
use crate::error::{Error, Result};
use crate::sys::shared::Segment;
use crate::sys::{Deadline, socket};

/// Which exchange of segments a message belongs to.
pub(super) type Label = [u8; 16];

/// A label that only members of one group, doing the same thing, derive.
pub(super) fn label(group: &str, seats: &[usize], what: &str, number: u64) -> Label {
    let mut hash = Sha256::new();
    hash.update(format!("{group}\0{seats:?}\0{what}\0{number}"));
    let mut label = [0; 16];
    label.iter_mut().zip(hash.finalize()).for_each(|(to, from)| *to = from);
    label
}

/// One exchange.
pub(super) struct Swap<'a> {
    pub(super) proved: &'a Proved,
    /// The indexes of the group, in the order of seats.
    pub(super) seats: &'a [usize],
    pub(super) label: Label,
    pub(super) name: &'a str,
    pub(super) phase: &'a str,
    pub(super) deadline: &'a Deadline<'a>,
    /// Asked while these indexes have not answered, or not taken what was sent.
    pub(super) look: &'a dyn Fn(&[usize]) -> Result<()>,
}

impl Swap<'_> {
    /// Gives this member's segment, or the reason why there is none, and takes everybody's, in the order of seats.
    ///
    /// # Errors
    /// On all members the same: `Exhausted` naming the first that could not; else what `look` says, or `Lost`.
    pub(super) fn run(&self, own: Result<Segment>) -> Result<Vec<Segment>> {
        let announced = encode(&own.as_ref().map(|segment| segment.byte_count() as u64));
        let file = own.as_ref().ok().map(Segment::file);
        let received = self.round(1, &announced, file)?;
        let mut failure = None;
        let mut own = Some(own);
        let mut segments = Vec::with_capacity(self.seats.len());
        for (index, answer) in self.seats.iter().zip(received) {
            let segment = match answer {
                None => match own.take() {
                    Some(Err(error)) => Err(decoded(&error, *index)),
                    Some(Ok(segment)) => Ok(segment),
                    None => continue,
                },
                Some((bytes, file)) => match (decode(&bytes, *index), file) {
                    (Part::Failed(error), _) => Err(error),
                    (Part::Given(byte_count), Some(file)) => {
                        let byte_count = usize::try_from(byte_count).unwrap_or(usize::MAX);
                        match Segment::adopt(self.name, file, byte_count) {
                            Ok(segment) => Ok(segment),
                            // Only this member knows that it could not map it.
                            Err(error) => Err(decoded(&error, self.proved.index)),
                        }
                    }
                    // Only this member knows that it has no number left for the file.
                    (Part::Given(_), None) => Err(decoded(&socket::unfiled(*index), self.proved.index)),
                },
            };
            match segment {
                Ok(segment) => segments.push(segment),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let verdict = match &failure {
            None => encode(&Ok(0)),
            Some(error) => encode(&Err(error)),
        };
        for (index, answer) in self.seats.iter().zip(self.round(2, &verdict, None)?) {
            if let Some((bytes, _)) = answer
                && let Part::Failed(error) = decode(&bytes, *index)
            {
                failure = failure.or(Some(error));
            }
        }
        failure.map_or(Ok(segments), Err)
    }

    /// Sends to all and hears from all; this member's own place stays `None`.
    #[allow(clippy::type_complexity, reason = "a message and its file, or nothing at the own place")]
    fn round(
        &self,
        number: u8,
        message: &[u8],
        file: Option<std::os::fd::BorrowedFd<'_>>,
    ) -> Result<Vec<Option<(Vec<u8>, Option<std::os::fd::OwnedFd>)>>> {
        let prefix = [&self.label[..], &[number]].concat();
        let whole = [&prefix[..], message].concat();
        let mut unsent = self.mates()?;
        let mut answers = self.seats.iter().map(|_| None).collect::<Vec<_>>();
        let mut verdict = Ok(());
        loop {
            // A full queue empties when the other side has read; one that is gone is found below.
            unsent.retain(|(_, mate)| !mate.conversation.send(&whole, file));
            for (seat, mate) in self.mates()? {
                if answers[seat].is_none() {
                    answers[seat] = match mate.letter(&prefix, self.phase) {
                        Ok(answer) => answer,
                        // Why it left, where it said so, is better than that it has gone.
                        Err(error) => return (self.look)(&[mate.index]).and(Err(error)),
                    };
                }
            }
            let mut lagging = self.mates()?;
            lagging.retain(|(seat, _)| answers[*seat].is_none());
            if lagging.is_empty() && unsent.is_empty() {
                return Ok(answers);
            }
            // Messages were looked for once more after the bad news: what was sent before counts.
            verdict?;
            if let Some((_, mate)) = unsent.iter().find(|(_, mate)| !mate.is_alive()) {
                return (self.look)(&[mate.index]).and(Err(mate.lost(self.phase)));
            }
            // One that does not take what is sent is waited for too.
            let awaited = lagging.iter().chain(unsent.iter().filter(|(seat, _)| answers[*seat].is_some()));
            verdict = (self.look)(&awaited.map(|(_, mate)| mate.index).collect::<Vec<_>>());
            if verdict.is_err() {
                continue;
            }
            let sockets = lagging.iter().map(|(_, mate)| mate.conversation.descriptor()).collect::<Vec<_>>();
            socket::wait_readable(&sockets, self.deadline.pause());
        }
    }

    /// The others, with their seats.
    fn mates(&self) -> Result<Vec<(usize, &Mate)>> {
        let others = self.seats.iter().enumerate().filter(|(_, index)| **index != self.proved.index);
        others
            .map(|(seat, index)| {
                let mate = self.proved.mates.get(index).ok_or_else(|| {
                    let why = format!("index {index} is on another host, or in another network namespace");
                    Error::unsupported("sharing memory", why)
                })?;
                Ok((seat, mate))
            })
            .collect()
    }
}
