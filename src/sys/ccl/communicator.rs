//! Communicators of NCCL or RCCL on the GPUs of this process: made, asked about and ended together, under deadlines.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use super::{Comm, Config, Library, SUCCESS, UniqueId, name};
use crate::error::{Error, Missing, Result};
use crate::sys::Deadline;
use crate::sys::gpu::{GpuSpan, Region, Stream};
use crate::vocabulary::{Dtype, ReduceOp};

/// What a call or a state is that has not ended.
const IN_PROGRESS: c_int = 7;

/// The call that takes as long as members need to reach each other, and how messages name it.
const INIT: &str = "ncclCommInitRankConfig";
const INIT_PHASE: &str = "ncclCommInitRankConfig (members do not reach each other: NCCL_SOCKET_IFNAME names the interface to use, \
                          NCCL_DEBUG=INFO prints how far each came)";

/// The call that makes communicators of some ranks.
const SPLIT: &str = "ncclCommSplit";

/// The longest pause between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// How long an orderly end may take before it is cut off.
const END_LIMIT: Duration = Duration::from_secs(5);

/// The library's number for an element type; `None` for one that it has not.
#[must_use]
pub const fn number_of_dtype(dtype: Dtype) -> Option<c_int> {
    Some(match dtype {
        Dtype::I8 => 0,
        Dtype::U8 => 1,
        Dtype::I32 => 2,
        Dtype::U32 => 3,
        Dtype::I64 => 4,
        Dtype::U64 => 5,
        Dtype::F16 => 6,
        Dtype::F32 => 7,
        Dtype::F64 => 8,
        Dtype::Bf16 => 9,
        _ => return None,
    })
}

/// The library's number for an operation; `None` for one that it has not.
#[must_use]
pub const fn number_of_op(op: ReduceOp) -> Option<c_int> {
    Some(match op {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Average => 4,
        _ => return None,
    })
}

/// What one operation does; ranks are those of the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `count` elements in and out.
    AllReduce(ReduceOp),
    /// `count` elements in, and out at the root.
    Reduce(ReduceOp, usize),
    /// `count` elements in at the root, and out.
    Broadcast(usize),
    /// `count` elements in, those of all out.
    AllGather,
    /// `count` elements for each in, `count` out.
    ReduceScatter(ReduceOp),
    /// `count` elements in, for a rank.
    Send(usize),
    /// `count` elements out, from a rank.
    Receive(usize),
}

/// One operation on memory of one GPU.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// What it does.
    pub act: Act,
    /// The type of its elements.
    pub dtype: Dtype,
    /// How many.
    pub count: usize,
    /// Where it reads, if it does.
    pub input: Option<GpuSpan<'a>>,
    /// Where it writes, if it does.
    pub output: Option<GpuSpan<'a>>,
}

/// Operations that are put on the streams as one group: those of each GPU of this process, in their order, within one tier.
#[derive(Debug)]
pub struct Step<'a> {
    /// The tier: 0 for all ranks, then as [`Communicator::split`] made them.
    pub tier: usize,
    /// For each GPU.
    pub operations: Vec<Vec<Operation<'a>>>,
}

/// Where a GPU goes when a communicator is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Those of one color are together.
    pub color: usize,
    /// Its rank among them.
    pub rank: usize,
    /// How many they are.
    pub count: usize,
}

/// An operation in the library's terms.
struct Numbers {
    dtype: c_int,
    op: c_int,
    rank: c_int,
    input: u64,
    output: u64,
}

/// A GPU's rank in one tier, and the library's handle of it; null once it has ended.
#[derive(Clone, Copy)]
struct Rank {
    handle: Comm,
    rank: usize,
    count: usize,
}

/// The ranks of each tier, one for each GPU, in their order.
type Tiers = Vec<Vec<Rank>>;

/// What the lock holds.
struct Handles(Tiers);

// SAFETY: a communicator may be used on any thread, by one at a time; the lock that holds it sees to that.
unsafe impl Send for Handles {}

impl Handles {
    fn is_ended(&self) -> bool {
        self.0.iter().flatten().all(|rank| rank.handle.is_null())
    }
}

/// The library's handle of memory that it knows, and the tier and GPU of the communicator that knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known {
    handle: *mut c_void,
    tier: usize,
    gpu: usize,
}

