//! Runs members as real processes: the test binary executes itself, one child per member, each playing a role.
//!
//! A role is a function in the table of its module. A member fails by panicking. Each run has a folder of its own
//! under the temporary folder, removed afterwards. At the run's deadline every member that still lives is killed, with
//! its process group, and the test fails with what each of them printed.

pub(crate) mod network;
pub(crate) mod nfs_like;
pub(crate) mod stand_in;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// What one member does: its index, the count and the argument of the run.
pub(crate) type Role = fn(index: usize, count: usize, argument: &str);

/// The roles that the tests of this file use.
pub(crate) const ROLES: &[(&str, Role)] = &[("harness.echo", echo), ("harness.sleep", sleep)];

/// What a member's environment keeps of this process's; launchers' variables never get through.
const KEPT: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
    "UFORM_LOG",
    "UFORM_REQUIRE",
    "LLVM_PROFILE_FILE",
];

/// How long a polling wait sleeps.
const PAUSE: Duration = Duration::from_millis(5);

/// A folder under the temporary folder, removed with all it holds when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes a folder that only this user may enter.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uform-test-{}-{number}", std::process::id()));
        // What a killed test of the same number left is of no use to anybody.
        let _ = fs::remove_dir_all(&path);
        let mut builder = fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).expect("the temporary folder is writable");
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every file and folder below `path`, relative to it, sorted; empty if there is no such folder.
pub(crate) fn entries(path: &Path) -> Vec<String> {
    fn walk(root: &Path, path: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            let below = entry.path();
            found.push(below.strip_prefix(root).unwrap_or(&below).display().to_string());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(root, &below, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(path, path, &mut found);
    found.sort();
    found
}

/// How one member ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) index: usize,
    pub(crate) status: ExitStatus,
    /// Standard output and standard error, as they came.
    pub(crate) output: String,
}

impl Outcome {
    /// Whether it played its role to the end.
    pub(crate) fn succeeded(&self) -> bool {
        self.status.success()
    }

    /// Whether this signal ended it.
    pub(crate) fn killed_by(&self, signal: Signal) -> bool {
        self.status.signal() == Some(signal.as_raw())
    }
}

/// Fails the test, with all output, unless every member succeeded.
pub(crate) fn assert_all_succeeded(outcomes: &[Outcome]) {
    let failed = outcomes.iter().filter(|outcome| !outcome.succeeded()).map(|outcome| outcome.index);
    let failed = failed.collect::<Vec<_>>();
    assert!(failed.is_empty(), "members {failed:?} failed\n{}", transcript(outcomes));
}

/// What all members printed, each under its index and how it ended.
pub(crate) fn transcript(outcomes: &[Outcome]) -> String {
    let parts = outcomes.iter().map(|outcome| {
        format!("--- index {} ({})\n{}", outcome.index, outcome.status, outcome.output.trim_end())
    });
    parts.collect::<Vec<_>>().join("\n")
}

/// Runs `count` members in `role` to their end.
///
/// # Panics
/// At the deadline, with what each member printed.
pub(crate) fn processes(count: usize, role: &str, argument: &str, deadline: Duration) -> Vec<Outcome> {
    Setup::new(count, role).argument(argument).deadline(deadline).start().finish()
}

/// A run that is about to start.
pub(crate) struct Setup {
    count: usize,
    role: String,
    argument: String,
    deadline: Duration,
    indexes: Vec<usize>,
    launched: bool,
    meeting: Option<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    networks: Vec<String>,
}

impl Setup {
    /// `count` members in `role`, with the variables of our own launcher and a deadline of 60 s.
    pub(crate) fn new(count: usize, role: &str) -> Self {
        Self {
            count,
            role: role.to_owned(),
            argument: String::new(),
            deadline: Duration::from_secs(60),
            indexes: (0..count).collect(),
            launched: true,
            meeting: None,
            variables: Vec::new(),
            networks: Vec::new(),
        }
    }

    /// The argument that every member's role gets.
    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.argument = argument.to_owned();
        self
    }

    /// When the members that still live are killed.
    pub(crate) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Starts only these of the `count` members; an index may come twice.
    pub(crate) fn only(mut self, indexes: &[usize]) -> Self {
        self.indexes = indexes.to_vec();
        self
    }

    /// Starts the members without a launcher's variables.
    pub(crate) fn without_launcher(mut self) -> Self {
        self.launched = false;
        self
    }

    /// Sets `UFORM_DIRECTORY` to this folder instead of a new one in the run's folder.
    pub(crate) fn meeting(mut self, path: &Path) -> Self {
        self.meeting = Some(path.to_owned());
        self
    }

    /// Sets a variable on every member, over what the launcher's variables say; `{index}` in it is the member's.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// The network that each member lives in, by index: one of `network::Hosts`.
    pub(crate) fn networks(mut self, networks: &[String]) -> Self {
        self.networks = networks.to_vec();
        self
    }

    /// Starts the members.
    pub(crate) fn start(self) -> Run {
        let folder = Folder::new();
        let mut run = Run {
            members: Vec::new(),
            meeting: self.meeting.clone().unwrap_or_else(|| folder.path().join("meeting")),
            role: self.role.clone(),
            end: Instant::now() + self.deadline,
            folder,
        };
        for (position, &index) in self.indexes.iter().enumerate() {
            let path = run.folder.path().join(format!("output.{position}"));
            let output = File::create(&path).expect("the run's folder is writable");
            let mut command = self.command(index, &run);
            command
                .stdin(Stdio::null())
                .stderr(output.try_clone().expect("a descriptor is free"))
                .stdout(output);
            let child = command.spawn().expect("this binary can be executed");
            run.members.push(Running { index, child, output: path, status: None });
        }
        run
    }

    fn command(&self, index: usize, run: &Run) -> Command {
        // Not the path: a build may have replaced the file since this process started.
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "harness::member", "--ignored", "--nocapture"]);
        command.process_group(0).env_clear();
        for name in KEPT {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("UFORM_TEST_ROLE", &self.role).env("UFORM_TEST_ARGUMENT", &self.argument);
        command.env("UFORM_TEST_INDEX", index.to_string()).env("UFORM_TEST_COUNT", self.count.to_string());
        command.env("UFORM_TEST_FOLDER", run.folder.path());
        if self.launched {
            command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", self.count.to_string());
            command.env("UFORM_LOCAL_INDEX", index.to_string());
            command.env("UFORM_LOCAL_COUNT", self.count.to_string());
            command.env("UFORM_DIRECTORY", &run.meeting);
            // A bootstrap that waits for nothing ends before the watchdog, and says what it waited for.
            command.env("UFORM_TIMEOUT", (self.deadline.as_secs_f64() / 2.0).to_string());
            let folder_name = run.folder.path().file_name().unwrap_or_default();
            command.env("UFORM_JOB", folder_name);
        }
        if let Some(network) = self.networks.get(index) {
            command.env(network::VARIABLE, network);
        }
        let own = |value: &OsString| match value.to_str() {
            Some(text) => text.replace("{index}", &index.to_string()).into(),
            None => value.clone(),
        };
        command.envs(self.variables.iter().map(|(name, value)| (name, own(value))));
        command
    }
}

