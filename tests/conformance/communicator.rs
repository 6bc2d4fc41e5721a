//! What every communicator must do, whatever its members are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use uform::communicator::{Call, Communicator, Progress};
use uform::error::Error;
use uform::recorder::Site;
use uform::sys::{Element, Span, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};

use super::members::{self, patience};
use super::parts;
use crate::harness;

/// The roles of this file.
pub(crate) const ROLES: &[(&str, harness::Role)] = &[("communicator.suite", member)];

/// Pieces so small that nearly every array has many of them.
const TINY: usize = 64;
const COUNTS: [usize; 4] = [1, 2, 3, 5];
/// Zero, odd, beside the descriptor, beyond it.
const LENGTHS: [usize; 6] = [0, 1, 7, 1000, 2049, 10_001];

fn run<T: Element>(
    communicator: &dyn Communicator,
    verb: Verb,
    op: ReduceOp,
    input: Option<&[T]>,
    output: &mut [T],
) -> Result<(), Error> {
    let (input, output) = (input.map(Span::of), SpanMut::of(output));
    communicator.run(Call::of::<T>(verb, op, 0, input, output), &patience())
}

fn value(seat: usize, position: usize) -> f64 {
    seat as f64 * 1e6 + position as f64
}

fn values(seat: usize, length: usize) -> Vec<f64> {
    (0..length).map(|position| value(seat, position)).collect()
}

fn reduces(communicator: &dyn Communicator) {
    let (seat, count) = (communicator.seat(), communicator.count());
    for length in LENGTHS {
        for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max] {
            let expected = |position: usize| {
                let sum = (0..count).map(|seat| value(seat, position)).sum::<f64>();
                match op {
                    ReduceOp::Sum => sum,
                    ReduceOp::Average => sum / count as f64,
                    ReduceOp::Min => value(0, position),
                    _ => value(count - 1, position),
                }
            };
            let input = values(seat, length);
            let mut output = vec![-1.0; length];
            run(communicator, Verb::AllReduce, op, Some(&input), &mut output).expect("out of place");
            assert!((0..length).all(|position| output[position] == expected(position)), "{op} of {length}");
            let mut output = values(seat, length);
            run(communicator, Verb::AllReduce, op, None, &mut output).expect("in place");
            assert!((0..length).all(|position| output[position] == expected(position)), "{op} of {length}");
            let input = values(seat, length * count);
            let mut output = vec![-1.0; length];
            run(communicator, Verb::ReduceScatter, op, Some(&input), &mut output).expect("scattered");
            let right = |position: usize| output[position] == expected(seat * length + position);
            assert!((0..length).all(right), "{op} of {length}");
        }
    }
}

fn gathers(communicator: &dyn Communicator) {
    let (seat, count) = (communicator.seat(), communicator.count());
    for length in LENGTHS {
        let expected = (0..count).flat_map(|seat| values(seat, length)).collect::<Vec<_>>();
        let mut output = vec![-1.0; length * count];
        let input = values(seat, length);
        run(communicator, Verb::AllGather, ReduceOp::Sum, Some(&input), &mut output).expect("gathered");
        assert_eq!(output, expected);
        let mut output = vec![-1.0; length * count];
        output[seat * length..(seat + 1) * length].copy_from_slice(&input);
        run(communicator, Verb::AllGather, ReduceOp::Sum, None, &mut output).expect("in place");
        assert_eq!(output, expected);
        for root in 0..count {
            let mut output = values(seat, length);
            let call =
                Call::new(Verb::Broadcast, Dtype::F64, ReduceOp::Sum, root, None, SpanMut::of(&mut output));
            communicator.run(call, &patience()).expect("broadcast");
            assert_eq!(output, values(root, length));
        }
    }
    run::<u8>(communicator, Verb::Barrier, ReduceOp::Sum, None, &mut []).expect("all have come");
}

