//! Recorded rosters and what must follow from them, and properties that hold for every roster.
//!
//! A fixture under `tests/fixtures/topology` holds machines, their GPUs, members and findings, a line `---`, and the
//! tree, plans, descriptions and placements of all members, or the error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use proptest::prelude::*;
use uform::error::Result;
use uform::topology::{
    Domain, Fabric, Findings, GpuDevice, GpuLink, Introduction, Member, MemoryDomain, Placement, Plan,
    Process, Request, Roster, Seeker, Survey, Topology, ranges,
};
use uform::vocabulary::{CpuClass, GpuClass, GpuVendor, MultimemTier};

/// `0-2,5` as numbers; empty for nothing.
fn numbers(text: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().expect(text), last.parse().expect(text));
        found.extend(first..=last);
    }
    found
}

fn indexes(text: &str) -> Vec<usize> {
    numbers(text).into_iter().map(|number| number as usize).collect()
}

/// `GPU-{0-3}` as four names.
fn names(text: &str) -> Vec<String> {
    match text.split_once('{') {
        Some((stem, range)) => {
            numbers(range.trim_end_matches('}')).iter().map(|number| format!("{stem}{number}")).collect()
        }
        None => text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
    }
}

/// A roster with its findings and the cut asked for, as a fixture tells them.
#[derive(Default)]
pub(super) struct Recorded {
    machines: BTreeMap<String, Survey>,
    pub(super) members: Vec<Member>,
    pub(super) findings: Vec<Findings>,
    cut: usize,
}

impl Recorded {
    fn read(text: &str) -> Self {
        let mut recorded = Self::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split(' ');
            let (kind, name) = (words.next().expect(line), words.next().expect(line));
            let values = words.map(|word| word.split_once('=').expect(line)).collect::<BTreeMap<_, _>>();
            let value = |key: &str| values.get(key).copied().unwrap_or_default();
            match kind {
                "machine" => recorded.machine(name, value),
                "gpu" => recorded.gpus(name, value),
                "member" => recorded.member(name, value),
                "finding" => recorded.finding(name, value),
                "cut" => recorded.cut = name.parse().expect(line),
                _ => panic!("unknown line: {line}"),
            }
        }
        recorded
    }

    pub(super) fn machine<'a>(&mut self, name: &str, value: impl Fn(&str) -> &'a str) {
        let domains = value("domains").split('/').enumerate().map(|(ordinal, cores)| MemoryDomain {
            ordinal: ordinal as u32,
            cores: numbers(cores),
            memory_bytes: 16 << 30,
        });
        let domains = domains.collect::<Vec<_>>();
        let survey = Survey {
            host_name: name.to_owned(),
            boot_id: value("boot").to_owned(),
            cores: domains.iter().flat_map(|domain| domain.cores.clone()).collect(),
            memory_domains: domains,
            siblings: Vec::new(),
            cpu_classes: vec![CpuClass::Serial, CpuClass::IntelHaswell],
            gpus: Vec::new(),
        };
        self.machines.insert(name.to_owned(), survey);
    }

    pub(super) fn gpus<'a>(&mut self, machine: &str, value: impl Fn(&str) -> &'a str) {
        let gpu_class = GpuClass::from_name(value("class"));
        let fabric = value("fabric").split_once(':').map(|(cluster, rest)| {
            let (clique, state) = rest.split_once(':').expect("fabric=cluster:clique:state");
            Fabric {
                cluster: cluster.into(),
                clique: clique.parse().expect("clique"),
                complete: state == "complete",
            }
        });
        let links =
            names(value("links")).into_iter().map(|peer| GpuLink { peer, count: 18 }).collect::<Vec<_>>();
        for identity in names(value("id")) {
            let survey = self.machines.get_mut(machine).expect("the machine comes first");
            survey.gpus.push(GpuDevice {
                vendor: GpuVendor::from_name(value("vendor")).unwrap_or(GpuVendor::Nvidia),
                vendor_ordinal: survey.gpus.len() as u32,
                gpu_class,
                compute_units: 100,
                memory_bytes: 80 << 30,
                name: value("name").to_owned(),
                links: links.iter().filter(|link| link.peer != identity).cloned().collect(),
                identity,
                pci_address: String::new(),
                memory_domain: None,
                multicast: value("multicast") == "yes",
                fabric: fabric.clone(),
            });
        }
    }

    pub(super) fn member<'a>(&mut self, machine: &str, value: impl Fn(&str) -> &'a str) {
        let survey = self.machines.get(machine).expect("the machine comes first").clone();
        let index = self.members.len();
        let introduction = Introduction {
            process: Process {
                host_name: survey.host_name.clone(),
                boot_id: survey.boot_id.clone(),
                pid: 100 + index as u32,
                start_ticks: 7,
                command: "train".into(),
            },
            cores: if value("cores").is_empty() { survey.cores.clone() } else { numbers(value("cores")) },
            quota_cores: value("quota").parse().ok(),
            visible_gpus: names(value("gpus")),
            driven_gpus: None,
            shares_gpus: false,
            socket: String::new(),
            launcher: "torchrun".into(),
            local_index: None,
            survey,
        };
        self.members.push(Member { index, nonce: format!("nonce-{index}"), introduction });
    }

    /// One finding for each of the members named.
    fn finding<'a>(&mut self, members: &str, value: impl Fn(&str) -> &'a str) {
        self.findings.resize(self.members.len(), Findings::default());
        for index in indexes(members) {
            self.findings[index] = Findings {
                opened: indexes(value("opened")),
                readable: indexes(value("readable")),
                multicast: value("multicast").parse().ok(),
                ..Findings::default()
            };
        }
    }

    fn derive(&self) -> Result<Topology> {
        let roster = Roster { run: "recorded".into(), members: self.members.clone() };
        Topology::derive(&roster, &self.findings, self.cut)
    }

    fn outcome(&self) -> String {
        let topology = match self.derive() {
            Ok(topology) => topology,
            Err(error) => return format!("error: {error}\n"),
        };
        // The same input gives the same value, and its JSON can be read.
        assert_eq!(Ok(&topology), self.derive().as_ref().map_err(|_| ()));
        let json: serde_json::Value = serde_json::from_str(&topology.to_json()).expect("valid JSON");
        assert_eq!(json["count"], self.members.len());
        outcome_of(&topology)
    }
}

