//! The variables of each launcher family, read one by one and checked against each other.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{COUNT_LIMIT, Sourced};
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
    /// The name that its own id gives the run.
    pub(super) job: Option<Sourced<String>>,
    /// Whether it sets `UFORM_JOB` anew at each start.
    pub(super) draws_fresh_jobs: bool,
    /// Whether it says that all processes are on this host.
    pub(super) one_host: bool,
}

/// One look at the variables.
pub(super) struct Reading<'a> {
    variables: &'a dyn Fn(&str) -> Option<OsString>,
}

/// The size variables of launchers that this version sees but does not read, innermost first.
const UNREAD: [(&str, &str); 9] = [
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE"),
    ("MVAPICH's mpirun", "MVP_COMM_WORLD_SIZE"),
    ("MVAPICH2's mpirun", "MV2_COMM_WORLD_SIZE"),
    ("PALS", "PALS_SIZE"),
    ("MPICH, Intel MPI or another PMI launcher", "PMI_SIZE"),
    ("jsrun", "JSM_NAMESPACE_SIZE"),
    ("Horovod", "HOROVOD_SIZE"),
    ("Flux", "FLUX_JOB_SIZE"),
    ("srun", "SLURM_STEP_NUM_TASKS"),
];

/// From this number on Slurm's step ids mean a batch script, an interactive shell or an external process.
const SPECIAL_STEPS: u64 = 0xffff_fff0;

impl<'a> Reading<'a> {
    pub(super) fn new(variables: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { variables }
    }

    fn is_set(&self, name: &str) -> bool {
        (self.variables)(name).is_some()
    }

    /// A path; empty is refused.
    pub(super) fn path(&self, name: &str) -> Result<Option<PathBuf>> {
        match (self.variables)(name) {
            Some(value) if value.is_empty() => Err(empty(name)),
            other => Ok(other.map(PathBuf::from)),
        }
    }

