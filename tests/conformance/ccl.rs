//! Verbs on GPU memory over NCCL and RCCL, on the stand-ins of both: results, refusals, and members that end.

use std::time::{Duration, Instant};

use uform::error::Error;
use uform::sys::{Deadline, Element, Span, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};
use uform::{Arena, Call, Executor, GpuArrays, Mesh, VramOptions, device};

use super::gpu::{amd, nvidia, options, own_gpu, soon};
use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("ccl.verbs", verbs),
    ("ccl.refuse", refuse),
    ("ccl.once", once),
    ("ccl.versions", versions),
    ("ccl.arenas", arenas),
    ("ccl.shared", shared),
    ("ccl.unshared", unshared),
    ("ccl.late", late),
    ("ccl.late_start", late_start),
];

/// Where the output of a call begins in an arena; the input begins at 0.
const OUTPUT: usize = 128 << 10;

/// A member with the GPU of its index, and an arena on it.
struct Member {
    executor: Executor,
    mesh: Mesh,
    arena: Arena,
}

impl Member {
    fn new(index: usize) -> Self {
        let executor = Executor::for_vram(&VramOptions { devices: Some(vec![own_gpu(index)]), ..options() });
        let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
        let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
        let arena = mesh.arena(2 * OUTPUT, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
        Self { executor, mesh, arena }
    }

    /// Runs a verb on `input`, in place without one, and gives what `output` has then.
    fn run<T: Element>(
        &self,
        call: (Verb, ReduceOp, usize),
        input: Option<&[T]>,
        output: Vec<T>,
        deadline: &Deadline<'_>,
    ) -> Result<Vec<T>, Error> {
        self.run_as(call, input, output, deadline, (None, None, 0))
    }

    /// As `run`, for a call that is made more of.
    fn run_as<T: Element>(
        &self,
        (verb, op, root): (Verb, ReduceOp, usize),
        input: Option<&[T]>,
        mut output: Vec<T>,
        deadline: &Deadline<'_>,
        (counts, receive_counts, tag): (Option<&[usize]>, Option<&[usize]>, u64),
    ) -> Result<Vec<T>, Error> {
        let place = |start: usize, length: usize| {
            self.arena.device_bytes(0, start..start + length * size_of::<T>()).expect("within")
        };
        let target = place(OUTPUT, output.len());
        target.write(Span::of(&output), &soon()).expect("the GPU works");
        let source = input.map(|input| {
            let source = place(0, input.len());
            source.write(Span::of(input), &soon()).expect("the GPU works");
            source
        });
        let input = source.as_ref().map(|source| source.span().expect("within"));
        let arrays = GpuArrays { input, output: Some(target.span().expect("within")) };
        let call = Call::on_gpu(verb, T::DTYPE, op, root, arrays);
        self.mesh.run(Call { counts, receive_counts, tag, ..call }, deadline)?;
        target.read(SpanMut::of(&mut output[..]), &soon()).expect("the GPU works");
        Ok(output)
    }

    fn close(self) {
        self.mesh.close().expect("idle");
        drop(self.arena);
        self.executor.finish(&soon()).expect("idle");
    }
}

/// The element of a member, or of one of its GPUs, at a position.
pub(super) fn value(index: usize, position: usize) -> f64 {
    index as f64 * 1e6 + position as f64
}

/// An operation, and what it makes of two values.
type Case = (ReduceOp, fn(f64, f64) -> f64);

/// All reductions of one element type against values added up here.
fn reductions<T: Element + PartialEq + std::fmt::Debug>(member: &Member, of: impl Fn(f64) -> T) {
    let (index, count) = (member.mesh.index(), member.mesh.count());
    let small = |index: usize, position: usize| ((index + position) % 3 + 1) as f64;
    let cases: [Case; 4] = [
        (ReduceOp::Sum, |one, two| one + two),
        (ReduceOp::Product, |one, two| one * two),
        (ReduceOp::Min, f64::min),
        (ReduceOp::Max, f64::max),
    ];
    for (op, combine) in cases {
        let own = (0..11).map(|position| of(small(index, position))).collect::<Vec<_>>();
        let found = member.run((Verb::AllReduce, op, 0), None, own, &soon()).expect("it can");
        let all = |position| (0..count).map(|index| small(index, position)).reduce(combine).map(&of);
        assert_eq!(found, (0..11).filter_map(all).collect::<Vec<_>>(), "{op} of {}", T::DTYPE);
    }
}

/// Every verb, with lengths of nothing, one and more, in place and not.
fn verbs(index: usize, count: usize, _: &str) {
    let member = Member::new(index);
    let run = |verb, op, root, input: Option<&[f64]>, output| {
        let found = member.run((verb, op, root), input, output, &soon());
        found.unwrap_or_else(|error| panic!("{verb:?}: {}", error.chain()))
    };
    let none = |length: usize| vec![-1.0; length];
    for n in [0, 1, 7, 1021] {
        let own = (0..n).map(|position| value(index, position)).collect::<Vec<_>>();
        let sums = (0..n).map(|position| (0..count).map(|index| value(index, position)).sum::<f64>());
        let sums = sums.collect::<Vec<f64>>();
        let wide = (0..n * count).map(|position| value(index, position)).collect::<Vec<_>>();
        let each = |of: &dyn Fn(usize, usize) -> f64| {
            let parts = (0..count).flat_map(|part| (0..n).map(move |position| (part, position)));
            parts.map(|(part, position)| of(part, position)).collect::<Vec<_>>()
        };
        let gathered = each(&value);

        assert_eq!(run(Verb::AllReduce, ReduceOp::Sum, 0, Some(&own), none(n)), sums);
        assert_eq!(run(Verb::AllReduce, ReduceOp::Sum, 0, None, own.clone()), sums);
        let means = run(Verb::AllReduce, ReduceOp::Average, 0, None, own.clone());
        assert_eq!(means, sums.iter().map(|sum| sum / count as f64).collect::<Vec<_>>());
        assert_eq!(run(Verb::AllGather, ReduceOp::Sum, 0, Some(&own), none(n * count)), gathered);
        let mut placed = none(n * count);
        placed[index * n..(index + 1) * n].copy_from_slice(&own);
        assert_eq!(run(Verb::AllGather, ReduceOp::Sum, 0, None, placed), gathered);
        let part = run(Verb::ReduceScatter, ReduceOp::Sum, 0, Some(&wide), none(n));
        let sum = |position| (0..count).map(|other| value(other, index * n + position)).sum::<f64>();
        assert_eq!(part, (0..n).map(sum).collect::<Vec<_>>());
        let turned = run(Verb::AllToAll, ReduceOp::Sum, 0, Some(&wide), none(n * count));
        assert_eq!(turned, each(&|other, position| value(other, index * n + position)));
        for root in 0..count {
            let is_root = index == root;
            let spread = run(Verb::Broadcast, ReduceOp::Sum, root, None, own.clone());
            assert_eq!(spread, (0..n).map(|position| value(root, position)).collect::<Vec<_>>());
            let reduced =
                run(Verb::Reduce, ReduceOp::Sum, root, Some(&own), none(if is_root { n } else { 0 }));
            assert_eq!(reduced, if is_root { sums.clone() } else { vec![] });
            let width = if is_root { n * count } else { 0 };
            let taken = run(Verb::Gather, ReduceOp::Sum, root, Some(&own), none(width));
            assert_eq!(taken, if is_root { gathered.clone() } else { vec![] });
            let given = run(Verb::Scatter, ReduceOp::Sum, root, Some(&wide[..width]), none(n));
            assert_eq!(given, (0..n).map(|position| value(root, index * n + position)).collect::<Vec<_>>());
        }
    }
    counts(&member);
    pairs(&member);
    halves(&member);
    reductions(&member, |value| value);
    reductions(&member, |value| value as f32);
    reductions(&member, |value| value as i8);
    reductions(&member, |value| value as u8);
    reductions(&member, |value| value as i32);
    reductions(&member, |value| value as u32);
    reductions(&member, |value| value as i64);
    reductions(&member, |value| value as u64);
    member.close();
}

/// Verbs whose parts have other lengths: member `i` has `i + 1` elements, and the last one none.
fn counts(member: &Member) {
    let (index, count) = (member.mesh.index(), member.mesh.count());
    let counts =
        (0..count).map(|seat| if count > 1 && seat + 1 == count { 0 } else { seat + 1 }).collect::<Vec<_>>();
    let total = counts.iter().sum::<usize>();
    let of = |seat: usize| (0..counts[seat]).map(move |position| value(seat, position));
    let (own, all) = (of(index).collect::<Vec<_>>(), (0..count).flat_map(of).collect::<Vec<_>>());
    let run = |verb, root, input: Option<&[f64]>, length: usize| {
        let call = (verb, ReduceOp::Sum, root);
        let found = member.run_as(call, input, vec![-1.0; length], &soon(), (Some(&counts), None, 0));
        found.unwrap_or_else(|error| panic!("{verb:?}: {}", error.chain()))
    };
    assert_eq!(run(Verb::AllGather, 0, Some(&own), total), all);
    let before = counts[..index].iter().sum::<usize>();
    let sums = (0..total).map(|position| (0..count).map(|seat| value(seat, position)).sum::<f64>());
    let wide = (0..total).map(|position| value(index, position)).collect::<Vec<_>>();
    let found = run(Verb::ReduceScatter, 0, Some(&wide), counts[index]);
    assert_eq!(found, sums.skip(before).take(counts[index]).collect::<Vec<_>>());
    for root in 0..count {
        let width = if index == root { total } else { 0 };
        assert_eq!(run(Verb::Gather, root, Some(&own), width), all[..width]);
        let given = run(Verb::Scatter, root, Some(&wide[..width]), counts[index]);
        assert_eq!(
            given,
            (before..before + counts[index]).map(|position| value(root, position)).collect::<Vec<_>>()
        );
    }
    // What `from` sends `to` has from + 2 * to elements, and none where that is 3.
    let length = |from: usize, to: usize| if from + 2 * to == 3 { 0 } else { from + 2 * to };
    let (sent, taken): (Vec<_>, Vec<_>) =
        (0..count).map(|other| (length(index, other), length(other, index))).unzip();
    let input = (0..count).flat_map(|to| (0..length(index, to)).map(move |position| (to, position)));
    let input = input.map(|(to, position)| value(index, 100 * to + position)).collect::<Vec<_>>();
    let wanted = (0..count).flat_map(|from| (0..length(from, index)).map(move |position| (from, position)));
    let wanted = wanted.map(|(from, position)| value(from, 100 * index + position)).collect::<Vec<_>>();
    let call = (Verb::AllToAll, ReduceOp::Sum, 0);
    let counted = |mut taken: Vec<usize>, more: usize| {
        taken[(index + 1) % count] += more;
        let output = vec![-1.0; taken.iter().sum()];
        member.run_as(call, Some(&input), output, &soon(), (Some(&sent), Some(&taken), 0))
    };
    assert_eq!(counted(taken.clone(), 0).expect("alike"), wanted);
    if count > 1 {
        let error = counted(taken, 1).expect_err("each expects more than comes");
        assert!(matches!(error, Error::Disagreed { .. }), "{error}");
    }
}

/// A ring of sends and receives, and a pair that differs.
fn pairs(member: &Member) {
    let (index, count) = (member.mesh.index(), member.mesh.count());
    let send = |to: usize, values: &[f64]| {
        let bytes = member.arena.device_bytes(0, 0..size_of_val(values)).expect("within");
        bytes.write(Span::of(values), &soon()).expect("the GPU works");
        let arrays = GpuArrays { input: Some(bytes.span().expect("within")), output: None };
        let call = Call::on_gpu(Verb::Send, Dtype::F64, ReduceOp::Sum, to, arrays);
        member.mesh.run(Call { tag: 7, ..call }, &soon())
    };
    let receive = |from: usize, length: usize| {
        let output = vec![-1.0_f64; length];
        member.run_as((Verb::Receive, ReduceOp::Sum, from), None, output, &soon(), (None, None, 7))
    };
    if count == 1 {
        let error = send(0, &[1.0]).expect_err("to itself");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        return;
    }
    let (next, before) = ((index + 1) % count, (index + count - 1) % count);
    for length in [0, 1, 1021] {
        let own = (0..length).map(|position| value(index, position)).collect::<Vec<_>>();
        let wanted = (0..length).map(|position| value(before, position)).collect::<Vec<_>>();
        // The first one sends, the others receive first.
        if index == 0 {
            send(next, &own).expect("it is received");
        }
        assert_eq!(receive(before, length).expect("it is sent"), wanted);
        if index != 0 {
            send(next, &own).expect("it is received");
        }
    }
    if index < 2 {
        let result = if index == 0 { send(1, &[1.0, 2.0]) } else { receive(0, 3).map(drop) };
        let error = result.expect_err("the counts differ");
        assert!(matches!(error, Error::Disagreed { .. }), "{error}");
        assert!(error.to_string().contains("on GPU memory"), "{error}");
    }
}

/// Floats of 16 bits; the sums here are exact in them.
fn halves(member: &Member) {
    let (index, count) = (member.mesh.index(), member.mesh.count());
    let sum = (0..count).map(|index| index as f32 + 0.5).sum::<f32>();
    let call = (Verb::AllReduce, ReduceOp::Sum, 0);
    let own = vec![half::f16::from_f32(index as f32 + 0.5); 33];
    assert_eq!(member.run(call, None, own, &soon()).expect("it can"), [half::f16::from_f32(sum); 33]);
    let own = vec![half::bf16::from_f32(index as f32 + 0.5); 33];
    assert_eq!(member.run(call, None, own, &soon()).expect("it can"), [half::bf16::from_f32(sum); 33]);
}

/// So many members with one GPU each, of both vendors.
fn on_both(count: usize, role: &str, more: &str, check: impl Fn(&StandIn, &[Outcome])) {
    let stand_in = StandIn::collective(&nvidia(count, more), false);
    check(&stand_in, &stand_in.apply(Setup::new(count, role)).start().finish());
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, count, more);
    let stand_in = StandIn::collective(&answers, true);
    let setup = stand_in.apply(Setup::new(count, role)).variable("UFORM_MACHINE", &machine);
    check(&stand_in, &setup.start().finish());
}

