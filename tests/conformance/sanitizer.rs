//! What ThreadSanitizer must report, and what it must not, of members that are threads: so that its silence about all else counts.

use std::sync::Arc;

use uform::communicator::{Call, Communicator, SharedArena};
use uform::sys::{Span, SpanMut};
use uform::{ReduceOp, Verb};

use super::members::{self, patience};

fn barrier(group: &dyn Communicator) {
    let call = Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty());
    group.run(call, &patience()).expect("all come");
}

/// Every member writes the first bytes of the part of member 0, `turns` times; `waits` for the others between two writers.
fn write_one_place(turns: usize, waits: bool) {
    let seen = members::threads(2, 1 << 16, |group| {
        let arena: Arc<dyn SharedArena> = group.arena(64, &patience()).expect("memory is free");
        let mut place = arena.part_mut(0).expect("a seat");
        for turn in 0..turns {
            for writer in 0..group.count() {
                if writer == group.seat() {
                    place.copy_from(Span::of(&[(turn + writer) as u8; 64])).expect("equal lengths");
                }
                if waits {
                    barrier(&*group);
                }
            }
        }
        barrier(&*group);
        arena.part(0).expect("a seat").to_vec()
    });
    // Who writes last is sure only where members wait.
    assert!(!waits || seen.iter().all(|bytes| *bytes == [turns as u8; 64]));
}

#[test]
fn members_that_wait_for_each_other_do_not_race() {
    write_one_place(100, true);
}

#[test]
#[ignore = "races on purpose: `make test-tsan` runs it, and expects that ThreadSanitizer reports it"]
fn members_that_do_not_wait_race() {
    write_one_place(1000, false);
}
