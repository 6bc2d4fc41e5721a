//! The trial multicast object of bootstrap, on the stand-in of NVIDIA's driver: what members agree on of a switch that may reduce.

use std::fs;
use std::time::Duration;

use uform::vocabulary::{MultimemTier, ReduceOp, Verb};
use uform::{Call, Executor, GpuArrays, Mesh, MeshOptions, SpanMut, VramOptions};

use super::gpu::{nvidia_switched, options, soon, uuid};
use crate::harness::network::Hosts;
use crate::harness::stand_in::StandIn;
use crate::harness::{Folder, Outcome, Role, Setup, assert_all_succeeded, say, transcript};

/// The roles of these tests.
pub(crate) const ROLES: &[(&str, Role)] = &[("multicast.tell", tell), ("multicast.sum", sum)];

/// The libraries without a collective one.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// Says what this member finds of the run; the argument is how many GPUs each has, and the seconds of bootstrap.
fn tell(index: usize, _: usize, argument: &str) {
    let (counts, seconds) = argument.split_once(' ').expect("two words");
    let counts = counts.split(',').map(|count| count.parse().expect("a number")).collect::<Vec<usize>>();
    let first = counts[..index].iter().sum::<usize>();
    let devices = Some((first..first + counts[index]).collect());
    let executor = Executor::for_vram(&VramOptions { devices, ..options() });
    let executor = executor.unwrap_or_else(|error| panic!("{}", error.chain()));
    let timeout_seconds = seconds.parse().expect("seconds");
    let asked = MeshOptions { timeout_seconds, ..MeshOptions::default() };
    let mesh =
        Mesh::bootstrap(Some(&executor), Some(&asked)).unwrap_or_else(|error| panic!("{}", error.chain()));
    let described = mesh.describe();
    assert_eq!(described.first_gpu_index, first);
    assert_eq!(described.gpus_per_host_domain, counts[index]);
    say(&format!("tier {}, {}", described.multimem_tier, mesh.topology().tier_reason()));
    let half = mesh.split(Some(index as u64 % 2), 0).unwrap_or_else(|error| panic!("{}", error.chain()));
    let tier = half.map_or(MultimemTier::PeerRead, |half| half.describe().multimem_tier);
    say(&format!("half {tier}"));
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

fn told(stand_in: &StandIn, counts: &str) -> Vec<Outcome> {
    told_within(stand_in, counts, 30)
}

fn told_within(stand_in: &StandIn, counts: &str, seconds: usize) -> Vec<Outcome> {
    let members = counts.split(',').count();
    let setup = Setup::new(members, "multicast.tell").argument(&format!("{counts} {seconds}"));
    let outcomes = stand_in.apply(setup).start().finish();
    assert_all_succeeded(&outcomes);
    stand_in.assert_nothing_left();
    outcomes
}

#[test]
fn a_switch_reduces_where_every_member_binds_its_part_of_one_object() {
    for counts in ["2", "4", "1,1", "2,2", "1,3", "1,1,1,1"] {
        let total = counts.split(',').map(|count| count.parse::<usize>().expect("a number")).sum();
        let stand_in = StandIn::with(&nvidia_switched(total, ""), &DRIVER, &[]);
        let outcomes = told(&stand_in, counts);
        let all = transcript(&outcomes);
        assert!(outcomes.iter().all(|outcome| outcome.output.contains("tier SWITCH_REDUCED")), "{all}");
        let wide = counts == "1,1,1,1";
        // Members that share a domain after a split try once more.
        assert_eq!(
            all.matches("half SWITCH_REDUCED").count() > 0,
            wide || counts.contains(['2', '3', '4']),
            "{all}"
        );
        assert!(stand_in.count("cuMulticastBindMem") >= total);
        assert_eq!(stand_in.count("cuMulticastBindMem"), stand_in.count("cuMulticastUnbind"));
    }
}

#[test]
fn what_one_member_cannot_do_is_denied_for_all_with_its_name_and_the_call() {
    for (counts, fault, member, call) in [
        ("2,2", "at 0 fault cuMulticastCreate 1 801\n", 0, "cuMulticastCreate returned 801"),
        ("2,2", "at 0 fault cuMulticastGetGranularity 1 801\n", 0, "cuMulticastGetGranularity"),
        ("2,2", "at 0 fault cuMemExportToShareableHandle 1 1\n", 0, "cuMemExportToShareableHandle"),
        ("2,2", "at 1 fault cuMemImportFromShareableHandle 1 1\n", 1, "cuMemImportFromShareableHandle"),
        ("2,2", "at 1 fault cuMulticastAddDevice 2 101\n", 1, "cuMulticastAddDevice returned 101"),
        ("1,1,1", "at 2 fault cuMulticastBindMem 1 2\n", 2, "GPU 2 ("),
        ("2,2", "at 1 fault cuMemCreate 1 2\n", 1, "cuMemCreate returned 2"),
        ("2", "fault cuMulticastBindMem 2 999\n", 0, "cuMulticastBindMem returned 999"),
    ] {
        let total = counts.split(',').map(|count| count.parse::<usize>().expect("a number")).sum();
        let stand_in = StandIn::with(&nvidia_switched(total, fault), &DRIVER, &[]);
        let outcomes = told(&stand_in, counts);
        let all = transcript(&outcomes);
        for Outcome { output, .. } in &outcomes {
            let line = output.lines().find(|line| line.starts_with("tier ")).unwrap_or_default();
            let named = format!("index {member} (");
            let words = ["PEER_READ", "could not bind its part", &named, call];
            assert!(words.iter().all(|word| line.contains(word)), "{fault}{all}");
        }
    }
}

#[test]
fn a_driver_without_multicast_and_a_gpu_that_denies_it_are_named() {
    let stand_in = StandIn::with(&nvidia_switched(2, ""), &DRIVER, &["-DNO_MULTICAST"]);
    for Outcome { output, .. } in told(&stand_in, "1,1") {
        assert!(output.contains("tier PEER_READ") && output.contains("CUDA 12.1"), "{output}");
    }
    // The management library speaks for it, and the driver does not.
    let answers = nvidia_switched(2, "").replace("multicast 0\n", "");
    let stand_in = StandIn::with(&answers, &DRIVER, &[]);
    for Outcome { output, .. } in told(&stand_in, "2") {
        let words = ["tier PEER_READ", "index 0", "GPU 0 (", "cannot be part of one"];
        assert!(words.iter().all(|word| output.contains(word)), "{output}");
    }
    assert_eq!(stand_in.count("cuMulticastCreate"), 0);
}

#[test]
fn a_driver_that_does_not_answer_costs_a_part_of_the_time_and_the_tier() {
    let stand_in =
        StandIn::with(&nvidia_switched(2, "at 1 stall cuMulticastAddDevice 1 5000\n"), &DRIVER, &[]);
    let start = std::time::Instant::now();
    let setup = Setup::new(2, "multicast.tell").argument("1,1 12");
    let outcomes = stand_in.apply(setup).start().finish();
    assert_all_succeeded(&outcomes);
    let all = transcript(&outcomes);
    assert!(outcomes.iter().all(|outcome| outcome.output.contains("tier PEER_READ")), "{all}");
    assert!(all.contains("adding GPUs to a multicast object"), "{all}");
    assert!(start.elapsed() < Duration::from_secs(3 * 12), "{:?}", start.elapsed());
}

#[test]
fn without_a_claim_nothing_is_tried() {
    let stand_in = StandIn::with(&super::gpu::nvidia(4, ""), &DRIVER, &[]);
    for Outcome { output, .. } in told(&stand_in, "2,2") {
        assert!(output.contains("tier PEER_READ") && output.contains("belongs to no fabric"), "{output}");
    }
    assert_eq!(stand_in.count("cuMulticastGetGranularity"), 0);
}

/// A recorded host with two GPUs of a fabric that joins hosts.
fn host(folder: &Folder, number: usize, clique: usize) {
    let root = folder.path().join(format!("host{number}"));
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("writable");
        fs::write(path, text).expect("writable");
    };
    write("machine.json", &format!("{{\"host_name\": \"tray{number}\", \"boot_id\": \"boot{number}\"}}"));
    write("sys/devices/system/cpu/online", "0-1\n");
    write("sys/devices/system/node/node0/cpulist", "0-1\n");
    write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1048576 kB\n");
    let gpus = (0..2).map(|ordinal| {
        let gpu = 2 * number + ordinal;
        format!(
            "{{\"index\": {ordinal}, \"uuid\": \"{}\", \"name\": \"NVIDIA GB200\", \"pci_address\": \"0000:{:02x}:00.0\", \
             \"compute_capability\": \"10.0\", \"memory_bytes\": 1048576, \"cores\": 16896, \
             \"links\": [{{\"peer\": \"switch\", \"count\": 18}}], \"multicast\": true, \
             \"fabric\": {{\"cluster\": \"9a1436f1-15fc-4b03-bd7d-bbe2c54cf1d3\", \"clique\": {clique}, \
             \"state\": \"completed\", \"status\": 0, \"health\": \"healthy\"}}}}",
            uuid(gpu),
            0x1b + gpu
        )
    });
    let gpus = gpus.collect::<Vec<_>>().join(",");
    let answers =
        format!("{{\"driver_version\": \"570\", \"cuda_version\": \"12.8\", \"devices\": [{gpus}]}}");
    write("gpus.json", &answers);
}

