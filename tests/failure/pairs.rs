//! Sends and receives whose other side dies or stands still, phase by phase, in shared memory and over hosts.

use std::time::{Duration, Instant};

use uform::communicator::Call;
use uform::{Deadline, Error, Mesh, ReduceOp, Span, SpanMut, Verb};

use super::calls::bootstrap;
use crate::harness::network::Hosts;
use crate::harness::{self, Role, Run, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("pairs.loses", loses), ("pairs.stands", stands), ("pairs.leaves", leaves)];

const MINUTES: Duration = Duration::from_secs(180);
/// More than goes without a receiver.
const LARGE: usize = 1_000_000;

fn wait_for(name: &str) {
    let limit = Deadline::after(MINUTES);
    while !harness::folder().join(name).exists() {
        assert!(!limit.passed(), "the test has not made {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn tell(run: &Run, name: &str) {
    std::fs::write(run.folder().join(name), "").expect("the folder is writable");
}

fn end(error: &Error) {
    say(&format!("ended with {}: {}", error.status().name(), error.chain()));
}

/// Index 1 sends and closes its mesh before index 0 receives: the message comes, and no other.
fn leaves(index: usize, _count: usize, argument: &str) {
    let mesh = bootstrap();
    let part = mesh.split(Some(0), 0).expect("all come").expect("a color");
    let length = argument.parse::<usize>().expect("a number");
    let mut numbers = vec![index as f32; length];
    if index == 1 {
        part.send(&numbers, 0, 3).expect("there is room for it");
        part.close().expect("idle");
        drop(part);
        say("left");
        return mesh.barrier().expect("all come");
    }
    wait_for("left");
    part.receive(&mut numbers, 1, 3).unwrap_or_else(|error| panic!("it was sent: {}", error.chain()));
    assert_eq!(numbers, vec![1.0; length]);
    let error = part.receive(&mut numbers, 1, 3).expect_err("nothing more was sent");
    assert!(matches!(error, Error::Lost { index: 1, .. }), "{error}");
    mesh.barrier().expect("all come");
}

/// Index 1 is killed in the phase that the argument names; 0 is in a call with it, then or afterwards.
fn loses(index: usize, _count: usize, argument: &str) {
    let mesh = bootstrap();
    let mut numbers = vec![index as f32; LARGE];
    mesh.barrier().expect("all come");
    let result = match (index, argument) {
        (0, "quiet") => mesh.receive(&mut numbers[..10], 1, 0),
        (0, "offered") => {
            wait_for("killed");
            mesh.receive(&mut numbers, 1, 0)
        }
        (0, "wanted") => mesh.send(&numbers, 1, 0),
        (0, _) => loop {
            if let Err(error) = mesh.receive(&mut numbers, 1, 0) {
                break Err(error);
            }
            assert!(numbers.iter().all(|number| *number == 1.0));
        },
        (1, "quiet" | "wanted") => {
            say("ready");
            harness::sleep_until_killed()
        }
        (1, "offered") => {
            say("ready");
            mesh.send(&numbers, 0, 0)
        }
        (1, _) => loop {
            mesh.send(&numbers, 0, 0).expect("it is received");
            say("ready");
        },
        // The third learns it in a call of all.
        _ => mesh.barrier(),
    };
    end(&result.expect_err("index 1 is gone"));
    let later = mesh.barrier().expect_err("the group is ended");
    assert!(matches!(later, Error::Lost { index: 1, .. }), "{later}");
}

fn killed(networks: &[String]) {
    for phase in ["quiet", "offered", "wanted", "moving"] {
        let setup = Setup::new(3, "pairs.loses").argument(phase).networks(networks).deadline(MINUTES);
        let mut run = setup.start();
        run.wait_for(1, "ready");
        // Into the call.
        std::thread::sleep(Duration::from_millis(30));
        run.kill(1);
        tell(&run, "killed");
        let start = Instant::now();
        let outcomes = run.finish();
        // A death is promised to be seen within a second.
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
        for outcome in [&outcomes[0], &outcomes[2]] {
            let text = transcript(&outcomes);
            assert!(outcome.succeeded(), "{phase}\n{text}");
            assert!(outcome.output.contains("ended with LOST: lost index 1"), "{phase}\n{text}");
        }
    }
}

fn what_was_sent_counts(networks: &[String]) {
    // The second one is answered by a word of how much was taken.
    for length in ["10", "9000"] {
        let setup = Setup::new(2, "pairs.leaves").argument(length).networks(networks);
        let mut run = setup.deadline(MINUTES).start();
        run.wait_for(1, "left");
        // What it closed has gone before the other one looks.
        std::thread::sleep(Duration::from_millis(100));
        tell(&run, "left");
        assert_all_succeeded(&run.finish());
    }
}

#[test]
fn what_was_sent_is_received_after_its_sender_has_left() {
    what_was_sent_counts(&[]);
}

#[test]
fn what_was_sent_is_received_from_another_host_after_its_sender_has_left() {
    let Some(hosts) = Hosts::new(2) else { return };
    what_was_sent_counts(&[0, 1].map(|host| hosts.network(host)));
}

#[test]
fn a_member_killed_in_any_phase_of_a_send_is_lost() {
    killed(&[]);
}

#[test]
fn a_member_killed_in_any_phase_of_a_send_is_lost_on_other_hosts() {
    let Some(hosts) = Hosts::new(3) else { return };
    killed(&hosts.networks());
    // Over the network, and a third beside the one that waits.
    killed(&[0, 1, 0].map(|host| hosts.network(host)));
}

fn paired(mesh: &Mesh, verb: Verb, other: usize, numbers: &mut [f32], limit: Duration) -> uform::Result<()> {
    let deadline = Deadline::after(limit);
    let call = match verb {
        Verb::Send => Call::of::<f32>(verb, ReduceOp::Sum, other, Some(Span::of(numbers)), SpanMut::empty()),
        _ => Call::of::<f32>(verb, ReduceOp::Sum, other, None, SpanMut::of(numbers)),
    };
    mesh.run(call, &deadline)
}

/// Index 1 is stopped before its side of a large message; the argument says which verb 0 calls, and whether 1 wakes in time.
fn stands(index: usize, _count: usize, argument: &str) {
    let (verb, fate) = argument.split_once(' ').expect("two words");
    let verb = if verb == "send" { Verb::Send } else { Verb::Receive };
    let other = if verb == Verb::Send { Verb::Receive } else { Verb::Send };
    let mesh = bootstrap();
    let mut numbers = vec![index as f32; LARGE];
    mesh.barrier().expect("all come");
    if index == 1 {
        say("ready");
        wait_for("go on");
        let result = paired(&mesh, other, 0, &mut numbers, MINUTES);
        if fate == "wakes" {
            result.expect("0 waits for it");
        } else {
            let error = result.expect_err("0 has given up");
            assert!(matches!(error, Error::Lost { index: 0, .. }), "{error}");
            assert!(error.to_string().contains("timed out"), "{error}");
            return;
        }
    } else {
        wait_for("stopped");
        let limit = if fate == "wakes" { MINUTES } else { Duration::from_secs(1) };
        say("calls");
        let result = paired(&mesh, verb, 1, &mut numbers, limit);
        if fate == "wakes" {
            result.expect("1 wakes");
        } else {
            let error = result.expect_err("1 stands still");
            let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
            assert_eq!(missing.iter().map(|one| one.index).collect::<Vec<_>>(), [1], "{error}");
            say("timed out");
            let later = mesh.barrier().expect_err("the group is ended");
            assert_eq!(later.to_string(), error.to_string());
            return;
        }
    }
    let wanted = if verb == Verb::Send { 0.0 } else { 1.0 };
    assert!(numbers.iter().all(|number| *number == wanted));
    mesh.barrier().expect("the mesh goes on");
}

fn stopped(networks: &[String]) {
    for argument in ["send wakes", "receive wakes", "send never", "receive never"] {
        let setup = Setup::new(2, "pairs.stands").argument(argument).networks(networks).deadline(MINUTES);
        let mut run = setup.start();
        run.wait_for(1, "ready");
        run.stop(1);
        tell(&run, "stopped");
        run.wait_for(0, if argument.ends_with("wakes") { "calls" } else { "timed out" });
        tell(&run, "go on");
        std::thread::sleep(Duration::from_millis(200));
        run.signal(1, rustix::process::Signal::CONT);
        assert_all_succeeded(&run.finish());
    }
}

#[test]
fn a_stopped_member_holds_a_message_up_until_it_wakes_or_the_deadline() {
    stopped(&[]);
}

#[test]
fn a_stopped_member_of_another_host_holds_a_message_up_until_it_wakes_or_the_deadline() {
    let Some(hosts) = Hosts::new(2) else { return };
    stopped(&hosts.networks());
}
