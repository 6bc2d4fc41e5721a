//! Tables of variables and what they mean; recorded environments are in `tests/fixtures/environments`.

use super::*;

mod recorded;

fn facts() -> OwnFacts {
    let process = |pid, name: &str| OwnProcess { pid, name: name.into(), start_ticks: u64::from(pid) * 10 };
    OwnFacts {
        uid: 7,
        runtime_folder: None,
        temporary_folder: "/tmp".into(),
        host_name: "node1".into(),
        processes: vec![process(4000, "python"), process(3900, "bash"), process(1, "init")],
        sees_launchers: true,
    }
}

/// Resolves `NAME=value` words; `~` stands for a space.
fn find(options: &MeshOptions, variables: &str) -> Result<Launch> {
    let words = variables.split_whitespace().filter_map(|word| word.split_once('='));
    let variables = words.map(|(name, value)| (name, value.replace('~', " "))).collect::<Variables>();
    resolve(options, &variables, &facts())
}

fn refused(options: &MeshOptions, variables: &str) -> String {
    find(options, variables).expect_err(variables).to_string()
}

fn explicit(index: usize, count: usize) -> MeshOptions {
    MeshOptions { host_domain_index: index, host_domain_count: count, ..MeshOptions::default() }
}

const OURS: &str = "UFORM_INDEX=1 UFORM_COUNT=4 UFORM_LOCAL_INDEX=1 UFORM_LOCAL_COUNT=4 UFORM_JOB=fresh \
                    UFORM_LAUNCHER_PID=77 ";
const TORCHRUN: &str = "RANK=3 WORLD_SIZE=4 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 GROUP_WORLD_SIZE=1 \
                        TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 MASTER_ADDR=node1 MASTER_PORT=29500 ";

#[test]
fn launchers_are_told_apart() {
    let table = [
        ("", "none", 0, 1, "default", false, None),
        (OURS, "uform launch", 1, 4, "fresh", true, Some("/tmp/uform-7")),
        ("UFORM_INDEX=0 UFORM_COUNT=1", "UFORM_* variables", 0, 1, "default", false, None),
        (
            "UFORM_INDEX=2 UFORM_COUNT=3 UFORM_DIRECTORY=/d",
            "UFORM_* variables",
            2,
            3,
            "default",
            false,
            Some("/d"),
        ),
        (TORCHRUN, "torchrun", 3, 4, "none-node1-29500-restart-2", false, Some("/tmp/uform-7")),
        (
            "RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=abc",
            "torchrun",
            0,
            1,
            "abc-restart-0",
            false,
            None,
        ),
        ("SLURM_JOB_ID=5 SLURM_NTASKS=4 SLURM_PROCID=0", "none", 0, 1, "default", false, None),
        (
            "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 SLURM_NTASKS=1 PMIX_RANK=0",
            "srun",
            0,
            1,
            "slurm-5.0-restart-0",
            true,
            None,
        ),
        (
            "SLURM_STEP_ID=4294967291 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0",
            "none",
            0,
            1,
            "default",
            false,
            None,
        ),
        ("SLURM_STEP_ID=-5 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", "none", 0, 1, "default", false, None),
        (
            "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0",
            "Open MPI",
            0,
            1,
            "default",
            false,
            None,
        ),
    ];
    for (variables, launcher, index, count, job, unique, directory) in table {
        let found = find(&MeshOptions::default(), variables).expect(variables);
        assert_eq!((found.launcher.as_str(), found.index.value, found.count.value), (launcher, index, count));
        assert_eq!((found.job.value.as_str(), found.attempt_is_unique), (job, unique), "{variables}");
        let chosen = found.directory.map(|directory| directory.value);
        assert_eq!(chosen.as_deref(), directory.map(std::path::Path::new), "{variables}");
        assert_eq!(found.timeout_seconds, DEFAULT_TIMEOUT_SECONDS);
    }
}

