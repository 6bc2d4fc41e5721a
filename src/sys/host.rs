//! Cores and memory domains of this machine, read from a `/sys` tree.
//!
//! Every function takes the root of the file tree, so that a test can bring its own.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result};

/// The root of the machine's own file tree.
pub const ROOT: &str = "/";

/// One memory domain as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The kernel's number.
    pub ordinal: u32,
    /// Its online cores, ascending.
    pub cores: Vec<u32>,
    /// Its memory.
    pub memory_bytes: u64,
}

/// The online cores of the machine, ascending.
///
/// Where `/sys` is not mounted this is the calling thread's own mask.
///
/// # Errors
/// `Io` if neither can be read.
pub fn cores(root: &Path) -> Result<Vec<u32>> {
    let path = root.join("sys/devices/system/cpu/online");
    match std::fs::read_to_string(&path).ok().as_deref().and_then(parse_list) {
        Some(cores) if !cores.is_empty() => Ok(cores),
        _ => super::affinity::get_affinity(),
    }
}

/// The memory domains by ordinal; one domain with all of `cores` where the kernel tells of none.
///
/// # Errors
/// `Io` if the memory size can be read nowhere.
pub fn memory_domains(root: &Path, cores: &[u32]) -> Result<Vec<Domain>> {
    let mut domains = Vec::new();
    for entry in std::fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(ordinal) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok()) else {
            continue;
        };
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        let mut own = parse_list(&read("cpulist")).unwrap_or_default();
        own.retain(|core| cores.contains(core));
        domains.push(Domain {
            ordinal,
            cores: own,
            memory_bytes: total_bytes(&read("meminfo")).unwrap_or(0),
        });
    }
    domains.sort_by_key(|domain| domain.ordinal);
    if domains.is_empty() {
        let path = root.join("proc/meminfo");
        let text = std::fs::read_to_string(&path).map_err(|source| Error::io(&path, "read", source))?;
        let memory_bytes = total_bytes(&text).unwrap_or(0);
        domains.push(Domain { ordinal: 0, cores: cores.to_vec(), memory_bytes });
    }
    Ok(domains)
}

/// The cores that are threads of one physical core, where it has several; each list ascending, the lists by their first.
///
/// Where `/sys` does not tell, `/proc/cpuinfo` may. Empty if neither does.
#[must_use]
pub fn siblings(root: &Path, cores: &[u32]) -> Vec<Vec<u32>> {
    let mut groups = Vec::<Vec<u32>>::new();
    for core in cores {
        let path = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        let list = std::fs::read_to_string(root.join(path)).ok().as_deref().and_then(parse_list);
        groups.extend(list);
    }
    if groups.is_empty() {
        let text = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        groups = physical_cores(&text);
    }
    for group in &mut groups {
        group.retain(|core| cores.binary_search(core).is_ok());
    }
    groups.retain(|group| group.len() > 1);
    groups.sort();
    groups.dedup();
    groups
}

/// The cores of each physical core in the text of `/proc/cpuinfo`.
fn physical_cores(text: &str) -> Vec<Vec<u32>> {
    let mut groups = BTreeMap::<(u32, u32), Vec<u32>>::new();
    for block in text.split("\n\n") {
        let value = |name: &str| {
            let mut lines = block.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(own, _)| own.trim() == name)?.1.trim().parse::<u32>().ok()
        };
        if let (Some(core), Some(package), Some(own)) =
            (value("processor"), value("physical id"), value("core id"))
        {
            groups.entry((package, own)).or_default().push(core);
        }
    }
    groups.into_values().collect()
}

/// A list of the kernel's: `0-3,8,10-11`. `None` if it is anything else.
#[must_use]
pub fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        if last < first || last - first > 1 << 20 {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// The `MemTotal` line, in bytes.
fn total_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("MemTotal:"))?;
    let kilobytes = line.split_once("MemTotal:")?.1.trim().strip_suffix("kB")?.trim();
    kilobytes.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_the_kernels() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("\n"), Some(Vec::new()));
        for odd in ["3-1", "a", "1-", "-1", "0-4294967295"] {
            assert_eq!(parse_list(odd), None, "{odd}");
        }
    }

    #[test]
    fn siblings_are_read_from_what_there_is() {
        let block = |core, package, own| {
            format!(
                "processor\t: {core}\nmodel name\t: a: b\nphysical id\t: {package}\ncore id\t\t: {own}\n\n"
            )
        };
        let text = [block(0, 0, 0), block(1, 0, 8), block(2, 1, 0), block(3, 0, 0)].concat();
        assert_eq!(physical_cores(&text), [vec![0, 3], vec![1], vec![2]]);
        assert_eq!(physical_cores("processor\t: 0\nBogoMIPS\t: 2100.00\n"), Vec::<Vec<u32>>::new());
        assert_eq!(siblings(Path::new("/nowhere"), &[0, 1]), Vec::<Vec<u32>>::new());
        let cores = cores(Path::new(ROOT)).expect("cores are listed");
        let found = siblings(Path::new(ROOT), &cores);
        assert!(found.iter().all(|group| group.len() > 1 && group.iter().all(|core| cores.contains(core))));
    }

    #[test]
    fn memory_is_in_bytes() {
        assert_eq!(total_bytes("Node 0 MemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(total_bytes("MemFree: 1 kB\nMemTotal: 2 kB\n"), Some(2048));
        assert_eq!(total_bytes(""), None);
    }

    #[test]
    fn this_machine_has_cores_in_its_domains() {
        let root = Path::new(ROOT);
        let cores = cores(root).expect("cores can be read");
        let domains = memory_domains(root, &cores).expect("domains can be read");
        assert_eq!(domains.iter().map(|domain| domain.cores.len()).sum::<usize>(), cores.len());
        assert!(domains.iter().any(|domain| domain.memory_bytes > 0));
    }
}
