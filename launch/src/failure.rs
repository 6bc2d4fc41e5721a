//! What ends a command without a result, and the exit code that tells of it.

/// What ends a command without a result of its own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// There is no such program.
    #[error("{program} is not there: {place}")]
    Absent { program: String, place: String },
    /// The program is there and cannot be run.
    #[error("cannot run {program}: {reason}")]
    NotRunnable { program: String, reason: String },
    /// The limit on open files is too low for so many processes.
    #[error(
        "--processes {processes} needs {wanted} open files, the limit is {limit}; raise it (ulimit -n) or start fewer"
    )]
    Descriptors { processes: u64, wanted: u64, limit: u64 },
    /// Not enough launchers of other hosts came.
    #[error(
        "of at least {least} hosts, only these came within {waited:.1} s: {came}; start uform launch with the same \
         --directory, --job and --hosts on each ({directory} must be the same folder on all)"
    )]
    Hosts { least: usize, waited: f64, came: String, directory: String },
    /// A folder without records.
    #[error(
        "{folder} has no record of calls; name the folder that the failed call named, or that of UFORM_RECORD"
    )]
    NoRecords { folder: String },
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System { action: String, source: std::io::Error },
    /// The core refused something.
    #[error("{}", .0.chain())]
    Core(#[from] uform::Error),
}

impl Failure {
    /// The system refused `action`.
    pub(crate) fn system(action: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { action: action.into(), source: source.into() }
    }

    /// The exit code that tells of this failure.
    pub(crate) fn exit_code(&self) -> i32 {
        match self {
            Self::Absent { .. } => 127,
            Self::NotRunnable { .. } => 126,
            Self::Descriptors { .. } | Self::Core(uform::Error::Invalid { .. }) => 2,
            Self::Hosts { .. } | Self::NoRecords { .. } | Self::System { .. } | Self::Core(_) => 1,
        }
    }
}
