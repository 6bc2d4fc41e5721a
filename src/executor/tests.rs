//! What an executor promises: one call at a time, one line, moods, and every way to close.

use std::future::Future;
use std::sync::mpsc;

use super::*;
use crate::sys::affinity;
use crate::topology::THREAD_LIMIT;

fn executor() -> Executor {
    Executor::for_ram(&HostOptions { threads: 2, ..HostOptions::default() }).expect("two threads")
}

/// What another thread gets.
fn elsewhere<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(call).join().expect("no panic"))
}

#[test]
fn one_call_at_a_time_and_the_holder_is_named() {
    let executor = executor();
    let hold = executor.hold("all_reduce").expect("free");
    let error = executor.hold("barrier").expect_err("held");
    assert!(error.to_string().contains("held by all_reduce"), "{error}");
    assert_eq!(hold.install(rayon::current_num_threads), 2);
    drop(hold);
    executor.hold("barrier").expect("free again");
}

#[test]
fn a_closed_executor_says_so_and_closing_twice_is_harmless() {
    let executor = executor();
    let deadline = Deadline::after(Duration::from_secs(30));
    executor.drain(Mood::Busy, &deadline).expect("idle");
    assert_eq!(executor.mood(), Mood::Busy);
    executor.close(&deadline).expect("idle");
    executor.close(&deadline).expect("twice");
    assert!(matches!(executor.hold("barrier"), Err(Error::Closed { .. })));
    assert!(matches!(executor.drain(Mood::Parked, &deadline), Err(Error::Closed { .. })));
}

#[test]
fn closing_waits_for_the_call_and_then_names_it() {
    let executor = executor();
    let hold = executor.hold("all_reduce").expect("free");
    let error = executor.close(&Deadline::after(Duration::from_secs(60))).expect_err("waits for itself");
    assert!(matches!(error, Error::Contended { .. }) && !executor.is_closed(), "{error}");
    let error = elsewhere(|| executor.close(&Deadline::after(Duration::from_millis(20))));
    assert!(error.expect_err("held").to_string().contains("all_reduce"));
    assert_eq!(hold.install(|| 7), 7);
    drop(hold);
    executor.close(&Deadline::after(Duration::from_secs(60))).expect("free");
}

#[test]
fn threads_stay_on_their_cores_and_the_callers_mask_is_left_alone() {
    let before = affinity::get_affinity().expect("a mask");
    let executor = Executor::for_ram(&HostOptions::default()).expect("the core budget");
    assert!(executor.threads() >= 1 && executor.threads() <= before.len());
    let hold = executor.hold("a look").expect("free");
    let masks = hold.install(|| rayon::broadcast(|_| affinity::get_affinity().expect("a mask")));
    assert_eq!(masks.len(), executor.threads());
    for (mask, core) in masks.iter().zip(&executor.placement().cores) {
        assert_eq!(mask, &[*core]);
        assert!(before.contains(core));
    }
    assert_eq!(affinity::get_affinity().expect("a mask"), before);
}

#[test]
fn more_threads_than_cores_stay_within_the_mask() {
    let mask = affinity::get_affinity().expect("a mask");
    let options = HostOptions { threads: mask.len() + 3, deferred_limit: 9, ..HostOptions::default() };
    let executor = Executor::for_ram(&options).expect("more than cores");
    assert_eq!(executor.deferred_limit(), 9);
    let hold = executor.hold("a look").expect("free");
    let masks = hold.install(|| rayon::broadcast(|_| affinity::get_affinity().expect("a mask")));
    assert_eq!(masks.len(), mask.len() + 3);
    assert!(masks.iter().flatten().all(|core| mask.contains(core)));
}

#[test]
fn an_executor_may_be_dropped_on_its_own_thread() {
    let executor = executor();
    let (sender, dropped) = std::sync::mpsc::channel();
    let last = executor.clone();
    let call = executor.submit("a look", move |_| {
        drop(last);
        Ok(())
    });
    call.on_done(Box::new(move || sender.send(()).expect("the test waits")));
    drop(executor);
    dropped.recv_timeout(Duration::from_secs(60)).expect("it does not wait for itself");
}

