//! A member that forked: its child keeps nothing of the mesh open, and its death is seen although the child lives.
#![allow(unsafe_code, reason = "std has no fork; each block names its fact")]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use uform::{Deadline, Error, Mesh, Mood, ReduceOp};

use crate::harness::{self, Role, Setup, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("fork.member", member), ("fork.closed", closed)];

/// How long a death may take to be seen: three times what is promised.
const SEEN: Duration = Duration::from_secs(3);

/// Forks. The child runs `run` and ends with its answer.
pub(crate) fn fork(run: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child has one thread, runs what the caller wrote for it, and ends without unwinding into its parent's code.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(!run());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

/// Waits for a child and gives its status.
pub(crate) fn wait(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` lives through the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(waited, child);
    status
}

/// How many of this process's descriptors are sockets, memory files or process descriptors.
fn shared_descriptors() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let is_shared = |target: &std::path::PathBuf| {
        let target = target.to_string_lossy();
        ["socket:", "/memfd:", "anon_inode:[pidfd]"].iter().any(|kind| target.starts_with(kind))
    };
    targets.filter(is_shared).count()
}

fn member(index: usize, _count: usize, _argument: &str) {
    let before = shared_descriptors();
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    mesh.barrier().expect("all come");
    if index == 0 {
        say("formed");
        let error = loop {
            if let Err(error) = mesh.barrier() {
                break error;
            }
        };
        assert!(matches!(error, Error::Lost { index: 1, .. }), "{error}");
        say(&format!("lost: {error}"));
        return;
    }
    assert!(shared_descriptors() > before, "a mesh has some");
    let answer = File::create(harness::folder().join("answer")).expect("the run's folder is writable");
    let release = harness::folder().join("release");
    let release = CString::new(release.as_os_str().as_bytes()).expect("no zero byte");
    let child = fork(|| {
        // SAFETY: the child leaves the group that the harness kills with its parent.
        unsafe { libc::setsid() };
        let is_clean = shared_descriptors() == before && matches!(mesh.barrier(), Err(Error::Closed { .. }));
        let word: &[u8] = if is_clean { b"clean" } else { b"not clean" };
        // SAFETY: the bytes live through the call; the descriptor is the parent's file.
        unsafe { libc::write(answer.as_raw_fd(), word.as_ptr().cast(), word.len()) };
        for _ in 0..6000 {
            // SAFETY: the path ends with a zero byte and lives through the call.
            if unsafe { libc::access(release.as_ptr(), libc::F_OK) } == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    });
    while std::fs::metadata(harness::folder().join("answer")).map_or(0, |file| file.len()) == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
    say(&format!("forked {child}"));
    // The others see it alive, in their barriers, until it is killed.
    loop {
        mesh.barrier().expect("nobody dies before");
    }
}

#[test]
fn a_killed_member_is_seen_dead_although_its_child_lives() {
    let mut run = Setup::new(2, "fork.member").start();
    run.wait_for(0, "formed");
    run.wait_for(1, "forked");
    let answer = std::fs::read_to_string(run.folder().join("answer")).expect("it was written");
    let child = run.output(1).split("forked ").nth(1).expect("its number").trim().to_owned();
    let killed = Instant::now();
    run.kill(1);
    run.wait_for(0, "lost: ");
    let seen = killed.elapsed();
    let is_alive = std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok();
    std::fs::write(run.folder().join("release"), "").expect("the run's folder is writable");
    let outcomes = run.finish();
    assert!(outcomes[0].succeeded(), "{}", transcript(&outcomes));
    assert!(is_alive, "the child outlives its parent");
    assert_eq!(answer, "clean");
    assert!(seen < SEEN, "{seen:?}");
}

/// What a child of a process with live threads may do with what its parent made: be refused, ask, and drop it.
fn closed(_index: usize, _count: usize, _argument: &str) {
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let executor = mesh.executor().clone();
    let long = Deadline::after(Duration::from_secs(60));
    executor.drain(Mood::Busy, &long).expect("idle");
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let running = executor.submit("a long call", move |_| {
        let _ = receiver.recv();
        Ok(())
    });
    let other = running.call();
    let is_closed = |error: Option<Error>| matches!(error, Some(Error::Closed { what, why }) if !what.is_empty() && why.contains("fork"));
    let child = fork(|| {
        let refused = [
            is_closed(executor.hold("a look").err()),
            is_closed(executor.hold_within("a look", &long).err()),
            is_closed(executor.submit("a look", |_| Ok(())).wait(&long).err()),
            is_closed(executor.drain(Mood::Parked, &long).err()),
            is_closed(mesh.all_reduce(&mut [1.0f32], ReduceOp::Sum).err()),
            is_closed(mesh.deferred(None).all_reduce(vec![1.0f32], ReduceOp::Sum).wait(&long).err()),
            is_closed(running.wait(&long).err()),
        ];
        // Harmless: nothing here is the child's.
        let harmless = executor.close(&long).is_ok() && mesh.close().is_ok() && executor.is_closed();
        drop((mesh.clone(), executor.clone()));
        refused.iter().all(|refused| *refused) && harmless && long.waited() < Duration::from_secs(30)
    });
    assert_eq!(wait(child), 0, "the child of {other} was refused everything, and waited for nothing");
    drop(sender);
    // A child that drops the last handles it has.
    let child = fork(|| {
        drop(running);
        drop(executor);
        drop(mesh);
        true
    });
    assert_eq!(wait(child), 0);
}

#[test]
fn a_forked_child_is_refused_and_closes_nothing() {
    harness::assert_all_succeeded(&harness::processes(1, "fork.closed", "", Duration::from_secs(120)));
}