/// The tree of a run, and a line for each member: its description, its plan, its placement.
pub(super) fn outcome_of(topology: &Topology) -> String {
    let mut text = format!("{topology}\n");
    for index in 0..topology.count() {
        let own = topology.describe(index);
        let placement =
            Placement::derive(&Request::of(topology, index).expect("a member")).expect("a placement");
        let plan = Plan::derive(topology, index);
        let list =
            |numbers: &[usize]| ranges(&numbers.iter().map(|number| *number as u32).collect::<Vec<_>>());
        let groups = plan
            .groups
            .iter()
            .map(|group| format!("{} {} seat {}", group.name, list(&group.seats), group.own));
        let groups = groups.collect::<Vec<_>>().join(", ");
        let mut cores = placement.cores.clone();
        cores.sort_unstable();
        writeln!(
            text,
            "{index}: gpus {} of {} from {}, domain {}, {} {}; plan {}; {} threads on {}, domains {}, devices {}",
            own.gpus_per_host_domain,
            own.gpus_per_colocated_domain,
            own.first_gpu_index,
            own.gpus_per_multimem_domain,
            own.multimem_tier,
            own.gpu_class.map_or("none", GpuClass::name),
            if groups.is_empty() { "none" } else { &groups },
            placement.threads,
            ranges(&cores),
            ranges(&placement.memory_domains),
            if placement.devices.is_empty() { "none".to_owned() } else { list(&placement.devices) },
        )
        .expect("a String takes everything");
    }
    text
}

