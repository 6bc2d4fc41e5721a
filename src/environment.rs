//! What the caller's options and the launcher's variables say about this process's place in the run.
//!
//! The only reader of environment variables in this crate. It decides and touches nothing: the directory that it
//! names is made by the rendezvous. `launcher` holds the table of launchers, with one file for each family.

mod flux;
pub mod hostlist;
mod hydra;
pub mod interface;
mod job;
mod kubernetes;
mod launcher;
mod library;
mod lsf;
mod machine;
mod mvapich;
mod openmpi;
mod own;
mod pals;
mod pmi;
mod reading;
pub mod record;
mod seen;
mod slurm;
mod torchrun;
mod uform;

use std::path::PathBuf;

use crate::error::{Contradiction, Error, Result};
use launcher::{FAMILIES, Family, Launcher, OURS, Reply, Scene, contradicted};
use reading::Reading;

pub use library::{NCCL_VARIABLE, RCCL_VARIABLE, library_file, shares_gpus};
pub use machine::{MACHINE_VARIABLE, Visibility, machine_folder};
pub use own::{OwnFacts, OwnProcess};
pub use reading::Variables;

/// How many processes a run may have.
pub const COUNT_LIMIT: usize = 1 << 20;

/// The seconds that bootstrap may take where nobody says otherwise.
pub const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;

/// The variable that names the shared directory.
pub const DIRECTORY_VARIABLE: &str = "UFORM_DIRECTORY";

/// What the names of launchers begin with that start processes of MPI alone.
const MPI_LAUNCHERS: [&str; 5] = ["Open MPI", "MPICH", "Intel MPI", "MVAPICH", "PALS"];

/// What the caller says about the run; a zero or `None` means "find it out".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeshOptions {
    /// The index of this process; taken as given if `host_domain_count` is above 0.
    pub host_domain_index: usize,
    /// How many processes the run has; 0 takes both numbers from the launcher.
    pub host_domain_count: usize,
    /// Cuts the multimem domains found into groups of so many GPUs; 0 leaves them whole.
    pub gpus_per_multimem_domain: usize,
    /// The directory that all processes of the run share.
    pub directory: Option<PathBuf>,
    /// The name of the run, the same in all its processes.
    pub job: Option<String>,
    /// How long bootstrap may take; 0 means `UFORM_TIMEOUT`, else 300.
    pub timeout_seconds: f64,
}

/// A value and where it comes from: `argument`, a variable, or a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// Where it comes from, for messages.
    pub origin: String,
}

impl<T> Sourced<T> {
    fn new(value: T, origin: impl Into<String>) -> Self {
        Self { value, origin: origin.into() }
    }
}

/// A launcher that was seen and did not give this process its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its name for people.
    pub launcher: String,
    /// Why it was not taken, with the variables that decided it.
    pub reason: String,
}

/// This process's place in the run, each value with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Who started the run: a launcher's name, `arguments`, or `none`.
    pub launcher: String,
    /// The index of this process.
    pub index: Sourced<usize>,
    /// How many processes the run has.
    pub count: Sourced<usize>,
    /// The index among the processes of this host, as the launcher gave it.
    pub local_index: Option<Sourced<usize>>,
    /// How many processes this host has, as the launcher gave it.
    pub local_count: Option<Sourced<usize>>,
    /// How many hosts the run has, as the launcher gave it.
    pub host_count: Option<Sourced<usize>>,
    /// The names of these hosts, as the launcher gave them.
    pub hosts: Option<Sourced<Vec<String>>>,
    /// The shared directory; `None` if the run has one process, or is to meet by other means.
    pub directory: Option<Sourced<PathBuf>>,
    /// The name of the run.
    pub job: Sourced<String>,
    /// Whether no earlier or later start can have the same job name.
    pub attempt_is_unique: bool,
    /// How long bootstrap may take, above 0.
    pub timeout_seconds: f64,
    /// As in the options.
    pub gpus_per_multimem_domain: usize,
    /// The launchers that were seen and not taken, in the order in which they were asked.
    pub others: Vec<Seen>,
    /// What else somebody should know who wonders about the run, one sentence each.
    pub notes: Vec<String>,
}

/// Finds this process's place from its own variables.
///
/// # Errors
/// As [`resolve`].
pub fn read(options: &MeshOptions) -> Result<Launch> {
    resolve(options, &Variables::read(), &OwnFacts::read())
}

