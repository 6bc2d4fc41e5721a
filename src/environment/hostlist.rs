//! The grammar in which launchers write many hosts, and counts per host, as one short text.
//!
//! Host lists are Slurm's: names parted by commas, each with any number of brackets that hold numbers and ranges, as
//! in `n[001-010,042]`, `rack[1-2]n[0-3]-ib` or `login,n[7]a`. The last bracket runs fastest. Counts are `2(x3),1`.

use crate::error::{Error, Result};

/// The most names that one list may stand for.
pub const NAME_LIMIT: usize = 256 * 1024;

/// The most bytes that all names of one list may have together.
const BYTE_LIMIT: usize = 16 << 20;

/// The most digits of a number in brackets.
const DIGIT_LIMIT: usize = 18;

/// One number or range in brackets, both ends included.
struct Range {
    first: u64,
    last: u64,
    /// Numbers are padded with zeros to so many digits.
    width: usize,
}

impl Range {
    fn count(&self) -> usize {
        usize::try_from(self.last - self.first).map_or(usize::MAX, |steps| steps.saturating_add(1))
    }
}

/// A piece of a name: letters as they are, or a bracket.
enum Piece<'a> {
    Text(&'a str),
    Ranges(Vec<Range>),
}

/// The names that a host list stands for, in its order; `origin` is where the text comes from, for errors.
///
/// # Errors
/// `Invalid` for brackets that do not match, ranges that are none, and lists of more than [`NAME_LIMIT`] names.
pub fn expand(text: &str, origin: &str) -> Result<Vec<String>> {
    let refuse = |reason: String| Error::invalid(origin, shortened(text), "environment", reason);
    let mut names = Vec::new();
    let mut bytes = 0_usize;
    for element in elements(text).map_err(refuse)? {
        let pieces = pieces(element).map_err(refuse)?;
        let (count, length) = size(&pieces);
        bytes = bytes.saturating_add(count.saturating_mul(length));
        if names.len().saturating_add(count) > NAME_LIMIT || bytes > BYTE_LIMIT {
            return Err(refuse(format!(
                "stands for more than {NAME_LIMIT} names, or for names that are too long"
            )));
        }
        unfold(&pieces, String::new(), &mut names);
    }
    if names.is_empty() {
        return Err(refuse("names no host".to_owned()));
    }
    Ok(names)
}

