//! The layer table of the architecture, and a reader of `src/` that fails on every name outside it.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{self, NamedPath, Token};

/// One row of the table: a room, its floor, what it may name.
///
/// A room is written alone (`sys`) or with the items that may be named of it (`topology: Group Roster`).
struct Row {
    room: &'static str,
    floor: u32,
    rooms: &'static [&'static str],
    outside: &'static [&'static str],
}

const fn row(
    room: &'static str,
    floor: u32,
    rooms: &'static [&'static str],
    outside: &'static [&'static str],
) -> Row {
    Row { room, floor, rooms, outside }
}

/// What every room of floor 1 and above may name of the ground floor.
const GROUND: &[&str] = &["error", "vocabulary"];

const TABLE: &[Row] = &[
    row("vocabulary", 0, &[], &["serde"]),
    row("error", 0, &["vocabulary"], &["thiserror"]),
    row("topology", 1, &[], &["serde", "serde_json"]),
    row("environment", 1, &[], &[]),
    row(
        "sys",
        1,
        &[],
        &["cudarc", "rccl_sys", "mpi", "memmap2", "fs2", "rustix", "libc", "libloading", "half", "crc32fast"],
    ),
    row(
        "device",
        2,
        &[
            "sys",
            "environment: Launch MACHINE_VARIABLE shares_gpus MeshOptions read_without_directory NCCL_VARIABLE RCCL_VARIABLE Visibility library_file machine_folder",
            "topology: Damage Fabric FabricHealth FabricState GpuDevice GpuLink Introduction MemoryDomain Mig \
             MigInstance NvidiaAnswers NvidiaDevice NvidiaFabric NvidiaLink Process RecordedMachine Survey \
             variables_from_json",
        ],
        &[],
    ),
    row("recorder", 2, &["sys"], &["serde", "serde_json"]),
    row(
        "rendezvous",
        2,
        &["sys", "environment", "topology: Introduction Member Process Roster Survey"],
        &["serde", "serde_json"],
    ),
    row(
        "checkpoint",
        2,
        &["sys: Deadline Span SpanMut checksum disk map process random"],
        &["safetensors", "serde", "serde_json"],
    ),
    row("executor", 3, &["device", "sys", "topology: GpuDevice Placement Request Seeker"], &["rayon"]),
    row(
        "communicator",
        4,
        &[
            "executor",
            "recorder",
            "rendezvous: Exchange RunKey",
            "topology: Findings Group Process Roster",
            "sys",
        ],
        &["socket2", "hmac", "sha2"],
    ),
    row(
        "mesh",
        5,
        &["communicator", "executor", "device", "recorder", "rendezvous", "topology", "environment", "sys"],
        &[],
    ),
    row(
        "trainer",
        6,
        &["mesh", "communicator", "executor", "sys: Deadline Element Span SpanMut kernel", "checkpoint"],
        &[],
    ),
    row(
        "lib",
        7,
        &[
            "trainer",
            "mesh",
            "communicator",
            "executor",
            "device",
            "recorder",
            "rendezvous",
            "checkpoint",
            "topology",
            "environment",
            "sys",
        ],
        &[],
    ),
];

/// Rooms that touch nothing: no file, no clock, no machine, no switch of the build.
const PURE: &[&str] = &["topology", "vocabulary"];

/// Crates that come with the compiler.
const STANDARD: &[&str] = &["std", "core", "alloc"];

/// Functions of `std::env` that read or write variables, directly or through a folder they name.
const VARIABLE_FUNCTIONS: &[&str] =
    &["var", "var_os", "vars", "vars_os", "set_var", "remove_var", "temp_dir", "home_dir"];

/// The room of a file below `src/`.
fn room_of(path: &str) -> &str {
    let inner = path.trim_start_matches("src/");
    inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs")
}

/// The outside crates that the manifest gives to the core, as source spells them.
fn outside_crates() -> BTreeSet<String> {
    let manifest = source::read("Cargo.toml");
    let mut section = String::new();
    let mut names = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            line.trim_matches(['[', ']']).clone_into(&mut section);
        } else if section == "dependencies" {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !name.is_empty() && !name.starts_with('#') {
                names.insert(name.replace('-', "_"));
            }
        }
    }
    names
}

