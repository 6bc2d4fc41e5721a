//! What stored files need from the system beside `std`: free space, synced folders, and an atomic exchange of names.
//!
//! Files are read and written through buffers and never mapped: a mapped file that somebody else cuts short ends the
//! process with SIGBUS instead of an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::sys::{Deadline, Span, SpanMut};

/// Bytes that are moved between two looks at the deadline.
const PIECE: usize = 1 << 20;

/// The bytes that this user may still write to the file system of `path`.
///
/// # Errors
/// `Io`.
pub fn free_bytes(path: &Path) -> Result<u64> {
    fs2::available_space(path).map_err(|source| Error::io(path, "ask for the free space of", source))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// `Io`.
pub fn sync_folder(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|source| Error::io(path, "sync the folder", source))
}

/// Exchanges what two names stand for in one step; `false` where the file system cannot.
///
/// # Errors
/// `Io`.
pub fn exchange_names(one: &Path, other: &Path) -> Result<bool> {
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, one, here, other, rustix::fs::RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => Ok(false),
        Err(errno) => Err(Error::io(other, "replace", errno.into())),
    }
}

/// Gives the bytes of a span, piece by piece, as they were when they were copied.
///
/// # Errors
/// What `take` returns; `Interrupted` and `TimedOut` between two pieces.
pub fn pieces(
    span: Span<'_>,
    phase: &str,
    deadline: &Deadline<'_>,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut start = 0;
    while start < span.byte_count() {
        deadline.check(phase, Vec::new)?;
        let end = span.byte_count().min(start + PIECE);
        take(&span.part(start..end)?.to_vec())?;
        start = end;
    }
    Ok(())
}

/// Fills a span with the bytes of a file from `offset` on.
///
/// # Errors
/// `Io`; `Corrupt` for a file that ends before; `Interrupted` and `TimedOut` between two pieces.
pub fn read_into(
    file: &File,
    path: &Path,
    offset: u64,
    target: &mut SpanMut<'_>,
    deadline: &Deadline<'_>,
) -> Result<()> {
    let (mut start, mut buffer) = (0, Vec::new());
    while start < target.byte_count() {
        deadline.check("reading a checkpoint", Vec::new)?;
        let end = target.byte_count().min(start + PIECE);
        buffer.resize(end - start, 0);
        read_exact(file, path, offset + start as u64, &mut buffer)?;
        target.part(start..end)?.copy_from(Span::of(&buffer))?;
        start = end;
    }
    Ok(())
}

/// Fills a buffer with the bytes of a file from `offset` on.
///
/// # Errors
/// `Io`; `Corrupt` for a file that ends before.
pub fn read_exact(file: &File, path: &Path, offset: u64, buffer: &mut [u8]) -> Result<()> {
    file.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            let reason = format!("the file ends within the {} bytes that must be here", buffer.len());
            Error::Corrupt { path: path.to_owned(), offset, reason }
        }
        _ => Error::io(path, "read", source),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_short_file_is_corrupt_and_a_full_one_is_read() {
        let path = std::env::temp_dir().join(format!("uform-disk-{}", std::process::id()));
        let bytes = (0..=PIECE + 4).map(|position| (position % 251) as u8).collect::<Vec<_>>();
        std::fs::write(&path, &bytes).unwrap();
        let (file, deadline) = (File::open(&path).unwrap(), Deadline::after(Duration::from_secs(60)));
        let mut read = vec![0u8; PIECE + 2];
        read_into(&file, &path, 3, &mut SpanMut::of(&mut read), &deadline).unwrap();
        assert_eq!(read, bytes[3..]);
        let error = read_into(&file, &path, 4, &mut SpanMut::of(&mut read), &deadline).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        let mut seen = Vec::new();
        pieces(Span::of(&bytes), "a test", &deadline, |piece| {
            seen.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, bytes);
        std::fs::remove_file(&path).unwrap();
        assert!(free_bytes(&std::env::temp_dir()).unwrap() > 0);
    }
}
