//! Random bytes from the kernel.

use crate::error::{Error, Result};

/// Fills a fixed number of bytes from the kernel's generator.
///
/// # Errors
/// `Io` if the kernel has none (before Linux 3.17, or a sandbox that forbids the call).
pub fn bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    let mut buffer = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        match rustix::rand::getrandom(&mut buffer[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::io("getrandom", "call", errno.into())),
        }
    }
    Ok(buffer)
}

/// A new nonce: 16 random hexadecimal digits.
///
/// # Errors
/// As [`bytes`].
pub fn nonce() -> Result<crate::vocabulary::Nonce> {
    Ok(bytes::<8>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
