//! Reading records, whole or not: what a file says is checked, and what it cannot say is an error that names it.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::Identity;
use super::layout::{
    ANCHORS, CALLS, FILE_BYTES, GROUPS, HEADER_WORDS, Header, MAGIC, MATCHED_LAST, TEXT_BYTES, VERSION,
    call_offset, group_offset, site_offset,
};
use crate::error::{Error, Result};
use crate::vocabulary::{Dtype, ReduceOp, Status, Verb};

/// Files of a folder that are looked at.
const FILES_LIMIT: usize = 100_000;

/// Nanoseconds since 1970 by the clock of the member's host.
pub type Moment = i128;

/// The record of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The file.
    pub path: PathBuf,
    /// Who wrote it.
    pub identity: Identity,
    /// Whether a call ended its group.
    pub has_failed: bool,
    /// Whether the member closed its mesh.
    pub is_closed: bool,
    /// Whether it gives the stacks of its interpreter where a call fails.
    pub gives_stacks: bool,
    /// How many calls were begun, those included that are no longer here.
    pub begun: u64,
    /// The last calls, in their order.
    pub calls: Vec<RecordedCall>,
}

/// One call of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// Its number in this record, from 1.
    pub number: u64,
    /// The group.
    pub group: String,
    /// Its number in the group, from 1; 0 for a call that was refused before it got one.
    pub sequence: u64,
    /// The verb.
    pub verb: Verb,
    /// The element type.
    pub dtype: Dtype,
    /// The operation.
    pub op: ReduceOp,
    /// The elements.
    pub count: u64,
    /// The root.
    pub root: u64,
    /// Where it was called; empty if that is unknown.
    pub site: String,
    /// When it was entered.
    pub entered: Moment,
    /// When all members had made it.
    pub matched: Option<Moment>,
    /// When it ended.
    pub left: Option<Moment>,
    /// How it ended; `None` if it has not.
    pub outcome: Option<Status>,
}

impl std::fmt::Display for RecordedCall {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.verb.word())?;
        if self.sequence != 0 {
            write!(formatter, " #{}", self.sequence)?;
        }
        match self.verb {
            Verb::Barrier | Verb::Arena => {}
            Verb::AllReduce | Verb::ReduceScatter => {
                write!(formatter, "({} {}, {})", self.count, self.dtype, self.op)?;
            }
            Verb::Reduce => {
                write!(formatter, "({} {}, {}, root {})", self.count, self.dtype, self.op, self.root)?;
            }
            Verb::Broadcast | Verb::Gather | Verb::Scatter => {
                write!(formatter, "({} {}, root {})", self.count, self.dtype, self.root)?;
            }
            _ => write!(formatter, "({} {})", self.count, self.dtype)?,
        }
        if self.group != "run" {
            write!(formatter, " of {}", self.group)?;
        }
        if self.site.is_empty() { Ok(()) } else { write!(formatter, " at {}", self.site) }
    }
}

impl Record {
    /// What the member was last seen doing, as a part of a sentence.
    #[must_use]
    pub fn last_words(&self) -> String {
        let end = if self.is_closed { ", then it closed the mesh" } else { "" };
        let Some(call) = self.calls.iter().rev().find(|call| call.outcome.is_none()).or(self.calls.last())
        else {
            return format!("no call yet{end}");
        };
        let state = match (call.outcome, call.matched) {
            (None, None) => "in ",
            (None, Some(_)) => "in (all had come) ",
            (Some(Status::Success), _) => "in the user's code after ",
            (Some(_), _) => "failed in ",
        };
        format!("{state}{call}{end}")
    }
}

