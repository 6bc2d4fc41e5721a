//! All that this room reads of peers, on bytes that anybody may have sent: for the fuzz targets.

use super::handshake::{GREETING_LIMIT, Greeting, Medium};
use super::tcp;

/// Reads `bytes` as greetings, frames cut at any place, and published addresses.
///
/// # Panics
/// If what was read does not come back as it was when it is written and read again.
pub fn read(bytes: &[u8]) {
    for medium in [Medium::Unix, Medium::Control, Medium::Data] {
        if let Some(greeting) = Greeting::decode(bytes, medium) {
            let again = greeting.encode(medium);
            assert!(again.len() <= GREETING_LIMIT && again == bytes);
        }
    }
    tcp::read_hostile(bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_harm_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            read(&bytes);
        }

        #[test]
        fn sites_that_are_no_text_are_read(count in 0_usize..250, byte in 0x80..=0xff_u8) {
            // A call to all_reduce of one kind, whose site is bytes of one value.
            let mut frame = vec![1, 7, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0];
            frame.extend([0; 24]);
            frame.push(count as u8);
            frame.extend(vec![byte; count]);
            let mut stream = vec![255];
            stream.extend((frame.len() as u32).to_le_bytes());
            stream.extend(frame);
            read(&stream);
        }
    }
}
