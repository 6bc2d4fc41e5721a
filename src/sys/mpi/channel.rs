//! A stream of bytes to one process and from it, over MPI's nonblocking messages.
//!
//! Sends that somebody waits for are synchronous ones: they end when the other side has begun to receive. MPI moves bytes only
//! while somebody calls it, so a member that has sent stays in its call until then, and owes nobody progress afterwards.

use std::ffi::c_int;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::mpi::ffi;

use super::{Communicator, IS_ABANDONED, library, turn};
use crate::sys::network::Moved;
use crate::sys::{Span, SpanMut, process};

/// Bytes of one message, at most.
const MESSAGE_BYTES: usize = 128 << 10;
/// Messages of one channel that may be on their way.
const SLOTS: usize = 4;

/// What a channel is for: streams of different media between the same two processes do not mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Where the processes meet.
    Meeting = 1,
    /// Agrees on calls.
    Control = 2,
    /// Carries payload.
    Data = 3,
    /// Carries sends and receives.
    Pair = 4,
}

/// One end of a stream; nothing here blocks.
pub struct Channel {
    world: Arc<Communicator>,
    rank: c_int,
    medium: Medium,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    incoming: Vec<u8>,
    /// The bytes of `incoming` that have come and were not taken.
    ready: Range<usize>,
    /// The message that MPI is writing into `incoming`.
    receiving: Option<ffi::MPI_Request>,
    has_ended: bool,
    is_finished: bool,
}

/// Memory of one message; MPI reads it while there is a request.
#[derive(Default)]
struct Slot {
    bytes: Vec<u8>,
    request: Option<ffi::MPI_Request>,
}

// SAFETY: requests are names that MPI looks up; every call with them is made behind `TURN`.
unsafe impl Send for State {}

impl std::fmt::Debug for Channel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Channel({:?} to rank {})", self.medium, self.rank)
    }
}

fn failed(call: &str, code: c_int) -> io::Error {
    io::Error::other(format!("{call}: {}", library::error_text(code)))
}

/// Asks whether a request has ended, and forgets it then; the turn must be held.
fn has_ended(request: &mut Option<ffi::MPI_Request>) -> io::Result<bool> {
    let Some(raw) = request else { return Ok(true) };
    let mut is_done: c_int = 0;
    // SAFETY: a request that MPI gave and that has not ended; MPI runs and the turn is held.
    let code = unsafe { ffi::MPI_Test(raw, &raw mut is_done, ffi::RSMPI_STATUS_IGNORE) };
    if code != 0 {
        return Err(failed("MPI_Test", code));
    }
    if is_done != 0 {
        *request = None;
    }
    Ok(is_done != 0)
}

fn byte() -> ffi::MPI_Datatype {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_UINT8_T }
}

