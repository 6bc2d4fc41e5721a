//! Connecting to the members of other hosts: all published addresses at once, the run's key proved on each connection.
//!
//! The member with the higher index connects. A stranger costs one place among the guests for a few seconds, and hears
//! nothing that it could not have made up.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::address::{self, Publication, Published, Selection};
use super::dial::{Dial, Step};
use crate::communicator::carrier::Carrier;
use crate::communicator::handshake::{GREETING_LIMIT, Greeting, Medium, Pair, Side};
use crate::communicator::warning::{self, STOPPED, Warning};
use crate::error::{Error, Missing, Result};
use crate::rendezvous::RunKey;
use crate::sys::network::{self, Interface, Moved, Port, Stream};
use crate::sys::{Deadline, Span, SpanMut, random};
use crate::topology::{Process, Roster};

/// The connections to each member, in the order in which they are made.
const MEDIA: [Medium; 3] = [Medium::Control, Medium::Data, Medium::Pair];
pub(super) const PHASE: &str = "connecting to the members of other hosts";
/// How long one who connected may take to prove the run's key.
pub(super) const GREETING_TIME: Duration = Duration::from_secs(5);
/// Strangers that may be connected at a time; the one that waits longest is refused first.
const GUEST_LIMIT: usize = 64;
/// Connections accepted between two looks at the others.
const ACCEPT_LIMIT: usize = 64;
/// Descriptors for everything but connections to members.
const DESCRIPTOR_RESERVE: usize = 512;
/// When a member that has not connected is asked whether it still listens.
const PROBE_AFTER: Duration = Duration::from_secs(1);

/// Sockets at the addresses of this host that other hosts can reach, open before these are published.
#[derive(Debug)]
pub struct Listener {
    ports: Vec<Port>,
    publication: Publication,
    interfaces: Vec<Interface>,
}

impl Listener {
    /// Listens at each address that other hosts can reach, or that the user chose; on ports that the kernel chooses.
    ///
    /// Loopback is used only if all members live in one network namespace. `why_needed` is for messages.
    ///
    /// # Errors
    /// `Unsupported` if this host has no such address, `Invalid` if the user's choice leaves none, both with the
    /// interfaces found; `Io` if the system refuses all of them.
    pub fn open(selection: Option<Selection<'_>>, is_one_namespace: bool, why_needed: &str) -> Result<Self> {
        let interfaces = network::interfaces()?;
        let (chosen, mut notes) = address::choose(&interfaces, selection, is_one_namespace, why_needed)?;
        let (mut ports, mut addresses, mut refusal) = (Vec::new(), Vec::new(), None);
        for (one, reason) in chosen {
            match Port::open(one.address, one.number) {
                Ok(port) => {
                    let mut published = port.address();
                    if let SocketAddr::V6(address) = &mut published {
                        // The number of a link means nothing on another host.
                        address.set_scope_id(0);
                    }
                    addresses.push(Published { address: published, name: one.name, reason });
                    ports.push(port);
                }
                Err(error) => {
                    notes.push(format!("{one} ({})", error.chain()));
                    refusal = Some(error);
                }
            }
        }
        match refusal {
            Some(error) if ports.is_empty() => Err(error),
            _ => Ok(Self { ports, publication: Publication { addresses, notes }, interfaces }),
        }
    }

    /// What the other members need to connect to this one, to be exchanged.
    #[must_use]
    pub fn publication(&self) -> Vec<u8> {
        self.publication.encode()
    }

    /// Where this member listens and what it left out, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        self.publication.to_string()
    }
}

/// One member of another host, and the connection for sends and receives.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) link: Link,
    pub(super) pair: Carrier,
}

/// One member of another host, as the calls of the group need it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) process: Process,
    /// Where it listened and what it left out, for messages.
    pub(super) published: String,
    /// Agrees on calls and tells of death.
    pub(super) control: Carrier,
    /// Carries payload.
    pub(super) data: Carrier,
}

/// Connections to other members, each of which has proved the run's key.
#[derive(Debug)]
pub struct Links {
    pub(super) index: usize,
    pub(super) own: Process,
    pub(super) silence: Duration,
    pub(super) links: BTreeMap<usize, Linked>,
}

