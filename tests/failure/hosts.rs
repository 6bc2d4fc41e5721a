//! Training over hosts: as on one host, through cut cables and crashes of hosts, and on from the last checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use uform::sys::Span;
use uform::{Dtype, Mesh, Optimizer, Parameter, Trainer};

use super::calls::bootstrap;
use crate::harness::network::Hosts;
use crate::harness::{self, Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("hosts.train", train)];

const MINUTES: Duration = Duration::from_secs(180);
const PIXELS: usize = 64;
const CLASSES: usize = 10;
const SAMPLES: usize = 60;
const WEIGHTS: usize = PIXELS * CLASSES;
/// Steps between two checkpoints.
const INTERVAL: u64 = 5;

/// Pixels of a figure: a shape of its class, with noise of its own.
fn pixel(sample: usize, position: usize) -> f32 {
    let shape = (((sample % CLASSES + 1) * (position + 3)) as f32 * 0.37).sin();
    shape + 0.6 * ((sample * 131 + position * 17) as f32 * 0.71).cos()
}

/// The loss of some samples, and its gradient for weights and biases.
fn loss(weights: &[f32], biases: &[f32], samples: std::ops::Range<usize>) -> (f32, Vec<f32>, Vec<f32>) {
    let (mut total, mut by_weight, mut by_bias) = (0.0, vec![0.0; WEIGHTS], vec![0.0; CLASSES]);
    let count = samples.len().max(1) as f32;
    for sample in samples {
        let pixels = (0..PIXELS).map(|position| pixel(sample, position)).collect::<Vec<_>>();
        let score = |class: usize| {
            let row = &weights[class * PIXELS..(class + 1) * PIXELS];
            biases[class] + row.iter().zip(&pixels).map(|(weight, pixel)| weight * pixel).sum::<f32>()
        };
        let scores = (0..CLASSES).map(score).collect::<Vec<_>>();
        let highest = scores.iter().copied().fold(f32::MIN, f32::max);
        let powers = scores.iter().map(|score| (score - highest).exp()).collect::<Vec<_>>();
        let sum = powers.iter().sum::<f32>();
        total -= (powers[sample % CLASSES] / sum).ln();
        for (class, power) in powers.iter().enumerate() {
            let error = (power / sum - f32::from(u8::from(class == sample % CLASSES))) / count;
            by_bias[class] += error;
            for (position, pixel) in pixels.iter().enumerate() {
                by_weight[class * PIXELS + position] += error * pixel;
            }
        }
    }
    (total / count, by_weight, by_bias)
}

/// Learns until a step, from the last checkpoint if there is one; the argument is the folder, the step and the norm to which
/// gradients are clipped.
fn train(index: usize, count: usize, argument: &str) {
    let words = argument.split('|').collect::<Vec<_>>();
    let [folder, until, norm] = words[..] else { panic!("{argument}") };
    // Where the folder is none of a shared directory, it is another one on each member.
    let folder = folder.replace('%', &index.to_string());
    let (folder, until) = (Path::new(&folder), until.parse::<u64>().expect("a number"));
    let mesh = bootstrap();
    let start = (0..WEIGHTS).map(|position| (position as f32).sin() * 0.1).collect::<Vec<_>>();
    let parameter = |name: &str, shape: &[usize], values| Parameter {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype: Dtype::F32,
        values,
    };
    // The values of index 0 count.
    let parameters = [
        parameter("weights", &[CLASSES, PIXELS], (index == 0).then(|| Span::of(&start))),
        parameter("biases", &[CLASSES], None),
    ];
    let optimizer =
        Optimizer::AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let deadline = || Mesh::verb_deadline(60.0).expect("a minute");
    let work = || -> uform::Result<()> {
        let trainer = Trainer::open(&mesh, &parameters, optimizer, norm.parse().ok(), &deadline())?;
        let mut step = if folder.join("step-5").exists() { trainer.load(folder, &deadline())? } else { 0 };
        say(&format!("from {step}."));
        let own = SAMPLES * index / count..SAMPLES * (index + 1) / count;
        while step < until {
            let weights = trainer.parameter("weights")?.to_vec::<f32>()?;
            let biases = trainer.parameter("biases")?.to_vec::<f32>()?;
            let whole = loss(&weights, &biases, 0..SAMPLES).0;
            let (_, by_weight, by_bias) = loss(&weights, &biases, own.clone());
            trainer.gradient("weights")?.write(&by_weight)?;
            trainer.gradient("biases")?.write(&by_bias)?;
            step = trainer.step(own.len() as f64, &deadline())?.step;
            say(&format!("step {step} loss {whole:e};"));
            if step % INTERVAL == 0 {
                trainer.save(folder, step, &deadline())?;
                say(&format!("saved {step}."));
            }
        }
        // Nobody leaves while others need it.
        mesh.barrier()
    };
    if let Err(error) = work() {
        say(&format!("ended with {}: {}", error.status().name(), error.chain()));
    }
}

/// The loss at each step that a member has told.
fn curve(outcome: &Outcome) -> BTreeMap<u64, f32> {
    let line = |line: &str| {
        let (step, loss) = line.strip_prefix("step ")?.strip_suffix(';')?.split_once(" loss ")?;
        Some((step.parse().ok()?, loss.parse().ok()?))
    };
    outcome.output.lines().filter_map(line).collect()
}

fn argument(folder: &Folder, until: u64, norm: &str) -> String {
    format!("{}|{until}|{norm}", folder.path().display())
}

