//! The segment that one member writes and all of its group read: progress, the descriptor of its call, its last word.
//!
//! Every word but `SLEEPERS` has one writer; `signal.rs` holds their orderings, `signal_model.rs` proves them. Readers believe nothing: numbers are decoded, texts are cut and made printable.
//!
//! How the words order what lies around them:
//! - `PROGRESS` is written after everything that its place stands for: descriptor, inline bytes, stages, shares of arenas. The
//!   write releases and the reads acquire, so that whoever sees a place sees all of that.
//!   What was stored past the caches is ordered by a fence of its own before that write (`sys::settle`).
//! - It also acquires in effect for its writer: a member overwrites what others read (a slot, a stage, an array) only after it
//!   has seen a place that they publish after their reads, and no store passes an earlier load on the way to a release.
//! - A call's note lies beside `PROGRESS`, so that the line which says that a member has come also says what it has come for: the
//!   fingerprint of its descriptor, and a contribution of a few bytes. Nothing else of a peer is read by a small call that all agree on.
//! - A slot and a note are written again two calls later. Before that its writer has seen all others in the call between, which they
//!   entered after their last read of the slot.
//! - `PROGRESS` and `SLEEPERS` are the two words of a Dekker handshake. The writer stores the place, then loads the count; a
//!   sleeper adds itself to the count, then the kernel loads the place once more and sleeps only if it has not changed. All four
//!   are sequentially consistent (the kernel's load is a full barrier after the addition), so that the writer sees the
//!   sleeper, or the sleeper sees the place; both may happen, and cost one wake.
//! - `STATE` is written after its cause and released; whoever acquires it reads the whole cause. A bit of `PROGRESS` changes after
//!   it, by the same handshake: who looked at the state before that does not fall asleep beside a member that has ended its part.
//! - `DONE` is released after the last step of a call and before any later `STATE`, and nobody sleeps for it: so it needs no
//!   handshake, and lies on a line that no peer reads while it waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::signal::{self, Signal, Words};
use crate::communicator::descriptor::{Cause, Descriptor, Lies};
use crate::error::Result;
use crate::recorder::Site;
use crate::sys::shared::Segment;
use crate::sys::{Span, SpanMut};
use crate::vocabulary::{Dtype, ReduceOp, Verb};

/// Bits of a progress word that count steps within one call.
const STEP_BITS: u32 = 24;
/// No step of any call is as high.
pub(super) const LAST_STEP: u64 = (1 << STEP_BITS) - 1;

const SLEEPERS: usize = 0;
const PROGRESS: usize = 64;
// Beside the progress, which is read whenever the state is.
const STATE: usize = PROGRESS + 8;
/// The notes of the two last calls: they fill the line of the progress.
const NOTES: usize = PROGRESS + 16;
const NOTE_BYTES: usize = 24;
const DONE: usize = 128;
const CAUSE: usize = 256;
const REFUSAL: usize = 1024;
const SUCCESSOR: usize = 2048;
/// Where the two last calls were made, beside their descriptors: read only by those who disagree.
const SITES: usize = 3072;
const SLOTS: usize = 4096;
const SLOT_BYTES: usize = 8192;
const DESCRIPTOR_BYTES: usize = 64;
const STAGE: usize = SLOTS + 2 * SLOT_BYTES;
const TEXT_LIMIT: usize = 512;
/// Bytes of a text and its length.
const SITE_ROOM: usize = 256;

/// The largest contribution that rides beside the descriptor.
pub(super) const INLINE_BYTES: usize = SLOT_BYTES - DESCRIPTOR_BYTES;
/// The largest that rides in the note.
const NOTE_ROOM: usize = NOTE_BYTES - 8;
const _: () = assert!(NOTES + 2 * NOTE_BYTES == PROGRESS + 64);

/// How a member stands to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Live,
    Closed,
    Left,
    /// It is in another group now.
    WentOn,
}

/// The place of a step of a call in the order of all steps.
pub(super) const fn place(sequence: u64, step: u64) -> u64 {
    (sequence << STEP_BITS) | step
}

/// The call and the step of a place.
pub(super) const fn call_of(place: u64) -> (u64, u64) {
    (place >> STEP_BITS, place & LAST_STEP)
}

