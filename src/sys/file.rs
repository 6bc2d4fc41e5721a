//! Folders and small records that processes of one user share: private, bounded, never followed through a link.
//!
//! A record carries its length and checksum and appears under its name at once, whole, or not at all on file
//! systems with an atomic rename. What is read is checked, and what cannot be read whole now is "not yet".

use std::cell::Cell;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::random;
use crate::error::{Error, Result};

/// How often this thread has asked the file system, since the thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Files created.
    pub created: u64,
    /// Files opened to be read.
    pub opened: u64,
    /// Folders listed.
    pub listed: u64,
    /// Entries that the listings gave.
    pub entries: u64,
    /// Bytes read.
    pub bytes_read: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { created: 0, opened: 0, listed: 0, entries: 0, bytes_read: 0 }) };
}

/// The operations of the calling thread.
#[must_use]
pub fn counts() -> Counts {
    COUNTS.get()
}

fn count(change: impl FnOnce(&mut Counts)) {
    let mut counts = COUNTS.get();
    change(&mut counts);
    COUNTS.set(counts);
}

const HEADER: &str = "uform 1";
const HEADER_BYTES: usize = 64;

/// Whether an error means that the same operation may succeed later: the name is not there yet, the handle is
/// stale, or a server did not answer.
#[must_use]
pub fn is_transient(error: &Error) -> bool {
    match error {
        Error::Io { source, .. } => source.raw_os_error().is_some_and(|code| {
            [Errno::NOENT, Errno::STALE, Errno::IO, Errno::INTR, Errno::AGAIN]
                .iter()
                .any(|errno| errno.raw_os_error() == code)
        }),
        _ => false,
    }
}

/// Whether an error says that the name, or the folder it is in, is not there.
#[must_use]
pub fn is_absent(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.raw_os_error() == Some(Errno::NOENT.raw_os_error()))
}

