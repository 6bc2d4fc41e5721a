//! The arithmetic of a training step on a GPU: one source, compiled for the GPU when it is needed, and put on its stream.
//!
//! Values are computed in binary64 and rounded once, as on the host, so that the same numbers give the same bits. What is put on
//! a stream is not waited for here.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use super::optimizer::{Adam, Optimizer, Rule};
use crate::error::{Error, Result};
use crate::sys::compiler::{Compiler, Form};
use crate::sys::gpu::{Argument, Module, Part, Stream};
use crate::sys::library::Places;
use crate::sys::{Deadline, SpanMut};
use crate::vocabulary::{Dtype, GpuVendor};

/// The source that every compiler gets.
pub const SOURCE: &str = include_str!("gpu/step.cu");

/// What NVRTC 12.0 makes of it for [`PORTABLE`]: every driver of CUDA 12 and newer translates it for the GPU that it has.
pub const PTX: &str = include_str!("gpu/step.ptx");

/// The oldest NVIDIA GPUs that there is code for.
pub const PORTABLE: &str = "compute_80";

/// Threads of a block, and the most blocks that look at values: more add nothing to how fast memory is read.
const THREADS: usize = 256;
const MOST_INSPECTORS: usize = 1024;
const MOST_BLOCKS: usize = 1 << 20;

/// What one look at values found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inspection {
    /// The sum of the squares of all values.
    pub squares: f64,
    /// Whether all of them are finite.
    pub finite: bool,
}

/// The kernels for one GPU, on one stream of it.
#[derive(Debug)]
pub struct Kernels {
    module: Module,
    origin: String,
}

/// The functions of one element type.
struct Functions {
    scale: &'static CStr,
    inspect: &'static CStr,
    sgd: &'static CStr,
    adamw: &'static CStr,
}

const SINGLE: Functions = Functions {
    scale: c"uform_scale_f32",
    inspect: c"uform_inspect_f32",
    sgd: c"uform_sgd_f32",
    adamw: c"uform_adamw_f32",
};

const DOUBLE: Functions = Functions {
    scale: c"uform_scale_f64",
    inspect: c"uform_inspect_f64",
    sgd: c"uform_sgd_f64",
    adamw: c"uform_adamw_f64",
};

fn functions(dtype: Dtype) -> Result<&'static Functions> {
    match dtype {
        Dtype::F32 => Ok(&SINGLE),
        Dtype::F64 => Ok(&DOUBLE),
        other => Err(Error::unsupported(format!("training {other} on a GPU"), "parameters are F32 or F64")),
    }
}

impl Kernels {
    /// Compiles the source for the GPU of a stream, or loads the PTX of this package where there is no compiler that can.
    ///
    /// `architecture` is what an AMD GPU is called by its compiler, `None` where that is not known; NVIDIA's driver is asked.
    ///
    /// # Errors
    /// `Unsupported` naming the GPU, with the remedy before what compiler and driver said; `Vendor`.
    pub fn open(stream: &Arc<Stream>, architecture: Option<&str>, places: &Places) -> Result<Self> {
        let device = stream.device();
        let source = CString::new(SOURCE).unwrap_or_default();
        let told = device.capability().map(|(major, minor)| format!("sm_{major}{minor}"));
        let architecture = told.as_deref().or(architecture);
        let compiled = Compiler::open(device.vendor(), places).and_then(|compiler| {
            let current = device.enter().map_err(|error| error.to_string())?;
            let image = compiler.compile(&source, architecture, Form::Binary)?;
            drop(current);
            let origin = format!("{} for {}", compiler.name(), architecture.unwrap_or("this GPU"));
            Self::load(stream, image, origin).map_err(|error| error.to_string())
        });
        let reason = match compiled {
            Ok(kernels) => return Ok(kernels),
            Err(reason) => reason,
        };
        let what = format!("a trainer on {}", device.name());
        if device.vendor() != GpuVendor::Nvidia {
            let why = format!("install HIPRTC of this ROCm, or train on Executor.for_ram ({reason})");
            return Err(Error::unsupported(what, why));
        }
        tracing::debug!(%reason, "the PTX of the package is taken");
        Self::load(stream, PTX.as_bytes().to_vec(), "the PTX of the package".to_owned()).map_err(|error| {
            let why =
                format!("install the package nvidia-cuda-nvrtc-cu12, or a newer driver ({reason}; {error})");
            Error::unsupported(what, why)
        })
    }

    fn load(stream: &Arc<Stream>, mut image: Vec<u8>, origin: String) -> Result<Self> {
        image.push(0);
        Ok(Self { module: Module::load(stream, &image)?, origin })
    }

