//! Executors of GPU streams, on the stand-in drivers of both vendors: the rules of every executor, and those of devices.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use uform::error::Error;
use uform::sys::{Deadline, Span, SpanMut};
use uform::vocabulary::{CpuClass, GpuClass, Mood};
use uform::{Executor, Mesh, ReduceOp, VramOptions, device};

use crate::failure::fork;
use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[
    ("gpu.rules", rules),
    ("gpu.refuse", refuse),
    ("gpu.wrong", wrong),
    ("gpu.choose", choose),
    ("gpu.mesh", mesh),
    ("gpu.own", own),
    ("gpu.drain", drain),
    ("gpu.fork", child),
    ("gpu.slow", slow),
    ("gpu.arena", arena),
    ("gpu.full", full),
];

/// Identities as the driver tells them: sixteen bytes.
pub(crate) fn uuid(number: usize) -> String {
    format!("GPU-{number:08x}-1111-2222-3333-444444444444")
}

/// So many H100 of 1 MiB, without the lines of `more` and with them.
pub(crate) fn nvidia(count: usize, more: &str) -> String {
    let gpus = (0..count).map(|number| {
        let (uuid, bus) = (uuid(number), 0x1b + number);
        format!("device {number} 0 0 {uuid} {bus:x} 9 0 16896 1048576 18 0 0 0 0 0 0 0 NVIDIA H100\n")
    });
    format!("init 0\ncount {count}\ncuda 12080\n{}{more}", gpus.collect::<String>())
}

/// H100 of 1 MiB behind a switch that reduces, in a fabric that is complete.
pub(crate) fn nvidia_switched(count: usize, more: &str) -> String {
    let multicast = (0..count).map(|number| format!("multicast {number}\n")).collect::<String>();
    nvidia(count, &format!("{multicast}{more}"))
        .replace("1048576 18 0 0 0 0 0 0 0", "1048576 18 0 0 3 0 0 0 0")
}

/// H100 of 1 MiB whose direct links join groups of so many, each to the next.
pub(crate) fn nvidia_linked(groups: &[usize]) -> String {
    let mut number = 0;
    let mut gpus = String::new();
    for size in groups {
        for position in 0..*size {
            let bus = 0x1b + number;
            let (peer, links) = match position {
                _ if *size == 1 => (0, 0),
                0 => (bus + 1, 4),
                _ => (bus - 1, 4),
            };
            let uuid = uuid(number);
            gpus.push_str(&format!(
                "device {number} 0 0 {uuid} {bus:x} 9 0 16896 1048576 0 {peer:x} {links} 0 0 0 0 0 NVIDIA H100\n"
            ));
            number += 1;
        }
    }
    format!("init 0\ncount {number}\ncuda 12080\n{gpus}")
}

/// A recorded machine of MI300X of which groups of so many are linked over xGMI, and what HIP answers.
pub(crate) fn amd_linked(folder: &Folder, groups: &[usize]) -> (String, String) {
    let made = amd(folder, groups.iter().sum(), "");
    let mut first = 1;
    for size in groups {
        for node in first..first + size {
            for (number, other) in (first..first + size).filter(|other| *other != node).enumerate() {
                let link = format!("machine/sys/class/kfd/kfd/topology/nodes/{node}/io_links/{number}");
                let link = folder.path().join(link);
                fs::create_dir_all(&link).expect("writable");
                let properties = format!("type 11\nnode_from {node}\nnode_to {other}\nweight 15\n");
                fs::write(link.join("properties"), properties).expect("writable");
            }
        }
        first += size;
    }
    made
}

