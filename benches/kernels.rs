//! Measures the kernels of every CPU class that this machine runs, on one thread: GB/s, and the time of the same work by
//! `SERIAL` and of a memcpy of as many bytes as multiples of it.
//!
//! Arrays fit in the second cache, or do not fit in any. The rounds of all classes are interleaved, so that what slows the
//! machine for a while slows all of them. Times are this thread's own, without those in which others had its core.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use uform::sys::kernel::optimizer::{Optimizer, Rule, Source};
use uform::sys::kernel::{COMPILED, Table};
use uform::sys::{Span, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The elements of one array, and how often the work is repeated in one round.
const SIZES: [(&str, usize, usize); 2] = [("in the second cache", 24 << 10, 50), ("in memory", 16 << 20, 1)];
const ROUNDS: usize = 15;

#[derive(Clone, Copy)]
enum Work {
    Reduce(Dtype, ReduceOp),
    Train(Optimizer),
}

const SGD: Optimizer =
    Optimizer::Sgd { learning_rate: 1e-3, momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 1e-2 };

const WORKS: [(&str, Work); 6] = [
    ("F32 sum", Work::Reduce(Dtype::F32, ReduceOp::Sum)),
    ("F32 average", Work::Reduce(Dtype::F32, ReduceOp::Average)),
    ("BF16 sum", Work::Reduce(Dtype::Bf16, ReduceOp::Sum)),
    ("F16 sum", Work::Reduce(Dtype::F16, ReduceOp::Sum)),
    ("AdamW of F32", Work::Train(ADAMW)),
    ("SGD of F32", Work::Train(SGD)),
];

/// Arrays of one size, written once so that their pages are there.
struct Arrays {
    sources: [Vec<u16>; 2],
    target: Vec<u16>,
    parameters: Vec<f32>,
    gradients: Vec<f32>,
    states: [Vec<f32>; 2],
}

impl Arrays {
    fn new(count: usize) -> Self {
        // Small normal numbers in every type.
        let bits =
            |seed: usize| (0..count * 2).map(|place| 0x3800 + ((place * 37 + seed) % 997) as u16).collect();
        let numbers = |seed: usize| (0..count).map(|place| ((place + seed) % 1013) as f32 * 1e-3).collect();
        Self {
            sources: [bits(1), bits(2)],
            target: bits(3),
            parameters: numbers(1),
            gradients: numbers(2),
            states: [numbers(3), numbers(4)],
        }
    }

    /// The bytes that one repetition reads and writes.
    fn byte_count(&self, work: Work) -> usize {
        let count = self.parameters.len();
        match work {
            Work::Reduce(dtype, _) => 3 * dtype.size_bytes() * count,
            Work::Train(optimizer) => (3 + 2 * optimizer.state_count()) * 4 * count,
        }
    }

    fn run(&mut self, table: Table, work: Work) -> Outcome<()> {
        let count = self.parameters.len();
        match work {
            Work::Reduce(dtype, op) => {
                let halves = count * dtype.size_bytes() / 2;
                let sources = [Span::of(&self.sources[0][..halves]), Span::of(&self.sources[1][..halves])];
                table.reduce(dtype, op, &sources, &mut SpanMut::of(&mut self.target[..halves]))?;
            }
            Work::Train(optimizer) => {
                let sources = [Source { share: 1.0, gradients: Span::of(&self.gradients) }];
                let [first, second] = &mut self.states;
                let mut states = [SpanMut::of(first), SpanMut::of(second)];
                let states = &mut states[..optimizer.state_count()];
                let rule = Rule { optimizer: &optimizer, update: 7 };
                let mut parameters = SpanMut::of(&mut self.parameters);
                table.update(Dtype::F32, &rule, &sources, &mut parameters, states)?;
            }
        }
        black_box(self);
        Ok(())
    }

    /// Copies so that as many bytes are read and written together.
    fn copy(&mut self, byte_count: usize) {
        let mut rest = byte_count / 4;
        while rest > 0 {
            let length = rest.min(self.target.len());
            self.target[..length].copy_from_slice(black_box(&self.sources[0][..length]));
            black_box(&mut self.target);
            rest -= length;
        }
    }
}

/// How long this thread has run.
fn own_time() -> Outcome<Duration> {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Ok(Duration::new(time.tv_sec.try_into()?, time.tv_nsec.try_into()?))
}

/// The time of one repetition, in seconds.
fn time(repetitions: usize, mut act: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let start = own_time()?;
    for _ in 0..repetitions {
        act()?;
    }
    Ok((own_time()? - start).as_secs_f64() / repetitions as f64)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn measure() -> Outcome<()> {
    let tables = COMPILED.iter().map(|class| Table::of(*class));
    let mut tables = tables.collect::<Vec<_>>();
    // A class that this machine does not run has the kernels of the one below it.
    tables.dedup_by_key(|table| table.class());
    for (size, count, repetitions) in SIZES {
        let mut arrays = Arrays::new(count);
        println!("{count} elements, {size}:");
        for (name, work) in WORKS {
            let byte_count = arrays.byte_count(work);
            let mut rounds = vec![Vec::new(); tables.len()];
            let mut copies = Vec::new();
            for round in 0..=ROUNDS {
                let copy = time(repetitions, || {
                    arrays.copy(byte_count);
                    Ok(())
                })?;
                for (table, seconds) in tables.iter().zip(&mut rounds) {
                    let taken = time(repetitions, || arrays.run(*table, work))?;
                    // The first round warms up.
                    if round > 0 {
                        seconds.push(taken);
                    }
                }
                if round > 0 {
                    copies.push(copy);
                }
            }
            let (copy, times) = (median(copies), rounds.into_iter().map(median).collect::<Vec<_>>());
            for (table, seconds) in tables.iter().zip(&times) {
                println!(
                    "  {name:<12} {:<14} {:8.1} us {:6.1} GB/s, {:5.2} of SERIAL, {:5.2} of memcpy",
                    table.class().name(),
                    seconds * 1e6,
                    byte_count as f64 / seconds / 1e9,
                    seconds / times[0],
                    seconds / copy
                );
            }
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
