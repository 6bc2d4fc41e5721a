//! Machines that are looked at: a stand-in for NVIDIA's library with every usual fault, recorded machines whole and
//! damaged, and runs on them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use uform::vocabulary::GpuClass;
use uform::{HostOptions, Mesh, ReduceOp, device};

use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] =
    &[("device.look", look), ("device.form", form), ("device.apart", apart), ("device.refuse", refuse)];

/// Says all that a process may find out without starting a GPU runtime.
fn look(_: usize, _: usize, _: &str) {
    let view = device::view().unwrap_or_else(|error| panic!("{}", error.chain()));
    for gpu in device::gpu_devices().expect("this machine can be looked at") {
        let links = gpu.links.iter().map(|link| format!("{}x{}", link.peer, link.count)).collect::<Vec<_>>();
        let fabric = gpu.fabric.map(|fabric| (fabric.cluster, fabric.clique, fabric.complete));
        say(&format!(
            "gpu {} {} `{}` {} {} {} {} {fabric:?} {links:?}",
            gpu.vendor_ordinal,
            gpu.identity,
            gpu.name,
            gpu.gpu_class.map_or("none", GpuClass::name),
            gpu.compute_units,
            gpu.memory_bytes,
            gpu.multicast,
        ));
    }
    say(&format!("all {:?}", view.survey.gpus.iter().map(|gpu| &gpu.identity).collect::<Vec<_>>()));
    say(&format!("notes {:?}", view.notes));
    say(&format!("available {}", device::capabilities_available().expect("this machine can be looked at")));
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let mut values = [3.0_f32];
    mesh.all_reduce(&mut values, ReduceOp::Sum).expect("one process");
    mesh.close().expect("idle");
}

/// What the role says with the stand-ins in the dynamic linker's way.
fn look_at(stand_in: &StandIn, variables: &[(&str, &str)]) -> String {
    let mut setup = stand_in.apply(Setup::new(1, "device.look").without_launcher());
    for (name, value) in variables {
        setup = setup.variable(name, value);
    }
    let outcomes = setup.start().finish();
    assert_all_succeeded(&outcomes);
    transcript(&outcomes)
}

/// Nothing of CUDA was called, and the management library was ended as often as it was started.
fn assert_calm(stand_in: &StandIn) {
    let calls = stand_in.calls();
    let count = |name: &str| stand_in.count(name);
    assert!(count("nvmlInit_v2") > 0, "{calls:?}");
    assert_eq!(count("nvmlInit_v2"), count("nvmlShutdown"), "{calls:?}");
    assert_eq!(calls.len(), count("nvmlInit_v2") + count("nvmlShutdown"), "{calls:?}");
}

/// The libraries of NVIDIA's.
const NVIDIA: &[&str] = &["libcuda.so.1", "libnvidia-ml.so.1"];

/// The lines that start with a word, without it.
fn lines<'a>(said: &'a str, word: &str) -> Vec<&'a str> {
    said.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' ')).collect()
}

/// Two Hopper behind switches in a cluster, a pair of Ampere with direct links, one of them cut.
const FOUR: &str = "\
init 0
count 4
cuda 12080
device 0 0 0 GPU-a0 1b 9 0 16896 80 18 0 0 3 0 7 170 0 NVIDIA H100 80GB HBM3
device 1 0 0 GPU-a1 1c 9 0 16896 80 18 0 0 3 0 7 154 0 NVIDIA H100 80GB HBM3
device 2 0 0 GPU-b0 4d 8 0 6912 40 0 4e 12 0 0 0 0 0 NVIDIA A100-SXM4-40GB
device 3 0 0 GPU-b1 4e 8 0 6912 40 0 4d 12 0 0 0 0 1 NVIDIA A100-SXM4-40GB
instance 3 MIG-c0 1 0 20 42 NVIDIA A100-SXM4-40GB MIG 3g.20gb
instance 3 MIG-c1 2 0 20 42 NVIDIA A100-SXM4-40GB MIG 3g.20gb
";

