//! Arrays of every kind on meshes of real processes: strided, overlapping, in lists; and reductions with reproducible bits.

use std::ops::Range;
use std::time::Duration;

use uform::communicator::{Call, Communicator};
use uform::sys::{Deadline, Layout, Span, SpanMut};
use uform::{Dtype, Error, Mesh, ReduceOp, Verb};

use super::members::{self, patience};
use crate::harness::{self, Role};

/// The roles of this file.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("arrays.strided", strided), ("arrays.overlap", overlap), ("arrays.lists", lists)];

fn long() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(180))
}

fn bootstrap() -> Mesh {
    Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn value(index: usize, position: usize) -> f64 {
    index as f64 * 1e6 + position as f64
}

/// Memory in which `values` lie `step` elements apart, from the end where that is negative, and zeros between.
fn spread(values: &[f64], step: isize) -> (Vec<f64>, Layout) {
    let layout = Layout::new(&[values.len()], &[8 * step], 8).expect("small");
    let mut memory = vec![0.0; layout.extent_bytes() / 8];
    for (position, value) in values.iter().enumerate() {
        memory[(layout.offset() as isize / 8 + position as isize * step) as usize] = *value;
    }
    (memory, layout)
}

/// The elements of such memory, and whether what lies between is untouched.
fn gathered(memory: &[f64], layout: &Layout, length: usize, step: isize) -> (Vec<f64>, bool) {
    let place = |position: usize| (layout.offset() as isize / 8 + position as isize * step) as usize;
    let places = (0..length).map(place).collect::<Vec<_>>();
    let untouched = (0..memory.len()).all(|place| places.contains(&place) || memory[place] == 0.0);
    (places.into_iter().map(|place| memory[place]).collect(), untouched)
}

/// Every verb gives through strides what it gives without.
fn strided(_index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    let (index, count) = (mesh.index(), mesh.count());
    let root = count - 1;
    for length in [0, 1, 7, 1009] {
        for (in_step, out_step) in [(2, 1), (1, -1), (-3, 2)] {
            for (verb, in_parts, out_parts) in [
                (Verb::AllReduce, 1, 1),
                (Verb::Reduce, 1, 1),
                (Verb::Broadcast, 1, 1),
                (Verb::AllGather, 1, count),
                (Verb::ReduceScatter, count, 1),
                (Verb::AllToAll, count, count),
                (Verb::Gather, 1, count),
                (Verb::Scatter, count, 1),
            ] {
                let given = (0..length * in_parts).map(|at| value(index, at)).collect::<Vec<_>>();
                let before = vec![-5.0; length * out_parts];
                let mut expected = before.clone();
                let plain = (Some(Span::of(&given)), SpanMut::of(&mut expected));
                let call = Call::of::<f64>(verb, ReduceOp::Sum, root, plain.0, plain.1);
                mesh.run(call, &long()).expect("contiguous");
                let (input, input_layout) = spread(&given, in_step);
                let (mut output, output_layout) = spread(&before, out_step);
                let call = Call::of::<f64>(
                    verb,
                    ReduceOp::Sum,
                    root,
                    Some(Span::of(&input)),
                    SpanMut::of(&mut output),
                );
                let layouts = (Some(&input_layout), Some(&output_layout));
                let call = Call { input_layout: layouts.0, output_layout: layouts.1, ..call };
                mesh.run(call, &long()).expect("strided");
                let (found, untouched) = gathered(&output, &output_layout, length * out_parts, out_step);
                assert_eq!(found, expected, "{verb:?} of {length} by {in_step} to {out_step}");
                assert!(untouched, "{verb:?} of {length}");
            }
            let own = (0..length).map(|at| value(index, at)).collect::<Vec<_>>();
            let (mut output, layout) = spread(&own, out_step);
            let call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Max, 0, None, SpanMut::of(&mut output));
            mesh.run(Call { output_layout: Some(&layout), ..call }, &long()).expect("in place");
            let (found, untouched) = gathered(&output, &layout, length, out_step);
            assert!(untouched && found.iter().enumerate().all(|(at, found)| *found == value(count - 1, at)));
        }
    }
    let mut once = [0.0_f64];
    let repeats = Layout::new(&[3], &[0], 8).expect("small");
    let call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut once));
    let error =
        mesh.run(Call { output_layout: Some(&repeats), ..call }, &long()).expect_err("written thrice");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    mesh.barrier().expect("usable");
}

