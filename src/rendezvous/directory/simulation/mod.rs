//! The protocol in a simulated world: thousands of schedules, each given by a seed, and what must hold in all of them.
//!
//! A failure prints its case and seed; `check` plays them again.

mod world;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Meeting, meet_on};
use crate::error::{Error, Result};
use crate::rendezvous::Exchange;
use crate::sys::{Deadline, file};
use crate::topology::{Introduction, MemoryDomain, Process, Survey};
use world::{Counts, Killed, Moment, Planted, Seat, Task, Weather, World};

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Nothing worse than the file system: a run forms on all.
    Calm,
    /// One or two processes are killed anywhere.
    Killed,
    /// Two processes say that they are index 0.
    TwoLeaders,
    /// The leader dies after it proposed a roster and before or while it decides.
    LeaderDies,
    /// A member's time ends, or its caller interrupts it, after it acknowledged.
    GivesUp,
    /// The job starts again under its name while members of the first start still poll.
    Restart,
    /// A process stands still for longer than others wait.
    Stopped,
}

const CASES: [Case; 7] = [
    Case::Calm,
    Case::Killed,
    Case::TwoLeaders,
    Case::LeaderDies,
    Case::GivesUp,
    Case::Restart,
    Case::Stopped,
];

/// One process of a case.
#[derive(Clone, Debug)]
struct Actor {
    index: usize,
    /// Which start of the job it belongs to.
    start: usize,
    task: Task,
    limit: Duration,
    is_unique: bool,
    /// Whether it goes on living after its bootstrap.
    lives: bool,
}

/// How the bootstrap of one process ended, and when.
#[derive(Debug)]
enum Ending {
    Killed,
    Formed { run: String, key: [u8; 32], pids: Vec<u32> },
    Failed(Error),
}

struct Script {
    count: usize,
    weather: Weather,
    actors: Vec<Actor>,
}

/// A stream of small numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit.max(1)
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}

const MILLISECOND: u64 = 1000;

fn script(case: Case, seed: u64, planted: Option<Planted>) -> Script {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9).wrapping_add(case as u64 + 1));
    let mut staleness = draw.of(&[0, 0, 20 * MILLISECOND, 200 * MILLISECOND]);
    if planted == Some(Planted::ListingsStayOld) {
        staleness = 20 * MILLISECOND;
    }
    let weather = Weather {
        staleness,
        failing: draw.of(&[0, 0, 10, 50]),
        delayed: draw.of(&[0, 5, 20]),
        delay: draw.of(&[5, 100]) * MILLISECOND,
        switching: draw.of(&[100, 400, 1000]),
        planted,
    };
    let count = 2 + draw.below(3) as usize;
    let hosts = 1 + draw.below(3);
    let is_unique = draw.below(2) == 0;
    let limit = Duration::from_millis(draw.of(&[4000, 8000]));
    let actor = |draw: &mut Draw, index: usize, start: usize, from: u64| Actor {
        index,
        start,
        task: Task {
            host: draw.below(hosts) as usize,
            start: from + draw.below(draw.0 % 200 * MILLISECOND + 1),
            killed: None,
            interrupted: None,
            stopped: None,
        },
        limit,
        is_unique,
        lives: draw.below(2) == 0,
    };
    let mut actors: Vec<Actor> = (0..count).map(|index| actor(&mut draw, index, 0, 0)).collect();
    match case {
        Case::Calm => {}
        Case::Killed => {
            for _ in 0..=draw.below(2) {
                let victim = draw.below(count as u64) as usize;
                actors[victim].task.killed = Some(Moment::Step(1 + draw.below(150)));
            }
        }
        Case::TwoLeaders => {
            let from = draw.of(&[0, 0, 30, 300]) * MILLISECOND;
            actors.push(actor(&mut draw, 0, 0, from));
        }
        Case::LeaderDies => {
            let record = draw.of(&["roster", "1", "0"]);
            actors[0].task.killed = Some(Moment::After(record, 1 + draw.below(12)));
        }
        Case::GivesUp => {
            let victim = draw.below(count as u64) as usize;
            if draw.below(2) == 0 {
                actors[victim].task.interrupted = Some(Moment::After("", 1 + draw.below(60)));
            } else {
                actors[victim].limit = Duration::from_millis(1 + draw.below(400));
            }
        }
        Case::Restart => {
            // The first start loses its leader, or all, or just goes on; the second comes while it does.
            match draw.below(3) {
                0 => actors[0].task.killed = Some(Moment::Step(1 + draw.below(120))),
                1 => {
                    for one in &mut actors {
                        one.task.killed = Some(Moment::Step(1 + draw.below(120)));
                    }
                }
                _ => {}
            }
            let from = draw.of(&[10, 100, 600]) * MILLISECOND;
            for index in 0..count {
                let one = actor(&mut draw, index, 1, from);
                actors.push(one);
            }
        }
        Case::Stopped => {
            let victim = draw.below(count as u64) as usize;
            let record = draw.of(&["", "1", "roster", "0"]);
            let time = draw.of(&[1000, 3000, 9000]) * MILLISECOND;
            actors[victim].task.stopped = Some((Moment::After(record, 1 + draw.below(20)), time));
        }
    }
    Script { count, weather, actors }
}

