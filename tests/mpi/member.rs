//! What members do under mpirun, and the tests that start them.

use std::time::Duration;

use mpi::Threading;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};
use uform::communicator::shared::{Listener, Proof, SharedCommunicator};
use uform::communicator::tiered::TieredCommunicator;
use uform::communicator::{Call, Communicator, mpi as over_mpi};
use uform::rendezvous::{self, Exchange};
use uform::sys::mpi::World;
use uform::topology::Group;
use uform::{Deadline, Error, Mesh, MeshOptions, MpiCommunicator, ReduceOp, SpanMut, Verb};

use crate::conformance::communicator::suite;
use crate::conformance::members::{introduction, patience};
use crate::harness::Folder;
use crate::run::{MPICH, OPEN_MPI, members, other, own};

/// Pieces so small that nearly every array has many of them.
const TINY: usize = 64;

#[test]
#[ignore = "a member of a run, which the other tests start"]
fn play() {
    let role = std::env::var("UFORM_TEST_MPI_ROLE").expect("one of the tests below starts this");
    match role.as_str() {
        "suite" => play_suite(),
        "tiers" => play_tiers(),
        "meeting" => play_meeting(),
        "bootstrap" => play_bootstrap(),
        "directory" => play_directory(),
        "early" => play_early(),
        "late" => play_late(),
        "adopted" => play_adopted(),
        "single" => play_single(),
        "parts" => play_parts(),
        "wrong" => play_wrong(),
        other => panic!("no role {other}"),
    }
    println!("role played");
}

fn meeting() -> (World, uform::Result<Box<dyn Exchange>>) {
    let world = World::join(None, &patience()).expect("MPI runs");
    let mut own = introduction(String::new());
    own.socket = format!("socket {}", world.rank());
    let exchange = rendezvous::mpi::meet(&world, own, &patience());
    (world, exchange)
}

fn met() -> (World, Box<dyn Exchange>) {
    let (world, exchange) = meeting();
    (world, exchange.expect("all come"))
}

fn group(world: &World) -> Group {
    Group { name: "run".into(), seats: (0..world.count()).collect(), own: world.rank() }
}

/// Waits for all members.
fn barrier(communicator: &dyn Communicator, deadline: &Deadline<'_>) -> uform::Result<()> {
    let call = Call::of::<u8>(Verb::Barrier, ReduceOp::Sum, 0, None, SpanMut::empty());
    communicator.run(call, deadline)
}

fn play_suite() {
    for piece_bytes in [TINY, 512 << 10] {
        let (world, mut exchange) = met();
        let roster = exchange.roster().clone();
        let group = group(&world);
        let communicator = over_mpi::join_with(&world, &roster, &group, piece_bytes).expect("joined");
        suite(&*communicator, false);
        exchange.close();
        communicator.close();
    }
}

/// Members of two hosts, as their introductions say: shared memory in each, MPI between them.
fn play_tiers() {
    let world = World::join(None, &patience()).expect("MPI runs");
    let host = |rank: usize| rank % 2;
    let listener = Listener::open().expect("sockets are free");
    let mut own = introduction(listener.address());
    own.process.boot_id = format!("host {}", host(world.rank()));
    let exchange = rendezvous::mpi::meet(&world, own, &patience()).expect("all come");
    let (roster, group) = (exchange.roster().clone(), group(&world));
    let proof = Proof::gather(Some(listener), &roster, world.rank(), exchange.key(), &patience());
    let hosts =
        [0, 1].map(|number| (0..world.count()).filter(|rank| host(*rank) == number).collect::<Vec<_>>());
    let carried = over_mpi::join_with(&world, &roster, &group, TINY).expect("joined");
    let joined = TieredCommunicator::join_with(carried, &group, &hosts, |own| {
        SharedCommunicator::join_with(proof.expect("proved"), own, TINY, &patience())
    });
    let communicator = joined.expect("joined");
    suite(&*communicator, false);
    communicator.close();
}