/// Compares every fixture in a folder with what follows from its input, and writes that into it if asked to.
///
/// `outcome` takes the fixture's path and the text above the line `---`. The answer is how many fixtures there are.
pub(super) fn compare(folder: &str, record: bool, outcome: impl Fn(&Path, &str) -> String) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut seen = 0;
    let mut wrong = String::new();
    for entry in std::fs::read_dir(&folder).expect("the fixtures are there") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a readable fixture");
        let (input, expected) = text.split_once("---\n").expect("a line --- between input and outcome");
        let found = outcome(&path, input);
        if record {
            std::fs::write(&path, format!("{input}---\n{found}")).expect("a fixture can be written");
        } else if found != expected {
            write!(wrong, "{}:\n{found}---\n", path.display()).expect("a String takes everything");
        }
        seen += 1;
    }
    assert!(wrong.is_empty(), "what follows from these is:\n{wrong}");
    seen
}

const FOLDER: &str = "tests/fixtures/topology";

/// The recorded runs that form, by the names of their fixtures.
pub(super) fn topologies() -> Vec<(String, Topology)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the fixtures are there") {
        let path = entry.expect("a readable folder").path();
        let text = std::fs::read_to_string(&path).expect("a readable fixture");
        let (input, _) = text.split_once("---\n").expect("a line --- between input and outcome");
        let name = path.file_stem().expect("a fixture has a name").to_string_lossy().into_owned();
        found.extend(Recorded::read(input).derive().ok().map(|topology| (name, topology)));
    }
    found
}

#[test]
fn fixtures_give_what_they_say() {
    let seen = compare(FOLDER, false, |_, input| Recorded::read(input).outcome());
    assert!(seen >= 17, "{seen} fixtures");
}

/// Writes what follows from each fixture into it; the change is then for people to read.
#[test]
#[ignore = "writes the fixtures"]
fn record_fixtures() {
    compare(FOLDER, true, |_, input| Recorded::read(input).outcome());
}

/// Runs of 1 to 12 processes on 1 to 3 machines, each with a mask, some with a quota, with any findings.
fn runs() -> impl Strategy<Value = Recorded> {
    let member =
        (0..3_usize, proptest::collection::btree_set(0..8_u32, 1..8), proptest::option::of(1..6_u32));
    proptest::collection::vec((member, proptest::collection::vec(any::<bool>(), 12)), 1..12).prop_map(
        |members| {
            let mut recorded = Recorded::default();
            for machine in 0..3 {
                let boot = format!("boot-{machine}");
                let value = move |key: &str| if key == "boot" { boot.clone() } else { "0-3/4-7".to_owned() };
                let (boot, domains) = (value("boot"), value("domains"));
                recorded.machine(&format!("m{machine}"), |key| if key == "boot" { &boot } else { &domains });
            }
            let count = members.len();
            for ((machine, cores, quota), opens) in members {
                let quota = quota.map_or_else(String::new, |quota| quota.to_string());
                let cores = cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
                recorded.member(&format!("m{machine}"), |key| match key {
                    "cores" => &cores,
                    "quota" => &quota,
                    _ => "",
                });
                let opened = (0..count).filter(|other| opens[*other]).collect();
                recorded.findings.push(Findings { opened, ..Findings::default() });
            }
            recorded
        },
    )
}

impl std::fmt::Debug for Recorded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.members.iter().zip(&self.findings)).finish()
    }
}

/// A GPU of a machine, by the number of each: whose it is, what joins it, and whether its fabric is complete.
type AnyGpu = (usize, bool, Option<(u8, u32, bool)>, Vec<bool>);

