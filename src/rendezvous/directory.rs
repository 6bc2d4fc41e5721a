//! Meeting in a directory that all members see: local, NFS or Lustre.
//!
//! Nothing is assumed beyond atomic rename, exclusive creation and close-to-open; correctness rests on no lock and
//! no clock. See `docs` of each part: `job` (the folder of a job), `attempt` (one epoch of one leader), `leader`,
//! `member`.

mod attempt;
mod ground;
mod job;
mod leader;
mod member;
#[cfg(test)]
mod simulation;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use attempt::{Attempt, Stage, insist, published_by};
use ground::{Folder, Ground, Machine, Own, forget_slowest, slowest};
use job::{Job, Pace, Watch};

use super::reason::Reason;
use super::record::{self, Identity, Life, Note, Outcome, PAYLOAD_LIMIT, Proposal, Registration, job_folder};
use super::{Exchange, RunKey};
use crate::error::{Error, Missing, Result};
use crate::sys::{Deadline, file, process};
use crate::topology::{Introduction, Member, Process, Roster};

/// Who meets whom, and where.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The shared directory, absolute.
    pub directory: PathBuf,
    /// The job's name: those with the same one meet.
    pub job: String,
    /// Whether the job's name is unique to this start of all its processes.
    pub attempt_is_unique: bool,
    /// The index of this process.
    pub index: usize,
    /// How many processes there are.
    pub count: usize,
    /// What this process says of itself.
    pub introduction: Introduction,
}

/// This process in a meeting: what it is, and where it looks.
struct Party {
    root: Folder,
    folder_name: String,
    job: Job,
    own: Own,
    registration: Registration,
    survey: String,
    is_unique: bool,
    /// Whether this process's record among those who wait for a leader may be there, and surely is.
    announced: (bool, bool),
    /// The cause of the failure that is on its way up, as all members are to report it.
    reason: RefCell<Option<Reason>>,
}

impl Party {
    fn open(ground: Arc<dyn Ground>, meeting: &Meeting, deadline: &Deadline<'_>) -> Result<Self> {
        forget_slowest();
        let refuse = |argument: &str, value: &dyn std::fmt::Display, reason: String| {
            Error::invalid(argument, value, "rendezvous", reason)
        };
        if meeting.job.is_empty() {
            return Err(refuse("job", &"\"\"", "must not be empty".into()));
        }
        if meeting.index >= meeting.count {
            let reason = format!("must be below host_domain_count, {}", meeting.count);
            return Err(refuse("host_domain_index", &meeting.index, reason));
        }
        let own = Identity {
            index: meeting.index,
            nonce: ground.nonce()?,
            count: meeting.count,
            namespace: process::pid_namespace(),
            process: meeting.introduction.process.clone(),
        };
        let (registration, survey) = Registration::of(&own, &meeting.introduction)
            .map_err(|error| refuse("introduction", &meeting.index, error.to_string()))?;
        let root = insist(deadline, "rendezvous, opening the directory", || ground.root(&meeting.directory))?;
        let own = Own::new(own, ground);
        let folder_name = job_folder(&meeting.job);
        if meeting.index == 0 {
            job::reclaim_all(&root, &own)?;
        }
        let job = enter(&root, &folder_name, own.index, deadline)?;
        let is_unique = meeting.attempt_is_unique;
        let (announced, reason) = ((false, false), RefCell::new(None));
        Ok(Self { root, folder_name, job, own, registration, survey, is_unique, announced, reason })
    }

    /// Enters the job's folder again after somebody removed it.
    fn enter(&mut self, deadline: &Deadline<'_>) -> Result<()> {
        self.job = enter(&self.root, &self.folder_name, self.own.index, deadline)?;
        self.announced.1 = false;
        Ok(())
    }

    /// Shows in the job's folder that this process waits for a leader.
    fn announce(&mut self) -> Result<()> {
        if !self.announced.1 {
            self.announced.0 = true;
            let bytes = serde_json::to_vec(&*self.own).unwrap_or_default();
            let created = self.job.waiting.create(&attempt::member_name(&self.own), &bytes);
            self.announced.1 = file::settled(created)?.is_some();
        }
        Ok(())
    }

    /// Withdraws that record.
    fn withdraw(&self) {
        if self.announced.0 {
            self.job.waiting.remove(&attempt::member_name(&self.own));
        }
    }

    /// The error of a reason that all members are to report.
    fn fail(&self, reason: Reason) -> Error {
        let error = reason.error(self.own.index, &self.own.process);
        self.reason.replace(Some(reason));
        error
    }

