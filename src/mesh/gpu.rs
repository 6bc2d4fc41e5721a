//! Verbs on GPU memory: arrays of an arena that lie on the members' GPUs, moved by NCCL or RCCL.

use std::sync::{Arc, Mutex, PoisonError};

use super::{DeviceBytes, Mesh};
use crate::communicator::ccl::{GpuCall, GpuGroup};
use crate::device;
use crate::error::{Error, Result};
use crate::recorder::Site;
use crate::sys::Deadline;
use crate::sys::gpu::Stream;
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// The group of the members' GPUs, and the stream of this one's.
pub(super) struct Joined {
    group: Arc<GpuGroup>,
    stream: Arc<Stream>,
}

/// The arrays of a call on GPU memory.
#[derive(Clone, Copy, Debug)]
pub struct GpuArrays<'a> {
    /// The type of their elements.
    pub dtype: Dtype,
    /// This member's contribution; `None` in place.
    pub input: Option<&'a DeviceBytes>,
    /// What this member gets; `None` where it gets nothing, and has an input.
    pub output: Option<&'a DeviceBytes>,
}

/// Ends the group, if there is one.
pub(super) fn close(gpus: &Mutex<Option<Joined>>) {
    let joined = gpus.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(joined) = joined {
        joined.group.close();
    }
}

impl Mesh {
    /// Runs a verb on arrays of arenas on the members' GPUs, one GPU each, and waits for its end.
    ///
    /// The verbs are all_reduce, reduce, broadcast, all_gather, reduce_scatter, all_to_all, gather and scatter, with the shapes
    /// that they have in host memory; `op` and `root` count where the verb has one. The first call loads NCCL or RCCL.
    ///
    /// # Errors
    /// `Invalid` for arrays of other lengths; `Unsupported` for a type or operation that the library has not, for a member
    /// without the library, and for members with several GPUs; `Disagreed` for different calls, and for different versions;
    /// `Lost`, `TimedOut`, `Interrupted` and `Vendor` naming the member: no more calls can be made then.
    #[track_caller]
    pub fn run_on_gpus(
        &self,
        verb: Verb,
        arrays: GpuArrays<'_>,
        (op, root): (ReduceOp, usize),
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let site = Site::caller();
        self.refusing(verb, || {
            self.check_open()?;
            let (call, stream) = self.gpu_call(verb, arrays, (op, root))?;
            let _admission = self.admitted(verb, deadline)?;
            site.during(|| {
                let group = self.gpu_group(&stream, deadline)?;
                group.run(&call, deadline)
            })
        })
    }

    /// What the arrays ask for, checked against the shapes of the verb.
    fn gpu_call<'a>(
        &self,
        verb: Verb,
        arrays: GpuArrays<'a>,
        (op, root): (ReduceOp, usize),
    ) -> Result<(GpuCall<'a>, Arc<Stream>)> {
        let (count, width) = (self.count(), arrays.dtype.size_bytes());
        if root >= count {
            let reason = format!("must be below the count, {count}");
            return Err(Error::invalid("root", root, "argument", reason));
        }
        let length = |bytes: Option<&DeviceBytes>| bytes.map_or(0, DeviceBytes::byte_count);
        let is_root = root == self.index();
        let (input, output) = (length(arrays.input), length(arrays.output));
        // How many parts input and output have; 0 where the member brings or gets nothing.
        let (parts_in, parts_out) = match verb {
            Verb::AllGather => (1, count),
            Verb::ReduceScatter => (count, 1),
            Verb::AllToAll => (count, count),
            Verb::Reduce => (1, usize::from(is_root)),
            Verb::Gather => (1, if is_root { count } else { 0 }),
            Verb::Scatter => (if is_root { count } else { 0 }, 1),
            _ => (1, 1),
        };
        let in_place = matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast | Verb::AllGather);
        let missing = |argument: &str| {
            let reason = format!("must be given to {} here", verb.word());
            Err(Error::invalid(argument, "nothing", "argument", reason))
        };
        if arrays.input.is_none() && !(in_place && arrays.output.is_some()) && parts_in > 0 {
            return missing("input");
        }
        if arrays.output.is_none() && parts_out > 0 {
            return missing("output");
        }
        let (bytes, parts) = if parts_out > 0 { (output, parts_out) } else { (input, parts_in) };
        let part = bytes / parts.max(1);
        let fits = part % width == 0 && part * parts == bytes;
        if !fits {
            let reason = format!("must be {parts} times a whole number of {}", arrays.dtype);
            return Err(Error::invalid("array", format!("{bytes} bytes"), "argument", reason));
        }
        if arrays.input.is_some() && parts_in > 0 && input != part * parts_in {
            let reason = format!("must be {} bytes beside an output of {output}", part * parts_in);
            return Err(Error::invalid("input", format!("{input} bytes"), "argument", reason));
        }
        let first = arrays.output.or(arrays.input);
        let Some(first) = first else { return missing("array") };
        let stream = Arc::clone(first.own_stream()?);
        if let Some(input) = arrays.input
            && !Arc::ptr_eq(input.own_stream()?, &stream)
        {
            let other = input.own_stream()?.device().name().to_owned();
            let reason = format!("must be on the GPU of the output, {}", stream.device().name());
            return Err(Error::invalid("input", other, "argument", reason));
        }
        let call = GpuCall {
            verb,
            dtype: arrays.dtype,
            op,
            root,
            count: part / width,
            input: arrays.input.map(DeviceBytes::place).transpose()?,
            output: arrays.output.map(DeviceBytes::place).transpose()?,
        };
        Ok((call, stream))
    }

    /// The group of the members' GPUs; the first call forms it.
    fn gpu_group(&self, stream: &Arc<Stream>, deadline: &Deadline<'_>) -> Result<Arc<GpuGroup>> {
        let mut joined = self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(joined) = joined.as_ref() {
            if !Arc::ptr_eq(&joined.stream, stream) {
                let reason = format!("must be on {}, as the first call's", joined.stream.device().name());
                return Err(Error::invalid("array", stream.device().name(), "argument", reason));
            }
            return Ok(Arc::clone(&joined.group));
        }
        let gpus = self.executor().gpus();
        let [gpu] = gpus.as_slice() else {
            let what = format!("a call on GPU memory by index {} with {} GPUs", self.index(), gpus.len());
            let why = "this version takes one GPU for each member: start a process for each GPU";
            return Err(Error::unsupported(what, why));
        };
        let library = device::collective_library(gpu.vendor);
        let group = GpuGroup::join(self.communicator(), library, stream, deadline)?;
        let group = Arc::new(group);
        *joined = Some(Joined { group: Arc::clone(&group), stream: Arc::clone(stream) });
        Ok(group)
    }
}
