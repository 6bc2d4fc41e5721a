//! The last calls of one member, with times, in a mapped file that outlives the process: always on, read by reports.
//!
//! Writing never waits. Reading ([`read`]) believes nothing of what it finds.

mod folder;
mod layout;
mod read;
mod report;
mod site;
mod stacks;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use self::folder::{KEPT_RUNS, Place};
pub use self::layout::CALLS;
pub use self::read::{Moment, Record, RecordedCall, read, read_folder, read_stacks};
pub use self::site::{SITE_BYTES, Site};
pub use self::stacks::StackSource;

use self::layout::{
    ANCHORS, CALL_BYTES, FILE_BYTES, GROUPS, HEADER_WORDS, Header, MATCHED_LAST, TEXT_BYTES, call_offset,
    group_offset, site_offset,
};
use crate::error::{Error, Result};
use crate::sys::clock::{self, Ticks};
use crate::sys::mapped::Mapped;
use crate::sys::{Span, process};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// Whether members compare their calls and record them: always, but in a build that measures what it costs (`make bench-check`).
pub(crate) const IS_ON: bool = !cfg!(uform_unchecked);

/// Who records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The index in the run, and how many members the run has.
    pub index: usize,
    /// How many members the run has.
    pub count: usize,
    /// The name of the run.
    pub run: String,
    /// The host's name.
    pub host: String,
    /// The kernel's boot identity.
    pub boot_id: String,
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub start_ticks: u64,
    /// Its command line.
    pub command: String,
}

/// What is recorded of a call when it is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The number of the group, of [`Recorder::group`].
    pub group: u32,
    /// The verb.
    pub verb: Verb,
    /// The element type.
    pub dtype: Dtype,
    /// The operation.
    pub op: ReduceOp,
    /// The elements of the output, or of the input where there is none.
    pub count: u64,
    /// The root.
    pub root: usize,
    /// Where it was called.
    pub site: Site,
}

/// The record of this member. One for a run; its groups share it.
#[derive(Debug)]
pub struct Recorder {
    map: Mapped,
    ticks: Ticks,
    path: Option<PathBuf>,
    /// Whether the file goes when the run ends well.
    is_temporary: bool,
    pid: u32,
    index: usize,
    has_failed: AtomicBool,
    has_reported: AtomicBool,
    has_reported_disagreement: AtomicBool,
    is_closed: AtomicBool,
    groups: Mutex<Groups>,
}

/// The groups of a record: how many have had a name, and how many are open.
#[derive(Debug, Default)]
struct Groups {
    named: u32,
    open: u32,
}

/// A call that is being recorded.
#[derive(Clone, Copy, Debug)]
pub struct Mark<'a> {
    words: &'a [AtomicU64; 8],
    ticks: Ticks,
}

impl Recorder {
    /// Begins a record in a file of that place; in memory alone where the file cannot be made, which is said.
    ///
    /// # Errors
    /// `Io` without memory.
    pub fn open(identity: &Identity, place: Option<&Place>) -> Result<Self> {
        let file = place.and_then(|place| match place.create(identity.index, identity.pid, FILE_BYTES) {
            Ok(file) => Some(file),
            Err(error) => {
                let index = identity.index;
                tracing::warn!("index {index} records its calls in no file: {}", error.chain());
                None
            }
        });
        let (map, path) = match file {
            Some((map, path)) => (map, Some(path)),
            None => (Mapped::anonymous(FILE_BYTES)?, None),
        };
        let recorder = Self {
            map,
            ticks: Ticks::choose(),
            path,
            is_temporary: place.is_some_and(|place| place.is_temporary),
            pid: process::pid(),
            index: identity.index,
            has_failed: AtomicBool::new(false),
            has_reported: AtomicBool::new(false),
            has_reported_disagreement: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            groups: Mutex::default(),
        };
        recorder.write_header(identity);
        Ok(recorder)
    }