fn introduction(index: usize, host: usize, pid: usize) -> Introduction {
    let (host_name, boot_id) = (format!("host{host}"), format!("boot{host}"));
    Introduction {
        process: Process {
            host_name: host_name.clone(),
            boot_id: boot_id.clone(),
            pid: u32::try_from(pid).expect("few processes"),
            start_ticks: 1,
            command: format!("member {index}"),
        },
        cores: vec![0],
        quota_cores: None,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        socket: format!("socket {pid}"),
        launcher: "simulation".into(),
        local_index: None,
        survey: Survey {
            host_name,
            boot_id,
            cores: vec![0],
            memory_domains: vec![MemoryDomain { ordinal: 0, cores: vec![0], memory_bytes: 1 }],
            siblings: Vec::new(),
            cpu_classes: Vec::new(),
            gpus: Vec::new(),
        },
    }
}

/// What a process does: it meets, exchanges twice, and closes.
fn bootstrap(seat: &Seat, actor: &Actor, count: usize) -> Result<Ending> {
    let stop = || seat.world.is_interrupted(seat.task);
    let deadline = Deadline::after(actor.limit).by(seat);
    let deadline = deadline.interruptible(&stop);
    let meeting = Meeting {
        directory: PathBuf::from("/simulated"),
        job: "job".into(),
        attempt_is_unique: actor.is_unique,
        index: actor.index,
        count,
        introduction: introduction(actor.index, actor.task.host, seat.task),
    };
    let mut met = meet_on(Arc::new(seat.clone()), &meeting, &deadline)?;
    // Rosters of thousands, one for each member, are more than memory holds.
    let members = std::mem::take(&mut met.roster.members);
    let pids = members.iter().map(|one| one.introduction.process.pid).collect();
    drop(members);
    for phase in ["findings", "ready"] {
        let own = format!("{phase} of {}", actor.index);
        let all = met.exchange(phase, own.as_bytes(), &deadline)?;
        for (index, payload) in all.iter().enumerate() {
            assert_eq!(*payload, format!("{phase} of {index}").into_bytes());
        }
        assert_eq!(all.len(), count);
    }
    let ending = Ending::Formed { run: met.roster().run.clone(), key: met.key().0, pids };
    met.close();
    Ok(ending)
}

struct Played {
    endings: Vec<(Ending, Duration)>,
    left: Vec<String>,
    counts: Counts,
}

fn play(seed: u64, script: &Script) -> Played {
    let tasks = script.actors.iter().map(|actor| actor.task.clone()).collect();
    let world = World::new(seed, script.weather, tasks);
    let endings = std::thread::scope(|scope| {
        let run = |task: usize| {
            let (world, actor, count) = (&world, &script.actors[task], script.count);
            let body = move || {
                let seat = Seat { world: Arc::clone(world), task };
                world.begin(task);
                let ended = std::panic::catch_unwind(AssertUnwindSafe(|| bootstrap(&seat, actor, count)));
                let now = Duration::from_micros(world.lock().now.saturating_sub(actor.task.start));
                let ending = match ended {
                    Ok(Ok(ending)) => ending,
                    Ok(Err(error)) => Ending::Failed(error),
                    Err(panic) if panic.is::<Killed>() => Ending::Killed,
                    Err(panic) => {
                        world.end(task, false);
                        std::panic::resume_unwind(panic);
                    }
                };
                world.end(task, actor.lives && matches!(ending, Ending::Formed { .. }));
                (ending, now)
            };
            std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, body).expect("a thread")
        };
        let threads: Vec<_> = (0..script.actors.len()).map(run).collect();
        threads.into_iter().map(|thread| thread.join().expect("a member panicked")).collect()
    });
    let counts = world.lock().counts;
    Played { endings, left: world.left(), counts }
}

