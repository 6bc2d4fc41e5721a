//! What the caller's options and the launcher's variables say about this process's place in the run.
//!
//! The only reader of environment variables in this crate. It decides and touches nothing: the directory that it
//! names is made by the rendezvous.

mod launcher;

use std::ffi::OsString;
use std::path::PathBuf;

use crate::error::{Contradiction, Error, Result};
use launcher::{Launcher, Reading};

/// How many processes a run may have.
pub const COUNT_LIMIT: usize = 1 << 20;

/// The seconds that bootstrap may take where nobody says otherwise.
pub const DEFAULT_TIMEOUT_SECONDS: f64 = 300.0;

/// The variable that names the shared directory.
pub const DIRECTORY_VARIABLE: &str = "UFORM_DIRECTORY";

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

/// This process's place in the run, each value with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Who started the run: `uform launch`, `torchrun`, `arguments`, or `none`.
    pub launcher: String,
    /// The index of this process.
    pub index: Sourced<usize>,
    /// How many processes the run has.
    pub count: Sourced<usize>,
    /// The index among the processes of this host, as the launcher gave it.
    pub local_index: Option<Sourced<usize>>,
    /// How many processes this host has, as the launcher gave it.
    pub local_count: Option<Sourced<usize>>,
    /// The shared directory; `None` only if the run has one process.
    pub directory: Option<Sourced<PathBuf>>,
    /// The name of the run.
    pub job: Sourced<String>,
    /// Whether no earlier or later start can have the same job name.
    pub attempt_is_unique: bool,
    /// How long bootstrap may take, above 0.
    pub timeout_seconds: f64,
    /// As in the options.
    pub gpus_per_multimem_domain: usize,
    /// What was seen and not used, one sentence each.
    pub notes: Vec<String>,
}

/// What the choice of a default directory needs to know about this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// The user's number.
    pub uid: u32,
    /// `XDG_RUNTIME_DIR`, if it is an existing folder of this user.
    pub runtime_folder: Option<PathBuf>,
    /// The temporary folder.
    pub temporary_folder: PathBuf,
}

impl HostFacts {
    /// The facts of the machine this process runs on.
    #[must_use]
    pub fn read() -> Self {
        use std::os::unix::fs::MetadataExt;
        // The owner of a process's own folder there is its effective user.
        let uid = std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
        let runtime_folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| {
            path.is_absolute()
                && std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == uid)
        });
        // A relative TMPDIR, or an empty one, would be another folder in each process.
        let temporary_folder = Some(std::env::temp_dir()).filter(|path| path.is_absolute());
        Self { uid, runtime_folder, temporary_folder: temporary_folder.unwrap_or_else(|| "/tmp".into()) }
    }

    /// The folder of this user alone in which runs of one host meet.
    #[must_use]
    pub fn private_folder(&self) -> PathBuf {
        match &self.runtime_folder {
            Some(folder) => folder.join("uform"),
            None => self.temporary_folder.join(format!("uform-{}", self.uid)),
        }
    }

    fn private_folder_origin(&self) -> &'static str {
        if self.runtime_folder.is_some() {
            "default under XDG_RUNTIME_DIR, as the launcher says that there is one host"
        } else {
            "default under the temporary folder, as the launcher says that there is one host"
        }
    }
}

/// Finds this process's place from its own variables.
///
/// # Errors
/// As [`resolve`].
pub fn read(options: &MeshOptions) -> Result<Launch> {
    resolve(options, &|name| std::env::var_os(name), &HostFacts::read())
}

/// The filter for log lines that `UFORM_LOG` gives, `None` if it is not set or empty.
#[must_use]
pub fn log_filter() -> Option<String> {
    std::env::var("UFORM_LOG").ok().filter(|filter| !filter.is_empty())
}

