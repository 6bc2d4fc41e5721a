//! The backend for hosts with several members each: shared memory inside a host, the network between hosts.
//!
//! All members of the run agree on every call first, over the network. A large `all_reduce` is then added up inside each
//! host; the members of a host divide the sum among them and exchange their slices with those of the other hosts, so that
//! each byte crosses once; and each host spreads what came. A large `broadcast` goes the same way. Everything else goes
//! over the network between all members.
//!
//! Additions of an `all_reduce` are made in the order of seats within a host, and then in the order of hosts, whatever the
//! size. A reproducible call of floats goes without tiers, in the order of seats alone; and so do element types whose partial
//! sums lose what the whole would keep (16-bit floats, and integers in an average).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::control::{Channel, Life};
use super::descriptor::{self, Descriptor};
use super::reduce::share;
use super::shared::{Proof, SharedCommunicator};
use super::tcp::{Flow, Incoming, Lane, Outgoing, Place, Reduction, TcpCommunicator, Turn, Watch, is_small};
use super::{Call, Communicator, SharedArena, announcement, gate};
use crate::error::{Error, Result};
use crate::sys::{Deadline, Span, SpanMut};
use crate::topology::Group;
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// A group over several hosts, whose members share memory within each.
pub struct TieredCommunicator {
    world: Arc<TcpCommunicator>,
    host: Arc<SharedCommunicator>,
    /// The seats of each host, the hosts by their first seat.
    hosts: Vec<Vec<usize>>,
    own_host: usize,
    /// This member's position in its host.
    place: usize,
    /// Members of a host that exchange with other hosts: as many as the smallest host has.
    column_count: usize,
}

impl std::fmt::Debug for TieredCommunicator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TieredCommunicator({:?} over {} hosts)", self.world, self.hosts.len())
    }
}

/// A part of an array, counted in elements.
struct Slice {
    elements: Range<usize>,
    size: usize,
}

impl Slice {
    fn bytes(&self) -> Range<usize> {
        self.elements.start * self.size..self.elements.end * self.size
    }

    /// The bytes of one host's segment of it.
    fn segment(&self, hosts: usize, host: usize) -> Range<usize> {
        let part = share(self.elements.len(), hosts, host);
        (self.elements.start + part.start) * self.size..(self.elements.start + part.end) * self.size
    }
}

impl TieredCommunicator {
    /// Joins the members of this host to each other; `hosts` are the seats of each host of the group. Collective.
    ///
    /// # Errors
    /// `Invalid` if the hosts do not have each seat once; else as [`SharedCommunicator::join`].
    pub fn join(
        world: Arc<TcpCommunicator>,
        proof: Proof,
        group: &Group,
        hosts: &[Vec<usize>],
        deadline: &Deadline<'_>,
    ) -> Result<Arc<Self>> {
        Self::join_with(world, group, hosts, |own| SharedCommunicator::join(proof, own, deadline))
    }

    /// As [`TieredCommunicator::join`], with another way to join the members of this host.
    ///
    /// # Errors
    /// As [`TieredCommunicator::join`].
    pub fn join_with(
        world: Arc<TcpCommunicator>,
        group: &Group,
        hosts: &[Vec<usize>],
        join: impl FnOnce(&Group) -> Result<Arc<SharedCommunicator>>,
    ) -> Result<Arc<Self>> {
        let mut all = hosts.iter().flatten().copied().collect::<Vec<_>>();
        all.sort_unstable();
        let own_host = hosts.iter().position(|seats| seats.contains(&group.own));
        let (Some(own_host), true) = (own_host, all.iter().copied().eq(0..group.seats.len())) else {
            let reason = format!("must have each of {} seats once", group.seats.len());
            return Err(Error::invalid("hosts", format!("{hosts:?}"), group.name.clone(), reason));
        };
        let seats = &hosts[own_host];
        let place = seats.iter().position(|seat| *seat == group.own).unwrap_or(0);
        let own = Group {
            name: format!("{}{}", gate::INSIDE, group.name),
            seats: seats.iter().map(|seat| group.seats[*seat]).collect(),
            own: place,
        };
        let host = join(&own)?;
        let column_count = hosts.iter().map(Vec::len).min().unwrap_or(1);
        Ok(Arc::new(Self { world, host, hosts: hosts.to_vec(), own_host, place, column_count }))
    }