/// A recorded machine of so many MI300X, for the kernel's driver is asked for them, and what HIP answers.
pub(crate) fn amd(folder: &Folder, count: usize, more: &str) -> (String, String) {
    let root = folder.path().join("machine");
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    write("machine.json", "{\"host_name\": \"amd\", \"boot_id\": \"b\"}");
    write("sys/devices/system/cpu/online", "0-1\n");
    write("sys/devices/system/node/node0/cpulist", "0-1\n");
    write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\n");
    let nodes = "sys/class/kfd/kfd/topology/nodes";
    write(&format!("{nodes}/0/gpu_id"), "0\n");
    write(&format!("{nodes}/0/properties"), "cpu_cores_count 2\nsimd_count 0\n");
    let mut answers = "init 9\n".to_owned();
    for number in 0..count {
        let (node, bus) = (number + 1, 0xc1 + number);
        write(&format!("{nodes}/{node}/gpu_id"), &format!("{}\n", 100 + node));
        write(&format!("{nodes}/{node}/name"), "gfx942\n");
        write(
            &format!("{nodes}/{node}/properties"),
            &format!(
                "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nvendor_id 4098\nunique_id {node}\ndomain 0\n\
                 location_id {}\ndrm_render_minor {}\n",
                bus << 8,
                128 + number
            ),
        );
        write(&format!("{nodes}/{node}/mem_banks/0/properties"), "heap_type 1\nsize_in_bytes 1048576\n");
        answers.push_str(&format!("amd {number} 0000:{bus:02x}:00.0 1048576 MI300X\n"));
    }
    (root.display().to_string(), format!("{answers}{more}"))
}

/// The GPU of a member: the one of its index, unless a machine has one for all.
pub(crate) fn own_gpu(index: usize) -> usize {
    std::env::var("UFORM_TEST_GPU").ok().and_then(|number| number.parse().ok()).unwrap_or(index)
}

pub(crate) fn options() -> VramOptions {
    VramOptions { cpu_class: Some(CpuClass::Serial), ..VramOptions::default() }
}

pub(crate) fn soon() -> Deadline<'static> {
    Deadline::after(Duration::from_secs(20))
}

/// What every executor promises: one call at a time, a line of the given length, moods, and an end.
fn rules(_: usize, _: usize, argument: &str) {
    let count: usize = argument.parse().expect("a number of GPUs");
    let executor = Executor::for_vram(&VramOptions { deferred_limit: 1, scratch_limit: 4096, ..options() });
    let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((executor.gpus().len(), executor.threads()), (count, count));
    assert_eq!(executor.gpus(), device::gpu_devices().expect("they are there"));
    assert_eq!(executor.placement().devices, (0..count).collect::<Vec<_>>());
    assert!(matches!(executor.gpu_class(), Some(GpuClass::NvidiaHopper | GpuClass::AmdCdna3)));
    assert_eq!(executor.scratch_limit(), 4096);

    // The line: one holds, one waits, the third has no room, and says who holds.
    let (open, gate) = mpsc::channel::<()>();
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&ended);
    let first = executor.submit("all_reduce", move |_| {
        let _ = gate.recv();
        counted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    });
    let counted = Arc::clone(&ended);
    let second = executor.submit("broadcast", move |_| Ok(counted.fetch_add(1, Ordering::SeqCst)));
    let third = executor.submit("reduce", |_| Ok(()));
    let error = third.wait(&soon()).expect_err("no room").to_string();
    assert!(error.contains("all_reduce"), "{error}");
    assert!(matches!(executor.hold("barrier"), Err(Error::Contended { .. })));
    open.send(()).expect("the first call runs");
    executor.drain(Mood::Busy, &soon()).expect("both end");
    assert_eq!((ended.load(Ordering::SeqCst), executor.mood()), (2, Mood::Busy));
    first.wait(&soon()).expect("ended");
    assert_eq!(second.wait(&soon()).expect("ended"), 1);
    // From inside of a call: at once.
    let inner = executor.clone();
    let inside = executor.submit("gather", move |_| Ok(inner.hold("gather").is_err()));
    assert!(inside.wait(&soon()).expect("runs"));
    executor.drain(Mood::Parked, &soon()).expect("idle");
    executor.close(&soon()).expect("idle");
    executor.close(&soon()).expect("twice is harmless");
    assert!(matches!(executor.hold("barrier"), Err(Error::Closed { .. })) && executor.gpus().is_empty());
}

