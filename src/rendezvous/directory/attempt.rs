//! One attempt to meet: the folder of one epoch of one leader, and what any member may do in it.

use std::collections::HashMap;

use crate::error::{Error, Missing, Result};
use crate::rendezvous::record::{
    self, Identity, Life, OUTCOME_LIMIT, Outcome, Proposal, Registration, split_name,
};
use crate::rendezvous::stored;
use crate::sys::Deadline;
use crate::sys::file;

use super::ground::{Folder, Own};
use super::job::{ATTEMPT, Job, read_as, unreadable};

pub(super) const ROSTER: &str = "roster";
/// The number of the decision that commits the roster; phases follow.
pub(super) const MEETING: usize = 0;
/// How often a decision is tried, and a roster read, where the file system fails for now.
pub(super) const TRIES: u32 = 40;

/// An attempt that this process takes part in.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) epoch: u64,
    pub(super) leader: Identity,
    pub(super) members: Folder,
    pub(super) acknowledged: Folder,
    pub(super) decision: Folder,
    pub(super) published: Folder,
    pub(super) folder: Folder,
    name: String,
}

/// Which names show that a member has come as far as the others wait for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage<'a> {
    Registration,
    Acknowledgement,
    Phase(usize, &'a str),
}

impl Stage<'_> {
    pub(super) fn name(self) -> String {
        match self {
            Self::Registration => "rendezvous, registration".to_owned(),
            Self::Acknowledgement => "rendezvous, acknowledgement".to_owned(),
            Self::Phase(_, phase) => format!("rendezvous, {phase}"),
        }
    }
}

impl Attempt {
    /// Makes the folders of a new attempt and registers its leader there.
    pub(super) fn make(job: &Job, epoch: u64, leader: &Identity) -> Result<Self> {
        let name = format!("{ATTEMPT}{epoch}-{}", leader.nonce);
        let folder = job.folder.make(&name)?;
        for inner in ["members", "acknowledged", "decision", "published", "surveys"] {
            folder.make(inner)?;
        }
        Self::open(job, epoch, leader)
    }

    /// Opens the attempt of a leader that was read.
    pub(super) fn open(job: &Job, epoch: u64, leader: &Identity) -> Result<Self> {
        let name = format!("{ATTEMPT}{epoch}-{}", leader.nonce);
        let folder = job.folder.open(&name)?;
        Ok(Self {
            epoch,
            leader: leader.clone(),
            members: folder.open("members")?,
            acknowledged: folder.open("acknowledged")?,
            decision: folder.open("decision")?,
            published: folder.open("published")?,
            folder,
            name,
        })
    }

    /// Registers; the survey is stored first, and only if nobody stored the same one.
    pub(super) fn register(&self, registration: &Registration, survey: &str, stored: bool) -> Result<()> {
        if !stored {
            self.folder.open("surveys")?.create(&registration.survey, survey.as_bytes())?;
        }
        let identity = &registration.identity;
        let bytes = serde_json::to_vec(registration).unwrap_or_default();
        self.members.create(&member_name(identity), &bytes)?;
        Ok(())
    }

    /// The names registered; this process is one of them, so that `None`, the attempt is gone, says that another
    /// removed it.
    pub(super) fn registered(&self) -> Result<Option<Vec<String>>> {
        match self.members.list() {
            Err(error) if file::is_absent(&error) => Ok(None),
            Err(error) if file::is_transient(&error) => Ok(Some(Vec::new())),
            other => other.map(Some),
        }
    }

    /// The registration under a name of `members`, `None` if it cannot be read now.
    pub(super) fn registration(&self, name: &str) -> Result<Option<Registration>> {
        read_as::<Registration>(&self.members, name)
    }

