//! A member that is killed, or stands still, at some moment of every verb: the others learn who, where and in which call, in time.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use uform::sys::process;
use uform::{
    Arena, Call, Deadline, Error, Executor, HostOptions, Mesh, ReduceOp, Result, Span, SpanMut, Verb,
};

use super::calls::bootstrap;
use super::warning::Told;
use crate::harness::{self, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("verbs.dies", dies), ("verbs.stops", stops)];

const MINUTES: Duration = Duration::from_secs(180);
/// Within which a death is promised to be seen.
const PROMISE: Duration = Duration::from_secs(1);
/// Elements of an array: several rounds through the stages, and enough for all threads of an executor.
const LENGTH: usize = 2_200_001;
const VERBS: [(&str, Verb); 8] = [
    ("all_reduce", Verb::AllReduce),
    ("reduce", Verb::Reduce),
    ("broadcast", Verb::Broadcast),
    ("all_gather", Verb::AllGather),
    ("reduce_scatter", Verb::ReduceScatter),
    ("all_to_all", Verb::AllToAll),
    ("gather", Verb::Gather),
    ("scatter", Verb::Scatter),
];
const ROOTED: [&str; 4] = ["reduce", "broadcast", "gather", "scatter"];
const OTHERS: [&str; 4] = ["barrier", "exchange", "split", "arena"];

/// The arrays of the calls: an input and an output of `LENGTH` elements for each member.
struct Arrays {
    private: [Vec<f32>; 2],
    arena: Option<Arena>,
}

impl Arrays {
    fn new(mesh: &Mesh, is_shared: bool) -> Self {
        let length = LENGTH * mesh.count();
        let arena = is_shared.then(|| mesh.arena(2 * 4 * length, &long()).expect("memory is free"));
        let private =
            if is_shared { [Vec::new(), Vec::new()] } else { [vec![1.0; length], vec![0.0; length]] };
        Self { private, arena }
    }
}

fn long() -> Deadline<'static> {
    Deadline::after(MINUTES)
}

/// One call of that name.
fn call(mesh: &Mesh, arrays: &mut Arrays, name: &str, deadline: &Deadline<'_>) -> Result<()> {
    let Some((_, verb)) = VERBS.iter().find(|(known, _)| *known == name) else {
        return match name {
            "exchange" => mesh.exchange(&[7; 100_000], deadline).map(drop),
            "split" => mesh.split_within(Some(0), 0, deadline).map(drop),
            "receive" => messages(mesh, deadline),
            "arena" => mesh.arena(1 << 20, deadline).map(drop),
            _ => mesh.run(Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty()), deadline),
        };
    };
    let (whole, part) = (4 * LENGTH * mesh.count(), 4 * LENGTH);
    let (input_bytes, output_bytes) = match verb {
        Verb::AllGather | Verb::Gather => (part, whole),
        Verb::ReduceScatter | Verb::Scatter => (whole, part),
        Verb::AllToAll => (whole, whole),
        _ => (part, part),
    };
    let [given, got] = &mut arrays.private;
    let (input, output) = match &arrays.arena {
        Some(arena) => {
            let input = arena.part(mesh.index()).expect("a member");
            (input.part(0..input_bytes)?, arena.own(whole..whole + output_bytes)?)
        }
        None => (Span::of(given).part(0..input_bytes)?, SpanMut::of(got).into_part(0..output_bytes)?),
    };
    mesh.run(Call::of::<f32>(*verb, ReduceOp::Max, 0, Some(input), output), deadline)
}

/// Index 1 and each of the others send to each other, and receive.
fn messages(mesh: &Mesh, deadline: &Deadline<'_>) -> Result<()> {
    let others = if mesh.index() == 1 { vec![0, 2] } else { vec![1] };
    let (given, mut got) = ([1_u8; 8], [0_u8; 8]);
    for other in &others {
        let input = Some(Span::of(&given));
        mesh.run(Call::of::<u8>(Verb::Send, ReduceOp::Sum, *other, input, SpanMut::empty()), deadline)?;
    }
    for other in &others {
        let output = SpanMut::of(&mut got);
        mesh.run(Call::of::<u8>(Verb::Receive, ReduceOp::Sum, *other, None, output), deadline)?;
    }
    Ok(())
}

