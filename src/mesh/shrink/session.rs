//! One member's part in a shrink: what it hears goes into the agreement, what that says goes out, and time passes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::agreement::{Agreement, Ballot, Message, Next, Standing};
use super::wire::{self, Said};
use crate::communicator::Communicator;
use crate::communicator::control::{LETTER_LIMIT, Life};
use crate::communicator::shared::Listener;
use crate::error::{Error, Missing, Result};
use crate::mesh::Mesh;
use crate::rendezvous::RunKey;
use crate::sys::{Deadline, random};

const PHASE: &str = "shrink";
/// How long a member that lives is waited for, at most.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one that is stopped is waited for.
const STOPPED_PATIENCE: Duration = Duration::from_secs(2);
/// The longest message that is put together from letters.
const MESSAGE_LIMIT: usize = 16 << 20;

/// What one member hears and says.
pub(super) struct Session {
    channel: Arc<dyn Communicator>,
    own: usize,
    pub(super) agreement: Agreement,
    /// Where the others connect to in the next trial; `None` for a lone member.
    listener: Option<Listener>,
    keys: BTreeMap<Ballot, [u8; 32]>,
    /// Letters that the connections have not taken, by seat.
    outboxes: Vec<VecDeque<Vec<u8>>>,
    /// Messages that have come in part, by seat.
    inboxes: Vec<Vec<u8>>,
    payloads: BTreeMap<(Ballot, u64), BTreeMap<usize, Vec<u8>>>,
    /// Since when a member is waited for.
    since: Vec<Option<Instant>>,
    patience: Duration,
    /// What those said that went on without this member.
    left_behind: Option<String>,
    lives: Vec<Life>,
}

impl Session {
    /// Begins to agree.
    ///
    /// # Errors
    /// `Io` if the system gives no socket.
    pub(super) fn open(mesh: &Mesh, deadline: &Deadline<'_>) -> Result<Self> {
        let (own, count) = (mesh.index(), mesh.count());
        let listener = if count == 1 { None } else { Some(Listener::open()?) };
        let address = listener.as_ref().map(Listener::address).unwrap_or_default();
        Ok(Self {
            channel: Arc::clone(mesh.communicator()),
            own,
            agreement: Agreement::new(own, count, address),
            listener,
            keys: BTreeMap::new(),
            outboxes: vec![VecDeque::new(); count],
            inboxes: vec![Vec::new(); count],
            payloads: BTreeMap::new(),
            since: vec![None; count],
            patience: (deadline.remaining() / 2).min(PATIENCE),
            left_behind: None,
            lives: vec![Life::Lives; count],
        })
    }

    /// The socket of this trial; the next one gets another.
    ///
    /// # Errors
    /// `Io` if the system gives no socket.
    pub(super) fn take_listener(&mut self) -> Result<Option<Listener>> {
        if self.listener.is_none() {
            return Ok(None);
        }
        let next = Listener::open()?;
        self.agreement.move_to(next.address());
        Ok(self.listener.replace(next))
    }

    /// The key of a ballot: the leader draws it, and tells those that it proposes.
    ///
    /// # Errors
    /// `Io` if the kernel gives no random bytes.
    pub(super) fn key(&mut self, ballot: Ballot) -> Result<RunKey> {
        if let Some(key) = self.keys.get(&ballot) {
            return Ok(RunKey(*key));
        }
        let key = random::bytes()?;
        self.keys.insert(ballot, key);
        Ok(RunKey(key))
    }

    /// Hears what there is to hear, and says what follows.
    pub(super) fn turn(&mut self) -> Result<()> {
        let count = self.outboxes.len();
        // Before the letters: what a member said before it ended counts.
        self.lives = (0..count).map(|seat| self.channel.life(seat)).collect();
        for (seat, letter) in self.channel.letters() {
            self.take(seat, &letter);
        }
        for seat in 0..count {
            match &self.lives[seat] {
                Life::Lives | Life::Stopped => {}
                Life::Ended(_) => self.agreement.observe(seat, Standing::Ended),
                Life::WentOn(words) => {
                    self.left_behind.get_or_insert_with(|| words.clone());
                    self.agreement.observe(seat, Standing::Ended);
                }
            }
        }
        self.lose_patience();
        self.say()
    }

    fn take(&mut self, seat: usize, letter: &[u8]) {
        let (Some((is_last, part)), Some(inbox)) = (letter.split_first(), self.inboxes.get_mut(seat)) else {
            return;
        };
        if inbox.len() + part.len() > MESSAGE_LIMIT {
            inbox.clear();
            return;
        }
        inbox.extend_from_slice(part);
        if *is_last == 0 {
            return;
        }
        match wire::decode(&std::mem::take(inbox)) {
            Some(Said::Word(message, key)) => {
                if let (Some(key), Message::Propose(proposal)) = (key, &message) {
                    self.keys.entry(proposal.ballot).or_insert(key);
                }
                self.agreement.hear(seat, message);
            }
            Some(Said::Payload(ballot, number, bytes)) => {
                self.payloads.entry((ballot, number)).or_default().insert(seat, bytes);
            }
            None => tracing::warn!("index {seat} said in a shrink what this version cannot read"),
        }
    }

