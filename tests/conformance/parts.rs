//! What every communicator must do in verbs whose members bring or get different parts.

use uform::communicator::{Call, Communicator};
use uform::error::{Error, Result};
use uform::sys::{Span, SpanMut};
use uform::vocabulary::{ReduceOp, Verb};

use super::members::patience;

/// Elements of a part, zero and beyond every piece among them.
const LENGTHS: [usize; 5] = [0, 1, 7, 130, 1203];

/// What `from` has for `to`.
fn value(from: usize, to: usize, position: usize) -> f64 {
    from as f64 * 1e7 + to as f64 * 1e5 + position as f64
}

fn part(from: usize, to: usize, length: usize) -> impl Iterator<Item = f64> {
    (0..length).map(move |position| value(from, to, position))
}

/// One call; a member without input or output has none.
struct Attempt<'a> {
    verb: Verb,
    op: ReduceOp,
    root: usize,
    counts: Option<&'a [usize]>,
    received: Option<&'a [usize]>,
}

impl Attempt<'_> {
    fn run(&self, on: &dyn Communicator, input: Option<&[f64]>, output: &mut [f64]) -> Result<()> {
        let call = Call::of::<f64>(self.verb, self.op, self.root, input.map(Span::of), SpanMut::of(output));
        let call = Call { counts: self.counts, receive_counts: self.received, ..call };
        on.run(call, &patience())
    }
}

fn attempt(verb: Verb, root: usize) -> Attempt<'static> {
    Attempt { verb, op: ReduceOp::Sum, root, counts: None, received: None }
}

/// Uneven lengths with zeros among them.
fn uneven(seat: usize, length: usize) -> usize {
    if seat % 3 == 1 { 0 } else { length + 3 * seat }
}

fn gathers(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    for length in LENGTHS {
        let counts = (0..members).map(|seat| uneven(seat, length)).collect::<Vec<_>>();
        let equal = vec![length; members];
        let whole = |counts: &[usize]| {
            let parts = counts.iter().enumerate().flat_map(|(from, count)| part(from, 0, *count));
            parts.collect::<Vec<_>>()
        };
        for root in 0..members {
            for (given, lengths) in [(None, &equal), (Some(&counts[..]), &counts), (Some(&equal[..]), &equal)]
            {
                let own = part(seat, 0, lengths[seat]).collect::<Vec<_>>();
                let expected = whole(lengths);
                let mut output = vec![-1.0; if seat == root { expected.len() } else { 0 }];
                let call = Attempt { counts: given, ..attempt(Verb::Gather, root) };
                call.run(on, Some(&own), &mut output).expect("gathered");
                assert_eq!(output, if seat == root { &expected[..] } else { &[] }, "{length} to {root}");

                let call = Attempt { counts: given, ..attempt(Verb::AllGather, 0) };
                let mut output = vec![-1.0; expected.len()];
                call.run(on, Some(&own), &mut output).expect("gathered");
                assert_eq!(output, expected);
                let start = lengths[..seat].iter().sum::<usize>();
                let mut output = vec![-1.0; expected.len()];
                output[start..start + own.len()].copy_from_slice(&own);
                call.run(on, None, &mut output).expect("gathered in place");
                assert_eq!(output, expected);
            }
        }
    }
}

fn scatters(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    for length in LENGTHS {
        let counts = (0..members).map(|seat| uneven(seat, length)).collect::<Vec<_>>();
        let equal = vec![length; members];
        for (given, lengths) in [(None, &equal), (Some(&counts[..]), &counts)] {
            let parts = |from: usize| {
                let parts = lengths.iter().enumerate().flat_map(move |(to, count)| part(from, to, *count));
                parts.collect::<Vec<_>>()
            };
            for root in 0..members {
                let whole = parts(root);
                let mut output = vec![-1.0; lengths[seat]];
                let call = Attempt { counts: given, ..attempt(Verb::Scatter, root) };
                call.run(on, (seat == root).then_some(&whole[..]), &mut output).expect("scattered");
                assert_eq!(output, part(root, seat, lengths[seat]).collect::<Vec<_>>(), "{length} of {root}");
            }
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                let whole = parts(seat);
                let mut output = vec![-1.0; lengths[seat]];
                let call = Attempt { counts: given, op, ..attempt(Verb::ReduceScatter, 0) };
                call.run(on, Some(&whole), &mut output).expect("reduced and scattered");
                let expected = |position: usize| match op {
                    ReduceOp::Sum => (0..members).map(|from| value(from, seat, position)).sum::<f64>(),
                    _ => value(members - 1, seat, position),
                };
                assert_eq!(output, (0..lengths[seat]).map(expected).collect::<Vec<_>>());
            }
        }
    }
}

fn reduces_to_one(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    for length in LENGTHS {
        for root in 0..members {
            let own = part(seat, 0, length).collect::<Vec<_>>();
            let expected = (0..length)
                .map(|position| {
                    (0..members).map(|from| value(from, 0, position)).sum::<f64>() / members as f64
                })
                .collect::<Vec<_>>();
            let call = Attempt { op: ReduceOp::Average, ..attempt(Verb::Reduce, root) };
            let mut output = vec![-1.0; if seat == root { length } else { 0 }];
            call.run(on, Some(&own), &mut output).expect("reduced");
            assert_eq!(output, if seat == root { &expected[..] } else { &[] });
            // In place at the root.
            let mut output = if seat == root { own.clone() } else { Vec::new() };
            call.run(on, (seat != root).then_some(&own[..]), &mut output).expect("reduced in place");
            assert_eq!(output, if seat == root { &expected[..] } else { &[] });
        }
    }
}

