//! Meeting of the processes of an MPI communicator, without a directory: rank 0 gathers what all bring, and gives it to all.
//!
//! Each waits under our deadline. A rank that ends takes its run with it under most launchers of MPI, so a member that learns
//! the outcome and ends at once may take the others along.

use std::collections::VecDeque;

use super::reason::Reason;
use super::{Exchange, RunKey};
use crate::error::{Error, Missing, Result};
use crate::sys::mpi::{self, Channel, Medium, World};
use crate::sys::network::Moved;
use crate::sys::{Deadline, Span, SpanMut, random};
use crate::topology::{Introduction, Member, Process, Roster};

/// Bytes in front of each message: its length.
const PREFIX: usize = 8;
/// The longest message; the surveys of a hundred thousand members are shorter.
const LENGTH_LIMIT: u64 = 4 << 30;

/// One message between rank 0 and another.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// What one member brings to a phase.
    Payload { phase: String, bytes: Vec<u8> },
    /// What all members brought to a phase.
    All { phase: String, payloads: Vec<Vec<u8>> },
    /// Why the meeting has failed.
    Reason(Reason),
}

/// Takes one part from the front of a message: its length, and so many bytes.
fn take<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (length, rest) = bytes.split_first_chunk::<PREFIX>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let part = rest.get(..length)?;
    *bytes = &rest[length..];
    Some(part)
}

impl Word {
    /// The message as bytes: its kind and its parts, each with its length in front.
    fn encode(&self) -> Vec<u8> {
        let reason;
        let (kind, parts) = match self {
            Self::Payload { phase, bytes } => (1, vec![phase.as_bytes(), bytes]),
            Self::All { phase, payloads } => {
                (2, [phase.as_bytes()].into_iter().chain(payloads.iter().map(Vec::as_slice)).collect())
            }
            Self::Reason(told) => {
                reason = serde_json::to_vec(told).unwrap_or_default();
                (3, vec![reason.as_slice()])
            }
        };
        let mut bytes = vec![kind];
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    /// The message in `bytes`; `None` if it is none.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, mut rest) = bytes.split_first()?;
        let first = take(&mut rest)?;
        let phase = || String::from_utf8(first.to_vec()).ok();
        let word = match kind {
            1 => Self::Payload { phase: phase()?, bytes: take(&mut rest)?.to_vec() },
            2 => {
                let mut payloads = Vec::new();
                while !rest.is_empty() {
                    payloads.push(take(&mut rest)?.to_vec());
                }
                Self::All { phase: phase()?, payloads }
            }
            3 => Self::Reason(serde_json::from_slice(first).ok()?),
            _ => return None,
        };
        rest.is_empty().then_some(word)
    }
}

/// What goes to one rank and comes from it.
struct Line {
    channel: Channel,
    /// Bytes on their way to MPI.
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    words: VecDeque<Word>,
    /// What it last did, for messages.
    last: String,
}

/// How a meeting goes on.
type Looked = std::result::Result<bool, Reason>;

impl Line {
    fn new(channel: Channel) -> Self {
        let last = "has not come to bootstrap, or not further".to_owned();
        Self { channel, outgoing: Vec::new(), sent: 0, incoming: Vec::new(), words: VecDeque::new(), last }
    }

    fn say(&mut self, word: &Word) {
        let body = word.encode();
        self.outgoing.extend((body.len() as u64).to_le_bytes());
        self.outgoing.extend(body);
    }

    /// Moves what can move; the error is what MPI says.
    fn step(&mut self, is_awaited: bool) -> std::result::Result<bool, String> {
        let mut has_moved = false;
        while self.sent < self.outgoing.len() {
            match self.channel.send(Span::of(&self.outgoing[self.sent..]), is_awaited) {
                Moved::Bytes(count) => self.sent += count,
                Moved::Busy => break,
                Moved::End => return Err("it left the meeting".to_owned()),
                Moved::Broken(error) => return Err(error.to_string()),
            }
            has_moved = true;
        }
        if self.sent == self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
        let mut bytes = [0u8; 16 << 10];
        loop {
            match self.channel.receive(&mut SpanMut::of(&mut bytes)) {
                Moved::Bytes(count) => self.incoming.extend_from_slice(&bytes[..count]),
                Moved::Busy => break,
                Moved::End => return Err("it left the meeting".to_owned()),
                Moved::Broken(error) => return Err(error.to_string()),
            }
            has_moved = true;
        }
        while let Some((length, body)) = self.incoming.split_first_chunk::<PREFIX>() {
            let length = u64::from_le_bytes(*length);
            let odd = || format!("a message of {length} bytes that is none of this version");
            if length > LENGTH_LIMIT {
                return Err(odd());
            }
            let Some(body) = usize::try_from(length).ok().and_then(|length| body.get(..length)) else {
                break;
            };
            let word = Word::decode(body).ok_or_else(odd)?;
            if let Word::Payload { phase, .. } | Word::All { phase, .. } = &word {
                self.last = format!("came to the phase {phase}");
            }
            self.incoming.drain(..PREFIX + body.len());
            self.words.push_back(word);
        }
        Ok(has_moved)
    }

