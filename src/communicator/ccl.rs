//! GPU memory: NCCL and RCCL, one adapter over two function tables, beside a group in host memory.
//!
//! The group in host memory agrees on every call before payload moves, and tells of members that end: the vendors' libraries do
//! neither, and would wait for ever.

mod tier;
mod work;

use std::sync::{Arc, Mutex, PoisonError};

pub use work::{Share, Work, check_supported};

use self::tier::Tiers;
use super::{Call, Communicator, descriptor};
use crate::error::{Error, Result};
use crate::sys::ccl::{self, Library, Refusal, UniqueId};
use crate::sys::gpu::{Region, Stream};
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::{ReduceOp, Verb};

/// Bytes of what a member says before the group is formed.
const NOTE: usize = 3072;

/// The most and the fewest bytes of scratch on each GPU for a reduce_scatter through tiers.
const SCRATCH: (usize, usize) = (16 << 20, 16 << 10);

/// What a member brings to a group of GPUs.
pub struct Own {
    /// One stream for each GPU, in the order of its executor.
    pub streams: Vec<Arc<Stream>>,
    /// The number of the multimem domain of each, as the topology of all members counts them.
    pub domains: Vec<Option<u32>>,
    /// The bytes of scratch that calls may take of each GPU; 0 for no limit.
    pub scratch_limit: u64,
}

/// A group of members with one GPU or several each: every GPU is a rank, in the order of members and of their executors.
pub struct GpuGroup {
    host: Arc<dyn Communicator>,
    engine: Arc<ccl::Communicator>,
    /// The rank of this member's first GPU, and how many there are.
    first: usize,
    count: usize,
    tiers: Option<Tiers>,
    /// As many bytes on each GPU of all members; none where nothing needs them.
    scratch: Vec<Region>,
    scratch_bytes: usize,
    /// Why no call is possible any more.
    broken: Mutex<Option<String>>,
}

impl std::fmt::Debug for GpuGroup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (host, gpus) = (&self.host, self.engine.streams().len());
        write!(formatter, "GpuGroup(seat {} of {}, {gpus} GPUs of {})", host.seat(), host.count(), self.count)
    }
}

/// What a member says before the group is formed.
#[derive(Debug, PartialEq, Eq)]
struct Note {
    /// The library and its version; empty if there is none.
    library: String,
    /// The names of its GPUs.
    gpus: String,
    /// Why there is no library, or no GPU.
    reason: String,
    /// The domain of each GPU.
    domains: Vec<Option<u32>>,
}

impl Note {
    fn encode(&self) -> [u8; NOTE] {
        let mut bytes = [0; NOTE];
        let cut = |text: &str, limit: usize| text[..text.floor_char_boundary(limit)].replace('\0', " ");
        let number =
            |domain: &Option<u32>| domain.map_or_else(|| "-".to_owned(), |domain| domain.to_string());
        let domains = self.domains.iter().map(number).collect::<Vec<_>>().join(",");
        let text =
            [domains, cut(&self.library, 40), cut(&self.gpus, 1500), cut(&self.reason, 500)].join("\0");
        let text = cut_to(&text, NOTE);
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split('\0').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        let domains = next();
        let domains = domains.split(',').filter(|number| !number.is_empty());
        let domains = domains.map(|number| number.parse().ok()).collect();
        Self { domains, library: next(), gpus: next(), reason: next() }
    }
}

fn cut_to(text: &str, limit: usize) -> &str {
    &text[..text.floor_char_boundary(limit)]
}

/// What all members say, by their seats.
fn gather(host: &dyn Communicator, own: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![0; own.len() * host.count()];
    let output = SpanMut::of(&mut all[..]);
    host.run(Call::of::<u8>(Verb::Exchange, ReduceOp::Sum, 0, Some(Span::of(own)), output), deadline)?;
    Ok(all.chunks(own.len()).map(<[u8]>::to_vec).collect())
}