#[test]
fn every_verb_gives_what_it_gives_in_host_memory() {
    for count in [1, 2, 4] {
        on_both(count, "ccl.verbs", "", |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
            assert_eq!(stand_in.count("ncclCommInitRankConfig"), count);
            assert_eq!((stand_in.count("ncclCommDestroy"), stand_in.count("ncclCommAbort")), (count, 0));
        });
    }
}

/// What is refused, and what members disagree on; the mesh goes on each time.
fn refuse(index: usize, count: usize, _: &str) {
    let member = Member::new(index);
    let all_reduce = |op, values: Vec<i16>| member.run((Verb::AllReduce, op, 0), None, values, &soon());
    let error = all_reduce(ReduceOp::Sum, vec![1; 4]).expect_err("NCCL has no such type");
    assert!(matches!(&error, Error::Unsupported { .. }) && error.to_string().contains("I16"), "{error}");
    let call = |op, values: Vec<i32>| member.run((Verb::AllReduce, op, 0), None, values, &soon());
    let error = call(ReduceOp::BitwiseAnd, vec![1; 4]).expect_err("NCCL has no such operation");
    assert!(matches!(&error, Error::Unsupported { .. }), "{error}");
    assert!(
        error.to_string().contains("BITWISE_AND") && error.to_string().contains("host memory"),
        "{error}"
    );
    let bytes = member.arena.device_bytes(0, 0..7).expect("within");
    let arrays = GpuArrays { input: None, output: Some(bytes.span().expect("within")) };
    let odd = Call::on_gpu(Verb::AllReduce, Dtype::F32, ReduceOp::Sum, 0, arrays);
    let odd = member.mesh.run(odd, &soon());
    assert!(matches!(odd, Err(Error::Invalid { .. })), "{odd:?}");
    let root = Call::on_gpu(Verb::Broadcast, Dtype::F32, ReduceOp::Sum, count, arrays);
    let root = member.mesh.run(root, &soon());
    assert!(matches!(root, Err(Error::Invalid { .. })), "{root:?}");
    let error = call(ReduceOp::Sum, vec![1; 4 + index]).expect_err("lengths differ");
    let Error::Disagreed { mine, theirs, .. } = &error else { panic!("{error}") };
    let words =
        [mine, theirs].map(|call| call.contains("all_reduce #") && call.contains("on GPU memory at "));
    assert!(words == [true; 2] && mine.contains(&format!("({} I32, ", 4 + index)), "{error}");
    assert!(mine.contains("ccl.rs:") && theirs.contains("ccl.rs:"), "{error}");
    mixtures(&member);
    assert_eq!(call(ReduceOp::Sum, vec![1; 4]).expect("the group goes on"), [count as i32; 4]);
    member.close();
}