/// The bytes of a file, its words and texts.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn word(&self, offset: usize) -> u64 {
        let bytes = self.0.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }

    fn header(&self, word: Header) -> u64 {
        self.word(8 * word as usize)
    }

    fn text(&self, offset: usize, room: usize) -> String {
        let length = usize::try_from(self.word(offset)).unwrap_or(room).min(room - 8);
        let bytes = self.0.get(offset + 8..offset + 8 + length).unwrap_or_default();
        String::from_utf8_lossy(bytes).replace(char::is_control, " ")
    }

    fn identity(&self) -> Identity {
        let text = |position: usize| self.text(HEADER_WORDS + position * 2 * TEXT_BYTES, 2 * TEXT_BYTES);
        let number = |word: Header| usize::try_from(self.header(word)).unwrap_or(usize::MAX);
        Identity {
            index: number(Header::Index),
            count: number(Header::Count),
            run: text(0),
            host: text(1),
            boot_id: text(2),
            command: text(3),
            pid: u32::try_from(self.header(Header::Pid)).unwrap_or(0),
            start_ticks: self.header(Header::StartTicks),
        }
    }

    /// What turns ticks into moments: the first pair of clock readings and the last whole one.
    fn clock(&self) -> impl Fn(u64) -> Option<Moment> + use<> {
        let pair = |place: usize| {
            let start = 8 * (Header::Anchors as usize + 2 * place);
            (self.word(start), self.word(start + 8))
        };
        let first = pair(0);
        let whole = (1..ANCHORS).map(pair).filter(|(ticks, wall)| *wall != 0 && *ticks > first.0);
        let last = whole.max().unwrap_or((first.0.saturating_add(1), first.1.saturating_add(1)));
        move |ticks| {
            let span = i128::from(last.0) - i128::from(first.0);
            let passed = i128::from(ticks) - i128::from(first.0);
            let scale = i128::from(last.1) - i128::from(first.1);
            let moment = i128::from(first.1).saturating_add(passed.saturating_mul(scale) / span.max(1));
            // A damaged file may say anything; what is left can be subtracted without a thought.
            (ticks != 0).then(|| moment.clamp(0, i128::from(u64::MAX)))
        }
    }

    fn call(&self, number: u64, moment: &dyn Fn(u64) -> Option<Moment>) -> Option<RecordedCall> {
        let offset = call_offset(number);
        let word = |position: usize| self.word(offset + 8 * position);
        if word(0) != number + 1 {
            return None;
        }
        let kinds = word(4);
        let kind = |shift: u32| i32::from((kinds >> shift) as u8);
        let group = usize::try_from(word(6) >> 32).unwrap_or(0).min(GROUPS - 1);
        let site = (kinds >> 32) as u32;
        let (entered, left) = (moment(word(1))?, moment(word(3)));
        // One that was killed between the two has ended at once, too.
        let matched = if word(2) == MATCHED_LAST { left.or(Some(entered)) } else { moment(word(2)) };
        Some(RecordedCall {
            number: number + 1,
            group: self.text(group_offset(group), TEXT_BYTES),
            sequence: word(7),
            verb: Verb::from_number(kind(0))?,
            dtype: Dtype::from_number(kind(8))?,
            op: ReduceOp::from_number(kind(16))?,
            count: word(5),
            root: word(6) & 0xffff_ffff,
            site: if site == 0 { String::new() } else { self.text(site_offset(site), TEXT_BYTES) },
            entered,
            matched,
            left,
            outcome: Status::from_number(kind(24) - 1),
        })
    }
}

fn corrupt(path: &Path, offset: u64, reason: impl Into<String>) -> Error {
    Error::Corrupt { path: path.to_owned(), offset, reason: reason.into() }
}

fn open(path: &Path, limit: usize) -> Result<Vec<u8>> {
    let failed = |operation: &'static str| move |source| Error::io(path, operation, source);
    let found = std::fs::symlink_metadata(path).map_err(failed("look at"))?;
    if !found.is_file() {
        return Err(corrupt(path, 0, "is no file"));
    }
    let file = std::fs::File::open(path).map_err(failed("open"))?;
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes).map_err(failed("read"))?;
    Ok(bytes)
}

fn check(path: &Path, bytes: &Bytes<'_>) -> Result<()> {
    if bytes.header(Header::Magic) != MAGIC {
        return Err(corrupt(path, 0, "is no record of calls, or one that was never whole"));
    }
    match bytes.header(Header::Version) {
        VERSION => Ok(()),
        other => Err(corrupt(path, 8, format!("has version {other}; this program reads version {VERSION}"))),
    }
}