// SAFETY: it is handed to the library alone, under the lock of the communicator that gave it.
unsafe impl Send for Known {}

/// Memory that a communicator knows, for as long as both are there.
pub struct Registration {
    communicator: Weak<Communicator>,
    known: Known,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Registration")
    }
}

impl Registration {
    /// Has the communicator forget the memory; false if it works for too long, and may still use it.
    #[must_use]
    pub(in crate::sys) fn end(self) -> bool {
        self.communicator.upgrade().is_none_or(|communicator| communicator.forget(self.known))
    }
}

/// The ranks of this process in communicators of the same members, one tier above the other, on one stream for each GPU.
///
/// All are made, used and ended together: two communicators of a process that end one after the other can wait for each other.
/// Dropping it aborts them, unless they were finished.
pub struct Communicator {
    handles: Mutex<Handles>,
    /// What they know: a library must be told to forget it before a communicator ends in order.
    known: Mutex<Vec<Known>>,
    streams: Vec<Arc<Stream>>,
    /// After the handles: its functions are needed to end them.
    library: Arc<Library>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Communicator({} on {})", name(self.library.vendor), self.names())
    }
}

impl Communicator {
    /// Joins the communicator of an id with ranks that follow each other, one on the GPU of each stream. All members call it.
    ///
    /// # Errors
    /// `Vendor` naming the GPU; what `peers` says, which is asked while it waits; `TimedOut`, `Interrupted`. It is then aborted.
    pub fn open(
        library: &Arc<Library>,
        streams: &[Arc<Stream>],
        id: UniqueId,
        (first, count): (usize, usize),
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let none = std::ptr::null_mut();
        let ranks = (first..first + streams.len()).map(|rank| Rank { handle: none, rank, count });
        let made = Self {
            handles: Mutex::new(Handles(vec![ranks.collect()])),
            known: Mutex::default(),
            streams: streams.to_vec(),
            library: Arc::clone(library),
        };
        made.add(&mut made.lock(), INIT, peers, deadline, |_, rank, config| {
            // SAFETY: the function writes one handle and reads the settings, which live until it returns; the GPU is current.
            unsafe {
                (made.library.table.comm_init_rank_config)(
                    &raw mut rank.handle,
                    number(rank.count),
                    id,
                    number(rank.rank),
                    config,
                )
            }
        })?;
        Ok(made)
    }

    /// Adds a tier: a communicator for each color, of which this process has one rank for each GPU. All members call it, while
    /// none of them has work on the others.
    ///
    /// # Errors
    /// As [`Communicator::open`]: all tiers are then aborted.
    pub fn split(
        &self,
        seats: &[Seat],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let mut handles = self.lock();
        if handles.is_ended() || seats.len() != self.streams.len() {
            return Err(self.ended());
        }
        let parents = handles.0[0].iter().map(|rank| rank.handle).collect::<Vec<_>>();
        let none = std::ptr::null_mut();
        let ranks = seats.iter().map(|seat| Rank { handle: none, rank: seat.rank, count: seat.count });
        handles.0.push(ranks.collect());
        let result = self.add(&mut handles, SPLIT, peers, deadline, |gpu, rank, config| {
            let (color, key) = (number(seats[gpu].color), number(rank.rank));
            // SAFETY: the parent is live: what ends it waits for the lock that is held here. The rest is as for the first tier.
            unsafe { (self.library.table.comm_split)(parents[gpu], color, key, &raw mut rank.handle, config) }
        });
        drop(handles);
        result.inspect_err(|_| self.abort())
    }

    /// Makes the handles of the last tier as one group, and waits until all are ready.
    fn add(
        &self,
        handles: &mut Handles,
        call: &str,
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
        make: impl Fn(usize, &mut Rank, *mut Config) -> c_int,
    ) -> Result<()> {
        let mut configs = Vec::new();
        configs.resize_with(self.streams.len(), || {
            Config::new(self.library.vendor, self.library.version).nonblocking()
        });
        self.grouped(self.streams.len() > 1, || {
            let ranks = handles.0.last_mut().into_iter().flatten();
            for (gpu, (config, rank)) in configs.iter_mut().zip(ranks).enumerate() {
                let _current = self.streams[gpu].device().enter()?;
                self.accept(call, make(gpu, rank, config), Some(gpu))?;
            }
            Ok(())
        })?;
        self.settle(handles, call, peers, deadline)
    }

