//! Drives the built `uform slurm`.

use std::process::{Command, Output};

fn slurm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_uform")).arg("slurm").args(arguments).output().expect("it runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_script_is_written_and_has_nothing_wrong() {
    let nonce = uform::sys::random::nonce().expect("random bytes");
    let path = std::env::temp_dir().join(format!("uform-slurm-test-{nonce}.sh"));
    let options = ["gpu", "--nodes", "3", "--gpus-per-node", "4", "--time", "2-0", "--", "python", "a b.py"];
    let output = slurm(&options);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let script = text(&output.stdout);
    assert!(
        script.contains("#SBATCH --ntasks-per-node=4\n") && script.ends_with("python 'a b.py'\n"),
        "{script}"
    );
    std::fs::write(&path, &script).expect("written");
    let name = path.to_string_lossy();
    let checked = slurm(&["--check", &name]);
    assert_eq!((checked.status.code(), text(&checked.stdout)), (Some(0), String::new()));
    // Without srun the program runs once.
    std::fs::write(&path, script.replace("srun --kill-on-bad-exit=1 ", "")).expect("written");
    let checked = slurm(&["--check", &name]);
    std::fs::remove_file(&path).expect("there");
    let remarks = text(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{remarks}");
    let line = script.lines().count();
    assert!(remarks.contains(&format!("{name}:{line}: fail: 12 tasks are asked for")), "{remarks}");
}

#[test]
fn wrong_arguments_are_refused() {
    for arguments in [
        &[][..],
        &["tpu"],
        &["cpu", "--nodes", "0"],
        &["cpu", "--time", "1h"],
        &["cpu", "--partition", "a b"],
        &["cpu", "--check", "x"],
    ] {
        assert_eq!(slurm(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output = slurm(&["--check", "/no/such/script"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/no/such/script"), "{}", text(&output.stderr));
}
