//! Compilers, the built library, and C programs that run as the processes of one run.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long the processes of one run may take; under valgrind, on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(600);

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a file of the repository.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Whether a program is here; where it is not, the test says so, or fails if `UFORM_REQUIRE` has its word.
pub(crate) fn has(program: &str, word: &str) -> bool {
    if Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|own| own == word), "UFORM_REQUIRE names {word}, which is not here");
    println!("skipped: there is no {program}");
    false
}

/// A folder under the temporary folder, removed with all it holds when dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("uform-c-{}-{number}", std::process::id()));
        // What a killed test of the same number left is of no use to anybody.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary folder is writable");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A path within it, as text.
    pub(crate) fn join(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Both outputs of a program, for messages.
pub(crate) fn text_of(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{error}", output.status)
}

/// Runs a command to its end; it must succeed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(output.status.success(), "{command:?}: {}", text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A language, as the compilers take it.
#[derive(Clone, Copy)]
pub(crate) enum Language {
    C99,
    Cpp17,
}

/// Compiles one source with all warnings as errors.
pub(crate) fn compile<I: AsRef<OsStr>>(language: Language, source: &Path, arguments: &[I]) {
    let mut command = match language {
        Language::C99 => Command::new("cc"),
        Language::Cpp17 => Command::new("c++"),
    };
    match language {
        Language::C99 => command.arg("-std=c99"),
        Language::Cpp17 => command.args(["-x", "c++", "-std=c++17"]),
    };
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-g"]);
    command.arg("-I").arg(repository().join("include")).arg(source).args(arguments);
    succeed(&mut command);
}

/// The library, which cargo has built for this test with all its crate types.
pub(crate) fn library() -> PathBuf {
    let executable = std::env::current_exe().expect("this test has a path");
    let library = executable.with_file_name("libuform_c.so");
    assert!(library.is_file(), "cargo has not built {}", library.display());
    library
}

/// Compiles a C program of the repository against the library, and returns its path.
pub(crate) fn built(folder: &Folder, language: Language, source: &str) -> PathBuf {
    let library = library();
    // Under its own name, and under the one by which programs ask for it.
    for name in ["libuform.so", "libuform.so.0"] {
        symlink(&library, folder.path().join(name)).expect("a new name");
    }
    let program = folder.path().join("program");
    let place = folder.path().display();
    let arguments = [
        "-o".to_owned(),
        program.display().to_string(),
        format!("-L{place}"),
        format!("-Wl,-rpath,{place}"),
        "-luform".to_owned(),
    ];
    compile(language, &repository().join(source), &arguments);
    program
}

/// A command without the variables of any launcher.
pub(crate) fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launcher = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&&*text);
        if launcher || text.starts_with("UFORM_") {
            command.env_remove(&name);
        }
    }
    command
}

/// A process of a run, ended when dropped.
struct Member {
    child: Child,
    log: PathBuf,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the processes of one run side by side; all must succeed. Returns what each printed.
pub(crate) fn run_all(folder: &Folder, commands: Vec<Command>) -> Vec<String> {
    let start = |(index, mut command): (usize, Command)| {
        let log = folder.path().join(format!("log-{index}"));
        let file = File::create(&log).expect("a log");
        command.stdout(file.try_clone().expect("the same log")).stderr(file).stdin(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Member { child, log }
    };
    let mut members = commands.into_iter().enumerate().map(start).collect::<Vec<_>>();
    let begun = Instant::now();
    let mut left = members.len();
    while left > 0 && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(10));
        let ended = members.iter_mut().map(|member| member.child.try_wait());
        left = ended.filter(|ended| matches!(ended, Ok(None))).count();
    }
    let said = |member: &Member| fs::read_to_string(&member.log).unwrap_or_default();
    let all = members.iter().map(said).collect::<Vec<_>>().join("\n---\n");
    assert_eq!(left, 0, "still running after {LIMIT:?}:\n{all}");
    for (index, member) in members.iter_mut().enumerate() {
        let status = member.child.wait().expect("it ended");
        assert!(status.success(), "index {index}: {status}\n{all}");
    }
    members.iter().map(said).collect()
}
