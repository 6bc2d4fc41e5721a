//! Checkpoints as files: safetensors shards, a manifest with their checksums, and one rename that commits them.
//!
//! This room knows one process only; who writes what, and what happens when a member fails, is the trainer's to agree.
//!
//! A step lies in `step-<number>/`: `manifest.json`, its checksum in `manifest.crc32`, and the shards. Until it is
//! committed its folder is `.step-<number>.<owner>.partial`; the owner tells a later save whether the writer still lives.
//! A shard holds one-dimensional tensors named `<kind>:<parameter>:<first element>`, elements in row-major order.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sys::checksum::Checksum;
use crate::sys::{Deadline, Span, SpanMut, disk, process, random};
use crate::vocabulary::Dtype;

const FORMAT: &str = "uform-checkpoint";
const VERSION: u32 = 1;
const MANIFEST: &str = "manifest.json";
const MANIFEST_CHECKSUM: &str = "manifest.crc32";
/// The kind of tensor that holds parameters; the others are named like the optimizer's states.
pub const PARAMETER: &str = "parameter";
/// The longest header that safetensors readers accept.
const HEADER_LIMIT: u64 = 100_000_000;
/// After this time an unfinished save of another machine counts as dead.
const FOREIGN_AGE: Duration = Duration::from_secs(24 * 3600);
/// Room for headers, the manifest and the blocks of a file system, per file.
const OVERHEAD_BYTES: u64 = 64 << 10;

/// A run of elements of one parameter or of one of its states.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// [`PARAMETER`], or the name of a state.
    pub kind: &'a str,
    /// The parameter.
    pub name: &'a str,
    /// The element type.
    pub dtype: Dtype,
    /// The first element, counted in row-major order.
    pub start: usize,
    /// The elements.
    pub bytes: Span<'a>,
}

/// One shard as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name in the step's folder.
    pub name: String,
    /// Its length.
    pub byte_count: u64,
    /// The CRC-32 of the whole file.
    pub crc32: u32,
}

/// One parameter as the manifest lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterRecord {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its extents.
    pub shape: Vec<usize>,
}

impl ParameterRecord {
    /// How many elements it has; `None` if no memory can hold them.
    #[must_use]
    pub fn element_count(&self) -> Option<usize> {
        let count = self.shape.iter().try_fold(1usize, |product, extent| product.checked_mul(*extent))?;
        count.checked_mul(self.dtype.size_bytes()).map(|_| count)
    }
}

/// What a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name of this format.
    pub format: String,
    /// Its version.
    pub version: u32,
    /// The number that the caller gave to `save`.
    pub step: u64,
    /// How many updates the optimizer had made.
    pub updates: u64,
    /// How many processes wrote it.
    pub process_count: usize,
    /// The optimizer's kind.
    pub optimizer: String,
    /// The names of the arrays that the optimizer keeps.
    pub states: Vec<String>,
    /// The optimizer's numbers, for people; a load uses its own trainer's.
    pub hyper_parameters: BTreeMap<String, f64>,
    /// The parameters.
    pub parameters: Vec<ParameterRecord>,
    /// The shards.
    pub files: Vec<FileRecord>,
}

impl Manifest {
    /// A manifest without files.
    #[must_use]
    pub fn new(step: u64, updates: u64, process_count: usize) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            step,
            updates,
            process_count,
            optimizer: String::new(),
            states: Vec::new(),
            hyper_parameters: BTreeMap::new(),
            parameters: Vec::new(),
            files: Vec::new(),
        }
    }

    /// The manifest in `bytes`, which were read at `path`.
    ///
    /// # Errors
    /// `Corrupt` for anything that is not a manifest of this format and version.
    pub fn decode(path: &Path, bytes: &[u8]) -> Result<Self> {
        let manifest = serde_json::from_slice::<Self>(bytes).map_err(|error| corrupt(path, 0, error))?;
        if manifest.format != FORMAT || manifest.version != VERSION {
            let found = format!("{} version {}", manifest.format, manifest.version);
            return Err(corrupt(path, 0, format!("is {found}, not {FORMAT} version {VERSION}")));
        }
        for record in &manifest.files {
            let plain = record.name.ends_with(".safetensors") && !record.name.contains('/');
            if !plain || record.name.starts_with('.') {
                return Err(corrupt(path, 0, format!("names a shard `{}`", record.name)));
            }
        }
        match manifest.parameters.iter().find(|record| record.element_count().is_none()) {
            Some(record) => Err(corrupt(path, 0, format!("parameter `{}` is too large", record.name))),
            None => Ok(manifest),
        }
    }
}

