//! C programs as the processes of a run: every verb, alone and by two, and under valgrind.

use std::ffi::OsString;
use std::fs;

use super::harness::{Folder, Language, built, clean, compile, has, read, repository, run_all};

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

#[test]
fn the_program_of_the_readme_compiles() {
    let folder = Folder::new();
    let readme = read("README.md");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = folder.path().join("readme.c");
    fs::write(&source, program.expect("README.md has a C program")).expect("written");
    compile(Language::C99, &source, &["-fsyntax-only"]);
}
