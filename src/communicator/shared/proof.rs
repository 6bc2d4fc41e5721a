//! Proof that members share this host's memory: one connection to each, the run's key proved on it, trial memory opened.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::communicator::handshake::{Challenge, Greeting, Medium, Pair, Side};
use crate::communicator::warning::{self, STOPPED, Warning};
use crate::error::{Error, Missing, Result};
use crate::rendezvous::RunKey;
use crate::sys::peer::Peer;
use crate::sys::shared::Segment;
use crate::sys::socket::{self, Conversation, Doorway, Heard, Namespaces, Reached};
use crate::sys::{Deadline, SpanMut, process, random};
use crate::topology::{Findings, Process, Roster};

const PHASE: &str = "proof of shared memory";
const TRIAL_BYTES: usize = 32;
/// How often it is looked whether those still live that have not connected: a look costs a file for each of them.
const DEATH_INTERVAL: Duration = Duration::from_millis(100);
/// Strangers that may be connected at a time; the one that waits longest is refused first.
const GUEST_LIMIT: usize = 64;

/// A socket at which the members of this host will meet, open before the rendezvous publishes its address.
#[derive(Debug)]
pub struct Listener {
    doorway: Doorway,
}

impl Listener {
    /// Listens under a random abstract name, which leaves no file.
    ///
    /// # Errors
    /// `Io` if the system gives no socket.
    pub fn open() -> Result<Self> {
        Ok(Self { doorway: Doorway::open()? })
    }

    /// What goes into the introduction's `socket`.
    #[must_use]
    pub fn address(&self) -> String {
        self.doorway.address().to_owned()
    }
}

/// A message that came for somebody who has not asked for it yet.
type Letter = (Vec<u8>, Option<OwnedFd>);

/// Another member whose memory this one can open.
#[derive(Debug)]
pub(super) struct Mate {
    pub(super) index: usize,
    pub(super) process: Process,
    pub(super) conversation: Conversation,
    /// Watches its process; `None` if it is this process, or hidden from it.
    pub(super) peer: Option<Peer>,
    pub(super) is_readable: bool,
    inbox: Mutex<VecDeque<Letter>>,
}