#[test]
fn the_rules_of_executors_hold_on_gpus_of_both_vendors() {
    for count in [1, 4] {
        let stand_in = StandIn::new(&nvidia(count, ""));
        let outcomes =
            stand_in.apply(Setup::new(1, "gpu.rules").argument(&count.to_string())).start().finish();
        assert_all_succeeded(&outcomes);
        stand_in.assert_nothing_left();
        assert_eq!(stand_in.count("cuInit"), 1);
        assert_eq!(stand_in.count("cuStreamCreate"), count);
        assert_eq!(stand_in.count("cuStreamDestroy_v2"), count);
        assert_eq!(stand_in.count("cuDevicePrimaryCtxRelease_v2"), count);
        // The thread's own context is as it was after every call.
        assert_eq!(stand_in.count("cuCtxPushCurrent_v2"), stand_in.count("cuCtxPopCurrent_v2"));

        let folder = Folder::new();
        let (machine, answers) = amd(&folder, count, "");
        let stand_in = StandIn::new(&answers);
        let setup = stand_in.apply(Setup::new(1, "gpu.rules").argument(&count.to_string()));
        assert_all_succeeded(&setup.variable("UFORM_MACHINE", &machine).start().finish());
        stand_in.assert_nothing_left();
        assert_eq!((stand_in.count("hipInit"), stand_in.count("hipStreamDestroy")), (1, count));
    }
}

/// Opens all GPUs and says what came of it.
fn refuse(_: usize, _: usize, _: &str) {
    match Executor::for_vram(&options()) {
        Ok(_) => say("opened"),
        Err(error) => say(&format!("{:?}: {}", error.status(), error.chain())),
    }
}

fn refused(answers: &str, names: &[&str], flags: &[&str], variables: &[(&str, &str)]) -> String {
    let stand_in = StandIn::with(answers, names, flags);
    let mut setup = stand_in.apply(Setup::new(1, "gpu.refuse"));
    for (name, value) in variables {
        setup = setup.variable(name, value);
    }
    let outcomes = setup.start().finish();
    assert_all_succeeded(&outcomes);
    stand_in.assert_nothing_left();
    transcript(&outcomes)
}

/// More answers, the libraries that are there, flags of the compiler, and what the error says in this order.
type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);

#[test]
fn a_driver_that_cannot_be_used_is_an_error_with_the_remedy_before_its_own_words() {
    const NVIDIA: &[&str] = &["libcuda.so.1", "libnvidia-ml.so.1"];
    let cases: &[Case<'_>] = &[
        // NVML answers, and the driver is not there.
        (
            "",
            &["libnvidia-ml.so.1"],
            &[],
            &["Unsupported", "CUDA on this machine", "install it", "libcuda.so.1"],
        ),
        (
            "cuda 11020\n",
            NVIDIA,
            &[],
            &["Unsupported", "is of CUDA 11.2 and must be of 11.4 or newer", "install a newer driver"],
        ),
        (
            "",
            NVIDIA,
            &["-DcuStreamQuery=another"],
            &["Unsupported", "the driver lacks cuStreamQuery", "install a newer driver"],
        ),
        (
            "fault cuInit 1 803\n",
            NVIDIA,
            &[],
            &["Unsupported", "different versions", "restart the machine", "cuInit returned 803: system has"],
        ),
        (
            "fault cuInit 1 100\n",
            NVIDIA,
            &[],
            &["Unsupported", "visibility variables", "cuInit returned 100: no CUDA-capable"],
        ),
        (
            "fault cuDevicePrimaryCtxRetain 2 46\n",
            NVIDIA,
            &[],
            &["Vendor", "on GPU 1 (NVIDIA H100, GPU-00000001-", "returned 46: another process holds it"],
        ),
        (
            "fault cuStreamCreate 1 2\n",
            NVIDIA,
            &[],
            &["Exhausted", "GPU 0 (NVIDIA H100, GPU-00000000-", "end what else uses it", "out of memory"],
        ),
        (
            "fault cuDevicePrimaryCtxRetain 1 214\n",
            NVIDIA,
            &[],
            &["Vendor", "GPU 0 (", "take it out of service; uncorrectable ECC error"],
        ),
        (
            "fault cuDeviceGetUuid_v2 1 999\n",
            NVIDIA,
            &[],
            &["Vendor", "cuDeviceGetUuid_v2 returned 999", "unknown error"],
        ),
    ];
    for (more, names, flags, words) in cases {
        let said = refused(&nvidia(2, more), names, flags, &[]);
        let mut rest = said.as_str();
        // In this order.
        for word in *words {
            let at = rest.find(word).unwrap_or_else(|| panic!("`{word}` is missing or too early\n{said}"));
            rest = &rest[at..];
        }
    }
}

