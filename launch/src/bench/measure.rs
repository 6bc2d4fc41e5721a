//! What one member of a measured run does: it checks results, times calls, and times the memory alone.

use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use uform::communicator::Call;
use uform::vocabulary::{ReduceOp, Verb};
use uform::{Arena, Error, Mesh, MeshOptions, Result, Span, SpanMut};

use super::pattern::{PIECE_BYTES, Pattern};
use super::report::{Report, Row, Timing, bus_factor};
use super::{Options, Whether, combines, has_root};
use crate::Failure;

/// A round takes at least this long, so that the clock and the end of the barrier before it do not count.
const ROUND_SECONDS: f64 = 200e-6;

/// The most calls of a round, and the fewest and most rounds.
const CALL_LIMIT: usize = 4096;
const ROUNDS: Range<usize> = 5..20_000;

/// From this size on, the memory alone is also tried with stores that pass the caches.
const STREAM_BYTES: usize = 1 << 20;

/// Measures all sizes; index 0 gets the report and prints each line as soon as it is known, if it prints a table.
pub(super) fn run(options: &Options) -> std::result::Result<Option<Report>, Failure> {
    let given = MeshOptions { timeout_seconds: options.timeout, ..MeshOptions::default() };
    let mesh = Mesh::bootstrap(None, Some(&given))?;
    options.check_root(mesh.count())?;
    let prints = mesh.index() == 0 && !options.json;
    // A barrier has no arrays.
    let has_arena = !options.private && options.verb != Verb::Barrier;
    let has_private = !options.arena || options.verb == Verb::Barrier;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        verb: options.verb.word().to_owned(),
        dtype: options.dtype.name().to_owned(),
        op: combines(options.verb).then(|| options.op.name().to_owned()),
        root: has_root(options.verb).then_some(options.root),
        processes: mesh.count(),
        hosts: mesh.topology().hosts().len(),
        cpu_class: mesh.executor().cpu_class().name().to_owned(),
        rows: Vec::new(),
        peers: Vec::new(),
    };
    if prints {
        show(&report.heading(has_arena, has_private))?;
    }
    for bytes in options.byte_counts() {
        let size = Size::of(options, &mesh, bytes);
        let (mut arena, mut limit, mut private) = (None, None, None);
        if options.verb != Verb::Barrier {
            let (shared, lowest) = size.in_arena(has_arena)?;
            (arena, limit) = (shared, lowest);
        }
        if has_private {
            private = Some(size.in_private_memory()?);
        }
        let row =
            Row { bytes: size.bytes(), elements: size.elements, arena, private, limit_microseconds: limit };
        if prints {
            show(&row.line(has_arena, has_private))?;
        }
        report.rows.push(row);
    }
    let is_first = mesh.index() == 0;
    mesh.close()?;
    Ok(is_first.then_some(report))
}

/// Prints what is known so far.
fn show(text: &str) -> std::result::Result<(), Failure> {
    crate::print(text)?;
    // A reader that has gone is no failure of a measurement.
    let _ = std::io::stdout().flush();
    Ok(())
}

/// One size of one verb on this member.
struct Size<'a> {
    options: &'a Options,
    mesh: &'a Mesh,
    pattern: Pattern,
    /// The elements of the whole array, which its bytes count.
    elements: usize,
    /// The elements of this member's input and output; no input is a call in place.
    input: usize,
    output: usize,
}

impl<'a> Size<'a> {
    fn of(options: &'a Options, mesh: &'a Mesh, bytes: usize) -> Self {
        let (verb, members) = (options.verb, mesh.count());
        let wanted = bytes.div_ceil(options.dtype.size_bytes());
        let part = wanted.div_ceil(members);
        let (elements, input, output) = match verb {
            Verb::Barrier => (0, 0, 0),
            Verb::AllGather | Verb::Gather => (part * members, part, part * members),
            Verb::ReduceScatter | Verb::Scatter => (part * members, part * members, part),
            Verb::AllToAll => (part * members, part * members, part * members),
            _ => (wanted, 0, wanted),
        };
        let pattern =
            Pattern { verb, dtype: options.dtype, op: options.op, root: options.root, members, part };
        Self { options, mesh, pattern, elements, input, output }
    }