    /// The file, if there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    fn write_header(&self, identity: &Identity) {
        let words = [
            (Header::Version, layout::VERSION),
            (Header::Index, identity.index as u64),
            (Header::Count, identity.count as u64),
            (Header::Pid, u64::from(identity.pid)),
            (Header::StartTicks, identity.start_ticks),
        ];
        for (word, value) in words {
            self.word(word).store(value, Ordering::Relaxed);
        }
        let texts = [&identity.run, &identity.host, &identity.boot_id, &identity.command];
        for (position, text) in texts.into_iter().enumerate() {
            self.write_text(HEADER_WORDS + position * 2 * TEXT_BYTES, 2 * TEXT_BYTES, text);
        }
        for anchor in 0..ANCHORS {
            self.anchor(anchor as u64, self.ticks.now());
        }
        self.word(Header::Magic).store(layout::MAGIC, Ordering::Release);
    }

    #[inline]
    fn word(&self, word: Header) -> &std::sync::atomic::AtomicU64 {
        self.map.word(8 * word as usize)
    }

    /// Writes a text with its length in front, and only then the length.
    fn write_text(&self, offset: usize, room: usize, text: &str) {
        let start = text.len().saturating_sub(room - 8);
        // The end of a path says more than its beginning.
        let start = (start..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let bytes = &text.as_bytes()[start..];
        let mut whole = self.map.span_mut();
        if let Ok(mut target) = whole.part(offset + 8..offset + 8 + bytes.len()) {
            // Equal lengths: the copy cannot fail.
            let _ = target.copy_from(Span::of(bytes));
        }
        self.map.word(offset).store(bytes.len() as u64, Ordering::Release);
    }

    /// Notes what both clocks say: the first time at the start, and later alternating, so that one pair is always whole.
    #[cold]
    fn anchor(&self, number: u64, now: u64) {
        let place = if number == 0 { 0 } else { 1 + (number as usize % (ANCHORS - 1)) };
        let word = |part: usize| self.map.word(8 * (Header::Anchors as usize + 2 * place + part));
        word(1).store(0, Ordering::Relaxed);
        word(0).store(now, Ordering::Release);
        word(1).store(clock::wall(), Ordering::Release);
        let first = self.map.word(8 * Header::Anchors as usize).load(Ordering::Relaxed);
        // Due again when the time since the first has doubled: what lies after the last is then as exact as what was measured.
        self.word(Header::NextAnchor).store(now + (now - first.min(now)).max(1 << 16), Ordering::Relaxed);
        self.word(Header::AnchorCount).store(number + 1, Ordering::Relaxed);
    }

    /// The number of a group in this record; the groups after the 64th have that of the last.
    pub fn group(&self, name: &str) -> u32 {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let number = groups.named;
        groups.open += 1;
        if (number as usize) < GROUPS {
            self.write_text(group_offset(number as usize), TEXT_BYTES, name);
            groups.named += 1;
        }
        number.min(GROUPS as u32 - 1)
    }

    /// Notes that a group is closed; the last one ends the record.
    pub fn leave_group(&self) {
        let is_last = {
            let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
            groups.open = groups.open.saturating_sub(1);
            groups.open == 0
        };
        if is_last {
            self.close();
        }
    }

    /// Records that a call is entered.
    #[inline]
    pub fn enter(&self, call: Entered) -> Mark<'_> {
        // The words that are written with each call have a line of their own.
        let header = self.map.line(8 * Header::Next as usize);
        let header = |word: Header| &header[word as usize - Header::Next as usize];
        let number = header(Header::Next).fetch_add(1, Ordering::Relaxed);
        let words = self.map.line(call_offset(number));
        // Who reads while this is written sees no call here.
        words[0].store(0, Ordering::Relaxed);
        let now = self.ticks.now();
        words[1].store(now, Ordering::Release);
        words[2].store(0, Ordering::Relaxed);
        words[3].store(0, Ordering::Relaxed);
        let kind = |number: i32| u64::from(number.unsigned_abs() as u8);
        let kinds = kind(call.verb.number()) | kind(call.dtype.number()) << 8 | kind(call.op.number()) << 16;
        words[4].store(kinds | u64::from(call.site.0) << 32, Ordering::Relaxed);
        words[5].store(call.count, Ordering::Relaxed);
        words[6].store(u64::from(call.group) << 32 | (call.root as u64 & 0xffff_ffff), Ordering::Relaxed);
        words[7].store(0, Ordering::Relaxed);
        words[0].store(number + 1, Ordering::Release);
        if call.site != Site::default()
            && self.map.word(site_offset(call.site.0)).load(Ordering::Relaxed) == 0
        {
            self.name_site(call.site);
        }
        if now >= header(Header::NextAnchor).load(Ordering::Relaxed) {
            self.anchor(header(Header::AnchorCount).load(Ordering::Relaxed), now);
        }
        Mark { words, ticks: self.ticks }
    }

    #[cold]
    fn name_site(&self, site: Site) {
        self.write_text(site_offset(site.0), TEXT_BYTES, site.text());
    }

    /// Has this member leave the stacks of its interpreter where a call fails, here or on another member of its host.
    ///
    /// # Errors
    /// `Io` without a further thread, or where the file is gone.
    pub fn give_stacks(&self, source: Arc<dyn StackSource>) -> Result<()> {
        match &self.path {
            Some(path) => stacks::serve(path, source),
            None => Ok(()),
        }
    }

    /// What to do with the error of a call: one that ends the group, or says that members disagree, leaves a report the first time.
    /// Gives where that is, as the end of a message.
    #[must_use]
    pub fn reported(&self, error: &Error) -> Option<String> {
        let has_reported = match error {
            Error::Lost { .. } | Error::TimedOut { .. } | Error::Interrupted { .. } => {
                self.word(Header::HasFailed).store(1, Ordering::Release);
                &self.has_reported
            }
            Error::Disagreed { .. } => &self.has_reported_disagreement,
            _ => return None,
        };
        self.has_failed.store(true, Ordering::SeqCst);
        let record = self.path.as_deref()?;
        let folder = record.parent()?;
        if process::pid() == self.pid && !has_reported.swap(true, Ordering::SeqCst) {
            report::write(folder, record, self.index, error);
        }
        Some(format!(" (see: uform report {})", folder.display()))
    }

    /// Ends the record: after a run without failure its file goes, unless somebody asked for it.
    pub fn close(&self) {
        if process::pid() != self.pid || self.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.word(Header::IsClosed).store(1, Ordering::Release);
        stacks::wake(&self.map);
        if let Some(path) = self.path.as_deref()
            && self.is_temporary
            && !self.has_failed.load(Ordering::SeqCst)
            && !stacks::is_asked(&self.map)
        {
            folder::remove(path);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Mark<'_> {
    /// Records the number that the call has in its group.
    #[inline]
    pub fn numbered(&self, sequence: u64) {
        self.words[7].store(sequence, Ordering::Relaxed);
    }

    /// Records that all members have made this call.
    #[inline]
    pub fn matched(&self) {
        self.words[2].store(self.ticks.now(), Ordering::Relaxed);
    }

    /// Records that all members have made this call, and that nothing more is waited for: that was when it ended.
    #[inline]
    pub fn matched_last(&self) {
        self.words[2].store(MATCHED_LAST, Ordering::Relaxed);
    }

    /// Records how the call ended.
    #[inline]
    pub fn left<T>(&self, result: &Result<T>) {
        let status = result.as_ref().err().map_or(0, |error| error.status().number());
        self.words[3].store(self.ticks.now(), Ordering::Relaxed);
        let kinds = self.words[4].load(Ordering::Relaxed) & !(0xff << 24);
        let status = u64::from(status.unsigned_abs() as u8) + 1;
        self.words[4].store(kinds | status << 24, Ordering::Release);
    }
}

const _: () = assert!(
    (Header::Next as usize).is_multiple_of(8) && Header::NextAnchor as usize - Header::Next as usize <= 7
);
const _: () = assert!(CALL_BYTES == 64 && FILE_BYTES.is_multiple_of(4096));