#[test]
fn each_value_has_its_source() {
    let found = find(&MeshOptions::default(), TORCHRUN).expect("complete");
    assert_eq!((found.index.origin.as_str(), found.count.origin.as_str()), ("RANK", "WORLD_SIZE"));
    assert_eq!(found.local_index.map(|local| (local.value, local.origin)), Some((3, "LOCAL_RANK".into())));
    assert_eq!(found.job.origin, "TORCHELASTIC_RUN_ID, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RESTART_COUNT");
    let options = MeshOptions { directory: Some("/a".into()), ..explicit(1, 2) };
    let found = find(&options, "UFORM_DIRECTORY=/b UFORM_TIMEOUT=2.5").expect("complete");
    let directory = found.directory.expect("given");
    assert_eq!((directory.value, directory.origin.as_str()), ("/a".into(), "argument"));
    assert_eq!((found.launcher.as_str(), found.index.origin.as_str()), ("arguments", "argument"));
    assert_eq!(found.timeout_seconds, 2.5);
    let options = MeshOptions { timeout_seconds: 9.0, ..MeshOptions::default() };
    assert_eq!(find(&options, "UFORM_TIMEOUT=2.5").expect("complete").timeout_seconds, 9.0);
    let runtime = OwnFacts { runtime_folder: Some("/run/user/7".into()), ..facts() };
    assert_eq!(runtime.private_folder(), PathBuf::from("/run/user/7/uform"));
}

#[test]
fn wrong_variables_are_named() {
    let table = [
        ("UFORM_INDEX=1", "UFORM_COUNT = (not set)"),
        ("UFORM_COUNT=2", "UFORM_INDEX = (not set)"),
        ("UFORM_LOCAL_COUNT=2", "UFORM_INDEX = (not set)"),
        ("UFORM_INDEX=0 UFORM_COUNT=2 UFORM_LOCAL_INDEX=0", "UFORM_LOCAL_COUNT = (not set)"),
        ("UFORM_INDEX=x UFORM_COUNT=2", "UFORM_INDEX = x"),
        ("UFORM_INDEX=-1 UFORM_COUNT=2", "UFORM_INDEX = -1"),
        ("UFORM_INDEX=+1 UFORM_COUNT=2", "UFORM_INDEX = +1"),
        ("UFORM_INDEX=~1 UFORM_COUNT=2", "UFORM_INDEX =  1"),
        ("UFORM_INDEX= UFORM_COUNT=2", "UFORM_INDEX = ''"),
        ("UFORM_INDEX=0 UFORM_COUNT=0", "UFORM_COUNT = 0"),
        ("UFORM_INDEX=0 UFORM_COUNT=99999999999999999999999", "UFORM_COUNT = 9999"),
        ("UFORM_INDEX=0 UFORM_COUNT=1048577", "UFORM_COUNT = 1048577"),
        (
            "UFORM_INDEX=2 UFORM_COUNT=2",
            "UFORM_INDEX = 2 (environment) is invalid: must be below UFORM_COUNT; UFORM_COUNT says 2",
        ),
        ("UFORM_INDEX=0 UFORM_COUNT=2 UFORM_LOCAL_INDEX=0 UFORM_LOCAL_COUNT=3", "UFORM_LOCAL_COUNT = 3"),
        ("UFORM_INDEX=0 UFORM_COUNT=2 UFORM_LOCAL_INDEX=1 UFORM_LOCAL_COUNT=1", "UFORM_LOCAL_INDEX = 1"),
        ("UFORM_INDEX=0 UFORM_COUNT=2 UFORM_DIRECTORY=", "UFORM_DIRECTORY = ''"),
        ("UFORM_JOB=", "UFORM_JOB = ''"),
        ("UFORM_TIMEOUT=", "UFORM_TIMEOUT = ''"),
        ("UFORM_TIMEOUT=soon", "UFORM_TIMEOUT = soon"),
        ("UFORM_TIMEOUT=-1", "UFORM_TIMEOUT = -1"),
        ("UFORM_TIMEOUT=nan", "UFORM_TIMEOUT = NaN"),
        ("UFORM_TIMEOUT=inf", "UFORM_TIMEOUT = inf"),
        ("RANK=0", "WORLD_SIZE = (not set)"),
        ("WORLD_SIZE=2", "RANK = (not set)"),
        ("RANK=0 WORLD_SIZE=2", "LOCAL_RANK = (not set)"),
        ("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0", "LOCAL_WORLD_SIZE = (not set)"),
        ("TORCHELASTIC_RUN_ID=none", "RANK = (not set)"),
        ("LOCAL_RANK=0", "RANK = (not set)"),
        ("RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2", "RANK = 2"),
        ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "LOCAL_RANK = 2"),
        (
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=a",
            "TORCHELASTIC_RESTART_COUNT = a",
        ),
        ("OMPI_COMM_WORLD_SIZE=abc OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE = abc"),
        ("OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_RANK = (not set)"),
        ("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_WORLD_SIZE=4", "OMPI_WORLD_SIZE = 4"),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=3",
            "OMPI_COMM_WORLD_LOCAL_SIZE = 3",
        ),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=2",
            "OMPI_COMM_WORLD_LOCAL_RANK = 2",
        ),
        ("PALS_RANKID=0", "PALS_SIZE = (not set)"),
        ("PALS_SIZE=2", "PALS_RANKID = (not set)"),
        ("MPI_LOCALRANKID=0 PMI_RANK=0", "PMI_SIZE = (not set)"),
        ("MPI_LOCALNRANKS=2", "PMI_RANK = (not set)"),
        ("MV2_COMM_WORLD_SIZE=2", "MV2_COMM_WORLD_RANK = (not set)"),
        ("MVP_COMM_WORLD_RANK=2 MVP_COMM_WORLD_SIZE=2", "MVP_COMM_WORLD_RANK = 2"),
        ("FLUX_JOB_SIZE=2", "FLUX_TASK_RANK = (not set)"),
        ("JSM_NAMESPACE_SIZE=2", "JSM_NAMESPACE_RANK = (not set)"),
        ("PMI_RANK=0", "PMI_SIZE = (not set)"),
        ("PMI_SIZE=0 PMI_RANK=0", "PMI_SIZE = 0"),
        ("PMIX_RANK=0 PMIX_NAMESPACE=x", "UFORM_COUNT = (not set)"),
        ("PMIX_RANK=3 UFORM_COUNT=3", "PMIX_RANK = 3"),
        ("JOB_COMPLETION_INDEX=1 KUBERNETES_SERVICE_HOST=10.0.0.1", "UFORM_COUNT = (not set)"),
        ("JOB_COMPLETION_INDEX=5 UFORM_COUNT=5", "JOB_COMPLETION_INDEX = 5"),
        ("SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4", "SLURM_PROCID = (not set)"),
        ("SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=4", "SLURM_PROCID = 4"),
        (
            "SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_STEP_TASKS_PER_NODE=x",
            "SLURM_STEP_TASKS_PER_NODE = x",
        ),
    ];
    for (variables, expected) in table {
        let error = find(&MeshOptions::default(), variables).expect_err(variables);
        assert!(matches!(error, Error::Invalid { .. }), "{variables}: {error}");
        assert!(error.to_string().starts_with(expected), "{variables}: {error}");
    }
}

