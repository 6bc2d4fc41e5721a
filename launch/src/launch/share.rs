//! Which cores each process of the launcher may run on: disjoint shares of the launcher's own.

use std::path::Path;

use uform::sys::affinity::{get_affinity, pin_current_thread};

/// The share of each process.
pub(super) struct Shares {
    /// One list per index; empty where nothing is narrowed.
    cores: Vec<Vec<u32>>,
    /// The launcher's own cores.
    own: Vec<u32>,
    /// The most threads for one process: its part of the cores' worth of time that the control groups allow.
    thread_limit: usize,
}

impl Shares {
    /// Divides the cores of the calling thread's mask among `count` processes, unless `pin` is false.
    ///
    /// Where the mask cannot be read nothing is narrowed.
    pub(super) fn of_this_process(count: usize, pin: bool) -> Self {
        let own = get_affinity().unwrap_or_else(|error| {
            tracing::warn!("no process is narrowed to cores: {}", error.chain());
            Vec::new()
        });
        let available = match own.len() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            length => length,
        };
        let quota = uform::device::quota_cores().and_then(|cores| usize::try_from(cores).ok());
        let budget = (quota.map_or(available, |quota| quota.min(available)) / count.max(1)).max(1);
        let mut cores = own.clone();
        cores.sort_by_key(|core| (neighbourhood(Path::new("/sys/devices/system/cpu"), *core), *core));
        let cores = if pin { divide(&cores, count) } else { vec![Vec::new(); count] };
        // Without a quota a process's own cores are the limit, where it has some.
        let thread_limit = if pin && quota.is_none() && !own.is_empty() { own.len() } else { budget };
        Self { cores, own, thread_limit }
    }

    /// How many processes there are.
    pub(super) fn count(&self) -> usize {
        self.cores.len()
    }

    /// How many threads the process with this index can run at once.
    pub(super) fn thread_count(&self, index: usize) -> usize {
        match self.cores.get(index) {
            Some(cores) if !cores.is_empty() => cores.len().min(self.thread_limit),
            _ => self.thread_limit,
        }
    }

    /// Calls `start` on a thread that is narrowed to the share, so that a process it starts is too.
    pub(super) fn within<T>(&self, index: usize, start: impl FnOnce() -> T) -> T {
        let Some(share) = self.cores.get(index).filter(|share| !share.is_empty()) else {
            return start();
        };
        if let Err(error) = pin_current_thread(share) {
            tracing::warn!(index, "the process is not narrowed to its cores: {}", error.chain());
            return start();
        }
        let result = start();
        if let Err(error) = pin_current_thread(&self.own) {
            tracing::warn!(index, "the launcher stays on the cores of this index: {}", error.chain());
        }
        result
    }
}

/// Cuts `cores` into `count` runs whose lengths differ by one at most; shares one core each where there are fewer.
fn divide(cores: &[u32], count: usize) -> Vec<Vec<u32>> {
    let length = cores.len();
    (0..count)
        .map(|index| match length {
            0 => Vec::new(),
            _ if count <= length => cores[index * length / count..(index + 1) * length / count].to_vec(),
            _ => vec![cores[index % length]],
        })
        .collect()
}

/// Orders cores so that those of one memory domain, then of one package, then of one physical core lie together.
fn neighbourhood(system: &Path, core: u32) -> (u32, u32, u32) {
    let folder = system.join(format!("cpu{core}"));
    let number = |name: &str| {
        let text = std::fs::read_to_string(folder.join("topology").join(name)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let domain = std::fs::read_dir(&folder).ok().and_then(|entries| {
        let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
    });
    (domain.unwrap_or(0), number("physical_package_id"), number("core_id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_disjoint_and_cover_the_mask() {
        for (length, count) in [(1, 1), (2, 2), (7, 3), (64, 5), (10, 1)] {
            let cores: Vec<u32> = (0..length).map(|core| core * 3 + 1).collect();
            let shares = divide(&cores, count);
            assert_eq!(shares.concat(), cores, "{length} cores for {count}");
            let sizes: Vec<usize> = shares.iter().map(Vec::len).collect();
            let (least, most) =
                (sizes.iter().min().expect("not empty"), sizes.iter().max().expect("not empty"));
            assert!(most - least <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn more_processes_than_cores_take_turns_and_never_widen() {
        assert_eq!(divide(&[4, 9], 5), [vec![4], vec![9], vec![4], vec![9], vec![4]]);
    }

    #[test]
    fn siblings_lie_together() {
        let folder = std::env::temp_dir().join(format!("uform-share-test-{}", std::process::id()));
        // Cores 0 and 2 are threads of one physical core, as are 1 and 3.
        for core in 0..4_u32 {
            let topology = folder.join(format!("cpu{core}/topology"));
            std::fs::create_dir_all(&topology).expect("made");
            std::fs::write(topology.join("core_id"), format!("{}\n", core % 2)).expect("written");
            std::fs::write(topology.join("physical_package_id"), "0\n").expect("written");
        }
        let mut cores: Vec<u32> = (0..4).collect();
        cores.sort_by_key(|core| (neighbourhood(&folder, *core), *core));
        std::fs::remove_dir_all(&folder).expect("removed");
        assert_eq!(cores, [0, 2, 1, 3]);
    }
}
