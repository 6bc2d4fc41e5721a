//! Forms runs under a real Slurm: steps of srun, batch scripts, `uform launch` on every node, signals and failures.

#[path = "cluster/mod.rs"]
mod slurm;

use std::process::Output;

use slurm::cluster;

const UFORM: &str = env!("CARGO_BIN_EXE_uform");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn steps_of_srun_form_runs() {
    let Some(cluster) = cluster() else { return };
    for options in [
        &["--ntasks-per-node=2"][..],
        &["-n6", "--distribution=cyclic", "-O"],
        &["--ntasks-per-node=2", "--mpi=pmi2"],
        &["--ntasks-per-node=2", "--mpi=pmix"],
        &["--ntasks-per-node=2", "--gpus-per-task=1"],
    ] {
        let words = [&["srun", "-N3"], options, &[UFORM, "topology"]].concat();
        let out = succeeded(&cluster.run(&words));
        assert!(out.contains("6 processes"), "{options:?}: {out}");
    }
    let left = std::fs::read_dir(cluster.shared()).expect("there").count();
    assert_eq!(left, 0, "nothing is left in the directory");
}

#[test]
fn gpus_of_a_task_are_its_own() {
    let Some(cluster) = cluster() else { return };
    let script = "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES";
    let words = ["srun", "-N3", "--ntasks-per-node=2", "--gpus-per-task=1", "sh", "-c", script];
    let out = succeeded(&cluster.run(&words));
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 0", "1 1", "2 0", "3 1", "4 0", "5 1"]);
}

#[test]
fn a_launcher_on_every_node_makes_one_run() {
    let Some(cluster) = cluster() else { return };
    let script = "echo $UFORM_INDEX/$UFORM_COUNT ${SLURM_PROCID-none} $(hostname)";
    let words = ["srun", "-N3", "--ntasks-per-node=1", UFORM, "launch", "-n", "2", "sh", "-c", script];
    let out = succeeded(&cluster.run(&words));
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> =
        (0..6).map(|index| format!("[{index}] {index}/6 none n{}", index / 2 + 1)).collect();
    assert_eq!(lines, expected);
    let words = ["srun", "-N3", "--ntasks-per-node=1", UFORM, "launch", "-n", "2", UFORM, "topology"];
    let out = succeeded(&cluster.run(&words));
    assert!(out.contains("6 processes"), "{out}");
    assert_eq!(std::fs::read_dir(cluster.shared()).expect("there").count(), 0, "nothing is left");
}

#[test]
fn batch_scripts_run_as_they_are_written() {
    let Some(cluster) = cluster() else { return };
    let file = cluster.shared().join("job.sh");
    let written = cluster.run(&[
        UFORM, "slurm", "cpu", "--nodes", "3", "-p", "2", "-c", "1", "-t", "5", "--", UFORM, "topology",
    ]);
    std::fs::write(&file, succeeded(&written)).expect("written");
    let log = cluster.shared().join("job.txt");
    let (file, log_name) = (file.display().to_string(), log.display().to_string());
    succeeded(&cluster.run(&["sbatch", "--wait", "--chdir=/", "-o", &log_name, &file]));
    let out = std::fs::read_to_string(&log).expect("written");
    assert!(out.contains("6 processes"), "{out}");
}

#[test]
fn a_process_that_fails_is_named_on_every_node() {
    let Some(cluster) = cluster() else { return };
    let script = "[ $UFORM_INDEX = 3 ] && { sleep 0.5; exit 9; }; exec sleep 60";
    let words = ["srun", "-N3", "--ntasks-per-node=1", UFORM, "launch", "-n", "2", "sh", "-c", script];
    let ended = cluster.run(&words);
    let err = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(9), "{err}");
    assert!(err.contains("index 3 failed first: exit code 9"), "{err}");
    assert_eq!(err.matches("index 3 on host n2 failed first: exit code 9").count(), 2, "{err}");
}

#[test]
fn a_signal_to_the_step_reaches_each_process_once() {
    let Some(cluster) = cluster() else { return };
    let shared = cluster.shared();
    let script = format!(
        "trap 'echo got >> {place}/got' USR1; touch {place}/ready.$UFORM_INDEX; \
         while [ ! -e {place}/stop ]; do sleep 0.05; done",
        place = shared.display()
    );
    let words = ["srun", "-N3", "--ntasks-per-node=1", UFORM, "launch", "-n", "2", "sh", "-c", &script];
    let step = cluster.spawn(&words);
    let is_ready = || (0..6).all(|index| shared.join(format!("ready.{index}")).exists());
    cluster.until("six processes", is_ready);
    let job = succeeded(&cluster.run(&["squeue", "-h", "-o", "%A"]));
    succeeded(&cluster.run(&["scancel", "-s", "USR1", job.trim()]));
    let got = || std::fs::read_to_string(shared.join("got")).unwrap_or_default().lines().count();
    cluster.until("the signal in six processes", || got() >= 6);
    // A second one would come by way of the launchers, about as fast as the first.
    std::thread::sleep(std::time::Duration::from_millis(700));
    std::fs::write(shared.join("stop"), "").expect("written");
    succeeded(&step.wait_with_output().expect("a child"));
    assert_eq!(got(), 6);
}

#[test]
fn scancel_ends_all_and_nothing_is_left() {
    let Some(cluster) = cluster() else { return };
    let shared = cluster.shared();
    let script = format!("touch {}/ready.$UFORM_INDEX; exec sleep 600", shared.display());
    let words = ["srun", "-N3", "--ntasks-per-node=1", UFORM, "launch", "-n", "2", "sh", "-c", &script];
    let step = cluster.spawn(&words);
    cluster.until("six processes", || (0..6).all(|index| shared.join(format!("ready.{index}")).exists()));
    let job = succeeded(&cluster.run(&["squeue", "-h", "-o", "%A"]));
    succeeded(&cluster.run(&["scancel", job.trim()]));
    let ended = step.wait_with_output().expect("a child");
    assert!(!ended.status.success());
    let left = || cluster.run(&["squeue", "-h", "-o", "%A"]).stdout.is_empty();
    cluster.until("end of the job", left);
}

#[test]
fn a_node_that_vanishes_is_named_by_the_others() {
    let Some(mut cluster) = cluster() else { return };
    let shared = cluster.shared();
    let script = format!("touch {}/ready.$UFORM_INDEX; exec sleep 600", shared.display());
    let report = format!(
        "{UFORM} launch -n 2 sh -c '{script}' 2> {place}/log.$SLURM_PROCID; echo $? > {place}/code.$SLURM_PROCID",
        place = shared.display()
    );
    let mut step = cluster.spawn(&["srun", "-N3", "--ntasks-per-node=1", "sh", "-c", &report]);
    cluster.until("six processes", || (0..6).all(|index| shared.join(format!("ready.{index}")).exists()));
    cluster.crash(2);
    cluster.until("two exit codes", || (0..2).all(|place| shared.join(format!("code.{place}")).exists()));
    for place in 0..2 {
        let log = std::fs::read_to_string(shared.join(format!("log.{place}"))).expect("written");
        assert!(log.contains("host n3 failed first: its launcher"), "{log}");
    }
    let _ = step.kill();
    let _ = step.wait();
}