/// A number that tells the compared words of two calls apart: no two calls that differ in one word have the same, and of others one
/// pair in 2^64.
#[inline]
fn fingerprint(words: [u64; 5]) -> u64 {
    // Odd numbers without a pattern, one for each word.
    const MIX: [u64; 5] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
        0xc2b2_ae3d_27d4_eb4f,
    ];
    // A shift that folds the upper half down and multiplication by an odd number can both be undone. The first shift lets the upper
    // bits reach the others, whose changes differ from word to word. No word waits for another.
    words.into_iter().zip(MIX).fold(0, |all, (word, odd)| {
        let mixed = (word ^ (word >> 32)).wrapping_mul(odd);
        all.wrapping_add(mixed ^ (mixed >> 32))
    })
}

/// One member's segment.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) segment: Segment,
    piece_bytes: usize,
    /// Whether a thread of this process has begun to write how this member leaves: two may at once.
    is_leaving: AtomicBool,
}

/// The size of a segment whose stages have so many bytes.
pub(super) const fn size(piece_bytes: usize) -> usize {
    STAGE + 2 * piece_bytes
}

impl Control {
    /// `None` if the segment is not large enough for its stages.
    pub(super) fn new(segment: Segment, piece_bytes: usize) -> Option<Self> {
        let is_leaving = AtomicBool::new(false);
        (segment.byte_count() >= size(piece_bytes)).then_some(Self { segment, piece_bytes, is_leaving })
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        static NOWHERE: AtomicU64 = AtomicU64::new(0);
        self.segment.word64(offset).unwrap_or(&NOWHERE)
    }

