//! Which tiers the GPUs of a group have, from the multimem domains that they are in: pure, and the same on all members.

use std::ops::Range;

use crate::sys::ccl::Seat;

/// GPUs in domains of one size that follow each other: a communicator inside of each domain, and one across for each place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiers {
    /// How many GPUs each domain has.
    pub(super) gpus: usize,
    /// How many domains there are.
    pub(super) domains: usize,
}

impl Tiers {
    /// The communicator of all GPUs.
    pub(super) const ALL: usize = 0;
    /// That of this GPU's domain.
    pub(super) const INSIDE: usize = 1;
    /// That of the GPUs with its place in all domains.
    pub(super) const ACROSS: usize = 2;

    /// Calls whose largest array is shorter go to all GPUs at once, as each step has a latency of its own.
    pub(super) const LEAST_BYTES: usize = 64 << 10;

    /// The tiers of GPUs by their domains, in the order of their places.
    ///
    /// There are none where it would be one step with more words: one domain, or domains of one GPU. Nor are there any where
    /// domains differ in size, a domain's GPUs do not follow each other, or a GPU is in no known domain: then each call goes to all
    /// GPUs at once, and the library finds its way.
    pub(super) fn derive(domains: &[Option<u32>]) -> Option<Self> {
        let first = *domains.first()?;
        let gpus = domains.iter().take_while(|domain| **domain == first).count();
        let tiers = Self { gpus, domains: domains.len() / gpus };
        if gpus < 2 || tiers.domains < 2 || gpus * tiers.domains != domains.len() {
            return None;
        }
        let leads = (0..tiers.domains).map(|domain| domains[domain * gpus]).collect::<Option<Vec<_>>>()?;
        let is_one = |lead: &u32| leads.iter().filter(|other| *other == lead).count() == 1;
        let follows = |(place, domain): (usize, &Option<u32>)| *domain == domains[place - place % gpus];
        (leads.iter().all(is_one) && domains.iter().enumerate().all(follows)).then_some(tiers)
    }

    /// Where the GPU at a place sits in its domain.
    pub(super) const fn inside(&self, place: usize) -> Seat {
        Seat { color: place / self.gpus, rank: place % self.gpus, count: self.gpus }
    }

    /// Where it sits among those with its place in their domains.
    pub(super) const fn across(&self, place: usize) -> Seat {
        Seat { color: place % self.gpus, rank: place / self.gpus, count: self.domains }
    }

    /// Where the parts of a domain's GPUs lie, each of so many bytes.
    pub(super) const fn range(&self, domain: usize, part_bytes: usize) -> Range<usize> {
        domain * self.gpus * part_bytes..(domain + 1) * self.gpus * part_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derive(domains: &[u32]) -> Option<(usize, usize)> {
        let domains = domains.iter().map(|domain| Some(*domain)).collect::<Vec<_>>();
        Tiers::derive(&domains).map(|tiers| (tiers.gpus, tiers.domains))
    }

    #[test]
    fn tiers_are_of_equal_domains_that_follow_each_other() {
        assert_eq!(derive(&[0, 0, 1, 1]), Some((2, 2)));
        assert_eq!(derive(&[4, 4, 4, 1, 1, 1]), Some((3, 2)));
        assert_eq!(derive(&[0, 0, 1, 1, 2, 2, 3, 3]), Some((2, 4)));
    }

    #[test]
    fn where_they_are_not_there_are_none() {
        for domains in [
            &[][..],
            &[0],
            &[0, 0, 0, 0],
            &[0, 1, 2, 3],
            &[0, 0, 1],
            &[0, 0, 0, 1, 1],
            &[0, 1, 0, 1],
            &[0, 0, 1, 1, 0, 0],
            &[0, 0, 1, 2],
        ] {
            assert_eq!(derive(domains), None, "{domains:?}");
        }
        assert_eq!(Tiers::derive(&[Some(0), Some(0), None, None]), None);
        assert_eq!(Tiers::derive(&[None, None, Some(0), Some(0)]), None);
    }

    #[test]
    fn every_gpu_has_one_seat_in_each_tier() {
        let tiers = Tiers { gpus: 3, domains: 2 };
        let seats = |of: fn(&Tiers, usize) -> Seat| {
            (0..6).map(|place| of(&tiers, place)).map(|seat| (seat.color, seat.rank)).collect::<Vec<_>>()
        };
        assert_eq!(seats(Tiers::inside), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]);
        assert_eq!(seats(Tiers::across), [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]);
        assert_eq!(tiers.range(1, 8), 24..48);
    }
}