    fn width(&self) -> usize {
        self.options.dtype.size_bytes()
    }

    fn bytes(&self) -> usize {
        self.elements * self.width()
    }

    /// Times the verb on arrays of an arena, and the memory alone where all members share it.
    fn in_arena(&self, has_arena: bool) -> Result<(Option<Timing>, Option<f64>)> {
        let (input, output) = (self.input * self.width(), self.output * self.width());
        let arena = self.mesh.arena(input.next_multiple_of(64) + output, &Mesh::verb_deadline(0.0)?)?;
        let (input, output) = (arena.take(input)?, arena.take(output)?);
        let timing = match has_arena {
            true => Some(self.timing(arena.own(input.clone())?, arena.own(output.clone())?)?),
            false => None,
        };
        let shares = (0..self.mesh.count()).all(|index| arena.part(index).is_some());
        if !shares || self.mesh.topology().hosts().len() > 1 {
            return Ok((timing, None));
        }
        if !has_arena {
            // Memory that nobody wrote yet is not there yet.
            arena.own(input.clone())?.clear();
            arena.own(output.clone())?.clear();
        }
        let memory = Memory { size: self, arena: &arena, input, output };
        let mut lowest = self.samples(&mut || memory.move_all(false))?.slowest().median();
        if self.bytes() >= STREAM_BYTES {
            lowest = lowest.min(self.samples(&mut || memory.move_all(true))?.slowest().median());
        }
        Ok((timing, Some(lowest * 1e6)))
    }

    fn in_private_memory(&self) -> Result<Timing> {
        let mut input = private(self.input * self.width())?;
        let mut output = private(self.output * self.width())?;
        let input = SpanMut::of(&mut input[..]).into_part(0..self.input * self.width())?;
        let output = SpanMut::of(&mut output[..]).into_part(0..self.output * self.width())?;
        self.timing(input, output)
    }

    /// One call.
    fn call(&self, input: Span<'_>, output: SpanMut<'_>) -> Result<()> {
        let options = self.options;
        let given = (self.input > 0).then_some(input);
        let call = Call::new(options.verb, options.dtype, options.op, options.root, given, output);
        self.mesh.run(call, &Mesh::verb_deadline(0.0)?)
    }

    fn timing(&self, mut input: SpanMut<'_>, mut output: SpanMut<'_>) -> Result<Timing> {
        let checks = self.options.check == Whether::Yes && self.options.verb != Verb::Barrier;
        let wrong = match checks {
            true => Some(self.wrong(&mut input, &mut output)?),
            false => None,
        };
        // Written once more, so that all of it is there, and zeros stay zeros when they are added again and again.
        input.clear();
        output.clear();
        let input = input.into_span();
        let samples = self.samples(&mut || self.call(input, output.reborrow()))?.mean();
        let seconds = samples.median();
        let bandwidth = self.bytes() as f64 / seconds / 1e9;
        Ok(Timing {
            microseconds: seconds * 1e6,
            least_microseconds: samples.seconds.first().copied().unwrap_or(seconds) * 1e6,
            most_microseconds: samples.seconds.last().copied().unwrap_or(seconds) * 1e6,
            algorithm_gigabytes_per_second: bandwidth,
            bus_gigabytes_per_second: bandwidth * bus_factor(self.options.verb, self.mesh.count()),
            rounds: samples.seconds.len(),
            calls_per_round: samples.calls,
            wrong,
        })
    }

