//! Drives the built `uform devices`.

use std::process::Command;

fn devices(arguments: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_uform")).arg("devices").args(arguments).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_object_and_the_text_tell_of_the_same_machine() {
    let object: serde_json::Value = serde_json::from_str(&devices(&["--json"])).expect("one object");
    let cores = object["survey"]["cores"].as_array().expect("a list").len();
    let allowed = object["allowed_cores"].as_array().expect("a list");
    assert!(cores >= allowed.len() && !allowed.is_empty(), "{object}");
    let words = object["capabilities_available"].as_array().expect("a list");
    assert!(words.contains(&"serial".into()), "{object}");
    let text = devices(&[]);
    let line = text.lines().find(|line| line.trim_start().starts_with("cores ")).expect("told");
    assert_eq!(line.split_whitespace().nth(1), Some(cores.to_string().as_str()), "{text}");
}
