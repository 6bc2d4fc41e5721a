//! What this process's control groups allow: time on cores, and memory.
//!
//! Every function takes the root of the file tree, so that a test can bring its own. Both versions of control groups
//! are read along the whole path, since each ancestor limits too.

use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex};

/// How many cores' worth of time the control groups allow: the quota over the period, the least along the path.
///
/// `None` without a quota.
#[must_use]
pub fn cpu_quota(root: &Path) -> Option<f64> {
    let old = folders(root, Some("cpu")).into_iter().filter_map(|folder| {
        let quota = number(&folder.join("cpu.cfs_quota_us"))?;
        ratio(quota, number(&folder.join("cpu.cfs_period_us"))?)
    });
    let new = folders(root, None).into_iter().filter_map(|folder| {
        let text = std::fs::read_to_string(folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        ratio(quota.parse().ok()?, period.trim().parse().ok()?)
    });
    old.chain(new).reduce(f64::min)
}

/// The quota in whole cores, rounded down and at least 1; `None` without a quota.
#[must_use]
pub fn quota_cores(root: &Path) -> Option<u32> {
    cpu_quota(root).map(|cores| (cores.floor() as u32).max(1))
}

/// The bytes that this process's memory control groups still allow; `None` without a limit.
///
/// File pages that the kernel can drop count as free.
#[must_use]
pub fn memory_allowance() -> Option<u64> {
    memory_allowance_of(Path::new(super::host::ROOT))
}

/// [`memory_allowance`] in the file tree under `root`.
#[must_use]
pub fn memory_allowance_of(root: &Path) -> Option<u64> {
    let old = folders(root, Some("memory")).into_iter().filter_map(|folder| {
        let limit = unsigned(&folder.join("memory.limit_in_bytes"))?;
        // Without a limit the file holds the largest multiple of a page.
        (limit < 1 << 60).then_some(())?;
        let used = unsigned(&folder.join("memory.usage_in_bytes"))?;
        Some(limit.saturating_sub(used.saturating_sub(droppable(&folder, "total_"))))
    });
    let new = folders(root, None).into_iter().filter_map(|folder| {
        // Without a limit the file says `max`, which is no number.
        let limit = unsigned(&folder.join("memory.max"))?;
        let used = unsigned(&folder.join("memory.current"))?;
        Some(limit.saturating_sub(used.saturating_sub(droppable(&folder, ""))))
    });
    old.chain(new).min()
}

/// What two files say: which groups this process is in, and where they are mounted.
struct Groups {
    root: PathBuf,
    groups: String,
    mounts: String,
}

/// What was read last. A machine of containers has thousands of mounts, and a process asks several times while it starts.
static KNOWN: Known = Mutex::new(None);

type Known = Mutex<Option<Arc<Groups>>>;

impl Groups {
    /// Those of this moment: the mounts are read again only where the groups are others than before.
    fn of(root: &Path, known: &Known) -> Arc<Self> {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
        let groups = read("proc/self/cgroup");
        // Never waited for: a forked child may find the lock taken for ever.
        let mut known = known.try_lock().ok();
        if let Some(Some(known)) = known.as_deref()
            && known.root == root
            && known.groups == groups
        {
            return Arc::clone(known);
        }
        let found = Arc::new(Self { root: root.to_owned(), groups, mounts: read("proc/self/mountinfo") });
        if let Some(known) = &mut known {
            **known = Some(Arc::clone(&found));
        }
        found
    }
}

/// The folders of this process's group of one controller, innermost first, up to the mount; version 2 for `None`.
///
/// Outer folders that are not mounted here, as in a container, are left out.
fn folders(root: &Path, controller: Option<&str>) -> Vec<PathBuf> {
    let known = Groups::of(root, &KNOWN);
    let (groups, mounts) = (&known.groups, &known.mounts);
    let group = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let found = match controller {
            Some(name) => controllers.split(',').any(|own| own == name),
            None => controllers.is_empty(),
        };
        found.then_some(group)
    });
    let mount = mounts.lines().find_map(|line| mount_of(line, controller));
    let (Some(group), Some((within, point))) = (group, mount) else { return Vec::new() };
    // The mount shows the tree from `within` on. A group outside of it cannot be seen: the mount is the nearest.
    let rest = Path::new(group).strip_prefix(&within).unwrap_or(Path::new(""));
    let mut folder = root.join(point.trim_start_matches('/'));
    let mut found = vec![folder.clone()];
    for part in rest.components() {
        if let Component::Normal(name) = part {
            folder.push(name);
            found.push(folder.clone());
        }
    }
    found.reverse();
    found
}

/// The shown root and the mount point of one line of mountinfo, if it mounts this controller.
fn mount_of(line: &str, controller: Option<&str>) -> Option<(String, String)> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(3);
    let (within, point) = (fields.next()?, fields.next()?);
    let mut fields = right.split(' ');
    let (kind, options) = (fields.next()?, fields.nth(1).unwrap_or_default());
    let found = match controller {
        Some(name) => kind == "cgroup" && options.split(',').any(|own| own == name),
        None => kind == "cgroup2",
    };
    found.then(|| (unescape(within), unescape(point)))
}