/// Everything in one file that the table or the fences forbid, one line each.
fn violations(path: &str, text: &str, outside: &BTreeSet<String>, tests_only: bool) -> Vec<String> {
    let tokens = source::tokens(text);
    let paths = source::paths(path, &tokens, tests_only);
    let room = room_of(path);
    let Some(row) = TABLE.iter().find(|row| row.room == room) else {
        return vec![format!("{path}: the room `{room}` is not in the layer table")];
    };
    let mut found = Vec::new();
    let imported = imported_rooms(&paths);
    let modules = own_modules(&tokens);
    for named in &paths {
        let mut segments = named.segments.clone();
        if let Some(absolute) = segments.first().and_then(|first| imported.get(first)) {
            segments.splice(0..1, absolute.iter().cloned());
        }
        let first = segments.first().map_or("", String::as_str);
        let complaint = if first == "crate" {
            inside(row, &segments, named.in_tests)
        } else if outside.contains(first) && !modules.contains(first) && !is_imported(&paths, first) {
            outside_allowed(row, first)
        } else {
            None
        };
        let complaint = complaint.or_else(|| fenced_path(room, &segments, named.in_tests));
        found.extend(complaint.map(|complaint| format!("{path}:{}: {complaint}", named.line)));
    }
    found.extend(fenced_words(path, room, &tokens));
    found
}

/// Rooms that a file imports whole, by the name it gives them.
fn imported_rooms(paths: &[NamedPath]) -> BTreeMap<String, Vec<String>> {
    let whole = |named: &&NamedPath| named.segments.len() == 2 && named.segments[0] == "crate";
    paths.iter().filter(whole).map(|named| (named.segments[1].clone(), named.segments.clone())).collect()
}

/// Whether a file imports a module of this crate that is called like an outside crate.
fn is_imported(paths: &[NamedPath], name: &str) -> bool {
    let ends = |named: &NamedPath| named.segments.last().is_some_and(|last| last == name);
    paths.iter().any(|named| named.segments.first().is_some_and(|first| first == "crate") && ends(named))
}

/// The modules that a file declares: a path that starts with one does not name an outside crate.
fn own_modules(tokens: &[(usize, Token)]) -> BTreeSet<String> {
    let pairs = tokens.windows(2).filter(|pair| pair[0].1.is_word("mod"));
    pairs
        .filter_map(|pair| if let Token::Word(name) = &pair[1].1 { Some(name.clone()) } else { None })
        .collect()
}

/// Why a path into this crate is not allowed in a room.
fn inside(row: &Row, segments: &[String], in_tests: bool) -> Option<String> {
    let room = row.room;
    let target = segments.get(1).map(String::as_str)?;
    if target == room || (room == "lib" && segments.len() == 1) {
        return None;
    }
    if row.floor > 0 && GROUND.contains(&target) {
        return None;
    }
    if !TABLE.iter().any(|row| row.room == target) {
        return Some(format!("`crate::{target}` is not a room; name the room it comes from"));
    }
    let Some(entry) = row.rooms.iter().find(|entry| entry.split(':').next() == Some(target)) else {
        return Some(format!("`{room}` may not name `{target}`"));
    };
    let (Some((_, items)), Some(item)) = (entry.split_once(':'), segments.get(2)) else { return None };
    let allowed = in_tests || items.split_ascii_whitespace().any(|own| own == item);
    (!allowed).then(|| format!("`{room}` may name{items} of `{target}`, not `{item}`"))
}

/// Why an outside crate is not allowed in a room.
fn outside_allowed(row: &Row, name: &str) -> Option<String> {
    let tracing = name == "tracing" && !PURE.contains(&row.room);
    let allowed = tracing || row.outside.contains(&name);
    (!allowed).then(|| format!("`{}` may not name the crate `{name}`", row.room))
}

/// Why a path of the standard library is not allowed in a room.
fn fenced_path(room: &str, segments: &[String], in_tests: bool) -> Option<String> {
    let reads = segments
        .windows(2)
        .find(|pair| pair[0] == "env" && VARIABLE_FUNCTIONS.contains(&pair[1].as_str()))
        .filter(|pair| !(in_tests && pair[1] == "temp_dir"));
    if let (Some(pair), true) = (reads, room != "environment") {
        return Some(format!("`env::{}` belongs to `environment`", pair[1]));
    }
    let standard = segments.first().is_some_and(|first| STANDARD.contains(&first.as_str()));
    let touches = ["fs", "net", "process", "thread", "os", "env", "io"];
    let module = segments.get(1).map_or("", String::as_str);
    if PURE.contains(&room) && standard && touches.contains(&module) && !in_tests {
        return Some(format!("`{room}` is pure and may not name `std::{module}`"));
    }
    None
}

