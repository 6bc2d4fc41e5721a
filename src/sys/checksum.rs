//! The checksum of stored files: CRC-32 with the polynomial of IEEE 802.3, as zlib computes it.

/// A checksum that grows with the bytes it is shown.
#[derive(Clone, Debug, Default)]
pub struct Checksum(crc32fast::Hasher);

impl Checksum {
    /// The checksum of no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The number so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }

    /// The number of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u32 {
        crc32fast::hash(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_checksum_of_zlib() {
        assert_eq!(Checksum::of(b"123456789"), 0xCBF4_3926);
        let mut checksum = Checksum::new();
        checksum.update(b"1234");
        checksum.update(b"56789");
        assert_eq!(checksum.value(), Checksum::of(b"123456789"));
        assert_eq!(Checksum::new().value(), 0);
    }
}