    /// A text; empty and not UTF-8 are refused.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = (self.variables)(name) else { return Ok(None) };
        match value.into_string() {
            Ok(text) if text.is_empty() => Err(empty(name)),
            Ok(text) => Ok(Some(text)),
            Err(value) => Err(Error::invalid(name, value.to_string_lossy(), "environment", "is not UTF-8")),
        }
    }

    /// A number of 0 or more, digits only.
    fn number(&self, name: &str) -> Result<Option<Sourced<usize>>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<usize>() {
            Ok(value) if digits => Ok(Some(Sourced::new(value, name))),
            _ => Err(Error::invalid(name, text, "environment", "must be a number, 0 or more")),
        }
    }

    /// A number that must be there, because `beside` is.
    fn required(&self, name: &str, beside: &str) -> Result<Sourced<usize>> {
        self.number(name)?.ok_or_else(|| {
            let reason = format!("is missing although {beside} is set: set it too, or unset {beside}");
            Error::invalid(name, "(not set)", "environment", reason)
        })
    }

    /// What `uform launch` set, or a person in its place; `None` if there is nothing of it.
    pub(super) fn uform(&self) -> Result<Option<Launcher>> {
        const NAMES: [&str; 4] = ["UFORM_INDEX", "UFORM_COUNT", "UFORM_LOCAL_INDEX", "UFORM_LOCAL_COUNT"];
        let Some(first) = NAMES.into_iter().find(|name| self.is_set(name)) else { return Ok(None) };
        let index = self.required("UFORM_INDEX", first)?;
        let count = self.required("UFORM_COUNT", first)?;
        check_pair(&index, &count)?;
        let (local_index, local_count) = match NAMES[2..].iter().find(|name| self.is_set(name)) {
            Some(local) => {
                let local_index = self.required("UFORM_LOCAL_INDEX", local)?;
                let local_count = self.required("UFORM_LOCAL_COUNT", local)?;
                check_pair(&local_index, &local_count)?;
                check_local(&local_count, &count)?;
                (Some(local_index), Some(local_count))
            }
            None => (None, None),
        };
        let by_launcher = self.is_set("UFORM_LAUNCHER_PID");
        Ok(Some(Launcher {
            name: if by_launcher { "uform launch" } else { "UFORM_* variables" },
            one_host: local_count.as_ref().is_some_and(|local| local.value == count.value),
            index,
            count,
            local_index,
            local_count,
            job: None,
            draws_fresh_jobs: by_launcher,
        }))
    }

    /// What torchrun set; `None` if there is nothing of it.
    pub(super) fn torchrun(&self) -> Result<Option<Launcher>> {
        const NAMES: [&str; 5] =
            ["TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"];
        let Some(first) = NAMES.into_iter().find(|name| self.is_set(name)) else { return Ok(None) };
        let index = self.required("RANK", first)?;
        let count = self.required("WORLD_SIZE", first)?;
        check_pair(&index, &count)?;
        let local_index = self.required("LOCAL_RANK", first)?;
        let local_count = self.required("LOCAL_WORLD_SIZE", first)?;
        check_pair(&local_index, &local_count)?;
        check_local(&local_count, &count)?;
        let one_group = self.number("GROUP_WORLD_SIZE")?.is_none_or(|groups| groups.value == 1);
        Ok(Some(Launcher {
            name: "torchrun",
            one_host: one_group && local_count.value == count.value,
            job: Some(self.torchrun_job()?),
            index,
            count,
            local_index: Some(local_index),
            local_count: Some(local_count),
            draws_fresh_jobs: false,
        }))
    }

    /// torchrun's id with its restart count. The default id `none` is everybody's: the master's address tells them apart.
    fn torchrun_job(&self) -> Result<Sourced<String>> {
        let id = self.text("TORCHELASTIC_RUN_ID")?;
        let restart = self.number("TORCHELASTIC_RESTART_COUNT")?.map_or(0, |count| count.value);
        let mut origins = vec!["TORCHELASTIC_RUN_ID"];
        let mut words = vec![id.unwrap_or_else(|| "none".to_owned())];
        if words[0] == "none" {
            for name in ["MASTER_ADDR", "MASTER_PORT"] {
                if let Some(word) = self.text(name)? {
                    words.push(word);
                    origins.push(name);
                }
            }
        }
        words.push(format!("restart-{restart}"));
        origins.push("TORCHELASTIC_RESTART_COUNT");
        Ok(Sourced::new(words.join("-"), origins.join(", ")))
    }

    /// Refuses to be one lone process of several that an unread launcher started.
    pub(super) fn refuse_unread(&self) -> Result<()> {
        let mut sized = false;
        for (launcher, variable) in UNREAD {
            if variable == "SLURM_STEP_NUM_TASKS" && !self.is_slurm_step() {
                continue;
            }
            let Some(size) = self.number(variable)? else { continue };
            sized = true;
            if size.value > 1 {
                return Err(unread(&format!("{launcher} ({variable}={})", size.value)));
            }
        }
        // PMIx gives the size through its library only, so that the first process cannot know that it is alone.
        match self.text("PMIX_RANK")? {
            Some(rank) if !sized => Err(unread(&format!("a PMIx launcher (PMIX_RANK={rank})"))),
            _ => Ok(()),
        }
    }

    /// Whether the Slurm variables are those of a step's task, not of a batch script or a shell.
    fn is_slurm_step(&self) -> bool {
        let number = |name: &str| (self.variables)(name)?.to_str()?.parse::<u64>().ok();
        let step = number("SLURM_STEP_ID").or_else(|| number("SLURM_STEPID"));
        number("SLURM_PROCID").is_some() && step.is_some_and(|step| step < SPECIAL_STEPS)
    }

    /// Says what an allocation without a step means, and which launcher was set aside.
    pub(super) fn note_allocation(&self, placed: bool, notes: &mut Vec<String>) {
        if self.is_set("SLURM_JOB_ID") && !self.is_slurm_step() && !placed {
            notes.push(
                "inside a Slurm allocation and not in a step: one process; `srun` starts several".into(),
            );
        }
        if placed {
            for (launcher, variable) in UNREAD {
                if self.is_set(variable) {
                    notes.push(format!("{launcher} is visible ({variable}) and was not asked"));
                }
            }
        }
    }
}

fn empty(name: &str) -> Error {
    Error::invalid(name, "''", "environment", "is empty: give it a value, or unset it")
}

fn unread(launcher: &str) -> Error {
    Error::unsupported(
        format!("reading the variables of {launcher}"),
        "this version reads those of uform launch and torchrun: pass host_domain_index, host_domain_count and directory, \
         or set UFORM_INDEX, UFORM_COUNT and UFORM_DIRECTORY",
    )
}

/// An index must be below its count, and a count within the limit.
fn check_pair(index: &Sourced<usize>, count: &Sourced<usize>) -> Result<()> {
    if count.value == 0 || count.value > COUNT_LIMIT {
        let reason = format!("must be 1 to {COUNT_LIMIT}");
        return Err(Error::invalid(count.origin.clone(), count.value, "environment", reason));
    }
    if index.value >= count.value {
        return Err(Error::Invalid {
            argument: index.origin.clone(),
            value: index.value.to_string(),
            origin: "environment".into(),
            reason: format!("must be below {}", count.origin),
            contradiction: Some(Contradiction {
                value: count.value.to_string(),
                origin: count.origin.clone(),
            }),
        });
    }
    Ok(())
}

/// A host cannot have more processes than the run.
fn check_local(local: &Sourced<usize>, count: &Sourced<usize>) -> Result<()> {
    if local.value > count.value {
        return Err(Error::Invalid {
            argument: local.origin.clone(),
            value: local.value.to_string(),
            origin: "environment".into(),
            reason: format!("must be at most {}", count.origin),
            contradiction: Some(Contradiction {
                value: count.value.to_string(),
                origin: count.origin.clone(),
            }),
        });
    }
    Ok(())
}