impl GpuGroup {
    /// Forms the group beside one in host memory; all its members call it, each with its GPUs, or what it has instead and why it
    /// cannot take part.
    ///
    /// # Errors
    /// On all members alike: `Unsupported` naming the first member without a library, `Disagreed` for different libraries or
    /// versions; `Vendor` naming member and GPU; `Lost`, `TimedOut`, `Interrupted`.
    pub fn join(
        host: &Arc<dyn Communicator>,
        library: std::result::Result<Library, Refusal>,
        own: std::result::Result<Own, (String, String)>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let gpus = match &own {
            Ok(own) => own.streams.iter().map(|stream| stream.device().name()).collect::<Vec<_>>().join(", "),
            Err((gpus, _)) => gpus.clone(),
        };
        let (library_name, reason) = match (&library, &own) {
            (_, Err((_, why))) => (String::new(), why.clone()),
            (Ok(library), Ok(_)) => {
                (format!("{} {}", ccl::name(library.vendor()), library.version()), String::new())
            }
            (Err(refusal), Ok(_)) => (String::new(), format!("{}; {}", refusal.remedy, refusal.reason)),
        };
        let domains = own.as_ref().map_or_else(|_| Vec::new(), |own| own.domains.clone());
        let note = Note { library: library_name, gpus, reason, domains };
        let notes = gather(host.as_ref(), &note.encode(), deadline)?;
        let notes = notes.iter().map(|bytes| Note::decode(bytes)).collect::<Vec<_>>();
        let named = |seat: usize| format!("index {seat} on {}", notes[seat].gpus);
        if let Some(seat) = notes.iter().position(|note| note.library.is_empty()) {
            let what = format!("a call on GPU memory: {}", named(seat));
            return Err(Error::unsupported(what, notes[seat].reason.clone()));
        }
        let seat = host.seat();
        if let Some(other) = notes.iter().position(|other| other.library != notes[seat].library) {
            return Err(Error::Disagreed {
                field: "the collective library (install one version for all members)".to_owned(),
                mine: format!("{} ({})", notes[seat].library, named(seat)),
                theirs: format!("{} ({})", notes[other].library, named(other)),
                index: other,
            });
        }
        let own =
            own.map_err(|(gpus, why)| Error::unsupported(format!("a call on GPU memory: {gpus}"), why))?;
        let library = Arc::new(library.map_err(|refusal| refusal.error("a call on GPU memory"))?);
        let first = notes[..seat].iter().map(|note| note.domains.len()).sum();
        let domains = notes.iter().flat_map(|note| note.domains.iter().copied()).collect::<Vec<_>>();
        let (count, tiers) = (domains.len(), Tiers::derive(&domains));
        let names = notes.into_iter().map(|note| note.gpus).collect::<Vec<_>>();
        let id = shared_id(host.as_ref(), &library, &names, deadline)?;
        let doing = "joining a communicator of GPUs";
        let mut peers = || check_peers(host.as_ref(), doing);
        let opened =
            ccl::Communicator::open(&library, &own.streams, id, (first, count), &mut peers, deadline)
                .and_then(|engine| {
                    if let Some(tiers) = &tiers {
                        let places = first..first + own.streams.len();
                        let inside = places.clone().map(|place| tiers.inside(place)).collect::<Vec<_>>();
                        let across = places.map(|place| tiers.across(place)).collect::<Vec<_>>();
                        engine.split(&inside, &mut peers, deadline)?;
                        engine.split(&across, &mut peers, deadline)?;
                    }
                    Ok(engine)
                });
        let engine = opened.map_err(|error| ended(error, host.as_ref(), doing))?;
        tracing::debug!(index = seat, gpus = count, ?tiers, "a group of GPUs");
        let (scratch, scratch_bytes) = match &tiers {
            Some(_) => scratch(host.as_ref(), &own, deadline)?,
            None => (Vec::new(), 0),
        };
        let (host, engine) = (Arc::clone(host), Arc::new(engine));
        Ok(Self { host, engine, first, count, tiers, scratch, scratch_bytes, broken: Mutex::new(None) })
    }

    /// The place of this member's first GPU among all.
    #[must_use]
    pub const fn first(&self) -> usize {
        self.first
    }

    /// How many GPUs all members have.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// What this member's GPUs do for a call, each with its share.
    ///
    /// # Errors
    /// `Invalid` for arrays of other lengths, with the position of the GPU.
    pub fn work<'a>(&'a self, shares: &[Share<'a>]) -> std::result::Result<Work<'a>, (usize, Error)> {
        let spans = self.scratch.iter().map(|region| region.span(&(0..self.scratch_bytes)));
        let scratch = spans.collect::<Result<Vec<_>>>().map_err(|error| (0, error))?;
        Work::of(shares, self.tiers.as_ref(), &scratch)
    }

    /// Why it makes no calls any more, if an earlier one ended it.
    ///
    /// # Errors
    /// `Closed`, with what the earlier call ended in.
    pub fn check(&self) -> Result<()> {
        match self.broken.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            None => Ok(()),
            Some(error) => {
                let why = format!("an earlier call on GPU memory ended it: {error}");
                Err(Error::Closed { what: "the group of GPUs".to_owned(), why })
            }
        }
    }

    /// Has the library know the memory of a region, so that it moves it without a copy where it can; no call may be under way.
    pub fn register(&self, region: &Region) {
        self.engine.register(region);
    }

