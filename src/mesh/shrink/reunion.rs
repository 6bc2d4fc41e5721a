//! The meeting place of those that go on: payloads travel over the old connections, and the last phase is the agreement's.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::agreement::{Ballot, Next, Proposal};
use super::session::Session;
use crate::error::{Error, Result};
use crate::mesh::Mesh;
use crate::rendezvous::{Exchange, RunKey};
use crate::sys::Deadline;
use crate::topology::{Member, Roster};

/// One trial to form the new mesh.
pub(super) struct Reunion {
    session: Arc<Mutex<Session>>,
    ballot: Ballot,
    /// The indexes of the members in the old mesh, by those in the new one.
    seats: Vec<usize>,
    index: usize,
    roster: Roster,
    key: RunKey,
    number: u64,
}

impl Reunion {
    /// The trial of a proposal that has this member.
    pub(super) fn of(mesh: &Mesh, session: Arc<Mutex<Session>>, proposal: &Proposal, key: RunKey) -> Self {
        let old = mesh.topology();
        let members = proposal.members.iter().filter_map(|(index, address)| {
            let mut introduction = old.members().get(*index)?.introduction.clone();
            introduction.socket.clone_from(address);
            Some((introduction, old.members()[*index].nonce.clone()))
        });
        let members = members.enumerate();
        let members =
            members.map(|(index, (introduction, nonce))| Member { index, nonce, introduction }).collect();
        let seats = proposal.members.keys().copied().collect::<Vec<_>>();
        Self {
            session,
            ballot: proposal.ballot,
            index: seats.iter().position(|seat| *seat == mesh.index()).unwrap_or(0),
            seats,
            roster: Roster { run: old.run().to_owned(), members },
            key,
            number: 0,
        }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this trial may still come to count.
    ///
    /// # Errors
    /// `Closed` once the members that are left have agreed on something else.
    pub(super) fn check(session: &Mutex<Session>, ballot: Ballot) -> Result<()> {
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        session.turn()?;
        if session.agreement.is_current(ballot) { Ok(()) } else { Err(superseded(ballot)) }
    }

    /// Waits until all have formed the mesh, and until that counts.
    fn commit(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.session().agreement.formed(self.ballot);
        loop {
            let mut session = self.session();
            session.check(deadline)?;
            match session.agreement.next() {
                Next::GoOn(proposal) if proposal.ballot == self.ballot => return Ok(()),
                _ if !session.agreement.is_current(self.ballot) => return Err(superseded(self.ballot)),
                _ => session.rest(deadline),
            }
        }
    }

    fn gather(
        &self,
        phase: &str,
        number: u64,
        payload: &[u8],
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        self.session().publish(self.ballot, number, &self.seats, payload);
        loop {
            let mut session = self.session();
            session.turn()?;
            if let Some(payloads) = session.published(self.ballot, number, &self.seats) {
                return Ok(payloads);
            }
            if !session.agreement.is_current(self.ballot) {
                return Err(superseded(self.ballot));
            }
            deadline.check(phase, || {
                let missing = session.unpublished(self.ballot, number, &self.seats);
                missing.into_iter().map(|index| session.missing(index)).collect()
            })?;
            session.rest(deadline);
        }
    }
}

fn superseded(ballot: Ballot) -> Error {
    Error::Closed {
        what: format!("trial {} of index {} to shrink", ballot.round, ballot.leader),
        why: "the members that are left have changed".to_owned(),
    }
}

impl Exchange for Reunion {
    fn index(&self) -> usize {
        self.index
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn key(&self) -> &RunKey {
        &self.key
    }

    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        // The session, which is held here, knows by itself whether this trial still counts.
        let deadline = &deadline.in_any_case();
        match phase {
            "ready" => self.commit(deadline).map(|()| Vec::new()),
            // Who was lost is the agreement's to find out.
            "loss" => Ok(Vec::new()),
            _ => {
                self.number += 1;
                self.gather(phase, self.number, payload, deadline)
            }
        }
    }

    fn give_up(&mut self, _reason: &Error) {}

    fn close(&mut self) {}
}
