//! The stacks of Python's threads for reports of calls that failed, by its `faulthandler`.
//!
//! A thread of Python writes them, holding the interpreter's lock, so that no frame changes meanwhile. Where it does not get the
//! lock within a second, since some thread holds it within C code, `faulthandler`'s handler of a signal writes them without the lock, on
//! the thread of ours that asks: it sends the signal to itself, so that no call of the user's is interrupted.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::DupFlags;
use uform::recorder::StackSource;
use uform::sys::{process, signal};

use crate::exit::Passage;

/// How long the thread of Python may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// What gives the stacks of this process; one for each process, a forked child has its own.
static OWN: Mutex<Option<(u32, Arc<Stacks>)>> = Mutex::new(None);

struct Stacks {
    requests: OwnedFd,
    answers: OwnedFd,
    /// 0 where no signal is free.
    signal: i32,
    turn: Mutex<Turn>,
}

struct Turn {
    /// What both ways write to: `/dev/null` unless stacks are wanted, so that one who comes late harms no file.
    target: OwnedFd,
    nothing: OwnedFd,
    asked: u64,
    answered: u64,
}

/// Has a mesh of several members leave the stacks of this interpreter where a call fails.
pub(crate) fn give(py: Python<'_>, mesh: &uform::Mesh) {
    if mesh.count() == 1 {
        return;
    }
    let given = own(py).map_err(|error| error.to_string()).and_then(|own| {
        let own: Arc<dyn StackSource> = own;
        mesh.give_stacks(own).map_err(|error| error.chain())
    });
    if let Err(reason) = given {
        tracing::warn!("index {} leaves no stacks in reports: {reason}", mesh.index());
    }
}

fn own(py: Python<'_>) -> PyResult<Arc<Stacks>> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*own {
        Some((pid, stacks)) if *pid == process::pid() => Ok(Arc::clone(stacks)),
        _ => {
            let stacks = Arc::new(Stacks::start(py)?);
            *own = Some((process::pid(), Arc::clone(&stacks)));
            Ok(stacks)
        }
    }
}

impl Stacks {
    fn start(py: Python<'_>) -> PyResult<Self> {
        let failed = std::io::Error::from;
        let bell = || eventfd(0, EventfdFlags::CLOEXEC).map_err(failed);
        let null =
            || rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed);
        let (requests, answers, target, nothing) = (bell()?, bell()?, null()?, null()?);
        let module = py.import("uform._stacks")?;
        module.call_method1("start", (requests.as_raw_fd(), answers.as_raw_fd(), target.as_raw_fd()))?;
        let free = signal::free().first().copied();
        if let Some(number) = free {
            module.call_method1("register", (number, target.as_raw_fd()))?;
        }
        let turn = Mutex::new(Turn { target, nothing, asked: 0, answered: 0 });
        Ok(Self { requests, answers, signal: free.unwrap_or(0), turn })
    }

    /// Asks the thread of Python and waits for it.
    fn ask(&self, turn: &mut Turn) -> rustix::io::Result<bool> {
        rustix::io::write(&self.requests, &1_u64.to_ne_bytes())?;
        turn.asked += 1;
        let end = Instant::now() + PATIENCE;
        while turn.answered < turn.asked {
            let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).unwrap_or_default();
            match poll(&mut [PollFd::new(&self.answers, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Ok(false),
                Err(rustix::io::Errno::INTR) => continue,
                other => other?,
            };
            let mut count = [0; 8];
            rustix::io::read(&self.answers, &mut count)?;
            turn.answered += u64::from_ne_bytes(count);
        }
        Ok(true)
    }
}

impl StackSource for Stacks {
    fn append(&self, file: &File) -> bool {
        // The end of the interpreter waits for this, and none begins afterwards.
        let Some(_passage) = Passage::enter() else { return false };
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if rustix::io::dup3(file, &mut turn.target, DupFlags::CLOEXEC).is_err() {
            return false;
        }
        let is_given = self.ask(&mut turn).unwrap_or(false) || signal::run_handler(self.signal);
        let Turn { target, nothing, .. } = &mut *turn;
        let _ = rustix::io::dup3(nothing, target, DupFlags::CLOEXEC);
        is_given
    }
}
