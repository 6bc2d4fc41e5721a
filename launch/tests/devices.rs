//! Drives the built `uform devices`, on this machine and on recorded ones.

use std::process::Command;

/// What the command prints with these variables.
fn devices(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uform"));
    for name in ["UFORM_MACHINE", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"] {
        command.env_remove(name);
    }
    let command = command.arg("devices").args(arguments).envs(variables.iter().copied());
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The folder of a recorded machine.
fn machine(name: &str) -> String {
    format!("{}/../tests/fixtures/machines/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_object_and_the_text_tell_of_the_same_machine() {
    let object: serde_json::Value = serde_json::from_str(&devices(&["--json"], &[])).expect("one object");
    let cores = object["survey"]["cores"].as_array().expect("a list").len();
    let allowed = object["allowed_cores"].as_array().expect("a list");
    assert!(cores >= allowed.len() && !allowed.is_empty(), "{object}");
    let words = object["capabilities_available"].as_array().expect("a list");
    assert!(words.contains(&"serial".into()), "{object}");
    let text = devices(&[], &[]);
    let line = text.lines().find(|line| line.trim_start().starts_with("cores ")).expect("told");
    assert_eq!(line.split_whitespace().nth(1), Some(cores.to_string().as_str()), "{text}");
}

#[test]
fn recorded_machines_are_told_of_in_full() {
    let table: &[(&str, &[&str])] = &[
        ("h100_8", &["NVIDIA_HOPPER, 79.6 GiB, 132 units", "18 NVLinks to the switch, fabric", "multicast"]),
        ("h100_8_one_lost", &["note", "NVIDIA GPU 5 cannot be used: GPU is lost"]),
        ("a10g_4_hidden", &["variable           CUDA_VISIBLE_DEVICES=2,0", "not visible here   NVIDIA A10G"]),
        ("h100_pcie_pairs", &["12 NVLinks to GPU 1", "64, up to 2 threads each"]),
        ("mi300x_8", &["AMD_CDNA3, 192.0 GiB, 304 units", "1 xGMI link each to GPU 1-7"]),
        ("mi355x_cpx", &["partition 3 of GPU-", "36.0 GiB, 32 units"]),
        ("mig_halves", &["instance of NVIDIA 0", "42 units"]),
        ("mixture", &["AMD Radeon PRO W7900, class not known"]),
        ("dgx_spark_2/spark0", &["NVIDIA GB10, NVIDIA_BLACKWELLRTX, memory not told"]),
        ("gh200", &["without anything   memory domains 2-8", "93.8 GiB, no cores", "near memory domain 0"]),
        ("container_quota_v1", &["allowed here       8 (0-7)", "time quota         3 cores"]),
        ("no_gpu_laptop", &["GPUs               none\n"]),
    ];
    for (name, wanted) in table {
        let text = devices(&[], &[("UFORM_MACHINE", &machine(name))]);
        for words in *wanted {
            assert!(text.contains(words), "{name}: {words:?} is not in\n{text}");
        }
    }
}

#[test]
fn variables_of_this_process_decide_what_is_visible() {
    let folder = machine("h100_8");
    let variables = [("UFORM_MACHINE", folder.as_str()), ("CUDA_VISIBLE_DEVICES", "6")];
    let text = devices(&[], &variables);
    assert_eq!(text.matches("not visible here").count(), 7, "{text}");
    let object: serde_json::Value = serde_json::from_str(&devices(&["--json"], &variables)).expect("JSON");
    assert_eq!(object["gpus"][0]["vendor_ordinal"], 6);
    assert_eq!(object["visibility_variables"]["CUDA_VISIBLE_DEVICES"], "6");
    assert_eq!(object["survey"]["gpus"].as_array().map(Vec::len), Some(8));
    let none = devices(&[], &[("UFORM_MACHINE", &folder), ("CUDA_VISIBLE_DEVICES", "")]);
    assert!(none.contains("none that this process sees"), "{none}");
}
