//! The trainer on groups of threads, against one member and against plain arithmetic.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fake::Seat;
use super::*;
use crate::sys::random;

const SGD: Optimizer =
    Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.01 };
const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0.1 };
const COUNTS: [usize; 4] = [1, 2, 3, 5];

fn deadline() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(60))
}

/// Runs every member of a group on a thread of its own.
fn together<R: Send>(count: usize, member: impl Fn(usize, Arc<dyn Communicator>) -> R + Sync) -> Vec<R> {
    let member = &member;
    std::thread::scope(|scope| {
        let start = |(seat, group)| scope.spawn(move || member(seat, group));
        let threads = Seat::group(count).into_iter().enumerate().map(start).collect::<Vec<_>>();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn shape(name: &str, extents: &[usize], dtype: Dtype) -> Parameter<'static> {
    Parameter { name: name.to_owned(), shape: extents.to_vec(), dtype, values: None }
}

fn model() -> Vec<Parameter<'static>> {
    vec![
        shape("wide", &[7, 19], Dtype::F64),
        shape("scalar", &[], Dtype::F64),
        shape("empty", &[0, 3], Dtype::F64),
        shape("narrow", &[31], Dtype::F32),
    ]
}

/// The gradient that sample `sample` of step `step` gives to element `position`.
fn sample_gradient(step: usize, sample: usize, position: usize) -> f64 {
    ((step * 31 + sample * 7 + position) as f64 * 0.61).sin()
}

/// Writes the mean gradient of these samples.
fn write_gradients(trainer: &Trainer, step: usize, samples: std::ops::Range<usize>) {
    let mean = |position| {
        let sum = samples.clone().map(|sample| sample_gradient(step, sample, position)).sum::<f64>();
        sum / samples.len().max(1) as f64
    };
    for name in ["wide", "scalar", "empty"] {
        let gradient = trainer.gradient(name).unwrap();
        let count = gradient.shape().iter().product::<usize>();
        gradient.write(&(0..count).map(mean).collect::<Vec<_>>()).unwrap();
    }
    let narrow = (0..31).map(|position| mean(position) as f32).collect::<Vec<_>>();
    trainer.gradient("narrow").unwrap().write(&narrow).unwrap();
}

fn values(trainer: &Trainer) -> Vec<f64> {
    let mut all = trainer.parameter("wide").unwrap().to_vec::<f64>().unwrap();
    all.extend(trainer.parameter("scalar").unwrap().to_vec::<f64>().unwrap());
    all.extend(trainer.parameter("narrow").unwrap().to_vec::<f32>().unwrap().into_iter().map(f64::from));
    all
}

/// The share of 12 samples that a member works on; uneven for 5 members.
fn samples(seat: usize, count: usize) -> std::ops::Range<usize> {
    12 * seat / count..12 * (seat + 1) / count
}

fn train(trainer: &Trainer, seat: usize, count: usize, steps: std::ops::Range<usize>) -> Option<f64> {
    let mut norm = None;
    for step in steps {
        let own = samples(seat, count);
        write_gradients(trainer, step, own.clone());
        let report = trainer.step(own.len() as f64, &deadline()).unwrap();
        assert_eq!((report.step, report.skipped, report.weight), (step as u64 + 1, false, 12.0));
        assert!(report.seconds >= report.communication_seconds);
        norm = report.gradient_norm;
    }
    norm
}

fn close(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len());
    for (position, (one, other)) in one.iter().zip(other).enumerate() {
        // The last 31 are f32.
        let limit = if position + 31 < 165 { 1e-12 } else { 1e-6 };
        assert!((one - other).abs() < limit, "{one} and {other} at {position}");
    }
}

