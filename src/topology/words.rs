//! How counts, lists of numbers and sizes are written for people.

/// A number and its noun: `1 host`, `2 processes`.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    match (count, noun.ends_with('s')) {
        (1, _) => format!("1 {noun}"),
        (_, true) => format!("{count} {noun}es"),
        (_, false) => format!("{count} {noun}s"),
    }
}

/// Ascending numbers as the kernel writes them: `0-3,8`.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let mut parts = Vec::<(u32, u32)>::new();
    for number in numbers {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => parts.push((*number, *number)),
        }
    }
    let write = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    parts.iter().map(write).collect::<Vec<_>>().join(",")
}

/// Positions or indexes as [`ranges`] writes numbers; one beyond 32 bits is written as the largest of these.
pub(super) fn index_ranges(indexes: &[usize]) -> String {
    let numbers = indexes.iter().map(|index| u32::try_from(*index).unwrap_or(u32::MAX)).collect::<Vec<_>>();
    ranges(&numbers)
}

/// Bytes with one decimal in the largest unit of two that fits: `1.5 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >> shift > 0) {
        // A float is exact as far as one decimal needs it.
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// The first of these texts, and how many are left out.
pub(super) fn some_of(texts: &[String], limit: usize, separator: &str) -> String {
    let mut text = texts.iter().take(limit).cloned().collect::<Vec<_>>().join(separator);
    if texts.len() > limit {
        text.push_str(&format!("{separator}and {} more", texts.len() - limit));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!((counted(1, "host"), counted(2, "process")), ("1 host".into(), "2 processes".into()));
        assert_eq!((ranges(&[0, 1, 2, 5, 7, 8]), ranges(&[])), ("0-2,5,7-8".into(), String::new()));
        assert_eq!(
            (size(512), size(1536), size(3 << 30)),
            ("512 B".into(), "1.5 KiB".into(), "3.0 GiB".into())
        );
        let texts = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(
            (some_of(&texts, 3, "; "), some_of(&texts, 1, "; ")),
            ("a; b; c".into(), "a; and 2 more".into())
        );
    }
}