#[test]
fn a_member_without_a_driver_or_a_gpu_says_its_index_and_what_it_wanted() {
    let gpu = format!("GPU 1 (NVIDIA H100, {})", uuid(1));
    for (more, names, words) in [
        ("", &["libnvidia-ml.so.1"][..], [": CUDA on this machine for ", &gpu, "install it", "libcuda.so.1"]),
        (
            "cuda 11020\n",
            &["libcuda.so.1", "libnvidia-ml.so.1"],
            [": CUDA on this machine for ", &gpu, "CUDA 11.2", "install a newer driver"],
        ),
        (
            "fault cuStreamCreate 2 2\n",
            &["libcuda.so.1", "libnvidia-ml.so.1"],
            [": ", &gpu, "end what else uses it", "out of memory"],
        ),
    ] {
        let stand_in = StandIn::with(&nvidia(2, more), names, &[]);
        let outcomes = stand_in.apply(Setup::new(2, "gpu.refuse")).start().finish();
        assert_all_succeeded(&outcomes);
        for (index, Outcome { output, .. }) in outcomes.iter().enumerate() {
            let mut rest = output.as_str();
            for word in [&[format!("index {index}").as_str()][..], &words].concat() {
                let at =
                    rest.find(word).unwrap_or_else(|| panic!("`{word}` is missing or too early\n{output}"));
                rest = &rest[at..];
            }
        }
    }
    // A wrong GPU is told before anything of the driver is called.
    let stand_in = StandIn::new(&nvidia(2, ""));
    let outcomes = stand_in.apply(Setup::new(2, "gpu.wrong")).start().finish();
    assert_all_succeeded(&outcomes);
    for (index, Outcome { output, .. }) in outcomes.iter().enumerate() {
        let words = format!("index {index}: there is no GPU 2: this process sees GPU 0 (");
        assert!(output.contains(&words) && output.contains(&gpu), "{output}");
    }
    assert_eq!(stand_in.count("cuInit"), 0);
}

/// Asks for a GPU that is not there.
fn wrong(_: usize, _: usize, _: &str) {
    let options = VramOptions { devices: Some(vec![2]), ..options() };
    say(&Executor::for_vram(&options).expect_err("there are two").to_string());
}

#[test]
fn a_machine_without_hip_is_an_error_that_names_what_was_tried() {
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, 1, "");
    let said = refused(&answers, &[], &[], &[("UFORM_MACHINE", &machine)]);
    assert!(said.contains("Unsupported: HIP on this machine") && said.contains("install ROCm"), "{said}");
    assert!(said.contains("libamdhip64.so.7 ("), "{said}");
    let said =
        refused(&answers, &["libamdhip64.so.6"], &["-DhipFree=another"], &[("UFORM_MACHINE", &machine)]);
    assert!(said.contains("install a newer ROCm: libamdhip64.so.6 has no function hipFree"), "{said}");
}

/// What may be chosen.
fn choose(_: usize, _: usize, _: &str) {
    let error = |options: VramOptions| match Executor::for_vram(&options) {
        Ok(executor) => panic!("{executor:?} of {options:?}"),
        Err(error) => error.to_string(),
    };
    let of = |devices: &[usize]| VramOptions { devices: Some(devices.to_vec()), ..options() };
    for (devices, words) in [
        (vec![], "names none"),
        (vec![7], "there is no GPU 7: this process sees GPU 0 (NVIDIA H100, GPU-00000001-"),
        (vec![1, 0, 1], "GPU 1 (NVIDIA H100, GPU-00000000-1111-2222-3333-444444444444) is listed twice"),
    ] {
        let error = error(of(&devices));
        assert!(error.contains(words) && error.contains(&format!("{devices:?}")), "{error}");
    }
    let class = |class| VramOptions { gpu_class: Some(class), ..options() };
    for wrong in [GpuClass::NvidiaBlackwell, GpuClass::AmdCdna3, GpuClass::AppleMetal7] {
        let error = error(class(wrong));
        assert!(error.contains("is NVIDIA_HOPPER and cannot run it") && error.contains("GPU 0 ("), "{error}");
    }
    let older = Executor::for_vram(&class(GpuClass::NvidiaAmpere)).expect("code for it runs");
    assert_eq!(older.gpu_class(), Some(GpuClass::NvidiaAmpere));
    older.close(&soon()).expect("idle");
    let domain = VramOptions { memory_domains: Some(vec![4095]), ..options() };
    assert!(error(domain).contains("there is no memory domain 4095"));
    let executor = Executor::for_vram(&of(&[1, 0])).expect("both are there");
    let identities = executor.gpus().into_iter().map(|gpu| gpu.identity).collect::<Vec<_>>();
    assert_eq!(identities, [uuid(0), uuid(1)]);
    assert_eq!(executor.placement().devices, [1, 0]);
}

