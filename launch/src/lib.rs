//! The commands of `uform`, one file each; the binary and the wheel's console script call [`run`].

mod bench;
mod devices;
mod doctor;
mod failure;
mod launch;
mod report;
mod slurm;
mod topology;

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use self::failure::Failure;

/// Starts the processes of a run and looks at machines and runs.
#[derive(Parser)]
#[command(name = "uform", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Options),
    Launch(launch::Options),
    Devices(devices::Options),
    Topology(topology::Options),
    Doctor(doctor::Options),
    Slurm(slurm::Options),
    Report(report::Options),
}

/// Runs one command and returns its exit code; errors are printed to standard error.
///
/// The first argument is the name of the program, as in `std::env::args_os`. A caller inside Python takes
/// [`run_with_python`], restores the default action of SIGINT first, and releases the interpreter's lock.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> i32 {
    run_with_python(arguments, None)
}

/// As [`run`]; `python` is the interpreter that runs programs whose names end in `.py`, `python3` if it is `None`.
pub fn run_with_python(arguments: impl IntoIterator<Item = OsString>, python: Option<OsString>) -> i32 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nothing is left to tell if the terminal is gone.
            let _ = error.print();
            return error.exit_code();
        }
    };
    start_log();
    let result = match arguments.command {
        Command::Bench(options) => bench::execute(&options, python),
        Command::Launch(options) => launch::execute(&options, python),
        Command::Devices(options) => devices::execute(&options),
        Command::Topology(options) => topology::execute(&options),
        Command::Doctor(options) => doctor::execute(&options),
        Command::Slurm(options) => slurm::execute(&options),
        Command::Report(options) => report::execute(&options),
    };
    result.unwrap_or_else(|failure| {
        report(&format!("error: {failure}"));
        failure.exit_code()
    })
}

/// Writes the events that the filter in `UFORM_LOG` lets through to standard error; none without it.
fn start_log() {
    if std::env::var_os("UFORM_LOG").is_none() {
        return;
    }
    match tracing_subscriber::EnvFilter::try_from_env("UFORM_LOG") {
        // A subscriber of the calling program stays in place.
        Ok(filter) => {
            let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
            let _ = log.try_init();
        }
        Err(error) => report(&format!("UFORM_LOG is no filter and is ignored: {error}")),
    }
}

/// Writes one line to standard error.
fn report(text: &str) {
    // Nothing is left to tell if nobody reads it.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("uform: {text}\n").as_bytes());
}

/// Writes a command's result to standard output.
fn print(text: &str) -> Result<(), Failure> {
    match std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()) {
        // The reader had enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::system("write to standard output", error))
        }
        _ => Ok(()),
    }
}
