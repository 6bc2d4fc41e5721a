//! One member's values to another: sends and receives, matched by tag, over any stream of bytes between the two.
//!
//! A message that fits into what is free of the buffer goes whole and waits on the other side for its receive; the send is over
//! when the stream has it. A larger one is offered: its bytes go when the other side's receive has accepted the offer, straight
//! into the array there. Messages of one tag are received in the order of their sends; other tags do not wait for each other.
//!
//! Nothing here is counted among the calls of the group, and nobody but these two members learns of it.

mod frame;
mod link;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) use self::link::Passage;
pub(super) use super::carrier::Patience;

use self::frame::{Ask, FRAME_BYTES, Frame};
use self::link::{Arrival, Attempted, CHUNK_BYTES, Link, Reply};
use super::Call;
use super::carrier::Trouble;
use super::warning::Warning;
use crate::error::{Error, Missing, Result};
use crate::sys::network::Moved;
use crate::sys::{CHECK_INTERVAL, Deadline, Span};
use crate::vocabulary::Verb;

/// Bytes of messages between two members, one way, that may be sent before they are received, with 64 bytes for each.
pub(super) const BUFFER_BYTES: u64 = 64 << 10;
/// Bytes that are sent between two looks at what else there is to do.
const LOOK_BYTES: usize = 1 << 20;
/// How long one of several threads in calls with the same member sleeps: another one may have taken what was for it.
const SHARED_PAUSE: Duration = Duration::from_millis(1);

/// The stream to one member, and those inside of calls with it.
pub(super) struct Pair<P> {
    pub(super) passage: P,
    link: Mutex<Link>,
    inside: AtomicUsize,
}

/// What a group knows of its members.
pub(super) trait Group {
    /// The index of this member in the run.
    fn own(&self) -> usize;

    /// The index of a seat in the run.
    fn index(&self, seat: usize) -> usize;

    /// What tells a call of this group from one of the run's.
    fn suffix(&self) -> &str;

    /// Everything but the deadline that ends the wait in `phase` for a seat.
    ///
    /// # Errors
    /// `Lost` and `Closed`; what ended the group.
    fn check(&self, seat: usize, phase: &str) -> Result<()>;

    /// What a seat was last seen doing.
    fn last_word(&self, seat: usize) -> String;

    /// Whether a signal or a debugger has stopped the process of a seat, as far as this member can tell.
    fn is_stopped(&self, seat: usize) -> bool;

    /// The error of a seat whose stream ended or carried what no member sends.
    fn lost(&self, seat: usize, phase: String) -> Error;
}

/// One thread's stay in a call with a member.
struct Stay<'a>(&'a AtomicUsize);