/// Cuts at the commas and spaces outside of brackets; empty elements are left out.
fn elements(text: &str) -> std::result::Result<Vec<&str>, String> {
    let (mut found, mut start, mut inside) = (Vec::new(), 0, false);
    for (position, letter) in text.char_indices() {
        match letter {
            '[' if inside => return Err("has a bracket within a bracket".to_owned()),
            ']' if !inside => return Err("has a closing bracket that opens nowhere".to_owned()),
            '[' | ']' => inside = letter == '[',
            ',' | ' ' | '\t' | '\n' if !inside => {
                found.push(&text[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("has a bracket that does not close".to_owned());
    }
    found.push(&text[start..]);
    found.retain(|element| !element.is_empty());
    Ok(found)
}

/// The pieces of one element, whose brackets match.
fn pieces(element: &str) -> std::result::Result<Vec<Piece<'_>>, String> {
    let mut pieces = Vec::new();
    let mut rest = element;
    while let Some((text, tail)) = rest.split_once('[') {
        let Some((inside, after)) = tail.split_once(']') else { break };
        pieces.push(Piece::Text(text));
        pieces.push(Piece::Ranges(inside.split(',').map(range).collect::<std::result::Result<_, _>>()?));
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Ok(pieces)
}

fn range(text: &str) -> std::result::Result<Range, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |digits: &str| match digits.len() {
        1..=DIGIT_LIMIT if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<u64>().ok(),
        _ => None,
    };
    match (number(first), number(last)) {
        (Some(low), Some(high)) if low <= high => Ok(Range { first: low, last: high, width: first.len() }),
        _ => Err(format!("has `{}` in brackets, which is neither a number nor a range", shortened(text))),
    }
}

/// How many names the pieces make, and how long a name can be.
fn size(pieces: &[Piece<'_>]) -> (usize, usize) {
    pieces.iter().fold((1_usize, 0_usize), |(count, length), piece| match piece {
        Piece::Text(text) => (count, length.saturating_add(text.len())),
        Piece::Ranges(ranges) => {
            let own = ranges.iter().fold(0_usize, |sum, range| sum.saturating_add(range.count()));
            (count.saturating_mul(own), length.saturating_add(DIGIT_LIMIT))
        }
    })
}

fn unfold(pieces: &[Piece<'_>], prefix: String, names: &mut Vec<String>) {
    // One list entry for each bracket, so that the depth does not grow with the number of brackets.
    let mut partial = vec![prefix];
    for piece in pieces {
        match piece {
            Piece::Text(text) => partial.iter_mut().for_each(|name| name.push_str(text)),
            Piece::Ranges(ranges) => {
                let numbers =
                    || ranges.iter().flat_map(|range| (range.first..=range.last).map(|n| (n, range.width)));
                let next = partial
                    .iter()
                    .flat_map(|name| numbers().map(move |(number, width)| format!("{name}{number:0width$}")));
                partial = next.collect();
            }
        }
    }
    names.append(&mut partial);
}

/// Counts per host, in the order of the host list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts(Vec<(usize, usize)>);

impl Counts {
    /// Reads `2(x3),1`; `origin` is where the text comes from, for errors.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn parse(text: &str, origin: &str) -> Result<Self> {
        let refuse = || {
            let reason = "must be counts such as `2(x3),1`";
            Error::invalid(origin, shortened(text), "environment", reason)
        };
        let number = |digits: &str| match digits.len() {
            1..=9 if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<usize>().ok(),
            _ => None,
        };
        let part = |part: &str| match part.split_once("(x") {
            Some((count, times)) => Some((number(count)?, number(times.strip_suffix(')')?)?)),
            None => Some((number(part)?, 1)),
        };
        let parts = text.split(',').map(|word| part(word.trim()));
        parts.collect::<Option<Vec<_>>>().map(Self).ok_or_else(refuse)
    }

    /// The count of one host; `None` if there are fewer hosts.
    #[must_use]
    pub fn of(&self, host_index: usize) -> Option<usize> {
        let mut passed = 0_usize;
        self.0.iter().find_map(|(count, times)| {
            passed = passed.saturating_add(*times);
            (host_index < passed).then_some(*count)
        })
    }

    /// The sum over all hosts.
    #[must_use]
    pub fn total(&self) -> usize {
        self.0.iter().fold(0, |sum, (count, times)| sum.saturating_add(count.saturating_mul(*times)))
    }

    /// How many hosts there are.
    #[must_use]
    pub fn host_count(&self) -> usize {
        self.0.iter().fold(0, |sum, (_, times)| sum.saturating_add(*times))
    }
}

/// A text that fits into a message.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 80;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(text: &str) -> String {
        expand(text, "LIST").map_or_else(|error| format!("error: {error}"), |names| names.join(" "))
    }

    #[test]
    fn lists_follow_the_whole_grammar() {
        let table = [
            ("n1", "n1"),
            ("a,b,,c", "a b c"),
            ("n[1-3]", "n1 n2 n3"),
            ("n[001-003,042]", "n001 n002 n003 n042"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("rack[1-2]n[0-3]", "rack1n0 rack1n1 rack1n2 rack1n3 rack2n0 rack2n1 rack2n2 rack2n3"),
            ("n[1-2]-ib,m3", "n1-ib n2-ib m3"),
            ("n[7]a,m[1-2]", "n7a m1 m2"),
            ("[1-2]", "1 2"),
            ("x[1,3-4]y[0],z", "x1y0 x3y0 x4y0 z"),
            ("n-1.site.org,n-2.site.org", "n-1.site.org n-2.site.org"),
            ("é[1-2]", "é1 é2"),
        ];
        for (text, expected) in table {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let table = [
            ("", "names no host"),
            (",", "names no host"),
            ("n[1-2", "does not close"),
            ("n1-2]", "opens nowhere"),
            ("n[1[2]]", "within a bracket"),
            ("n[]", "neither a number nor a range"),
            ("n[a-b]", "`a-b` in brackets"),
            ("n[3-1]", "`3-1` in brackets"),
            ("n[1-2-3]", "neither a number"),
            ("n[1,,2]", "neither a number"),
            ("n[-1]", "neither a number"),
            ("n[9999999999999999999]", "neither a number"),
            ("n[0-262144]", "more than 262144 names"),
            ("n[0-999999]m[0-999999]", "more than 262144 names"),
            ("n[0-999999999999999999]", "more than 262144 names"),
        ];
        for (text, reason) in table {
            let shown = names(text);
            assert!(shown.starts_with("error: LIST = ") && shown.contains(reason), "{text}: {shown}");
        }
        assert_eq!(expand("n[0-262143]", "LIST").expect("at the limit").len(), NAME_LIMIT);
        let long = format!("{}[0-99999]", "n".repeat(1000));
        assert!(names(&long).contains("too long"), "memory is bounded too");
    }

    #[test]
    fn counts_are_read_without_being_unfolded() {
        let counts = Counts::parse("2(x3),1", "COUNTS").expect("counts");
        assert_eq!(
            (0..5).map(|host| counts.of(host)).collect::<Vec<_>>(),
            [Some(2), Some(2), Some(2), Some(1), None]
        );
        assert_eq!((counts.total(), counts.host_count()), (7, 4));
        assert_eq!(Counts::parse("4", "COUNTS").expect("one").total(), 4);
        assert_eq!(Counts::parse("4(x1)", "COUNTS").expect("one").host_count(), 1);
        assert_eq!(Counts::parse("9(x999999999)", "COUNTS").expect("large").of(999_999_998), Some(9));
        for odd in ["", ",", "a", "2(x)", "2(3)", "2x3", "(x3)", "-1", "2(x3", "1(x2)(x3)", "9999999999"] {
            let error = Counts::parse(odd, "COUNTS").expect_err(odd).to_string();
            assert!(error.contains("2(x3),1"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let text = String::from_utf8_lossy(&bytes);
            if let Ok(names) = expand(&text, "LIST") {
                prop_assert!(!names.is_empty() && names.len() <= NAME_LIMIT);
            }
            let _ = Counts::parse(&text, "COUNTS");
        }

        #[test]
        fn no_list_of_its_letters_makes_it_panic(text in "[n0-9,\\[\\]x()-]{0,40}") {
            if let Ok(names) = expand(&text, "LIST") {
                prop_assert!(names.len() <= NAME_LIMIT);
                prop_assert!(names.iter().all(|name| !name.contains(['[', ']', ','])));
            }
            if let Ok(counts) = Counts::parse(&text, "COUNTS") {
                prop_assert!(counts.of(counts.host_count()).is_none());
            }
        }

        #[test]
        fn names_written_out_stand_for_themselves(names in proptest::collection::vec("[a-z][a-z0-9.-]{0,8}", 1..9)) {
            prop_assert_eq!(expand(&names.join(","), "LIST").expect("plain names"), names);
        }

        #[test]
        fn a_range_is_what_it_would_be_written_out(
            first in 0_u32..2000, length in 1_u32..50, width in 1_usize..6, suffix in "[a-z]{0,3}",
        ) {
            let last = first + length - 1;
            let written = (first..=last).map(|number| format!("n{number:0width$}{suffix}")).collect::<Vec<_>>();
            let text = format!("n[{first:0width$}-{last:0width$}]{suffix}");
            prop_assert_eq!(expand(&text, "LIST").expect("a range"), written);
        }
    }
}
