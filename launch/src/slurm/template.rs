//! The text of a batch script.

use super::Kind;

/// What a script asks for.
pub(super) struct Template<'a> {
    pub(super) kind: Kind,
    pub(super) nodes: u32,
    pub(super) processes_per_node: u32,
    pub(super) gpus_per_node: u32,
    pub(super) cores_per_process: u32,
    pub(super) time: &'a str,
    pub(super) partition: Option<&'a str>,
    pub(super) program: &'a [String],
}

const DIRECTORY: &str = r#"
# A folder that all nodes see. The processes meet in it and leave nothing there.
export UFORM_DIRECTORY="${UFORM_DIRECTORY:-$SLURM_SUBMIT_DIR/.uform}"
mkdir -p -m 700 "$UFORM_DIRECTORY"

# From Slurm 22.05 on, srun takes this from its own variable alone.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
"#;

impl Template<'_> {
    /// The whole script.
    pub(super) fn write(&self) -> String {
        let what = match self.kind {
            Kind::Cpu => "Processes on cores",
            Kind::Gpu => "Processes that share the GPUs of their node",
            Kind::Mpi => "Processes that call MPI, too",
            Kind::Requeue => "A job that saves before it is ended, and goes on later",
        };
        let mut text = format!("#!/bin/bash\n# {what}; see slurm/README.md.\n#SBATCH --job-name=train\n");
        for (option, value) in [
            ("nodes", self.nodes),
            ("ntasks-per-node", self.processes_per_node),
            ("cpus-per-task", self.cores_per_process),
        ] {
            text.push_str(&format!("#SBATCH --{option}={value}\n"));
        }
        if self.gpus_per_node > 0 {
            text.push_str(&format!("#SBATCH --gpus-per-node={}\n", self.gpus_per_node));
        }
        text.push_str(&format!("#SBATCH --time={}\n", self.time));
        if let Some(partition) = self.partition {
            text.push_str(&format!("#SBATCH --partition={partition}\n"));
        }
        text.push_str("#SBATCH --output=%x-%j.txt\n");
        if self.kind == Kind::Requeue {
            text.push_str("#SBATCH --requeue\n#SBATCH --open-mode=append\n");
            text.push_str(
                "# Two minutes before the time limit every task gets SIGUSR1.\n#SBATCH --signal=USR1@120\n",
            );
        }
        text.push_str("\nset -euo pipefail\n");
        text.push_str(DIRECTORY);
        text.push_str(&self.step());
        text
    }

    /// The lines that start the processes.
    fn step(&self) -> String {
        let program = match self.program {
            [] => "python train.py".to_owned(),
            words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
        };
        let mpi = if self.kind == Kind::Mpi { " --mpi=pmix" } else { "" };
        let mut text = String::from("\n");
        if self.gpus_per_node > 0 {
            // `--gpu-bind=none` would unset the visibility variables: where nodes do not confine devices, tasks would then see
            // GPUs of other jobs.
            text.push_str(
                "# Each task sees all GPUs of the job on its node: the library divides them, and peers can read each\n\
                 # other's memory.\n",
            );
        }
        if self.kind != Kind::Requeue {
            return format!("{text}srun{mpi} --kill-on-bad-exit=1 {program}\n");
        }
        text.push_str(&format!(
            "# On SIGUSR1 or SIGTERM the program saves a checkpoint and ends with 75. A task that fails ends the others by\n\
             # itself; --wait ends what is left two minutes later.\n\
             code=0\n\
             srun --kill-on-bad-exit=0 --wait=120 {program} || code=$?\n\
             if [ \"$code\" = 75 ]; then\n    \
                 scontrol requeue \"$SLURM_JOB_ID\"\n\
             fi\n\
             exit \"$code\"\n"
        ));
        text
    }
}

/// A word as the shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./=:,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::super::check::check;
    use super::*;

    fn template(kind: Kind) -> Template<'static> {
        let gpus_per_node = if kind == Kind::Gpu { 8 } else { 0 };
        Template {
            kind,
            nodes: 2,
            processes_per_node: if gpus_per_node > 0 { gpus_per_node } else { 4 },
            gpus_per_node,
            cores_per_process: 8,
            time: "01:00:00",
            partition: None,
            program: &[],
        }
    }

    const KINDS: [(Kind, &str); 4] =
        [(Kind::Cpu, "cpu"), (Kind::Gpu, "gpu"), (Kind::Mpi, "mpi"), (Kind::Requeue, "requeue")];

    #[test]
    fn the_files_are_what_the_command_writes() {
        for (kind, name) in KINDS {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../slurm/{name}.sh"));
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(text, template(kind).write(), "{}: write it by `uform slurm {name}`", path.display());
        }
    }

    #[test]
    fn nothing_is_wrong_in_what_is_written() {
        for (kind, name) in KINDS {
            for gpus_per_node in [0, 4] {
                for nodes in [1, 3] {
                    let template =
                        Template { nodes, gpus_per_node, partition: Some("long"), ..template(kind) };
                    let remarks = check(&template.write());
                    assert!(remarks.is_empty(), "{name}: {remarks:?}");
                }
            }
        }
    }

    #[test]
    fn resources_and_words_are_where_they_belong() {
        let program = ["./my prog".to_owned(), "--it's".to_owned(), "a=1".to_owned()];
        let text = Template {
            nodes: 7,
            processes_per_node: 3,
            gpus_per_node: 3,
            cores_per_process: 5,
            time: "2-12",
            partition: Some("long"),
            program: &program,
            ..template(Kind::Mpi)
        }
        .write();
        for line in [
            "#SBATCH --nodes=7",
            "#SBATCH --ntasks-per-node=3",
            "#SBATCH --cpus-per-task=5",
            "#SBATCH --gpus-per-node=3",
            "#SBATCH --time=2-12",
            "#SBATCH --partition=long",
            r"srun --mpi=pmix --kill-on-bad-exit=1 './my prog' '--it'\''s' a=1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
