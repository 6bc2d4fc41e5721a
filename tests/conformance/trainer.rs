//! The trainer on real groups, of threads and of processes: equal to one member, and safe against death in a save.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uform::checkpoint;
use uform::communicator::Communicator;
use uform::sys::Span;
use uform::{Deadline, Dtype, Error, Mesh, Optimizer, Parameter, Trainer};

use super::members;
use crate::harness;

pub(crate) const ROLES: &[(&str, harness::Role)] = &[
    ("trainer.train", train_member),
    ("trainer.resume", resume_member),
    ("trainer.save", save_member),
    ("trainer.survive", survive_member),
    ("trainer.mesh", mesh_member),
];

const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
/// One step is exactly the gradient.
const PLAIN: Optimizer =
    Optimizer::Sgd { learning_rate: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
/// Samples of a global batch: uneven for five members.
const BATCH: usize = 12;
/// Beyond one piece of work, and no multiple of a cache line.
const WIDE: usize = 300_001;
const PIECE_BYTES: usize = 64 << 10;
/// Large enough for a kill to come in the middle of it.
const SAVED: usize = 1 << 18;

fn deadline() -> Deadline<'static> {
    members::patience()
}

fn parameter(name: &str, shape: &[usize], dtype: Dtype) -> Parameter<'static> {
    Parameter { name: name.to_owned(), shape: shape.to_vec(), dtype, values: None }
}

fn open(group: Arc<dyn Communicator>, clip_norm: Option<f64>) -> Trainer {
    let start = (0..WIDE).map(|position| (position as f64).cos()).collect::<Vec<_>>();
    let parameters = [
        Parameter { values: Some(Span::of(&start)), ..parameter("wide", &[WIDE], Dtype::F64) },
        parameter("bias", &[], Dtype::F32),
        parameter("empty", &[0, 4], Dtype::F32),
    ];
    Trainer::on_group(group, &parameters, ADAMW, clip_norm, &deadline()).expect("the same on all members")
}

/// Trains steps of a batch that is shared out by index.
fn train(trainer: &Trainer, seat: usize, count: usize, steps: std::ops::Range<usize>) {
    for step in steps {
        let samples = BATCH * seat / count..BATCH * (seat + 1) / count;
        let weight = samples.len() as f64;
        // The sample's number enters by a factor of its own, so that a wrong weight shows.
        let factor = samples.map(|sample| 1.0 + sample as f64 * 0.1).sum::<f64>() / weight.max(1.0);
        let wide = (0..WIDE).map(|position| factor * ((position + 97 * step) as f64).sin());
        let gradient = trainer.gradient("wide").expect("declared");
        gradient.write(&wide.collect::<Vec<_>>()).expect("its type");
        trainer.gradient("bias").expect("declared").write(&[factor as f32]).expect("its type");
        let report = trainer.step(weight, &deadline()).expect("all step");
        assert_eq!((report.step, report.skipped), (step as u64 + 1, false));
    }
}

fn values(trainer: &Trainer) -> Vec<f64> {
    let mut values = trainer.parameter("wide").expect("declared").to_vec::<f64>().expect("its type");
    let bias = trainer.parameter("bias").expect("declared").to_vec::<f32>().expect("its type");
    values.extend(bias.into_iter().map(f64::from));
    values
}

/// What one member gets.
fn reference(clip_norm: Option<f64>, steps: usize) -> Vec<f64> {
    let all = members::threads(1, PIECE_BYTES, |group| {
        let trainer = open(group, clip_norm);
        train(&trainer, 0, 1, 0..steps);
        values(&trainer)
    });
    all.into_iter().next().expect("one member")
}

fn assert_close(found: &[f64], wanted: &[f64]) {
    assert_eq!(found.len(), wanted.len());
    for (position, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        let limit = if position < WIDE { 1e-12 } else { 1e-6 };
        assert!((found - wanted).abs() < limit, "{found} where {wanted} was wanted, at {position}");
    }
}

fn read_values(path: &Path) -> Vec<f64> {
    let bytes = std::fs::read(path).expect("the member wrote it");
    bytes.as_chunks::<8>().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
}

fn write_values(path: &Path, values: &[f64]) {
    std::fs::write(path, Span::of(values).to_vec()).expect("the run's folder is writable");
}

#[test]
fn threads_of_any_count_train_as_one() {
    for clip_norm in [None, Some(2.0)] {
        let wanted = reference(clip_norm, 3);
        for count in [2, 3, 5] {
            let all = members::threads(count, PIECE_BYTES, |group| {
                let seat = group.seat();
                let trainer = open(group, clip_norm);
                train(&trainer, seat, count, 0..3);
                values(&trainer)
            });
            all.iter().for_each(|found| assert_close(found, &wanted));
        }
    }
}