impl Links {
    /// Members that MPI carries to: `channels` gives three streams for each of the `wanted` ones but this.
    pub(in crate::communicator) fn of_mpi(
        roster: &Roster,
        index: usize,
        wanted: &[usize],
        channels: impl Fn(usize) -> [Carrier; 3],
    ) -> Result<Self> {
        let process = |member: usize| match roster.members.get(member) {
            Some(member) => Ok(member.introduction.process.clone()),
            None => {
                let reason = format!("must be below {}", roster.members.len());
                Err(Error::invalid("index", member, "roster", reason))
            }
        };
        let link = |member: &usize| {
            let [control, data, pair] = channels(*member);
            let published = format!("rank {member} of MPI");
            let link = Link { process: process(*member)?, published, control, data };
            Ok((*member, Linked { link, pair }))
        };
        let links = wanted.iter().filter(|member| **member != index).map(link).collect::<Result<_>>()?;
        Ok(Self { index, own: process(index)?, silence: Duration::ZERO, links })
    }
}

/// The run, as one of its members connects to the others.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// All members.
    pub roster: &'a Roster,
    /// The index of this one.
    pub index: usize,
    /// What every connection proves.
    pub key: &'a RunKey,
    /// What each member published, by index.
    pub published: &'a [Vec<u8>],
    /// How long a host may answer nothing before it counts as lost.
    pub silence: Duration,
}

impl Links {
    /// Connects to the `wanted` members of a run.
    ///
    /// Collective. Strangers that connect are refused.
    ///
    /// # Errors
    /// `Lost` for a member at whose addresses nobody listens any more, `TimedOut` naming who is not connected, with what
    /// it published and how each address answered; `Interrupted`, `Invalid` and `Io`.
    pub fn connect(
        listener: Listener,
        run: Run<'_>,
        wanted: &[usize],
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let count = run.roster.members.len();
        if let Some(outside) = wanted.iter().chain([&run.index]).find(|wanted| **wanted >= count) {
            let reason = format!("must be below {count}");
            return Err(Error::invalid("index", outside, "roster", reason));
        }
        let own = run.roster.members[run.index].introduction.process.clone();
        // Three connections to each, attempts at several addresses, and what the program itself has open.
        // Few who are near need fewer: opening the one too many says so.
        let _ = network::make_room(5 * wanted.len() + DESCRIPTOR_RESERVE);
        let gathering = Gathering {
            listener,
            roster: run.roster,
            index: run.index,
            key: run.key,
            silence: run.silence,
            wanted: wanted.iter().copied().filter(|other| *other != run.index).collect(),
            publications: run.published.iter().map(|bytes| Publication::decode(bytes)).collect(),
            start: Instant::now(),
            guests: VecDeque::new(),
            dials: BTreeMap::new(),
            streams: BTreeMap::new(),
            words: BTreeMap::new(),
        };
        let links = gathering.run(deadline)?;
        Ok(Self { index: run.index, own, silence: run.silence, links })
    }
}

/// Messages of a handshake as they come: one byte of length, then a greeting. Nothing beyond it is read.
#[derive(Debug, Default)]
pub(super) struct Letterbox(Vec<u8>);

/// What a look at a letterbox gave.
pub(super) enum Letter {
    Message(Vec<u8>),
    Silence,
    /// The other side is gone, or sent what no member sends.
    End,
}

impl Letterbox {
    pub(super) fn hear(&mut self, stream: &Stream) -> Letter {
        loop {
            let whole = match self.0.first().map(|length| usize::from(*length)) {
                None => 1,
                Some(length) if (1..=GREETING_LIMIT).contains(&length) => 1 + length,
                Some(_) => return Letter::End,
            };
            if whole > 1 && self.0.len() == whole {
                let message = self.0.split_off(1);
                self.0.clear();
                return Letter::Message(message);
            }
            let mut part = vec![0; whole - self.0.len()];
            match stream.receive(&mut SpanMut::of(&mut part)) {
                Moved::Bytes(count) => self.0.extend_from_slice(&part[..count]),
                Moved::Busy => return Letter::Silence,
                Moved::End | Moved::Broken(_) => return Letter::End,
            }
        }
    }
}

/// Sends one greeting; false if the connection does not take it whole, which a new one always does.
pub(super) fn say(stream: &Stream, greeting: &Greeting, medium: Medium) -> bool {
    let body = greeting.encode(medium);
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    let bytes = [&[length][..], &body].concat();
    matches!(stream.send(Span::of(&bytes)), Moved::Bytes(count) if count == bytes.len())
}

