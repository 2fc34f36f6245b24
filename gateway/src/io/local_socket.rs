//! The TCP or Unix socket of a client or a target: the usual [local end](crate::io::local_end).
//!
//! This module hides the differences between TCP and Unix sockets. [`crate::session::driver`] reads
//! and writes; [`crate::ingress::listener`] and [`crate::net::dial`] create the sockets. If the
//! gateway does not end a TCP socket with [`LocalEnd::end_in_order`], the system resets the
//! connection, even after SIGKILL. So a cut never looks like an end of file. A Unix socket has no
//! reset: an application that has read all bytes sees an end of file (docs/gateway.md).
//!
//! [`LocalEnd::end_in_order`]: crate::io::local_end::LocalEnd::end_in_order

use std::fmt;
use std::io::{IoSlice, Result};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use muxtunnel_gateway_config::UNIX_PREFIX;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::duplex::Duplex;
use super::socket::{self, Socket};

/// A connection to a client or a target.
#[derive(Debug)]
pub(crate) enum LocalSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket for LocalSocket {
    fn try_io<R>(&self, interest: Interest, io: impl FnOnce() -> Result<R>) -> Result<R> {
        match self {
            Self::Tcp(tcp) => tcp.try_io(interest, io),
            Self::Unix(unix) => unix.try_io(interest, io),
        }
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_write_vectored(slices),
            Self::Unix(unix) => unix.try_write_vectored(slices),
        }
    }
}

impl Duplex for LocalSocket {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_read_ready(context),
            Self::Unix(unix) => unix.poll_read_ready(context),
        }
    }

    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Tcp(tcp) => tcp.poll_write_ready(context),
            Self::Unix(unix) => unix.poll_write_ready(context),
        }
    }

    fn try_read(&self, bytes: &mut [u8]) -> Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_read(bytes),
            Self::Unix(unix) => unix.try_read(bytes),
        }
    }

    fn try_write(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        let total = slices.iter().map(|slice| slice.len()).sum();
        socket::write(self, slices, total)
    }

    fn finish(&self) -> Result<()> {
        SockRef::from(self).shutdown(Shutdown::Write)
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(tcp) => tcp.as_fd(),
            Self::Unix(unix) => unix.as_fd(),
        }
    }
}

impl From<TcpStream> for LocalSocket {
    /// Takes over `tcp`. When the socket is dropped, the connection is reset, unless
    /// [`LocalEnd::end_in_order`](crate::io::local_end::LocalEnd::end_in_order) was called.
    fn from(tcp: TcpStream) -> Self {
        let _ = tcp.set_zero_linger();
        Self::Tcp(tcp)
    }
}

/// Converts an IPv4-mapped address to IPv4. A dual-stack socket reports IPv4 addresses as
/// `::ffff:192.0.2.1`.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => (v4, address.port()).into(),
        // An IPv6 address keeps its scope.
        IpAddr::V6(_) => address,
    }
}

/// The address of a local end's peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LocalAddress {
    Tcp(SocketAddr),
    /// The path of the listening socket. A connecting Unix socket has no path.
    Unix(Rc<str>),
}

impl LocalAddress {
    /// The IP address, if the address has one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{path}"),
        }
    }
}

impl From<SocketAddr> for LocalAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(canonical(address))
    }
}
