//! The trainer on GPUs, on the stand-ins of both vendors, against the trainer in host memory.

use std::time::{Duration, Instant};

use uform::error::Error;
use uform::sys::Span;
use uform::trainer::View;
use uform::{
    Deadline, Dtype, Executor, HostOptions, Mesh, Optimizer, Parameter, StepReport, Trainer, VramOptions,
};

use super::gpu::{amd, nvidia, options, own_gpu, soon};
use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("vram.equal", equal),
    ("vram.bound", bound),
    ("vram.together", together),
    ("vram.mixed", mixed),
    ("vram.several", several),
    ("vram.open", open),
    ("vram.steps", steps),
];

const ADAMW: Optimizer =
    Optimizer::AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
/// One step is exactly the gradient.
const PLAIN: Optimizer =
    Optimizer::Sgd { learning_rate: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 };
const MOMENTUM: Optimizer =
    Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: false, weight_decay: 0.01 };
const NESTEROV: Optimizer =
    Optimizer::Sgd { learning_rate: 0.1, momentum: 0.9, nesterov: true, weight_decay: 0.0 };

/// No multiples of a cache line, nor of how many members there are.
const SINGLE: usize = 3001;
const DOUBLE: usize = 77;

/// A mesh on the GPU of its index, and one of the same members on host threads.
struct Member {
    executor: Executor,
    mesh: Mesh,
    host: Mesh,
}

impl Member {
    fn new(index: usize, scratch_limit: u64) -> Self {
        let executor = Executor::for_vram(&VramOptions {
            devices: Some(vec![own_gpu(index)]),
            scratch_limit,
            ..options()
        });
        let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
        let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
        let ram = HostOptions { threads: 1, ..HostOptions::default() };
        let host = mesh.on(&Executor::for_ram(&ram).expect("a thread"));
        Self { executor, mesh, host }
    }

    fn close(self) {
        self.mesh.close().expect("idle");
        self.executor.finish(&soon()).expect("idle");
    }
}

/// Some number between -1 and 1 that depends on all of these.
fn value(index: usize, step: usize, position: usize) -> f64 {
    ((index * 7919 + step * 104_729 + position) as f64 * 0.618_033_988_75).sin()
}

fn singles(of: impl Fn(usize) -> f64) -> Vec<f32> {
    (0..SINGLE).map(|position| of(position) as f32).collect()
}

fn doubles(of: impl Fn(usize) -> f64) -> Vec<f64> {
    (0..DOUBLE).map(of).collect()
}

fn make(mesh: &Mesh, optimizer: Optimizer, clip_norm: Option<f64>) -> Result<Trainer, Error> {
    // Those of index 0 count.
    let (single, double) =
        (singles(|position| value(mesh.index(), 0, position)), doubles(|position| position as f64));
    let parameter = |name: &str, shape: &[usize], dtype| Parameter {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype,
        values: None,
    };
    let parameters = [
        Parameter { values: Some(Span::of(&single)), ..parameter("single", &[SINGLE], Dtype::F32) },
        Parameter { values: Some(Span::of(&double)), ..parameter("double", &[7, 11], Dtype::F64) },
        parameter("scalar", &[], Dtype::F32),
        parameter("empty", &[0, 4], Dtype::F32),
    ];
    Trainer::open(mesh, &parameters, optimizer, clip_norm, &soon())
}

/// Writes the gradients of a step, the same for any memory.
fn write(trainer: &Trainer, index: usize, step: usize) {
    let gradient = |name: &str| trainer.gradient(name).expect("it is there");
    gradient("single").write(&singles(|position| value(index, step, position))).expect("of its type");
    gradient("double").write(&doubles(|position| value(index, step, position + 5))).expect("of its type");
    gradient("scalar").write(&[value(index, step, 3) as f32]).expect("of its type");
}

fn views(trainer: &Trainer) -> [View; 4] {
    ["single", "double", "scalar", "empty"].map(|name| trainer.parameter(name).expect("it is there"))
}

/// All parameters, in the order in which they were declared.
fn values(trainer: &Trainer) -> Vec<f64> {
    let wide = |view: &View| match view.dtype() {
        Dtype::F64 => view.to_vec::<f64>().expect("of its type"),
        _ => view.to_vec::<f32>().expect("of its type").into_iter().map(f64::from).collect(),
    };
    views(trainer).iter().flat_map(wide).collect()
}

