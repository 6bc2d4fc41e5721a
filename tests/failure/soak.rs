//! Random calls of random groups against an oracle, for as long as `UFORM_SOAK_SECONDS` says, and through as many deaths as
//! `UFORM_SOAK_KILLS` says.

use std::path::Path;
use std::time::{Duration, Instant};

use uform::{
    Call, Deadline, Element, Error, Executor, HostOptions, Mesh, ReduceOp, Result, Span, SpanMut, Verb,
};

use crate::harness::{self, Role, Setup, assert_all_succeeded, entries, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("soak.calls", calls), ("soak.deaths", deaths)];

const LIMIT: Duration = Duration::from_secs(60);

/// Numbers that follow from a seed, the same on all members that start with it.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn throw(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 20) % limit as u64).unwrap_or(0)
    }
}

/// The element of a member at a position: small enough to be exact in every type, also summed.
fn element<T: From<u8>>(index: usize, position: usize) -> T {
    T::from(u8::try_from((index * 5 + position) % 13).expect("small"))
}

/// A mesh on an executor that has room for calls in flight; those of odd indexes have several threads.
fn bootstrap(index: usize) -> Mesh {
    let options = HostOptions { threads: 1 + index % 2, deferred_limit: 8, ..HostOptions::default() };
    let executor = Executor::for_ram(&options).expect("threads can be started");
    Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn limit() -> Deadline<'static> {
    Deadline::after(LIMIT)
}

/// One collective of random kind and size, whose result is compared with what it must be.
fn call<T>(mesh: &Mesh, dice: &mut Dice) -> Result<()>
where
    T: Element + From<u8> + PartialEq + std::iter::Sum + std::fmt::Debug + Copy,
{
    let (own, count) = (mesh.index(), mesh.count());
    let is_large = dice.throw(24) == 0;
    let length = if is_large { 1_100_003 } else { [0, 1, 7, 300, 5_000, 40_003][dice.throw(6)] };
    let values = |index| (0..length).map(|at| element::<T>(index, at)).collect::<Vec<T>>();
    let sum = |at| (0..count).map(|index| element::<T>(index, at)).sum::<T>();
    // What a member has for another one.
    let piece = |from: usize, to: usize| (0..length).map(move |at| element::<T>(from * 3 + to, at));
    let mut out = values(own);
    match dice.throw(13) {
        0 => {
            mesh.all_reduce(&mut out, ReduceOp::Sum)?;
            assert!(out.iter().enumerate().all(|(at, value)| *value == sum(at)), "all_reduce of {length}");
        }
        1 => {
            let root = dice.throw(count);
            mesh.broadcast(&mut out, root)?;
            assert_eq!(out, values(root), "broadcast");
        }
        2 => {
            let mut all = vec![T::from(99); length * count];
            mesh.all_gather(&out, &mut all)?;
            assert_eq!(all, (0..count).flat_map(values).collect::<Vec<_>>(), "all_gather");
        }
        3 => {
            let all = (0..count).flat_map(|_| values(own)).collect::<Vec<_>>();
            mesh.reduce_scatter(&all, &mut out, ReduceOp::Sum)?;
            assert!(
                out.iter().enumerate().all(|(at, value)| *value == sum(at)),
                "reduce_scatter of {length}"
            );
        }
        4 => {
            let all = (0..count).flat_map(|to| piece(own, to)).collect::<Vec<_>>();
            let mut come = vec![T::from(99); all.len()];
            mesh.all_to_all(&all, &mut come)?;
            assert_eq!(come, (0..count).flat_map(|from| piece(from, own)).collect::<Vec<_>>(), "all_to_all");
        }
        5 => {
            let root = dice.throw(count);
            mesh.reduce(&mut out, root, ReduceOp::Sum)?;
            let right =
                |(at, value): (usize, &T)| *value == if own == root { sum(at) } else { element(own, at) };
            assert!(out.iter().enumerate().all(right), "reduce of {length}");
        }
        6 => {
            let root = dice.throw(count);
            let mut all = vec![T::from(99); if own == root { length * count } else { 0 }];
            mesh.gather(&out, &mut all, root)?;
            let expected = if own == root { (0..count).flat_map(values).collect() } else { Vec::new() };
            assert_eq!(all, expected, "gather");
        }
        7 => {
            let root = dice.throw(count);
            let all = (0..count).filter(|_| own == root).flat_map(|to| piece(root, to)).collect::<Vec<_>>();
            mesh.scatter(&all, &mut out, root)?;
            assert_eq!(out, piece(root, own).collect::<Vec<_>>(), "scatter");
        }
        8 => uneven::<T>(mesh, dice, length)?,
        9 if count > 1 => {
            // Around in a circle: of two neighbours one sends first.
            let (next, last, tag) = ((own + 1) % count, (own + count - 1) % count, dice.throw(3) as u64);
            let mut come = vec![T::from(99); length];
            if own % 2 == 0 {
                mesh.send(&out, next, tag)?;
            }
            mesh.receive(&mut come, last, tag)?;
            if own % 2 == 1 {
                mesh.send(&out, next, tag)?;
            }
            assert_eq!(come, values(last), "send and receive");
        }
        10 => {
            let deferred = mesh.deferred(None);
            let calls = (0..1 + dice.throw(5)).map(|_| deferred.all_reduce(values(own), ReduceOp::Sum));
            for call in calls.collect::<Vec<_>>() {
                let sums = call.wait(&limit())?;
                assert!(sums.iter().enumerate().all(|(at, value)| *value == sum(at)), "deferred of {length}");
            }
        }
        11 => {
            let arena = mesh.arena(length * size_of::<T>(), &limit())?;
            let mut array = arena.own(0..length * size_of::<T>())?;
            array.copy_from(Span::of(&out))?;
            let call = Call::of::<T>(Verb::AllReduce, ReduceOp::Sum, 0, None, array.reborrow());
            mesh.run(call, &limit())?;
            SpanMut::of(&mut out).copy_from(array.as_span())?;
            assert!(out.iter().enumerate().all(|(at, value)| *value == sum(at)), "in an arena, {length}");
        }
        _ => mesh.barrier()?,
    }
    Ok(())
}