#[test]
fn a_variable_that_is_not_utf8_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let variables =
        [("UFORM_INDEX", std::ffi::OsString::from_vec(vec![0xff, b'1']))].into_iter().collect::<Variables>();
    let error = resolve(&MeshOptions::default(), &variables, &facts()).expect_err("not UTF-8");
    assert!(error.to_string().contains("UFORM_INDEX") && error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn wrong_options_are_named() {
    let table = [
        (explicit(1, 0), "host_domain_index = 1"),
        (explicit(2, 2), "host_domain_index = 2 (argument) is invalid: must be below host_domain_count"),
        (explicit(0, COUNT_LIMIT + 1), "host_domain_count = 1048577"),
        (MeshOptions { timeout_seconds: -1.0, ..MeshOptions::default() }, "timeout_seconds = -1"),
        (MeshOptions { timeout_seconds: f64::NAN, ..MeshOptions::default() }, "timeout_seconds = NaN"),
        (MeshOptions { timeout_seconds: f64::INFINITY, ..MeshOptions::default() }, "timeout_seconds = inf"),
        (MeshOptions { job: Some(String::new()), ..MeshOptions::default() }, "job = ''"),
        (MeshOptions { directory: Some(PathBuf::new()), ..MeshOptions::default() }, "directory = ''"),
    ];
    for (options, expected) in table {
        let text = refused(&options, "");
        assert!(text.starts_with(expected), "{text}");
    }
}

#[test]
fn contradictions_name_both_sides() {
    let text = refused(&explicit(0, 4), OURS);
    assert!(
        text.starts_with("host_domain_index = 0 (argument)") && text.ends_with("UFORM_INDEX says 1"),
        "{text}"
    );
    let text = refused(&explicit(3, 5), TORCHRUN);
    assert!(
        text.starts_with("host_domain_count = 5 (argument)") && text.ends_with("WORLD_SIZE says 4"),
        "{text}"
    );
    let text = refused(&MeshOptions::default(), &format!("{OURS}{TORCHRUN}"));
    assert!(text.starts_with("UFORM_INDEX = 1") && text.ends_with("RANK says 3"), "{text}");
    // Named job: a run in a run, of the caller's own numbers.
    let nested = MeshOptions { job: Some("inner".into()), ..explicit(0, 2) };
    let found = find(&nested, TORCHRUN).expect("a run in a run");
    assert_eq!((found.index.value, found.count.value, found.job.value.as_str()), (0, 2, "inner"));
    assert_eq!((found.launcher.as_str(), found.local_index), ("arguments", None));
    // A job name alone does not choose between two launchers.
    let named = MeshOptions { job: Some("inner".into()), ..MeshOptions::default() };
    assert!(refused(&named, &format!("{OURS}{TORCHRUN}")).contains("RANK says 3"));
    // The same numbers from both are no contradiction.
    let same = "UFORM_INDEX=3 UFORM_COUNT=4 ".to_owned() + TORCHRUN + "UFORM_DIRECTORY=/d";
    assert_eq!(find(&MeshOptions::default(), &same).expect("agreed").index.value, 3);
    assert_eq!(find(&explicit(3, 4), TORCHRUN).expect("agreed").launcher, "torchrun");
}

#[test]
fn several_hosts_need_a_directory() {
    let two_hosts =
        "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x";
    let two_agents =
        "RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=x";
    for variables in [two_hosts, two_agents, "UFORM_INDEX=0 UFORM_COUNT=2"] {
        let text = refused(&MeshOptions::default(), variables);
        assert!(text.starts_with("directory = None") && text.contains("UFORM_DIRECTORY"), "{text}");
        let found =
            find(&MeshOptions::default(), &format!("{variables} UFORM_DIRECTORY=/shared")).expect("given");
        assert_eq!(found.directory.map(|found| found.origin).as_deref(), Some("UFORM_DIRECTORY"));
    }
    let text = refused(&explicit(0, 2), "");
    assert!(text.starts_with("directory = None") && text.contains("UFORM_DIRECTORY"), "{text}");
    assert!(find(&explicit(0, 1), "").expect("one process").directory.is_none());
}

#[test]
fn an_unread_launcher_is_not_taken_for_nobody() {
    let error = find(&MeshOptions::default(), "HOROVOD_SIZE=2 HOROVOD_RANK=1").expect_err("unread");
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("HOROVOD_SIZE=2") && text.contains("UFORM_INDEX") && text.contains("directory"),
        "{text}"
    );
    // The ways out that the error names, and another launcher.
    let options = MeshOptions { directory: Some("/d".into()), ..explicit(0, 4) };
    assert_eq!(find(&options, "HOROVOD_SIZE=2").expect("explicit").count.value, 4);
    for launcher in [OURS, "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 UFORM_DIRECTORY=/d "] {
        let found = find(&MeshOptions::default(), &format!("{launcher}HOROVOD_SIZE=2")).expect(launcher);
        assert_eq!(found.count.value, 4);
        assert!(found.others.iter().any(|seen| seen.launcher == "Horovod"), "{:?}", found.others);
    }
    let found = find(&MeshOptions::default(), "HOROVOD_SIZE=1").expect("one process");
    assert_eq!((found.launcher.as_str(), found.others.len()), ("none", 1));
}

