//! Calls that go on after they were submitted: who waits for them, and where their results go.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use uform::error::{Error, Result};
use uform::sys::Deadline;

use crate::argument::{self, Out};
use crate::call::Calling;
use crate::handle::{self, Deferred, Handled};
use crate::structure::{CallOptions, Ended};
use crate::verbs;

/// A deferred call as C holds it.
pub(crate) struct Held {
    pending: Box<dyn Pending>,
    /// Readable once the call has ended; made when it is asked for.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
}

impl Handled for Held {
    type Handle = Deferred;
    const NOUN: &'static str = "deferred";
}

/// A deferred call of any result.
trait Pending: Send + Sync {
    fn is_done(&self) -> bool;
    fn on_done(&self, hook: Box<dyn FnOnce() + Send>);
    /// Waits for the end and puts the result where its caller wants it.
    fn wait(&self, deadline: &Deadline<'_>) -> Result<()>;
}

struct Of<T, P> {
    call: uform::Deferred<T>,
    put: P,
}

impl<T: Send + 'static, P: Fn(T) + Send + Sync> Pending for Of<T, P> {
    fn is_done(&self) -> bool {
        self.call.is_done()
    }

    fn on_done(&self, hook: Box<dyn FnOnce() + Send>) {
        self.call.on_done(hook);
    }

    fn wait(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.call.wait(deadline).map(&self.put)
    }
}

/// Gives a submitted call to C; whoever waits for it has `put` called with the result.
pub(crate) fn give<T: Send + 'static>(
    place: Out<*mut Deferred>,
    call: uform::Deferred<T>,
    put: impl Fn(T) + Send + Sync + 'static,
) {
    let pending = Box::new(Of { call, put });
    place.put(handle::give(Held { pending, descriptor: Mutex::new(None) }));
}

/// Something of the caller's that any thread of this library may use.
struct Foreign<T>(T);

// SAFETY: the header asks for a callback and a user pointer that any thread may use.
unsafe impl<T> Send for Foreign<T> {}

impl<T: Copy> Foreign<T> {
    fn get(&self) -> T {
        self.0
    }
}

verbs! {
    /// Whether the call has ended.
    fn uform_deferred_done(deferred: *const Deferred, done: *mut c_int) {
        let done = Out::new(done, "done")?;
        done.put(c_int::from(handle::get::<Held>(deferred)?.pending.is_done()));
        Ok(())
    }

    /// Waits for the end of the call and gives its result.
    fn uform_deferred_wait(deferred: *const Deferred, options: *const CallOptions) {
        let deferred = handle::get::<Held>(deferred)?;
        Calling::read(options)?.blocking("deferred.wait")?.run(|deadline| deferred.pending.wait(deadline))
    }

    /// A descriptor that is readable once the call has ended.
    fn uform_deferred_descriptor(deferred: *const Deferred, descriptor: *mut c_int) {
        let place = Out::new(descriptor, "descriptor")?;
        let deferred = handle::get::<Held>(deferred)?;
        let mut own = deferred.descriptor.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &*own {
            Some(event) => Arc::clone(event),
            None => {
                let event = Arc::new(open_event()?);
                let told = Arc::clone(&event);
                // A counter that is full is readable, which is all that is asked of it.
                deferred.pending.on_done(Box::new(move || {
                    let _ = rustix::io::write(&*told, &1_u64.to_ne_bytes());
                }));
                Arc::clone(own.insert(event))
            }
        };
        place.put(event.as_raw_fd());
        Ok(())
    }

    /// Has a function called once the call has ended.
    fn uform_deferred_on_done(
        deferred: *const Deferred,
        callback: Ended,
        user: *mut c_void,
    ) {
        let deferred = handle::get::<Held>(deferred)?;
        let foreign = Foreign((callback.ok_or_else(|| argument::null("callback"))?, user));
        deferred.pending.on_done(Box::new(move || {
            let (callback, user) = foreign.get();
            // SAFETY: the header asks for a function that may be called with this pointer until it was.
            unsafe { callback(user) }
        }));
        Ok(())
    }

    /// Releases the handle; the call goes on.
    fn uform_deferred_free(deferred: *mut Deferred) {
        handle::take::<Held>(deferred).map(drop)
    }
}

fn open_event() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| Error::Exhausted {
        place: format!("this process's descriptors ({errno})"),
        wanted_bytes: 0,
        free_bytes: 0,
        remedy: "raise `ulimit -n`, or wait without a descriptor".to_owned(),
    })
}
