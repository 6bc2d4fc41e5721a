//! Tries in the directory what a run does there, and leaves nothing behind.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock, statfs, statvfs};

use super::facts::{Directory, FileSystem, Reach};

/// Kinds of file systems by the number that the kernel gives.
const KINDS: [(u64, &str, Reach); 18] = [
    (0x6969, "NFS", Reach::Shared),
    (0x0bd0_0bd0, "Lustre", Reach::Shared),
    (0x4750_4653, "GPFS", Reach::Shared),
    (0x1983_0326, "BeeGFS", Reach::Shared),
    (0x00c3_6400, "Ceph", Reach::Shared),
    (0xff53_4d42, "CIFS", Reach::Shared),
    (0xfe53_4d42, "SMB", Reach::Shared),
    (0x0102_1997, "9p", Reach::Shared),
    (0x6573_5546, "FUSE", Reach::Unknown),
    (0x794c_7630, "overlay", Reach::Host),
    (0x0102_1994, "tmpfs", Reach::Host),
    (0x8584_58f6, "ramfs", Reach::Host),
    (0xef53, "ext4", Reach::Host),
    (0x5846_5342, "XFS", Reach::Host),
    (0x9123_683e, "Btrfs", Reach::Host),
    (0x2fc1_2fc1, "ZFS", Reach::Host),
    (0xf2f5_2010, "F2FS", Reach::Host),
    (0xca45_1a4e, "bcachefs", Reach::Host),
];

/// The kind that belongs to a number.
pub(super) fn kind(number: u64) -> FileSystem {
    let found = KINDS.iter().find(|(own, ..)| *own == number & 0xffff_ffff);
    found.map_or(FileSystem { name: "an unknown file system", reach: Reach::Unknown }, |(_, name, reach)| {
        FileSystem { name, reach: *reach }
    })
}

/// Looks at the directory, which is made and removed again if it is not there.
pub(super) fn look(path: &Path, origin: String) -> Directory {
    let mut found = Directory {
        path: path.to_owned(),
        origin,
        file_system: kind(0),
        usable: Ok(()),
        locks: Ok(true),
        free_bytes: 0,
        left: Vec::new(),
        oldest_seconds: 0,
    };
    let was_there = path.exists();
    // As bootstrap opens it, which makes the last folder of the path.
    if let Err(error) = uform::sys::file::Folder::root(path) {
        found.usable = Err(error.chain());
        return found;
    }
    if let Ok(status) = statfs(path) {
        // The type's sign and width differ between machines; the kinds fit 32 bits.
        found.file_system = kind(status.f_type as u64);
    }
    found.free_bytes = statvfs(path).map_or(0, |status| status.f_bavail.saturating_mul(status.f_frsize));
    match uform::sys::random::nonce() {
        Ok(nonce) => {
            let own = path.join(format!("doctor-{nonce}"));
            found.usable = fs::DirBuilder::new()
                .mode(0o700)
                .create(&own)
                .map_err(|error| format!("no folder can be made: {error}"))
                .and_then(|()| try_files(&own));
            found.locks = try_locks(&own.join("lock")).map_err(|error| error.to_string());
            // Nobody else writes to a folder of this name.
            let _ = fs::remove_dir_all(&own);
        }
        Err(error) => found.usable = Err(error.chain()),
    }
    (found.left, found.oldest_seconds) = left(path);
    if !was_there {
        // Only if it is empty: somebody may have come meanwhile.
        let _ = fs::remove_dir(path);
    }
    found
}

/// Exclusive creation, renaming over a name, and reading back.
fn try_files(folder: &Path) -> Result<(), String> {
    let say = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
    let (first, second) = (folder.join("first"), folder.join("second"));
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = create(&first).map_err(|error| say("no file can be made", &error))?;
    file.write_all(b"first").map_err(|error| say("no file can be written", &error))?;
    drop(file);
    match create(&first) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(say("exclusive creation fails", &error)),
        Ok(_) => return Err("two processes can create one file exclusively".to_owned()),
    }
    fs::write(&second, b"second").map_err(|error| say("no file can be written", &error))?;
    fs::rename(&second, &first).map_err(|error| say("a file cannot be renamed over another", &error))?;
    match fs::read(&first) {
        Ok(bytes) if bytes == b"second" => Ok(()),
        Ok(_) => Err("a file that was renamed over another is not seen".to_owned()),
        Err(error) => Err(say("a file cannot be read back", &error)),
    }
}

/// Whether a second lock is refused while the first is held.
fn try_locks(path: &Path) -> Result<bool, std::io::Error> {
    let (first, second) = (File::create(path)?, File::create(path)?);
    flock(&first, FlockOperation::NonBlockingLockExclusive)?;
    match flock(&second, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(false),
    }
}

/// The jobs that met or meet here, and the seconds since the oldest changed.
fn left(path: &Path) -> (Vec<String>, u64) {
    let (mut names, mut oldest) = (Vec::new(), 0);
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("uform-") || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        names.push(name);
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
        oldest = age.map_or(oldest, |age| age.as_secs().max(oldest));
    }
    names.sort();
    (names, oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_number() {
        assert_eq!(kind(0x6969), FileSystem { name: "NFS", reach: Reach::Shared });
        assert_eq!(kind(0x0102_1994).reach, Reach::Host);
        // A signed 32-bit number that was widened.
        assert_eq!(kind(0xffff_ffff_ff53_4d42).name, "CIFS");
        assert_eq!(kind(1).reach, Reach::Unknown);
    }

    #[test]
    fn a_folder_is_tried_and_left_as_it_was() {
        let root = std::env::temp_dir().join(format!("uform-doctor-test-{}", std::process::id()));
        fs::create_dir(&root).expect("made");
        let path = root.join("meeting");
        let found = look(&path, "a test".into());
        assert_eq!(found.usable, Ok(()));
        assert_eq!(found.locks, Ok(true));
        assert!(found.free_bytes > 0 && !path.exists());
        fs::create_dir_all(path.join("uform-old")).expect("made");
        assert_eq!(look(&path, "a test".into()).left, ["uform-old"]);
        assert_eq!(fs::read_dir(&path).expect("there").count(), 1);
        fs::write(root.join("file"), "").expect("written");
        for absent in [root.join("file"), root.join("no/such"), "relative".into()] {
            assert!(look(&absent, "a test".into()).usable.is_err(), "{}", absent.display());
        }
        fs::remove_dir_all(&root).expect("removed");
    }
}