    fn is_settled(&self) -> bool {
        self.outgoing.is_empty() && self.channel.is_sent()
    }
}

/// The members of one communicator, met.
struct Met {
    world: World,
    process: Process,
    roster: Roster,
    key: RunKey,
    /// By rank: at rank 0 all others, elsewhere rank 0 alone.
    lines: Vec<Option<Line>>,
    has_told: bool,
}

/// Meets the other processes of a communicator; a member's index is its rank.
///
/// # Errors
/// `TimedOut` naming who has not come, the reason of one that gave up, `Interrupted`, `Lost`, `Io`.
pub fn meet(world: &World, introduction: Introduction, deadline: &Deadline<'_>) -> Result<Box<dyn Exchange>> {
    let own = world.rank();
    let peers = if own == 0 { 1..world.count() } else { 0..1 };
    let line = |rank: usize| peers.contains(&rank).then(|| Line::new(world.channel(rank, Medium::Meeting)));
    let process = introduction.process.clone();
    let mut met = Met {
        world: world.clone(),
        process: process.clone(),
        roster: Roster { run: String::new(), members: Vec::new() },
        key: RunKey(random::bytes()?),
        lines: (0..world.count()).map(line).collect(),
        has_told: false,
    };
    let member = Member { index: own, nonce: random::nonce()?, introduction };
    let run = format!("mpi-{}-{}", process.pid, random::nonce()?);
    let entry = serde_json::to_vec(&(run, met.key.0, member)).unwrap_or_default();
    let all = met.gather("registration", &entry, deadline).inspect_err(|error| met.tell(error));
    let mut members = Vec::with_capacity(world.count());
    for (rank, bytes) in all?.iter().enumerate() {
        let read = serde_json::from_slice::<(String, [u8; 32], Member)>(bytes);
        let (run, key, member) = read.map_err(|error| Error::Corrupt {
            path: format!("the registration of index {rank}").into(),
            offset: error.column() as u64,
            reason: error.to_string(),
        })?;
        if rank == 0 {
            (met.roster.run, met.key) = (run, RunKey(key));
        }
        members.push(Member { index: rank, ..member });
    }
    met.roster.members = members;
    Ok(Box::new(met))
}

/// What another rank may have sent, as a message and as a registration.
#[cfg(any(test, fuzzing))]
pub(super) fn read_hostile(bytes: &[u8]) -> Option<Introduction> {
    if let Some(word) = Word::decode(bytes) {
        assert_eq!(Word::decode(&word.encode()), Some(word));
    }
    let read = serde_json::from_slice::<(String, [u8; 32], Member)>(bytes).ok()?;
    Some(read.2.introduction)
}

impl Met {
    fn own(&self) -> usize {
        self.world.rank()
    }

    /// Gives everybody's payload, in the order of ranks.
    fn gather(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let own = self.own();
        let mut found = vec![None; self.world.count()];
        found[own] = Some(payload.to_vec());
        let mut has_said = false;
        if own > 0 {
            self.say(&Word::Payload { phase: phase.to_owned(), bytes: payload.to_vec() });
        }
        let mut looks = 0;
        loop {
            let moved = self.step(phase, &mut found)?;
            if let (0, false, Some(payloads)) =
                (own, has_said, found.iter().cloned().collect::<Option<Vec<_>>>())
            {
                self.say(&Word::All { phase: phase.to_owned(), payloads });
                has_said = true;
            }
            let is_settled = self.lines.iter().flatten().all(Line::is_settled);
            if let (true, true, Some(all)) =
                (is_settled, has_said || own > 0, found.iter().cloned().collect())
            {
                return Ok(all);
            }
            deadline.check(&format!("rendezvous, {phase}"), || self.missing(&found))?;
            looks = if moved { 0 } else { looks + 1 };
            mpi::rest(looks, deadline.pause());
        }
    }