fn exchanges_all(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    for length in LENGTHS {
        let count = |from: usize, to: usize| uneven(from, length) + uneven(to, 2) + usize::from(from < to);
        let sent = (0..members).map(|to| count(seat, to)).collect::<Vec<_>>();
        let received = (0..members).map(|from| count(from, seat)).collect::<Vec<_>>();
        let equal = vec![length; members];
        for (is_counted, sent, received) in [(false, &equal, &equal), (true, &sent, &received)] {
            let input = sent.iter().enumerate().flat_map(|(to, count)| part(seat, to, *count));
            let expected = received.iter().enumerate().flat_map(|(from, count)| part(from, seat, *count));
            let (input, expected) = (input.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
            let mut output = vec![-1.0; expected.len()];
            let call = Attempt {
                counts: is_counted.then_some(sent),
                received: is_counted.then_some(received),
                ..attempt(Verb::AllToAll, 0)
            };
            call.run(on, Some(&input), &mut output).expect("exchanged");
            assert_eq!(output, expected, "{length}, counted {is_counted}");
        }
    }
}

fn disagreements(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    if members == 1 {
        return;
    }
    let last = members - 1;
    let in_step = || {
        let mut sum = [seat as f64];
        attempt(Verb::AllReduce, 0).run(on, None, &mut sum).expect("the group goes on");
        assert_eq!(sum, [(0..members).sum::<usize>() as f64]);
    };
    // The last member has another idea of who brings how much; the sums agree.
    let mut counts = vec![4; members];
    if seat == last {
        (counts[0], counts[1]) = (3, 5);
    }
    let own = vec![0.0; counts[seat]];
    let call = Attempt { counts: Some(&counts), ..attempt(Verb::AllGather, 0) };
    let error = call.run(on, Some(&own), &mut vec![0.0; 4 * members]).expect_err("the counts differ");
    assert!(matches!(&error, Error::Disagreed { .. }) && error.to_string().contains("counts"), "{error}");
    in_step();
    // What the first sends is not what the last expects: all learn who.
    let sent = vec![2; members];
    let mut received = vec![2; members];
    if seat == last {
        received[0] = 3;
    }
    let input = vec![0.0; 2 * members];
    let mut output = vec![0.0; received.iter().sum()];
    let call = Attempt { counts: Some(&sent), received: Some(&received), ..attempt(Verb::AllToAll, 0) };
    let error = call.run(on, Some(&input), &mut output).expect_err("a pair differs");
    assert!(matches!(&error, Error::Disagreed { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("index 0 sends 2") && text.contains(&format!("index {last} expects 3")), "{text}");
    in_step();
    // One counts its parts, the others do not.
    let counts = vec![2; members];
    let call = Attempt { counts: (seat == last).then_some(&counts[..]), ..attempt(Verb::Scatter, 0) };
    let whole = vec![0.0; 2 * members];
    let error = call.run(on, (seat == 0).then_some(&whole[..]), &mut [0.0; 2]).expect_err("one counts");
    assert!(matches!(&error, Error::Disagreed { .. }), "{error}");
    in_step();
}

fn refusals(on: &dyn Communicator) {
    let (seat, members) = (on.seat(), on.count());
    let refused = |result: Result<()>| {
        let error = result.expect_err("a wrong call");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    };
    let one = [1.0; 1];
    let short = vec![1; members + 1];
    let huge = vec![usize::MAX / 2; members.max(3)];
    let equal = vec![1; members];
    for verb in [Verb::Gather, Verb::Scatter, Verb::Reduce] {
        refused(attempt(verb, members).run(on, Some(&one), &mut []));
    }
    for verb in [Verb::Gather, Verb::AllGather, Verb::Scatter, Verb::ReduceScatter] {
        refused(Attempt { counts: Some(&short), ..attempt(verb, seat) }.run(on, Some(&one), &mut [0.0]));
        refused(Attempt { counts: Some(&huge), ..attempt(verb, seat) }.run(on, Some(&one), &mut [0.0]));
        refused(Attempt { received: Some(&equal), ..attempt(verb, seat) }.run(on, Some(&one), &mut [0.0]));
    }
    refused(Attempt { counts: Some(&equal), ..attempt(Verb::AllReduce, 0) }.run(on, None, &mut [0.0]));
    refused(Attempt { counts: Some(&equal), ..attempt(Verb::AllToAll, 0) }.run(on, Some(&one), &mut [0.0]));
    let mut kept = equal.clone();
    kept[seat] = 2;
    let own = Attempt { counts: Some(&equal), received: Some(&kept), ..attempt(Verb::AllToAll, 0) };
    refused(own.run(on, Some(&vec![0.0; members]), &mut vec![0.0; members + 1]));
    refused(attempt(Verb::Gather, seat).run(on, None, &mut [0.0]));
    refused(attempt(Verb::AllToAll, 0).run(on, None, &mut vec![0.0; members]));
    refused(attempt(Verb::Scatter, seat).run(on, None, &mut [0.0]));
    // None of these took a number: the group is in step.
    attempt(Verb::Barrier, 0).run(on, None, &mut []).expect("all have come");
}

/// Everything that one member does.
pub(crate) fn suite(on: &dyn Communicator) {
    gathers(on);
    scatters(on);
    reduces_to_one(on);
    exchanges_all(on);
    disagreements(on);
    refusals(on);
}
