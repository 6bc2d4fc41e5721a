//! Meshes of some of the members of a mesh, whatever connects them: right members, right order, right results, and a fate of their own.

use std::time::Duration;

use uform::vocabulary::MeshDomain;
use uform::{Deadline, Error, Executor, HostOptions, Mesh, ReduceOp, Status};

use crate::failure::calls::{bootstrap, exchange_words, move_arrays};
use crate::harness::network::Hosts;
use crate::harness::{self, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("group.split", split), ("group.disagree", disagree), ("group.death", death)];

pub(crate) const MINUTES: Duration = Duration::from_secs(180);

fn quick() -> Deadline<'static> {
    Deadline::after(MINUTES)
}

/// Every verb on one mesh.
fn use_all(mesh: &Mesh) {
    move_arrays(mesh, &[0, 1, 7, 1001, 70_001]);
    exchange_words(mesh);
    mesh.barrier().expect("all come");
    let mut numbers = [mesh.index() as i64 + 1];
    mesh.all_reduce(&mut numbers, ReduceOp::Sum).expect("all come");
    assert_eq!(numbers, [(mesh.count() * (mesh.count() + 1) / 2) as i64]);
    let sum = mesh.deferred(None).all_reduce(vec![mesh.index() as f64], ReduceOp::Max);
    assert_eq!(sum.wait(&quick()).expect("all come"), [mesh.count() as f64 - 1.0]);
    let arena = mesh.arena(64 * (mesh.index() + 1), &quick()).expect("room for some bytes");
    assert_eq!(arena.byte_count(), 64 * (mesh.index() + 1));
}

