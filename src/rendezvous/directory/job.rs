//! The folder of one job: who claimed it, who waits in it, and what a dead run left there.

use std::collections::BTreeSet;
use std::time::Duration;

use super::ground::{Folder, Own};
use crate::error::Result;
use crate::rendezvous::record::{Claim, Identity, Life, Note, OUTCOME_LIMIT, RECORD_LIMIT, Registration};
use crate::sys::Deadline;
use crate::sys::file;

pub(super) const ATTEMPT: &str = "attempt-";
const NOTE: &str = "dead-";

/// The open folder of a job, with the two that all members look at.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) folder: Folder,
    /// Claims, challenges, answers, and death notes: a handful of names.
    pub(super) leader: Folder,
    /// Those who came before there was a leader.
    pub(super) waiting: Folder,
}

impl Job {
    /// Opens or makes it.
    ///
    /// # Errors
    /// A transient one while somebody else is removing it.
    pub(super) fn enter(root: &Folder, name: &str) -> Result<Self> {
        let folder = root.make(name)?;
        Ok(Self { leader: folder.make("leader")?, waiting: folder.make("waiting")?, folder })
    }

    /// Removes what is empty, from the inside out.
    pub(super) fn leave(&self, root: &Folder, name: &str) {
        // A name in one of them means that somebody is here; without `leader` the others enter again.
        if self.folder.remove_empty("leader") && self.folder.remove_empty("waiting") {
            let _ = root.remove_empty(name);
        }
    }

    /// The death note of a member, if a living launcher left one among `names`.
    pub(super) fn note(&self, names: &[String], own: &Own) -> Result<Option<(usize, Note)>> {
        for name in names {
            let Some(index) = name.strip_prefix(NOTE).and_then(|rest| rest.parse::<usize>().ok()) else {
                continue;
            };
            if let Some(note) = read_as::<Note>(&self.leader, name)?
                && own.life_of(&note.poster) != Life::Dead
                && index != own.index
            {
                return Ok(Some((index, note)));
            }
        }
        Ok(None)
    }

    /// The files among claims, questions and notes that nobody can read, for a message.
    pub(super) fn obstacles(&self) -> Vec<String> {
        let names = self.leader.list().unwrap_or_default();
        unreadable(&self.leader, names, |name| author(&self.leader, name).is_ok_and(|found| found.is_some()))
    }

    pub(super) fn post(&self, index: usize, note: &Note) -> Result<()> {
        if let Ok(bytes) = serde_json::to_vec(note) {
            self.leader.create(&format!("{NOTE}{index}"), &bytes)?;
        }
        Ok(())
    }

    pub(super) fn remove_notes(&self) -> Result<()> {
        for name in self.leader.list()?.iter().filter(|name| name.starts_with(NOTE)) {
            self.leader.remove(name);
        }
        Ok(())
    }
}

/// Those of `names` that cannot be read as what they are named, each with what it is.
pub(super) fn unreadable(
    folder: &Folder,
    names: Vec<String>,
    is_readable: impl Fn(&str) -> bool,
) -> Vec<String> {
    let unread = names.into_iter().filter(|name| !is_readable(name));
    let described = unread.filter_map(|name| {
        let is_whole = || folder.read(&name, OUTCOME_LIMIT).is_ok_and(|bytes| bytes.is_some());
        // What was removed since the listing is in nobody's way.
        let what =
            folder.objection(&name).or_else(|| is_whole().then(|| "not what its name says".to_owned()))?;
        Some(format!("{} ({what})", folder.path().join(name).display()))
    });
    described.collect()
}

/// The epochs claimed among `names`, ascending.
pub(super) fn epochs(names: &[String]) -> Vec<u64> {
    let mut epochs: Vec<u64> =
        names.iter().filter(|name| name.len() <= 12).filter_map(|name| name.parse().ok()).collect();
    epochs.sort_unstable();
    epochs
}

