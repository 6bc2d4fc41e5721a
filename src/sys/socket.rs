//! Unix sockets without a path that carry short messages and open files between processes of one machine.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::{Error, Result};
use crate::sys::fork::Private;
use crate::sys::random;

/// The longest message; longer ones are refused on both sides.
pub const MESSAGE_LIMIT: usize = 1024;

/// How many connections may wait to be accepted; the kernel's own limit may be lower.
const BACKLOG: i32 = 4096;

/// The name of one of this process's namespaces, `-` if it is not known.
fn namespace(kind: &str) -> String {
    // Of this thread: one that entered another network opens its sockets there.
    let link = std::fs::read_link(format!("/proc/thread-self/ns/{kind}"));
    link.map_or_else(|_| "-".to_owned(), |target| target.to_string_lossy().into_owned())
}

/// The namespaces of the calling thread, read once to be compared with those of many addresses.
#[derive(Debug)]
pub struct Namespaces {
    network: String,
    processes: String,
}

impl Namespaces {
    /// Those of this thread.
    #[must_use]
    pub fn own() -> Self {
        Self { network: namespace("net"), processes: namespace("pid") }
    }

    /// Whether this process can connect to an address of [`Doorway::address`]: both have one network namespace.
    #[must_use]
    pub fn reach(&self, address: &str) -> bool {
        address.starts_with('@') && address.split(' ').nth(1) == Some(self.network.as_str())
    }

    /// Whether process numbers of the process that listens at an address are those that this process sees.
    #[must_use]
    pub fn share_numbers(&self, address: &str) -> bool {
        address.split(' ').nth(2) == Some(self.processes.as_str())
    }
}

fn endpoint() -> Result<Private> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map(Private::new)
        .map_err(|errno| Error::io("unix socket", "open", errno.into()))
}

fn timespec(limit: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    }
}

/// Sleeps until one of the sockets has something to read, has hung up, or the limit has passed.
pub fn wait_readable(sockets: &[BorrowedFd<'_>], limit: Duration) {
    let mut polled =
        sockets.iter().map(|socket| PollFd::from_borrowed_fd(*socket, PollFlags::IN)).collect::<Vec<_>>();
    // A signal ends the sleep too; the caller looks again in any case.
    let _ = poll(&mut polled, Some(&timespec(limit)));
}

/// A listening socket with a random abstract name: it leaves no file, and goes with its process.
#[derive(Debug)]
pub struct Doorway {
    socket: Private,
    address: String,
}

/// What came of an attempt to connect.
#[derive(Debug)]
pub enum Reached {
    /// Connected.
    Open(Conversation),
    /// Its queue is full: try again.
    Busy,
    /// Nobody listens at that address.
    Nobody,
}

impl Doorway {
    /// Listens under a new name.
    ///
    /// # Errors
    /// `Io` if the system has no unix sockets or no descriptor is free.
    pub fn open() -> Result<Self> {
        let digits = random::bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let name = format!("uform-{digits}");
        let refused = |operation: &str, errno: Errno| Error::io(format!("@{name}"), operation, errno.into());
        let socket = endpoint()?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|errno| refused("name a socket", errno))?;
        rustix::net::bind(&socket, &address).map_err(|errno| refused("bind a socket to", errno))?;
        rustix::net::listen(&socket, BACKLOG).map_err(|errno| refused("listen at", errno))?;
        Ok(Self { socket, address: format!("@{name} {} {}", namespace("net"), namespace("pid")) })
    }

    /// Its address, to be published: the name, the network namespace that knows it, and the namespace of its process.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// `Io` if no descriptor is free.
    pub fn accept(&self) -> Result<Option<Conversation>> {
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => return Ok(Some(Conversation { socket: Private::new(socket) })),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(Error::io(&self.address, "accept a connection at", errno.into())),
            }
        }
    }

    /// The socket, to be waited for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One connection; messages keep their bounds, nothing here blocks.
#[derive(Debug)]
pub struct Conversation {
    socket: Private,
}

/// What a look at a connection gave.
#[derive(Debug)]
pub enum Heard {
    /// A message, and the file that came with it; none too where this process has no number left for it ([`unfiled`]).
    Message(Vec<u8>, Option<OwnedFd>),
    /// Nothing yet.
    Silence,
    /// The other side is gone, or sent what no member sends.
    End,
}

/// The error of a message of a member that came without its file: this process has as many open as it may.
#[must_use]
pub fn unfiled(index: usize) -> Error {
    Error::io(format!("the memory of index {index}"), "take", Errno::MFILE.into())
}

