//! Starts a role in several processes by an mpirun, and looks at how that ended.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::Folder;

/// How long one run may take.
const DEADLINE: Duration = Duration::from_secs(150);

/// A launcher of MPI.
#[derive(Clone, Copy)]
pub(crate) struct Launcher {
    pub(crate) program: &'static str,
    options: &'static [&'static str],
    /// What its name begins with where an error names it.
    pub(crate) name: &'static str,
}

pub(crate) const OPEN_MPI: Launcher = Launcher {
    program: "mpirun.openmpi",
    options: &["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"],
    name: "Open MPI",
};

pub(crate) const MPICH: Launcher = Launcher { program: "mpiexec.hydra", options: &[], name: "MPICH" };

/// The launcher of the library that this build is linked to.
pub(crate) fn own() -> Launcher {
    let library = uform::sys::mpi::library().expect("this binary is built with MPI");
    if library.version.starts_with("Open MPI") { OPEN_MPI } else { MPICH }
}

/// The launcher of another library.
pub(crate) fn other() -> Launcher {
    if own().program == OPEN_MPI.program { MPICH } else { OPEN_MPI }
}

/// How a run ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// Standard output and standard error of all members.
    pub(crate) output: String,
}

impl Ended {
    /// Fails the test unless all members played their role to the end.
    pub(crate) fn succeeded(self, count: usize) -> String {
        let done = self.output.matches("role played").count();
        assert!(
            self.status.success() && done == count,
            "{} of {count}: {}\n{}",
            done,
            self.status,
            self.output
        );
        self.output
    }
}

/// Runs `count` members in a role.
pub(crate) fn members(launcher: Launcher, count: usize, role: &str, variables: &[(&str, &str)]) -> Ended {
    let folder = Folder::new();
    let path = folder.path().join("output");
    let output = File::create(&path).expect("the folder is writable");
    let mut command = Command::new(launcher.program);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if ["UFORM_", "OMPI_", "PMI", "SLURM_", "HYDR", "MPI_"].iter().any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(&*name);
        }
    }
    let binary = std::env::current_exe().expect("it runs");
    command.args(launcher.options).arg("-n").arg(count.to_string());
    command.arg(binary).args(["--exact", "member::play", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("UFORM_TEST_MPI_ROLE", role).env("UFORM_TIMEOUT", "60").env("XDG_RUNTIME_DIR", folder.path());
    command.env("UFORM_TEST_FOLDER", folder.path()).envs(variables.iter().copied()).process_group(0);
    command.stdin(Stdio::null()).stderr(output.try_clone().expect("a descriptor is free")).stdout(output);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", launcher.program));
    let end = Instant::now() + DEADLINE;
    let status = loop {
        match child.try_wait().expect("a child of this process") {
            Some(status) => break status,
            None if Instant::now() > end => {
                let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
                break child.wait().expect("a child of this process");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let output = String::from_utf8_lossy(&std::fs::read(&path).expect("the folder is readable")).into_owned();
    Ended { status, output }
}
