//! The local end of a stream: the gateway's connection to a client or a target.
//!
//! Usually this is a TCP or Unix socket ([`LocalSocket`]). The driver uses only this trait.
//! Dropping an end resets the connection, so that no application mistakes a cut for an end of file.
//! After [`LocalEnd::end_in_order`], a drop ends the connection without a reset.

use std::fmt::Debug;
use std::future::Future;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::pin::Pin;
use std::time::Duration;

use muxtunnel_proto::Source;
use tokio::time::timeout;

use super::duplex::{Duplex, readable};
use super::local_socket::LocalSocket;
use super::socket::Keepalive;
use crate::base::path::PathInfo;

/// The bounds of a drain: how long the other end may still send, and how many bytes.
pub(super) const GOODBYE_TIME: Duration = Duration::from_secs(2);
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