/// An executor of so many threads.
fn executor(threads: usize) -> Executor {
    let options = HostOptions { threads, ..HostOptions::default() };
    Executor::for_ram(&options).expect("threads can be started")
}

/// Makes one call after the other until index 1 is lost, and goes on with those that are left.
fn dies(index: usize, count: usize, argument: &str) {
    let (name, place) = argument.split_once(' ').expect("two words");
    let whole = bootstrap();
    let executor = executor(if place == "threads" { 3 } else { 1 });
    let mesh = whole.on(&executor);
    let pids = mesh.exchange(&std::process::id().to_le_bytes(), &long()).expect("all come");
    let mut arrays = Arrays::new(&mesh, place == "arena");
    call(&mesh, &mut arrays, name, &long()).unwrap_or_else(|error| panic!("{}", error.chain()));
    say("inside");
    let error = loop {
        if let Err(error) = call(&mesh, &mut arrays, name, &long()) {
            break error;
        }
    };
    let Error::Lost { index: lost, host, pid, phase } = &error else { panic!("{}", error.chain()) };
    assert_eq!((*lost, pid.to_le_bytes().to_vec()), (1, pids[1].clone()), "{error}");
    assert_eq!(*host, process::host_name(), "{error}");
    assert!(phase.matches(&format!("{name} #")).count() >= 1, "{error}");
    say(&format!("lost: {error}"));
    let again = call(&mesh, &mut arrays, name, &long()).expect_err("the group has ended");
    assert!(matches!(again, Error::Lost { index: 1, .. }), "{again}");
    let next = whole.shrink_within(&long()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((next.index(), next.count()), (index / 2, count - 1));
    let mut arrays = Arrays::new(&next, place == "arena");
    call(&next.on(&executor), &mut arrays, name, &long()).expect("those that are left come");
    next.close().expect("idle");
    say("went on");
}

/// Makes one call after the other while index 1 stands still for a while, or until a deadline.
fn stops(index: usize, _count: usize, argument: &str) {
    let (name, end) = argument.split_once(' ').expect("two words");
    let _kept =
        tracing::subscriber::set_default(Told(tracing::Level::WARN, |text| say(&format!("warned: {text}"))));
    let mesh = bootstrap();
    let mut arrays = Arrays::new(&mesh, false);
    call(&mesh, &mut arrays, name, &long()).unwrap_or_else(|error| panic!("{}", error.chain()));
    say("inside");
    if end == "wakes" {
        let mut over = [0_u8];
        while over == [0] {
            call(&mesh, &mut arrays, name, &long()).unwrap_or_else(|error| panic!("{}", error.chain()));
            over = [u8::from(harness::folder().join("over").exists())];
            mesh.all_reduce(&mut over, ReduceOp::Max).unwrap_or_else(|error| panic!("{}", error.chain()));
        }
        return mesh.close().expect("idle");
    }
    let error = loop {
        if let Err(error) = call(&mesh, &mut arrays, name, &Deadline::after(Duration::from_secs(2))) {
            break error;
        }
    };
    match &error {
        // It woke when the others had given up, or it is the one that learned it from another.
        Error::Lost { phase, .. } => assert!(phase.contains("timed out"), "{error}"),
        Error::TimedOut { phase, missing, .. } => {
            assert_ne!(index, 1, "{error}");
            // The part of a split is formed in phases with names of their own.
            let is_named =
                phase.contains(&format!("{name} #")) || name == "split" && phase.contains("of split ");
            assert!(is_named, "{error}");
            // One that waits for the root, or for one that forms a part, names that one too, which waits itself.
            assert_eq!(missing.first().map(|one| one.index), Some(1), "{error}");
            assert!(missing[0].last_word.contains("stopped by a signal"), "{error}");
            assert!(missing.len() == 1 || ROOTED.contains(&name) || name == "split", "{error}");
        }
        _ => panic!("{}", error.chain()),
    }
    say(&format!("ended: {}", error.status().name()));
}

/// Kills index 1 of three at some moment of this verb.
fn kill(name: &str, place: &str, pause: Duration) {
    let setup = Setup::new(3, "verbs.dies").argument(&format!("{name} {place}"));
    let mut run = setup.deadline(MINUTES).start();
    (0..3).for_each(|position| run.wait_for(position, "inside"));
    std::thread::sleep(pause);
    run.kill(1);
    let start = Instant::now();
    for position in [0, 2] {
        run.wait_for(position, "lost: ");
    }
    let elapsed = start.elapsed();
    let outcomes = run.finish();
    assert!(elapsed < 3 * PROMISE, "{name} {place}: {elapsed:?}\n{}", transcript(&outcomes));
    for outcome in outcomes.iter().filter(|outcome| outcome.index != 1) {
        let went_on = outcome.succeeded() && outcome.output.contains("went on");
        assert!(went_on, "{name} {place}\n{}", transcript(&outcomes));
    }
}

/// Does something for each name, some at a time.
fn some_at_a_time(names: &[&str], act: impl Fn(&str) + Sync) {
    for names in names.chunks(4) {
        std::thread::scope(|scope| {
            for name in names {
                scope.spawn(|| act(name));
            }
        });
    }
}

fn names() -> Vec<&'static str> {
    VERBS.iter().map(|(name, _)| *name).chain(OTHERS).collect()
}