/// The bits of what members get on hosts: `hosts` says in which one each of them is.
fn on_hosts(hosts: &[usize], clip_norm: Option<f64>) -> Vec<Vec<f64>> {
    members::tiered_threads(hosts, PIECE_BYTES, |group| {
        let seat = group.seat();
        let trainer = open(group, clip_norm);
        train(&trainer, seat, hosts.len(), 0..3);
        values(&trainer)
    })
}

#[test]
fn members_of_any_hosts_train_as_one() {
    for clip_norm in [None, Some(2.0)] {
        let wanted = reference(clip_norm, 3);
        for hosts in [&[0, 1][..], &[0, 0, 1, 1], &[0, 1, 0, 1, 0], &[0, 1, 1, 2, 1]] {
            let all = on_hosts(hosts, clip_norm);
            all.iter().for_each(|found| assert_close(found, &wanted));
            assert!(all.iter().all(|found| *found == all[0]), "the hosts of {hosts:?} have the same bits");
        }
    }
}

#[test]
fn one_member_on_each_host_gives_the_bits_of_one_host() {
    for clip_norm in [None, Some(2.0)] {
        let wanted = members::threads(3, PIECE_BYTES, |group| {
            let seat = group.seat();
            let trainer = open(group, clip_norm);
            train(&trainer, seat, 3, 0..3);
            values(&trainer)
        });
        let networked = members::network_threads(3, PIECE_BYTES, |group| {
            let seat = group.seat();
            let trainer = open(group, clip_norm);
            train(&trainer, seat, 3, 0..3);
            values(&trainer)
        });
        assert!(networked == wanted);
        assert!(on_hosts(&[0, 1, 2], clip_norm) == wanted);
    }
}

#[test]
fn hosts_save_load_and_edit_together() {
    let folder = harness::Folder::new();
    let path = folder.path();
    let saved = members::tiered_threads(&[0, 1, 1, 0, 2], PIECE_BYTES, |group| {
        let seat = group.seat();
        let trainer = open(group, None);
        train(&trainer, seat, 5, 0..3);
        let edited = trainer.edit(&deadline(), |trainer| {
            // Index 0 alone counts.
            trainer.editable("wide")?.write(&vec![seat as f64 + 0.5; WIDE])
        });
        edited.expect("all edit");
        let before = values(&trainer);
        assert!(before[..WIDE].iter().all(|value| *value == 0.5), "{}", before[0]);
        trainer.save(path, 3, &deadline()).expect("saved");
        train(&trainer, seat, 5, 3..5);
        (before, values(&trainer))
    });
    assert!(saved.iter().all(|both| *both == saved[0]));
    for hosts in [&[0, 1, 1, 0, 2][..], &[0, 1], &[0, 0, 0, 1]] {
        members::tiered_threads(hosts, PIECE_BYTES, |group| {
            let seat = group.seat();
            let trainer = open(group, None);
            assert_eq!(trainer.load(path, &deadline()).expect("saved by others"), 3);
            assert!(values(&trainer) == saved[0].0, "parameters come back bit by bit on every host");
            train(&trainer, seat, hosts.len(), 3..5);
            assert_close(&values(&trainer), &saved[0].1);
            assert!(
                hosts.len() < 5 || values(&trainer) == saved[0].1,
                "the same hosts go on with the same bits"
            );
        });
    }
}

#[test]
fn a_host_whose_members_have_no_weight_sends_nothing_and_learns_all() {
    let step = |group: Arc<dyn Communicator>, weights: &[f64]| {
        let seat = group.seat();
        let parameters = [parameter("w", &[1000], Dtype::F32), parameter("v", &[77], Dtype::F64)];
        let trainer = Trainer::on_group(group, &parameters, PLAIN, None, &deadline()).expect("the same");
        // Not finite where it does not count.
        let value = if weights[seat] == 0.0 { f64::NAN } else { seat as f64 + 1.0 };
        trainer.gradient("w").expect("declared").write(&[value as f32; 1000]).expect("its type");
        trainer.gradient("v").expect("declared").write(&[value; 77]).expect("its type");
        let report = trainer.step(weights[seat], &deadline()).expect("all step");
        assert!(!report.skipped);
        trainer.parameter("v").expect("declared").to_vec::<f64>().expect("its type")
    };
    for weights in [[0.0, 1.0, 0.0, 3.0], [1.0, 0.0, 3.0, 0.0], [0.0, 0.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]] {
        let total = weights.iter().sum::<f64>();
        let mean = weights.iter().enumerate().map(|(seat, weight)| (seat as f64 + 1.0) * weight).sum::<f64>()
            / total;
        for values in members::tiered_threads(&[0, 1, 0, 1], PIECE_BYTES, |group| step(group, &weights)) {
            assert!(values.iter().all(|value| (value + mean).abs() < 1e-15), "{mean} {values:?}");
        }
    }
}

