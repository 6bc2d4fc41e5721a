//! Members that call overlapping meshes in crossed order, and wait for each other in a circle: all are told both calls.

use std::time::{Duration, Instant};

use uform::{Deadline, Error, Executor, HostOptions, Mesh, ReduceOp, Result, Status};

use super::calls::bootstrap;
use crate::harness::network::Hosts;
use crate::harness::{Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("crossed.circle", circle), ("crossed.order", order), ("crossed.late", late)];

const MINUTES: Duration = Duration::from_secs(180);
/// Within which all on a circle are promised to raise.
const PROMISE: Duration = Duration::from_secs(3);

/// The mesh of each edge `k` of a ring: of members `k` and `k + 1`; `None` where this member is on neither side.
fn edges(mesh: &Mesh) -> Vec<Option<Mesh>> {
    let (index, count) = (mesh.index(), mesh.count());
    let is_on = |edge: usize| edge == index || (edge + 1) % count == index;
    let split = |edge: usize| mesh.split(is_on(edge).then_some(0), 0).expect("all come");
    (0..count).map(split).collect()
}

/// A small or a large sum on a mesh, called at once or deferred.
fn add(mesh: &Mesh, length: usize) -> Result<()> {
    mesh.all_reduce(&mut vec![1.0_f32; length], ReduceOp::Sum)
}

/// One call of that name on a mesh.
fn call(mesh: &Mesh, verb: &str) -> Result<()> {
    let deadline = Deadline::after(MINUTES);
    match verb {
        "exchange" => mesh.exchange(b"some", &deadline).map(drop),
        "arena" => mesh.arena(64, &deadline).map(drop),
        "split" => mesh.split(Some(0), 0).map(drop),
        _ => add(mesh, 5),
    }
}

/// Each member calls on the edge to the next one first: each waits for the next.
fn circle(index: usize, count: usize, argument: &str) {
    let mesh = bootstrap();
    let options = HostOptions { threads: 1, deferred_limit: 4, ..HostOptions::default() };
    let line = Executor::for_ram(&options).expect("a thread");
    let edges = edges(&mesh);
    let edge = |edge: usize| edges[edge % count].as_ref().expect("a member of it");
    let (first, second) = (edge(index), edge(index + count - 1));
    // Payload has moved on both.
    for edge in edges.iter().flatten() {
        add(edge, 3).expect("all come");
    }
    mesh.barrier().expect("all come");
    let start = Instant::now();
    let errors = match argument {
        "deferred" => {
            let calls = [first, second]
                .map(|mesh| mesh.deferred(Some(&line)).all_reduce(vec![1.0_f32; 5000], ReduceOp::Sum));
            calls.map(|call| call.wait(&Deadline::after(MINUTES)).map(|_| ()))
        }
        _ => [first, second].map(|mesh| call(mesh, argument)),
    };
    let word = match argument {
        "exchange" | "arena" | "split" => argument,
        _ => "all_reduce",
    };
    let word = format!("{word} #2");
    assert!(start.elapsed() < 3 * PROMISE, "{:?}", start.elapsed());
    let [one, two] = errors.map(|result| result.expect_err("it was crossed"));
    assert_eq!(one.status(), Status::Disagreed, "{}", one.chain());
    let text = one.to_string();
    assert!(text.matches(&word).count() >= 2, "{text}");
    for edge in [index, index + 1] {
        let name = format!("of color 0 of split {}", edge % count + 1);
        assert!(text.contains(&name), "{name}: {text}");
    }
    assert!(text.matches("tests/failure/crossed.rs:").count() >= 2, "{text}");
    let text = two.to_string();
    assert!(matches!(two, Error::Closed { .. } | Error::Disagreed { .. }), "{text}");
    assert!(text.contains(&word), "{text}");
    // The mesh that nobody waited in is as it was, and so are new parts of it.
    assert_eq!(first.barrier().expect_err("it ended").status(), Status::Closed);
    mesh.barrier().expect("no part of the circle");
    let again = mesh.split(Some(0), 0).expect("all come").expect("a color");
    add(&again, 70_000).expect("all come");
    say(&format!("raised: {one}"));
}

/// A number that follows from two others.
fn mixed(seed: u64, position: u64) -> u64 {
    let mut number = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ position.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number ^= number >> 29;
    number = number.wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 32
}

