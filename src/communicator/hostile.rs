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
