//! Saving and loading together: who writes what, and that all members end with the same result.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Contents, FileRecord, Manifest, PARAMETER, ParameterRecord, Piece};
use crate::error::{Error, Result};
use crate::sys::{Deadline, SpanMut};

use super::agreement::{Entry, pack, unpack};
use super::bucket::Entry as Place;
use super::optimizer::Buffer;
use super::vram::Copied;
use super::{Progress, Shard, Trainer, open_shards, part};

/// The part of a parameter that lies in a shard: its first element, and its bytes in the flat memory.
struct Cut<'a> {
    place: &'a Place,
    first: usize,
    bytes: Range<usize>,
}

impl Trainer {
    /// Writes parameters and optimizer state as step `step` of `directory`; collective.
    ///
    /// All members must see the same directory. The step is there when the call returns, and not at all if any member
    /// died or failed before. Earlier steps are kept; one of the same number is replaced. One run at a time may save
    /// into a directory.
    ///
    /// # Errors
    /// `Io`, `Exhausted` and `Invalid` of one member are returned on all; `Disagreed` for different steps; `Contended`,
    /// `Closed`, and `Lost`, `TimedOut`, `Interrupted`, which close the trainer.
    pub fn save(&self, directory: &Path, step: u64, deadline: &Deadline<'_>) -> Result<()> {
        let progress = self.hold(Entry::Save, deadline)?;
        self.enter(Entry::Save, step, None, deadline)?;
        let seat = self.core.members.seat();
        let mut partial = None;
        let saved = self.write(&progress, directory, step, &mut partial, deadline);
        if let (Err(_), 0, Some(partial)) = (&saved, seat, &partial) {
            checkpoint::abandon(partial);
        }
        saved
    }

    fn write(
        &self,
        progress: &Progress,
        directory: &Path,
        step: u64,
        partial: &mut Option<PathBuf>,
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        let (seat, count) = (self.core.members.seat(), self.core.members.count());
        let begun = if seat == 0 {
            let arrays = self.core.optimizer.states().len() as u64 + 1;
            let byte_count = (self.core.layout.byte_count as u64).saturating_mul(arrays);
            checkpoint::begin(directory, step, byte_count, count).map(|folder| {
                let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                *partial = Some(folder);
                name
            })
        } else {
            Ok(String::new())
        };
        let (_, names) = self.agree(begun, |name| name.clone().into_bytes(), deadline)?;
        // Only the last part of the path is taken from another member.
        let name = String::from_utf8_lossy(&names[0]).replace('/', "");
        let folder = directory.join(name);
        let written = seen(&folder).and_then(|()| self.write_own_shard(progress, &folder, deadline));
        let (_, records) = self.agree(written, pack_record, deadline)?;
        let committed = if seat == 0 {
            let files = records.iter().map(|bytes| unpack_record(bytes)).collect::<Option<Vec<_>>>();
            let files =
                files.ok_or_else(|| Error::invalid("shard", "record", "another index", "is unreadable"));
            files.and_then(|files| {
                let manifest = self.manifest(step, progress.updates, files);
                checkpoint::commit(directory, &folder, &manifest)
            })
        } else {
            Ok(())
        };
        self.agree(committed, |()| Vec::new(), deadline).map(|_| ())
    }

    fn write_own_shard(
        &self,
        progress: &Progress,
        folder: &Path,
        deadline: &Deadline<'_>,
    ) -> Result<FileRecord> {
        // What lies on a GPU is copied first.
        let copied = self.core.vram().map(|vram| vram.copied(deadline)).transpose()?;
        let ranges = match self.core.vram() {
            None => progress.shards.iter().map(|shard| shard.bytes.clone()).collect::<Vec<_>>(),
            Some(vram) => vram.owned().collect(),
        };
        let mut pieces = Vec::new();
        for (position, range) in ranges.iter().enumerate() {
            let (parameters, states) = match &copied {
                None => {
                    let ram = self.core.ram()?;
                    let whole = part(&*ram.parameters, ram.hosts.first())?;
                    (whole.part(range.clone())?, &progress.shards[position].states)
                }
                Some(copied) => (copied[position].parameters.span(), &copied[position].states),
            };
            for cut in self.cuts(range) {
                let (name, dtype) = (cut.place.shape.name.as_str(), cut.place.shape.dtype);
                let within = cut.bytes.start - range.start..cut.bytes.end - range.start;
                let bytes = parameters.part(within.clone())?;
                pieces.push(Piece { kind: PARAMETER, name, dtype, start: cut.first, bytes });
                for (kind, state) in self.core.optimizer.states().iter().zip(states) {
                    let bytes = state.span().part(within.clone())?;
                    pieces.push(Piece { kind, name, dtype, start: cut.first, bytes });
                }
            }
        }
        let name = checkpoint::shard_name(self.core.members.seat(), self.core.members.count());
        checkpoint::write_shard(folder, &name, &pieces, deadline)
    }