/// Words that have one room: `unsafe` and switches of the build in `sys`; no clock and no switch in a pure room.
fn fenced_words(path: &str, room: &str, tokens: &[(usize, Token)]) -> Vec<String> {
    let mut found = Vec::new();
    for (position, (line, token)) in tokens.iter().enumerate() {
        let Token::Word(word) = token else { continue };
        let complaint = match word.as_str() {
            "unsafe" if room != "sys" => Some("`unsafe` belongs to `sys`".to_owned()),
            "getenv" | "secure_getenv" => {
                Some(format!("`{word}` is read nowhere; variables are `environment`'s"))
            }
            "Instant" | "SystemTime" if PURE.contains(&room) => Some(format!("`{room}` has no clock")),
            "cfg" | "cfg_attr" => condition(&tokens[position..]).and_then(|words| {
                let feature = words.iter().any(|word| word == "feature");
                let test_only = words.iter().all(|word| word == "test");
                if feature && room != "sys" {
                    Some("`cfg(feature` belongs to `sys`".to_owned())
                } else if PURE.contains(&room) && !test_only {
                    Some(format!("`{room}` is the same in every build"))
                } else {
                    None
                }
            }),
            _ => None,
        };
        found.extend(complaint.map(|complaint| format!("{path}:{line}: {complaint}")));
    }
    found
}

