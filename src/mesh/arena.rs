//! Memory of the run that every member of a host sees: what `Mesh::arena` gives.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::communicator::SharedArena;
use crate::error::{Error, Result};
use crate::sys::{Span, SpanMut};

/// Arrays of an arena begin at multiples of this many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// Shared memory of all members, each with a part of its own.
///
/// A handle: the memory goes when the last clone on each member has gone.
#[derive(Clone)]
pub struct Arena {
    shared: Arc<dyn SharedArena>,
    taken: Arc<Mutex<usize>>,
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Arena({} bytes here)", self.byte_count())
    }
}

impl Arena {
    pub(super) fn new(shared: Arc<dyn SharedArena>) -> Self {
        Self { shared, taken: Arc::new(Mutex::new(0)) }
    }

    /// The bytes of this member's own part.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        self.shared.part(self.shared.seat()).map_or(0, |part| part.byte_count())
    }

    /// Takes the next free bytes of this member's part, aligned to [`ALIGNMENT`]; nothing is given back.
    ///
    /// # Errors
    /// `Exhausted` with what is left.
    pub fn take(&self, byte_count: usize) -> Result<Range<usize>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let start = taken.next_multiple_of(ALIGNMENT);
        let free = self.byte_count().saturating_sub(start);
        if byte_count > free {
            return Err(Error::Exhausted {
                place: format!("this member's arena of {} bytes", self.byte_count()),
                wanted_bytes: byte_count as u64,
                free_bytes: free as u64,
                remedy: "make the arena larger; arrays begin at multiples of 64 bytes".to_owned(),
            });
        }
        *taken = start + byte_count;
        Ok(start..start + byte_count)
    }

    /// The part that member `index` brought; `None` if there is no such member. Any member may write it at any time.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<Span<'_>> {
        self.shared.part(index)
    }

    /// The same for writing.
    #[must_use]
    pub fn part_mut(&self, index: usize) -> Option<SpanMut<'_>> {
        self.shared.part_mut(index)
    }

    /// A range of this member's own part, for writing.
    ///
    /// # Errors
    /// `Invalid` if it is not within.
    pub fn own(&self, range: Range<usize>) -> Result<SpanMut<'_>> {
        let total = self.byte_count();
        let outside = || {
            let reason = format!("must lie within the {total} bytes of this member's part");
            Error::invalid("byte range", format!("{}..{}", range.start, range.end), "arena", reason)
        };
        let part = self.shared.part_mut(self.shared.seat()).ok_or_else(outside)?;
        part.into_part(range.clone())
    }
}