impl Mate {
    /// The next message that starts with `prefix`, without it; `Ok(None)` if there is none yet.
    ///
    /// # Errors
    /// `Lost` if it has hung up.
    pub(super) fn letter(&self, prefix: &[u8], phase: &str) -> Result<Option<Letter>> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        // Asked before the messages are taken: what it sent before it ended counts.
        let mut has_ended = !self.is_alive();
        loop {
            match self.conversation.hear() {
                Heard::Message(bytes, file) => inbox.push_back((bytes, file)),
                Heard::Silence => break,
                Heard::End => {
                    has_ended = true;
                    break;
                }
            }
        }
        if let Some(position) = inbox.iter().position(|(bytes, _)| bytes.starts_with(prefix)) {
            return Ok(inbox
                .remove(position)
                .map(|(bytes, file)| (bytes.get(prefix.len()..).unwrap_or_default().to_vec(), file)));
        }
        if has_ended { Err(self.lost(phase)) } else { Ok(None) }
    }

    /// Whether its process lives as far as this one can tell.
    pub(super) fn is_alive(&self) -> bool {
        self.peer.as_ref().is_none_or(Peer::is_alive)
    }

    pub(super) fn lost(&self, phase: &str) -> Error {
        Error::Lost {
            index: self.index,
            host: self.process.host_name.clone(),
            pid: self.process.pid,
            phase: phase.to_owned(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Proved {
    pub(super) index: usize,
    pub(super) own: Process,
    /// Cores that the members of this host may use together.
    pub(super) core_count: usize,
    pub(super) mates: BTreeMap<usize, Mate>,
    _trial: Segment,
}

impl Proved {
    /// Whether a signal or a debugger has stopped a member of this host.
    pub(super) fn is_stopped(&self, index: usize) -> bool {
        self.mates.get(&index).and_then(|mate| mate.peer.as_ref()).is_some_and(Peer::is_stopped)
    }
}

/// What one member of a host has proved; communicators are joined on it. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Proof(pub(super) Arc<Proved>);

impl Proof {
    /// Connects to all members with this boot identity and network namespace, and opens their trial memory.
    ///
    /// Collective. A member alone on its host needs no listener. Strangers that connect are refused.
    ///
    /// # Errors
    /// `Lost` for a member that ended, `TimedOut` naming who has not come, `Disagreed` if a member does not know the
    /// run's key, `Interrupted`, `Invalid` without a listener where there are others, `Exhausted` and `Io`.
    pub fn gather(
        listener: Option<Listener>,
        roster: &Roster,
        index: usize,
        key: &RunKey,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let Some(own) = roster.members.get(index) else {
            let reason = format!("must be below {}", roster.members.len());
            return Err(Error::invalid("index", index, "roster", reason));
        };
        let own = own.introduction.process.clone();
        let trial = Segment::reserve("uform-proof", TRIAL_BYTES)?;
        trial.span_mut().copy_from(crate::sys::Span::of(&random::bytes::<TRIAL_BYTES>()?))?;
        let wanted = mates_of(roster, index);
        let core_count = core_count(roster, wanted.iter().copied().chain([index]));
        let mates = if wanted.is_empty() {
            BTreeMap::new()
        } else {
            let Some(listener) = listener else {
                let reason = "must be given, since other members are on this host";
                return Err(Error::invalid("listener", "none", "communicator", reason));
            };
            let calls = wanted.iter().filter(|to| **to < index).map(|to| (*to, Call::Idle)).collect();
            let gathering = Gathering {
                doorway: listener.doorway,
                roster,
                index,
                key,
                wanted,
                trial: &trial,
                guests: VecDeque::new(),
                calls,
                mates: BTreeMap::new(),
                words: BTreeMap::new(),
            };
            gathering.run(deadline)?
        };
        Ok(Self(Arc::new(Proved { index, own, core_count, mates, _trial: trial })))
    }

    /// Sends a member of this host a file under a name; false if it cannot be reached.
    #[must_use]
    pub fn give_file(&self, index: usize, name: &str, file: &OwnedFd) -> bool {
        let mate = self.0.mates.get(&index);
        mate.is_some_and(|mate| mate.conversation.send(name.as_bytes(), Some(file.as_fd())))
    }

    /// Waits for the file of a name from a member of this host.
    ///
    /// # Errors
    /// `Lost`, `TimedOut` naming it, `Interrupted`; `Unsupported` for a member whose memory this one cannot open.
    pub fn take_file(&self, index: usize, name: &str, deadline: &Deadline<'_>) -> Result<OwnedFd> {
        let Some(mate) = self.0.mates.get(&index) else {
            let why = "this member cannot open its memory, as they run in containers or as users apart";
            return Err(Error::unsupported(format!("a file of index {index}"), why));
        };
        let warning = Warning::new(deadline);
        loop {
            if let Some((_, file)) = mate.letter(name.as_bytes(), name)? {
                return file.ok_or_else(|| socket::unfiled(index));
            }
            let life = || if self.0.is_stopped(index) { STOPPED } else { "alive" };
            let missing = || vec![Missing { index, last_word: format!("{}, has sent no file", life()) }];
            warning.if_late(deadline, || self.0.is_stopped(index), (self.0.index, name), missing);
            deadline.check(name, missing)?;
            socket::wait_readable(&[mate.conversation.descriptor()], deadline.pause());
        }
    }

    /// What was found, for the exchange after the roster.
    #[must_use]
    pub fn findings(&self) -> Findings {
        let mates = self.0.mates.values();
        let own = std::iter::once(self.0.index);
        let mut opened = mates.clone().map(|mate| mate.index).chain(own.clone()).collect::<Vec<_>>();
        let mut readable =
            mates.filter(|mate| mate.is_readable).map(|mate| mate.index).chain(own).collect::<Vec<_>>();
        opened.sort_unstable();
        readable.sort_unstable();
        Findings { opened, readable, ..Findings::default() }
    }
}

/// Members of this machine whose sockets can be reached from here. The same on both sides of every pair.
fn mates_of(roster: &Roster, index: usize) -> Vec<usize> {
    let own = roster.members.get(index).map(|member| member.introduction.process.boot_id.as_str());
    let namespaces = Namespaces::own();
    let others = roster.members.iter().filter(|member| {
        member.index != index
            && Some(member.introduction.process.boot_id.as_str()) == own
            && namespaces.reach(&member.introduction.socket)
    });
    others.map(|member| member.index).collect()
}

fn core_count(roster: &Roster, indexes: impl Iterator<Item = usize>) -> usize {
    let mut cores = Vec::<u32>::new();
    let mut quota = usize::MAX;
    for member in indexes.filter_map(|index| roster.members.get(index)) {
        cores.extend(&member.introduction.cores);
        if let Some(limit) = member.introduction.quota_cores {
            quota = quota.min(usize::try_from(limit).unwrap_or(usize::MAX));
        }
    }
    cores.sort_unstable();
    cores.dedup();
    cores.len().min(quota)
}

/// One who connected, and may be a stranger.
enum Guest {
    New(Conversation),
    Answered(Conversation, usize, Pair),
}

/// One this member connects to.
enum Call {
    Idle,
    Greeted(Conversation, Challenge),
    Proved(Conversation, Pair),
    Done,
}

struct Gathering<'a> {
    doorway: Doorway,
    roster: &'a Roster,
    index: usize,
    key: &'a RunKey,
    wanted: Vec<usize>,
    trial: &'a Segment,
    guests: VecDeque<Guest>,
    calls: BTreeMap<usize, Call>,
    mates: BTreeMap<usize, Mate>,
    words: BTreeMap<usize, String>,
}

impl Gathering<'_> {
    fn run(mut self, deadline: &Deadline<'_>) -> Result<BTreeMap<usize, Mate>> {
        let mut looked = deadline.waited();
        let warning = Warning::new(deadline);
        let phase = format!("{PHASE} of {}", self.roster.run);
        loop {
            while let Some(conversation) = self.doorway.accept()? {
                if !conversation.is_same_user() {
                    tracing::debug!("refused a connection of another user");
                    continue;
                }
                if self.guests.len() >= GUEST_LIMIT.max(self.wanted.len()) {
                    self.guests.pop_front();
                }
                self.guests.push_back(Guest::New(conversation));
            }
            for guest in std::mem::take(&mut self.guests) {
                if let Some(guest) = self.hear_guest(guest)? {
                    self.guests.push_back(guest);
                }
            }
            for (to, call) in std::mem::take(&mut self.calls) {
                let call = self.advance_call(to, call)?;
                self.calls.insert(to, call);
            }
            if self.mates.len() == self.wanted.len() {
                return Ok(self.mates);
            }
            if deadline.waited().saturating_sub(looked) >= DEATH_INTERVAL || deadline.passed() {
                looked = deadline.waited();
                self.check_deaths()?;
                let is_stopped = |index: usize| self.is_stopped(index);
                let is_any_stopped = || self.missing().into_iter().any(is_stopped);
                warning.if_late(deadline, is_any_stopped, (self.index, &phase), || self.last_words());
            }
            deadline.check(PHASE, || self.last_words())?;
            self.sleep(deadline);
        }
    }

    fn missing(&self) -> Vec<usize> {
        self.wanted.iter().copied().filter(|index| !self.mates.contains_key(index)).collect()
    }

    fn is_stopped(&self, index: usize) -> bool {
        warning::is_stopped(self.roster, self.index, index)
    }

    /// Those that are missing, with what is known of each.
    fn last_words(&self) -> Vec<Missing> {
        let words = |index: usize| {
            let life = if self.is_stopped(index) { STOPPED } else { "alive" };
            let silent = || format!("{life}, has not connected");
            self.words.get(&index).cloned().unwrap_or_else(silent)
        };
        self.missing().into_iter().map(|index| Missing { index, last_word: words(index) }).collect()
    }

    fn check_deaths(&self) -> Result<()> {
        let namespaces = Namespaces::own();
        for index in self.missing() {
            let Some(member) = self.roster.members.get(index) else { continue };
            let process = &member.introduction.process;
            if namespaces.share_numbers(&member.introduction.socket)
                && !process::is_alive(process.pid, process.start_ticks)
            {
                return Err(self.lost(index, PHASE.to_owned()));
            }
        }
        Ok(())
    }

    fn sleep(&self, deadline: &Deadline<'_>) {
        let mut sockets = vec![self.doorway.descriptor()];
        sockets.extend(self.guests.iter().map(|guest| match guest {
            Guest::New(conversation) | Guest::Answered(conversation, ..) => conversation.descriptor(),
        }));
        let mut limit = deadline.pause();
        for call in self.calls.values() {
            match call {
                Call::Idle => limit = limit.min(Duration::from_millis(2)),
                Call::Greeted(conversation, _) | Call::Proved(conversation, _) => {
                    sockets.push(conversation.descriptor());
                }
                Call::Done => {}
            }
        }
        socket::wait_readable(&sockets, limit);
    }

    fn lost(&self, index: usize, phase: String) -> Error {
        let process = self.roster.members.get(index).map(|member| &member.introduction.process);
        Error::Lost {
            index,
            host: process.map_or_else(String::new, |process| process.host_name.clone()),
            pid: process.map_or(0, |process| process.pid),
            phase,
        }
    }

    fn address(&self) -> u64 {
        self.trial.span().pointer().addr() as u64
    }

    /// Hears one that connected; gives it back while it is no member yet, and lets strangers go.
    fn hear_guest(&mut self, guest: Guest) -> Result<Option<Guest>> {
        match guest {
            Guest::New(conversation) => {
                let heard = match conversation.hear() {
                    Heard::Silence => return Ok(Some(Guest::New(conversation))),
                    Heard::End => return Ok(None),
                    Heard::Message(bytes, _) => Greeting::decode(&bytes, Medium::Unix),
                };
                let Some(Greeting::Hello { from, to, challenge }) = heard else { return Ok(None) };
                let index = from as usize;
                let is_expected = to as usize == self.index
                    && index > self.index
                    && self.wanted.contains(&index)
                    && !self.mates.contains_key(&index);
                if !is_expected {
                    return Ok(None);
                }
                let own = random::bytes()?;
                let pair = Pair {
                    medium: Medium::Unix,
                    lower: to,
                    higher: from,
                    lower_challenge: own,
                    higher_challenge: challenge,
                };
                let answer = Greeting::Answer { challenge: own, tag: pair.tag(self.key, Side::Lower) };
                if !conversation.send(&answer.encode(Medium::Unix), None) {
                    return Ok(None);
                }
                Ok(Some(Guest::Answered(conversation, index, pair)))
            }
            Guest::Answered(conversation, index, pair) => {
                let (heard, file) = match conversation.hear() {
                    Heard::Silence => return Ok(Some(Guest::Answered(conversation, index, pair))),
                    Heard::End => return Ok(None),
                    Heard::Message(bytes, file) => (Greeting::decode(&bytes, Medium::Unix), file),
                };
                let Some(Greeting::Proof { tag, address }) = heard else { return Ok(None) };
                if !pair.is_proved(self.key, Side::Higher, &tag) {
                    let word = "somebody claimed this index without knowing the run's key";
                    self.words.insert(index, word.to_owned());
                    return Ok(None);
                }
                // It has proved that it is a member, whose file this process has no number for.
                let Some(file) = file else { return Err(socket::unfiled(index)) };
                let welcome = Greeting::Welcome { address: self.address() };
                if !conversation.send(&welcome.encode(Medium::Unix), Some(self.trial.file())) {
                    return Ok(None);
                }
                self.believe(index, conversation, file, address)?;
                Ok(None)
            }
        }
    }

    fn advance_call(&mut self, to: usize, call: Call) -> Result<Call> {
        match call {
            Call::Done => Ok(Call::Done),
            Call::Idle => self.dial(to),
            Call::Greeted(conversation, own) => {
                let heard = match conversation.hear() {
                    Heard::Silence => return Ok(Call::Greeted(conversation, own)),
                    Heard::End => return Ok(Call::Idle),
                    Heard::Message(bytes, _) => Greeting::decode(&bytes, Medium::Unix),
                };
                let (lower, higher) = (number(to), number(self.index));
                let pair = |challenge| Pair {
                    medium: Medium::Unix,
                    lower,
                    higher,
                    lower_challenge: challenge,
                    higher_challenge: own,
                };
                let pair = match heard {
                    Some(Greeting::Answer { challenge, tag })
                        if pair(challenge).is_proved(self.key, Side::Lower, &tag) =>
                    {
                        pair(challenge)
                    }
                    _ => return Err(self.stranger(to)),
                };
                let greeting =
                    Greeting::Proof { tag: pair.tag(self.key, Side::Higher), address: self.address() };
                if !conversation.send(&greeting.encode(Medium::Unix), Some(self.trial.file())) {
                    return Ok(Call::Idle);
                }
                Ok(Call::Proved(conversation, pair))
            }
            Call::Proved(conversation, pair) => {
                let (heard, file) = match conversation.hear() {
                    Heard::Silence => return Ok(Call::Proved(conversation, pair)),
                    Heard::End => return Ok(Call::Idle),
                    Heard::Message(bytes, file) => (Greeting::decode(&bytes, Medium::Unix), file),
                };
                let Some(Greeting::Welcome { address }) = heard else { return Err(self.stranger(to)) };
                let Some(file) = file else { return Err(socket::unfiled(to)) };
                self.believe(to, conversation, file, address)?;
                Ok(Call::Done)
            }
        }
    }

    fn dial(&self, to: usize) -> Result<Call> {
        let address = self.roster.members.get(to).map_or("", |member| member.introduction.socket.as_str());
        match Conversation::reach(address)? {
            Reached::Busy => Ok(Call::Idle),
            Reached::Nobody => Err(self.lost(to, format!("{PHASE} (nobody listens at {address})"))),
            Reached::Open(conversation) => {
                if !conversation.is_same_user() {
                    return Err(self.stranger(to));
                }
                let challenge = random::bytes()?;
                let hello = Greeting::Hello { from: number(self.index), to: number(to), challenge };
                if conversation.send(&hello.encode(Medium::Unix), None) {
                    Ok(Call::Greeted(conversation, challenge))
                } else {
                    Ok(Call::Idle)
                }
            }
        }
    }

    fn stranger(&self, index: usize) -> Error {
        Error::Disagreed {
            field: "the run's key".to_owned(),
            mine: format!("index {} knows it", self.index),
            theirs: "does not prove it at its socket".to_owned(),
            index,
        }
    }

    fn believe(
        &mut self,
        index: usize,
        conversation: Conversation,
        file: OwnedFd,
        address: u64,
    ) -> Result<()> {
        let Some(member) = self.roster.members.get(index) else { return Ok(()) };
        let process = member.introduction.process.clone();
        let trial = Segment::adopt("uform-proof", file, TRIAL_BYTES)?;
        // The number as this process's namespace counts it, whatever the roster says.
        let pid = conversation.credentials()?.0.filter(|pid| *pid != process::pid());
        let peer = pid.and_then(|pid| Peer::open(pid, process.start_ticks));
        let is_readable = peer.as_ref().is_some_and(|peer| {
            let mut bytes = [0u8; TRIAL_BYTES];
            peer.read(address, &mut SpanMut::of(&mut bytes)) && bytes[..] == trial.span().to_vec()[..]
        });
        let mate =
            Mate { index, process, conversation, peer, is_readable, inbox: Mutex::new(VecDeque::new()) };
        self.mates.insert(index, mate);
        Ok(())
    }
}

fn number(index: usize) -> u32 {
    // Indexes beyond 32 bits do not exist: a roster of them would not fit in memory.
    u32::try_from(index).unwrap_or(u32::MAX)
}
