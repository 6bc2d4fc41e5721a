//! What members of a meeting see when one of them dies, stops, or never comes, and what a dead run leaves behind.

use std::collections::HashMap;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use uform::Error;
use uform::rendezvous::Exchange;
use uform::rendezvous::directory::{self, Meeting};
use uform::sys::{Deadline, file};

use crate::conformance::exchange::{introduction, meet, members};
use crate::harness::{self, Folder, Run, Setup, entries, say};

/// The roles of this file.
pub(crate) const ROLES: &[(&str, harness::Role)] = &[("rendezvous.member", member)];

/// Long enough that no test meets it; a test whose members wait for it fails at the harness's deadline.
const LONG: f64 = 600.0;

/// Meets, exchanges, closes; prints how far it came. The argument is `key=value` words.
fn member(index: usize, count: usize, argument: &str) {
    let words: HashMap<&str, &str> = argument.split(' ').filter_map(|word| word.split_once('=')).collect();
    let word = |name: &str| words.get(name).copied();
    let stops = |place: &str| {
        say(place);
        if word("stop") == Some(place) && word("at").is_none_or(|at| at == index.to_string()) {
            harness::sleep_until_killed();
        }
    };
    let timeout: f64 = word("timeout").map_or(LONG, |text| text.parse().expect("a number"));
    let deadline = Deadline::after_seconds(timeout, LONG, "timeout").expect("a timeout");
    let mut meeting = Meeting {
        directory: std::env::var_os("UFORM_DIRECTORY").expect("set by the harness").into(),
        job: "job".into(),
        attempt_is_unique: word("unique").is_some(),
        index,
        count: word("count").map_or(count, |text| text.parse().expect("a number")),
        introduction: introduction(index),
    };
    if word("hosts") == Some("apart") {
        meeting.introduction.process.boot_id = format!("host of {index}");
    }
    stops("started");
    let finished = directory::meet(meeting, &deadline).and_then(|mut exchange| {
        say(&format!("in {}", exchange.roster().run));
        stops("met");
        for phase in ["findings", "ready"] {
            let all = exchange.exchange(phase, &index.to_le_bytes(), &deadline)?;
            assert!(all.iter().enumerate().all(|(index, bytes)| *bytes == index.to_le_bytes()));
            stops(phase);
        }
        exchange.close();
        Ok(())
    });
    match finished {
        Ok(()) => say("finished"),
        Err(error) => {
            say(&format!("error: {}", error.chain()));
            std::process::exit(3);
        }
    }
}

fn start(meeting: &Path, indexes: &[usize], count: usize, argument: &str) -> Run {
    let setup = Setup::new(count, "rendezvous.member").meeting(meeting).only(indexes);
    setup.argument(argument).deadline(Duration::from_secs(60)).start()
}

fn forms(meeting: &Path, count: usize) {
    let indexes: Vec<usize> = (0..count).collect();
    harness::assert_all_succeeded(&start(meeting, &indexes, count, "").finish());
    assert_eq!(entries(meeting), Vec::<String>::new());
}

fn wait_for_all(run: &mut Run, count: usize, text: &str) {
    (0..count).for_each(|position| run.wait_for(position, text));
}

#[test]
fn a_run_killed_whole_is_reclaimed_by_the_next() {
    let folder = Folder::new();
    for (place, next) in [("met", 3), ("findings", 2), ("ready", 3), ("started", 1), ("met", 1)] {
        let mut run = start(folder.path(), &[0, 1, 2], 3, &format!("stop={place}"));
        wait_for_all(&mut run, 3, place);
        (0..3).for_each(|position| run.kill(position));
        run.finish();
        if place != "started" {
            assert!(!entries(folder.path()).is_empty(), "a run that was killed leaves something");
        }
        forms(folder.path(), next);
    }
    // While it still waits for members.
    let mut run = start(folder.path(), &[0, 1], 3, "");
    wait_for_all(&mut run, 2, "started");
    std::thread::sleep(Duration::from_millis(300));
    (0..2).for_each(|position| run.kill(position));
    run.finish();
    forms(folder.path(), 2);
}