impl Conversation {
    /// Connects to an address of [`Doorway::address`].
    ///
    /// # Errors
    /// `Invalid` for an address of another form, `Io` if the system refuses sockets.
    pub fn reach(address: &str) -> Result<Reached> {
        let name = address.split(' ').next().and_then(|name| name.strip_prefix('@'));
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Err(Error::invalid(
                "socket",
                address,
                "roster",
                "must be an abstract name that starts with @",
            ));
        };
        let target = SocketAddrUnix::new_abstract_name(name.as_bytes())
            .map_err(|_| Error::invalid("socket", address, "roster", "must be a short abstract name"))?;
        let socket = endpoint()?;
        match rustix::net::connect(&socket, &target) {
            Ok(()) => Ok(Reached::Open(Self { socket })),
            Err(Errno::AGAIN | Errno::INTR) => Ok(Reached::Busy),
            Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(Reached::Nobody),
            Err(errno) => Err(Error::io(address, "connect to", errno.into())),
        }
    }

    /// The process number at the other end as this process's namespace counts it, and its user; no number if it is hidden.
    ///
    /// # Errors
    /// `Io` if the system cannot tell.
    pub fn credentials(&self) -> Result<(Option<u32>, u32)> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
        // Not by rustix: its `Pid` cannot be the zero that stands for a process of a namespace outside this one.
        // SAFETY: the kernel writes at most `length` bytes into `found`, which has that many.
        let code = unsafe {
            libc::getsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&self.socket),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if code != 0 {
            return Err(Error::io("unix socket", "read the credentials of", std::io::Error::last_os_error()));
        }
        Ok((u32::try_from(found.pid).ok().filter(|pid| *pid != 0), found.uid))
    }

    /// Whether the other end has this process's effective user.
    #[must_use]
    pub fn is_same_user(&self) -> bool {
        self.credentials().is_ok_and(|(_, user)| user == rustix::process::geteuid().as_raw())
    }

    /// Sends one message, with a file if one is given; false if the other side is gone or does not read.
    #[must_use]
    pub fn send(&self, message: &[u8], file: Option<BorrowedFd<'_>>) -> bool {
        if message.is_empty() || message.len() > MESSAGE_LIMIT {
            return false;
        }
        let files = file.map(|file| [file]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(files) = &files
            && !control.push(SendAncillaryMessage::ScmRights(files))
        {
            return false;
        }
        loop {
            match rustix::net::sendmsg(
                &self.socket,
                &[IoSlice::new(message)],
                &mut control,
                SendFlags::NOSIGNAL,
            ) {
                Ok(count) => return count == message.len(),
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Takes the next message if there is one.
    #[must_use]
    pub fn hear(&self) -> Heard {
        let mut bytes = vec![0; MESSAGE_LIMIT];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Heard::Silence,
                Err(_) => return Heard::End,
            }
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        let is_cut = received.flags.intersects(ReturnFlags::TRUNC);
        // A file that came and is not here is one too many for this process; what else is cut no member sends.
        let is_odd = received.flags.intersects(ReturnFlags::CTRUNC) && !files.is_empty();
        // An empty packet and the end look alike; members send no empty ones.
        if received.bytes == 0 || is_cut || is_odd || files.len() > 1 {
            return Heard::End;
        }
        bytes.truncate(received.bytes);
        Heard::Message(bytes, files.pop())
    }

    /// Whether the other side has hung up.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP)];
        matches!(poll(&mut polled, Some(&timespec(Duration::ZERO))), Ok(1))
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }

    /// The socket, to be waited for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Conversation, Conversation) {
        let doorway = Doorway::open().expect("sockets are free");
        let Reached::Open(one) = Conversation::reach(doorway.address()).expect("reached") else {
            panic!("somebody listens")
        };
        (one, doorway.accept().expect("accepted").expect("one waits"))
    }

    #[test]
    fn messages_keep_their_bounds_and_carry_files() {
        let (one, two) = pair();
        assert!(one.is_same_user() && two.is_same_user());
        assert_eq!(one.credentials().expect("known").0, Some(std::process::id()));
        let file = std::fs::File::open("/dev/null").expect("it is there");
        assert!(one.send(b"first", None) && one.send(b"second", Some(file.as_fd())));
        assert!(matches!(two.hear(), Heard::Message(bytes, None) if bytes == b"first"));
        assert!(matches!(two.hear(), Heard::Message(bytes, Some(_)) if bytes == b"second"));
        assert!(matches!(two.hear(), Heard::Silence));
        assert!(!two.has_ended());
        drop(one);
        assert!(two.has_ended());
        assert!(matches!(two.hear(), Heard::End));
    }

    #[test]
    fn a_closed_doorway_is_nobody() {
        let address = Doorway::open().expect("sockets are free").address().to_owned();
        assert!(matches!(Conversation::reach(&address), Ok(Reached::Nobody)));
        assert!(Conversation::reach("/a/path").is_err());
        let own = Namespaces::own();
        assert!(own.reach(&address) && own.share_numbers(&address));
        assert!(!own.reach("@uform-1 net:[1] pid:[1]") && !own.reach(""));
    }
}
