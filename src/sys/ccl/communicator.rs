//! A communicator of NCCL or RCCL on one GPU: made, asked about and ended under deadlines.

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

/// One operation on memory of the communicator's GPU.
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

/// An operation in the library's terms.
struct Numbers {
    dtype: c_int,
    op: c_int,
    rank: c_int,
    input: u64,
    output: u64,
}

/// The library's handle; null once it has ended.
struct Handle(Comm);

// SAFETY: a communicator may be used on any thread, by one at a time; the lock that holds it sees to that.
unsafe impl Send for Handle {}

/// The library's handle of memory that it knows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Known(*mut c_void);

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

/// A rank of a communicator, on one stream. Dropping it aborts it, unless it was finished.
pub struct Communicator {
    handle: Mutex<Handle>,
    /// What it knows: a library must be told to forget it before the communicator ends in order.
    known: Mutex<Vec<Known>>,
    stream: Arc<Stream>,
    rank: usize,
    count: usize,
    /// After the handle: its functions are needed to end that.
    library: Arc<Library>,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Communicator({} on {})", name(self.library.vendor), self.stream.device().name())
    }
}

impl Communicator {
    /// Joins the communicator of an id as one of its ranks, on the GPU of a stream. All ranks call it.
    ///
    /// # Errors
    /// `Vendor` naming the GPU; what `peers` says, which is asked while it waits; `TimedOut`, `Interrupted`. It is then aborted.
    pub fn open(
        library: &Arc<Library>,
        stream: &Arc<Stream>,
        id: UniqueId,
        (rank, count): (usize, usize),
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<Self> {
        let mut config = Config::new(library.vendor, library.version).nonblocking();
        let mut handle: Comm = std::ptr::null_mut();
        let code = {
            let _current = stream.device().enter()?;
            // SAFETY: the function writes one handle and reads the settings, which live until it returns; the GPU is current.
            unsafe {
                (library.table.comm_init_rank_config)(
                    &raw mut handle,
                    c_int::try_from(count).unwrap_or(c_int::MAX),
                    id,
                    c_int::try_from(rank).unwrap_or(c_int::MAX),
                    &raw mut config,
                )
            }
        };
        let made = Self {
            handle: Mutex::new(Handle(handle)),
            known: Mutex::default(),
            stream: Arc::clone(stream),
            rank,
            count,
            library: Arc::clone(library),
        };
        made.accept(INIT, code)?;
        made.settle(&made.lock(), INIT, peers, deadline)?;
        Ok(made)
    }

    fn lock(&self) -> MutexGuard<'_, Handle> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails with what a call returned, on this GPU; a call that goes on is none.
    fn accept(&self, call: &str, code: c_int) -> Result<()> {
        if code == IN_PROGRESS {
            return Ok(());
        }
        self.library.check(call, code).map_err(|error| match error {
            Error::Vendor { library, call, code, text } => {
                let library = format!("{library} on {}", self.stream.device().name());
                Error::Vendor { library, call, code, text }
            }
            other => other,
        })
    }

    /// Waits until the call before has ended on the host's side.
    fn settle(
        &self,
        handle: &Handle,
        call: &str,
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        // The function's name alone helps nobody whose members do not reach each other.
        let phase = if call == INIT { INIT_PHASE } else { call };
        self.until(phase, peers, deadline, |own| own.state(handle, call).map(|state| state != IN_PROGRESS))
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
            deadline.check(&format!("{phase} on {}", self.stream.device().name()), Vec::<Missing>::new)?;
            peers()?;
            std::thread::sleep(pause.min(deadline.pause()));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    /// How the communicator stands: fails for one that has failed.
    fn state(&self, handle: &Handle, call: &str) -> Result<c_int> {
        if handle.0.is_null() {
            return Err(self.ended());
        }
        let mut state = SUCCESS;
        // SAFETY: the handle is live, as it is not null; the function writes one int, which lives until it returns.
        let code = unsafe { (self.library.table.comm_get_async_error)(handle.0, &raw mut state) };
        self.accept("ncclCommGetAsyncError", code)?;
        self.accept(call, state)?;
        Ok(state)
    }

    fn ended(&self) -> Error {
        Error::Closed { what: format!("{self:?}"), why: "it was aborted or finished".to_owned() }
    }

    /// The stream that its work is on.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Has the library know the memory of a region, so that it moves it without a copy where it can; no other call may be under way.
    ///
    /// A library that cannot, or memory of another GPU, changes nothing.
    pub fn register(self: &Arc<Self>, region: &Region) {
        let Some(register) = self.library.table.comm_register else { return };
        let handle = self.lock();
        let is_own = Arc::ptr_eq(region.stream().device(), self.stream.device());
        let range = 0..region.byte_count();
        let (Ok(address), Ok(_current)) = (region.address(&range), self.stream.device().enter()) else {
            return;
        };
        let mut registrations = region.registrations();
        let is_known = registrations.iter().any(|own| own.communicator.as_ptr() == Arc::as_ptr(self));
        if handle.0.is_null() || !is_own || is_known || range.is_empty() {
            return;
        }
        let mut known = std::ptr::null_mut();
        // SAFETY: the handle is live; the region gives its memory back only after the communicator has forgotten it or has ended.
        let code = unsafe { register(handle.0, place(address), range.len(), &raw mut known) };
        if code != SUCCESS || known.is_null() {
            tracing::debug!(code, device = self.stream.device().name(), "memory was not registered");
            return;
        }
        self.known().push(Known(known));
        registrations.push(Registration { communicator: Arc::downgrade(self), known: Known(known) });
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the library forget memory; false if a call is under way for too long.
    fn forget(&self, known: Known) -> bool {
        let deadline = Deadline::after(END_LIMIT);
        loop {
            match self.handle.try_lock() {
                Ok(handle) => return self.forget_now(&handle, known),
                Err(TryLockError::Poisoned(handle)) => return self.forget_now(&handle.into_inner(), known),
                Err(TryLockError::WouldBlock) if deadline.check("", Vec::<Missing>::new).is_err() => {
                    return false;
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LONGEST_PAUSE),
            }
        }
    }

    fn forget_now(&self, handle: &Handle, known: Known) -> bool {
        let mut all = self.known();
        let Some(position) = all.iter().position(|own| *own == known) else { return true };
        all.swap_remove(position);
        // What has ended has forgotten everything.
        let (false, Some(deregister)) = (handle.0.is_null(), self.library.table.comm_deregister) else {
            return true;
        };
        let Ok(_current) = self.stream.device().enter() else { return true };
        // SAFETY: the handle is live, and gave this one, which is used no more.
        let code = unsafe { deregister(handle.0, known.0) };
        if code != SUCCESS {
            tracing::debug!(code, "memory was not deregistered");
        }
        true
    }

    /// Runs operations as one group, and returns when the GPU has done them.
    ///
    /// # Errors
    /// `Invalid` for an array that its memory does not hold, and `Unsupported` for a type or an operation that the library has
    /// not, before anything is done; else as [`Communicator::open`]: it is then aborted.
    pub fn run(
        &self,
        operations: &[Operation<'_>],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let numbers =
            operations.iter().map(|operation| self.numbers(operation)).collect::<Result<Vec<_>>>()?;
        let result =
            self.put(operations, &numbers, peers, deadline).and_then(|()| self.wait(peers, deadline));
        // Before the caller has its memory back.
        result.inspect_err(|_| self.abort())
    }

    /// Puts operations on the stream, and returns when they are there.
    fn put(
        &self,
        operations: &[Operation<'_>],
        numbers: &[Numbers],
        peers: &mut dyn FnMut() -> Result<()>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let (handle, table) = (self.lock(), &self.library.table);
        if handle.0.is_null() {
            return Err(self.ended());
        }
        let _current = self.stream.device().enter()?;
        // SAFETY: the function takes nothing; the group is ended below on this thread, whatever comes between.
        self.accept("ncclGroupStart", unsafe { (table.group_start)() })?;
        let mut result = Ok(());
        for (operation, numbers) in operations.iter().zip(numbers) {
            if result.is_ok() {
                // SAFETY: the handle is live. `numbers` found the memory on this GPU, where it is borrowed until `run`
                // returns: when the stream is idle, or this was aborted.
                let (call, code) = unsafe { self.call(handle.0, operation, numbers) };
                result = self.accept(call, code);
            }
        }
        // SAFETY: it ends the group above.
        let code = unsafe { (table.group_end)() };
        result.and_then(|()| self.accept("ncclGroupEnd", code))?;
        self.settle(&handle, "ncclGroupEnd", peers, deadline)
    }

    /// An operation in the library's terms, its memory checked.
    fn numbers(&self, operation: &Operation<'_>) -> Result<Numbers> {
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
            Act::ReduceScatter(op) => (op, 0, self.count, 1),
            Act::Reduce(op, root) => (op, root, 1, usize::from(root == self.rank)),
            Act::Broadcast(root) => (ReduceOp::Sum, root, usize::from(root == self.rank), 1),
            Act::AllGather => (ReduceOp::Sum, 0, 1, self.count),
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
            rank: c_int::try_from(rank).unwrap_or(c_int::MAX),
            input: self.address("input", operation.input, bytes(reads))?,
            output: self.address("output", operation.output, bytes(writes))?,
        })
    }

    /// The address of so many bytes; 0 for none.
    fn address(&self, argument: &str, span: Option<GpuSpan<'_>>, byte_count: Option<usize>) -> Result<u64> {
        if byte_count == Some(0) {
            return Ok(0);
        }
        let device = self.stream.device();
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
    /// The handle is live, and so is the memory until the stream is idle or this was aborted.
    unsafe fn call(
        &self,
        handle: Comm,
        operation: &Operation<'_>,
        numbers: &Numbers,
    ) -> (&'static str, c_int) {
        let (table, stream, count) = (&self.library.table, self.stream.handle(), operation.count);
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

    /// Waits until everything on the stream has ended.
    fn wait(&self, peers: &mut dyn FnMut() -> Result<()>, deadline: &Deadline<'_>) -> Result<()> {
        let handle = self.lock();
        self.until("waiting", peers, deadline, |own| {
            own.state(&handle, "work")?;
            own.stream.is_idle()
        })
    }

    /// Ends it at once: what it has put on the stream ends too, with any result. Twice is harmless.
    pub fn abort(&self) {
        let mut handle = self.lock();
        if handle.0.is_null() {
            return;
        }
        // A forked child leaves what is its parent's.
        let Ok(_current) = self.stream.device().enter() else { return };
        let ended = std::mem::replace(&mut handle.0, std::ptr::null_mut());
        // SAFETY: the handle is live and is used no more. A failure leaves nothing to do.
        let code = unsafe { (self.library.table.comm_abort)(ended) };
        if code != SUCCESS {
            tracing::debug!(code, "a communicator was not aborted");
        }
    }

    /// Ends it in order, once all ranks have ended their work; one that takes too long is aborted.
    ///
    /// # Errors
    /// `Vendor`; `TimedOut`: it is then aborted.
    pub fn finish(&self) -> Result<()> {
        let result = self.finish_within(&Deadline::after(END_LIMIT));
        if result.is_err() {
            self.abort();
        }
        result
    }

    fn finish_within(&self, deadline: &Deadline<'_>) -> Result<()> {
        let mut handle = self.lock();
        if handle.0.is_null() {
            return Ok(());
        }
        let _current = self.stream.device().enter()?;
        let known = self.known().clone();
        known.into_iter().for_each(|known| {
            self.forget_now(&handle, known);
        });
        // SAFETY: the handle is live.
        let code = unsafe { (self.library.table.comm_finalize)(handle.0) };
        self.accept("ncclCommFinalize", code)?;
        self.settle(&handle, "ncclCommFinalize", &mut || Ok(()), deadline)?;
        let ended = std::mem::replace(&mut handle.0, std::ptr::null_mut());
        // SAFETY: the handle was live and finalized, and is used no more.
        self.accept("ncclCommDestroy", unsafe { (self.library.table.comm_destroy)(ended) })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A GPU's address as the library takes it.
fn place(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}
