//! A group whose calls are recorded, whatever carries them: when they are entered, matched and left, and how they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::control::{CROSSED, Channel, Life};
use super::{Call, Communicator, SharedArena};
use crate::error::{Error, Result};
use crate::recorder::{Entered, IS_ON, Recorder, Site};
use crate::sys::Deadline;
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// A communicator beside the record of this member.
pub struct RecordedCommunicator {
    inner: Arc<dyn Communicator>,
    recorder: Arc<Recorder>,
    group: u32,
    is_closed: AtomicBool,
}

impl RecordedCommunicator {
    /// The group with its calls recorded; the last group of a record to be closed ends the record.
    #[must_use]
    pub fn new(inner: Arc<dyn Communicator>, recorder: Arc<Recorder>, name: &str) -> Arc<Self> {
        let group = recorder.group(name);
        Arc::new(Self { inner, recorder, group, is_closed: AtomicBool::new(false) })
    }

    /// Makes a call, recorded from its begin to its end.
    #[inline]
    fn recorded<'a>(&'a self, mut call: Call<'a>, run: impl FnOnce(Call<'a>) -> Result<()>) -> Result<()> {
        if !IS_ON {
            return run(call);
        }
        let bytes = match call.output_bytes() {
            0 => call.input_bytes().unwrap_or(0),
            output => output,
        };
        if call.site == Site::default() {
            call.site = Site::given();
        }
        let mark = self.recorder.enter(Entered {
            group: self.group,
            verb: call.verb,
            dtype: call.dtype,
            op: call.op,
            count: (bytes / call.dtype.size_bytes()) as u64,
            root: call.root,
            site: call.site,
        });
        // Into the same value: a call is many words, and none is copied for this.
        call.mark = Some(mark);
        let result = run(call);
        mark.left(&result);
        match result {
            Ok(()) => Ok(()),
            Err(error) => Err(self.reported(error)),
        }
    }

    /// The error, with where its report is.
    fn reported(&self, error: Error) -> Error {
        let Some(place) = self.recorder.reported(&error) else { return error };
        match error {
            Error::Lost { index, host, pid, phase } => {
                Error::Lost { index, host, pid, phase: phase + &place }
            }
            Error::TimedOut { phase, waited, missing } => {
                Error::TimedOut { phase: phase + &place, waited, missing }
            }
            // What members say of crossed calls goes from one to the next.
            Error::Disagreed { field, mine, theirs, index } if field != CROSSED => {
                Error::Disagreed { field, mine, theirs: theirs + &place, index }
            }
            other => other,
        }
    }
}

impl Communicator for RecordedCommunicator {
    fn seat(&self) -> usize {
        self.inner.seat()
    }

    fn count(&self) -> usize {
        self.inner.count()
    }

    fn run(&self, call: Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        self.recorded(call, |call| self.inner.run(call, deadline))
    }

    fn attend(
        &self,
        call: Call<'_>,
        deadline: &Deadline<'_>,
        work: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        self.recorded(call, |call| self.inner.attend(call, deadline, work))
    }

    fn arena(&self, byte_count: usize, deadline: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
        // Whoever asks for it has given the site.
        let mark = self.recorder.enter(Entered {
            group: self.group,
            verb: Verb::Arena,
            dtype: Dtype::U8,
            op: ReduceOp::Sum,
            count: byte_count as u64,
            root: 0,
            site: Site::given(),
        });
        let result = self.inner.arena(byte_count, deadline);
        mark.left(&result);
        result.map_err(|error| self.reported(error))
    }

    fn refuse(&self, verb: Verb, reason: &Error) {
        self.inner.refuse(verb, reason);
    }

    fn give_up(&self, error: &Error, phase: &str) {
        self.inner.give_up(error, phase);
    }

    fn close(&self) {
        self.inner.close();
        if !self.is_closed.swap(true, Ordering::AcqRel) {
            self.recorder.leave_group();
        }
    }
}

impl Channel for RecordedCommunicator {
    fn post(&self, seat: usize, message: &[u8]) -> bool {
        self.inner.post(seat, message)
    }

    fn letters(&self) -> Vec<(usize, Vec<u8>)> {
        self.inner.letters()
    }