/// Finds this process's place from options, variables and facts alone.
///
/// Numbers given as options win, then `UFORM_*`, then torchrun's. Without any there is one process.
///
/// # Errors
/// `Invalid` for a value that is wrong, missing beside others, or contradicted, naming both sources; `Unsupported`
/// for a launcher of several processes that is visible and not read in this version.
pub fn resolve(
    options: &MeshOptions,
    variables: &dyn Fn(&str) -> Option<OsString>,
    facts: &HostFacts,
) -> Result<Launch> {
    check_options(options)?;
    let reading = Reading::new(variables);
    let mut notes = Vec::new();
    let launcher = find_launcher(options, &reading, &mut notes)?;
    let explicit = options.host_domain_count > 0;
    let (index, count) = if explicit {
        if let Some(launcher) = &launcher {
            check_against(options, launcher)?;
        }
        let index = Sourced::new(options.host_domain_index, "argument");
        (index, Sourced::new(options.host_domain_count, "argument"))
    } else {
        match &launcher {
            Some(launcher) => (launcher.index.clone(), launcher.count.clone()),
            None => {
                reading.refuse_unread()?;
                let origin = "one process, as there is no launcher";
                (Sourced::new(0, origin), Sourced::new(1, origin))
            }
        }
    };
    reading.note_allocation(launcher.is_some() || explicit, &mut notes);
    // Numbers of the caller's own that differ from the launcher's make another run: local numbers do not apply.
    let same = launcher
        .as_ref()
        .filter(|found| found.index.value == index.value && found.count.value == count.value);
    let (job, attempt_is_unique) = choose_job(options, &reading, launcher.as_ref())?;
    let directory = choose_directory(options, &reading, launcher.as_ref(), count.value, facts)?;
    Ok(Launch {
        launcher: match (same, explicit) {
            (Some(found), _) => found.name.to_owned(),
            (None, true) => "arguments".to_owned(),
            (None, false) => "none".to_owned(),
        },
        local_index: same.and_then(|found| found.local_index.clone()),
        local_count: same.and_then(|found| found.local_count.clone()),
        index,
        count,
        directory,
        job,
        attempt_is_unique,
        timeout_seconds: choose_timeout(options, &reading)?,
        gpus_per_multimem_domain: options.gpus_per_multimem_domain,
        notes,
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

/// The launcher whose variables are complete. Incomplete ones are an error, unless the caller gave the numbers.
fn find_launcher<'a>(
    options: &MeshOptions,
    reading: &'a Reading<'a>,
    notes: &mut Vec<String>,
) -> Result<Option<Launcher>> {
    let explicit = options.host_domain_count > 0;
    let mut tolerate = |found: Result<Option<Launcher>>, tolerated: bool| match found {
        Err(error) if tolerated => {
            notes.push(format!("ignored: {error}"));
            Ok(None)
        }
        other => other,
    };
    let ours = tolerate(reading.uform(), explicit)?;
    let torchrun = tolerate(reading.torchrun(), explicit || ours.is_some())?;
    let (Some(ours), Some(torchrun)) = (&ours, &torchrun) else {
        return Ok(ours.or(torchrun));
    };
    // A run in a run is told apart by its job name; anything else would be a guess between two worlds.
    if !(explicit && options.job.is_some()) {
        for (left, right) in [(&ours.count, &torchrun.count), (&ours.index, &torchrun.index)] {
            if left.value != right.value {
                return Err(Error::Invalid {
                    argument: left.origin.clone(),
                    value: left.value.to_string(),
                    origin: "environment".into(),
                    reason: "differs from the variable of another launcher: unset those that do not belong to this \
                             run, or give host_domain_index, host_domain_count and job"
                        .into(),
                    contradiction: Some(Contradiction {
                        value: right.value.to_string(),
                        origin: right.origin.clone(),
                    }),
                });
            }
        }
    }
    Ok(Some(ours.clone()))
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
    Ok((job.unwrap_or_else(|| Sourced::new("default".to_owned(), "default")), false))
}

fn choose_directory(
    options: &MeshOptions,
    reading: &Reading<'_>,
    launcher: Option<&Launcher>,
    count: usize,
    facts: &HostFacts,
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
    if launcher.is_some_and(|found| found.one_host) {
        return Ok(Some(Sourced::new(facts.private_folder(), facts.private_folder_origin())));
    }
    let why = match launcher {
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