/// Sums long arrays of all GPUs of this host with those of others.
fn sum(index: usize, count: usize, argument: &str) {
    let executor = Executor::for_vram(&options()).unwrap_or_else(|error| panic!("{}", error.chain()));
    assert_eq!(executor.gpus().len(), 2);
    let mesh = Mesh::bootstrap(Some(&executor), None).unwrap_or_else(|error| panic!("{}", error.chain()));
    let described = mesh.describe();
    assert_eq!(described.multimem_tier.to_string(), "SWITCH_REDUCED", "{}", mesh.topology().tier_reason());
    assert_eq!(described.gpus_per_multimem_domain, argument.parse::<usize>().expect("a number"));
    assert_eq!(mesh.topology().hosts().len(), count);
    let (length, arena) = (9001_usize, mesh.arena(128 << 10, &soon()).expect("there is room"));
    let parts = (0..2).map(|gpu| arena.device_bytes(gpu, 0..8 * length).expect("within")).collect::<Vec<_>>();
    for (gpu, part) in parts.iter().enumerate() {
        let place = 2 * index + gpu;
        let values = (0..length).map(|position| (place * 10_000 + position) as f64).collect::<Vec<_>>();
        part.write(uform::Span::of(&values), &soon()).expect("the GPU works");
    }
    let arrays =
        parts.iter().map(|part| GpuArrays { input: None, output: Some(part.span().expect("within")) });
    let call = Call::on_gpus(Verb::AllReduce, uform::Dtype::F64, ReduceOp::Sum, 0, arrays);
    mesh.run(call, &soon()).unwrap_or_else(|error| panic!("{}", error.chain()));
    let total = 2 * count;
    for part in &parts {
        let mut found = vec![0.0_f64; length];
        part.read(SpanMut::of(&mut found[..]), &soon()).expect("the GPU works");
        let wanted =
            |position: usize| (0..total).map(|place| (place * 10_000 + position) as f64).sum::<f64>();
        assert!(found.iter().enumerate().all(|(position, found)| *found == wanted(position)));
    }
    drop((parts, arena));
    mesh.close().expect("idle");
    executor.finish(&soon()).expect("idle");
}

