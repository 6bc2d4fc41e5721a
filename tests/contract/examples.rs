//! Every example runs, alone and as two processes that meet in a directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::source;

/// Builds an example as cargo builds it for this test, and returns its executable.
fn built(name: &str) -> PathBuf {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(source::root()).args(["build", "--quiet", "--locked", "--example", name]);
    assert!(command.status().expect("cargo runs").success(), "example {name} does not build");
    // This test lies in `deps`, examples beside it.
    let own = std::env::current_exe().expect("this test has a path");
    own.ancestors().nth(2).expect("deps lies in the profile's folder").join("examples").join(name)
}

/// A command without the variables of any launcher.
fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("UFORM_")
            || ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"].contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text_of(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n{out}{error}", output.status)
}

#[test]
fn all_reduce_runs_alone_and_in_two_processes() {
    let program = built("all_reduce");
    let alone = clean(&program).output().expect("the example starts");
    assert!(
        alone.status.success() && text_of(&alone).contains("the sum is [1.0, 10.0]"),
        "{}",
        text_of(&alone)
    );

    let folder = std::env::temp_dir().join(format!("uform-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in the temporary folder");
    let members = (0..2).map(|index: usize| {
        let mut command = clean(&program);
        command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", "2");
        command.env("UFORM_DIRECTORY", &folder).env("UFORM_TIMEOUT", "60");
        command.spawn().expect("the example starts")
    });
    let members = members.collect::<Vec<_>>();
    let outputs = members.into_iter().map(|member| member.wait_with_output().expect("the example ends"));
    let outputs = outputs.collect::<Vec<_>>();
    std::fs::remove_dir_all(&folder).expect("the folder is still there");
    for (index, output) in outputs.iter().enumerate() {
        let text = text_of(output);
        assert!(output.status.success() && text.contains("the sum is [3.0, 20.0]"), "index {index}: {text}");
    }
}
