//! The stacks of the interpreters that members run in: one whose call fails asks all members of its host for theirs.
//!
//! The question is a word in the mapped record of the one that is asked. A thread of each such member sleeps on it, so that one
//! that computes, or hangs, answers too. Nothing is sent to another process, and no thread of the user's is disturbed.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::layout::{FILE_BYTES, Header};
use super::read::{self, Head};
use crate::error::{Error, Result};
use crate::sys::mapped::Mapped;
use crate::sys::{clock, file, futex, process};

/// How long one that asks waits for all answers.
const PATIENCE: Duration = Duration::from_millis(500);
/// Who was asked so shortly ago does not answer others anew: they ask for one failure.
const REST: Duration = Duration::from_secs(1);
/// How many times a record has stacks, at most.
const LIMIT: usize = 32;
/// How long the thread sleeps if nobody wakes it.
const SLEEP: Duration = Duration::from_secs(60);
/// What a line begins with that says when and why the stacks below it were written.
pub(super) const TITLE: &str = "stacks at ";

/// What knows the stacks of the interpreter that this process runs in.
pub trait StackSource: Send + Sync {
    /// Appends the stacks of all threads to a file; false if they could not be had in a second or two.
    fn append(&self, file: &File) -> bool;
}

/// How one member of the host answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its stacks are in this file.
    Given(PathBuf),
    /// It runs in no interpreter, or not in one that tells.
    None,
    /// A signal or a debugger has stopped its process.
    Stopped,
    /// Its process has ended.
    Died,
    /// Not within the time that one waits.
    Silent,
}

impl std::fmt::Display for Answer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Given(path) => write!(formatter, "in {}", path.display()),
            Self::None => formatter.write_str("none, it runs in no interpreter that tells them"),
            Self::Stopped => formatter.write_str("none, its process is stopped"),
            Self::Died => formatter.write_str("none, its process has ended"),
            Self::Silent => formatter.write_str("none yet, it did not answer in time"),
        }
    }
}

/// The file of the stacks beside a record.
pub(super) fn file_of(record: &Path) -> PathBuf {
    record.with_extension("stacks")
}

const fn offset(word: Header) -> usize {
    8 * word as usize
}

/// Starts the thread that answers for the record at `path`, until that is closed.
pub(super) fn serve(path: &Path, source: Arc<dyn StackSource>) -> Result<()> {
    let (map, path) = (Mapped::open(path, FILE_BYTES)?, path.to_owned());
    map.word(offset(Header::GivesStacks)).store(1, Ordering::Release);
    let thread = std::thread::Builder::new().name("uform-stacks".to_owned());
    let started = thread.spawn(move || answer(&map, &file_of(&path), &*source));
    started.map(drop).map_err(|source| Error::io("thread", "start", source))
}

/// Wakes the thread so that it sees that the record is closed.
pub(super) fn wake(map: &Mapped) {
    futex::wake(map.short_word(offset(Header::Asked)));
}

/// Whether a member has asked for the stacks of this one: then its record is a part of a report.
pub(super) fn is_asked(map: &Mapped) -> bool {
    map.short_word(offset(Header::Asked)).load(Ordering::SeqCst) != 0
}

fn answer(map: &Mapped, path: &Path, source: &dyn StackSource) {
    let word = |word: Header| map.short_word(offset(word));
    let (mut answered, mut answered_itself, mut written) = (0, 0, 0);
    let mut last: Option<Instant> = None;
    while map.word(offset(Header::IsClosed)).load(Ordering::Acquire) == 0 {
        let asked = word(Header::Asked).load(Ordering::SeqCst);
        if asked == answered {
            futex::wait(word(Header::Asked), asked, SLEEP);
            continue;
        }
        let itself = word(Header::AskedItself).load(Ordering::SeqCst);
        let is_own = itself != answered_itself;
        if written < LIMIT && (is_own || last.is_none_or(|last| last.elapsed() > REST)) {
            match write(path, is_own, source) {
                Ok(true) => {}
                Ok(false) => tracing::warn!("the stacks of this process could not be had for a report"),
                Err(error) => tracing::warn!("no stacks for a report: {}", error.chain()),
            }
            written += 1;
            last = Some(Instant::now());
        }
        (answered, answered_itself) = (asked, itself);
        word(Header::Answered).store(asked, Ordering::SeqCst);
    }
}

fn write(path: &Path, is_own: bool, source: &dyn StackSource) -> Result<bool> {
    let failed = |source| Error::io(path, "write", source);
    let mut file = file::append(path)?;
    let why = if is_own { "a call of this member failed" } else { "a call of another member failed" };
    writeln!(file, "{TITLE}{} ns since 1970: {why}", clock::wall()).map_err(failed)?;
    let is_given = source.append(&file);
    writeln!(file).map_err(failed)?;
    Ok(is_given)
}

