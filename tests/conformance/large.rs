//! Arrays of more than 2^31 elements: counts, offsets and lengths that no 32 bits hold. `make test-large` runs it.

use std::time::{Duration, Instant};

use uform::{Mesh, ReduceOp};

use crate::harness::{Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("large.calls", calls)];

/// Odd, and three elements more than a signed number of 32 bits counts.
const COUNT: usize = (1 << 31) + 3;

/// What a member has at a position; sums of two fit.
const fn element(index: usize, position: usize) -> u8 {
    ((position / 7 + position % 113) % 101 + index * 27) as u8
}

/// Every element is what it must be.
fn assert_is(what: &str, array: &[u8], expected: impl Fn(usize) -> u8) {
    let wrong = array.iter().enumerate().find(|(at, value)| **value != expected(*at));
    assert!(wrong.is_none(), "{what}: element {wrong:?}");
}

fn calls(index: usize, count: usize, _argument: &str) {
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let time = |what: &str, start: Instant| say(&format!("{what} {:.2} s", start.elapsed().as_secs_f64()));
    let mut array = (0..COUNT).map(|at| element(index, at)).collect::<Vec<_>>();
    let start = Instant::now();
    mesh.all_reduce(&mut array, ReduceOp::Sum).unwrap_or_else(|error| panic!("{}", error.chain()));
    time("all_reduce", start);
    assert_is("all_reduce", &array, |at| (0..count).map(|member| element(member, at)).sum());
    array.iter_mut().enumerate().for_each(|(at, value)| *value = element(index, at));
    let start = Instant::now();
    mesh.broadcast(&mut array, 1).unwrap_or_else(|error| panic!("{}", error.chain()));
    time("broadcast", start);
    assert_is("broadcast", &array, |at| element(1, at));
    // The parts of all together have more than 2^31 elements.
    let part = COUNT.div_ceil(count);
    let own = (0..part).map(|at| element(index, at)).collect::<Vec<_>>();
    array.resize(part * count, 0);
    let start = Instant::now();
    mesh.all_gather(&own, &mut array).unwrap_or_else(|error| panic!("{}", error.chain()));
    time("all_gather", start);
    assert_is("all_gather", &array, |at| element(at / part, at % part));
    let mut reduced = own;
    let start = Instant::now();
    mesh.reduce_scatter(&array, &mut reduced, ReduceOp::Max)
        .unwrap_or_else(|error| panic!("{}", error.chain()));
    time("reduce_scatter", start);
    assert_is("reduce_scatter", &reduced, |at| element(index, at));
    mesh.close().expect("idle");
}

#[test]
#[ignore = "7 GB of memory and some minutes: make test-large"]
fn more_elements_than_32_bits_count() {
    let outcomes = Setup::new(2, "large.calls").deadline(Duration::from_secs(900)).start().finish();
    assert_all_succeeded(&outcomes);
    println!("{}", transcript(&outcomes));
}