/// Arrays of the host beside those of a GPU, in one call and among members.
fn mixtures(member: &Member) {
    let (index, mesh) = (member.mesh.index(), &member.mesh);
    let bytes = member.arena.device_bytes(0, 0..16).expect("within");
    let arrays = GpuArrays { input: Some(bytes.span().expect("within")), output: None };
    let mut host = [1_i32; 4];
    let output = SpanMut::of(&mut host[..]);
    let call = Call { output, ..Call::on_gpu(Verb::AllReduce, Dtype::I32, ReduceOp::Sum, 0, arrays) };
    let error = mesh.run(call, &soon()).expect_err("two memories").to_string();
    let words = ["host memory", &format!("index {index} "), &format!("GPU {index} (")];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    let arrays = GpuArrays { input: None, output: Some(bytes.span().expect("within")) };
    let call = Call::on_gpu(Verb::AllReduce, Dtype::I32, ReduceOp::Sum, 0, arrays);
    let host = Call::of::<i32>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut host[..]));
    let error = mesh.run(if index == 0 { call } else { host }, &soon()).expect_err("two memories");
    assert!(matches!(&error, Error::Disagreed { field, .. } if field == "the memory of a call"), "{error}");
}

#[test]
fn what_cannot_be_done_is_refused_before_a_gpu_works_and_the_mesh_goes_on() {
    on_both(2, "ccl.refuse", "", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        stand_in.assert_nothing_left();
        assert_eq!(stand_in.count("ncclAllReduce"), 2);
    });
}

