//! A process that may open few files, and one that may not make some system calls: both go another way, or say what is missing.
#![allow(unsafe_code, reason = "std has no filter of system calls; each block names its fact")]

use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uform::{Mesh, ReduceOp, Status};

use crate::harness::{Role, Setup, assert_all_succeeded, entries, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("sandbox.files", files), ("sandbox.used_up", used_up), ("sandbox.calls", calls)];

const MINUTES: Duration = Duration::from_secs(120);

/// Makes a mesh and a few calls on it, or says why there is none.
fn work(index: usize, count: usize) {
    let mesh = match Mesh::bootstrap(None, None) {
        Ok(mesh) => mesh,
        Err(error) => return say(&format!("{:?}: {}", error.status(), error.chain())),
    };
    let mut sum = vec![index as f64 + 1.0; 100_000];
    mesh.all_reduce(&mut sum, ReduceOp::Sum).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(sum.iter().all(|value| *value == (count * (count + 1) / 2) as f64));
    mesh.close().expect("idle");
    say("formed");
}

/// Index 1 may have as many open files as the argument says beside those that it has.
fn files(index: usize, count: usize, argument: &str) {
    if index == 1 {
        let open = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() as u64 - 1;
        let limit = Some(open + argument.parse::<u64>().expect("a number"));
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit }).expect("it is lower");
    }
    work(index, count);
}

/// Index 1 has used up its open files when all make a call that needs some; later it has let them go.
fn used_up(index: usize, _count: usize, argument: &str) {
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let deadline = Mesh::verb_deadline(60.0).expect("a minute");
    let call = || match argument {
        "arena" => mesh.arena(1 << 16, &deadline).map(drop),
        "split" => mesh.split_within(Some(0), 0, &deadline).and_then(|part| part.expect("a color").barrier()),
        "all_reduce" => mesh.all_reduce(&mut vec![1.0_f32; 1 << 20], ReduceOp::Sum),
        _ => mesh.exchange(&vec![1; 1 << 20], &deadline).map(drop),
    };
    let before = getrlimit(Resource::Nofile);
    let mut used = Vec::new();
    if index == 1 {
        let open = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count() as u64;
        let current = Some(open + 4);
        setrlimit(Resource::Nofile, Rlimit { current, maximum: before.maximum }).expect("it is lower");
        while let Ok(file) = std::fs::File::open("/dev/null") {
            used.push(file);
        }
    }
    mesh.barrier().unwrap_or_else(|error| panic!("{}", error.chain()));
    match call() {
        Ok(()) => say("it needs none."),
        Err(error) => say(&format!("refused with {}: {}.", error.status().name(), error.chain())),
    }
    if index == 1 {
        drop(used);
        setrlimit(Resource::Nofile, before).expect("it was so before");
    }
    mesh.barrier().unwrap_or_else(|error| panic!("after it: {}", error.chain()));
    call().unwrap_or_else(|error| panic!("again: {}", error.chain()));
    mesh.close().expect("idle");
}

#[test]
fn open_files_that_are_used_up_later_are_an_error_on_all_and_the_mesh_goes_on() {
    for name in ["arena", "split", "all_reduce", "exchange"] {
        let setup = Setup::new(3, "sandbox.used_up").argument(name).deadline(MINUTES);
        let outcomes = setup.start().finish();
        assert_all_succeeded(&outcomes);
        let said = transcript(&outcomes);
        let refused = outcomes.iter().filter(|outcome| outcome.output.contains("refused with "));
        let refused = refused.collect::<Vec<_>>();
        assert_eq!(refused.len(), if ["arena", "split"].contains(&name) { 3 } else { 0 }, "{name}\n{said}");
        for outcome in refused {
            let is_named = outcome.index == 1 || outcome.output.contains("index 1");
            assert!(is_named && outcome.output.contains("open files"), "{name}\n{said}");
        }
    }
}