/// The words of the condition after `cfg`, `cfg!` or `cfg_attr`; `None` if no parenthesis follows.
fn condition(tokens: &[(usize, Token)]) -> Option<Vec<String>> {
    let mut rest = tokens.iter().map(|(_, token)| token).skip(1).peekable();
    rest.next_if(|token| token.is_sign('!'));
    rest.next_if(|token| token.is_sign('('))?;
    let (mut depth, mut words) = (1usize, Vec::new());
    for token in rest {
        match token {
            Token::Sign('(') => depth += 1,
            Token::Sign(')') => depth -= 1,
            Token::Word(word) => words.push(word.clone()),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    Some(words)
}

#[test]
fn every_name_in_the_core_is_in_the_layer_table() {
    let outside = outside_crates();
    assert!(outside.contains("rustix") && outside.contains("rccl_sys"), "{outside:?}");
    let files = source::files("src", "rs");
    assert!(files.len() > 10, "the core's files are not where this test looks: {files:?}");
    let tests = source::test_files(&files);
    let found = files.iter().flat_map(|path| {
        let tests_only = tests.contains(path) || path.contains("/tests/");
        violations(path, &source::read(path), &outside, tests_only)
    });
    let found = found.collect::<Vec<_>>();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn a_room_may_only_name_lower_floors() {
    for (position, row) in TABLE.iter().enumerate() {
        for entry in row.rooms {
            let room = entry.split(':').next().unwrap_or_default();
            let below = TABLE[..position].iter().find(|below| below.room == room);
            let below = below.unwrap_or_else(|| panic!("{} names {room}, which is not below it", row.room));
            assert!(below.floor < row.floor || row.floor == 0, "{} and {room} share a floor", row.room);
        }
    }
}

/// File, source, and what must be said of it; an empty text where nothing may be said.
const SNIPPETS: &[(&str, &str, &str)] = &[
    ("src/topology/plan.rs", "use crate::sys::Deadline;", "`topology` may not name `sys`"),
    ("src/topology/plan.rs", "use crate::{error::Error, mesh::{Mesh}};", "`topology` may not name `mesh`"),
    ("src/topology/plan.rs", "use super::super::sys::random;", "`topology` may not name `sys`"),
    ("src/topology/plan.rs", "fn f(x: super::Roster) -> crate::error::Result<()> {}", ""),
    ("src/topology/mod.rs", "mod tests { use super::super::sys as other; }", "`topology` may not name `sys`"),
    ("src/topology/mod.rs", "fn now() { std::time::Instant::now(); }", "has no clock"),
    ("src/topology/mod.rs", "fn f() { let x = std::fs::read(p); }", "may not name `std::fs`"),
    ("src/topology/mod.rs", "#[cfg(test)] mod tests { fn f() { std::fs::read(p); } }", ""),
    ("src/topology/mod.rs", "#[cfg(unix)] fn f() {}", "is the same in every build"),
    ("src/topology/mod.rs", "tracing::info!(\"x\");", "may not name the crate `tracing`"),
    ("src/mesh/mod.rs", "tracing::info!(\"x\");", ""),
    ("src/mesh/mod.rs", "use crate::checkpoint::save;", "`mesh` may not name `checkpoint`"),
    ("src/mesh/mod.rs", "use rustix::fs;", "may not name the crate `rustix`"),
    ("src/mesh/mod.rs", "fn f() { ::libc::getpid(); }", "may not name the crate `libc`"),
    ("src/rendezvous/directory.rs", "use crate::executor::Executor;", "`rendezvous` may not name `executor`"),
    ("src/rendezvous/mod.rs", "mod fs2; use fs2::lock;", ""),
    ("src/communicator/tcp.rs", "use crate::rendezvous::directory::meet;", "not `directory`"),
    (
        "src/communicator/tcp.rs",
        "use crate::rendezvous; fn f() { rendezvous::directory::meet(); }",
        "not `directory`",
    ),
    ("src/communicator/tcp.rs", "use crate::rendezvous::{Exchange, RunKey};", ""),
    ("src/device/mod.rs", "use crate::topology::{GpuDevice, Roster};", "of `topology`, not `Roster`"),
    ("src/communicator/tcp.rs", "use crate::Error;", "`crate::Error` is not a room"),
    ("src/executor/host.rs", "fn f() { unsafe { g() } }", "`unsafe` belongs to `sys`"),
    (
        "src/executor/host.rs",
        "// unsafe\nlet s = \"unsafe\"; let r = r#\"unsafe \" \"#; let c = '\"'; /* unsafe */",
        "",
    ),
    ("src/executor/host.rs", "fn f<'a>(x: &'a str) { unsafe { g() } }", "`unsafe` belongs to `sys`"),
    (
        "src/executor/host.rs",
        "#[cfg(all(unix, feature = \"nccl\"))] fn f() {}",
        "`cfg(feature` belongs to `sys`",
    ),
    ("src/executor/host.rs", "if cfg!(feature = \"nccl\") {}", "`cfg(feature` belongs to `sys`"),
    ("src/sys/host.rs", "#[cfg(feature = \"nccl\")] fn f() { unsafe { libc::getpid() }; }", ""),
    ("src/sys/host.rs", "use crate::device::survey;", "`sys` may not name `device`"),
    ("src/device/mod.rs", "let x = std::env::var(\"HOME\");", "`env::var` belongs to `environment`"),
    ("src/device/mod.rs", "use std::env::{self, var_os};", "`env::var_os` belongs to `environment`"),
    (
        "src/device/mod.rs",
        "use std::env; fn f() { env::temp_dir(); }",
        "`env::temp_dir` belongs to `environment`",
    ),
    ("src/environment.rs", "let x = std::env::var_os(name);", ""),
    ("src/environment.rs", "use crate::sys;", "`environment` may not name `sys`"),
    ("src/kitchen.rs", "fn f() {}", "the room `kitchen` is not in the layer table"),
];

#[test]
fn the_reader_sees_what_it_must_see() {
    let outside = outside_crates();
    for (path, text, expected) in SNIPPETS {
        let found = violations(path, text, &outside, false).join("\n");
        if expected.is_empty() {
            assert!(found.is_empty(), "{path}: {text}\n{found}");
        } else {
            assert!(found.contains(expected), "{path}: {text}\nexpected: {expected}\nfound: {found}");
        }
    }
}

#[test]
fn no_file_is_longer_than_nine_hundred_lines() {
    let folders = ["src", "crates", "launch", "python", "tests", "benches", "examples", "slurm", "include"];
    for folder in folders {
        for extension in ["rs", "py", "pyi", "c", "h", "sh"] {
            for path in source::files(folder, extension) {
                let lines = source::read(&path).lines().count();
                // A C program includes one file.
                let limit = if path == "include/uform.h" { 1500 } else { 900 };
                assert!(lines <= limit, "{path} has {lines} lines");
            }
        }
    }
}
