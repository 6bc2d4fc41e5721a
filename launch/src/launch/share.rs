//! Which cores each process of the launcher may run on: disjoint shares of the launcher's own.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The share of each process.
pub(super) struct Shares {
    /// One list per index; empty where nothing is narrowed.
    cores: Vec<Vec<u32>>,
    /// The launcher's own mask, `None` where nothing is narrowed.
    own: Option<CpuSet>,
    thread_count: usize,
}

impl Shares {
    /// Divides the cores of the calling thread's mask among `count` processes, unless `pin` is false.
    ///
    /// Where the mask cannot be read (more cores than a mask of 1,024 holds) nothing is narrowed.
    pub(super) fn of_this_process(count: usize, pin: bool) -> Self {
        let own = sched_getaffinity(None).ok();
        let mut cores: Vec<u32> = own.iter().flat_map(members).collect();
        cores.sort_by_key(|core| (neighbourhood(Path::new("/sys/devices/system/cpu"), *core), *core));
        let available = match cores.len() {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            length => length,
        };
        let thread_count = (available / count.max(1)).max(1);
        if !pin || cores.is_empty() {
            return Self { cores: vec![Vec::new(); count], own: None, thread_count };
        }
        Self { cores: divide(&cores, count), own, thread_count }
    }

    /// How many processes there are.
    pub(super) fn count(&self) -> usize {
        self.cores.len()
    }

    /// How many threads the process with this index can run at once.
    pub(super) fn thread_count(&self, index: usize) -> usize {
        match self.cores.get(index) {
            Some(cores) if !cores.is_empty() => cores.len(),
            _ => self.thread_count,
        }
    }

    /// Calls `start` on a thread that is narrowed to the share, so that a process it starts is too.
    pub(super) fn within<T>(&self, index: usize, start: impl FnOnce() -> T) -> T {
        let (Some(own), Some(share)) = (&self.own, self.cores.get(index)) else {
            return start();
        };
        let mut mask = CpuSet::new();
        share.iter().for_each(|core| mask.set(*core as usize));
        if let Err(error) = sched_setaffinity(None, &mask) {
            tracing::warn!(index, %error, "the process is not narrowed to its cores");
            return start();
        }
        let result = start();
        if let Err(error) = sched_setaffinity(None, own) {
            tracing::warn!(%error, "the launcher stays on the cores of index {index}");
        }
        result
    }
}

fn members(mask: &CpuSet) -> Vec<u32> {
    (0..u32::try_from(CpuSet::MAX_CPU).unwrap_or(0)).filter(|core| mask.is_set(*core as usize)).collect()
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
