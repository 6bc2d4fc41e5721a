//! The table of launchers: each family in a file of its own, in the order in which they are asked.

use super::own::OwnFacts;
use super::reading::{Reading, Variables};
use super::{
    COUNT_LIMIT, Sourced, flux, hydra, job, kubernetes, lsf, mvapich, openmpi, pals, pmi, seen, slurm,
};
use super::{torchrun, uform};
use crate::error::{Contradiction, Error, Result};

/// What one launcher says, complete and consistent.
#[derive(Clone, Debug)]
pub(super) struct Launcher {
    /// Its name for people.
    pub(super) name: &'static str,
    pub(super) index: Sourced<usize>,
    pub(super) count: Sourced<usize>,
    pub(super) local_index: Option<Sourced<usize>>,
    pub(super) local_count: Option<Sourced<usize>>,
    /// How many hosts the run has.
    pub(super) host_count: Option<Sourced<usize>>,
    /// The names of these hosts.
    pub(super) hosts: Option<Sourced<Vec<String>>>,
    /// The name that its own id gives the run, and whether that is unique to this start.
    pub(super) job: Option<(Sourced<String>, bool)>,
    /// Whether it sets `UFORM_JOB` anew at each start.
    pub(super) draws_fresh_jobs: bool,
    /// How many generations away the process is that it started, or that started this one.
    pub(super) distance: Option<usize>,
    /// What somebody should know who wonders about the run.
    pub(super) notes: Vec<String>,
}

impl Launcher {
    /// A launcher that gives the two numbers that every run needs.
    ///
    /// # Errors
    /// `Invalid` where they contradict each other.
    pub(super) fn new(name: &'static str, index: Sourced<usize>, count: Sourced<usize>) -> Result<Self> {
        check_pair(&index, &count)?;
        Ok(Self {
            name,
            index,
            count,
            local_index: None,
            local_count: None,
            host_count: None,
            hosts: None,
            job: None,
            draws_fresh_jobs: false,
            distance: None,
            notes: Vec::new(),
        })
    }

    /// Adds the numbers among the processes of this host. If they cover the run there is one host.
    ///
    /// # Errors
    /// `Invalid` where they contradict each other or the run's.
    pub(super) fn on_host(
        mut self,
        index: Option<Sourced<usize>>,
        count: Option<Sourced<usize>>,
    ) -> Result<Self> {
        match (&index, &count) {
            (Some(index), Some(count)) => check_pair(index, count)?,
            (Some(index), None) => check_below(index, &self.count)?,
            _ => {}
        }
        if let Some(count) = &count {
            check_at_most(count, &self.count)?;
            if count.value == self.count.value && self.host_count.is_none() {
                let origin = format!("{}, which is {}", count.origin, self.count.origin);
                self.host_count = Some(Sourced::new(1, origin));
            }
        }
        (self.local_index, self.local_count) = (index, count);
        Ok(self)
    }

    /// Whether it says that all processes are on this host.
    pub(super) fn has_one_host(&self) -> bool {
        self.host_count.as_ref().is_some_and(|hosts| hosts.value == 1)
    }
}

/// What one family says to the variables.
#[derive(Debug)]
pub(super) enum Reply {
    /// Nothing of it is set.
    Absent,
    /// Something of it is set, and it did not start this process; the reason.
    Aside(String),
    /// It started this process.
    Found(Box<Launcher>),
}

/// What the families look at.
pub(super) struct Scene<'a> {
    pub(super) reading: Reading<'a>,
    pub(super) own: &'a OwnFacts,
}

impl<'a> Scene<'a> {
    pub(super) fn new(variables: &'a Variables, own: &'a OwnFacts) -> Self {
        Self { reading: Reading(variables), own }
    }

    /// Names the run of a launcher whose variables have no id of their own.
    ///
    /// On one host the process that started all of this run's processes is unique. Else the id of a batch job tells
    /// at least the jobs apart.
    pub(super) fn name_job(&self, launcher: &mut Launcher, word: &str, starters: &[&str]) {
        let starter = self.own.starter(starters);
        launcher.distance = starter.map(|(distance, _)| distance);
        if launcher.job.is_some() {
            return;
        }
        launcher.job = match starter {
            Some((_, process)) if launcher.has_one_host() => {
                let name = format!("{word}-{}-{}", process.pid, process.start_ticks);
                let origin = format!("process {} ({}), which started this one", process.pid, process.name);
                Some((Sourced::new(name, origin), true))
            }
            _ => job::of_batch(&self.reading).map(|batch| {
                let name = format!("{word}-in-{}", batch.value);
                (Sourced::new(name, batch.origin), false)
            }),
        };
    }
}

/// One family of launchers.
pub(super) struct Family {
    /// Its name where nothing tells which of its launchers it was.
    pub(super) name: &'static str,
    /// `Err` if what is set of it is incomplete or contradicts itself.
    pub(super) read: fn(&Scene<'_>) -> Result<Reply>,
}

/// The position of our own family in the table.
pub(super) const OURS: usize = 0;

/// The families in the order in which they are asked: the first that is complete and consistent counts.
///
/// A launcher that is usually started by another one comes before that one: torchrun and mpirun run within srun.
pub(super) const FAMILIES: &[Family] = &[
    Family { name: "uform launch", read: uform::read },
    Family { name: "torchrun", read: torchrun::read },
    Family { name: "Open MPI", read: openmpi::read },
    Family { name: "PALS", read: pals::read },
    Family { name: "MPICH", read: hydra::read },
    Family { name: "MVAPICH", read: mvapich::read },
    Family { name: "Flux", read: flux::read },
    Family { name: "jsrun", read: lsf::read },
    Family { name: "srun", read: slurm::read },
    Family { name: "PMI", read: pmi::read },
    Family { name: "PMIx", read: pmi::read_pmix },
    Family { name: "Kubernetes", read: kubernetes::read },
    Family { name: "Horovod", read: seen::read_horovod },
    Family { name: "PBS", read: seen::read_pbs },
];

/// An index must be below its count, and a count within the limit.
pub(super) fn check_pair(index: &Sourced<usize>, count: &Sourced<usize>) -> Result<()> {
    if count.value == 0 || count.value > COUNT_LIMIT {
        let reason = format!("must be 1 to {COUNT_LIMIT}");
        return Err(Error::invalid(count.origin.clone(), count.value, "environment", reason));
    }
    check_below(index, count)
}

fn check_below(index: &Sourced<usize>, count: &Sourced<usize>) -> Result<()> {
    if index.value < count.value {
        return Ok(());
    }
    Err(contradicted(index, count, format!("must be below {}", count.origin)))
}

/// A host cannot have more processes than the run.
pub(super) fn check_at_most(local: &Sourced<usize>, count: &Sourced<usize>) -> Result<()> {
    if local.value <= count.value {
        return Ok(());
    }
    Err(contradicted(local, count, format!("must be at most {}", count.origin)))
}

/// Two variables of one launcher that mean the same must be equal.
pub(super) fn check_equal(one: &Sourced<usize>, other: &Sourced<usize>) -> Result<()> {
    if one.value == other.value {
        return Ok(());
    }
    let reason = format!("must be what {} is: unset what another launcher left", other.origin);
    Err(contradicted(one, other, reason))
}

/// The error of a value that another source contradicts.
pub(super) fn contradicted(one: &Sourced<usize>, other: &Sourced<usize>, reason: String) -> Error {
    Error::Invalid {
        argument: one.origin.clone(),
        value: one.value.to_string(),
        origin: "environment".into(),
        reason,
        contradiction: Some(Contradiction { value: other.value.to_string(), origin: other.origin.clone() }),
    }
}
