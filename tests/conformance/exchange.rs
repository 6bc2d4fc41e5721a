//! What every meeting place must do, with threads that play the members.

use std::time::Duration;

use uform::Error;
use uform::rendezvous::directory::{self, Meeting};
use uform::rendezvous::{Exchange, memory};
use uform::sys::{Deadline, process};
use uform::topology::{Introduction, MemoryDomain, Process, Survey};

use crate::harness::{Folder, entries};

/// An introduction of this process, told apart by `index` in its socket.
pub(crate) fn introduction(index: usize) -> Introduction {
    let pid = process::pid();
    let boot_id = process::boot_id().expect("/proc is mounted");
    Introduction {
        process: Process {
            host_name: "here".into(),
            boot_id: boot_id.clone(),
            pid,
            start_ticks: process::start_ticks(pid).expect("/proc is mounted"),
            command: format!("member {index}"),
        },
        cores: vec![0],
        quota_cores: None,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        socket: format!("socket {index}"),
        launcher: "test".into(),
        local_index: Some(index),
        survey: Survey {
            host_name: "here".into(),
            boot_id,
            cores: vec![0],
            memory_domains: vec![MemoryDomain { ordinal: 0, cores: vec![0], memory_bytes: 1 }],
            siblings: Vec::new(),
            cpu_classes: Vec::new(),
            gpus: Vec::new(),
        },
    }
}

