//! Verbs on the memory of several GPUs of a process, on the stand-ins of both vendors: each GPU has the place of a member.

use std::time::{Duration, Instant};

use uform::error::Error;
use uform::sys::{Deadline, Element, Span, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{Arena, Call, Executor, GpuArrays, Mesh, MeshOptions, VramOptions};

use super::ccl::value;
use super::gpu::{amd, amd_linked, nvidia, nvidia_linked, options, soon};
use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("gpus.verbs", verbs),
    ("gpus.refuse", refuse),
    ("gpus.once", once),
    ("gpus.late", late),
    ("gpus.tiers", tiers),
];

/// Where the output of a call begins on each GPU; the input begins at 0.
const OUTPUT: usize = 128 << 10;

/// A member with some GPUs, and an arena on each.
struct Member {
    executor: Executor,
    mesh: Mesh,
    arena: Arena,
    /// The places of its GPUs, and how many all members have.
    places: std::ops::Range<usize>,
    total: usize,
}

/// How many GPUs each member has, as `2,1,3`.
fn counts_of(argument: &str) -> Vec<usize> {
    argument.split(',').map(|count| count.parse().expect("a number of GPUs")).collect()
}

impl Member {
    fn new(index: usize, counts: &str) -> Self {
        Self::with(index, counts, options(), MeshOptions::default())
    }