/// Every element type, at an odd address.
fn all_types(communicator: &dyn Communicator) {
    let (seat, count) = (communicator.seat(), communicator.count());
    for dtype in Dtype::ALL {
        for op in ReduceOp::ALL {
            let bytes = dtype.size_bytes() * 33;
            let mut memory = vec![0u8; bytes + 1];
            let mut whole = SpanMut::of(&mut memory);
            let output = whole.part(1..bytes + 1).expect("within");
            let call = Call::new(Verb::AllReduce, *dtype, *op, 0, None, output);
            match communicator.run(call, &patience()) {
                Ok(()) => assert!(memory.iter().all(|byte| *byte == 0), "zeros stay zeros"),
                Err(Error::Unsupported { .. }) => assert!(dtype.is_float() || *dtype == Dtype::Bool),
                Err(error) => panic!("{op} of {dtype}: {error}"),
            }
        }
    }
    let mut numbers = vec![seat as i32 + 1; 5000];
    run(communicator, Verb::AllReduce, ReduceOp::Product, None, &mut numbers).expect("multiplied");
    assert!(numbers.iter().all(|number| *number == (1..=count as i32).product::<i32>()));
    let mut bits = vec![1u64 << seat; 3000];
    run(communicator, Verb::AllReduce, ReduceOp::BitwiseXor, None, &mut bits).expect("combined");
    assert!(bits.iter().all(|bits| *bits == (1 << count) - 1));
}

fn disagreements(communicator: &dyn Communicator) {
    let (seat, count) = (communicator.seat(), communicator.count());
    if count == 1 {
        return;
    }
    let odd = seat == count - 1;
    let call = |case: usize, output: SpanMut<'_>| {
        let mut call = Call {
            site: Site::named("member.rs", 10 * case as u32 + seat as u32 + 1),
            ..Call::new(Verb::AllReduce, Dtype::F32, ReduceOp::Sum, 0, None, output)
        };
        match case {
            1 if odd => call.dtype = Dtype::I32,
            2 if odd => call.op = ReduceOp::Max,
            3 => {
                call.verb = Verb::Broadcast;
                call.root = usize::from(odd);
            }
            4 if odd => call.verb = Verb::Broadcast,
            _ => {}
        }
        communicator.run(call, &patience())
    };
    for length in [100, 20_000] {
        for case in 0..5 {
            let mut numbers = vec![seat as f32; length + usize::from(case == 0 && odd)];
            let error = call(case, SpanMut::of(&mut numbers)).expect_err("the members disagree");
            let Error::Disagreed { index, mine, theirs, .. } = &error else { panic!("{error}") };
            assert_eq!(*index, if odd { 0 } else { count - 1 }, "{error}");
            assert!(mine.contains(" #") && theirs.contains(" #"), "both calls are named: {error}");
            let site = |seat: usize| format!(" at member.rs:{}", 10 * case + seat + 1);
            assert!(mine.contains(&format!("{}, index {seat}", site(seat))), "{error}");
            assert!(theirs.ends_with(&site(*index)), "both places are named: {error}");
            assert!(numbers.iter().all(|number| *number == seat as f32), "the payload is untouched");
            let mut right = vec![value(seat, 3); length];
            run(communicator, Verb::AllReduce, ReduceOp::Max, None, &mut right).expect("the group goes on");
            assert!(right.iter().all(|number| *number == value(count - 1, 3)));
        }
    }
}

fn refusals(communicator: &dyn Communicator) {
    let count = communicator.count();
    let refused = |result: Result<(), Error>| {
        let error = result.expect_err("a wrong call");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    };
    let mut output = vec![0.0f32; 4 * count];
    refused(run(communicator, Verb::AllReduce, ReduceOp::Sum, Some(&[1.0f32][..]), &mut output));
    refused(run(communicator, Verb::AllGather, ReduceOp::Sum, Some(&[1.0f32][..]), &mut output));
    refused(run(communicator, Verb::ReduceScatter, ReduceOp::Sum, None, &mut output));
    refused(run(communicator, Verb::Barrier, ReduceOp::Sum, None, &mut output));
    let wrong = |root: usize, output: SpanMut<'_>| {
        let (verb, dtype, op) = (Verb::Broadcast, Dtype::F64, ReduceOp::Sum);
        communicator.run(Call::new(verb, dtype, op, root, None, output), &patience())
    };
    refused(wrong(count, SpanMut::of(&mut [0.0f64])));
    refused(wrong(0, SpanMut::of(&mut [0.0f32])));
    // None of these took a number: the group is in step.
    run::<u8>(communicator, Verb::Barrier, ReduceOp::Sum, None, &mut []).expect("all have come");
}