    /// The place of this member, published and waited for.
    pub(super) const fn signal(&self) -> Signal<'_, Segment> {
        let words = Words { counter: PROGRESS, sleepers: SLEEPERS, state: Some(STATE) };
        Signal { memory: &self.segment, words }
    }

    /// The place that this member has published last; what it stands for is seen from now on.
    pub(super) fn progress(&self) -> u64 {
        self.signal().seen()
    }

    /// Publishes that everything before `place` is done, and wakes who waits for it.
    pub(super) fn advance(&self, place: u64) {
        self.signal().publish(place);
    }

    /// Says that the call with this number has ended here, for those who ask what this member does.
    pub(super) fn conclude(&self, sequence: u64) {
        signal::conclude(&self.segment, DONE, sequence);
    }

    /// Whether the call with this number has ended there.
    pub(super) fn has_concluded(&self, sequence: u64) -> bool {
        signal::has_concluded(&self.segment, DONE, sequence)
    }

    pub(super) fn state(&self) -> State {
        match self.signal().state() {
            0 => State::Live,
            1 => State::Closed,
            3 => State::WentOn,
            _ => State::Left,
        }
    }

    fn write_text(&self, offset: usize, text: &str) {
        let bytes = &text.as_bytes()[..text.floor_char_boundary(TEXT_LIMIT)];
        self.word64(offset).store(bytes.len() as u64, Ordering::SeqCst);
        let mut whole = self.segment.span_mut();
        if let Ok(mut target) = whole.part(offset + 8..offset + 8 + bytes.len()) {
            // Equal lengths: the copy cannot fail.
            let _ = target.copy_from(Span::of(bytes));
        }
    }

    fn read_text(&self, offset: usize) -> String {
        let length = usize::try_from(self.word64(offset).load(Ordering::SeqCst)).unwrap_or(TEXT_LIMIT);
        let range = offset + 8..offset + 8 + length.min(TEXT_LIMIT);
        let bytes = self.segment.span().part(range).map(|span| span.to_vec()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace(char::is_control, " ")
    }

    /// Whether nobody has ended this member's part in the group before; the caller does it now.
    fn claims_end(&self) -> bool {
        !self.is_leaving.swap(true, Ordering::AcqRel) && self.state() == State::Live
    }

    /// Ends this member's part in the group, once; the first reason stays.
    pub(super) fn leave(&self, cause: &Cause) {
        if !self.claims_end() {
            return;
        }
        self.word64(CAUSE).store(cause.blame(), Ordering::SeqCst);
        self.write_text(CAUSE + 8, &cause.text);
        self.signal().end(2);
    }

    pub(super) fn close(&self) {
        if self.claims_end() {
            self.signal().end(1);
        }
    }

    /// Says in which group this member goes on; that counts more than how it left this one.
    pub(super) fn go_on(&self, words: &str) {
        self.write_text(SUCCESSOR, words);
        self.signal().end(3);
    }

    /// In which group it goes on.
    pub(super) fn successor(&self) -> String {
        self.read_text(SUCCESSOR)
    }

    pub(super) fn cause(&self) -> Cause {
        Cause::blaming(self.word64(CAUSE).load(Ordering::SeqCst), self.read_text(CAUSE + 8))
    }

    /// Notes that the call after `sequence` was refused here.
    pub(super) fn refuse(&self, sequence: u64, text: &str) {
        self.write_text(REFUSAL + 8, text);
        self.word64(REFUSAL).store(sequence + 1, Ordering::SeqCst);
    }

    /// Why the call after `sequence` was refused, if it was.
    pub(super) fn refusal(&self, sequence: u64) -> Option<String> {
        (self.word64(REFUSAL).load(Ordering::SeqCst) == sequence + 1).then(|| self.read_text(REFUSAL + 8))
    }

    /// Whether the descriptor of the same call is the same there in all that is compared.
    #[inline]
    pub(super) fn has_same_call(&self, other: &Self, sequence: u64) -> bool {
        let note = Self::note(sequence);
        // Relaxed: the place that was awaited has acquired what its writer wrote before.
        let [one, other] = [self, other].map(|control| control.word64(note).load(Ordering::Relaxed));
        one == other
    }

    /// Where the note of a call lies.
    const fn note(sequence: u64) -> usize {
        NOTES + if sequence.is_multiple_of(2) { 0 } else { NOTE_BYTES }
    }

    /// Where the first bytes of a call lie, if there are so many.
    const fn inline_place(sequence: u64, byte_count: usize) -> usize {
        if byte_count <= NOTE_ROOM {
            Self::note(sequence) + 8
        } else {
            Self::slot(sequence) + DESCRIPTOR_BYTES
        }
    }

    const fn slot(sequence: u64) -> usize {
        SLOTS + if sequence.is_multiple_of(2) { 0 } else { SLOT_BYTES }
    }

    const fn site_place(sequence: u64) -> usize {
        SITES + if sequence.is_multiple_of(2) { 0 } else { SITE_ROOM }
    }

    /// Says where the call is made; like a slot, it is written again two calls later.
    pub(super) fn write_site(&self, sequence: u64, text: &str) {
        self.write_text(Self::site_place(sequence), text);
    }

    /// Where the call is made; empty if that is unknown.
    pub(super) fn site(&self, sequence: u64) -> String {
        self.read_text(Self::site_place(sequence))
    }

    pub(super) fn write_descriptor(&self, descriptor: &Descriptor) {
        let kinds = [descriptor.verb.number(), descriptor.dtype.number(), descriptor.op.number()];
        let kinds = kinds.iter().rev().fold(0, |all, kind| (all << 8) | u64::from(kind.unsigned_abs()));
        let kinds = kinds | u64::from(descriptor.on_gpu) << 24;
        let (arena, offset, output) =
            descriptor.lies.map_or((0, 0, 0), |lies| (lies.arena, lies.offset, lies.output));
        let Descriptor { sequence, count, root, shape, .. } = *descriptor;
        let words = [sequence, kinds, count, root, arena, offset, shape, output];
        if let Some(line) = self.segment.line(Self::slot(sequence)) {
            line.iter().zip(words).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        }
        let compared = [sequence, kinds, count, root, shape];
        self.word64(Self::note(sequence)).store(fingerprint(compared), Ordering::Relaxed);
    }

    /// The descriptor of a call; `None` if what lies there describes none.
    pub(super) fn descriptor(&self, sequence: u64) -> Option<Descriptor> {
        let word = |position: usize| self.word64(Self::slot(sequence) + 8 * position).load(Ordering::Acquire);
        let kinds = word(1);
        let kind = |shift: u32| i32::from(u8::try_from((kinds >> shift) & 0xff).unwrap_or(0));
        Some(Descriptor {
            sequence: word(0),
            verb: Verb::from_number(kind(0))?,
            dtype: Dtype::from_number(kind(8))?,
            op: ReduceOp::from_number(kind(16))?,
            count: word(2),
            root: word(3),
            shape: word(6),
            on_gpu: kind(24) != 0,
            lies: (word(4) != 0).then(|| Lies { arena: word(4), offset: word(5), output: word(7) }),
            site: Site::default(),
        })
    }

    /// What a member brings to a call beside its descriptor; so many bytes on all members.
    pub(super) fn inline(&self, sequence: u64, byte_count: usize) -> Result<Span<'_>> {
        let start = Self::inline_place(sequence, byte_count);
        self.segment.span().part(start..start + byte_count.min(INLINE_BYTES))
    }

    pub(super) fn write_inline(&self, sequence: u64, bytes: Span<'_>, streams: bool) -> Result<()> {
        let start = Self::inline_place(sequence, bytes.byte_count());
        let end = start + bytes.byte_count().min(INLINE_BYTES);
        let mut whole = self.segment.span_mut();
        let mut target = whole.part(start..end)?;
        if streams { target.stream_from(bytes) } else { target.copy_from(bytes) }
    }

    /// One of the two stages, whole.
    pub(super) fn stage(&self, number: usize) -> Result<Span<'_>> {
        let start = STAGE + (number % 2) * self.piece_bytes;
        self.segment.span().part(start..start + self.piece_bytes)
    }

    /// Does something with one of the own stages.
    pub(super) fn with_stage<R>(
        &self,
        number: usize,
        act: impl FnOnce(&mut SpanMut<'_>) -> Result<R>,
    ) -> Result<R> {
        let start = STAGE + (number % 2) * self.piece_bytes;
        let mut whole = self.segment.span_mut();
        act(&mut whole.part(start..start + self.piece_bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_differ_in_a_word_have_other_fingerprints() {
        let plain = [7, 0x010203, 1 << 20, 0, 0];
        let mut seen = std::collections::BTreeSet::from([fingerprint(plain)]);
        for position in 0..plain.len() {
            for bit in 0..64 {
                let mut other = plain;
                other[position] ^= 1 << bit;
                assert!(seen.insert(fingerprint(other)), "bit {bit} of word {position}");
            }
        }
        // Small changes of several words at once, as calls differ by.
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..8_u64.pow(5) {
            let part = |word: u32| (number >> (3 * word)) & 7;
            let words = [part(0), part(1) << 8, part(2), part(3), part(4) << 61];
            assert!(seen.insert(fingerprint(words)), "{words:?}");
        }
    }

    #[test]
    fn what_a_call_brings_lies_in_its_note_or_its_slot_and_never_in_that_of_the_call_before() {
        let segment = Segment::reserve("uform-test", size(64)).expect("memory is free");
        let control = Control::new(segment, 64).expect("large enough");
        let descriptor = |sequence| Descriptor::bare(Verb::Barrier, sequence);
        for byte_count in [0, 1, NOTE_ROOM, NOTE_ROOM + 1, INLINE_BYTES] {
            let bytes = |sequence: u8| vec![sequence; byte_count];
            for sequence in [4, 5] {
                control.write_descriptor(&descriptor(u64::from(sequence)));
                control
                    .write_inline(u64::from(sequence), Span::of(&bytes(sequence)[..]), false)
                    .expect("fits");
            }
            for sequence in [4, 5] {
                let found = control.inline(u64::from(sequence), byte_count).expect("within").to_vec();
                assert_eq!(found, bytes(sequence));
                assert_eq!(control.descriptor(u64::from(sequence)), Some(descriptor(u64::from(sequence))));
            }
            assert_eq!(
                (control.progress(), control.state(), control.has_concluded(1)),
                (0, State::Live, false)
            );
        }
    }

    #[test]
    fn what_is_written_is_read_and_rubbish_is_not_believed() {
        let segment = Segment::reserve("uform-test", size(64)).expect("memory is free");
        let control = Control::new(segment, 64).expect("large enough");
        let descriptor = Descriptor {
            sequence: 3,
            verb: Verb::AllReduce,
            dtype: Dtype::Bool,
            op: ReduceOp::BitwiseXor,
            count: 7,
            root: 0,
            shape: 9,
            on_gpu: true,
            lies: Some(Lies { arena: 1, offset: 77, output: 78 }),
            site: Site::default(),
        };
        control.write_descriptor(&descriptor);
        assert_eq!(control.descriptor(3), Some(descriptor));
        assert_eq!(control.descriptor(2), None);
        control.write_site(3, "train.py:7");
        control.write_site(4, "train.py:8");
        assert_eq!([control.site(3), control.site(4)], ["train.py:7", "train.py:8"]);
        assert_eq!(call_of(place(5, 9)), (5, 9));
        control.refuse(4, &"ä".repeat(400));
        assert_eq!(control.refusal(4).expect("it was refused").chars().count(), 256);
        assert_eq!(control.refusal(3), None);
        let cause = Cause::blaming(2, "line\nline".to_owned());
        control.leave(&cause);
        control.close();
        assert_eq!((control.state(), control.cause().text.as_str()), (State::Left, "line line"));
        control.segment.word64(CAUSE + 8).expect("within").store(u64::MAX, Ordering::SeqCst);
        assert_eq!(control.cause().text.len(), TEXT_LIMIT);
    }
}