#[test]
fn ordinals_are_positions_of_gpu_devices_and_wrong_ones_are_named() {
    let stand_in = StandIn::new(&nvidia(3, ""));
    let setup = stand_in.apply(Setup::new(1, "gpu.choose")).variable("CUDA_VISIBLE_DEVICES", "1,0");
    assert_all_succeeded(&setup.start().finish());
    stand_in.assert_nothing_left();
}

#[test]
fn a_gpu_that_the_driver_does_not_show_is_named() {
    let folder = Folder::new();
    let (machine, _) = amd(&folder, 2, "");
    let hidden = "init 9\namd 0 0000:c1:00.0 1048576 MI300X\n";
    let said = refused(hidden, &["libamdhip64.so.6"], &[], &[("UFORM_MACHINE", &machine)]);
    assert!(said.contains("devices = 1 (argument) is invalid: GPU 1 ("), "{said}");
    assert!(said.contains("the driver shows 0000:c1:00.0 and not this one"), "{said}");
}

/// Forms a mesh on GPUs of its own, and reduces on the host.
fn mesh(index: usize, count: usize, argument: &str) {
    let each: usize = argument.parse().expect("a number of GPUs");
    let devices = Some((index * each..(index + 1) * each).collect());
    let executor = Executor::for_vram(&VramOptions { devices, deferred_limit: 4, ..options() });
    let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let told = mesh.describe();
    assert_eq!(told.gpus_per_host_domain, each);
    assert_eq!((told.first_gpu_index, told.gpus_per_colocated_domain), (index * each, count * each));
    let mut values = [index as f32 * 1e6, 1.0];
    mesh.all_reduce(&mut values, ReduceOp::Sum).expect("host memory");
    let indexes = (0..count).map(|index| index as f32 * 1e6).sum::<f32>();
    assert_eq!(values, [indexes, count as f32]);
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

#[test]
fn processes_form_a_mesh_on_gpus_of_their_own() {
    for (count, each) in [(1, 4), (2, 1), (2, 2), (4, 1)] {
        let stand_in = StandIn::new(&nvidia(count * each, ""));
        let setup = stand_in.apply(Setup::new(count, "gpu.mesh").argument(&each.to_string()));
        assert_all_succeeded(&setup.start().finish());
        stand_in.assert_nothing_left();
    }
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, 4, "");
    let stand_in = StandIn::new(&answers);
    let setup = stand_in.apply(Setup::new(2, "gpu.mesh").argument("2"));
    assert_all_succeeded(&setup.variable("UFORM_MACHINE", &machine).start().finish());
    stand_in.assert_nothing_left();
}

/// Takes the GPUs that its index says, which are also another member's, and says why that is refused.
fn own(index: usize, _: usize, _: &str) {
    let devices = Some(if index == 0 { vec![0, 1] } else { vec![1] });
    let executor = Executor::for_vram(&VramOptions { devices, ..options() }).expect("it is there");
    let error = Mesh::bootstrap(Some(&executor), None).expect_err("another member's");
    say(&format!("refused {}", error.chain()));
}

#[test]
fn a_gpu_of_another_member_is_refused_on_all_naming_both() {
    let stand_in = StandIn::new(&nvidia(2, ""));
    let outcomes = stand_in.apply(Setup::new(2, "gpu.own")).start().finish();
    assert_all_succeeded(&outcomes);
    for Outcome { output, .. } in &outcomes {
        assert!(output.contains(&format!("gpu = {}", uuid(1))), "{output}");
        assert!(output.contains("index 0 ") && output.contains("index 1 "), "{output}");
        assert!(output.contains("as its GPU 1 and") && output.contains("both drive it"), "{output}");
        assert!(output.contains("Executor::for_vram"), "{output}");
    }
    stand_in.assert_nothing_left();
}