/// As [`read`], for processes that may meet without a directory: there is none where nobody names one and none can be chosen.
///
/// # Errors
/// As [`resolve`].
pub fn read_without_directory(options: &MeshOptions) -> Result<Launch> {
    find(options, &Variables::read(), &OwnFacts::read(), false)
}

impl Launch {
    /// Whether the caller or the user named the directory.
    #[must_use]
    pub fn names_directory(&self) -> bool {
        let origin = self.directory.as_ref().map(|directory| directory.origin.as_str());
        matches!(origin, Some("argument" | DIRECTORY_VARIABLE))
    }

    /// Whether an mpirun started the process, so that MPI must have as many processes as it says.
    #[must_use]
    pub fn starts_mpi(&self) -> bool {
        MPI_LAUNCHERS.iter().any(|name| self.launcher.starts_with(name))
    }
}

/// The filter for log lines that `UFORM_LOG` gives, `None` if it is not set or empty.
#[must_use]
pub fn log_filter() -> Option<String> {
    std::env::var("UFORM_LOG").ok().filter(|filter| !filter.is_empty())
}

/// Finds this process's place from options, variables and facts alone.
///
/// Numbers given as options win, then `UFORM_*`, then the first launcher of the table that is complete and consistent.
/// Without any there is one process.
///
/// # Errors
/// `Invalid` for a value that is wrong, missing beside others, or contradicted, naming both sources; `Unsupported`
/// for a launcher of several processes that is visible and never read.
pub fn resolve(options: &MeshOptions, variables: &Variables, own: &OwnFacts) -> Result<Launch> {
    find(options, variables, own, true)
}

fn find(
    options: &MeshOptions,
    variables: &Variables,
    own: &OwnFacts,
    needs_directory: bool,
) -> Result<Launch> {
    check_options(options)?;
    let scene = Scene::new(variables, own);
    let reading = &scene.reading;
    let explicit = options.host_domain_count > 0;
    let Asked { found: launcher, others } = ask(options, &scene)?;
    let (index, count) = match &launcher {
        _ if explicit => {
            if let Some(launcher) = &launcher {
                check_against(options, launcher)?;
            }
            let index = Sourced::new(options.host_domain_index, "argument");
            (index, Sourced::new(options.host_domain_count, "argument"))
        }
        Some(launcher) => (launcher.index.clone(), launcher.count.clone()),
        None => {
            let origin = "one process, as there is no launcher";
            (Sourced::new(0, origin), Sourced::new(1, origin))
        }
    };
    // Numbers of the caller's own that differ from the launcher's make another run: local numbers do not apply.
    let same = launcher
        .as_ref()
        .filter(|found| found.index.value == index.value && found.count.value == count.value);
    let (job, attempt_is_unique) = choose_job(options, reading, launcher.as_ref())?;
    let directory = match choose_directory(options, reading, launcher.as_ref(), count.value, own) {
        Err(Error::Invalid { argument, .. }) if !needs_directory && argument == "directory" => None,
        chosen => chosen?,
    };
    Ok(Launch {
        launcher: match (same, explicit) {
            (Some(found), _) => found.name.to_owned(),
            (None, true) => "arguments".to_owned(),
            (None, false) => "none".to_owned(),
        },
        local_index: same.and_then(|found| found.local_index.clone()),
        local_count: same.and_then(|found| found.local_count.clone()),
        host_count: same.and_then(|found| found.host_count.clone()),
        hosts: same.and_then(|found| found.hosts.clone()),
        notes: same.map(|found| found.notes.clone()).unwrap_or_default(),
        index,
        count,
        directory,
        job,
        attempt_is_unique,
        timeout_seconds: choose_timeout(options, reading)?,
        gpus_per_multimem_domain: options.gpus_per_multimem_domain,
        others,
    })
}

fn check_options(options: &MeshOptions) -> Result<()> {
    let MeshOptions { host_domain_index: index, host_domain_count: count, .. } = *options;
    if count == 0 && index != 0 {
        let reason = "needs host_domain_count above 0: with count 0 both come from the launcher";
        return Err(Error::invalid("host_domain_index", index, "argument", reason));
    }
    if count > COUNT_LIMIT {
        let reason = format!("must be at most {COUNT_LIMIT}");
        return Err(Error::invalid("host_domain_count", count, "argument", reason));
    }
    if count > 0 && index >= count {
        return Err(Error::Invalid {
            argument: "host_domain_index".into(),
            value: index.to_string(),
            origin: "argument".into(),
            reason: "must be below host_domain_count".into(),
            contradiction: Some(Contradiction {
                value: count.to_string(),
                origin: "host_domain_count (argument)".into(),
            }),
        });
    }
    if options.directory.as_deref().is_some_and(|path| path.as_os_str().is_empty()) {
        return Err(Error::invalid("directory", "''", "argument", "is empty: give a path, or None"));
    }
    if options.job.as_deref().is_some_and(str::is_empty) {
        return Err(Error::invalid("job", "''", "argument", "is empty: give a name, or None"));
    }
    check_seconds("timeout_seconds", options.timeout_seconds, "argument")
}

