//! Drives the built `uform doctor`.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the doctor with these variables and no launcher's.
fn doctor(variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uform"));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(variables.iter().copied()).arg("doctor").args(arguments);
    command.output().expect("it runs")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn one_process_is_well_and_says_what_it_has() {
    let output = doctor(&[], &[]);
    let text = text(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for area in [
        "launcher",
        "index",
        "directory",
        "memory",
        "segments",
        "cores",
        "NUMA",
        "GPUs",
        "library",
        "network",
    ] {
        assert!(text.lines().any(|line| line.split_whitespace().nth(1) == Some(area)), "{area}: {text}");
    }
    assert!(text.lines().all(|line| ["ok ", "warn "].iter().any(|word| line.starts_with(word))), "{text}");
}

#[test]
fn the_exit_code_tells_that_a_run_would_not_work() {
    let numbers = [("UFORM_INDEX", "0"), ("UFORM_COUNT", "2")];
    for (directory, expected) in
        [(None, "UFORM_DIRECTORY"), (Some("/no/such/folder"), "parent does not exist")]
    {
        let variables = [
            numbers.as_slice(),
            &directory.map(|path| ("UFORM_DIRECTORY", path)).into_iter().collect::<Vec<_>>(),
        ];
        let output = doctor(&variables.concat(), &["--json"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let object: serde_json::Value = serde_json::from_str(&text(&output)).expect("one object");
        assert_eq!(object["usable"], false);
        let findings = object["findings"].as_array().expect("a list");
        let failed = findings.iter().find(|finding| finding["level"] == "fail").expect("a failure");
        let line = format!("{} {}", failed["text"], failed["remedy"]);
        assert!(line.contains(expected), "{line}");
    }
    assert_eq!(doctor(&[], &["--no-such-option"]).status.code(), Some(2));
}

#[test]
fn the_directory_is_tried_and_left_as_it_was() {
    let nonce = uform::sys::random::nonce().expect("random bytes");
    let path = std::env::temp_dir().join(format!("uform-doctor-test-{nonce}"));
    let name = path.to_string_lossy();
    let numbers = [("UFORM_INDEX", "0"), ("UFORM_COUNT", "2")];
    let output = doctor(&numbers, &["--directory", &name]);
    let text = text(&output);
    assert!(text.contains(&*name) && text.contains("free in"), "{text}");
    assert!(!Path::new(&path).exists());
}