#[test]
fn drain_waits_for_the_call() {
    let executor = executor();
    let _hold = executor.hold("all_reduce").expect("free");
    let error = elsewhere(|| executor.drain(Mood::Busy, &Deadline::after(Duration::from_millis(20))));
    assert!(error.expect_err("held").to_string().contains("all_reduce"));
    assert_eq!(executor.mood(), Mood::Parked);
}

#[test]
fn wrong_options_are_refused() {
    let many = HostOptions { threads: THREAD_LIMIT + 1, ..HostOptions::default() };
    assert!(matches!(Executor::for_ram(&many), Err(Error::Invalid { .. })));
    let domain = HostOptions { memory_domains: Some(vec![4095]), ..HostOptions::default() };
    assert!(matches!(Executor::for_ram(&domain), Err(Error::Invalid { .. })));
    let pin = HostOptions { cpu_class: Some(CpuClass::Wasm32V128), ..HostOptions::default() };
    assert!(Executor::for_ram(&pin).expect_err("no such machine").to_string().contains("WASM32_V128"));
    assert!(matches!(Executor::on_pool(0), Err(Error::Unsupported { .. })));
}

fn of(threads: usize, deferred_limit: usize) -> Executor {
    Executor::for_ram(&HostOptions { threads, deferred_limit, ..HostOptions::default() })
        .expect("few threads")
}

fn patience() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(60))
}