/// One call, whose error is told; then one that finds the group ended.
fn once(index: usize, _: usize, _: &str) {
    call_once(index, Duration::from_secs(20));
}

fn call_once(index: usize, limit: Duration) {
    let member = Member::new(index);
    say("inside");
    let run = |deadline: &Deadline<'_>| {
        member.run((Verb::AllReduce, ReduceOp::Sum, 0), None, vec![1.0_f32; 9], deadline)
    };
    match run(&Deadline::after(limit)) {
        Ok(values) => say(&format!("gave {values:?}")),
        Err(error) => say(&format!("error {error:?} {}", error.chain())),
    }
    if let Err(error) = run(&soon()) {
        say(&format!("later {}", error.chain()));
    }
}

#[test]
fn a_machine_without_the_library_is_told_to_all_with_the_remedy() {
    let stand_in = StandIn::new(&nvidia(2, ""));
    let outcomes = stand_in.apply(Setup::new(2, "ccl.once")).start().finish();
    assert_all_succeeded(&outcomes);
    for Outcome { output, .. } in &outcomes {
        assert!(output.contains("error Unsupported") && output.contains("index 0 on GPU 0 ("), "{output}");
        assert!(output.contains("install the package nvidia-nccl-cu12"), "{output}");
    }
    stand_in.assert_nothing_left();
}

