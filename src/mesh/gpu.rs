//! Calls on GPU memory: what is checked before members agree on them, and the group of the members' GPUs that moves them.
//!
//! In such a call each GPU takes the place of a member. How many there are is known once the group is formed, which the first
//! call does after members have agreed on what they call: what depends on places is checked after that.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Mesh, arrays};
use crate::communicator::ccl::{self, GpuGroup, Own, Share};
use crate::communicator::{Call, GpuArrays};
use crate::device;
use crate::error::{Error, Result};
use crate::executor::DeviceArena;
use crate::sys::Deadline;
use crate::sys::gpu::{GpuSpan, Stream};
use crate::topology::RunGpu;
use crate::vocabulary::{GpuVendor, Verb};

/// Ends the group, if there is one.
pub(super) fn close(gpus: &Mutex<Option<Arc<GpuGroup>>>) {
    let joined = gpus.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(group) = joined {
        group.close();
    }
}

/// What a vendor's programs call a GPU of a number.
fn number_of((vendor, number): (GpuVendor, usize)) -> String {
    let runtime = if vendor == GpuVendor::Amd { "HIP" } else { "CUDA" };
    format!("{runtime} device {number}")
}

impl Mesh {
    /// The stream that calls of this handle on a GPU's memory run on: what other libraries do there before a call must have been
    /// put in front of it, see [`Stream::follow`].
    ///
    /// The GPU is the one that the vendor's runtime shows under a number in this process.
    ///
    /// # Errors
    /// `Invalid` naming this member, the GPU, and the GPUs of the executor, if it is none of these.
    pub fn gpu_stream(&self, gpu: (GpuVendor, usize)) -> Result<Arc<Stream>> {
        let devices = self.executor().devices();
        let streams = || devices.iter().flat_map(|devices| devices.streams());
        let is_it = |stream: &&Arc<Stream>| (stream.device().vendor(), stream.device().number()) == gpu;
        if let Some(stream) = streams().find(is_it) {
            return Ok(Arc::clone(stream));
        }
        let name = |stream: &Arc<Stream>| {
            let device = stream.device();
            format!("{} ({})", device.name(), number_of((device.vendor(), device.number())))
        };
        let own = streams().map(name).collect::<Vec<_>>().join(", ");
        let (index, vendor) = (self.index(), if gpu.0 == GpuVendor::Amd { "AMD" } else { "NVIDIA" });
        let reason = if own.is_empty() {
            format!(
                "index {index} runs its calls on host threads: give the mesh an executor of Executor.for_vram with this {vendor} \
                 GPU, or copy the array to host memory"
            )
        } else {
            format!(
                "index {index} runs its calls on {own}: copy the array there, or give the mesh an executor of Executor.for_vram \
                 with this {vendor} GPU"
            )
        };
        Err(Error::invalid("array", format!("memory of {}", number_of(gpu)), "argument", reason))
    }

    /// The GPU whose memory is at an address; `None` for host memory, which it always is for an executor of host threads.
    #[must_use]
    pub fn gpu_at(&self, address: u64) -> Option<(GpuVendor, usize)> {
        self.executor().devices().and_then(|devices| devices.gpu_at(address))
    }

    /// The GPU of this handle's executor, if it has one and no other.
    #[must_use]
    pub fn gpu_alone(&self) -> Option<(GpuVendor, usize)> {
        let devices = self.executor().devices()?;
        let mut gpus = devices.streams().map(|stream| (stream.device().vendor(), stream.device().number()));
        gpus.next().filter(|_| gpus.next().is_none())
    }

    /// The place of this member's first GPU in calls on GPU memory, and how many GPUs all members have: in the order of members and
    /// of their executors. Before the first such call it is what members said as they met.
    #[must_use]
    pub fn gpu_places(&self) -> (usize, usize) {
        if let Some(group) = self.made() {
            return (group.first(), group.count());
        }
        let described = self.describe();
        if described.gpus_per_host_domain == self.own_streams().len() {
            return (described.first_gpu_index, described.gpus_per_colocated_domain);
        }
        (self.index(), self.count())
    }