#[test]
fn a_domain_spans_hosts_where_their_gpus_are_of_one_clique() {
    // One domain of both hosts; and two domains of two hosts each, which are tiers.
    for (cliques, size, splits) in [(&[7, 7][..], "4", 0), (&[7, 7, 8, 8], "4", 16)] {
        let Some(hosts) = Hosts::new(cliques.len()) else { return };
        let folder = Folder::new();
        for (number, clique) in cliques.iter().enumerate() {
            host(&folder, number, *clique);
        }
        let total = 2 * cliques.len();
        let names = [&DRIVER[..], &["libnccl.so.2"]].concat();
        let stand_in = StandIn::with(&nvidia_switched(total, ""), &names, &[]);
        let setup = Setup::new(cliques.len(), "multicast.sum").argument(size).networks(&hosts.networks());
        let machine = folder.path().join("host{index}").display().to_string();
        let setup = stand_in.apply(setup).variable("UFORM_MACHINE", &machine);
        let setup = setup.variable("UFORM_LOCAL_COUNT", "1").variable("UFORM_LOCAL_INDEX", "0");
        // Names of sockets are a network's own, and hosts have several.
        let setup = setup.variable("STAND_IN_SOCKETS", &folder.path().display().to_string());
        assert_all_succeeded(&setup.start().finish());
        stand_in.assert_nothing_left();
        assert_eq!(stand_in.count("ncclCommSplit"), splits);
        assert_eq!(stand_in.count("cuMulticastBindMem"), total);
    }
}
