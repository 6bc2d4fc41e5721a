//! Environments as they were recorded, or as a launcher's documents describe them: one text file each.
//!
//! A file opens with a comment. `host`, `processes` (this one first, as `pid:name`), `container` and `runtime` are
//! the process's own facts, `set` is a variable, `argument` an option. `expect` lines are what must come out; whatever
//! came out and is not asked for does not matter, but an error must be asked for.

use std::path::Path;

use super::super::*;

/// What a file says.
struct Recorded {
    own: OwnFacts,
    variables: Vec<(String, String)>,
    options: MeshOptions,
    expected: Vec<(String, String)>,
}

fn parse(path: &Path) -> Recorded {
    let text = std::fs::read_to_string(path).expect("a readable file");
    assert!(text.starts_with("# "), "{}: opens with no comment", path.display());
    let own = OwnFacts {
        uid: 1000,
        runtime_folder: None,
        temporary_folder: "/tmp".into(),
        host_name: "n1".into(),
        processes: Vec::new(),
        sees_launchers: true,
    };
    let options = MeshOptions::default();
    let mut found = Recorded { own, variables: Vec::new(), options, expected: Vec::new() };
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pair = || rest.split_once(['=', ' ']).map(|(one, other)| (one.to_owned(), other.to_owned()));
        match word {
            "host" => rest.clone_into(&mut found.own.host_name),
            "container" => found.own.sees_launchers = false,
            "runtime" => found.own.runtime_folder = Some(rest.into()),
            "processes" => {
                found.own.processes = rest
                    .split(' ')
                    .map(|process| {
                        let (pid, name) = process.split_once(':').expect("pid:name");
                        let pid = pid.parse().expect("a number");
                        OwnProcess { pid, name: name.into(), start_ticks: u64::from(pid) + 100 }
                    })
                    .collect();
            }
            "set" => {
                found.variables.push(rest.split_once('=').map(|(n, v)| (n.into(), v.into())).expect(line))
            }
            "argument" => {
                let (name, value) = pair().expect(line);
                match name.as_str() {
                    "index" => found.options.host_domain_index = value.parse().expect(line),
                    "count" => found.options.host_domain_count = value.parse().expect(line),
                    "job" => found.options.job = Some(value),
                    "directory" => found.options.directory = Some(value.into()),
                    _ => panic!("{}: {line}", path.display()),
                }
            }
            "expect" => found.expected.push(pair().expect(line)),
            _ => panic!("{}: {line}", path.display()),
        }
    }
    assert!(!found.expected.is_empty(), "{}: expects nothing", path.display());
    found
}

fn sourced<T: std::fmt::Display>(value: Option<&Sourced<T>>) -> String {
    value.map_or("unknown".into(), |value| format!("{} by {}", value.value, value.origin))
}

/// What came out under one name; several texts where any of them may be meant.
fn outcome(result: &Result<Launch>, name: &str) -> Vec<String> {
    let launch = match (result, name) {
        (Err(error), "error") => return vec![error.to_string()],
        (Err(error), _) => return vec![format!("error: {error}")],
        (Ok(_), "error") => return vec!["no error".into()],
        (Ok(launch), _) => launch,
    };
    match name {
        "launcher" => vec![launch.launcher.clone()],
        "index" => vec![sourced(Some(&launch.index))],
        "count" => vec![sourced(Some(&launch.count))],
        "local_index" => vec![sourced(launch.local_index.as_ref())],
        "local_count" => vec![sourced(launch.local_count.as_ref())],
        "hosts" => vec![sourced(launch.host_count.as_ref())],
        "names" => vec![launch.hosts.as_ref().map_or("unknown".into(), |hosts| hosts.value.join(","))],
        "job" => vec![format!(
            "{} {}",
            launch.job.value,
            if launch.attempt_is_unique { "unique" } else { "shared" }
        )],
        "directory" => {
            vec![launch.directory.as_ref().map_or("none".into(), |found| found.value.display().to_string())]
        }
        "seen" => launch.others.iter().map(|seen| format!("{}: {}", seen.launcher, seen.reason)).collect(),
        "note" => launch.notes.clone(),
        _ => panic!("nothing is called {name}"),
    }
}

#[test]
fn recorded_environments_give_their_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/environments");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path()).collect();
    paths.sort();
    assert!(paths.len() >= 35, "{} environments are recorded", paths.len());
    let mut wrong = Vec::new();
    for path in &paths {
        let Recorded { own, variables, options, expected } = parse(path);
        let result = resolve(&options, &variables.into_iter().collect(), &own);
        if let (Err(error), false) = (&result, expected.iter().any(|(name, _)| name == "error")) {
            wrong.push(format!("{}: {error}", path.display()));
            continue;
        }
        for (name, wanted) in expected {
            let found = outcome(&result, &name);
            // Sentences are long: a part of one is enough. Numbers and names are compared whole.
            let sentence = matches!(name.as_str(), "error" | "seen" | "note");
            let fits = |text: &String| if sentence { text.contains(&wanted) } else { *text == wanted };
            if !found.iter().any(fits) {
                wrong.push(format!("{}: {name} is {found:?}, not `{wanted}`", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
