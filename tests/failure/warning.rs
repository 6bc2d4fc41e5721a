//! A call that waits long says for whom, once, and goes on: by a clock of the test, so that nobody waits half a minute.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uform::communicator::{Call, Communicator};
use uform::sys::{Clock, Deadline, SpanMut};
use uform::vocabulary::Verb;
use uform::{Error, ReduceOp};

use crate::conformance::members::{self, patience};

/// A clock that the test puts forward.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }
}

/// Hands what one thread says, down to a level, to somebody.
pub(crate) struct Told<F>(pub(crate) Level, pub(crate) F);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, _field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{value:?}");
    }
}

impl<F: Fn(String) + Send + Sync + 'static> Subscriber for Told<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Message(&mut text));
        (self.1)(text);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn barrier(group: &dyn Communicator, deadline: &Deadline<'_>) -> Result<(), Error> {
    group.run(Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty()), deadline)
}

/// Waits until the condition holds.
fn until(condition: impl Fn() -> bool) {
    let limit = patience();
    while !condition() {
        assert!(!limit.passed(), "it never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seat 1 comes when seat 0 has warned; then seat 0 waits to its deadline.
fn warn_and_time_out(
    group: &dyn Communicator,
    step: &AtomicU64,
    clock: &Ahead,
    warnings: &Arc<Mutex<Vec<String>>>,
) {
    let warned = || warnings.lock().expect("no panic").clone();
    barrier(group, &patience()).expect("both come");
    if group.seat() == 1 {
        until(|| step.load(Ordering::SeqCst) == 1);
        // Some looks later nothing was said: it waits less than half a minute.
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(warned(), Vec::<String>::new());
        clock.0.store(31, Ordering::SeqCst);
        until(|| !warned().is_empty());
        // And it is said once.
        std::thread::sleep(Duration::from_millis(300));
        barrier(group, &patience()).expect("both come");
        return until(|| step.load(Ordering::SeqCst) == 2);
    }
    let kept = Arc::clone(warnings);
    let told = Told(Level::WARN, move |text| kept.lock().expect("no panic").push(text));
    let _kept = tracing::subscriber::set_default(told);
    let deadline = Deadline::after(Duration::from_secs(1800)).by(clock);
    step.store(1, Ordering::SeqCst);
    barrier(group, &deadline).expect("the other comes late");
    let said = warned();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("index 0 waits in barrier #2 for index 1 (user code since barrier #1"),
        "{said:?}"
    );
    let deadline = Deadline::after(Duration::from_secs(1800)).by(clock);
    clock.0.store(31 + 1801, Ordering::SeqCst);
    let error = barrier(group, &deadline).expect_err("the other does not come");
    step.store(2, Ordering::SeqCst);
    let Error::TimedOut { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|one| one.index).collect::<Vec<_>>(), [1]);
    assert_eq!(warned().len(), 2);
}

#[test]
fn a_call_that_waits_for_half_a_minute_names_the_one_that_has_not_come() {
    let (step, clock, warnings) = (AtomicU64::new(0), Ahead::default(), Arc::default());
    members::threads(2, 4096, |group| warn_and_time_out(&*group, &step, &clock, &warnings));
}

#[test]
fn a_call_that_waits_for_another_host_names_the_one_that_has_not_come() {
    let (step, clock, warnings) = (AtomicU64::new(0), Ahead::default(), Arc::default());
    members::network_threads(2, 4096, |group| warn_and_time_out(&*group, &step, &clock, &warnings));
}