#[test]
fn a_limit_of_open_files_that_is_too_low_names_itself_the_member_and_what_is_needed() {
    let before = entries(std::path::Path::new("/dev/shm"));
    for (room, count, told) in [(5, 2, false), (17, 3, true), (20, 4, true)] {
        let setup = Setup::new(count, "sandbox.files").argument(&room.to_string());
        // Who cannot even meet is missed at the deadline of the others.
        let setup = setup.variable("UFORM_TIMEOUT", "5");
        let outcomes = setup.deadline(MINUTES).start().finish();
        assert_all_succeeded(&outcomes);
        let said = transcript(&outcomes);
        let own = &outcomes[1].output;
        assert!(own.contains("Invalid: ") && own.contains("the limit of open files of index 1 = "), "{said}");
        assert!(
            own.contains("RLIMIT_NOFILE") && own.contains(&format!("a run of {count} needs at least")),
            "{said}"
        );
        for outcome in outcomes.iter().filter(|outcome| outcome.index != 1) {
            let reason = if told { "the limit of open files of index 1" } else { "missing index 1" };
            assert!(outcome.output.contains(reason), "{said}");
        }
    }
    assert_eq!(entries(std::path::Path::new("/dev/shm")), before, "names in shared memory");
}

#[test]
fn as_many_open_files_as_are_asked_for_are_enough() {
    for count in [2, 3, 5] {
        let room = 16 + 4 * (count - 1);
        let setup = Setup::new(count, "sandbox.files").argument(&room.to_string()).deadline(MINUTES);
        let outcomes = setup.start().finish();
        assert_all_succeeded(&outcomes);
        assert!(
            outcomes.iter().all(|outcome| outcome.output.contains("formed")),
            "{}",
            transcript(&outcomes)
        );
    }
}

/// System calls by the names of the argument.
const CALLS: &[(&str, libc::c_long)] = &[
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("memfd_create", libc::SYS_memfd_create),
];

/// Forbids system calls to this thread and those that it starts: each fails with `EPERM`.
fn forbid(names: &str) {
    let step = |code: u32, jump: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a code has 16 bits"),
        jt: jump,
        jf: 0,
        k,
    };
    let numbers =
        names.split(' ').map(|name| CALLS.iter().find(|(known, _)| *known == name).expect("known").1);
    let numbers = numbers.map(|number| u32::try_from(number).expect("small")).collect::<Vec<_>>();
    // The number of the call is the first word of what a filter sees.
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (position, number) in numbers.iter().enumerate() {
        let rest = u8::try_from(numbers.len() - position).expect("few");
        filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, rest, *number));
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let program =
        libc::sock_fprog { len: u16::try_from(filter.len()).expect("short"), filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives through both calls, and the kernel copies it.
    let done = unsafe {
        let is_alone = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64);
        is_alone == 0
            && libc::prctl(libc::PR_SET_SECCOMP, u64::from(libc::SECCOMP_MODE_FILTER), &raw const program)
                == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

fn calls(index: usize, count: usize, argument: &str) {
    if index == 1 {
        forbid(argument);
    }
    work(index, count);
}

#[test]
fn without_reading_other_processes_and_without_their_descriptors_a_mesh_works() {
    for forbidden in ["process_vm_readv", "pidfd_open", "process_vm_readv pidfd_open"] {
        let outcomes = Setup::new(3, "sandbox.calls").argument(forbidden).deadline(MINUTES).start().finish();
        assert_all_succeeded(&outcomes);
        assert!(
            outcomes.iter().all(|outcome| outcome.output.contains("formed")),
            "{}",
            transcript(&outcomes)
        );
    }
}

#[test]
fn without_memory_to_share_everybody_hears_which_member_and_why() {
    let outcomes = Setup::new(3, "sandbox.calls").argument("memfd_create").deadline(MINUTES).start().finish();
    assert_all_succeeded(&outcomes);
    let said = transcript(&outcomes);
    assert!(outcomes[1].output.contains(&format!("{:?}: ", Status::Unsupported)), "{said}");
    for outcome in &outcomes {
        assert!(
            outcome.output.contains("memfd_create says: ") && outcome.output.contains("seccomp"),
            "{said}"
        );
        assert!(outcome.index == 1 || outcome.output.contains("lost index 1"), "{said}");
    }
}