/// Parts of different lengths, gathered and given to each other.
fn uneven<T: Element + From<u8> + PartialEq + std::fmt::Debug>(
    mesh: &Mesh,
    dice: &mut Dice,
    length: usize,
) -> Result<()> {
    let (own, count) = (mesh.index(), mesh.count());
    let counts = (0..count).map(|_| dice.throw(length + 1)).collect::<Vec<_>>();
    let part = |index: usize| (0..counts[index]).map(move |at| element::<T>(index, at));
    let given = part(own).collect::<Vec<_>>();
    let mut all = vec![T::from(99); counts.iter().sum()];
    let output = SpanMut::of(&mut all);
    let call = Call::of::<T>(Verb::AllGather, ReduceOp::Sum, 0, Some(Span::of(&given)), output);
    mesh.run(call.counted(&counts, None), &limit())?;
    assert_eq!(all, (0..count).flat_map(part).collect::<Vec<_>>(), "all_gather of {counts:?}");
    // Each gives every other as many as it has, and gets what each has.
    let given = (0..count).flat_map(|to| (0..counts[own]).map(move |at| element::<T>(own + to, at)));
    let given = given.collect::<Vec<_>>();
    let sent = vec![counts[own]; count];
    let mut come = vec![T::from(99); counts.iter().sum()];
    let output = SpanMut::of(&mut come);
    let call = Call::of::<T>(Verb::AllToAll, ReduceOp::Sum, 0, Some(Span::of(&given)), output);
    mesh.run(call.counted(&sent, Some(&counts)), &limit())?;
    let expected = (0..count).flat_map(|from| (0..counts[from]).map(move |at| element::<T>(from + own, at)));
    assert_eq!(come, expected.collect::<Vec<_>>(), "all_to_all of {counts:?}");
    Ok(())
}

/// A call of random type on the mesh, or on a part of it that is made for a few calls.
fn turn(mesh: &Mesh, dice: &mut Dice, depth: usize) -> Result<()> {
    match dice.throw(8) {
        0 | 1 => call::<f32>(mesh, dice),
        2 => call::<f64>(mesh, dice),
        3 => call::<i32>(mesh, dice),
        4 => call::<u16>(mesh, dice),
        5 => call::<i64>(mesh, dice),
        6 if depth == 0 && dice.throw(4) == 0 => {
            let colors = 1 + dice.throw(2);
            let color = mesh.index() % colors;
            let part = mesh.split(Some(color as u64), 0)?.expect("a color");
            let mut own = Dice::new((dice.throw(1 << 20) * 2 + color) as u64);
            for _ in 0..3 {
                turn(&part, &mut own, 1)?;
            }
            Ok(())
        }
        _ => {
            let deadline = Deadline::after(LIMIT);
            let length = [0, 3, 2000][dice.throw(3)];
            let word = |index: usize| vec![u8::try_from(index).expect("small"); length + index];
            let words = mesh.exchange(&word(mesh.index()), &deadline)?;
            assert_eq!(words, (0..mesh.count()).map(word).collect::<Vec<_>>(), "exchange");
            Ok(())
        }
    }
}

/// Whether a member was told to end, as all agree on it.
fn is_over(mesh: &Mesh) -> Result<bool> {
    let mut over = [u8::from(harness::folder().join("over").exists())];
    mesh.all_reduce(&mut over, ReduceOp::Max)?;
    Ok(over == [1])
}

