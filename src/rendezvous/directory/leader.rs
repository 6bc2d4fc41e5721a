//! What index 0 does: it claims an epoch, gathers registrations, proposes a roster, and commits it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Party;
use super::attempt::{Attempt, MEETING, ROSTER, Stage, insist};
use super::ground::Own;
use super::job::{Job, Pace, Watch, epochs, read_as};
use crate::error::{Error, Result};
use crate::rendezvous::reason::Reason;
use crate::rendezvous::record::{Claim, Identity, Life, Proposal, RECORD_LIMIT, Registration, split_name};
use crate::rendezvous::stored;
use crate::sys::Deadline;
use crate::sys::file;

/// How long an earlier leader that may live has to answer a challenge.
const ANSWER_LIMIT: Duration = Duration::from_millis(1500);
const ELECTION: &str = "rendezvous, election";

/// Claims an epoch, with its attempt made before the claim can be seen.
pub(super) fn claim(party: &mut Party, deadline: &Deadline<'_>) -> Result<Attempt> {
    loop {
        deadline.check(ELECTION, Vec::new)?;
        // First of all: whoever reclaims takes an attempt for dead whose leader neither waits nor leads.
        party.announce()?;
        let names = file::settled(party.job.leader.list())?;
        let Some(names) = names.filter(|_| party.announced.1) else {
            party.enter(deadline)?;
            continue;
        };
        let earlier = epochs(&names);
        let mut superseded = Vec::new();
        for epoch in &earlier {
            if let Some(claim) = challenge(party, *epoch, deadline)? {
                superseded.push((*epoch, claim));
            }
        }
        let epoch = earlier.last().map_or(1, |last| last + 1);
        let Some(attempt) = file::settled(Attempt::make(&party.job, epoch, &party.own))? else {
            party.enter(deadline)?;
            continue;
        };
        let publish = || {
            attempt.register(&party.registration, &party.survey, false)?;
            let claim =
                Claim { identity: Identity::clone(&party.own), survey: party.registration.survey.clone() };
            party.job.leader.create(&epoch.to_string(), &serde_json::to_vec(&claim).unwrap_or_default())
        };
        match file::settled(publish()) {
            Ok(Some(true)) => {}
            // Another index 0 claimed the epoch, or the folder was removed under us: look again.
            Ok(_) => {
                abandon(party, &attempt);
                party.enter(deadline)?;
                continue;
            }
            Err(error) => {
                abandon(party, &attempt);
                return Err(error);
            }
        }
        for (old, claim) in superseded {
            remove_superseded(&party.job, old, claim.as_ref(), &party.own);
        }
        return Ok(attempt);
    }
}

fn abandon(party: &Party, attempt: &Attempt) {
    attempt.members.remove(&super::attempt::member_name(&party.own));
    party.job.folder.remove_tree(&format!("{}{}-{}", super::job::ATTEMPT, attempt.epoch, party.own.nonce));
}

/// Removes what a leader left that leads no more; but an attempt that has met is left to its members while they may live: some
/// of them may have returned, and the others are still to read that.
fn remove_superseded(job: &Job, epoch: u64, claim: Option<&Claim>, own: &Own) {
    if let Some(claim) = claim {
        let identity = &claim.identity;
        let name = format!("{}{epoch}-{}", super::job::ATTEMPT, identity.nonce);
        let decisions = Attempt::open(job, epoch, identity).and_then(|attempt| attempt.decisions());
        let has_met = decisions.is_ok_and(|names| names.contains(&MEETING.to_string()));
        if !has_met || super::job::dead_members(&job.folder, &name, own).is_ok_and(|dead| dead.is_some()) {
            job.folder.remove_tree(&name);
        }
        tracing::warn!("ignored an earlier leader: nonce {}, {}", identity.nonce, own.describe(identity));
    }
    job.leader.remove(&epoch.to_string());
}

