//! Executors of several threads: all of them work on large calls over shared memory, and no bit depends on how many they are.

use std::time::Duration;

use half::bf16;
use uform::communicator::{Call, Communicator, SharedArena};
use uform::sys::crew::Crew;
use uform::sys::{Element, Span, SpanMut};
use uform::{Deadline, Executor, HostOptions, Mesh, Mood, ReduceOp, Verb};

use super::members::{self, patience};
use crate::harness::{self, Role, assert_all_succeeded};

/// The roles of this file.
pub(crate) const ROLES: &[(&str, Role)] = &[("threads.work", work)];

const MINUTES: Duration = Duration::from_secs(180);
const VERBS: [Verb; 8] = [
    Verb::AllReduce,
    Verb::Reduce,
    Verb::Broadcast,
    Verb::AllGather,
    Verb::ReduceScatter,
    Verb::AllToAll,
    Verb::Gather,
    Verb::Scatter,
];

/// A number whose sums with others depend on their order: magnitudes from 2^-20 to 2^20, either sign.
fn number(seat: usize, position: usize) -> f64 {
    let mut mixed = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((seat as u64 + 1) << 40);
    mixed ^= mixed >> 31;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let fraction = 1.0 + (mixed >> 12) as f64 / (1_u64 << 52) as f64;
    let sign = if mixed & 1 == 0 { 1.0 } else { -1.0 };
    sign * fraction * ((mixed >> 1 & 63) as f64 % 41.0 - 20.0).exp2()
}

/// Runs `act` with a crew of so many threads; none for one.
fn with_crew<R>(threads: usize, act: impl FnOnce(Option<&Crew>) -> R) -> R {
    let crew = Crew::new(threads, true);
    std::thread::scope(|scope| {
        let _ending = crew.ending();
        (1..threads).for_each(|_| drop(scope.spawn(|| crew.help())));
        act((threads > 1).then_some(&crew))
    })
}

/// One call of a verb on the first of these numbers, as many a part as `numbers` has for each member; what this member gets.
fn call<T: Element>(
    group: &dyn Communicator,
    arena: Option<&dyn SharedArena>,
    (verb, reproducible): (Verb, bool),
    numbers: &[T],
    threads: usize,
) -> Vec<u8> {
    let (seat, count) = (group.seat(), group.count());
    let (root, size, length) = (count - 1, size_of::<T>(), numbers.len() / count);
    let (in_parts, out_parts) = match verb {
        Verb::AllGather | Verb::Gather => (1, count),
        Verb::ReduceScatter | Verb::Scatter => (count, 1),
        Verb::AllToAll => (count, count),
        _ => (1, 1),
    };
    let is_root = seat == root;
    let given = &numbers[..length * in_parts];
    // In place at the root of a reduction, and in every all_reduce of an arena.
    let is_in_place = match verb {
        Verb::Broadcast => true,
        Verb::Reduce => is_root,
        Verb::AllReduce => arena.is_some(),
        _ => false,
    };
    let has_output = is_root || !matches!(verb, Verb::Reduce | Verb::Gather);
    let has_input = !is_in_place && (is_root || verb != Verb::Scatter);
    let out_length = if has_output { length * out_parts } else { 0 };
    let mut private = vec![numbers[0]; out_length];
    let (input_end, output_end) = (given.len() * size, (given.len() + out_length) * size);
    let mut shared_input = arena.map(|arena| arena.part_mut(seat).expect("a seat"));
    let mut shared_output = arena.map(|arena| arena.part_mut(seat).expect("a seat"));
    let input = match &mut shared_input {
        Some(whole) => {
            let mut part = whole.part(0..input_end).expect("large enough");
            part.copy_from(Span::of(given)).expect("equal lengths");
            part.into_span()
        }
        None => Span::of(given),
    };
    let mut output = match &mut shared_output {
        Some(whole) => whole.part(input_end..output_end).expect("large enough"),
        None => SpanMut::of(&mut private),
    };
    if is_in_place {
        output.copy_from(Span::of(given)).expect("equal lengths");
    }
    with_crew(threads, |crew| {
        let input = has_input.then_some(input);
        let call = Call::of::<T>(verb, ReduceOp::Sum, root, input, output.reborrow());
        let kernels = uform::sys::kernel::Table::best();
        group.run(Call { reproducible, kernels, crew, ..call }, &patience()).expect("all call the same");
    });
    output.as_span().to_vec()
}

