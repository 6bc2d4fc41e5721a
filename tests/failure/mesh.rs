//! Meshes of real processes: they form and reduce right, and when one member dies, stops or is wrong, the others say so.

use std::path::Path;
use std::time::Duration;

use uform::communicator::shared::{Listener, Proof, SharedCommunicator};
use uform::rendezvous::directory::{self, Meeting};
use uform::topology::{Findings, Plan, Topology};
use uform::{
    Deadline, Error, Executor, HostOptions, Mesh, MeshOptions, ReduceOp, Result, Status, device, environment,
};

use super::calls::{bootstrap, exchange_words, move_arrays};
use crate::harness::{self, Folder, Outcome, Role, Setup, assert_all_succeeded, entries, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("mesh.verbs", verbs),
    ("mesh.form", form),
    ("mesh.again", again),
    ("mesh.named", named),
    ("mesh.turns", turns),
    ("mesh.part", part),
    ("mesh.close", close),
    ("mesh.contend", contend),
    ("mesh.closed_executor", closed_executor),
];

const MINUTES: Duration = Duration::from_secs(180);

/// Every verb with values that tell members and positions apart, then closing.
fn verbs(index: usize, count: usize, _argument: &str) {
    let mesh = bootstrap();
    assert_eq!((mesh.index(), mesh.count()), (index, count));
    assert_eq!(mesh.describe().host_domain_index, index);
    assert_eq!(mesh.topology().hosts().len(), 1);
    move_arrays(&mesh, &[1, 7, 1000, 70_001]);
    mesh.all_reduce::<f32>(&mut [], ReduceOp::Sum).expect("nothing is legal");
    mesh.barrier().expect("all come");
    exchange_words(&mesh);
    let deadline = Mesh::verb_deadline(0.0).expect("the default");
    let arena = mesh.arena(64 * (index + 1), &deadline).expect("room for some bytes");
    for other in 0..count {
        assert_eq!(arena.part(other).expect("a member").byte_count(), 64 * (other + 1));
    }
    let words = mesh.topology().to_json();
    assert_eq!(
        mesh.exchange(words.as_bytes(), &deadline).expect("all come"),
        vec![words.into_bytes(); count]
    );
    mesh.close().expect("idle");
    mesh.close().expect("twice");
    assert!(mesh.is_closed() && mesh.executor().is_closed());
    assert!(matches!(mesh.barrier(), Err(Error::Closed { .. })));
}

/// Forms a mesh, or says why not.
fn form(_index: usize, _count: usize, _argument: &str) {
    match Mesh::bootstrap(None, None) {
        Ok(mesh) => say(&format!("formed {}", mesh.topology().run())),
        Err(error) => tell(&error),
    }
}

fn tell(error: &Error) {
    say(&format!("ended with {}: {}", error.status().name(), error.chain()));
}

/// Forms one mesh after the other by the same options.
fn again(index: usize, count: usize, _argument: &str) {
    let options = MeshOptions {
        host_domain_index: index,
        host_domain_count: count,
        directory: Some(harness::folder().join("meeting")),
        job: Some("the same job".into()),
        ..MeshOptions::default()
    };
    let executor =
        Executor::for_ram(&HostOptions { threads: 1, ..HostOptions::default() }).expect("a thread");
    for _ in 0..3 {
        let mesh = Mesh::bootstrap(Some(&executor), Some(&options))
            .unwrap_or_else(|error| panic!("{}", error.chain()));
        let mut sum = [index as i64 + 1];
        mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
        assert_eq!(sum, [(count * (count + 1) / 2) as i64]);
        mesh.close().expect("idle");
        assert!(!executor.is_closed());
    }
}

/// Forms a mesh under a job name that comes again.
fn named(index: usize, count: usize, _argument: &str) {
    let options = MeshOptions {
        host_domain_index: index,
        host_domain_count: count,
        job: Some("a job that comes again".into()),
        ..MeshOptions::default()
    };
    say("started");
    let mesh = Mesh::bootstrap(None, Some(&options)).unwrap_or_else(|error| panic!("{}", error.chain()));
    mesh.barrier().expect("all come");
}

