//! After members were lost: those that are left agree on each other, and form a mesh of their own without new processes.
//!
//! All goes over the connections of the old mesh, and nothing else is touched. The new mesh has a key of its own, which those
//! that are left out do not know.

mod agreement;
mod reunion;
mod session;
mod wire;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::agreement::{Next, Proposal};
use self::reunion::Reunion;
use self::session::Session;
use super::Mesh;
use super::group::{Between, Forming, form};
use crate::error::{Error, Result};
use crate::sys::Deadline;

/// The longest that forming the new mesh may take in one trial.
const FORMING_LIMIT: Duration = Duration::from_secs(60);

impl Mesh {
    /// A mesh of the members that are left, in the order of their indexes, numbered anew; without new processes.
    ///
    /// Collective over the members that live, after a call has ended in `Lost`, `TimedOut` or `Interrupted`, or at any
    /// time: on a mesh without losses the new one is equal. It succeeds for more than half of the members, or for
    /// exactly half with index 0. One that is stopped, or that does not come within half of the deadline and a minute at most, is
    /// left out: its next call on the old mesh raises `Closed`. The old mesh is closed, its arenas and trainers with
    /// it; the new one runs on this handle's executor.
    ///
    /// # Errors
    /// `Closed` if too few members came, or if they went on without this one; `TimedOut` and `Interrupted`. After an
    /// error only `close` is legal.
    pub fn shrink(&self) -> Result<Self> {
        self.shrink_within(&Self::patience())
    }

    /// As [`Mesh::shrink`], within a deadline.
    ///
    /// # Errors
    /// As [`Mesh::shrink`].
    pub fn shrink_within(&self, deadline: &Deadline<'_>) -> Result<Self> {
        let _admission = self.admit("shrink", deadline)?;
        if self.inner.is_shrinking.swap(true, Ordering::AcqRel) {
            return Err(Error::Closed {
                what: format!("the mesh of index {}", self.index()),
                why: "an earlier shrink of it failed; restart from a checkpoint".to_owned(),
            });
        }
        let session = Session::open(self, deadline)?;
        let session = Arc::new(Mutex::new(session));
        let shrunk = self.agree(&session, deadline);
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        match &shrunk {
            Ok((_, proposal)) if proposal.members.len() < self.count() => {
                let indexes = proposal.members.keys().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let words = format!("indexes {indexes} went on in a mesh of their own");
                session.flush();
                self.communicator().went_on(&words);
            }
            Ok(_) => session.flush(),
            Err(error) => session.give_up(&error.to_string()),
        }
        // Those that still agree must not wait for this member.
        self.communicator().close();
        let (mesh, _) = shrunk?;
        self.close()?;
        Ok(mesh)
    }

    fn agree(&self, session: &Arc<Mutex<Session>>, deadline: &Deadline<'_>) -> Result<(Self, Proposal)> {
        loop {
            let mut open = session.lock().unwrap_or_else(PoisonError::into_inner);
            open.check(deadline)?;
            let Next::Form(proposal) = open.agreement.next() else {
                open.rest(deadline);
                continue;
            };
            let proposal = proposal.clone();
            let listener = open.take_listener()?;
            let key = open.key(proposal.ballot)?;
            drop(open);
            let mut reunion = Reunion::of(self, Arc::clone(session), &proposal, key);
            let lease = self.inner.lease.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let forming = Forming {
                name: &self.inner.name,
                executor: Some(self.executor()),
                lease,
                gpus_per_multimem_domain: 0,
                between: Between { network: &self.inner.network, world: None },
                recorder: Some(&self.inner.recorder),
                family: Some(&self.inner.family),
            };
            let check = || Reunion::check(session, proposal.ballot);
            let trial = deadline.sooner((deadline.remaining() / 2).min(FORMING_LIMIT));
            let trial = trial.unless_vain(&check);
            match form(&mut reunion, listener, forming, &trial) {
                Ok(mesh) => return Ok((mesh, proposal)),
                Err(error @ Error::Interrupted { .. }) => return Err(error),
                Err(error) => {
                    tracing::info!(
                        index = self.index(),
                        error = error.chain(),
                        "a shrunk mesh was not formed"
                    );
                    let mut open = session.lock().unwrap_or_else(PoisonError::into_inner);
                    open.agreement.failed(proposal.ballot, &error.chain());
                }
            }
        }
    }
}