    fn with(index: usize, argument: &str, vram: VramOptions, mesh: MeshOptions) -> Self {
        let counts = counts_of(argument);
        let first = counts[..index].iter().sum::<usize>();
        let places = first..first + counts[index];
        let executor = Executor::for_vram(&VramOptions { devices: Some(places.clone().collect()), ..vram });
        let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
        let mesh =
            Mesh::bootstrap(Some(&executor), Some(&mesh)).unwrap_or_else(|error| panic!("{}", error.chain()));
        let arena = mesh.arena(2 * OUTPUT, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
        Self { executor, mesh, arena, places, total: counts.iter().sum() }
    }

    /// Runs a verb with what `input` and `output` give for each place, in place without an input; gives what the outputs have then.
    fn run<T: Element>(
        &self,
        (verb, op, root): (Verb, ReduceOp, usize),
        input: &dyn Fn(usize) -> Option<Vec<T>>,
        output: &dyn Fn(usize) -> Vec<T>,
        (counts, receive_counts): (Option<&[usize]>, Option<&[usize]>),
        deadline: &Deadline<'_>,
    ) -> Result<Vec<Vec<T>>, Error> {
        let place = |gpu: usize, start: usize, length: usize| {
            self.arena.device_bytes(gpu, start..start + length * size_of::<T>()).expect("within")
        };
        let mut outputs = self.places.clone().map(output).collect::<Vec<_>>();
        let mut given = Vec::new();
        for (gpu, (values, own)) in outputs.iter().zip(self.places.clone()).enumerate() {
            let target = place(gpu, OUTPUT, values.len());
            target.write(Span::of(values), &soon()).expect("the GPU works");
            let source = input(own).map(|values| {
                let source = place(gpu, 0, values.len());
                source.write(Span::of(&values), &soon()).expect("the GPU works");
                source
            });
            given.push((source, target));
        }
        let arrays = given.iter().map(|(source, target)| GpuArrays {
            input: source.as_ref().map(|source| source.span().expect("within")),
            output: Some(target.span().expect("within")),
        });
        let call = Call::on_gpus(verb, T::DTYPE, op, root, arrays);
        self.mesh.run(Call { counts, receive_counts, ..call }, deadline)?;
        for (values, (_, target)) in outputs.iter_mut().zip(&given) {
            target.read(SpanMut::of(&mut values[..]), &soon()).expect("the GPU works");
        }
        Ok(outputs)
    }

    /// As `run`, without an error, against what each place must have then.
    fn check<T: Element + PartialEq + std::fmt::Debug>(
        &self,
        call: (Verb, ReduceOp, usize),
        input: &dyn Fn(usize) -> Option<Vec<T>>,
        output: &dyn Fn(usize) -> Vec<T>,
        wanted: &dyn Fn(usize) -> Vec<T>,
    ) {
        let found = self.run(call, input, output, (None, None), &soon());
        let found = found.unwrap_or_else(|error| panic!("{:?}: {}", call.0, error.chain()));
        for (place, found) in self.places.clone().zip(found) {
            let wanted = wanted(place);
            let differs = wanted.iter().zip(&found).position(|(one, other)| one != other);
            let differs = differs.map(|at| (at, &wanted[at], &found[at]));
            assert!(wanted == found, "{call:?} at {place}, {} elements: {differs:?}", wanted.len());
        }
    }

    fn close(self) {
        self.mesh.close().expect("idle");
        drop(self.arena);
        self.executor.finish(&soon()).expect("idle");
    }
}

fn values(place: usize, length: usize) -> Vec<f64> {
    (0..length).map(|position| value(place, position)).collect()
}

/// Sums over all places, from an element on.
fn sums(total: usize, positions: std::ops::Range<usize>) -> Vec<f64> {
    positions.map(|position| (0..total).map(|place| value(place, position)).sum()).collect()
}

/// The parts of all places, each as `of` says, one after the other.
fn all(total: usize, of: impl Fn(usize) -> Vec<f64>) -> Vec<f64> {
    (0..total).flat_map(of).collect()
}

/// Every verb but sends and receives for arrays of a length, in place and not.
fn every_verb(member: &Member, n: usize) {
    let total = member.total;
    let none = |length: usize| vec![-1.0; length];
    let own = &|place: usize| Some(values(place, n));
    let wide = &|place: usize| Some(values(place, n * total));
    let in_place = &|_: usize| None;
    let gathered = all(total, |place| values(place, n));
    let summed = sums(total, 0..n);
    let means = summed.iter().map(|sum| sum / total as f64).collect::<Vec<_>>();
    let sum = |verb| (verb, ReduceOp::Sum, 0);

    member.check(sum(Verb::AllReduce), own, &|_| none(n), &|_| summed.clone());
    member.check(sum(Verb::AllReduce), in_place, &|place| values(place, n), &|_| summed.clone());
    let mean = (Verb::AllReduce, ReduceOp::Average, 0);
    member.check(mean, in_place, &|place| values(place, n), &|_| means.clone());
    member.check((Verb::AllReduce, ReduceOp::Max, 0), own, &|_| none(n), &|_| values(total - 1, n));
    member.check(sum(Verb::AllGather), own, &|_| none(n * total), &|_| gathered.clone());
    let placed = &|place: usize| {
        let mut placed = none(n * total);
        placed[place * n..(place + 1) * n].copy_from_slice(&values(place, n));
        placed
    };
    member.check(sum(Verb::AllGather), in_place, placed, &|_| gathered.clone());
    let part = |place: usize| sums(total, place * n..(place + 1) * n);
    member.check(sum(Verb::ReduceScatter), wide, &|_| none(n), &part);
    let least = (Verb::ReduceScatter, ReduceOp::Min, 0);
    member.check(least, wide, &|_| none(n), &|place| {
        (place * n..(place + 1) * n).map(|at| value(0, at)).collect()
    });
    let turned = |place: usize| {
        all(total, |other| (0..n).map(|position| value(other, place * n + position)).collect())
    };
    member.check(sum(Verb::AllToAll), wide, &|_| none(n * total), &turned);
    for root in 0..total {
        let rooted = |verb| (verb, ReduceOp::Sum, root);
        let at_root = |place: usize, length: usize| if place == root { length } else { 0 };
        let spread = values(root, n);
        member.check(rooted(Verb::Broadcast), in_place, &|place| values(place, n), &|_| spread.clone());
        member.check(rooted(Verb::Broadcast), own, &|_| none(n), &|_| spread.clone());
        let only = |place: usize, values: &[f64]| if place == root { values.to_vec() } else { Vec::new() };
        member.check(rooted(Verb::Reduce), own, &|place| none(at_root(place, n)), &|place| {
            only(place, &summed)
        });
        let lengths = |place| none(at_root(place, n * total));
        member.check(rooted(Verb::Gather), own, &lengths, &|place| only(place, &gathered));
        let given = &|place: usize| Some(values(place, at_root(place, n * total)));
        let taken =
            |place: usize| (0..n).map(|position| value(root, place * n + position)).collect::<Vec<_>>();
        member.check(rooted(Verb::Scatter), given, &|_| none(n), &taken);
    }
}

/// Verbs whose parts have other lengths: the place `i` has `i + 1` elements, and the last one none.
fn counted(member: &Member) {
    let total = member.total;
    let counts = (0..total).map(|place| if place + 1 == total { 0 } else { place + 1 }).collect::<Vec<_>>();
    let length = counts.iter().sum::<usize>();
    let gathered = all(total, |place| values(place, counts[place]));
    let call = |verb| (verb, ReduceOp::Sum, 0);
    let own = |place: usize| Some(values(place, counts[place]));
    let found =
        member.run(call(Verb::AllGather), &own, &|_| vec![-1.0; length], (Some(&counts), None), &soon());
    let found = found.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(found.iter().all(|found| *found == gathered), "{found:?}");
    let wide = |place: usize| Some(values(place, length));
    let part = |place: usize| vec![-1.0; counts[place]];
    let found = member.run(call(Verb::ReduceScatter), &wide, &part, (Some(&counts), None), &soon());
    for (place, found) in member.places.clone().zip(found.expect("it can")) {
        let before = counts[..place].iter().sum::<usize>();
        assert_eq!(found, sums(total, before..before + counts[place]));
    }
    let two = (Some(&counts[..]), Some(&counts[..]));
    let found = member.run(call(Verb::AllToAll), &wide, &|_| vec![-1.0; length], two, &soon());
    let error = found.expect_err("counts of members are compared").to_string();
    assert!(error.contains("several GPUs") || error.contains("must agree with counts"), "{error}");
}

/// Every verb, with lengths of nothing, one and more; lists, and calls that are not waited for.
fn verbs(index: usize, _: usize, argument: &str) {
    let member = Member::new(index, argument);
    for n in [0, 1, 7, 1021] {
        every_verb(&member, n);
    }
    if member.total > member.mesh.count() {
        counted(&member);
    }
    lists(&member);
    let halves = |place: usize| vec![half::bf16::from_f32(place as f32 + 0.5); 33];
    let sum = (0..member.total).map(|place| place as f32 + 0.5).sum::<f32>();
    let call = (Verb::AllReduce, ReduceOp::Sum, 0);
    member.check(call, &|_| None, &halves, &|_| vec![half::bf16::from_f32(sum); 33]);
    member.close();
}

/// Two arrays on each GPU in one list, reduced in place.
fn lists(member: &Member) {
    let lengths = [5, 9];
    let bytes = |gpu: usize, number: usize| {
        member.arena.device_bytes(gpu, number * 1024..number * 1024 + lengths[number] * 8).expect("within")
    };
    let gpus = 0..member.places.len();
    let given = [0, 1].map(|number| gpus.clone().map(|gpu| bytes(gpu, number)).collect::<Vec<_>>());
    for (number, given) in given.iter().enumerate() {
        for (place, bytes) in member.places.clone().zip(given) {
            bytes.write(Span::of(&values(place, lengths[number])), &soon()).expect("the GPU works");
        }
    }
    let calls = given.iter().map(|given| {
        let arrays =
            given.iter().map(|bytes| GpuArrays { input: None, output: Some(bytes.span().expect("within")) });
        Call::on_gpus(Verb::AllReduce, Dtype::F64, ReduceOp::Sum, 0, arrays)
    });
    member
        .mesh
        .run_many(Verb::AllReduce, calls.collect(), &soon())
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    for (number, given) in given.iter().enumerate() {
        for bytes in given {
            let mut found = vec![0.0; lengths[number]];
            bytes.read(SpanMut::of(&mut found[..]), &soon()).expect("the GPU works");
            assert_eq!(found, sums(member.total, 0..lengths[number]));
        }
    }
}

/// Members with so many GPUs each, of both vendors.
fn on_both(counts: &str, role: &str, more: &str, check: impl Fn(&StandIn, &[Outcome])) {
    let gpus = counts_of(counts);
    let (members, total) = (gpus.len(), gpus.iter().sum());
    let stand_in = StandIn::collective(&nvidia(total, more), false);
    let setup = stand_in.apply(Setup::new(members, role).argument(counts));
    check(&stand_in, &setup.start().finish());
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, total, more);
    let stand_in = StandIn::collective(&answers, true);
    let setup = stand_in.apply(Setup::new(members, role).argument(counts));
    check(&stand_in, &setup.variable("UFORM_MACHINE", &machine).start().finish());
}