/// Runs of 1 to 6 processes on two machines of up to six GPUs each, with any links, fabrics and findings.
fn gpu_runs() -> impl Strategy<Value = Recorded> {
    let fabric = proptest::option::of((0..3_u8, 0..2_u32, any::<bool>()));
    let gpu = (0..6_usize, any::<bool>(), fabric, proptest::collection::vec(any::<bool>(), 6));
    let machine = proptest::collection::vec(gpu, 0..6);
    let member = (0..2_usize, proptest::option::of(any::<bool>()));
    (proptest::collection::vec(machine, 2), proptest::collection::vec(member, 1..6)).prop_map(
        |(machines, members)| {
            let mut recorded = Recorded::default();
            for (machine, gpus) in machines.iter().enumerate() {
                let boot = format!("boot-{machine}");
                recorded.machine(&format!("m{machine}"), |key| if key == "boot" { &boot } else { "0-7" });
                let survey = recorded.machines.get_mut(&format!("m{machine}")).expect("just made");
                survey.gpus =
                    gpus.iter().enumerate().map(|(own, gpu)| any_gpu(machine, own, gpu, gpus)).collect();
            }
            let places = |machine: usize| {
                let here = move |(_, (own, _)): &(usize, &(usize, Option<bool>))| *own == machine;
                members.iter().enumerate().filter(here).map(|(index, _)| index).collect::<Vec<_>>()
            };
            for (index, (machine, multicast)) in members.iter().enumerate() {
                let sharers = places(*machine);
                // Each GPU is visible to one of the machine's members.
                let own = machines[*machine]
                    .iter()
                    .enumerate()
                    .filter(|(_, gpu)| sharers[gpu.0 % sharers.len()] == index);
                let own = own.map(|(gpu, _)| format!("{machine}-{gpu}")).collect::<Vec<_>>().join(",");
                recorded.member(&format!("m{machine}"), |key| if key == "gpus" { &own } else { "" });
                let (opened, multicast) = (sharers, *multicast);
                recorded.findings.push(Findings { opened, multicast, ..Findings::default() });
            }
            recorded
        },
    )
}

fn any_gpu(machine: usize, own: usize, gpu: &AnyGpu, all: &[AnyGpu]) -> GpuDevice {
    let linked = |other: &usize| *other != own && (gpu.3[*other] && all[*other].3[own]);
    let links = (0..all.len()).filter(linked).map(|other| format!("{machine}-{other}"));
    let switch = gpu.1.then(|| "switch".to_owned());
    GpuDevice {
        vendor: GpuVendor::Nvidia,
        vendor_ordinal: own as u32,
        gpu_class: Some(GpuClass::NvidiaHopper),
        compute_units: 132,
        memory_bytes: 80 << 30,
        name: "any".into(),
        identity: format!("{machine}-{own}"),
        pci_address: String::new(),
        memory_domain: None,
        multicast: gpu.1,
        fabric: gpu.2.map(|(cluster, clique, complete)| Fabric {
            cluster: cluster.to_string(),
            clique,
            complete,
        }),
        links: links.chain(switch).map(|peer| GpuLink { peer, count: 4 }).collect(),
    }
}

