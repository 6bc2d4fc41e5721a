//! Several hosts: which members share one, and what crosses between hosts in a step.
//!
//! Gradients go to the owners of shards: each host adds up those of its own members, and one sum of each shard crosses to
//! the shard's owner. Updated shards go back the same ways. So each byte crosses once in each direction, whatever number of
//! members a host has.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::sys::kernel::Table;
use crate::sys::kernel::optimizer::Source;
use crate::sys::{Deadline, Span, SpanMut};
use crate::vocabulary::Dtype;

use super::agreement::Members;
use super::bucket::Layout;
use super::optimizer::Buffer;
use super::step::pieces;
use super::{Trainer, part};

/// The members of each host, the hosts by their first seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    seats: Vec<Vec<usize>>,
    own: usize,
}

impl Hosts {
    /// Reads what every seat says is the first seat of its host; `None` if that makes no hosts.
    fn of_firsts(firsts: &[u64], seat: usize) -> Option<Self> {
        let mut seats = Vec::<Vec<usize>>::new();
        for (member, first) in firsts.iter().enumerate() {
            match seats.iter_mut().find(|seats| seats[0] as u64 == *first) {
                Some(seats) => seats.push(member),
                None if *first == member as u64 => seats.push(vec![member]),
                None => return None,
            }
        }
        let own = seats.iter().position(|seats| seats.contains(&seat))?;
        Some(Self { seats, own })
    }

    /// Agrees on the hosts: `visible` are the seats whose memory this member sees.
    ///
    /// # Errors
    /// `Disagreed` on all members if one says what cannot be; else as the group's calls.
    pub(super) fn agree(members: &Members, visible: &[usize], deadline: &Deadline<'_>) -> Result<Self> {
        let first = visible.first().map_or(u64::MAX, |first| *first as u64);
        let firsts = members.numbers(first, deadline)?;
        let found = Self::of_firsts(&firsts, members.seat()).filter(|hosts| hosts.own() == visible);
        let odd = || Error::Disagreed {
            field: "which members share a host".to_owned(),
            mine: format!("{visible:?} (index {})", members.seat()),
            theirs: format!("the first members of the hosts are {firsts:?}"),
            index: members.seat(),
        };
        members.outcome(found.ok_or_else(odd), |_| Vec::new(), deadline).map(|(hosts, _)| hosts)
    }

    /// The seats of this member's host.
    fn own(&self) -> &[usize] {
        &self.seats[self.own]
    }

    /// The seat whose part of an arena holds the parameters of this member's host.
    pub(super) fn first(&self) -> usize {
        self.own()[0]
    }

    pub(super) fn is_one(&self) -> bool {
        self.seats.len() == 1
    }

    /// The seat of `host` that speaks for it with the owner `seat` of another host: the owners of a host are shared out.
    fn speaker(&self, host: usize, seat: usize) -> usize {
        let place = self.seats.iter().find_map(|seats| seats.iter().position(|other| *other == seat));
        let seats = &self.seats[host];
        seats[place.unwrap_or(0) % seats.len()]
    }

    /// The owners on other hosts with whom `seat` speaks for its host, in the order of seats.
    fn served(&self, seat: usize) -> Vec<usize> {
        let others = self.seats.iter().enumerate().filter(|(host, _)| *host != self.own);
        let owners = others.flat_map(|(_, seats)| seats).copied();
        let mut served = owners.filter(|owner| self.speaker(self.own, *owner) == seat).collect::<Vec<_>>();
        served.sort_unstable();
        served
    }

    /// The other hosts with those who speak for them with `seat`, in the order of the speakers.
    fn speakers(&self, seat: usize) -> Vec<(usize, usize)> {
        let others = (0..self.seats.len()).filter(|host| *host != self.own);
        let mut speakers = others.map(|host| (self.speaker(host, seat), host)).collect::<Vec<_>>();
        speakers.sort_unstable();
        speakers
    }
}

/// The seats of a host whose gradients count.
fn counting<'a>(seats: &'a [usize], shares: &'a [f64]) -> impl Iterator<Item = (usize, f64)> + 'a {
    seats
        .iter()
        .filter_map(|seat| shares.get(*seat).map(|share| (*seat, *share)))
        .filter(|(_, share)| *share > 0.0)
}

/// What a member sends and receives in each step.
#[derive(Debug, Default)]
pub(super) struct Crossing {
    /// The shards of other hosts that this member serves, in the order of their owners.
    served: Vec<(usize, Vec<Range<usize>>)>,
    /// One after the other: sums on their way to the owners, then updated shards from them.
    outer: Buffer,
    /// The other hosts and who speaks for them, in the order of the speakers.
    speakers: Vec<(usize, usize)>,
    /// This member's own shard, once for each of `speakers`: their sums, then what they get.
    inner: Buffer,
    own_byte_count: usize,
}