impl Channel {
    pub(super) fn new(world: Arc<Communicator>, rank: usize, medium: Medium) -> Self {
        let rank = c_int::try_from(rank).unwrap_or(c_int::MAX);
        Self { world, rank, medium, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends as much as there is room for now; `is_awaited` if the other side will receive it, as part of a call.
    #[must_use]
    pub fn send(&self, source: Span<'_>, is_awaited: bool) -> Moved {
        let mut state = self.state();
        let Some(_turn) = turn() else { return Moved::Broken(ended()) };
        match self.post(&mut state, source, is_awaited) {
            Ok(0) => Moved::Busy,
            Ok(count) => Moved::Bytes(count),
            Err(error) => Moved::Broken(error),
        }
    }

    /// Copies bytes into free slots and gives them to MPI; how many. The turn must be held.
    fn post(&self, state: &mut State, source: Span<'_>, is_awaited: bool) -> io::Result<usize> {
        let start = if is_awaited { ffi::MPI_Issend } else { ffi::MPI_Isend };
        if state.slots.is_empty() {
            state.slots.resize_with(SLOTS, Slot::default);
        }
        let mut sent = 0;
        for slot in &mut state.slots {
            let count = (source.byte_count() - sent).min(MESSAGE_BYTES);
            if count == 0 {
                break;
            }
            if !has_ended(&mut slot.request)? {
                continue;
            }
            slot.bytes.resize(count, 0);
            let part = source.part(sent..sent + count).map_err(io::Error::other)?;
            SpanMut::of(&mut slot.bytes[..]).copy_from(part).map_err(io::Error::other)?;
            let length = c_int::try_from(count).unwrap_or(0);
            // SAFETY: a value for MPI to write over.
            let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
            // SAFETY: MPI runs and the turn is held; the bytes stay where they are while the slot has a request, and are
            // leaked if that has not ended when this channel goes.
            let code = unsafe {
                let (bytes, tag) = (slot.bytes.as_ptr().cast(), self.medium as c_int);
                start(bytes, length, byte(), self.rank, tag, self.world.raw, &raw mut request)
            };
            if code != 0 {
                return Err(failed("MPI_Issend", code));
            }
            slot.request = Some(request);
            sent += count;
        }
        Ok(sent)
    }

    /// Takes what has come, as far as the target holds it; the target must not be empty.
    #[must_use]
    pub fn receive(&self, target: &mut SpanMut<'_>) -> Moved {
        let mut state = self.state();
        let Some(_turn) = turn() else { return Moved::Broken(ended()) };
        let state = &mut *state;
        loop {
            if !state.ready.is_empty() {
                let count = state.ready.len().min(target.byte_count());
                let taken = state.ready.start..state.ready.start + count;
                let copied = target
                    .part(0..count)
                    .and_then(|mut part| part.copy_from(Span::of(&state.incoming[taken])));
                state.ready.start += count;
                return copied
                    .map_or_else(|error| Moved::Broken(io::Error::other(error)), |()| Moved::Bytes(count));
            }
            if state.has_ended {
                return Moved::End;
            }
            match self.next(state) {
                Ok(true) => {}
                Ok(false) => return Moved::Busy,
                Err(error) => return Moved::Broken(error),
            }
        }
    }

    /// Goes on with the next message; whether it has come. The turn must be held.
    fn next(&self, state: &mut State) -> io::Result<bool> {
        if state.receiving.is_none() {
            let mut found: c_int = 0;
            let mut message = std::mem::MaybeUninit::<ffi::MPI_Message>::uninit();
            let mut status = std::mem::MaybeUninit::<ffi::MPI_Status>::uninit();
            let mut count: c_int = 0;
            // SAFETY: MPI runs and the turn is held; all targets live until the calls return, and message and status are
            // read only where MPI found a message, which wrote both.
            let code = unsafe {
                let (raw, tag) = (self.world.raw, self.medium as c_int);
                let (message, status) = (message.as_mut_ptr(), status.as_mut_ptr());
                let code = ffi::MPI_Improbe(self.rank, tag, raw, &raw mut found, message, status);
                if code == 0 && found != 0 {
                    ffi::MPI_Get_count(status, byte(), &raw mut count)
                } else {
                    code
                }
            };
            if code != 0 {
                return Err(failed("MPI_Improbe", code));
            }
            if found == 0 {
                return Ok(false);
            }
            let length = usize::try_from(count).unwrap_or(usize::MAX);
            if length > MESSAGE_BYTES {
                return Err(io::Error::other(format!("a message of {length} bytes, which no member sends")));
            }
            state.incoming.resize(length, 0);
            // SAFETY: a value for MPI to write over.
            let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
            // SAFETY: as above; the message was found, and the memory stays where it is until the request has ended, or is
            // leaked with this channel.
            let code = unsafe {
                let bytes = state.incoming.as_mut_ptr().cast();
                ffi::MPI_Imrecv(bytes, count, byte(), message.as_mut_ptr(), &raw mut request)
            };
            if code != 0 {
                return Err(failed("MPI_Imrecv", code));
            }
            state.receiving = Some(request);
        }
        if !has_ended(&mut state.receiving)? {
            return Ok(false);
        }
        state.ready = 0..state.incoming.len();
        state.has_ended = state.incoming.is_empty();
        Ok(true)
    }

    /// Whether the other side has begun to receive everything that was sent.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        let mut state = self.state();
        if state.slots.iter().all(|slot| slot.request.is_none()) {
            return true;
        }
        let Some(_turn) = turn() else { return true };
        // What is broken is found out by those who send or receive next.
        state.slots.iter_mut().all(|slot| has_ended(&mut slot.request).unwrap_or(true))
    }

    /// Says that nothing more will be sent; what was sent before still arrives.
    pub fn finish(&self) {
        let mut state = self.state();
        let Some(_turn) = turn() else { return };
        if std::mem::replace(&mut state.is_finished, true) {
            return;
        }
        // SAFETY: MPI runs and the turn is held. A message without bytes needs no memory, so nobody waits for its end.
        unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let (none, tag) = (std::ptr::null(), self.medium as c_int);
            if ffi::MPI_Isend(none, 0, byte(), self.rank, tag, self.world.raw, &raw mut request) == 0 {
                ffi::MPI_Request_free(&raw mut request);
            }
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("MPI was finalised in this process")
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.world.pid == process::pid() && self.is_sent() && self.state().receiving.is_none() {
            return;
        }
        if self.world.pid == process::pid() {
            IS_ABANDONED.store(true, Ordering::SeqCst);
        }
        // MPI may still read and write there.
        let mut state = self.state();
        state.slots.drain(..).for_each(|slot| std::mem::forget(slot.bytes));
        std::mem::forget(std::mem::take(&mut state.incoming));
    }
}
