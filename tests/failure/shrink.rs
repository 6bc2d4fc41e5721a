//! Members die, stop or are cut off, and those that are left go on in a mesh of their own.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use uform::sys::Span;
use uform::{Deadline, Dtype, Error, Mesh, Optimizer, Parameter, ReduceOp, Result, Status, Trainer};

use super::calls::{bootstrap, move_arrays};
use crate::harness::network::Hosts;
use crate::harness::{self, Outcome, Role, Run, Setup, assert_all_succeeded, entries, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("shrink.survive", survive),
    ("shrink.healthy", healthy),
    ("shrink.part", part),
    ("shrink.wakes", wakes),
];

const MINUTES: Duration = Duration::from_secs(180);
/// How long a shrink of these tests may take.
const LIMIT: Duration = Duration::from_secs(60);

/// The indexes at bootstrap of those in a mesh, by their indexes in it.
fn origins(mesh: &Mesh, index: usize) -> Result<Vec<usize>> {
    let deadline = Deadline::after(LIMIT);
    let words = mesh.exchange(&index.to_le_bytes(), &deadline)?;
    let number = |word: Vec<u8>| usize::from_le_bytes(word.try_into().expect("eight bytes"));
    Ok(words.into_iter().map(number).collect())
}

/// Reduces until a call fails.
fn reduce(mesh: &Mesh) -> Error {
    let count = mesh.count() as f32;
    loop {
        let mut numbers = vec![1.0f32; 20_000];
        match mesh.all_reduce(&mut numbers, ReduceOp::Sum) {
            Ok(()) => assert!(numbers.iter().all(|number| *number == count)),
            Err(error) => return error,
        }
    }
}

/// What holds of a mesh that was shrunk, and of the one before.
fn check(old: &Mesh, mesh: &Mesh, index: usize) -> Result<()> {
    let origins = origins(mesh, index)?;
    assert!(origins.is_sorted() && origins.len() == mesh.count(), "{origins:?}");
    assert_eq!(origins[mesh.index()], index);
    assert_eq!(mesh.describe().host_domain_index, mesh.index());
    let members = mesh.topology().members();
    assert!(members.iter().enumerate().all(|(position, member)| member.index == position));
    let process = &members[mesh.index()].introduction.process;
    assert_eq!(process.pid, std::process::id());
    for length in [1, 1000, 70_001] {
        let mut sum = (0..length).map(|position| (index * 100_000 + position) as f64).collect::<Vec<_>>();
        mesh.all_reduce(&mut sum, ReduceOp::Sum)?;
        let bases = origins.iter().sum::<usize>() * 100_000;
        let is_right = |(position, sum): (usize, &f64)| *sum == (bases + origins.len() * position) as f64;
        assert!(sum.iter().enumerate().all(is_right));
    }
    let arena = mesh.arena(64, &Deadline::after(LIMIT))?;
    assert_eq!(arena.byte_count(), 64);
    assert!(old.is_closed() && !mesh.is_closed() && !mesh.executor().is_closed());
    assert!(matches!(old.barrier(), Err(Error::Closed { .. })));
    assert!(matches!(old.shrink(), Err(Error::Closed { .. })));
    old.close().expect("twice");
    say(&format!("went on as {origins:?}."));
    Ok(())
}

/// Goes on with those that are left until they are as few as the argument says.
fn survive(index: usize, _count: usize, wanted: &str) {
    let wanted = wanted.parse::<usize>().expect("a number");
    let mut mesh = bootstrap();
    move_arrays(&mesh, &[100]);
    say("formed");
    while mesh.count() > wanted {
        let error = reduce(&mesh);
        assert_eq!(error.status(), Status::Lost, "{}", error.chain());
        say("shrinks");
        match mesh.shrink_within(&Deadline::after(LIMIT)) {
            Ok(next) => {
                // The next one may die at any time, also while these look at each other.
                let checked = check(&mesh, &next, index);
                assert!(checked.is_ok() || matches!(checked, Err(Error::Lost { .. })), "{checked:?}");
                mesh = next;
            }
            Err(error) => {
                assert_eq!(mesh.barrier().expect_err("it is over").status(), Status::Closed);
                return say(&format!("left with {}: {}", error.status().name(), error.chain()));
            }
        }
    }
    mesh.barrier().expect("all come");
    mesh.close().expect("idle");
}

fn start(count: usize, wanted: usize) -> Run {
    let setup = Setup::new(count, "shrink.survive").argument(&wanted.to_string()).deadline(MINUTES);
    let mut run = setup.start();
    (0..count).for_each(|position| run.wait_for(position, "formed"));
    run
}

/// All but the killed ones succeeded, and the last mesh was of these.
fn assert_went_on(outcomes: &[Outcome], killed: &[usize]) {
    let survivors = outcomes.iter().filter(|one| !killed.contains(&one.index)).collect::<Vec<_>>();
    let last = survivors.iter().map(|one| one.index).collect::<Vec<_>>();
    for outcome in survivors {
        let went_on = outcome.output.contains(&format!("went on as {last:?}."));
        assert!(outcome.succeeded() && went_on, "{}", transcript(outcomes));
    }
    let memory = entries(Path::new("/dev/shm"));
    assert!(memory.iter().all(|name| !name.contains("uform")), "left in /dev/shm: {memory:?}");
}