type Met = uform::Result<Box<dyn Exchange>>;
type Place<'a> = &'a (dyn Fn(usize, usize, &Deadline<'_>) -> Met + Sync);

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn members<T: Send>(indexes: &[usize], role: impl Fn(usize) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let role = &role;
        let threads: Vec<_> = indexes.iter().map(|index| scope.spawn(move || role(*index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a member panicked")).collect()
    })
}

fn payload(index: usize, phase: usize) -> Vec<u8> {
    (0..index * 31 + phase * 7).map(|at| u8::try_from((index * 17 + at) % 251).expect("small")).collect()
}

fn all_meet_and_exchange(place: Place<'_>, count: usize) {
    let indexes: Vec<usize> = (0..count).collect();
    let met = members(&indexes, |index| {
        let deadline = Deadline::after(LONG);
        let mut exchange = place(index, count, &deadline).expect("met");
        assert_eq!((exchange.index(), exchange.count()), (index, count));
        for (number, phase) in ["findings", "ready"].into_iter().enumerate() {
            let all = exchange.exchange(phase, &payload(index, number), &deadline).expect("exchanged");
            let expected: Vec<_> = (0..count).map(|index| payload(index, number)).collect();
            assert_eq!(all, expected, "at index {index}");
        }
        let seen = (exchange.roster().clone(), exchange.key().0);
        exchange.close();
        seen
    });
    for seen in &met {
        assert_eq!(*seen, met[0]);
        for (index, member) in seen.0.members.iter().enumerate() {
            assert_eq!(member.index, index);
            assert_eq!(member.introduction.socket, format!("socket {index}"));
        }
    }
    assert_ne!(met[0].1, [0; 32]);
}

fn one_missing_is_named_on_all(place: Place<'_>, absent: usize) {
    let indexes: Vec<usize> = (0..4).filter(|index| *index != absent).collect();
    members(&indexes, |index| {
        let deadline = Deadline::after(Duration::from_millis(1500));
        match place(index, 4, &deadline).err().expect("nobody can meet") {
            Error::TimedOut { missing, .. } => {
                assert_eq!(missing.iter().map(|one| one.index).collect::<Vec<_>>(), [absent]);
            }
            other => panic!("index {index}: {}", other.chain()),
        }
    });
}

fn a_reason_spreads(place: Place<'_>) {
    members(&[0, 1, 2], |index| {
        let deadline = Deadline::after(LONG);
        let mut exchange = place(index, 3, &deadline).expect("met");
        if index == 1 {
            exchange.give_up(&Error::unsupported("the trial", "of this test"));
            return;
        }
        match exchange.exchange("findings", b"x", &deadline).expect_err("index 1 gave up") {
            Error::Lost { index: 1, phase, .. } => assert!(phase.contains("the trial"), "{phase}"),
            other => panic!("index {index}: {}", other.chain()),
        }
        exchange.give_up(&Error::unsupported("more", "after the first"));
    });
}

fn one_that_does_not_publish_is_named(place: Place<'_>) {
    let gate = std::sync::Barrier::new(3);
    members(&[0, 1, 2], |index| {
        let mut exchange = place(index, 3, &Deadline::after(LONG)).expect("met");
        if index != 2 {
            let deadline = Deadline::after(Duration::from_millis(500));
            match exchange.exchange("findings", b"x", &deadline).expect_err("index 2 is silent") {
                Error::TimedOut { phase, missing, .. } => {
                    assert!(phase.contains("findings"), "{phase}");
                    assert_eq!(missing.iter().map(|one| one.index).collect::<Vec<_>>(), [2]);
                }
                other => panic!("index {index}: {}", other.chain()),
            }
        }
        gate.wait();
        exchange.close();
    });
}

fn two_of_one_index_are_both_told(place: Place<'_>) {
    members(&[0, 2, 2], |index| {
        let deadline = Deadline::after(LONG);
        match place(index, 4, &deadline).err().expect("two of index 2") {
            Error::Disagreed { field, .. } => assert!(field.contains("index 2"), "{field}"),
            other => panic!("index {index}: {}", other.chain()),
        }
    });
}

fn an_interrupt_ends_the_wait(place: Place<'_>) {
    let stop = || true;
    let deadline = Deadline::after(LONG).interruptible(&stop);
    let error = place(0, 2, &deadline).err().expect("interrupted");
    assert!(matches!(error, Error::Interrupted { .. }), "{}", error.chain());
}

fn with_hall(count: usize, test: impl Fn(Place<'_>)) {
    let hall = memory::Hall::new(count);
    test(&|index, _, deadline| hall.enter(index, introduction(index), deadline));
}

fn with_directory(test: impl Fn(Place<'_>)) {
    let folder = Folder::new();
    test(&|index, count, deadline| meet(&folder, "job/1", index, count, deadline));
    assert_eq!(entries(folder.path()), Vec::<String>::new(), "nothing stays in the directory");
}

pub(crate) fn meet(folder: &Folder, job: &str, index: usize, count: usize, deadline: &Deadline<'_>) -> Met {
    let meeting = Meeting {
        directory: folder.path().to_owned(),
        job: job.to_owned(),
        attempt_is_unique: false,
        index,
        count,
        introduction: introduction(index),
    };
    directory::meet(meeting, deadline)
}

#[test]
fn memory_meets() {
    for count in [1, 2, 3, 5] {
        with_hall(count, |place| all_meet_and_exchange(place, count));
    }
    let mut alone = memory::lone(introduction(0)).expect("alone");
    let deadline = Deadline::after(LONG);
    assert_eq!(alone.exchange("ready", b"x", &deadline).expect("alone"), [b"x"]);
}

#[test]
fn memory_fails_on_all() {
    with_hall(4, two_of_one_index_are_both_told);
    with_hall(3, a_reason_spreads);
    with_hall(3, one_that_does_not_publish_is_named);
    with_hall(2, an_interrupt_ends_the_wait);
    for absent in [0, 2] {
        with_hall(4, |place| one_missing_is_named_on_all(place, absent));
    }
}

#[test]
fn directory_meets() {
    for count in [1, 2, 3, 5] {
        with_directory(|place| all_meet_and_exchange(place, count));
    }
}

#[test]
fn directory_meets_again_and_again() {
    let folder = Folder::new();
    for round in 0..10 {
        let count = 1 + round % 3;
        all_meet_and_exchange(&|index, count, deadline| meet(&folder, "job", index, count, deadline), count);
    }
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}

#[test]
fn directory_fails_on_all() {
    for absent in [0, 2] {
        with_directory(|place| one_missing_is_named_on_all(place, absent));
    }
    with_directory(a_reason_spreads);
    with_directory(one_that_does_not_publish_is_named);
    with_directory(two_of_one_index_are_both_told);
    with_directory(an_interrupt_ends_the_wait);
}

#[test]
fn unequal_counts_name_both() {
    with_directory(|place| {
        members(&[0, 1], |index| {
            let deadline = Deadline::after(LONG);
            let text = place(index, 2 + index, &deadline).err().expect("unequal").to_string();
            let expected = ["here count 2, index 1 count 3", "here count 3, index 0 count 2"][index];
            assert!(text.contains(expected), "{text}");
        });
    });
}

#[test]
fn two_leaders_are_both_told() {
    with_directory(|place| {
        members(&[0, 0], |_| {
            let deadline = Deadline::after(LONG);
            let text = place(0, 2, &deadline).err().expect("two of index 0").to_string();
            assert!(text.contains("who is index 0") && text.contains("pid"), "{text}");
        });
    });
}

#[test]
fn ten_jobs_meet_apart_in_one_directory() {
    let folder = Folder::new();
    let jobs: Vec<usize> = (0..10).collect();
    members(&jobs, |job| {
        let name = format!("job {job}");
        all_meet_and_exchange(&|index, count, deadline| meet(&folder, &name, index, count, deadline), 2);
    });
    assert_eq!(entries(folder.path()), Vec::<String>::new());
}