#[test]
fn the_vendors_refusal_names_member_and_gpu() {
    on_both(2, "ccl.once", "fault ncclAllReduce 1 3\n", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        let refused = |index: usize| outcomes[index].output.contains("error Vendor");
        assert!(refused(0) || refused(1), "{}", transcript(outcomes));
        for (index, Outcome { output, .. }) in outcomes.iter().enumerate() {
            if refused(index) {
                assert!(output.contains("ncclAllReduce returned 3"), "{output}");
                assert!(output.contains(&format!("index {index}: ")), "{output}");
                assert!(output.contains(&format!(" on GPU {index} (")), "{output}");
            } else {
                // The other was refused, and left, before this one made the call.
                assert_hears(output, 1 - index, "ncclAllReduce returned 3");
            }
            assert!(output.contains("later "), "{output}");
        }
        assert_eq!(stand_in.count("ncclCommAbort"), 2);
        stand_in.assert_nothing_left();
    });
}

/// Says that a member was lost, and what a vendor's library had refused on its GPU.
fn assert_hears(output: &str, index: usize, words: &str) {
    assert_in_order(output, &[&format!("error Lost {{ index: {index}"), &format!("GPU {index} ("), words]);
}

fn assert_in_order(output: &str, words: &[&str]) {
    let mut rest = output;
    for word in words {
        let at = rest.find(word).unwrap_or_else(|| panic!("`{word}` is missing or too early\n{output}"));
        rest = &rest[at..];
    }
}

