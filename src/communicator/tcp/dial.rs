//! Reaching one member at all the addresses it published, in parallel; the first that proves the run's key counts.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::address::{self, Published};
use super::connect::{GREETING_TIME, Letter, Letterbox, say};
use crate::communicator::handshake::{Challenge, Greeting, Medium, Pair, Side};
use crate::error::Result;
use crate::rendezvous::RunKey;
use crate::sys::network::{Awaited, Interface, Stream};
use crate::sys::random;

/// How long one address may take to answer before it is tried anew.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The pause after a round of attempts, doubled up to the limit.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);
/// Rounds in which every address refused, before that is believed.
const REFUSAL_ROUNDS: u32 = 3;

/// What came of going on with a dial.
pub(super) enum Step {
    Waits,
    Connected(Medium, Stream),
    /// All addresses refuse, with the words of each.
    Refused(String),
}

#[derive(Debug)]
enum State {
    Connecting,
    Greeted(Challenge),
    Proved,
}

#[derive(Debug)]
struct Attempt {
    address: SocketAddr,
    stream: Stream,
    since: Instant,
    letterbox: Letterbox,
    state: State,
}

/// What came of going on with an attempt.
enum Progress {
    Goes,
    /// Whether it was refused by the other host, and what to say of it.
    Failed(bool, String),
    /// The other side has proved the key: no other attempt is needed.
    Answered(Pair),
    Welcomed,
    /// A probe has found somebody.
    Found,
}

/// The connections to one member: first for control, then, at the same address, for data and for sends and receives.
#[derive(Debug)]
pub(super) struct Dial {
    own: u32,
    to: u32,
    is_probe: bool,
    medium: Medium,
    addresses: Vec<SocketAddr>,
    names: BTreeMap<SocketAddr, String>,
    attempts: Vec<Attempt>,
    words: BTreeMap<SocketAddr, String>,
    round: u32,
    refused_rounds: u32,
    /// Whether every attempt of this round was refused so far.
    is_refused: bool,
    next: Instant,
}

