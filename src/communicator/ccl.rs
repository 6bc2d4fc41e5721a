//! GPU memory: NCCL and RCCL, one adapter over two function tables, beside a group in host memory.
//!
//! The group in host memory agrees on every call before payload moves, and tells of members that end: the vendors' libraries do
//! neither, and would wait for ever.

use std::sync::{Arc, Mutex, PoisonError};

use super::descriptor::{self, reduces};
use super::parts::places;
use super::{Call, Communicator};
use crate::error::{Error, Result};
use crate::sys::ccl::{self, Act, Library, Operation, Refusal, UniqueId};
use crate::sys::gpu::{GpuSpan, Region, Stream};
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::{ReduceOp, Verb};

/// Bytes of what a member says before the group is formed.
const NOTE: usize = 768;

/// What one member puts on its stream for a call that all have agreed on.
pub struct Work<'a> {
    operations: Vec<Operation<'a>>,
    /// The call, for messages.
    words: String,
}

/// A group of members with one GPU each.
pub struct GpuGroup {
    host: Arc<dyn Communicator>,
    engine: Arc<ccl::Communicator>,
    /// Why no call is possible any more.
    broken: Mutex<Option<String>>,
}

impl std::fmt::Debug for GpuGroup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "GpuGroup(seat {} of {})", self.host.seat(), self.host.count())
    }
}

/// What a member says before the group is formed.
struct Note {
    /// The library and its version; empty if there is none.
    library: String,
    gpu: String,
    /// Why there is none.
    reason: String,
}

impl Note {
    fn encode(&self) -> [u8; NOTE] {
        let mut bytes = [0; NOTE];
        let cut = |text: &str, limit: usize| text[..text.floor_char_boundary(limit)].replace('\0', " ");
        let text = [cut(&self.library, 40), cut(&self.gpu, 160), cut(&self.reason, 500)].join("\0");
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split('\0').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        Self { library: next(), gpu: next(), reason: next() }
    }
}

/// What all members say, by their seats.
fn gather(host: &dyn Communicator, own: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
    let mut all = vec![0; own.len() * host.count()];
    let output = SpanMut::of(&mut all[..]);
    host.run(Call::of::<u8>(Verb::Exchange, ReduceOp::Sum, 0, Some(Span::of(own)), output), deadline)?;
    Ok(all.chunks(own.len()).map(<[u8]>::to_vec).collect())
}

impl GpuGroup {
    /// Forms the group beside one in host memory; all its members call it, each with the stream of its GPU, or what it has instead
    /// and why it cannot take part.
    ///
    /// # Errors
    /// On all members alike: `Unsupported` naming the first member without a library, `Disagreed` for different libraries or
    /// versions; `Vendor` naming member and GPU; `Lost`, `TimedOut`, `Interrupted`.
    pub fn join(
        host: &Arc<dyn Communicator>,
        library: std::result::Result<Library, Refusal>,
        stream: std::result::Result<Arc<Stream>, (String, String)>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let gpu = match &stream {
            Ok(stream) => stream.device().name().to_owned(),
            Err((gpus, _)) => gpus.clone(),
        };
        let note = match (&library, &stream) {
            (_, Err((_, why))) => Note { library: String::new(), gpu, reason: why.clone() },
            (Ok(library), Ok(_)) => {
                let library = format!("{} {}", ccl::name(library.vendor()), library.version());
                Note { library, gpu, reason: String::new() }
            }
            (Err(refusal), Ok(_)) => Note {
                library: String::new(),
                gpu,
                reason: format!("{}; {}", refusal.remedy, refusal.reason),
            },
        };
        let notes = gather(host.as_ref(), &note.encode(), deadline)?;
        let notes = notes.iter().map(|bytes| Note::decode(bytes)).collect::<Vec<_>>();
        let named = |seat: usize| format!("index {seat} on {}", notes[seat].gpu);
        if let Some(seat) = notes.iter().position(|note| note.library.is_empty()) {
            let what = format!("a call on GPU memory: {}", named(seat));
            return Err(Error::unsupported(what, notes[seat].reason.clone()));
        }
        let own = host.seat();
        if let Some(seat) = notes.iter().position(|other| other.library != notes[own].library) {
            return Err(Error::Disagreed {
                field: "the collective library (install one version for all members)".to_owned(),
                mine: format!("{} ({})", notes[own].library, named(own)),
                theirs: format!("{} ({})", notes[seat].library, named(seat)),
                index: seat,
            });
        }
        let stream =
            stream.map_err(|(gpus, why)| Error::unsupported(format!("a call on GPU memory: {gpus}"), why))?;
        let library = Arc::new(library.map_err(|refusal| refusal.error("a call on GPU memory"))?);
        let gpus = notes.into_iter().map(|note| note.gpu).collect::<Vec<_>>();
        let id = shared_id(host.as_ref(), &library, &gpus, deadline)?;
        let mut peers = || check_peers(host.as_ref(), "joining a communicator of GPUs");
        let engine =
            ccl::Communicator::open(&library, &stream, id, (own, host.count()), &mut peers, deadline)
                .map_err(|error| ended(error, host.as_ref(), "joining a communicator of GPUs"))?;
        Ok(Self { host: Arc::clone(host), engine: Arc::new(engine), broken: Mutex::new(None) })
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

    /// The stream that its work is on.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        self.engine.stream()
    }

