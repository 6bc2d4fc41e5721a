//! What every index but 0 does: it follows the highest claim, registers, acknowledges, and obeys the decision.

use std::collections::BTreeSet;

use super::Party;
use super::attempt::{Attempt, MEETING, ROSTER, Stage, member_name};
use super::job::{Pace, Watch, epochs, read_as};
use crate::error::{Error, Missing, Result};
use crate::rendezvous::reason::Reason;
use crate::rendezvous::record::{Claim, Life, Proposal, split_name};
use crate::rendezvous::stored;
use crate::sys::Deadline;
use crate::sys::file;

/// An attempt that this member has registered in, and how far it came there.
pub(super) struct Following {
    pub(super) attempt: Attempt,
    acknowledged: bool,
    /// The roster that was acknowledged, as it was read: an attempt has one, created once.
    roster: Option<Vec<u8>>,
    /// What was found that belongs to an earlier run or to another process with this index.
    foreign: Option<Reason>,
    /// Whether the attempt was removed, which only happens once nobody alive is believed to be in it.
    is_gone: bool,
}

/// Follows claims until a decision counts for this member; `following` tells the caller where to give up.
pub(super) fn follow(
    party: &mut Party,
    following: &mut Option<Following>,
    deadline: &Deadline<'_>,
) -> Result<(Proposal, Vec<u8>)> {
    let mut pace = Pace::of_many(party.own.count);
    let mut watch = Watch::new(deadline);
    let mut watch_for_claims = Watch::of_all(party.own.count, deadline);
    let mut ignored = None;
    let mut waiters = Waiters { seen: BTreeSet::new(), looks: 0 };
    loop {
        // Who follows a leader is told by its decisions; that another one claims, or that this one died, is rare.
        let names = if following.is_some() && !deadline.passed() && !watch_for_claims.is_due(deadline) {
            Vec::new()
        } else {
            match file::settled(party.job.leader.list())? {
                Some(names) => names,
                // At the end the others remove the folder as they leave: the wait below says who is missing.
                None if deadline.passed() => Vec::new(),
                None => {
                    party.enter(deadline)?;
                    continue;
                }
            }
        };
        if let Some(current) = following
            && let Some(formed) = obey(party, current)?
        {
            return Ok(formed);
        }
        if following.as_ref().is_some_and(|current| current.is_gone) {
            // Epochs may begin anew after everything was removed.
            *following = None;
            pace.hurry();
        }
        let known = following.as_ref().map_or(0, |current| current.attempt.epoch);
        if let Some(epoch) = epochs(&names).last().copied().filter(|epoch| *epoch > known)
            && let Some(claim) = read_as::<Claim>(&party.job.leader, &epoch.to_string())?
        {
            let life = party.own.life_of(&claim.identity);
            if life == Life::Dead && ignored.as_ref() != Some(&claim.identity.nonce) {
                if party.is_unique {
                    return Err(party.fail(claim.identity.lost("rendezvous, election")));
                }
                tracing::info!("ignored a dead leader: nonce {}", claim.identity.nonce);
                ignored = Some(claim.identity.nonce);
            } else if life != Life::Dead
                && let Some(attempt) = join(party, epoch, &claim)?
            {
                if let Some(old) = following.take() {
                    old.attempt.leave(&party.job, &party.own, &[]);
                }
                *following = Some(Following {
                    attempt,
                    acknowledged: false,
                    roster: None,
                    foreign: None,
                    is_gone: false,
                });
                pace.hurry();
                continue;
            }
        }
        if let Some((index, note)) = party.job.note(&names, &party.own)? {
            let host = note.poster.process.host_name;
            let phase = format!("rendezvous, registration: {}", note.text);
            return Err(party.fail(Reason::Lost { index, host, pid: note.pid, phase }));
        }
        match following {
            Some(current) => {
                if watch.is_due(deadline) && party.own.life_of(&current.attempt.leader) == Life::Dead {
                    // What it published before it died counts more than its death.
                    if let Some(formed) = obey(party, current)? {
                        return Ok(formed);
                    }
                    return Err(party.fail(current.attempt.leader.lost("rendezvous, registration")));
                }
                let stage = if current.acknowledged { Stage::Acknowledgement } else { Stage::Registration };
                deadline.check_interrupt(&stage.name())?;
                if deadline.passed()
                    && let Some(reason) = current.foreign.take()
                {
                    return Err(party.fail(reason));
                }
                deadline.check(&stage.name(), || current.attempt.missing(stage, &party.own))?;
            }
            None => {
                party.announce()?;
                waiters.look_if_due(party, deadline);
                deadline.check("rendezvous, registration", || {
                    waiters.look(party);
                    waiters.missing(party)
                })?;
            }
        }
        pace.wait(deadline, || Stage::Registration.name())?;
    }
}