fn number(index: usize) -> u32 {
    // Indexes beyond 32 bits do not exist: a roster of them would not fit in memory.
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl Dial {
    pub(super) fn new(
        own: usize,
        to: usize,
        is_probe: bool,
        published: &[Published],
        interfaces: &[Interface],
    ) -> Self {
        let mut names = BTreeMap::new();
        for one in published {
            for address in address::expand(one.address, interfaces) {
                names.insert(address, one.name.clone());
            }
        }
        Self {
            own: number(own),
            to: number(to),
            is_probe,
            medium: Medium::Control,
            addresses: names.keys().copied().collect(),
            names,
            attempts: Vec::new(),
            words: BTreeMap::new(),
            round: 0,
            refused_rounds: 0,
            is_refused: false,
            next: Instant::now(),
        }
    }

    /// How each address answered last, to follow another sentence.
    pub(super) fn words(&self) -> String {
        let name = |address: &SocketAddr| self.names.get(address).map_or("", String::as_str);
        let words =
            self.words.iter().map(|(address, word)| format!("; {address} ({}): {word}", name(address)));
        let pending = self.attempts.iter().filter(|attempt| !self.words.contains_key(&attempt.address));
        let pending = pending
            .map(|attempt| format!("; {} ({}): no answer yet", attempt.address, name(&attempt.address)));
        words.chain(pending).collect()
    }

    /// Goes on with all attempts, and begins a new round where all have failed.
    pub(super) fn step(&mut self, key: &RunKey) -> Result<Step> {
        if self.attempts.is_empty() && Instant::now() >= self.next {
            self.begin_round();
        }
        for mut attempt in std::mem::take(&mut self.attempts) {
            match self.advance(&mut attempt, key)? {
                Progress::Goes => self.attempts.push(attempt),
                Progress::Failed(is_refused, word) => self.fail(attempt.address, is_refused, word),
                Progress::Answered(pair) => {
                    let greeting = Greeting::Proof { tag: pair.tag(key, Side::Higher), address: 0 };
                    self.attempts.clear();
                    if say(&attempt.stream, &greeting, self.medium) {
                        self.addresses = vec![attempt.address];
                        attempt.state = State::Proved;
                        self.attempts.push(attempt);
                    }
                    break;
                }
                Progress::Welcomed => {
                    let next = if self.medium == Medium::Control { Medium::Data } else { Medium::Pair };
                    let medium = std::mem::replace(&mut self.medium, next);
                    (self.next, self.round) = (Instant::now(), 0);
                    return Ok(Step::Connected(medium, attempt.stream));
                }
                Progress::Found => {
                    self.attempts.clear();
                    (self.is_refused, self.next) = (false, Instant::now() + PAUSE_LIMIT);
                    self.refused_rounds = 0;
                    return Ok(Step::Waits);
                }
            }
        }
        if self.attempts.is_empty() && self.round > 0 && self.next <= Instant::now() {
            self.refused_rounds = if self.is_refused { self.refused_rounds + 1 } else { 0 };
            self.next = Instant::now() + (PAUSE * (1 << self.round.min(4))).min(PAUSE_LIMIT);
            if self.refused_rounds >= REFUSAL_ROUNDS {
                return Ok(Step::Refused(self.words().trim_start_matches("; ").to_owned()));
            }
        }
        Ok(Step::Waits)
    }

    fn begin_round(&mut self) {
        self.round = self.round.saturating_add(1);
        self.is_refused = !self.addresses.is_empty();
        for address in self.addresses.clone() {
            match Stream::connect(address) {
                Ok(stream) => {
                    let (since, letterbox) = (Instant::now(), Letterbox::default());
                    let state = State::Connecting;
                    self.attempts.push(Attempt { address, stream, since, letterbox, state });
                }
                Err(error) => {
                    self.fail(address, error.kind() == io::ErrorKind::ConnectionRefused, error.to_string());
                }
            }
        }
    }

    fn fail(&mut self, address: SocketAddr, is_refused: bool, word: String) {
        self.is_refused &= is_refused;
        self.words.insert(address, word);
    }

    fn advance(&self, attempt: &mut Attempt, key: &RunKey) -> Result<Progress> {
        let waited = attempt.since.elapsed();
        let failed = |word: &str| Ok(Progress::Failed(false, word.to_owned()));
        match attempt.state {
            State::Connecting => match attempt.stream.is_connected() {
                Ok(false) if waited < CONNECT_TIME => Ok(Progress::Goes),
                Ok(false) => failed("no answer"),
                Err(error) => {
                    let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
                    Ok(Progress::Failed(is_refused, error.to_string()))
                }
                Ok(true) if self.is_probe => Ok(Progress::Found),
                Ok(true) => {
                    let challenge = random::bytes()?;
                    let hello = Greeting::Hello { from: self.own, to: self.to, challenge };
                    if !say(&attempt.stream, &hello, self.medium) {
                        return failed("took no greeting");
                    }
                    (attempt.state, attempt.since) = (State::Greeted(challenge), Instant::now());
                    Ok(Progress::Goes)
                }
            },
            State::Greeted(higher_challenge) => {
                let bytes = match attempt.letterbox.hear(&attempt.stream) {
                    Letter::Silence if waited < GREETING_TIME => return Ok(Progress::Goes),
                    Letter::Silence => return failed("connected, and did not answer the greeting"),
                    Letter::End => return failed("closed the connection before it proved the run's key"),
                    Letter::Message(bytes) => bytes,
                };
                if let Some(Greeting::Answer { challenge, tag }) = Greeting::decode(&bytes, self.medium) {
                    let (medium, lower, higher) = (self.medium, self.to, self.own);
                    let pair = Pair { medium, lower, higher, lower_challenge: challenge, higher_challenge };
                    if pair.is_proved(key, Side::Lower, &tag) {
                        return Ok(Progress::Answered(pair));
                    }
                }
                failed("is somebody who does not know the run's key")
            }
            State::Proved => match attempt.letterbox.hear(&attempt.stream) {
                Letter::Silence if waited < 2 * GREETING_TIME => Ok(Progress::Goes),
                Letter::Silence => failed("did not answer the proof of the run's key"),
                Letter::End => failed("closed the connection instead of a welcome"),
                Letter::Message(bytes) => match Greeting::decode(&bytes, self.medium) {
                    Some(Greeting::Welcome { .. }) => Ok(Progress::Welcomed),
                    _ => failed("answered what no member answers"),
                },
            },
        }
    }

    /// Adds what this dial waits for; gives the time to its next round, if it waits for one.
    pub(super) fn await_next<'a>(&'a self, awaited: &mut Vec<Awaited<'a>>) -> Option<Duration> {
        for attempt in &self.attempts {
            let connects = matches!(attempt.state, State::Connecting);
            awaited.push((attempt.stream.descriptor(), !connects, connects));
        }
        self.attempts.is_empty().then(|| self.next.saturating_duration_since(Instant::now()))
    }
}