#[test]
fn every_gpu_of_a_process_has_the_place_of_a_member() {
    for counts in ["2", "4", "2,2", "3,1", "1,2,1", "1,1,2,1", "2,2,2,2", "4,4,4,4"] {
        on_both(counts, "gpus.verbs", "", |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
            let total = counts_of(counts).iter().sum::<usize>();
            assert_eq!(stand_in.count("ncclCommInitRankConfig"), total);
            assert_eq!((stand_in.count("ncclCommDestroy"), stand_in.count("ncclCommAbort")), (total, 0));
            assert_eq!(stand_in.count("ncclCommRegister"), total);
        });
    }
}

/// What is refused, with member and GPU; the mesh goes on each time.
fn refuse(index: usize, _: usize, argument: &str) {
    let member = Member::new(index, argument);
    let span = |gpu: usize, length: usize| {
        let bytes = member.arena.device_bytes(gpu, 0..8 * length).expect("within");
        (bytes, length)
    };
    let call = |given: &[(uform::mesh::DeviceBytes, usize)], root: usize, verb: Verb| {
        let arrays = given
            .iter()
            .map(|(bytes, _)| GpuArrays { input: None, output: Some(bytes.span().expect("within")) });
        let call = Call::on_gpus(verb, Dtype::F64, ReduceOp::Sum, root, arrays);
        member.mesh.run(call, &soon()).expect_err("it is wrong")
    };
    let told = |error: Error, words: &[&str]| {
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        let own = format!("index {index}");
        assert!(words.iter().chain([&own.as_str()]).all(|word| text.contains(word)), "{words:?}: {text}");
    };
    let own = member.executor.gpus().len();
    let gpu = |position: usize| format!("GPU {} (", member.places.start + position);
    let both = [span(0, 4), span(1, 4)];
    if own == 2 {
        told(call(&both[..1], 0, Verb::AllReduce), &["arrays for 1 GPUs", "drives 2 GPUs", &gpu(0), &gpu(1)]);
        let three = [span(0, 4), span(1, 4), span(1, 4)];
        told(call(&three, 0, Verb::AllReduce), &["arrays for 3 GPUs", "one array for each"]);
        told(call(&[span(1, 4), span(0, 4)], 0, Verb::AllReduce), &["array 0", "device", &gpu(0)]);
        let twice = [span(0, 4), span(0, 4)];
        told(call(&twice, 0, Verb::AllReduce), &["array 1", &gpu(1), "array 0 is on that GPU already"]);
        told(call(&[span(0, 4), span(1, 5)], 0, Verb::AllReduce), &["5 elements", "4 elements", &gpu(1)]);
        told(call(&both, member.total, Verb::Broadcast), &["root", "must be below", &gpu(0)]);
        let error = call(&both, 0, Verb::Send);
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert!(error.to_string().contains("a process for each GPU"), "{error}");
    }
    // A call that members disagree on, once with the group and once without.
    let length = 4 + index;
    let error = call(&[span(0, length), span(1, length)], 0, Verb::AllReduce);
    assert!(matches!(error, Error::Disagreed { .. }), "{error:?}");
    let own = &|place: usize| values(place, 3);
    let wanted = sums(member.total, 0..3);
    member.check((Verb::AllReduce, ReduceOp::Sum, 0), &|_| None, own, &|_| wanted.clone());
    // An executor of other GPUs than the first call's.
    let devices = Some(vec![member.places.start + 1, member.places.start]);
    let turned = Executor::for_vram(&VramOptions { devices, ..options() }).expect("they are there");
    let other = member.mesh.on(&turned);
    let spans = both.iter().rev().map(|(bytes, _)| bytes.span().expect("within"));
    let arrays = spans.map(|span| GpuArrays { input: None, output: Some(span) });
    let call = Call::on_gpus(Verb::AllReduce, Dtype::F64, ReduceOp::Sum, 0, arrays);
    told(other.run(call, &soon()).expect_err("another order"), &["executor", "in this order", &gpu(0)]);
    turned.finish(&soon()).expect("idle");
    drop(both);
    member.close();
}