/// Drains and closes with a driver that fails.
fn drain(_: usize, _: usize, _: &str) {
    let executor = Executor::for_vram(&options()).expect("it is there");
    let error = executor.drain(Mood::Busy, &soon()).expect_err("the GPU has failed");
    assert_eq!(executor.mood(), Mood::Parked, "unchanged");
    say(&format!("drain {}", error.chain()));
    let error = executor.drain(Mood::Busy, &Deadline::after(Duration::from_millis(100)));
    say(&format!("late {}", error.expect_err("it works on").chain()));
    executor.close(&soon()).expect("idle");
}

#[test]
fn drain_waits_for_the_devices_and_names_the_one_that_fails() {
    // The first question is answered by a failure, all others by: not yet.
    let stand_in = StandIn::new(&nvidia(1, "fault cuStreamQuery 1 700\nfault cuStreamQuery -2 600\n"));
    let outcomes = stand_in.apply(Setup::new(1, "gpu.drain")).start().finish();
    assert_all_succeeded(&outcomes);
    let said = transcript(&outcomes);
    let failed = "libcuda.so.1 on GPU 0 (NVIDIA H100, GPU-00000000-1111-2222-3333-444444444444): cuStreamQuery returned 700";
    assert!(
        said.contains(&format!("drain {failed}")) && said.contains("start another process; an illegal"),
        "{said}"
    );
    assert!(said.contains("late waiting for GPU 0 (") && said.contains("timed out"), "{said}");
    // Closing has waited for as long as it may, and left what still works.
    assert_eq!(
        stand_in.calls().last().map(String::as_str),
        Some("left on NVIDIA 0: 1 contexts, 1 streams, 0 events, 0 allocations")
    );
}

/// A child of a process that has opened GPUs.
fn child(_: usize, _: usize, _: &str) {
    let executor = Executor::for_vram(&options()).expect("it is there");
    let child = fork::fork(|| {
        let says = |error: Error, words: &[&str]| words.iter().all(|word| error.to_string().contains(word));
        let drained = executor.drain(Mood::Parked, &soon()).expect_err("made before the fork");
        let opened = Executor::for_vram(&options()).expect_err("the driver is the parent's");
        let closed = executor.close(&soon());
        says(drained, &["before a fork"]) && says(opened, &["before a fork", "spawn"]) && closed.is_ok()
    });
    assert_eq!(fork::wait(child), 0, "the child saw what it should");
    executor.finish(&soon()).expect("idle");
}

#[test]
fn a_forked_child_gets_an_error_and_touches_no_driver() {
    let stand_in = StandIn::new(&nvidia(1, ""));
    assert_all_succeeded(&stand_in.apply(Setup::new(1, "gpu.fork")).start().finish());
    stand_in.assert_nothing_left();
}

/// Opening is interrupted while the driver starts.
fn slow(_: usize, _: usize, _: &str) {
    let asked = AtomicBool::new(false);
    let interrupt = || asked.swap(true, Ordering::SeqCst);
    let error = Executor::for_vram_within(&options(), Some(&interrupt)).expect_err("interrupted");
    assert!(
        matches!(&error, Error::Interrupted { phase, .. } if phase.contains("opening GPU 0 (")),
        "{error}"
    );
    // What is opened afterwards is closed again: nothing is left at the end.
    std::thread::sleep(Duration::from_millis(1500));
}

#[test]
fn a_driver_that_starts_slowly_can_be_interrupted() {
    let stand_in = StandIn::new(&nvidia(1, "stall cuInit 1 1000\n"));
    assert_all_succeeded(&stand_in.apply(Setup::new(1, "gpu.slow")).start().finish());
    assert_eq!(stand_in.count("cuStreamCreate"), stand_in.count("cuStreamDestroy_v2"));
    stand_in.assert_nothing_left();
    assert!(Path::new(&stand_in.path("calls")).exists());
}