/// Reads a record of JSON; `None` if it cannot be read now.
pub(super) fn read_as<T: serde::de::DeserializeOwned>(folder: &Folder, name: &str) -> Result<Option<T>> {
    let bytes = folder.read(name, RECORD_LIMIT)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// How long to sleep between two looks: short at first, longer while nothing happens, never more than half of what
/// was waited so far.
#[derive(Debug)]
pub(super) struct Pace {
    first: Duration,
    next: Duration,
    limit: Duration,
}

impl Pace {
    /// The pace of the one that leads: both ends grow with the count, since a look lists everybody.
    pub(super) fn new(count: usize) -> Self {
        Self::between(count, 5, 100)
    }

    /// The pace of all the others, who look at the same time: together they look so rarely that the directory has time
    /// for the leader. A limit that grew less than what the looks of all cost would make the looks themselves the load, and
    /// their number grow with the count.
    pub(super) fn of_many(count: usize) -> Self {
        Self::between(count, 20, 400)
    }

    /// The first and the longest pause of so many microseconds for each member, and a little.
    fn between(count: usize, first: u64, limit: u64) -> Self {
        let members = u64::try_from(count).unwrap_or(u64::MAX);
        let grown =
            |least: u64, each: u64| Duration::from_micros(least.saturating_add(members.saturating_mul(each)));
        let first = grown(200, first);
        Self { first, next: first, limit: grown(10_000, limit) }
    }

    /// Something happened: look again soon.
    pub(super) fn hurry(&mut self) {
        self.next = self.first;
    }

    /// Sleeps, asking for an interrupt as often as every wait does: with many members a pause is longer than that.
    ///
    /// # Errors
    /// `Interrupted`, naming the phase.
    pub(super) fn wait(&mut self, deadline: &Deadline<'_>, phase: impl Fn() -> String) -> Result<()> {
        let end = deadline.waited().saturating_add(self.next);
        self.next = (self.next * 3 / 2).min(self.limit);
        loop {
            let rest = end.saturating_sub(deadline.waited());
            deadline.sleep(rest.min(deadline.pause()));
            // A clock need not tell less than a microsecond.
            if deadline.passed() || end.saturating_sub(deadline.waited()) < Duration::from_micros(1) {
                return Ok(());
            }
            deadline.check_interrupt_of(&phase)?;
        }
    }
}

/// When to look for deaths again, which costs a read per process.
#[derive(Debug)]
pub(super) struct Watch {
    /// The time waited so far when it was looked for last.
    last: Duration,
    interval: Duration,
}

impl Watch {
    const INTERVAL: Duration = Duration::from_millis(100);

    pub(super) fn new(deadline: &Deadline<'_>) -> Self {
        Self { last: deadline.waited(), interval: Self::INTERVAL }
    }

    /// For a look that lists everybody: the more there are, the rarer.
    pub(super) fn of_all(count: usize, deadline: &Deadline<'_>) -> Self {
        let more = Duration::from_millis(u64::try_from(count).unwrap_or(u64::MAX));
        Self { interval: Self::INTERVAL.saturating_add(more), ..Self::new(deadline) }
    }

    pub(super) fn is_due(&mut self, deadline: &Deadline<'_>) -> bool {
        let now = deadline.waited();
        let due = now.saturating_sub(self.last) >= self.interval;
        if due {
            self.last = now;
        }
        due
    }
}

/// Removes what runs left of which every process is known to be dead, in all jobs of the directory.
///
/// What may belong to a living process is never touched: a name is removed if its process is dead, a folder if it
/// is empty.
pub(super) fn reclaim_all(root: &Folder, own: &Own) -> Result<()> {
    let Some(names) = file::settled(root.list())? else { return Ok(()) };
    for name in names.iter().filter(|name| name.starts_with("uform-")) {
        // Another user's folder, or one that is being removed, is nothing to reclaim.
        if let Ok(folder) = root.open(name)
            && let Err(error) = reclaim(root, &folder, name, own)
        {
            tracing::debug!(job = name, error = %error.chain(), "not reclaimed");
        }
    }
    Ok(())
}

/// Removes from one job's folder what belongs to the dead, and the folder if nothing else is in it.
///
/// An attempt is looked up before those who wait and those who lead: its leader waits until its claim is there, so
/// an attempt whose leader is in neither place is one that is ending, and its living members are in it.
pub(super) fn reclaim(root: &Folder, folder: &Folder, name: &str, own: &Own) -> Result<()> {
    let attempts: Vec<String> =
        folder.list()?.into_iter().filter(|entry| entry.starts_with(ATTEMPT)).collect();
    let mut living = BTreeSet::new();
    let mut ignored = None;
    let waiting = file::settled(folder.open("waiting"))?;
    if let Some(waiting) = &waiting {
        for entry in waiting.list()? {
            match read_as::<Identity>(waiting, &entry)? {
                Some(identity) if own.life_of(&identity) == Life::Dead => waiting.remove(&entry),
                Some(identity) => drop(living.insert(identity.nonce)),
                None => drop(living.insert(String::new())),
            }
        }
    }
    let mut dead_claims = Vec::new();
    let leader = file::settled(folder.open("leader"))?;
    if let Some(leader) = &leader {
        for entry in leader.list()? {
            let is_claim = entry.parse::<u64>().is_ok();
            match author(leader, &entry)? {
                Some(identity) if own.life_of(&identity) == Life::Dead => {
                    if is_claim {
                        dead_claims.push(entry);
                        ignored = Some(identity);
                    } else {
                        leader.remove(&entry);
                    }
                }
                Some(identity) => drop(living.insert(identity.nonce)),
                None => drop(living.insert(String::new())),
            }
        }
    }
    for attempt in attempts {
        let nonce = attempt.rsplit('-').next().unwrap_or_default();
        if living.contains(nonce) {
            continue;
        }
        match dead_members(folder, &attempt, own)? {
            Some(members) => remove_dead_attempt(folder, &attempt, &members),
            None => drop(living.insert(nonce.to_owned())),
        }
    }
    if let Some(identity) = ignored {
        let (nonce, index) = (&identity.nonce, identity.index);
        tracing::warn!(
            "ignored what a dead run left: {name}, nonce {nonce}, index {index}, {}",
            identity.process
        );
    }
    if !living.is_empty() {
        // The next leader supersedes the dead claims: a claim's name is not its process's own.
        return Ok(());
    }
    if let Some(leader) = &leader {
        dead_claims.iter().for_each(|entry| leader.remove(entry));
        leader.remove_hidden();
    }
    if let Some(waiting) = &waiting {
        waiting.remove_hidden();
    }
    folder.remove_hidden();
    if folder.remove_empty("leader") && folder.remove_empty("waiting") {
        let _ = root.remove_empty(name);
    }
    Ok(())
}

/// Who wrote a record in `leader`.
fn author(leader: &Folder, entry: &str) -> Result<Option<Identity>> {
    if entry.starts_with(NOTE) {
        Ok(read_as::<Note>(leader, entry)?.map(|note| note.poster))
    } else if entry.parse::<u64>().is_ok() {
        Ok(read_as::<Claim>(leader, entry)?.map(|claim| claim.identity))
    } else {
        read_as::<Identity>(leader, entry)
    }
}

/// The names registered in an attempt, if all belong to the dead.
pub(super) fn dead_members(folder: &Folder, attempt: &str, own: &Own) -> Result<Option<Vec<String>>> {
    let open = || folder.open(attempt)?.open("members");
    let Some(members) = file::settled(open())? else { return Ok(Some(Vec::new())) };
    let names = members.list()?;
    for entry in &names {
        match read_as::<Registration>(&members, entry)? {
            Some(registration) if own.life_of(&registration.identity) == Life::Dead => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(names))
}

/// Removes an attempt of which all members are dead, unless somebody registered since.
fn remove_dead_attempt(folder: &Folder, name: &str, dead: &[String]) {
    if let Ok(attempt) = folder.open(name)
        && let Ok(members) = attempt.open("members")
    {
        dead.iter().for_each(|entry| members.remove(entry));
        members.remove_hidden();
        if !attempt.remove_empty("members") {
            return;
        }
    }
    folder.remove_tree(name);
}