fn step(trainer: &Trainer, weight: f64) -> StepReport {
    trainer.step(weight, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// Bit for bit what the host gives, for a lone member and for two of one weight; with clipping as near as norms are that were added
/// up in two orders.
fn equal(index: usize, count: usize, argument: &str) {
    let member = Member::new(index, argument.parse().expect("a number of bytes"));
    for (optimizer, clip_norm) in [
        (ADAMW, None),
        (MOMENTUM, None),
        (NESTEROV, None),
        (PLAIN, None),
        (ADAMW, Some(0.5)),
        (PLAIN, Some(1e6)),
    ] {
        let gpu =
            make(&member.mesh, optimizer, clip_norm).unwrap_or_else(|error| panic!("{}", error.chain()));
        let host = make(&member.host, optimizer, clip_norm).expect("the same");
        assert!(gpu.parameter("single").expect("it is there").device_bytes().is_some());
        assert!(matches!(gpu.parameter("single").expect("there").span(), Err(Error::Unsupported { .. })));
        assert!(values(&gpu) == values(&host), "those of index 0");
        for number in 1..4 {
            let reports = [&gpu, &host].map(|trainer| {
                write(trainer, index, number);
                step(trainer, 3.0)
            });
            let [on_gpu, on_host] = reports;
            assert_eq!(
                (on_gpu.step, on_gpu.skipped, on_gpu.weight),
                (number as u64, false, 3.0 * count as f64)
            );
            match (on_gpu.gradient_norm, on_host.gradient_norm) {
                (Some(one), Some(other)) => assert!((one - other).abs() <= 1e-12 * other, "{one} {other}"),
                (one, other) => assert_eq!(one, other),
            }
            let (found, wanted) = (values(&gpu), values(&host));
            if clip_norm.is_none() {
                assert!(found == wanted, "{optimizer:?}, step {number}");
            } else {
                let near = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-6 * other.abs().max(1e-3);
                assert!(found.iter().zip(&wanted).all(near), "{optimizer:?}, step {number}");
            }
        }
        // The gradients stay as they are.
        let kept = gpu.gradient("single").expect("there").as_view().to_vec::<f32>().expect("of its type");
        assert!(kept == singles(|position| value(index, 3, position)), "{optimizer:?}");
    }
    member.close();
}

/// Runs a role on GPUs of both vendors.
fn on_both(count: usize, role: &str, argument: &str, check: impl Fn(&StandIn, &[Outcome])) {
    let stand_in = StandIn::whole(&nvidia(count, ""), false);
    check(&stand_in, &stand_in.apply(Setup::new(count, role).argument(argument)).start().finish());
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, count, "");
    let stand_in = StandIn::whole(&answers, true);
    let setup =
        stand_in.apply(Setup::new(count, role).argument(argument)).variable("UFORM_MACHINE", &machine);
    check(&stand_in, &setup.start().finish());
}

#[test]
fn one_member_and_two_of_one_weight_get_the_bits_of_the_host() {
    for count in [1, 2] {
        on_both(count, "vram.equal", "0", |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
            // Six trainers of three steps, with two element types each; a lone member reduces nothing.
            let calls = if count == 1 { 0 } else { 6 * 3 * 2 * count };
            assert_eq!(stand_in.count("ncclReduceScatter"), calls);
        });
    }
}

#[test]
fn scratch_keeps_its_limit_and_changes_no_bit() {
    let stand_in = StandIn::whole(&nvidia(2, ""), false);
    let run = stand_in.apply(Setup::new(2, "vram.equal").argument("6000")).start();
    assert_all_succeeded(&run.finish());
    stand_in.assert_nothing_left();
    // 6,000 bytes hold 4,096 of sums, and 896 for each of two members: 7 pieces of 6,016 bytes and one of 320.
    assert_eq!(stand_in.count("ncclReduceScatter"), 6 * 3 * (7 + 1) * 2);
}

