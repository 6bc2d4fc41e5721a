//! The MPI library that this build is linked to: starting or adopting it, and channels of bytes between its processes.
//!
//! MPI is called by one thread at a time, behind one lock. No memory of the caller's is ever given to it: bytes are copied
//! into and out of memory that is kept until MPI is done with it, so that a call may end before its messages have.

mod channel;
mod library;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ::mpi::ffi;
use ::mpi::traits::AsRaw;

pub use channel::{Channel, Medium};
pub use library::{Library, library};

use super::{Deadline, process};
use crate::error::{Error, Result};

/// How long the end of the process waits for a thread that is inside of MPI, and for an end of MPI after a failure.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Held by whoever calls MPI.
static TURN: Mutex<()> = Mutex::new(());
/// The start that this process made, if it made one.
static START: OnceLock<Start> = OnceLock::new();
/// Whether messages were given up that MPI may never get rid of, so that finalising could wait for ever.
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);
/// What is to be closed before MPI is finalised.
static FAREWELLS: Mutex<Vec<Box<dyn Fn() + Send>>> = Mutex::new(Vec::new());

/// Whether this build has MPI.
#[must_use]
pub const fn is_compiled() -> bool {
    true
}

/// The processes of `MPI_COMM_WORLD`; `None` if nobody has initialised MPI in this process, or somebody has finalised it.
#[must_use]
pub fn running_count() -> Option<usize> {
    let _turn = turn()?;
    let mut count: c_int = 0;
    // SAFETY: MPI runs and the turn is held; one int is written.
    let code = unsafe { ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &raw mut count) };
    if code == 0 { usize::try_from(count).ok() } else { None }
}

/// Whether somebody has initialised MPI in this process, and nobody has finalised it.
fn is_running() -> bool {
    let mut started: c_int = 0;
    // SAFETY: MPI allows it at any time and from any thread; one int is written.
    unsafe { ffi::MPI_Initialized(&raw mut started) };
    started != 0 && !has_ended()
}

/// The right to call MPI; `None` where it is not running, or in a process that was forked from the one that runs it.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    is_running().then_some(guard)
}

/// Turns a code that MPI returned into an error.
fn checked(call: &str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::Vendor {
        library: library::own().name(),
        call: call.to_owned(),
        code: i64::from(code),
        text: library::error_text(code),
    })
}

/// An MPI start by this process, on a thread of its own, since nothing limits how long it takes.
struct Start {
    pid: u32,
    provided: Mutex<Option<Result<c_int>>>,
    changed: Condvar,
}

/// Makes sure that MPI runs here at the thread level that calls from executor threads need.
///
/// An MPI that somebody else has initialised is adopted, and finalised by nobody here.
fn start(deadline: &Deadline<'_>) -> Result<()> {
    library::check()?;
    if is_running() && START.get().is_none() {
        let mut level: c_int = 0;
        // SAFETY: MPI runs, and writes one int.
        checked("MPI_Query_thread", unsafe { ffi::MPI_Query_thread(&raw mut level) })?;
        return check_level(level, "it was initialised with");
    }
    if has_ended() {
        return Err(over());
    }
    let start = START.get_or_init(begin);
    if start.pid != process::pid() {
        let why = format!("it was started before a fork, in process {}", start.pid);
        return Err(Error::Closed { what: "MPI".to_owned(), why });
    }
    loop {
        let provided = start.provided.lock().unwrap_or_else(PoisonError::into_inner);
        match &*provided {
            Some(Ok(level)) => break check_level(*level, "it gives")?,
            Some(Err(error)) => return Err(Error::unsupported("MPI", error.to_string())),
            None => drop(start.changed.wait_timeout(provided, deadline.pause())),
        }
        // MPI does not say who has not come to its start.
        deadline.check("MPI_Init_thread, which all processes of the launcher must reach", Vec::new)?;
    }
    if is_running() { Ok(()) } else { Err(over()) }
}

/// Whether somebody has finalised MPI in this process.
fn has_ended() -> bool {
    let mut ended: c_int = 0;
    // SAFETY: MPI allows it at any time and from any thread; one int is written.
    unsafe { ffi::MPI_Finalized(&raw mut ended) };
    ended != 0
}

fn over() -> Error {
    let why = "it was finalised in this process, and cannot be started twice".to_owned();
    Error::Closed { what: "MPI".to_owned(), why }
}

fn begin() -> Start {
    let spawned = std::thread::Builder::new().name("uform-mpi-start".to_owned()).spawn(|| {
        let mut level: c_int = 0;
        let (wanted, none) = (thread_level(), std::ptr::null_mut());
        // SAFETY: nobody has initialised MPI here: `START` makes this the only start, and the caller looked before. Null
        // arguments are legal since MPI-2.
        let code = unsafe { ffi::MPI_Init_thread(none, std::ptr::null_mut(), wanted, &raw mut level) };
        let provided = checked("MPI_Init_thread", code).map(|()| level);
        if provided.is_ok() {
            // SAFETY: the function is of this library, which stays loaded: MPI is linked to it.
            unsafe { libc::atexit(end) };
        }
        let start = START.wait();
        *start.provided.lock().unwrap_or_else(PoisonError::into_inner) = Some(provided);
        start.changed.notify_all();
    });
    let provided = spawned.err().map(|source| Err(Error::io("a thread", "start", source)));
    Start { pid: process::pid(), provided: Mutex::new(provided), changed: Condvar::new() }
}