    /// Makes calls within one group, which ends on this thread whatever they return.
    fn grouped(&self, is_group: bool, calls: impl FnOnce() -> Result<()>) -> Result<()> {
        if !is_group {
            return calls();
        }
        let table = &self.library.table;
        // SAFETY: the function takes nothing; the group is ended below on this thread, whatever comes between.
        self.accept("ncclGroupStart", unsafe { (table.group_start)() }, None)?;
        let result = calls();
        // SAFETY: it ends the group above.
        let code = unsafe { (table.group_end)() };
        result.and_then(|()| self.accept("ncclGroupEnd", code, None))
    }

    fn lock(&self) -> MutexGuard<'_, Handles> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The GPUs, for messages.
    fn names(&self) -> String {
        self.streams.iter().map(|stream| stream.device().name()).collect::<Vec<_>>().join(", ")
    }

    /// Fails with what a call returned, on one of the GPUs or for all of them; a call that goes on is none.
    fn accept(&self, call: &str, code: c_int, gpu: Option<usize>) -> Result<()> {
        if code == IN_PROGRESS {
            return Ok(());
        }
        self.library.check(call, code).map_err(|error| match error {
            Error::Vendor { library, call, code, text } => {
                let own = gpu.and_then(|gpu| self.streams.get(gpu));
                let names = own.map_or_else(|| self.names(), |stream| stream.device().name().to_owned());
                Error::Vendor { library: format!("{library} on {names}"), call, code, text }
            }
            other => other,
        })
    }

    /// Waits until the call before has ended on the host's side.
    fn settle(
        &self,
        handles: &Handles,
        call: &str,
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        // The function's name alone helps nobody whose members do not reach each other.
        let phase = if call == INIT { INIT_PHASE } else { call };
        self.until(phase, peers, deadline, |own| own.is_settled(handles, call))
    }