    /// Who made the code, for people.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Has what is put on the stream from now on wait for the default stream of the GPU.
    ///
    /// # Errors
    /// `Vendor`.
    pub fn follow_default(&self) -> Result<()> {
        self.module.stream().follow_default()
    }

    /// Waits until all that was put there has ended.
    ///
    /// # Errors
    /// `Vendor`, `TimedOut`, `Interrupted`.
    pub fn wait(&self, deadline: &Deadline<'_>) -> Result<()> {
        self.module.stream().wait(deadline)
    }

    /// The address of bytes that are on this stream.
    fn address(&self, argument: &str, part: Part<'_>, byte_count: usize) -> Result<u64> {
        let stream = self.module.stream();
        if !Arc::ptr_eq(part.region().stream(), stream) || part.byte_count() != byte_count {
            let reason = format!("must be {byte_count} bytes on the stream of {}", stream.device().name());
            let value = format!("{} bytes", part.byte_count());
            return Err(Error::invalid(argument, value, "GPU kernel", reason));
        }
        part.address()
    }

    /// Puts a function there for so many elements in so many rows.
    ///
    /// # Safety
    /// The arguments are the function's, and every address among them came from `address` with the bytes that it uses.
    unsafe fn put(
        &self,
        name: &CStr,
        (rows, count, most): (usize, usize, usize),
        arguments: &[Argument],
    ) -> Result<()> {
        let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let blocks = blocks(count, most);
        // SAFETY: by the caller's promise; the regions of all parts are given back when this stream is idle.
        unsafe { self.module.launch(name, (narrow(rows), narrow(blocks), narrow(THREADS)), arguments) }
    }

    /// Writes `rows` rows of elements that begin `apart` elements from each other in the source, times a share, one after the
    /// other. With a share of 0 the source is not read, and the target is zero.
    ///
    /// # Errors
    /// `Invalid` for parts of other lengths; `Vendor`.
    pub fn scale(
        &self,
        dtype: Dtype,
        target: Part<'_>,
        source: Part<'_>,
        share: f64,
        (rows, apart): (usize, usize),
    ) -> Result<()> {
        let width = dtype.size_bytes();
        let count = target.byte_count() / width / rows.max(1);
        if count == 0 || rows == 0 {
            return Ok(());
        }
        let reach = (apart.saturating_mul(rows - 1).saturating_add(count)).saturating_mul(width);
        let arguments = [
            Argument::Address(self.address("target", target, rows * count * width)?),
            Argument::Address(self.address("source", source, reach)?),
            Argument::Real(share),
            Argument::Count(count as u64),
            Argument::Count(apart as u64),
        ];
        // SAFETY: these are the arguments of `uform_scale`, which writes `rows * count` elements and reads below `reach`.
        unsafe { self.put(functions(dtype)?.scale, (rows, count, MOST_BLOCKS), &arguments) }
    }

    /// The bytes of scratch with which [`Kernels::inspect`] is fast for so many elements, and no more than `limit`; it needs
    /// [`Kernels::LEAST_SCRATCH`].
    #[must_use]
    pub fn inspection_bytes(element_count: usize, limit: usize) -> usize {
        let most = (limit / Self::LEAST_SCRATCH).clamp(1, MOST_INSPECTORS);
        Self::LEAST_SCRATCH * blocks(element_count, most)
    }

    /// The scratch of one block that looks at values.
    pub const LEAST_SCRATCH: usize = 2 * THREADS * size_of::<f64>();

    /// Looks at values, and waits for what it found. Sums are added in an order that depends on the sizes of values and scratch
    /// alone.
    ///
    /// # Errors
    /// `Invalid` for parts of other lengths; `Vendor`, `TimedOut`, `Interrupted`.
    pub fn inspect(
        &self,
        dtype: Dtype,
        values: Part<'_>,
        scratch: Part<'_>,
        deadline: &Deadline<'_>,
    ) -> Result<Inspection> {
        let count = values.byte_count() / dtype.size_bytes();
        if count == 0 {
            return Ok(Inspection { squares: 0.0, finite: true });
        }
        let most = (scratch.byte_count() / Self::LEAST_SCRATCH).clamp(1, MOST_INSPECTORS);
        let threads = THREADS * blocks(count, most);
        let half = threads * size_of::<f64>();
        let sums = [scratch.part(&(0..half))?, scratch.part(&(half..2 * half))?];
        let arguments = [
            Argument::Address(self.address("values", values, count * dtype.size_bytes())?),
            Argument::Count(count as u64),
            Argument::Address(self.address("scratch", sums[0], half)?),
            Argument::Address(self.address("scratch", sums[1], half)?),
        ];
        // SAFETY: these are the arguments of `uform_inspect`, which reads `count` values and writes one number for each thread.
        unsafe { self.put(functions(dtype)?.inspect, (1, count, most), &arguments) }?;
        let mut totals = [0.0; 2];
        for (total, sums) in totals.iter_mut().zip(sums) {
            let mut left = threads;
            for most in [THREADS * 16, THREADS].into_iter().filter(|most| *most < threads) {
                let arguments =
                    [Argument::Address(self.address("scratch", sums, half)?), Argument::Count(left as u64)];
                // SAFETY: these are the arguments of `uform_fold`, which reads `left` numbers and writes `most` of them.
                unsafe { self.put(c"uform_fold", (1, most, most), &arguments) }?;
                left = most;
            }
            let mut numbers = vec![0.0_f64; left];
            sums.part(&(0..left * size_of::<f64>()))?.read(SpanMut::of(&mut numbers[..]), deadline)?;
            *total = numbers.iter().sum();
        }
        Ok(Inspection { squares: totals[0], finite: totals[1] == 0.0 })
    }