proptest! {
    #[test]
    fn every_gpu_is_in_one_domain_and_plans_agree(recorded in gpu_runs(), size in 1..4_usize) {
        let roster = Roster { run: "any".into(), members: recorded.members.clone() };
        let topology = Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster");
        let (gpus, domains) = (topology.gpus(), topology.multimem_domains());
        let mut all = domains.iter().flat_map(|domain| domain.gpus.clone()).collect::<Vec<_>>();
        prop_assert!(domains.iter().all(|domain| domain.gpus.is_sorted() && !domain.gpus.is_empty()));
        prop_assert!(domains.is_sorted_by_key(|domain| domain.gpus[0]));
        all.sort_unstable();
        prop_assert_eq!(all, (0..gpus.len()).collect::<Vec<_>>());
        for (position, gpu) in gpus.iter().enumerate() {
            // The two ends of a link on one machine are joined, and so are those of one complete fabric.
            for (other, peer) in gpus.iter().enumerate() {
                let same = topology.domain_of(position) == topology.domain_of(other);
                let machine = gpu.device.identity.split('-').next() == peer.device.identity.split('-').next();
                let linked = machine && gpu.device.links.iter().any(|link| link.peer == peer.device.identity);
                let spanning = gpu.device.fabric.as_ref().filter(|fabric| fabric.complete && fabric.cluster != "0");
                prop_assert!(same || !linked, "{} and {}", position, other);
                prop_assert!(same || spanning.is_none() || gpu.device.fabric != peer.device.fabric);
            }
        }
        let wide = domains.iter().filter(|domain| domain.gpus.len() > 1).collect::<Vec<_>>();
        let reduces = topology.multimem_tier() == MultimemTier::SwitchReduced;
        prop_assert_eq!(reduces, !wide.is_empty() && wide.iter().all(|domain| domain.tier == MultimemTier::SwitchReduced));
        for domain in wide.iter().filter(|domain| domain.tier == MultimemTier::SwitchReduced) {
            for gpu in &domain.gpus {
                prop_assert!(gpus[*gpu].device.multicast && recorded.findings[gpus[*gpu].owner].multicast == Some(true));
            }
        }
        let plans = (0..topology.count()).map(|index| Plan::derive(&topology, index)).collect::<Vec<_>>();
        for (group, own) in plans.iter().enumerate().flat_map(|(own, plan)| plan.groups.iter().map(move |group| (group, own))) {
            prop_assert_eq!(group.seats[group.own], own);
            for seat in &group.seats {
                let same = |other: &&uform::topology::Group| other.name == group.name && other.seats == group.seats;
                prop_assert!(plans[*seat].groups.iter().any(|other| same(&other)), "{:?} at {}", group, seat);
            }
        }
        let cut = Topology::derive(&roster, &recorded.findings, size);
        if domains.iter().all(|domain| domain.gpus.len() % size == 0) {
            let cut = cut.expect("it divides");
            prop_assert!(cut.multimem_domains().iter().all(|domain| domain.gpus.len() == size));
            let inside = |part: &Domain| domains.iter().any(|whole| part.gpus.iter().all(|gpu| whole.contains(*gpu)));
            prop_assert!(cut.multimem_domains().iter().all(inside));
        } else {
            prop_assert!(cut.is_err_and(|error| error.to_string().contains("gpus_per_multimem_domain")));
        }
        // Whatever the run, its picture has no fault.
        prop_assert_eq!(super::picture::faults(&uform::topology::picture::Picture::of(&topology)), Vec::<String>::new());
    }

    #[test]
    fn hosts_and_seats_partition_the_run(recorded in runs()) {
        let roster = Roster { run: "any".into(), members: recorded.members.clone() };
        let topology = Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster");
        let mut members = topology.hosts().iter().flat_map(|host| host.members.clone()).collect::<Vec<_>>();
        members.sort_unstable();
        prop_assert_eq!(members, (0..topology.count()).collect::<Vec<_>>());
        for host in topology.hosts() {
            for (one, other) in host.members.iter().flat_map(|one| host.members.iter().map(move |other| (one, other))) {
                prop_assert!(one == other || recorded.findings[*one].opened.contains(other));
                prop_assert_eq!(topology.survey(*one), topology.survey(*other));
            }
        }
        // Of each tier, the groups of all members are the same or have no seat in common.
        let mut tiers = BTreeMap::<String, BTreeSet<Vec<usize>>>::new();
        for index in 0..topology.count() {
            let plan = Plan::derive(&topology, index);
            prop_assert_eq!(plan.world().seats.len(), topology.count());
            prop_assert!(plan.groups.windows(2).all(|pair| pair[0].seats.len() <= pair[1].seats.len()));
            for group in plan.groups.iter().chain([plan.world()]) {
                prop_assert_eq!(group.seats[group.own], index);
                tiers.entry(group.name.clone()).or_default().insert(group.seats.clone());
            }
        }
        for groups in tiers.values() {
            let seats = groups.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(groups.iter().flatten().collect::<BTreeSet<_>>().len(), seats);
        }
    }

    #[test]
    fn placements_stay_in_masks_and_apart(recorded in runs()) {
        let roster = Roster { run: "any".into(), members: recorded.members.clone() };
        let topology = Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster");
        let mut taken = BTreeMap::<(String, u32), usize>::new();
        for member in topology.members() {
            let request = Request::of(&topology, member.index).expect("a member");
            let placement = Placement::derive(&request).expect("a placement");
            let introduction = &member.introduction;
            prop_assert!(placement.threads >= 1 && placement.threads == placement.cores.len());
            prop_assert!(introduction.quota_cores.is_none_or(|quota| placement.threads <= quota as usize));
            prop_assert!(placement.cores.iter().all(|core| introduction.cores.contains(core)));
            // Where everybody's mask has room for all, nobody shares a core.
            let narrow = request.seekers.iter().any(|seeker| seeker.cores.len() < request.seekers.len());
            for core in &placement.cores {
                let other = taken.insert((introduction.process.boot_id.clone(), *core), member.index);
                prop_assert!(other.is_none() || narrow, "core {} of {:?} and {}", core, other, member.index);
            }
        }
    }

    #[test]
    fn equal_masks_are_cut_evenly_and_gpus_add_up(count in 1..9_usize, cores in 1..33_u32, gpus in 0..17_usize) {
        let gpus = if gpus < count { 0 } else { gpus };
        let cores = format!("0-{}", cores - 1);
        let range = if gpus == 0 { String::new() } else { format!("GPU-{{0-{}}}", gpus - 1) };
        let mut recorded = Recorded::default();
        recorded.machine("m", |key| if key == "boot" { "b" } else { &cores });
        recorded.gpus("m", |key| if key == "id" { &range } else { "" });
        for _ in 0..count {
            recorded.member("m", |key| if key == "gpus" { &range } else { "" });
        }
        recorded.findings = vec![Findings::default(); count];
        let roster = Roster { run: "any".into(), members: recorded.members };
        let topology = Topology::derive(&roster, &recorded.findings, 0).expect("a sound roster");
        let mut sum = 0;
        let mut sizes = BTreeSet::new();
        for index in 0..count {
            let own = topology.describe(index);
            prop_assert_eq!(own.first_gpu_index, sum);
            sum += own.gpus_per_host_domain;
            let placement = Placement::derive(&Request::of(&topology, index).expect("a member")).expect("a placement");
            prop_assert_eq!(placement.devices.len(), own.gpus_per_host_domain);
            sizes.insert(placement.threads);
        }
        prop_assert_eq!(sum, gpus);
        prop_assert!(sizes.last().expect("a member") - sizes.first().expect("a member") <= 1);
    }
}

