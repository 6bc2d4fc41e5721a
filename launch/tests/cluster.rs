//! Forms runs under a real Slurm: steps of srun, batch scripts, `uform launch` on every node, signals and failures.

#[path = "cluster/mod.rs"]
mod slurm;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;

use slurm::{Cluster, cluster};

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
        &["-n6", "--distribution=plane=2", "-O"],
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
fn allocations_and_batch_scripts_form_runs_of_what_is_started_in_them() {
    let Some(cluster) = cluster() else { return };
    let step = ["srun", "--ntasks-per-node=2", UFORM, "topology"];
    let out = succeeded(&cluster.run(&[&["salloc", "-N3", "--ntasks-per-node=2"], &step[..]].concat()));
    assert!(out.contains("6 processes, 3 hosts"), "{out}");
    // Without srun there is one process, whatever the allocation says.
    let out = succeeded(&cluster.run(&["salloc", "-N3", "--ntasks-per-node=2", UFORM, "topology"]));
    assert!(out.contains("1 process"), "{out}");
    let head = "#!/bin/bash\n#SBATCH --nodes=3\n#SBATCH --ntasks-per-node=2\n";
    for (body, expected) in [
        (
            format!("srun --ntasks=3 --ntasks-per-node=1 {UFORM} launch -n 2 {UFORM} topology"),
            "6 processes, 3 hosts",
        ),
        // The batch script itself runs on the first node alone.
        (format!("{UFORM} launch -n 2 {UFORM} topology"), "2 processes, 1 host"),
        (format!("{UFORM} topology"), "1 process"),
    ] {
        let out = batch(&cluster, &format!("{head}{body}\n"), &[]);
        assert!(out.contains(expected), "{body}: {out}");
    }
}

