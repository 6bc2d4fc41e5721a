//! Sends and receives between two members, whatever connects them: in order by tag, beside the calls of all, compared by both.

use std::time::Duration;

use uform::Deadline;
use uform::communicator::{Call, Communicator};
use uform::error::Error;
use uform::sys::{Span, SpanMut};
use uform::vocabulary::{ReduceOp, Verb};

use super::members::{self, patience};

const TINY: usize = 64;
/// Zero, odd, sent before their receive, and beyond that.
const LENGTHS: [usize; 6] = [0, 1, 7, 1000, 9_001, 250_007];

fn send(group: &dyn Communicator, to: usize, tag: u64, values: &[f64]) -> Result<(), Error> {
    let call = Call::of::<f64>(Verb::Send, ReduceOp::Sum, to, Some(Span::of(values)), SpanMut::empty());
    group.run(Call { tag, ..call }, &patience())
}

fn receive(group: &dyn Communicator, from: usize, tag: u64, values: &mut [f64]) -> Result<(), Error> {
    let call = Call::of::<f64>(Verb::Receive, ReduceOp::Sum, from, None, SpanMut::of(values));
    group.run(Call { tag, ..call }, &patience())
}

fn barrier(group: &dyn Communicator) {
    let call = Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty());
    group.run(call, &patience()).expect("all come");
}

fn values(seat: usize, length: usize) -> Vec<f64> {
    (0..length).map(|position| seat as f64 * 1e6 + position as f64).collect()
}

/// Around the ring, every length; the even ones begin.
fn around(group: &dyn Communicator) {
    let (seat, count) = (group.seat(), group.count());
    let (next, last) = ((seat + 1) % count, (seat + count - 1) % count);
    for (tag, length) in LENGTHS.into_iter().enumerate() {
        let mut heard = vec![-1.0; length];
        // One member begins, so that large ones go around one after the other.
        if seat == 0 {
            send(group, next, tag as u64, &values(seat, length)).expect("sent");
            receive(group, last, tag as u64, &mut heard).expect("received");
        } else {
            receive(group, last, tag as u64, &mut heard).expect("received");
            send(group, next, tag as u64, &values(seat, length)).expect("sent");
        }
        assert_eq!(heard, values(last, length));
        barrier(group);
    }
}

/// Many messages that nobody waits for, received last tag first, in their order within a tag.
fn tags(group: &dyn Communicator) {
    let (seat, count) = (group.seat(), group.count());
    let others = || (0..count).filter(move |other| *other != seat);
    for round in 0..3 {
        for other in others() {
            for number in 0..8 {
                send(group, other, number % 2, &values(seat + number as usize, 10)).expect("it fits");
            }
        }
        // All have sent before anybody receives.
        barrier(group);
        for other in others() {
            for tag in [1, 0] {
                for number in (0..8).filter(|number| number % 2 == tag) {
                    let mut heard = [0.0; 10];
                    receive(group, other, tag, &mut heard).expect("it was sent");
                    assert_eq!(heard[..], values(other + number as usize, 10), "round {round}");
                }
            }
        }
    }
}

/// A call of all members goes on in another thread.
fn beside(group: &dyn Communicator) {
    let (seat, count) = (group.seat(), group.count());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let mut numbers = vec![1.0_f64; 5000];
                let call =
                    Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut numbers));
                group.run(call, &patience()).expect("all come");
                assert!(numbers.iter().all(|number| *number == count as f64));
            }
        });
        let pair = seat ^ 1;
        for round in (0..20).filter(|_| pair < count) {
            let length = if round % 2 == 0 { 30 } else { 20_000 };
            let mut heard = vec![0.0; length];
            if seat < pair {
                send(group, pair, 3, &values(seat, length)).expect("sent");
                receive(group, pair, 4, &mut heard).expect("received");
            } else {
                receive(group, pair, 3, &mut heard).expect("received");
                send(group, pair, 4, &values(seat, length)).expect("sent");
            }
            assert_eq!(heard, values(pair, length));
        }
    });
}