/// Calls on overlapping meshes in one order for all, with pauses longer than those after which members ask: nobody raises.
fn order(index: usize, count: usize, argument: &str) {
    let seed = argument.parse::<u64>().expect("a number");
    let mesh = bootstrap();
    let options = HostOptions { threads: 1, deferred_limit: 64, ..HostOptions::default() };
    let lines = [(); 2].map(|()| Executor::for_ram(&options).expect("a thread"));
    let mut meshes = edges(&mesh);
    meshes.push(Some(mesh.clone()));
    let mut calls = Vec::new();
    for step in 0..14 {
        let choice = mixed(seed, step);
        let Some(Some(mesh)) = meshes.get(choice as usize % meshes.len()) else { continue };
        // One member at a time is slow: the others wait for it, and for each other.
        if choice / 64 % count as u64 == index as u64 {
            std::thread::sleep(Duration::from_millis(choice / 1024 % 3 * 900));
        }
        if (choice / 16).is_multiple_of(4) {
            add(mesh, 100).expect("one order");
        } else {
            let line = &lines[(choice / 4096 % 2) as usize];
            calls.push(mesh.deferred(Some(line)).all_reduce(vec![1.0_f32; 100], ReduceOp::Sum));
        }
    }
    for call in calls {
        call.wait(&Deadline::after(MINUTES)).expect("one order");
    }
    mesh.barrier().expect("all come");
}

/// One member has a deferred call on its only executor, and comes to the other mesh by one that it makes seconds later: no circle. Where
/// it waits for the first call instead, nobody can come: a circle.
fn late(index: usize, _count: usize, argument: &str) {
    let mesh = bootstrap();
    let [one, other] = [(); 2].map(|()| mesh.split(Some(0), 0).expect("all come").expect("a color"));
    mesh.barrier().expect("all come");
    let deadline = Deadline::after(MINUTES);
    if index == 0 {
        let sum = one.deferred(None).all_reduce(vec![1.0_f32; 5], ReduceOp::Sum);
        if argument == "waits" {
            let error = sum.wait(&deadline).expect_err("a circle");
            assert_eq!(error.status(), Status::Disagreed, "{}", error.chain());
        } else {
            // Longer than a circle would take to be found.
            std::thread::sleep(PROMISE + Duration::from_secs(1));
            let second = Executor::for_ram(&HostOptions { threads: 1, ..HostOptions::default() });
            add(&other.on(&second.expect("a thread")), 5).expect("the other member waits for it");
            assert_eq!(sum.wait(&deadline).expect("both have come"), [2.0; 5]);
        }
    } else if argument == "waits" {
        let error = add(&other, 5).expect_err("a circle");
        assert_eq!(error.status(), Status::Disagreed, "{}", error.chain());
    } else {
        add(&other, 5).expect("the first member comes by another executor");
        add(&one, 5).expect("the first member waits");
    }
    mesh.barrier().expect("no part of it");
}

fn run(places: &[String], count: usize, argument: &str) {
    let setup = Setup::new(count, "crossed.circle").argument(argument).networks(places);
    let outcomes: Vec<Outcome> = setup.deadline(MINUTES).start().finish();
    assert_all_succeeded(&outcomes);
    assert!(outcomes.iter().all(|one| one.output.contains("raised: ")), "{}", transcript(&outcomes));
}

#[test]
fn all_on_a_circle_raise_and_name_both_calls() {
    for count in [2, 3, 4] {
        run(&[], count, "blocking");
        run(&[], count, "deferred");
    }
    for verb in ["exchange", "arena", "split"] {
        run(&[], 3, verb);
    }
}

#[test]
fn who_may_come_by_an_executor_that_is_made_later_is_waited_for() {
    for argument in ["waits", "goes on"] {
        let setup = Setup::new(2, "crossed.late").argument(argument);
        assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
    }
}

#[test]
fn all_on_a_circle_over_hosts_raise_and_name_both_calls() {
    let Some(hosts) = Hosts::new(3) else { return };
    for places in [&[0, 1][..], &[0, 1, 2], &[0, 0, 1], &[0, 1, 0, 1]] {
        let networks = places.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
        run(&networks, places.len(), "deferred");
    }
    for verb in ["blocking", "exchange", "arena", "split"] {
        run(&[0, 1, 1].map(|host| hosts.network(host)), 3, verb);
    }
}

#[test]
fn calls_in_one_order_are_never_taken_for_a_circle() {
    for seed in 1..=3 {
        let setup = Setup::new(3, "crossed.order").argument(&seed.to_string());
        assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
    }
    let Some(hosts) = Hosts::new(2) else { return };
    let networks = [0, 1, 0].map(|host| hosts.network(host));
    let setup = Setup::new(3, "crossed.order").argument("4").networks(&networks);
    assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
}