/// Reads the record of one member; calls that are being written are left out.
///
/// # Errors
/// `Io` if it cannot be read; `Corrupt` if it is none, was cut short, or is of another version.
pub fn read(path: &Path) -> Result<Record> {
    let all = open(path, FILE_BYTES)?;
    check(path, &Bytes(&all))?;
    if all.len() < FILE_BYTES {
        let reason = format!("ends here, where a record has {FILE_BYTES} bytes");
        return Err(corrupt(path, all.len() as u64, reason));
    }
    let bytes = Bytes(&all);
    let clock = bytes.clock();
    let begun = bytes.header(Header::Next);
    let first = begun.saturating_sub(CALLS as u64);
    Ok(Record {
        path: path.to_owned(),
        identity: bytes.identity(),
        has_failed: bytes.header(Header::HasFailed) != 0,
        is_closed: bytes.header(Header::IsClosed) != 0,
        gives_stacks: bytes.header(Header::GivesStacks) != 0,
        begun,
        calls: (first..begun).filter_map(|number| bytes.call(number, &clock)).collect(),
    })
}

/// Bytes of stacks that are read.
const STACKS_LIMIT: usize = 1 << 20;

/// The last stacks of its interpreter that a member has left beside its record: when it wrote them, and their text.
#[must_use]
pub fn read_stacks(record: &Path) -> Option<(Moment, String)> {
    let all = open(&super::stacks::file_of(record), STACKS_LIMIT).ok()?;
    let text =
        String::from_utf8_lossy(&all).replace(|letter: char| letter != '\n' && letter.is_control(), " ");
    let mut last = None;
    for part in text.split(super::stacks::TITLE).skip(1) {
        let (title, stacks) = part.split_once('\n').unwrap_or((part, ""));
        // Where they could not be had the title stands alone.
        if let (Some(Ok(moment)), false) = (title.split(' ').next().map(str::parse), stacks.trim().is_empty())
        {
            last = Some((moment, stacks.trim().to_owned()));
        }
    }
    last
}

/// The records of a folder and of the folders in it, by index, and what could not be read.
#[must_use]
pub fn read_folder(folder: &Path) -> (Vec<Record>, Vec<Error>) {
    let (mut records, mut damages) = (Vec::new(), Vec::new());
    for path in files(folder, &mut damages) {
        match read(&path) {
            Ok(record) => records.push(record),
            Err(error) => damages.push(error),
        }
    }
    records.sort_by(|one, other| (one.identity.index, &one.path).cmp(&(other.identity.index, &other.path)));
    (records, damages)
}

/// What a record says before its calls.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) path: PathBuf,
    pub(super) identity: Identity,
    pub(super) is_closed: bool,
    pub(super) gives_stacks: bool,
}

/// What the records of a folder say before their calls.
pub(super) fn heads(folder: &Path) -> Vec<Head> {
    let head = |path: PathBuf| {
        let all = open(&path, super::layout::group_offset(0)).ok()?;
        let bytes = Bytes(&all);
        check(&path, &bytes).ok()?;
        let is_set = |word: Header| bytes.header(word) != 0;
        let (is_closed, gives_stacks) = (is_set(Header::IsClosed), is_set(Header::GivesStacks));
        Some(Head { identity: bytes.identity(), path, is_closed, gives_stacks })
    };
    files(folder, &mut Vec::new()).into_iter().filter_map(head).collect()
}

/// The records of a folder, and of its folders: one for each run.
fn files(folder: &Path, damages: &mut Vec<Error>) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(source) => {
                damages.push(Error::io(folder, "list", source));
                continue;
            }
        };
        for entry in entries.flatten().take(FILES_LIMIT) {
            let (path, kind) = (entry.path(), entry.file_type());
            if kind.is_ok_and(|kind| kind.is_dir()) && depth < 2 {
                folders.push((path, depth + 1));
            } else if path.extension().is_some_and(|extension| extension == "calls") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
