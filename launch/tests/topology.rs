//! Drives the built `uform topology`, alone and under the launcher.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is removed with all it holds.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uform-topology-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder can be made");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn uform(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uform")).args(arguments).output().expect("it runs")
}

/// The command line of `uform topology` in so many processes.
fn launched<'a>(processes: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    let own = [env!("CARGO_BIN_EXE_uform"), "topology"];
    ["launch", "--processes", processes].into_iter().chain(own).chain(rest.iter().copied()).collect()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a readable folder").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_lone_process_is_a_run() {
    let tree = text(&uform(&["topology"]));
    assert!(tree.contains("1 process, 1 host") && tree.contains("memory domain 0: "), "{tree}");
    let object: serde_json::Value =
        serde_json::from_str(&text(&uform(&["topology", "--json"]))).expect("JSON");
    assert_eq!((&object["count"], &object["members"][0]["gpus"]), (&1.into(), &serde_json::json!([])));
    assert!(text(&uform(&["topology", "--svg", "-"])).starts_with("<svg "));
    assert_eq!(uform(&["topology", "--json", "--svg", "-"]).status.code(), Some(2));
}

#[test]
fn index_0_of_a_run_tells_of_all() {
    let tree = text(&uform(&launched("2", &[])));
    assert!(
        tree.contains("2 processes, 1 host") && tree.contains("run: 1 group of 2 members: 0-1"),
        "{tree}"
    );
    assert!(tree.lines().all(|line| !line.starts_with("[1]")), "{tree}");
}

#[test]
fn a_picture_replaces_the_file_as_a_whole() {
    let folder = Folder::new("picture");
    let path = folder.0.join("run.svg");
    std::fs::write(&path, "an older one").expect("a file can be written");
    let shown = path.to_str().expect("text");
    text(&uform(&launched("2", &["--svg", shown])));
    let picture = std::fs::read_to_string(&path).expect("the picture is there");
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"), "{picture}");
    assert!(picture.contains("index 1"), "{picture}");
    assert_eq!(names(&folder.0), ["run.svg"]);
}

#[test]
fn a_picture_that_cannot_be_written_is_an_error() {
    let folder = Folder::new("error");
    let path = folder.0.join("absent/run.svg");
    let output = uform(&["topology", "--svg", path.to_str().expect("text")]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("absent/run.svg"), "{error}");
    // A folder in the place of the file is left as it is.
    let output = uform(&["topology", "--svg", folder.0.to_str().expect("text")]);
    assert!(!output.status.success() && names(&folder.0).is_empty());
}
