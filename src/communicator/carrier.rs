//! What carries bytes between two members: a connection over the network, or a channel of MPI.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use crate::error::Error;
use crate::sys::mpi::{self, Channel};
use crate::sys::network::{self, Awaited, Moved, Stream};
use crate::sys::{Span, SpanMut};

/// Why a stream of bytes cannot go on.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It ended before all had come, or broke.
    Ended(Option<io::Error>),
    /// It carried what the other side does not send in this call.
    Odd,
    /// This member's own fault.
    Own(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Own(error)
    }
}

/// A stream of bytes to one member and from it; nothing here blocks.
#[derive(Debug)]
pub(super) enum Carrier {
    /// Over the network.
    Network(Stream),
    /// Over MPI.
    Mpi(Channel),
}

impl Carrier {
    /// Sends as much as fits now; `is_awaited` if the other side will take it, as part of a call.
    pub(super) fn send(&self, source: Span<'_>, is_awaited: bool) -> Moved {
        match self {
            Self::Network(stream) => stream.send(source),
            Self::Mpi(channel) => channel.send(source, is_awaited),
        }
    }

    /// Takes what has come, as far as the target holds it; the target must not be empty.
    pub(super) fn receive(&self, target: &mut SpanMut<'_>) -> Moved {
        match self {
            Self::Network(stream) => stream.receive(target),
            Self::Mpi(channel) => channel.receive(target),
        }
    }

    /// Whether what was sent arrives without any more calls here: a kernel sees to that, and MPI does not.
    pub(super) fn is_sent(&self) -> bool {
        match self {
            Self::Network(_) => true,
            Self::Mpi(channel) => channel.is_sent(),
        }
    }

    /// Says that nothing more will be sent; what was sent before still arrives.
    pub(super) fn finish(&self) {
        match self {
            Self::Network(stream) => stream.finish(),
            Self::Mpi(channel) => channel.finish(),
        }
    }

    /// The socket to wait for, if it has one.
    pub(super) fn awaited(&self, reads: bool, writes: bool) -> Option<Awaited<'_>> {
        match self {
            Self::Network(stream) => Some((stream.descriptor(), reads, writes)),
            Self::Mpi(_) => None,
        }
    }
}

/// How often a call has looked in vain; it waits the longer.
#[derive(Debug, Default)]
pub(super) struct Patience(Cell<u32>);

impl Patience {
    /// Something has moved.
    pub(super) fn renew(&self) {
        self.0.set(0);
    }

    /// Waits until one of the sockets can go on, or, where MPI carries, a moment.
    pub(super) fn rest(&self, sockets: &[Awaited<'_>], is_mpi: bool, limit: Duration) {
        if is_mpi {
            self.0.set(self.0.get().saturating_add(1));
            mpi::rest(self.0.get(), limit);
        } else {
            network::wait(sockets, limit);
        }
    }
}
