//! One member of another host: what is said to it, and what was heard of it.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connect::Link;
use super::wire::{Frame, Inbox, Next};
use crate::communicator::carrier::Carrier;
use crate::communicator::descriptor::{Cause, Descriptor};
use crate::error::Error;
use crate::sys::network::Moved;
use crate::sys::{Span, SpanMut};
use crate::topology::Process;

/// Calls that a member can have begun and this one not yet: the one it waits in, and none beyond.
const CALL_LIMIT: usize = 3;
/// Questions that may wait to be taken; of more the first ones are forgotten.
const QUESTION_COUNT: usize = 64;
/// Messages outside of calls that may wait to be taken.
const LETTER_COUNT: usize = 16 << 10;
/// Unsent bytes beyond which words that nobody needs are dropped.
const OUTBOX_LIMIT: usize = 256 << 10;

/// The other end of two connections.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) index: usize,
    pub(super) process: Process,
    pub(super) control: Carrier,
    pub(super) data: Carrier,
    published: String,
    /// What does not fit into the connection yet.
    outbox: Mutex<Vec<u8>>,
}

/// How the control connection ended.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// The other side closed it, as the kernel does for a process that ends.
    Closed,
    /// The host answers nothing, or cannot be reached.
    Silent(String),
    /// It sent what no member sends.
    Garbled,
}

/// What was heard of a peer; only the member in a call touches it.
#[derive(Debug)]
pub(in crate::communicator) struct Heard {
    inbox: Inbox,
    /// The calls it has entered and this member has not finished, first one first, each with what rode along and its site.
    pub(super) calls: VecDeque<(Descriptor, Vec<u8>, String)>,
    last: Option<Descriptor>,
    refusal: Option<(u64, String)>,
    /// In which call it left, and why.
    pub(super) left: Option<(u64, Cause)>,
    pub(super) has_closed: bool,
    /// In which group it goes on.
    pub(super) successor: Option<String>,
    /// Messages outside of calls that nobody has taken.
    pub(super) letters: VecDeque<Vec<u8>>,
    /// Questions that nobody has taken.
    pub(super) questions: VecDeque<Vec<u8>>,
    pub(super) end: Option<End>,
    /// When bytes came last.
    pub(super) since: Instant,
}

impl Default for Heard {
    fn default() -> Self {
        Self {
            inbox: Inbox::default(),
            calls: VecDeque::new(),
            last: None,
            refusal: None,
            left: None,
            has_closed: false,
            successor: None,
            letters: VecDeque::new(),
            questions: VecDeque::new(),
            end: None,
            since: Instant::now(),
        }
    }
}

impl Peer {
    pub(super) fn new(index: usize, link: Link) -> Self {
        let Link { process, published, control, data } = link;
        Self { index, process, control, data, published, outbox: Mutex::new(Vec::new()) }
    }

    /// Sends a message as far as the connection takes it now; the rest goes with [`Peer::flush`].
    pub(super) fn post(&self, frame: &Frame) {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.len() > OUTBOX_LIMIT && matches!(frame, Frame::Refusal(..) | Frame::Question(_)) {
            return;
        }
        outbox.extend(frame.encode());
        self.drain(&mut outbox, matches!(frame, Frame::Enter(..)));
    }

    /// Sends what is left of earlier messages; whether something is still left.
    pub(super) fn flush(&self) -> bool {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        self.drain(&mut outbox, true);
        !outbox.is_empty()
    }

    /// Sends a message outside of calls; false if too much waits to be sent.
    pub(super) fn post_letter(&self, letter: &[u8]) -> bool {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        let has_room = outbox.len() <= OUTBOX_LIMIT;
        if has_room {
            outbox.extend(Frame::Letter(letter.to_vec()).encode());
        }
        self.drain(&mut outbox, false);
        has_room
    }

    fn drain(&self, outbox: &mut Vec<u8>, is_awaited: bool) {
        while !outbox.is_empty() {
            match self.control.send(Span::of(&outbox[..]), is_awaited) {
                Moved::Bytes(count) => drop(outbox.drain(..count)),
                Moved::Busy => return,
                // Nobody reads any more; reading finds out why.
                Moved::End | Moved::Broken(_) => outbox.clear(),
            }
        }
    }

