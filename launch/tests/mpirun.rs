//! Forms runs under the real mpirun of Open MPI and mpiexec of MPICH, where they are installed.

use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How long one run may take.
const DEADLINE: Duration = Duration::from_secs(90);

/// A launcher, and the word by which `UFORM_REQUIRE` asks for it.
struct Launcher {
    word: &'static str,
    program: &'static str,
    options: &'static [&'static str],
    /// What the name of a run begins with.
    job: &'static str,
}

const OPEN_MPI: Launcher = Launcher {
    word: "openmpi",
    program: "mpirun.openmpi",
    options: &["--oversubscribe", "--allow-run-as-root"],
    job: "openmpi-",
};

const MPICH: Launcher = Launcher { word: "mpich", program: "mpiexec.hydra", options: &[], job: "mpich-" };

/// A folder of one test, for the runtime folder of its runs.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let nonce = uform::sys::random::nonce().expect("random bytes");
        let path = std::env::temp_dir().join(format!("uform-mpirun-test-{nonce}"));
        std::fs::DirBuilder::new().mode(0o700).create(&path).expect("made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run that is killed with all its processes when it is dropped.
struct Run(Child);

impl Run {
    /// Starts `uform` with these arguments in so many processes.
    fn start(launcher: &Launcher, count: usize, folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = Command::new(launcher.program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let foreign = ["UFORM_", "OMPI_", "PMI", "SLURM_", "HYDR", "MPI_"];
            if foreign.iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&*name);
            }
        }
        command.args(launcher.options).arg("-n").arg(count.to_string());
        command.arg(env!("CARGO_BIN_EXE_uform")).args(arguments);
        command.env("XDG_RUNTIME_DIR", &folder.0).env("UFORM_TIMEOUT", "60").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(command.spawn().expect("the launcher can be run"))
    }

    /// Waits for the end of the run and gives what it wrote to standard output.
    fn finish(mut self) -> String {
        let end = Instant::now() + DEADLINE;
        let status = loop {
            match self.0.try_wait().expect("a child of this process") {
                Some(status) => break Some(status),
                None if Instant::now() > end => break None,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        if status.is_none() {
            self.kill();
        }
        let (mut out, mut err) = (String::new(), String::new());
        self.0.stdout.take().expect("piped").read_to_string(&mut out).expect("text");
        self.0.stderr.take().expect("piped").read_to_string(&mut err).expect("text");
        let succeeded = status.is_some_and(|status| status.success());
        assert!(succeeded, "ended with {status:?}\n{out}\n{err}");
        out
    }

    fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.kill();
            let _ = self.0.wait();
        }
    }
}

/// Whether the launcher is installed; fails where it must be.
fn is_there(launcher: &Launcher) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).any(|folder| folder.join(launcher.program).is_file());
    if !found {
        let Launcher { word, program, .. } = launcher;
        let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
        assert!(
            !required.split(',').any(|one| one == *word),
            "UFORM_REQUIRE names {word}: no {program} in PATH"
        );
        eprintln!("skipped: {program} is not in PATH");
    }
    found
}

/// The object that one run printed.
fn object(text: &str) -> serde_json::Value {
    let start = text.find('{').unwrap_or_else(|| panic!("no object in {text}"));
    serde_json::from_str(&text[start..]).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Two runs at once meet by their own launcher's id, and leave nothing in the folder where both met.
fn two_runs_at_once(launcher: &Launcher) {
    if !is_there(launcher) {
        return;
    }
    let folder = Folder::new();
    let runs = [2, 3].map(|count| (count, Run::start(launcher, count, &folder, &["topology", "--json"])));
    let mut names = Vec::new();
    for (count, run) in runs {
        let found = object(&run.finish());
        assert_eq!(found["members"].as_array().map(Vec::len), Some(count), "{found}");
        let name = found["run"].as_str().expect("a name").to_owned();
        assert!(name.starts_with(launcher.job), "{name}");
        names.push(name);
    }
    assert_ne!(names[0], names[1]);
    let left = std::fs::read_dir(folder.0.join("uform")).expect("the private folder").count();
    assert_eq!(left, 0, "of {names:?}");
}

#[test]
fn open_mpi_forms_without_mpi_and_without_a_directory() {
    two_runs_at_once(&OPEN_MPI);
}

#[test]
fn mpich_forms_without_mpi_and_without_a_directory() {
    two_runs_at_once(&MPICH);
}

#[test]
fn one_process_under_mpirun_is_a_run_of_one() {
    for launcher in [OPEN_MPI, MPICH] {
        if is_there(&launcher) {
            let folder = Folder::new();
            let found = object(&Run::start(&launcher, 1, &folder, &["topology", "--json"]).finish());
            assert_eq!(found["members"].as_array().map(Vec::len), Some(1), "{found}");
        }
    }
}