fn corrupt(path: &Path, offset: u64, reason: impl ToString) -> Error {
    Error::Corrupt { path: path.to_owned(), offset, reason: reason.to_string() }
}

/// The folder of a committed step.
#[must_use]
pub fn step_folder(directory: &Path, step: u64) -> PathBuf {
    directory.join(format!("step-{step}"))
}

/// The name of the shard that `seat` of `count` writes.
#[must_use]
pub fn shard_name(seat: usize, count: usize) -> String {
    format!("shard-{seat:05}-of-{count:05}.safetensors")
}

/// Which machine and process namespace this is: a process number means something only there.
fn machine() -> Result<String> {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let text = format!("{} {}", process::boot_id()?, namespace.display());
    Ok(format!("{:08x}", Checksum::of(text.as_bytes())))
}

/// Makes the folder that a save writes into, after removing what dead saves left in `directory`.
///
/// # Errors
/// `Exhausted` if the file system has not `byte_count` bytes, and some for `file_count` files; `Io`.
pub fn begin(directory: &Path, step: u64, byte_count: u64, file_count: usize) -> Result<PathBuf> {
    fs::create_dir_all(directory).map_err(|source| Error::io(directory, "create the folder", source))?;
    remove_leftovers(directory)?;
    let wanted_bytes = byte_count.saturating_add(OVERHEAD_BYTES.saturating_mul(file_count as u64 + 1));
    let free_bytes = disk::free_bytes(directory)?;
    if free_bytes < wanted_bytes {
        let place = format!("the file system of {}", directory.display());
        let remedy = "remove old steps, or save to another directory".to_owned();
        return Err(Error::Exhausted { place, wanted_bytes, free_bytes, remedy });
    }
    let (pid, nonce) = (process::pid(), random::nonce()?);
    let start = process::start_ticks(pid).unwrap_or(0);
    let partial = directory.join(format!(".step-{step}.{}-{pid}-{start}-{nonce}.partial", machine()?));
    fs::create_dir(&partial).map_err(|source| Error::io(&partial, "create the folder", source))?;
    Ok(partial)
}

/// Removes the folders of saves whose writer is dead.
fn remove_leftovers(directory: &Path) -> Result<()> {
    let list = |source| Error::io(directory, "list", source);
    for entry in fs::read_dir(directory).map_err(list)? {
        let entry = entry.map_err(list)?;
        let name = entry.file_name();
        let owner = name.to_str().and_then(owner_of);
        if let Some(owner) = owner.filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let age = entry.metadata().and_then(|data| data.modified()).ok();
            let age = age.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
            let dead = match owner {
                Owner { machine: there, .. } if there != machine()? => age > FOREIGN_AGE,
                Owner { pid, start, .. } => !process::is_alive(pid, start),
            };
            if dead {
                tracing::info!(folder = %entry.path().display(), "removing what an unfinished save left");
                abandon(&entry.path());
            }
        }
    }
    Ok(())
}

struct Owner<'a> {
    machine: &'a str,
    pid: u32,
    start: u64,
}

/// Who writes a folder of this name; `None` if it is not the folder of a save.
fn owner_of(name: &str) -> Option<Owner<'_>> {
    let inner = name.strip_prefix(".step-")?.strip_suffix(".partial")?;
    let mut words = inner.split_once('.')?.1.split('-');
    let (machine, pid, start) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Owner { machine, pid, start })
}

/// Removes the folder of a save that will not be committed; best effort.
pub fn abandon(partial: &Path) {
    if let Err(error) = fs::remove_dir_all(partial)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(folder = %partial.display(), %error, "cannot remove an unfinished save");
    }
}