/// Waits until something is so.
fn until(is_so: impl Fn() -> bool) {
    let deadline = patience();
    while !is_so() {
        assert!(!deadline.passed(), "it never is");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A call that runs until it is let go.
fn long_call(executor: &Executor) -> (Deferred<u32>, mpsc::Sender<()>) {
    let (sender, receiver) = mpsc::channel::<()>();
    let (begun, began) = mpsc::channel();
    let call = executor.submit("long_call", move |_| {
        begun.send(()).expect("the test waits");
        // Also if the test has ended.
        let _ = receiver.recv();
        Ok(7)
    });
    began.recv_timeout(Duration::from_secs(60)).expect("it starts");
    (call, sender)
}

#[test]
fn a_deferred_call_runs_on_the_threads_of_the_pool() {
    for mood in [Mood::Parked, Mood::Busy] {
        for threads in [1, 3] {
            let executor = of(threads, 0);
            executor.drain(mood, &patience()).expect("idle");
            for round in 0..50 {
                let call = executor.submit("a look", move |hold| {
                    let name = std::thread::current().name().map(str::to_owned);
                    Ok((round, name, hold.install(rayon::current_num_threads)))
                });
                let (found, name, size) = call.wait(&patience()).expect("it runs");
                assert_eq!((found, size), (round, threads));
                assert!(name.is_some_and(|name| name.starts_with("uform-")));
                // Whoever has waited finds the executor free, although there is no line.
                drop(executor.hold("barrier").expect("free"));
            }
            assert_eq!(executor.mood(), mood);
        }
    }
}

#[test]
fn without_a_line_a_deferred_call_is_contended_when_it_is_waited_for() {
    let executor = of(1, 0);
    let hold = executor.hold("all_reduce").expect("free");
    let call = elsewhere(|| executor.submit("barrier", |_| Ok(())));
    assert!(call.is_done());
    drop(hold);
    let error = call.wait(&patience()).expect_err("it was held");
    assert!(matches!(&error, Error::Contended { holder, .. } if holder == "all_reduce"), "{error}");
    let again = call.wait(&patience()).expect_err("given once");
    assert!(matches!(again, Error::Closed { .. }), "{again}");
    let (long, end) = long_call(&executor);
    let error = executor.hold_within("barrier", &patience()).expect_err("no line");
    assert!(matches!(&error, Error::Contended { holder, .. } if holder == "long_call"), "{error}");
    end.send(()).expect("it waits");
    assert_eq!(long.wait(&patience()).expect("it runs"), 7);
}

#[test]
fn the_line_is_first_in_first_out_for_both_kinds_of_calls() {
    let executor = of(2, 3);
    let (_long, end) = long_call(&executor);
    let order = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let order = Arc::clone(&order);
        move || lock(&order).push(name)
    };
    let first = note("first");
    let first = executor.submit("first", move |_| {
        first();
        Ok(())
    });
    std::thread::scope(|scope| {
        let (second, own) = (note("second"), executor.clone());
        let second = scope.spawn(move || {
            let hold = own.hold_within("second", &patience()).expect("room for it");
            second();
            drop(hold);
        });
        until(|| executor.0.line.waiting_count() == 2);
        let third = note("third");
        let third = executor.submit("third", move |_| {
            third();
            Ok(())
        });
        // Three wait: the line is full, for both kinds.
        let error = executor.submit("fourth", |_| Ok(())).wait(&patience()).expect_err("full");
        assert!(matches!(error, Error::Contended { .. }), "{error}");
        let error = executor.hold_within("fifth", &patience()).expect_err("full");
        assert!(matches!(error, Error::Contended { .. }), "{error}");
        end.send(()).expect("it waits");
        third.wait(&patience()).expect("it runs");
        first.wait(&patience()).expect("it runs");
        second.join().expect("no panic");
    });
    assert_eq!(*lock(&order), ["first", "second", "third"]);
    executor.hold("barrier").expect("free");
}

#[test]
fn a_blocking_call_leaves_the_line_at_its_deadline_and_when_it_is_interrupted() {
    let executor = of(1, 2);
    let (long, end) = long_call(&executor);
    let error = executor.hold_within("barrier", &Deadline::after(Duration::from_millis(30)));
    let error = error.expect_err("held");
    assert!(matches!(&error, Error::TimedOut { phase, .. } if phase.contains("long_call")), "{error}");
    let stop = || true;
    let error = executor.hold_within("barrier", &patience().interruptible(&stop)).expect_err("interrupted");
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    // A call on the same executor from inside of that check would wait for itself.
    let inner = Mutex::new(None);
    let check = || {
        *lock(&inner) = Some(executor.hold_within("inner", &patience()).map(drop));
        true
    };
    executor.hold_within("outer", &patience().interruptible(&check)).expect_err("interrupted");
    let inner = lock(&inner).take().expect("asked").expect_err("refused");
    assert!(matches!(inner, Error::Contended { .. }), "{inner}");
    assert_eq!(executor.0.line.waiting_count(), 0);
    end.send(()).expect("it waits");
    long.wait(&patience()).expect("it runs");
    executor.hold("barrier").expect("free");
}

#[test]
fn a_call_from_inside_of_a_call_is_contended_at_once() {
    let executor = of(2, 8);
    let own = executor.clone();
    let call = executor.submit("outer", move |_| {
        let deadline = patience();
        let contended = |result: Result<()>| matches!(result, Err(Error::Contended { .. }));
        assert!(contended(own.hold("inner").map(drop)));
        assert!(contended(own.hold_within("inner", &deadline).map(drop)));
        assert!(contended(own.submit("inner", |_| Ok(())).wait(&deadline)));
        assert!(contended(own.drain(Mood::Busy, &deadline)));
        assert!(contended(own.finish(&deadline)));
        assert!(contended(own.close(&deadline)));
        Ok(deadline.waited() < Duration::from_secs(30))
    });
    assert!(call.wait(&patience()).expect("no assertion failed"));
    assert!(!executor.is_closed());
    let hold = executor.hold("outer").expect("free");
    let error = executor.hold_within("inner", &patience()).expect_err("refused");
    assert!(matches!(&error, Error::Contended { holder, .. } if holder == "outer"), "{error}");
    drop(hold);
}

#[test]
fn waiting_ends_at_its_own_deadline_and_may_be_repeated() {
    let executor = of(1, 0);
    let (call, end) = long_call(&executor);
    assert!(!call.is_done());
    let error = call.wait(&Deadline::after(Duration::from_millis(30))).expect_err("it goes on");
    assert!(matches!(&error, Error::TimedOut { phase, .. } if phase.contains("long_call")), "{error}");
    let stop = || true;
    let error = call.wait(&patience().interruptible(&stop)).expect_err("interrupted");
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
    end.send(()).expect("it waits");
    assert_eq!(call.wait(&patience()).expect("it ends"), 7);
}

#[test]
fn hooks_run_once_on_the_threads_of_the_pool_or_at_once() {
    let executor = of(1, 0);
    let (call, end) = long_call(&executor);
    let (sender, receiver) = mpsc::channel();
    let later = sender.clone();
    call.on_done(Box::new(move || panic!("a hook may do what it wants")));
    call.on_done(Box::new(move || {
        later.send(std::thread::current().name().map(str::to_owned)).expect("the test waits");
    }));
    end.send(()).expect("it waits");
    let name = receiver.recv_timeout(Duration::from_secs(60)).expect("called").expect("a name");
    assert!(name.starts_with("uform-"), "{name}");
    assert!(call.is_done());
    call.on_done(Box::new(move || sender.send(None).expect("the test waits")));
    assert_eq!(receiver.try_recv().expect("called at once"), None);
    assert_eq!(call.wait(&patience()).expect("it ends"), 7);
}

#[test]
fn a_deferred_call_is_a_future() {
    struct Flag(AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let executor = of(1, 0);
    let (mut call, end) = long_call(&executor);
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Arc::clone(&flag).into();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::pin::Pin::new(&mut call).poll(&mut context).is_pending());
    end.send(()).expect("it waits");
    until(|| flag.0.load(Ordering::SeqCst));
    let std::task::Poll::Ready(result) = std::pin::Pin::new(&mut call).poll(&mut context) else {
        panic!("woken when it was ready")
    };
    assert_eq!(result.expect("it ends"), 7);
}

#[test]
fn a_panic_in_a_call_is_its_error_and_the_threads_go_on() {
    let executor = of(1, 4);
    for _ in 0..3 {
        let call = executor.submit("careless", |_| -> Result<()> { panic!("out of cheese") });
        let error = call.wait(&patience()).expect_err("it panicked");
        assert!(
            error.to_string().contains("careless") && error.to_string().contains("out of cheese"),
            "{error}"
        );
    }
    assert_eq!(executor.submit("careful", |_| Ok(3)).wait(&patience()).expect("it runs"), 3);
}

#[test]
fn a_call_that_nobody_waits_for_still_runs() {
    let executor = of(1, 2);
    let (long, end) = long_call(&executor);
    let (sender, receiver) = mpsc::channel();
    drop(executor.submit("forgotten", move |_| {
        sender.send(()).expect("the test waits");
        Err::<(), _>(Error::unsupported("this", "a test looks at the log"))
    }));
    drop(long);
    // The calls keep what they need of the executor.
    drop(executor);
    end.send(()).expect("it waits");
    receiver.recv_timeout(Duration::from_secs(60)).expect("it runs");
}

#[test]
fn drain_waits_for_all_calls_submitted_before_and_sets_the_mood() {
    let executor = of(1, 2);
    let (long, end) = long_call(&executor);
    let behind = executor.submit("behind", |_| Ok(()));
    let also = executor.submit("also", |_| Ok(()));
    std::thread::scope(|scope| {
        // The line is full: drain stands in it all the same.
        let drain = scope.spawn(|| executor.drain(Mood::Busy, &patience()));
        until(|| executor.0.line.waiting_count() == 3);
        assert_eq!(executor.mood(), Mood::Parked);
        end.send(()).expect("it waits");
        drain.join().expect("no panic").expect("all end");
    });
    assert!(long.is_done() && behind.is_done() && also.is_done());
    assert_eq!(executor.mood(), Mood::Busy);
    executor.drain(Mood::Parked, &patience()).expect("idle");
}

#[test]
fn closing_refuses_the_line_and_waits_for_the_call() {
    let executor = of(1, 4);
    let (long, end) = long_call(&executor);
    let behind = executor.submit("behind", |_| Ok(()));
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| executor.hold_within("blocked", &patience()).map(drop));
        let drain = scope.spawn(|| executor.drain(Mood::Parked, &patience()));
        until(|| executor.0.line.waiting_count() == 3);
        let closing = scope.spawn(|| executor.close(&patience()));
        for refused in [blocked, drain] {
            let error = refused.join().expect("no panic").expect_err("refused");
            assert!(matches!(error, Error::Closed { .. }), "{error}");
        }
        let error = behind.wait(&patience()).expect_err("refused");
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        let late = executor.submit("late", |_| Ok(())).wait(&patience()).expect_err("refused");
        assert!(matches!(late, Error::Closed { .. }), "{late}");
        assert!(!closing.is_finished());
        end.send(()).expect("it waits");
        closing.join().expect("no panic").expect("the call ended");
    });
    assert_eq!(long.wait(&patience()).expect("it ran to its end"), 7);
    executor.close(&patience()).expect("twice is harmless");
}

