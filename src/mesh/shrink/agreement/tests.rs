//! All ways that three members can go through an agreement, and many that four and five can, with deaths and cuts anywhere.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

use super::*;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Item {
    Said(Message),
    End,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver { from: usize, to: usize },
    Form(usize),
    Fail(usize),
    Cut,
}

/// Members, what is under way between them, and what may still go wrong.
#[derive(Clone, Debug, Hash)]
struct World {
    members: Vec<Agreement>,
    alive: Vec<bool>,
    queues: BTreeMap<(usize, usize), VecDeque<Item>>,
    /// Who began to form the mesh of a ballot.
    began: BTreeMap<Ballot, BTreeSet<usize>>,
    deaths_left: usize,
    /// Those on one side of a cable that may still be cut.
    side: Option<BTreeSet<usize>>,
    /// Those on one side of the cable that was.
    apart: BTreeSet<usize>,
}

impl World {
    fn new(count: usize, dead: &[usize], deaths_left: usize, side: Option<BTreeSet<usize>>) -> Self {
        let mut world = Self {
            members: (0..count).map(|own| Agreement::new(own, count, own.to_string())).collect(),
            alive: (0..count).map(|index| !dead.contains(&index)).collect(),
            queues: BTreeMap::new(),
            began: BTreeMap::new(),
            deaths_left,
            side,
            apart: BTreeSet::new(),
        };
        for index in 0..count {
            if world.alive[index] {
                let all = world.members[index].take_messages();
                world.send(index, all);
            } else {
                world.end(index);
            }
        }
        world
    }

    fn push(&mut self, from: usize, to: usize, item: Item) {
        if self.alive[to] && self.apart.contains(&from) == self.apart.contains(&to) {
            self.queues.entry((from, to)).or_default().push_back(item);
        }
    }

    fn send(&mut self, from: usize, messages: Vec<(usize, Message)>) {
        for (to, message) in messages {
            self.push(from, to, Item::Said(message));
        }
        if let Next::Form(proposal) = self.members[from].next() {
            self.began.entry(proposal.ballot).or_default().insert(from);
        }
    }

    fn end(&mut self, dead: usize) {
        self.alive[dead] = false;
        self.queues.retain(|(_, to), _| *to != dead);
        for to in 0..self.members.len() {
            if to != dead {
                self.push(dead, to, Item::End);
            }
        }
    }

    fn is_busy(&self, index: usize) -> bool {
        self.alive[index] && !self.members[index].has_ended()
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for ((from, to), queue) in &self.queues {
            if !queue.is_empty() && self.is_busy(*to) {
                steps.push(Step::Deliver { from: *from, to: *to });
            }
        }
        for (index, member) in self.members.iter().enumerate() {
            let Next::Form(proposal) = member.next() else { continue };
            if !self.alive[index] {
                continue;
            }
            let began = &self.began[&proposal.ballot];
            if proposal.members.keys().all(|other| began.contains(other)) {
                steps.push(Step::Form(index));
            }
            let has_left = |other: &usize| {
                let left = began.contains(other) && !self.members[*other].is_current(proposal.ballot);
                left || !self.alive[*other] || self.is_apart(index, *other)
            };
            if proposal.members.keys().any(has_left) {
                steps.push(Step::Fail(index));
            }
        }
        if self.side.is_some() {
            steps.push(Step::Cut);
        }
        steps
    }

    fn is_apart(&self, one: usize, other: usize) -> bool {
        self.members[one].standings[other] == Standing::Ended
    }