    fn missing(&self, found: &[Option<Vec<u8>>]) -> Vec<Missing> {
        let lines = self.lines.iter().enumerate().filter_map(|(rank, line)| Some((rank, line.as_ref()?)));
        let is_absent = |rank: usize, line: &Line| found[rank].is_none() || !line.is_settled();
        lines
            .filter(|(rank, line)| is_absent(*rank, line))
            .map(|(index, line)| Missing { index, last_word: line.last.clone() })
            .collect()
    }

    fn say(&mut self, word: &Word) {
        self.lines.iter_mut().flatten().for_each(|line| line.say(word));
    }

    /// Hears all ranks once, and takes what belongs to this phase; whether something moved.
    fn step(&mut self, phase: &str, found: &mut [Option<Vec<u8>>]) -> Result<bool> {
        let (own, mut has_moved) = (self.own(), false);
        for rank in 0..self.lines.len() {
            let Some(line) = &mut self.lines[rank] else { continue };
            let looked = line.step(true).map_err(|text| self.lost(rank, phase, text))?;
            has_moved |= looked;
            match self.take(rank, phase, found) {
                Ok(took) => has_moved |= took,
                Err(reason) => return Err(reason.error(own, &self.process)),
            }
        }
        Ok(has_moved)
    }

    /// Takes the words of one rank that belong to this phase; those of later ones stay.
    fn take(&mut self, rank: usize, phase: &str, found: &mut [Option<Vec<u8>>]) -> Looked {
        let Some(line) = &mut self.lines[rank] else { return Ok(false) };
        let mut took = false;
        let mut later = VecDeque::new();
        for word in line.words.drain(..) {
            match word {
                Word::Reason(reason) => return Err(reason),
                Word::Payload { phase: said, bytes } if said == phase && rank > 0 => {
                    found[rank] = Some(bytes);
                    took = true;
                }
                Word::All { phase: said, payloads } if said == phase && payloads.len() == found.len() => {
                    found.iter_mut().zip(payloads).for_each(|(slot, bytes)| *slot = Some(bytes));
                    took = true;
                }
                word => later.push_back(word),
            }
        }
        line.words = later;
        Ok(took)
    }

    fn lost(&self, index: usize, phase: &str, text: String) -> Error {
        let process = self.roster.members.get(index).map(|member| &member.introduction.process);
        Error::Lost {
            index,
            host: process.map_or_else(|| "unknown".to_owned(), |process| process.host_name.clone()),
            pid: process.map_or(0, |process| process.pid),
            phase: format!("rendezvous, {phase}: {text}"),
        }
    }

    /// Tells why this member leaves: rank 0 tells all, another one tells rank 0, who tells the others.
    fn tell(&mut self, error: &Error) {
        if std::mem::replace(&mut self.has_told, true) {
            return;
        }
        let reason = Reason::of(error, self.own(), &self.process);
        self.say(&Word::Reason(reason));
        for line in self.lines.iter_mut().flatten() {
            // Nobody has promised to take it, so it is not waited for.
            let _ = line.step(false);
        }
    }
}

impl Exchange for Met {
    fn index(&self) -> usize {
        self.own()
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn key(&self) -> &RunKey {
        &self.key
    }

    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let result = self.gather(phase, payload, deadline);
        if let Err(error) = &result {
            self.tell(error);
        }
        result
    }

    fn give_up(&mut self, reason: &Error) {
        self.tell(reason);
    }

    fn close(&mut self) {
        self.world.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_back_and_odd_bytes_are_none() {
        let reason = Reason::counts((0, 2), (1, 3));
        let words = [
            Word::Payload { phase: "findings".into(), bytes: vec![7; 300] },
            Word::Payload { phase: String::new(), bytes: Vec::new() },
            Word::All { phase: "ready".into(), payloads: vec![vec![1], Vec::new(), vec![2, 3]] },
            Word::Reason(reason),
        ];
        for word in words {
            let bytes = word.encode();
            assert_eq!(Word::decode(&bytes), Some(word));
            assert_eq!(Word::decode(&[&bytes[..], &[1]].concat()), None);
            for end in 0..bytes.len() {
                // A cut between two payloads leaves a whole message of fewer.
                assert!(Word::decode(&bytes[..end]).is_none_or(|word| matches!(word, Word::All { .. })));
            }
            let huge = [&bytes[..1], &u64::MAX.to_le_bytes()].concat();
            assert_eq!(Word::decode(&huge), None);
        }
    }
}