#[test]
fn arrays_that_are_not_one_for_each_gpu_are_refused_with_member_and_gpu() {
    on_both("2,2", "gpus.refuse", "", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        stand_in.assert_nothing_left();
        assert_eq!(stand_in.count("ncclAllReduce"), 4);
    });
}

/// One call, whose error is told; then one that finds the group ended.
fn once(index: usize, _: usize, argument: &str) {
    let member = Member::new(index, argument);
    say("inside");
    let run = || {
        let deadline = Deadline::after(Duration::from_secs(20));
        let call = (Verb::AllReduce, ReduceOp::Sum, 0);
        member.run(call, &|_| None, &|place| values(place, 9), (None, None), &deadline)
    };
    match run() {
        Ok(found) => say(&format!("gave {found:?}")),
        Err(error) => say(&format!("error {error:?} {}", error.chain())),
    }
    if let Err(error) = run() {
        say(&format!("later {}", error.chain()));
    }
}

#[test]
fn a_failure_on_one_gpu_ends_all_ranks_of_all_members() {
    // While they join, as they are put on streams, while they work, and of the driver below the library.
    for fault in [
        "at 1 fault ncclCommInitRankConfig 2 1\n",
        "at 1 fault init 2 3\n",
        "at 1 fault ncclAllReduce 2 3\n",
        "at 1 fault ncclGroupEnd 2 2\n",
        "stall work 5 700\nat 1 fault async 1 6\n",
    ] {
        on_both("2,2", "gpus.once", fault, |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            let all = transcript(outcomes);
            let one = &outcomes[1].output;
            assert!(one.contains("error Vendor") && one.contains("index 1: "), "{fault}{all}");
            assert!(one.contains("GPU 2 (") || one.contains("GPU 3 ("), "{fault}{all}");
            assert!(outcomes[0].output.contains("error Lost { index: 1"), "{fault}{all}");
            assert!(outcomes.iter().all(|outcome| outcome.output.contains("later ")), "{fault}{all}");
            stand_in.assert_nothing_left();
        });
    }
}