    /// Moves the payload of a call that all members have agreed on; the output is there when it returns.
    ///
    /// # Errors
    /// `Lost`, `TimedOut`, `Interrupted`, `Vendor`: the group has ended on all members.
    pub fn run(&self, work: &Work<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if work.operations.is_empty() {
            return Ok(());
        }
        let mut peers = || check_peers(self.host.as_ref(), &work.words);
        self.engine
            .run(&work.operations, &mut peers, deadline)
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

/// Refuses what the libraries cannot do.
///
/// # Errors
/// `Unsupported`, with what to do instead.
pub fn check_supported(call: &Call<'_>, index: usize) -> Result<()> {
    let refuse = |what: String| {
        let why = "NCCL and RCCL have no such thing; copy to host memory and call the verb there";
        Err(Error::unsupported(format!("{what} on GPU memory, by index {index},"), why))
    };
    let verb = call.verb.word();
    if ccl::number_of_dtype(call.dtype).is_none() {
        return refuse(format!("{verb} of {}", call.dtype));
    }
    if reduces(call.verb) && ccl::number_of_op(call.op).is_none() {
        return refuse(format!("{verb} by {}", call.op));
    }
    if call.reproducible {
        return refuse(format!("{verb} with reproducible"));
    }
    Ok(())
}

impl<'a> Work<'a> {
    /// What the member at a seat does for a call on GPU memory.
    ///
    /// # Errors
    /// `Invalid` for arrays of other lengths.
    pub fn of(call: &Call<'a>, seat: usize, members: usize) -> Result<Self> {
        let count = descriptor::check(call, seat, members)?;
        let words = format!("{} of {} {} on GPU memory", call.verb.word(), count, call.dtype);
        let arrays = call.gpu.unwrap_or_default();
        let (input, output) = (arrays.input.or(arrays.output), arrays.output);
        let size = call.dtype.size_bytes();
        let one = |act: Act, count: usize, input: Option<GpuSpan<'a>>, output: Option<GpuSpan<'a>>| {
            Operation { act, dtype: call.dtype, count, input, output }
        };
        // Where the parts of all seats lie in the array that has them, and in the one that is received.
        let parts = places(call.counts, count, members, size);
        let received = places(call.receive_counts.or(call.counts), count, members, size);
        let at = |span: Option<GpuSpan<'a>>, range: &std::ops::Range<usize>| {
            span.map(|span| span.part(range)).transpose()
        };
        let (is_root, is_counted) = (call.root == seat, call.counts.is_some());
        let mut operations = Vec::new();
        match call.verb {
            Verb::AllReduce => operations.push(one(Act::AllReduce(call.op), count, input, output)),
            Verb::Reduce => operations.push(one(Act::Reduce(call.op, call.root), count, input, output)),
            Verb::Broadcast => operations.push(one(Act::Broadcast(call.root), count, input, output)),
            Verb::AllGather if is_counted => {
                for (root, part) in parts.iter().enumerate() {
                    let own = if root == seat { arrays.input } else { None };
                    let place = at(output, part)?;
                    operations.push(one(Act::Broadcast(root), part.len() / size, own.or(place), place));
                }
            }
            Verb::AllGather => {
                let own = if arrays.input.is_some() { arrays.input } else { at(output, &parts[seat])? };
                operations.push(one(Act::AllGather, count, own, output));
            }
            Verb::ReduceScatter if is_counted => {
                for (root, part) in parts.iter().enumerate() {
                    let place = if root == seat { output } else { None };
                    operations.push(one(
                        Act::Reduce(call.op, root),
                        part.len() / size,
                        at(input, part)?,
                        place,
                    ));
                }
            }
            Verb::ReduceScatter => operations.push(one(Act::ReduceScatter(call.op), count, input, output)),
            Verb::AllToAll => {
                for other in 0..members {
                    let (sent, taken) = (&parts[other], &received[other]);
                    operations.push(one(Act::Send(other), sent.len() / size, at(input, sent)?, None));
                    operations.push(one(Act::Receive(other), taken.len() / size, None, at(output, taken)?));
                }
            }
            Verb::Gather => {
                operations.push(one(Act::Send(call.root), parts[seat].len() / size, input, None));
                for (other, part) in parts.iter().enumerate().filter(|_| is_root) {
                    operations.push(one(Act::Receive(other), part.len() / size, None, at(output, part)?));
                }
            }
            Verb::Scatter => {
                operations.push(one(Act::Receive(call.root), parts[seat].len() / size, None, output));
                for (other, part) in parts.iter().enumerate().filter(|_| is_root) {
                    operations.push(one(Act::Send(other), part.len() / size, at(input, part)?, None));
                }
            }
            Verb::Send => operations.push(one(Act::Send(call.root), count, input, None)),
            Verb::Receive => operations.push(one(Act::Receive(call.root), count, None, output)),
            _ => {}
        }
        // All members leave the same ones out: those of no elements.
        operations.retain(|operation| operation.count > 0);
        Ok(Self { operations, words })
    }

    /// The same, where the root of a broadcast reads another array than it writes.
    #[must_use]
    pub fn reading(mut self, source: Option<GpuSpan<'a>>) -> Self {
        if let (Some(_), Some(operation)) = (source, self.operations.first_mut()) {
            operation.input = source;
        }
        self
    }
}
