//! Whether a run meets over MPI, and whether MPI and the launcher mean the same run.

use crate::environment::{self, Launch, MeshOptions};
use crate::error::{Contradiction, Error, Result};
use crate::sys::Deadline;
use crate::sys::mpi::{self, Handle, World};

/// How the processes of a run meet.
pub(super) enum Way {
    /// In a directory, or alone.
    Directory,
    /// Over `MPI_COMM_WORLD`, or over a communicator of the caller's.
    Mpi(Option<Handle>),
}

/// What options and launcher say, and how the processes meet.
///
/// Over MPI where an mpirun started them, or MPI runs here with as many processes as the launcher says. A directory that somebody
/// names comes first, and a build without MPI needs one.
pub(super) fn read(options: Option<&MeshOptions>) -> Result<(Launch, Way)> {
    let none = MeshOptions::default();
    let options = options.unwrap_or(&none);
    if mpi::is_compiled() {
        let launch = environment::read_without_directory(options)?;
        let count = launch.count.value;
        let is_mpi = count > 1
            && !launch.names_directory()
            && (launch.starts_mpi() || mpi::running_count() == Some(count));
        if is_mpi {
            return Ok((launch, Way::Mpi(None)));
        }
    }
    environment::read(options).map(|launch| (launch, Way::Directory))
}

/// What options and launcher say to processes that meet over MPI in any case.
pub(super) fn read_for(options: Option<&MeshOptions>, communicator: Option<Handle>) -> Result<(Launch, Way)> {
    let launch = environment::read_without_directory(options.unwrap_or(&MeshOptions::default()))?;
    Ok((launch, Way::Mpi(communicator)))
}

impl Way {
    /// The processes of the communicator, if that is the way.
    pub(super) fn world(
        &self,
        launch: &Launch,
        options: Option<&MeshOptions>,
        deadline: &Deadline<'_>,
    ) -> Result<Option<World>> {
        let Self::Mpi(communicator) = self else { return Ok(None) };
        let world = World::join(*communicator, deadline)?;
        let is_explicit = options.is_some_and(|options| options.host_domain_count > 0);
        // A part of the world has numbers of its own; the world itself must be the launcher's.
        if is_explicit || (communicator.is_none() && launch.starts_mpi()) {
            compare(launch, "the communicator", world.count(), Some(world.rank()))?;
        } else if let (true, Some(count)) = (launch.starts_mpi(), mpi::running_count()) {
            compare(launch, "MPI_COMM_WORLD", count, None)?;
        }
        Ok(Some(world))
    }
}

/// Refuses an MPI that has another size, or another rank for this process, than the launcher or the caller says.
fn compare(launch: &Launch, what: &str, count: usize, rank: Option<usize>) -> Result<()> {
    let numbers = [("size", &launch.count, Some(count)), ("rank", &launch.index, rank)];
    for (name, said, own) in numbers {
        let Some(own) = own.filter(|own| *own != said.value) else { continue };
        let library = mpi::library().map(ToString::to_string).unwrap_or_default();
        let reason = format!(
            "differs from what MPI says, which is {library}: start the processes by the mpirun of that library, or name \
             `directory` to meet without MPI"
        );
        return Err(Error::Invalid {
            argument: said.origin.clone(),
            value: said.value.to_string(),
            origin: launch.launcher.clone(),
            reason,
            contradiction: Some(Contradiction {
                value: own.to_string(),
                origin: format!("the {name} of {what}"),
            }),
        });
    }
    Ok(())
}