/// Asks an earlier leader whether it lives: gives its claim if it is superseded, `None` if it left by itself.
///
/// A leader of another process that answers, that visibly lives, or that leaves while it is asked is a second index
/// 0 of this job. One of this process that leaves is a meeting that has ended in order.
fn challenge(party: &Party, epoch: u64, deadline: &Deadline<'_>) -> Result<Option<Option<Claim>>> {
    let job = &party.job;
    let earlier: Option<Claim> = read_as(&job.leader, &epoch.to_string())?;
    let life = earlier.as_ref().map_or(Life::Unknown, |claim| party.own.life_of(&claim.identity));
    if life == Life::Dead {
        return Ok(Some(earlier));
    }
    let own_process = earlier
        .as_ref()
        .is_some_and(|claim| claim.identity.process.pid == party.own.process.pid && life == Life::Alive);
    let question = format!("challenge-{epoch}-{}", party.own.nonce);
    let answer = format!("answer-{epoch}-{}", party.own.nonce);
    let asked = serde_json::to_vec(&*party.own).unwrap_or_default();
    if file::settled(job.leader.create(&question, &asked))?.is_none() {
        return Ok(None);
    }
    let patience = deadline.sooner(ANSWER_LIMIT);
    let mut pace = Pace::new(party.own.count);
    let outcome = loop {
        let names = match file::settled(job.leader.list()) {
            Ok(names) => names,
            Err(error) => break Err(error),
        };
        // A listing that failed for now does not say that the earlier leader left.
        let shows =
            |name: &String, unknown: bool| names.as_ref().map_or(unknown, |names| names.contains(name));
        let (there, answered) = (shows(&epoch.to_string(), true), shows(&answer, false));
        let silent = patience.passed();
        let gone = earlier.as_ref().is_some_and(|claim| party.own.life_of(&claim.identity) == Life::Dead);
        match &earlier {
            Some(claim)
                if answered
                    || (!gone
                        && !own_process
                        && (!there || silent && (life == Life::Alive || party.is_unique))) =>
            {
                let told = Reason::duplicate(0, &claim.identity.process, &party.own.process);
                break Err(party.fail(told));
            }
            _ if !there => break Ok(None),
            _ if gone || silent => break Ok(Some(earlier.clone())),
            _ => {}
        }
        let waited = deadline.check_interrupt(ELECTION);
        if let Err(error) = waited.and_then(|()| pace.wait(deadline, || ELECTION.to_owned())) {
            break Err(error);
        }
    };
    job.leader.remove(&question);
    job.leader.remove(&answer);
    outcome
}

/// Answers whoever challenges this leader, and tells who it was.
pub(super) fn answer(party: &Party, epoch: u64, names: &[String]) -> Result<Option<Identity>> {
    let prefix = format!("challenge-{epoch}-");
    for name in names.iter().filter(|name| name.starts_with(&prefix)) {
        let Some(bytes) = party.job.leader.read(name, RECORD_LIMIT)? else { continue };
        let Ok(challenger) = serde_json::from_slice::<Identity>(&bytes) else { continue };
        if party.own.life_of(&challenger) == Life::Dead {
            continue;
        }
        let reply = serde_json::to_vec(&*party.own).unwrap_or_default();
        file::settled(party.job.leader.create(&format!("answer-{epoch}-{}", challenger.nonce), &reply))?;
        return Ok(Some(challenger));
    }
    Ok(None)
}

/// What the leader's folder tells that ends a meeting: a challenge, a later claim, a death note.
pub(super) fn disturbance(party: &Party, attempt: &Attempt, stage: Stage<'_>) -> Result<Option<Reason>> {
    let Some(names) = file::settled(party.job.leader.list())? else { return Ok(None) };
    if let Some(challenger) = answer(party, attempt.epoch, &names)? {
        return Ok(Some(Reason::duplicate(0, &party.own.process, &challenger.process)));
    }
    if let Some(later) = epochs(&names).into_iter().find(|epoch| *epoch > attempt.epoch)
        && let Some(claim) = read_as::<Claim>(&party.job.leader, &later.to_string())?
    {
        return Ok(Some(Reason::duplicate(0, &party.own.process, &claim.identity.process)));
    }
    if let Some((index, note)) = party.job.note(&names, &party.own)? {
        return Ok(Some(Reason::Lost {
            index,
            host: note.poster.process.host_name,
            pid: note.pid,
            phase: format!("{}: {}", stage.name(), note.text),
        }));
    }
    Ok(None)
}

/// Gathers all registrations, proposes the roster, and commits it once all have acknowledged.
pub(super) fn lead(party: &Party, attempt: &Attempt, deadline: &Deadline<'_>) -> Result<(Proposal, Vec<u8>)> {
    let proposal = gather(party, attempt, deadline)?;
    // Strings, numbers and lists always have a text.
    let bytes = stored::encode(&proposal).unwrap_or_default();
    let proposed = insist(deadline, ELECTION, || attempt.decision.create(ROSTER, &bytes));
    proposed.map_err(|error| if file::is_absent(&error) { removed(party, attempt) } else { error })?;
    collect(party, attempt, &proposal, deadline)?;
    let key = party.own.ground().key()?;
    match attempt.decide(MEETING, Ok(vec![key.to_vec()]), || super::rest(deadline))? {
        Some(Ok(_)) => Ok((proposal, key.to_vec())),
        Some(Err(told)) => Err(party.fail(told)),
        None => Err(removed(party, attempt)),
    }
}

/// The error of a leader whose attempt is gone: only another index 0 removes the attempt of one that lives.
fn removed(party: &Party, attempt: &Attempt) -> Error {
    let names = party.job.leader.list().unwrap_or_default();
    let later = epochs(&names).into_iter().rev().find_map(|epoch| {
        let claim = read_as::<Claim>(&party.job.leader, &epoch.to_string()).ok().flatten()?;
        (claim.identity.nonce != party.own.nonce).then_some(claim)
    });
    party.fail(match later {
        Some(claim) => Reason::duplicate(0, &party.own.process, &claim.identity.process),
        None => Reason::removed(&party.own.process, attempt.folder.path()),
    })
}