#[test]
fn those_that_are_left_go_on_whoever_is_killed() {
    for (count, killed) in
        [(3, &[1][..]), (3, &[0]), (3, &[2]), (5, &[0, 3]), (5, &[1, 2]), (2, &[1]), (4, &[2, 3])]
    {
        for pause in [0, 13] {
            let run = start(count, count - killed.len());
            std::thread::sleep(Duration::from_millis(pause));
            killed.iter().for_each(|position| run.kill(*position));
            assert_went_on(&run.finish(), killed);
        }
    }
}

#[test]
fn a_mesh_shrinks_as_often_as_members_die() {
    let mut run = start(5, 1);
    let mut killed = Vec::new();
    for (victim, left) in [(4, "[0, 1, 2, 3]"), (1, "[0, 2, 3]"), (3, "[0, 2]"), (2, "[0]")] {
        run.kill(victim);
        killed.push(victim);
        run.wait_for(0, &format!("went on as {left}."));
    }
    assert_went_on(&run.finish(), &killed);
}

#[test]
fn a_death_while_they_agree_leaves_the_others_together() {
    for (second, pause) in [(0, 0), (0, 2), (2, 0), (2, 1), (4, 3), (0, 5), (2, 9)] {
        let mut run = start(5, 3);
        run.kill(1);
        run.wait_for(if second == 0 { 3 } else { 0 }, "shrinks");
        std::thread::sleep(Duration::from_millis(pause));
        run.kill(second);
        assert_went_on(&run.finish(), &[1, second]);
    }
}

#[test]
fn too_few_do_not_go_on_and_say_so() {
    for (count, killed) in [(2, &[0][..]), (3, &[0, 2]), (4, &[0, 1])] {
        let run = start(count, 1);
        killed.iter().for_each(|position| run.kill(*position));
        let outcomes = run.finish();
        for outcome in outcomes.iter().filter(|one| !killed.contains(&one.index)) {
            // Where one death is seen before the next, a mesh of more comes first.
            let told = outcome.output.contains("left with CLOSED") || outcome.output.contains("went on as");
            assert!(outcome.succeeded() && told, "{}", transcript(&outcomes));
        }
        let last = &outcomes.iter().rfind(|one| !killed.contains(&one.index)).expect("one is left").output;
        if !last.contains("went on") {
            assert!(last.contains("which is not more than half"), "{}", transcript(&outcomes));
            assert!(last.contains("restart from a checkpoint"), "{}", transcript(&outcomes));
        }
    }
}

/// Shrinks without a loss: the same members in a new mesh.
fn healthy(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    move_arrays(&mesh, &[100]);
    let next = mesh.shrink_within(&Deadline::after(LIMIT)).expect("all come");
    assert_eq!((next.index(), next.count()), (index, count));
    check(&mesh, &next, index).expect("all come");
    let again = next.shrink_within(&Deadline::after(LIMIT)).expect("all come");
    check(&next, &again, index).expect("all come");
    again.barrier().expect("all come");
}

#[test]
fn a_mesh_without_losses_becomes_an_equal_one() {
    for count in [1, 2, 3, 5] {
        assert_all_succeeded(&harness::processes(count, "shrink.healthy", "", MINUTES));
    }
}

/// A part of a mesh shrinks by its own count, and the whole mesh by its.
fn part(index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    let half = mesh.split(Some(index as u64 % 2), 0).expect("all come").expect("a color");
    say("formed");
    if index == 2 {
        harness::sleep_until_killed();
    }
    if index.is_multiple_of(2) {
        assert_eq!(reduce(&half).status(), Status::Lost);
        let next = half.shrink_within(&Deadline::after(LIMIT)).expect("two of three are left");
        assert_eq!(origins(&next, index).expect("all come"), [0, 4]);
        move_arrays(&next, &[1000]);
    } else {
        move_arrays(&half, &[1000]);
    }
    assert_eq!(mesh.barrier().expect_err("index 2 is gone").status(), Status::Lost);
    let next = mesh.shrink_within(&Deadline::after(LIMIT)).expect("four of five are left");
    check(&mesh, &next, index).expect("all come");
}

#[test]
fn a_part_of_a_mesh_shrinks_by_itself() {
    let mut run = Setup::new(5, "shrink.part").deadline(MINUTES).start();
    (0..5).for_each(|position| run.wait_for(position, "formed"));
    run.kill(2);
    assert_went_on(&run.finish(), &[2]);
}

#[test]
fn hosts_go_on_without_one_whose_process_was_killed() {
    for networks in [&[0, 1, 2][..], &[0, 1, 0, 1, 0]] {
        for killed in [0, 1] {
            let Some(hosts) = Hosts::new(3) else { return };
            let networks = networks.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
            let count = networks.len();
            let setup = Setup::new(count, "shrink.survive").argument(&(count - 1).to_string());
            let mut run = setup.networks(&networks).deadline(MINUTES).start();
            (0..count).for_each(|position| run.wait_for(position, "formed"));
            run.kill(killed);
            assert_went_on(&run.finish(), &[killed]);
        }
    }
}