/// Calls with random delays until the time is over, which is the argument in seconds.
fn calls(index: usize, _count: usize, argument: &str) {
    let (seed, seconds) = argument.split_once(' ').expect("two numbers");
    let end = Instant::now() + Duration::from_secs(seconds.parse().expect("a number"));
    let mesh = bootstrap(index);
    let mut dice = Dice::new(seed.parse().expect("a number"));
    let mut own = Dice::new(index as u64 + 77);
    let mut made = 0_u64;
    loop {
        if own.throw(10) == 0 {
            std::thread::sleep(Duration::from_micros(own.throw(3000) as u64));
        }
        turn(&mesh, &mut dice, 0).unwrap_or_else(|error| panic!("call {made}: {}", error.chain()));
        made += 1;
        let mut over = [u8::from(Instant::now() > end)];
        if made.is_multiple_of(64) {
            mesh.all_reduce(&mut over, ReduceOp::Max).unwrap_or_else(|error| panic!("{}", error.chain()));
            if over == [1] {
                break;
            }
        }
    }
    mesh.close().expect("idle");
    say(&format!("made {made} calls"));
}

/// How many sockets and pieces of shared memory this process has open.
fn open_count() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").flatten();
    let files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let is_counted = |name: &str| name.starts_with("socket:") || name.starts_with("/memfd:");
    files.filter(|file| is_counted(&file.to_string_lossy())).count()
}

/// Calls through all deaths until it is told to end.
fn deaths(index: usize, _count: usize, seed: &str) {
    let before = open_count();
    let mut mesh = bootstrap(index);
    let seed = seed.parse::<u64>().expect("a number");
    let mut dice = Dice::new(seed);
    let mut made = 0_u64;
    say(&format!("left {}.", mesh.count()));
    loop {
        let outcome = turn(&mesh, &mut dice, 0).and_then(|()| {
            made += 1;
            if made.is_multiple_of(8) { is_over(&mesh) } else { Ok(false) }
        });
        let Err(error) = outcome else {
            if matches!(outcome, Ok(true)) {
                break;
            }
            continue;
        };
        let Error::Lost { pid, .. } = &error else { panic!("{}", error.chain()) };
        say(&format!("lost pid {pid}."));
        let next = mesh.shrink_within(&Deadline::after(LIMIT));
        mesh = next.unwrap_or_else(|error| panic!("after call {made}: {}", error.chain()));
        (dice, made) = (Dice::new(seed + mesh.count() as u64), 0);
        say(&format!("left {}.", mesh.count()));
    }
    mesh.close().expect("idle");
    drop(mesh);
    assert_eq!(open_count(), before, "sockets or shared memory are left");
}

/// The number in a variable, or another one.
fn number(name: &str, otherwise: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} = {text} must be a number")),
        Err(_) => otherwise,
    }
}

#[test]
fn random_calls_are_right() {
    let seconds = number("UFORM_SOAK_SECONDS", 4);
    let seed = u64::from(std::process::id());
    let setup = Setup::new(4, "soak.calls").argument(&format!("{seed} {seconds}"));
    let outcomes = setup.deadline(Duration::from_secs(120 + seconds)).start().finish();
    assert_all_succeeded(&outcomes);
    let made = outcomes[0].output.lines().find(|line| line.starts_with("made "));
    println!("seed {seed}: {}", made.unwrap_or_default());
}

#[test]
fn deaths_in_random_calls_leak_nothing_and_hang_nobody() {
    let wanted = number("UFORM_SOAK_KILLS", 20);
    let seed = u64::from(std::process::id());
    let mut dice = Dice::new(seed);
    let mut kills = 0;
    while kills < wanted {
        let argument = (seed + kills).to_string();
        let mut run = Setup::new(5, "soak.deaths").argument(&argument).deadline(3 * LIMIT).start();
        (0..5).for_each(|position| run.wait_for(position, "left 5."));
        let mut living = (0..5).collect::<Vec<_>>();
        let pids = [0, 1, 2, 3, 4].map(|position| run.pid(position));
        while living.len() > 1 {
            std::thread::sleep(Duration::from_micros(dice.throw(30_000) as u64));
            // Of two, only the lower one may go on.
            let place = if living.len() == 2 { 1 } else { dice.throw(living.len()) };
            run.kill(living.remove(place));
            kills += 1;
            let witness = living[dice.throw(living.len())];
            run.wait_for(witness, &format!("left {}.", living.len()));
        }
        std::fs::write(run.folder().join("over"), "").expect("the folder is writable");
        let meeting = run.meeting().to_owned();
        let outcomes = run.finish();
        assert!(outcomes[living[0]].succeeded(), "seed {seed}\n{}", transcript(&outcomes));
        // Nobody that lives was ever blamed.
        let blamed = |pid: u32| {
            let words = format!("lost pid {pid}.");
            outcomes.iter().any(|outcome| outcome.output.contains(&words))
        };
        assert!(!blamed(pids[living[0]]), "seed {seed}\n{}", transcript(&outcomes));
        let named = (0..5).filter(|position| blamed(pids[*position])).count();
        assert!(named >= 1, "seed {seed}\n{}", transcript(&outcomes));
        assert!(!meeting.exists() || entries(&meeting).iter().all(|name| name.ends_with(".lock")));
    }
    let memory = entries(Path::new("/dev/shm"));
    assert!(memory.iter().all(|name| !name.contains("uform")), "left in /dev/shm: {memory:?}");
    println!("seed {seed}: {kills} kills");
}