fn thread_level() -> c_int {
    // SAFETY: a constant of the library.
    unsafe { ffi::RSMPI_THREAD_SERIALIZED }
}

fn check_level(level: c_int, how: &str) -> Result<()> {
    if level >= thread_level() {
        return Ok(());
    }
    // SAFETY: a constant of the library.
    let single = unsafe { ffi::RSMPI_THREAD_SINGLE };
    let name = if level == single { "MPI_THREAD_SINGLE" } else { "MPI_THREAD_FUNNELED" };
    let why = format!(
        "{how} {name}, and calls come from the threads of an executor: initialise it with MPI_THREAD_SERIALIZED or \
         MPI_THREAD_MULTIPLE"
    );
    Err(Error::unsupported(library::own().to_string(), why))
}

/// Finalises the MPI that this process started, at its end; leaves one that does not come to an end.
extern "C" fn end() {
    if START.get().is_none_or(|start| start.pid != process::pid()) || !is_running() {
        return;
    }
    for farewell in FAREWELLS.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        farewell();
    }
    let start = Instant::now();
    let turn = loop {
        match TURN.try_lock() {
            Ok(turn) => break Some(turn),
            Err(_) if start.elapsed() > END_LIMIT => break None,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    if turn.is_none() || !is_running() {
        return;
    }
    // SAFETY: MPI runs, this process started it, and no other thread is inside of it.
    let finalise = || unsafe { ffi::MPI_Finalize() };
    if !IS_ABANDONED.load(Ordering::SeqCst) {
        finalise();
        return;
    }
    // Messages that nobody will take: a library may wait for them for ever.
    let (told, done) = std::sync::mpsc::channel();
    let spawned = std::thread::Builder::new().spawn(move || told.send(finalise()));
    if spawned.is_ok() {
        let _ = done.recv_timeout(END_LIMIT);
    }
}

/// Has something closed before this process finalises the MPI that it started.
pub fn before_end(act: impl Fn() + Send + 'static) {
    FAREWELLS.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(act));
}

/// A communicator of the caller's: its processes are the run, and its ranks the indexes.
#[derive(Clone, Copy)]
pub struct Handle(ffi::MPI_Comm);

impl std::fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Handle(an MPI communicator)")
    }
}

// SAFETY: a handle is a name that MPI looks up, whichever thread asks.
unsafe impl Send for Handle {}
// SAFETY: as above; nothing here changes it.
unsafe impl Sync for Handle {}

impl Handle {
    /// A communicator of the `mpi` crate, which must be the same version as here.
    #[must_use]
    pub fn of(communicator: &impl AsRaw<Raw = ffi::MPI_Comm>) -> Self {
        Self(communicator.as_raw())
    }

    /// Reads the `MPI_Comm` at an address, such as `mpi4py.MPI._addressof(communicator)`.
    ///
    /// # Safety
    /// `address` must be that of an `MPI_Comm` of the library that this build is linked to; MPI looks it up.
    #[must_use]
    pub unsafe fn read(address: *const c_void) -> Self {
        // SAFETY: by the contract of this function; no alignment is asked for.
        Self(unsafe { address.cast::<ffi::MPI_Comm>().read_unaligned() })
    }
}

/// A communicator of our own, made of the processes of another one: no message here meets one of the caller's.
#[derive(Clone)]
pub struct World(Arc<Communicator>);

struct Communicator {
    raw: ffi::MPI_Comm,
    rank: usize,
    count: usize,
    pid: u32,
    /// Whether no message of a meeting is on its way any more.
    is_quiet: AtomicBool,
    /// Whether it carries calls, whose last words nobody may receive.
    carries: AtomicBool,
}

// SAFETY: a handle is a name that MPI looks up; every call with it is made behind `TURN`.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl std::fmt::Debug for World {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "World(rank {} of {})", self.rank(), self.count())
    }
}

/// A communicator on its way, where MPI writes it; kept for ever if the deadline passes first.
struct Duplication {
    raw: ffi::MPI_Comm,
    request: ffi::MPI_Request,
}