#[test]
fn finishing_lets_the_line_run() {
    let executor = of(1, 4);
    executor.drain(Mood::Busy, &patience()).expect("idle");
    let (long, end) = long_call(&executor);
    let behind = executor.submit("behind", |_| Ok(8));
    std::thread::scope(|scope| {
        let finish = scope.spawn(|| executor.finish(&patience()));
        until(|| executor.0.line.waiting_count() == 2);
        end.send(()).expect("it waits");
        finish.join().expect("no panic").expect("all end");
    });
    assert!(executor.is_closed());
    assert_eq!(long.wait(&patience()).expect("it ran"), 7);
    assert_eq!(behind.wait(&patience()).expect("it ran"), 8);
    executor.finish(&patience()).expect("twice is harmless");
}

#[test]
fn parked_threads_use_no_time_and_busy_ones_do() {
    // One thread: with a core for the caller left, it does not offer its own to others.
    let executor = of(1, 0);
    let used = || executor.thread_seconds().expect("the system tells");
    let parked_second = || {
        executor.drain(Mood::Parked, &patience()).expect("idle");
        // Threads that were awake go to sleep.
        std::thread::sleep(Duration::from_millis(200));
        let before = used();
        std::thread::sleep(Duration::from_secs(1));
        used() - before
    };
    let first = parked_second();
    executor.drain(Mood::Busy, &patience()).expect("idle");
    let before = used();
    until(|| used() > before + 0.1);
    let last = parked_second();
    assert!(first < 0.02 && last < 0.02, "parked: {first} s, after busy: {last} s");
    // A new call wakes a parked executor.
    executor.submit("a look", |_| Ok(())).wait(&patience()).expect("it runs");
    executor.close(&patience()).expect("idle");
    assert_eq!(executor.thread_seconds(), None);
}

