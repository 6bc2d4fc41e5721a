//! Calls that no careful program makes: one member brings nothing, texts of all lengths, many threads at once, an odd number of members.

use std::time::Duration;

use uform::{Error, Mesh, ReduceOp, Result};

use super::calls::{bootstrap, move_arrays};
use crate::harness::network::Hosts;
use crate::harness::{Role, Setup, assert_all_succeeded};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("odd.nothing", brings_nothing),
    ("odd.unmatched", sends_unmatched),
    ("odd.texts", texts),
    ("odd.threads", threads),
    ("odd.many", many),
];

const MINUTES: Duration = Duration::from_secs(180);
const LENGTH: usize = 5;
const VERBS: [&str; 8] =
    ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"];

/// One call on arrays of so many elements.
fn call(mesh: &Mesh, name: &str, length: usize, root: usize) -> Result<()> {
    let (mut part, mut whole) = (vec![1_i32; length], vec![1_i32; length * mesh.count()]);
    let given = whole.clone();
    match name {
        "all_reduce" => mesh.all_reduce(&mut part, ReduceOp::Sum),
        "reduce" => mesh.reduce(&mut part, root, ReduceOp::Sum),
        "broadcast" => mesh.broadcast(&mut part, root),
        "all_gather" => mesh.all_gather(&part, &mut whole),
        "reduce_scatter" => mesh.reduce_scatter(&given, &mut part, ReduceOp::Sum),
        "all_to_all" => mesh.all_to_all(&given, &mut whole),
        "gather" => mesh.gather(&part, &mut whole, root),
        _ => mesh.scatter(&given, &mut part, root),
    }
}

/// In each verb one member after the other has no elements where all others have some.
fn brings_nothing(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    for name in VERBS {
        for odd in 0..count {
            for root in [odd, (odd + 1) % count] {
                let length = if index == odd { 0 } else { LENGTH };
                let Err(error) = call(&mesh, name, length, root) else {
                    panic!("{name}: index {odd} has no elements, root {root}");
                };
                let Error::Disagreed { field, index: other, .. } = &error else {
                    panic!("{name}: {}", error.chain())
                };
                assert_eq!(field, "the count of a call", "{name}: {error}");
                assert_eq!(*other == odd, index != odd, "{name}: {error}");
                let text = error.to_string();
                assert!(text.matches(&format!("{name} #")).count() == 2, "{text}");
                assert!(text.matches("failure/odd.rs:").count() == 2, "{text}");
                call(&mesh, name, LENGTH, root).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
            }
            call(&mesh, name, 0, odd).unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
        }
    }
    mesh.close().expect("idle");
}

/// Both sides of a message have other lengths, and the next one passes.
fn sends_unmatched(index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    for (sent, received) in [(LENGTH, 0), (0, LENGTH), (LENGTH, LENGTH + 1), (1 << 20, 0), (0, 1 << 20)] {
        for is_right in [false, true] {
            let lengths = if is_right { [sent, sent] } else { [sent, received] };
            let mut array = vec![7_i16; lengths[index]];
            let result = if index == 0 { mesh.send(&array, 1, 3) } else { mesh.receive(&mut array, 0, 3) };
            match result {
                Ok(()) => assert!(is_right || index == 0 && sent * 2 <= 64 << 10, "{sent} and {received}"),
                Err(Error::Disagreed { field, .. }) => {
                    assert!(!is_right && field.contains("message"), "{field}");
                }
                Err(error) => panic!("{sent} and {received}: {}", error.chain()),
            }
            mesh.barrier().unwrap_or_else(|error| panic!("{sent} and {received}: {}", error.chain()));
        }
    }
    mesh.close().expect("idle");
}