#[test]
fn a_killed_run_of_another_job_is_reclaimed_and_a_living_one_is_not() {
    let folder = Folder::new();
    let long = Deadline::after(Duration::from_secs(60));
    let mut run = start(folder.path(), &[0, 1], 2, "stop=met");
    wait_for_all(&mut run, 2, "met");
    let before = entries(folder.path());
    meet(&folder, "other", 0, 1, &long).expect("met").close();
    assert_eq!(entries(folder.path()), before, "a living run is not touched");
    (0..2).for_each(|position| run.kill(position));
    run.finish();
    meet(&folder, "other", 0, 1, &long).expect("met").close();
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

#[test]
fn a_missing_member_is_named_by_all() {
    for absent in [0, 2] {
        let folder = Folder::new();
        let indexes: Vec<usize> = (0..4).filter(|index| *index != absent).collect();
        for outcome in start(folder.path(), &indexes, 4, "timeout=2").finish() {
            let wanted = format!("missing index {absent} (nothing heard of it)");
            assert_eq!(outcome.status.code(), Some(3));
            assert!(outcome.output.contains(&wanted), "{}", outcome.output);
            assert!(outcome.output.contains("registration"), "{}", outcome.output);
            assert_eq!(outcome.output.matches("missing index").count(), 1, "{}", outcome.output);
        }
        assert_eq!(entries(folder.path()), Vec::<String>::new());
    }
}

#[test]
fn a_member_that_dies_is_named_by_the_others() {
    // Index 0 leads, index 2 does not; `ready` is published by all before anybody returns from it.
    for (victim, place, phase) in
        [(2, "met", "findings"), (0, "met", "findings"), (2, "findings", "ready"), (0, "findings", "ready")]
    {
        let folder = Folder::new();
        let mut run = start(folder.path(), &[0, 1, 2, 3], 4, &format!("stop={place} at={victim}"));
        run.wait_for(victim, place);
        let killed = Instant::now();
        run.kill(victim);
        let outcomes = run.finish();
        // The promise is one second; asserted at three times, and never at the members' own timeout.
        let limit = Duration::from_secs(3);
        assert!(killed.elapsed() < limit * 3, "{:?}", killed.elapsed());
        for outcome in outcomes.iter().filter(|outcome| outcome.index != victim) {
            let (text, wanted) = (&outcome.output, format!("lost index {victim} "));
            assert!(text.contains(&wanted) && text.contains(phase), "index {}: {text}", outcome.index);
        }
        forms(folder.path(), 2);
    }
}

#[test]
fn what_was_returned_on_one_returns_on_all() {
    for victim in [0, 1] {
        let folder = Folder::new();
        let mut run = start(folder.path(), &[0, 1, 2], 3, &format!("stop=ready at={victim}"));
        run.wait_for(victim, "ready");
        run.kill(victim);
        for outcome in run.finish().iter().filter(|outcome| outcome.index != victim) {
            assert!(outcome.output.contains("finished"), "index {}: {}", outcome.index, outcome.output);
        }
        forms(folder.path(), 2);
    }
}

#[test]
fn a_member_that_dies_registered_is_named_before_the_deadline() {
    for victim in [0, 1] {
        let folder = Folder::new();
        let mut run = start(folder.path(), &[0, 1, 2], 4, "unique=yes");
        let registered = |index: usize| {
            let wanted = format!("members/{index}-");
            entries(folder.path()).iter().any(|name| name.contains(&wanted))
        };
        let end = Instant::now() + Duration::from_secs(30);
        while !(0..3).all(registered) {
            assert!(Instant::now() < end, "{:?}", entries(folder.path()));
            std::thread::sleep(Duration::from_millis(5));
        }
        run.kill(victim);
        for outcome in run.finish().iter().filter(|outcome| outcome.index != victim) {
            let wanted = format!("lost index {victim} ");
            assert!(outcome.output.contains(&wanted), "index {}: {}", outcome.index, outcome.output);
        }
        forms(folder.path(), 2);
        run = start(folder.path(), &[0], 1, "");
        harness::assert_all_succeeded(&run.finish());
    }
}

#[test]
fn a_stopped_member_is_named_as_alive() {
    let folder = Folder::new();
    let mut run = start(folder.path(), &[0, 1, 2], 3, "timeout=4 stop=met at=2");
    wait_for_all(&mut run, 3, "met");
    run.stop(2);
    run.wait_for(0, "error");
    run.wait_for(1, "error");
    run.kill(2);
    for outcome in run.finish().iter().filter(|outcome| outcome.index != 2) {
        let text = &outcome.output;
        assert!(text.contains("missing index 2 (registered from") && text.contains("alive"), "{text}");
    }
}

#[test]
fn processes_with_one_index_are_both_told() {
    for (indexes, twice) in [(vec![0, 0], 0), (vec![0, 2, 2], 2)] {
        let folder = Folder::new();
        let run = start(folder.path(), &indexes, 4, "");
        let pids: Vec<u32> = (0..indexes.len()).map(|position| run.pid(position)).collect();
        let outcomes = run.finish();
        let told = indexes.iter().zip(&outcomes).filter(|(index, _)| **index == twice);
        for (_, outcome) in told {
            let text = &outcome.output;
            assert!(text.contains(&format!("who is index {twice}")), "{text}");
            for pid in &pids[pids.len() - 2..] {
                assert!(text.contains(&format!("pid {pid}, started at tick")), "{text}");
            }
        }
        assert_eq!(entries(folder.path()), Vec::<String>::new());
    }
}

#[test]
fn a_death_note_ends_the_wait() {
    let folder = Folder::new();
    let mut run = start(folder.path(), &[0, 1], 3, "unique=yes");
    wait_for_all(&mut run, 2, "started");
    directory::post_death_note(folder.path(), "job", 2, 4711, "exit code 7 before it registered")
        .expect("posted");
    for outcome in run.finish() {
        let text = &outcome.output;
        assert!(text.contains("lost index 2") && text.contains("exit code 7"), "{text}");
    }
    directory::remove_job(folder.path(), "job").expect("removed");
    assert_eq!(entries(folder.path()), Vec::<String>::new());
    // Index 0 itself may be the dead one.
    let mut run = start(folder.path(), &[1, 2], 3, "unique=yes");
    wait_for_all(&mut run, 2, "started");
    directory::post_death_note(folder.path(), "job", 0, 4711, "signal 9").expect("posted");
    for outcome in run.finish() {
        assert!(outcome.output.contains("lost index 0"), "{}", outcome.output);
    }
    directory::remove_job(folder.path(), "job").expect("removed");
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

#[test]
fn hostile_files_do_not_stop_a_meeting() {
    let folder = Folder::new();
    let job = folder.path().join("uform-job");
    let private = |path: &Path| {
        std::fs::create_dir(path).expect("made");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).expect("set");
    };
    for path in ["", "leader", "waiting", "attempt-4-x", "attempt-4-x/members"] {
        private(&job.join(path));
    }
    let leader = job.join("leader");
    for name in ["1", "dead-1", "challenge-2-x", "99999999999999999999", "../waiting/1-x"] {
        std::fs::write(leader.join(name), "[".repeat(100_000)).expect("written");
    }
    rustix::fs::mkfifoat(rustix::fs::CWD, leader.join("2"), rustix::fs::Mode::RUSR).expect("piped");
    symlink("/dev/zero", leader.join("3")).expect("linked");
    rustix::fs::mkfifoat(rustix::fs::CWD, job.join("attempt-4-x/members/1-x"), rustix::fs::Mode::RUSR)
        .expect("piped");
    members(&[0, 1], |index| {
        let deadline = Deadline::after(Duration::from_secs(60));
        let mut exchange = meet(&folder, "job", index, 2, &deadline).expect("met");
        exchange.exchange("ready", b"", &deadline).expect("exchanged");
        exchange.close();
    });
}

/// Puts something that is no record under a name.
fn obstruct(path: &Path, kind: &str) {
    let made = match kind {
        "vast" => std::fs::File::create(path).and_then(|file| file.set_len(1 << 40)),
        "truncated" => std::fs::write(path, "uform 1 4000 00000000\n{"),
        "deep" => {
            let text = "[".repeat(100_000);
            let header = format!("uform 1 {} {:08x}\n", text.len(), crc32fast::hash(text.as_bytes()));
            std::fs::write(path, header + &text)
        }
        "link" => symlink("/dev/zero", path),
        "pipe" => rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RUSR).map_err(Into::into),
        "folder" => std::fs::create_dir(path),
        "device" => {
            let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::RUSR);
            // The device of zeros, or a pipe where only root may make one.
            let made = rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, rustix::fs::makedev(1, 5));
            made.or_else(|_| rustix::fs::mkfifoat(rustix::fs::CWD, path, mode)).map_err(Into::into)
        }
        other => panic!("{other}"),
    };
    made.expect("ours");
}

