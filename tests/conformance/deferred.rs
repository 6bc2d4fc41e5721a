//! Deferred calls, lines and progress on meshes of real processes: right results, one order, and refusals that peers hear of.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use uform::communicator::Call;
use uform::sys::{Deadline, Span, SpanMut};
use uform::{
    Deferred, Dtype, Error, Executor, HostOptions, Mesh, Mood, Optimizer, Parameter, Progress, ReduceOp,
    Trainer, Verb,
};

use crate::harness::{self, Role, say};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("deferred.verbs", verbs),
    ("deferred.crossed", crossed),
    ("deferred.refused", refused),
    ("deferred.line", line),
    ("deferred.progress", progress),
    ("deferred.interrupt", interrupt),
    ("deferred.trainer", trainer),
];

const MINUTES: Duration = Duration::from_secs(180);

fn long() -> Deadline<'static> {
    Deadline::after(MINUTES)
}

fn element(index: usize, position: usize) -> f64 {
    (index * 1_000_000 + position) as f64
}

fn executor(threads: usize, deferred_limit: usize) -> Executor {
    let options = HostOptions { threads, deferred_limit, ..HostOptions::default() };
    Executor::for_ram(&options).expect("few threads")
}

fn bootstrap(executor: &Executor) -> Mesh {
    Mesh::bootstrap(Some(executor), None).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn done<T>(call: Deferred<T>) -> T {
    call.wait(&long()).unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// Every verb, all submitted before the first is waited for.
fn verbs(index: usize, count: usize, _argument: &str) {
    for mood in [Mood::Parked, Mood::Busy] {
        let executor = executor(1, 20);
        let mesh = Mesh::bootstrap(Some(&executor), Some(&again(index, count, mood.name())))
            .unwrap_or_else(|error| panic!("{}", error.chain()));
        executor.drain(mood, &long()).expect("idle");
        let deferred = mesh.deferred(None);
        for length in [0, 1, 1000, 70_001] {
            let own = (0..length).map(|position| element(index, position)).collect::<Vec<_>>();
            let all = (0..count).flat_map(|index| (0..length).map(move |position| element(index, position)));
            let all = all.collect::<Vec<_>>();
            let sum = deferred.all_reduce(own.clone(), ReduceOp::Sum);
            let copy = deferred.broadcast(own.clone(), count - 1);
            let gathered = deferred.all_gather(own.clone(), vec![0.0; length * count]);
            let share = deferred.reduce_scatter(all.clone(), vec![0.0; length], ReduceOp::Max);
            let barrier = deferred.barrier(long());
            let words = deferred.exchange(vec![index as u8; index], long());
            let arena = deferred.arena(64 * (index + 1), long());
            let arena = done(arena);
            assert_eq!(arena.part(count - 1).expect("a member").byte_count(), 64 * count);
            assert_eq!(done(words), (0..count).map(|index| vec![index as u8; index]).collect::<Vec<_>>());
            done(barrier);
            assert_eq!(done(share), (all.clone(), own.clone()));
            assert_eq!(done(gathered), (own.clone(), all));
            assert!(done(copy).iter().enumerate().all(|(at, value)| *value == element(count - 1, at)));
            let expected = |at| (0..count).map(|index| element(index, at)).sum::<f64>();
            assert!(done(sum).iter().enumerate().all(|(at, value)| *value == expected(at)));
        }
        let error = deferred.broadcast(vec![1.0f32], count).wait(&long()).expect_err("no such root");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
        mesh.barrier().expect("a refused call has no place in the order");
        mesh.close().expect("idle");
        let error = mesh.deferred(None).barrier(long()).wait(&long()).expect_err("closed");
        assert!(matches!(error, Error::Closed { .. }), "{error}");
        executor.finish(&long()).expect("idle");
    }
}

fn again(index: usize, count: usize, job: &str) -> uform::MeshOptions {
    uform::MeshOptions {
        host_domain_index: index,
        host_domain_count: count,
        job: Some(job.to_owned()),
        directory: Some(harness::folder().join("meeting")),
        ..uform::MeshOptions::default()
    }
}

/// Calls over two executors, on each member over others: the order of the mesh is that of submission.
fn crossed(index: usize, count: usize, _argument: &str) {
    const CALLS: usize = 60;
    let executors = [executor(1, CALLS), executor(2, CALLS)];
    executors[1].drain(Mood::Busy, &long()).expect("idle");
    let mesh = bootstrap(&executors[0]);
    let calls = (0..CALLS).map(|number| {
        // Both members use both, in opposite order; now and then a blocking call stands in the line too.
        let executor = &executors[(number / (index + 1)) % 2];
        if number % 9 == 8 {
            mesh.on(executor).barrier().expect("in its turn");
        }
        let own = (0..number * 300).map(|position| element(index, position + number)).collect::<Vec<_>>();
        mesh.deferred(Some(executor)).all_reduce(own, ReduceOp::Sum)
    });
    let calls = calls.collect::<Vec<_>>();
    for (number, call) in calls.into_iter().enumerate().rev() {
        let sum = done(call);
        let expected = |at| (0..count).map(|index| element(index, at + number)).sum::<f64>();
        assert!(
            sum.len() == number * 300 && sum.iter().enumerate().all(|(at, value)| *value == expected(at))
        );
    }
    for executor in &executors {
        executor.drain(Mood::Parked, &long()).expect("all have ended");
    }
}

/// Index 1 is refused, a peer's deadline names it, and the calls of the mesh go on where they were.
fn refused(index: usize, count: usize, _argument: &str) {
    let executor = executor(1, 0);
    let mesh = bootstrap(&executor);
    mesh.barrier().expect("all come");
    let go = harness::folder().join("refused");
    let mut sum = vec![index as f64 + 1.0];
    if index == 1 {
        let hold = executor.hold("my own work").expect("free");
        // In its turn of the mesh, but not on the executor.
        let other = std::thread::scope(|scope| {
            let submit = || mesh.deferred(None).all_reduce(vec![7.0f64], ReduceOp::Sum);
            scope.spawn(submit).join().expect("no panic")
        });
        let error = other.wait(&long()).expect_err("held, and no line");
        assert!(matches!(&error, Error::Contended { holder, .. } if holder == "my own work"), "{error}");
        std::fs::write(&go, "").expect("the run's folder is writable");
        drop(hold);
    } else {
        while !go.exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    sum = done(mesh.deferred(None).all_reduce(sum, ReduceOp::Sum));
    assert_eq!(sum, [(count * (count + 1) / 2) as f64]);
    mesh.barrier().expect("all come");
    // Refused, and then not tried again: the others learn why at their deadline.
    if index == 1 {
        let hold = executor.hold("my own work").expect("free");
        mesh.deferred(None).barrier(long()).wait(&long()).expect_err("held, and no line");
        while !harness::folder().join("told").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(hold);
    } else {
        let call = mesh.deferred(None).barrier(Deadline::after(Duration::from_secs(2)));
        let error = call.wait(&long()).expect_err("index 1 does not come");
        say(&format!("{error}"));
        std::fs::write(harness::folder().join("told"), "").expect("the run's folder is writable");
        assert!(
            error.to_string().contains("refused barrier: the executor is held by my own work"),
            "{error}"
        );
    }
}

/// A blocking call stands in the line, times out there, and the mesh stays whole.
fn line(index: usize, count: usize, _argument: &str) {
    let executor = executor(1, 1);
    let mesh = bootstrap(&executor);
    if index == 0 {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let work = executor.submit("my own work", move |_| {
            let _ = receiver.recv();
            Ok(())
        });
        let call = Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty());
        let error = mesh.run(call, &Deadline::after(Duration::from_millis(50))).expect_err("held");
        assert!(matches!(&error, Error::TimedOut { phase, .. } if phase.contains("my own work")), "{error}");
        // One whose time is over when its turn comes does not begin.
        let late = mesh.deferred(None).barrier(Deadline::after(Duration::from_millis(50)));
        std::thread::sleep(Duration::from_millis(100));
        drop(sender);
        let error = late.wait(&long()).expect_err("too late");
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        done(work);
    }
    let mut sum = [index as f64 + 1.0];
    mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("no call was begun");
    assert_eq!(sum, [(count * (count + 1) / 2) as f64]);
}

/// Reports come on the executor's threads, rarely, and the last one is whole; calls from inside of one are refused.
fn progress(index: usize, count: usize, _argument: &str) {
    const LENGTH: usize = 1 << 20;
    let executor = executor(2, 4);
    let mesh = bootstrap(&executor);
    let bytes = (LENGTH * 8) as u64;
    for verb in [Verb::AllReduce, Verb::Broadcast, Verb::AllGather, Verb::ReduceScatter] {
        let told = Mutex::new(Vec::new());
        let refused = AtomicUsize::new(0);
        let callback = |done: u64, total: u64| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            told.lock().expect("no panic").push((done, total, name, Instant::now()));
            let is_contended = |error: Error| matches!(error, Error::Contended { .. });
            let inner = [
                mesh.barrier().expect_err("inside of a call"),
                mesh.deferred(None).barrier(long()).wait(&long()).expect_err("inside of a call"),
                executor.drain(Mood::Busy, &long()).expect_err("inside of a call"),
            ];
            refused.fetch_add(inner.into_iter().map(is_contended).filter(|is| *is).count(), Ordering::SeqCst);
        };
        let wide = vec![index as f64; LENGTH * count];
        let mut wide_output = wide.clone();
        let mut output = vec![index as f64; LENGTH];
        let input = output.clone();
        let mut call = match verb {
            Verb::AllGather => {
                Call::of::<f64>(verb, ReduceOp::Sum, 0, Some(Span::of(&input)), SpanMut::of(&mut wide_output))
            }
            Verb::ReduceScatter => {
                Call::of::<f64>(verb, ReduceOp::Sum, 0, Some(Span::of(&wide)), SpanMut::of(&mut output))
            }
            _ => Call::of::<f64>(verb, ReduceOp::Sum, 0, None, SpanMut::of(&mut output)),
        };
        let total = call.output.byte_count() as u64;
        assert!(total >= bytes);
        call.progress = Some(Progress::new(&callback));
        // The others wait for this one, so that their first report is due with their first piece.
        if index == 0 {
            std::thread::sleep(Duration::from_millis(200));
        }
        mesh.run(call, &long()).unwrap_or_else(|error| panic!("{}", error.chain()));
        let told = told.into_inner().expect("no panic");
        let (done, of, ..) = told.last().expect("the last report");
        assert_eq!((*done, *of), (total, total));
        assert!(told.iter().all(|(.., name, _)| name.starts_with("uform-")), "{told:?}");
        assert!(told.is_sorted_by_key(|(done, ..)| *done), "{told:?}");
        assert!(index == 0 || told.len() > 1, "{told:?}");
        assert!(index == 0 || told[0].0 > 0 && told[0].0 < total, "{told:?}");
        let rare = |pair: &[(u64, u64, String, Instant)]| pair[1].3 - pair[0].3 >= Duration::from_millis(49);
        assert!(told[..told.len() - 1].windows(2).all(rare), "{told:?}");
        assert_eq!(refused.into_inner(), 3 * told.len());
        assert_eq!(executor.mood(), Mood::Parked);
    }
    // One that panics is reported when the call has ended, on this member alone.
    let callback = |_, _| panic!("out of paper");
    let mut output = vec![1.0f64; LENGTH];
    let mut call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut output));
    if index == 1 {
        call.progress = Some(Progress::new(&callback));
    }
    let result = mesh.run(call, &long());
    assert_eq!(result.is_err(), index == 1, "{result:?}");
    assert!(output.iter().all(|value| *value == count as f64));
    mesh.barrier().expect("the mesh is whole");
    // A deferred call takes its reports from what it owns.
    let owner = (vec![1.0f64; LENGTH], Box::new(|_, _| ()) as Box<dyn Fn(u64, u64) + Send + Sync>);
    let call = mesh.deferred(None).run(
        Verb::AllReduce,
        owner,
        |(array, callback)| {
            let mut call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(array));
            call.progress = Some(Progress::new(&**callback));
            Ok(call)
        },
        long(),
    );
    assert!(done(call).0.iter().all(|value| *value == count as f64));
}