/// Asks all members whose records lie in the folder and waits for them; `own` is the record of the one that asks.
pub(super) fn gather(folder: &Path, own: &Path) -> Vec<(usize, Answer)> {
    let boot_id = process::boot_id().unwrap_or_default();
    let heads =
        read::heads(folder).into_iter().filter(|head| head.identity.boot_id == boot_id && !head.is_closed);
    let mut asked = heads.map(|head| ask(head, own)).collect::<Vec<_>>();
    let end = Instant::now() + PATIENCE;
    while asked.iter_mut().any(|one| !one.is_settled()) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    asked.into_iter().map(|one| (one.head.identity.index, one.answer)).collect()
}

/// A member that is asked.
struct Asked {
    head: Head,
    /// Its record, and the number of the question; `None` for one that cannot answer.
    question: Option<(Mapped, u32)>,
    answer: Answer,
}

fn ask(head: Head, own: &Path) -> Asked {
    let (pid, start) = (head.identity.pid, head.identity.start_ticks);
    let answer = match () {
        () if !process::is_alive(pid, start) => Answer::Died,
        () if !head.gives_stacks => Answer::None,
        () if process::is_stopped(pid) => Answer::Stopped,
        () => Answer::Silent,
    };
    let map = match answer {
        // One that is stopped answers when it goes on.
        Answer::Silent | Answer::Stopped => Mapped::open(&head.path, FILE_BYTES).ok(),
        _ => None,
    };
    let question = map.map(|map| {
        if head.path == own {
            map.short_word(offset(Header::AskedItself)).fetch_add(1, Ordering::SeqCst);
        }
        let number = map.short_word(offset(Header::Asked)).fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        wake(&map);
        (map, number)
    });
    Asked { head, question, answer }
}

impl Asked {
    /// Whether nothing more is to be waited for.
    fn is_settled(&mut self) -> bool {
        if self.answer != Answer::Silent {
            return true;
        }
        let Some((map, number)) = &self.question else { return true };
        let answered = map.short_word(offset(Header::Answered)).load(Ordering::SeqCst);
        // Counted around: an answer to a later question answers this one too.
        if answered.wrapping_sub(*number) > u32::MAX / 2 {
            return false;
        }
        let file = file_of(&self.head.path);
        if file.exists() {
            self.answer = Answer::Given(file);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::{Identity, Place, Recorder, read_stacks};

    /// What stands for an interpreter.
    struct Words(&'static str);

    impl StackSource for Words {
        fn append(&self, mut file: &File) -> bool {
            writeln!(file, "{}", self.0).is_ok()
        }
    }

    #[test]
    fn whoever_fails_asks_all_and_each_answers_beside_its_record() {
        let nonce = crate::sys::random::nonce().expect("random");
        let folder = std::env::temp_dir().join(format!("uform-stacks-{nonce}"));
        std::fs::create_dir(&folder).expect("made");
        let pid = process::pid();
        let open = |index: usize| {
            let identity = Identity {
                index,
                count: 3,
                boot_id: process::boot_id().expect("it runs"),
                pid,
                start_ticks: process::start_ticks(pid).expect("it lives"),
                ..Identity::default()
            };
            let (run, is_temporary) = ("run".to_owned(), true);
            let place = Place { folder: folder.clone(), user: None, run, is_temporary, reclaims: false };
            Recorder::open(&identity, Some(&place)).expect("memory is free")
        };
        let all = [0, 1, 2].map(open);
        all[0].give_stacks(Arc::new(Words("one"))).expect("a thread");
        all[1].give_stacks(Arc::new(Words("two"))).expect("a thread");
        let disagreed = || Error::Disagreed {
            field: "the verb".to_owned(),
            mine: "this".to_owned(),
            theirs: "that".to_owned(),
            index: 1,
        };
        let place = all[0].reported(&disagreed()).expect("there is a folder");
        assert!(place.contains("uform report ") && all[0].reported(&disagreed()) == Some(place));
        let paths = all.each_ref().map(|one| one.path().expect("a file").to_owned());
        let left = || std::fs::read_to_string(paths[0].with_extension("txt")).expect("a report");
        for words in
            ["members disagree on the verb", "index 0: in ", "index 1: in ", "index 2: none, it runs in no"]
        {
            assert_eq!(left().matches(words).count(), 1, "{}", left());
        }
        let text = |path: &Path| read_stacks(path).map(|(_, text)| text);
        assert_eq!(text(&paths[0]).as_deref(), Some("one"));
        assert_eq!(text(&paths[1]).as_deref(), Some("two"));
        assert_eq!(text(&paths[2]), None);
        // What ends the mesh is reported although they have disagreed before.
        let (host, phase) = ("h".to_owned(), "a call".to_owned());
        assert!(all[0].reported(&Error::Lost { index: 1, host, pid: 5, phase }).is_some());
        assert!(left().contains("members disagree") && left().contains("lost index 1"), "{}", left());
        all.iter().for_each(Recorder::close);
        let stay = paths.each_ref().map(|path| path.exists());
        assert_eq!(stay, [true, true, false], "what a report is made of stays");
        std::fs::remove_dir_all(folder).expect("removed");
    }
}