/// Members that run, until `finish`; dropped, it kills those that are left.
pub(crate) struct Run {
    members: Vec<Running>,
    folder: Folder,
    meeting: PathBuf,
    role: String,
    end: Instant,
}

struct Running {
    index: usize,
    child: Child,
    output: PathBuf,
    status: Option<ExitStatus>,
}

impl Running {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.output).unwrap_or_default()).into_owned()
    }

    /// Its status once it has ended. What it started in its group ends with it.
    fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            use rustix::process::{WaitId, WaitIdOptions, waitid};
            // Looked at before it is reaped: until then its number, and so its group's, belongs to nobody else.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            if waitid(WaitId::Pid(self.pid()), options).ok().flatten().is_some() {
                self.kill_group();
                self.status = self.child.wait().ok();
            }
        }
        self.status
    }

    fn kill_group(&self) {
        if self.status.is_none() {
            // A group that is gone already is what this wants.
            let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        }
    }
}

impl Run {
    /// The run's folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder where the members meet.
    pub(crate) fn meeting(&self) -> &Path {
        &self.meeting
    }

    /// The process number of the member that was started at this position.
    pub(crate) fn pid(&self, position: usize) -> u32 {
        self.members[position].child.id()
    }

    /// What the member that was started at this position has printed so far.
    pub(crate) fn output(&self, position: usize) -> String {
        self.members[position].output()
    }

    /// Sends a signal to one member alone, unless it has been reaped.
    pub(crate) fn signal(&self, position: usize, signal: Signal) {
        let member = &self.members[position];
        if member.status.is_none() {
            let _ = rustix::process::kill_process(member.pid(), signal);
        }
    }

    /// Kills one member.
    pub(crate) fn kill(&self, position: usize) {
        self.signal(position, Signal::KILL);
    }

    /// Stops one member; `signal` with `CONT` lets it go on.
    pub(crate) fn stop(&self, position: usize) {
        self.signal(position, Signal::STOP);
    }

