//! Large private arrays of processes of one host: through the stages and through the kernel, with the same results.

use std::time::Duration;

use uform::recorder::Site;
use uform::sys::peer::Peer;
use uform::sys::{Element, process};
use uform::{Call, Deadline, Mesh, ReduceOp, Span, SpanMut, Verb};

use crate::failure::calls::bootstrap;
use crate::failure::warning::Told;
use crate::harness::{Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("remote.calls", calls)];

/// Elements of each part: just large enough, odd, and of several blocks.
const LENGTHS: [usize; 3] = [65_536, 70_001, 655_363];
/// Calls of each kind: more than a trial of both ways has.
const CALLS: usize = 8;

/// The element of a member at a position, in a call: exact in every type, also summed.
fn element<T: From<u8>>(index: usize, position: usize, call: usize) -> T {
    T::from(u8::try_from((index * 7 + position + 3 * call) % 23).expect("small"))
}

/// Makes one call with values of its own, into an output apart or in place, and looks at every element.
fn check<T>(mesh: &Mesh, verb: Verb, length: usize, is_apart: bool, round: usize)
where
    T: Element + From<u8> + PartialEq + std::iter::Sum + std::fmt::Debug,
{
    let (own, count) = (mesh.index(), mesh.count());
    let (root, zero) = (round % count, T::from(0));
    let (given_parts, got_parts) = match verb {
        Verb::AllGather | Verb::Gather => (1, count),
        Verb::ReduceScatter | Verb::Scatter => (count, 1),
        Verb::AllToAll => (count, count),
        _ => (1, 1),
    };
    let given = |index: usize| (0..length * given_parts).map(move |at| element::<T>(index, at, round));
    let sum = |at: usize| (0..count).map(|index| element::<T>(index, at, round)).sum::<T>();
    let mut input = given(own).collect::<Vec<_>>();
    let mut output = vec![zero; if is_apart { length * got_parts } else { 0 }];
    let (source, target) = match is_apart {
        true => (Some(Span::of(&input)), SpanMut::of(&mut output)),
        false => (None, SpanMut::of(&mut input)),
    };
    let call = Call::of::<T>(verb, ReduceOp::Sum, root, source, target);
    let site = Site::named("remote", u32::try_from(round).expect("few"));
    let deadline = Deadline::after(Duration::from_secs(60));
    mesh.run(Call { site, ..call }, &deadline).unwrap_or_else(|error| panic!("{}", error.chain()));
    let got = if is_apart { &output } else { &input };
    let wanted = |at: usize| match verb {
        Verb::AllReduce => sum(at),
        Verb::Reduce => sum(at),
        Verb::Broadcast => element(root, at, round),
        Verb::AllGather | Verb::Gather => element(at / length, at % length, round),
        Verb::ReduceScatter => sum(own * length + at),
        Verb::Scatter => element(root, own * length + at, round),
        _ => element(at / length, own * length + at % length, round),
    };
    let is_written = own == root || !matches!(verb, Verb::Reduce | Verb::Gather);
    let wrong = (0..got.len()).filter(|_| is_written).find(|at| got[*at] != wanted(*at));
    if let Some(at) = wrong {
        panic!("{verb:?} of {length}, call {round}, at {at}: {:?} and not {:?}", got[at], wanted(at));
    }
    if is_apart {
        let kept = input.iter().copied().eq(given(own));
        assert!(kept, "{verb:?} of {length}, call {round}, changed its input");
    }
}

fn calls(_index: usize, _count: usize, _argument: &str) {
    let _kept = tracing::subscriber::set_default(Told(tracing::Level::DEBUG, |text: String| {
        if text.contains("through the kernel") {
            say("read through the kernel");
        }
    }));
    let mesh = bootstrap();
    for verb in [
        Verb::AllReduce,
        Verb::Reduce,
        Verb::Broadcast,
        Verb::AllGather,
        Verb::Gather,
        Verb::ReduceScatter,
        Verb::Scatter,
        Verb::AllToAll,
    ] {
        let works_in_place = matches!(verb, Verb::AllReduce | Verb::Reduce | Verb::Broadcast);
        for length in LENGTHS {
            for round in 0..CALLS {
                check::<f32>(&mesh, verb, length, round % 2 == 0 || !works_in_place, round);
                // A small call and one of another size between two of these use the same stages.
                mesh.barrier().expect("all come");
                check::<f64>(&mesh, verb, length / 64, true, round);
            }
        }
    }
    mesh.close().expect("idle");
}

fn all_ways_give_the_same(count: usize) {
    let outcomes = Setup::new(count, "remote.calls").deadline(Duration::from_secs(240)).start().finish();
    assert_all_succeeded(&outcomes);
    // Where the system lets this process read itself, members read each other.
    let peer = Peer::open(process::pid(), process::start_ticks(process::pid()).expect("/proc is mounted"));
    let mut byte = [0_u8];
    let can_read = |peer: Peer| peer.read((&raw const count).addr() as u64, &mut SpanMut::of(&mut byte));
    if peer.is_some_and(can_read) {
        let is_read = |outcome: &crate::harness::Outcome| outcome.output.contains("read through the kernel");
        assert!(outcomes.iter().all(is_read), "{}", transcript(&outcomes));
    }
}

#[test]
fn two_processes_get_the_same_through_stages_and_kernel() {
    all_ways_give_the_same(2);
}

#[test]
fn three_processes_get_the_same_through_stages_and_kernel() {
    all_ways_give_the_same(3);
}