const HOSTILE: [&str; 7] = ["vast", "truncated", "deep", "link", "pipe", "folder", "device"];

/// Does something for each kind of hostile file, side by side.
fn for_each_kind(role: impl Fn(&str) + Sync) {
    std::thread::scope(|scope| {
        let role = &role;
        let threads = HOSTILE.map(|kind| scope.spawn(move || role(kind)));
        for (thread, kind) in threads.into_iter().zip(HOSTILE) {
            assert!(thread.join().is_ok(), "{kind}");
        }
    });
}

#[test]
fn hostile_files_of_each_kind_before_a_meeting_do_not_stop_it() {
    for_each_kind(|kind| {
        let folder = Folder::new();
        let job = folder.path().join("uform-job");
        for path in ["", "leader", "waiting", "attempt-4-x", "attempt-4-x/members"] {
            std::fs::create_dir(job.join(path)).expect("made");
            let private = std::fs::Permissions::from_mode(0o700);
            std::fs::set_permissions(job.join(path), private).expect("set");
        }
        for name in
            ["leader/3", "leader/dead-1", "leader/challenge-4-x", "waiting/1-x", "attempt-4-x/members/1-x"]
        {
            obstruct(&job.join(name), kind);
        }
        members(&[0, 1], |index| {
            let deadline = Deadline::after(Duration::from_secs(60));
            let mut exchange = meet(&folder, "job", index, 2, &deadline).expect("met");
            exchange.exchange("ready", b"", &deadline).expect("exchanged");
            exchange.close();
        });
    });
}

