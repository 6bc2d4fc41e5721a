//! The network interfaces of this host, and streams between hosts. Nothing here blocks, and no name is looked up.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::{Error, Result};
use crate::sys::fork::Private;
use crate::sys::{Span, SpanMut};

/// How many connections may wait to be accepted; the kernel's own limit may be lower.
const BACKLOG: i32 = 4096;
/// The most that one send or receive moves, so that one peer does not keep the others waiting.
const MOVE_LIMIT: usize = 512 << 10;

/// One address of one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The interface's number on this host, which link-local addresses need.
    pub number: u32,
    /// One of its addresses.
    pub address: IpAddr,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether it found a carrier; one that was just switched on takes a moment.
    pub has_carrier: bool,
    /// Whether it only leads back to this host.
    pub is_loopback: bool,
}

impl Interface {
    /// Whether the address is valid on one link alone, so that the reader must know the interface.
    #[must_use]
    pub fn is_link_local(&self) -> bool {
        match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }
}

impl std::fmt::Display for Interface {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.name, self.address)
    }
}

/// All addresses of this host's interfaces, in the kernel's order; an interface without an address is not among them.
///
/// # Errors
/// `Io` if the system does not tell.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the library writes one pointer into `head`, and owns the list until `freeifaddrs` below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(Error::io("network interfaces", "list the", io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: an entry of the list, which lives until it is freed below and is not changed by anybody.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: the address of an entry is null or a socket address as long as its family says.
        let Some(address) = (unsafe { address_of(entry.ifa_addr) }) else { continue };
        // SAFETY: every entry has a name, a string with an end, as long as the list lives.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        let flag = |flag: i32| entry.ifa_flags & flag.unsigned_abs() != 0;
        found.push(Interface {
            name: name.to_string_lossy().into_owned(),
            // SAFETY: the same string; the function reads it and gives a number, 0 if the interface has just gone.
            number: unsafe { libc::if_nametoindex(entry.ifa_name) },
            address,
            is_up: flag(libc::IFF_UP),
            has_carrier: flag(libc::IFF_RUNNING),
            is_loopback: flag(libc::IFF_LOOPBACK) || address.is_loopback(),
        });
    }
    // SAFETY: the list that `getifaddrs` gave, freed once; nothing of it is kept.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// # Safety
/// `address` must be null or point to a socket address that is as long as its family says.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by the contract of this function, it begins with a family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: as above; `read_unaligned` since the list promises no alignment for the longer types.
            let found = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let found = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

fn endpoint(address: &SocketAddr) -> io::Result<Private> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = Private::new(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?);
    sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(socket)
}

/// A listening socket at one address of this host, on a port that the kernel chose.
#[derive(Debug)]
pub struct Port {
    socket: Private,
    address: SocketAddr,
}

impl Port {
    /// Listens at one address; `scope` is the interface's number, which link-local addresses need.
    ///
    /// # Errors
    /// `Io` if the system refuses.
    pub fn open(address: IpAddr, scope: u32) -> Result<Self> {
        let mut wanted = SocketAddr::new(address, 0);
        if let SocketAddr::V6(own) = &mut wanted
            && own.ip().is_unicast_link_local()
        {
            own.set_scope_id(scope);
        }
        let open = || -> io::Result<Self> {
            let socket = endpoint(&wanted)?;
            rustix::net::bind(&socket, &wanted)?;
            rustix::net::listen(&socket, BACKLOG)?;
            let bound = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
            Ok(Self { socket, address: bound })
        };
        open().map_err(|source| Error::io(address.to_string(), "listen at", source))
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, if one waits.
    ///
    /// # Errors
    /// `Io` if no descriptor is free.
    pub fn accept(&self) -> Result<Option<Stream>> {
        loop {
            match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    let socket = Private::new(socket);
                    // One that has ended already refuses this, and is found out when it is read.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                    return Ok(Some(Stream { socket }));
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return Err(Error::io(self.address.to_string(), "accept a connection at", errno.into()));
                }
                // What ails one connection is no fault of the port: the next one may be whole.
                Err(_) => {}
            }
        }
    }

    /// The socket, to be waited for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What an attempt to move bytes gave.
#[derive(Debug)]
pub enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// None at the moment.
    Busy,
    /// The other side sends no more.
    End,
    /// The connection is broken.
    Broken(io::Error),
}

/// One connection to another host; nothing here blocks.
#[derive(Debug)]
pub struct Stream {
    socket: Private,
}