#[test]
fn the_doctor_tells_what_each_task_was_told() {
    let Some(cluster) = cluster() else { return };
    let ended = cluster.run(&["srun", "-N3", "--ntasks-per-node=2", "-l", UFORM, "doctor"]);
    let out = text(&ended.stdout);
    for index in 0..6 {
        let lines: Vec<&str> =
            out.lines().filter_map(|line| line.strip_prefix(&format!("{index}: "))).collect();
        for part in [
            "srun, the first whose variables are complete and consistent".to_owned(),
            format!("{index} of 6 (SLURM_PROCID"),
            "3 (n1,n2,n3; SLURM_".to_owned(),
            "unique to this start".to_owned(),
            "other hosts could reach eth0 ".to_owned(),
        ] {
            assert!(lines.iter().any(|line| line.contains(&part)), "{part}: {out}");
        }
    }
    // The nodes of these tests share a directory of this machine, which no other machine would see: it says so.
    let errors: Vec<&str> = out.lines().filter(|line| line.contains(": fail ")).collect();
    assert!(errors.iter().all(|line| line.contains("which other hosts do not see")), "{out}");
    assert_eq!(ended.status.success(), errors.is_empty(), "{out}");
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

/// Submits a script and gives the job's number; its output goes to the file.
fn submit(cluster: &Cluster, script: &str, log: &Path, options: &[&str]) -> String {
    let file = cluster.shared().join("job.sh");
    std::fs::write(&file, script).expect("written");
    let (file, log) = (file.display().to_string(), log.display().to_string());
    let words = [&["sbatch", "--parsable", "--chdir=/", "-o", &log], options, &[&file]].concat();
    succeeded(&cluster.run(&words)).trim().to_owned()
}

/// The numbers of the jobs that wait, run or are being ended, or of some of them.
#[track_caller]
fn jobs(cluster: &Cluster, options: &[&str]) -> String {
    let words = [&["squeue", "-h", "-o", "%A"], options].concat();
    succeeded(&cluster.run(&words)).trim().to_owned()
}

/// What a script wrote that ran to its end.
fn batch(cluster: &Cluster, script: &str, options: &[&str]) -> String {
    let log = cluster.shared().join("job.txt");
    submit(cluster, script, &log, &[&["--wait"], options].concat());
    std::fs::read_to_string(log).expect("written")
}

/// Makes `python` a program of this test, in a folder that the nodes look in first.
fn python(cluster: &Cluster, script: &str) -> String {
    let folder = cluster.shared().join("bin");
    std::fs::create_dir_all(&folder).expect("made");
    let file = folder.join("python");
    std::fs::write(&file, format!("#!/bin/bash\n{script}\n")).expect("written");
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let path = std::env::var("PATH").unwrap_or_default();
    format!("--export=ALL,PATH={}:{path}", folder.display())
}

#[test]
fn the_scripts_of_the_folder_run_as_they_are() {
    let Some(cluster) = cluster() else { return };
    let path = python(&cluster, &format!("[ \"$1\" = train.py ] && exec {UFORM} topology"));
    for (name, count) in [("cpu", 8), ("gpu", 16), ("mpi", 8), ("requeue", 8)] {
        let file = format!("{}/../slurm/{name}.sh", env!("CARGO_MANIFEST_DIR"));
        let script = std::fs::read_to_string(file).expect("there");
        let out = batch(&cluster, &script, &[&path]);
        assert!(out.contains(&format!("{count} processes, 2 hosts")), "{name}: {out}");
    }
}

#[test]
fn what_the_command_writes_runs() {
    let Some(cluster) = cluster() else { return };
    let written = |words: &[&str]| succeeded(&cluster.run(&[&[UFORM, "slurm"], words].concat()));
    let size = ["--nodes", "3", "-p", "2", "-c", "1", "-t", "5"];
    for kind in ["cpu", "mpi"] {
        let script = written(&[&[kind], &size[..], &["--", UFORM, "topology"]].concat());
        let out = batch(&cluster, &script, &[]);
        assert!(out.contains("6 processes, 3 hosts"), "{kind}: {out}");
    }
    // Each task sees what the job has of its node's GPUs, and not those of other jobs.
    let show = ["--", "sh", "-c", "echo $SLURM_PROCID $CUDA_VISIBLE_DEVICES"];
    let script = written(&[&["gpu", "-g", "2"], &size[..], &show].concat());
    let out = batch(&cluster, &script, &[]);
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 0,1", "1 0,1", "2 0,1", "3 0,1", "4 0,1", "5 0,1"]);
}

#[test]
fn a_job_that_is_preempted_or_signalled_saves_and_goes_on() {
    let Some(cluster) = cluster() else { return };
    let shared = cluster.shared();
    let place = shared.display().to_string();
    let path = python(
        &cluster,
        &format!(
            "[ -z \"$SLURM_RESTART_COUNT\" ] || exec {UFORM} topology\n\
             trap 'echo saved $SLURM_PROCID; exit 75' USR1 TERM\n\
             touch {place}/ready.$SLURM_JOB_ID.$SLURM_PROCID\n\
             while :; do sleep 0.05; done"
        ),
    );
    let file = format!("{}/../slurm/requeue.sh", env!("CARGO_MANIFEST_DIR"));
    let script = std::fs::read_to_string(file).expect("there");
    for is_preempted in [true, false] {
        let log = shared.join(format!("log.{is_preempted}"));
        let job = submit(&cluster, &script, &log, &[&path]);
        let is_ready = || (0..8).all(|index| shared.join(format!("ready.{job}.{index}")).exists());
        cluster.until("eight tasks", is_ready);
        if is_preempted {
            succeeded(&cluster.run(&["srun", "-p", "urgent", "-N3", "--exclusive", "true"]));
        } else {
            succeeded(&cluster.run(&["scancel", "-s", "USR1", &job]));
        }
        cluster.until("job that waits again", || jobs(&cluster, &["-t", "PENDING"]) == job);
        // Slurm lets two minutes pass, its AuthInfo=cred_expire, before it starts the job again. A node refuses what was issued
        // in the second in which it ended the job, or earlier.
        succeeded(&cluster.run(&["scontrol", "update", &format!("JobId={job}"), "StartTime=now+2"]));
        cluster.until("end of the job", || jobs(&cluster, &[]).is_empty());
        let out = std::fs::read_to_string(&log).expect("written");
        assert_eq!(out.matches("saved ").count(), 8, "{out}");
        assert!(out.contains(&format!("run slurm-test-{job}.0-restart-1, attempt ")), "{out}");
        assert!(out.contains("8 processes, 2 hosts"), "{out}");
    }
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

/// A member of a run that meets in it, says so, and waits for one that never comes. `UFORM_TEST_DIES` names one that is killed.
#[test]
#[ignore = "a task of a step, which the tests below start"]
fn play() {
    let variable = |name| std::env::var(name).unwrap_or_default();
    let mesh = uform::Mesh::bootstrap(None, None).expect("formed");
    mesh.barrier().expect("all have come");
    let shared = std::path::PathBuf::from(variable("UFORM_DIRECTORY"));
    std::fs::write(shared.join(format!("ready.{}", mesh.index())), "").expect("written");
    if variable("UFORM_TEST_DIES") == mesh.index().to_string() {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("it is ours");
    }
    if variable("UFORM_TEST_STAYS").split(',').any(|index| index == mesh.index().to_string()) {
        std::thread::sleep(std::time::Duration::from_secs(600));
    }
    let error = mesh.barrier().expect_err("one has gone");
    println!("index {} heard: {error}", mesh.index());
}

/// A step of two tasks on each node that play their role, with a variable.
fn members<'a>(binary: &'a str, variable: &'a str) -> Vec<&'a str> {
    let step = ["srun", "-N3", "--ntasks-per-node=2", "--kill-on-bad-exit=0", "env", variable, binary];
    [&step[..], &["--exact", "play", "--ignored", "--nocapture", "--test-threads=1"]].concat()
}

#[test]
fn a_task_that_is_killed_is_named_by_the_members() {
    let Some(cluster) = cluster() else { return };
    let binary = std::env::current_exe().expect("it runs").display().to_string();
    let ended = cluster.run(&members(&binary, "UFORM_TEST_DIES=3"));
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    for index in [0, 1, 2, 4, 5] {
        let line = format!("index {index} heard: lost index 3 (host n2, pid ");
        assert!(out.contains(&line), "{line}: {out}\n{err}");
    }
    assert!(!ended.status.success(), "{err}");
    assert!(err.contains("n2: task 3: Killed"), "{err}");
}

#[test]
fn a_node_that_vanishes_is_named_by_the_members() {
    let Some(mut cluster) = cluster() else { return };
    let shared = cluster.shared();
    let binary = std::env::current_exe().expect("it runs").display().to_string();
    let mut words = members(&binary, "UFORM_TEST_STAYS=4,5");
    let output = format!("--output={}/heard.%t", shared.display());
    words.insert(1, &output);
    let mut step = cluster.spawn(&words);
    cluster.until("six members", || (0..6).all(|index| shared.join(format!("ready.{index}")).exists()));
    cluster.crash(2);
    for index in 0..4 {
        let heard = || std::fs::read_to_string(shared.join(format!("heard.{index}"))).unwrap_or_default();
        cluster.until("members that hear of it", || heard().contains("test result: "));
        let heard = heard();
        assert!(
            [4, 5].iter().any(|gone| heard
                .contains(&format!("index {index} heard: lost index {gone} (host n3, pid "))),
            "{heard}"
        );
    }
    let _ = step.kill();
    let _ = step.wait();
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
    succeeded(&cluster.run(&["scancel", "-s", "USR1", &jobs(&cluster, &[])]));
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
    succeeded(&cluster.run(&["scancel", &jobs(&cluster, &[])]));
    let ended = step.wait_with_output().expect("a child");
    assert!(!ended.status.success());
    cluster.until("end of the job", || jobs(&cluster, &[]).is_empty());
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