    /// The parts of parameters that lie in a range of the flat memory, none of them empty.
    fn cuts(&self, shard: &Range<usize>) -> impl Iterator<Item = Cut<'_>> {
        let shard = shard.clone();
        self.core.layout.entries.iter().filter_map(move |place| {
            let whole = place.bytes();
            let bytes = whole.start.max(shard.start)..whole.end.min(shard.end);
            let first = bytes.start.saturating_sub(whole.start) / place.shape.dtype.size_bytes();
            (!bytes.is_empty()).then_some(Cut { place, first, bytes })
        })
    }

    fn manifest(&self, step: u64, updates: u64, files: Vec<FileRecord>) -> Manifest {
        let mut manifest = Manifest::new(step, updates, self.core.members.count());
        self.core.optimizer.kind().clone_into(&mut manifest.optimizer);
        manifest.states = self.core.optimizer.states().iter().map(|&state| state.to_owned()).collect();
        let numbers = self.core.optimizer.hyper_parameters().into_iter();
        manifest.hyper_parameters = numbers.map(|(name, value)| (name.to_owned(), value)).collect();
        let record = |place: &Place| ParameterRecord {
            name: place.shape.name.clone(),
            dtype: place.shape.dtype,
            shape: place.shape.extents.clone(),
        };
        manifest.parameters = self.core.layout.entries.iter().map(record).collect();
        manifest.files = files;
        manifest
    }

    /// Takes parameters and optimizer state of the newest intact step of `directory`, and gives its number; collective.
    ///
    /// Any number of processes may have written it. A damaged step is left out with a warning, and the one before is
    /// taken. The trainer's own learning rate and other numbers stay.
    ///
    /// # Errors
    /// `Io` with "not found" if nothing was saved, `Corrupt` if all steps are damaged, `Invalid` if the parameters or the
    /// optimizer are others: on all members, nothing is changed. `Contended`, `Closed`, `Disagreed`, and `Lost`,
    /// `TimedOut`, `Interrupted`, which close the trainer; so does an error while values are read.
    pub fn load(&self, directory: &Path, deadline: &Deadline<'_>) -> Result<u64> {
        let mut progress = self.hold(Entry::Load, deadline)?;
        self.enter(Entry::Load, 0, None, deadline)?;
        let steps =
            if self.core.members.seat() == 0 { checkpoint::committed(directory) } else { Ok(Vec::new()) };
        let bytes = |steps: &Vec<u64>| steps.iter().flat_map(|step| step.to_le_bytes()).collect();
        let (_, steps) = self.agree(steps, bytes, deadline)?;
        let mut damage = None;
        for step in steps[0].as_chunks::<8>().0 {
            let step = u64::from_le_bytes(*step);
            let folder = checkpoint::step_folder(directory, step);
            match self.choose(&folder, step, deadline) {
                Ok((manifest, contents)) => {
                    let shards = self.fill(&manifest, &contents, deadline);
                    // From here on the parameters of all may be half read.
                    let agreed = self.agree(shards, |_| Vec::new(), deadline);
                    progress.shards = self.broken(agreed)?.0;
                    if let Some(vram) = self.core.vram() {
                        self.broken(vram.gather(deadline))?;
                    } else if !self.core.ram()?.hosts.is_one() {
                        let crossed = self.cross_parameters(&mut progress.crossing, deadline);
                        self.broken(crossed.and_then(|()| self.core.members.fence(deadline)))?;
                    }
                    progress.updates = manifest.updates;
                    return Ok(step);
                }
                Err(error @ Error::Corrupt { .. }) => {
                    tracing::warn!(step, error = %error.chain(), "a damaged checkpoint is left out");
                    damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(damage.unwrap_or_else(|| {
            Error::invalid("directory", directory.display(), "argument", "holds no committed step")
        }))
    }

    /// Verifies one step together: the manifest of index 0, and every shard by one member.
    fn choose(&self, folder: &Path, step: u64, deadline: &Deadline<'_>) -> Result<(Manifest, Contents)> {
        let path = folder.join("manifest.json");
        let seat = self.core.members.seat();
        let bytes = if seat == 0 { checkpoint::read_manifest(folder) } else { Ok(Vec::new()) };
        let bytes = self.agree(bytes, Vec::clone, deadline)?.1.swap_remove(0);
        // All members decode the same bytes, so they find the same.
        let manifest = Manifest::decode(&path, &bytes)?;
        if manifest.step != step {
            let reason = format!("it is of step {}", manifest.step);
            return Err(Error::Corrupt { path, offset: 0, reason });
        }
        let own = manifest.files.iter().skip(seat).step_by(self.core.members.count());
        let verified = seen(folder)
            .and_then(|()| own.map(|record| checkpoint::verify(folder, record, deadline)).collect())
            .and_then(|_: Vec<()>| Contents::open(folder, &manifest, deadline));
        let (contents, _) = self.agree(verified, |_| Vec::new(), deadline)?;
        self.matches(&manifest)?;
        Ok((manifest, contents))
    }

    /// Compares what was saved with what is trained.
    fn matches(&self, manifest: &Manifest) -> Result<()> {
        let refused = |argument: String, value: String, reason: String| {
            Err(Error::invalid(argument, value, "checkpoint", reason))
        };
        if manifest.optimizer != self.core.optimizer.kind() {
            let reason = format!("the trainer's is {}", self.core.optimizer.kind());
            return refused("optimizer".to_owned(), manifest.optimizer.clone(), reason);
        }
        if let Some(state) = self.core.optimizer.states().iter().find(|&&state| !has(&manifest.states, state))
        {
            let reason = format!("the trainer's optimizer needs its {state}");
            return refused("optimizer states".to_owned(), format!("{:?}", manifest.states), reason);
        }
        let saved = manifest.parameters.iter().map(|record| (record.name.as_str(), record));
        let mut saved = saved.collect::<BTreeMap<_, _>>();
        for place in &self.core.layout.entries {
            let (name, argument) = (place.shape.name.as_str(), format!("parameter `{}`", place.shape.name));
            let Some(record) = saved.remove(name) else {
                return refused(argument, "nothing".to_owned(), format!("the trainer's is {}", place.shape));
            };
            if record.dtype != place.shape.dtype || record.shape != place.shape.extents {
                let value = format!("{} {:?}", record.dtype, record.shape);
                return refused(argument, value, format!("the trainer's is {}", place.shape));
            }
        }
        match saved.first_key_value() {
            Some((name, record)) => {
                let value = format!("{} {:?}", record.dtype, record.shape);
                refused(format!("parameter `{name}`"), value, "the trainer has no such parameter".to_owned())
            }
            None => Ok(()),
        }
    }

    /// Reads this member's shards: parameters for all members of the host, state for itself.
    fn fill(&self, manifest: &Manifest, contents: &Contents, deadline: &Deadline<'_>) -> Result<Vec<Shard>> {
        if let Some(vram) = self.core.vram() {
            let mut copied = vram.blank()?;
            for (range, copied) in vram.owned().zip(&mut copied) {
                let Copied { parameters, states } = copied;
                self.fill_shard(contents, &range, parameters.span_mut(), states, deadline)?;
            }
            vram.take(&copied, deadline)?;
            return Ok(Vec::new());
        }
        let (seat, count) = (self.core.members.seat(), self.core.members.count());
        let mut shards =
            open_shards(&self.core.layout, &self.core.optimizer, self.core.clip_norm.is_some(), seat, count)?;
        for shard in &mut shards {
            let range = shard.bytes.clone();
            let parameters = self.core.ram()?.parameters()?.into_part(range.clone())?;
            self.fill_shard(contents, &range, parameters, &mut shard.states, deadline)?;
        }
        tracing::debug!(step = manifest.step, files = manifest.files.len(), "loaded");
        Ok(shards)
    }

    /// Reads what lies in a range of the layout: parameters and states that begin with it.
    fn fill_shard(
        &self,
        contents: &Contents,
        range: &Range<usize>,
        mut parameters: SpanMut<'_>,
        states: &mut [Buffer],
        deadline: &Deadline<'_>,
    ) -> Result<()> {
        for cut in self.cuts(range) {
            let read = |kind: &str, mut target: SpanMut<'_>| {
                contents.read(kind, &cut.place.shape.name, cut.first, &mut target, deadline)
            };
            let within = cut.bytes.start - range.start..cut.bytes.end - range.start;
            read(PARAMETER, parameters.part(within.clone())?)?;
            for (kind, state) in self.core.optimizer.states().iter().zip(&mut *states) {
                read(kind, Buffer::span_mut(state).part(within.clone())?)?;
            }
        }
        Ok(())
    }

    /// Agrees on a part of a call; an end of the deadline here ends the group, since the others wait for this member.
    fn agree<T>(
        &self,
        own: Result<T>,
        message: impl FnOnce(&T) -> Vec<u8>,
        deadline: &Deadline<'_>,
    ) -> Result<(T, Vec<Vec<u8>>)> {
        match own {
            Err(error @ (Error::TimedOut { .. } | Error::Interrupted { .. })) => self.broken(Err(error)),
            own => self.ended(self.core.members.outcome(own, message, deadline)),
        }
    }
}

/// Refuses a folder that index 0 sees and this member does not.
fn seen(folder: &Path) -> Result<()> {
    match folder.metadata() {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            let operation = "find what index 0 sees (a checkpoint needs the same directory on every host) in";
            Err(Error::io(folder, operation, source))
        }
        _ => Ok(()),
    }
}

fn has(names: &[String], wanted: &str) -> bool {
    names.iter().any(|name| name == wanted)
}

fn pack_record(record: &FileRecord) -> Vec<u8> {
    let (length, checksum) = (record.byte_count.to_le_bytes(), record.crc32.to_le_bytes());
    pack([record.name.as_bytes(), &length, &checksum])
}

fn unpack_record(bytes: &[u8]) -> Option<FileRecord> {
    let fields = unpack(bytes)?;
    let [name, length, checksum] = fields[..] else { return None };
    Some(FileRecord {
        name: String::from_utf8(name.to_vec()).ok()?,
        byte_count: u64::from_le_bytes(length.try_into().ok()?),
        crc32: u32::from_le_bytes(checksum.try_into().ok()?),
    })
}