/// Calls barriers until one fails.
fn turns(_index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    say("formed");
    let error = loop {
        if let Err(error) = mesh.barrier() {
            break error;
        }
    };
    tell(&error);
    // The group is broken: a later call says the same at once.
    assert_eq!(mesh.barrier().expect_err("broken").status(), error.status());
    mesh.close().expect("idle");
}

/// Goes through bootstrap by hand up to the end of a phase, and no further.
fn part(_index: usize, _count: usize, last: &str) {
    let error = match part_within(last, &Deadline::after(MINUTES)) {
        Ok(()) => unreachable!("a member sleeps until it is killed"),
        Err(error) => error,
    };
    tell(&error);
}

fn part_within(last: &str, deadline: &Deadline<'_>) -> Result<()> {
    let stop_after = |phase: &str| {
        if phase == last {
            say(&format!("stopped after {phase}"));
            harness::sleep_until_killed();
        }
    };
    let launch = environment::read(&MeshOptions::default())?;
    stop_after("environment");
    let listener = Listener::open()?;
    let index = launch.index.value;
    let meeting = Meeting {
        directory: launch.directory.as_ref().expect("set by the harness").value.clone(),
        job: launch.job.value.clone(),
        attempt_is_unique: launch.attempt_is_unique,
        index,
        count: launch.count.value,
        introduction: device::introduction(&launch, listener.address())?,
    };
    let mut exchange = directory::meet(meeting, deadline)?;
    stop_after("rendezvous");
    let roster = exchange.roster().clone();
    let proof = Proof::gather(Some(listener), &roster, index, exchange.key(), deadline)?;
    stop_after("proofs");
    let all = exchange.exchange("findings", &proof.findings().to_bytes(), deadline)?;
    stop_after("findings");
    let findings = all.iter().enumerate().map(|(index, bytes)| Findings::from_bytes(bytes, index));
    let topology = Topology::derive(&roster, &findings.collect::<Result<Vec<_>>>()?, 0)?;
    let _group = SharedCommunicator::join(proof, Plan::derive(&topology, index).world(), deadline)?;
    stop_after("communicators");
    panic!("no phase is called {last}");
}

/// Index 0 closes while the others are in a call.
fn close(index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    mesh.barrier().expect("all come");
    if index == 0 {
        mesh.close().expect("idle");
    } else {
        let error = mesh.all_reduce(&mut [1.0f32], ReduceOp::Sum).expect_err("index 0 has closed");
        tell(&error);
    }
}