/// Trains to the end, and gives the curve, which is one on all members.
fn train_until(
    networks: &[String],
    count: usize,
    folder: &Folder,
    until: u64,
    norm: &str,
) -> BTreeMap<u64, f32> {
    let setup = Setup::new(count, "hosts.train").argument(&argument(folder, until, norm)).networks(networks);
    let outcomes = setup.deadline(MINUTES).start().finish();
    assert_all_succeeded(&outcomes);
    let curves = outcomes.iter().map(curve).collect::<Vec<_>>();
    let is_one = curves.iter().all(|curve| *curve == curves[0] && curve.contains_key(&until));
    assert!(is_one, "{}", transcript(&outcomes));
    curves.into_iter().next().expect("one member at least")
}

#[test]
fn hosts_of_one_member_train_with_the_bits_of_one_host() {
    let Some(hosts) = Hosts::new(3) else { return };
    for norm in ["none", "0.05"] {
        let apart = train_until(&hosts.networks(), 3, &Folder::new(), 30, norm);
        let together = train_until(&[], 3, &Folder::new(), 30, norm);
        assert_eq!(apart, together);
        assert!(apart[&30] < apart[&1] / 2.0, "{apart:?}");
    }
}

#[test]
fn hosts_of_several_members_train_as_one_host() {
    let Some(hosts) = Hosts::new(3) else { return };
    for places in [[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 0]] {
        let networks = places.map(|host| hosts.network(host));
        let apart = train_until(&networks, 6, &Folder::new(), 20, "none");
        let together = train_until(&[], 6, &Folder::new(), 20, "none");
        assert_eq!(apart.len(), together.len());
        for (step, loss) in &apart {
            let wanted = together[step];
            // The sums of two hosts are rounded once more, to 2^-24 of them.
            assert!((loss - wanted).abs() < 1e-4 * wanted, "{loss} and {wanted} at {step}");
        }
    }
}

/// What goes wrong while three hosts train.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// The cable of host 2 is pulled, and plugged in again once all have ended.
    Cut,
    /// Every process of host 2 is gone at once, without a word on the network.
    Crash,
}

fn break_and_heal(fault: Fault, places: &[usize]) {
    let Some(hosts) = Hosts::new(3) else { return };
    let networks = places.iter().map(|host| hosts.network(*host)).collect::<Vec<_>>();
    let (count, folder) = (places.len(), Folder::new());
    let setup = Setup::new(count, "hosts.train").argument(&argument(&folder, 1_000_000, "none"));
    let mut run = setup.networks(&networks).deadline(MINUTES).variable("UFORM_SILENCE", "2").start();
    for position in 0..count {
        run.wait_for(position, "saved 10.");
    }
    let away = (0..count).filter(|index| places[*index] == 2).collect::<Vec<_>>();
    hosts.cut(2);
    if fault == Fault::Crash {
        away.iter().for_each(|index| run.kill(*index));
    }
    let start = Instant::now();
    let outcomes = run.finish();
    // Two seconds of silence are the limit under test.
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    for outcome in &outcomes {
        let is_away = away.contains(&outcome.index);
        if is_away && fault == Fault::Crash {
            continue;
        }
        let text = transcript(&outcomes);
        assert!(outcome.succeeded() && outcome.output.contains("ended with LOST: lost index"), "{text}");
        let is_named = away.iter().any(|index| outcome.output.contains(&format!("lost index {index}")));
        // Those behind the cable lose the others.
        assert!(is_named || is_away, "{text}");
        assert!(is_away || outcome.output.contains("10.77.0.3"), "{text}");
    }
    hosts.heal(2);
    let before = outcomes.iter().map(curve).max_by_key(BTreeMap::len).expect("some members");
    let last = (1..).take_while(|number| folder.path().join(format!("step-{}", number * INTERVAL)).exists());
    let last = last.last().expect("two were told") * INTERVAL;
    let told = *before.keys().last().expect("ten were told");
    assert!(last <= told && told <= last + INTERVAL, "{last} {told}\n{}", transcript(&outcomes));
    // All or nothing: no step is half there, and the first save afterwards removes what the broken one left.
    let after = train_until(&networks, count, &folder, last + 2 * INTERVAL, "none");
    assert_eq!(after.keys().next(), Some(&(last + 1)));
    let names = harness::entries(folder.path());
    assert!(names.iter().all(|name| !name.contains("partial")), "{names:?}");
    let whole = train_until(&networks, count, &Folder::new(), last + 2 * INTERVAL, "none");
    for (step, loss) in before.iter().chain(&after) {
        assert!(whole.get(step).is_none_or(|wanted| wanted == loss), "{loss} at {step}, {whole:?}");
    }
}

#[test]
fn a_cut_cable_ends_the_training_which_goes_on_from_its_checkpoint() {
    break_and_heal(Fault::Cut, &[0, 1, 2]);
}

#[test]
fn a_cut_cable_ends_the_training_of_hosts_with_several_members() {
    break_and_heal(Fault::Cut, &[0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_crash_of_a_host_ends_the_training_which_goes_on_from_its_checkpoint() {
    break_and_heal(Fault::Crash, &[0, 0, 1, 2, 2]);
}

#[test]
fn a_checkpoint_in_a_directory_that_hosts_do_not_share_is_an_error_on_all() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = Folder::new();
    for index in 0..2 {
        std::fs::create_dir(folder.path().join(index.to_string())).expect("ours");
    }
    let argument = format!("{}/%|20|none", folder.path().display());
    let setup = Setup::new(2, "hosts.train").argument(&argument).networks(&hosts.networks());
    let outcomes = setup.deadline(MINUTES).start().finish();
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes {
        let text = &outcome.output;
        assert!(text.contains("step 5 ") && !text.contains("saved"), "{}", transcript(&outcomes));
        assert!(text.contains("ended with IO") && text.contains("1/.step-5."), "{}", transcript(&outcomes));
        assert!(text.contains("the same directory on every host"), "{}", transcript(&outcomes));
    }
    assert_eq!(harness::entries(folder.path()), ["0", "1"]);
}
