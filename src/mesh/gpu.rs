//! Calls on GPU memory: what is checked before members agree on them, and the group of the members' GPUs that moves them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Mesh;
use crate::communicator::ccl::{self, GpuGroup, Work};
use crate::communicator::{Call, GpuArrays};
use crate::device;
use crate::error::{Error, Result};
use crate::executor::DeviceArena;
use crate::sys::Deadline;
use crate::sys::gpu::{GpuSpan, Stream};
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

    /// What can be said of a call on GPU memory without the group.
    pub(super) fn check_gpu_call(&self, call: &Call<'_>, arrays: &GpuArrays<'_>) -> Result<()> {
        let index = self.index();
        let spans = || [arrays.input, arrays.output].into_iter().flatten();
        for span in spans().filter(|span| span.byte_count() > 0) {
            self.gpu_stream(span.gpu())?;
        }
        if call.input.is_some() || !call.output.is_empty() {
            return Err(self.mixed());
        }
        if let (Some(input), Some(output)) = (arrays.input, arrays.output)
            && input.gpu() != output.gpu()
        {
            let reason =
                format!("index {index} must have it on the GPU of the output, {}", number_of(output.gpu()));
            let value = format!("memory of {}", number_of(input.gpu()));
            return Err(Error::invalid("array", value, "argument", reason));
        }
        if call.input_layout.or(call.output_layout).is_some() {
            let reason = format!(
                "must have its elements one after the other on a GPU, as that of index {index} has not: pass a contiguous copy"
            );
            return Err(Error::invalid("array", "a strided array in GPU memory", "argument", reason));
        }
        ccl::check_supported(call, index)
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
        let (call, source) = self.one_sided_on_gpu(call)?;
        let work = Work::of(&call, self.index(), self.count())?.reading(source);
        let made = || self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(group) = made() {
            group.check()?;
        }
        let spans = call.gpu.iter().flat_map(|arrays| [arrays.input, arrays.output]).flatten();
        let gpu = spans.map(|span| span.gpu()).next();
        let result = self.communicator().attend(call, deadline, &mut || {
            let group = self.gpu_group(gpu, deadline)?;
            if let Some(gpu) = gpu {
                let own = self.gpu_stream(gpu)?;
                if !Arc::ptr_eq(&own, group.stream()) {
                    // What was put in front of the call stands in front of it.
                    group.stream().succeed(&own)?;
                }
            }
            group.run(&work, deadline)
        });
        if let (Err(error), Some(group)) = (&result, made()) {
            group.fail(error);
        }
        result
    }

    /// Leaves a member only the arrays that it has a use for, as [`Mesh::run`] does in host memory; gives beside them what the
    /// root of a broadcast reads if that is not its output.
    fn one_sided_on_gpu<'a>(&self, mut call: Call<'a>) -> Result<(Call<'a>, Option<GpuSpan<'a>>)> {
        let (is_root, verb, mut source) = (call.root == self.index(), call.verb, None);
        let length = call.output_bytes();
        let Some(arrays) = &mut call.gpu else { return Ok((call, None)) };
        match verb {
            Verb::Broadcast => {
                source = arrays.input.take();
                if let Some(input) = source.filter(|input| input.byte_count() != length) {
                    let reason = format!("must be as long as the output, {length} bytes");
                    return Err(Error::invalid(
                        "input",
                        format!("{} bytes", input.byte_count()),
                        "call",
                        reason,
                    ));
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
        Ok((call, source))
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

    /// The group of the members' GPUs; the first call forms it.
    fn gpu_group(&self, gpu: Option<(GpuVendor, usize)>, deadline: &Deadline<'_>) -> Result<Arc<GpuGroup>> {
        let mut joined = self.inner.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = joined.as_ref() {
            return Ok(Arc::clone(group));
        }
        let devices = self.executor().devices();
        let streams = devices.iter().flat_map(|devices| devices.streams()).collect::<Vec<_>>();
        let stream = match (streams.as_slice(), gpu) {
            ([stream], _) => Ok(Arc::clone(stream)),
            (several, _) => {
                let names =
                    several.iter().map(|stream| stream.device().name()).collect::<Vec<_>>().join(", ");
                let what = format!("{} GPUs ({names})", several.len());
                Err((
                    what,
                    "this version takes one GPU for each member: start a process for each GPU".to_owned(),
                ))
            }
        };
        let vendor = streams.first().map_or(GpuVendor::Nvidia, |stream| stream.device().vendor());
        let group =
            GpuGroup::join(self.communicator(), device::collective_library(vendor), stream, deadline)?;
        let group = Arc::new(group);
        let arenas = self.inner.arenas.lock().unwrap_or_else(PoisonError::into_inner);
        for arena in arenas.iter().filter_map(Weak::upgrade) {
            arena.regions().iter().for_each(|region| group.register(region));
        }
        *joined = Some(Arc::clone(&group));
        Ok(group)
    }
}