    /// What can come of a step: nobody dies, or the one that makes it does, with so many of its messages sent.
    fn after(&self, step: Step) -> Vec<Self> {
        let mut next = self.clone();
        let who = match step {
            Step::Deliver { from, to } => {
                match next.queues.get_mut(&(from, to)).and_then(VecDeque::pop_front) {
                    Some(Item::Said(message)) => next.members[to].hear(from, message),
                    Some(Item::End) => next.members[to].observe(from, Standing::Ended),
                    None => {}
                }
                next.queues.retain(|_, queue| !queue.is_empty());
                to
            }
            Step::Form(index) | Step::Fail(index) => {
                let Next::Form(proposal) = self.members[index].next() else { return vec![next] };
                if matches!(step, Step::Form(_)) {
                    next.members[index].formed(proposal.ballot);
                } else {
                    next.members[index].failed(proposal.ballot, "as the test wants");
                }
                index
            }
            Step::Cut => {
                next.cut();
                return vec![next];
            }
        };
        let messages = next.members[who].take_messages();
        let mut worlds = Vec::new();
        if next.deaths_left > 0 {
            for sent in 0..=messages.len() {
                let mut died = next.clone();
                died.deaths_left -= 1;
                died.send(who, messages[..sent].to_vec());
                died.end(who);
                worlds.push(died);
            }
        }
        next.send(who, messages);
        worlds.push(next);
        worlds
    }

    /// Pulls the cable: what is under way is lost, and each side sees the other end.
    fn cut(&mut self) {
        let Some(side) = self.side.take() else { return };
        for from in 0..self.members.len() {
            for to in 0..self.members.len() {
                if side.contains(&from) != side.contains(&to) && self.alive[to] {
                    self.queues.insert((from, to), VecDeque::from([Item::End]));
                }
            }
        }
        self.queues.retain(|_, queue| !queue.is_empty());
        self.apart = side;
    }

    /// What must hold when nothing more can happen.
    fn check_end(&self, sides: &[BTreeSet<usize>]) {
        let committed = |index: usize| match self.members[index].next() {
            Next::GoOn(proposal) if self.alive[index] => Some(proposal.clone()),
            _ => None,
        };
        for index in 0..self.members.len() {
            assert!(!self.is_busy(index), "index {index} waits for ever: {self:#?}");
        }
        for side in sides {
            let living = side.iter().copied().filter(|index| self.alive[*index]).collect::<BTreeSet<_>>();
            let gone = living.iter().filter_map(|index| committed(*index)).collect::<Vec<_>>();
            if sides.len() == 1 {
                assert!(gone.is_empty() || gone.len() == living.len(), "some were left behind: {self:#?}");
                assert!(gone.windows(2).all(|two| two[0] == two[1]), "two meshes: {self:#?}");
                if is_enough(&living, self.members.len()) {
                    assert!(!gone.is_empty(), "enough lived, and nobody went on: {self:#?}");
                }
            }
        }
        // Two meshes can only be of one: each has a member that the other has too, and that is in one of them.
        let whole = (0..self.members.len()).filter_map(&committed);
        let whole = whole.filter(|proposal| {
            proposal.members.keys().all(|index| committed(*index).as_ref() == Some(proposal))
        });
        let ballots = whole.map(|proposal| proposal.ballot).collect::<BTreeSet<_>>();
        assert!(ballots.len() <= 1, "two sides went on: {self:#?}");
    }
}

/// Goes every way; gives how many states there are.
fn explore(start: World, sides: &[BTreeSet<usize>]) -> usize {
    let hash = |world: &World| {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        hasher.finish()
    };
    let mut seen = HashSet::from([hash(&start)]);
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        let steps = world.steps();
        if steps.is_empty() {
            world.check_end(sides);
        }
        for next in steps.into_iter().flat_map(|step| world.after(step)) {
            if seen.insert(hash(&next)) {
                open.push(next);
            }
        }
    }
    seen.len()
}

/// Goes one way, chosen by a seed.
fn walk(mut world: World, sides: &[BTreeSet<usize>], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % limit as u64).unwrap_or(0)
    };
    for _ in 0..2000 {
        let steps = world.steps();
        if steps.is_empty() {
            return world.check_end(sides);
        }
        let mut next = world.after(steps[draw(steps.len())]);
        // Deaths come first in the list, and are rare.
        let choice = if draw(6) == 0 { draw(next.len()) } else { next.len() - 1 };
        world = next.swap_remove(choice);
    }
    panic!("seed {seed}: the agreement does not end: {world:#?}");
}

fn all(count: usize) -> Vec<BTreeSet<usize>> {
    vec![(0..count).collect()]
}

#[test]
fn three_members_agree_in_every_order_of_events() {
    assert!(explore(World::new(3, &[], 0, None), &all(3)) > 30);
    for dead in 0..3 {
        assert!(explore(World::new(3, &[dead], 0, None), &all(3)) > 4);
    }
}