/// The value, `None` for what may succeed later, or the error that stays.
///
/// # Errors
/// Those that are not transient.
pub fn settled<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_transient(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A folder held open; all its operations are relative to it and follow no symbolic link.
#[derive(Debug)]
pub struct Folder {
    handle: OwnedFd,
    path: PathBuf,
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens the folder that the user named, which may be reached by a link and may belong to somebody else; makes
    /// it where only its last component is absent.
    ///
    /// # Errors
    /// `Invalid` for a relative path, a file, and a parent that does not exist; `Io` otherwise.
    pub fn root(path: &Path) -> Result<Self> {
        let refuse = |reason: &str| Error::invalid("directory", path.display(), "rendezvous", reason);
        if !path.is_absolute() {
            return Err(refuse("must be absolute, since processes may have different working folders"));
        }
        let open = || fs::open(path, FOLDER, Mode::empty());
        let opened = match open() {
            Err(Errno::NOENT) => {
                match fs::mkdir(path, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(Errno::NOENT | Errno::NOTDIR) => return Err(refuse("its parent does not exist")),
                    Err(errno) => return Err(Error::io(path, "make the folder", errno.into())),
                }
                open()
            }
            other => other,
        };
        match opened {
            Ok(handle) => Ok(Self { handle, path: path.to_owned() }),
            Err(Errno::NOTDIR) => Err(refuse("is a file, not a folder")),
            Err(errno) => Err(Error::io(path, "open the folder", errno.into())),
        }
    }

    /// The path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn failed(&self, name: &str, operation: &str, errno: Errno) -> Error {
        Error::io(self.path.join(name), operation, errno.into())
    }

    /// Opens a private folder in this one.
    ///
    /// # Errors
    /// `Invalid` if it is a link, a file, another user's, or open to others; `Io` otherwise.
    pub fn open(&self, name: &str) -> Result<Self> {
        let path = self.path.join(name);
        let refuse = |reason: String| Error::invalid("directory", path.display(), "rendezvous", reason);
        let handle = match fs::openat(&self.handle, name, FOLDER.union(OFlags::NOFOLLOW), Mode::empty()) {
            Ok(handle) => handle,
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(refuse(
                    "is a symbolic link or a file; remove it, or choose another directory".into(),
                ));
            }
            Err(Errno::ACCESS) => {
                // A folder that cannot be entered is most often another user's: that is the better answer.
                if let Ok(status) = fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW)
                    && status.st_uid != rustix::process::geteuid().as_raw()
                {
                    return Err(refuse(format!(
                        "belongs to user {}; choose another directory or job",
                        status.st_uid
                    )));
                }
                return Err(self.failed(name, "open the folder", Errno::ACCESS));
            }
            Err(errno) => return Err(self.failed(name, "open the folder", errno)),
        };
        let status = fs::fstat(&handle).map_err(|errno| self.failed(name, "examine the folder", errno))?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(refuse(format!(
                "belongs to user {}; choose another directory or job",
                status.st_uid
            )));
        }
        if status.st_mode & 0o077 != 0 {
            let mode = status.st_mode & 0o777;
            return Err(refuse(format!("has mode {mode:03o}: others could join the run; it must be 700")));
        }
        Ok(Self { handle, path })
    }

    /// Opens a private folder in this one, and makes it with mode 0700 if it is absent.
    ///
    /// # Errors
    /// As [`Folder::open`].
    pub fn make(&self, name: &str) -> Result<Self> {
        match fs::mkdirat(&self.handle, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.open(name),
            Err(errno) => Err(self.failed(name, "make the folder", errno)),
        }
    }

    /// The names in it, except those that begin with a dot.
    ///
    /// # Errors
    /// `Io`.
    pub fn list(&self) -> Result<Vec<String>> {
        // A new open makes NFS look at the folder again; a kept one may show what it showed before.
        let failed = |errno| self.failed("", "list", errno);
        let fresh = fs::openat(&self.handle, ".", FOLDER, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in Dir::new(fresh).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if let Ok(name) = entry.file_name().to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        // A removed folder lists as an empty one.
        if names.is_empty() && fs::fstat(&self.handle).map_err(failed)?.st_nlink == 0 {
            return Err(failed(Errno::NOENT));
        }
        count(|counts| {
            counts.listed += 1;
            counts.entries += names.len() as u64;
        });
        Ok(names)
    }

    /// Reads a record of at most `limit` bytes; `None` if it is not there, not whole, or nothing this user wrote
    /// as a record (a link, a pipe, a folder, a device, another user's file).
    ///
    /// # Errors
    /// `Io` for what will not become better by waiting.
    pub fn read(&self, name: &str, limit: usize) -> Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        count(|counts| counts.opened += 1);
        let file = match fs::openat(&self.handle, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(None),
            Err(errno) => return settled(Err(self.failed(name, "open", errno))),
        };
        let Some(status) = settled(fs::fstat(&file).map_err(|errno| self.failed(name, "examine", errno)))?
        else {
            return Ok(None);
        };
        let own = status.st_uid == rustix::process::geteuid().as_raw();
        let byte_count = usize::try_from(status.st_size).unwrap_or(usize::MAX);
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile
            || !own
            || byte_count > limit.saturating_add(HEADER_BYTES)
        {
            tracing::debug!(path = %self.path.join(name).display(), "not a record of this user; ignored");
            return Ok(None);
        }
        // The header first: what is large and no record costs no memory, however often it is looked at.
        let Some(mut bytes) = settled(self.read_on(&file, name, Vec::new(), byte_count.min(HEADER_BYTES)))?
        else {
            return Ok(None);
        };
        if Header::parse(&bytes).is_some_and(|header| header.total() == Some(byte_count)) {
            let Some(whole) = settled(self.read_on(&file, name, bytes, byte_count))? else { return Ok(None) };
            bytes = whole;
        }
        count(|counts| counts.bytes_read += bytes.len() as u64);
        Ok(unframe(bytes))
    }

    /// Reads on until there are so many bytes, or no more.
    fn read_on(&self, file: &OwnedFd, name: &str, mut bytes: Vec<u8>, total: usize) -> Result<Vec<u8>> {
        let mut filled = bytes.len();
        bytes.resize(total, 0);
        while filled < total {
            match rustix::io::read(file, &mut bytes[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(name, "read", errno)),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    /// What is under a name that is no record which this user wrote, in words; `None` for a record, and where nothing is.
    #[must_use]
    pub fn objection(&self, name: &str) -> Option<String> {
        let status = fs::statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let kind = match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => None,
            FileType::Symlink => Some("a symbolic link"),
            FileType::Fifo => Some("a named pipe"),
            FileType::Directory => Some("a folder"),
            FileType::Socket => Some("a socket"),
            FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
            FileType::Unknown => Some("of no known kind"),
        };
        if kind.is_some() {
            return kind.map(str::to_owned);
        }
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Some(format!("a file of user {}", status.st_uid));
        }
        let byte_count = usize::try_from(status.st_size).unwrap_or(usize::MAX);
        let whole = self.read(name, byte_count).ok()?;
        whole.is_none().then(|| format!("{byte_count} bytes that are no whole record"))
    }

    /// Writes a record under its name, at once and whole; `false` if the name was taken.
    ///
    /// # Errors
    /// `Io`: no space, no right, a folder that was removed.
    pub fn create(&self, name: &str, payload: &[u8]) -> Result<bool> {
        let private = format!(".{name:.80}.{}", random::nonce()?);
        count(|counts| counts.created += 1);
        self.write_private(&private, payload)?;
        let taken =
            match fs::renameat_with(&self.handle, &private, &self.handle, name, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => true,
                // NFS and Lustre have no such rename; a link to a taken name fails there as well.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => match self.link(&private, name) {
                    Ok(linked) => !linked,
                    Err(errno) => {
                        self.remove(&private);
                        return Err(self.failed(name, "create", errno));
                    }
                },
                Err(errno) => {
                    self.remove(&private);
                    return Err(self.failed(name, "create", errno));
                }
            };
        self.remove(&private);
        Ok(!taken)
    }

    fn write_private(&self, private: &str, payload: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.handle, private, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| self.failed(private, "create", errno))?;
        let mut file = std::fs::File::from(file);
        let mut bytes = format!("{HEADER} {} {:08x}\n", payload.len(), crc32fast::hash(payload)).into_bytes();
        bytes.extend_from_slice(payload);
        file.write_all(&bytes).map_err(|source| {
            self.remove(private);
            Error::io(self.path.join(private), "write", source)
        })
    }

    fn link(&self, private: &str, name: &str) -> std::result::Result<bool, Errno> {
        match fs::linkat(&self.handle, private, &self.handle, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(errno) => {
                // The answer of a server may be lost after it has linked: two names of the file tell. It is opened, since
                // NFS answers from what it remembers unless a file is opened.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let status = fs::openat(&self.handle, private, flags, Mode::empty()).and_then(fs::fstat);
                match status {
                    Ok(status) if status.st_nlink == 2 => Ok(true),
                    _ if errno == Errno::EXIST => Ok(false),
                    _ => Err(errno),
                }
            }
        }
    }

    /// Removes a file; silent, since whoever removes is leaving.
    pub fn remove(&self, name: &str) {
        if let Err(errno) = fs::unlinkat(&self.handle, name, AtFlags::empty())
            && errno != Errno::NOENT
        {
            tracing::debug!(path = %self.path.join(name).display(), %errno, "not removed");
        }
    }

    /// Removes private files that were never renamed; a writer that still lives begins anew.
    pub fn remove_hidden(&self) {
        let Ok(entries) = fs::openat(&self.handle, ".", FOLDER, Mode::empty()).and_then(Dir::new) else {
            return;
        };
        for entry in entries.flatten() {
            if let Ok(name) = entry.file_name().to_str()
                && name.starts_with('.')
                && name != "."
                && name != ".."
            {
                self.remove(name);
            }
        }
    }

    /// Removes a folder if it is empty; tells whether it is gone.
    #[must_use]
    pub fn remove_empty(&self, name: &str) -> bool {
        matches!(fs::unlinkat(&self.handle, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
    }

    /// Removes a folder and what is in it, at most three levels deep.
    pub fn remove_tree(&self, name: &str) {
        self.remove_levels(name, 3);
    }

    fn remove_levels(&self, name: &str, levels: u32) {
        if levels > 0
            && let Ok(handle) = fs::openat(&self.handle, name, FOLDER.union(OFlags::NOFOLLOW), Mode::empty())
        {
            let folder = Self { handle, path: self.path.join(name) };
            let Ok(entries) = fs::openat(&folder.handle, ".", FOLDER, Mode::empty()).and_then(Dir::new)
            else {
                return;
            };
            for entry in entries.flatten() {
                let Ok(inner) = entry.file_name().to_str() else { continue };
                if inner != "."
                    && inner != ".."
                    && fs::unlinkat(&folder.handle, inner, AtFlags::empty()).is_err()
                {
                    folder.remove_levels(inner, levels - 1);
                }
            }
        }
        let _ = self.remove_empty(name);
    }
}

/// The first line of a record.
struct Header {
    /// How many bytes it has, with its end.
    own: usize,
    payload: usize,
    checksum: u32,
}

impl Header {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().take(HEADER_BYTES).position(|byte| *byte == b'\n')?;
        let header = std::str::from_utf8(&bytes[..end]).ok()?;
        let mut fields = header.strip_prefix(HEADER)?.split_ascii_whitespace();
        let payload = fields.next()?.parse().ok()?;
        let checksum = u32::from_str_radix(fields.next()?, 16).ok()?;
        Some(Self { own: end + 1, payload, checksum })
    }

    /// How many bytes the whole record has.
    fn total(&self) -> Option<usize> {
        self.own.checked_add(self.payload)
    }
}

