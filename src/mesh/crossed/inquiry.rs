//! Finding out whether waits go round in a circle, by questions that are passed along them: values in, values out.
//!
//! A member that waits asks those that it waits for; one that cannot come because it waits itself passes the question on to those
//! that it waits for. A question that comes back to the wait that it began with has gone round a circle. Each wait on the way was
//! seen after the one before, and ends only if the next one does: when the first one still lasts, so do all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long a call waits before it asks.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How long after the first question comes the second; each later pause is twice the one before.
const PAUSE: Duration = Duration::from_millis(300);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);
/// Questions that must have come back.
const ROUNDS: usize = 2;
/// Questions that are remembered, so that each is passed on once.
const REMEMBERED: usize = 1024;
/// Bytes of the words of a question.
pub(super) const WORDS_LIMIT: usize = 800;

/// One wait of one member: the member's own number, and that of the wait.
pub(super) type Origin = (u64, u64);

/// What one member asks another that it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// The number, in the group that carries the question, of the call that the asker waits in.
    pub(super) call: u64,
    /// The wait that it began with.
    pub(super) origin: Origin,
    /// Which question of that wait it is.
    pub(super) round: u32,
    /// The seat that the first one was put to.
    pub(super) first: u32,
    /// The calls of those that passed it on, in their order.
    pub(super) words: String,
}

impl Question {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.call.to_le_bytes().to_vec();
        bytes.extend(self.origin.0.to_le_bytes());
        bytes.extend(self.origin.1.to_le_bytes());
        bytes.extend(self.round.to_le_bytes());
        bytes.extend(self.first.to_le_bytes());
        bytes.extend(&self.words.as_bytes()[..self.words.floor_char_boundary(WORDS_LIMIT)]);
        bytes
    }

    /// `None` for bytes that are no question.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        fn long(bytes: &mut &[u8]) -> Option<u64> {
            let (first, rest) = bytes.split_first_chunk::<8>()?;
            *bytes = rest;
            Some(u64::from_le_bytes(*first))
        }
        let mut rest = bytes;
        let (call, member, wait) = (long(&mut rest)?, long(&mut rest)?, long(&mut rest)?);
        let numbers = long(&mut rest)?;
        if rest.len() > WORDS_LIMIT {
            return None;
        }
        let words = String::from_utf8_lossy(rest).replace(char::is_control, " ");
        let (round, first) = (numbers as u32, (numbers >> 32) as u32);
        Some(Self { call, origin: (member, wait), round, first, words })
    }
}

/// A circle that goes through a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Circle {
    /// The seat of the next member on it.
    pub(super) seat: usize,
    /// The calls of the others on it.
    pub(super) words: String,
}

/// One wait of this member.
#[derive(Debug)]
struct Wait {
    words: String,
    rounds: u32,
    next: Duration,
    returned: BTreeSet<u32>,
    /// The groups in which others wait for this member while it waits.
    askers: BTreeSet<u64>,
    circle: Option<Circle>,
}

/// The waits of one member.
#[derive(Debug)]
pub(super) struct Inquiry {
    own: u64,
    count: u64,
    waits: BTreeMap<u64, Wait>,
    passed: VecDeque<(Origin, u32, u64)>,
}

impl Inquiry {
    /// That of the member with this number, which no other has.
    pub(super) const fn new(own: u64) -> Self {
        Self { own, count: 0, waits: BTreeMap::new(), passed: VecDeque::new() }
    }

    /// Notes a wait in a call of these words; gives its number.
    pub(super) fn begin(&mut self, words: String, now: Duration) -> u64 {
        self.count += 1;
        let (returned, askers) = (BTreeSet::new(), BTreeSet::new());
        self.waits.insert(self.count, Wait { words, rounds: 0, next: now, returned, askers, circle: None });
        self.count
    }

    /// Forgets a wait; gives the groups in which others waited for this member.
    pub(super) fn end(&mut self, number: u64) -> BTreeSet<u64> {
        self.waits.remove(&number).map(|wait| wait.askers).unwrap_or_default()
    }

    /// Asks again soon, since what this member waits for may have changed.
    pub(super) fn hurry(&mut self, now: Duration) {
        for wait in self.waits.values_mut() {
            wait.rounds = 0;
            wait.next = wait.next.min(now + PAUSE);
        }
    }

    /// The question of a wait in the call with this number, if it is time to ask it.
    pub(super) fn ask(&mut self, number: u64, call: u64, now: Duration) -> Option<Question> {
        let wait = self.waits.get_mut(&number).filter(|wait| now >= wait.next)?;
        wait.rounds = wait.rounds.saturating_add(1);
        wait.next = now + PAUSE.saturating_mul(1 << (wait.rounds - 1).min(16)).min(LONGEST);
        let origin = (self.own, number);
        // Rounds are told apart by their time, since they are counted anew.
        let round = now.as_millis() as u32;
        Some(Question { call, origin, round, first: 0, words: String::new() })
    }