/// Variables of Open MPI and of a Slurm step, for a run of `count` processes.
fn open_mpi(index: usize, count: usize) -> String {
    format!("OMPI_COMM_WORLD_RANK={index} OMPI_COMM_WORLD_SIZE={count} UFORM_DIRECTORY=/d ")
}

#[test]
fn what_is_broken_gives_way_to_what_is_complete() {
    for broken in ["RANK=0", "RANK=0 WORLD_SIZE=x", "PALS_RANKID=1", "MPI_LOCALRANKID=0", "PMI_RANK=7"] {
        let found = find(&MeshOptions::default(), &format!("{}{broken}", open_mpi(1, 4))).expect(broken);
        assert_eq!((found.launcher.as_str(), found.index.value), ("Open MPI", 1), "{broken}");
        assert!(
            found.others.iter().any(|seen| seen.reason.contains("is invalid")),
            "{broken}: {:?}",
            found.others
        );
    }
    // A person's own variables do not give way.
    assert!(
        refused(&MeshOptions::default(), &format!("{}UFORM_INDEX=0", open_mpi(1, 4)))
            .starts_with("UFORM_COUNT")
    );
}

#[test]
fn our_variables_and_another_launchers() {
    let alone = "UFORM_INDEX=0 UFORM_COUNT=1 ";
    // By hand: a contradiction, unless the run has a name of its own.
    let text = refused(&MeshOptions::default(), &format!("{alone}{}", open_mpi(1, 4)));
    assert!(text.starts_with("UFORM_COUNT = 1") && text.ends_with("OMPI_COMM_WORLD_SIZE says 4"), "{text}");
    let found = find(&MeshOptions::default(), &format!("{alone}UFORM_JOB=inner {}", open_mpi(1, 4)));
    assert_eq!(found.expect("named").count.value, 1);
    // `uform launch` started by a step: it is the inner one. Processes are 4000, 3900 and 1.
    let step = "SLURM_JOB_ID=5 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 ";
    let launched = "UFORM_INDEX=1 UFORM_COUNT=2 UFORM_LOCAL_INDEX=1 UFORM_LOCAL_COUNT=2 UFORM_JOB=x ";
    let inner = format!("{launched}UFORM_LAUNCHER_PID=3900 {step}SLURM_TASK_PID=3900");
    assert_eq!(find(&MeshOptions::default(), &inner).expect("inner").launcher, "uform launch");
    // srun started by `uform launch`: taking either would be a guess.
    for launcher in [1, 555] {
        let outer = format!("{launched}UFORM_LAUNCHER_PID={launcher} {step}SLURM_TASK_PID=3900");
        let text = refused(&MeshOptions::default(), &outer);
        assert!(
            text.starts_with("UFORM_COUNT = 2") && text.ends_with("SLURM_STEP_NUM_TASKS says 1"),
            "{text}"
        );
    }
}