#[test]
fn a_gradient_that_is_not_finite_on_one_host_skips_the_step_on_all() {
    for clip_norm in [None, Some(1.0)] {
        members::tiered_threads(&[0, 0, 1], PIECE_BYTES, |group| {
            let seat = group.seat();
            let parameters = [parameter("w", &[1000], Dtype::F32)];
            let trainer =
                Trainer::on_group(group, &parameters, PLAIN, clip_norm, &deadline()).expect("the same");
            let write = |value: f32| trainer.gradient("w").expect("declared").write(&[value; 1000]);
            write(if seat == 2 { f32::INFINITY } else { 1.0 }).expect("its type");
            assert!(trainer.step(1.0, &deadline()).expect("all step").skipped);
            write(1.0).expect("its type");
            let report = trainer.step(1.0, &deadline()).expect("all step");
            assert_eq!((report.step, report.skipped), (1, false));
            let values = trainer.parameter("w").expect("declared").to_vec::<f32>().expect("its type");
            assert!(values.iter().all(|value| *value == values[0] && *value < 0.0), "{}", values[0]);
        });
    }
}

fn train_member(index: usize, count: usize, argument: &str) {
    let trainer = open(members::join(&harness::folder(), index, count, PIECE_BYTES), None);
    train(&trainer, index, count, 0..3);
    trainer.save(Path::new(argument), 3, &deadline()).expect("saved");
    write_values(&Path::new(argument).join(format!("values.{index}")), &values(&trainer));
}

fn resume_member(index: usize, count: usize, argument: &str) {
    let folder = Path::new(argument);
    let trainer = open(members::join(&harness::folder(), index, count, PIECE_BYTES), None);
    assert_eq!(trainer.load(folder, &deadline()).expect("saved by others"), 3);
    assert_eq!(values(&trainer), read_values(&folder.join("values.0")), "parameters come back bit by bit");
    train(&trainer, index, count, 3..5);
    assert_close(&values(&trainer), &read_values(&folder.join("wanted")));
}

#[test]
fn processes_train_as_one_and_resume_at_any_count() {
    let folder = harness::Folder::new();
    let argument = folder.path().to_str().expect("plain letters");
    harness::assert_all_succeeded(&harness::processes(2, "trainer.train", argument, deadline().limit()));
    let wanted = reference(None, 3);
    for index in 0..2 {
        assert_close(&read_values(&folder.path().join(format!("values.{index}"))), &wanted);
    }
    write_values(&folder.path().join("wanted"), &reference(None, 5));
    for count in [1, 3, 5] {
        let outcomes = harness::processes(count, "trainer.resume", argument, deadline().limit());
        harness::assert_all_succeeded(&outcomes);
    }
}

fn open_saved(group: Arc<dyn Communicator>) -> Trainer {
    let parameters = [parameter("w", &[SAVED], Dtype::F32)];
    Trainer::on_group(group, &parameters, PLAIN, None, &deadline()).expect("the same on all members")
}

/// After n steps every element is -n. Trains and saves until it is killed or loses the other.
fn save_member(index: usize, count: usize, argument: &str) {
    let trainer = open_saved(members::join(&harness::folder(), index, count, PIECE_BYTES));
    trainer.gradient("w").expect("declared").write(&vec![1.0f32; SAVED]).expect("its type");
    for step in 1u64.. {
        let result = trainer.step(1.0, &deadline());
        match result.and_then(|_| trainer.save(Path::new(argument), step, &deadline())) {
            Ok(()) => harness::say(&format!("saved {step};")),
            Err(error) => {
                assert!(matches!(error, Error::Lost { .. }), "{error}");
                return;
            }
        }
    }
}

fn last_saved(output: &str) -> u64 {
    let words = output.split("saved ").skip(1).filter_map(|rest| rest.split_once(';')?.0.parse().ok());
    words.max().unwrap_or(0)
}