    /// Waits until the member at `position` has printed `text`.
    ///
    /// # Panics
    /// At the deadline, or if it ended without.
    pub(crate) fn wait_for(&mut self, position: usize, text: &str) {
        loop {
            // In this order: what it printed before it ended is seen.
            let ended = self.members[position].ended();
            if self.members[position].output().contains(text) {
                return;
            }
            assert!(
                ended.is_none(),
                "the member at {position} ended without printing `{text}`\n{}",
                transcript(&self.end_all())
            );
            self.check_deadline();
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until all members have ended.
    ///
    /// # Panics
    /// At the deadline, with what each member printed.
    pub(crate) fn finish(mut self) -> Vec<Outcome> {
        while self.members.iter_mut().map(Running::ended).filter(Option::is_none).count() > 0 {
            self.check_deadline();
            std::thread::sleep(PAUSE);
        }
        self.end_all()
    }

    fn check_deadline(&mut self) {
        if Instant::now() > self.end {
            let living = self.members.iter_mut().filter_map(|member| match member.ended() {
                None => Some(member.index),
                Some(_) => None,
            });
            let living = living.collect::<Vec<_>>();
            let text = transcript(&self.end_all());
            panic!("role {}: {living:?} still ran at the deadline\n{text}", self.role);
        }
    }

    /// Kills what lives and collects what all printed.
    fn end_all(&mut self) -> Vec<Outcome> {
        for member in &self.members {
            member.kill_group();
        }
        let outcomes = self.members.iter_mut().map(|member| {
            let status = match member.status {
                Some(status) => status,
                None => member.child.wait().expect("a child of this process"),
            };
            member.status = Some(status);
            Outcome { index: member.index, status, output: member.output() }
        });
        outcomes.collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Prints a line that the test can wait for.
pub(crate) fn say(text: &str) {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).expect("standard output is a file");
}

/// The run's folder, inside a member.
pub(crate) fn folder() -> PathBuf {
    std::env::var_os("UFORM_TEST_FOLDER").map(PathBuf::from).expect("set by the harness")
}

/// Sleeps until the test kills this member; gives up after ten minutes.
pub(crate) fn sleep_until_killed() -> ! {
    std::thread::sleep(Duration::from_secs(600));
    panic!("nobody killed this member");
}

/// The entry of member processes; run directly it has no role and does nothing.
#[test]
#[ignore = "the entry of member processes"]
fn member() {
    let Ok(role) = std::env::var("UFORM_TEST_ROLE") else { return };
    // Members do not outlive a test binary that is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).expect("a valid signal");
    network::enter();
    let number = |name| std::env::var(name).expect("set by the harness").parse::<usize>().expect("a number");
    let argument = std::env::var("UFORM_TEST_ARGUMENT").expect("set by the harness");
    let mut roles = crate::ROLES.iter().copied().flatten();
    let (_, function) =
        roles.find(|(name, _)| *name == role).unwrap_or_else(|| panic!("no role is called {role}"));
    function(number("UFORM_TEST_INDEX"), number("UFORM_TEST_COUNT"), &argument);
}

fn echo(index: usize, count: usize, argument: &str) {
    assert!(folder().is_dir());
    let directory = std::env::var("UFORM_DIRECTORY").unwrap_or_else(|_| "no directory".into());
    say(&format!("{index} of {count}: {argument}, {directory}"));
    assert!(argument != "fail on 1" || index != 1, "as asked");
}

fn sleep(index: usize, _count: usize, _argument: &str) {
    say(&format!("asleep {index}"));
    sleep_until_killed();
}

#[test]
fn members_get_their_index_and_argument() {
    let run = Setup::new(3, "harness.echo").argument("hello").start();
    let expected = run.meeting().display().to_string();
    let folder = run.folder().to_owned();
    assert!(entries(&folder).contains(&"output.2".to_owned()));
    let outcomes = run.finish();
    assert_all_succeeded(&outcomes);
    for outcome in &outcomes {
        let line = format!("{} of 3: hello, {expected}", outcome.index);
        assert!(outcome.output.contains(&line), "{}", transcript(&outcomes));
    }
    assert!(!folder.exists());
}

#[test]
fn a_failing_member_is_told_from_the_others() {
    let outcomes = processes(2, "harness.echo", "fail on 1", Duration::from_secs(60));
    assert!(outcomes[0].succeeded() && !outcomes[1].succeeded(), "{}", transcript(&outcomes));
    assert!(outcomes[1].output.contains("as asked"));
}

#[test]
fn members_can_be_chosen_killed_and_stopped() {
    let meeting = Folder::new();
    let mut run = Setup::new(4, "harness.sleep").only(&[3, 0]).meeting(meeting.path()).start();
    assert_eq!(run.meeting(), meeting.path());
    run.wait_for(0, "asleep 3");
    run.wait_for(1, "asleep 0");
    run.stop(0);
    let stat = format!("/proc/{}/stat", run.pid(0));
    let end = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(&stat).expect("it lives").contains(") T ") {
        assert!(Instant::now() < end, "it was not stopped");
        std::thread::sleep(PAUSE);
    }
    run.kill(0);
    run.signal(1, Signal::TERM);
    let outcomes = run.finish();
    assert_eq!(outcomes[0].index, 3);
    assert!(outcomes[0].killed_by(Signal::KILL));
    assert!(outcomes[1].killed_by(Signal::TERM));
}

#[test]
fn the_watchdog_kills_at_the_deadline_and_shows_the_output() {
    let run = Setup::new(2, "harness.sleep").deadline(Duration::from_millis(500)).without_launcher();
    let run = run.variable("UFORM_TEST_UNUSED", "1").start();
    let pids = [run.pid(0), run.pid(1)];
    let payload =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.finish())).expect_err("a panic");
    let text = payload.downcast_ref::<String>().expect("a formatted message");
    assert!(text.contains("still ran at the deadline") && text.contains("--- index 1"), "{text}");
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
