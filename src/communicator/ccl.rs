//! GPU memory: NCCL and RCCL, one adapter over two function tables, beside a group in host memory.
//!
//! The group in host memory agrees on every call before payload moves, and tells of members that end: the vendors' libraries do
//! neither, and would wait for ever.

use std::sync::{Arc, Mutex, PoisonError};

use super::descriptor::{is_rooted, reduces};
use super::{Call, Communicator};
use crate::error::{Error, Result};
use crate::sys::ccl::{self, Act, Library, Operation, Place, Refusal, UniqueId};
use crate::sys::gpu::Stream;
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// Bytes of what a member says before the group is formed.
const NOTE: usize = 768;
/// Bytes of a call as members compare it.
const FINGERPRINT: usize = 40;

/// A call on GPU memory; lengths are those of [`Call`].
#[derive(Clone, Copy, Debug)]
pub struct GpuCall<'a> {
    /// The verb.
    pub verb: Verb,
    /// The element type.
    pub dtype: Dtype,
    /// How to combine; ignored by verbs that do not reduce.
    pub op: ReduceOp,
    /// The seat that broadcasts, scatters, gathers or reduces.
    pub root: usize,
    /// n of [`Call`]: the elements of one part.
    pub count: usize,
    /// This member's contribution, `None` in place.
    pub input: Option<Place<'a>>,
    /// What this member gets, if it gets something.
    pub output: Option<Place<'a>>,
}