/// Two threads of index 0 want one executor: the second is refused, retries, and both calls are right.
fn contend(index: usize, _count: usize, _argument: &str) {
    let mesh = bootstrap();
    let refused = harness::folder().join("refused");
    let mut sum = [index as f64];
    if index == 0 {
        let first = mesh.clone();
        let thread = std::thread::spawn(move || {
            loop {
                match first.barrier() {
                    // The look below was in the way.
                    Err(Error::Contended { .. }) => {}
                    outcome => return outcome,
                }
            }
        });
        // The other member comes to the barrier only after the second call was refused.
        let error = loop {
            match mesh.executor().hold("a look") {
                Ok(hold) => drop(hold),
                Err(_) => break mesh.all_reduce(&mut sum, ReduceOp::Sum).expect_err("held"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(&error, Error::Contended { holder, .. } if holder == "barrier"), "{error}");
        assert_eq!(sum, [0.0]);
        std::fs::write(&refused, "").expect("the run's folder is writable");
        thread.join().expect("no panic").expect("all come");
    } else {
        wait_until_there(&refused);
        mesh.barrier().expect("all come");
    }
    mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
    assert_eq!(sum, [1.0]);
}

fn wait_until_there(path: &Path) {
    let deadline = Deadline::after(MINUTES);
    while !path.exists() {
        assert!(!deadline.passed(), "{} never came", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Index 1 brings a closed executor; all learn it.
fn closed_executor(index: usize, _count: usize, _argument: &str) {
    let executor =
        Executor::for_ram(&HostOptions { threads: 1, ..HostOptions::default() }).expect("a thread");
    if index == 1 {
        executor.close(&Deadline::after(MINUTES)).expect("idle");
    }
    tell(&Mesh::bootstrap(Some(&executor), None).expect_err("index 1 cannot join"));
}

/// What an ended member said, checked to be of this status and to name this index.
fn assert_named(outcome: &Outcome, status: Status, index: usize, all: &[Outcome]) {
    let line = outcome.output.lines().find_map(|line| line.split_once("ended with ")).map(|(_, text)| text);
    let line = line.unwrap_or_else(|| panic!("index {} did not end\n{}", outcome.index, transcript(all)));
    assert!(line.starts_with(&format!("{}: ", status.name())), "{line}\n{}", transcript(all));
    assert!(line.contains(&format!("index {index}")), "{line}\n{}", transcript(all));
}

fn assert_nothing_left(meeting: &Path) {
    let left = entries(meeting).into_iter().filter(|name| !name.ends_with(".lock")).collect::<Vec<_>>();
    assert!(left.is_empty(), "left in the directory: {left:?}");
    let memory = entries(Path::new("/dev/shm"));
    assert!(memory.iter().all(|name| !name.contains("uform")), "left in /dev/shm: {memory:?}");
}

#[test]
fn one_to_five_processes_form_and_reduce_right() {
    for count in [1, 2, 3, 5] {
        let meeting = Folder::new();
        let run = Setup::new(count, "mesh.verbs").meeting(meeting.path()).deadline(MINUTES).start();
        assert_all_succeeded(&run.finish());
        assert_nothing_left(meeting.path());
    }
}

#[test]
fn a_lone_process_needs_no_launcher_and_no_writable_folder() {
    let setup = Setup::new(1, "mesh.verbs").without_launcher().deadline(MINUTES);
    let setup = setup.variable("HOME", "/nonexistent").variable("TMPDIR", "/nonexistent");
    assert_all_succeeded(&setup.start().finish());
}

#[test]
fn meshes_one_after_the_other_share_a_directory_and_a_job() {
    assert_all_succeeded(&harness::processes(3, "mesh.again", "", MINUTES));
}

#[test]
fn ten_runs_at_once_form_separately() {
    let meeting = Folder::new();
    let runs = (0..10).map(|number| {
        let setup = Setup::new(2, "mesh.form").meeting(meeting.path()).deadline(MINUTES);
        setup.variable("UFORM_JOB", &format!("job-{number}")).start()
    });
    for (number, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
        let outcomes = run.finish();
        assert_all_succeeded(&outcomes);
        for outcome in &outcomes {
            assert!(outcome.output.contains(&format!("formed job-{number}")), "{}", transcript(&outcomes));
        }
    }
    assert_nothing_left(meeting.path());
}

#[test]
fn a_member_that_never_starts_is_named_at_the_deadline() {
    let setup = Setup::new(4, "mesh.form").only(&[0, 1, 3]).variable("UFORM_TIMEOUT", "2").deadline(MINUTES);
    let outcomes = setup.start().finish();
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes {
        assert_named(outcome, Status::TimedOut, 2, &outcomes);
    }
}

/// Index 1 of three stops at the end of a phase and is killed there, or stays there silently.
fn stop_one(last: &str, kill: bool) -> Vec<Outcome> {
    let meeting = Folder::new();
    let job = "a run that one member leaves";
    let timeout = if kill { "120" } else { "3" };
    let common = |setup: Setup| {
        setup
            .meeting(meeting.path())
            .variable("UFORM_JOB", job)
            .variable("UFORM_TIMEOUT", timeout)
            .deadline(MINUTES)
    };
    let mut leaver = common(Setup::new(3, "mesh.part")).argument(last).only(&[1]).start();
    let others = common(Setup::new(3, "mesh.form")).only(&[0, 2]).start();
    leaver.wait_for(0, &format!("stopped after {last}"));
    if kill {
        leaver.kill(0);
    }
    let outcomes = others.finish();
    assert_all_succeeded(&outcomes);
    outcomes
}

#[test]
fn a_member_killed_in_any_phase_is_named_by_the_others() {
    for last in ["rendezvous", "proofs", "findings", "communicators"] {
        let outcomes = stop_one(last, true);
        for outcome in &outcomes {
            assert_named(outcome, Status::Lost, 1, &outcomes);
        }
    }
}

#[test]
fn a_member_silent_in_any_phase_is_named_at_the_deadline() {
    for last in ["rendezvous", "proofs", "findings", "communicators"] {
        let outcomes = stop_one(last, false);
        for outcome in &outcomes {
            assert_named(outcome, Status::TimedOut, 1, &outcomes);
        }
    }
}

#[test]
fn what_killed_members_left_is_reclaimed_by_the_next_start() {
    let meeting = Folder::new();
    let setup = || Setup::new(3, "mesh.named").meeting(meeting.path()).deadline(MINUTES);
    let mut first = setup().only(&[0, 2]).start();
    let registered = |index: usize| {
        let mark = format!("{index}-");
        let is_of = |name: &String| {
            name.contains("members/") && name.rsplit('/').next().is_some_and(|name| name.starts_with(&mark))
        };
        entries(meeting.path()).iter().any(is_of)
    };
    (0..2).for_each(|position| first.wait_for(position, "started"));
    let deadline = Deadline::after(MINUTES);
    while !(registered(0) && registered(2)) {
        assert!(!deadline.passed(), "not registered: {:?}", entries(meeting.path()));
        std::thread::sleep(Duration::from_millis(2));
    }
    (0..2).for_each(|position| first.kill(position));
    first.finish();
    assert!(!entries(meeting.path()).is_empty());
    assert_all_succeeded(&setup().start().finish());
    assert_nothing_left(meeting.path());
}

#[test]
fn a_member_killed_between_calls_is_named_by_all_others() {
    let mut run = Setup::new(4, "mesh.turns").deadline(MINUTES).start();
    (0..4).for_each(|index| run.wait_for(index, "formed"));
    run.kill(2);
    let meeting = run.meeting().to_owned();
    assert_nothing_left(&meeting);
    let outcomes = run.finish();
    for outcome in outcomes.iter().filter(|outcome| outcome.index != 2) {
        assert!(outcome.succeeded(), "{}", transcript(&outcomes));
        assert_named(outcome, Status::Lost, 2, &outcomes);
    }
}

#[test]
fn a_member_that_closes_is_named_by_those_that_call() {
    let outcomes = harness::processes(3, "mesh.close", "", MINUTES);
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes[1..] {
        assert_named(outcome, Status::Lost, 0, &outcomes);
    }
}

#[test]
fn a_second_thread_is_refused_and_may_try_again() {
    assert_all_succeeded(&harness::processes(2, "mesh.contend", "", MINUTES));
}

#[test]
fn the_reason_of_one_reaches_all() {
    let outcomes = harness::processes(3, "mesh.closed_executor", "", MINUTES);
    assert_all_succeeded(&outcomes);
    let own = &outcomes[1].output;
    assert!(own.contains("ended with CLOSED: the executor is closed"), "{}", transcript(&outcomes));
    for outcome in [&outcomes[0], &outcomes[2]] {
        assert!(outcome.output.contains("ended with "), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("index 1"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("executor"), "{}", transcript(&outcomes));
    }
}

#[test]
fn odd_options_are_refused_before_anything_is_touched() {
    let folder = Folder::new();
    let refuse = |options: MeshOptions| Mesh::bootstrap(None, Some(&options)).expect_err("refused");
    let directory = Some(folder.path().join("meeting"));
    let beyond = MeshOptions {
        host_domain_index: 2,
        host_domain_count: 2,
        directory: directory.clone(),
        ..MeshOptions::default()
    };
    assert!(refuse(beyond).to_string().contains("host_domain_index"));
    for seconds in [-1.0, f64::NAN, f64::INFINITY] {
        let error = refuse(MeshOptions { timeout_seconds: seconds, ..MeshOptions::default() });
        assert!(
            matches!(&error, Error::Invalid { argument, .. } if argument == "timeout_seconds"),
            "{error}"
        );
    }
    let lonely = MeshOptions {
        host_domain_count: 2,
        directory,
        job: Some("nobody else".into()),
        timeout_seconds: 0.3,
        ..MeshOptions::default()
    };
    let error = refuse(lonely);
    assert!(matches!(&error, Error::TimedOut { missing, .. } if missing[0].index == 1), "{error}");
}

#[test]
fn an_interrupt_ends_bootstrap() {
    let folder = Folder::new();
    let options = MeshOptions {
        host_domain_count: 2,
        directory: Some(folder.path().join("meeting")),
        job: Some("nobody else".into()),
        ..MeshOptions::default()
    };
    let error = Mesh::bootstrap_within(None, Some(&options), Some(&|| true)).expect_err("interrupted");
    assert!(matches!(error, Error::Interrupted { .. }), "{error}");
}

/// Verbs whose members bring or get different parts, blocking and deferred; members without a use for an array may give any.
fn verbs_with_parts(mesh: &Mesh) -> Result<()> {
    let (index, count) = (mesh.index(), mesh.count());
    let own = index as i64;
    for root in 0..count {
        let is_root = root == index;
        let mut sum = [own, 10 * own];
        mesh.reduce(&mut sum, root, ReduceOp::Sum)?;
        let total = (0..count as i64).sum::<i64>();
        assert_eq!(sum, if is_root { [total, 10 * total] } else { [own, 10 * own] });
        let mut all = vec![-1; if is_root { count } else { 5 }];
        mesh.gather(&[own], &mut all, root)?;
        let expected = (0..count as i64).collect::<Vec<_>>();
        assert_eq!(all, if is_root { expected } else { vec![-1; 5] });
        let whole = (0..count as i64).map(|to| 100 * own + to).collect::<Vec<_>>();
        let mut part = [-1];
        mesh.scatter(&whole, &mut part, root)?;
        assert_eq!(part, [100 * root as i64 + own]);
        let deferred = mesh.deferred(None);
        let deadline = Deadline::after(MINUTES);
        let out = vec![-1; count];
        let (_, out) = deferred.all_to_all(whole.clone(), out).wait(&deadline)?;
        assert_eq!(out, (0..count as i64).map(|from| 100 * from + own).collect::<Vec<_>>());
        let (_, part) = deferred.scatter(whole, vec![-1], root).wait(&deadline)?;
        assert_eq!(part, [100 * root as i64 + own]);
        let (_, all) = deferred.gather(vec![own], vec![-1; count], root).wait(&deadline)?;
        assert_eq!(all[count - 1], if is_root { count as i64 - 1 } else { -1 });
        let sum = deferred.reduce(vec![own], root, ReduceOp::Sum).wait(&deadline)?;
        assert_eq!(sum, [if is_root { total } else { own }]);
    }
    Ok(())
}

#[test]
fn threads_of_one_process_form_a_mesh() {
    let hall = uform::rendezvous::memory::Hall::new(3);
    let threads = (0..3).map(|index| {
        let hall = hall.clone();
        std::thread::spawn(move || {
            let deadline = Deadline::after(MINUTES);
            let listener = Listener::open()?;
            let launch = environment::read(&MeshOptions::default())?;
            let introduction = device::introduction(&launch, listener.address())?;
            let exchange = hall.enter(index, introduction, &deadline)?;
            let mesh = Mesh::of_exchange(exchange, Some(listener), None, &deadline)?;
            let mut sum = [index as i32];
            mesh.all_reduce(&mut sum, ReduceOp::Sum)?;
            mesh.barrier()?;
            verbs_with_parts(&mesh)?;
            Ok::<_, Error>(sum[0])
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        assert_eq!(thread.join().expect("no panic").expect("all come"), 3);
    }
}