/// The payload of a whole record.
pub(crate) fn unframe(mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let header = Header::parse(&bytes)?;
    let payload = bytes.split_off(header.own);
    (payload.len() == header.payload && crc32fast::hash(&payload) == header.checksum).then_some(payload)
}

/// Opens a file of this user alone to write at its end, and makes it where it is absent; a symbolic link is not followed.
///
/// # Errors
/// `Io`.
pub fn append(path: &Path) -> Result<std::fs::File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    file.map(std::fs::File::from).map_err(|errno| Error::io(path, "open", errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch() -> PathBuf {
        let path = std::env::temp_dir().join(format!("uform-file-{}", random::nonce().expect("random")));
        std::fs::create_dir(&path).expect("made");
        path
    }

    #[test]
    fn a_record_is_created_once_and_read_whole() {
        let path = scratch();
        let folder = Folder::root(&path).expect("opened").make("a").expect("made");
        assert!(folder.create("record", b"one").expect("created"));
        assert!(!folder.create("record", b"two").expect("refused"));
        assert_eq!(folder.read("record", 10).expect("read"), Some(b"one".to_vec()));

        assert_eq!(folder.read("absent", 10).expect("not there"), None);
        assert_eq!(std::fs::read_dir(path.join("a")).expect("listed").count(), 1, "no private file stays");
        let mode = std::fs::metadata(path.join("a/record")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn a_removed_folder_is_not_an_empty_one() {
        let path = scratch();
        let root = Folder::root(&path).expect("opened");
        let folder = root.make("a").expect("made");
        assert!(folder.list().expect("listed").is_empty());
        assert!(root.remove_empty("a"));
        assert!(is_transient(&folder.list().expect_err("gone")));
        assert!(is_transient(&folder.create("record", b"").expect_err("gone")));
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn hostile_files_are_no_records() {
        let path = scratch();
        let folder = Folder::root(&path).expect("opened").make("a").expect("made");
        let inner = path.join("a");
        std::fs::write(inner.join("cut"), "uform 1 100 00000000\nshort").expect("written");
        std::fs::write(inner.join("garbage"), [0xff; 300]).expect("written");
        std::fs::write(inner.join("huge"), vec![b'x'; 100_000]).expect("written");
        std::fs::create_dir(inner.join("folder")).expect("made");
        symlink("/etc/passwd", inner.join("link")).expect("linked");
        symlink("/dev/zero", inner.join("device")).expect("linked");
        let mode = Mode::RUSR | Mode::WUSR;
        fs::mknodat(fs::CWD, inner.join("pipe"), FileType::Fifo, mode, 0).expect("piped");
        for (name, what) in [
            ("cut", "26 bytes that are no whole record"),
            ("garbage", "300 bytes that are no whole record"),
            ("huge", "100000 bytes that are no whole record"),
            ("folder", "a folder"),
            ("link", "a symbolic link"),
            ("device", "a symbolic link"),
            ("pipe", "a named pipe"),
        ] {
            assert_eq!(folder.read(name, 1000).expect("no error"), None, "{name}");
            assert_eq!(folder.objection(name).as_deref(), Some(what), "{name}");
        }
        // So large a file, of zeros or with the first line of a small record, is never read whole.
        for start in ["", "uform 1 100 00000000\n"] {
            std::fs::write(inner.join("vast"), start).expect("written");
            let file = std::fs::File::options().write(true).open(inner.join("vast")).expect("there");
            file.set_len(1 << 40).expect("sparse");
            let before = counts().bytes_read;
            assert_eq!(folder.read("vast", usize::MAX - HEADER_BYTES).expect("no error"), None);
            assert!(counts().bytes_read - before <= HEADER_BYTES as u64);
            assert!(folder.objection("vast").is_some());
        }
        assert!(folder.create("record", b"one").expect("created"));
        assert_eq!((folder.objection("record"), folder.objection("absent")), (None, None));
        std::fs::remove_dir_all(path).expect("removed");
    }

    #[test]
    fn links_files_and_open_folders_are_refused() {
        let path = scratch();
        let root = Folder::root(&path).expect("opened");
        std::fs::write(path.join("file"), "").expect("written");
        std::fs::create_dir(path.join("open")).expect("made");
        std::fs::set_permissions(path.join("open"), std::fs::Permissions::from_mode(0o755)).expect("set");
        symlink(&path, path.join("link")).expect("linked");
        for (name, word) in [("file", "symbolic link or a file"), ("link", "symbolic link"), ("open", "755")]
        {
            let error = root.make(name).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
        for (bad, word) in [("relative", "absolute"), ("/nowhere/at/all", "parent")] {
            let error = Folder::root(Path::new(bad)).expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
        let error = Folder::root(&path.join("file")).expect_err("refused").to_string();
        assert!(error.contains("not a folder"), "{error}");
        std::fs::remove_dir_all(path).expect("removed");
    }
}