#[test]
fn a_member_that_dies_is_lost_on_the_others_while_their_gpus_wait() {
    let stand_in = StandIn::collective(&nvidia(4, "stall work 5 1500\n"), false);
    let mut run = stand_in.apply(Setup::new(2, "gpus.once").argument("2,2")).start();
    for position in 0..2 {
        run.wait_for(position, "inside");
    }
    std::thread::sleep(Duration::from_millis(700));
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    // A death is promised to be seen within a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    let output = &outcomes[0].output;
    assert!(outcomes[0].succeeded() && output.contains("error Lost { index: 1"), "{output}");
    assert_eq!(stand_in.count("ncclCommAbort"), 2);
}

/// Index 0 waits less long than the GPUs work; the other learns of it.
fn late(index: usize, _: usize, argument: &str) {
    let member = Member::new(index, argument);
    let deadline =
        Deadline::after(if index == 0 { Duration::from_millis(500) } else { Duration::from_secs(20) });
    let call = (Verb::AllReduce, ReduceOp::Sum, 0);
    let found = member.run(call, &|_| None, &|place| values(place, 9), (None, None), &deadline);
    say(&format!("error {:?}", found.expect_err("one has gone")));
}

#[test]
fn a_deadline_that_passes_ends_all_ranks() {
    on_both("2,2", "gpus.late", "stall work 5 2000\n", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        assert!(outcomes[0].output.contains("error TimedOut"), "{}", outcomes[0].output);
        assert!(outcomes[1].output.contains("error Lost { index: 0"), "{}", outcomes[1].output);
        assert_eq!(stand_in.count("ncclCommAbort"), 4);
        stand_in.assert_nothing_left();
    });
}

/// A member whose executor has the scratch that the argument names after the counts, 0 for no limit.
fn with_scratch(index: usize, argument: &str) -> Member {
    let (counts, scratch) = argument.split_once(' ').expect("two words");
    let vram = VramOptions { scratch_limit: scratch.parse().expect("a number"), ..options() };
    Member::with(index, counts, vram, MeshOptions::default())
}