impl World {
    /// Joins the processes of a communicator, `MPI_COMM_WORLD` without one; collective.
    ///
    /// MPI is started if it does not run.
    ///
    /// # Errors
    /// `Unsupported` for a thread level below `MPI_THREAD_SERIALIZED`; `Invalid` for another MPI library in this process and
    /// for a handle that is no communicator of this process; `TimedOut`, `Interrupted`, `Closed`, `Vendor`.
    pub fn join(handle: Option<Handle>, deadline: &Deadline<'_>) -> Result<Self> {
        start(deadline)?;
        // SAFETY: constants of the library.
        let (all, none) = unsafe { (ffi::RSMPI_COMM_WORLD, ffi::RSMPI_COMM_NULL) };
        let given = handle.map_or(all, |handle| handle.0);
        if given == none {
            let reason = "is MPI_COMM_NULL: this process is no member of it";
            return Err(Error::invalid("communicator", "MPI_COMM_NULL", "argument", reason));
        }
        let (mut is_inter, mut rank, mut count): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: a value for the library to write over.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        let mut made = Box::new(Duplication { raw: none, request });
        {
            let _turn = turn().ok_or_else(over)?;
            // SAFETY: MPI runs, the turn is held, and each call writes one int that lives until it returns. That the handle
            // is a communicator is the promise of `Handle`.
            unsafe {
                checked("MPI_Comm_test_inter", ffi::MPI_Comm_test_inter(given, &raw mut is_inter))?;
                checked("MPI_Comm_rank", ffi::MPI_Comm_rank(given, &raw mut rank))?;
                checked("MPI_Comm_size", ffi::MPI_Comm_size(given, &raw mut count))?;
            }
            if is_inter != 0 {
                let reason = "joins two groups: give one of a single group";
                return Err(Error::invalid("communicator", "an intercommunicator", "argument", reason));
            }
            let made = &mut *made;
            // SAFETY: as above; both targets lie in a box that is kept until the request is done, or for ever.
            let code = unsafe { ffi::MPI_Comm_idup(given, &raw mut made.raw, &raw mut made.request) };
            checked("MPI_Comm_idup", code)?;
        }
        let (rank, count) = (usize::try_from(rank).unwrap_or(0), usize::try_from(count).unwrap_or(0));
        let raw = await_duplicate(made, deadline)?;
        let _turn = turn().ok_or_else(over)?;
        // SAFETY: a communicator that MPI just made, and a constant of the library.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN) };
        checked("MPI_Comm_set_errhandler", code)?;
        let (is_quiet, carries) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self(Arc::new(Communicator { raw, rank, count, pid: process::pid(), is_quiet, carries })))
    }

    /// The rank of this process.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// How many processes there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// Says that every message of the meeting has been received: a communicator that carried nothing else then goes with its
    /// last handle.
    pub fn release(&self) {
        self.0.is_quiet.store(true, Ordering::SeqCst);
    }

    /// One end of a stream of bytes between this process and another one, which makes the other end of the same medium.
    #[must_use]
    pub fn channel(&self, rank: usize, medium: Medium) -> Channel {
        if medium != Medium::Meeting {
            self.0.carries.store(true, Ordering::SeqCst);
        }
        Channel::new(Arc::clone(&self.0), rank, medium)
    }
}

fn await_duplicate(mut made: Box<Duplication>, deadline: &Deadline<'_>) -> Result<ffi::MPI_Comm> {
    let mut looks = 0;
    loop {
        let mut is_done: c_int = 0;
        let code = match turn() {
            // SAFETY: the request is one that MPI gave and has not ended; the flag lives until the call returns.
            Some(_turn) => unsafe {
                ffi::MPI_Test(&raw mut made.request, &raw mut is_done, ffi::RSMPI_STATUS_IGNORE)
            },
            None => 0,
        };
        if is_done != 0 {
            checked("MPI_Comm_idup", code)?;
            return Ok(made.raw);
        }
        let phase = "MPI_Comm_idup, which all processes of the communicator must reach (MPI does not say who has not)";
        let waited = checked("MPI_Comm_idup", code).and_then(|()| deadline.check(phase, Vec::new));
        if let Err(error) = waited {
            // MPI may still write into it.
            Box::leak(made);
            IS_ABANDONED.store(true, Ordering::SeqCst);
            return Err(error);
        }
        looks += 1;
        rest(looks, deadline.pause());
    }
}

/// Waits a moment between two looks at MPI, which wakes nobody: shortly at first, longer after many looks in vain.
pub fn rest(looks: u32, limit: Duration) {
    match looks {
        0..100 => std::thread::yield_now(),
        _ => std::thread::sleep(limit.min(Duration::from_micros(u64::from(looks.min(1000))))),
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // One with messages on their way is kept: its number would be given to another, and they would reach that one.
        let may_go = self.is_quiet.load(Ordering::SeqCst) && !self.carries.load(Ordering::SeqCst);
        if !may_go || self.pid != process::pid() {
            return;
        }
        let Some(_turn) = turn() else { return };
        let mut raw = self.raw;
        // SAFETY: the last handle of a communicator of our own; all members have received all that was sent on it.
        unsafe { ffi::MPI_Comm_free(&raw mut raw) };
    }
}