/// Writes and syncs one shard.
///
/// # Errors
/// `Io`; `TimedOut` and `Interrupted` between two pieces of it.
pub fn write_shard(
    partial: &Path,
    name: &str,
    pieces: &[Piece<'_>],
    deadline: &Deadline<'_>,
) -> Result<FileRecord> {
    let path = partial.join(name);
    let failed = |source| Error::io(&path, "write", source);
    let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
    let mut record = FileRecord { name: name.to_owned(), byte_count: 0, crc32: 0 };
    let mut checksum = Checksum::new();
    let mut put = |bytes: &[u8]| {
        checksum.update(bytes);
        record.byte_count += bytes.len() as u64;
        file.write_all(bytes).map_err(failed)
    };
    // Wider elements first, so that every tensor is aligned to its elements.
    let mut pieces = pieces.to_vec();
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.dtype.size_bytes()));
    put(&header(&path, &pieces)?)?;
    for piece in &pieces {
        disk::pieces(piece.bytes, "writing a checkpoint", deadline, &mut put)?;
    }
    file.sync_all().map_err(|source| Error::io(&path, "sync", source))?;
    record.crc32 = checksum.value();
    Ok(record)
}

/// The length and the header of a shard.
fn header(path: &Path, pieces: &[Piece<'_>]) -> Result<Vec<u8>> {
    let (mut tensors, mut offset) = (Vec::with_capacity(pieces.len()), 0);
    for piece in pieces {
        let end = offset + piece.bytes.byte_count();
        let shape = vec![piece.bytes.byte_count() / piece.dtype.size_bytes()];
        let info = TensorInfo { dtype: stored(piece.dtype)?, shape, data_offsets: (offset, end) };
        tensors.push((format!("{}:{}:{}", piece.kind, piece.name, piece.start), info));
        offset = end;
    }
    let refused =
        |error: &dyn ToString| Error::invalid("parameters", path.display(), "save", error.to_string());
    let metadata = Metadata::new(None, tensors).map_err(|error| refused(&error))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| refused(&error))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > HEADER_LIMIT {
        return Err(refused(&"their names and shapes are longer than a safetensors header may be"));
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    Ok(bytes)
}

fn stored(dtype: Dtype) -> Result<safetensors::Dtype> {
    match dtype {
        Dtype::F64 => Ok(safetensors::Dtype::F64),
        Dtype::F32 => Ok(safetensors::Dtype::F32),
        _ => Err(Error::unsupported(format!("a checkpoint of {dtype}"), "parameters are F32 or F64")),
    }
}

/// Commits a step whose shards are all written and synced; `partial` is its folder afterwards.
///
/// A step of the same number is replaced.
///
/// # Errors
/// `Io`; `Invalid` where the step is there already and the file system cannot exchange two names at once.
pub fn commit(directory: &Path, partial: &Path, manifest: &Manifest) -> Result<()> {
    let path = partial.join(MANIFEST);
    let text = serde_json::to_vec_pretty(manifest)
        .map_err(|error| Error::invalid("manifest", path.display(), "save", error.to_string()))?;
    write_synced(&path, &text)?;
    let checksum = format!("{:08x}\n", Checksum::of(&text));
    write_synced(&partial.join(MANIFEST_CHECKSUM), checksum.as_bytes())?;
    disk::sync_folder(partial)?;
    let folder = step_folder(directory, manifest.step);
    if fs::symlink_metadata(&folder).is_ok() {
        if !disk::exchange_names(partial, &folder)? {
            let reason = format!("{} is there already, and cannot be replaced in one step", folder.display());
            return Err(Error::invalid("step", manifest.step, "argument", reason));
        }
        disk::sync_folder(directory)?;
        // What was replaced has the name of an unfinished save now.
        abandon(partial);
        return Ok(());
    }
    fs::rename(partial, &folder).map_err(|source| Error::io(&folder, "commit", source))?;
    disk::sync_folder(directory)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = OpenOptions::new().write(true).create_new(true).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|source| Error::io(path, "write", source))
}