/// Texts of no byte, of one, of some that pass through slots, and of many that pass through none.
fn texts(index: usize, count: usize, _argument: &str) {
    const LENGTHS: [usize; 6] = [0, 1, 8191, 65_537, 1 << 20, (17 << 20) + 3];
    let mesh = bootstrap();
    let deadline = Mesh::verb_deadline(0.0).expect("the default");
    let text = |index: usize, round: usize| {
        let length = LENGTHS[(index + round) % LENGTHS.len()];
        (0..length).map(|at| ((at * 31) ^ index ^ round) as u8).collect::<Vec<_>>()
    };
    for round in 0..LENGTHS.len() {
        let heard = mesh.exchange(&text(index, round), &deadline);
        let heard = heard.unwrap_or_else(|error| panic!("{}", error.chain()));
        assert_eq!(heard.len(), count);
        for (other, heard) in heard.iter().enumerate() {
            assert!(*heard == text(other, round), "of index {other} in round {round}");
        }
    }
    mesh.close().expect("idle");
}

/// Several threads of each member call one mesh; those that are refused try again.
fn threads(_index: usize, count: usize, _argument: &str) {
    const THREADS: usize = 4;
    const CALLS: usize = 100;
    let mesh = bootstrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    let mut array = [1_u32; 3];
                    loop {
                        match mesh.all_reduce(&mut array, ReduceOp::Sum) {
                            Ok(()) => break,
                            Err(Error::Contended { .. }) => std::thread::yield_now(),
                            Err(error) => panic!("{}", error.chain()),
                        }
                    }
                    assert_eq!(array, [count as u32; 3]);
                }
            });
        }
    });
    mesh.barrier().expect("all come");
    mesh.close().expect("idle");
}

/// Many members, and parts of parts that overlap.
fn many(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    let lengths = [0, 1, 2, 3, 5, 7, 13, 127, 1009, 4097, 65_537];
    move_arrays(&mesh, &lengths);
    let part = |mesh: &Mesh, color: usize, key: i64| {
        mesh.split(Some(color as u64), key).expect("all come").expect("a color")
    };
    let (rows, columns) = (part(&mesh, index / 3, 0), part(&mesh, index % 3, -(index as i64)));
    assert_eq!(columns.index(), columns.count() - 1 - index / 3);
    for mesh in [&rows, &columns, &rows, &mesh, &columns] {
        move_arrays(mesh, &lengths[..8]);
    }
    let halves = part(&rows, rows.index() % 2, 0);
    move_arrays(&halves, &lengths[..8]);
    let mut sum = [index as u64];
    mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
    assert_eq!(sum, [(count * (count - 1) / 2) as u64]);
    for mesh in [mesh, halves, columns, rows] {
        mesh.close().expect("idle");
    }
}

fn run(count: usize, role: &str) {
    assert_all_succeeded(&Setup::new(count, role).deadline(MINUTES).start().finish());
}

/// The same with members on two hosts.
fn run_apart(places: &[usize], role: &str) {
    let Some(hosts) = Hosts::new(2) else { return };
    let networks = places.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
    let setup = Setup::new(places.len(), role).networks(&networks);
    assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
}

#[test]
fn one_that_brings_no_elements_is_told_by_all_and_the_mesh_goes_on() {
    run(2, "odd.nothing");
    run(5, "odd.nothing");
}

#[test]
fn one_that_brings_no_elements_is_told_by_all_on_other_hosts() {
    run_apart(&[0, 1, 0], "odd.nothing");
    run_apart(&[0, 1], "odd.nothing");
}

#[test]
fn sides_of_a_message_that_differ_in_length_are_told_and_the_next_passes() {
    run(2, "odd.unmatched");
    run_apart(&[0, 1], "odd.unmatched");
}

#[test]
fn texts_of_any_length_are_exchanged() {
    run(5, "odd.texts");
    run_apart(&[0, 1, 1], "odd.texts");
}

#[test]
fn several_threads_of_each_member_call_one_mesh() {
    run(3, "odd.threads");
    run_apart(&[0, 1, 1], "odd.threads");
}

#[test]
fn six_to_nine_members_and_parts_that_overlap_are_right() {
    for count in [6, 7, 8, 9] {
        run(count, "odd.many");
    }
}