    /// Makes one call with values that tell members and positions apart; counts the elements of all that came out wrong.
    fn wrong(&self, input: &mut SpanMut<'_>, output: &mut SpanMut<'_>) -> Result<u64> {
        let (pattern, index) = (&self.pattern, self.mesh.index());
        let nothing = |_: usize| 0;
        let own = |position: usize| pattern.given(index, position);
        if self.input > 0 {
            self.fill(input, self.input, own)?;
            self.fill(output, self.output, nothing)?;
        } else if self.options.verb == Verb::Broadcast && index != self.options.root {
            self.fill(output, self.output, nothing)?;
        } else {
            self.fill(output, self.output, own)?;
        }
        self.call(input.as_span(), output.reborrow())?;
        let receives = match self.options.verb {
            Verb::Reduce | Verb::Gather => index == self.options.root,
            _ => true,
        };
        let mut wrong = [0_u64];
        for range in self.pieces(self.output).filter(|_| receives) {
            let expected = pattern.bytes(range.clone(), |position| pattern.expected(index, position));
            let found = output.as_span().part(range.start * self.width()..range.end * self.width())?.to_vec();
            let elements = expected.chunks(self.width()).zip(found.chunks(self.width()));
            wrong[0] += elements.filter(|(wanted, found)| wanted != found).count() as u64;
        }
        self.mesh.all_reduce(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }

    fn fill(&self, target: &mut SpanMut<'_>, count: usize, value: impl Fn(usize) -> i64) -> Result<()> {
        for range in self.pieces(count) {
            let bytes = self.pattern.bytes(range.clone(), &value);
            target.part(range.start * self.width()..range.end * self.width())?.copy_from(Span::of(&bytes))?;
        }
        Ok(())
    }

    /// Consecutive ranges of so many elements.
    fn pieces(&self, count: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = PIECE_BYTES / self.width();
        (0..count).step_by(step).map(move |start| start..count.min(start + step))
    }

    /// Times rounds of an act; index 0 decides for all how many calls a round has, and how many rounds there are.
    fn samples(&self, act: &mut dyn FnMut() -> Result<()>) -> Result<Rounds> {
        let mesh = self.mesh;
        let mut round = |calls: usize| -> Result<f64> {
            mesh.barrier()?;
            let start = Instant::now();
            for _ in 0..calls {
                act()?;
            }
            Ok(start.elapsed().as_secs_f64())
        };
        let mut calls = 1;
        // The first rounds warm up.
        round(calls)?;
        let seconds = loop {
            let mut seconds = [round(calls)?];
            mesh.broadcast(&mut seconds, 0)?;
            if seconds[0] >= ROUND_SECONDS || calls >= CALL_LIMIT {
                break seconds[0];
            }
            calls *= 4;
        };
        let rounds = match self.options.rounds {
            Some(rounds) => usize::try_from(rounds).unwrap_or(ROUNDS.end),
            None => ((self.options.seconds / seconds.max(1e-9)) as usize).clamp(ROUNDS.start, ROUNDS.end),
        };
        let mut own = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            own.push(round(calls)? / calls as f64);
        }
        let mut all = vec![0.0; rounds * mesh.count()];
        mesh.all_gather(&own, &mut all)?;
        let members = |at: usize| all.iter().skip(at).step_by(rounds).copied().collect::<Vec<f64>>();
        Ok(Rounds { seconds: (0..rounds).map(members).collect(), calls })
    }
}

/// The times of a call: of each round, those of all members.
struct Rounds {
    seconds: Vec<Vec<f64>>,
    calls: usize,
}

impl Rounds {
    fn mean(&self) -> Samples {
        self.each(|members| members.iter().sum::<f64>() / members.len() as f64)
    }

    fn slowest(&self) -> Samples {
        self.each(|members| members.iter().copied().fold(0.0, f64::max))
    }

    fn each(&self, of: impl Fn(&Vec<f64>) -> f64) -> Samples {
        let mut seconds = self.seconds.iter().map(of).collect::<Vec<f64>>();
        seconds.sort_by(f64::total_cmp);
        Samples { seconds, calls: self.calls }
    }
}

/// One time of a call for each round, ascending.
struct Samples {
    seconds: Vec<f64>,
    calls: usize,
}

