//! What only a machine with a GPU can show: `.ci/device-check` runs it there, and a test here runs it on the stand-ins.

use std::process::Command;
use std::time::{Duration, Instant};

use uform::sys::gpu::{Device, Driver, Region, Stream};
use uform::sys::kernel::gpu::Kernels;
use uform::vocabulary::{GpuClass, GpuVendor, Mood};
use uform::{Dtype, Executor, Mesh, Optimizer, Parameter, Trainer, VramOptions, device};

use crate::conformance::gpu::{nvidia, options, soon};
use crate::harness::stand_in::StandIn;
use crate::harness::{Outcome, Role, Setup, say, transcript};

/// The roles of these checks.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("check.devices", devices),
    ("check.tier", tier),
    ("check.streams", streams),
    ("check.arenas", arenas),
    ("check.code", code),
    ("check.bandwidth", bandwidth),
];

/// What members of a check need of the surroundings: the harness gives them nothing else.
const PASSED: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "UFORM_NCCL",
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "STAND_IN_ANSWERS",
    "STAND_IN_CALLS",
];

/// What ranks that share the one GPU are told.
const SHARING: [(&str, &str); 2] = [("NCCL_MULTI_RANK_GPU_ENABLE", "1"), ("UFORM_TEST_GPU", "0")];

fn setup(count: usize, role: &str, argument: &str) -> Setup {
    let mut setup = Setup::new(count, role).argument(argument).deadline(Duration::from_secs(60));
    for name in PASSED {
        if let Ok(value) = std::env::var(name) {
            setup = setup.variable(name, &value);
        }
    }
    if count > 1 {
        for (name, value) in SHARING {
            setup = setup.variable(name, value);
        }
    }
    setup
}

/// One check, in one line: what came of it, its name, how long it took, and what a member said of it.
fn line(name: &str, count: usize, role: &str, argument: &str) -> bool {
    told(name, Instant::now(), setup(count, role, argument).start().finish())
}

fn told(name: &str, start: Instant, outcomes: Vec<Outcome>) -> bool {
    let all = transcript(&outcomes);
    let said = all.lines().filter_map(|line| line.strip_prefix("check: ")).next().unwrap_or_default();
    let seconds = start.elapsed().as_secs_f64();
    if outcomes.iter().all(Outcome::succeeded) {
        println!("ok    {name} ({seconds:.1} s) {said}");
        return true;
    }
    let reason =
        all.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or("it was killed");
    println!("FAIL  {name} ({seconds:.1} s) {reason}");
    eprintln!("{all}");
    false
}

/// All checks, for people and for the script: `cargo test --test uform device::check -- --exact --ignored --nocapture`.
#[test]
#[ignore = "needs a GPU: .ci/device-check runs it"]
fn check() {
    if std::env::var_os("STAND_IN_ANSWERS").is_some() {
        println!("note  these are stand-ins of the vendors' libraries, and no GPU");
    }
    let mut failed = 0_usize;
    let mut one = |is_well: bool| failed += usize::from(!is_well);
    one(line("devices and classes", 1, "check.devices", ""));
    one(line("tier, with a trial multicast object where GPUs claim one", 1, "check.tier", ""));
    one(line("streams", 1, "check.streams", ""));
    one(line("arenas", 1, "check.arenas", ""));
    one(line("kernels", 1, "check.code", ""));
    one(line("trainer, 1 rank: the bits of the host", 1, "vram.equal", "0"));
    one(line("bandwidth", 1, "check.bandwidth", ""));
    let collective = device::collective_library(GpuVendor::Nvidia);
    match &collective {
        Err(refusal) => println!("skip  verbs, and steps of several ranks: {}", refusal.reason),
        Ok(library) => {
            println!("note  NCCL {} ({})", library.version(), library.path().display());
            one(line("verbs and element types, 1 rank", 1, "ccl.verbs", ""));
        }
    }
    let gpus = device::gpu_devices().map_or(0, |gpus| gpus.len());
    match &collective {
        Ok(_) if gpus > 1 => {
            let name = format!("verbs, {gpus} GPUs of one process");
            one(line(&name, 1, "gpus.verbs", &gpus.to_string()));
        }
        Ok(_) => println!("skip  several GPUs of one process: this machine has one"),
        Err(_) => {}
    }
    match collective {
        Ok(library) if library.version().0 >= 23000 => {
            for count in [2, 4] {
                let name = format!("verbs and element types, {count} ranks on one GPU");
                one(line(&name, count, "ccl.verbs", ""));
                let name = format!("trainer, {count} ranks on one GPU: within the stated bound");
                one(line(&name, count, "vram.bound", ""));
            }
            one(lost());
        }
        Ok(library) => {
            println!("skip  several ranks on one GPU: NCCL is {} and must be 2.30", library.version())
        }
        Err(_) => {}
    }
    assert_eq!(failed, 0, "checks failed");
}