/// All verbs, the receiving of messages, and splits some more times: a member of those waits in several ways.
fn waiting() -> Vec<&'static str> {
    names().into_iter().chain(["receive", "split", "split", "split"]).collect()
}

#[test]
fn a_death_in_any_verb_is_lost_by_name_and_the_others_go_on() {
    for (position, name) in names().into_iter().enumerate() {
        kill(name, "private", Duration::from_millis(position as u64 % 3 * 7));
        kill(name, "private", Duration::from_micros(1700 + 900 * position as u64));
    }
}

#[test]
fn a_death_in_any_verb_on_arrays_of_an_arena_is_lost_by_name_and_the_others_go_on() {
    for (position, (name, _)) in VERBS.iter().enumerate() {
        kill(name, "arena", Duration::from_micros(1100 + 1300 * position as u64));
    }
}

#[test]
fn a_death_in_any_verb_on_several_threads_is_lost_by_name_and_the_others_go_on() {
    for (position, (name, _)) in VERBS.iter().enumerate() {
        kill(name, "threads", Duration::from_micros(1900 + 1100 * position as u64));
    }
}

#[test]
fn one_that_stands_still_in_any_verb_is_warned_of_and_work_goes_on_when_it_wakes() {
    some_at_a_time(&waiting(), |name| {
        let setup = Setup::new(3, "verbs.stops").argument(&format!("{name} wakes"));
        let mut run = setup.deadline(MINUTES).start();
        (0..3).for_each(|position| run.wait_for(position, "inside"));
        run.stop(1);
        // One that waits for the root names the root, which names index 1.
        let limit = long();
        let is_warning = |line: &str| line.starts_with("warned: ") && line.contains("for index 1 (");
        let warning = loop {
            let outputs = [0, 2].map(|position| run.output(position));
            if let Some(line) = outputs.iter().flat_map(|output| output.lines()).find(|line| is_warning(line))
            {
                break line.to_owned();
            }
            let has_failed = outputs.iter().any(|output| output.contains("panicked"));
            assert!(!limit.passed() && !has_failed, "{name}: nobody warned of index 1: {outputs:?}");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(warning.contains("stopped by a signal"), "{name}: {warning}");
        std::fs::write(run.folder().join("over"), "").expect("the folder is writable");
        run.signal(1, Signal::CONT);
        assert_all_succeeded(&run.finish());
    });
}

#[test]
fn one_that_stands_still_beyond_the_deadline_of_any_verb_is_named_and_finds_the_group_ended() {
    some_at_a_time(&waiting(), |name| {
        let setup = Setup::new(3, "verbs.stops").argument(&format!("{name} sleeps"));
        let mut run = setup.deadline(MINUTES).start();
        (0..3).for_each(|position| run.wait_for(position, "inside"));
        run.stop(1);
        for position in [0, 2] {
            run.wait_for(position, "ended: ");
        }
        run.signal(1, Signal::CONT);
        let outcomes = run.finish();
        assert_all_succeeded(&outcomes);
        let timed_out = outcomes.iter().filter(|outcome| outcome.output.contains("ended: TIMED_OUT"));
        assert!(timed_out.count() >= 1, "{}", transcript(&outcomes));
        assert!(outcomes[1].output.contains("ended: LOST"), "{}", transcript(&outcomes));
    });
}