    /// Updates parameters and states from gradients, each of which is multiplied by `scale` first.
    ///
    /// # Errors
    /// `Invalid` for parts of other lengths, and for another number of states than the rule has; `Vendor`.
    pub fn update(
        &self,
        dtype: Dtype,
        rule: &Rule<'_>,
        (gradients, scale): (Part<'_>, f64),
        parameters: Part<'_>,
        states: &[Part<'_>],
    ) -> Result<()> {
        let (width, kept) = (dtype.size_bytes(), rule.optimizer.state_count());
        let count = parameters.byte_count() / width;
        if states.len() != kept {
            let reason = format!("must be {kept}, as the optimizer keeps");
            return Err(Error::invalid("states", states.len(), "GPU kernel", reason));
        }
        if count == 0 {
            return Ok(());
        }
        let bytes = count * width;
        let place = |argument, part| self.address(argument, part, bytes).map(Argument::Address);
        let mut arguments = vec![place("parameters", parameters)?, place("gradients", gradients)?];
        for state in states {
            arguments.push(place("states", *state)?);
        }
        let name = match *rule.optimizer {
            Optimizer::Sgd { learning_rate, momentum, nesterov, weight_decay } => {
                if states.is_empty() {
                    arguments.push(Argument::Address(0));
                }
                arguments.extend([
                    Argument::Count(count as u64),
                    Argument::Real(scale),
                    Argument::Real(learning_rate),
                    Argument::Real(momentum),
                    Argument::Real(weight_decay),
                    Argument::Flag(nesterov),
                ]);
                functions(dtype)?.sgd
            }
            Optimizer::AdamW { .. } => {
                let Adam { beta1, beta2, epsilon, step_size, root, keep } = Adam::new(rule);
                arguments.push(Argument::Count(count as u64));
                let numbers = [scale, beta1, beta2, epsilon, step_size, root, keep];
                arguments.extend(numbers.map(Argument::Real));
                functions(dtype)?.adamw
            }
        };
        // SAFETY: these are the arguments of the function, whose parts all have `count` elements; one without a state reads none.
        unsafe { self.put(name, (1, count, MOST_BLOCKS), &arguments) }
    }
}

/// How many blocks so many elements are worth.
fn blocks(element_count: usize, most: usize) -> usize {
    element_count.div_ceil(THREADS).clamp(1, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_in_the_source_and_in_the_package() {
        for (functions, kind) in [(SINGLE, "f32"), (DOUBLE, "f64")] {
            let Functions { scale, inspect, sgd, adamw } = functions;
            for name in [scale, inspect, sgd, adamw] {
                let name = name.to_str().expect("plain letters");
                let stem = name.strip_suffix(kind).expect("of its type");
                assert!(SOURCE.contains(&format!("KERNEL {stem}##NAME(")), "{name}");
                assert!(PTX.contains(&format!(".entry {name}(")), "{name}");
            }
        }
        assert!(PTX.contains(".target sm_80") && PTX.contains(".entry uform_fold("));
        // Products and sums keep their own roundings.
        assert!(!PTX.contains("fma."));
    }

    #[test]
    fn scratch_grows_with_the_elements_to_a_limit() {
        let sizes = [0, 1, 256, 257, 1 << 18, 1 << 40].map(|count| Kernels::inspection_bytes(count, 1 << 30));
        assert_eq!(sizes, [4096, 4096, 4096, 8192, 4 << 20, 4 << 20]);
        assert_eq!([0, 8191, 8192].map(|limit| Kernels::inspection_bytes(1000, limit)), [4096, 4096, 8192]);
    }
}