fn seeker(cores: &str, quota_cores: Option<u32>) -> Seeker {
    Seeker {
        index: 0,
        name: "index 0".into(),
        boot_id: "b".into(),
        cores: numbers(cores),
        quota_cores,
        visible_gpus: Vec::new(),
        driven_gpus: None,
        shares_gpus: false,
        gpu_domains: Vec::new(),
    }
}

fn two_domains() -> Survey {
    let domain = |ordinal, cores| MemoryDomain { ordinal, cores: numbers(cores), memory_bytes: 1 << 30 };
    Survey {
        host_name: "a".into(),
        boot_id: "b".into(),
        cores: numbers("0-7"),
        memory_domains: vec![domain(0, "0-3"), domain(3, "4-7")],
        siblings: Vec::new(),
        cpu_classes: vec![CpuClass::Serial],
        gpus: Vec::new(),
    }
}

#[test]
fn a_lone_process_takes_what_it_may() {
    let table = [
        ("0-7", None, 0, None, 8, "0-7", "0,3"),
        ("0-7", Some(2), 0, None, 2, "0-1", "0"),
        ("2,5", None, 0, None, 2, "2,5", "0,3"),
        ("0-7", None, 3, None, 3, "0-2", "0"),
        ("0", None, 3, None, 3, "0", "0"),
        ("0-7", Some(1), 4, None, 4, "0-3", "0"),
        ("0-7", None, 0, Some(vec![3]), 4, "4-7", "3"),
        ("3-4", None, 0, Some(vec![3, 0, 3]), 2, "3-4", "0,3"),
    ];
    for (mask, quota, threads, memory_domains, expected, cores, domains) in table {
        let mut request = Request::alone(seeker(mask, quota), &two_domains());
        request.threads = threads;
        request.memory_domains = memory_domains;
        let placement = Placement::derive(&request).expect("a placement");
        assert_eq!(placement.threads, expected, "{request:?}");
        assert_eq!(
            (placement.cores, placement.memory_domains),
            (numbers(cores), numbers(domains)),
            "{request:?}"
        );
    }
}

