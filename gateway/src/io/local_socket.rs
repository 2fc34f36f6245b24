//! What a stream is joined to at its gateway: the TCP or the Unix socket of a client or a target.
//!
//! Owns nothing but the difference between the two; who reads and writes is [`crate::session::driver`], who makes
//! them is [`crate::ingress::listener`] and [`crate::net::dial`]. A TCP socket that is not ended in order is reset by
//! the system, whatever ended it, SIGKILL included: nobody takes a cut for an end. A Unix socket has no
//! reset: an application that has read all takes a cut for an end of file there, which docs/gateway.md says.

use std::fmt;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use muxtunnel_gateway_config::UNIX_PREFIX;
use muxtunnel_proto::Source;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// How long, and how many bytes, an end may go on sending that was told goodbye.
const GOODBYE_TIME: Duration = Duration::from_secs(2);
const GOODBYE_BYTES_MAX: usize = 256 << 10;

/// A socket whose readiness the runtime follows.
pub(crate) trait Socket: AsFd {
    /// Runs `io` where the socket is ready for `interest`, and forgets the readiness if that would block.
    ///
    /// # Errors
    /// `WouldBlock` where it is not ready; else those of `io`.
    fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> std::io::Result<R>,
    ) -> std::io::Result<R>;

    /// As writev(2).
    ///
    /// # Errors
    /// As writev(2).
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize>;
}

impl Socket for TcpStream {
    fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> std::io::Result<R>,
    ) -> std::io::Result<R> {
        Self::try_io(self, interest, io)
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        Self::try_write_vectored(self, slices)
    }
}

/// A connection to a client or a target.
#[derive(Debug)]
pub(crate) enum LocalSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl LocalSocket {
    /// Waits until there is something to be read, or the end.
    ///
    /// # Errors
    /// Those of the runtime.
    pub(crate) async fn readable(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.readable().await,
            Self::Unix(unix) => unix.readable().await,
        }
    }

    /// Waits until something can be written.
    ///
    /// # Errors
    /// Those of the runtime.
    pub(crate) async fn writable(&self) -> std::io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.writable().await,
            Self::Unix(unix) => unix.writable().await,
        }
    }

    /// Waits until the connection has failed, as by a reset. An end of what the other end sends is no failure.
    pub(crate) async fn failed(&self) {
        let failed = match self {
            Self::Tcp(tcp) => tcp.ready(Interest::ERROR).await,
            Self::Unix(unix) => unix.ready(Interest::ERROR).await,
        };
        // The runtime's own failure is its end.
        drop(failed);
    }

    /// With what the connection failed. What is unread is lost: it reads as ended from now on.
    pub(crate) fn take_failure(&self) -> std::io::Error {
        let failure = SockRef::from(self).take_error().ok().flatten();
        failure.unwrap_or_else(|| ErrorKind::ConnectionReset.into())
    }

    /// As readv(2).
    ///
    /// # Errors
    /// As readv(2).
    pub(crate) fn try_read_vectored(
        &self,
        slices: &mut [IoSliceMut<'_>],
    ) -> std::io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_read_vectored(slices),
            Self::Unix(unix) => unix.try_read_vectored(slices),
        }
    }

    /// As read(2).
    ///
    /// # Errors
    /// As read(2).
    pub(crate) fn try_read(&self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(bytes)])
    }

    /// Sends what are few bytes on a socket that nothing waits for; returns whether it took all.
    pub(crate) fn send_at_once(&self, bytes: &[u8]) -> bool {
        SockRef::from(self)
            .send(bytes)
            .is_ok_and(|sent| sent == bytes.len())
    }

    /// No more is written.
    ///
    /// # Errors
    /// As shutdown(2).
    pub(crate) fn shutdown_write(&self) -> std::io::Result<()> {
        SockRef::from(self).shutdown(Shutdown::Write)
    }

    /// Who is at its ends.
    pub(crate) fn source(&self) -> Source {
        let Self::Tcp(tcp) = self else {
            return Source::Unknown;
        };
        match (tcp.peer_addr(), tcp.local_addr()) {
            (Ok(client), Ok(server)) => Source::of(client, server),
            _ => Source::Unknown,
        }
    }

    /// Ends it with `reply`, and with a reset where that is empty or not taken.
    pub(crate) async fn end_with(self, reply: &[u8]) {
        if !reply.is_empty() && self.send_at_once(reply) {
            self.say_goodbye().await;
        }
    }

    /// Lets what was written arrive: a connection that is closed with bytes unread is reset, and what it was
    /// told is lost. So what the other end still sends is thrown away, as much and as long as is bounded.
    pub(crate) async fn say_goodbye(&self) {
        let thrown_away = async {
            let mut left = GOODBYE_BYTES_MAX;
            while left > 0 && self.readable().await.is_ok() {
                let mut bytes = [0; 4096];
                match self.try_read(&mut bytes) {
                    Ok(length) if length > 0 => left = left.saturating_sub(length),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(_) | Err(_) => return true,
                }
            }
            false
        };
        let ended = self.shutdown_write().is_ok()
            && timeout(GOODBYE_TIME, thrown_away).await.unwrap_or(false);
        if ended {
            self.end_in_order();
        }
    }

    /// Its end will be no reset: what was written is delivered first, then that there is no more.
    pub(crate) fn end_in_order(&self) {
        if let Self::Tcp(tcp) = self {
            let _ = SockRef::from(tcp).set_linger(None);
        }
    }
}

impl Socket for LocalSocket {
    fn try_io<R>(
        &self,
        interest: Interest,
        io: impl FnOnce() -> std::io::Result<R>,
    ) -> std::io::Result<R> {
        match self {
            Self::Tcp(tcp) => tcp.try_io(interest, io),
            Self::Unix(unix) => unix.try_io(interest, io),
        }
    }

    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.try_write_vectored(slices),
            Self::Unix(unix) => unix.try_write_vectored(slices),
        }
    }
}

impl AsyncRead for LocalSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for LocalSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Self::Unix(unix) => Pin::new(unix).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Nothing is held back.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(self.shutdown_write())
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
    /// From here on its end is a reset, but for [`LocalSocket::end_in_order`].
    fn from(tcp: TcpStream) -> Self {
        let _ = tcp.set_zero_linger();
        Self::Tcp(tcp)
    }
}

/// An IPv4 address as itself: a socket of both families has it as a mapped one, `::ffff:192.0.2.1`.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => (v4, address.port()).into(),
        // With its scope.
        IpAddr::V6(_) => address,
    }
}

/// Who is at its other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LocalAddress {
    Tcp(SocketAddr),
    /// The path that is listened on; who connected has none.
    Unix(Rc<str>),
    /// This gateway: it is itself what the stream is joined to.
    Gateway,
}

impl LocalAddress {
    /// The address of its host, where it has one.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) | Self::Gateway => None,
        }
    }
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{path}"),
            Self::Gateway => f.write_str("gateway"),
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
    use muxtunnel_testkit::socket;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::Instant;

    use super::*;

    async fn pair() -> (TcpStream, LocalSocket) {
        let (client, accepted) = socket::pair().await;
        (client, accepted.into())
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
        let unread = rustix::io::ioctl_fionread(&socket).unwrap();
        assert_eq!(unread, 0, "it would be a reset");
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
            () = sending => panic!("it was reset before its goodbye was over"),
            () = socket.say_goodbye() => {}
        }
    }
}
