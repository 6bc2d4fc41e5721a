//! Drives the built `uform bench`: its own processes, those of a run, other libraries, and what ends it early.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// No test waits longer than this for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// A folder that is removed with all it holds.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let nonce = uform::sys::random::nonce().expect("random bytes");
        let path = std::env::temp_dir().join(format!("uform-bench-test-{nonce}"));
        std::fs::create_dir(&path).expect("made");
        Self(path)
    }

    /// Makes a program that runs these lines of shell.
    fn program(&self, name: &str, lines: &str) {
        let path = self.0.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("executable");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uform"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn uform(arguments: &[&str]) -> Output {
    command(arguments).output().expect("it runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// What `uform bench --json` says, of few rounds.
fn measured(arguments: &[&str]) -> Value {
    let rest = ["--rounds", "2", "--json"];
    let all = ["bench"].iter().chain(arguments).chain(&rest).copied().collect::<Vec<_>>();
    serde_json::from_str(&text(&uform(&all))).expect("one JSON object")
}

#[test]
fn every_verb_is_measured_and_right() {
    for (verb, factor) in [
        ("all_reduce", 4.0 / 3.0),
        ("reduce", 1.0),
        ("broadcast", 1.0),
        ("all_gather", 2.0 / 3.0),
        ("reduce_scatter", 2.0 / 3.0),
        ("all_to_all", 2.0 / 3.0),
        ("gather", 2.0 / 3.0),
        ("scatter", 2.0 / 3.0),
    ] {
        let report = measured(&[verb, "--processes", "3", "--sizes", "4,120K", "--root", "1"]);
        assert_eq!((&report["verb"], &report["processes"]), (&verb.into(), &3.into()));
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 2, "{verb}");
        for row in rows {
            assert!(row["limit_microseconds"].as_f64().expect("a number") > 0.0, "{verb}: {row}");
            for way in ["arena", "private"] {
                let timing = &row[way];
                assert_eq!(timing["wrong"], 0, "{verb}: {row}");
                let number = |name: &str| timing[name].as_f64().expect(name);
                let algorithm = number("algorithm_gigabytes_per_second");
                let by_hand = row["bytes"].as_f64().expect("bytes") / number("microseconds") / 1e3;
                assert!((algorithm / by_hand - 1.0).abs() < 1e-9, "{verb}: {row}");
                let bus = number("bus_gigabytes_per_second");
                assert!((bus / algorithm - factor).abs() < 1e-9, "{verb}: {row}");
            }
        }
        // 4 bytes are one element, and a verb of parts has one for each part.
        let least = if factor == 2.0 / 3.0 { 12 } else { 4 };
        assert_eq!((&rows[0]["bytes"], &rows[1]["bytes"]), (&least.into(), &122_880.into()), "{verb}");
    }
    let barrier = measured(&["barrier"]);
    assert!(barrier["rows"][0]["private"]["microseconds"].as_f64().expect("a number") > 0.0);
    assert_eq!(barrier["rows"][0]["limit_microseconds"], Value::Null);
}

#[test]
fn types_and_operations_are_checked() {
    for (dtype, op) in [
        ("f64", "product"),
        ("bf16", "sum"),
        ("f16", "average"),
        ("i8", "max"),
        ("u16", "average"),
        ("u64", "bitwise_xor"),
        ("i32", "bitwise_and"),
        ("u8", "bitwise_or"),
        ("bool", "sum"),
        ("bool", "min"),
        ("i16", "min"),
    ] {
        for processes in ["2", "3"] {
            let given =
                ["reduce_scatter", "-n", processes, "--dtype", dtype, "--op", op, "--sizes", "8,70000"];
            let report = measured(&given);
            for row in report["rows"].as_array().expect("rows") {
                for way in ["arena", "private"] {
                    assert_eq!(row[way]["wrong"], 0, "{op} of {dtype} in {processes}: {row}");
                }
            }
        }
    }
    let unchecked = measured(&["--check", "no", "--sizes", "8", "--private"]);
    assert_eq!(unchecked["rows"][0]["private"]["wrong"], Value::Null);
    assert_eq!(unchecked["rows"][0]["arena"], Value::Null);
}

#[test]
fn a_table_is_printed_without_the_index_of_its_printer() {
    let table = text(&uform(&["bench", "--sizes", "8,4K", "--rounds", "2"]));
    let first = table.lines().next().unwrap_or_default();
    assert!(first.starts_with("uform ") && first.contains("all_reduce of f32 (sum), 2 processes on 1 host"));
    assert!(table.contains("algbw") && table.contains("busbw") && table.contains("limit us"), "{table}");
    let sizes = table.lines().filter_map(|line| line.split_whitespace().next()).collect::<Vec<_>>();
    assert!(sizes.contains(&"8") && sizes.contains(&"4096"), "{table}");
    assert!(!table.contains("[0]"), "{table}");
}

#[test]
fn within_a_run_index_0_tells_of_all() {
    let own = env!("CARGO_BIN_EXE_uform");
    let launched = |rest: &[&'static str]| {
        let all = ["launch", "-n", "3", own, "bench", "--sizes", "8", "--rounds", "2"];
        uform(&all.iter().chain(rest).copied().collect::<Vec<_>>())
    };
    let table = text(&launched(&[]));
    assert!(table.contains("3 processes on 1 host"), "{table}");
    assert!(table.lines().all(|line| line.starts_with("[0]")), "{table}");
    for (rest, part) in [
        (["--processes", "2"], "--processes"),
        (["--against", "mpi"], "leave the launcher away"),
        (["--root=3", "broadcast"], "--root"),
    ] {
        let refused = launched(&rest);
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn bad_input_is_refused_before_anything_starts() {
    let folder = Folder::new();
    let absent = folder.0.join("absent/plot.svg");
    let absent = absent.to_str().expect("text");
    for (arguments, part, code) in [
        (vec!["no_verb"], "all_to_all", 2),
        (vec!["--sizes", "8,1x"], "\"1x\"", 2),
        (vec!["--sizes", "64:8"], "64:8", 2),
        (vec!["--dtype", "f31"], "bf16", 2),
        (vec!["--op", "mean"], "average", 2),
        (vec!["--op", "bitwise_or"], "integers only", 2),
        (vec!["--dtype", "bool", "--op", "average"], "no average", 2),
        (vec!["--processes", "0"], "--processes", 2),
        (vec!["--rounds", "0"], "--rounds", 2),
        (vec!["--seconds", "nan"], "--seconds", 2),
        (vec!["--seconds", "-1"], "seconds", 2),
        (vec!["--arena", "--private"], "--private", 2),
        (vec!["--against", "nccl"], "gloo", 2),
        (vec!["broadcast", "--root", "2"], "--root", 2),
        (vec!["barrier", "--sizes", "8"], "--sizes", 2),
        (vec!["barrier", "--plot", "x.svg"], "--plot", 2),
        (vec!["--json", "--plot", "-"], "--plot", 2),
        (vec!["--sizes", "8", "--rounds", "1", "--plot", absent], "absent/plot.svg", 1),
        (vec!["--sizes", "900T", "--rounds", "1", "--arena"], "bytes", 1),
    ] {
        let all = ["bench"].iter().chain(&arguments).copied().collect::<Vec<_>>();
        let output = uform(&all);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(part) && !error.contains("panicked"), "{arguments:?}: {error}");
    }
}

#[test]
fn a_picture_names_its_lines() {
    let folder = Folder::new();
    let path = folder.0.join("plot.svg");
    text(&uform(&["bench", "--sizes", "8,64K", "--rounds", "2", "--plot", path.to_str().expect("text")]));
    let picture = std::fs::read_to_string(&path).expect("the picture is there");
    assert!(picture.starts_with("<svg ") && picture.trim_end().ends_with("</svg>"), "{picture}");
    for word in ["arrays of an arena", "private arrays", "limit of memory", " KiB", "microseconds"] {
        assert!(picture.contains(word), "{word} is not in the picture");
    }
}

/// A running command; its processes carry a mark in their environment.
struct Running {
    child: Child,
    mark: String,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mark = uform::sys::random::nonce().expect("random bytes").to_string();
        let child = command.env("UFORM_BENCH_MARK", &mark).spawn().expect("it starts");
        Self { child, mark }
    }

    /// The processes of it that live, with their command lines.
    fn processes(&self) -> Vec<(i32, String)> {
        let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mark = format!("UFORM_BENCH_MARK={}", self.mark);
        let marked = |pid: &i32| {
            let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            text.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let named = |pid: i32| {
            let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            (pid, String::from_utf8_lossy(&text).replace('\0', " "))
        };
        numbers.filter(marked).map(named).collect()
    }

    /// Waits until so many of its processes have this in their command lines.
    fn await_processes(&self, part: &str, count: usize) -> Vec<i32> {
        let start = Instant::now();
        loop {
            let found = self.processes().into_iter().filter(|(_, line)| line.contains(part));
            let found = found.map(|(pid, _)| pid).collect::<Vec<_>>();
            if found.len() == count {
                return found;
            }
            assert!(start.elapsed() < DEADLINE, "{count} processes of {part}: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(&self, pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).expect("a process"), signal).expect("it lives");
    }

    fn own_pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a number of a process")
    }

    /// The exit code and what was written to standard error, once nothing of it is left.
    fn end(mut self) -> (i32, String) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(start.elapsed() < DEADLINE, "it goes on: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut error = String::new();
        let mut pipe = self.child.stderr.take().expect("a pipe");
        pipe.read_to_string(&mut error).expect("text");
        while !self.processes().is_empty() {
            assert!(start.elapsed() < DEADLINE, "left: {:?}", self.processes());
            std::thread::sleep(Duration::from_millis(10));
        }
        (status.code().expect("an exit code"), error)
    }
}

/// A measurement that lasts until something ends it.
fn endless() -> Running {
    Running::start(command(&["bench", "--sizes", "8", "--seconds", "3000"]))
}

#[test]
fn an_interrupt_ends_it_with_all_its_processes() {
    let running = endless();
    running.await_processes("--result", 2);
    running.signal(running.own_pid(), Signal::INT);
    let (code, error) = running.end();
    assert_eq!(code, 130, "{error}");
}

#[test]
fn a_killed_member_is_named() {
    let running = endless();
    let members = running.await_processes("--result", 2);
    let of_index_1 = |pid: &&i32| {
        let text = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|variable| variable == b"UFORM_INDEX=1")
    };
    let victim = *members.iter().find(of_index_1).expect("index 1");
    running.signal(victim, Signal::KILL);
    let (code, error) = running.end();
    assert_eq!(code, 137, "{error}");
    assert!(error.contains("index 1") && error.contains(&victim.to_string()), "{error}");
}

/// A folder whose Python says that a library is installed, and its mpirun, before all others in PATH.
fn with_peer(lines: &str, arguments: &[&str]) -> (Folder, Command) {
    let folder = Folder::new();
    folder.program(
        "python3",
        &format!("case \"$3\" in probe) echo \"installed stand-in 1.0\" ;; *) {lines} ;; esac"),
    );
    folder.program("mpirun", "shift 2; exec \"$@\"");
    let mut command = command(arguments);
    command.env("PATH", format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap_or_default()));
    (folder, command)
}

const SMALL: [&str; 8] = ["bench", "--sizes", "8,64", "--rounds", "2", "--against", "gloo,mpi", "--json"];

#[test]
fn peers_stand_beside_the_own_figures() {
    let lines = r#"for size in 8 64; do echo "{\"bytes\": $size, \"microseconds\": 2.5}"; done"#;
    let (_folder, mut command) = with_peer(lines, &SMALL);
    let report: Value =
        serde_json::from_str(&text(&command.output().expect("it runs"))).expect("one JSON object");
    for (position, name) in ["gloo", "mpi"].into_iter().enumerate() {
        let peer = &report["peers"][position];
        assert_eq!((&peer["name"], &peer["what"]), (&name.into(), &"stand-in 1.0".into()));
        assert_eq!((&peer["rows"][1]["bytes"], &peer["rows"][1]["microseconds"]), (&64.into(), &2.5.into()));
    }
    let (_folder, mut command) = with_peer(lines, &SMALL[..7]);
    let table = text(&command.output().expect("it runs"));
    assert!(table.contains("gloo (stand-in 1.0)") && table.contains("private / it"), "{table}");
}

#[test]
fn a_peer_that_is_absent_or_fails_is_told_and_changes_the_exit_code() {
    let (folder, mut command) = with_peer("echo broken on purpose >&2; exit 4", &SMALL);
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("gloo is not measured") && error.contains("broken on purpose"), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("the own figures are there");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(2));
    assert!(report["peers"][0]["absent"].as_str().expect("a reason").contains("exit status: 4"));
    folder.program("python3", "echo absent torch is not installed for this Python");
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("gloo is not measured: torch is not installed"), "{error}");
}

#[test]
fn an_interrupt_ends_a_peer() {
    let (_folder, command) = with_peer("sleep 3000", &SMALL);
    let running = Running::start(command);
    running.await_processes("sleep 3000", 1);
    running.signal(running.own_pid(), Signal::INT);
    let (code, error) = running.end();
    assert_eq!(code, 130, "{error}");
}

/// Runs the script of the package with a real library where there is one.
#[test]
fn a_real_mpi_is_measured_where_it_is_installed() {
    let python = std::env::var_os("VIRTUAL_ENV").map(|folder| Path::new(&folder).join("bin/python3"));
    let python = python.unwrap_or_else(|| "python3".into());
    let asked = Command::new(&python).args(["-c", "import mpi4py"]).stderr(Stdio::null()).status();
    if !asked.is_ok_and(|status| status.success()) {
        println!("not run: {} has no mpi4py", python.display());
        return;
    }
    for verb in ["all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather"]
    {
        let report = measured(&[verb, "--sizes", "8,4K", "--against", "mpi"]);
        let rows = report["peers"][0]["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 2, "{verb}: {report}");
    }
}
