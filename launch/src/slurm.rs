//! `uform slurm`: writes batch scripts for Slurm, and names what is wrong in existing ones.

mod check;
mod script;
mod template;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use self::template::Template;
use crate::Failure;

/// Writes a batch script for sbatch, or checks one.
///
/// The script goes to standard output. With --check the remarks do, one a line with the line of the script; the exit
/// code is 1 if one of them says that a run would not work, 0 otherwise.
#[derive(Args)]
pub(crate) struct Options {
    /// What the script is for
    #[arg(value_enum, required_unless_present = "check", conflicts_with = "check")]
    kind: Option<Kind>,
    /// Name what is wrong in this script instead
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// How many nodes
    #[arg(short = 'N', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1 << 18))]
    nodes: u32,
    /// How many processes on each node [default: one for each GPU, else 4]
    #[arg(short, long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..=4096))]
    processes_per_node: Option<u32>,
    /// How many GPUs on each node [default: 8 for gpu, else none]
    #[arg(short, long, value_name = "G", value_parser = clap::value_parser!(u32).range(0..=256))]
    gpus_per_node: Option<u32>,
    /// How many cores for each process
    #[arg(short, long, value_name = "C", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores_per_process: u32,
    /// The time limit, as Slurm writes it
    #[arg(short, long, value_name = "T", default_value = "01:00:00", value_parser = time)]
    time: String,
    /// The partition [default: Slurm's own]
    #[arg(long, value_name = "NAME", value_parser = partition)]
    partition: Option<String>,
    /// The program and its arguments [default: python train.py]
    #[arg(trailing_var_arg = true, value_name = "PROGRAM", conflicts_with = "check")]
    program: Vec<String>,
}

/// What a script is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Processes on cores
    Cpu,
    /// Processes that share the GPUs of their node
    Gpu,
    /// Processes that call MPI, too
    Mpi,
    /// A job that is preempted, saves, and goes on later
    Requeue,
}

fn time(text: &str) -> Result<String, String> {
    if script::is_time(text) {
        return Ok(text.to_owned());
    }
    Err("must be minutes, [hours:]minutes:seconds, or days-hours[:minutes[:seconds]]".to_owned())
}

fn partition(text: &str) -> Result<String, String> {
    let legal = |letter: char| letter.is_ascii_alphanumeric() || "_-.,".contains(letter);
    if text.is_empty() || !text.chars().all(legal) {
        return Err(
            "must be names of letters, digits, dots, dashes and underlines, joined by commas".to_owned()
        );
    }
    Ok(text.to_owned())
}

/// Runs the command.
pub(crate) fn execute(options: &Options) -> Result<i32, Failure> {
    if let Some(path) = &options.check {
        let action = format!("read {}", path.display());
        let bytes = std::fs::read(path).map_err(|error| Failure::system(action, error))?;
        let remarks = check::check(&String::from_utf8_lossy(&bytes));
        let lines = remarks.iter().map(|remark| format!("{}:{remark}\n", path.display()));
        crate::print(&lines.collect::<String>())?;
        return Ok(i32::from(remarks.iter().any(|remark| remark.fails)));
    }
    let kind = options.kind.unwrap_or(Kind::Cpu);
    let gpus_per_node = options.gpus_per_node.unwrap_or(if kind == Kind::Gpu { 8 } else { 0 });
    let template = Template {
        kind,
        nodes: options.nodes,
        processes_per_node: options.processes_per_node.unwrap_or(if gpus_per_node > 0 {
            gpus_per_node
        } else {
            4
        }),
        gpus_per_node,
        cores_per_process: options.cores_per_process,
        time: &options.time,
        partition: options.partition.as_deref(),
        program: &options.program,
    };
    crate::print(&template.write())?;
    Ok(0)
}