/// Splits in several ways, uses every part, and closes parent and parts in either order.
fn split(index: usize, count: usize, argument: &str) {
    let given = HostOptions { threads: 1, deferred_limit: 4, ..HostOptions::default() };
    let executor = (argument == "lent").then(|| Executor::for_ram(&given).expect("a thread"));
    let mesh = Mesh::bootstrap(executor.as_ref(), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    // By parity, the last one first.
    let part = mesh.split(Some((index % 2) as u64), -(index as i64)).expect("all come").expect("a color");
    let members = (0..count).rev().filter(|other| other % 2 == index % 2).collect::<Vec<_>>();
    assert_eq!(part.count(), members.len());
    assert_eq!(members[part.index()], index);
    assert_eq!(part.describe().host_domain_index, part.index());
    assert_eq!(part.topology().count(), part.count());
    let pids = mesh.exchange(&std::process::id().to_le_bytes(), &quick()).expect("all come");
    let found = part.exchange(&std::process::id().to_le_bytes(), &quick()).expect("all come");
    assert_eq!(found, members.iter().map(|member| pids[*member].clone()).collect::<Vec<_>>());
    use_all(&part);
    // Parts of parts, and a member without one.
    let color = (part.index() > 0).then_some(7);
    let inner = part.split(color, 0).expect("all come");
    assert_eq!(inner.is_some(), color.is_some());
    if let Some(inner) = &inner {
        assert_eq!((inner.index(), inner.count()), (part.index() - 1, part.count() - 1));
        use_all(inner);
    }
    let same = mesh.split(None, 0).expect("all come");
    assert!(same.is_none());
    let host = mesh.domain(MeshDomain::Host).expect("all come");
    let expected = mesh.topology().host_of(index).expect("a member").members.clone();
    assert_eq!(host.count(), expected.len());
    assert_eq!(expected[host.index()], index);
    use_all(&host);
    let all = mesh.domain(MeshDomain::Colocated).expect("all come");
    assert_eq!((all.index(), all.count()), (index, count));
    use_all(&all);
    let alone = mesh.domain(MeshDomain::Multimem).expect("all come");
    assert_eq!(alone.count(), mesh.topology().members_of(MeshDomain::Multimem, index).len());
    // The parent goes first: its parts go on, on the executor that it made.
    all.close().expect("idle");
    mesh.barrier().expect("a part's end is its own");
    mesh.close().expect("idle");
    assert!(matches!(mesh.split(Some(0), 0), Err(Error::Closed { .. })));
    use_all(&host);
    use_all(&part);
    host.close().expect("idle");
    alone.close().expect("idle");
    if let Some(inner) = &inner {
        inner.close().expect("idle");
    }
    assert!(!part.executor().is_closed());
    part.barrier().expect("all come");
    part.close().expect("idle");
    assert_eq!(part.executor().is_closed(), executor.is_none());
}

/// One member splits while the others reduce: all learn both calls, and may go on.
fn disagree(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    let error = if index + 1 == count {
        mesh.split(Some(3), 0).expect_err("the others reduce")
    } else {
        mesh.all_reduce(&mut [1.0_f64; 3], ReduceOp::Sum).expect_err("one splits")
    };
    assert_eq!(error.status(), Status::Disagreed, "{error}");
    let text = error.to_string();
    assert!(text.contains("split #1") && text.contains("all_reduce #1"), "{text}");
    let part = mesh.split(Some((index / 2) as u64), 0).expect("all come").expect("a color");
    // The same inside of a part: its name is in the text.
    let mut numbers = vec![0_f32; 5 + part.index()];
    if part.count() > 1 {
        let error = part.all_reduce(&mut numbers, ReduceOp::Sum).expect_err("counts differ");
        let text = error.to_string();
        assert!(text.contains(&format!("of color {} of split 1", index / 2)), "{text}");
    }
    use_all(&part);
    use_all(&mesh);
}

/// The last member dies: those of its part learn it there, the others only from the parent.
fn death(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    let part = mesh.split(Some((index % 2) as u64), 0).expect("all come").expect("a color");
    say("formed");
    if index + 1 == count {
        harness::sleep_until_killed();
    }
    if index % 2 == (count - 1) % 2 {
        let error = part.barrier().expect_err("one is dead");
        say(&format!("ended with {}: {error}", error.status().name()));
    } else {
        for _ in 0..200 {
            use_all(&part);
        }
    }
    let error = mesh.barrier().expect_err("one is dead");
    say(&format!("then {}: {error}", error.status().name()));
    if index % 2 != (count - 1) % 2 {
        use_all(&part);
    }
}

#[test]
fn parts_of_processes_are_meshes_of_their_own() {
    for (count, argument) in [(1, "own"), (2, "lent"), (3, "own"), (5, "lent")] {
        assert_all_succeeded(&harness::processes(count, "group.split", argument, MINUTES));
    }
}

#[test]
fn parts_over_hosts_are_meshes_of_their_own() {
    let Some(hosts) = Hosts::new(3) else { return };
    for (places, argument) in [(&[0, 1, 2][..], "own"), (&[0, 1, 0, 1, 0], "lent"), (&[0, 0, 1, 2], "own")] {
        let networks = places.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
        let setup = Setup::new(places.len(), "group.split").argument(argument).networks(&networks);
        assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
    }
    let networks = [0, 1, 1, 2].map(|host| hosts.network(host));
    let setup = Setup::new(4, "group.disagree").networks(&networks);
    assert_all_succeeded(&setup.deadline(MINUTES).start().finish());
}

#[test]
fn a_split_is_compared_with_other_calls() {
    assert_all_succeeded(&harness::processes(4, "group.disagree", "", MINUTES));
}

#[test]
fn a_death_breaks_the_part_and_the_parent_and_no_other_part() {
    a_death_breaks(&[]);
}

#[test]
fn a_death_on_another_host_breaks_the_part_and_the_parent_and_no_other_part() {
    let Some(hosts) = Hosts::new(3) else { return };
    a_death_breaks(&[0, 1, 0, 2].map(|host| hosts.network(host)));
    a_death_breaks(&[0, 1, 1, 0].map(|host| hosts.network(host)));
}

fn a_death_breaks(networks: &[String]) {
    let mut run = Setup::new(4, "group.death").networks(networks).deadline(MINUTES).start();
    (0..4).for_each(|index| run.wait_for(index, "formed"));
    run.kill(3);
    let outcomes = run.finish();
    for outcome in outcomes.iter().filter(|outcome| outcome.index != 3) {
        assert!(outcome.succeeded(), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("then LOST: lost index 3"), "{}", transcript(&outcomes));
    }
    // The second of the part of odd indexes.
    let text = &outcomes[1].output;
    assert!(text.contains("ended with LOST: lost index 1"), "{}", transcript(&outcomes));
    assert!(text.contains("of color 1 of split 1"), "{}", transcript(&outcomes));
}