    /// The streams of this handle's executor, one for each of its GPUs in their order.
    fn own_streams(&self) -> Vec<Arc<Stream>> {
        self.executor().devices().map_or_else(Vec::new, |devices| devices.streams().cloned().collect())
    }

    /// What can be said of a call on GPU memory without the group.
    pub(super) fn check_gpu_call(&self, call: &Call<'_>) -> Result<()> {
        let index = self.index();
        if call.input.is_some() || !call.output.is_empty() {
            return Err(self.mixed());
        }
        self.check_devices(call)?;
        if call.input_layout.or(call.output_layout).is_some() {
            let reason = format!(
                "must have its elements one after the other on a GPU, as that of index {index} has not: pass a contiguous copy"
            );
            return Err(Error::invalid("array", "a strided array in GPU memory", "argument", reason));
        }
        ccl::check_supported(call, index)
    }

    /// Refuses a call that has not one pair of arrays for each GPU of the executor, where that GPU is.
    fn check_devices(&self, call: &Call<'_>) -> Result<()> {
        let (index, streams, given) = (self.index(), self.own_streams(), call.gpu_arrays().count());
        if let ([] | [_], [arrays]) = (streams.as_slice(), call.gpu_arrays().collect::<Vec<_>>().as_slice()) {
            for gpu in gpus_of(arrays) {
                self.gpu_stream(gpu)?;
            }
            return check_pair(arrays, index);
        }
        let name = |stream: &Arc<Stream>| stream.device().name().to_owned();
        if given != streams.len() {
            let names = streams.iter().map(name).collect::<Vec<_>>().join(", ");
            let reason = match streams.len() {
                0 => format!("index {index} drives no GPU: give the mesh an executor of Executor.for_vram"),
                1 => format!("index {index} drives one GPU, {names}: give one array"),
                count => format!(
                    "index {index} drives {count} GPUs: give one array for each, in this order: {names}"
                ),
            };
            return Err(Error::invalid("array", format!("arrays for {given} GPUs"), "argument", reason));
        }
        let gpu_of = |stream: &Arc<Stream>| (stream.device().vendor(), stream.device().number());
        for (position, (arrays, stream)) in call.gpu_arrays().zip(&streams).enumerate() {
            if let Some(gpu) = gpus_of(arrays).find(|gpu| *gpu != gpu_of(stream)) {
                let before = streams[..position].iter().position(|other| gpu_of(other) == gpu);
                let wanted =
                    format!("index {index} must have it on {}, GPU {position} of its executor", name(stream));
                let reason = match before {
                    Some(before) => format!("{wanted}; array {before} is on that GPU already"),
                    None => wanted,
                };
                let value = format!("memory of {}", number_of(gpu));
                return Err(Error::invalid(format!("array {position}"), value, "argument", reason));
            }
        }
        call.gpu_arrays().try_for_each(|arrays| check_pair(arrays, index))
    }

    /// The error for a call with one array in host memory and one on a GPU.
    pub(super) fn mixed(&self) -> Error {
        let devices = self.executor().devices();
        let names = devices
            .iter()
            .flat_map(|devices| devices.streams().map(|stream| stream.device().name().to_owned()));
        let reason = format!(
            "index {} has one array of the call in host memory and another on a GPU: put both in one, host memory or {}",
            self.index(),
            names.collect::<Vec<_>>().join(", ")
        );
        Error::invalid("array", "host memory beside GPU memory", "argument", reason)
    }