fn arenas(communicator: &dyn Communicator, is_shared: bool) {
    let (seat, count) = (communicator.seat(), communicator.count());
    for round in 0..2 {
        let size = |seat: usize| seat * 5000 + round;
        let arena = communicator.arena(size(seat), &patience()).expect("memory is free");
        assert_eq!(arena.seat(), seat);
        let mut own = arena.part_mut(seat).expect("a seat");
        own.copy_from(Span::of(&vec![seat as u8 + 1; size(seat)])).expect("equal lengths");
        run::<u8>(communicator, Verb::Barrier, ReduceOp::Sum, None, &mut []).expect("all have written");
        for other in 0..count {
            match arena.part(other) {
                Some(part) => assert_eq!(part.to_vec(), vec![other as u8 + 1; size(other)]),
                None => assert!(!is_shared && other != seat, "the own part is always seen"),
            }
        }
        assert!(arena.part(count).is_none());
        run::<u8>(communicator, Verb::Barrier, ReduceOp::Sum, None, &mut []).expect("all have read");
        // An array in shared memory is an array like another.
        let numbers = communicator.arena(8 * 3001, &patience()).expect("memory is free");
        let mut part = numbers.part_mut(seat).expect("a seat");
        part.copy_from(Span::of(&values(seat, 3001))).expect("equal lengths");
        let output = numbers.part_mut(seat).expect("a seat");
        let (verb, dtype, op) = (Verb::AllReduce, Dtype::F64, ReduceOp::Max);
        communicator.run(Call::new(verb, dtype, op, 0, None, output), &patience()).expect("reduced");
        let expected = values(count - 1, 3001);
        assert_eq!(numbers.part(seat).expect("a seat").to_vec(), Span::of(&expected).to_vec());
    }
    mixed_places(communicator);
    verbs_in_arenas(communicator);
    if seat == count - 1 {
        let error = communicator.arena(usize::MAX / 4, &patience()).err().expect("too much");
        assert!(matches!(error, Error::Exhausted { .. }), "{error}");
    } else {
        let error = communicator.arena(10, &patience()).err().expect("one had not enough");
        assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        assert!(error.to_string().contains(&format!("index {}", count - 1)), "{error}");
    }
}

/// Arrays in one arena at different offsets, in two arenas, and in private memory beside shared memory.
fn mixed_places(communicator: &dyn Communicator) {
    const LENGTH: usize = 2500;
    let (seat, count) = (communicator.seat(), communicator.count());
    let arenas = [0, 1].map(|_| communicator.arena(8 * 6000, &patience()).expect("memory is free"));
    for case in 0..4 {
        let mut private = values(seat, LENGTH);
        let (arena, start) = match case {
            0 => (Some(0), 8 * 100),
            1 => (Some(0), 8 * seat),
            2 => (Some(seat % 2), 16),
            _ => (if seat == 0 { None } else { Some(1) }, 24),
        };
        let mut part = arena.and_then(|arena: usize| arenas[arena].part_mut(seat));
        let mut output = match &mut part {
            Some(part) => part.part(start..start + 8 * LENGTH).expect("within"),
            None => SpanMut::of(&mut private),
        };
        output.copy_from(Span::of(&values(seat, LENGTH))).expect("equal lengths");
        let (verb, dtype, op) = (Verb::AllReduce, Dtype::F64, ReduceOp::Average);
        let call = Call::new(verb, dtype, op, 0, None, output.reborrow());
        communicator.run(call, &patience()).expect("reduced");
        let average = |position| (0..count).map(|seat| value(seat, position)).sum::<f64>() / count as f64;
        let expected = (0..LENGTH).map(average).collect::<Vec<_>>();
        assert_eq!(output.as_span().to_vec(), Span::of(&expected).to_vec(), "case {case}");
    }
}