    /// Whether all that was sent arrives, whatever this member does from now on.
    pub(super) fn is_settled(&self) -> bool {
        !self.flush() && self.control.is_sent() && self.data.is_sent()
    }

    /// Takes every message that has come.
    pub(super) fn listen(&self, heard: &mut Heard) {
        let mut bytes = [0; 4096];
        while heard.end.is_none() {
            match self.control.receive(&mut SpanMut::of(&mut bytes)) {
                Moved::Bytes(count) => {
                    heard.since = Instant::now();
                    heard.take(&bytes[..count]);
                }
                Moved::Busy => return,
                Moved::End => heard.end = Some(End::Closed),
                Moved::Broken(error) => heard.end = Some(End::of(&error)),
            }
        }
    }

    /// The call that it is in, or after which it was heard of last.
    fn doing(&self, heard: &Heard, sequence: u64) -> String {
        match &heard.last {
            None => "user code, before its first call".to_owned(),
            Some(call) if call.sequence >= sequence => format!("{} #{}", call.verb.word(), call.sequence),
            Some(call) => format!("user code since {} #{}", call.verb.word(), call.sequence),
        }
    }

    /// What it was last heard doing, by a member that waits in the call `sequence`.
    pub(super) fn last_word(&self, heard: &Heard, sequence: u64) -> String {
        let refusal = match &heard.refusal {
            Some((after, text)) if *after + 1 == sequence => format!(", {text}"),
            _ => String::new(),
        };
        let silent = heard.since.elapsed().as_secs_f64();
        format!("{}, connected, silent for {silent:.1} s{refusal}", self.doing(heard, sequence))
    }

    pub(super) fn lost(&self, phase: String) -> Error {
        let Process { host_name, pid, .. } = &self.process;
        Error::Lost { index: self.index, host: host_name.clone(), pid: *pid, phase }
    }

    /// Why it will not go on in the call `sequence`, whose name is `phase`; `None` if it may.
    pub(super) fn gone(&self, heard: &Heard, sequence: u64, phase: &str, silence: Duration) -> Option<Error> {
        let doing = || self.doing(heard, sequence);
        let text = match (&heard.end, heard.has_closed) {
            (_, true) => format!("{phase}: it closed the group after {}", doing()),
            (Some(End::Closed), _) => format!("{phase}: its process ended in {}", doing()),
            (Some(End::Silent(error)), _) => format!(
                "{phase}: its host has answered nothing for {:.0} s or cannot be reached ({error}; it listened at {}), \
                 last heard of in {}",
                silence.as_secs_f64(),
                self.published,
                doing()
            ),
            (Some(End::Garbled), _) => {
                format!("{phase}: it sent what no member of this version sends, after {}", doing())
            }
            (None, false) => return None,
        };
        Some(self.lost(text))
    }
}

impl End {
    /// How a broken connection ended.
    pub(super) fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::NotConnected => {
                Self::Closed
            }
            _ => Self::Silent(error.to_string()),
        }
    }
}

impl Heard {
    /// Whether it closed the group.
    pub(super) const fn has_closed(&self) -> bool {
        self.has_closed
    }

    fn take(&mut self, bytes: &[u8]) {
        self.inbox.push(bytes);
        loop {
            match self.inbox.next() {
                Next::Part => return,
                Next::Frame(Frame::Enter(call, inline, site)) if self.calls.len() < CALL_LIMIT => {
                    self.last = Some(call);
                    self.calls.push_back((call, inline, site));
                }
                Next::Frame(Frame::Leave(sequence, cause)) => {
                    self.left.get_or_insert((sequence, cause));
                }
                Next::Frame(Frame::Close(_)) => self.has_closed = true,
                Next::Frame(Frame::Refusal(sequence, text)) => self.refusal = Some((sequence, text)),
                Next::Frame(Frame::WentOn(words)) => self.successor = Some(words),
                Next::Frame(Frame::Question(question)) => {
                    if self.questions.len() >= QUESTION_COUNT {
                        self.questions.pop_front();
                    }
                    self.questions.push_back(question);
                }
                Next::Frame(Frame::Letter(letter)) if self.letters.len() < LETTER_COUNT => {
                    self.letters.push_back(letter);
                }
                Next::Frame(Frame::Enter(..) | Frame::Letter(_)) | Next::Garbled => {
                    self.end = Some(End::Garbled);
                    return;
                }
            }
        }
    }
}
