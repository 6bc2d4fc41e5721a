//! Where things lie in the file of a record: words in the byte order of the host, texts with their length in front.

/// The first word of a file that is whole.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"uform.rc");
/// The version of this layout.
pub(super) const VERSION: u64 = 2;

/// How many calls a record keeps.
pub const CALLS: usize = 1024;
pub(super) const CALL_BYTES: usize = 64;
/// Instead of the time at which all had come: they had, and the call ended at once.
pub(super) const MATCHED_LAST: u64 = 1;
/// How many groups have a name of their own.
pub(super) const GROUPS: usize = 64;
/// Bytes of a text and its length.
pub(super) const TEXT_BYTES: usize = 128;
/// Pairs of clock readings: that of the start, and two that alternate.
pub(super) const ANCHORS: usize = 3;

/// Words of the header, by position.
#[derive(Clone, Copy, Debug)]
pub(super) enum Header {
    Magic = 0,
    Version = 1,
    Index = 2,
    Count = 3,
    Pid = 4,
    StartTicks = 5,
    HasFailed = 7,
    IsClosed = 8,
    /// Whether this member gives the stacks of its interpreter.
    GivesStacks = 9,
    /// How often it was asked for them, by whomever; 32 bits, slept on.
    Asked = 10,
    /// How often by itself; 32 bits.
    AskedItself = 11,
    /// Up to which question it has answered; 32 bits.
    Answered = 12,
    /// How many calls were begun. On a line of its own: it is written with each.
    Next = 16,
    AnchorCount = 17,
    NextAnchor = 18,
    /// Pairs of ticks and nanoseconds since 1970.
    Anchors = 24,
}

/// Where the texts of the header begin.
pub(super) const HEADER_WORDS: usize = 512;
const GROUP_START: usize = 4096;
const SITE_START: usize = GROUP_START + GROUPS * TEXT_BYTES;
const CALL_START: usize = SITE_START + super::site::LIMIT * TEXT_BYTES;
/// Bytes of the file.
pub(super) const FILE_BYTES: usize = CALL_START + CALLS * CALL_BYTES;

pub(super) const fn group_offset(group: usize) -> usize {
    GROUP_START + group * TEXT_BYTES
}

pub(super) const fn site_offset(site: u32) -> usize {
    SITE_START + (site as usize % super::site::LIMIT) * TEXT_BYTES
}

/// Where a call lies, by its number from 0.
pub(super) const fn call_offset(number: u64) -> usize {
    CALL_START + (number % CALLS as u64) as usize * CALL_BYTES
}