/// Every verb of equal parts but all_reduce: all arrays in an arena, one member's input not, no output, some of both, in place.
fn verbs_in_arenas(communicator: &dyn Communicator) {
    const LENGTH: usize = 1100;
    let (seat, count) = (communicator.seat(), communicator.count());
    let whole = LENGTH * count;
    let arena = communicator.arena(8 * (2 * whole + count), &patience()).expect("memory is free");
    let verbs = [
        Verb::Broadcast,
        Verb::Reduce,
        Verb::ReduceScatter,
        Verb::AllGather,
        Verb::Gather,
        Verb::Scatter,
        Verb::AllToAll,
    ];
    for (case, verb) in (0..5).flat_map(|case| verbs.map(|verb| (case, verb))) {
        let root = case % count;
        let is_root = seat == root;
        let input_length = match verb {
            Verb::Broadcast => None,
            Verb::AllGather if case == 4 => None,
            Verb::Scatter => is_root.then_some(whole),
            Verb::ReduceScatter | Verb::AllToAll => Some(whole),
            _ => Some(LENGTH),
        };
        let output_length = match verb {
            Verb::Reduce | Verb::Gather if !is_root => 0,
            Verb::AllGather | Verb::Gather | Verb::AllToAll => whole,
            _ => LENGTH,
        };
        let (is_input_shared, is_output_shared) = match case {
            1 => (seat != 0, true),
            2 => (true, false),
            3 => (seat % 2 == 0, seat % 2 == 1),
            _ => (true, true),
        };
        let mut private_input = values(seat, input_length.unwrap_or(0));
        let mut shared_input = arena.part_mut(seat).expect("a seat");
        let mut input = if is_input_shared {
            shared_input.part(8 * seat..8 * (seat + private_input.len())).expect("within")
        } else {
            SpanMut::of(&mut private_input)
        };
        input.copy_from(Span::of(&values(seat, input_length.unwrap_or(0)))).expect("equal lengths");
        let mut before = vec![-1.0; output_length];
        match verb {
            Verb::Broadcast => before = values(seat, LENGTH),
            Verb::AllGather => before[seat * LENGTH..][..LENGTH].copy_from_slice(&values(seat, LENGTH)),
            _ => {}
        }
        let mut private_output = before.clone();
        let mut shared_output = arena.part_mut(seat).expect("a seat");
        let start = 8 * (whole + count);
        let mut output = if is_output_shared {
            shared_output.part(start..start + 8 * output_length).expect("within")
        } else {
            SpanMut::of(&mut private_output)
        };
        output.copy_from(Span::of(&before)).expect("equal lengths");
        let given = input_length.map(|_| input.as_span());
        let call = Call::new(verb, Dtype::F64, ReduceOp::Sum, root, given, output.reborrow());
        communicator.run(call, &patience()).expect("all bring the same");
        let sum = |position: usize| (0..count).map(|seat| value(seat, position)).sum::<f64>();
        let expected = (0..output_length).map(|position| match verb {
            Verb::Broadcast => value(root, position),
            Verb::Reduce => sum(position),
            Verb::ReduceScatter => sum(seat * LENGTH + position),
            Verb::Scatter => value(root, seat * LENGTH + position),
            Verb::AllToAll => value(position / LENGTH, seat * LENGTH + position % LENGTH),
            _ => value(position / LENGTH, position % LENGTH),
        });
        let expected = expected.collect::<Vec<_>>();
        assert!(output.as_span().to_vec() == Span::of(&expected).to_vec(), "{verb:?} in case {case}");
    }
}

/// Everything that one member does; `is_shared` if all members see each other's arenas.
pub(crate) fn suite(communicator: &dyn Communicator, is_shared: bool) {
    reduces(communicator);
    gathers(communicator);
    all_types(communicator);
    disagreements(communicator);
    refusals(communicator);
    arenas(communicator, is_shared);
    parts::suite(communicator);
}

fn member(index: usize, count: usize, argument: &str) {
    let piece_bytes = argument.parse().expect("a number");
    let communicator = members::join(&harness::folder(), index, count, piece_bytes);
    suite(&*communicator, true);
    communicator.close();
}

#[test]
fn threads_of_one_process_conform() {
    for count in COUNTS {
        for piece_bytes in [TINY, 512 << 10] {
            members::threads(count, piece_bytes, |communicator| suite(&*communicator, true));
            members::network_threads(count, piece_bytes, |communicator| suite(&*communicator, false));
        }
    }
}