/// Arrays that are long enough to go through tiers, short ones, and lengths that domains do not divide.
fn tiers(index: usize, _: usize, argument: &str) {
    let member = with_scratch(index, argument);
    let total = member.total;
    for n in [1, 8192 / total, 8192 / total + 1, 16_000 / total] {
        every_verb(&member, n);
    }
    let n = 9001;
    let summed = sums(total, 0..n);
    let own = &|place: usize| Some(values(place, n));
    member.check((Verb::AllReduce, ReduceOp::Sum, 0), own, &|_| vec![-1.0; n], &|_| summed.clone());
    member.check((Verb::AllReduce, ReduceOp::Sum, 0), &|_| None, &|place| values(place, n), &|_| {
        summed.clone()
    });
    // A mean of whole numbers is one division, whatever the tiers.
    let n = 20_000;
    let whole = |place: usize, position: usize| (place * 3 + position % 7) as i32;
    let found = |place: usize| (0..n).map(|position| whole(place, position)).collect::<Vec<_>>();
    let sum = |position| (0..total).map(|place| whole(place, position)).sum::<i32>();
    let wanted = (0..n).map(|position| sum(position) / total as i32).collect::<Vec<_>>();
    member.check((Verb::AllReduce, ReduceOp::Average, 0), &|_| None, &found, &|_| wanted.clone());
    member.close();
}

/// Members with so many GPUs each, which are linked in groups, of both vendors.
fn on_both_linked(counts: &str, groups: &[usize], scratch: usize, check: impl Fn(&StandIn, &[Outcome])) {
    let (members, argument) = (counts_of(counts).len(), format!("{counts} {scratch}"));
    let stand_in = StandIn::collective(&nvidia_linked(groups), false);
    let setup = stand_in.apply(Setup::new(members, "gpus.tiers").argument(&argument));
    check(&stand_in, &setup.start().finish());
    let folder = Folder::new();
    let (machine, answers) = amd_linked(&folder, groups);
    let stand_in = StandIn::collective(&answers, true);
    let setup = stand_in.apply(Setup::new(members, "gpus.tiers").argument(&argument));
    check(&stand_in, &setup.variable("UFORM_MACHINE", &machine).start().finish());
}

#[test]
fn long_arrays_go_inside_of_domains_and_across_them() {
    let cases = [
        ("4", &[2, 2][..], 0),
        ("2,2", &[2, 2], 0),
        ("1,1,1,1", &[2, 2], 0),
        // Domains that members share, and a reduce_scatter in pieces.
        ("1,3", &[2, 2], 0),
        ("2,2", &[2, 2], 20_480),
        ("3,3", &[3, 3], 0),
        ("2,2,2", &[2, 2, 2], 20_480),
    ];
    for (counts, groups, scratch) in cases {
        on_both_linked(counts, groups, scratch, |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
            let total = groups.iter().sum::<usize>();
            assert_eq!(stand_in.count("ncclCommSplit"), 2 * total);
            assert_eq!((stand_in.count("ncclCommDestroy"), stand_in.count("ncclCommAbort")), (3 * total, 0));
            assert_eq!(stand_in.count("ncclCommRegister"), 3 * total);
        });
    }
}

#[test]
fn domains_that_differ_leave_all_gpus_in_one_tier() {
    for (counts, groups) in
        [("4", &[3, 1][..]), ("2,2", &[3, 1]), ("2,2", &[1, 2, 1]), ("2,2", &[4]), ("2,2", &[1; 4])]
    {
        on_both_linked(counts, groups, 0, |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
            assert_eq!(stand_in.count("ncclCommSplit"), 0);
            assert_eq!(stand_in.count("ncclCommDestroy"), 4);
        });
    }
}

#[test]
fn a_tier_that_cannot_be_made_ends_the_group_on_all_members() {
    for fault in ["at 1 fault ncclCommSplit 1 3\n", "at 1 fault split 2 2\n", "at 1 fault split 4 2\n"] {
        let stand_in = StandIn::collective(&format!("{}{fault}", nvidia_linked(&[2, 2])), false);
        let outcomes = stand_in.apply(Setup::new(2, "gpus.once").argument("2,2")).start().finish();
        assert_all_succeeded(&outcomes);
        let all = transcript(&outcomes);
        let (one, other) = (&outcomes[1].output, &outcomes[0].output);
        assert!(one.contains("error Vendor") && one.contains("ncclCommSplit returned"), "{fault}{all}");
        assert!(one.contains("GPU 2 (") || one.contains("GPU 3 ("), "{fault}{all}");
        assert!(other.contains("error Lost { index: 1") && other.contains("ncclCommSplit"), "{fault}{all}");
        stand_in.assert_nothing_left();
    }
}