#[test]
fn nvidia_is_asked_without_starting_cuda() {
    let stand_in = StandIn::new(FOUR);
    let cluster = "abababab-abab-abab-abab-abababababab";
    let said = look_at(&stand_in, &[("CUDA_VISIBLE_DEVICES", "1,0,2"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    let expected = [
        format!(
            "1 GPU-a1 `NVIDIA H100 80GB HBM3` NVIDIA_HOPPER 132 80 true Some((\"{cluster}\", 7, false)) [\"switchx18\"]"
        ),
        format!(
            "0 GPU-a0 `NVIDIA H100 80GB HBM3` NVIDIA_HOPPER 132 80 true Some((\"{cluster}\", 7, true)) [\"switchx18\"]"
        ),
        "2 GPU-b0 `NVIDIA A100-SXM4-40GB` NVIDIA_AMPERE 108 40 false None [\"GPU-b1x12\"]".to_owned(),
    ];
    assert_eq!(lines(&said, "gpu"), expected, "{said}");
    assert_eq!(lines(&said, "all"), [r#"["GPU-a0", "GPU-a1", "GPU-b0", "MIG-c0", "MIG-c1"]"#], "{said}");
    assert_eq!(lines(&said, "notes"), ["[]"], "{said}");
    assert!(lines(&said, "available")[0].split(' ').any(|word| word == "cuda-12.8"), "{said}");
    assert_calm(&stand_in);
    let said = look_at(&stand_in, &[("CUDA_VISIBLE_DEVICES", "MIG-c1")]);
    let expected = "3 MIG-c1 `NVIDIA A100-SXM4-40GB MIG 3g.20gb` NVIDIA_AMPERE 42 20 false None []";
    assert_eq!(lines(&said, "gpu"), [expected], "{said}");
    assert_eq!(lines(&look_at(&stand_in, &[("CUDA_VISIBLE_DEVICES", "")]), "gpu"), [""; 0]);
    assert_calm(&stand_in);
}

#[test]
fn a_driver_that_does_not_start_is_a_note_with_its_own_words() {
    for (code, text) in [
        (9, "9: Driver Not Loaded"),
        (18, "18: Driver/library version mismatch"),
        (4, "4: Insufficient Permissions"),
        (999, "999: Unknown Error"),
    ] {
        let stand_in = StandIn::new(&format!("init {code}\n"));
        let said = look_at(&stand_in, &[]);
        assert!(lines(&said, "gpu").is_empty(), "{said}");
        let note = lines(&said, "notes")[0];
        assert!(note.contains(&format!("nvmlInit_v2 returned {text}")), "{said}");
        // What did not start is not ended, and nothing else is called.
        assert!(stand_in.calls().iter().all(|call| call == "nvmlInit_v2"), "{:?}", stand_in.calls());
    }
}

#[test]
fn a_lost_gpu_leaves_the_others_and_one_that_is_kept_away_is_not_there() {
    let answers = "\
init 0
count 4
cuda 12080
device 0 0 0 GPU-a0 1b 8 0 6912 40 0 1d 12 0 0 0 0 0 NVIDIA A100-SXM4-40GB
device 1 0 15 GPU-a1 1c 8 0 6912 40 0 1b 12 0 0 0 0 0 NVIDIA A100-SXM4-40GB
device 2 15 0 GPU-a2 1d 8 0 6912 40 0 1b 12 0 0 0 0 0 NVIDIA A100-SXM4-40GB
device 3 4 0 GPU-a3 1e 8 0 6912 40 0 1b 12 0 0 0 0 0 NVIDIA A100-SXM4-40GB
";
    let stand_in = StandIn::new(answers);
    let said = look_at(&stand_in, &[]);
    let expected = "0 GPU-a0 `NVIDIA A100-SXM4-40GB` NVIDIA_AMPERE 108 40 false None []";
    assert_eq!(lines(&said, "gpu"), [expected], "{said}");
    let notes = lines(&said, "notes")[0];
    assert_eq!(notes.matches("GPU is lost").count(), 2, "{said}");
    assert!(
        notes.contains("NVIDIA GPU 1") && notes.contains("NVIDIA GPU 2") && !notes.contains("GPU 3"),
        "{said}"
    );
    assert_calm(&stand_in);
}

#[test]
fn drivers_that_lack_functions_are_asked_for_the_rest() {
    let old = StandIn::with(FOUR, NVIDIA, &["-DOLD"]);
    let said = look_at(&old, &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]);
    let gpus = lines(&said, "gpu");
    // Neither cores nor the kind of what a link goes to are told; the fabric is, by its first form.
    assert!(gpus[0].starts_with("0 GPU-a0 `NVIDIA H100 80GB HBM3` NVIDIA_HOPPER 0 80 true Some("), "{said}");
    assert_eq!(gpus.len(), 4, "{said}");
    assert!(gpus[2].ends_with(r#"["GPU-b1x12"]"#), "{said}");
    assert_calm(&old);
    let foreign = StandIn::with(FOUR, NVIDIA, &["-DnvmlInit_v2=anotherInit"]);
    let said = look_at(&foreign, &[]);
    assert!(
        lines(&said, "gpu").is_empty() && said.contains("lacks a function that every NVML has"),
        "{said}"
    );
}

#[test]
fn capabilities_this_version_does_not_know_keep_their_names() {
    let stand_in = StandIn::new(
        "init 0\ncount 1\ncuda 13040\ndevice 0 0 0 GPU-a0 1b 14 3 1000 80 0 0 0 0 0 0 0 -1 NVIDIA Next\n",
    );
    let said = look_at(&stand_in, &[]);
    assert_eq!(lines(&said, "gpu"), ["0 GPU-a0 `NVIDIA Next` none 0 80 false None []"], "{said}");
}

#[test]
fn nccl_tells_its_version_and_starts_nothing() {
    let names = [NVIDIA, &["libnccl.so.2"]].concat();
    let stand_in = StandIn::with(FOUR, &names, &["-DNCCL_VERSION=22705"]);
    let said = look_at(&stand_in, &[]);
    let available = lines(&said, "available")[0];
    assert!(available.ends_with("cuda-12.8 nccl-2.27.5"), "{said}");
    assert_calm(&stand_in);
}

/// A recorded machine of four cores in two domains, with two H100.
fn machine(folder: &Path, name: &str, boot: &str) -> String {
    let files = [
        (
            "machine.json",
            format!("{{\"host_name\": \"{name}\", \"boot_id\": \"{boot}\", \"allowed_cores\": \"1-3\"}}"),
        ),
        ("sys/devices/system/cpu/online", "0-3\n".to_owned()),
        ("sys/devices/system/node/node0/cpulist", "0-1\n".to_owned()),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\n".to_owned()),
        ("sys/devices/system/node/node1/cpulist", "2-3\n".to_owned()),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 1048576 kB\n".to_owned()),
        ("sys/bus/pci/devices/0000:1b:00.0/numa_node", "1\n".to_owned()),
        ("proc/self/cgroup", "0::/job\n".to_owned()),
        ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n".to_owned()),
        ("sys/fs/cgroup/job/cpu.max", "200000 100000\n".to_owned()),
        (
            "gpus.json",
            format!(
                r#"{{"cuda_version": "12.8", "devices": [
                {{"index": 0, "uuid": "GPU-{name}-0", "name": "H100", "pci_address": "00000000:1B:00.0",
                 "compute_capability": "9.0", "memory_bytes": 80, "cores": 16896, "links": [{{"peer": "switch", "count": 18}}]}},
                {{"index": 1, "uuid": "GPU-{name}-1", "name": "H100", "compute_capability": "9.0", "memory_bytes": 80}}]}}"#
            ),
        ),
    ];
    let root = folder.join(name);
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder is writable");
        fs::write(path, text).expect("the folder is writable");
    }
    root.display().to_string()
}

#[test]
fn a_recorded_machine_is_seen_as_it_was() {
    let folder = Folder::new();
    let root = machine(folder.path(), "dgx", "b1");
    let view = device::recorded(Path::new(&root)).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!((view.survey.host_name.as_str(), view.survey.boot_id.as_str()), ("dgx", "b1"));
    assert_eq!((view.survey.cores, view.cores, view.quota_cores), (vec![0, 1, 2, 3], vec![1, 2, 3], Some(2)));
    assert_eq!(view.survey.memory_domains.len(), 2);
    assert_eq!((view.survey.gpus[0].memory_domain, view.survey.gpus[1].memory_domain), (Some(1), None));
    assert_eq!((view.survey.gpus[0].compute_units, view.survey.gpus[1].compute_units), (132, 0));
    // What a process does not set is as recorded; what it sets counts.
    fs::write(Path::new(&root).join("environment.json"), r#"{"CUDA_VISIBLE_DEVICES": "1"}"#)
        .expect("writable");
    for (variables, expected) in [(&[][..], "1 GPU-dgx-1"), (&[("CUDA_VISIBLE_DEVICES", "0")], "0 GPU-dgx-0")]
    {
        let mut setup = Setup::new(1, "device.look").without_launcher().variable("UFORM_MACHINE", &root);
        for (name, value) in variables {
            setup = setup.variable(name, value);
        }
        let outcomes = setup.start().finish();
        assert_all_succeeded(&outcomes);
        let said = transcript(&outcomes);
        let gpus = lines(&said, "gpu");
        assert!(gpus.len() == 1 && gpus[0].starts_with(expected), "{said}");
        assert_eq!(lines(&said, "available"), ["serial cuda-12.8"], "{said}");
    }
}

/// Members of one recorded host form one run there, on cores that the real machine may lack.
fn form(index: usize, count: usize, _: &str) {
    let executor = uform::Executor::for_ram(&HostOptions::default()).expect("cores of another machine");
    assert_eq!(executor.threads(), 2, "the recorded quota");
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let topology = mesh.topology();
    assert_eq!(topology.hosts().len(), 1, "{topology}");
    assert_eq!((topology.hosts()[0].name.as_str(), topology.gpus().len()), ("dgx", count), "{topology}");
    assert_eq!(mesh.describe().first_gpu_index, index);
    let survey = topology.survey(index).expect("a member");
    assert_eq!((survey.boot_id.as_str(), survey.cores.len()), ("b1", 4));
    let mut values = [index as f64 * 1e6 + 1.0];
    mesh.all_reduce(&mut values, ReduceOp::Sum).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(values, [1e6 + 2.0]);
    mesh.close().expect("idle");
}

#[test]
fn processes_of_one_recorded_machine_share_it() {
    let folder = Folder::new();
    let root = machine(folder.path(), "dgx", "b1");
    let run =
        Setup::new(2, "device.form").variable("UFORM_MACHINE", &root).deadline(Duration::from_secs(180));
    assert_all_succeeded(&run.start().finish());
}

/// Members of two recorded machines are on two hosts, and connected over the network.
fn apart(index: usize, _: usize, _: &str) {
    let mesh = Mesh::bootstrap(None, None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let hosts = mesh.topology().hosts().iter().map(|host| (host.name.as_str(), host.members.as_slice()));
    assert_eq!(hosts.collect::<Vec<_>>(), [("left", &[0][..]), ("right", &[1])], "{}", mesh.topology());
    let mut values = [index as f64 * 1e6 + 1.0];
    mesh.all_reduce(&mut values, ReduceOp::Sum).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(values, [1e6 + 2.0]);
    mesh.close().expect("idle");
}

#[test]
fn processes_of_two_recorded_machines_are_on_two_hosts() {
    let folder = Folder::new();
    let start = |index: usize, name: &str| {
        let root = machine(folder.path(), name, name);
        Setup::new(2, "device.apart")
            .only(&[index])
            .meeting(&folder.path().join("meeting"))
            .variable("UFORM_JOB", "apart")
            .variable("UFORM_LOCAL_COUNT", "1")
            .variable("UFORM_LOCAL_INDEX", "0")
            .variable("UFORM_MACHINE", &root)
            .deadline(Duration::from_secs(180))
            .start()
    };
    let (left, right) = (start(0, "left"), start(1, "right"));
    assert_all_succeeded(&left.finish());
    assert_all_succeeded(&right.finish());
}

/// A damaged machine is told with its file by everything that looks.
fn refuse(_: usize, _: usize, argument: &str) {
    let errors = [
        device::view().map(|_| ()).expect_err("damaged"),
        device::gpu_devices().map(|_| ()).expect_err("damaged"),
        device::capabilities_available().map(|_| ()).expect_err("damaged"),
        uform::Executor::for_ram(&HostOptions::default()).map(|_| ()).expect_err("damaged"),
        Mesh::bootstrap(None, None).map(|_| ()).expect_err("damaged"),
    ];
    for error in errors {
        let text = error.chain();
        assert!(argument.split('|').all(|part| text.contains(part)), "{text} lacks some of {argument}");
    }
}

#[test]
fn damaged_machines_say_which_file_and_what_to_do() {
    let folder = Folder::new();
    for (number, (file, bytes, parts)) in [
        ("machine.json", None, "UFORM_MACHINE|holds no machine.json"),
        ("machine.json", Some(&b"{}"[..]), "machine.json is corrupt|host_name"),
        (
            "machine.json",
            Some(b"{\"host_name\": \"a\", \"boot_id\": \"b\", \"allowed_cores\": \"7\"}"),
            "machine.json|allowed_cores",
        ),
        (
            "machine.json",
            Some(b"{\"host_name\": \"a\", \"boot_id\": \"b\", \"engines\": [\"ncll-2\"]}"),
            "machine.json|ncll-2|nccl",
        ),
        (
            "machine.json",
            Some(b"{\"host_name\": \"a\", \"boot_id\": \"b\", \"processor\": \"odd\"}"),
            "machine.json|processor",
        ),
        ("machine.json", Some(b"\xff\xfe"), "machine.json is corrupt at byte 0|UTF-8"),
        ("gpus.json", Some(b"{\"devices\": [{\"index\": -1}]}"), "gpus.json is corrupt at byte|u32"),
        ("gpus.json", Some(b"{\"gpus\": []}"), "gpus.json|unknown field `gpus`"),
        (
            "environment.json",
            Some(b"{\"LD_PRELOAD\": \"x\"}"),
            "environment.json|LD_PRELOAD|CUDA_VISIBLE_DEVICES",
        ),
        ("sys/devices/system/cpu/online", None, "cpu/online|such as 0-7"),
        ("sys/devices/system/cpu/online", Some(b"many"), "cpu/online|such as 0-7"),
    ]
    .into_iter()
    .enumerate()
    {
        let root = machine(folder.path(), &format!("m{number}"), "b");
        let path = Path::new(&root).join(file);
        match bytes {
            Some(bytes) => fs::write(path, bytes).expect("writable"),
            None => fs::remove_file(path).expect("it is there"),
        }
        let setup = Setup::new(1, "device.refuse").without_launcher().argument(parts);
        assert_all_succeeded(&setup.variable("UFORM_MACHINE", &root).start().finish());
    }
    let nowhere = folder.path().join("nowhere").display().to_string();
    let setup = Setup::new(1, "device.refuse").without_launcher().argument("UFORM_MACHINE|nowhere");
    assert_all_succeeded(&setup.variable("UFORM_MACHINE", &nowhere).start().finish());
}

/// The files of a recorded machine that has every kind of file, and what they hold.
fn every_file() -> Vec<(&'static str, Vec<u8>)> {
    let nodes = "cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\nunique_id 5\nhive_id 9\n\
                 location_id 3072\ndomain 0\ndrm_render_minor 128\ndevice_id 29857\n";
    let mig = r#"{"devices": [{"index": 0, "uuid": "GPU-0", "pci_address": "0:1b:0.0", "compute_capability": "8.0", "cores": 6912,
        "fabric": {"cluster": "0", "state": "completed"}, "links": [{"peer": "0:1c:0.0", "count": 4}],
        "mig": {"instances": [{"uuid": "MIG-0", "name": "a"}]}}]}"#;
    [
        (
            "machine.json",
            r#"{"host_name": "a", "boot_id": "b", "allowed_cores": "0", "processor": "architecture=other"}"#,
        ),
        ("gpus.json", mig),
        ("environment.json", r#"{"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0"}"#),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/node/node0/cpulist", "0-3\n"),
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\n"),
        ("sys/bus/pci/devices/0000:0c:00.0/numa_node", "0\n"),
        ("sys/bus/pci/devices/0000:0c:00.0/revision", "0x00\n"),
        ("usr/share/libdrm/amdgpu.ids", "74A1,\t00,\tAMD Instinct MI300X\n"),
        ("opt/rocm/.info/version", "6.4.1-83\n"),
        ("dev/dri/renderD128", ""),
        ("proc/self/cgroup", "0::/job\n"),
        ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
        ("sys/fs/cgroup/job/cpu.max", "200000 100000\n"),
        ("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "7\n"),
        ("sys/class/kfd/kfd/topology/nodes/1/properties", nodes),
        ("sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 100\n"),
        ("sys/class/kfd/kfd/topology/nodes/1/io_links/0/properties", "type 11\nnode_to 1\n"),
    ]
    .map(|(path, text)| (path, text.as_bytes().to_vec()))
    .to_vec()
}

#[test]
fn every_file_of_a_machine_counts() {
    let folder = Folder::new();
    for (path, bytes) in every_file() {
        write(folder.path(), path, &bytes);
    }
    let view = device::recorded(folder.path()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let gpus = view.gpus.iter().map(|gpu| (gpu.identity.as_str(), gpu.name.as_str())).collect::<Vec<_>>();
    assert_eq!(gpus, [("MIG-0", "a"), ("GPU-0000000000000005", "AMD Instinct MI300X")]);
    let amd = &view.gpus[1];
    assert_eq!((amd.compute_units, amd.memory_bytes, amd.memory_domain), (304, 100, Some(0)));
    assert_eq!((amd.gpu_class, amd.pci_address.as_str()), (Some(GpuClass::AmdCdna3), "0000:0c:00.0"));
    assert_eq!(view.notes.len(), 1, "{:?}", view.notes);
    assert!(
        view.notes[0].contains("ROCR_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES are both set"),
        "{:?}",
        view.notes
    );
    fs::remove_file(folder.path().join("dev/dri/renderD128")).expect("it is there");
    let view = device::recorded(folder.path()).expect("whole");
    assert!(view.gpus.len() == 1 && view.notes[0].contains("renderD128"), "{:?}", view.notes);
}

fn write(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder is writable");
    fs::write(path, bytes).expect("the folder is writable");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn no_damage_is_a_panic(
        file in 0_usize..18,
        places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<Option<prop::sample::Index>>(),
        stretch in proptest::option::of("[0-9,-]{1,30}"),
    ) {
        let folder = Folder::new();
        for (number, (path, mut bytes)) in every_file().into_iter().enumerate() {
            if number == file {
                for (place, byte) in &places {
                    if !bytes.is_empty() {
                        let at = place.index(bytes.len());
                        bytes[at] = *byte;
                    }
                }
                if let Some(cut) = cut {
                    bytes.truncate(cut.index(bytes.len() + 1));
                }
                bytes.extend(stretch.iter().flat_map(|text| text.bytes()));
            }
            write(folder.path(), path, &bytes);
        }
        match device::recorded(folder.path()) {
            Ok(view) => prop_assert!(view.gpus.len() <= view.survey.gpus.len()),
            Err(error) => {
                let text = error.to_string();
                let path = every_file()[file].0;
                prop_assert!(text.contains(path), "{text} does not name {path}");
            }
        }
    }
}