impl Crossing {
    /// Room for what crosses; none of it is used on one host.
    ///
    /// # Errors
    /// `Exhausted`.
    pub(super) fn open(hosts: &Hosts, layout: &Layout, seat: usize, count: usize) -> Result<Self> {
        let shard =
            |seat: usize| layout.regions.iter().map(|region| region.shard(seat, count)).collect::<Vec<_>>();
        let served = hosts.served(seat).into_iter().map(|owner| (owner, shard(owner))).collect::<Vec<_>>();
        let speakers = hosts.speakers(seat);
        let own_byte_count = byte_count(&shard(seat));
        // Of the wider type: that both are aligned for either.
        let outer = Buffer::zeros(Dtype::F64, served.iter().map(|(_, shard)| byte_count(shard)).sum())?;
        let inner = Buffer::zeros(Dtype::F64, own_byte_count * speakers.len())?;
        Ok(Self { served, outer, speakers, inner, own_byte_count })
    }
}

fn byte_count(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

/// The sums of other hosts for this member's shard, each with the share it counts for.
pub(super) struct Sums<'a> {
    bytes: Span<'a>,
    /// By host: where its sum begins in `bytes`, and its share.
    hosts: Vec<Option<(usize, f64)>>,
}

impl Trainer {
    /// Sends every shard's owner one sum of this host's gradients, and takes those for this member's own.
    ///
    /// A host of which one member counts sends that one's gradients as they are: with one member on each host the bits are
    /// those of a run on one host. Else the sum is rounded once to the gradients' type.
    pub(super) fn cross_gradients<'a>(
        &self,
        kernels: Table,
        crossing: &'a mut Crossing,
        shares: &[f64],
        deadline: &Deadline<'_>,
    ) -> Result<Sums<'a>> {
        let ram = self.core.ram()?;
        let hosts = &ram.hosts;
        let own = counting(hosts.own(), shares).collect::<Vec<_>>();
        let count = self.core.members.count();
        let (mut given, mut taken) = (vec![0usize; count], vec![0usize; count]);
        let mut at = 0;
        for (owner, shard) in &crossing.served {
            if own.is_empty() {
                continue;
            }
            given[*owner] = byte_count(shard);
            for (region, bytes) in self.core.layout.regions.iter().zip(shard) {
                for piece in pieces(bytes.clone()) {
                    deadline.check("trainer.step", Vec::new)?;
                    let mut outer = crossing.outer.span_mut();
                    let mut target = outer.part(at..at + piece.len())?;
                    at += piece.len();
                    if let [(seat, _)] = own[..] {
                        target.copy_from(part(&*ram.gradients, seat)?.part(piece)?)?;
                        continue;
                    }
                    let source = |(seat, share): &(usize, f64)| {
                        let gradients = part(&*ram.gradients, *seat)?.part(piece.clone())?;
                        Ok(Source { share: *share, gradients })
                    };
                    let sources = own.iter().map(source).collect::<Result<Vec<_>>>()?;
                    kernels.weighted_sum(region.dtype, &sources, &mut target)?;
                }
            }
        }
        let (mut places, mut end) = (vec![None; hosts.seats.len()], 0);
        for (speaker, host) in &crossing.speakers {
            let mut theirs = counting(&hosts.seats[*host], shares);
            let Some((_, share)) = theirs.next() else { continue };
            places[*host] = Some((end, if theirs.next().is_none() { share } else { 1.0 }));
            taken[*speaker] = crossing.own_byte_count;
            end += crossing.own_byte_count;
        }
        let (outer, mut inner) = (crossing.outer.span().part(0..at)?, crossing.inner.span_mut());
        self.core.members.pass(outer, &given, inner.part(0..end)?, &taken, deadline)?;
        Ok(Sums { bytes: crossing.inner.span(), hosts: places })
    }

    /// What a range of this member's shard is reduced from, in the order of hosts and of seats within this one; `offset` is
    /// where the range begins in the shard.
    pub(super) fn sources<'a>(
        &'a self,
        sums: Option<&Sums<'a>>,
        shares: &[f64],
        bytes: &Range<usize>,
        offset: usize,
    ) -> Result<Vec<Source<'a>>> {
        let ram = self.core.ram()?;
        let hosts = &ram.hosts;
        let mut sources = Vec::new();
        for (host, seats) in hosts.seats.iter().enumerate() {
            if host == hosts.own {
                for (seat, share) in counting(seats, shares) {
                    let gradients = part(&*ram.gradients, seat)?.part(bytes.clone())?;
                    sources.push(Source { share, gradients });
                }
            } else if let Some(sums) = sums
                && let Some((start, share)) = sums.hosts[host]
            {
                let range = start + offset..start + offset + bytes.len();
                sources.push(Source { share, gradients: sums.bytes.part(range)? });
            }
        }
        Ok(sources)
    }

    /// Gives this member's shard of the parameters to the other hosts, and takes those that it serves.
    pub(super) fn cross_parameters(&self, crossing: &mut Crossing, deadline: &Deadline<'_>) -> Result<()> {
        let ram = self.core.ram()?;
        let hosts = &ram.hosts;
        if hosts.is_one() {
            return Ok(());
        }
        let (members, layout) = (&self.core.members, &self.core.layout);
        let (seat, count) = (members.seat(), members.count());
        let (mut given, mut taken) = (vec![0usize; count], vec![0usize; count]);
        let (mut at, mut inner) = (0, crossing.inner.span_mut());
        let mut parameters = ram.parameters()?;
        for (speaker, _) in &crossing.speakers {
            given[*speaker] = crossing.own_byte_count;
            for region in &layout.regions {
                let bytes = region.shard(seat, count);
                let own = part(&*ram.parameters, hosts.first())?.part(bytes.clone())?;
                inner.part(at..at + bytes.len())?.copy_from(own)?;
                at += bytes.len();
            }
        }
        crossing.served.iter().for_each(|(owner, shard)| taken[*owner] = byte_count(shard));
        members.pass(crossing.inner.span(), &given, crossing.outer.span_mut(), &taken, deadline)?;
        let (outer, mut at) = (crossing.outer.span(), 0);
        for bytes in crossing.served.iter().flat_map(|(_, shard)| shard) {
            parameters.part(bytes.clone())?.copy_from(outer.part(at..at + bytes.len())?)?;
            at += bytes.len();
        }
        Ok(())
    }

    /// Gives the parameters that index 0 sees to the other hosts, or to all GPUs.
    pub(super) fn spread_parameters(&self, deadline: &Deadline<'_>) -> Result<()> {
        if let Some(vram) = self.core.vram() {
            return vram.spread(deadline);
        }
        let ram = self.core.ram()?;
        let hosts = &ram.hosts;
        if hosts.is_one() {
            return Ok(());
        }
        let mut parameters = ram.parameters()?;
        let mut scratch = Vec::new();
        for piece in pieces(0..self.core.layout.byte_count) {
            let output = if self.core.members.seat() == hosts.first() {
                parameters.part(piece)?
            } else {
                // The first of the host takes them for all.
                scratch.resize(piece.len(), 0u8);
                SpanMut::of(&mut scratch)
            };
            self.core.members.broadcast(output, deadline)?;
        }
        self.core.members.fence(deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_follow_from_their_first_members() {
        let hosts = Hosts::of_firsts(&[0, 1, 0, 1, 0], 3).expect("two hosts");
        assert_eq!(hosts, Hosts { seats: vec![vec![0, 2, 4], vec![1, 3]], own: 1 });
        assert_eq!((hosts.first(), hosts.is_one()), (1, false));
        assert!(Hosts::of_firsts(&[0, 0, 0], 2).expect("one host").is_one());
        for odd in [&[0, 2, 2][..], &[1, 1], &[0, u64::MAX], &[0, 0, 1]] {
            assert_eq!(Hosts::of_firsts(odd, 0), None, "{odd:?}");
        }
    }

    proptest! {
        #[test]
        fn every_shard_is_served_once_on_every_other_host(places in proptest::collection::vec(0usize..4, 1..12)) {
            let first = |host: &usize| places.iter().position(|other| other == host).expect("it is there") as u64;
            let firsts = places.iter().map(first).collect::<Vec<_>>();
            let all = (0..places.len()).map(|seat| Hosts::of_firsts(&firsts, seat).expect("hosts"));
            let all = all.collect::<Vec<_>>();
            for (owner, hosts) in all.iter().enumerate() {
                let speakers = hosts.speakers(owner);
                prop_assert_eq!(speakers.len(), hosts.seats.len() - 1);
                for (speaker, host) in speakers {
                    prop_assert!(hosts.seats[host].contains(&speaker));
                    prop_assert!(all[speaker].served(speaker).contains(&owner));
                }
                let served = all.iter().enumerate().filter(|(seat, hosts)| hosts.served(*seat).contains(&owner));
                prop_assert_eq!(served.count(), hosts.seats.len() - 1);
            }
        }
    }
}