    /// A wait that timed out, with the files that may have been in its way.
    fn explain(&self, error: Error, attempt: Option<&Attempt>) -> Error {
        // How many are told.
        const TOLD: usize = 4;
        match error {
            // What another member told has its own files.
            Error::TimedOut { phase, waited, missing } if self.reason.borrow().is_none() => {
                let slow = slowest(waited);
                let mut found = self.job.obstacles();
                found.extend(attempt.map(|attempt| attempt.obstacles(&self.own)).unwrap_or_default());
                let more = found.len().saturating_sub(TOLD);
                found.truncate(TOLD);
                let phase = match (found.is_empty(), more) {
                    (true, _) => phase,
                    (false, 0) => format!("{phase}, hindered by {},", found.join(", ")),
                    (false, more) => format!("{phase}, hindered by {} and {more} more,", found.join(", ")),
                };
                let (phase, missing) = match slow {
                    None => (phase, missing),
                    // Nobody but the file system has kept this member waiting.
                    Some(slow) if missing.is_empty() => {
                        let last_word = format!("this process: its file system {slow}");
                        (phase, vec![Missing { index: self.own.index, last_word }])
                    }
                    Some(slow) => (format!("{phase}, on a file system that {slow},"), missing),
                };
                Error::TimedOut { phase, waited, missing }
            }
            other => other,
        }
    }

    /// Ends the decision `number` for all because of `error`, or obeys the decision that is there.
    fn give_up(
        &self,
        attempt: &Attempt,
        number: usize,
        error: Error,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Vec<u8>>> {
        let own = &self.own;
        let reason = self.reason.take().unwrap_or_else(|| Reason::of(&error, own.index, &own.process));
        match attempt.decide(number, Err(reason.clone()), || rest(deadline)) {
            Ok(Some(Ok(payloads))) if member::yields(&error) => Ok(payloads),
            Ok(Some(Err(told))) if told != reason && member::yields(&error) => {
                Err(told.error(own.index, &own.process))
            }
            _ => Err(error),
        }
    }

    fn check_deaths<'a>(&self, members: impl Iterator<Item = &'a Identity>, stage: Stage<'_>) -> Result<()> {
        for identity in members {
            if self.own.life_of(identity) == Life::Dead {
                return Err(self.fail(identity.lost(&stage.name())));
            }
        }
        Ok(())
    }

    fn leave(&self, attempt: Option<&Attempt>, known: &[Identity]) {
        self.withdraw();
        if let Some(attempt) = attempt {
            attempt.leave(&self.job, &self.own, known);
        }
        self.job.leave(&self.root, &self.folder_name);
    }
}

fn enter(root: &Folder, name: &str, index: usize, deadline: &Deadline<'_>) -> Result<Job> {
    let phase = format!("rendezvous, entering {}", root.path().join(name).display());
    let mut tries = 0_u64;
    let entered = insist(deadline, &phase, || {
        tries += 1;
        Job::enter(root, name)
    });
    entered.map_err(|error| {
        if !file::is_transient(&error) {
            return error;
        }
        // Nobody keeps this member waiting but the file system, which shows the folder and hides it again.
        let waited = deadline.waited();
        let slow = slowest(waited).map_or_else(String::new, |slow| format!(", and once {slow}"));
        let last_word = format!(
            "this process: the file system did not let it in {tries} times{slow}; at last: {}",
            error.chain()
        );
        Error::TimedOut { phase, waited, missing: vec![Missing { index, last_word }] }
    })
}

/// Meets the other members in the directory; every member gets the same roster, or an error that says why not.
///
/// # Errors
/// `Invalid` for a directory, job or index that cannot be used; `TimedOut` naming who is missing; `Disagreed` for
/// two processes with one index and for unequal counts, on all; `Lost` for a member that died or gave up;
/// `Interrupted`; and `Io`.
pub fn meet(meeting: Meeting, deadline: &Deadline<'_>) -> Result<Box<dyn Exchange>> {
    Ok(Box::new(meet_on(Arc::new(Machine), &meeting, deadline)?))
}