/// What gradients are reduced to differs from the exact sum by no more than the bound that the documentation states: as many
/// roundings of the sum of all magnitudes as there are members, and one more.
fn bound(index: usize, count: usize, _: &str) {
    let member = Member::new(index, 0);
    let trainer = make(&member.mesh, PLAIN, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let start = values(&trainer);
    // The last one brings nothing but what must not be read.
    let weights = (0..count).map(|index| if index + 1 == count { 0.0 } else { index as f64 + 0.7 });
    let weights = weights.collect::<Vec<_>>();
    write(&trainer, index, 1);
    if index + 1 == count {
        trainer.gradient("single").expect("there").write(&[f32::NAN; SINGLE]).expect("of its type");
    }
    let report = step(&trainer, weights[index]);
    assert!(!report.skipped);
    let (total, roundings) = (weights.iter().sum::<f64>(), count as f64 + 1.0);
    for (name, first, length, width) in
        [("single", 0, SINGLE, f64::from(f32::EPSILON)), ("double", SINGLE, DOUBLE, f64::EPSILON)]
    {
        let found = values(&trainer);
        let shift = if name == "double" { 5 } else { 0 };
        for position in 0..length {
            let narrow = |value: f64| if name == "double" { value } else { f64::from(value as f32) };
            let terms = (0..count)
                .map(|index| weights[index] / total * narrow(value(index, 1, position + shift)))
                .collect::<Vec<_>>();
            let (sum, magnitude) =
                (terms.iter().sum::<f64>(), terms.iter().map(|term| term.abs()).sum::<f64>());
            let (was, is) = (start[first + position], found[first + position]);
            // The parameter itself is rounded once.
            let allowed = roundings * width / 2.0 * magnitude + width / 2.0 * is.abs();
            assert!((was - is - sum).abs() <= allowed * 1.000_001, "{name} {position}: {was} {is} {sum}");
        }
    }
    member.close();
}

#[test]
fn uneven_members_differ_from_the_host_by_no_more_than_the_stated_bound() {
    for count in [3, 4] {
        on_both(count, "vram.bound", "", |stand_in, outcomes| {
            assert_all_succeeded(outcomes);
            stand_in.assert_nothing_left();
        });
    }
}

/// Edits, skipped steps, and checkpoints that go from GPUs to hosts and back.
fn together(index: usize, count: usize, argument: &str) {
    let member = Member::new(index, 0);
    let directory = std::path::Path::new(argument);
    let gpu = make(&member.mesh, ADAMW, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let host = make(&member.host, ADAMW, None).expect("the same");
    for trainer in [&gpu, &host] {
        write(trainer, index, 1);
        step(trainer, 1.0);
        trainer
            .edit(&soon(), |trainer| {
                let own = (0..SINGLE).map(|position| (position + 1000 * index) as f32 * 0.5);
                trainer.editable("single")?.write(&own.collect::<Vec<_>>())
            })
            .unwrap_or_else(|error| panic!("{}", error.chain()));
        let seen = trainer.parameter("single").expect("there").to_vec::<f32>().expect("of its type");
        assert!(seen.iter().enumerate().all(|(position, value)| *value == position as f32 * 0.5), "{seen:?}");
    }
    assert!(matches!(gpu.editable("single"), Err(Error::Invalid { .. })));
    // One member's gradient is not finite: nothing changes anywhere.
    let before = values(&gpu);
    write(&gpu, index, 2);
    if index + 1 == count {
        gpu.gradient("scalar").expect("there").write(&[f32::INFINITY]).expect("of its type");
    }
    let report = step(&gpu, 1.0);
    assert!(report.skipped && report.step == 1 && values(&gpu) == before, "{report:?}");
    // From GPUs to hosts, and back to other trainers.
    gpu.save(&directory.join("gpu"), 5, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    host.save(&directory.join("host"), 6, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let pairs = [(&member.host, "gpu", 5), (&member.mesh, "host", 6), (&member.mesh, "gpu", 5)];
    let loaded = pairs.map(|(mesh, folder, number)| {
        let trainer = make(mesh, ADAMW, None).expect("the same");
        let found = trainer.load(&directory.join(folder), &soon());
        assert_eq!(found.unwrap_or_else(|error| panic!("{}", error.chain())), number);
        trainer
    });
    for trainer in [&host, &gpu].into_iter().chain(&loaded) {
        write(trainer, index, 3);
        assert_eq!(step(trainer, 1.0).step, 2);
        assert!(values(trainer) == values(&host), "as one that went on");
    }
    // Deferred, and on an executor that has no GPU: the trainer keeps its own.
    write(&gpu, index, 4);
    let deferred = gpu.deferred(Some(member.host.executor()));
    deferred.step(1.0, soon()).wait(&soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    write(&host, index, 4);
    step(&host, 1.0);
    assert!(values(&gpu) == values(&host), "in a deferred step");
    drop((gpu, host, loaded));
    member.close();
}

#[test]
fn edits_skips_and_checkpoints_are_those_of_the_host() {
    for count in [1, 2] {
        let folder = Folder::new();
        let argument = folder.path().display().to_string();
        let stand_in = StandIn::whole(&nvidia(count, ""), false);
        let run = stand_in.apply(Setup::new(count, "vram.together").argument(&argument)).start();
        assert_all_succeeded(&run.finish());
        stand_in.assert_nothing_left();
    }
}

/// One member trains on its GPU, the other in host memory.
fn mixed(index: usize, _: usize, _: &str) {
    let member = Member::new(index, 0);
    let mesh = if index == 0 { &member.mesh } else { &member.host };
    let error = make(mesh, ADAMW, None).expect_err("two memories").to_string();
    let words = ["the memory that is trained in", "that of GPUs", "that of hosts", "Executor.for_vram"];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    make(&member.mesh, ADAMW, None).unwrap_or_else(|error| panic!("the mesh goes on: {}", error.chain()));
    member.close();
}

#[test]
fn members_in_two_kinds_of_memory_are_told_both() {
    let stand_in = StandIn::whole(&nvidia(2, ""), false);
    assert_all_succeeded(&stand_in.apply(Setup::new(2, "vram.mixed")).start().finish());
    stand_in.assert_nothing_left();
}

/// Writes the gradients of a step on each GPU: those of its place.
fn write_on_all(trainer: &Trainer, first: usize, step: usize) {
    for device in 0..trainer.device_count() {
        let gradient = |name: &str| trainer.gradient_on(name, device).expect("it is there");
        let of = |position: usize| value(first + device, step, position);
        gradient("single").write(&singles(of)).expect("of its type");
        gradient("double").write(&doubles(|position| of(position + 5))).expect("of its type");
        gradient("scalar").write(&[of(3) as f32]).expect("of its type");
    }
}

/// The same of a trainer in host memory: the means of what this member's GPUs have.
fn write_means(trainer: &Trainer, places: std::ops::Range<usize>, step: usize) {
    let gradient = |name: &str| trainer.gradient(name).expect("it is there");
    let mean = |position: usize| {
        places.clone().map(|place| value(place, step, position)).sum::<f64>() / places.len() as f64
    };
    gradient("single").write(&singles(mean)).expect("of its type");
    gradient("double").write(&doubles(|position| mean(position + 5))).expect("of its type");
    gradient("scalar").write(&[mean(3) as f32]).expect("of its type");
}

/// Members with several GPUs each, against the host with the means of their gradients.
fn several(index: usize, _: usize, argument: &str) {
    let counts = argument.split(',').map(|count| count.parse().expect("a number")).collect::<Vec<usize>>();
    let first = counts[..index].iter().sum::<usize>();
    let places = first..first + counts[index];
    let devices = Some(places.clone().collect());
    let executor = Executor::for_vram(&VramOptions { devices, ..options() }).expect("they are there");
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let ram = HostOptions { threads: 1, ..HostOptions::default() };
    let host_mesh = mesh.on(&Executor::for_ram(&ram).expect("a thread"));
    for (optimizer, clip_norm) in [(ADAMW, None), (MOMENTUM, None), (PLAIN, Some(0.5))] {
        let gpu = make(&mesh, optimizer, clip_norm).unwrap_or_else(|error| panic!("{}", error.chain()));
        let host = make(&host_mesh, optimizer, clip_norm).expect("the same");
        assert_eq!((gpu.device_count(), host.device_count()), (counts[index], 0));
        for number in 1..4 {
            write_on_all(&gpu, first, number);
            write_means(&host, places.clone(), number);
            let (on_gpu, on_host) = (step(&gpu, 1.0 + index as f64), step(&host, 1.0 + index as f64));
            assert_eq!((on_gpu.step, on_gpu.weight), (on_host.step, on_host.weight));
            let (found, wanted) = (values(&gpu), values(&host));
            let near = |(one, other): (&f64, &f64)| (one - other).abs() <= 2e-5 * other.abs().max(1e-1);
            let differs = found.iter().zip(&wanted).find(|pair| !near(*pair));
            assert!(differs.is_none(), "{optimizer:?}, step {number}: {differs:?}");
            // All GPUs have the same parameters, and keep gradients of their own.
            for device in 0..gpu.device_count() {
                let bits = |device: usize| {
                    let view = gpu.parameter_on("single", device).expect("it is there");
                    view.to_vec::<f32>()
                        .expect("of its type")
                        .into_iter()
                        .map(f32::to_bits)
                        .collect::<Vec<_>>()
                };
                assert!(bits(device) == bits(0), "{optimizer:?}, GPU {device}");
                let kept = gpu.gradient_on("single", device).expect("there").as_view().to_vec::<f32>();
                let own = singles(|position| value(first + device, number, position));
                assert!(kept.expect("of its type") == own, "{optimizer:?}, GPU {device}");
            }
        }
        // What one memory saves the other loads.
        let folder = crate::harness::folder().join(format!("{optimizer:?}"));
        gpu.save(&folder, 3, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
        host.load(&folder, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
        assert!(values(&host) == values(&gpu), "{optimizer:?}");
        gpu.edit(&soon(), |gpu| {
            if index == 0 {
                gpu.editable("scalar")?.write(&[7.5_f32])?;
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{}", error.chain()));
        for device in 0..gpu.device_count() {
            let scalar = gpu.parameter_on("scalar", device).expect("there").to_vec::<f32>();
            assert_eq!(scalar.expect("of its type"), [7.5]);
        }
        assert_eq!(gpu.load(&folder, &soon()).unwrap_or_else(|error| panic!("{}", error.chain())), 3);
        assert!(values(&host) == values(&gpu), "{optimizer:?}");
        assert_eq!(gpu.gradient("single").is_err(), counts[index] > 1);
        let error = gpu.gradient_on("single", 9).err().expect("there is none").to_string();
        assert!(error.contains("device") && error.contains('9'), "{error}");
        assert!(matches!(host.parameter_on("single", 1), Err(Error::Invalid { .. })));
    }
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

#[test]
fn several_gpus_of_a_member_train_as_one_with_the_mean_of_their_gradients() {
    for counts in ["2", "2,1", "1,3", "2,2"] {
        let gpus = counts.split(',').map(|count| count.parse::<usize>().expect("a number"));
        let (members, total) = (counts.split(',').count(), gpus.sum());
        let check = |stand_in: &StandIn, setup: Setup| {
            assert_all_succeeded(&setup.argument(counts).start().finish());
            stand_in.assert_nothing_left();
            assert_eq!(stand_in.count("ncclCommDestroy"), total);
        };
        let stand_in = StandIn::whole(&nvidia(total, ""), false);
        check(&stand_in, stand_in.apply(Setup::new(members, "vram.several")));
        let folder = Folder::new();
        let (machine, answers) = amd(&folder, total, "");
        let stand_in = StandIn::whole(&answers, true);
        let setup = stand_in.apply(Setup::new(members, "vram.several"));
        check(&stand_in, setup.variable("UFORM_MACHINE", &machine));
    }
}

/// Opens a trainer and takes a step, or says why not.
fn open(index: usize, _: usize, _: &str) {
    let member = Member::new(index, 0);
    match make(&member.mesh, ADAMW, Some(1.0)) {
        Ok(trainer) => {
            write(&trainer, index, 1);
            say(&format!("stepped {}", step(&trainer, 1.0).step));
        }
        Err(error) => say(&format!("refused {:?}: {}", error.status(), error.chain())),
    }
    member.close();
}

#[test]
fn without_a_compiler_the_ptx_of_the_package_is_taken_by_drivers_that_know_it() {
    let opened = |stand_in: &StandIn| {
        let outcomes = stand_in.apply(Setup::new(1, "vram.open")).start().finish();
        assert_all_succeeded(&outcomes);
        stand_in.assert_nothing_left();
        transcript(&outcomes)
    };
    // No compiler; one that does not know the GPU; one that makes what the driver refuses.
    let absent = StandIn::collective(&nvidia(1, ""), false);
    let foreign = StandIn::whole(&nvidia(1, "fault nvrtcCompileProgram 1 6\n"), false);
    let newer = StandIn::whole(&nvidia(1, "fault cuModuleLoadData 1 209\n"), false);
    for (stand_in, loads) in [(&absent, 1), (&foreign, 1), (&newer, 2)] {
        assert!(opened(stand_in).contains("stepped 1"));
        assert_eq!(stand_in.count("cuModuleLoadData"), loads);
        assert_eq!(stand_in.count("cuModuleUnload"), 1);
    }
    // The driver is older than the PTX.
    let old = StandIn::collective(&nvidia(1, "cuda 11080\n"), false);
    let said = opened(&old);
    let words = [
        "refused Unsupported: a trainer on GPU 0 (NVIDIA H100",
        "install the package nvidia-cuda-nvrtc-cu12, or a newer driver",
        "libnvrtc.so.12: ",
        "cuModuleLoadData returned 222",
    ];
    let mut rest = said.as_str();
    for word in words {
        rest = &rest[rest.find(word).unwrap_or_else(|| panic!("`{word}` is missing or too early\n{said}"))..];
    }
    // AMD's drivers translate nothing.
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, 1, "");
    let stand_in = StandIn::collective(&answers, true);
    let setup = stand_in.apply(Setup::new(1, "vram.open")).variable("UFORM_MACHINE", &machine);
    let outcomes = setup.start().finish();
    assert_all_succeeded(&outcomes);
    let said = transcript(&outcomes);
    assert!(
        said.contains("refused Unsupported: a trainer on GPU 0 (") && said.contains("install HIPRTC"),
        "{said}"
    );
    stand_in.assert_nothing_left();
}

/// Steps until one fails, and says how; then that the trainer is closed.
fn steps(index: usize, _: usize, _: &str) {
    let member = Member::new(index, 0);
    let trainer = make(&member.mesh, ADAMW, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    write(&trainer, index, 1);
    step(&trainer, 1.0);
    say("stepped");
    let error = loop {
        if let Err(error) = trainer.step(1.0, &Deadline::after(Duration::from_secs(20))) {
            break error;
        }
    };
    say(&format!("error {error:?} {}", error.chain()));
    let error = trainer.step(1.0, &soon()).expect_err("it is closed");
    assert!(matches!(error, Error::Closed { .. }), "{error}");
}

#[test]
fn a_member_that_dies_in_a_step_is_lost_on_the_others() {
    let stand_in = StandIn::whole(&nvidia(3, ""), false);
    let mut run = stand_in.apply(Setup::new(3, "vram.steps")).start();
    for position in 0..3 {
        run.wait_for(position, "stepped");
    }
    run.kill(1);
    let start = Instant::now();
    let outcomes = run.finish();
    // A death is promised to be seen within a second.
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}\n{}", start.elapsed(), transcript(&outcomes));
    for index in [0, 2] {
        let output = &outcomes[index].output;
        assert!(outcomes[index].succeeded() && output.contains("error Lost { index: 1"), "{output}");
    }
}

#[test]
fn a_kernel_that_a_gpu_refuses_is_told_to_all_with_member_and_gpu() {
    let stand_in = StandIn::whole(&nvidia(2, "at 1 fault cuLaunchKernel 12 719\n"), false);
    let outcomes = stand_in.apply(Setup::new(2, "vram.steps")).start().finish();
    assert_all_succeeded(&outcomes);
    let (other, own) = (&outcomes[0].output, &outcomes[1].output);
    let words = " on GPU 1 (NVIDIA H100, ";
    assert!(own.contains("error Vendor") && own.contains("index 1: ") && own.contains(words), "{own}");
    assert!(own.contains("cuLaunchKernel returned 719: work on it has failed"), "{own}");
    assert!(other.contains("error Lost { index: 1") && other.contains(words), "{other}");
}