/// What must hold, whatever happened; the text says what did not.
fn judge(case: Case, script: &Script, played: &Played) -> std::result::Result<(), String> {
    let mut runs: Vec<(&str, &[u8; 32], &[u32])> = Vec::new();
    for (ending, _) in &played.endings {
        if let Ending::Formed { run, key, pids } = ending
            && !runs.contains(&(run, key, pids))
        {
            runs.push((run, key, pids));
        }
    }
    let starts = 1 + script.actors.iter().map(|actor| actor.start).max().unwrap_or(0);
    if runs.len() > starts {
        return Err(format!("{} runs of {starts} starts: {runs:?}", runs.len()));
    }
    for (run, key, pids) in &runs {
        for pid in *pids {
            let task = *pid as usize;
            let excused = script.actors[task].task.interrupted.is_some();
            match &played.endings[task].0 {
                Ending::Killed => {}
                Ending::Failed(Error::Interrupted { .. }) if excused => {}
                Ending::Formed { run: other, key: other_key, .. } if other == run && other_key == *key => {}
                other => return Err(format!("{run} returned on one, and pid {pid} got {other:?}")),
            }
        }
    }
    for (task, (ending, time)) in played.endings.iter().enumerate() {
        let actor = &script.actors[task];
        let stop = actor.task.stopped.map_or(Duration::ZERO, |(_, time)| Duration::from_micros(time));
        if *time > actor.limit + stop + Duration::from_secs(3) {
            return Err(format!("pid {task} ended after {time:?}, its limit was {:?}", actor.limit));
        }
        match ending {
            Ending::Failed(Error::TimedOut { missing, phase, .. })
                if missing.is_empty() && !phase.contains("entering") && !phase.contains("election") =>
            {
                return Err(format!("pid {task} timed out in {phase}, and names nobody"));
            }
            Ending::Failed(error) if case == Case::Calm => {
                return Err(format!("pid {task} did not form: {}", error.chain()));
            }
            Ending::Failed(
                Error::TimedOut { .. }
                | Error::Lost { .. }
                | Error::Disagreed { .. }
                | Error::Interrupted { .. },
            )
            | Ending::Formed { .. }
            | Ending::Killed => {}
            // The folder could not be used, for all the time that there was.
            Ending::Failed(error)
                if script.weather.failing > 0 && file::is_transient(error) && *time >= actor.limit => {}
            Ending::Failed(error) => {
                return Err(format!("pid {task} got an unclear error: {}", error.chain()));
            }
        }
    }
    if case == Case::Calm && script.weather.failing == 0 && !played.left.is_empty() {
        return Err(format!("left in the directory: {:?}", played.left));
    }
    Ok(())
}

fn check(case: Case, seed: u64, planted: Option<Planted>) -> std::result::Result<(), String> {
    let script = script(case, seed, planted);
    let played = play(seed, &script);
    judge(case, &script, &played).map_err(|found| {
        let mut text = format!("{case:?}, seed {seed}: {found}\n{:?}\n", script.weather);
        for (actor, (ending, time)) in script.actors.iter().zip(&played.endings) {
            text.push_str(&format!("{actor:?}\n  -> after {time:?}: {ending:?}\n"));
        }
        text
    })
}

/// Plays seeds until one fails, on a few threads; with a planted fault, one that passes without it.
fn search(case: Case, seeds: u64, planted: Option<Planted>) -> Option<String> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let look = || {
            while let seed @ 0.. = next.fetch_add(1, Ordering::Relaxed)
                && seed < seeds
            {
                if let Err(found) = check(case, seed, planted)
                    && (planted.is_none() || check(case, seed, None).is_ok())
                {
                    next.store(seeds, Ordering::Relaxed);
                    return Some(found);
                }
            }
            None
        };
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(look)).collect();
        threads.into_iter().find_map(|thread| thread.join().expect("a search ends"))
    })
}