fn meet_on(ground: Arc<dyn Ground>, meeting: &Meeting, deadline: &Deadline<'_>) -> Result<Met> {
    let mut party = Party::open(ground, meeting, deadline)?;
    let (formed, attempt) = if meeting.index == 0 {
        match leader::claim(&mut party, deadline) {
            Err(error) => (Err(party.explain(error, None)), None),
            Ok(attempt) => {
                let formed = leader::lead(&party, &attempt, deadline).or_else(|error| {
                    resume(&party, &attempt, party.explain(error, Some(&attempt)), deadline)
                });
                (formed, Some(attempt))
            }
        }
    } else {
        let mut following = None;
        let followed = member::follow(&mut party, &mut following, deadline);
        let attempt = following.map(|following| following.attempt);
        let formed = match (followed, &attempt) {
            (Err(error), Some(attempt)) => {
                resume(&party, attempt, party.explain(error, Some(attempt)), deadline)
            }
            (followed, _) => followed.map_err(|error| party.explain(error, None)),
        };
        (formed, attempt)
    };
    let formed = formed.and_then(|(proposal, key)| agree(&party, &meeting.job, proposal, &key));
    match (formed, attempt) {
        (Ok((roster, key, identities)), Some(attempt)) => {
            party.withdraw();
            Ok(Met { party, attempt, roster, key, identities, number: 1, ended: false })
        }
        (Err(error), attempt) => {
            party.leave(attempt.as_ref(), &[]);
            Err(error)
        }
        (Ok(_), None) => Err(Error::invalid("attempt", "none", "rendezvous", "a run formed in no attempt")),
    }
}

/// A short wait before what failed for now is tried again, by the deadline's clock though it may have passed.
fn rest(deadline: &Deadline<'_>) {
    deadline.sleep(std::time::Duration::from_millis(5));
}

/// Gives up the meeting, or obeys the commit that is there.
fn resume(
    party: &Party,
    attempt: &Attempt,
    error: Error,
    deadline: &Deadline<'_>,
) -> Result<(Proposal, Vec<u8>)> {
    let own_reason = Reason::of(&error, party.own.index, &party.own.process);
    let mut payloads = party.give_up(attempt, attempt::MEETING, error, deadline)?;
    for _ in 0..attempt::TRIES {
        if let Some(proposal) = attempt.proposal()? {
            let own = proposal.registrations.get(party.own.index);
            return match payloads.pop() {
                Some(key) if own.is_some_and(|one| one.identity == *party.own) => Ok((proposal, key)),
                // A run of others: what ended this process's wait stands.
                _ => Err(own_reason.error(party.own.index, &party.own.process)),
            };
        }
        rest(deadline);
    }
    Err(Error::Corrupt {
        path: attempt.folder.path().to_owned(),
        offset: 0,
        reason: "its commit has no readable roster".to_owned(),
    })
}

/// The roster that a committed proposal stands for.
fn agree(
    party: &Party,
    job: &str,
    proposal: Proposal,
    key: &[u8],
) -> Result<(Roster, RunKey, Vec<Identity>)> {
    let corrupt = |reason: &str| Error::Corrupt {
        path: party.job.folder.path().to_owned(),
        offset: 0,
        reason: reason.to_owned(),
    };
    let key = key.try_into().map_err(|_| corrupt("the run's key is not 32 bytes"))?;
    let mut members = Vec::with_capacity(proposal.registrations.len());
    for (index, one) in proposal.registrations.iter().enumerate() {
        let introduction =
            proposal.introduction(index).ok_or_else(|| corrupt("a registration is of another version"))?;
        members.push(Member { index, nonce: one.identity.nonce.clone(), introduction });
    }
    let leader = members.first().map(|one| one.nonce.clone()).unwrap_or_default();
    // Only the leader looks at all of them.
    let kept = if party.own.index == 0 { proposal.registrations } else { Vec::new() };
    let identities = kept.into_iter().map(|one| one.identity).collect();
    Ok((Roster { run: format!("{job}, attempt {leader}"), members }, RunKey(key), identities))
}

/// A formed run whose members still share the directory.
struct Met {
    party: Party,
    attempt: Attempt,
    roster: Roster,
    key: RunKey,
    /// All members, where this process leads.
    identities: Vec<Identity>,
    number: usize,
    ended: bool,
}

impl Met {
    fn settle(&self, number: usize, phase: &str, deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        let outcome = if self.party.own.index == 0 {
            self.combine(number, phase, deadline)?
        } else {
            self.await_outcome(number, phase, deadline)?
        };
        outcome.map_err(|told| self.party.fail(told))
    }

    fn decided(&self, number: usize) -> Result<Option<Outcome>> {
        let wanted = number.to_string();
        if self.attempt.decisions()?.contains(&wanted) {
            return self.attempt.decided(number);
        }
        Ok(None)
    }

