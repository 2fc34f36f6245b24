//! The local end of a stream: the gateway's connection to a client or a target.
//!
//! Usually this is a TCP or Unix socket ([`LocalSocket`]). The driver uses only this trait.
//! Dropping an end resets the connection, so that no application mistakes a cut for an end of file.
//! After [`LocalEnd::end_in_order`], a drop ends the connection without a reset.

use std::fmt::Debug;
use std::future::Future;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::time::Duration;

use muxtunnel_proto::Source;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::time::timeout;

use super::duplex::{Duplex, readable};
use super::local_socket::LocalSocket;
use super::socket::{self, Keepalive};
use crate::base::path::PathInfo;
use crate::base::sys;

/// The bounds of a drain: how long the other end may still send, and how many bytes.
const GOODBYE_TIME: Duration = Duration::from_secs(2);
const GOODBYE_BYTES_MAX: usize = 256 << 10;
/// Interval at which the drain checks whether the kernel's last bytes are acknowledged.
const ACKNOWLEDGED_POLL: Duration = Duration::from_millis(5);

/// The local end of a stream.
pub(crate) trait LocalEnd: Duplex + Debug {
    /// Reads into `slices` like readv(2).
    ///
    /// # Errors
    /// The errors of [`Duplex::try_read`].
    fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize>;

    /// Number of bytes that have arrived and are not read yet.
    fn unread(&self) -> u64;

    /// Sends a few bytes on a connection without pending output. Returns whether the kernel
    /// accepted all bytes.
    fn send_at_once(&self, bytes: &[u8]) -> bool;

    /// Waits until the connection has failed, for example by a reset. An end of file from the other
    /// end is not a failure.
    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Returns the error with which the connection failed. Unread bytes are lost, and later reads
    /// return the end of the stream.
    fn take_failure(&self) -> Error;

    /// Makes the connection end without a reset: the system delivers the written bytes, then the
    /// end of file.
    fn end_in_order(&self);

    /// Sets the detection of a vanished peer; `None`: off. Only a TCP connection needs it.
    fn set_keepalive(&self, keepalive: Option<Keepalive>);

    /// The state of the path, while it has bytes that the other end has not acknowledged; `None`:
    /// the other end has received all bytes, or the connection has no path.
    fn unacknowledged(&self) -> Option<PathInfo>;

    /// The socket, if the kernel can move payload from and to it directly.
    fn plain(&self) -> Option<&LocalSocket>;

    /// The addresses of both ends of the connection.
    fn source(&self) -> Source;
}

impl dyn LocalEnd {
    /// Ends the connection with `reply`, or with a reset if `reply` is empty or not accepted.
    pub(crate) async fn end_with(&self, reply: &[u8]) {
        if !reply.is_empty() && self.send_at_once(reply) {
            self.say_goodbye().await;
        }
    }

    /// Waits until the other end has received all written bytes, as far as this is known.
    pub(crate) async fn delivered(&self) {
        while self.unacknowledged().is_some() {
            tokio::time::sleep(ACKNOWLEDGED_POLL).await;
        }
    }

    /// Drains the connection so that written bytes arrive. If a connection is closed while it holds
    /// unread bytes, the kernel resets the connection. A reset discards bytes that the other end
    /// has not read. So the drain reads and discards what the other end still sends, within limits
    /// of time and size.
    pub(crate) async fn say_goodbye(&self) {
        let thrown_away = async {
            let mut left = GOODBYE_BYTES_MAX;
            while left > 0 && readable(self).await.is_ok() {
                let mut bytes = [0; 4096];
                match self.try_read(&mut bytes) {
                    Ok(length) if length > 0 => left = left.saturating_sub(length),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(_) | Err(_) => return true,
                }
            }
            false
        };
        let ended =
            self.finish().is_ok() && timeout(GOODBYE_TIME, thrown_away).await.unwrap_or(false);
        if ended {
            self.end_in_order();
        }
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::time::Instant;

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