    fn lose_patience(&mut self) {
        let awaited = self.agreement.awaited();
        for seat in 0..self.since.len() {
            if !awaited.contains(&seat) {
                self.since[seat] = None;
                continue;
            }
            let waited = self.since[seat].get_or_insert_with(Instant::now).elapsed();
            let is_stopped = self.lives.get(seat) == Some(&Life::Stopped);
            // A leader that has asked waits for others itself.
            let is_patient = seat == self.agreement.leader() && self.agreement.was_asked();
            let limit = self.patience;
            if (is_stopped && waited >= STOPPED_PATIENCE.min(limit)) || (!is_patient && waited >= limit) {
                tracing::warn!("index {}: shrink goes on without index {seat}, which has not come", self.own);
                self.agreement.observe(seat, Standing::Silent);
            }
        }
    }

    fn say(&mut self) -> Result<()> {
        for (to, message) in self.agreement.take_messages() {
            let key = match &message {
                Message::Propose(proposal) => Some(self.key(proposal.ballot)?.0),
                _ => None,
            };
            self.post(to, &wire::encode(&Said::Word(message, key)));
        }
        self.flush();
        Ok(())
    }

    fn post(&mut self, to: usize, message: &[u8]) {
        let Some(outbox) = self.outboxes.get_mut(to) else { return };
        let mut parts = message.chunks(LETTER_LIMIT - 1).peekable();
        while let Some(part) = parts.next() {
            outbox.push_back([&[u8::from(parts.peek().is_none())], part].concat());
        }
    }

    /// Sends what the connections take.
    pub(super) fn flush(&mut self) {
        for (seat, outbox) in self.outboxes.iter_mut().enumerate() {
            while outbox.front().is_some_and(|letter| self.channel.post(seat, letter)) {
                outbox.pop_front();
            }
        }
    }

    /// Says to those that follow this member that it gives up.
    pub(super) fn give_up(&mut self, reason: &str) {
        self.agreement.give_up(&format!("index {}: {reason}", self.own));
        if let Err(error) = self.say() {
            tracing::debug!(%error, "the others were not told that a shrink was given up");
        }
    }

    /// Sends this member's payload of a phase to the others of a trial.
    pub(super) fn publish(&mut self, ballot: Ballot, number: u64, seats: &[usize], payload: &[u8]) {
        self.payloads.entry((ballot, number)).or_default().insert(self.own, payload.to_vec());
        let message = wire::encode(&Said::Payload(ballot, number, payload.to_vec()));
        for seat in seats {
            if *seat != self.own {
                self.post(*seat, &message);
            }
        }
    }

    /// The payloads of a phase, once all have come.
    pub(super) fn published(&self, ballot: Ballot, number: u64, seats: &[usize]) -> Option<Vec<Vec<u8>>> {
        let payloads = self.payloads.get(&(ballot, number))?;
        seats.iter().map(|seat| payloads.get(seat).cloned()).collect()
    }

    /// Those of a trial whose payload has not come.
    pub(super) fn unpublished(&self, ballot: Ballot, number: u64, seats: &[usize]) -> Vec<usize> {
        let payloads = self.payloads.get(&(ballot, number));
        let has = |seat: &usize| payloads.is_some_and(|payloads| payloads.contains_key(seat));
        seats.iter().copied().filter(|seat| !has(seat)).collect()
    }

    /// A member and the last that is known of it.
    pub(super) fn missing(&self, index: usize) -> Missing {
        let last_word = match self.lives.get(index) {
            Some(Life::Stopped) => "stopped by a signal".to_owned(),
            Some(Life::Ended(how) | Life::WentOn(how)) => how.clone(),
            Some(Life::Lives) | None => "alive, has not come".to_owned(),
        };
        Missing { index, last_word }
    }

    /// Takes a turn, and looks whether this member can still go on.
    ///
    /// # Errors
    /// `Closed` if it cannot, `TimedOut` and `Interrupted`.
    pub(super) fn check(&mut self, deadline: &Deadline<'_>) -> Result<()> {
        self.turn()?;
        let closed = |why: String| Error::Closed { what: format!("the mesh of index {}", self.own), why };
        match (self.agreement.next(), &self.left_behind) {
            (Next::GoOn(_), _) => return Ok(()),
            (_, Some(words)) => {
                return Err(closed(format!("{words}; index {} had not come: end this process", self.own)));
            }
            (Next::Stop(reason), None) => {
                return Err(closed(format!("shrink ended: {reason}; restart from a checkpoint")));
            }
            (Next::Wait | Next::Form(_), None) => {}
        }
        let phase = format!("{PHASE} at index {}", self.own);
        deadline
            .check(&phase, || self.agreement.awaited().into_iter().map(|index| self.missing(index)).collect())
    }

    /// Sleeps until something may have come.
    pub(super) fn rest(&self, deadline: &Deadline<'_>) {
        self.channel.rest(deadline.pause());
    }
}