fn play_meeting() {
    let (world, mut exchange) = met();
    assert_eq!((exchange.index(), exchange.count()), (world.rank(), world.count()));
    for (index, member) in exchange.roster().members.iter().enumerate() {
        assert_eq!((member.index, &member.introduction.socket), (index, &format!("socket {index}")));
    }
    for (number, phase) in ["findings", "addresses", "ready"].into_iter().enumerate() {
        let payload = |index: usize| vec![index as u8 + 1; index * 100_000 + number];
        let all = exchange.exchange(phase, &payload(world.rank()), &patience()).expect("exchanged");
        assert!(all.iter().enumerate().all(|(index, bytes)| *bytes == payload(index)), "{phase}");
    }
    exchange.close();
    // The reason of one that gives up reaches all, those too that have not heard yet that all have come.
    let (world, exchange) = meeting();
    let last = world.count() - 1;
    if world.rank() == last {
        exchange.expect("all come").give_up(&Error::unsupported("the trial", "of this test"));
    } else {
        let heard = exchange.and_then(|mut exchange| exchange.exchange("findings", b"x", &patience()));
        match heard.expect_err("one gave up") {
            Error::Lost { index, phase, .. } => {
                assert!(index == last && phase.contains("the trial"), "{phase}")
            }
            error => panic!("{}", error.chain()),
        }
    }
    // So does who is late.
    let (world, mut exchange) = met();
    if world.rank() == last {
        std::thread::sleep(Duration::from_secs(2));
    } else {
        // Rank 0 alone knows who is late: it tells the others, whose own deadline is later.
        let deadline =
            if world.rank() == 0 { Deadline::after(Duration::from_millis(500)) } else { patience() };
        match exchange.exchange("findings", b"x", &deadline).expect_err("one is late") {
            Error::TimedOut { missing, .. } => {
                assert!(missing.iter().any(|one| one.index == last))
            }
            error => panic!("{}", error.chain()),
        }
    }
}

fn assert_sums(mesh: &Mesh) {
    for length in [1, 3000, 300_000] {
        let value = |index: usize, position: usize| (index * 1_000_000 + position) as f64;
        let mut numbers = (0..length).map(|position| value(mesh.index(), position)).collect::<Vec<_>>();
        mesh.all_reduce(&mut numbers, ReduceOp::Sum).expect("all call");
        let sum = |position: usize| (0..mesh.count()).map(|index| value(index, position)).sum::<f64>();
        assert!((0..length).all(|position| numbers[position] == sum(position)), "{length}");
    }
}

fn variable(names: &[&str]) -> usize {
    let found = names.iter().find_map(|name| std::env::var(name).ok());
    found.expect("mpirun sets it").parse().expect("a number")
}