    /// Whether partial sums inside a host keep what the whole would keep.
    fn goes_by_tiers(call: &Call<'_>) -> bool {
        let adds = matches!(call.op, ReduceOp::Sum | ReduceOp::Product | ReduceOp::Average);
        let is_short = matches!(call.dtype, Dtype::F16 | Dtype::Bf16);
        let averages = call.op == ReduceOp::Average && !call.dtype.is_float();
        match call.verb {
            Verb::AllReduce => !(adds && is_short || averages || call.reproducible && call.dtype.is_float()),
            Verb::Broadcast => true,
            _ => false,
        }
    }

    /// The slice that the members at one position of each host exchange; the last takes what is left over.
    fn slice(&self, count: usize, size: usize, column: usize) -> Slice {
        let each = count / self.column_count;
        let end = if column + 1 == self.column_count { count } else { (column + 1) * each };
        Slice { elements: column * each..end, size }
    }

    /// What a call does inside of this host.
    fn inside(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if self.hosts[self.own_host].len() == 1 {
            return Ok(());
        }
        self.host.run(call, deadline)
    }

    fn carry(
        &self,
        turn: &mut Turn,
        watch: &Watch<'_>,
        inline: &[u8],
        call: &mut Call<'_>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let size = call.dtype.size_bytes();
        let count = call.output.byte_count() / size;
        match (call.verb, is_small(count * size, self.world.count())) {
            _ if count == 0 => Ok(()),
            (Verb::AllReduce, true) => self.add_small(turn, inline, call),
            (Verb::AllReduce, false) => {
                let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
                if let (Some(input), 1) = (call.input, self.hosts[self.own_host].len()) {
                    call.output.copy_from(input)?;
                }
                // Without reports of its progress: those count what came from other hosts.
                let (verb, dtype, input) = (call.verb, call.dtype, call.input);
                let (kernels, crew) = (call.kernels, call.crew);
                let inner = Call::new(verb, dtype, op, 0, input, call.output.reborrow());
                self.inside(Call { kernels, crew, ..inner }, deadline)?;
                self.across(turn, watch, call, None)?;
                self.spread(call, deadline)
            }
            _ => {
                let root_host = self.hosts.iter().position(|seats| seats.contains(&call.root)).unwrap_or(0);
                if root_host == self.own_host {
                    let root = self.hosts[root_host].iter().position(|seat| *seat == call.root).unwrap_or(0);
                    let (verb, dtype) = (call.verb, call.dtype);
                    let crew = call.crew;
                    let inner = Call::new(verb, dtype, ReduceOp::Sum, root, None, call.output.reborrow());
                    self.inside(Call { crew, ..inner }, deadline)?;
                }
                self.across(turn, watch, call, Some(root_host))?;
                if root_host == self.own_host { Ok(()) } else { self.spread(call, deadline) }
            }
        }
    }

    /// Adds contributions that came beside the call, in the same order as large ones are.
    fn add_small(&self, turn: &Turn, inline: &[u8], call: &mut Call<'_>) -> Result<()> {
        let byte_count = call.output.byte_count();
        let op = if call.op == ReduceOp::Average { ReduceOp::Sum } else { call.op };
        let mut sums = vec![vec![0u8; byte_count]; self.hosts.len()];
        for (sum, seats) in sums.iter_mut().zip(&self.hosts) {
            let sources = seats.iter().map(|seat| self.world.contributed(turn, inline, *seat, byte_count));
            let sources = sources.collect::<Result<Vec<_>>>()?;
            call.kernels.reduce(call.dtype, op, &sources, &mut SpanMut::of(sum))?;
        }
        let zeros = vec![0u8; byte_count];
        let mut sources = sums.iter().map(|sum| Span::of(&sum[..])).collect::<Vec<_>>();
        if call.op == ReduceOp::Average {
            sources.resize(self.world.count(), Span::of(&zeros[..]));
        }
        call.kernels.reduce(call.dtype, call.op, &sources, &mut call.output)
    }