/// The numbers of the steps committed in `directory`, newest first.
///
/// # Errors
/// `Io`, also if there is none.
pub fn committed(directory: &Path) -> Result<Vec<u64>> {
    let list = |source| Error::io(directory, "list", source);
    let mut steps = Vec::new();
    for entry in fs::read_dir(directory).map_err(list)? {
        let name = entry.map_err(list)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("step-")?.parse::<u64>().ok());
        steps.extend(number.filter(|step| step_folder(directory, *step).is_dir()));
    }
    steps.sort_unstable_by(|one, other| other.cmp(one));
    steps.dedup();
    if steps.is_empty() {
        // ENOENT, so that callers can tell "nothing saved yet" from other errors.
        let source = std::io::Error::from_raw_os_error(2);
        return Err(Error::io(directory, "find a committed step in", source));
    }
    Ok(steps)
}

/// The bytes of a step's manifest, checked against their checksum.
///
/// # Errors
/// `Corrupt`; `Io`.
pub fn read_manifest(folder: &Path) -> Result<Vec<u8>> {
    let path = folder.join(MANIFEST);
    let read = |path: &Path| {
        fs::read(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => corrupt(path, 0, "the file is missing"),
            _ => Error::io(path, "read", source),
        })
    };
    let (bytes, wanted) = (read(&path)?, read(&folder.join(MANIFEST_CHECKSUM))?);
    let found = format!("{:08x}\n", Checksum::of(&bytes));
    if found.as_bytes() != wanted {
        let wanted = String::from_utf8_lossy(&wanted);
        let reason = format!("its checksum is {}, {MANIFEST_CHECKSUM} says {}", found.trim(), wanted.trim());
        return Err(corrupt(&path, 0, reason));
    }
    Ok(bytes)
}

/// Compares a shard with its length and checksum.
///
/// # Errors
/// `Corrupt`; `Io`; `TimedOut` and `Interrupted` between two pieces.
pub fn verify(folder: &Path, record: &FileRecord, deadline: &Deadline<'_>) -> Result<()> {
    let path = folder.join(&record.name);
    let (file, length) = open(&path)?;
    if length != record.byte_count {
        let reason = format!("it has {length} bytes, the manifest says {}", record.byte_count);
        return Err(corrupt(&path, length.min(record.byte_count), reason));
    }
    let (mut checksum, mut offset, mut buffer) = (Checksum::new(), 0, vec![0; 1 << 20]);
    while offset < length {
        deadline.check("reading a checkpoint", Vec::new)?;
        let rest = usize::try_from(length - offset).unwrap_or(usize::MAX);
        let part = rest.min(buffer.len());
        disk::read_exact(&file, &path, offset, &mut buffer[..part])?;
        checksum.update(&buffer[..part]);
        offset += part as u64;
    }
    if checksum.value() != record.crc32 {
        let reason = format!(
            "the checksum of its {length} bytes is {:08x}, the manifest says {:08x}",
            checksum.value(),
            record.crc32
        );
        return Err(corrupt(&path, 0, reason));
    }
    Ok(())
}

fn open(path: &Path) -> Result<(File, u64)> {
    let opened = File::open(path).and_then(|file| file.metadata().map(|data| (file, data)));
    match opened {
        Ok((file, data)) if data.is_file() => Ok((file, data.len())),
        Ok(_) => Err(corrupt(path, 0, "it is not a file")),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(corrupt(path, 0, "the file is missing"))
        }
        Err(source) => Err(Error::io(path, "open", source)),
    }
}

/// Where a run of elements lies.
#[derive(Debug)]
struct Extent {
    elements: Range<usize>,
    element_bytes: usize,
    file: usize,
    offset: u64,
}

/// Where everything of one committed step lies.
#[derive(Debug)]
pub struct Contents {
    paths: Vec<PathBuf>,
    /// By kind and parameter, ascending and without gaps.
    extents: BTreeMap<(String, String), Vec<Extent>>,
}