    /// Creates the decision `number`, or obeys the one that is there: gives the one that counts.
    ///
    /// What fails for now is tried again some times, with `pause` between. `None` if the attempt has been removed, or
    /// its decision cannot be read; `Corrupt` where something else has its name.
    pub(super) fn decide(
        &self,
        number: usize,
        outcome: Outcome,
        pause: impl Fn(),
    ) -> Result<Option<Outcome>> {
        let bytes = record::encode_outcome(&outcome);
        let name = number.to_string();
        let mut is_taken = false;
        for _ in 0..TRIES {
            if !is_taken {
                match file::settled(self.decision.create(&name, &bytes))? {
                    Some(true) => return Ok(Some(outcome)),
                    Some(false) => is_taken = true,
                    None => {}
                }
            }
            // A creation whose answer was lost may have been made: what is there counts either way.
            if let Some(found) = self.decided(number)? {
                return Ok(Some(found));
            }
            pause();
        }
        if !is_taken {
            return Ok(None);
        }
        let what = match self.decision.read(&name, OUTCOME_LIMIT)? {
            Some(bytes) => match record::decode_outcome(&bytes) {
                None => Some("no decision".to_owned()),
                found => return Ok(found),
            },
            None => self.decision.objection(&name),
        };
        what.map_or(Ok(None), |what| {
            let reason = format!("has the name of a decision, and is {what}: remove the folder of the job");
            Err(Error::Corrupt { path: self.decision.path().join(&name), offset: 0, reason })
        })
    }

    /// The files in this attempt that nobody can read, for a message; who leads looks at those of all members.
    pub(super) fn obstacles(&self, own: &Own) -> Vec<String> {
        let names = self.decision.list().unwrap_or_default();
        let mut found = unreadable(&self.decision, names, |name| match name.parse() {
            Ok(number) => self.decided(number).is_ok_and(|found| found.is_some()),
            Err(_) => name != ROSTER || self.proposal().is_ok_and(|found| found.is_some()),
        });
        if own.index == 0 {
            let names = self.members.list().unwrap_or_default();
            found.extend(unreadable(&self.members, names, |name| {
                self.registration(name).is_ok_and(|found| found.is_some())
            }));
            let is_payload = |bytes: Option<Vec<u8>>| bytes.and_then(|bytes| record::decode_payload(&bytes));
            let names = self.published.list().unwrap_or_default();
            found.extend(unreadable(&self.published, names, |name| {
                let limit = record::PAYLOAD_LIMIT + 4096;
                self.published.read(name, limit).is_ok_and(|bytes| is_payload(bytes).is_some())
            }));
        }
        found
    }

    /// The decision `number`, which a listing showed.
    pub(super) fn decided(&self, number: usize) -> Result<Option<Outcome>> {
        let bytes = self.decision.read(&number.to_string(), OUTCOME_LIMIT)?;
        Ok(bytes.and_then(|bytes| record::decode_outcome(&bytes)))
    }

    /// The names in `decision`, empty while they cannot be listed.
    pub(super) fn decisions(&self) -> Result<Vec<String>> {
        Ok(file::settled(self.decision.list())?.unwrap_or_default())
    }

    /// The bytes of the proposed roster, which a listing showed.
    pub(super) fn roster(&self) -> Result<Option<Vec<u8>>> {
        self.decision.read(ROSTER, OUTCOME_LIMIT)
    }

    /// The proposed roster.
    pub(super) fn proposal(&self) -> Result<Option<Proposal>> {
        Ok(self.roster()?.and_then(|bytes| stored::decode(&bytes)))
    }

    /// Who has not come to `stage`, with the last word of each.
    pub(super) fn missing(&self, stage: Stage<'_>, own: &Own) -> Vec<Missing> {
        let registered = self.members.list().unwrap_or_default();
        let there: Vec<usize> = match stage {
            Stage::Registration => registered.iter().filter_map(|name| Some(split_name(name)?.0)).collect(),
            Stage::Acknowledgement => {
                let names = self.acknowledged.list().unwrap_or_default();
                names.iter().filter_map(|name| Some(split_name(name)?.0)).collect()
            }
            Stage::Phase(number, _) => {
                let names = self.published.list().unwrap_or_default();
                names.iter().filter_map(|name| published_by(name, number)).collect()
            }
        };
        let mut here = vec![false; own.count];
        for index in there {
            if let Some(slot) = here.get_mut(index) {
                *slot = true;
            }
        }
        let mut missing: Vec<Missing> = (0..own.count)
            .filter(|index| !here[*index] && *index != own.index)
            .map(|index| Missing { index, last_word: self.last_word(index, &registered, stage, own) })
            .collect();
        if missing.is_empty() && own.index != 0 {
            let last_word = format!("leads, {}, has not answered", own.describe(&self.leader));
            missing.push(Missing { index: 0, last_word });
        } else if missing.is_empty() {
            // They came between the leader's last look and this one.
            let last_word = |index| match stage {
                Stage::Registration => self.last_word(index, &registered, stage, own),
                _ => "came as the time ended".to_owned(),
            };
            missing = (1..own.count).map(|index| Missing { index, last_word: last_word(index) }).collect();
        }
        missing
    }