/// Large ones in both directions at once, each in a thread of its own.
fn both_ways(group: &dyn Communicator) {
    let (seat, count) = (group.seat(), group.count());
    let (next, last) = ((seat + 1) % count, (seat + count - 1) % count);
    std::thread::scope(|scope| {
        scope.spawn(|| send(group, next, 9, &values(seat, 100_003)).expect("sent"));
        let mut heard = vec![0.0; 100_003];
        receive(group, last, 9, &mut heard).expect("received");
        assert_eq!(heard, values(last, 100_003));
    });
}

fn disagreements(group: &dyn Communicator) {
    let seat = group.seat();
    for length in [100, 20_000] {
        let result = match seat {
            0 => Some(send(group, 1, 7, &values(0, length))),
            1 => Some(receive(group, 0, 7, &mut vec![0.0; length + 1])),
            _ => None,
        };
        // One that was sent before its receive is the receiver's alone.
        if let Some(result) = result.filter(|_| seat == 1 || length > 10_000) {
            let error = result.expect_err("the counts differ");
            assert!(matches!(error, Error::Disagreed { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("send #") && text.contains("receive #"), "both calls are named: {text}");
            assert!(
                text.contains(&format!("{length} ")) && text.contains(&format!("{} ", length + 1)),
                "{text}"
            );
        }
        let mut heard = [0.0; 3];
        match seat {
            0 => send(group, 1, 7, &values(0, 3)).expect("the group goes on"),
            1 => {
                receive(group, 0, 7, &mut heard).expect("the group goes on");
                assert_eq!(heard[..], values(0, 3));
            }
            _ => {}
        }
        barrier(group);
    }
}

fn refusals(group: &dyn Communicator) {
    for wrong in [group.seat(), group.count()] {
        for result in [send(group, wrong, 0, &[1.0]), receive(group, wrong, 0, &mut [1.0])] {
            let error = result.expect_err("no such other member");
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
    }
    barrier(group);
}

fn suite(group: &dyn Communicator) {
    refusals(group);
    if group.count() == 1 {
        return;
    }
    around(group);
    tags(group);
    both_ways(group);
    beside(group);
    disagreements(group);
    barrier(group);
}

/// Nobody sends: the deadline names the one that was waited for, and all learn that the group has ended.
fn timeout(group: &dyn Communicator) {
    if group.seat() == 0 {
        let mut heard = [0.0_f64; 2];
        let call = Call::of::<f64>(Verb::Receive, ReduceOp::Sum, 1, None, SpanMut::of(&mut heard));
        let deadline = Deadline::after(Duration::from_millis(300));
        let error = group.run(Call { tag: 5, ..call }, &deadline).expect_err("nobody sends");
        let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing[0].index, 1, "{error}");
        assert!(error.to_string().contains("receive #1 from index 1 (2 F64, tag 5)"), "{error}");
        let again = receive(group, 1, 5, &mut heard).expect_err("ended");
        assert_eq!(again.to_string(), error.to_string());
    } else {
        let error = receive(group, 0, 6, &mut [0.0]).expect_err("it left");
        assert!(matches!(&error, Error::Lost { index: 0, .. }), "{error}");
        assert!(error.to_string().contains("timed out"), "{error}");
    }
}

#[test]
fn members_of_one_host_send_and_receive() {
    for count in [1, 2, 3, 5] {
        members::threads(count, 512 << 10, |group| suite(&*group));
    }
}

#[test]
fn connected_members_send_and_receive() {
    for count in [1, 2, 3, 5] {
        members::network_threads(count, TINY, |group| suite(&*group));
    }
}

#[test]
fn members_of_several_hosts_send_and_receive() {
    for hosts in [&[0, 1][..], &[0, 1, 0], &[0, 0, 1, 1, 0]] {
        members::tiered_threads(hosts, 512, |group| suite(&*group));
    }
}

#[test]
fn a_receive_that_nobody_sends_for_ends_the_group() {
    members::threads(3, 512 << 10, |group| timeout(&*group));
    members::network_threads(3, TINY, |group| timeout(&*group));
    members::tiered_threads(&[0, 1, 1], 512, |group| timeout(&*group));
}
