//! Recorded machines, read as processes on them would, and the runs that must follow.
//!
//! `tests/fixtures/machines/<name>` is a machine, or a folder with several. `<name>.txt` beside it holds runs, a line
//! `---`, and what follows from each: the tree, and description, plan and placement of every member. A run is one line:
//!
//! `run members=2 hosts=tray0,tray1 cut=8 trial=no CUDA_VISIBLE_DEVICES=0|1`
//!
//! has two members on each of two machines; the first member of each sees its GPU 0, the second its GPU 1.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uform::environment::{self, MeshOptions};
use uform::topology::{Findings, Introduction, Member, Roster, Topology};
use uform::{device, error::Result};

use super::topology::{compare, outcome_of};
use crate::harness::{Role, Setup};

/// The roles that the tests of this file use.
pub(crate) const ROLES: &[(&str, Role)] = &[("machines.look", look)];

const FOLDER: &str = "tests/fixtures/machines";

/// What a process sees of its machine.
#[derive(Clone, Serialize, Deserialize)]
struct Look {
    introduction: Introduction,
    notes: Vec<String>,
}

/// Prints what this process sees.
fn look(_: usize, _: usize, _: &str) {
    let options = MeshOptions { host_domain_count: 1, ..MeshOptions::default() };
    let launch = environment::read(&options).expect("explicit numbers need no launcher");
    let look = Look {
        introduction: device::introduction(&launch, String::new()).expect("a sound machine"),
        notes: device::view().expect("a sound machine").notes,
    };
    println!("\nlook: {}", serde_json::to_string(&look).expect("values can be written"));
}

/// What a process sees that starts on a machine with these variables.
fn look_at(machine: &Path, variables: &[(String, String)]) -> Look {
    let setup = Setup::new(1, "machines.look").without_launcher();
    let setup = setup.variable("UFORM_MACHINE", machine.to_str().expect("a path of text"));
    let setup = variables.iter().fold(setup, |setup, (name, value)| setup.variable(name, value));
    let outcomes = setup.start().finish();
    crate::harness::assert_all_succeeded(&outcomes);
    let line = outcomes[0].output.lines().find_map(|line| line.strip_prefix("look: "));
    serde_json::from_str(line.expect("the role printed it")).expect("its own words")
}

/// One line of a fixture.
struct Line {
    members: usize,
    machines: Vec<PathBuf>,
    cut: usize,
    trial: bool,
    /// Variables with one value for each member of a machine.
    variables: Vec<(String, Vec<String>)>,
}

impl Line {
    fn read(line: &str, folder: &Path) -> Self {
        let mut found = Self {
            members: 1,
            machines: vec![folder.to_owned()],
            cut: 0,
            trial: true,
            variables: Vec::new(),
        };
        for word in line.split(' ').skip(1) {
            let (name, value) = word.split_once('=').expect(line);
            match name {
                "members" => found.members = value.parse().expect(line),
                "cut" => found.cut = value.parse().expect(line),
                "trial" => found.trial = value == "yes",
                "hosts" => found.machines = value.split(',').map(|host| folder.join(host)).collect(),
                _ => {
                    let values = value.split('|').map(str::to_owned).collect::<Vec<_>>();
                    assert_eq!(values.len(), found.members, "one value for each member: {line}");
                    found.variables.push((name.to_owned(), values));
                }
            }
        }
        found
    }

    /// Members as they would register, and what each would find: memory of its own host, and multicast where it is claimed.
    fn run(&self) -> (Vec<Member>, Vec<Findings>, Vec<Look>) {
        let mut seen = BTreeMap::<(PathBuf, Vec<(String, String)>), Look>::new();
        let mut looks = Vec::new();
        for machine in &self.machines {
            for place in 0..self.members {
                let value = |(name, values): &(String, Vec<String>)| (name.clone(), values[place].clone());
                let variables = self.variables.iter().map(value).collect::<Vec<_>>();
                let key = (machine.clone(), variables.clone());
                let look = seen.entry(key).or_insert_with(|| look_at(machine, &variables));
                looks.push(look.clone());
            }
        }
        let members = looks.iter().enumerate().map(|(index, look)| {
            let mut introduction = look.introduction.clone();
            introduction.process.pid = 100 + index as u32;
            introduction.process.start_ticks = 7;
            introduction.process.command = "train".into();
            Member { index, nonce: format!("nonce-{index}"), introduction }
        });
        let members = members.collect::<Vec<_>>();
        let findings = members.iter().map(|member| {
            let boot_id =
                |other: &&Member| other.introduction.process.boot_id == member.introduction.process.boot_id;
            let opened = members.iter().filter(boot_id).map(|other| other.index).collect::<Vec<_>>();
            let claims = member.introduction.survey.gpus.iter().any(|gpu| gpu.multicast);
            let multicast = claims.then_some(self.trial);
            Findings { readable: opened.clone(), opened, multicast, ..Findings::default() }
        });
        (members.clone(), findings.collect(), looks)
    }

    fn derive(&self) -> Result<Topology> {
        let (members, findings, _) = self.run();
        Topology::derive(&Roster { run: "recorded".into(), members }, &findings, self.cut)
    }
}

/// What follows from the runs of one fixture.
fn outcome(folder: &Path, input: &str) -> String {
    let mut text = String::new();
    let lines = input.lines().filter(|line| line.starts_with("run"));
    for line in lines {
        let run = Line::read(line, folder);
        let (members, findings, looks) = run.run();
        writeln!(text, "{line}").expect("a String takes everything");
        for look in looks.iter().take(1) {
            for note in &look.notes {
                writeln!(text, "note: {note}").expect("a String takes everything");
            }
        }
        let roster = Roster { run: "recorded".into(), members };
        text.push_str(&match Topology::derive(&roster, &findings, run.cut) {
            Ok(topology) => outcome_of(&topology),
            Err(error) => format!("error: {error}\n"),
        });
    }
    text
}

fn folder_of(path: &Path) -> PathBuf {
    path.with_extension("")
}

#[test]
fn recorded_machines_give_what_they_say() {
    let seen = compare(FOLDER, false, |path, input| outcome(&folder_of(path), input));
    assert!(seen >= 20, "{seen} machines");
}

/// Writes what follows from each recorded machine into its fixture; the change is then for people to read.
#[test]
#[ignore = "writes the fixtures"]
fn record_machines() {
    compare(FOLDER, true, |path, input| outcome(&folder_of(path), input));
}

/// The last run of each recorded machine that forms.
pub(super) fn topologies() -> Vec<(String, Topology)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("the fixtures are there") {
        let path = entry.expect("a readable folder").path();
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a readable fixture");
        let (input, _) = text.split_once("---\n").expect("a line --- between input and outcome");
        let lines = input.lines().filter(|line| line.starts_with("run"));
        let mut runs = lines.filter_map(|line| Line::read(line, &folder_of(&path)).derive().ok());
        let name = path.file_stem().expect("a fixture has a name").to_string_lossy().into_owned();
        found.extend(runs.next_back().map(|topology| (name, topology)));
    }
    found
}