/// How one member of two ends, and what the other hears of it, for lines of the file of answers that count for index 1.
fn refused_at_one(more: &str, role: &str, own: &[&str], heard: &str) {
    on_both(2, role, more, |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        assert_in_order(&outcomes[1].output, own);
        assert_hears(&outcomes[0].output, 1, heard);
        assert!(outcomes.iter().all(|outcome| outcome.output.contains("later ")), "{}", transcript(outcomes));
        stand_in.assert_nothing_left();
    });
}

#[test]
fn a_member_that_the_vendor_refuses_is_heard_by_the_others_with_gpu_and_remedy() {
    // In a call, while members join, while the GPUs work, and by the driver below the library.
    let gpu = " on GPU 1 (";
    for (more, call, remedy, words) in [
        (
            "at 1 fault ncclAllReduce 1 3\n",
            "ncclAllReduce returned 3",
            "try another version",
            "internal error",
        ),
        (
            "at 1 fault ncclCommInitRankConfig 1 1\n",
            "ncclCommInitRankConfig returned 1",
            "memory that it has not",
            "",
        ),
        (
            "at 1 fault init 1 5\n",
            "ncclCommInitRankConfig returned 5",
            "NCCL_MULTI_RANK_GPU_ENABLE=1",
            "invalid usage",
        ),
        ("at 1 fault ncclGroupEnd 1 2\n", "ncclGroupEnd returned 2", "ulimit -n", "unhandled system error"),
        (
            "stall work 3 700\nat 1 fault async 1 6\n",
            "returned 6",
            "look at its error first",
            "remote process exited",
        ),
    ] {
        let own = ["error Vendor", "index 1: ", gpu, call, remedy, words];
        refused_at_one(more, "ccl.once", &own, call);
    }
}

#[test]
fn a_start_that_stalls_ends_at_the_deadline_with_member_gpu_and_remedy() {
    let own = [
        "error TimedOut",
        "index 1: ncclCommInitRankConfig",
        "NCCL_SOCKET_IFNAME",
        "on GPU 1 (",
        "timed out",
    ];
    refused_at_one("at 0 stall init 1 1500\n", "ccl.late_start", &own, "timed out");
}

/// As `once`; index 1 waits less long than members take to reach each other.
fn late_start(index: usize, _: usize, _: &str) {
    call_once(index, if index == 1 { Duration::from_millis(500) } else { Duration::from_secs(20) });
}

#[test]
fn a_member_that_dies_while_members_join_is_lost_on_the_others() {
    let stand_in = StandIn::collective(&nvidia(3, "stall init 1 1500\n"), false);
    dies_inside(&stand_in, "joining a communicator of GPUs");
}

#[test]
fn a_library_that_is_too_old_is_told_to_all_with_the_remedy() {
    let (folder, stand_in) = (Folder::new(), StandIn::new(&nvidia(2, "")));
    for (index, version) in [(0, 22705), (1, 21704)] {
        StandIn::wheel(&folder.path().join(index.to_string()), version);
    }
    let argument = folder.path().display().to_string();
    let outcomes = stand_in.apply(Setup::new(2, "ccl.versions").argument(&argument)).start().finish();
    assert_all_succeeded(&outcomes);
    for Outcome { output, .. } in &outcomes {
        let remedy = "install the package nvidia-nccl-cu12";
        let words = ["is version 2.17.4, and 2.18.1 is the oldest"];
        assert_in_order(output, &[&["error Unsupported", "index 1 on GPU 1 (", remedy][..], &words].concat());
    }
    stand_in.assert_nothing_left();
}