impl Contents {
    /// Reads the headers of all shards and checks that they hold every element of every parameter and state once.
    ///
    /// # Errors
    /// `Corrupt`; `Io`; `TimedOut` and `Interrupted` between two shards.
    pub fn open(folder: &Path, manifest: &Manifest, deadline: &Deadline<'_>) -> Result<Self> {
        let mut contents = Self { paths: Vec::new(), extents: BTreeMap::new() };
        let dtypes = manifest.parameters.iter().map(|record| (record.name.as_str(), record.dtype));
        let dtypes = dtypes.collect::<BTreeMap<_, _>>();
        for record in &manifest.files {
            deadline.check("reading a checkpoint", Vec::new)?;
            contents.add(folder.join(&record.name), &dtypes)?;
        }
        for record in &manifest.parameters {
            let kinds = std::iter::once(PARAMETER).chain(manifest.states.iter().map(String::as_str));
            for kind in kinds {
                contents.complete(folder, kind, record)?;
            }
        }
        Ok(contents)
    }

    fn add(&mut self, path: PathBuf, dtypes: &BTreeMap<&str, Dtype>) -> Result<()> {
        let (file, length) = open(&path)?;
        let mut number = [0; 8];
        disk::read_exact(&file, &path, 0, &mut number)?;
        let header = u64::from_le_bytes(number);
        if header > HEADER_LIMIT || header > length - 8 {
            return Err(corrupt(&path, 0, format!("its header claims {header} of {length} bytes")));
        }
        let size = usize::try_from(header).map_err(|error| corrupt(&path, 0, error))?;
        let mut text = vec![0; size];
        disk::read_exact(&file, &path, 8, &mut text)?;
        let metadata = serde_json::from_slice::<Metadata>(&text).map_err(|error| corrupt(&path, 8, error))?;
        if metadata.data_len() as u64 != length - 8 - header {
            let reason = format!("its tensors have {} bytes, which the file has not", metadata.data_len());
            return Err(corrupt(&path, 8, reason));
        }
        for (name, info) in metadata.tensors() {
            let unknown = || corrupt(&path, 8, format!("it holds a tensor `{name}`"));
            let (kind, rest) = name.split_once(':').ok_or_else(unknown)?;
            let (parameter, start) = rest.rsplit_once(':').ok_or_else(unknown)?;
            let start = start.parse::<usize>().map_err(|_| unknown())?;
            let dtype = dtypes.get(parameter).ok_or_else(unknown)?;
            let count = match info.shape[..] {
                [count] if stored(*dtype)? == info.dtype => count,
                _ => return Err(unknown()),
            };
            let end = start.checked_add(count).ok_or_else(unknown)?;
            let offset = 8 + header + info.data_offsets.0 as u64;
            let (element_bytes, file) = (dtype.size_bytes(), self.paths.len());
            let extent = Extent { elements: start..end, element_bytes, file, offset };
            self.extents.entry((kind.to_owned(), parameter.to_owned())).or_default().push(extent);
        }
        self.paths.push(path);
        Ok(())
    }

    fn complete(&mut self, folder: &Path, kind: &str, record: &ParameterRecord) -> Result<()> {
        let key = (kind.to_owned(), record.name.clone());
        let extents = self.extents.entry(key).or_default();
        extents.sort_by_key(|extent| (extent.elements.start, extent.elements.end));
        let mut next = 0;
        for extent in extents.iter() {
            if extent.elements.start != next {
                break;
            }
            next = extent.elements.end;
        }
        let last = extents.iter().map(|extent| extent.elements.end).max().unwrap_or(0);
        if record.element_count() != Some(next) || last != next {
            let reason = format!("its shards do not hold every {kind} element of `{}` once", record.name);
            return Err(corrupt(&folder.join(MANIFEST), 0, reason));
        }
        Ok(())
    }