    /// Hears a question of a group whose call this member cannot enter before the wait with this number ends; gives what is to be
    /// passed on.
    pub(super) fn hear(&mut self, number: u64, group: u64, mut question: Question) -> Option<Question> {
        let wait = self.waits.get_mut(&number)?;
        wait.askers.insert(group);
        if question.origin == (self.own, number) {
            wait.returned.insert(question.round);
            if wait.returned.len() >= ROUNDS {
                let seat = question.first as usize;
                wait.circle.get_or_insert(Circle { seat, words: question.words });
            }
            return None;
        }
        let key = (question.origin, question.round, number);
        if self.passed.contains(&key) {
            return None;
        }
        if self.passed.len() >= REMEMBERED {
            self.passed.pop_front();
        }
        self.passed.push_back(key);
        let separator = if question.words.is_empty() { "" } else { "; " };
        if question.words.len() + separator.len() + wait.words.len() <= WORDS_LIMIT {
            question.words.push_str(separator);
            question.words.push_str(&wait.words);
        }
        Some(question)
    }

    /// The circle that goes through a wait, if one was found.
    pub(super) fn circle(&self, number: u64) -> Option<Circle> {
        self.waits.get(&number)?.circle.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Who waits for whom: by member, those that it waits for. Each has one wait, in a group of its own number.
    fn find(waits_for: &[Vec<usize>]) -> Vec<bool> {
        let mut members = (0..waits_for.len()).map(|own| Inquiry::new(own as u64)).collect::<Vec<_>>();
        let numbers = members.iter_mut().enumerate().map(|(own, member)| {
            (!waits_for[own].is_empty()).then(|| member.begin(format!("call of {own}"), Duration::ZERO))
        });
        let numbers = numbers.collect::<Vec<_>>();
        for tenth in 0..30 {
            let now = Duration::from_millis(100 * tenth);
            let mut letters = VecDeque::new();
            for (own, number) in numbers.iter().enumerate() {
                let question = number.and_then(|number| members[own].ask(number, 1, now));
                for to in question.iter().flat_map(|_| &waits_for[own]) {
                    let first = *to as u32;
                    letters.push_back((own, *to, Question { first, ..question.clone().expect("asked") }));
                }
            }
            while let Some((from, to, question)) = letters.pop_front() {
                let question = Question::from_bytes(&question.to_bytes()).expect("whole");
                let Some(number) = numbers[to] else { continue };
                if let Some(further) = members[to].hear(number, from as u64, question) {
                    waits_for[to].iter().for_each(|next| letters.push_back((to, *next, further.clone())));
                }
            }
        }
        let found = |(own, number): (usize, &Option<u64>)| {
            number.is_some_and(|number| members[own].circle(number).is_some())
        };
        numbers.iter().enumerate().map(found).collect()
    }

    /// Whether a member is reached from itself.
    fn is_on_circle(waits_for: &[Vec<usize>], own: usize) -> bool {
        let (mut reached, mut open) = (BTreeSet::new(), waits_for[own].clone());
        while let Some(next) = open.pop() {
            if reached.insert(next) {
                open.extend(&waits_for[next]);
            }
        }
        reached.contains(&own)
    }

    #[test]
    fn a_circle_is_found_by_all_on_it_and_a_line_by_none() {
        assert_eq!(find(&[vec![1], vec![0]]), [true, true]);
        assert_eq!(find(&[vec![1], vec![2], vec![0]]), [true, true, true]);
        assert_eq!(find(&[vec![1], vec![2], vec![]]), [false, false, false], "the last one computes");
        assert_eq!(find(&[vec![1], vec![2], vec![1]]), [false, true, true], "one waits for a circle");
    }

    #[test]
    fn one_question_that_came_back_is_not_believed_alone() {
        let mut one = Inquiry::new(7);
        let number = one.begin("a call".to_owned(), Duration::ZERO);
        let question = one.ask(number, 3, Duration::ZERO).expect("it is time");
        assert_eq!((question.call, one.ask(number, 3, Duration::ZERO)), (3, None));
        assert_eq!(one.hear(number, 1, question.clone()), None);
        assert_eq!(one.hear(number, 1, question), None);
        assert_eq!(one.circle(number), None);
        let question = one.ask(number, 3, PAUSE).expect("it is time");
        assert_eq!(one.hear(number, 1, Question { first: 2, words: "theirs".to_owned(), ..question }), None);
        assert_eq!(one.circle(number), Some(Circle { seat: 2, words: "theirs".to_owned() }));
        assert_eq!(one.end(number), BTreeSet::from([1]));
        assert_eq!(one.circle(number), None);
    }

    #[test]
    fn what_is_no_question_is_not_read() {
        assert_eq!(Question::from_bytes(&[0; 31]), None);
        assert_eq!(Question::from_bytes(&[0; 33 + WORDS_LIMIT]), None);
    }

    proptest! {
        #[test]
        fn exactly_those_on_a_circle_find_one(edges in prop::collection::vec(prop::collection::vec(any::<bool>(), 6), 6)) {
            let waits_for = edges.iter().enumerate().map(|(own, row)| {
                (0..6).filter(|other| *other != own && row[*other] && (own + other) % 3 != 0).collect()
            });
            let waits_for = waits_for.collect::<Vec<Vec<usize>>>();
            let expected = (0..6).map(|own| is_on_circle(&waits_for, own)).collect::<Vec<_>>();
            prop_assert_eq!(find(&waits_for), expected);
        }
    }
}
