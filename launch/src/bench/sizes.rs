//! Sizes in bytes as a person writes them: `8,4K,1M`, `8:64M`, `8:64M:4`.

/// The most lines of a table.
const COUNT_LIMIT: usize = 1000;

/// The most bytes of a line.
const BYTE_LIMIT: usize = 1 << 50;

/// A list of sizes, as it was written and as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    text: String,
    byte_counts: Vec<usize>,
}

impl Sizes {
    /// Reads sizes and ranges, joined by commas.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut byte_counts = Vec::new();
        for word in text.split(',') {
            let parts = word.split(':').collect::<Vec<_>>();
            let (first, last, factor) = match parts[..] {
                [one] => {
                    byte_counts.push(size(one)?);
                    continue;
                }
                [first, last] => (first, last, "2"),
                [first, last, factor] => (first, last, factor),
                _ => return Err(format!("{word:?} has more than FIRST:LAST:FACTOR")),
            };
            let (first, last) = (size(first)?, size(last)?);
            let factor = factor.parse::<usize>().ok().filter(|factor| *factor >= 2);
            let factor = factor.ok_or_else(|| format!("the factor of {word:?} must be a number from 2"))?;
            if first == 0 || first > last {
                return Err(format!("{word:?} must begin above 0 and not above its end"));
            }
            let mut next = Some(first);
            while let Some(value) = next.filter(|value| *value <= last) {
                byte_counts.push(value);
                next = value.checked_mul(factor);
            }
        }
        if byte_counts.len() > COUNT_LIMIT {
            return Err(format!("{} sizes are more than {COUNT_LIMIT}", byte_counts.len()));
        }
        Ok(Self { text: text.to_owned(), byte_counts })
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The sizes, in the order in which they were written.
    pub(super) fn byte_counts(&self) -> &[usize] {
        &self.byte_counts
    }
}

/// One size: a number with K, M, G or T (each 1,024 times the one before), also written Ki or KiB.
fn size(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KI" | "KIB" => 10,
        "M" | "MI" | "MIB" => 20,
        "G" | "GI" | "GIB" => 30,
        "T" | "TI" | "TIB" => 40,
        _ => return Err(format!("{text:?} must be a number of bytes, which may end in K, M, G or T")),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(1 << shift));
    match number {
        Some(bytes) if bytes <= BYTE_LIMIT => Ok(bytes),
        Some(_) => Err(format!("{text:?} is more than 1024T")),
        None => Err(format!("{text:?} must be a number of bytes, which may end in K, M, G or T")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<usize> {
        Sizes::parse(text).expect("legal").byte_counts
    }

    #[test]
    fn sizes_and_ranges_are_read() {
        assert_eq!(parsed("8,4K,1M"), [8, 4096, 1 << 20]);
        assert_eq!(parsed("8:64"), [8, 16, 32, 64]);
        assert_eq!(parsed("8:100:4,0,3kib"), [8, 32, 0, 3072]);
        assert_eq!(parsed("1G:1G"), [1 << 30]);
        assert_eq!(parsed("8:64M").len(), 24);
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_text() {
        for (text, part) in [
            ("", "\"\""),
            ("8,,9", "\"\""),
            ("K", "\"K\""),
            ("4X", "\"4X\""),
            ("-1", "\"-1\""),
            ("1.5K", "\"1.5K\""),
            ("64:8", "64:8"),
            ("0:8", "0:8"),
            ("8:64:1", "factor"),
            ("8:64:2:2", "more than"),
            ("99999999999999999999", "9999"),
            ("2000000T", "2000000T"),
            ("ä", "ä"),
        ] {
            let refusal = Sizes::parse(text).expect_err(text);
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