fn play_bootstrap() {
    let mesh = Mesh::bootstrap(None, None).expect("formed");
    assert_eq!(mesh.index(), variable(&["OMPI_COMM_WORLD_RANK", "PMI_RANK"]));
    assert_eq!(mesh.count(), variable(&["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]));
    assert!(mesh.topology().run().starts_with("mpi-"), "{}", mesh.topology().run());
    assert_sums(&mesh);
    mesh.close().expect("closed");
    // A second one over the same world, by its own name.
    let again = Mesh::bootstrap_over_mpi(None, None, None, None).expect("formed");
    assert_ne!(again.topology().run(), mesh.topology().run());
    assert_sums(&again);
    let words = uform::device::capabilities_available().expect("the machine is readable");
    let number = uform::sys::mpi::library().expect("built with MPI").number();
    assert!(words.split(' ').any(|word| word == format!("mpi-{number}")), "{words}");
}

/// A directory that somebody names comes before MPI.
fn play_directory() {
    let directory = std::env::var("UFORM_TEST_FOLDER").expect("the test sets it");
    let options = MeshOptions { directory: Some(directory.into()), ..MeshOptions::default() };
    let mesh = Mesh::bootstrap(None, Some(&options)).expect("formed");
    assert!(!mesh.topology().run().starts_with("mpi-"), "{}", mesh.topology().run());
    assert_sums(&mesh);
}

/// Index 1 ends without a word to anybody: at its end the group is closed, and those that wait are told.
fn play_early() {
    let (world, mut exchange) = met();
    let communicator = over_mpi::join(&world, exchange.roster(), &group(&world)).expect("joined");
    exchange.close();
    barrier(&*communicator, &patience()).expect("all have come");
    if world.rank() == 1 {
        println!("role played");
        // The communicator is not dropped: that is left to the end of the process.
        std::process::exit(0);
    }
    match barrier(&*communicator, &patience()).expect_err("one has left") {
        Error::Lost { index: 1, phase, .. } => assert!(phase.contains("closed"), "{phase}"),
        error => panic!("{}", error.chain()),
    }
}

/// Index 1 comes too late: the others name it, and it learns that they have left.
fn play_late() {
    let (world, mut exchange) = met();
    let communicator = over_mpi::join(&world, exchange.roster(), &group(&world)).expect("joined");
    exchange.close();
    let deadline = Deadline::after(Duration::from_secs(2));
    let wait = |deadline| barrier(&*communicator, deadline);
    if world.rank() == 1 {
        std::thread::sleep(Duration::from_secs(4));
        match wait(&patience()).expect_err("the others have left") {
            Error::Lost { phase, .. } => assert!(phase.contains("timed out"), "{phase}"),
            error => panic!("{}", error.chain()),
        }
        return;
    }
    match wait(&deadline).expect_err("one is late") {
        Error::TimedOut { missing, .. } => assert!(missing.iter().any(|one| one.index == 1), "{missing:?}"),
        Error::Lost { phase, .. } => assert!(phase.contains("timed out"), "{phase}"),
        error => panic!("{}", error.chain()),
    }
    assert!(wait(&patience()).is_err(), "the group has ended");
    std::thread::sleep(Duration::from_secs(4));
}

/// An MPI that the program has started is adopted, and is the program's to finalise.
fn play_adopted() {
    let (universe, level) = mpi::initialize_with_threading(Threading::Multiple).expect("started once");
    assert!(level >= Threading::Serialized);
    let mesh = Mesh::bootstrap(None, None).expect("formed");
    assert_eq!(mesh.count(), universe.world().size() as usize);
    assert_sums(&mesh);
    mesh.close().expect("closed");
    universe.world().barrier();
    drop(universe);
    let error = Mesh::bootstrap(None, None).expect_err("MPI is finalised");
    assert!(matches!(error, Error::Closed { .. }), "{error}");
}

fn play_single() {
    let (universe, level) = mpi::initialize_with_threading(Threading::Single).expect("started once");
    if level < Threading::Serialized {
        let error = Mesh::bootstrap(None, None).expect_err("the level is too low").to_string();
        assert!(error.contains("MPI_THREAD_SINGLE") && error.contains("MPI_THREAD_SERIALIZED"), "{error}");
    }
    universe.world().barrier();
}

/// Each half of the world is a run of its own.
fn play_parts() {
    let (universe, _) = mpi::initialize_with_threading(Threading::Serialized).expect("started once");
    let world = universe.world();
    let rank = world.rank();
    let color = mpi::topology::Color::with_value(rank % 2);
    let part = world.split_by_color(color).expect("each has a color");
    let mesh = Mesh::bootstrap_over_mpi(None, None, Some(MpiCommunicator::of(&part)), None).expect("formed");
    assert_eq!((mesh.index(), mesh.count()), (part.rank() as usize, part.size() as usize));
    assert_eq!(mesh.index(), rank as usize / 2);
    assert_sums(&mesh);
    let explicit = MeshOptions { host_domain_count: 9, job: Some("x".into()), ..MeshOptions::default() };
    let given = Some(MpiCommunicator::of(&part));
    let error = Mesh::bootstrap_over_mpi(None, Some(&explicit), given, None).expect_err("no such size");
    assert!(error.to_string().contains("= 9"), "{error}");
    mesh.close().expect("closed");
    world.barrier();
}

/// The launcher of another MPI says so many processes, and MPI says one.
fn play_wrong() {
    for result in [Mesh::bootstrap(None, None), Mesh::bootstrap_over_mpi(None, None, None, None)] {
        let error = result.expect_err("the launcher is of another MPI").to_string();
        let library = uform::sys::mpi::library().expect("built with MPI").to_string();
        for words in [other().name, library.as_str(), " = 2 (", "says 1", "directory"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }
}

#[test]
fn all_verbs_conform_over_mpi() {
    for count in [2, 3, 4] {
        members(own(), count, "suite", &[]).succeeded(count);
    }
}

#[test]
fn tiers_conform_over_mpi() {
    members(own(), 4, "tiers", &[]).succeeded(4);
}

#[test]
fn members_meet_without_a_directory() {
    for (role, count) in [("meeting", 3), ("bootstrap", 2), ("bootstrap", 4), ("directory", 3)] {
        members(own(), count, role, &[]).succeeded(count);
    }
}

#[test]
fn one_that_ends_or_comes_late_is_named() {
    members(own(), 3, "early", &[]).succeeded(3);
    let ended = members(own(), 3, "late", &[]);
    assert_eq!(ended.output.matches("role played").count(), 3, "{}", ended.output);
}

#[test]
fn an_mpi_of_the_program_is_adopted_at_a_sufficient_level() {
    for role in ["adopted", "single"] {
        members(own(), 2, role, &[]).succeeded(2);
    }
    members(own(), 4, "parts", &[]).succeeded(4);
}

#[test]
fn the_launcher_of_another_mpi_is_an_error_that_names_both() {
    assert_ne!(OPEN_MPI.program, MPICH.program);
    let ended = members(other(), 2, "wrong", &[]);
    assert_eq!(ended.output.matches("role played").count(), 2, "{}", ended.output);
}

#[test]
fn a_lone_process_forms_without_an_mpirun() {
    drop(Folder::new());
    let mesh = Mesh::bootstrap(None, None).expect("alone");
    assert_eq!(mesh.count(), 1);
}
