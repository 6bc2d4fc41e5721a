//! Who goes on after members were lost, agreed on in two rounds led by the lowest: pure, events in and messages out.
//!
//! 1. The lowest member that lives asks all others; each answers the one that it takes for the lowest.
//! 2. It proposes those that answered, if they are enough; each forms the new mesh and says so.
//!
//! When all have formed it, the leader commits: it tells all of them, and each passes that on before it believes it. So
//! whoever goes on has told everybody, and the death of a leader leaves nobody behind that can still be reached. A member
//! that answers a later leader keeps what it formed until that one proposes, which is after all have answered: if one of
//! them had gone on instead, that leader goes on too, and only its word still counts.
//!
//! Two sets that are enough have a member in common, and no member goes on twice.

use std::collections::{BTreeMap, BTreeSet};

/// Proposals of one leader that may fail before it gives up.
const TRIAL_LIMIT: u32 = 6;

/// One trial of one leader; later ones are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ballot {
    pub(super) round: u32,
    pub(super) leader: usize,
}

/// What members say to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Message {
    /// From the leader: who is here?
    Ask(Ballot),
    /// To the leader: this member is, and can be reached there.
    Answer(Ballot, String),
    /// To the leader: this member has answered this round of another leader; one above it is needed.
    Higher(Ballot, u32),
    /// From the leader to those that go on.
    Propose(Proposal),
    /// To the leader: the new mesh is formed here.
    Formed(Ballot),
    /// To the leader: it could not be formed here, and why.
    Failed(Ballot, String),
    /// All have formed it: it counts.
    Commit(Ballot),
    /// From the leader: nobody goes on, and why.
    Stop(Ballot, String),
}

/// Those that shall go on, and where each can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Proposal {
    pub(super) ballot: Ballot,
    pub(super) members: BTreeMap<usize, String>,
}