#[test]
fn busy_threads_make_room_for_parallel_sections() {
    let executor = of(3, 0);
    executor.drain(Mood::Busy, &patience()).expect("idle");
    for _ in 0..20 {
        let hold = executor.hold("a section").expect("free");
        let indexes = hold.install(|| rayon::broadcast(|context| context.index()));
        assert_eq!(indexes, [0, 1, 2]);
        drop(hold);
        let call = executor
            .submit("a section", |hold| Ok(hold.install(|| rayon::broadcast(|context| context.index()))));
        assert_eq!(call.wait(&patience()).expect("it runs"), [0, 1, 2]);
    }
}

#[test]
fn attended_work_runs_on_the_pool_and_is_interrupted_by_its_caller() {
    let executor = of(1, 0);
    for mood in [Mood::Parked, Mood::Busy] {
        executor.drain(mood, &patience()).expect("idle");
        let hold = executor.hold("attended").expect("free");
        let caller = std::thread::current().id();
        let asked_here = AtomicBool::new(true);
        let check = || {
            asked_here.fetch_and(std::thread::current().id() == caller, Ordering::SeqCst);
            true
        };
        let error = hold
            .attended(&patience().interruptible(&check), |deadline| {
                assert_ne!(std::thread::current().id(), caller);
                assert!(matches!(executor.hold("inner"), Err(Error::Contended { .. })));
                loop {
                    deadline.check("the work", Vec::new)?;
                    std::thread::sleep(Duration::from_millis(1));
                }
                #[allow(unreachable_code, reason = "the type of the loop's result")]
                Ok::<(), Error>(())
            })
            .expect("it ends")
            .expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted { .. }), "{error}");
        assert!(asked_here.load(Ordering::SeqCst));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            hold.attended(&patience(), |_| panic!("in the work"))
        }));
        caught.expect_err("a panic comes to the caller");
    }
}