#[test]
fn hostile_files_in_the_way_of_a_meeting_are_named_at_the_deadline() {
    for_each_kind(|kind| {
        // A roster, a decision, a later claim, and what a member is about to publish.
        for name in ["decision/roster", "decision/0", "../leader/9", "published/1-1"] {
            is_named_at_the_deadline(kind, name);
        }
    });
}

/// A hostile file of this kind and name, relative to the attempt, is named by both members of a run at their deadline.
fn is_named_at_the_deadline(kind: &str, name: &str) {
    let timeout = Duration::from_secs(3);
    let folder = Folder::new();
    let argument = format!("timeout={}", timeout.as_secs());
    let run = start(folder.path(), &[0], 2, &argument);
    let end = Instant::now() + Duration::from_secs(30);
    let attempt = loop {
        // The last of its folders that the leader makes is there once it leads.
        let names = entries(folder.path());
        if let Some(claim) = names.iter().find(|name| name.contains("/members/0-")) {
            let members = folder.path().join(claim);
            break members.ancestors().nth(2).expect("an attempt").to_owned();
        }
        assert!(Instant::now() < end, "nobody leads");
        std::thread::sleep(Duration::from_millis(2));
    };
    obstruct(&attempt.join(name), kind);
    let started = Instant::now();
    let other = start(folder.path(), &[1], 2, &argument);
    let outcomes = run.finish().into_iter().chain(other.finish()).collect::<Vec<_>>();
    assert!(started.elapsed() < 3 * timeout, "{kind} as {name}: {:?}", started.elapsed());
    let file = name.rsplit_once('/').map_or(name, |(_, file)| file);
    for outcome in &outcomes {
        let text = &outcome.output;
        let is_named = text.contains(&format!("/{file} (")) || text.contains(&format!("/{file} is"));
        assert!(!outcome.succeeded() && is_named, "{kind} as {name}\n{}", harness::transcript(&outcomes));
    }
}

/// The records below `path` that hold a key: decisions of meetings.
fn decisions(path: &Path) -> Vec<Vec<u8>> {
    let names = entries(path).into_iter().filter(|name| name.ends_with("/decision/0"));
    names.map(|name| std::fs::read(path.join(name)).expect("ours")).collect()
}

#[test]
fn who_reads_the_parent_folder_reads_nothing_of_a_run() {
    let folder = Folder::new();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let mut run = start(folder.path(), &[0, 1], 2, "stop=met");
    wait_for_all(&mut run, 2, "met");
    let names = entries(folder.path());
    assert!(names.iter().any(|name| name.ends_with("/decision/0")), "{names:?}");
    for name in &names {
        let status = std::fs::symlink_metadata(folder.path().join(name)).expect("they stand still");
        let wanted = if status.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(status.permissions().mode() & 0o777, wanted, "{name}");
    }
    if rustix::process::geteuid().is_root() {
        // Another user sees the job's name, and cannot enter.
        let job = folder.path().join("uform-job");
        for words in
            [["ls", job.to_str().expect("text")], ["cat", job.join("leader/1").to_str().expect("text")]]
        {
            let mut command = std::process::Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(words).env("LC_ALL", "C");
            let output = command.output().expect("setpriv is there");
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains("Permission denied"), "{text}");
        }
    } else {
        println!("not run: another user, since only root can become one");
    }
    (0..2).for_each(|position| run.kill(position));
    run.finish();
}