    /// Exchanges this member's slice with those of the other hosts: added up, or from the host `root`.
    fn across(
        &self,
        turn: &mut Turn,
        watch: &Watch<'_>,
        call: &mut Call<'_>,
        root: Option<usize>,
    ) -> Result<()> {
        if self.place >= self.column_count {
            return Ok(());
        }
        let (size, hosts, own) = (call.dtype.size_bytes(), self.hosts.len(), self.own_host);
        let slice = self.slice(call.output.byte_count() / size, size, self.place);
        let segment = |host: usize| slice.segment(hosts, host);
        let send = |range, is_result| Outgoing { place: Place::Output, range, is_result };
        let others = (0..hosts).filter(|host| *host != own);
        let lanes = others.map(|host| {
            let seat = self.hosts[host][self.place];
            let (outgoing, incoming) = match root {
                None => (
                    vec![send(segment(host), false), send(segment(own), true)],
                    vec![Incoming::Contribution(segment(own).len()), Incoming::Final(segment(host))],
                ),
                Some(root) if root == own => {
                    (vec![send(segment(host), false), send(segment(own), false)], Vec::new())
                }
                Some(root) if root == host => {
                    (Vec::new(), vec![Incoming::Own(segment(own)), Incoming::Final(segment(host))])
                }
                Some(_) => (vec![send(segment(own), true)], vec![Incoming::Final(segment(host))]),
            };
            Lane::new(seat, watch.sequence, outgoing, incoming)
        });
        let reduction = root.is_none().then(|| Reduction {
            dtype: call.dtype,
            op: call.op,
            kernels: call.kernels,
            place: Place::Output,
            start: segment(own).start,
            position: own,
            contributors: self.world.count(),
        });
        let (lanes, own) = (lanes.collect(), segment(own));
        let Turn { heard, scratch, .. } = turn;
        let output = call.output.reborrow();
        let flow = Flow { input: None, output, own, reduction, scratch, lanes, ready: 0, done: 0 };
        self.world.flow(heard, watch, flow, call.progress.as_ref())
    }

    /// Gives the slices that came to the members of this host to each other.
    fn spread(&self, call: &mut Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let (size, members) = (call.dtype.size_bytes(), self.hosts[self.own_host].len());
        let count = call.output.byte_count() / size;
        let (kernels, crew, dtype) = (call.kernels, call.crew, call.dtype);
        let mut inner = |verb: Verb, root: usize, bytes: Range<usize>| {
            let output = call.output.part(bytes)?;
            let call = Call { kernels, crew, ..Call::new(verb, dtype, ReduceOp::Sum, root, None, output) };
            self.inside(call, deadline)
        };
        if members != self.column_count {
            return (0..self.column_count).try_for_each(|column| {
                inner(Verb::Broadcast, column, self.slice(count, size, column).bytes())
            });
        }
        // Equal slices go all at once, and the few elements that are left over from the last member.
        let equal = count / members * members;
        inner(Verb::AllGather, 0, 0..equal * size)?;
        if equal < count {
            inner(Verb::Broadcast, members - 1, equal * size..count * size)?;
        }
        Ok(())
    }

    /// Runs a send or a receive: inside of this host over its memory, else over the network.
    fn pair(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        descriptor::check(&call, self.seat(), self.count())?;
        let place = self.hosts[self.own_host].iter().position(|seat| *seat == call.root);
        let phase = format!("{} with seat {}", call.verb.word(), call.root);
        let result = match place {
            Some(place) => {
                call.root = place;
                self.host.pair(&mut call, deadline)
            }
            None => self.world.pair(&mut call, deadline),
        };
        if let Err(error) = &result
            && descriptor::ends_group(error)
        {
            self.world.abandon(error, &phase);
            self.host.abandon(error, &phase);
        }
        result
    }

    /// Ends a call on both tiers: an error that ends the group over the network ends it inside of this host too.
    fn finish(&self, turn: &mut Turn, watch: &Watch<'_>, result: Result<()>) -> Result<()> {
        let result = self.world.finish(turn, watch, result);
        if let Err(error) = &result
            && !matches!(error, Error::Disagreed { .. } | Error::Exhausted { .. })
        {
            self.host.abandon(error, &watch.phase);
        }
        result
    }
}

/// The arena of a host, by the seats of the whole group.
struct HostArena {
    inner: Arc<dyn SharedArena>,
    seats: Vec<usize>,
    own: usize,
}

impl SharedArena for HostArena {
    fn part(&self, seat: usize) -> Option<Span<'_>> {
        self.inner.part(self.seats.iter().position(|own| *own == seat)?)
    }

    fn part_mut(&self, seat: usize) -> Option<SpanMut<'_>> {
        self.inner.part_mut(self.seats.iter().position(|own| *own == seat)?)
    }

    fn seat(&self) -> usize {
        self.own
    }
}

impl Channel for TieredCommunicator {
    fn post(&self, seat: usize, message: &[u8]) -> bool {
        self.world.post(seat, message)
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        self.world.letters()
    }

    fn life(&self, seat: usize) -> Life {
        match self.hosts[self.own_host].iter().position(|member| *member == seat) {
            // The network does not tell that a process is stopped.
            Some(place) if self.host.life(place) == Life::Stopped => Life::Stopped,
            _ => self.world.life(seat),
        }
    }