/// A rank dies in its steps; the other is told within three seconds.
fn lost() -> bool {
    let name = "failure of a rank";
    let start = Instant::now();
    let mut run = setup(2, "vram.steps", "").start();
    for position in 0..2 {
        run.wait_for(position, "stepped");
    }
    run.kill(1);
    let killed = Instant::now();
    let mut outcomes = run.finish();
    let seconds = killed.elapsed().as_secs_f64();
    outcomes.retain(|outcome| outcome.index == 0);
    let is_told = outcomes[0].output.contains("error Lost { index: 1") && seconds < 3.0;
    if !is_told {
        println!("FAIL  {name} ({seconds:.1} s after its death) the other was not told in time");
        eprintln!("{}", transcript(&outcomes));
        return false;
    }
    told(name, start, outcomes)
}

fn devices(_: usize, _: usize, _: &str) {
    let gpus = device::gpu_devices().expect("this machine can be looked at");
    assert!(!gpus.is_empty(), "no GPU is seen");
    let words = gpus.iter().map(|gpu| {
        let class = gpu.gpu_class.map_or("of no known class", GpuClass::name);
        format!("{} {class}, {} units, {} MiB", gpu.name, gpu.compute_units, gpu.memory_bytes >> 20)
    });
    assert!(gpus[0].gpu_class.is_some(), "{gpus:?}");
    say(&format!("check: {}", words.collect::<Vec<_>>().join("; ")));
}

fn executor() -> Executor {
    let options = VramOptions { devices: Some(vec![0]), deferred_limit: 1, ..options() };
    Executor::for_vram(&options).unwrap_or_else(|error| panic!("{}", error.chain()))
}