impl Stream {
    /// Begins to connect; [`Stream::is_connected`] tells when that is done.
    ///
    /// # Errors
    /// What the system says at once, such as a network that cannot be reached.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let socket = endpoint(&address)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self { socket }),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the connection stands; `false` while it is being made.
    ///
    /// # Errors
    /// Why it cannot be made.
    pub fn is_connected(&self) -> io::Result<bool> {
        let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
        if !matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1)) {
            return Ok(false);
        }
        sockopt::socket_error(&self.socket)??;
        Ok(true)
    }

    /// Lets the kernel ask the other host for a sign of life every second; after `limit` without one it is broken.
    ///
    /// For connections that carry little: one whose reader is slow would be taken for a dead one.
    ///
    /// # Errors
    /// `Io` if the system refuses.
    pub fn watch_host(&self, limit: Duration) -> Result<()> {
        let watch = || -> io::Result<()> {
            let seconds = u32::try_from(limit.as_secs().max(1)).unwrap_or(u32::MAX);
            sockopt::set_socket_keepalive(&self.socket, true)?;
            sockopt::set_tcp_keepidle(&self.socket, Duration::from_secs(1))?;
            sockopt::set_tcp_keepintvl(&self.socket, Duration::from_secs(1))?;
            // The kernel takes at most 127 probes; the user timeout below ends a longer limit.
            sockopt::set_tcp_keepcnt(&self.socket, seconds.min(127))?;
            let milliseconds = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(&self.socket, milliseconds)?;
            Ok(())
        }();
        watch.map_err(|source| Error::io(self.other_end(), "watch the connection to", source))
    }

    /// Sends as much as fits now.
    #[must_use]
    pub fn send(&self, source: Span<'_>) -> Moved {
        let length = source.byte_count().min(MOVE_LIMIT);
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the kernel reads `length` bytes of a span that lives longer than this call.
        let code = unsafe { libc::send(self.socket.as_raw_fd(), source.pointer().cast(), length, flags) };
        moved(code)
    }

    /// Takes what has come, as far as the target holds it; the target must not be empty.
    #[must_use]
    pub fn receive(&self, target: &mut SpanMut<'_>) -> Moved {
        let length = target.byte_count().min(MOVE_LIMIT);
        // SAFETY: the kernel writes at most `length` bytes into a span that lives longer than this call.
        let code = unsafe {
            libc::recv(self.socket.as_raw_fd(), target.pointer().cast(), length, libc::MSG_DONTWAIT)
        };
        if code == 0 { Moved::End } else { moved(code) }
    }

    /// Says that nothing more will be sent; what was sent before still arrives.
    pub fn finish(&self) {
        // One that is gone already needs no farewell.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Whether the other side sends no more, or the connection is broken; bytes that came before may still be read.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut polled = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::RDHUP)];
        matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
            && polled[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
    }

    /// The address of the other end, for messages.
    #[must_use]
    pub fn other_end(&self) -> String {
        let address = rustix::net::getpeername(&self.socket).ok().flatten();
        address
            .and_then(|address| SocketAddr::try_from(address).ok())
            .map_or_else(|| "an address that is not known any more".to_owned(), |found| found.to_string())
    }

    /// The socket, to be waited for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn moved(code: isize) -> Moved {
    match usize::try_from(code) {
        Ok(0) => Moved::Busy,
        Ok(count) => Moved::Bytes(count),
        Err(_) => {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Moved::Busy,
                _ => Moved::Broken(error),
            }
        }
    }
}

/// One socket, and whether it is waited for to be readable and writable.
pub type Awaited<'a> = (BorrowedFd<'a>, bool, bool);

/// How many files this process has open; zero where the system does not tell.
#[must_use]
pub fn open_files() -> usize {
    // One of those that are counted is the list itself.
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1))
}

/// Raises this process's limit of open descriptors to `count`, as far as the system allows; gives a limit that stays lower.
///
/// Where it stays, opening the one too many says so.
pub fn make_room(count: usize) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = count as u64;
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.filter(|current| *current < wanted)
}

/// The addresses of this host's interfaces, for messages.
#[must_use]
pub fn summary() -> String {
    let found = interfaces().unwrap_or_default();
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Sleeps until one of the sockets can go on, or the limit has passed.
pub fn wait(sockets: &[Awaited<'_>], limit: Duration) {
    let polled = sockets.iter().map(|(socket, reads, writes)| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, *reads);
        flags.set(PollFlags::OUT, *writes);
        PollFd::from_borrowed_fd(*socket, flags)
    });
    let limit = Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // A signal ends the sleep too; the caller looks again in any case.
    let _ = poll(&mut polled.collect::<Vec<_>>(), Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_both_ways_and_an_end_is_seen() {
        let port = Port::open(Ipv4Addr::LOCALHOST.into(), 0).expect("a port is free");
        assert_ne!(port.address().port(), 0);
        let one = Stream::connect(port.address()).expect("it listens");
        wait(&[(one.descriptor(), false, true)], Duration::from_secs(10));
        assert!(one.is_connected().expect("it listens"));
        wait(&[(port.descriptor(), true, false)], Duration::from_secs(10));
        let two = port.accept().expect("a descriptor is free").expect("one waits");
        one.watch_host(Duration::from_secs(3)).expect("the kernel can");
        assert_eq!(two.other_end().split(':').next(), Some("127.0.0.1"));
        assert!(matches!(one.send(Span::of(b"word")), Moved::Bytes(4)));
        wait(&[(two.descriptor(), true, false)], Duration::from_secs(10));
        let mut heard = [0u8; 9];
        assert!(matches!(two.receive(&mut SpanMut::of(&mut heard)), Moved::Bytes(4)));
        assert!(heard.starts_with(b"word"));
        assert!(matches!(two.receive(&mut SpanMut::of(&mut heard)), Moved::Busy));
        assert!(!two.has_ended());
        one.finish();
        wait(&[(two.descriptor(), true, false)], Duration::from_secs(10));
        assert!(matches!(two.receive(&mut SpanMut::of(&mut heard)), Moved::End));
        assert!(two.has_ended());
    }

    #[test]
    fn a_closed_port_refuses() {
        let address = Port::open(Ipv4Addr::LOCALHOST.into(), 0).expect("a port is free").address();
        let stream = Stream::connect(address).expect("refused later");
        wait(&[(stream.descriptor(), false, true)], Duration::from_secs(10));
        assert_eq!(stream.is_connected().expect_err("closed").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn the_loopback_interface_is_found() {
        let found = interfaces().expect("the system tells");
        let loopback = found.iter().find(|one| one.address == IpAddr::V4(Ipv4Addr::LOCALHOST));
        let loopback = loopback.expect("it is switched on");
        assert!(loopback.is_loopback && loopback.is_up && loopback.number > 0);
        assert!(!loopback.is_link_local());
    }
}