/// One who connected, and may be a stranger.
struct Guest {
    stream: Stream,
    since: Instant,
    letterbox: Letterbox,
    /// Who it claims to be, once it was answered.
    claim: Option<(usize, Pair)>,
}

struct Gathering<'a> {
    listener: Listener,
    roster: &'a Roster,
    index: usize,
    key: &'a RunKey,
    silence: Duration,
    wanted: Vec<usize>,
    publications: Vec<Publication>,
    start: Instant,
    guests: VecDeque<Guest>,
    dials: BTreeMap<usize, Dial>,
    streams: BTreeMap<(usize, Medium), Stream>,
    words: BTreeMap<usize, String>,
}

impl Gathering<'_> {
    fn run(mut self, deadline: &Deadline<'_>) -> Result<BTreeMap<usize, Linked>> {
        let warning = Warning::new(deadline);
        loop {
            self.accept()?;
            for guest in std::mem::take(&mut self.guests) {
                if let Some(guest) = self.hear_guest(guest)? {
                    self.guests.push_back(guest);
                }
            }
            self.dial()?;
            self.let_go_of_ended();
            if self.missing().next().is_none() {
                return self.links();
            }
            let missing = || {
                let word = |index| Missing { index, last_word: self.last_word(index) };
                self.missing().map(word).collect()
            };
            let is_any_stopped = || self.missing().any(|index| self.is_stopped(index));
            warning.if_late(deadline, is_any_stopped, (self.index, PHASE), missing);
            deadline.check(PHASE, missing)?;
            self.sleep(deadline);
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        let has = |index: usize, medium: Medium| self.streams.contains_key(&(index, medium));
        let is_missing = move |index: &usize| !MEDIA.iter().all(|medium| has(*index, *medium));
        self.wanted.iter().copied().filter(is_missing)
    }

    fn links(mut self) -> Result<BTreeMap<usize, Linked>> {
        let mut links = BTreeMap::new();
        for index in self.wanted {
            let streams = &mut self.streams;
            let [Some(control), Some(data), Some(pair)] =
                MEDIA.map(|medium| streams.remove(&(index, medium)))
            else {
                continue;
            };
            let process = self.roster.members[index].introduction.process.clone();
            let published = self.publications.get(index).map(ToString::to_string).unwrap_or_default();
            control.watch_host(self.silence)?;
            let [control, data, pair] = [control, data, pair].map(Carrier::Network);
            let link = Link { process, published, control, data };
            links.insert(index, Linked { link, pair });
        }
        Ok(links)
    }

    /// Whether a member of the same kernel, in another container for example, is stopped.
    fn is_stopped(&self, index: usize) -> bool {
        warning::is_stopped(self.roster, self.index, index)
    }

    fn last_word(&self, index: usize) -> String {
        let published = self.publications.get(index).map(ToString::to_string).unwrap_or_default();
        let published = if published.is_empty() { "nothing".to_owned() } else { published };
        let attempts = self.dials.get(&index).map(Dial::words).unwrap_or_default();
        let word = self.words.get(&index).map(String::as_str);
        let silent = if index > self.index { "has not connected" } else { "is not connected" };
        let word = word.unwrap_or(if self.is_stopped(index) { STOPPED } else { silent });
        format!("{word}; it published {published}{attempts}")
    }

    fn accept(&mut self) -> Result<()> {
        let limit = GUEST_LIMIT.max(3 * self.wanted.len());
        for port in &self.listener.ports {
            for _ in 0..ACCEPT_LIMIT {
                let Some(stream) = port.accept()? else { break };
                if self.guests.len() >= limit {
                    self.guests.pop_front();
                }
                let (since, letterbox) = (Instant::now(), Letterbox::default());
                self.guests.push_back(Guest { stream, since, letterbox, claim: None });
            }
        }
        Ok(())
    }

    /// Hears one that connected; gives it back while it is no member yet, and lets strangers go.
    fn hear_guest(&mut self, mut guest: Guest) -> Result<Option<Guest>> {
        let bytes = match guest.letterbox.hear(&guest.stream) {
            Letter::Silence if guest.since.elapsed() < GREETING_TIME => return Ok(Some(guest)),
            Letter::Silence | Letter::End => return Ok(None),
            Letter::Message(bytes) => bytes,
        };
        match guest.claim {
            None => {
                let Some((index, pair)) = self.claim(&bytes)? else { return Ok(None) };
                let answer = Greeting::Answer {
                    challenge: pair.lower_challenge,
                    tag: pair.tag(self.key, Side::Lower),
                };
                if !say(&guest.stream, &answer, pair.medium) {
                    return Ok(None);
                }
                guest.claim = Some((index, pair));
                Ok(Some(guest))
            }
            Some((index, pair)) => {
                let Some(Greeting::Proof { tag, .. }) = Greeting::decode(&bytes, pair.medium) else {
                    return Ok(None);
                };
                if !pair.is_proved(self.key, Side::Higher, &tag) {
                    let word = "somebody claimed this index without knowing the run's key";
                    self.words.insert(index, word.to_owned());
                    return Ok(None);
                }
                if say(&guest.stream, &Greeting::Welcome { address: 0 }, pair.medium) {
                    // A second control connection means that the first one never got its welcome.
                    if pair.medium == Medium::Control {
                        self.streams.remove(&(index, Medium::Data));
                        self.streams.remove(&(index, Medium::Pair));
                    }
                    self.words.remove(&index);
                    self.streams.insert((index, pair.medium), guest.stream);
                }
                Ok(None)
            }
        }
    }

    /// Who says hello, if it is one that this member waits for.
    fn claim(&self, bytes: &[u8]) -> Result<Option<(usize, Pair)>> {
        let medium = MEDIA.into_iter();
        let mut hellos = medium.filter_map(|medium| Some((medium, Greeting::decode(bytes, medium)?)));
        let Some((medium, Greeting::Hello { from, to, challenge })) = hellos.next() else { return Ok(None) };
        let index = from as usize;
        let is_expected = to as usize == self.index
            && index > self.index
            && self.wanted.contains(&index)
            && (medium == Medium::Control || self.streams.contains_key(&(index, Medium::Control)));
        if !is_expected {
            return Ok(None);
        }
        let lower_challenge = random::bytes()?;
        Ok(Some((
            index,
            Pair { medium, lower: to, higher: from, lower_challenge, higher_challenge: challenge },
        )))
    }

    /// Goes on with every connection that this member makes.
    fn dial(&mut self) -> Result<()> {
        let is_late = self.start.elapsed() > PROBE_AFTER;
        for index in self.missing().collect::<Vec<_>>() {
            // Those above connect to this member; after a while it only asks whether they still listen.
            let is_probe = index > self.index;
            if is_probe && (!is_late || self.streams.contains_key(&(index, Medium::Control))) {
                continue;
            }
            let published = self.publications.get(index).map_or(&[][..], |found| &found.addresses);
            let own = &self.listener.interfaces;
            let dial = self
                .dials
                .entry(index)
                .or_insert_with(|| Dial::new(self.index, index, is_probe, published, own));
            match dial.step(self.key)? {
                Step::Waits => {}
                Step::Connected(medium, stream) => {
                    self.streams.insert((index, medium), stream);
                }
                Step::Refused(words) => {
                    let process = &self.roster.members[index].introduction.process;
                    return Err(Error::Lost {
                        index,
                        host: process.host_name.clone(),
                        pid: process.pid,
                        phase: format!("{PHASE}: its process has ended, or a firewall refuses ({words})"),
                    });
                }
            }
        }
        Ok(())
    }

    /// Forgets connections that ended before all were made; they are made again, or their member is found to be gone.
    fn let_go_of_ended(&mut self) {
        let ended = self.streams.iter().filter(|(_, stream)| stream.has_ended());
        let ended = ended.map(|((index, _), _)| *index).collect::<Vec<_>>();
        for index in ended {
            for medium in MEDIA {
                self.streams.remove(&(index, medium));
            }
            self.dials.remove(&index);
            self.words.insert(index, "was connected, and closed the connection".to_owned());
        }
    }

    fn sleep(&self, deadline: &Deadline<'_>) {
        let mut limit = deadline.pause();
        let mut awaited =
            self.listener.ports.iter().map(|port| (port.descriptor(), true, false)).collect::<Vec<_>>();
        awaited.extend(self.guests.iter().map(|guest| (guest.stream.descriptor(), true, false)));
        for dial in self.dials.values() {
            limit = dial.await_next(&mut awaited).map_or(limit, |next| limit.min(next));
        }
        network::wait(&awaited, limit);
    }
}