    /// Runs a call on GPU memory whose turn has come.
    pub(crate) fn to_gpus(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        if matches!(call.verb, Verb::Send | Verb::Receive) {
            return self.pair_on_gpus(call, deadline);
        }
        let group = match self.made() {
            Some(group) => group,
            None => self.open_gpus(&call, deadline)?,
        };
        group.check()?;
        self.check_group(&group)?;
        if call.verb == Verb::AllToAll && call.counts.is_some() && group.count() != self.count() {
            let why = "the counts of members are compared, and some drive several GPUs: give equal parts, or start a process \
                       for each GPU";
            return Err(Error::unsupported("all_to_all with counts on several GPUs of a process", why));
        }
        let shares = self.shares(&call, &group)?;
        let work = group.work(&shares).map_err(|(position, error)| self.on_gpu(error, position))?;
        let Some(first) = shares.first() else { return Ok(()) };
        let agreed = copy_of(&first.call);
        let result = self.communicator().attend(agreed, deadline, &mut || {
            self.order_streams(&group)?;
            group.run(&work, deadline)
        });
        if let Err(error) = &result {
            group.fail(error);
        }
        result
    }

    /// Runs a send or a receive, in which two members alone take part, each with one GPU.
    fn pair_on_gpus(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let (index, verb, made) = (self.index(), call.verb.word(), self.made());
        let streams = self.own_streams();
        if streams.len() > 1 || made.as_ref().is_some_and(|group| group.count() != self.count()) {
            let why = "it is between two members with one GPU each, and some drive several: use a verb of all members, or start a \
                       process for each GPU";
            return Err(Error::unsupported(format!("{verb} on GPU memory, by index {index},"), why));
        }
        if made.is_none() && self.count() > 2 {
            let why = "the first call on GPU memory forms the group of GPUs, in which all members take part: make one of \
                       all members first, such as an all_reduce of no elements";
            return Err(Error::unsupported(
                format!("{verb} on GPU memory, by index {index}, as the first call"),
                why,
            ));
        }
        if let Some(group) = &made {
            group.check()?;
        }
        let arrays = call.gpu.unwrap_or_default();
        let (peer, tag) = (call.root, call.tag);
        let one = Call { tag, ..Call::on_gpu(call.verb, call.dtype, call.op, peer, arrays) };
        let shares = [Share { call: Call { place: Some((index, self.count())), ..one }, source: None }];
        let mut used = made;
        let result = self.communicator().attend(call, deadline, &mut || {
            let group = match &used {
                Some(group) => Arc::clone(group),
                None => Arc::clone(used.insert(self.gpu_group(deadline)?)),
            };
            self.check_group(&group)?;
            let work = group.work(&shares).map_err(|(position, error)| self.on_gpu(error, position))?;
            self.order_streams(&group)?;
            group.run(&work, deadline)
        });
        if let (Err(error), Some(group)) = (&result, used) {
            group.fail(error);
        }
        result
    }