/// Spaces and the like are three octal digits after a backslash there.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn ratio(quota: i64, period: i64) -> Option<f64> {
    // -1 means no quota.
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

fn number(path: &Path) -> Option<i64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn unsigned(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// File pages that the kernel drops when the group needs memory, in bytes.
fn droppable(folder: &Path, prefix: &str) -> u64 {
    let text = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    value("inactive_file ").unwrap_or(0).saturating_add(value("active_file ").unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file tree in a folder of its own, removed at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Self {
            let nonce = crate::sys::random::nonce().expect("random bytes");
            let root = std::env::temp_dir().join(format!("uform-test-cgroup-{nonce}"));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().expect("a file has a folder"))
                    .expect("folders can be made");
                std::fs::write(path, text).expect("files can be written");
            }
            Self(root)
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const V1_MOUNTS: &str = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                             35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2_MOUNTS: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn version_1_takes_the_least_quota_of_the_path() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", V1_MOUNTS),
            ("proc/self/cgroup", "4:memory:/\n3:cpu,cpuacct:/jobs/one\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_quota_us", "250000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_quota_us", "800000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/jobs/one/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(cpu_quota(&tree.0), Some(2.5));
        assert_eq!(quota_cores(&tree.0), Some(2));
    }

    #[test]
    fn version_2_reads_max_and_halves() {
        for (inner, outer, cores) in [
            ("max 100000\n", "max 100000\n", None),
            ("150000 100000\n", "max 100000\n", Some(1)),
            ("50000 100000\n", "max 100000\n", Some(1)),
            ("800000 100000\n", "400000 100000\n", Some(4)),
            ("nonsense\n", "300000 100000\n", Some(3)),
        ] {
            let tree = Tree::new(&[
                ("proc/self/mountinfo", V2_MOUNTS),
                ("proc/self/cgroup", "0::/user.slice/one job\n"),
                ("sys/fs/cgroup/user.slice/cpu.max", outer),
                ("sys/fs/cgroup/user.slice/one job/cpu.max", inner),
            ]);
            assert_eq!(quota_cores(&tree.0), cores, "{inner} in {outer}");
        }
    }

    #[test]
    fn a_container_sees_its_group_at_the_mount() {
        // Without a group namespace: the path is the outer one, the mount shows the tree from there on.
        let mounts = "1 2 0:1 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n";
        for group in ["1:cpu:/docker/abc\n", "1:cpu:/\n", "1:cpu:/../..\n", "1:cpu:/docker/other\n"] {
            let tree = Tree::new(&[
                ("proc/self/mountinfo", mounts),
                ("proc/self/cgroup", group),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
            ]);
            assert_eq!(quota_cores(&tree.0), Some(3), "{group}");
        }
    }

    #[test]
    fn memory_is_what_the_tightest_group_leaves() {
        let tree = Tree::new(&[
            ("proc/self/mountinfo", V1_MOUNTS),
            ("proc/self/cgroup", "4:memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "10000\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "4000\n"),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "inactive_file 1\ntotal_inactive_file 500\ntotal_active_file 50\n",
            ),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "20000\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "3000\n"),
        ]);
        assert_eq!(memory_allowance_of(&tree.0), Some(6550));
        for (limit, used, left) in [("max", "5", None), ("100", "30", Some(70)), ("100", "130", Some(0))] {
            let tree = Tree::new(&[
                ("proc/self/mountinfo", V2_MOUNTS),
                ("proc/self/cgroup", "0::/job\n"),
                ("sys/fs/cgroup/job/memory.max", limit),
                ("sys/fs/cgroup/job/memory.current", used),
            ]);
            assert_eq!(memory_allowance_of(&tree.0), left, "{limit} {used}");
        }
    }

    #[test]
    fn mounts_are_read_again_only_when_the_groups_are_others() {
        let tree = Tree::new(&[("proc/self/mountinfo", V2_MOUNTS), ("proc/self/cgroup", "0::/one\n")]);
        let (known, other) = (Known::default(), Tree::new(&[("proc/self/cgroup", "0::/one\n")]));
        let mounts = |tree: &Tree| Groups::of(&tree.0, &known).mounts.clone();
        let write = |path: &str, text: &str| std::fs::write(tree.0.join(path), text).expect("it is there");
        assert_eq!(mounts(&tree), V2_MOUNTS);
        write("proc/self/mountinfo", V1_MOUNTS);
        assert_eq!(mounts(&tree), V2_MOUNTS, "read once");
        write("proc/self/cgroup", "0::/two\n");
        assert_eq!(mounts(&tree), V1_MOUNTS, "a process that was moved");
        assert_eq!(mounts(&other), "", "another tree");
        assert_eq!(mounts(&tree), V1_MOUNTS);
    }

    #[test]
    fn no_control_groups_mean_no_limit() {
        let tree = Tree::new(&[("proc/self/cgroup", "")]);
        assert_eq!(cpu_quota(&tree.0), None);
        assert_eq!(memory_allowance_of(&tree.0), None);
    }
}