/// Registers with a leader; `None` if its attempt is not there any more.
fn join(party: &Party, epoch: u64, claim: &Claim) -> Result<Option<Attempt>> {
    let enter = || -> Result<Attempt> {
        let attempt = Attempt::open(&party.job, epoch, &claim.identity)?;
        let stored = claim.survey == party.registration.survey;
        attempt.register(&party.registration, &party.survey, stored)?;
        Ok(attempt)
    };
    file::settled(enter())
}

/// Looks at the decision: the formed run, the abort as an error, or neither yet.
fn obey(party: &Party, current: &mut Following) -> Result<Option<(Proposal, Vec<u8>)>> {
    let attempt = &current.attempt;
    let Some(names) = file::settled(attempt.decision.list())? else {
        current.is_gone = true;
        return Ok(None);
    };
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if has(&MEETING.to_string()) {
        match attempt.decided(MEETING)? {
            Some(Ok(mut payloads)) => {
                let known = current.roster.take();
                let known = known.map_or_else(|| attempt.roster(), |known| Ok(Some(known)))?;
                let Some(proposal) = known.and_then(|bytes| stored::decode(&bytes)) else {
                    return Ok(None);
                };
                if lists(&proposal, party) {
                    return Ok(payloads.pop().map(|key| (proposal, key)));
                }
                if current.foreign.is_none()
                    && let Some(other) = proposal.registrations.get(party.own.index)
                {
                    let duplicate =
                        Reason::duplicate(party.own.index, &other.identity.process, &party.own.process);
                    let leads = party.own.life_of(&attempt.leader) == Life::Alive;
                    if leads || party.is_unique {
                        return Err(party.fail(duplicate));
                    }
                    current.foreign = Some(duplicate);
                }
            }
            Some(Err(told)) => return Err(party.fail(told)),
            None => {}
        }
    } else if has(ROSTER)
        && !current.acknowledged
        && let Some(roster) = attempt.roster()?
        && stored::decode(&roster).is_some_and(|proposal| lists(&proposal, party))
        && file::settled(attempt.acknowledged.create(&member_name(&party.own), b""))?.is_some()
    {
        current.acknowledged = true;
        current.roster = Some(roster);
    }
    Ok(None)
}

fn lists(proposal: &Proposal, party: &Party) -> bool {
    let own = proposal.registrations.get(party.own.index);
    own.is_some_and(|own| own.identity.nonce == party.own.nonce)
}

/// Who else waits for a leader, looked up a few times only, since everybody who waits lists everybody.
struct Waiters {
    seen: BTreeSet<usize>,
    looks: u32,
}

impl Waiters {
    /// Looks after a half, three quarters and seven eighths of the time: those whose time ends earlier are seen.
    fn look_if_due(&mut self, party: &Party, deadline: &Deadline<'_>) {
        if self.looks < 3 && deadline.remaining() <= deadline.limit() / (2 << self.looks) {
            self.looks += 1;
            self.look(party);
        }
    }

    fn look(&mut self, party: &Party) {
        let names = party.job.waiting.list().unwrap_or_default();
        self.seen.extend(names.iter().filter_map(|name| Some(split_name(name)?.0)));
    }

    /// Those of whom nothing was ever seen.
    fn missing(&self, party: &Party) -> Vec<Missing> {
        let mut missing: Vec<Missing> = (0..party.own.count)
            .filter(|index| *index != party.own.index && !self.seen.contains(index))
            .map(|index| Missing { index, last_word: "nothing heard of it".to_owned() })
            .collect();
        if missing.is_empty() {
            // All others wait as well: it is for index 0 to lead.
            missing.push(Missing { index: 0, last_word: "came, and has not led".to_owned() });
        }
        missing
    }
}

/// Whether an error of this member may be replaced by a decision that is there.
pub(super) fn yields(error: &Error) -> bool {
    matches!(error, Error::TimedOut { .. } | Error::Lost { .. })
}
