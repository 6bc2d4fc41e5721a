//! Programs and libraries that belong to runs: where they are, and of which version.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use uform::GpuVendor;

use super::facts::{Installed, Unusable};

/// How long a program may take to tell its version.
const PATIENCE: Duration = Duration::from_secs(3);

/// The NCCL and RCCL that a run would load; or why there is one that it could not.
pub(super) fn engines() -> (Vec<Installed>, Vec<Unusable>) {
    let (mut found, mut unusable) = (Vec::new(), Vec::new());
    for (what, vendor) in [("NCCL", GpuVendor::Nvidia), ("RCCL", GpuVendor::Amd)] {
        match uform::device::collective_library(vendor) {
            Ok(library) => found.push(Installed {
                what,
                version: Some(format!("{} ({})", library.version(), library.found())),
                path: library.path().canonicalize().unwrap_or_else(|_| library.path().to_owned()),
            }),
            Err(refusal) if refusal.is_absent => {}
            Err(refusal) => unusable.push(Unusable { reason: refusal.reason, remedy: refusal.remedy }),
        }
    }
    (found, unusable)
}

/// The library of MPI that this build is linked to; none without the feature `mpi`.
pub(super) fn message_passing() -> Option<Installed> {
    let library = uform::sys::mpi::library()?;
    Some(Installed {
        what: "MPI",
        version: Some(format!("{} (linked to)", library.number())),
        path: library.path().canonicalize().unwrap_or_else(|_| library.path().to_owned()),
    })
}

/// The launchers of MPI and others that are installed.
pub(super) fn launchers() -> Vec<Installed> {
    let mut found = Vec::new();
    let mut seen = Vec::new();
    for name in ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.hydra", "prterun", "srun", "flux", "jsrun"] {
        let Some(path) = paths("PATH").iter().map(|folder| folder.join(name)).find(|path| path.is_file())
        else {
            continue;
        };
        // Several names are links to one program.
        let real = path.canonicalize().unwrap_or_else(|_| path.clone());
        if !seen.contains(&real) {
            seen.push(real);
            let what = if name.starts_with('m') || name == "prterun" { "MPI launcher" } else { "launcher" };
            let version = if name == "jsrun" { None } else { version(&path) };
            found.push(Installed { what, version, path });
        }
    }
    found
}

fn paths(variable: &str) -> Vec<PathBuf> {
    let value = std::env::var_os(variable).unwrap_or_default();
    std::env::split_paths(&value).filter(|path| path.is_absolute()).collect()
}

/// What a program answers to `--version`.
fn version(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let end = Instant::now() + PATIENCE;
    while let Ok(None) = child.try_wait() {
        if Instant::now() > end {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().ok()?;
    telling_line(&String::from_utf8_lossy(&output.stdout))
}

/// The first line that has a version in it: `mpirun (Open MPI) 4.1.4`, or `Version: 4.0.2` further down.
fn telling_line(text: &str) -> Option<String> {
    let has_version = |word: &str| {
        let mut parts = word.trim_end_matches([',', ')']).split('.');
        let is_number = |part: &str| !part.is_empty() && part.starts_with(|sign: char| sign.is_ascii_digit());
        parts.next().is_some_and(is_number) && parts.next().is_some_and(is_number)
    };
    let line = text.lines().find(|line| line.split_whitespace().any(has_version))?;
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(line.strip_prefix("Version: ").unwrap_or(&line).chars().take(80).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_where_programs_tell_them() {
        let table = [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs", Some("mpirun (Open MPI) 4.1.4")),
            ("HYDRA build details:\n    Version:      4.0.2\n    Release: x", Some("4.0.2")),
            ("slurm-wlm 22.05.8", Some("slurm-wlm 22.05.8")),
            (
                "Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 2025",
                Some("Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 2025"),
            ),
            ("no version here.", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(telling_line(text).as_deref(), expected, "{text}");
        }
        assert_eq!(version(Path::new("/no/such/program")), None);
    }
}