/// A group of members with one GPU each.
pub struct GpuGroup {
    host: Arc<dyn Communicator>,
    engine: ccl::Communicator,
    /// What each member's GPU is called there.
    gpus: Vec<String>,
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
    /// Forms the group beside one in host memory; all its members call it, each with the stream of its GPU.
    ///
    /// # Errors
    /// On all members alike: `Unsupported` naming the first member without a library, `Disagreed` for different libraries or
    /// versions; `Vendor` naming member and GPU; `Lost`, `TimedOut`, `Interrupted`.
    pub fn join(
        host: &Arc<dyn Communicator>,
        library: std::result::Result<Library, Refusal>,
        stream: &Arc<Stream>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let gpu = stream.device().name().to_owned();
        let note = match &library {
            Ok(library) => {
                let library = format!("{} {}", ccl::name(library.vendor()), library.version());
                Note { library, gpu, reason: String::new() }
            }
            Err(refusal) => Note {
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
        let library = Arc::new(library.map_err(|refusal| refusal.error("a call on GPU memory"))?);
        let gpus = notes.into_iter().map(|note| note.gpu).collect::<Vec<_>>();
        let id = shared_id(host.as_ref(), &library, &gpus, deadline)?;
        let mut peers = || check_peers(host.as_ref(), "joining a communicator of GPUs");
        let engine = ccl::Communicator::open(&library, stream, id, (own, host.count()), &mut peers, deadline)
            .map_err(|error| ended(error, host.as_ref()))?;
        Ok(Self { host: Arc::clone(host), engine, gpus, broken: Mutex::new(None) })
    }

    /// Runs one call to its end: the output is there, and the input may be written again, on all members.
    ///
    /// # Errors
    /// `Unsupported` for a type or an operation that the library has not, before a call is counted; `Disagreed` naming two
    /// calls, after which the group goes on; `Lost`, `TimedOut`, `Interrupted`, `Vendor`: the group has ended on all members.
    pub fn run(&self, call: &GpuCall<'_>, deadline: &Deadline<'_>) -> Result<()> {
        supported(call)?;
        let broken = || self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = broken().as_ref() {
            let why = format!("an earlier call on GPU memory ended it: {error}");
            return Err(Error::Closed { what: "the group of GPUs".to_owned(), why });
        }
        self.agree(call, deadline).inspect_err(|error| {
            // The group in host memory has ended, and an orderly end of this one would wait for a member that has gone.
            if !matches!(error, Error::Disagreed { .. } | Error::Invalid { .. }) {
                self.engine.abort();
                *broken() = Some(error.to_string());
            }
        })?;
        let operations = operations(call, self.host.seat(), self.host.count());
        let words = words(call);
        let mut peers = || check_peers(self.host.as_ref(), &words);
        let result =
            if operations.is_empty() { Ok(()) } else { self.engine.run(&operations, &mut peers, deadline) };
        // Nobody closes before all have their results: a member that ends would look lost.
        let result = result.and_then(|()| gather(self.host.as_ref(), &[1], deadline).map(drop));
        result.map_err(|error| {
            self.engine.abort();
            let error = ended(error, self.host.as_ref());
            *broken() = Some(error.to_string());
            error
        })
    }

    /// Compares the call with those of the others.
    fn agree(&self, call: &GpuCall<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let all = gather(self.host.as_ref(), &fingerprint(call), deadline)?;
        let own = self.host.seat();
        let Some(seat) = all.iter().position(|other| *other != all[own]) else { return Ok(()) };
        let told = |seat: usize| format!("{} on {}", told(&all[seat]), self.gpus[seat]);
        Err(Error::Disagreed {
            field: "the call on GPU memory".to_owned(),
            mine: told(own),
            theirs: told(seat),
            index: seat,
        })
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

/// Ends the group in host memory too, so that the others leave their GPUs' work; names this member in a vendor's message.
fn ended(error: Error, host: &dyn Communicator) -> Error {
    if !matches!(error, Error::Lost { .. }) {
        host.close();
    }
    match error {
        Error::Vendor { library, call, code, text } => {
            Error::Vendor { library: format!("index {}: {library}", host.seat()), call, code, text }
        }
        other => other,
    }
}

/// Refuses what the library cannot do.
fn supported(call: &GpuCall<'_>) -> Result<()> {
    let refuse = |what: String| {
        let why = "NCCL and RCCL have no such thing; copy to host memory and call the verb there";
        Err(Error::unsupported(what, why))
    };
    if ccl::number_of_dtype(call.dtype).is_none() {
        return refuse(format!("{} of {} on GPU memory", call.verb.word(), call.dtype));
    }
    if reduces(call.verb) && ccl::number_of_op(call.op).is_none() {
        return refuse(format!("{} by {} on GPU memory", call.verb.word(), call.op));
    }
    match call.verb {
        Verb::AllReduce | Verb::Reduce | Verb::ReduceScatter | Verb::Broadcast | Verb::AllGather => Ok(()),
        Verb::AllToAll | Verb::Gather | Verb::Scatter => Ok(()),
        other => refuse(format!("{} on GPU memory", other.word())),
    }
}

/// The call as members compare it: what must be the same on all.
fn fingerprint(call: &GpuCall<'_>) -> [u8; FINGERPRINT] {
    let numbers = [
        u64::from(call.verb.number().unsigned_abs()),
        u64::from(call.dtype.number().unsigned_abs()),
        if reduces(call.verb) { u64::from(call.op.number().unsigned_abs()) } else { 0 },
        if is_rooted(call.verb) { call.root as u64 } else { 0 },
        call.count as u64,
    ];
    let mut bytes = [0; FINGERPRINT];
    for (place, number) in bytes.chunks_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

/// A fingerprint that another member sent, in words.
fn told(bytes: &[u8]) -> String {
    let mut numbers = bytes.chunks(8).map(|chunk| chunk.try_into().map_or(0, u64::from_le_bytes));
    let mut next = || numbers.next().unwrap_or(0);
    let small = |number: u64| i32::try_from(number).unwrap_or(-1);
    let verb = Verb::from_number(small(next())).map_or("an unknown verb", Verb::word);
    let dtype = Dtype::from_number(small(next())).map_or("an unknown type", Dtype::name);
    let op = ReduceOp::from_number(small(next())).map_or("an unknown operation", ReduceOp::name);
    let (root, count) = (next(), next());
    format!("{verb} of {count} {dtype} (op {op}, root {root})")
}

fn words(call: &GpuCall<'_>) -> String {
    format!("{} of {} {} on GPU memory", call.verb.word(), call.count, call.dtype)
}

/// What one member puts on its stream for a call.
fn operations<'a>(call: &GpuCall<'a>, seat: usize, count: usize) -> Vec<Operation<'a>> {
    let bytes = call.count * call.dtype.size_bytes();
    if bytes == 0 {
        return Vec::new();
    }
    let (input, output) = (call.input.or(call.output), call.output);
    let at = |place: Option<Place<'a>>, part: usize| {
        place.map(|place| Place { start: place.start + part * bytes, ..place })
    };
    let one = |act: Act, input: Option<Place<'a>>, output: Option<Place<'a>>| Operation {
        act,
        dtype: call.dtype,
        count: call.count,
        input,
        output,
    };
    match call.verb {
        Verb::AllReduce => vec![one(Act::AllReduce(call.op), input, output)],
        Verb::Reduce => vec![one(Act::Reduce(call.op, call.root), input, output)],
        Verb::Broadcast => vec![one(Act::Broadcast(call.root), input, output)],
        Verb::AllGather => vec![one(Act::AllGather, call.input.or_else(|| at(output, seat)), output)],
        Verb::ReduceScatter => vec![one(Act::ReduceScatter(call.op), input, output)],
        Verb::AllToAll => (0..count)
            .flat_map(|other| {
                let send = one(Act::Send(other), at(input, other), None);
                [send, one(Act::Receive(other), None, at(output, other))]
            })
            .collect(),
        Verb::Gather => {
            let taking = if seat == call.root { count } else { 0 };
            let take = (0..taking).map(|other| one(Act::Receive(other), None, at(output, other)));
            std::iter::once(one(Act::Send(call.root), input, None)).chain(take).collect()
        }
        Verb::Scatter => {
            let giving = if seat == call.root { count } else { 0 };
            let give = (0..giving).map(|other| one(Act::Send(other), at(input, other), None));
            std::iter::once(one(Act::Receive(call.root), None, output)).chain(give).collect()
        }
        _ => Vec::new(),
    }
}