/// Arenas before and after the first call, one of which goes before the mesh.
fn arenas(index: usize, count: usize, _: &str) {
    let member = Member::new(index);
    let first = member.mesh.arena(4096, &soon()).expect("there is room");
    let sum = |arena: &Arena| {
        let bytes = arena.device_bytes(0, 0..4096).expect("within");
        bytes.write(Span::of(&[index as f32 + 1.0; 1024]), &soon()).expect("the GPU works");
        let arrays = GpuArrays { input: None, output: Some(bytes.span().expect("within")) };
        let call = Call::on_gpu(Verb::AllReduce, Dtype::F32, ReduceOp::Sum, 0, arrays);
        member.mesh.run(call, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
        let mut found = [0.0_f32; 1024];
        bytes.read(SpanMut::of(&mut found), &soon()).expect("the GPU works");
        assert_eq!(found, [(count * (count + 1) / 2) as f32; 1024]);
    };
    sum(&first);
    let second = member.mesh.arena(4096, &soon()).expect("there is room");
    sum(&second);
    drop(first);
    sum(&second);
    member.close();
    drop(second);
}

#[test]
fn arenas_are_memory_of_the_library_and_known_to_it() {
    let counts = |stand_in: &StandIn| {
        ["ncclMemAlloc", "ncclMemFree", "ncclCommRegister", "ncclCommDeregister"]
            .map(|name| stand_in.count(name))
    };
    on_both(2, "ccl.arenas", "", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        stand_in.assert_nothing_left();
        assert_eq!(counts(stand_in), [6; 4]);
        assert_eq!(stand_in.count("cuMemAlloc_v2") + stand_in.count("hipMalloc"), 0);
    });
    // A library from before it could, one that gives no memory, and one that does not register.
    let names = ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"];
    for (more, flags, wanted) in [
        ("", &["-DNCCL_VERSION=21803"][..], [0, 0, 0, 0]),
        ("fault ncclMemAlloc 0 1\n", &[], [6, 0, 6, 6]),
        ("fault ncclCommRegister 0 3\n", &[], [6, 6, 6, 0]),
    ] {
        let stand_in = StandIn::with(&nvidia(2, more), &names, flags);
        assert_all_succeeded(&stand_in.apply(Setup::new(2, "ccl.arenas")).start().finish());
        stand_in.assert_nothing_left();
        assert_eq!(counts(&stand_in), wanted, "{more}");
        assert_eq!(stand_in.count("cuMemAlloc_v2"), if wanted[1] == 0 { 6 } else { 0 });
    }
}

/// All members have the first GPU.
fn shared(index: usize, count: usize, _: &str) {
    let member = Member::new(0);
    let topology = member.mesh.topology();
    let others = (0..count).filter(|other| *other != index).collect::<Vec<_>>();
    assert!(topology.to_string().matches("shared with index ").count() == count, "{topology}");
    assert!(topology.gpus().len() == count && !others.is_empty(), "{topology}");
    let reason = "is shared by several members";
    assert!(topology.tier_reason().contains(reason), "{}", topology.tier_reason());
    let call = (Verb::AllReduce, ReduceOp::Sum, 0);
    let found = member.run(call, None, vec![value(index, 1); 5], &soon()).expect("NCCL takes them");
    assert_eq!(found, [(0..count).map(|index| value(index, 1)).sum::<f64>(); 5]);
    member.close();
}

/// Says why all members may not have the first GPU.
fn unshared(_: usize, _: usize, _: &str) {
    let executor = Executor::for_vram(&VramOptions { devices: Some(vec![0]), ..options() }).expect("there");
    say(&Mesh::bootstrap(Some(&executor), None).expect_err("it is another's").chain());
}