/// The same memory is in place, memory apart is apart, and all else is refused before anything moves.
fn overlap(_index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    let (index, count) = (mesh.index(), mesh.count());
    let length = 40 * count;
    let arena = mesh.arena(8 * length, &long()).expect("small");
    let fill = || {
        let values = (0..length).map(|at| value(index, at)).collect::<Vec<_>>();
        arena.own(0..8 * length).expect("its part").copy_from(Span::of(&values)).expect("as long");
    };
    let read = || {
        let mut values = vec![0.0_f64; length];
        SpanMut::of(&mut values).copy_from(arena.part(index).expect("its part")).expect("as long");
        values
    };
    let sum = |at: usize| (0..count).map(|index| value(index, at)).sum::<f64>();
    let run = |verb, input: Range<usize>, output: Range<usize>| {
        let given = arena.part(index).expect("its part").part(input.start * 8..input.end * 8);
        let output = arena.own(output.start * 8..output.end * 8).expect("within");
        let call = Call::of::<f64>(verb, ReduceOp::Sum, 0, Some(given.expect("within")), output);
        mesh.run(call, &long())
    };
    fill();
    run(Verb::AllReduce, 0..10, 0..10).expect("in place");
    run(Verb::AllReduce, 10..15, 15..20).expect("beside each other");
    let memory = read();
    assert!((0..10).all(|at| memory[at] == sum(at)) && memory[10] == value(index, 10));
    assert!((15..20).all(|at| memory[at] == sum(at - 5)));
    for (input, output) in [(20..30, 21..31), (21..31, 20..30)] {
        let text = run(Verb::AllReduce, input, output).expect_err("overlaps").to_string();
        assert!(text.starts_with("array = 0x") && text.contains("overlaps out, 0x"), "{text}");
    }
    assert_eq!(read(), memory);
    fill();
    run(Verb::AllToAll, 0..4 * count, 0..4 * count).expect("in place");
    let memory = read();
    assert!((0..4 * count).all(|at| memory[at] == value(at / 4, 4 * index + at % 4)));
    fill();
    run(Verb::AllGather, 4 * index..4 * index + 4, 0..4 * count).expect("its own part");
    let memory = read();
    assert!((0..4 * count).all(|at| memory[at] == value(at / 4, at)));
    // Elements between each other are apart.
    fill();
    let every_other = Layout::new(&[5], &[16], 8).expect("small");
    let given = arena.part(index).expect("its part").part(0..72).expect("within");
    let output = arena.own(8..80).expect("within");
    let call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, Some(given), output);
    let layouts = (Some(&every_other), Some(&every_other));
    mesh.run(Call { input_layout: layouts.0, output_layout: layouts.1, ..call }, &long()).expect("apart");
    let memory = read();
    assert!((0..5).all(|at| memory[2 * at] == value(index, 2 * at) && memory[2 * at + 1] == sum(2 * at)));
    mesh.barrier().expect("usable");
}

/// Many arrays are one call, whose lengths are compared.
fn lists(_index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    let (index, count) = (mesh.index(), mesh.count());
    for lengths in [&[][..], &[0], &[5], &[1, 0, 7, 30_011], &[3; 100]] {
        let all = lengths.iter().map(|length| (0..*length).map(|at| value(index, at)).collect::<Vec<_>>());
        let mut all = all.collect::<Vec<_>>();
        let mut views = all.iter_mut().map(|array| &mut array[..]).collect::<Vec<_>>();
        mesh.all_reduce_many(&mut views, ReduceOp::Sum).expect("reduced");
        let sum = |at: usize| (0..count).map(|index| value(index, at)).sum::<f64>();
        assert!(all.iter().all(|array| array.iter().enumerate().all(|(at, found)| *found == sum(at))));
        let mut own = lengths.iter().map(|length| vec![index as i32; *length]).collect::<Vec<_>>();
        let mut views = own.iter_mut().map(|array| &mut array[..]).collect::<Vec<_>>();
        mesh.broadcast_many(&mut views, count - 1).expect("broadcast");
        assert!(own.iter().flatten().all(|found| *found == count as i32 - 1));
        let deferred =
            mesh.deferred(None).all_reduce_many(own, ReduceOp::Max).wait(&long()).expect("reduced");
        assert!(deferred.iter().flatten().all(|found| *found == count as i32 - 1));
    }
    // Several element types.
    let (mut floats, mut bytes) = (vec![index as f32; 9], vec![index as u8; 4]);
    let floats_call = Call::of::<f32>(Verb::AllReduce, ReduceOp::Max, 0, None, SpanMut::of(&mut floats));
    let bytes_call = Call::of::<u8>(Verb::AllReduce, ReduceOp::Max, 0, None, SpanMut::of(&mut bytes));
    mesh.run_many(Verb::AllReduce, vec![floats_call, bytes_call], &long()).expect("reduced");
    assert!(floats == vec![count as f32 - 1.0; 9] && bytes == vec![count as u8 - 1; 4]);
    // As many elements in all, cut in another way.
    if count > 1 {
        let (mut one, mut two) = (vec![0.0_f32; 3 + index.min(1)], vec![0.0_f32; 4 - index.min(1)]);
        let error = mesh.all_reduce_many(&mut [&mut one[..], &mut two[..]], ReduceOp::Sum);
        let text = error.expect_err("cut in another way").to_string();
        assert!(text.contains("the counts"), "{text}");
        let mut numbers = vec![0.0_f32; 4];
        let call = Call::of::<f32>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut numbers));
        let error = mesh.run(Call { reproducible: index == 0, ..call }, &long()).expect_err("one alone");
        assert!(
            matches!(&error, Error::Disagreed { field, .. } if field.contains("reproducible")),
            "{error}"
        );
    }
    let mut numbers = [0.0_f32; 8];
    let call = Call::of::<f32>(Verb::AllGather, ReduceOp::Sum, 0, None, SpanMut::of(&mut numbers));
    assert!(mesh.run_many(Verb::AllGather, vec![call], &long()).is_err());
    mesh.barrier().expect("usable");
}