    fn made(&self) -> Option<Arc<GpuGroup>> {
        self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forms the group in the first call, once all members have made it: what is called is compared, and lengths as far as they say
    /// something before places are known.
    fn open_gpus(&self, call: &Call<'_>, deadline: &Deadline<'_>) -> Result<Arc<GpuGroup>> {
        let arrays = call.gpu.unwrap_or_default();
        let bytes = |span: Option<GpuSpan<'_>>| span.map(|span| span.byte_count());
        let (input, output) = (bytes(arrays.input), bytes(arrays.output));
        let total =
            call.counts.map(|counts| counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)));
        let length = match (call.verb, total) {
            (Verb::AllToAll, Some(_)) | (Verb::Barrier, _) => 0,
            (Verb::AllGather | Verb::Gather | Verb::Scatter | Verb::ReduceScatter, Some(total)) => {
                total.saturating_mul(call.dtype.size_bytes())
            }
            (Verb::Reduce | Verb::Gather, _) => input.or(output).unwrap_or(0),
            _ => output.unwrap_or(0),
        };
        let span = Some(GpuSpan::of_length(length));
        let reads = matches!(call.verb, Verb::Gather | Verb::Scatter | Verb::ReduceScatter | Verb::AllToAll);
        let arrays = GpuArrays { input: span.filter(|_| reads), output: span };
        let opening = Call::on_gpu(call.verb, call.dtype, call.op, 0, arrays);
        let opening = Call { place: Some((0, 1)), site: call.site, ..opening };
        self.communicator().run(opening, deadline)?;
        self.gpu_group(deadline)
    }

    /// Refuses a handle whose executor has other GPUs than that of the first call.
    fn check_group(&self, group: &GpuGroup) -> Result<()> {
        let own = self.own_streams();
        let is_same = |(one, other): (&Arc<Stream>, &Arc<Stream>)| {
            let (one, other) = (one.device(), other.device());
            (one.vendor(), one.number()) == (other.vendor(), other.number())
        };
        if own.len() == group.streams().len() && own.iter().zip(group.streams()).all(is_same) {
            return Ok(());
        }
        let names = |streams: &[Arc<Stream>]| {
            streams.iter().map(|stream| stream.device().name().to_owned()).collect::<Vec<_>>().join(", ")
        };
        let (index, first) = (self.index(), names(group.streams()));
        let reason = format!(
            "the first call of index {index} on GPU memory was on {first}: give the mesh an executor of these, in this order, or split \
             off another mesh"
        );
        Err(Error::invalid("executor", names(&own), "mesh", reason))
    }

    /// What was put in front of the call, on the streams of this handle's executor, stands in front of it.
    fn order_streams(&self, group: &GpuGroup) -> Result<()> {
        for (own, stream) in self.own_streams().iter().zip(group.streams()) {
            if !Arc::ptr_eq(own, stream) {
                stream.succeed(own)?;
            }
        }
        Ok(())
    }

    /// What each of this member's GPUs brings to a call, at its place among all.
    fn shares<'a>(&self, call: &Call<'a>, group: &GpuGroup) -> Result<Vec<Share<'a>>> {
        let share = |(position, arrays): (usize, &GpuArrays<'a>)| {
            let place = group.first() + position;
            let one = copy_of(call);
            let one = Call { gpu: Some(*arrays), place: Some((place, group.count())), ..one };
            arrays::check(&one, place)
                .and_then(|()| one_sided(arrays::in_place(one, place), place))
                .map_err(|error| self.on_gpu(error, position))
        };
        call.gpu_arrays().enumerate().map(share).collect()
    }

    /// Names this member and one of its GPUs in an error about arrays.
    fn on_gpu(&self, error: Error, position: usize) -> Error {
        let streams = self.own_streams();
        match (error, streams.get(position)) {
            (Error::Invalid { argument, value, origin, reason, contradiction }, Some(stream))
                if streams.len() > 1 =>
            {
                let (index, name) = (self.index(), stream.device().name());
                let argument = format!("{argument} {position}");
                let reason = format!("{reason}; it is that of index {index} on {name}");
                Error::Invalid { argument, value, origin, reason, contradiction }
            }
            (error, _) => error,
        }
    }

    /// The multimem domain of each GPU of this handle's executor, as the topology counts them.
    fn domains(&self) -> Vec<Option<u32>> {
        let (index, topology) = (self.index(), self.topology());
        let domain_of = |identity: &str| {
            let is_it = |gpu: &RunGpu| gpu.owner == index && gpu.device.identity == identity;
            let place = topology.gpus().iter().position(is_it)?;
            let number = topology.multimem_domains().iter().position(|domain| domain.contains(place))?;
            u32::try_from(number).ok()
        };
        self.executor().gpus().iter().map(|gpu| domain_of(&gpu.identity)).collect()
    }

    /// Has the library know an arena: now if the group is there, else when it forms.
    pub(super) fn register(&self, arena: &Arc<DeviceArena>) {
        let joined = self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        let mut arenas = self.inner.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|arena| arena.strong_count() > 0);
        arenas.push(Arc::downgrade(arena));
        if let Some(group) = joined.as_ref() {
            arena.regions().iter().for_each(|region| group.register(region));
        }
    }

    /// The group of the members' GPUs; the first call forms it, with the GPUs of this handle's executor.
    fn gpu_group(&self, deadline: &Deadline<'_>) -> Result<Arc<GpuGroup>> {
        let mut joined = self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = joined.as_ref() {
            return Ok(Arc::clone(group));
        }
        let streams = self.own_streams();
        let vendor = streams.first().map_or(GpuVendor::Nvidia, |stream| stream.device().vendor());
        let own = if streams.is_empty() {
            let why = "it runs its calls on host threads: give the mesh an executor of Executor.for_vram"
                .to_owned();
            Err(("no GPU".to_owned(), why))
        } else {
            let (domains, scratch_limit) = (self.domains(), self.executor().scratch_limit());
            Ok(Own { streams, domains, scratch_limit })
        };
        let group = GpuGroup::join(self.communicator(), device::collective_library(vendor), own, deadline)?;
        let group = Arc::new(group);
        let arenas = self.inner.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        for arena in arenas.iter().filter_map(Weak::upgrade) {
            arena.regions().iter().for_each(|region| group.register(region));
        }
        *joined = Some(Arc::clone(&group));
        Ok(group)
    }
}