/// What a mesh of one process with all GPUs finds of their fabric.
fn tier(_: usize, _: usize, _: &str) {
    let executor = Executor::for_vram(&options()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let topology = mesh.topology();
    let (tier, reason) = (topology.multimem_tier(), topology.tier_reason());
    assert_eq!(mesh.describe().gpus_per_host_domain, executor.gpus().len());
    say(&format!("check: {tier}: {reason}"));
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

fn streams(_: usize, _: usize, _: &str) {
    let executor = executor();
    let first = executor.submit("all_reduce", |_| Ok(1));
    let second = executor.submit("broadcast", |_| Ok(2));
    executor.drain(Mood::Busy, &soon()).expect("the GPU is idle");
    assert_eq!((first.wait(&soon()).expect("done"), second.wait(&soon()).expect("done")), (1, 2));
    executor.drain(Mood::Parked, &soon()).expect("the GPU is idle");
    executor.finish(&soon()).expect("idle");
}

fn arenas(_: usize, _: usize, _: &str) {
    let executor = executor();
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let arena = mesh.arena(1 << 16, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let bytes = arena.device_bytes(0, 0..1 << 16).expect("within");
    let mut found = vec![1_u32; 1 << 14];
    bytes.read(uform::SpanMut::of(&mut found), &soon()).expect("the GPU works");
    assert!(found.iter().all(|value| *value == 0), "an arena begins with zeros");
    let values = (0..1 << 14).collect::<Vec<u32>>();
    bytes.write(uform::Span::of(&values), &soon()).expect("the GPU works");
    bytes.read(uform::SpanMut::of(&mut found), &soon()).expect("the GPU works");
    assert!(found == values, "what was written is read");
    assert!(mesh.gpu_at(bytes.address().expect("it has one")).is_some());
    drop((bytes, arena));
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

/// A stream of the first GPU, apart from executors.
fn stream() -> std::sync::Arc<Stream> {
    let driver = Driver::open(GpuVendor::Nvidia).unwrap_or_else(|error| panic!("{}", error.chain()));
    let device = Device::open(driver, 0, "GPU 0").unwrap_or_else(|error| panic!("{}", error.chain()));
    std::sync::Arc::new(Stream::open(&device).unwrap_or_else(|error| panic!("{}", error.chain())))
}

fn code(_: usize, _: usize, _: &str) {
    let kernels = Kernels::open(&stream(), None, &device::package_places());
    say(&format!("check: {}", kernels.unwrap_or_else(|error| panic!("{}", error.chain())).origin()));
}

/// The fused step beside a copy within the same memory, both in bytes that the memory moves in a second.
fn bandwidth(_: usize, _: usize, _: &str) {
    const ROUNDS: usize = 10;
    let gpu = device::gpu_devices().expect("this machine can be looked at").remove(0);
    // 256 MiB of parameters, and less where the GPU is small.
    let count = usize::try_from(gpu.memory_bytes / 64).unwrap_or(0).min(64 << 20);
    let seconds = |work: &mut dyn FnMut()| {
        work();
        let start = Instant::now();
        (0..ROUNDS).for_each(|_| work());
        start.elapsed().as_secs_f64() / ROUNDS as f64
    };
    let executor = executor();
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let parameter = Parameter { name: "all".into(), shape: vec![count], dtype: Dtype::F32, values: None };
    let optimizer =
        Optimizer::AdamW { learning_rate: 0.01, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 };
    let trainer = Trainer::open(&mesh, &[parameter], optimizer, None, &soon());
    let trainer = trainer.unwrap_or_else(|error| panic!("{}", error.chain()));
    let step = seconds(&mut || {
        trainer.step(1.0, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    });
    drop(trainer);
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
    let stream = stream();
    let regions =
        [(); 2].map(|()| Region::take(&stream, 4 * count).unwrap_or_else(|error| panic!("{error}")));
    let [from, to] = [0, 1].map(|position| regions[position].part(&(0..4 * count)).expect("within"));
    let copy = seconds(&mut || {
        to.copy_from(&from).expect("of one stream");
        stream.wait(&soon()).expect("the GPU works");
    });
    // A step reads gradients to look at them; then four arrays, of which it writes three.
    let (step, copy) = (32.0 * count as f64 / step / 1e9, 8.0 * count as f64 / copy / 1e9);
    let ratio = step / copy;
    say(&format!(
        "check: fused step {step:.1} GB/s, device copy {copy:.1} GB/s, ratio {ratio:.2}, {count} F32"
    ));
}

/// What the check printed on stand-ins, and whether it succeeded.
fn on_stand_ins(stand_in: &StandIn) -> (bool, Vec<String>) {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", "device::check", "--ignored", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", stand_in.path("")).env("STAND_IN_ANSWERS", stand_in.path("answers"));
    command.env("STAND_IN_CALLS", stand_in.path("calls"));
    let output = command.output().expect("this binary can be executed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let is_line = |line: &&str| ["ok ", "FAIL ", "skip ", "note "].iter().any(|word| line.starts_with(word));
    (output.status.success(), text.lines().filter(is_line).map(str::to_owned).collect())
}

#[test]
fn the_check_runs_on_stand_ins_and_says_so() {
    let stand_in = StandIn::whole_of(&nvidia(1, ""), &["-DNCCL_VERSION=23203"]);
    let (is_well, lines) = on_stand_ins(&stand_in);
    assert!(is_well, "{lines:#?}");
    assert!(lines[0].starts_with("note  these are stand-ins"), "{lines:#?}");
    let names = [
        "devices and classes",
        "tier, with a trial multicast object",
        "streams",
        "arenas",
        "kernels",
        "trainer, 1 rank",
        "bandwidth",
        "verbs and element types, 1 rank",
        "verbs and element types, 2 ranks",
        "trainer, 2 ranks",
        "verbs and element types, 4 ranks",
        "trainer, 4 ranks",
        "failure of a rank",
    ];
    let done = lines.iter().filter_map(|line| line.strip_prefix("ok    ")).collect::<Vec<_>>();
    assert_eq!(done.len(), names.len(), "{lines:#?}");
    assert!(done.iter().zip(names).all(|(line, name)| line.starts_with(name)), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("GB/s, device copy")), "{lines:#?}");

    // What fails is told and fails the whole; what cannot be is left out with its reason.
    let stand_in = StandIn::new(&nvidia(1, "fault cuLaunchKernel 1 719\n"));
    let (is_well, lines) = on_stand_ins(&stand_in);
    assert!(!is_well && lines.iter().any(|line| line.starts_with("FAIL  trainer, 1 rank")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("skip  verbs") && line.contains("NCCL")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("ok    kernels") && line.contains("PTX")), "{lines:#?}");
}
