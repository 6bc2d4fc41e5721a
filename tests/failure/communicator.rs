//! What members of a group see when one of them dies, stops, leaves, lies or is a stranger.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use uform::communicator::shared::{Listener, Proof, SharedCommunicator};
use uform::communicator::{Call, Communicator};
use uform::error::Error;
use uform::rendezvous::RunKey;
use uform::sys::socket::{Conversation, Reached};
use uform::sys::{Deadline, SpanMut};
use uform::vocabulary::{Dtype, ReduceOp, Verb};

use crate::conformance::members::{self, KEY, group, patience, thread_listeners, threads};
use crate::harness;

/// The roles of this file.
pub(crate) const ROLES: &[(&str, harness::Role)] = &[
    ("communicator.dies_outside", dies_outside),
    ("communicator.dies_inside", dies_inside),
    ("communicator.stops", stops),
];

const PIECE: usize = 512 << 10;

pub(crate) fn sum(
    communicator: &dyn Communicator,
    length: usize,
    deadline: &Deadline<'_>,
) -> Result<(), Error> {
    let mut numbers = vec![1.0f64; length];
    let output = SpanMut::of(&mut numbers);
    let (verb, dtype, op) = (Verb::AllReduce, Dtype::F64, ReduceOp::Sum);
    communicator.run(Call::new(verb, dtype, op, 0, None, output), deadline)?;
    assert!(numbers.iter().all(|number| *number == communicator.count() as f64));
    Ok(())
}

pub(crate) fn expect_lost(result: Result<(), Error>, wanted: usize) -> String {
    let error = result.expect_err("a member is gone");
    let Error::Lost { index, pid, .. } = &error else { panic!("{error}") };
    assert_eq!(*index, wanted, "{error}");
    assert_ne!(*pid, 0, "{error}");
    error.to_string()
}

fn dies_outside(index: usize, count: usize, _argument: &str) {
    let communicator = members::join(&harness::folder(), index, count, PIECE);
    sum(&*communicator, 10, &patience()).expect("all are there");
    if index == 1 {
        harness::say("outside");
        harness::sleep_until_killed();
    }
    let text = expect_lost(sum(&*communicator, 10, &patience()), 1);
    assert!(text.contains("all_reduce #2") && text.contains("user code since all_reduce #1"), "{text}");
    assert_eq!(expect_lost(sum(&*communicator, 99, &patience()), 1), text);
}

fn dies_inside(index: usize, count: usize, _argument: &str) {
    let communicator = members::join(&harness::folder(), index, count, 4096);
    harness::say("inside");
    let error = loop {
        if let Err(error) = sum(&*communicator, 100_000, &patience()) {
            break error;
        }
    };
    let text = expect_lost(Err(error), 1);
    assert_eq!(expect_lost(sum(&*communicator, 1, &patience()), 1), text);
}

fn stops(index: usize, count: usize, _argument: &str) {
    let communicator = members::join(&harness::folder(), index, count, PIECE);
    sum(&*communicator, 10, &patience()).expect("all are there");
    if index == 1 {
        harness::say("outside");
        while !harness::folder().join("go on").exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = expect_lost(sum(&*communicator, 10, &patience()), 0);
        assert!(text.contains("timed out"), "{text}");
        return;
    }
    while !harness::folder().join("stopped").exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let error =
        sum(&*communicator, 10, &Deadline::after(Duration::from_secs(1))).expect_err("one stands still");
    let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|missing| missing.index).collect::<Vec<_>>(), [1]);
    assert!(missing[0].last_word.contains("user code since all_reduce #1, stopped"), "{error}");
    let later = sum(&*communicator, 10, &patience()).expect_err("the group is ended");
    assert_eq!(later.to_string(), error.to_string());
    harness::say("timed out");
}

fn killed(role: &str, word: &str, pause: Duration) {
    let mut run = harness::Setup::new(3, role).start();
    for position in 0..3 {
        if position == 1 || word == "inside" {
            run.wait_for(position, word);
        }
    }
    std::thread::sleep(pause);
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    // A death is promised to be seen within a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert!(
        outcomes.iter().all(|outcome| outcome.index == 1 || outcome.succeeded()),
        "{}",
        harness::transcript(&outcomes)
    );
    assert!(!harness::entries("/dev/shm".as_ref()).iter().any(|name| name.contains("uform-control")));
}

#[test]
fn a_death_outside_a_call_is_lost_in_the_next() {
    killed("communicator.dies_outside", "outside", Duration::ZERO);
}

#[test]
fn a_death_inside_a_call_is_lost_in_it() {
    for pause in [0, 7, 50, 111] {
        killed("communicator.dies_inside", "inside", Duration::from_millis(pause));
    }
}

