//! What `make install` puts where, and that a program needs nothing but `pkg-config` to use it.

use std::path::Path;
use std::process::Command;

use super::harness::{Folder, clean, has, repository, run_all, succeed};

/// Runs `make` for this profile.
fn make(target: &str, prefix: &str, destination: &str) -> String {
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let mut command = Command::new("make");
    command.current_dir(repository()).args(["--no-print-directory", "--silent", target]);
    command.arg(format!("PREFIX={prefix}")).arg(format!("DESTDIR={destination}"));
    command.arg(format!("CARGO_PROFILE={profile}"));
    // The make that runs these tests must not rule this one.
    command.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").env_remove("MFLAGS");
    succeed(&mut command)
}

/// The files and links below a folder, relative to it, sorted.
fn files(folder: &Path) -> Vec<String> {
    let listed = succeed(
        Command::new("find")
            .arg(folder)
            .args(["(", "-type", "f", "-o", "-type", "l", ")", "-printf", "%P\n"]),
    );
    let mut names = listed.lines().map(str::to_owned).collect::<Vec<_>>();
    names.sort();
    names
}

fn pkg_config(prefix: &str, flags: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", format!("{prefix}/lib/pkgconfig")).args(flags).arg("uform");
    succeed(&mut command).split_whitespace().map(str::to_owned).collect()
}

/// What index 0 of the example printed must show that it learned.
fn expect_learning(said: &str) {
    let losses = said.lines().filter_map(|line| line.split("loss ").nth(1)?.trim().parse::<f64>().ok());
    let losses = losses.collect::<Vec<_>>();
    assert_eq!(losses.len(), 40, "{said}");
    assert!(losses[39] < losses[0] / 50.0, "{said}");
}

#[test]
fn the_training_example_uses_what_was_installed() {
    if !has("pkg-config", "pkg-config") {
        return;
    }
    let folder = Folder::new();
    let prefix = folder.join("prefix");
    make("install", &prefix, "");
    assert_eq!(pkg_config(&prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let source = repository().join("examples/train.c");

    let program = folder.join("train");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]).arg(&source);
    compiler.args(pkg_config(&prefix, &["--cflags", "--libs"]));
    succeed(compiler.args(["-o", &program]));

    // By two processes that meet in a directory, then by the launcher that was installed beside it.
    let members = (0..2).map(|index| {
        let mut command = clean(&program);
        command.env("LD_LIBRARY_PATH", format!("{prefix}/lib")).arg(folder.join("checkpoints"));
        command.env("UFORM_INDEX", index.to_string()).env("UFORM_COUNT", "2");
        command.env("UFORM_DIRECTORY", folder.join("meeting"));
        command
    });
    let said = run_all(&folder, members.collect());
    expect_learning(&said[0]);
    assert_eq!(said[1], "", "index 0 alone prints");
    assert!(folder.path().join("checkpoints/step-320/manifest.json").is_file());

    let mut launcher = clean(format!("{prefix}/bin/uform"));
    launcher.args(["launch", "--processes", "2", "--no-pin", &program, &folder.join("launched")]);
    launcher.env("LD_LIBRARY_PATH", format!("{prefix}/lib"));
    expect_learning(&run_all(&folder, vec![launcher])[0]);

    // The static library needs what the package names as private, and no library of ours at run time.
    let program = folder.join("static");
    let mut compiler = Command::new("cc");
    compiler.arg(&source).args(pkg_config(&prefix, &["--cflags"])).arg(format!("{prefix}/lib/libuform.a"));
    let private = pkg_config(&prefix, &["--libs", "--static"]);
    compiler.args(private.iter().filter(|flag| *flag != "-luform"));
    succeed(compiler.args(["-o", &program]));
    let mut alone = clean(&program);
    alone.arg(folder.join("alone"));
    expect_learning(&run_all(&folder, vec![alone])[0]);
}

#[test]
fn an_installation_is_removed_without_a_trace() {
    let folder = Folder::new();
    let destination = folder.join("root");
    make("install", "/usr", &destination);
    let version = env!("CARGO_PKG_VERSION");
    let major = env!("CARGO_PKG_VERSION_MAJOR");
    let expected = [
        "usr/bin/uform".to_owned(),
        "usr/include/uform.h".to_owned(),
        "usr/lib/libuform.a".to_owned(),
        "usr/lib/libuform.so".to_owned(),
        format!("usr/lib/libuform.so.{major}"),
        format!("usr/lib/libuform.so.{version}"),
        "usr/lib/pkgconfig/uform.pc".to_owned(),
    ];
    let root = Path::new(&destination);
    assert_eq!(files(root), expected);
    let package = std::fs::read_to_string(root.join("usr/lib/pkgconfig/uform.pc")).expect("installed");
    assert!(package.contains("prefix=/usr\n") && !package.contains('@'), "{package}");
    make("uninstall", "/usr", &destination);
    assert_eq!(files(root), Vec::<String>::new());
}