    /// Fills `target` with the elements from `start` on of a parameter or one of its states.
    ///
    /// # Errors
    /// `Corrupt` for elements that are not there; `Io`; `TimedOut` and `Interrupted` between two pieces.
    pub fn read(
        &self,
        kind: &str,
        name: &str,
        start: usize,
        target: &mut SpanMut<'_>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let extents = self.extents.get(&(kind.to_owned(), name.to_owned())).map_or(&[][..], Vec::as_slice);
        let element_bytes = extents.first().map_or(1, |extent| extent.element_bytes);
        let wanted = start..start + target.byte_count() / element_bytes;
        let first = extents.partition_point(|extent| extent.elements.end <= wanted.start);
        let mut done = wanted.start;
        for extent in &extents[first.min(extents.len())..] {
            let part = done..extent.elements.end.min(wanted.end);
            if part.is_empty() || extent.elements.start > done {
                break;
            }
            let path = &self.paths[extent.file];
            let offset = extent.offset + ((part.start - extent.elements.start) * element_bytes) as u64;
            let bytes = (part.start - start) * element_bytes..(part.end - start) * element_bytes;
            disk::read_into(&open(path)?.0, path, offset, &mut target.part(bytes)?, deadline)?;
            done = part.end;
        }
        if done < wanted.end {
            let path = self.paths.first().cloned().unwrap_or_default();
            return Err(corrupt(&path, 0, format!("it has no element {done} of {kind} `{name}`")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("uform-{name}-{}", random::nonce().unwrap()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn deadline() -> Deadline<'static> {
        Deadline::after(Duration::from_secs(60))
    }

    fn manifest(step: u64) -> Manifest {
        let mut manifest = Manifest::new(step, 7, 2);
        manifest.optimizer = "sgd".into();
        manifest.states = vec!["momentum".into()];
        manifest.parameters = vec![
            ParameterRecord { name: "w:1".into(), dtype: Dtype::F32, shape: vec![3, 5] },
            ParameterRecord { name: "z".into(), dtype: Dtype::F64, shape: vec![] },
            ParameterRecord { name: "none".into(), dtype: Dtype::F64, shape: vec![0] },
        ];
        manifest
    }

    /// Two shards that cut `w:1` after its fourth element; values are position and `step`.
    fn save(directory: &Path, step: u64) {
        let partial = begin(directory, step, 1000, 2).unwrap();
        let narrow = (0..15u16).map(|position| f32::from(position) + step as f32).collect::<Vec<_>>();
        let wide = [step as f64 / 3.0];
        let piece = |kind, name, dtype, start, bytes| Piece { kind, name, dtype, start, bytes };
        let mut manifest = manifest(step);
        for seat in 0..2 {
            let (range, mut pieces) = (if seat == 0 { 0..4 } else { 4..15 }, Vec::new());
            for kind in [PARAMETER, "momentum"] {
                let bytes = Span::of(&narrow[range.clone()]);
                pieces.push(piece(kind, "w:1", Dtype::F32, range.start, bytes));
                if seat == 1 {
                    pieces.push(piece(kind, "z", Dtype::F64, 0, Span::of(&wide)));
                }
            }
            manifest.files.push(write_shard(&partial, &shard_name(seat, 2), &pieces, &deadline()).unwrap());
        }
        commit(directory, &partial, &manifest).unwrap();
    }

    fn load(directory: &Path, step: u64) -> Result<(Manifest, Contents)> {
        let folder = step_folder(directory, step);
        let manifest = Manifest::decode(&folder.join(MANIFEST), &read_manifest(&folder)?)?;
        manifest.files.iter().try_for_each(|record| verify(&folder, record, &deadline()))?;
        let contents = Contents::open(&folder, &manifest, &deadline())?;
        Ok((manifest, contents))
    }

    #[test]
    fn what_was_saved_is_read_at_any_cut() {
        let folder = Folder::new("checkpoint");
        for step in [9, 10, 2, 10] {
            save(&folder.0, step);
        }
        assert_eq!(committed(&folder.0).unwrap(), [10, 9, 2]);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 3, "nothing unfinished is left");
        let (found, contents) = load(&folder.0, 9).unwrap();
        assert_eq!((found.step, found.updates), (9, 7));
        for range in [0..15, 2..7, 4..4, 14..15] {
            let mut values = vec![0f32; range.len()];
            let mut target = SpanMut::of(&mut values);
            contents.read("momentum", "w:1", range.start, &mut target, &deadline()).unwrap();
            assert_eq!(values, range.map(|position| position as f32 + 9.0).collect::<Vec<_>>());
        }
        let mut one = [0f64];
        contents.read(PARAMETER, "z", 0, &mut SpanMut::of(&mut one), &deadline()).unwrap();
        assert_eq!(one, [3.0]);
        let past = contents.read(PARAMETER, "z", 1, &mut SpanMut::of(&mut one), &deadline());
        assert!(matches!(past, Err(Error::Corrupt { .. })));
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_found() {
        let folder = Folder::new("corrupt");
        save(&folder.0, 1);
        let step = step_folder(&folder.0, 1);
        let names = fs::read_dir(&step).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        assert_eq!(names.len(), 4);
        for path in names {
            let bytes = fs::read(&path).unwrap();
            for position in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[position] ^= 1 << (position % 8);
                fs::write(&path, &damaged).unwrap();
                let error = load(&folder.0, 1).unwrap_err();
                assert!(matches!(error, Error::Corrupt { .. }), "{} {position}: {error}", path.display());
            }
            for length in [0, 1, 7, 8, 9, bytes.len() / 2, bytes.len() - 1] {
                fs::write(&path, &bytes[..length.min(bytes.len() - 1)]).unwrap();
                assert!(matches!(load(&folder.0, 1), Err(Error::Corrupt { .. })));
            }
            fs::remove_file(&path).unwrap();
            assert!(matches!(load(&folder.0, 1), Err(Error::Corrupt { .. })));
            fs::write(&path, &bytes).unwrap();
        }
        load(&folder.0, 1).unwrap();
    }

    #[test]
    fn headers_are_checked_before_memory_is_taken() {
        let folder = Folder::new("hostile");
        let path = folder.0.join("a.safetensors");
        let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let hostile = [
            u64::MAX.to_le_bytes().to_vec(),
            (1u64 << 40).to_le_bytes().to_vec(),
            header("{"),
            header(r#"{"w:1":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#),
            header(
                r#"{"parameter:w:1:0":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}"#,
            ),
            header(
                r#"{"parameter:z:0":{"dtype":"F64","shape":[18446744073709551615],"data_offsets":[0,0]}}"#,
            ),
            header(
                r#"{"parameter:none:18446744073709551615":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}}"#,
            ),
            header("{}"),
        ];
        for bytes in hostile {
            fs::write(&path, &bytes).unwrap();
            let mut manifest = manifest(1);
            let record = FileRecord { name: "a.safetensors".into(), byte_count: 1, crc32: 0 };
            manifest.files = vec![record];
            let error = Contents::open(&folder.0, &manifest, &deadline()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        }
        let mut manifest = manifest(1);
        manifest.files = vec![FileRecord { name: "../x.safetensors".into(), byte_count: 1, crc32: 0 }];
        let text = serde_json::to_vec(&manifest).unwrap();
        assert!(Manifest::decode(&path, &text).is_err());
    }

    #[test]
    fn leftovers_of_the_dead_go_and_those_of_the_living_stay() {
        let folder = Folder::new("leftover");
        let living = begin(&folder.0, 3, 10, 1).unwrap();
        let name = living.file_name().unwrap().to_str().unwrap().to_owned();
        let owner = owner_of(&name).unwrap();
        let (pid, start) = (owner.pid, owner.start);
        let dead =
            folder.0.join(name.replace(&format!("-{pid}-{start}-"), &format!("-{pid}-{}-", start + 1)));
        let foreign = folder.0.join(name.replace(owner.machine, "other"));
        let odd = folder.0.join(".step-x.partial");
        for path in [&dead, &foreign, &odd] {
            fs::create_dir(path).unwrap();
        }
        fs::write(dead.join("shard"), "x").unwrap();
        begin(&folder.0, 4, 10, 1).unwrap();
        assert!(!dead.exists() && living.exists() && foreign.exists() && odd.exists());
        assert!(matches!(committed(&folder.0), Err(Error::Io { .. })));
    }

    #[test]
    fn a_full_disk_is_told_before_anything_is_written() {
        let folder = Folder::new("full");
        let error = begin(&folder.0, 1, u64::MAX, 1).unwrap_err();
        assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }
}