impl Samples {
    fn median(&self) -> f64 {
        self.seconds.get(self.seconds.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// The reads and writes that a verb cannot do without, in memory that all members see.
struct Memory<'a> {
    size: &'a Size<'a>,
    arena: &'a Arena,
    input: Range<usize>,
    output: Range<usize>,
}

impl Memory<'_> {
    /// What this member does of it; the members do not wait for each other.
    fn move_all(&self, streams: bool) -> Result<()> {
        let (mesh, pattern) = (self.size.mesh, &self.size.pattern);
        let (own, members, root) = (mesh.index(), pattern.members, pattern.root);
        let part = pattern.part;
        match pattern.verb {
            Verb::AllReduce | Verb::Reduce => {
                let count = self.size.output;
                let share = count * own / members..count * (own + 1) / members;
                let from = (0..members).map(|seat| self.read(seat, &self.output, share.clone()));
                let from = from.collect::<Result<Vec<_>>>()?;
                let first = if pattern.verb == Verb::Reduce { root } else { own };
                let mut target = self.write(first, &self.output, share.clone())?;
                mesh.executor().kernels().reduce(pattern.dtype, pattern.op, &from, &mut target)?;
                for seat in (0..members).filter(|seat| pattern.verb == Verb::AllReduce && *seat != own) {
                    copy(&mut self.write(seat, &self.output, share.clone())?, target.as_span(), streams)?;
                }
            }
            Verb::ReduceScatter => {
                let from =
                    (0..members).map(|seat| self.read(seat, &self.input, own * part..(own + 1) * part));
                let from = from.collect::<Result<Vec<_>>>()?;
                let mut target = self.write(own, &self.output, 0..part)?;
                mesh.executor().kernels().reduce(pattern.dtype, pattern.op, &from, &mut target)?;
            }
            Verb::Broadcast if own != root => {
                let from = self.read(root, &self.output, 0..self.size.output)?;
                copy(&mut self.write(own, &self.output, 0..self.size.output)?, from, streams)?;
            }
            Verb::AllGather | Verb::AllToAll | Verb::Gather => {
                for seat in (0..members).filter(|_| pattern.verb != Verb::Gather || own == root) {
                    let first = if pattern.verb == Verb::AllToAll { own * part } else { 0 };
                    let from = self.read(seat, &self.input, first..first + part)?;
                    copy(&mut self.write(own, &self.output, seat * part..(seat + 1) * part)?, from, streams)?;
                }
            }
            Verb::Scatter => {
                let from = self.read(root, &self.input, own * part..(own + 1) * part)?;
                copy(&mut self.write(own, &self.output, 0..part)?, from, streams)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn read(&self, seat: usize, array: &Range<usize>, elements: Range<usize>) -> Result<Span<'_>> {
        self.arena.part(seat).ok_or_else(no_part)?.part(self.bytes(array, elements))
    }

    fn write(&self, seat: usize, array: &Range<usize>, elements: Range<usize>) -> Result<SpanMut<'_>> {
        self.arena.part_mut(seat).ok_or_else(no_part)?.into_part(self.bytes(array, elements))
    }

    /// Where elements of an array lie; all members have their arrays at the same places.
    fn bytes(&self, array: &Range<usize>, elements: Range<usize>) -> Range<usize> {
        let width = self.size.width();
        array.start + elements.start * width..array.start + elements.end * width
    }
}

fn no_part() -> Error {
    Error::unsupported("the limit of memory", "the members share none")
}

fn copy(target: &mut SpanMut<'_>, source: Span<'_>, streams: bool) -> Result<()> {
    if streams { target.stream_from(source) } else { target.copy_from(source) }
}

/// Memory of this process alone, in words so that every element type is aligned.
fn private(bytes: usize) -> Result<Vec<u64>> {
    let words = bytes.div_ceil(8);
    let mut memory = Vec::new();
    memory.try_reserve_exact(words).map_err(|_| Error::Exhausted {
        place: "the memory of this process".to_owned(),
        wanted_bytes: bytes as u64,
        free_bytes: 0,
        remedy: "measure smaller sizes (--sizes)".to_owned(),
    })?;
    memory.resize(words, 0);
    Ok(memory)
}
