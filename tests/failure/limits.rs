//! Limits of the machine: a memory cgroup that is full, and runs killed in the middle of a call time after time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uform::{Mesh, MeshOptions, ReduceOp, Status};

use crate::harness::{self, Folder, Role, Setup, assert_all_succeeded, entries, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("limits.memory", memory), ("limits.endless", endless), ("limits.once", once)];

const MINUTES: Duration = Duration::from_secs(180);
/// What the group may use, and an arena that is too large for it.
const LIMIT_BYTES: usize = 96 << 20;
const ARENA_BYTES: usize = 256 << 20;

/// A memory control group of one test, removed with it.
struct Group(PathBuf);

impl Group {
    /// Makes one with a limit; the reason if this machine does not let us.
    fn new() -> Result<Self, String> {
        let root = Path::new("/sys/fs/cgroup");
        let (parent, limit) = if root.join("memory/memory.limit_in_bytes").exists() {
            (root.join("memory"), "memory.limit_in_bytes")
        } else if root.join("cgroup.controllers").exists() {
            (root.to_owned(), "memory.max")
        } else {
            return Err("no memory controller is mounted".to_owned());
        };
        let nonce = uform::sys::random::nonce().map_err(|error| error.chain())?;
        let path = parent.join(format!("uform-test-{nonce}"));
        fs::create_dir(&path).map_err(|error| format!("cannot make a control group: {error}"))?;
        let group = Self(path);
        fs::write(group.0.join(limit), LIMIT_BYTES.to_string())
            .map_err(|error| format!("cannot set {limit}: {error}"))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Members have ended; the system may need a moment to let go of them.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("the control group {} could not be removed", self.0.display());
    }
}

/// Joins the group, then asks for more than it may have.
fn memory(index: usize, count: usize, argument: &str) {
    fs::write(Path::new(argument).join("cgroup.procs"), std::process::id().to_string()).expect("joined");
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let deadline = Mesh::verb_deadline(60.0).expect("a minute");
    let bytes = if index == 1 { ARENA_BYTES } else { 4096 };
    let error = mesh.arena(bytes, &deadline).expect_err("the group has no room for it");
    assert_eq!(error.status(), Status::Exhausted, "{}", error.chain());
    say(&error.chain());
    let mut sum = vec![index as f64 + 1.0; 1000];
    mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("the mesh stays usable");
    assert!(sum.iter().all(|value| *value == (count * (count + 1) / 2) as f64));
    mesh.close().expect("idle");
}

#[test]
fn a_full_memory_group_is_an_error_on_all_and_kills_nobody() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(reason) => {
            let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
            assert!(
                !required.split(',').any(|word| word == "cgroup"),
                "UFORM_REQUIRE names cgroup: {reason}"
            );
            println!("skipped: {reason}");
            return;
        }
    };
    let argument = group.0.to_string_lossy().into_owned();
    let outcomes = harness::processes(2, "limits.memory", &argument, MINUTES);
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes {
        assert!(outcome.output.contains("index 1"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains(&ARENA_BYTES.to_string()), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("cgroup"), "{}", transcript(&outcomes));
        assert!(outcome.output.contains("(free: "), "{}", transcript(&outcomes));
    }
    let path = group.0.clone();
    drop(group);
    assert!(!path.exists(), "the control group stays");
}

fn join_again(index: usize, count: usize, argument: &str) -> Mesh {
    let options = MeshOptions {
        host_domain_index: index,
        host_domain_count: count,
        directory: Some(PathBuf::from(argument)),
        job: Some("killed".into()),
        ..MeshOptions::default()
    };
    Mesh::bootstrap(None, Some(&options)).unwrap_or_else(|error| panic!("{}", error.chain()))
}

fn endless(index: usize, count: usize, argument: &str) {
    let mesh = join_again(index, count, argument);
    say("formed");
    let mut array = vec![1.0f32; 1 << 18];
    loop {
        array.fill(1.0);
        mesh.all_reduce(&mut array, ReduceOp::Sum).expect("both are killed at once");
    }
}

fn once(index: usize, count: usize, argument: &str) {
    let mesh = join_again(index, count, argument);
    let mut sum = [index as i64];
    mesh.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
    assert_eq!(sum, [(count * (count - 1) / 2) as i64]);
    mesh.close().expect("idle");
}

#[test]
fn runs_killed_in_a_call_leave_nothing_that_stops_the_next() {
    let folder = Folder::new();
    let meeting = folder.path().join("meeting");
    let argument = meeting.to_string_lossy().into_owned();
    let shared = || {
        let names = entries(Path::new("/dev/shm"));
        names.into_iter().filter(|name| name.contains("uform")).collect::<Vec<_>>()
    };
    let before = shared();
    for round in 0..50u64 {
        let start = Setup::new(2, "limits.endless").argument(&argument).without_launcher();
        let mut run = start.deadline(MINUTES).start();
        (0..2).for_each(|index| run.wait_for(index, "formed"));
        // Somewhere in one of the calls; a fixed set of delays reaches different places on every machine.
        std::thread::sleep(Duration::from_micros(round * 377 % 4000));
        (0..2).for_each(|index| run.kill(index));
        run.finish();
    }
    assert_eq!(shared(), before, "names in shared memory");
    for count in [2, 3] {
        let start = Setup::new(count, "limits.once").argument(&argument).without_launcher();
        assert_all_succeeded(&start.deadline(MINUTES).start().finish());
    }
    assert_eq!(entries(&meeting), Vec::<String>::new());
}
