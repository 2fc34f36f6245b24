//! The usual [local end](LocalEnd) of a stream: the TCP or Unix socket of a client or a target.
//!
//! This module hides the differences between TCP and Unix sockets. [`crate::session::driver`] reads
//! and writes; [`crate::ingress::listener`] and [`crate::net::dial`] create the sockets. If the
//! gateway does not end a TCP socket with [`LocalEnd::end_in_order`], the system resets the
//! connection, even after SIGKILL. So a cut never looks like an end of file. A Unix socket has no
//! reset: an application that has read all bytes sees an end of file (docs/gateway.md).

use std::fmt;
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Result};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use muxtunnel_gateway_config::UNIX_PREFIX;
use muxtunnel_proto::Source;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

use super::duplex::Duplex;
use super::local_end::LocalEnd;
use super::socket::{self, Keepalive};
use crate::base::path::PathInfo;
use crate::base::sys;

/// A socket whose readiness the runtime tracks.
pub(crate) trait Socket: AsFd {
    /// Runs `io` if the socket is ready for `interest`. Clears the readiness if `io` would block.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is not ready, otherwise the error of `io`.
    fn try_io<R>(&self, interest: Interest, io: impl FnOnce() -> Result<R>) -> Result<R>;

    /// Writes `slices` like writev(2).
    ///
    /// # Errors
    /// The error of writev(2).
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize>;
}

impl Socket for TcpStream {
    fn try_io<R>(&self, interest: Interest, io: impl FnOnce() -> Result<R>) -> Result<R> {
        Self::try_io(self, interest, io)
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> Result<usize> {
        Self::try_write_vectored(self, slices)
    }
}

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

impl LocalEnd for LocalSocket {
    fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_read_vectored(slices),
            Self::Unix(unix) => unix.try_read_vectored(slices),
        }
    }

    fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(self).unwrap_or(0)
    }

    fn send_at_once(&self, bytes: &[u8]) -> bool {
        SockRef::from(self)
            .send(bytes)
            .is_ok_and(|sent| sent == bytes.len())
    }

    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let failed = match self {
                Self::Tcp(tcp) => tcp.ready(Interest::ERROR).await,
                Self::Unix(unix) => unix.ready(Interest::ERROR).await,
            };
            // A failure of the runtime counts as the end of the connection.
            drop(failed);
        })
    }

    fn take_failure(&self) -> Error {
        let failure = SockRef::from(self).take_error().ok().flatten();
        failure.unwrap_or_else(|| ErrorKind::ConnectionReset.into())
    }

    fn end_in_order(&self) {
        if let Self::Tcp(tcp) = self {
            let _ = SockRef::from(tcp).set_linger(None);
        }
    }

    fn set_keepalive(&self, keepalive: Option<Keepalive>) {
        if let Self::Tcp(tcp) = self {
            let set = socket::set_keepalive(tcp, keepalive);
            if let Err(error) = set {
                tracing::debug!(%error, "Cannot set the keepalive of a local connection");
            }
        }
    }

    fn unacknowledged(&self) -> Option<PathInfo> {
        let Self::Tcp(tcp) = self else {
            return None;
        };
        let info = sys::tcp_info(tcp.as_fd()).ok()?;
        (info.unacknowledged > 0 || info.queued > 0).then_some(info)
    }

    fn plain(&self) -> Option<&LocalSocket> {
        Some(self)
    }

    fn source(&self) -> Source {
        let Self::Tcp(tcp) = self else {
            return Source::Unknown;
        };
        match (tcp.peer_addr(), tcp.local_addr()) {
            (Ok(client), Ok(server)) => Source::of(client, server),
            _ => Source::Unknown,
        }
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
    /// [`LocalEnd::end_in_order`] was called.
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::super::local_end::GOODBYE_TIME;
    use super::*;

    async fn pair() -> (TcpStream, Box<dyn LocalEnd>) {
        let (client, accepted) = muxtunnel_testkit::socket::pair().await;
        (client, Box::new(LocalSocket::from(accepted)))
    }

    #[tokio::test]
    async fn what_does_not_end_in_order_is_reset() {
        for in_order in [true, false] {
            let (mut client, socket) = pair().await;
            assert!(socket.send_at_once(b"all"));
            let mut bytes = [0; 3];
            client.read_exact(&mut bytes).await.unwrap();
            if in_order {
                socket.end_in_order();
            }
            drop(socket);
            let end = client.read(&mut bytes).await.map_err(|error| error.kind());
            let expected = if in_order {
                Ok(0)
            } else {
                Err(ErrorKind::ConnectionReset)
            };
            assert_eq!(end, expected);
        }
    }

    #[tokio::test]
    async fn a_goodbye_waits_for_the_other_end_and_not_for_ever() {
        let (mut client, socket) = pair().await;
        client.write_all(&[7; 10_000]).await.unwrap();
        client.shutdown().await.unwrap();
        socket.say_goodbye().await;
        assert_eq!(socket.unread(), 0, "unread bytes would cause a reset");
        let (_silent, socket) = pair().await;
        tokio::time::pause();
        let begun = Instant::now();
        socket.say_goodbye().await;
        assert!(begun.elapsed() >= GOODBYE_TIME);
    }

    #[tokio::test]
    async fn a_goodbye_takes_no_more_than_it_throws_away() {
        let (mut client, socket) = pair().await;
        let sending = async { while client.write_all(&[7; 10_000]).await.is_ok() {} };
        tokio::select! {
            () = sending => panic!("the connection was reset before its drain was over"),
            () = socket.say_goodbye() => {}
        }
    }
}
