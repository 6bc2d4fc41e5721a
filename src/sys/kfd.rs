//! AMD's kernel driver as it shows itself in `/sys`: nodes, their memory and links, and nothing that was decided.
//!
//! Every function takes the root of the file tree. What cannot be read is not there: in a container the driver lists
//! devices whose properties it then refuses.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::Access;

/// The longest file that is read here; the driver's own are below a page.
const FILE_LIMIT: u64 = 64 << 10;

/// More nodes, memory banks and links than any machine has.
const ENTRY_LIMIT: usize = 4096;

/// One node of the driver's topology: a processor or a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its number, the name of its folder.
    pub number: u32,
    /// The driver's number of the GPU, 0 for a node without one.
    pub gpu_id: u64,
    /// Every line of `properties`.
    pub properties: BTreeMap<String, u64>,
    /// The bytes of its own memory, without what it shares with the host.
    pub memory_bytes: u64,
    /// Every link as the number of the node that it goes to, and its type.
    pub links: Vec<(u32, u64)>,
}

impl Node {
    /// A property, 0 if the driver does not tell it.
    #[must_use]
    pub fn property(&self, name: &str) -> u64 {
        self.properties.get(name).copied().unwrap_or(0)
    }
}

/// The nodes that this process may see, by number.
#[must_use]
pub fn nodes(root: &Path) -> Vec<Node> {
    let mut found = Vec::new();
    for (number, folder) in numbered(&root.join("sys/class/kfd/kfd/topology/nodes")) {
        let gpu_id = read(&folder.join("gpu_id")).and_then(|text| text.trim().parse().ok());
        let properties = properties(&folder.join("properties"));
        // The driver answers with an empty file for what the device control group forbids.
        let (Some(gpu_id), false) = (gpu_id, properties.is_empty()) else { continue };
        let banks = numbered(&folder.join("mem_banks")).into_iter();
        let banks = banks.map(|(_, bank)| self::properties(&bank.join("properties")));
        // Heaps 1 and 2 are the device's own memory, visible to the host or not.
        let own = banks.filter(|bank| matches!(bank.get("heap_type"), Some(1 | 2)));
        let sizes = own.filter_map(|bank| bank.get("size_in_bytes").copied());
        found.push(Node {
            number,
            gpu_id,
            memory_bytes: sizes.fold(0, u64::saturating_add),
            links: links(&folder),
            properties,
        });
    }
    found
}

fn links(folder: &Path) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    for kind in ["io_links", "p2p_links"] {
        for (_, link) in numbered(&folder.join(kind)) {
            let link = properties(&link.join("properties"));
            let to = link.get("node_to").and_then(|to| u32::try_from(*to).ok());
            if let (Some(to), Some(kind)) = (to, link.get("type")) {
                found.push((to, *kind));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Whether this process may open the render device with this number; so it is where no render device is listed.
#[must_use]
pub fn may_render(root: &Path, minor: u64) -> bool {
    let folder = root.join("dev/dri");
    !folder.is_dir()
        || rustix::fs::access(folder.join(format!("renderD{minor}")), Access::READ_OK | Access::WRITE_OK)
            .is_ok()
}

/// The version of ROCm that is installed; `None` if it is not where its packages put it.
#[must_use]
pub fn rocm_version(root: &Path) -> Option<String> {
    let text = read(&root.join("opt/rocm/.info/version"))?;
    let version = text.trim().split('-').next().unwrap_or_default();
    let valid = version.starts_with(|first: char| first.is_ascii_digit())
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    valid.then(|| version.to_owned())
}

/// The marketing name of a device in the table that comes with the graphics library.
#[must_use]
pub fn marketing_name(root: &Path, device: u64, revision: u64) -> Option<String> {
    let tables = ["usr/share/libdrm/amdgpu.ids", "opt/amdgpu/share/libdrm/amdgpu.ids"];
    tables.iter().find_map(|table| {
        let text = std::fs::read(root.join(table)).ok()?;
        String::from_utf8_lossy(&text).lines().find_map(|line| {
            let mut fields = line.splitn(3, ',').map(str::trim);
            let number = |text: &str| u64::from_str_radix(text, 16).ok();
            let same = number(fields.next()?) == Some(device) && number(fields.next()?) == Some(revision);
            same.then(|| fields.next().map(str::to_owned)).flatten().filter(|name| !name.is_empty())
        })
    })
}

/// The folders below one that are named by numbers, ascending.
fn numbered(folder: &Path) -> Vec<(u32, std::path::PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRY_LIMIT);
    let mut found = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.parse::<u32>().ok()?;
            // `+1` and `01` are no names that the kernel gives.
            (name.to_str()? == number.to_string()).then(|| (number, entry.path()))
        })
        .collect::<Vec<_>>();
    found.sort();
    found
}

/// The lines of a file, each a key, a space and a number; other lines are passed over.
fn properties(path: &Path) -> BTreeMap<String, u64> {
    let text = read(path).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| {
        let (key, value) = line.trim().split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    });
    pairs.collect()
}

/// The text of a file; what is no text in it is replaced.
pub(super) fn read(path: &Path) -> Option<String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_LIMIT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
