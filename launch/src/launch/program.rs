//! Which file a program's name means, checked before anything is started.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};

use crate::Failure;

/// A program that can be run, and its arguments.
#[derive(Debug)]
pub(super) struct Program {
    name: String,
    file: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Finds the program that the first word names: a path, a name in `PATH`, or a Python script.
    pub(super) fn find(words: &[OsString], python: Option<OsString>) -> Result<Self, Failure> {
        let Some((first, rest)) = words.split_first() else {
            return Err(uform::Error::invalid("PROGRAM", "", "argument", "must name a program").into());
        };
        let name = first.to_string_lossy().into_owned();
        let script = Path::new(first);
        if script.extension() != Some(OsStr::new("py")) {
            return Ok(Self { name, file: resolve(first)?, arguments: rest.to_vec() });
        }
        if !script.exists() {
            let place = "no such file".to_owned();
            return Err(Failure::Absent { program: name, place });
        }
        if script.is_dir() || access(script, Access::READ_OK).is_err() {
            let reason = "it is not a file that can be read".to_owned();
            return Err(Failure::NotRunnable { program: name, reason });
        }
        let file = resolve(&python.unwrap_or_else(|| "python3".into()))?;
        Ok(Self { name, file, arguments: words.to_vec() })
    }

    /// A command that runs it.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.args(&self.arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// What it means that the system did not start it.
    pub(super) fn not_started(&self, source: std::io::Error) -> Failure {
        match source.raw_os_error() {
            Some(number) if number == rustix::io::Errno::NOEXEC.raw_os_error() => Failure::NotRunnable {
                program: self.name.clone(),
                reason: "it is neither a binary of this machine nor a script that begins with #!".to_owned(),
            },
            _ => Failure::system(format!("start {}", self.name), source),
        }
    }
}

/// What index reads as its standard input.
///
/// Processes are not in the terminal's foreground group, so reading from it would stop them.
pub(super) fn standard_input(index: usize) -> Stdio {
    if index == 0 && !std::io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}

fn resolve(name: &OsStr) -> Result<PathBuf, Failure> {
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Err(error) => Err(Failure::Absent { program: shown(), place: error.to_string() }),
            Ok(_) if runnable(&path) => Ok(path),
            Ok(_) => Err(Failure::NotRunnable {
                program: shown(),
                reason: "it is not a file with permission to execute".to_owned(),
            }),
        };
    }
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let mut candidates = std::env::split_paths(&folders).map(|folder| folder.join(name));
    candidates.find(|path| runnable(path)).ok_or_else(|| Failure::Absent {
        program: shown(),
        place: if Path::new(name).is_file() {
            format!("not found in PATH; a file of this folder is written ./{}", shown())
        } else {
            "not found in PATH".to_owned()
        },
    })
}

fn runnable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_path_and_scripts_by_python() {
        let words = ["sh".into(), "-c".into()];
        let program = Program::find(&words, None).expect("sh is everywhere");
        assert!(program.file.is_absolute());
        assert_eq!(program.arguments, ["-c"]);
        let absent = Program::find(&["no-such-program-here".into()], None).expect_err("absent");
        assert_eq!(absent.exit_code(), 127);
        let absent = Program::find(&["no-such-script.py".into()], None).expect_err("absent");
        assert_eq!(absent.to_string(), "no-such-script.py is not there: no such file");
        let folder = Program::find(&["/".into()], None).expect_err("a folder");
        assert_eq!(folder.exit_code(), 126);
    }
}