    /// The leader gathers what all published and creates the outcome.
    fn combine(&self, number: usize, phase: &str, deadline: &Deadline<'_>) -> Result<Outcome> {
        let party = &self.party;
        let stage = Stage::Phase(number, phase);
        let mut payloads: Vec<Option<Vec<u8>>> = vec![None; party.own.count];
        let mut pace = Pace::new(party.own.count);
        let mut watch = Watch::new(deadline);
        loop {
            if let Some(outcome) = self.decided(number)? {
                return Ok(outcome);
            }
            // A death is looked for first and believed only if what follows shows nothing published.
            let dead = if watch.is_due(deadline) { self.dead(&payloads) } else { None };
            self.gather(number, phase, &mut payloads)?;
            if payloads.iter().all(Option::is_some) {
                let whole: Outcome = Ok(payloads.into_iter().flatten().collect());
                return self.attempt.decide(number, whole, || rest(deadline))?.ok_or_else(|| self.vanished());
            }
            if let Some(identity) = dead.filter(|one| payloads[one.index].is_none()) {
                return Err(party.fail(identity.lost(&stage.name())));
            }
            if let Some(names) = file::settled(party.job.leader.list())? {
                // The run is formed: a late index 0 is told, and the run goes on.
                leader::answer(party, self.attempt.epoch, &names)?;
                if let Some((index, note)) = party.job.note(&names, &party.own)?
                    && payloads.get(index).is_some_and(Option::is_none)
                    && let Some(identity) = self.identities.get(index)
                {
                    return Err(party.fail(identity.lost(&format!("{}: {}", stage.name(), note.text))));
                }
            }
            deadline.check(&stage.name(), || self.attempt.missing(stage, &party.own))?;
            pace.wait(deadline, || stage.name())?;
        }
    }

    fn dead(&self, payloads: &[Option<Vec<u8>>]) -> Option<&Identity> {
        let silent =
            self.identities.iter().filter(|one| payloads.get(one.index).is_some_and(Option::is_none));
        silent.into_iter().find(|one| self.party.own.life_of(one) == Life::Dead)
    }

    fn gather(&self, number: usize, phase: &str, payloads: &mut [Option<Vec<u8>>]) -> Result<()> {
        for name in file::settled(self.attempt.published.list())?.unwrap_or_default() {
            let Some(index) = published_by(&name, number) else { continue };
            let Some(slot) = payloads.get_mut(index).filter(|slot| slot.is_none()) else { continue };
            let limit = PAYLOAD_LIMIT + 4096;
            let Some(bytes) = self.attempt.published.read(&name, limit)? else { continue };
            let Some((theirs, payload)) = record::decode_payload(&bytes) else { continue };
            if theirs != phase {
                let sides = [
                    super::reason::Side { index: 0, value: phase.to_owned() },
                    super::reason::Side { index, value: theirs },
                ];
                let field = "the phase of the rendezvous".to_owned();
                return Err(self.party.fail(Reason::Disagreed { field, sides }));
            }
            *slot = Some(payload);
        }
        Ok(())
    }

    /// Every other member waits for the outcome, and looks whether the leader lives.
    fn await_outcome(&self, number: usize, phase: &str, deadline: &Deadline<'_>) -> Result<Outcome> {
        let party = &self.party;
        let stage = Stage::Phase(number, phase);
        let mut pace = Pace::of_many(party.own.count);
        let mut watch = Watch::new(deadline);
        loop {
            let leader_died = watch.is_due(deadline) && party.own.life_of(&self.attempt.leader) == Life::Dead;
            if let Some(outcome) = self.decided(number)? {
                return Ok(outcome);
            }
            if leader_died {
                return Err(party.fail(self.attempt.leader.lost(&stage.name())));
            }
            deadline.check(&stage.name(), || self.attempt.missing(stage, &party.own))?;
            pace.wait(deadline, || stage.name())?;
        }
    }

    fn vanished(&self) -> Error {
        Error::io(self.attempt.folder.path(), "decide in", std::io::ErrorKind::NotFound.into())
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.party.leave(Some(&self.attempt), &self.identities);
        }
    }
}

impl Exchange for Met {
    fn index(&self) -> usize {
        self.party.own.index
    }

    fn roster(&self) -> &Roster {
        &self.roster
    }

    fn key(&self) -> &RunKey {
        &self.key
    }

