//! Drives the built `uform report` over records of runs that end well, that are killed in a call, and that are damaged.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use uform::{Mesh, ReduceOp};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A folder that is removed with all it holds.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uform-report-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("records")).expect("a folder can be made");
        Self(path)
    }

    fn records(&self) -> PathBuf {
        self.0.join("records")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One member, which is killed at the latest when the test ends.
struct Member(Child);

impl Member {
    fn ended(mut self) -> Output {
        let start = Instant::now();
        while self.0.try_wait().expect("a child").is_none() {
            assert!(start.elapsed() < LIMIT, "a member does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let read = |stream: Option<Box<dyn std::io::Read>>| {
            let mut bytes = Vec::new();
            stream.map(|mut stream| stream.read_to_end(&mut bytes));
            bytes
        };
        let stdout = read(self.0.stdout.take().map(|stream| Box::new(stream) as _));
        let stderr = read(self.0.stderr.take().map(|stream| Box::new(stream) as _));
        Output { status: self.0.wait().expect("a child"), stdout, stderr }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Folder, role: &str, record: Option<&Path>) -> Vec<Member> {
    let one = |index: u32| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "member", "--ignored", "--nocapture"]);
        command.env("REPORT_ROLE", role).env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", "2");
        command.env("UFORM_DIRECTORY", &folder.0).env("UFORM_JOB", role);
        command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", folder.records());
        match record {
            Some(record) => command.env("UFORM_RECORD", record),
            None => command.env_remove("UFORM_RECORD"),
        };
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Member(command.spawn().expect("it starts"))
    };
    vec![one(0), one(1)]
}

/// The body of a member; does nothing where the tests themselves run it.
#[test]
#[ignore = "a role of the other tests"]
fn member() {
    let Ok(role) = std::env::var("REPORT_ROLE") else { return };
    let mesh = Mesh::bootstrap(None, None).expect("formed");
    let mut array = [1.0f32; 4];
    for _ in 0..1500 {
        mesh.all_reduce(&mut array, ReduceOp::Max).expect("reduced");
    }
    if role == "stops" && mesh.index() == 1 {
        std::thread::sleep(2 * LIMIT);
    }
    let result = mesh.broadcast(&mut array, 1);
    if let Err(error) = &result {
        println!("error: {error}");
    }
    assert_eq!(result.is_err(), role == "stops");
    mesh.close().expect("closed");
}

