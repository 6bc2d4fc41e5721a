//! Compiles `include/uform.h` as C and C++, and runs a C program against the library.

use std::path::{Path, PathBuf};
use std::process::Command;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a compiler over `tests/c/interface.c` and returns what it said if it failed.
fn compile(compiler: &str, arguments: &[&str]) -> Result<(), String> {
    let root = repository();
    let include = format!("-I{}", root.join("include").display());
    let source = root.join("tests/c/interface.c");
    let output = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic", &include])
        .args(arguments)
        .arg(source)
        .output()
        .map_err(|error| format!("{compiler} does not start: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn the_header_compiles_as_c99() {
    compile("cc", &["-std=c99", "-fsyntax-only"]).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn the_header_compiles_as_cpp() {
    if Command::new("c++").arg("--version").output().is_err() {
        let required = std::env::var("UFORM_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|word| word == "c++"), "UFORM_REQUIRE names c++, which is not here");
        println!("skipped: there is no C++ compiler");
        return;
    }
    compile("c++", &["-x", "c++", "-fsyntax-only"]).unwrap_or_else(|error| panic!("{error}"));
}

/// Builds the library, which cargo does not do for a test, and returns the folder that it lies in.
fn library_folder() -> PathBuf {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(repository()).args(["build", "--quiet", "--locked", "--package", "uform-c"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    assert!(command.status().expect("cargo runs").success(), "uform-c does not build");
    // This test lies in `deps`; the library lies in the folder around it.
    let executable = std::env::current_exe().expect("this test has a path");
    executable.ancestors().nth(2).expect("deps lies in the profile's folder").to_owned()
}

#[test]
fn a_c_program_runs_against_the_library() {
    let folder = library_folder();
    let program = std::env::temp_dir().join(format!("uform-interface-{}", std::process::id()));
    let (search, run_path) = (format!("-L{}", folder.display()), format!("-Wl,-rpath,{}", folder.display()));
    let output = program.display().to_string();
    // The library stands before the source on the command line, where the linker would otherwise drop it.
    let built =
        compile("cc", &["-std=c99", "-o", &output, &search, &run_path, "-Wl,--no-as-needed", "-luform_c"]);
    let ran = built.and_then(|()| {
        let done = Command::new(&program).output().map_err(|error| error.to_string())?;
        let text =
            String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        if done.status.success() { Ok(text) } else { Err(format!("{}: {text}", done.status)) }
    });
    let _ = std::fs::remove_file(&program);
    let text = ran.unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

#[test]
fn the_program_of_the_readme_compiles() {
    let root = repository();
    let readme = std::fs::read_to_string(root.join("README.md")).expect("README.md is there");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let file = std::env::temp_dir().join(format!("uform-readme-{}.c", std::process::id()));
    std::fs::write(&file, program.expect("README.md has a C program")).expect("written");
    let include = format!("-I{}", root.join("include").display());
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", &include])
        .arg(&file)
        .output();
    let removed = std::fs::remove_file(&file);
    let output = output.expect("cc starts");
    assert!(output.status.success() && removed.is_ok(), "{}", String::from_utf8_lossy(&output.stderr));
}