/// Whose memory the arrays are in, as far as they have elements.
fn gpus_of(arrays: &GpuArrays<'_>) -> impl Iterator<Item = (GpuVendor, usize)> {
    let gpu = |span: Option<GpuSpan<'_>>| span.filter(|span| span.byte_count() > 0).map(|span| span.gpu());
    [gpu(arrays.input), gpu(arrays.output)].into_iter().flatten()
}

/// Refuses a pair of arrays on two GPUs.
fn check_pair(arrays: &GpuArrays<'_>, index: usize) -> Result<()> {
    match (arrays.input, arrays.output) {
        (Some(input), Some(output)) if input.gpu() != output.gpu() => {
            let reason =
                format!("index {index} must have it on the GPU of the output, {}", number_of(output.gpu()));
            let value = format!("memory of {}", number_of(input.gpu()));
            Err(Error::invalid("array", value, "argument", reason))
        }
        _ => Ok(()),
    }
}

/// The call without what only one of several can have.
fn copy_of<'a>(call: &Call<'a>) -> Call<'a> {
    let one = Call::on_gpu(call.verb, call.dtype, call.op, call.root, call.gpu.unwrap_or_default());
    let (counts, receive_counts, place) = (call.counts, call.receive_counts, call.place);
    Call { counts, receive_counts, place, tag: call.tag, site: call.site, ..one }
}

/// Leaves a GPU only the arrays that it has a use for, as [`Mesh::run`] does in host memory; gives beside them what the root of a
/// broadcast reads if that is not its output.
fn one_sided(mut call: Call<'_>, place: usize) -> Result<Share<'_>> {
    let (is_root, verb, mut source) = (call.root == place, call.verb, None);
    let length = call.output_bytes();
    let Some(arrays) = &mut call.gpu else { return Ok(Share { call, source }) };
    match verb {
        Verb::Broadcast => {
            source = arrays.input.take();
            if let Some(input) = source.filter(|input| input.byte_count() != length) {
                let reason = format!("must be as long as the output, {length} bytes");
                let value = format!("{} bytes", input.byte_count());
                return Err(Error::invalid("input", value, "call", reason));
            }
            source = source.filter(|_| is_root);
        }
        Verb::Reduce if !is_root => {
            let output = arrays.output.take();
            arrays.input = arrays.input.or(output);
        }
        Verb::Gather if !is_root => arrays.output = None,
        Verb::Scatter if !is_root => arrays.input = None,
        _ => {}
    }
    Ok(Share { call, source })
}