#[test]
fn members_of_several_hosts_conform() {
    for hosts in [&[0, 1][..], &[0, 0, 1], &[0, 1, 0, 1], &[0, 0, 1, 1, 1, 2, 2]] {
        for piece_bytes in [TINY, 512 << 10] {
            members::tiered_threads(hosts, piece_bytes, |communicator| suite(&*communicator, false));
        }
    }
}

/// Reports tell it: what passes through stages advances piece by piece, what is read where it lies as a whole.
#[test]
fn arrays_of_an_arena_pass_through_no_stage() {
    /// A report is due once this has passed since the last one.
    const DUE: Duration = Duration::from_millis(60);
    const ENOUGH: usize = 3;
    let reports = |communicator: &dyn Communicator, output: SpanMut<'_>| {
        let count = AtomicUsize::new(0);
        let tell = |_: u64, _: u64| {
            if count.fetch_add(1, Ordering::Relaxed) < ENOUGH {
                std::thread::sleep(DUE);
            }
        };
        let progress = Progress::new(&tell);
        progress.start(output.byte_count() as u64);
        std::thread::sleep(DUE);
        let call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, output);
        communicator.run(Call { progress: Some(progress), ..call }, &patience()).expect("reduced");
        count.into_inner()
    };
    members::threads(2, TINY, |communicator| {
        let seat = communicator.seat();
        let arena = communicator.arena(8 * 3000, &patience()).expect("memory is free");
        assert_eq!(reports(&*communicator, arena.part_mut(seat).expect("a seat")), 1, "in an arena");
        let private = reports(&*communicator, SpanMut::of(&mut values(seat, 3000)));
        assert!(private >= ENOUGH, "{private} reports of a private array");
    });
}

/// Within a host in the order of seats, then host by host: the same bits whether an array is small or large.
#[test]
fn sums_over_hosts_have_one_order_at_any_size() {
    let hosts = [0, 1, 0, 1, 1];
    let own = |seat: usize, length: usize| {
        (0..length).map(|position| ((position + 7 * seat) as f32).sin() * 1e7).collect::<Vec<_>>()
    };
    for length in [501, 50_021] {
        let results = members::tiered_threads(&hosts, 4096, |communicator| {
            let mut numbers = own(communicator.seat(), length);
            run(&*communicator, Verb::AllReduce, ReduceOp::Sum, None, &mut numbers).expect("reduced");
            let mut averages = own(communicator.seat(), length);
            run(&*communicator, Verb::AllReduce, ReduceOp::Average, None, &mut averages).expect("reduced");
            (numbers, averages)
        });
        let all = (0..hosts.len()).map(|seat| own(seat, length)).collect::<Vec<_>>();
        for position in 0..length {
            let at = |seat: usize| all[seat][position];
            let expected = (at(0) + at(2)) + (at(1) + at(3) + at(4));
            for (numbers, averages) in &results {
                assert_eq!(numbers[position].to_bits(), expected.to_bits(), "{position} of {length}");
                assert_eq!(
                    averages[position].to_bits(),
                    (expected / 5.0).to_bits(),
                    "{position} of {length}"
                );
            }
        }
    }
}

#[test]
fn processes_conform() {
    for count in COUNTS {
        let deadline = Duration::from_secs(120);
        let outcomes = harness::processes(count, "communicator.suite", &TINY.to_string(), deadline);
        harness::assert_all_succeeded(&outcomes);
    }
}

#[test]
fn both_bits_and_order_are_the_same_on_all() {
    let add = |communicator: &dyn Communicator| {
        let seat = communicator.seat() as f32;
        let mut numbers = (0..5001).map(|position| (position as f32 + seat).sin() * 1e7).collect::<Vec<_>>();
        let own = numbers.clone();
        run(communicator, Verb::AllReduce, ReduceOp::Sum, None, &mut numbers).expect("reduced");
        (own, numbers)
    };
    let shared = members::threads(3, TINY, |communicator| add(&*communicator));
    for results in [shared, members::network_threads(3, TINY, |communicator| add(&*communicator))] {
        for position in 0..5001 {
            let expected = results[0].0[position] + results[1].0[position] + results[2].0[position];
            for (_, numbers) in &results {
                assert_eq!(numbers[position].to_bits(), expected.to_bits());
            }
        }
    }
}
