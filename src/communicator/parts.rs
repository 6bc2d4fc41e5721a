//! Arrays in parts, one for each seat: where they lie, and whether those who send and receive them count alike.

use std::ops::Range;

use super::Call;
use crate::error::{Error, Result};
use crate::vocabulary::Verb;

/// Bytes of the counts between this member and one other: what is sent, and what is received.
pub(super) const PAIR_BYTES: usize = 16;

/// Where the parts of all seats lie in one array, in bytes: equal parts of `count` elements unless they are counted.
pub(super) fn places(
    counts: Option<&[usize]>,
    count: usize,
    members: usize,
    size: usize,
) -> Vec<Range<usize>> {
    let mut end = 0;
    let place = |seat: usize| {
        let start = end;
        end += counts.map_or(count, |counts| counts.get(seat).copied().unwrap_or(0)) * size;
        start..end
    };
    (0..members).map(place).collect()
}

/// The counts of an all_to_all as its members show them to each other; `None` for any other call.
pub(super) fn pairs(call: &Call<'_>) -> Option<Vec<u8>> {
    let (Some(sent), Some(received), Verb::AllToAll) = (call.counts, call.receive_counts, call.verb) else {
        return None;
    };
    let pairs = sent.iter().zip(received).flat_map(|(sent, received)| [*sent as u64, *received as u64]);
    Some(pairs.flat_map(u64::to_le_bytes).collect())
}

/// Refuses an all_to_all whose counts do not fit beside its descriptor.
pub(super) fn check_room(call: &Call<'_>, members: usize, room: usize) -> Result<()> {
    let limit = room / PAIR_BYTES;
    if call.counts.is_some() && call.verb == Verb::AllToAll && members > limit {
        let why = format!("the group has {members} members; at most {limit} can");
        return Err(Error::unsupported("all_to_all with counts", why));
    }
    Ok(())
}

/// Compares what each member sends with what the other expects; `rows` are the [`pairs`] of all seats. Gives the longest part
/// in elements.
///
/// # Errors
/// `Disagreed` on all members, naming the first pair that differs.
pub(super) fn check_pairs(rows: &[Vec<u8>], own: usize, seats: &[usize]) -> Result<usize> {
    let number = |seat: usize, position: usize| {
        let (words, _) = rows.get(seat).map_or(&[][..], Vec::as_slice).as_chunks::<8>();
        words.get(position).map_or(u64::MAX, |word| u64::from_le_bytes(*word))
    };
    let mut longest = 0;
    for from in 0..seats.len() {
        for to in 0..seats.len() {
            let (sent, received) = (number(from, 2 * to), number(to, 2 * from + 1));
            if sent != received {
                let is_sender = own == from;
                let [from, to] = [from, to].map(|seat| seats[seat]);
                let sends = format!("index {from} sends {sent}");
                let expects = format!("index {to} expects {received}");
                let (mine, theirs) = if is_sender { (sends, expects) } else { (expects, sends) };
                return Err(Error::Disagreed {
                    field: format!("the count of elements from index {from} to index {to}"),
                    mine,
                    theirs,
                    index: if is_sender { to } else { from },
                });
            }
            longest = longest.max(sent);
        }
    }
    Ok(usize::try_from(longest).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other() {
        assert_eq!(places(None, 3, 2, 4), [0..12, 12..24]);
        assert_eq!(places(Some(&[1, 0, 2]), 9, 3, 8), [0..8, 8..8, 8..24]);
    }

    #[test]
    fn every_pair_is_compared_and_both_are_named() {
        let row =
            |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        // Sent and received with seat 0, then with seat 1.
        let rows = [row(&[1, 1, 2, 3]), row(&[3, 2, 0, 0])];
        assert_eq!(check_pairs(&rows, 0, &[4, 7]).expect("alike"), 3);
        let rows = [row(&[1, 1, 2, 3]), row(&[3, 9, 0, 0])];
        for own in 0..2 {
            let error = check_pairs(&rows, own, &[4, 7]).expect_err("they differ");
            let text = error.to_string();
            assert!(text.contains("index 4 sends 2") && text.contains("index 7 expects 9"), "{text}");
        }
        assert!(check_pairs(&[row(&[1, 1, 2, 3]), Vec::new()], 0, &[4, 7]).is_err());
    }
}