    fn exchange(&mut self, phase: &str, payload: &[u8], deadline: &Deadline<'_>) -> Result<Vec<Vec<u8>>> {
        if self.ended {
            let why = "it was given up or closed before".to_owned();
            return Err(Error::Closed { what: format!("the rendezvous of {}", self.roster.run), why });
        }
        if payload.len() > PAYLOAD_LIMIT {
            let reason = format!("must have at most {PAYLOAD_LIMIT} bytes");
            return Err(Error::invalid("payload", payload.len(), "exchange", reason));
        }
        let number = self.number;
        self.number += 1;
        let name = format!("{number}-{}", self.party.own.index);
        let bytes = record::encode_payload(phase, payload);
        let stage = Stage::Phase(number, phase).name();
        let settled = insist(deadline, &stage, || self.attempt.published.create(&name, &bytes))
            .and_then(|_| self.settle(number, phase, deadline));
        settled.or_else(|error| {
            let error = self.party.explain(error, Some(&self.attempt));
            self.party.give_up(&self.attempt, number, error, deadline)
        })
    }

    fn give_up(&mut self, reason: &Error) {
        if !self.ended {
            let own = &self.party.own;
            let reason = Reason::of(reason, own.index, &own.process);
            // Nobody can be told where the folder is gone or full.
            let _ = self.attempt.decide(self.number, Err(reason), || ());
            self.end();
        }
    }

    fn close(&mut self) {
        self.end();
    }
}

impl Drop for Met {
    fn drop(&mut self) {
        if !self.ended {
            let why = "it left before the mesh was formed".to_owned();
            self.give_up(&Error::Closed { what: "the rendezvous".to_owned(), why });
        }
    }
}

/// A process that is no member, as it looks at others.
fn stranger(ground: Arc<dyn Ground>, index: usize) -> Result<Own> {
    let pid = process::pid();
    let identity = Identity {
        index,
        nonce: ground.nonce()?,
        count: 0,
        namespace: process::pid_namespace(),
        process: Process {
            host_name: process::host_name(),
            boot_id: process::boot_id()?,
            pid,
            start_ticks: process::start_ticks(pid).unwrap_or(0),
            command: process::command(),
        },
    };
    Ok(Own::new(identity, ground))
}

/// Tells the members of a job that `index`, process `pid`, died, so that they need not wait for it; for the launcher.
///
/// The note counts as long as the process that posted it lives; [`remove_job`] removes it.
///
/// # Errors
/// As [`meet`] for a directory that cannot be used.
pub fn post_death_note(directory: &Path, job: &str, index: usize, pid: u32, text: &str) -> Result<()> {
    let ground = Arc::new(Machine);
    let root = ground.root(directory)?;
    let deadline = Deadline::after(std::time::Duration::from_secs(1));
    let note = Note { poster: Identity::clone(&*stranger(ground, usize::MAX)?), pid, text: text.to_owned() };
    let name = job_folder(job);
    // Another process may take the empty folder away before the note is in it: then it is made anew.
    insist(&deadline, "rendezvous, leaving a death note", || Job::enter(&root, &name)?.post(index, &note))
}

/// Removes what a job's processes left, once all of them have ended; for the launcher.
///
/// # Errors
/// `Invalid` or `Io` for a directory that cannot be used.
pub fn remove_job(directory: &Path, job: &str) -> Result<()> {
    let ground = Arc::new(Machine);
    let root = ground.root(directory)?;
    let name = job_folder(job);
    if let Some(folder) = file::settled(root.open(&name))? {
        if let Some(job) = file::settled(Job::enter(&root, &name))? {
            job.remove_notes()?;
        }
        job::reclaim(&root, &folder, &name, &stranger(ground, usize::MAX)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::random;
    use std::time::Duration;

    #[test]
    fn a_folder_that_cannot_be_entered_is_named_with_what_the_file_system_answered() {
        let path = std::env::temp_dir().join(format!("uform-entered-{}", random::nonce().expect("random")));
        let root = Machine.root(&path).expect("made");
        std::fs::remove_dir(&path).expect("empty");
        let error = enter(&root, "uform-job", 3, &Deadline::after(Duration::from_millis(60)));
        let error = error.map(drop).expect_err("its root is gone");
        let Error::TimedOut { phase, missing, .. } = &error else { panic!("{error}") };
        assert!(phase.contains(&path.join("uform-job").display().to_string()), "{error}");
        assert_eq!(missing.len(), 1, "{error}");
        let word = &missing[0].last_word;
        assert!(missing[0].index == 3 && word.contains("did not let it in"), "{error}");
        assert!(word.contains("cannot make the folder") && word.contains("No such file"), "{error}");
    }
}