#[test]
fn a_kill_at_any_moment_of_a_save_leaves_the_last_committed_step() {
    let mut unfinished = 0;
    for round in 0..30u64 {
        let folder = harness::Folder::new();
        let argument = folder.path().to_str().expect("plain letters");
        let mut run = harness::Setup::new(2, "trainer.save").argument(argument).start();
        run.wait_for(0, "saved 1;");
        // From one end of a save to the other; both members, or one of them.
        std::thread::sleep(Duration::from_micros(300 * round));
        match round % 3 {
            0 => {
                run.kill(0);
                run.kill(1);
            }
            1 => run.kill(0),
            _ => run.kill(1),
        }
        let outcomes = run.finish();
        let told = outcomes.iter().map(|outcome| last_saved(&outcome.output)).max().unwrap_or(0);
        let text = harness::transcript(&outcomes);
        unfinished += harness::entries(folder.path()).iter().filter(|name| name.contains("partial")).count();
        members::threads(1, PIECE_BYTES, |group| {
            let trainer = open_saved(group);
            let step = trainer.load(folder.path(), &deadline()).expect("a step was committed");
            assert!(step >= told && step <= told + 1, "step {step} after {told} was told\n{text}");
            assert_eq!(trainer.updates(), step);
            let values = trainer.parameter("w").expect("declared").to_vec::<f32>().expect("its type");
            assert!(values.iter().all(|value| *value == -(step as f32)), "step {step} is whole");
            trainer.save(folder.path(), step + 1, &deadline()).expect("there is room");
        });
        let names = harness::entries(folder.path());
        assert!(names.iter().all(|name| !name.contains("partial")), "{names:?}");
    }
    assert!(unfinished > 0, "no kill came in the middle of a save");
}

fn survive_member(index: usize, count: usize, _argument: &str) {
    let trainer = open_saved(members::join(&harness::folder(), index, count, PIECE_BYTES));
    trainer.step(1.0, &deadline()).expect("all live");
    harness::say("stepped");
    if index == 1 {
        harness::sleep_until_killed();
    }
    let error = trainer.step(1.0, &deadline()).expect_err("index 1 is gone");
    assert!(matches!(error, Error::Lost { index: 1, .. }), "{error}");
    let error = trainer.step(1.0, &deadline()).expect_err("closed");
    assert!(matches!(error, Error::Closed { .. }) && error.to_string().contains("lost index 1"), "{error}");
}

#[test]
fn survivors_of_a_lost_member_are_closed_with_its_name() {
    let mut run = harness::Setup::new(3, "trainer.survive").start();
    run.wait_for(1, "stepped");
    run.kill(1);
    let outcomes = run.finish();
    for outcome in outcomes.iter().filter(|outcome| outcome.index != 1) {
        assert!(outcome.succeeded(), "{}", harness::transcript(&outcomes));
    }
}

fn mesh_member(index: usize, _count: usize, _argument: &str) {
    let mesh = Mesh::bootstrap(None, None).expect("all meet");
    let parameters = [parameter("w", &[5], Dtype::F64)];
    let trainer =
        Trainer::open(&mesh, &parameters, PLAIN, None, &deadline()).expect("the same on all members");
    let gradient = trainer.gradient("w").expect("declared");
    gradient.write(&[index as f64; 5]).expect("its type");
    if index == 1 {
        let held = mesh.executor().hold("another call").expect("free");
        let error = trainer.step(1.0, &deadline()).expect_err("held");
        assert!(matches!(&error, Error::Contended { holder, .. } if holder == "another call"), "{error}");
        drop(held);
    }
    let report = trainer.step(index as f64, &deadline()).expect("a refused call may be made again");
    assert_eq!((report.step, report.weight), (1, 3.0));
    // (0 * 0 + 1 * 1 + 2 * 2) / 3, taken from 0.
    let values = trainer.parameter("w").expect("declared").to_vec::<f64>().expect("its type");
    assert!(values.iter().all(|value| (value + 5.0 / 3.0).abs() < 1e-15), "{values:?}");
    mesh.barrier().expect("all are here");
    mesh.close().expect("idle");
    assert!(matches!(trainer.step(1.0, &deadline()), Err(Error::Closed { .. })));
    assert_eq!(trainer.parameter("w").expect("the memory stays").to_vec::<f64>().expect("its type"), values);
}

#[test]
fn a_trainer_holds_the_executor_of_its_mesh_and_ends_with_it() {
    harness::assert_all_succeeded(&harness::processes(3, "trainer.mesh", "", deadline().limit()));
}

#[test]
fn a_flipped_byte_gives_way_to_the_step_before() {
    let folder = harness::Folder::new();
    members::threads(2, PIECE_BYTES, |group| {
        let trainer = open_saved(group);
        trainer.gradient("w").expect("declared").write(&vec![1.0f32; SAVED]).expect("its type");
        for step in 1..=2 {
            trainer.step(1.0, &deadline()).expect("all step");
            trainer.save(folder.path(), step, &deadline()).expect("there is room");
        }
    });
    let path = checkpoint::step_folder(folder.path(), 2).join(checkpoint::shard_name(1, 2));
    let mut bytes = std::fs::read(&path).expect("saved");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&path, bytes).expect("ours");
    members::threads(3, PIECE_BYTES, |group| {
        assert_eq!(open_saved(group).load(folder.path(), &deadline()).expect("step 1 is whole"), 1);
    });
}