/// An abort that another member created, as an error here.
fn check_abort(party: &Party, attempt: &Attempt) -> Result<()> {
    if attempt.decisions()?.iter().any(|name| *name == MEETING.to_string())
        && let Some(Err(told)) = attempt.decided(MEETING)?
    {
        return Err(party.fail(told));
    }
    Ok(())
}

fn gather(party: &Party, attempt: &Attempt, deadline: &Deadline<'_>) -> Result<Proposal> {
    let count = party.own.count;
    let mut seen = BTreeSet::new();
    let mut members: BTreeMap<usize, Registration> = BTreeMap::new();
    let mut surveys = BTreeMap::new();
    let mut pace = Pace::new(count);
    let mut watch = Watch::new(deadline);
    loop {
        check_abort(party, attempt)?;
        let before = members.len();
        for name in attempt.registered()?.ok_or_else(|| removed(party, attempt))? {
            if seen.contains(&name) || split_name(&name).is_none() {
                continue;
            }
            let Some(one) = attempt.registration(&name)? else { continue };
            admit(party, &members, &one)?;
            if !surveys.contains_key(&one.survey) {
                let text = file::settled(
                    attempt.folder.open("surveys").and_then(|all| all.read(&one.survey, RECORD_LIMIT)),
                )?;
                let value = text.flatten().and_then(|text| serde_json::from_slice(&text).ok());
                let Some(value) = value else { continue };
                surveys.insert(one.survey.clone(), value);
            }
            seen.insert(name);
            members.insert(one.identity.index, one);
        }
        if members.len() == count {
            return Ok(Proposal { registrations: members.into_values().collect(), surveys });
        }
        let stage = Stage::Registration;
        if let Some(reason) = disturbance(party, attempt, stage)? {
            return Err(party.fail(reason));
        }
        if watch.is_due(deadline) {
            party.check_deaths(members.values().map(|one| &one.identity), stage)?;
        }
        deadline.check(&stage.name(), || attempt.missing(stage, &party.own))?;
        // Every look lists all who came: it is worth one soon only where many came at once.
        if 8 * (members.len() - before) >= count {
            pace.hurry();
        }
        pace.wait(deadline, || stage.name())?;
    }
}

/// Refuses a registration that contradicts what is known.
fn admit(party: &Party, members: &BTreeMap<usize, Registration>, one: &Registration) -> Result<()> {
    let own = &party.own;
    let identity = &one.identity;
    if identity.count != own.count {
        let reason = Reason::counts((0, own.count), (identity.index, identity.count));
        return Err(party.fail(reason));
    }
    if let Some(other) = members.get(&identity.index)
        && other.identity.nonce != identity.nonce
    {
        let reason = Reason::duplicate(identity.index, &other.identity.process, &identity.process);
        return Err(party.fail(reason));
    }
    Ok(())
}

fn collect(party: &Party, attempt: &Attempt, proposal: &Proposal, deadline: &Deadline<'_>) -> Result<()> {
    let stage = Stage::Acknowledgement;
    let own_name = super::attempt::member_name(&party.own);
    let mut waited_for: BTreeSet<String> =
        proposal.registrations.iter().map(|one| super::attempt::member_name(&one.identity)).collect();
    waited_for.remove(&own_name);
    let expected: BTreeSet<String> = waited_for.iter().cloned().chain([own_name]).collect();
    let mut pace = Pace::new(party.own.count);
    let mut watch = Watch::new(deadline);
    let mut watch_for_late = Watch::of_all(party.own.count, deadline);
    loop {
        check_abort(party, attempt)?;
        for name in file::settled(attempt.acknowledged.list())?.unwrap_or_default() {
            waited_for.remove(&name);
        }
        if waited_for.is_empty() {
            return Ok(());
        }
        if let Some(reason) = disturbance(party, attempt, stage)? {
            return Err(party.fail(reason));
        }
        if watch.is_due(deadline) {
            party.check_deaths(
                proposal
                    .registrations
                    .iter()
                    .map(|one| &one.identity)
                    .filter(|one| waited_for.contains(&super::attempt::member_name(one))),
                stage,
            )?;
        }
        if watch_for_late.is_due(deadline) {
            // One that came after the roster was proposed has an index that is taken.
            for name in file::settled(attempt.members.list())?.unwrap_or_default() {
                if !expected.contains(&name)
                    && let Some(late) = attempt.registration(&name)?
                {
                    let members =
                        proposal.registrations.iter().map(|one| (one.identity.index, one.clone())).collect();
                    admit(party, &members, &late)?;
                }
            }
        }
        deadline.check(&stage.name(), || attempt.missing(stage, &party.own))?;
        pace.wait(deadline, || stage.name())?;
    }
}