fn in_processes(role: &str) {
    for count in [1, 2, 3] {
        harness::assert_all_succeeded(&harness::processes(count, role, "", Duration::from_secs(180)));
    }
}

#[test]
fn strided_arrays_go_through_every_verb() {
    in_processes("arrays.strided");
}

#[test]
fn overlap_is_in_place_or_refused() {
    in_processes("arrays.overlap");
}

#[test]
fn lists_of_arrays_are_one_call() {
    in_processes("arrays.lists");
}

/// Values whose sum depends on the order in which they are added.
fn own(seat: usize, length: usize) -> Vec<f32> {
    (0..length)
        .map(|position| ((position + 7 * seat) as f32).sin() * 10_f32.powi(3 + 2 * (seat % 3) as i32))
        .collect()
}

fn sums(communicator: &dyn Communicator, reproducible: bool, length: usize) -> Vec<Vec<u32>> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    [ReduceOp::Sum, ReduceOp::Average]
        .map(|op| {
            let mut numbers = own(communicator.seat(), length);
            let call = Call::new(Verb::AllReduce, Dtype::F32, op, 0, None, SpanMut::of(&mut numbers));
            communicator.run(Call { reproducible, ..call }, &patience()).expect("reduced");
            bits(numbers)
        })
        .to_vec()
}

/// The same bits over any transport, cut in any pieces, and for any spread over hosts: those of the order of indexes.
#[test]
fn reproducible_bits_depend_on_nothing_but_the_values() {
    for (count, spreads) in [
        (1, vec![]),
        (2, vec![vec![0, 1]]),
        (3, vec![vec![0, 0, 1], vec![0, 1, 0]]),
        (4, vec![vec![0, 0, 1, 1], vec![0, 1, 0, 1], vec![0, 1, 1, 1]]),
        (5, vec![vec![0, 1, 0, 1, 1], vec![0, 0, 1, 1, 2]]),
    ] {
        for length in [1, 501, 50_021] {
            let all = (0..count).map(|seat| own(seat, length)).collect::<Vec<_>>();
            let sum = |at: usize| all.iter().skip(1).fold(all[0][at], |sum, values| sum + values[at]);
            let sum = (0..length).map(sum).collect::<Vec<_>>();
            let average = sum.iter().map(|sum| (sum / count as f32).to_bits()).collect::<Vec<_>>();
            let expected = vec![sum.iter().map(|sum| sum.to_bits()).collect::<Vec<_>>(), average];
            let check = |results: Vec<Vec<Vec<u32>>>, what: &str| {
                assert!(results.iter().all(|found| *found == expected), "{what}, {count} of {length}");
            };
            for piece_bytes in [4096, 512 << 10] {
                check(members::threads(count, piece_bytes, |member| sums(&*member, true, length)), "shared");
                // One host without tiers needs no flag.
                check(
                    members::threads(count, piece_bytes, |member| sums(&*member, false, length)),
                    "default",
                );
                check(
                    members::network_threads(count, piece_bytes, |member| sums(&*member, true, length)),
                    "tcp",
                );
                for spread in &spreads {
                    let found =
                        members::tiered_threads(spread, piece_bytes, |member| sums(&*member, true, length));
                    check(found, &format!("{spread:?}"));
                }
            }
        }
    }
}

/// Without the flag all members and all runs get the same bits for one spread.
#[test]
fn default_bits_are_the_same_on_all_members_and_in_every_run() {
    let run =
        |pieces| members::tiered_threads(&[0, 1, 0, 1, 1], pieces, |member| sums(&*member, false, 50_021));
    let first = run(4096);
    for results in [run(4096), run(512 << 10)] {
        assert!(results.iter().all(|found| *found == first[0]));
    }
}