/// Cuts the last host off: those at `gone` are on it.
fn cut(places: &[usize], gone: &[usize]) {
    let Some(hosts) = Hosts::new(4) else { return };
    let networks = places.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
    let left = places.len() - gone.len();
    let setup = Setup::new(places.len(), "shrink.survive").argument(&left.to_string());
    let mut run = setup.networks(&networks).variable("UFORM_SILENCE", "2").deadline(MINUTES).start();
    (0..places.len()).for_each(|position| run.wait_for(position, "formed"));
    hosts.cut(*places.last().expect("members"));
    let outcomes = run.finish();
    assert_went_on(&outcomes, gone);
    for outcome in outcomes.iter().filter(|one| gone.contains(&one.index)) {
        let text = &outcome.output;
        let is_told = text.contains("left with CLOSED") && text.contains("the others may go on");
        assert!(outcome.succeeded() && is_told && !text.contains("went on"), "{}", transcript(&outcomes));
    }
}

#[test]
fn after_a_cut_into_three_and_one_the_three_go_on() {
    cut(&[0, 1, 2, 3], &[3]);
    cut(&[0, 0, 0, 1], &[3]);
}

#[test]
fn after_a_cut_into_two_and_two_the_half_with_index_0_goes_on() {
    cut(&[0, 1, 0, 1], &[1, 3]);
}

/// Steps of a trainer until one fails.
fn train(mesh: &Mesh, limit: Duration) -> Error {
    let values = vec![0.5_f32; 3000];
    let parameter = Parameter {
        name: "weights".to_owned(),
        shape: vec![values.len()],
        dtype: Dtype::F32,
        values: (mesh.index() == 0).then(|| Span::of(&values)),
    };
    let optimizer = Optimizer::Sgd { learning_rate: 0.1, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let trainer =
        Trainer::open(mesh, &[parameter], optimizer, None, &Deadline::after(LIMIT)).expect("all come");
    say("formed");
    loop {
        if let Err(error) = trainer.step(1.0, &Deadline::after(limit)) {
            return error;
        }
    }
}

/// Index 2 is stopped in a call; the others go on without it, and it finds that out.
fn wakes(index: usize, _count: usize, argument: &str) {
    let mesh = bootstrap();
    let limit = Duration::from_secs(3);
    let error = if argument == "trainer" {
        train(&mesh, limit)
    } else {
        say("formed");
        loop {
            if let Err(error) = mesh.exchange(b"here", &Deadline::after(limit)) {
                break error;
            }
        }
    };
    if index == 2 {
        // A step that lasted too long may say so first.
        let first = if argument == "trainer" { None } else { Some(error) };
        for error in first.into_iter().chain([mesh.shrink().expect_err("the others went on")]) {
            let text = error.to_string();
            assert_eq!(error.status(), Status::Closed, "{text}");
            assert!(text.contains("indexes 0, 1 went on") && text.contains("end this process"), "{text}");
        }
        return say("told");
    }
    // The one whose deadline passes first ends the group for the other.
    match &error {
        Error::TimedOut { missing, .. } => assert!(missing.iter().any(|one| one.index == 2), "{error}"),
        Error::Lost { .. } => assert!(error.to_string().contains("timed out"), "{error}"),
        _ => panic!("{error}"),
    }
    let next = mesh.shrink_within(&Deadline::after(LIMIT)).expect("two of three are left");
    check(&mesh, &next, index).expect("all come");
    say("shrunk");
    let deadline = Deadline::after(LIMIT);
    let is_over = || u8::from(harness::folder().join("over").exists());
    while next.exchange(&[is_over()], &deadline).expect("the one that woke disturbs nobody").concat()
        != [1, 1]
    {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stop_one(argument: &str, networks: &[String]) {
    let setup = Setup::new(3, "shrink.wakes").argument(argument).networks(networks);
    let mut run = setup.deadline(MINUTES).start();
    (0..3).for_each(|position| run.wait_for(position, "formed"));
    run.stop(2);
    run.wait_for(0, "shrunk");
    run.wait_for(1, "shrunk");
    run.signal(2, Signal::CONT);
    run.wait_for(2, "told");
    std::fs::write(run.folder().join("over"), "").expect("the folder is writable");
    assert_all_succeeded(&run.finish());
}

#[test]
fn one_that_was_stopped_wakes_and_learns_that_the_others_went_on() {
    stop_one("", &[]);
    let Some(hosts) = Hosts::new(2) else { return };
    stop_one("", &[0, 0, 1].map(|host| hosts.network(host)));
}

#[test]
fn one_that_was_stopped_in_a_step_learns_that_the_others_went_on() {
    stop_one("trainer", &[]);
    let Some(hosts) = Hosts::new(2) else { return };
    stop_one("trainer", &[0, 0, 1].map(|host| hosts.network(host)));
}