    /// The streams that its work is on, one for each GPU of this member.
    #[must_use]
    pub fn streams(&self) -> &[Arc<Stream>] {
        self.engine.streams()
    }

    /// Moves the payload of a call that all members have agreed on; the output is there when it returns.
    ///
    /// # Errors
    /// `Lost`, `TimedOut`, `Interrupted`, `Vendor`: the group has ended on all members.
    pub fn run(&self, work: &Work<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if work.steps.is_empty() {
            return Ok(());
        }
        let mut peers = || check_peers(self.host.as_ref(), &work.words);
        self.engine
            .run(&work.steps, &mut peers, deadline)
            .map_err(|error| ended(error, self.host.as_ref(), &work.words))
    }

    /// Ends it because a call did, at whatever point: an orderly end would wait for a member that has gone.
    pub fn fail(&self, error: &Error) {
        if descriptor::ends_group(error) {
            self.engine.abort();
            let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
            broken.get_or_insert_with(|| error.to_string());
        }
    }

    /// Ends the group in order where all its calls have ended, else at once.
    pub fn close(&self) {
        if let Err(error) = self.engine.finish() {
            tracing::debug!(%error, "a group of GPUs was cut off");
        }
    }
}

/// Scratch on each of this member's GPUs, and how many bytes of it all members have; none if one of them has none.
fn scratch(host: &dyn Communicator, own: &Own, deadline: &Deadline<'_>) -> Result<(Vec<Region>, usize)> {
    let (most, fewest) = SCRATCH;
    let mut byte_count = match usize::try_from(own.scratch_limit).unwrap_or(usize::MAX) {
        0 => most,
        limit => most.min(limit),
    };
    let take = |byte_count: usize| {
        let regions = own.streams.iter().map(|stream| Region::take(stream, byte_count));
        regions.collect::<Result<Vec<_>>>().ok()
    };
    let mut taken = None;
    while byte_count >= fewest && taken.is_none() {
        taken = take(byte_count);
        // A GPU that has not so much may have a part of it.
        byte_count = if taken.is_some() { byte_count } else { byte_count / 4 };
    }
    let own_bytes = if taken.is_some() { byte_count as u64 } else { 0 };
    let all = gather(host, &own_bytes.to_le_bytes(), deadline)?;
    let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let least = all.iter().map(number).min().and_then(|least| usize::try_from(least).ok()).unwrap_or(0);
    Ok(if least == 0 { (Vec::new(), 0) } else { (taken.unwrap_or_default(), least) })
}

/// The id that seat 0 draws; that it could not is told to all.
fn shared_id(
    host: &dyn Communicator,
    library: &Library,
    gpus: &[String],
    deadline: &Deadline<'_>,
) -> Result<UniqueId> {
    let drawn = if host.seat() == 0 { library.unique_id() } else { Ok(UniqueId([0; 128])) };
    let own = drawn.as_ref().map_or([0; 128], |id| id.0);
    let all = gather(host, &own, deadline)?;
    let id = UniqueId(<[u8; 128]>::try_from(all[0].as_slice()).unwrap_or([0; 128]));
    drawn?;
    if id.0 == [0; 128] {
        let why = "it could not draw the id of a communicator; its own error says why".to_owned();
        return Err(Error::unsupported(format!("index 0 on {}", gpus[0]), why));
    }
    Ok(id)
}

/// Fails if a member has ended, or has given up.
fn check_peers(host: &dyn Communicator, doing: &str) -> Result<()> {
    host.check().map_err(|error| match error {
        Error::Lost { index, host, pid, phase } => {
            Error::Lost { index, host, pid, phase: format!("{doing}: {phase}") }
        }
        other => other,
    })
}

/// Ends the group in host memory too, so that the others leave their GPUs' work and hear why; names this member in the error.
fn ended(error: Error, host: &dyn Communicator, phase: &str) -> Error {
    let error = error.of_member(host.seat());
    if !matches!(error, Error::Lost { .. }) {
        host.give_up(&error, phase);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_member_says_is_read_as_it_was_said() {
        let note = Note {
            library: "NCCL 2.27.5".to_owned(),
            gpus: "GPU 0 (a, GPU-0), GPU 1 (b, GPU-1)".to_owned(),
            reason: String::new(),
            domains: vec![Some(3), None],
        };
        assert_eq!(Note::decode(&note.encode()), note);
        let long =
            Note { gpus: "ä".repeat(9000), reason: "b".repeat(9000), domains: vec![None; 500], ..note };
        let read = Note::decode(&long.encode());
        assert_eq!((read.domains.len(), read.library), (500, "NCCL 2.27.5".to_owned()));
    }
}