impl<'a> Stay<'a> {
    fn new(inside: &'a AtomicUsize) -> Self {
        inside.fetch_add(1, Ordering::SeqCst);
        Self(inside)
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How far a call has come.
enum Step {
    /// Its words must have gone before it ends, with this result.
    Leaving(u64, Option<Error>),
    /// The send was offered.
    Offered,
    /// Bytes of the send go: those before `sent` have gone, and those before `chunk` belong to the chunk that goes.
    Sending { sent: usize, chunk: usize, heading: [u8; FRAME_BYTES], headed: usize },
    /// The receive waits for a message.
    Waiting,
    /// Bytes of the offer with this number come.
    Receiving(u64, usize),
}

/// One send or receive.
struct Course<'c, 'a, P> {
    pair: &'c Pair<P>,
    group: &'c dyn Group,
    call: &'c mut Call<'a>,
    seat: usize,
    ask: Ask,
    step: Step,
    /// Whether the other side knows that this receive waits.
    has_said: bool,
}

impl<P: Passage> Pair<P> {
    pub(super) fn new(passage: P) -> Self {
        Self { passage, link: Mutex::new(Link::default()), inside: AtomicUsize::new(0) }
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a checked send or receive with the member at `call.root` to its end.
    ///
    /// # Errors
    /// `Disagreed`, after which the group stays usable; `Lost`, `TimedOut` and `Interrupted`, after which the caller ends it.
    pub(super) fn run(&self, group: &dyn Group, call: &mut Call<'_>, deadline: &Deadline<'_>) -> Result<()> {
        let _stay = Stay::new(&self.inside);
        let (seat, size) = (call.root, call.dtype.size_bytes());
        let sends = call.verb == Verb::Send;
        let bytes = if sends { call.input_bytes().unwrap_or(0) } else { call.output_bytes() };
        let on_gpu = call.gpu.is_some();
        let mut link = self.link();
        self.passage.open()?;
        let counted = if sends { &mut link.sends } else { &mut link.receives };
        *counted += 1;
        let count = (bytes / size) as u64;
        let ask = Ask { number: *counted, tag: call.tag, dtype: call.dtype, count, on_gpu };
        let step = if !sends {
            Step::Waiting
        } else if !on_gpu && link.spend(&ask, self.passage.buffer_bytes()) {
            Step::Leaving(link.post(&Frame::Whole(ask), call.input.unwrap_or(Span::empty()))?, None)
        } else {
            link.post(&Frame::Offer(ask), Span::empty())?;
            Step::Offered
        };
        Course { pair: self, group, call, seat, ask, step, has_said: false }.run(link, deadline)
    }
}

impl<'c, P: Passage> Course<'c, '_, P> {
    fn run(mut self, link: MutexGuard<'c, Link>, deadline: &Deadline<'_>) -> Result<()> {
        let (patience, mut looked, warning) = (Patience::default(), Instant::now(), Warning::new(deadline));
        let mut held = Some(link);
        let mut verdict = Ok(());
        loop {
            let mut link = held.take().unwrap_or_else(|| self.pair.link());
            let moved = self.advance(&mut link);
            // Who never said a word here has nothing that must arrive, and neither has a receive that has its message where the other
            // side is gone: what it says then is how much of its room is free again.
            let is_had = verdict.is_err() && self.call.verb == Verb::Receive;
            if let Step::Leaving(place, error) = &mut self.step
                && (link.is_silent() || self.pair.passage.is_sent() || is_had && *place == 0)
                && link.has_gone(*place)
            {
                return error.take().map_or(Ok(()), Err);
            }
            // Looked at once more after the bad news: what was sent before counts.
            std::mem::replace(&mut verdict, Ok(()))?;
            let moved = match moved {
                Ok(moved) => moved,
                Err(Trouble::Own(error)) => return Err(error),
                // What the group knows of its member is better than that its stream ended.
                Err(trouble) => {
                    let phase = self.phase();
                    drop(link);
                    return Err(self.why(trouble, &phase));
                }
            };
            if moved {
                patience.renew();
            }
            if looked.elapsed() >= CHECK_INTERVAL || deadline.passed() {
                looked = Instant::now();
                if let Step::Waiting = self.step {
                    self.say_want(&mut link)?;
                }
                drop(link);
                verdict = self.look(&warning, deadline);
                continue;
            }
            if moved {
                held = Some(link);
                continue;
            }
            let writes = matches!(self.step, Step::Sending { .. }) || link.is_pending();
            drop(link);
            let is_alone = self.pair.inside.load(Ordering::SeqCst) == 1;
            let limit = if is_alone { deadline.pause() } else { deadline.pause().min(SHARED_PAUSE) };
            self.pair.passage.rest(writes, &patience, limit);
        }
    }

    /// The call as messages name it.
    fn phase(&self) -> String {
        let (word, index) = (self.call.verb.word(), self.group.index(self.seat));
        let way = if self.call.verb == Verb::Send { "to" } else { "from" };
        format!("{word} #{} {way} index {index}{} {}", self.ask.number, self.group.suffix(), self.ask)
    }

    /// Tells the other side once that this receive waits.
    fn say_want(&mut self, link: &mut Link) -> Result<()> {
        if !std::mem::replace(&mut self.has_said, true) {
            link.post(&Frame::Want(self.ask), Span::empty())?;
        }
        Ok(())
    }

    /// Moves the stream and this call on, as far as both go now; whether anything moved.
    fn advance(&mut self, link: &mut Link) -> Attempted<bool> {
        let passage = &self.pair.passage;
        let mut moved = link.flush(passage)?;
        // A stream that ended may have brought what this call waits for.
        let heard = link.listen(passage);
        moved |= self.go_on(link)?;
        moved |= heard?;
        moved |= link.flush(passage)?;
        Ok(moved)
    }

    fn go_on(&mut self, link: &mut Link) -> Attempted<bool> {
        let passage = &self.pair.passage;
        match &mut self.step {
            Step::Leaving(..) => Ok(false),
            Step::Offered => match link.answer(self.ask.number) {
                None => Ok(false),
                Some(Reply::Accepted) => {
                    self.step = Step::Sending { sent: 0, chunk: 0, heading: [0; FRAME_BYTES], headed: 0 };
                    Ok(true)
                }
                Some(Reply::Refused(theirs)) => {
                    self.step = Step::Leaving(0, Some(self.disagreed(&theirs)));
                    Ok(true)
                }
            },
            Step::Sending { .. } => self.send(link),
            Step::Waiting => {
                let limit = passage.buffer_bytes();
                let Some(Arrival { ask, bytes }) = link.arrival(self.call.tag, limit)? else {
                    return Ok(false);
                };
                if self.ask.difference(&ask).is_some() {
                    let place = match bytes {
                        None => link.post(&Frame::Refuse(ask.number, self.ask), Span::empty())?,
                        Some(_) => 0,
                    };
                    self.step = Step::Leaving(place, Some(self.disagreed(&ask)));
                } else if let Some(bytes) = bytes {
                    self.call.output.copy_from(Span::of(&bytes[..]))?;
                    self.count(bytes.len());
                    self.step = Step::Leaving(0, None);
                } else {
                    let place = link.accept(ask.number)?;
                    self.step = match self.call.output.byte_count() {
                        0 => {
                            link.complete(ask.number);
                            Step::Leaving(place, None)
                        }
                        _ => Step::Receiving(ask.number, 0),
                    };
                }
                Ok(true)
            }
            Step::Receiving(number, received) => {
                let (number, total) = (*number, self.call.output.byte_count());
                let mut target = self.call.output.part(*received..total)?;
                let count = link.take_chunk(passage, number, &mut target)?;
                *received += count;
                if *received == total {
                    link.complete(number);
                    self.step = Step::Leaving(0, None);
                }
                self.count(count);
                Ok(count > 0)
            }
        }
    }

    /// Sends bytes of an accepted offer.
    fn send(&mut self, link: &mut Link) -> Attempted<bool> {
        let passage = &self.pair.passage;
        let input = self.call.input.unwrap_or(Span::empty());
        let Step::Sending { sent, chunk, heading, headed } = &mut self.step else { return Ok(false) };
        let (total, number) = (input.byte_count(), self.ask.number);
        let mut moved = 0;
        loop {
            if *sent == *chunk {
                if *sent == total {
                    self.step = Step::Leaving(0, None);
                    break;
                }
                if !link.begin_chunk() {
                    return Ok(false);
                }
                let byte_count = (total - *sent).min(CHUNK_BYTES);
                *chunk = *sent + byte_count;
                (*heading, *headed) = (Frame::Chunk(number, byte_count as u64).encode(), 0);
            }
            let is_heading = *headed < FRAME_BYTES;
            let source =
                if is_heading { Span::of(&heading[*headed..]) } else { input.part(*sent..*chunk)? };
            let count = match passage.send(source, true) {
                Moved::Bytes(count) => count,
                Moved::Busy => break,
                Moved::End => return Err(Trouble::Ended(None)),
                Moved::Broken(error) => return Err(Trouble::Ended(Some(error))),
            };
            if is_heading {
                *headed += count;
                continue;
            }
            *sent += count;
            moved += count;
            if *sent == *chunk {
                link.end_chunk();
            }
            // Others of this member have words to say in between, and the deadline is looked at.
            if moved >= LOOK_BYTES {
                break;
            }
        }
        self.count(moved);
        Ok(moved > 0)
    }

    fn count(&self, byte_count: usize) {
        if let (Some(progress), 1..) = (&self.call.progress, byte_count) {
            progress.advance(byte_count as u64);
        }
    }

    /// Both sides of one message, which differ.
    fn disagreed(&self, theirs: &Ask) -> Error {
        let (own, other) = (self.group.own(), self.group.index(self.seat));
        let suffix = self.group.suffix();
        let name = |verb: Verb, ask: &Ask, from: usize, to: usize| match verb {
            Verb::Send => format!("send #{} to index {to}{suffix} {ask}", ask.number),
            _ => format!("receive #{} from index {from}{suffix} {ask}", ask.number),
        };
        let (mine, theirs_verb) = match self.call.verb {
            Verb::Send => (name(Verb::Send, &self.ask, own, other), Verb::Receive),
            _ => (name(Verb::Receive, &self.ask, other, own), Verb::Send),
        };
        let field = self.ask.difference(theirs).unwrap_or("the call");
        Error::Disagreed {
            field: format!("{field} of a message"),
            mine: format!("{mine}, index {own}"),
            theirs: name(theirs_verb, theirs, own, own),
            index: other,
        }
    }

    /// Everything that ends the wait but its success.
    fn look(&self, warning: &Warning, deadline: &Deadline<'_>) -> Result<()> {
        let phase = self.phase();
        deadline.check_interrupt(&phase)?;
        self.group.check(self.seat, &phase)?;
        let missing = || {
            let last_word = format!("{}{}", self.group.last_word(self.seat), self.pair.link().last_word());
            vec![Missing { index: self.group.index(self.seat), last_word }]
        };
        let is_stopped = || self.group.is_stopped(self.seat);
        warning.if_late(deadline, is_stopped, (self.group.own(), &phase), missing);
        deadline.check(&phase, missing)
    }

    /// Why a stream cannot go on, as an error.
    fn why(&self, trouble: Trouble, phase: &str) -> Error {
        match (self.group.check(self.seat, phase), trouble) {
            (_, Trouble::Own(error)) | (Err(error), _) => error,
            (Ok(()), Trouble::Ended(None)) => {
                self.group.lost(self.seat, format!("{phase}: its connection ended"))
            }
            (Ok(()), Trouble::Ended(Some(error))) => {
                self.group.lost(self.seat, format!("{phase}: its connection broke ({error})"))
            }
            (Ok(()), Trouble::Odd) => {
                self.group.lost(self.seat, format!("{phase}: it sent what no member of this version sends"))
            }
        }
    }
}