/// A call with reports is ended by its caller's interrupt check as soon as one without.
fn interrupt(index: usize, _count: usize, _argument: &str) {
    let executor = executor(1, 0);
    let mesh = bootstrap(&executor);
    mesh.barrier().expect("all come");
    if index == 0 {
        let start = Instant::now();
        let asked = Mutex::new(None);
        let check = || {
            let is_time = start.elapsed() > Duration::from_millis(100);
            if is_time {
                asked.lock().expect("no panic").get_or_insert_with(Instant::now);
            }
            is_time
        };
        let was_told = AtomicBool::new(false);
        let callback = |_, _| was_told.store(true, Ordering::SeqCst);
        let mut output = vec![1.0f64; 1 << 20];
        let mut call = Call::of::<f64>(Verb::AllReduce, ReduceOp::Sum, 0, None, SpanMut::of(&mut output));
        call.progress = Some(Progress::new(&callback));
        let error = mesh.run(call, &long().interruptible(&check)).expect_err("the others do not come");
        assert!(matches!(error, Error::Interrupted { .. }), "{error}");
        let asked = asked.into_inner().expect("no panic").expect("it was asked");
        assert!(asked.elapsed() < Duration::from_millis(300), "{:?}", asked.elapsed());
        assert!(!was_told.into_inner(), "nothing was done");
        std::fs::write(harness::folder().join("ended"), "").expect("the run's folder is writable");
    } else {
        while !harness::folder().join("ended").exists() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A trainer's calls, deferred and on another executor, do what the blocking ones do.
fn trainer(index: usize, count: usize, _argument: &str) {
    const LENGTH: usize = 40_000;
    let executors = [executor(1, 8), executor(1, 8)];
    let mesh = bootstrap(&executors[0]);
    let sgd = Optimizer::Sgd { learning_rate: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let parameter =
        || Parameter { name: "w".to_owned(), shape: vec![LENGTH], dtype: Dtype::F64, values: None };
    let open = || Trainer::open(&mesh, &[parameter()], sgd, None, &long()).expect("the same on all members");
    let (one, other) = (open(), open());
    let folder = harness::folder().join("checkpoints");
    for trainer in [&one, &other] {
        let gradient = (0..LENGTH).map(|position| element(index, position)).collect::<Vec<_>>();
        trainer.gradient("w").expect("declared").write(&gradient).expect("its type");
    }
    let deferred = other.deferred(Some(&executors[1]));
    let first = deferred.step(1.0, long());
    let saved = deferred.save(folder.clone(), 5, long());
    let second = other.deferred(None).step(1.0, long());
    let loaded = deferred.load(folder, long());
    for _ in 0..2 {
        one.on(&executors[1]).step(1.0, &long()).expect("in its turn");
    }
    assert_eq!(done(first).step, 1);
    done(saved);
    assert_eq!(done(second).step, 2);
    assert_eq!(done(loaded), 5);
    let report = other.step(1.0, &long()).expect("all come");
    assert_eq!((report.step, report.weight), (2, count as f64));
    let values =
        |trainer: &Trainer| trainer.parameter("w").expect("declared").to_vec::<f64>().expect("its type");
    assert_eq!(values(&one), values(&other));
    mesh.barrier().expect("all are here");
}

fn run(role: &str, count: usize) {
    harness::assert_all_succeeded(&harness::processes(count, role, "", MINUTES));
}

#[test]
fn deferred_verbs_are_right() {
    for count in [1, 2, 3] {
        run("deferred.verbs", count);
    }
}

#[test]
fn calls_over_two_executors_keep_their_order() {
    run("deferred.crossed", 2);
}

#[test]
fn peers_hear_of_a_refused_call_and_a_retry_succeeds() {
    run("deferred.refused", 2);
}

#[test]
fn a_call_that_times_out_in_the_line_was_never_begun() {
    run("deferred.line", 2);
}

#[test]
fn progress_is_reported_and_calls_from_inside_of_it_are_refused() {
    run("deferred.progress", 2);
}

#[test]
fn a_call_with_reports_is_interrupted_in_time() {
    run("deferred.interrupt", 2);
}

#[test]
fn a_trainers_deferred_calls_are_right() {
    run("deferred.trainer", 2);
}