    fn last_word(&self, index: usize, registered: &[String], stage: Stage<'_>, own: &Own) -> String {
        let Some(name) = registered.iter().find(|name| split_name(name).is_some_and(|(one, _)| one == index))
        else {
            return "nothing heard of it".to_owned();
        };
        let wanted = match stage {
            Stage::Registration | Stage::Acknowledgement => "has not acknowledged the roster".to_owned(),
            Stage::Phase(_, phase) => format!("has not published {phase}"),
        };
        match self.registration(name) {
            Ok(Some(one)) => format!("registered from {}, {wanted}", own.describe(&one.identity)),
            _ => format!("registered, {wanted}"),
        }
    }

    /// Leaves: the last one out removes the attempt, the claim, and the job's folder where it is empty.
    ///
    /// Where others are still registered, the leader removes those of them that are dead, or whoever finds it dead;
    /// `known` saves it reading them.
    pub(super) fn leave(&self, job: &Job, own: &Own, known: &[Identity]) {
        if own.index == 0 {
            job.leader.remove(&self.epoch.to_string());
        }
        self.members.remove(&member_name(own));
        let leader_is_gone = own.index != 0 && own.life_of(&self.leader) == Life::Dead;
        let mut empty = self.folder.remove_empty("members");
        if !empty && (own.index == 0 || leader_is_gone) {
            let known: HashMap<String, &Identity> = known.iter().map(|one| (member_name(one), one)).collect();
            for name in self.members.list().unwrap_or_default() {
                let identity = match known.get(&name) {
                    Some(identity) => Some((*identity).clone()),
                    None => self.registration(&name).ok().flatten().map(|one| one.identity),
                };
                if identity.is_some_and(|one| own.life_of(&one) == Life::Dead) {
                    self.members.remove(&name);
                }
            }
            empty = self.folder.remove_empty("members");
        }
        if empty {
            job.folder.remove_tree(&self.name);
            if leader_is_gone {
                self.remove_claim(job);
            }
        }
    }

    /// Removes the claim of this attempt's leader, and no other one's.
    pub(super) fn remove_claim(&self, job: &Job) {
        let name = self.epoch.to_string();
        if let Ok(Some(claim)) = read_as::<record::Claim>(&job.leader, &name)
            && claim.identity.nonce == self.leader.nonce
        {
            job.leader.remove(&name);
        }
    }
}

/// The name of a member's records.
pub(super) fn member_name(identity: &Identity) -> String {
    format!("{}-{}", identity.index, identity.nonce)
}

/// The index that published in phase `number`, if `name` says so.
pub(super) fn published_by(name: &str, number: usize) -> Option<usize> {
    let (phase, index) = split_name(name)?;
    if phase == number { index.parse().ok() } else { None }
}

/// Repeats what may succeed later until it does.
pub(super) fn insist<T>(
    deadline: &Deadline<'_>,
    phase: &str,
    mut operation: impl FnMut() -> Result<T>,
) -> Result<T> {
    loop {
        match operation() {
            Err(error) if file::is_transient(&error) => {
                deadline.check_interrupt(phase)?;
                if deadline.passed() {
                    return Err(error);
                }
                deadline.sleep(deadline.pause().min(std::time::Duration::from_millis(5)));
            }
            other => return other,
        }
    }
}