    fn check(&self) -> Result<()> {
        self.world.check()?;
        self.host.check()
    }

    fn rest(&self, limit: Duration) {
        self.world.rest(limit);
    }

    fn went_on(&self, words: &str) {
        self.world.went_on(words);
        self.host.went_on(words);
    }

    fn entered(&self) -> u64 {
        self.world.entered()
    }

    fn entering(&self) -> Option<(u64, Vec<usize>)> {
        self.world.entering()
    }

    fn ask(&self, seat: usize, question: &[u8]) {
        self.world.ask(seat, question);
    }

    fn asked(&self) -> Vec<(usize, Vec<u8>)> {
        self.world.asked()
    }

    fn cross(&self, words: &str) {
        self.world.cross(words);
        self.host.cross(words);
    }
}

impl Communicator for TieredCommunicator {
    fn seat(&self) -> usize {
        self.world.seat()
    }

    fn count(&self) -> usize {
        self.world.count()
    }

    fn run(&self, mut call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if descriptor::is_paired(call.verb) {
            return self.pair(call, deadline);
        }
        let count = descriptor::check(&call, self.seat(), self.count())?;
        let is_small = is_small(call.output.byte_count(), self.count());
        if call.gpu.is_some() || !Self::goes_by_tiers(&call) || (call.verb == Verb::Broadcast && is_small) {
            return self.world.run(call, deadline);
        }
        let mut turn = self.world.begin(call.verb)?;
        let inline = self.world.contribution(&call, count)?;
        if call.verb == Verb::AllReduce && !is_small {
            let prepared = turn.scratch.prepare(self.hosts.len() - 1, self.world.piece_bytes());
            prepared.inspect_err(|error| self.refuse(call.verb, error))?;
        }
        let watch = self.world.watch(call.verb, deadline);
        call.numbered(watch.sequence);
        let descriptor = Descriptor {
            dtype: call.dtype,
            op: call.op,
            count: count as u64,
            root: call.root as u64,
            shape: descriptor::shape(&call),
            site: call.site,
            ..Descriptor::bare(call.verb, watch.sequence)
        };
        let entered = self.world.enter(&mut turn, &watch, &descriptor, inline.clone());
        let entered = entered.inspect(|()| call.matched());
        let carried = entered.and_then(|()| self.carry(&mut turn, &watch, &inline, &mut call, deadline));
        self.finish(&mut turn, &watch, carried)
    }

    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        let mut turn = self.world.begin(Verb::Arena)?;
        let watch = self.world.watch(Verb::Arena, deadline);
        let bare = Descriptor::bare(Verb::Arena, watch.sequence);
        let entered = self.world.enter(&mut turn, &watch, &bare, Vec::new());
        let made = entered.and_then(|()| match self.host.arena(byte_count, deadline) {
            Ok(inner) => Ok(Ok(inner)),
            Err(error @ Error::Exhausted { .. }) => Ok(Err(error)),
            Err(error) => Err(error),
        });
        let (made, failure) = match made {
            Ok(made) => (Some(made), None),
            Err(error) => (None, Some(error)),
        };
        self.finish(&mut turn, &watch, failure.map_or(Ok(()), Err))?;
        // Once more, since a host that has no memory for it is known only now.
        let Some(made) = made else {
            return Err(Error::Closed { what: "the arena".to_owned(), why: "it was not made".to_owned() });
        };
        let said =
            made.as_ref().map(|inner| inner.part(self.place).map_or(0, |part| part.byte_count() as u64));
        let said = announcement::encode(&said);
        let watch = self.world.watch(Verb::Arena, deadline);
        let bare = Descriptor::bare(Verb::Arena, watch.sequence);
        let entered = self.world.enter(&mut turn, &watch, &bare, said);
        let agreed = entered.and_then(|()| self.world.all_reserved(&turn, made.as_ref().err()));
        self.finish(&mut turn, &watch, agreed)?;
        let (seats, own) = (self.hosts[self.own_host].clone(), self.seat());
        made.map(|inner| Arc::new(HostArena { inner, seats, own }) as Arc<dyn SharedArena>)
    }

    fn refuse(&self, verb: Verb, reason: &Error) {
        self.world.refuse(verb, reason);
    }

    fn give_up(&self, error: &Error, phase: &str) {
        self.world.abandon(error, phase);
        self.host.abandon(error, phase);
    }

    fn close(&self) {
        self.world.close();
        self.host.close();
    }
}