#[test]
fn no_schedule_makes_two_runs_or_half_a_run() {
    play_all(100);
}

/// For a change of the protocol.
#[test]
#[ignore = "takes minutes"]
fn none_of_many_schedules_does() {
    play_all(2500);
}

fn play_all(seeds: u64) {
    for case in CASES {
        let started = std::time::Instant::now();
        if let Some(found) = search(case, seeds, None) {
            panic!("{found}");
        }
        println!("{case:?}: {seeds} seeds in {:?}", started.elapsed());
    }
}

#[test]
fn schedules_that_once_failed_pass() {
    for (case, seed) in [
        (Case::GivesUp, 141),
        (Case::Stopped, 1753),
        (Case::TwoLeaders, 831),
        (Case::Restart, 1455),
        (Case::Restart, 380),
    ] {
        if let Err(found) = check(case, seed, None) {
            panic!("{found}");
        }
    }
}

#[test]
fn planted_faults_are_found() {
    for (planted, case) in
        [(Planted::CreationReplaces, Case::GivesUp), (Planted::ListingsStayOld, Case::Calm)]
    {
        let found = search(case, 2000, Some(planted));
        println!(
            "{planted:?}: {}",
            found.as_deref().unwrap_or("not found").lines().next().unwrap_or_default()
        );
        assert!(found.is_some(), "{planted:?} is not found");
    }
}

/// What so many members do together who meet in calm weather, eight on a host, and the time until the last has met.
fn cost(count: usize) -> (Counts, Duration) {
    let weather = Weather { switching: 100, ..Weather::default() };
    let task = |index: usize| Task {
        host: index / 8,
        start: index as u64 * 50,
        killed: None,
        interrupted: None,
        stopped: None,
    };
    let limit = Duration::from_secs(600);
    let actor = |index| Actor { index, start: 0, task: task(index), limit, is_unique: true, lives: true };
    let played = play(1, &Script { count, weather, actors: (0..count).map(actor).collect() });
    assert!(played.endings.iter().all(|(ending, _)| matches!(ending, Ending::Formed { .. })));
    (played.counts, played.endings.iter().map(|(_, time)| *time).max().unwrap_or_default())
}

/// Each kind of operation, and how many of it there were.
fn kinds(counts: &Counts) -> [(&'static str, u64); 6] {
    [
        ("created", counts.created),
        ("opened", counts.opened),
        ("listings", counts.listings),
        ("entries", counts.entries),
        ("written bytes", counts.written_bytes),
        ("read bytes", counts.read_bytes),
    ]
}

#[test]
fn work_grows_with_the_count() {
    let (few, many) = (64, 384);
    let (least, most) = (cost(few).0, cost(many).0);
    println!("{few} members: {least:?}\n{many} members: {most:?}");
    // Of each member, however many there are; of bytes that are read, of each pair, since every member reads about
    // every other.
    let limits = [8, 24, 36, 72, 1400, 220];
    for (((name, few_did), (_, many_did)), limit) in kinds(&least).into_iter().zip(kinds(&most)).zip(limits) {
        let of_each = |did: u64, count: u64| did / if name == "read bytes" { count * count } else { count };
        let (before, after) = (of_each(few_did, few as u64), of_each(many_did, many as u64));
        assert!(after <= limit, "{name}: {after} of each, of {many} members");
        // The part of a pause that does not grow with the count lets few look less often.
        assert!(2 * after <= 3 * before, "{name}: {before} of each of {few}, {after} of each of {many}");
    }
}

/// Run by `make bench`: a line for each count.
#[test]
#[ignore = "measures, and takes minutes"]
fn scale() {
    for count in [64, 512, 4096] {
        let started = std::time::Instant::now();
        let (counts, time) = cost(count);
        println!("scale {count} {:.3} {counts:?}", time.as_secs_f64());
        eprintln!("{count} members were played in {:.0?}", started.elapsed());
    }
}
