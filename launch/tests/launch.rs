//! Drives the built `uform launch`: output, exit codes, signals, and that nothing is left whoever is killed.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// No test waits longer than this for anything.
const DEADLINE: Duration = Duration::from_secs(60);

/// A folder of one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let nonce = uform::sys::random::nonce().expect("random bytes");
        let path = std::env::temp_dir().join(format!("uform-launch-test-{nonce}"));
        std::fs::create_dir(&path).expect("made");
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("there");
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running launcher; all its processes carry a mark in their environment.
struct Run {
    child: Child,
    mark: String,
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    start: Instant,
}

struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn collect(mut pipe: impl Read + Send + 'static, into: &Arc<Mutex<Vec<u8>>>) -> std::thread::JoinHandle<()> {
    let into = Arc::clone(into);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            into.lock().expect("not poisoned").extend_from_slice(&buffer[..count]);
        }
    })
}

fn text(bytes: &Arc<Mutex<Vec<u8>>>) -> String {
    String::from_utf8_lossy(&bytes.lock().expect("not poisoned")).into_owned()
}

impl Run {
    fn command(arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uform"));
        command.arg("launch").args(arguments).stdin(Stdio::null());
        command.env_remove("UFORM_LOG").env_remove("OMP_NUM_THREADS").env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn start(arguments: &[&str]) -> Self {
        Self::spawn(Self::command(arguments))
    }

    fn spawn(mut command: Command) -> Self {
        let mark = uform::sys::random::nonce().expect("random bytes");
        command.env("UFORM_TEST_MARK", &mark).process_group(0);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        let (out, err) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stdout.take().expect("piped"), &out),
            collect(child.stderr.take().expect("piped"), &err),
        ];
        Self { child, mark, out, err, readers, start: Instant::now() }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    /// Waits until `ready` holds.
    fn until(&self, what: &str, mut ready: impl FnMut() -> bool) {
        while !ready() {
            assert!(
                self.start.elapsed() < DEADLINE,
                "no {what}; processes: {:?}\nstdout:\n{}\nstderr:\n{}",
                marked(&self.mark),
                text(&self.out),
                text(&self.err)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the word stands in standard output so often.
    fn until_written(&self, word: &str, times: usize) {
        self.until(word, || text(&self.out).matches(word).count() >= times);
    }

    fn until_gone(&self) {
        self.until("end of all processes", || marked(&self.mark).is_empty());
    }

    /// Waits for the launcher; nothing may be left of its processes then.
    fn wait(mut self) -> Ended {
        let mut status = None;
        while status.is_none() {
            self.until("end of the launcher", || true);
            status = self.child.try_wait().expect("our child");
            assert!(
                self.start.elapsed() < DEADLINE,
                "the launcher hangs\n{}\n{}",
                text(&self.out),
                text(&self.err)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        let status = status.expect("it ended");
        if status.signal().is_none() {
            assert_eq!(marked(&self.mark), Vec::<(u32, String)>::new(), "left behind");
        }
        let code = status.code().unwrap_or_else(|| 1000 + status.signal().unwrap_or(0));
        Ended { code, out: text(&self.out), err: text(&self.err) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for (pid, _) in marked(&self.mark) {
            kill(pid, Signal::KILL);
        }
    }
}

fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("not 0");
    let _ = kill_process(pid, signal);
}

/// The processes that carry a mark, zombies left out, with their command lines.
fn marked(mark: &str) -> Vec<(u32, String)> {
    let wanted = format!("UFORM_TEST_MARK={mark}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
            && uform::sys::process::start_ticks(pid).is_some()
        {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push((pid, String::from_utf8_lossy(&command).replace('\0', " ")));
        }
    }
    found
}

fn guards(mark: &str) -> BTreeSet<u32> {
    marked(mark)
        .into_iter()
        .filter(|(_, command)| command.contains("guard of index"))
        .map(|(pid, _)| pid)
        .collect()
}

fn run(arguments: &[&str]) -> Ended {
    Run::start(arguments).wait()
}

/// The lines of one index, in order, without the prefix.
fn lines(output: &str, index: usize) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(&format!("[{index}] "))).collect()
}

#[test]
fn lines_carry_their_index_and_streams_stay_apart() {
    let ended = run(&["-n", "3", "sh", "-c", "echo out $UFORM_INDEX/$UFORM_COUNT; echo err >&2; printf end"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    for index in 0..3 {
        assert_eq!(lines(&ended.out, index), [format!("out {index}/3"), "end".into()]);
        assert_eq!(lines(&ended.err, index), ["err"]);
    }
    assert_eq!(ended.out.lines().count(), 6);
}

#[test]
fn bytes_pass_and_long_lines_are_cut() {
    let script = r"printf 'a\377b\r\n'; head -c 200000 /dev/zero | tr '\0' x";
    let mut command = Run::command(&["sh", "-c", script]);
    let output = command.output().expect("it runs");
    assert!(output.stdout.starts_with(b"[0] a\xffb\n"));
    let letters = output.stdout.iter().filter(|byte| **byte == b'x').count();
    assert_eq!((letters, output.stdout.split(|byte| *byte == b'\n').count()), (200_000, 6));
}

#[test]
fn variables_of_an_outer_launcher_are_removed() {
    let mut command = Run::command(&["--job", "mine", "--timeout", "7.5", "env"]);
    command.envs([
        ("RANK", "5"),
        ("WORLD_SIZE", "9"),
        ("MASTER_ADDR", "there"),
        ("TORCHELASTIC_MAX_RESTARTS", "1"),
    ]);
    command.envs([
        ("UFORM_DIRECTORY", "/nowhere"),
        ("UFORM_INDEX", "8"),
        ("UFORM_JOB", "old"),
        ("UFORM_LOG", "off"),
    ]);
    let run = Run::spawn(command);
    let launcher = format!("UFORM_LAUNCHER_PID={}", run.pid());
    let ended = run.wait();
    let variables = lines(&ended.out, 0);
    for wanted in
        ["UFORM_INDEX=0", "UFORM_COUNT=1", "UFORM_LOCAL_INDEX=0", "UFORM_LOCAL_COUNT=1", "UFORM_TIMEOUT=7.5"]
    {
        assert!(variables.contains(&wanted), "{wanted} in {variables:?}");
    }
    assert!(variables.contains(&launcher.as_str()) && variables.contains(&"UFORM_LOG=off"), "{variables:?}");
    assert!(variables.iter().any(|variable| variable.starts_with("UFORM_JOB=mine-")), "{variables:?}");
    let foreign = ["RANK=", "WORLD_SIZE=", "MASTER_ADDR=", "TORCHELASTIC_", "UFORM_DIRECTORY="];
    let left = variables.iter().find(|variable| foreign.iter().any(|name| variable.starts_with(name)));
    assert_eq!(left, None);
}

#[test]
fn the_first_failure_stops_the_others_and_is_told() {
    let script = r#"echo "start $UFORM_INDEX"
        if [ $UFORM_INDEX = 1 ]; then sleep 0.3; echo "why it failed"; exit 7; fi
        trap 'echo told; exit 0' TERM; while :; do sleep 0.05; done"#;
    let ended = run(&["-n", "3", "sh", "-c", script]);
    assert_eq!(ended.code, 7);
    for index in [0, 2] {
        assert_eq!(lines(&ended.out, index).last(), Some(&"told"), "{}", ended.out);
    }
    let report = ended.err.split_once("index 1 failed first: exit code 7").expect("named").1;
    assert!(report.contains("last 2 lines:\n[1] start 1\n[1] why it failed\n"), "{}", ended.err);
}

#[test]
fn a_process_that_ignores_the_request_is_killed_after_the_grace_period() {
    let script = "[ $UFORM_INDEX = 1 ] && { sleep 0.3; exit 4; }; trap '' TERM; while :; do sleep 0.05; done";
    assert_eq!(run(&["-n", "2", "--grace", "0.4", "sh", "-c", script]).code, 4);
}

#[test]
fn a_killed_process_is_named_with_its_signal() {
    let run = Run::start(&["-n", "3", "sh", "-c", "echo pid $$ $UFORM_INDEX.; exec sleep 1000"]);
    run.until_written("pid", 3);
    let out = text(&run.out);
    let pid = lines(&out, 2)[0].split(' ').nth(1).expect("a pid").parse().expect("a number");
    kill(pid, Signal::KILL);
    let ended = run.wait();
    assert_eq!(ended.code, 137);
    assert!(ended.err.contains("index 2 failed first: killed by SIGKILL"), "{}", ended.err);
}

#[test]
fn signals_are_passed_on() {
    for (signal, name, code) in [(Signal::INT, "INT", 5), (Signal::TERM, "TERM", 5), (Signal::HUP, "HUP", 5)]
    {
        let script = format!("trap 'echo got; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let run = Run::start(&["-n", "2", "sh", "-c", &script]);
        run.until_written("ready", 2);
        run.signal(signal);
        let ended = run.wait();
        assert_eq!((ended.code, ended.out.matches("got").count()), (code, 2), "{name}: {}", ended.err);
        assert!(ended.err.contains(&format!("stopped by SIG{name}")), "{}", ended.err);
    }
}

#[test]
fn a_user_signal_reaches_each_process_and_ends_none() {
    let script = "trap 'echo got; n=1' USR1; echo ready; while [ -z \"$n\" ]; do sleep 0.05; done";
    let run = Run::start(&["-n", "2", "sh", "-c", script]);
    run.until_written("ready", 2);
    run.signal(Signal::USR1);
    let ended = run.wait();
    assert_eq!((ended.code, ended.out.matches("got").count()), (0, 2), "{}", ended.err);
}

#[test]
fn a_second_interrupt_hastens() {
    let script = "trap '' INT; trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let run = Run::start(&["-n", "2", "--grace", "1000", "sh", "-c", script]);
    run.until_written("ready", 2);
    run.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(300));
    run.signal(Signal::INT);
    let ended = run.wait();
    assert_eq!((ended.code, ended.out.matches("told").count()), (9, 2), "{}", ended.err);
}

#[test]
fn a_stopped_process_is_ended_too() {
    let run = Run::start(&["-n", "2", "sh", "-c", "echo ready; kill -STOP $$; sleep 1000"]);
    run.until_written("ready", 2);
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code, 143);
}

#[test]
fn nothing_is_left_when_the_launcher_is_killed() {
    let folder = Folder::new();
    let mut command = Run::command(&["-n", "3", "sh", "-c", "sleep 1000 & echo ready; sleep 1000"]);
    command.env("TMPDIR", &folder.0);
    let run = Run::spawn(command);
    run.until_written("ready", 3);
    assert_eq!(guards(&run.mark).len(), 3);
    run.signal(Signal::KILL);
    run.until_gone();
    assert_eq!(folder.names().len(), 1, "the private folder stays for now");
    let mut command = Run::command(&["-n", "2", "true"]);
    command.env("TMPDIR", &folder.0);
    assert_eq!(Run::spawn(command).wait().code, 0);
    assert_eq!(folder.names(), Vec::<String>::new(), "the next launch removes it");
}

#[test]
fn nothing_is_left_when_the_launcher_is_killed_while_it_starts() {
    let folder = Folder::new();
    for delay in (0..60).step_by(4) {
        let mut command = Run::command(&["-n", "12", "sleep", "1000"]);
        command.env("TMPDIR", &folder.0);
        let run = Run::spawn(command);
        std::thread::sleep(Duration::from_millis(delay));
        run.signal(Signal::KILL);
        run.until_gone();
    }
}

#[test]
fn a_killed_guard_is_replaced() {
    let run = Run::start(&["-n", "2", "sh", "-c", "echo ready; sleep 1000"]);
    run.until_written("ready", 2);
    let old = guards(&run.mark);
    old.iter().for_each(|pid| kill(*pid, Signal::KILL));
    run.until("new guards", || guards(&run.mark).difference(&old).count() == 2);
    run.signal(Signal::KILL);
    run.until_gone();
}

#[test]
fn nothing_is_left_when_guards_are_killed_and_the_launcher_ends() {
    let run = Run::start(&["-n", "2", "sh", "-c", "echo ready; sleep 1000"]);
    run.until_written("ready", 2);
    guards(&run.mark).iter().for_each(|pid| kill(*pid, Signal::KILL));
    run.signal(Signal::TERM);
    assert_eq!(run.wait().code, 143);
}

#[test]
fn what_a_process_leaves_behind_is_ended() {
    let ended = run(&["-n", "2", "sh", "-c", "sleep 1000 & exit 0"]);
    assert_eq!(ended.code, 0);
    assert!(ended.err.contains("ending what processes left behind (2)"), "{}", ended.err);
}

#[test]
fn ten_at_once_are_apart_and_leave_nothing() {
    let folder = Folder::new();
    let runs: Vec<Run> = (0..10)
        .map(|_| {
            let mut command = Run::command(&[
                "-n",
                "2",
                "sh",
                "-c",
                "echo $UFORM_DIRECTORY $UFORM_JOB; ls -A $UFORM_DIRECTORY",
            ]);
            command.env("TMPDIR", &folder.0);
            Run::spawn(command)
        })
        .collect();
    let mut places = BTreeSet::new();
    for run in runs {
        let ended = run.wait();
        assert_eq!(ended.code, 0, "{}", ended.err);
        let (first, second) = (lines(&ended.out, 0), lines(&ended.out, 1));
        assert_eq!(first[0], second[0]);
        places.insert(first[0].to_owned());
    }
    assert_eq!(places.len(), 10);
    assert_eq!(folder.names(), Vec::<String>::new());
}

/// The cores of a list such as `0-2,7`.
fn cores(list: &str) -> BTreeSet<u32> {
    let ranges = list.split_whitespace().last().unwrap_or_default().split(',');
    let bounds = ranges.map(|range| range.split_once('-').unwrap_or((range, range)));
    bounds.flat_map(|(first, last)| first.parse().expect("a core")..=last.parse().expect("a core")).collect()
}

#[test]
fn core_shares_are_disjoint_and_within_the_mask() {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let own = cores(status.lines().find(|line| line.starts_with("Cpus_allowed_list")).expect("listed"));
    let script = "grep Cpus_allowed_list /proc/self/status; echo $OMP_NUM_THREADS";
    for count in [1, 2, own.len(), own.len() + 3] {
        let ended = run(&["-n", &count.to_string(), "sh", "-c", script]);
        let shares: Vec<BTreeSet<u32>> = (0..count).map(|index| cores(lines(&ended.out, index)[0])).collect();
        let all: BTreeSet<u32> = shares.iter().flatten().copied().collect();
        assert_eq!(all, own, "{count} processes use the whole mask and no more");
        let total: usize = shares.iter().map(BTreeSet::len).sum();
        assert_eq!(total, own.len().max(count), "{shares:?}");
        for (index, share) in shares.iter().enumerate() {
            let threads: usize = lines(&ended.out, index)[1].parse().expect("a number");
            let quota = uform::device::quota_cores();
            let wanted = quota.map_or(share.len(), |quota| (quota as usize / count).clamp(1, share.len()));
            assert_eq!(threads, wanted, "of {} cores, quota {quota:?}", share.len());
        }
    }
    let ended = run(&["-n", "2", "--no-pin", "sh", "-c", script]);
    assert_eq!(cores(lines(&ended.out, 1)[0]), own);
}

const PROGRESS: &str = r"import sys, time
for i in range(101):
    sys.stderr.write(f'\r{i:3d}%'); sys.stderr.flush(); time.sleep(0.01)
sys.stderr.write('\n'); print('done')";

#[test]
fn updates_become_few_lines_where_there_is_no_terminal() {
    let ended = run(&["-n", "2", "python3", "-c", PROGRESS]);
    for index in 0..2 {
        let shown = lines(&ended.err, index);
        assert_eq!(shown.last(), Some(&"100%"), "{}", ended.err);
        // A loaded machine takes longer than a second for it, and shows one more every 5 s.
        assert!(shown.len() >= 2 && shown.len() < 20, "{shown:?}");
    }
    assert!(!ended.err.contains('\r'));
}

/// Runs the launcher on a terminal of its own and gives what it wrote there.
fn on_terminal(variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)"]);
    command.arg(env!("CARGO_BIN_EXE_uform")).arg("launch").args(arguments);
    command.env("TERM", "xterm").env_remove("NO_COLOR").envs(variables.iter().copied()).stdin(Stdio::null());
    Run::spawn(command).wait().out
}

#[test]
fn a_terminal_gets_one_live_line_of_index_0() {
    let shown = on_terminal(&[], &["-n", "2", "python3", "-c", PROGRESS]);
    assert!(shown.matches("\r\x1b[K").count() > 10, "{shown:?}");
    assert!(shown.contains(" 50%\x1b[?7h"), "{shown:?}");
    assert!(shown.contains("[0]\x1b[0m 100%\r\n"), "{shown:?}");
    // Index 1 has few lines there too.
    assert!(!shown.contains("[1]\x1b[0m  50%\x1b"), "{shown:?}");
    let shown = on_terminal(&[("NO_COLOR", "1")], &["-n", "2", "echo", "plain"]);
    assert!(shown.contains("[0] plain\r\n") && shown.contains("[1] plain\r\n"), "{shown:?}");
}

#[test]
fn a_terminal_shows_how_far_a_run_is_while_files_take_the_output() {
    let folder = Folder::new();
    let path = folder.0.to_str().expect("text");
    let script = "echo written; [ $UFORM_INDEX = 1 ] || exec sleep 3; sleep 1.5";
    let shown = on_terminal(&[], &["-n", "3", "--output", path, "sh", "-c", script]);
    for part in ["3 of 3 processes run, 0 s", "2 of 3 processes run, 2 s"] {
        assert!(shown.contains(part), "{part}: {shown:?}");
    }
    // Nothing of it stays.
    assert!(!shown.contains("written") && shown.ends_with("\r\x1b[K\x1b[?7l\x1b[?7h"), "{shown:?}");
    assert_eq!(std::fs::read_to_string(folder.0.join("2.out")).expect("written"), "written\n");
}

#[test]
fn standard_input_is_empty_on_a_terminal_and_given_to_index_0_otherwise() {
    let shown = on_terminal(&[("NO_COLOR", "1")], &["-n", "2", "sh", "-c", "cat; echo end"]);
    assert_eq!(shown.matches("end").count(), 2);
    let mut command = Run::command(&["-n", "2", "cat"]);
    let folder = Folder::new();
    std::fs::write(folder.0.join("input"), "words\n").expect("written");
    command.stdin(std::fs::File::open(folder.0.join("input")).expect("there"));
    assert_eq!(Run::spawn(command).wait().out, "[0] words\n");
}

#[test]
fn a_script_is_run_by_python_and_its_arguments_are_its_own() {
    let folder = Folder::new();
    let script = folder.0.join("show.py");
    std::fs::write(&script, "import sys; print(sys.argv[1:])").expect("written");
    let script = script.to_str().expect("text");
    let ended = run(&["--processes", "1", script, "--processes", "7", "--help", "--", "-x"]);
    assert_eq!(ended.out, "[0] ['--processes', '7', '--help', '--', '-x']\n", "{}", ended.err);
}

#[test]
fn a_reader_that_leaves_does_not_end_the_run() {
    let folder = Folder::new();
    let done = folder.0.join("done");
    let script = format!("yes | head -n 100000; touch {}", done.display());
    let mut command = Run::command(&["sh", "-c", &script]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("started");
    drop(child.stdout.take());
    let start = Instant::now();
    while child.try_wait().expect("our child").is_none() {
        if start.elapsed() > DEADLINE {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(done.exists());
}

#[test]
fn a_given_directory_is_made_and_stays() {
    let folder = Folder::new();
    let given = folder.0.join("a/b");
    let shown = given.to_str().expect("text");
    let ended = run(&["-n", "2", "-d", shown, "sh", "-c", "echo $UFORM_DIRECTORY"]);
    assert_eq!(lines(&ended.out, 1), [shown]);
    assert!(given.is_dir());
    let file = folder.0.join("file");
    std::fs::write(&file, "").expect("written");
    let ended = run(&["-n", "2", "-d", file.to_str().expect("text"), "true"]);
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("cannot use --directory"), "{}", ended.err);
}

#[test]
fn auto_starts_one_process_for_each_gpu_or_memory_domain() {
    let gpus = uform::device::gpu_devices().expect("looked at").len();
    let domains = uform::device::survey().expect("looked at").memory_domains.len();
    let expected = if gpus > 0 { gpus } else { domains };
    let ended = run(&["--processes", "auto", "sh", "-c", "echo $UFORM_INDEX of $UFORM_COUNT"]);
    let mut lines = ended.out.lines().map(str::to_owned).collect::<Vec<_>>();
    lines.sort_unstable();
    let wanted = (0..expected).map(|index| format!("[{index}] {index} of {expected}"));
    assert_eq!(lines, wanted.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>(), "{}", ended.err);
}

#[test]
fn wrong_arguments_start_nothing() {
    let folder = Folder::new();
    let plain = folder.0.join("plain");
    std::fs::write(&plain, "words").expect("written");
    let plain = plain.to_str().expect("text");
    let table: [(&[&str], i32, &str); 12] = [
        (&["--processes", "0", "true"], 2, "--processes"),
        (&["--processes", "100000", "true"], 2, "--processes"),
        (&["--processes", "two", "true"], 2, "--processes"),
        (&["--timeout", "nan", "true"], 2, "finite"),
        (&["--timeout", "-1", "true"], 2, "finite"),
        (&["--grace", "inf", "true"], 2, "finite"),
        (&["--job", "a/b", "true"], 2, "--job"),
        (&["--unknown", "true"], 2, "--unknown"),
        (&[], 2, "PROGRAM"),
        (&["-n", "2", "no-such-program-here"], 127, "not found in PATH"),
        (&["-n", "2", "no-such-script.py"], 127, "no such file"),
        (&["-n", "2", plain], 126, "permission to execute"),
    ];
    for (arguments, code, words) in table {
        let ended = run(arguments);
        assert_eq!(ended.code, code, "{arguments:?}: {}", ended.err);
        assert!(ended.err.contains(words) && ended.out.is_empty(), "{arguments:?}: {}", ended.err);
    }
}

#[test]
fn a_file_that_is_no_program_is_told_in_one_line() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let file: &Path = &folder.0.join("noise");
    std::fs::write(file, "words").expect("written");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o700)).expect("set");
    let ended = run(&["-n", "2", file.to_str().expect("text")]);
    assert_eq!((ended.code, ended.err.lines().count()), (126, 1), "{}", ended.err);
}

/// The binary under test as a program that joins the run.
const UFORM: &str = env!("CARGO_BIN_EXE_uform");

#[test]
fn processes_meet_and_the_run_is_shown_once() {
    let ended = Run::start(&["--processes", "3", UFORM, "topology"]).wait();
    assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.err);
    let lines = ended.out.lines().collect::<Vec<_>>();
    assert!(lines.iter().all(|line| line.starts_with("[0] ")), "{}", ended.out);
    for index in 0..3 {
        assert!(ended.out.contains(&format!("index {index}")), "{}", ended.out);
    }
}

#[test]
fn ten_launches_at_once_form_ten_runs() {
    let folder = Folder::new();
    let path = folder.0.to_string_lossy().into_owned();
    let start = |number: usize| match number % 2 {
        0 => Run::start(&["--processes", "2", UFORM, "topology"]),
        // Half of them share one directory.
        _ => Run::start(&["--processes", "2", "--directory", &path, UFORM, "topology"]),
    };
    let runs = (0..10).map(start).collect::<Vec<_>>();
    for run in runs {
        let ended = run.wait();
        assert_eq!(ended.code, 0, "{}\n{}", ended.out, ended.err);
    }
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn one_that_ends_before_it_registers_is_named_by_the_others_at_once() {
    for (code, word) in [(0, "0"), (7, "7")] {
        let folder = Folder::new();
        let path = folder.0.to_string_lossy().into_owned();
        let script =
            format!("if [ $UFORM_INDEX = 1 ]; then exit {code}; fi; exec \"$0\" topology --timeout 50");
        let arguments =
            ["--processes", "3", "--grace", "20", "--directory", &path, "sh", "-c", &script, UFORM];
        let ended = Run::start(&arguments).wait();
        assert_ne!(ended.code, 0, "{}\n{}", ended.out, ended.err);
        if code == 0 {
            // The first that ends names it; the launcher then stops the other, which may not get to say so.
            let named = ended
                .err
                .lines()
                .any(|line| line.starts_with('[') && line.contains("lost index 1") && line.contains(word));
            assert!(named, "{}", ended.err);
        } else {
            assert!(ended.err.contains("index 1 failed"), "{}", ended.err);
        }
        assert_eq!(folder.names(), Vec::<String>::new(), "{}", ended.err);
    }
}

/// Starts two launchers of one run of four processes on this machine, as they would be started on two hosts.
fn two_launchers(folder: &Folder, options: &[&str], script: &str) -> [Ended; 2] {
    let directory = folder.0.to_str().expect("a plain name");
    let run = ["-n", "2", "--hosts", "2", "--job", "pair", "--timeout", "60", "--directory", directory];
    let arguments: Vec<&str> = run.iter().chain(options).chain(&["sh", "-c", script]).copied().collect();
    let both = [Run::start(&arguments), Run::start(&arguments)];
    both.map(Run::wait)
}

#[test]
fn launchers_of_several_hosts_name_the_first_failure_of_all() {
    let folder = Folder::new();
    let script = "[ $UFORM_INDEX = 3 ] && { sleep 0.3; exit 7; }; exec sleep 1000";
    let ended = two_launchers(&folder, &[], script);
    for one in &ended {
        assert_eq!(one.code, 7, "{}", one.err);
        assert!(one.err.contains("index 3 "), "{}", one.err);
        assert!(one.err.contains("failed first: exit code 7"), "{}", one.err);
    }
    assert_eq!(folder.names(), [""; 0], "what the launchers made is gone");
}

#[test]
fn others_live_on_after_a_failure_if_asked() {
    let script = "[ $UFORM_INDEX = 0 ] && exit 3; sleep 0.5; echo went on";
    let options = ["--kill-on-bad-exit=0", "-n", "2", "sh", "-c", script];
    let ended = Run::start(&options).wait();
    assert_eq!((ended.code, ended.out.as_str()), (3, "[1] went on\n"), "{}", ended.err);
    assert!(ended.err.contains("index 0 failed: exit code 3; 1 more go on"), "{}", ended.err);
    assert!(ended.err.contains("index 0 failed first: exit code 3"), "{}", ended.err);

    let refused = Run::start(&["--kill-on-bad-exit=0", "--max-restarts=1", "true"]).wait();
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(refused.err.contains("--max-restarts"), "{}", refused.err);
}

#[test]
fn others_live_on_after_a_failure_on_another_host_if_asked() {
    let folder = Folder::new();
    let script = "[ $UFORM_INDEX = 3 ] && exit 7; sleep 1.5; echo index $UFORM_INDEX went on";
    let ended = two_launchers(&folder, &["--kill-on-bad-exit=0"], script);
    let mut codes = ended.iter().map(|one| one.code).collect::<Vec<_>>();
    codes.sort_unstable();
    assert_eq!(codes, [0, 7], "{}\n{}", ended[0].err, ended[1].err);
    let out = ended.iter().map(|one| one.out.as_str()).collect::<String>();
    for index in 0..3 {
        assert!(out.contains(&format!("index {index} went on")), "{out}");
    }
    assert_eq!(folder.names(), [""; 0], "what the launchers made is gone");
}

#[test]
fn launchers_of_several_hosts_begin_again_and_write_files() {
    let (folder, written) = (Folder::new(), Folder::new());
    let script = r#"echo "attempt $UFORM_RESTART_COUNT of index $UFORM_INDEX in $UFORM_COUNT on $UFORM_HOST_COUNT"
        echo "job $UFORM_JOB" >&2
        [ $UFORM_RESTART_COUNT = 1 ] && exit 0
        [ $UFORM_INDEX = 1 ] && exit 4
        exec sleep 1000"#;
    let output = written.0.to_str().expect("a plain name");
    let ended = two_launchers(&folder, &["--max-restarts", "1", "--output", output], script);
    for one in &ended {
        assert_eq!((one.code, one.out.as_str()), (0, ""), "{}", one.err);
        // A launcher that looks too late finds the first attempt over, and takes part in the second alone.
        assert!(one.err.contains("attempt 2: index "), "{}", one.err);
    }
    assert!(ended.iter().any(|one| one.err.contains("index 1 failed first: exit code 4")));
    assert!(ended.iter().any(|one| one.err.contains("restart 1 of 1")));
    let read = |name: String| std::fs::read_to_string(written.0.join(name)).expect("written");
    let mut jobs = BTreeSet::new();
    for index in 0..4 {
        let out = read(format!("{index}.out"));
        assert!(out.contains(&format!("attempt 1 of index {index} in 4 on 2")), "{out}");
        jobs.insert(read(format!("{index}.err")).lines().last().expect("a line").to_owned());
    }
    assert_eq!(jobs.len(), 1, "one run id for all: {jobs:?}");
}

#[test]
fn a_signal_to_one_launcher_ends_the_run_on_all_hosts() {
    let folder = Folder::new();
    let directory = folder.0.to_str().expect("a plain name");
    let arguments =
        ["--hosts", "2", "--job", "pair", "--timeout", "60", "--directory", directory, "sh", "-c"];
    let script = "echo up; exec sleep 1000";
    let both = [
        Run::start(&[&arguments[..], &[script]].concat()),
        Run::start(&[&arguments[..], &[script]].concat()),
    ];
    both.iter().for_each(|one| one.until_written("up", 1));
    both[0].signal(Signal::TERM);
    let [asked, other] = both.map(Run::wait);
    assert_eq!((asked.code, other.code), (143, 143), "{}\n{}", asked.err, other.err);
    assert!(other.err.contains("its launcher got SIGTERM"), "{}", other.err);
    assert_eq!(folder.names(), [""; 0], "what the launchers made is gone");
}

#[test]
fn a_new_attempt_forms_with_the_hosts_that_came_and_nobody_of_the_old_one_joins() {
    let (folder, notes) = (Folder::new(), Folder::new());
    let (directory, notes_path) =
        (folder.0.to_str().expect("a plain name"), notes.0.to_str().expect("a plain name"));
    // Index 1 leaves one behind that goes on trying to meet under the variables of the first attempt.
    let stale = format!(
        "{UFORM} topology --timeout 12 > {notes_path}/stale.out 2>&1; echo $? > {notes_path}/stale.tmp; \
         mv {notes_path}/stale.tmp {notes_path}/stale.code"
    );
    let script = format!(
        "if [ $UFORM_RESTART_COUNT = 0 ]; then\n\
         [ $UFORM_INDEX = 1 ] && setsid sh -c '{stale}' &\n\
         touch {notes_path}/ready.$UFORM_INDEX\n\
         exec sleep 1000\nfi\n\
         {UFORM} topology; code=$?\n\
         while [ ! -e {notes_path}/stale.code ]; do sleep 0.05; done; exit $code"
    );
    let options = ["--hosts", "1:2", "--max-restarts", "1", "--grace", "5", "--timeout", "60"];
    let run = ["-n", "2", "--job", "pair", "--directory", directory, "sh", "-c", &script];
    let arguments = [&options[..], &run].concat();
    let (gone, stays) = (Run::start(&arguments), Run::start(&arguments));
    stays.until("four processes", || (0..4).all(|index| notes.0.join(format!("ready.{index}")).exists()));
    gone.signal(Signal::KILL);
    let ended = stays.wait();
    assert_eq!(gone.wait().code, 1009);
    let (out, err) = (&ended.out, &ended.err);
    assert_eq!(ended.code, 0, "{out}\n{err}");
    assert!(err.contains("of 4 here, on 2 hosts"), "{err}");
    assert!(err.contains("failed first: its launcher"), "{err}");
    assert!(err.contains("attempt 2: index 0 to 1 of 2 here, on 1 hosts"), "{err}");
    assert!(out.contains("2 processes, 1 host"), "{out}");
    let stale = std::fs::read_to_string(notes.0.join("stale.out")).expect("written");
    // The launcher that is left tells it of the processes that have ended.
    let is_told = stale.contains("missing index") || stale.contains("lost index");
    assert!(is_told && !stale.contains("processes,"), "{stale}");
    assert_ne!(std::fs::read_to_string(notes.0.join("stale.code")).expect("written"), "0\n");
}