#[test]
fn members_share_a_gpu_where_all_say_so_and_nccl_can() {
    const VARIABLE: &str = "NCCL_MULTI_RANK_GPU_ENABLE";
    let names = ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"];
    let multicast = "multicast 0\n";
    for count in [2, 4] {
        let stand_in = StandIn::with(&nvidia(1, multicast), &names, &["-DNCCL_VERSION=23203"]);
        let setup = stand_in.apply(Setup::new(count, "ccl.shared")).variable(VARIABLE, "1");
        assert_all_succeeded(&setup.start().finish());
        stand_in.assert_nothing_left();
    }
    // An NCCL that cannot; and one that could, where nobody wants it.
    for (version, value) in [("22705", "1"), ("23203", "0")] {
        let flag = format!("-DNCCL_VERSION={version}");
        let stand_in = StandIn::with(&nvidia(1, multicast), &names, &[&flag]);
        let setup = stand_in.apply(Setup::new(2, "ccl.unshared")).variable(VARIABLE, value);
        let outcomes = setup.start().finish();
        assert_all_succeeded(&outcomes);
        for Outcome { output, .. } in &outcomes {
            let words =
                ["index 0", "index 1", "both drive it", "NCCL_MULTI_RANK_GPU_ENABLE=1", "NCCL 2.30 or newer"];
            assert!(words.iter().all(|word| output.contains(word)), "{output}");
        }
    }
}

/// Member 1 finds another NCCL than member 0.
fn versions(index: usize, _: usize, argument: &str) {
    device::set_package_folders(vec![std::path::Path::new(argument).join(index.to_string())]);
    once(index, 2, "");
}

#[test]
fn different_versions_are_told_with_both_members() {
    let (folder, stand_in) = (Folder::new(), StandIn::new(&nvidia(2, "")));
    for (index, version) in [(0, 22705), (1, 22304)] {
        StandIn::wheel(&folder.path().join(index.to_string()), version);
    }
    let argument = folder.path().display().to_string();
    let outcomes = stand_in.apply(Setup::new(2, "ccl.versions").argument(&argument)).start().finish();
    assert_all_succeeded(&outcomes);
    for Outcome { output, .. } in &outcomes {
        assert!(output.contains("error Disagreed"), "{output}");
        assert!(output.contains("NCCL 2.27.5 (index 0 on GPU 0 ("), "{output}");
        assert!(output.contains("NCCL 2.23.4 (index 1 on GPU 1 ("), "{output}");
    }
}

#[test]
fn a_member_that_dies_while_the_gpus_work_is_lost_on_the_others() {
    // The third operation of a stream is the collective: the arena's zeros and the values come before.
    let stand_in = StandIn::collective(&nvidia(3, "stall work 3 1500\n"), false);
    dies_inside(&stand_in, "all_reduce of ");
}

/// Kills index 1 of three in the middle of what the stand-in makes long; the others say in what it was lost.
fn dies_inside(stand_in: &StandIn, phase: &str) {
    let mut run = stand_in.apply(Setup::new(3, "ccl.once")).start();
    for position in 0..3 {
        run.wait_for(position, "inside");
    }
    std::thread::sleep(Duration::from_millis(700));
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    // A death is promised to be seen within a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    for index in [0, 2] {
        let output = &outcomes[index].output;
        assert!(outcomes[index].succeeded() && output.contains("error Lost { index: 1"), "{output}");
        assert!(output.contains(phase) && output.contains("later "), "{output}");
    }
}

/// Index 0 waits less long than the GPUs work; the other learns of it.
fn late(index: usize, _: usize, _: &str) {
    let member = Member::new(index);
    let deadline =
        Deadline::after(if index == 0 { Duration::from_millis(500) } else { Duration::from_secs(20) });
    let call = (Verb::AllReduce, ReduceOp::Sum, 0);
    let error = member.run(call, None, vec![1.0_f32; 9], &deadline).expect_err("one has gone");
    say(&format!("error {error:?}"));
}

#[test]
fn a_deadline_that_passes_ends_the_group_on_all_members() {
    on_both(2, "ccl.late", "stall work 3 2000\n", |stand_in, outcomes| {
        assert_all_succeeded(outcomes);
        assert!(outcomes[0].output.contains("error TimedOut"), "{}", outcomes[0].output);
        assert!(outcomes[1].output.contains("error Lost { index: 0"), "{}", outcomes[1].output);
        assert_eq!(stand_in.count("ncclCommAbort"), 2);
        stand_in.assert_nothing_left();
    });
}
