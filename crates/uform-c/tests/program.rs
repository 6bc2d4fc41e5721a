//! C programs as the processes of a run: every verb, alone and by two, and under valgrind.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use super::harness::{Folder, Language, built, clean, compile, has, read, repository, run_all, succeed};

/// The flags under which a leak or a wrong access fails.
fn valgrind() -> Vec<OsString> {
    let suppressions = repository().join("tests/c/valgrind.supp");
    let mut flags = ["--quiet", "--leak-check=full", "--error-exitcode=99"].map(OsString::from).to_vec();
    flags.push(format!("--suppressions={}", suppressions.display()).into());
    flags
}

/// Runs `tests/c/interface.c` in so many processes.
fn run_interface(language: Language, count: usize, under_valgrind: bool) {
    let folder = Folder::new();
    let program = built(&folder, language, "tests/c/interface.c");
    let commands = (0..count).map(|index| {
        let mut command = clean(if under_valgrind { "valgrind".as_ref() } else { program.as_os_str() });
        if under_valgrind {
            command.args(valgrind()).arg(&program);
        }
        command.args([index.to_string(), count.to_string(), folder.join("meeting")]);
        command
    });
    for (index, said) in run_all(&folder, commands.collect()).iter().enumerate() {
        assert!(said.contains(&format!("index {index} of {count}: 0 failures")), "{said}");
        assert!(said.contains(env!("CARGO_PKG_VERSION")), "{said}");
    }
}

#[test]
fn every_verb_alone() {
    run_interface(Language::C99, 1, false);
}

#[test]
fn every_verb_in_two_processes() {
    run_interface(Language::C99, 2, false);
}

#[test]
fn every_verb_in_two_processes_as_cpp() {
    if has("c++", "c++") {
        run_interface(Language::Cpp17, 2, false);
    }
}

#[test]
fn no_verb_leaks_alone() {
    if has("valgrind", "valgrind") {
        run_interface(Language::C99, 1, true);
    }
}

#[test]
fn no_verb_leaks_in_two_processes() {
    if has("valgrind", "valgrind") {
        run_interface(Language::C99, 2, true);
    }
}

/// The stand-in of vendors' libraries (`tests/c/stand_in`), under the names that programs load; in a folder that says of four GPUs.
fn stand_in(folder: &Folder) {
    let sources = fs::read_dir(repository().join("tests/c/stand_in")).expect("it is of the repository");
    let sources = sources.flatten().map(|entry| entry.path());
    let library = folder.path().join("stand_in.so");
    let mut command = Command::new("cc");
    command.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-fPIC",
        "-shared",
        "-pthread",
        "-Wl,-Bsymbolic",
        "-o",
    ]);
    command
        .arg(&library)
        .args(sources.filter(|file| file.extension().is_some_and(|kind| kind == "c")))
        .arg("-lm");
    succeed(&mut command);
    for name in ["libcuda.so.1", "libnvidia-ml.so.1", "libnccl.so.2"] {
        std::os::unix::fs::symlink(&library, folder.path().join(name)).expect("a new name");
    }
    let mut answers = "init 0\ncount 4\ncuda 12080\n".to_owned();
    for number in 0..4 {
        let gpu = "9 0 16896 1048576 18 0 0 0 0 0 0 0 NVIDIA H100";
        answers.push_str(&format!(
            "device {number} 0 0 GPU-0000000{number}-1111-2222-3333-444444444444 1{number} {gpu}\n"
        ));
    }
    fs::write(folder.path().join("answers"), answers).expect("written");
}

#[test]
fn verbs_on_two_gpus_of_each_process() {
    let folder = Folder::new();
    stand_in(&folder);
    let program = built(&folder, Language::C99, "tests/c/gpus.c");
    let commands = (0..2).map(|index| {
        let mut command = clean(&program);
        command.args([index.to_string(), folder.join("meeting")]);
        command.env("LD_LIBRARY_PATH", folder.path()).env("STAND_IN_ANSWERS", folder.join("answers"));
        command.env("STAND_IN_CALLS", folder.join("calls"));
        command
    });
    for (index, said) in run_all(&folder, commands.collect()).iter().enumerate() {
        assert!(said.contains(&format!("index {index}: 0 failures")), "{said}");
    }
    let calls = fs::read_to_string(folder.path().join("calls")).expect("it was called");
    assert!(!calls.lines().any(|line| line.starts_with("left ")), "{calls}");
    assert_eq!(calls.lines().filter(|line| *line == "ncclCommDestroy").count(), 4);
}

#[test]
fn the_program_of_the_readme_compiles() {
    let folder = Folder::new();
    let readme = read("README.md");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = folder.path().join("readme.c");
    fs::write(&source, program.expect("README.md has a C program")).expect("written");
    compile(Language::C99, &source, &["-fsyntax-only"]);
}