    fn life(&self, seat: usize) -> Life {
        self.inner.life(seat)
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn rest(&self, limit: Duration) {
        self.inner.rest(limit);
    }

    fn went_on(&self, words: &str) {
        self.inner.went_on(words);
    }

    fn entered(&self) -> u64 {
        self.inner.entered()
    }

    fn entering(&self) -> Option<(u64, Vec<usize>)> {
        self.inner.entering()
    }

    fn ask(&self, seat: usize, question: &[u8]) {
        self.inner.ask(seat, question);
    }

    fn asked(&self) -> Vec<(usize, Vec<u8>)> {
        self.inner.asked()
    }

    fn cross(&self, words: &str) {
        self.inner.cross(words);
    }
}

impl Drop for RecordedCommunicator {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::Identity;
    use crate::sys::{Span, SpanMut};
    use crate::vocabulary::Status;

    /// A group that agrees with whatever is called, and fails in a broadcast.
    struct Agreeing;

    impl Channel for Agreeing {
        fn post(&self, _: usize, _: &[u8]) -> bool {
            true
        }

        fn letters(&self) -> Vec<(usize, Vec<u8>)> {
            Vec::new()
        }

        fn life(&self, _: usize) -> Life {
            Life::Lives
        }

        fn check(&self) -> Result<()> {
            Ok(())
        }

        fn rest(&self, _: Duration) {}

        fn went_on(&self, _: &str) {}
    }

    impl Communicator for Agreeing {
        fn seat(&self) -> usize {
            0
        }

        fn count(&self) -> usize {
            2
        }

        fn run(&self, call: Call<'_>, _: &Deadline<'_>) -> Result<()> {
            call.numbered(7);
            call.matched();
            match call.verb {
                Verb::Broadcast => {
                    let phase = "broadcast #7".to_owned();
                    Err(Error::Lost { index: 1, host: "h".to_owned(), pid: 5, phase })
                }
                _ => Ok(()),
            }
        }

        fn arena(&self, _: usize, _: &Deadline<'_>) -> Result<Arc<dyn SharedArena>> {
            Err(Error::unsupported("an arena", "of this test"))
        }

        fn refuse(&self, _: Verb, _: &Error) {}

        fn close(&self) {}
    }

    #[test]
    fn calls_are_recorded_and_a_failure_names_its_report() {
        let nonce = crate::sys::random::nonce().expect("random");
        let folder = std::env::temp_dir().join(format!("uform-recorded-{nonce}"));
        let place = crate::recorder::Place {
            folder: folder.clone(),
            user: None,
            run: "run 1".to_owned(),
            is_temporary: true,
            reclaims: true,
        };
        let identity = Identity { count: 2, pid: crate::sys::process::pid(), ..Identity::default() };
        let recorder = Arc::new(Recorder::open(&identity, Some(&place)).expect("memory is free"));
        let path = recorder.path().expect("the folder is writable").to_owned();
        let group = RecordedCommunicator::new(Arc::new(Agreeing), recorder, "run");
        let deadline = Deadline::after(std::time::Duration::from_secs(60));
        let mut array = [1.0f32, 2.0, 3.0];
        let (input, output) = (Span::of(&array).to_vec(), SpanMut::of(&mut array));
        let mut call = Call::of::<f32>(Verb::AllReduce, ReduceOp::Max, 0, Some(Span::of(&input[..])), output);
        call.site = Site::named("train.py", 12);
        group.run(call, &deadline).expect("agreed");
        assert!(Site::named("train.py", 13).during(|| group.arena(4096, &deadline)).is_err());
        let call = Call::of::<f64>(Verb::Broadcast, ReduceOp::Sum, 1, None, SpanMut::empty());
        let error = group.run(call, &deadline).expect_err("it is lost").to_string();
        let run = path.parent().expect("in a folder");
        assert!(error.contains("broadcast #7 (see: uform report") && error.contains("run_1"), "{error}");
        assert!(std::fs::read_to_string(run.join(format!("index-0.{}.txt", identity.pid))).is_ok());
        group.close();

        let record = crate::recorder::read(&path).expect("whole");
        let calls = record.calls.iter().map(|call| (call.to_string(), call.outcome)).collect::<Vec<_>>();
        let expected = [
            ("all_reduce #7(3 f32, max) at train.py:12", Status::Success),
            ("arena at train.py:13", Status::Unsupported),
            ("broadcast #7(0 f64, root 1)", Status::Lost),
        ];
        for ((text, outcome), (wanted, status)) in calls.iter().zip(expected) {
            assert_eq!((text.to_lowercase().as_str(), *outcome), (wanted, Some(status)));
        }
        let first = &record.calls[0];
        assert!(first.matched >= Some(first.entered) && first.left >= first.matched);
        assert!(record.has_failed && record.is_closed && record.begun == 3);
        std::fs::remove_dir_all(folder).expect("kept after a failure");
    }
}
