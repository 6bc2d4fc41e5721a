//! Meeting in a folder as clients of NFS see it: stale attributes, names and listings, ESTALE, lost answers, no locks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::harness::nfs_like::NfsLike;
use crate::harness::{self, Folder, Outcome, Run, Setup, entries, say, transcript};

/// The roles of this file.
pub(crate) const ROLES: &[(&str, harness::Role)] =
    &[("nfs_like.client", client), ("nfs_like.late_client", late_client)];

const BAD: NfsLike = NfsLike { seconds: 0.7, stale: 20, lost: 100, slow: 0 };

fn client(_index: usize, _count: usize, _argument: &str) {
    let place = std::path::PathBuf::from(std::env::var_os("UFORM_DIRECTORY").expect("set by the harness"));
    let names = || fs::read_dir(&place).expect("listed").flatten().count();
    let code = |result: std::io::Result<fs::File>| result.err().and_then(|error| error.raw_os_error());
    let raw = |name: &str| rustix::fs::open(place.join(name), OFlags::RDONLY, Mode::empty());
    fs::write(place.join("replaced"), "one").expect("written");
    fs::write(place.join("grown"), "one").expect("written");
    assert!(fs::metadata(place.join("later")).is_err() && raw("raw").is_err());
    assert_eq!(fs::metadata(place.join("grown")).expect("there").len(), 3);
    assert_eq!(names(), 2);
    let removed = fs::File::open(place.join("replaced")).expect("there");
    say("looked");
    while !harness::folder().join("go").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    // As it was, whoever asks: the standard library through libc, or uform's own calls without it.
    assert_eq!(fs::metadata(place.join("later")).expect_err("believed absent").raw_os_error(), Some(2));
    assert_eq!(raw("raw").expect_err("believed absent"), Errno::NOENT);
    assert_eq!(names(), 2);
    assert_eq!(fs::metadata(place.join("grown")).expect("there").len(), 3);
    assert_eq!(fs::read_to_string(place.join("grown")).expect("close-to-open"), "one and two");
    assert_eq!(code(fs::File::open(place.join("replaced"))), Some(Errno::STALE.raw_os_error()));
    assert_eq!(fs::read_to_string(place.join("replaced")).expect("looked up anew"), "two");
    let mut stale = 0;
    for _ in 0..100 {
        stale += usize::from(rustix::io::pread(&removed, &mut [0], 0).is_err());
        stale += usize::from(rustix::io::read(&removed, &mut [0]) == Err(Errno::STALE));
    }
    assert!((1..100).contains(&stale), "{stale} of 100 reads of a removed file");
    let file = fs::File::open(place.join("grown")).expect("there");
    assert_eq!(rustix::fs::flock(&file, FlockOperation::LockExclusive), Err(Errno::NOLCK));
    assert_eq!(rustix::fs::fcntl_lock(&file, FlockOperation::LockShared), Err(Errno::NOLCK));
    let renamed = rustix::fs::renameat_with(
        rustix::fs::CWD,
        place.join("grown"),
        rustix::fs::CWD,
        place.join("other"),
        RenameFlags::NOREPLACE,
    );
    assert_eq!(renamed, Err(Errno::INVAL));
    // What it changes itself it sees.
    fs::create_dir(place.join("own")).expect("made");
    assert_eq!(names(), 5);
}