#[test]
fn physical_cores_come_before_second_threads_and_near_ones_before_others() {
    let table = [
        // Mask, threads, memory domain of a GPU, cores.
        ("0-7", 2, None, "0-1"),
        ("0-7", 5, None, "0-2,4-5"),
        ("0-7", 3, Some(3), "0,4-5"),
        ("2-3,6", 2, None, "2-3"),
        ("0,2,4,6", 3, None, "0,2,4"),
        ("0-7", 8, Some(3), "0-7"),
    ];
    for (mask, threads, near, cores) in table {
        let mut survey = two_domains();
        survey.siblings = [[0, 2], [1, 3], [4, 6], [5, 7]].map(|pair| pair.to_vec()).to_vec();
        let mut own = seeker(mask, None);
        if near.is_some() {
            own.visible_gpus = vec!["GPU-0".into()];
            own.gpu_domains = vec![near];
        }
        let mut request = Request::alone(own, &survey);
        request.threads = threads;
        let placement = Placement::derive(&request).expect("a placement");
        assert_eq!(placement.cores, numbers(cores), "{mask} {threads} {near:?}");
    }
}

#[test]
fn processes_sit_near_their_gpus_and_keep_threads_of_a_core_together() {
    let mut survey = two_domains();
    survey.siblings = [[0, 2], [1, 3], [4, 6], [5, 7]].map(|pair| pair.to_vec()).to_vec();
    let seekers = [3, 0, 3, 0].into_iter().enumerate().map(|(index, near)| Seeker {
        index,
        visible_gpus: vec![format!("GPU-{index}")],
        driven_gpus: None,
        shares_gpus: false,
        gpu_domains: vec![Some(near)],
        ..seeker("0-7", None)
    });
    let request = Request { seekers: seekers.collect(), ..Request::alone(seeker("0-7", None), &survey) };
    for (index, cores) in ["4,6", "0,2", "5,7", "1,3"].into_iter().enumerate() {
        let placement = Placement::derive(&Request { index, ..request.clone() }).expect("a placement");
        assert_eq!(placement.cores, numbers(cores), "index {index}");
    }
}

#[test]
fn memory_without_cores_is_refused_with_those_that_have_some() {
    let folder = super::source::root().join("tests/fixtures/machines/cxl_memory");
    let machine = uform::device::recorded(&folder).expect("a recorded machine").survey;
    let asked = |ordinals: &[u32]| {
        let mut request = Request::alone(seeker("64-127", None), &machine);
        request.memory_domains = Some(ordinals.to_vec());
        Placement::derive(&request)
    };
    let placement = asked(&[1]).expect("its cores and memory");
    assert_eq!((placement.cores, placement.memory_domains), (numbers("64-127"), vec![1]));
    for (ordinals, fault) in [
        (&[1, 2][..], "memory domain 2 has none of the cores that this process may run on"),
        (&[0], "memory domain 0 has none of the cores that this process may run on"),
        (&[3], "there is no memory domain 3; this machine has 0, 1, 2"),
    ] {
        let text = asked(ordinals).expect_err("refused").to_string();
        assert!(text.contains(fault), "{text}");
        assert!(text.ends_with(": 1") || ordinals == [3], "{text}");
    }
}

#[test]
fn wrong_requests_say_what_there_is() {
    let refused = |change: fn(&mut Request)| {
        let mut request = Request::alone(seeker("0-3", None), &two_domains());
        change(&mut request);
        Placement::derive(&request).expect_err("refused").to_string()
    };
    let text = refused(|request| request.memory_domains = Some(vec![1]));
    assert!(text.starts_with("memory_domains = [1]") && text.ends_with("this machine has 0, 3"), "{text}");
    let text = refused(|request| request.memory_domains = Some(Vec::new()));
    assert!(text.starts_with("memory_domains = []") && text.ends_with("this machine has 0, 3"), "{text}");
    let text = refused(|request| request.memory_domains = Some(vec![0, 3]));
    assert!(text.starts_with("memory_domains = [0, 3]"), "{text}");
    let ending =
        "memory domain 3 has none of the cores that this process may run on; those that have some: 0";
    assert!(text.ends_with(ending), "{text}");
    let text = refused(|request| {
        request.machine[0].memory_bytes = 0;
        request.memory_domains = Some(vec![0]);
    });
    assert!(text.ends_with("memory domain 0 has no memory; those that have some: 3"), "{text}");
    let text = refused(|request| {
        request.machine[1].cores = Vec::new();
        request.memory_domains = Some(vec![3]);
    });
    assert!(text.ends_with(ending), "{text}");
    let text = refused(|request| request.threads = 5000);
    assert!(text.starts_with("threads = 5000") && text.contains("4096"), "{text}");
}