/// Makes an arena on all GPUs, writes and reads it, and closes mesh and executor before it.
fn arena(index: usize, count: usize, argument: &str) {
    let each: usize = argument.parse().expect("a number of GPUs");
    let devices = Some((index * each..(index + 1) * each).collect());
    let executor = Executor::for_vram(&VramOptions { devices, ..options() }).expect("they are there");
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let arena = mesh.arena(1000 + 100 * index, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((arena.byte_count(), arena.device_count()), (1000 + 100 * index, each));
    assert!((0..count).all(|index| arena.part(index).is_none()), "the host cannot read it");
    assert!(matches!(arena.own(0..4), Err(Error::Unsupported { .. })));
    assert!(matches!(arena.device_bytes(each, 0..4), Err(Error::Invalid { .. })));
    assert!(matches!(arena.device_bytes(0, 0..9999), Err(Error::Invalid { .. })));
    for device in 0..each {
        let range = arena.take_on(device, 800).expect("there is room");
        assert!(matches!(arena.take_on(device, 800), Err(Error::Exhausted { .. })));
        let bytes = arena.device_bytes(device, range).expect("within");
        assert_eq!(bytes.device_number().expect("it has one"), index * each + device);
        let mut found = [7.0_f64; 100];
        bytes.read(SpanMut::of(&mut found), &soon()).expect("the GPU works");
        assert_eq!(found, [0.0; 100], "zero at first");
        let values = std::array::from_fn::<f64, 100, _>(|position| {
            (index * each + device) as f64 * 1e6 + position as f64
        });
        bytes.write(Span::of(&values), &soon()).expect("the GPU works");
        assert!(matches!(bytes.write(Span::of(&values[1..]), &soon()), Err(Error::Invalid { .. })));
        bytes.read(SpanMut::of(&mut found), &soon()).expect("the GPU works");
        assert_eq!(found, values);
    }
    // A mesh of the same members on host threads gives memory that the host reads.
    let host = Executor::for_ram(&uform::HostOptions { threads: 1, ..uform::HostOptions::default() })
        .expect("a thread");
    let shared = mesh.on(&host).arena(64, &soon()).expect("host memory");
    assert_eq!((shared.device_count(), shared.part(index).map(|part| part.byte_count())), (0, Some(64)));
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
    // The arena holds the GPUs open.
    let bytes = arena.device_bytes(0, 0..8).expect("within");
    drop(arena);
    let mut value = [0.0_f64];
    bytes.read(SpanMut::of(&mut value), &soon()).expect("the GPU works");
    assert_eq!(value, [(index * each) as f64 * 1e6]);
}

#[test]
fn arenas_lie_on_the_gpus_and_the_last_one_closes_them() {
    for (count, each) in [(1, 1), (1, 4), (2, 2)] {
        let stand_in = StandIn::new(&nvidia(count * each, "delay 300\n"));
        let setup = stand_in.apply(Setup::new(count, "gpu.arena").argument(&each.to_string()));
        assert_all_succeeded(&setup.start().finish());
        stand_in.assert_nothing_left();
        assert_eq!(stand_in.count("cuMemAlloc_v2"), count * each);
    }
    let folder = Folder::new();
    let (machine, answers) = amd(&folder, 4, "delay 300\n");
    let stand_in = StandIn::new(&answers);
    let setup = stand_in.apply(Setup::new(2, "gpu.arena").argument("2"));
    assert_all_succeeded(&setup.variable("UFORM_MACHINE", &machine).start().finish());
    stand_in.assert_nothing_left();
}

/// Asks for more than the GPU of index 1 has, and goes on.
fn full(index: usize, _: usize, _: &str) {
    let executor =
        Executor::for_vram(&VramOptions { devices: Some(vec![index]), ..options() }).expect("it is there");
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let error = mesh.arena(if index == 1 { 2 << 20 } else { 64 }, &soon()).expect_err("too much there");
    assert!(
        matches!(error, Error::Exhausted { wanted_bytes: 2_097_152, free_bytes: 1_048_576, .. }),
        "{error}"
    );
    say(&format!("full {}", error.chain()));
    mesh.arena(64, &soon()).expect("the mesh goes on");
}

#[test]
fn a_full_gpu_is_told_to_all_by_name() {
    let stand_in = StandIn::new(&nvidia(2, ""));
    let outcomes = stand_in.apply(Setup::new(2, "gpu.full")).start().finish();
    assert_all_succeeded(&outcomes);
    let full = format!("GPU 1 (NVIDIA H100, {})", uuid(1));
    assert!(outcomes[0].output.contains(&format!("full index 1: {full}")), "{}", outcomes[0].output);
    assert!(outcomes[1].output.contains(&format!("full {full}")), "{}", outcomes[1].output);
    stand_in.assert_nothing_left();
}