    fn until(
        &self,
        phase: &str,
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
        mut has_ended: impl FnMut(&Self) -> Result<bool>,
    ) -> Result<()> {
        let mut pause = Duration::from_micros(5);
        while !has_ended(self)? {
            deadline.check(&format!("{phase} on {}", self.names()), Vec::<Missing>::new)?;
            peers()?;
            std::thread::sleep(pause.min(deadline.pause()));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// Whether no communicator has a call that goes on: fails for one that has failed.
    fn is_settled(&self, handles: &Handles, call: &str) -> Result<bool> {
        let mut is_settled = true;
        for (gpu, rank) in handles.0.iter().flat_map(|tier| tier.iter().enumerate()) {
            if rank.handle.is_null() {
                return Err(self.ended());
            }
            let mut state = SUCCESS;
            // SAFETY: the handle is live, as it is not null; the function writes one int, which lives until it returns.
            let code = unsafe { (self.library.table.comm_get_async_error)(rank.handle, &raw mut state) };
            self.accept("ncclCommGetAsyncError", code, Some(gpu))?;
            self.accept(call, state, Some(gpu))?;
            is_settled &= state != IN_PROGRESS;
        }
        Ok(is_settled)
    }

    fn ended(&self) -> Error {
        Error::Closed { what: format!("{self:?}"), why: "it was aborted or finished".to_owned() }
    }

    /// The streams that its work is on, one for each GPU.
    #[must_use]
    pub fn streams(&self) -> &[Arc<Stream>] {
        &self.streams
    }

    /// Has all tiers know the memory of a region, so that they move it without a copy where they can; no other call may be under way.
    ///
    /// A library that cannot, or memory of another GPU, changes nothing.
    pub fn register(self: &Arc<Self>, region: &Region) {
        let Some(register) = self.library.table.comm_register else { return };
        let handles = self.lock();
        let is_its = |stream: &Arc<Stream>| Arc::ptr_eq(region.stream().device(), stream.device());
        let Some(gpu) = self.streams.iter().position(is_its) else { return };
        let (device, range) = (self.streams[gpu].device(), 0..region.byte_count());
        let (Ok(address), Ok(_current)) = (region.address(&range), device.enter()) else { return };
        let mut registrations = region.registrations();
        let is_known = registrations.iter().any(|own| own.communicator.as_ptr() == Arc::as_ptr(self));
        if is_known || range.is_empty() {
            return;
        }
        for (tier, ranks) in handles.0.iter().enumerate() {
            let Some(rank) = ranks.get(gpu).filter(|rank| !rank.handle.is_null()) else { continue };
            let mut handle = std::ptr::null_mut();
            // SAFETY: the handle is live; the region gives its memory back only after the communicator has forgotten it or has ended.
            let code = unsafe { register(rank.handle, place(address), range.len(), &raw mut handle) };
            if code != SUCCESS || handle.is_null() {
                tracing::debug!(code, device = device.name(), "memory was not registered");
                continue;
            }
            let known = Known { handle, tier, gpu };
            self.known().push(known);
            registrations.push(Registration { communicator: Arc::downgrade(self), known });
        }
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the library forget memory; false if a call is under way for too long.
    fn forget(&self, known: Known) -> bool {
        let deadline = Deadline::after(END_LIMIT);
        loop {
            match self.handles.try_lock() {
                Ok(handles) => return self.forget_now(&handles, known),
                Err(TryLockError::Poisoned(handles)) => return self.forget_now(&handles.into_inner(), known),
                Err(TryLockError::WouldBlock) if deadline.check("", Vec::<Missing>::new).is_err() => {
                    return false;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LONGEST_PAUSE),
            }
        }
    }

    fn forget_now(&self, handles: &Handles, known: Known) -> bool {
        let mut all = self.known();
        let Some(position) = all.iter().position(|own| *own == known) else { return true };
        all.swap_remove(position);
        let rank = handles.0.get(known.tier).and_then(|ranks| ranks.get(known.gpu));
        // What has ended has forgotten everything.
        let (Some(rank), Some(deregister)) =
            (rank.filter(|rank| !rank.handle.is_null()), self.library.table.comm_deregister)
        else {
            return true;
        };
        let Ok(_current) = self.streams[known.gpu].device().enter() else { return true };
        // SAFETY: the handle is live, and gave this one, which is used no more.
        let code = unsafe { deregister(rank.handle, known.handle) };
        if code != SUCCESS {
            tracing::debug!(code, "memory was not deregistered");
        }
        true
    }

    /// Runs steps one after the other, each as one group, and returns when all GPUs have done them.
    ///
    /// # Errors
    /// `Invalid` for an array that its memory does not hold, and `Unsupported` for a type or an operation that the library has
    /// not, before anything is done; else as [`Communicator::open`]: it is then aborted.
    pub fn run(
        &self,
        steps: &[Step<'_>],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let handles = self.lock();
        let numbers = steps.iter().map(|step| self.numbers(&handles, step)).collect::<Result<Vec<_>>>()?;
        let result = self.run_here(&handles, steps, &numbers, peers, deadline);
        drop(handles);
        // Before the caller has its memory back.
        result.inspect_err(|_| self.abort())
    }

    fn run_here(
        &self,
        handles: &Handles,
        steps: &[Step<'_>],
        numbers: &[Vec<Vec<Numbers>>],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        for (step, numbers) in steps.iter().zip(numbers) {
            self.put(handles, step, numbers, peers, deadline)?;
        }
        self.until("waiting", peers, deadline, |own| {
            let mut has_ended = own.is_settled(handles, "work")?;
            for stream in &own.streams {
                has_ended &= stream.is_idle()?;
            }
            Ok(has_ended)
        })
    }

    /// Puts the operations of a step on the streams, and returns when they are there.
    fn put(
        &self,
        handles: &Handles,
        step: &Step<'_>,
        numbers: &[Vec<Numbers>],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        self.grouped(true, || {
            let gpus = step.operations.iter().zip(numbers).enumerate();
            for (gpu, (operations, numbers)) in gpus {
                let handle = handles.0[step.tier][gpu].handle;
                if handle.is_null() {
                    return Err(self.ended());
                }
                let _current = self.streams[gpu].device().enter()?;
                for (operation, numbers) in operations.iter().zip(numbers) {
                    // SAFETY: the handle is live. `numbers` found the memory on this GPU, where it is borrowed until `run`
                    // returns: when the stream is idle, or this was aborted.
                    let (call, code) = unsafe { self.call(handle, gpu, operation, numbers) };
                    self.accept(call, code, Some(gpu))?;
                }
            }
            Ok(())
        })?;
        self.settle(handles, "ncclGroupEnd", peers, deadline)
    }

    /// The operations of a step in the library's terms, their memory checked.
    fn numbers(&self, handles: &Handles, step: &Step<'_>) -> Result<Vec<Vec<Numbers>>> {
        let Some(ranks) = handles.0.get(step.tier).filter(|ranks| ranks.len() == step.operations.len())
        else {
            let reason = format!("must be for {} and a tier that was made", self.names());
            return Err(Error::invalid("operations", step.operations.len(), "call", reason));
        };
        let gpus = step.operations.iter().zip(ranks).enumerate();
        gpus.map(|(gpu, (operations, rank))| {
            operations.iter().map(|operation| self.numbers_of(operation, gpu, rank)).collect()
        })
        .collect()
    }

    fn numbers_of(&self, operation: &Operation<'_>, gpu: usize, own: &Rank) -> Result<Numbers> {
        let missing = |what: String| {
            let library = name(self.library.vendor);
            Error::unsupported(
                what,
                format!("{library} has no such thing; copy to host memory and reduce there"),
            )
        };
        let dtype = number_of_dtype(operation.dtype)
            .ok_or_else(|| missing(format!("{} on a GPU", operation.dtype)))?;
        // With how many times `count` elements are read and written here.
        let (op, rank, reads, writes) = match operation.act {
            Act::AllReduce(op) => (op, 0, 1, 1),
            Act::ReduceScatter(op) => (op, 0, own.count, 1),
            Act::Reduce(op, root) => (op, root, 1, usize::from(root == own.rank)),
            Act::Broadcast(root) => (ReduceOp::Sum, root, usize::from(root == own.rank), 1),
            Act::AllGather => (ReduceOp::Sum, 0, 1, own.count),
            Act::Send(rank) => (ReduceOp::Sum, rank, 1, 0),
            Act::Receive(rank) => (ReduceOp::Sum, rank, 0, 1),
        };
        let op = number_of_op(op).ok_or_else(|| missing(format!("{op} on a GPU")))?;
        let bytes = |parts: usize| {
            operation.count.checked_mul(operation.dtype.size_bytes()).and_then(|part| part.checked_mul(parts))
        };
        Ok(Numbers {
            dtype,
            op,
            rank: number(rank),
            input: self.address("input", gpu, operation.input, bytes(reads))?,
            output: self.address("output", gpu, operation.output, bytes(writes))?,
        })
    }

    /// The address of so many bytes; 0 for none.
    fn address(
        &self,
        argument: &str,
        gpu: usize,
        span: Option<GpuSpan<'_>>,
        byte_count: Option<usize>,
    ) -> Result<u64> {
        if byte_count == Some(0) {
            return Ok(0);
        }
        let device = self.streams[gpu].device();
        let fits = |span: &GpuSpan<'_>| {
            span.gpu() == (device.vendor(), device.number())
                && byte_count.is_some_and(|bytes| bytes <= span.byte_count())
        };
        match span.filter(fits) {
            Some(span) => Ok(span.address()),
            None => {
                let reason = format!("must lie in memory of {}", device.name());
                Err(Error::invalid(argument, format!("{byte_count:?} bytes"), "call", reason))
            }
        }
    }

    /// Makes one call of a group.
    ///
    /// # Safety
    /// The handle is live, and so is the memory until the GPU's stream is idle or this was aborted.
    unsafe fn call(
        &self,
        handle: Comm,
        gpu: usize,
        operation: &Operation<'_>,
        numbers: &Numbers,
    ) -> (&'static str, c_int) {
        let (table, stream, count) = (&self.library.table, self.streams[gpu].handle(), operation.count);
        let Numbers { dtype, op, rank, .. } = *numbers;
        let (input, output) = (place(numbers.input).cast_const(), place(numbers.output));
        // SAFETY: the signatures are the vendor's; memory, handle and stream are live by the caller's promise.
        unsafe {
            match operation.act {
                Act::AllReduce(_) => {
                    ("ncclAllReduce", (table.all_reduce)(input, output, count, dtype, op, handle, stream))
                }
                Act::Reduce(..) => {
                    ("ncclReduce", (table.reduce)(input, output, count, dtype, op, rank, handle, stream))
                }
                Act::Broadcast(_) => {
                    ("ncclBroadcast", (table.broadcast)(input, output, count, dtype, rank, handle, stream))
                }
                Act::AllGather => {
                    ("ncclAllGather", (table.all_gather)(input, output, count, dtype, handle, stream))
                }
                Act::ReduceScatter(_) => (
                    "ncclReduceScatter",
                    (table.reduce_scatter)(input, output, count, dtype, op, handle, stream),
                ),
                Act::Send(_) => ("ncclSend", (table.send)(input, count, dtype, rank, handle, stream)),
                Act::Receive(_) => ("ncclRecv", (table.receive)(output, count, dtype, rank, handle, stream)),
            }
        }
    }

    /// Ends all at once: what they have put on the streams ends too, with any result. Twice is harmless.
    pub fn abort(&self) {
        let mut handles = self.lock();
        let ended = self.taken(&mut handles);
        // Those above are made of the first: they go before it, and all within one group, as each can wait for another.
        let result = self.grouped(ended.len() > 1, || {
            for (handle, gpu) in ended.into_iter().rev() {
                // A forked child leaves what is its parent's.
                let Ok(_current) = self.streams[gpu].device().enter() else { continue };
                // SAFETY: the handle is live and is used no more. A failure leaves nothing to do.
                let code = unsafe { (self.library.table.comm_abort)(handle) };
                if code != SUCCESS {
                    tracing::debug!(code, "a communicator was not aborted");
                }
            }
            Ok(())
        });
        if let Err(error) = result {
            tracing::debug!(%error, "communicators were not aborted");
        }
    }

    /// Takes the handles that are live, each with the position of its GPU.
    fn taken(&self, handles: &mut Handles) -> Vec<(Comm, usize)> {
        let ranks = handles.0.iter_mut().flat_map(|tier| tier.iter_mut().enumerate());
        let taken = ranks.map(|(gpu, rank)| (std::mem::replace(&mut rank.handle, std::ptr::null_mut()), gpu));
        taken.filter(|(handle, _)| !handle.is_null()).collect()
    }

    /// Ends all in order, once all ranks have ended their work; what takes too long is aborted.
    ///
    /// # Errors
    /// `Vendor`; `TimedOut`: they are then aborted.
    pub fn finish(&self) -> Result<()> {
        let result = self.finish_within(&Deadline::after(END_LIMIT));
        if result.is_err() {
            self.abort();
        }
        result
    }

    fn finish_within(&self, deadline: &Deadline<'_>) -> Result<()> {
        let mut handles = self.lock();
        if handles.is_ended() {
            return Ok(());
        }
        let known = self.known().clone();
        known.into_iter().for_each(|known| {
            self.forget_now(&handles, known);
        });
        let is_group = handles.0.len() > 1 || self.streams.len() > 1;
        self.grouped(is_group, || {
            for (gpu, rank) in handles.0.iter().rev().flat_map(|tier| tier.iter().enumerate()) {
                let _current = self.streams[gpu].device().enter()?;
                // SAFETY: the handle is live.
                let code = unsafe { (self.library.table.comm_finalize)(rank.handle) };
                self.accept("ncclCommFinalize", code, Some(gpu))?;
            }
            Ok(())
        })?;
        self.settle(&handles, "ncclCommFinalize", &mut || Ok(()), deadline)?;
        let ended = self.taken(&mut handles);
        self.grouped(is_group, || {
            let mut result = Ok(());
            for (handle, gpu) in ended.into_iter().rev() {
                let Ok(_current) = self.streams[gpu].device().enter() else { continue };
                // SAFETY: the handle was live and finalized, and is used no more.
                let code = unsafe { (self.library.table.comm_destroy)(handle) };
                result = result.and(self.accept("ncclCommDestroy", code, Some(gpu)));
            }
            result
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A number as the library takes it.
fn number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// A GPU's address as the library takes it.
fn place(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}