#[test]
fn a_copied_roster_of_an_older_run_is_no_way_into_the_next() {
    let (folder, copy) = (Folder::new(), Folder::new());
    let copied = |from: &Path, to: &Path| {
        let mut command = std::process::Command::new("cp");
        let status = command.args(["-a", "-T"]).args([from, to]).status().expect("cp is there");
        assert!(status.success());
    };
    let mut run = start(folder.path(), &[0, 1], 2, "stop=met");
    wait_for_all(&mut run, 2, "met");
    copied(folder.path(), copy.path());
    (0..2).for_each(|position| run.kill(position));
    run.finish();
    forms(folder.path(), 2);
    let old = decisions(copy.path());
    assert_eq!(old.len(), 1);
    // Put back before the next run begins, and while it has met.
    for is_early in [true, false] {
        if is_early {
            copied(copy.path(), folder.path());
        }
        let mut run = start(folder.path(), &[0, 1], 2, "stop=met");
        wait_for_all(&mut run, 2, "met");
        if !is_early {
            // Beside the leader's own claim, which has the same number.
            let attempts = entries(copy.path()).into_iter().filter(|name| name.matches('/').count() == 1);
            let attempt = attempts.into_iter().find(|name| name.contains("/attempt-")).expect("one");
            copied(&copy.path().join(&attempt), &folder.path().join(&attempt));
        }
        let now = decisions(folder.path()).into_iter().filter(|one| !old.contains(one)).collect::<Vec<_>>();
        assert_eq!(now.len(), 1, "a run has a key of its own: {:?}", entries(folder.path()));
        (0..2).for_each(|position| run.kill(position));
        run.finish();
        forms(folder.path(), 2);
    }
}

#[test]
fn folders_that_cannot_be_trusted_are_refused() {
    let folder = Folder::new();
    let deadline = Deadline::after(Duration::from_secs(60));
    let job = folder.path().join("uform-job");
    let refused = |word: &str| {
        for index in [0, 1] {
            let error = meet(&folder, "job", index, 2, &deadline).err().expect("refused");
            assert!(matches!(error, Error::Invalid { .. }), "{}", error.chain());
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    symlink("/tmp", &job).expect("linked");
    refused("symbolic link");
    std::fs::remove_file(&job).expect("removed");
    std::fs::write(&job, "").expect("written");
    refused("a file");
    std::fs::remove_file(&job).expect("removed");
    std::fs::create_dir(&job).expect("made");
    std::fs::set_permissions(&job, std::fs::Permissions::from_mode(0o777)).expect("set");
    refused("777");
    std::fs::set_permissions(&job, std::fs::Permissions::from_mode(0o700)).expect("set");
    if std::os::unix::fs::chown(&job, Some(12345), None).is_ok() {
        refused("belongs to user 12345");
    } else {
        println!("not run: another user's folder, since only root can make one");
    }
    for (index, count, job) in [(2, 2, "job"), (0, 2, "")] {
        let error = meet(&folder, job, index, count, &deadline).err().expect("refused");
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
}

#[test]
fn operations_grow_with_the_count_and_not_its_square() {
    let of = |count: usize| {
        let folder = Folder::new();
        let indexes: Vec<usize> = (0..count).collect();
        members(&indexes, |index| {
            let deadline = Deadline::after(Duration::from_secs(60));
            let mut exchange: Box<dyn Exchange> = meet(&folder, "job", index, count, &deadline).expect("met");
            exchange.exchange("ready", b"", &deadline).expect("exchanged");
            exchange.close();
            file::counts()
        })
    };
    let count = 24;
    for (index, counts) in of(count).into_iter().enumerate() {
        // The leader reads each one that waits, registers and publishes once; everybody else a handful of records.
        let (created, opened) = if index == 0 { (10, 3 * count as u64 + 20) } else { (8, 20) };
        assert!(counts.created <= created, "index {index}: {counts:?}");
        assert!(counts.opened <= opened, "index {index}: {counts:?}");
        if index != 0 {
            // Members list `leader` and `decision` only, and those who wait a few times.
            assert!(counts.entries <= 8 * counts.listed + 4 * count as u64, "index {index}: {counts:?}");
        }
    }
}