fn check_seconds(argument: &str, seconds: f64, origin: &str) -> Result<()> {
    if seconds.is_finite() && seconds >= 0.0 {
        return Ok(());
    }
    Err(Error::invalid(argument, seconds, origin, "must be a finite number of seconds, 0 or more"))
}

/// What the families said.
struct Asked {
    /// The launcher that counts.
    found: Option<Launcher>,
    others: Vec<Seen>,
}

/// Asks all families. The first that is complete and consistent counts; why the others do not is kept for people.
fn ask(options: &MeshOptions, scene: &Scene<'_>) -> Result<Asked> {
    let explicit = options.host_domain_count > 0;
    let mut asked = Asked { found: None, others: Vec::new() };
    let mut first_error = None;
    let mut rivals = Vec::new();
    let mut ours = false;
    for (position, Family { name, read }) in FAMILIES.iter().enumerate() {
        let reason = match read(scene) {
            Ok(Reply::Absent) => continue,
            Ok(Reply::Aside(reason)) => reason,
            Ok(Reply::Found(found)) => match &asked.found {
                None => {
                    ours = position == OURS;
                    asked.found = Some(*found);
                    continue;
                }
                Some(chosen) => {
                    let (Launcher { index, count, .. }, by) = (&*found, chosen.name);
                    let (index, count) = (index.value, count.value);
                    let reason = format!("says index {index} of {count}, and {by} is asked before it");
                    let seen = Seen { launcher: found.name.to_owned(), reason };
                    rivals.push(*found);
                    asked.others.push(seen);
                    continue;
                }
            },
            // What a person set by hand is meant.
            Err(error) if position == OURS && !explicit => return Err(error),
            Err(error) => {
                let reason = error.to_string();
                first_error = first_error.or(Some(error));
                reason
            }
        };
        asked.others.push(Seen { launcher: (*name).to_owned(), reason });
    }
    match (&asked.found, first_error) {
        // One lone process for each of several would train alone, and nobody would notice.
        (None, Some(error)) if !explicit => return Err(error),
        (Some(found), _) if ours => check_rivals(options, scene, found, &rivals)?,
        _ => {}
    }
    Ok(asked)
}

/// Every launcher that left something in the variables, and what it says, in the order in which they are asked.
#[must_use]
pub fn seen(variables: &Variables, own: &OwnFacts) -> Vec<Seen> {
    let scene = Scene::new(variables, own);
    let found = FAMILIES.iter().filter_map(|Family { name, read }| {
        let (launcher, reason) = match read(&scene) {
            Ok(Reply::Absent) => return None,
            Ok(Reply::Aside(reason)) => (*name, reason),
            Ok(Reply::Found(found)) => {
                (found.name, format!("says index {} of {}", found.index.value, found.count.value))
            }
            Err(error) => (*name, error.to_string()),
        };
        Some(Seen { launcher: launcher.to_owned(), reason })
    });
    found.collect()
}

/// `UFORM_*` wins over a launcher that started `uform launch`, and over any beside a job's name of its own.
///
/// Anything else would be a guess between two worlds.
fn check_rivals(
    options: &MeshOptions,
    scene: &Scene<'_>,
    ours: &Launcher,
    rivals: &[Launcher],
) -> Result<()> {
    if options.host_domain_count > 0 && options.job.is_some() {
        return Ok(());
    }
    let by_hand = !ours.draws_fresh_jobs;
    if by_hand && scene.reading.is_set("UFORM_JOB") {
        return Ok(());
    }
    for rival in rivals {
        // `uform launch` removes torchrun's variables: those that are here came after it.
        let started_inside = rival.name == "torchrun"
            || match (rival.distance, ours.distance) {
                (Some(rival), Some(ours)) => rival < ours,
                (Some(_), None) => scene.own.sees_launchers,
                _ => false,
            };
        if !by_hand && !started_inside {
            continue;
        }
        for (ours, theirs) in [(&ours.count, &rival.count), (&ours.index, &rival.index)] {
            if ours.value != theirs.value {
                let rival = rival.name;
                let reason = if by_hand {
                    format!(
                        "differs from what {rival} says: unset the variables that do not belong to this run, or name \
                         the run by UFORM_JOB"
                    )
                } else {
                    format!(
                        "differs from what {rival} says, which started this process inside of uform launch: start the \
                         processes by one of the two"
                    )
                };
                return Err(contradicted(ours, theirs, reason));
            }
        }
    }
    Ok(())
}