#[test]
fn a_stopped_member_is_named_and_later_finds_the_group_ended() {
    let mut run = harness::Setup::new(2, "communicator.stops").start();
    run.wait_for(1, "outside");
    run.stop(1);
    std::fs::write(run.folder().join("stopped"), "").expect("the folder is writable");
    run.wait_for(0, "timed out");
    std::fs::write(run.folder().join("go on"), "").expect("the folder is writable");
    run.signal(1, rustix::process::Signal::CONT);
    harness::assert_all_succeeded(&run.finish());
}

#[test]
fn an_interrupt_ends_the_wait_and_the_group() {
    let is_over = AtomicBool::new(false);
    threads(2, PIECE, |communicator| {
        if communicator.seat() == 0 {
            let start = Instant::now();
            let stop = || start.elapsed() > Duration::from_millis(100);
            let deadline = patience().interruptible(&stop);
            let error = sum(&*communicator, 10, &deadline).expect_err("interrupted");
            assert!(matches!(error, Error::Interrupted { .. }), "{error}");
            // 100 ms are promised; tested at three times that.
            assert!(start.elapsed() < Duration::from_millis(400), "{:?}", start.elapsed());
            is_over.store(true, Ordering::SeqCst);
        } else {
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let text = expect_lost(sum(&*communicator, 10, &patience()), 0);
            assert!(text.contains("interrupted in all_reduce #1"), "{text}");
        }
    });
}

#[test]
fn one_that_closed_is_lost_and_disturbs_no_call_before() {
    for _ in 0..30 {
        threads(3, 4096, |communicator| {
            sum(&*communicator, 5000, &patience()).expect("all are in it");
            if communicator.seat() == 1 {
                communicator.close();
                let error = sum(&*communicator, 5000, &patience()).expect_err("closed");
                assert!(matches!(error, Error::Closed { .. }), "{error}");
            } else {
                let text = expect_lost(sum(&*communicator, 10, &patience()), 1);
                assert!(text.contains("closed the group"), "{text}");
            }
        });
    }
}

#[test]
fn a_refusal_is_the_last_word() {
    let is_over = AtomicBool::new(false);
    threads(2, PIECE, |communicator| {
        sum(&*communicator, 5, &patience()).expect("all are in it");
        if communicator.seat() == 1 {
            let reason = Error::invalid("array", "7", "argument", "must be contiguous");
            communicator.refuse(Verb::AllReduce, &reason);
            while !is_over.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        } else {
            let deadline = Deadline::after(Duration::from_millis(300));
            let text = sum(&*communicator, 5, &deadline).expect_err("nobody comes").to_string();
            assert!(text.contains("index 1") && text.contains("must be contiguous"), "{text}");
            is_over.store(true, Ordering::SeqCst);
        }
    });
}

#[test]
fn strangers_are_refused_and_disturb_nobody() {
    let (listeners, roster) = thread_listeners(2);
    let addresses = listeners.iter().map(Listener::address).collect::<Vec<_>>();
    let reach = |address: &String| match Conversation::reach(address) {
        Ok(Reached::Open(conversation)) => conversation,
        other => panic!("{other:?}"),
    };
    let strangers = addresses.iter().flat_map(|address| {
        let (silent, rude, liar) = (reach(address), reach(address), reach(address));
        assert!(rude.send(b"GET / HTTP/1.1", None));
        let mut hello = b"uform-s1\x01".to_vec();
        hello.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        hello.extend([9; 32]);
        assert!(liar.send(&hello, None));
        [silent, rude, liar]
    });
    let strangers = strangers.collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let roster = &roster;
            scope.spawn(move || {
                let proof = Proof::gather(Some(listener), roster, index, &KEY, &patience()).expect("proved");
                assert_eq!(proof.findings().opened, [0, 1]);
                let joined = SharedCommunicator::join(proof, &group(index, 2), &patience()).expect("joined");
                sum(&*joined, 100, &patience()).expect("all are there");
            });
        }
    });
    assert!(strangers.iter().all(Conversation::has_ended));
}

#[test]
fn a_wrong_key_is_told_on_both_sides() {
    let (listeners, roster) = thread_listeners(2);
    std::thread::scope(|scope| {
        for (index, listener) in listeners.into_iter().enumerate() {
            let roster = &roster;
            scope.spawn(move || {
                let key = RunKey([index as u8; 32]);
                let deadline = Deadline::after(Duration::from_millis(700));
                let proof = Proof::gather(Some(listener), roster, index, &key, &deadline);
                let error = proof.expect_err("the keys differ");
                match (&error, index) {
                    (Error::TimedOut { missing, .. }, 0) => assert_eq!(missing[0].index, 1, "{error}"),
                    (Error::Disagreed { index: 0, .. }, 1) => {}
                    _ => panic!("{error}"),
                }
            });
        }
    });
}

#[test]
fn one_that_never_comes_is_named() {
    let (mut listeners, roster) = thread_listeners(3);
    let deadline = Deadline::after(Duration::from_millis(300));
    let error =
        Proof::gather(Some(listeners.swap_remove(0)), &roster, 0, &KEY, &deadline).expect_err("alone");
    let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|missing| missing.index).collect::<Vec<_>>(), [1, 2]);
}