fn late_client(_index: usize, _count: usize, _argument: &str) {
    let place = std::path::PathBuf::from(std::env::var_os("UFORM_DIRECTORY").expect("set by the harness"));
    assert!(fs::metadata(place.join("later")).is_err());
    assert_eq!(fs::read_dir(&place).expect("listed").count(), 0);
    say("looked");
    while fs::metadata(place.join("later")).is_err() || fs::read_dir(&place).expect("listed").count() == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_mount_is_as_bad_as_it_says() {
    let folder = Folder::new();
    let long = NfsLike { seconds: 600.0, stale: 0, lost: 0, slow: 0 };
    let mut run = long.apply(Setup::new(1, "nfs_like.client"), folder.path()).start();
    run.wait_for(0, "looked");
    for name in ["later", "raw"] {
        fs::write(folder.path().join(name), "").expect("written");
    }
    fs::write(folder.path().join("grown"), "one and two").expect("written");
    fs::write(folder.path().join("new"), "two").expect("written");
    fs::rename(folder.path().join("new"), folder.path().join("replaced")).expect("replaced");
    fs::write(run.folder().join("go"), "").expect("written");
    harness::assert_all_succeeded(&run.finish());

    let folder = Folder::new();
    let short = NfsLike { seconds: 0.5, ..long };
    let mut run = short.apply(Setup::new(1, "nfs_like.late_client"), folder.path()).start();
    run.wait_for(0, "looked");
    fs::write(folder.path().join("later"), "").expect("written");
    harness::assert_all_succeeded(&run.finish());
}

fn start(mount: NfsLike, folder: &Path, indexes: &[usize], count: usize, argument: &str) -> Run {
    let setup = Setup::new(count, "rendezvous.member").only(indexes).argument(argument);
    mount.apply(setup.deadline(Duration::from_secs(120)), folder).start()
}

/// A run without the mount reclaims what runs on it left.
fn reclaims(folder: &Path) {
    let setup = Setup::new(2, "rendezvous.member").meeting(folder);
    harness::assert_all_succeeded(&setup.start().finish());
    assert_eq!(entries(folder), Vec::<String>::new());
}

/// The run that a member was in, if it came to its end.
fn finished(outcome: &Outcome) -> Option<&str> {
    let mut lines = outcome.output.lines();
    let run = lines.find_map(|line| line.strip_prefix("in "))?;
    outcome.succeeded().then_some(run)
}

/// All that finished were in one run, and all others say clearly why they were not.
fn assert_one_run_or_clear_errors(outcomes: &[Outcome]) {
    let runs = outcomes.iter().filter_map(finished).collect::<BTreeSet<_>>();
    assert!(runs.len() <= 1, "{runs:?}\n{}", transcript(outcomes));
    for outcome in outcomes.iter().filter(|outcome| finished(outcome).is_none()) {
        // A folder that such a mount shows and hides again until the deadline is named.
        let clear = ["lost index", "missing index", "who is index", "rendezvous, entering "];
        let text = outcome.output.as_str();
        let killed = outcome.killed_by(rustix::process::Signal::KILL);
        assert!(killed || clear.iter().any(|words| text.contains(words)), "{}", transcript(outcomes));
    }
}

#[test]
fn members_meet_on_such_a_mount() {
    let calm = NfsLike { seconds: 1.0, stale: 0, lost: 0, slow: 0 };
    for (mount, hosts) in [(calm, "together"), (BAD, "together"), (BAD, "apart")] {
        let folder = Folder::new();
        let started = Instant::now();
        let argument = format!("timeout=60 hosts={hosts}");
        let outcomes = start(mount, folder.path(), &[0, 1, 2, 3], 4, &argument).finish();
        println!("{mount:?}, {hosts}: {:?}", started.elapsed());
        harness::assert_all_succeeded(&outcomes);
        assert_one_run_or_clear_errors(&outcomes);
        reclaims(folder.path());
    }
}

#[test]
fn a_mesh_forms_on_such_a_mount() {
    let folder = Folder::new();
    let setup = Setup::new(3, "mesh.form").deadline(Duration::from_secs(120));
    let outcomes = BAD.apply(setup, folder.path()).start().finish();
    let formed = |outcome: &Outcome| {
        outcome.output.lines().find(|line| line.starts_with("formed ")).map(str::to_owned)
    };
    let runs = outcomes.iter().map(formed).collect::<BTreeSet<_>>();
    assert!(runs.len() == 1 && runs.iter().all(Option::is_some), "{}", transcript(&outcomes));
}

#[test]
fn a_leader_killed_on_such_a_mount_is_named_in_time() {
    for (place, hosts) in
        [("started", "together"), ("met", "together"), ("met", "apart"), ("findings", "apart")]
    {
        let folder = Folder::new();
        let timeout = Duration::from_secs(8);
        let argument = format!("timeout={} hosts={hosts} stop={place} at=0", timeout.as_secs());
        let started = Instant::now();
        let mut run = start(BAD, folder.path(), &[0, 1, 2], 3, &argument);
        run.wait_for(0, place);
        run.kill(0);
        let outcomes = run.finish();
        assert!(started.elapsed() < 3 * timeout, "{:?}\n{}", started.elapsed(), transcript(&outcomes));
        assert_one_run_or_clear_errors(&outcomes);
        for outcome in outcomes.iter().filter(|outcome| outcome.index != 0) {
            assert!(
                finished(outcome).is_none() && outcome.output.contains("index 0"),
                "{}",
                transcript(&outcomes)
            );
        }
        let again = start(BAD, folder.path(), &[0, 1], 2, "timeout=20");
        let outcomes = again.finish();
        harness::assert_all_succeeded(&outcomes);
        assert_one_run_or_clear_errors(&outcomes);
    }
}

#[test]
fn a_restart_under_one_name_ends_in_one_run_or_clear_errors() {
    for hosts in ["together", "apart"] {
        let folder = Folder::new();
        let argument = format!("timeout=15 hosts={hosts}");
        let mut first = start(BAD, folder.path(), &[0, 1, 2], 4, &argument);
        (0..3).for_each(|position| first.wait_for(position, "started"));
        first.kill(0);
        let second = start(BAD, folder.path(), &[0, 1, 2, 3], 4, &argument).finish();
        let first = first.finish();
        let all = second.into_iter().chain(first).collect::<Vec<_>>();
        assert_one_run_or_clear_errors(&all);
        let indexes = all.iter().filter(|outcome| finished(outcome).is_some()).map(|outcome| outcome.index);
        let indexes = indexes.collect::<Vec<_>>();
        let distinct = indexes.iter().collect::<BTreeSet<_>>();
        assert!(indexes.is_empty() || (indexes.len() == 4 && distinct.len() == 4), "{}", transcript(&all));
    }
}

#[test]
fn a_mount_that_never_answers_is_named() {
    let folder = Folder::new();
    let dead = NfsLike { stale: 1000, ..BAD };
    let timeout = Duration::from_secs(2);
    let started = Instant::now();
    for outcome in start(dead, folder.path(), &[0, 1], 2, "timeout=2").finish() {
        let text = &outcome.output;
        assert!(text.contains(&folder.path().display().to_string()), "{text}");
        assert!(text.contains("Stale file handle"), "{text}");
    }
    assert!(started.elapsed() < 3 * timeout, "{:?}", started.elapsed());
}

#[test]
fn a_mount_that_is_slow_until_the_deadline_is_named_with_what_it_took_long_for() {
    let folder = Folder::new();
    let slow = NfsLike { seconds: 0.5, stale: 0, lost: 0, slow: 600 };
    for outcome in start(slow, folder.path(), &[0, 1], 2, "timeout=3").finish() {
        let text = &outcome.output;
        assert!(text.contains("timed out") && !text.contains("nobody is missing"), "{text}");
        let took = text.split_once("took ").and_then(|(_, rest)| rest.split_once(" s to "));
        let (seconds, rest) = took.unwrap_or_else(|| panic!("{text}"));
        assert!(seconds.parse::<f64>().expect("a number") >= 0.6, "{text}");
        assert!(rest.contains(&folder.path().display().to_string()), "{text}");
    }
}