fn report(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uform")).arg("report").args(arguments).output().expect("it runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// What a refused command said.
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn json(folder: &Path) -> Value {
    serde_json::from_str(&text(&report(&["--json", folder.to_str().expect("text")]))).expect("JSON")
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

#[test]
fn who_is_killed_in_a_call_leaves_its_record_and_the_others_name_it() {
    let folder = Folder::new("killed");
    let (records, start_time) = (folder.records(), Instant::now());
    let mut members = start(&folder, "stops", None);
    let place = records.to_str().expect("text").to_owned();
    // Until index 0 waits in its last call.
    loop {
        let output = report(&["--json", &place]);
        let value: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let calls = value["runs"][0]["members"][0]["calls"].as_array().cloned().unwrap_or_default();
        if calls.last().is_some_and(|call| call["verb"] == "broadcast" && call["outcome"].is_null()) {
            break;
        }
        assert!(start_time.elapsed() < LIMIT, "{output:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
    let living = text(&report(&[&place]));
    assert!(living.contains("index 1 is behind: call 1500 of group run, others are at 1501"), "{living}");
    let mut killed = members.pop().expect("two");
    killed.0.kill().expect("killed");
    drop(killed);
    let survivor = members.pop().expect("two").ended();
    let said = String::from_utf8_lossy(&survivor.stdout).into_owned();
    assert!(survivor.status.success(), "{survivor:?}");
    let run = said.split("see: uform report ").nth(1).and_then(|rest| rest.split(')').next());
    let run = PathBuf::from(run.unwrap_or_else(|| panic!("no report is named: {said}")));

    let shown = text(&report(&[run.to_str().expect("text")]));
    let line = |index: u32| {
        let start = format!("  index {index} of 2");
        shown.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{shown}")).to_owned()
    };
    let own = file!();
    assert!(
        line(0).contains("failed in broadcast #1501(4 F32, root 1) at") && line(0).contains(own),
        "{shown}"
    );
    assert!(line(1).contains("died: in the user's code after all_reduce #1500(4 F32, MAX)"), "{shown}");
    let value = json(&run);
    let members = &value["runs"][0]["members"];
    let count = |index: usize| members[index]["calls"].as_array().map_or(0, Vec::len);
    assert!(count(0) >= 1000 && count(1) >= 1000, "the last 1,000 calls are there");
    let calls = members[1]["calls"].as_array().expect("calls");
    let sequences = calls.iter().map(|call| call["sequence"].as_u64().unwrap_or(0)).collect::<Vec<_>>();
    assert!(sequences.windows(2).all(|pair| pair[1] == pair[0] + 1), "{sequences:?}");
    let moments = |call: &Value| ["entered", "matched", "left"].map(|key| call[key].as_u64().unwrap_or(0));
    assert!(calls.iter().map(moments).all(|[one, two, three]| 0 < one && one <= two && two <= three));
    let left = files(&run).into_iter().filter(|path| path.extension().is_some_and(|end| end == "txt"));
    let left = left.map(|path| std::fs::read_to_string(path).expect("text")).collect::<Vec<_>>();
    assert!(
        left.len() == 1 && left[0].contains("index 1: in the user's code after all_reduce #1500"),
        "{left:?}"
    );

    let chrome = folder.0.join("trace.json");
    let arguments = [run.to_str().expect("text"), "--chrome", chrome.to_str().expect("text")];
    text(&report(&arguments));
    let trace: Value = serde_json::from_slice(&std::fs::read(&chrome).expect("written")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    for process in 0..2 {
        let own = events.iter().filter(|event| event["pid"] == process && event["ph"] == "X");
        let calls = own.filter(|event| event["name"] == "all_reduce").count();
        assert!(calls >= 999, "{calls} calls of process {process}");
    }
    assert!(trace["otherData"]["clock"].as_str().is_some_and(|clock| clock.contains("host")));
}

#[test]
fn a_run_that_ends_well_leaves_nothing_unless_somebody_asks() {
    let folder = Folder::new("well");
    for member in start(&folder, "ends", None) {
        let output = member.ended();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(files(&folder.records()), Vec::<PathBuf>::new());
    let kept = folder.0.join("kept");
    std::fs::create_dir(&kept).expect("a folder can be made");
    for member in start(&folder, "kept", Some(&kept)) {
        let output = member.ended();
        assert!(output.status.success(), "{output:?}");
    }
    let value = json(&kept);
    let states = value["runs"][0]["members"].as_array().expect("members").iter();
    let states = states.map(|member| member["state"].as_str().unwrap_or("")).collect::<Vec<_>>();
    assert_eq!(states, ["closed its mesh"; 2]);
}

#[test]
fn damage_is_named_and_nothing_waits() {
    let folder = Folder::new("damage");
    let records = folder.records();
    let place = records.to_str().expect("text");
    assert!(refusal(&report(&[place])).contains("has no record of calls"));
    assert!(refusal(&report(&[&format!("{place}/absent")])).contains("absent"));
    let kept = folder.0.join("kept");
    std::fs::create_dir(&kept).expect("a folder can be made");
    for member in start(&folder, "whole", Some(&kept)) {
        assert!(member.ended().status.success());
    }
    let whole = files(&kept).pop().expect("a record");
    let bytes = std::fs::read(&whole).expect("readable");
    let put = |name: &str, bytes: &[u8]| std::fs::write(records.join(name), bytes).expect("written");
    put("empty.calls", b"");
    put("short.calls", &bytes[..bytes.len() / 2]);
    put("garbage.calls", &vec![0xa5; bytes.len()]);
    std::os::unix::fs::symlink(&whole, records.join("link.calls")).expect("made");
    let pipe = Command::new("mkfifo").arg(records.join("pipe.calls")).status().expect("it runs");
    assert!(pipe.success());
    for (name, reason) in [
        ("empty", "is no record"),
        ("short", "ends here"),
        ("garbage", "is no record"),
        ("link", "is no file"),
        ("pipe", "is no file"),
    ] {
        let path = format!("{place}/{name}.calls");
        let said = refusal(&report(&[&path]));
        assert!(said.contains(reason) && said.contains(name), "{said}");
    }
    assert!(refusal(&report(&[place])).contains(".calls"));
    // Beside a whole one they are told and harm nothing; one with any byte changed is shown or refused.
    put("whole.calls", &bytes);
    let shown = text(&report(&[place]));
    assert_eq!(shown.matches("unreadable: ").count(), 5, "{shown}");
    assert!(shown.contains("broadcast #1501"), "{shown}");
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let changed = records.join("whole.calls");
    for _ in 0..300 {
        let mut bytes = bytes.clone();
        for _ in 0..20 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 25) as u8;
        }
        std::fs::write(&changed, &bytes).expect("written");
        let _ = uform::recorder::read(&changed).map(|record| record.last_words());
    }
    // Everything changed but what tells a record from other files.
    let mut bytes = bytes;
    bytes[16..].iter_mut().for_each(|byte| *byte = 0xff);
    put("whole.calls", &bytes);
    let output = report(&[place]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
}