#[test]
fn three_members_agree_whoever_dies_whenever() {
    assert!(explore(World::new(3, &[], 1, None), &all(3)) > 200);
    for dead in 0..3 {
        explore(World::new(3, &[dead], 1, None), &all(3));
    }
}

#[test]
fn four_and_five_members_agree_whoever_dies_whenever() {
    for seed in 1..=4000 {
        for (count, deaths) in [(4, 1), (4, 3), (5, 2), (5, 4)] {
            walk(World::new(count, &[], deaths, None), &all(count), seed);
        }
        let count = 5;
        walk(World::new(count, &[usize::try_from(seed % 5).unwrap_or(0)], 2, None), &all(count), seed);
    }
}

#[test]
fn at_most_one_side_of_a_cut_goes_on() {
    for seed in 1..=4000 {
        for side in [vec![0, 1], vec![0], vec![3], vec![1, 3]] {
            let side = side.into_iter().collect::<BTreeSet<usize>>();
            let other = (0..4).filter(|index| !side.contains(index)).collect();
            walk(World::new(4, &[], 1, Some(side.clone())), &[side, other], seed);
        }
    }
    let side = BTreeSet::from([1]);
    let other = BTreeSet::from([0, 2]);
    explore(World::new(3, &[], 0, Some(side.clone())), &[side, other]);
}

#[test]
fn one_that_answered_a_higher_round_is_asked_again() {
    let mut members = (0..3).map(|own| Agreement::new(own, 3, own.to_string())).collect::<Vec<_>>();
    // Index 1 has heard of none of the rounds that index 0 asked this one in.
    members[2].hear(0, Message::Ask(Ballot { round: 5, leader: 0 }));
    members[2].take_messages();
    members[1].observe(0, Standing::Ended);
    members[2].observe(0, Standing::Ended);
    for _ in 0..20 {
        for from in [1, 2] {
            for (to, message) in members[from].take_messages() {
                members[to].hear(from, message);
            }
            if let Next::Form(proposal) = members[from].next() {
                let ballot = proposal.ballot;
                members[from].formed(ballot);
            }
        }
    }
    for member in &members[1..] {
        let Next::GoOn(proposal) = member.next() else { panic!("it waits for ever: {member:#?}") };
        assert_eq!(proposal.ballot, Ballot { round: 6, leader: 1 });
    }
}

#[test]
fn a_round_beyond_all_others_ends_the_agreement_and_nothing_else() {
    let mut member = Agreement::new(0, 3, "here".into());
    member.hear(1, Message::Higher(Ballot { round: 1, leader: 0 }, u32::MAX));
    assert!(matches!(member.next(), Next::Stop(reason) if reason.contains("no round")), "{member:#?}");
}

#[test]
fn enough_is_more_than_half_or_half_with_index_0() {
    let enough = |members: &[usize], count| is_enough(&members.iter().copied().collect(), count);
    assert!(enough(&[0], 1) && enough(&[0, 3], 4) && enough(&[1, 2, 3], 4) && enough(&[1, 2], 3));
    assert!(
        !enough(&[1, 2], 4) && !enough(&[2], 3) && !enough(&[0], 3) && !enough(&[1], 2) && enough(&[0], 2)
    );
}

#[test]
fn what_no_member_says_changes_nothing() {
    let mut member = Agreement::new(1, 3, "here".into());
    assert_eq!((member.take_messages(), member.awaited()), (Vec::new(), vec![0]));
    let forged = Ballot { round: 4, leader: 2 };
    let members = BTreeMap::from([(0, String::new()), (1, String::new()), (7, String::new())]);
    for message in [
        Message::Ask(forged),
        Message::Propose(Proposal { ballot: Ballot { round: 1, leader: 0 }, members }),
        Message::Commit(forged),
        Message::Formed(forged),
        Message::Stop(forged, "no".into()),
        Message::Failed(forged, "no".into()),
        Message::Answer(forged, "there".into()),
    ] {
        member.hear(0, message.clone());
        member.hear(9, message);
        assert_eq!(member.next(), Next::Wait);
        assert_eq!(member.take_messages(), Vec::new());
    }
}