#[test]
fn any_member_count_gives_the_same_parameters() {
    for (optimizer, clip) in [(SGD, None), (ADAMW, None), (SGD, Some(0.5)), (ADAMW, Some(1e6))] {
        let run = |count| {
            together(count, move |seat, group| {
                let trainer = Trainer::on_group(group, &model(), optimizer, clip, &deadline()).unwrap();
                let norm = train(&trainer, seat, count, 0..4);
                assert_eq!(norm.is_some(), clip.is_some());
                (values(&trainer), norm.unwrap_or(0.0))
            })
        };
        let reference = run(1).swap_remove(0);
        assert!(reference.0.iter().any(|value| value.abs() > 1e-3));
        for count in COUNTS {
            for (values, norm) in run(count) {
                close(&values, &reference.0);
                assert!((norm - reference.1).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn one_step_is_the_plain_formula_with_weights_and_clipping() {
    let plain = Optimizer::Sgd { learning_rate: 0.5, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let all = together(3, |seat, group| {
        let start = [10.0, 20.0 + seat as f64];
        let parameter = Parameter { values: Some(Span::of(&start)), ..shape("w", &[2], Dtype::F64) };
        let trainer = Trainer::on_group(group, &[parameter], plain, Some(1.0), &deadline()).unwrap();
        assert_eq!(trainer.parameter("w").unwrap().to_vec::<f64>().unwrap(), [10.0, 20.0]);
        // The member of weight 0 is not read, whatever it holds.
        let gradient = [[3.0, 0.0], [0.0, 8.0], [f64::NAN, 1.0]][seat];
        trainer.gradient("w").unwrap().write(&gradient).unwrap();
        let report = trainer.step([1.0, 0.5, 0.0][seat], &deadline()).unwrap();
        assert_eq!(report.weight, 1.5);
        (trainer.parameter("w").unwrap().to_vec::<f64>().unwrap(), report.gradient_norm.unwrap())
    });
    let mean = [2.0f64, 8.0 / 3.0];
    let norm = (mean[0] * mean[0] + mean[1] * mean[1]).sqrt();
    let scale = 1.0 / (norm + 1e-6);
    for (values, found) in all {
        assert!((found - norm).abs() < 1e-12);
        assert!((values[0] - (10.0 - 0.5 * scale * mean[0])).abs() < 1e-12);
        assert!((values[1] - (20.0 - 0.5 * scale * mean[1])).abs() < 1e-12);
    }
}

#[test]
fn what_is_not_finite_skips_the_step_on_all() {
    for clip in [None, Some(1.0)] {
        together(3, |seat, group| {
            let trainer = Trainer::on_group(group, &model(), ADAMW, clip, &deadline()).unwrap();
            train(&trainer, seat, 3, 0..1);
            let before = values(&trainer);
            write_gradients(&trainer, 1, samples(seat, 3));
            if seat == 1 {
                trainer.gradient("scalar").unwrap().write(&[f64::INFINITY]).unwrap();
            }
            let report = trainer.step(1.0, &deadline()).unwrap();
            assert!(report.skipped && report.step == 1);
            assert_eq!(values(&trainer), before);
            train(&trainer, seat, 3, 1..2);
            assert_ne!(values(&trainer), before);
        });
    }
}

#[test]
fn weights_that_make_no_sense_are_refused_and_the_trainer_goes_on() {
    together(2, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        for weight in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(trainer.step(weight, &deadline()), Err(Error::Invalid { .. })));
        }
        for weight in [0.0, f64::MAX] {
            let error = trainer.step(weight, &deadline()).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
        train(&trainer, seat, 2, 0..1);
    });
}

#[test]
fn arguments_that_differ_are_named_on_all() {
    type Change = fn(&mut Vec<Parameter<'static>>, &mut Optimizer, &mut Option<f64>);
    let cases: [(&str, Change); 6] = [
        ("parameter `narrow`: here F32 [3", |model, _, _| model[3].shape = vec![30]),
        ("parameter `scalar`: here F", |model, _, _| model[1].dtype = Dtype::F32),
        ("parameter `extra`", |model, _, _| model.push(shape("extra", &[1], Dtype::F32))),
        ("parameter `empty`", |model, _, _| drop(model.remove(2))),
        ("the optimizer", |_, optimizer, _| *optimizer = ADAMW),
        ("clip_norm", |_, _, clip| *clip = Some(3.0)),
    ];
    for (wanted, change) in cases {
        together(3, |seat, group| {
            let (mut model, mut optimizer, mut clip) = (model(), SGD, None);
            // Another order of the same parameters is no difference.
            model.rotate_left(seat);
            model.sort_by_key(|parameter| model_position(&parameter.name));
            if seat == 1 {
                change(&mut model, &mut optimizer, &mut clip);
            }
            let error = Trainer::on_group(group, &model, optimizer, clip, &deadline()).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Disagreed { .. }) && text.contains(wanted), "{text}");
            assert!(text.contains(&format!("(index {seat})")), "{text}");
        });
    }
}

fn model_position(name: &str) -> usize {
    ["wide", "scalar", "empty", "narrow", "extra"].iter().position(|known| *known == name).unwrap_or(9)
}

#[test]
fn an_argument_wrong_on_one_member_is_an_error_on_all() {
    type Change = fn(&mut Vec<Parameter<'static>>);
    let cases: [(&str, Change); 4] = [
        ("at least one", Vec::clear),
        ("`wide`", |model| model.push(shape("wide", &[1], Dtype::F32))),
        ("BF16", |model| model[0].dtype = Dtype::Bf16),
        ("values of parameter `wide`", |model| model[0].values = Some(Span::empty())),
    ];
    for (wanted, change) in cases {
        together(2, |seat, group| {
            let mut model = model();
            if seat == 1 {
                change(&mut model);
            }
            let error = Trainer::on_group(group, &model, SGD, None, &deadline()).unwrap_err();
            assert!(error.to_string().contains(wanted), "{error}");
            assert!(seat == 1 || error.to_string().contains("index 1"), "{error}");
        });
    }
}

#[test]
fn only_what_index_0_writes_in_an_edit_counts() {
    together(3, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        assert!(trainer.editable("scalar").is_err());
        let edited = trainer.edit(&deadline(), |trainer| {
            trainer.editable("scalar")?.write(&[seat as f64 + 5.0])?;
            assert!(matches!(trainer.step(1.0, &deadline()), Err(Error::Invalid { .. })));
            if seat == 2 { Err(Error::unsupported("this", "a test")) } else { Ok(()) }
        });
        assert_eq!(edited.is_err(), seat == 2);
        assert_eq!(trainer.parameter("scalar").unwrap().to_vec::<f64>().unwrap(), [5.0]);
        assert!(trainer.end_edit(&deadline()).is_err());
        train(&trainer, seat, 3, 0..1);
    });
}

#[test]
fn different_calls_disagree_on_all_and_the_trainer_goes_on() {
    let folder = Folder::new();
    together(2, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        write_gradients(&trainer, 0, samples(seat, 2));
        let error = if seat == 0 {
            trainer.step(1.0, &deadline()).unwrap_err()
        } else {
            trainer.save(&folder.0, 3, &deadline()).unwrap_err()
        };
        assert!(matches!(error, Error::Disagreed { .. }));
        for word in ["trainer.step", "trainer.save"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        train(&trainer, seat, 2, 0..1);
    });
}

#[test]
fn a_member_that_stays_away_closes_the_trainer_with_the_cause() {
    together(2, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        if seat == 1 {
            return;
        }
        let error = trainer.step(1.0, &Deadline::after(Duration::from_millis(100))).unwrap_err();
        assert!(matches!(error, Error::TimedOut { .. }), "{error}");
        let error = trainer.step(1.0, &deadline()).unwrap_err();
        assert!(matches!(error, Error::Closed { .. }) && error.to_string().contains("index 1"), "{error}");
        assert_eq!(trainer.updates(), 0);
    });
}

#[test]
fn an_interrupt_between_two_fences_ends_the_step_on_all() {
    let interrupted = AtomicBool::new(false);
    together(2, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, Some(1.0), &deadline()).unwrap();
        write_gradients(&trainer, 0, samples(seat, 2));
        // The first question of index 1 comes before its first piece or in a wait: in all cases the others must learn it.
        let interrupt = || seat == 1 && !interrupted.swap(true, Ordering::SeqCst);
        let error = trainer.step(1.0, &deadline().interruptible(&interrupt)).unwrap_err();
        if seat == 1 {
            assert!(matches!(error, Error::Interrupted { .. }), "{error}");
            trainer.core.members.leave(&error);
        } else {
            assert!(matches!(error, Error::Lost { index: 1, .. }), "{error}");
        }
        assert!(matches!(trainer.step(1.0, &deadline()), Err(Error::Closed { .. })));
    });
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("uform-trainer-{}", random::nonce().unwrap()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_checkpoint_goes_on_bit_by_bit_at_any_member_count() {
    for optimizer in [SGD, ADAMW] {
        let folder = Folder::new();
        let saved = together(2, |seat, group| {
            let trainer = Trainer::on_group(group, &model(), optimizer, None, &deadline()).unwrap();
            train(&trainer, seat, 2, 0..3);
            trainer.save(&folder.0, 30, &deadline()).unwrap();
            let at_save = values(&trainer);
            train(&trainer, seat, 2, 3..5);
            (at_save, values(&trainer))
        });
        for count in COUNTS {
            together(count, |seat, group| {
                let trainer = Trainer::on_group(group, &model(), optimizer, None, &deadline()).unwrap();
                assert_eq!(trainer.load(&folder.0, &deadline()).unwrap(), 30);
                assert_eq!(trainer.updates(), 3);
                assert_eq!(values(&trainer), saved[0].0);
                train(&trainer, seat, count, 3..5);
                if count == 2 {
                    assert_eq!(values(&trainer), saved[0].1, "the state came back bit by bit");
                }
                close(&values(&trainer), &saved[0].1);
            });
        }
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing unfinished is left");
    }
}

#[test]
fn a_damaged_step_gives_way_to_the_one_before() {
    let folder = Folder::new();
    together(3, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        let nothing = trainer.load(&folder.0, &deadline()).unwrap_err();
        assert!(
            matches!(&nothing, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
        );
        for step in 1..=2u64 {
            train(&trainer, seat, 3, step as usize - 1..step as usize);
            trainer.save(&folder.0, step, &deadline()).unwrap();
        }
    });
    let flip = |step: u64, seat: usize| {
        let path = folder.0.join(format!("step-{step}")).join(crate::checkpoint::shard_name(seat, 3));
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    let load = |wanted: std::result::Result<u64, &str>| {
        together(2, |_, group| {
            let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
            match (trainer.load(&folder.0, &deadline()), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!((found, trainer.updates()), (wanted, wanted)),
                (Err(error @ Error::Corrupt { .. }), Err(wanted)) => {
                    assert!(error.to_string().contains(wanted), "{error}");
                }
                (found, wanted) => panic!("{found:?} where {wanted:?} was wanted"),
            }
        });
    };
    load(Ok(2));
    flip(2, 1);
    load(Ok(1));
    flip(1, 2);
    load(Err("step-2/shard-00001-of-00003.safetensors"));
}

#[test]
fn another_model_or_optimizer_is_refused_by_name() {
    let folder = Folder::new();
    together(1, |_, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        trainer.save(&folder.0, 1, &deadline()).unwrap();
    });
    let plain = Optimizer::Sgd { learning_rate: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    let mut other = model();
    other[3].shape = vec![30];
    let cases = [
        (model(), ADAMW, Some("optimizer")),
        (other, SGD, Some("parameter `narrow`")),
        (model()[..3].to_vec(), SGD, Some("parameter `narrow`")),
        ([model(), vec![shape("more", &[1], Dtype::F32)]].concat(), SGD, Some("parameter `more`")),
        (model(), plain, None),
    ];
    for (model, optimizer, wanted) in cases {
        together(2, |_, group| {
            let trainer = Trainer::on_group(group, &model, optimizer, None, &deadline()).unwrap();
            match (trainer.load(&folder.0, &deadline()), wanted) {
                (Ok(1), None) => {}
                (Err(Error::Invalid { argument, .. }), Some(wanted)) => assert_eq!(argument, wanted),
                (found, wanted) => panic!("{found:?} where {wanted:?} was wanted"),
            }
        });
    }
}

#[test]
fn a_member_that_cannot_write_fails_the_save_on_all_and_leaves_nothing() {
    let (folder, other) = (Folder::new(), Folder::new());
    together(3, |seat, group| {
        let trainer = Trainer::on_group(group, &model(), SGD, None, &deadline()).unwrap();
        // Index 2 looks at another directory, so the folder of the save is not there for it.
        let directory = if seat == 2 { &other.0 } else { &folder.0 };
        let error = trainer.save(directory, 1, &deadline()).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
        assert!(seat == 2 || error.to_string().contains("index 2"), "{error}");
        trainer.save(&folder.0, 1, &deadline()).unwrap();
    });
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(&other.0).unwrap().count(), 0);
}
