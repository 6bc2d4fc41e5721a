//! The verbs that all members of a mesh call: arrays of C in, statuses out.
#![allow(clippy::too_many_arguments, reason = "the signatures are those of the C interface")]

use std::ffi::{c_int, c_void};

use uform::communicator::Call;
use uform::error::Result;
use uform::sys::{Span, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{GpuArrays, GpuSpan, Progress};

use crate::arena;
use crate::argument::{self, Out};
use crate::call::{Calling, Further, Report};
use crate::deferred;
use crate::handle::{self, Arena, Mesh, Payloads};
use crate::mesh::Held;
use crate::payloads;
use crate::structure::CallOptions;
use crate::verbs;

/// One call of a verb on arrays as C gave it; counts are elements.
struct Request {
    verb: Verb,
    dtype: c_int,
    op: c_int,
    root: usize,
    /// Of a send and a receive.
    tag: u64,
    /// The array that is only read, `None` for a verb that works on its output alone.
    array: Option<(*const c_void, Count)>,
    out: (*mut c_void, Count),
    /// Null, or one for each member.
    counts: *const usize,
    /// The same, for what comes in where that is counted apart.
    receive_counts: *const usize,
}

/// How many elements an array has: one member's part, or that of all. Where the parts are counted, these count instead.
#[derive(Clone, Copy)]
struct Count {
    part: usize,
    of_all: bool,
    /// Whether the root alone has the array; what others give is not looked at.
    at_root: bool,
}

/// Which place of how many an array has: that of its member, or of its GPU.
#[derive(Clone, Copy)]
struct Place {
    index: usize,
    count: usize,
}

fn part(part: usize) -> Count {
    Count { part, of_all: false, at_root: false }
}

fn all(part: usize) -> Count {
    Count { part, of_all: true, at_root: false }
}

fn at_root(count: Count) -> Count {
    Count { at_root: true, ..count }
}

impl Count {
    fn bytes(self, place: Place, counts: Option<&[usize]>, dtype: Dtype) -> Result<usize> {
        let count = match (counts, self.of_all) {
            (None, false) => self.part,
            (None, true) => self.part.saturating_mul(place.count),
            (Some(counts), false) => counts.get(place.index).copied().unwrap_or(0),
            (Some(counts), true) => counts.iter().fold(0, |sum: usize, count| sum.saturating_add(*count)),
        };
        argument::byte_count(count, dtype)
    }
}

const SUM: c_int = ReduceOp::Sum.number();

verbs! {
    /// Every member gets the reduction of all.
    fn uform_mesh_all_reduce(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::AllReduce,
            dtype,
            op,
            root: 0,
            tag: 0,
            array: Some((array, part(count))),
            out: (out, part(count)),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets the root's values.
    fn uform_mesh_broadcast(
        mesh: *const Mesh,
        array: *mut c_void,
        count: usize,
        dtype: c_int,
        root: usize,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Broadcast,
            dtype,
            op: SUM,
            root,
            tag: 0,
            array: None,
            out: (array, part(count)),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets the values of all, by index.
    fn uform_mesh_all_gather(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        counts: *const usize,
        dtype: c_int,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::AllGather,
            dtype,
            op: SUM,
            root: 0,
            tag: 0,
            array: Some((array, part(count))),
            out: (out, all(count)),
            counts,
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets its part of the reduction of all.
    fn uform_mesh_reduce_scatter(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        counts: *const usize,
        dtype: c_int,
        op: c_int,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::ReduceScatter,
            dtype,
            op,
            root: 0,
            tag: 0,
            array: Some((array, all(count))),
            out: (out, part(count)),
            counts,
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets the reduction of all, of many arrays in one call.
    fn uform_mesh_all_reduce_many(
        mesh: *const Mesh,
        arrays: *const *mut c_void,
        counts: *const usize,
        array_count: usize,
        dtype: c_int,
        op: c_int,
        options: *const CallOptions,
    ) {
        run_many(mesh, options, (Verb::AllReduce, dtype, op, 0), (arrays, counts, array_count))
    }

    /// Every member gets the root's values, of many arrays in one call.
    fn uform_mesh_broadcast_many(
        mesh: *const Mesh,
        arrays: *const *mut c_void,
        counts: *const usize,
        array_count: usize,
        dtype: c_int,
        root: usize,
        options: *const CallOptions,
    ) {
        run_many(mesh, options, (Verb::Broadcast, dtype, SUM, root), (arrays, counts, array_count))
    }

    /// The root gets the reduction of all.
    fn uform_mesh_reduce(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        root: usize,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Reduce,
            dtype,
            op,
            root,
            tag: 0,
            array: Some((array, part(count))),
            out: (out, at_root(part(count))),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets one part of every other.
    fn uform_mesh_all_to_all(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        send_counts: *const usize,
        receive_counts: *const usize,
        dtype: c_int,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::AllToAll,
            dtype,
            op: SUM,
            root: 0,
            tag: 0,
            array: Some((array, all(count))),
            out: (out, all(count)),
            counts: send_counts,
            receive_counts,
        })
    }

    /// The root gets the values of all, by index.
    fn uform_mesh_gather(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        counts: *const usize,
        dtype: c_int,
        root: usize,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Gather,
            dtype,
            op: SUM,
            root,
            tag: 0,
            array: Some((array, part(count))),
            out: (out, at_root(all(count))),
            counts,
            receive_counts: std::ptr::null(),
        })
    }

    /// Every member gets its part of the root's values.
    fn uform_mesh_scatter(
        mesh: *const Mesh,
        array: *const c_void,
        out: *mut c_void,
        count: usize,
        counts: *const usize,
        dtype: c_int,
        root: usize,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Scatter,
            dtype,
            op: SUM,
            root,
            tag: 0,
            array: Some((array, at_root(all(count)))),
            out: (out, part(count)),
            counts,
            receive_counts: std::ptr::null(),
        })
    }

    /// One member's values go to another.
    fn uform_mesh_send(
        mesh: *const Mesh,
        array: *const c_void,
        count: usize,
        dtype: c_int,
        destination: usize,
        tag: u64,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Send,
            dtype,
            op: SUM,
            root: destination,
            tag,
            array: Some((array, part(count))),
            out: (std::ptr::null_mut(), part(0)),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// The other end of a send.
    fn uform_mesh_receive(
        mesh: *const Mesh,
        array: *mut c_void,
        count: usize,
        dtype: c_int,
        source: usize,
        tag: u64,
        options: *const CallOptions,
    ) {
        run(mesh, options, Request {
            verb: Verb::Receive,
            dtype,
            op: SUM,
            root: source,
            tag,
            array: None,
            out: (array, part(count)),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// Returns when all members have come.
    fn uform_mesh_barrier(mesh: *const Mesh, options: *const CallOptions) {
        run(mesh, options, Request {
            verb: Verb::Barrier,
            dtype: Dtype::U8.number(),
            op: SUM,
            root: 0,
            tag: 0,
            array: None,
            out: (std::ptr::null_mut(), part(0)),
            counts: std::ptr::null(),
            receive_counts: std::ptr::null(),
        })
    }

    /// Gives the byte strings of all members.
    fn uform_mesh_exchange(
        mesh: *const Mesh,
        payload: *const c_void,
        byte_count: usize,
        options: *const CallOptions,
        payloads: *mut *mut Payloads,
    ) {
        let place = Out::handle(payloads, "payloads")?;
        let mesh = handle::get::<Held>(mesh)?;
        let given = telling(&mesh.inner, Verb::Exchange, || {
            let payload = argument::span("payload", payload, byte_count, 1)?.to_vec();
            Ok((payload, Calling::read(options)?.silent("exchange")?))
        });
        let (payload, calling) = given?;
        let put = move |all: Vec<Vec<u8>>| place.put(handle::give(payloads::Held(all)));
        match calling.deferred() {
            None => calling.run(|deadline| mesh.inner.exchange(&payload, deadline)).map(put),
            Some(deferred) => {
                let submitted = mesh.inner.deferred(None).exchange(payload, calling.deadline());
                deferred::give(deferred, submitted, put);
                Ok(())
            }
        }
    }

    /// Makes memory that the processes of a host share.
    fn uform_mesh_arena(
        mesh: *const Mesh,
        byte_count: usize,
        options: *const CallOptions,
        arena: *mut *mut Arena,
    ) {
        let place = Out::handle(arena, "arena")?;
        let mesh = handle::get::<Held>(mesh)?;
        let calling = telling(&mesh.inner, Verb::Arena, || Calling::read(options)?.silent("arena"))?;
        let put = move |made| place.put(handle::give(arena::Held(made)));
        match calling.deferred() {
            None => calling.run(|deadline| mesh.inner.arena(byte_count, deadline)).map(put),
            Some(deferred) => {
                let submitted = mesh.inner.deferred(None).arena(byte_count, calling.deadline());
                deferred::give(deferred, submitted, put);
                Ok(())
            }
        }
    }
}

/// Tells the peers of a refusal that the core does not see.
pub(crate) fn telling<T>(mesh: &uform::Mesh, verb: Verb, prepare: impl FnOnce() -> Result<T>) -> Result<T> {
    prepare().inspect_err(|error| mesh.refuse(verb, error))
}

/// A call with its arrays, which stay where they are until it ends.
struct Arrays {
    verb: Verb,
    dtype: Dtype,
    op: ReduceOp,
    root: usize,
    tag: u64,
    counts: Option<Vec<usize>>,
    receive_counts: Option<Vec<usize>>,
    input: Option<Span<'static>>,
    output: SpanMut<'static>,
    /// The same arrays, where they are in a GPU's memory.
    gpu: Option<GpuArrays<'static>>,
    /// Those on this member's further GPUs.
    further: Vec<GpuArrays<'static>>,
    reproducible: bool,
    report: Option<Report>,
}

impl Arrays {
    /// The call as the core takes it.
    fn call(&mut self) -> Call<'_> {
        let output = self.output.reborrow();
        let mut call = Call::new(self.verb, self.dtype, self.op, self.root, self.input, output);
        call.tag = self.tag;
        call.gpu = self.gpu;
        call.further_gpus.clone_from(&self.further);
        call.counts = self.counts.as_deref();
        call.receive_counts = self.receive_counts.as_deref();
        call.reproducible = self.reproducible;
        call.progress = self.report.as_ref().map(|report| Progress::new(&**report));
        call
    }
}

fn for_call(arrays: &mut Arrays) -> Result<Call<'_>> {
    Ok(arrays.call())
}

/// Runs a verb on arrays, or submits it.
///
/// # Safety
/// Arrays are null or have as many elements as the request says; counts are null or one for each member; `options` as [`Calling::read`]
/// wants it; all of them until the call ends.
unsafe fn run(mesh: *const Mesh, options: *const CallOptions, request: Request) -> Result<()> {
    let mesh = handle::get::<Held>(mesh)?;
    let prepare = || {
        // SAFETY: the caller of this function keeps the same promise.
        let calling = unsafe { Calling::read(options) }?;
        // SAFETY: as above.
        let mut arrays = unsafe { arrays_of(&mesh.inner, &request, calling.further()) }?;
        arrays.reproducible = calling.reproducible();
        arrays.report = calling.report();
        Ok((arrays, calling))
    };
    let (mut arrays, calling) = telling(&mesh.inner, request.verb, prepare)?;
    match calling.deferred() {
        None => calling.run(|deadline| mesh.inner.run(arrays.call(), deadline)),
        Some(place) => {
            let (verb, deadline, with) = (request.verb, calling.deadline(), (request.root, request.tag));
            let deferred = mesh.inner.deferred(None);
            let submitted = match verb {
                // On a GPU they have their place among all calls of the mesh.
                Verb::Send | Verb::Receive if arrays.gpu.is_none() => {
                    deferred.run_paired(verb, with, arrays, for_call, deadline)
                }
                _ => deferred.run(verb, arrays, for_call, deadline),
            };
            deferred::give(place, submitted, |_| ());
            Ok(())
        }
    }
}

/// Many arrays of one call, which stay where they are until it ends.
struct List {
    verb: Verb,
    dtype: Dtype,
    op: ReduceOp,
    root: usize,
    outputs: Vec<(Option<GpuArrays<'static>>, SpanMut<'static>)>,
    reproducible: bool,
    report: Option<Report>,
}

impl List {
    /// The calls as the core takes them.
    fn calls(&mut self) -> Vec<Call<'_>> {
        let (verb, dtype, op, root, reproducible) =
            (self.verb, self.dtype, self.op, self.root, self.reproducible);
        let progress = self.report.as_ref().map(|report| Progress::new(&**report));
        let outputs = self.outputs.iter_mut().map(|(gpu, output)| (*gpu, output.reborrow()));
        let calls = outputs.map(|(gpu, output)| {
            let call = Call::new(verb, dtype, op, root, None, output);
            Call { gpu, reproducible, progress: progress.clone(), ..call }
        });
        calls.collect()
    }
}

/// Runs a verb on many arrays, or submits it.
///
/// # Safety
/// `arrays` and `counts` are null or have so many entries, each array null or as many elements as its count; `options` as
/// [`Calling::read`] wants it; the arrays and what the options point to until the call ends.
unsafe fn run_many(
    mesh: *const Mesh,
    options: *const CallOptions,
    (verb, dtype, op, root): (Verb, c_int, c_int, usize),
    (arrays, counts, array_count): (*const *mut c_void, *const usize, usize),
) -> Result<()> {
    let mesh = handle::get::<Held>(mesh)?;
    let prepare = || {
        let dtype = argument::number("dtype", dtype, Dtype::from_number)?;
        let op = argument::number("op", op, ReduceOp::from_number)?;
        // SAFETY: the caller of this function vouches for so many entries of both.
        let (arrays, counts) = unsafe {
            (
                argument::numbers("arrays", arrays, array_count)?.unwrap_or_default(),
                argument::numbers("counts", counts, array_count)?.unwrap_or_default(),
            )
        };
        let output = |(array, count): (&*mut c_void, &usize)| {
            let bytes = argument::byte_count(*count, dtype)?;
            // SAFETY: the caller of this function vouches for as many elements, wherever they are.
            unsafe {
                let output = argument::span_mut("arrays", *array, bytes, dtype.size_bytes())?;
                let (gpu, _, output) = on_gpu(&mesh.inner, [0, array.addr()], None, output);
                Ok::<_, uform::Error>((gpu, output))
            }
        };
        let outputs = arrays.iter().zip(&counts).map(output).collect::<Result<Vec<_>>>()?;
        // SAFETY: the caller of this function keeps the same promise.
        let calling = unsafe { Calling::read(options) }?.of_one("a list of arrays")?;
        let (reproducible, report) = (calling.reproducible(), calling.report());
        Ok((List { verb, dtype, op, root, outputs, reproducible, report }, calling))
    };
    let (mut list, calling) = telling(&mesh.inner, verb, prepare)?;
    match calling.deferred() {
        None => calling.run(|deadline| mesh.inner.run_many(verb, list.calls(), deadline)),
        Some(place) => {
            let deferred = mesh.inner.deferred(None);
            let submitted = deferred.run_many(verb, list, |list| Ok(list.calls()), calling.deadline());
            deferred::give(place, submitted, |_| ());
            Ok(())
        }
    }
}

/// Tells arrays in a GPU's memory from those in the host's: an address says which it is, also of no elements; 0 says nothing.
///
/// # Safety
/// The bytes are there until the call ends.
unsafe fn on_gpu(
    mesh: &uform::Mesh,
    [input_address, output_address]: [usize; 2],
    input: Option<Span<'static>>,
    output: SpanMut<'static>,
) -> (Option<GpuArrays<'static>>, Option<Span<'static>>, SpanMut<'static>) {
    let span = |address: usize, byte_count: usize| {
        let address = address as u64;
        let gpu = if address == 0 { None } else { mesh.gpu_at(address) };
        // SAFETY: the caller of this function vouches for the bytes.
        gpu.map(|(vendor, number)| unsafe { GpuSpan::from_raw(vendor, number, address, byte_count) })
    };
    let on = GpuArrays {
        input: input.and_then(|input| span(input_address, input.byte_count())),
        output: span(output_address, output.byte_count()),
    };
    if on.input.is_none() && on.output.is_none() {
        return (None, input, output);
    }
    let input = if on.input.is_some() { None } else { input };
    let output = if on.output.is_some() { SpanMut::empty() } else { output };
    (Some(on), input.filter(|input| !input.is_empty()), output)
}

/// One pair of arrays as C gave it: where it is read and where it is written.
type Pointers = (Option<*const c_void>, *mut c_void);

/// What C gave, checked.
///
/// # Safety
/// As [`run`].
unsafe fn arrays_of(mesh: &uform::Mesh, request: &Request, further: &Further) -> Result<Arrays> {
    let (verb, root) = (request.verb, request.root);
    let dtype = argument::number("dtype", request.dtype, Dtype::from_number)?;
    let op = argument::number("op", request.op, ReduceOp::from_number)?;
    let pointers = (request.array.map(|(array, _)| array), request.out.0);
    let is_on_gpu = |address: usize| address != 0 && mesh.gpu_at(address as u64).is_some();
    let addresses = [pointers.0.map_or(0, |array| array.addr()), pointers.1.addr()];
    let is_paired = matches!(verb, Verb::Send | Verb::Receive);
    let first = match further.count > 0 || addresses.into_iter().any(is_on_gpu) {
        true if !is_paired => mesh.gpu_places(),
        _ => (mesh.index(), mesh.count()),
    };
    let first = Place { index: first.0, count: first.1 };
    let counted = |name: &str, counts: *const usize| match counts.is_null() {
        true => Ok(None),
        // SAFETY: the caller of this function vouches for one for each place.
        false => unsafe { argument::numbers(name, counts, first.count) },
    };
    let counts = counted("counts", request.counts)?;
    let receive_counts = counted("receive_counts", request.receive_counts)?;
    let both = (counts.as_deref(), receive_counts.as_deref());
    // SAFETY: the caller of this function vouches for as many elements.
    let (gpu, input, output) = unsafe { pair_of(mesh, request, pointers, first, dtype, both) }?;
    let mut others = Vec::with_capacity(further.count);
    for position in 0..further.count {
        let array = further.arrays.get(position).copied().unwrap_or(std::ptr::null());
        let out = further.outs.get(position).copied().unwrap_or(std::ptr::null_mut());
        // A verb that works on one array finds it in the place of the first.
        let pointers = match request.array {
            Some(_) => (Some(array), out),
            None => (None, array.cast_mut()),
        };
        let place = Place { index: first.index + position + 1, ..first };
        // SAFETY: as above.
        let (gpu, input, output) = unsafe { pair_of(mesh, request, pointers, place, dtype, both) }?;
        if input.is_some_and(|input| !input.is_empty()) || !output.is_empty() {
            let reason = format!(
                "must be in the memory of a GPU of index {}'s executor, as those of further GPUs are",
                mesh.index()
            );
            return Err(uform::Error::invalid("further_arrays", "host memory", "options", reason));
        }
        others.push(gpu.unwrap_or_default());
    }
    let gpu = if further.count > 0 { Some(gpu.unwrap_or_default()) } else { gpu };
    Ok(Arrays {
        verb,
        dtype,
        op,
        root,
        tag: request.tag,
        counts,
        receive_counts,
        input,
        output,
        gpu,
        further: others,
        reproducible: false,
        report: None,
    })
}

/// The arrays at one place, wherever they are.
///
/// # Safety
/// As [`run`].
unsafe fn pair_of(
    mesh: &uform::Mesh,
    request: &Request,
    (array, out): Pointers,
    place: Place,
    dtype: Dtype,
    (counts, receive_counts): (Option<&[usize]>, Option<&[usize]>),
) -> Result<(Option<GpuArrays<'static>>, Option<Span<'static>>, SpanMut<'static>)> {
    let size = dtype.size_bytes();
    let has = |count: Count| !count.at_root || request.root == place.index;
    let out_count = request.out.1;
    let name = if request.array.is_some() { "out" } else { "array" };
    let output = if has(out_count) {
        let bytes = out_count.bytes(place, receive_counts.or(counts), dtype)?;
        // SAFETY: the caller of this function vouches for as many elements.
        unsafe { argument::span_mut(name, out, bytes, size) }?
    } else {
        SpanMut::empty()
    };
    let array = request.array.map(|(_, count)| count).zip(array).filter(|(count, _)| has(*count));
    let input = match array {
        None => None,
        Some((count, array)) => {
            let bytes = count.bytes(place, counts, dtype)?;
            // SAFETY: as above.
            Some(unsafe { argument::span("array", array, bytes, size) }?)
        }
    };
    let places = [array.map_or(0, |(_, array)| array.addr()), if has(out_count) { out.addr() } else { 0 }];
    // SAFETY: the caller of this function vouches for the bytes, wherever they are.
    Ok(unsafe { on_gpu(mesh, places, input, output) })
}