/// How a member stands in the eyes of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    Lives,
    /// It lives, and was waited for in vain.
    Silent,
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// For a leader that asks or proposes.
    Waits,
    /// This member leads, and waits for answers.
    Asks {
        ballot: Ballot,
        answers: BTreeMap<usize, String>,
    },
    /// The new mesh is being formed.
    Forms(Proposal),
    /// It is formed here, and counts nowhere yet.
    Formed(Proposal),
    Committed(Proposal),
    Stopped(String),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Wait,
    Form(&'a Proposal),
    GoOn(&'a Proposal),
    Stop(&'a str),
}

/// Whether so many of all members are enough to go on: more than half, or exactly half with index 0.
pub(super) fn is_enough(members: &BTreeSet<usize>, count: usize) -> bool {
    2 * members.len() > count || (2 * members.len() == count && members.contains(&0))
}

/// One member's part in the agreement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Agreement {
    own: usize,
    count: usize,
    /// Where this member can be reached.
    address: String,
    standings: Vec<Standing>,
    /// The greatest ballot seen, and the one that this member answered last.
    seen: u32,
    promised: Ballot,
    /// Questions that were not answered: of members that are not the lowest, in the eyes of this one.
    questions: BTreeMap<usize, Ballot>,
    stage: Stage,
    /// What is formed here while this member answers or asks for a later ballot.
    kept: Option<Proposal>,
    /// Those that formed the own proposal.
    formed: BTreeSet<usize>,
    trials: u32,
    outbox: Vec<(usize, Message)>,
}

impl Agreement {
    /// The part of `own` among `count` members, which can be reached at `address`.
    pub(super) fn new(own: usize, count: usize, address: String) -> Self {
        let mut new = Self {
            own,
            count,
            address,
            standings: vec![Standing::Lives; count],
            seen: 0,
            promised: Ballot::default(),
            questions: BTreeMap::new(),
            stage: Stage::Waits,
            kept: None,
            formed: BTreeSet::new(),
            trials: 0,
            outbox: Vec::new(),
        };
        new.review();
        new
    }

    /// Where this member can be reached in later trials.
    pub(super) fn move_to(&mut self, address: String) {
        self.address = address;
    }

    /// What is to be sent, in this order.
    pub(super) fn take_messages(&mut self) -> Vec<(usize, Message)> {
        std::mem::take(&mut self.outbox)
    }

    /// What is to be done next.
    pub(super) fn next(&self) -> Next<'_> {
        match &self.stage {
            Stage::Forms(proposal) => Next::Form(proposal),
            Stage::Committed(proposal) => Next::GoOn(proposal),
            Stage::Stopped(reason) => Next::Stop(reason),
            Stage::Waits | Stage::Asks { .. } | Stage::Formed(_) => Next::Wait,
        }
    }

    /// Whether the mesh of a ballot may still come to count here.
    pub(super) fn is_current(&self, ballot: Ballot) -> bool {
        match &self.stage {
            Stage::Forms(proposal) | Stage::Formed(proposal) | Stage::Committed(proposal) => {
                proposal.ballot == ballot
            }
            Stage::Waits | Stage::Asks { .. } => self.kept.as_ref().is_some_and(|kept| kept.ballot == ballot),
            Stage::Stopped(_) => false,
        }
    }

    /// Whom this member waits for.
    pub(super) fn awaited(&self) -> Vec<usize> {
        let others = (0..self.count).filter(|index| self.is_eligible(*index) && *index != self.own);
        match &self.stage {
            Stage::Asks { answers, .. } => others.filter(|index| !answers.contains_key(index)).collect(),
            Stage::Formed(proposal) if proposal.ballot.leader == self.own => {
                others.filter(|index| !self.formed.contains(index)).collect()
            }
            Stage::Waits | Stage::Formed(_) => vec![self.leader()],
            Stage::Forms(_) | Stage::Committed(_) | Stage::Stopped(_) => Vec::new(),
        }
    }

    /// Whether the leader, in the eyes of this member, has asked it.
    pub(super) fn was_asked(&self) -> bool {
        self.promised.round > 0 && self.promised.leader == self.leader()
    }

    fn is_eligible(&self, index: usize) -> bool {
        index == self.own || self.standings.get(index) == Some(&Standing::Lives)
    }

    /// The lowest that lives, in the eyes of this member.
    pub(super) fn leader(&self) -> usize {
        (0..self.own).find(|index| self.is_eligible(*index)).unwrap_or(self.own)
    }

    fn send(&mut self, to: usize, message: Message) {
        if to != self.own {
            self.outbox.push((to, message));
        }
    }

    /// Takes what another member said.
    pub(super) fn hear(&mut self, from: usize, message: Message) {
        if from >= self.count || from == self.own || self.has_ended() {
            return;
        }
        match message {
            Message::Ask(ballot) if ballot.leader == from => {
                self.seen = self.seen.max(ballot.round);
                let last = self.questions.entry(from).or_insert(ballot);
                *last = (*last).max(ballot);
            }
            Message::Answer(ballot, address) => {
                if let Stage::Asks { ballot: own, answers } = &mut self.stage
                    && *own == ballot
                {
                    answers.insert(from, address);
                }
            }
            Message::Higher(ballot, round) => {
                if matches!(&self.stage, Stage::Asks { ballot: own, .. } if *own == ballot)
                    && round >= ballot.round
                {
                    self.seen = self.seen.max(round);
                    self.ask();
                }
            }
            Message::Propose(proposal) => {
                let is_awaited = matches!(self.stage, Stage::Waits) || self.kept.is_some();
                let is_own = proposal.members.contains_key(&self.own);
                let is_readable = proposal.members.keys().all(|index| *index < self.count);
                if proposal.ballot == self.promised
                    && from == self.promised.leader
                    && is_awaited
                    && is_own
                    && is_readable
                {
                    self.kept = None;
                    self.stage = Stage::Forms(proposal);
                }
            }
            Message::Formed(ballot) if self.is_led(ballot) => {
                self.formed.insert(from);
            }
            Message::Failed(ballot, reason) if self.is_led(ballot) => self.ask_again(&reason),
            Message::Commit(ballot) => self.hear_commit(from, ballot),
            Message::Stop(ballot, reason) if ballot == self.promised && from == ballot.leader => {
                self.stage = Stage::Stopped(reason);
            }
            Message::Ask(_) | Message::Formed(_) | Message::Failed(..) | Message::Stop(..) => {}
        }
        self.review();
    }

    fn hear_commit(&mut self, from: usize, ballot: Ballot) {
        let proposal = match &self.stage {
            Stage::Formed(proposal) => Some(proposal),
            // A later leader was answered: it alone knows whether somebody committed before answering it.
            Stage::Waits if from == self.promised.leader => self.kept.as_ref(),
            Stage::Asks { .. } => self.kept.as_ref(),
            _ => None,
        };
        if let Some(proposal) = proposal.filter(|proposal| proposal.ballot == ballot).cloned() {
            self.commit(proposal);
        }
    }

    fn commit(&mut self, proposal: Proposal) {
        for index in proposal.members.keys() {
            self.send(*index, Message::Commit(proposal.ballot));
        }
        self.kept = None;
        self.stage = Stage::Committed(proposal);
    }

    /// Notes how a member stands; what it said before must have been heard.
    pub(super) fn observe(&mut self, index: usize, standing: Standing) {
        let Some(place) = self.standings.get_mut(index) else { return };
        // One that was waited for in vain stays out, whatever it does later.
        if *place == standing || *place == Standing::Ended || standing == Standing::Lives {
            return;
        }
        *place = standing;
        if !self.has_ended() {
            self.review();
        }
    }

    /// The mesh of this ballot is formed here.
    pub(super) fn formed(&mut self, ballot: Ballot) {
        match std::mem::replace(&mut self.stage, Stage::Waits) {
            Stage::Forms(proposal) if proposal.ballot == ballot => {
                self.send(ballot.leader, Message::Formed(ballot));
                self.stage = Stage::Formed(proposal);
            }
            stage => self.stage = stage,
        }
        self.review();
    }

    /// The mesh of this ballot could not be formed here.
    pub(super) fn failed(&mut self, ballot: Ballot, reason: &str) {
        if self.has_ended() || !self.is_current(ballot) {
            return;
        }
        self.kept = None;
        if ballot.leader == self.own {
            self.ask_again(reason);
        } else {
            if !matches!(self.stage, Stage::Asks { .. }) {
                self.stage = Stage::Waits;
            }
            self.send(ballot.leader, Message::Failed(ballot, reason.to_owned()));
        }
        self.review();
    }

    /// Nobody goes on with this member; those that follow it learn why.
    pub(super) fn give_up(&mut self, reason: &str) {
        if !self.has_ended() {
            self.stop(reason.to_owned());
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Committed(_) | Stage::Stopped(_))
    }

    fn is_led(&self, ballot: Ballot) -> bool {
        let proposal = match &self.stage {
            Stage::Forms(proposal) | Stage::Formed(proposal) => proposal,
            _ => return false,
        };
        proposal.ballot == ballot && ballot.leader == self.own
    }

    /// Tries once more, unless that did not help often enough.
    fn ask_again(&mut self, reason: &str) {
        self.trials += 1;
        if self.trials >= TRIAL_LIMIT {
            self.stop(format!("the new mesh could not be formed in {TRIAL_LIMIT} trials, at last: {reason}"));
        } else {
            self.ask();
        }
    }

    fn ask(&mut self) {
        if let Stage::Formed(proposal) = &self.stage {
            // An own proposal counts only when this member says so, which it now never will.
            self.kept = Some(proposal.clone()).filter(|proposal| proposal.ballot.leader != self.own);
        }
        // What a peer said may be any number.
        let Some(round) = self.seen.checked_add(1) else {
            return self.stop("no round is left to ask in".to_owned());
        };
        self.seen = round;
        let ballot = Ballot { round: self.seen, leader: self.own };
        self.promised = ballot;
        self.formed.clear();
        for index in 0..self.count {
            if self.is_eligible(index) {
                self.send(index, Message::Ask(ballot));
            }
        }
        self.stage = Stage::Asks { ballot, answers: BTreeMap::new() };
        // The last one that is left waits for nobody.
        self.propose();
    }

    fn stop(&mut self, reason: String) {
        let ballot = self.promised;
        if ballot.leader == self.own {
            for index in 0..self.count {
                if self.is_eligible(index) {
                    self.send(index, Message::Stop(ballot, reason.clone()));
                }
            }
        }
        self.kept = None;
        self.stage = Stage::Stopped(reason);
    }

    /// Does what follows from all that is known.
    fn review(&mut self) {
        if self.has_ended() {
            return;
        }
        let leader = self.leader();
        if leader != self.own {
            self.answer(leader);
            return;
        }
        let proposal = match &self.stage {
            Stage::Waits => return self.ask(),
            Stage::Asks { .. } => return self.propose(),
            Stage::Forms(proposal) | Stage::Formed(proposal) => proposal,
            Stage::Committed(_) | Stage::Stopped(_) => return,
        };
        if proposal.ballot.leader != self.own
            || proposal.members.keys().any(|index| !self.is_eligible(*index))
        {
            // Its leader, or one of those that it counted on, is gone.
            return self.ask();
        }
        let is_formed = |index: &usize| *index == self.own || self.formed.contains(index);
        if matches!(self.stage, Stage::Formed(_)) && proposal.members.keys().all(is_formed) {
            let proposal = proposal.clone();
            self.commit(proposal);
        }
    }

    fn answer(&mut self, leader: usize) {
        let Some(ballot) = self.questions.remove(&leader) else { return };
        if ballot <= self.promised {
            // An earlier leader asked this member more often than that one has heard of.
            self.send(leader, Message::Higher(ballot, self.promised.round));
            return;
        }
        self.promised = ballot;
        if let Stage::Formed(proposal) = &self.stage {
            self.kept = Some(proposal.clone());
        }
        self.stage = Stage::Waits;
        let address = self.address.clone();
        self.send(leader, Message::Answer(ballot, address));
    }

    fn propose(&mut self) {
        let Stage::Asks { ballot, answers } = &self.stage else { return };
        let is_missing =
            |index: &usize| self.is_eligible(*index) && *index != self.own && !answers.contains_key(index);
        if (0..self.count).any(|index| is_missing(&index)) {
            return;
        }
        let mut members = answers.clone();
        members.retain(|index, _| self.is_eligible(*index));
        members.insert(self.own, self.address.clone());
        let indexes = members.keys().copied().collect::<BTreeSet<_>>();
        if !is_enough(&indexes, self.count) {
            let reason = format!(
                "only indexes {indexes:?} of {} came, which is not more than half, nor half with index 0: the others may go on",
                self.count
            );
            return self.stop(reason);
        }
        let proposal = Proposal { ballot: *ballot, members };
        for index in indexes {
            self.send(index, Message::Propose(proposal.clone()));
        }
        self.kept = None;
        self.stage = Stage::Forms(proposal);
    }
}

#[cfg(test)]
mod tests;