#[test]
fn incomplete_variables_are_ignored_beside_explicit_numbers() {
    let options = MeshOptions { directory: Some("/d".into()), ..explicit(0, 2) };
    let found = find(&options, "RANK=0 WORLD_SIZE=9").expect("explicit");
    assert!(found.others.iter().any(|seen| seen.reason.contains("LOCAL_RANK")), "{:?}", found.others);
    let found = find(&MeshOptions::default(), "SLURM_JOB_ID=1").expect("one process");
    assert!(found.others.iter().any(|seen| seen.reason.contains("srun")), "{:?}", found.others);
}

/// Variables of all families, in any mixture and with any value.
const NAMES: [&str; 40] = [
    "UFORM_INDEX",
    "UFORM_COUNT",
    "UFORM_LOCAL_INDEX",
    "UFORM_LOCAL_COUNT",
    "UFORM_LAUNCHER_PID",
    "UFORM_JOB",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PALS_RANKID",
    "PALS_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_JOB_SIZE",
    "FLUX_JOB_NNODES",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
    "SLURM_GTIDS",
    "SLURM_NODEID",
    "PMIX_RANK",
    "JOB_COMPLETION_INDEX",
];

proptest::proptest! {
    #[test]
    fn any_mixture_of_variables_gives_a_place_or_a_reason(
        picked in proptest::collection::vec((0..NAMES.len(), "[0-3]|[0-9]{1,3}|[a-z0-9(),\\[\\]-]{0,6}"), 0..14),
    ) {
        let variables = picked.iter().map(|(name, value)| (NAMES[*name], value.as_str()));
        let variables = variables.chain([("UFORM_DIRECTORY", "/d")]).collect::<Variables>();
        if let Ok(found) = resolve(&MeshOptions::default(), &variables, &facts()) {
            let (index, count) = (found.index.value, found.count.value);
            proptest::prop_assert!(index < count && count <= COUNT_LIMIT);
            if let (Some(index), Some(local)) = (&found.local_index, &found.local_count) {
                proptest::prop_assert!(index.value < local.value && local.value <= count);
            }
            proptest::prop_assert!(found.launcher != "none" || count == 1);
        }
    }
}