/// Explicit numbers must be the launcher's, unless a job name says that this is a run in a run.
fn check_against(options: &MeshOptions, launcher: &Launcher) -> Result<()> {
    if options.job.is_some() {
        return Ok(());
    }
    let pairs = [
        ("host_domain_count", options.host_domain_count, &launcher.count),
        ("host_domain_index", options.host_domain_index, &launcher.index),
    ];
    for (argument, value, theirs) in pairs {
        if value != theirs.value {
            return Err(Error::Invalid {
                argument: argument.into(),
                value: value.to_string(),
                origin: "argument".into(),
                reason: format!("differs from what {} says; a run in a run needs `job`", launcher.name),
                contradiction: Some(Contradiction {
                    value: theirs.value.to_string(),
                    origin: theirs.origin.clone(),
                }),
            });
        }
    }
    Ok(())
}

/// The job's name, and whether it is unique to this start.
fn choose_job(
    options: &MeshOptions,
    reading: &Reading<'_>,
    launcher: Option<&Launcher>,
) -> Result<(Sourced<String>, bool)> {
    if let Some(job) = &options.job {
        return Ok((Sourced::new(job.clone(), "argument"), false));
    }
    if let Some(job) = reading.text("UFORM_JOB")? {
        // Only our launcher draws a fresh name for each start; one set by hand may come again.
        let fresh = launcher.is_some_and(|found| found.draws_fresh_jobs);
        return Ok((Sourced::new(job, "UFORM_JOB"), fresh));
    }
    let job = launcher.and_then(|found| found.job.clone());
    Ok(job.unwrap_or_else(|| (Sourced::new("default".to_owned(), "default"), false)))
}

fn choose_directory(
    options: &MeshOptions,
    reading: &Reading<'_>,
    launcher: Option<&Launcher>,
    count: usize,
    own: &OwnFacts,
) -> Result<Option<Sourced<PathBuf>>> {
    if let Some(directory) = &options.directory {
        return Ok(Some(Sourced::new(directory.clone(), "argument")));
    }
    if let Some(directory) = reading.path(DIRECTORY_VARIABLE)? {
        return Ok(Some(Sourced::new(directory, DIRECTORY_VARIABLE)));
    }
    if count == 1 {
        return Ok(None);
    }
    if launcher.is_some_and(Launcher::has_one_host) {
        return Ok(Some(Sourced::new(own.private_folder(), own.private_folder_origin())));
    }
    let why = match launcher {
        Some(Launcher { name, host_count: Some(hosts), .. }) => {
            format!("the {count} processes of {name} run on {} hosts ({})", hosts.value, hosts.origin)
        }
        Some(found) => format!("{} does not say that all {count} processes are on one host", found.name),
        None => format!("no launcher says where the {count} processes run"),
    };
    let reason = format!(
        "{why}: pass `directory`, or set {DIRECTORY_VARIABLE}, to a directory that all of them share"
    );
    Err(Error::invalid("directory", "None", "default", reason))
}

fn choose_timeout(options: &MeshOptions, reading: &Reading<'_>) -> Result<f64> {
    if options.timeout_seconds > 0.0 {
        return Ok(options.timeout_seconds);
    }
    let Some(text) = reading.text("UFORM_TIMEOUT")? else { return Ok(DEFAULT_TIMEOUT_SECONDS) };
    let Ok(seconds) = text.parse::<f64>() else {
        return Err(Error::invalid("UFORM_TIMEOUT", text, "environment", "must be a number of seconds"));
    };
    check_seconds("UFORM_TIMEOUT", seconds, "environment")?;
    Ok(if seconds == 0.0 { DEFAULT_TIMEOUT_SECONDS } else { seconds })
}

#[cfg(test)]
mod tests;