fn same_bits<T: Element>(group: &dyn Communicator, make: fn(f64) -> T) {
    let (seat, count) = (group.seat(), group.count());
    // Rounds of whole stages, one that is shorter, and shares that no piece divides.
    for length in [70_001, 301_003] {
        let room = 2 * length * count * size_of::<T>();
        let arena = group.arena(room, &patience()).expect("memory is free");
        let numbers = (0..length * count).map(|at| make(number(seat, at))).collect::<Vec<_>>();
        for verb in VERBS {
            for place in [None, Some(&*arena)] {
                for reproducible in [false, true] {
                    let [one, two, three] =
                        [1, 2, 3].map(|threads| call(group, place, (verb, reproducible), &numbers, threads));
                    let what = format!("{verb:?} of {length} {}, arena {}", T::DTYPE, place.is_some());
                    assert!(one == two && one == three, "{what}: seat {seat} of {count}");
                    assert!(matches!(verb, Verb::Reduce | Verb::Gather) || !one.is_empty(), "{what}");
                    // And they are those of the sum in the order of seats, where that is easily said.
                    if verb == Verb::AllReduce && T::DTYPE == uform::Dtype::F64 {
                        let sum =
                            |at: usize| (1..count).fold(number(0, at), |sum, seat| sum + number(seat, at));
                        let expected = (0..length).map(sum).collect::<Vec<_>>();
                        assert!(one == Span::of(&expected).to_vec(), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn members_that_are_threads_get_the_same_bits_from_one_two_and_three_threads() {
    for (count, piece_bytes) in [(2, 1 << 20), (3, 256 << 10)] {
        members::threads(count, piece_bytes, |group| {
            same_bits::<f32>(&*group, |number| number as f32);
            same_bits::<f64>(&*group, |number| number);
            same_bits::<bf16>(&*group, bf16::from_f64);
        });
    }
}

#[test]
fn one_member_alone_copies_the_same_bytes() {
    members::threads(1, 1 << 16, |group| same_bits::<f32>(&*group, |number| number as f32));
}

fn executor(threads: usize) -> Executor {
    let options = HostOptions { threads, deferred_limit: 4, ..HostOptions::default() };
    Executor::for_ram(&options).expect("threads can be started")
}

/// The bytes that a mesh on this executor gives, deferred or not.
fn sums(mesh: &Mesh, verb: Verb, is_deferred: bool) -> Vec<f32> {
    let length = 2_400_007;
    let part = length / mesh.count();
    let given = (0..length).map(|at| number(mesh.index(), at) as f32).collect::<Vec<_>>();
    let (short, long) = (vec![0.0_f32; part], vec![0.0_f32; length * mesh.count()]);
    let whole = vec![0.0_f32; part * mesh.count()];
    let deadline = Deadline::after(MINUTES);
    if is_deferred {
        let mesh = mesh.deferred(None);
        let sent = given[..whole.len()].to_vec();
        return match verb {
            Verb::AllReduce => mesh.all_reduce(given, ReduceOp::Sum).wait(&deadline),
            Verb::Reduce => mesh.reduce(given, 0, ReduceOp::Sum).wait(&deadline),
            Verb::Broadcast => mesh.broadcast(given, 0).wait(&deadline),
            Verb::AllGather => mesh.all_gather(given, long).wait(&deadline).map(|(_, out)| out),
            Verb::ReduceScatter => {
                mesh.reduce_scatter(sent, short, ReduceOp::Sum).wait(&deadline).map(|(_, out)| out)
            }
            _ => mesh.all_to_all(sent, whole).wait(&deadline).map(|(_, out)| out),
        }
        .expect("all come");
    }
    let (mut given, mut short, mut long, mut whole) = (given, short, long, whole);
    let sent = given[..whole.len()].to_vec();
    match verb {
        Verb::AllReduce => mesh.all_reduce(&mut given, ReduceOp::Sum).map(|()| given),
        Verb::Reduce => mesh.reduce(&mut given, 0, ReduceOp::Sum).map(|()| given),
        Verb::Broadcast => mesh.broadcast(&mut given, 0).map(|()| given),
        Verb::AllGather => mesh.all_gather(&given, &mut long).map(|()| long),
        Verb::ReduceScatter => mesh.reduce_scatter(&sent, &mut short, ReduceOp::Sum).map(|()| short),
        _ => mesh.all_to_all(&sent, &mut whole).map(|()| whole),
    }
    .expect("all come")
}

/// Every verb on executors of one, two and three threads, parked and busy: the same bits, and the threads of the pool do a part.
fn work(_index: usize, _count: usize, _argument: &str) {
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let executors = [1, 2, 3].map(executor);
    let deadline = Deadline::after(MINUTES);
    for verb in &VERBS[..6] {
        let mut found = None;
        for executor in &executors {
            for is_deferred in [false, true] {
                let sums = sums(&mesh.on(executor), *verb, is_deferred);
                let sums = sums.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert!(*found.get_or_insert_with(|| sums.clone()) == sums, "{verb:?}");
            }
        }
        if mesh.count() == 1 && matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast) {
            continue;
        }
        // A blocking call runs on this thread: what the pool's used, they used for it.
        let used = || executors[1].thread_seconds().expect("the system tells");
        let before = used();
        loop {
            sums(&mesh.on(&executors[1]), *verb, false);
            let mut is_enough = [i32::from(used() - before > 0.01)];
            mesh.all_reduce(&mut is_enough, ReduceOp::Min).expect("all come");
            if is_enough == [1] {
                break;
            }
            assert!(!deadline.passed(), "{verb:?}: the pool does not work");
        }
    }
    let (mesh, executor) = (mesh.on(&executors[1]), &executors[1]);
    for mood in [Mood::Busy, Mood::Parked] {
        executor.drain(mood, &deadline).expect("idle");
        let bits = [false, true].map(|is_deferred| sums(&mesh, Verb::AllReduce, is_deferred));
        assert!(bits[0].iter().zip(&bits[1]).all(|(one, other)| one.to_bits() == other.to_bits()));
    }
    mesh.barrier().expect("all come");
}

#[test]
fn the_threads_of_an_executor_do_a_part_of_large_calls() {
    assert_all_succeeded(&harness::processes(2, "threads.work", "", MINUTES));
    assert_all_succeeded(&harness::processes(1, "threads.work", "", MINUTES));
}
