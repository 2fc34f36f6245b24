//! What a stream is joined to at its gateway: a client's or a target's connection, whatever it is made of.
//!
//! A TCP or a Unix socket is one ([`LocalSocket`]). The driver knows this trait alone. An end that is dropped is reset: its
//! application never takes a cut for an end of file, unless [`LocalEnd::end_in_order`] was called before.

use std::fmt::Debug;
use std::future::Future;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::pin::Pin;
use std::time::Duration;

use muxtunnel_proto::Source;
use tokio::time::timeout;

use super::duplex::{Duplex, readable};
use super::local_socket::LocalSocket;

/// How long, and how many bytes, an end may go on sending that was told goodbye.
pub(super) const GOODBYE_TIME: Duration = Duration::from_secs(2);
const GOODBYE_BYTES_MAX: usize = 256 << 10;
/// How often the kernel is asked whether the last bytes are acknowledged.
const ACKNOWLEDGED_POLL: Duration = Duration::from_millis(5);

/// One end of a stream.
pub(crate) trait LocalEnd: Duplex + Debug {
    /// As readv(2).
    ///
    /// # Errors
    /// As [`Duplex::try_read`].
    fn try_read_vectored(&self, slices: &mut [IoSliceMut<'_>]) -> Result<usize>;

    /// Bytes that have come and are not read.
    fn unread(&self) -> u64;

    /// Sends what are few bytes on a connection that nothing waits for; returns whether it took all.
    fn send_at_once(&self, bytes: &[u8]) -> bool;

    /// Waits until the connection has failed, as by a reset. An end of what the other end sends is no failure.
    fn failed(&self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// With what the connection failed. What is unread is lost: it reads as ended from now on.
    fn take_failure(&self) -> Error;

    /// Its end will be no reset: what was written is delivered first, then that there is no more.
    fn end_in_order(&self);

    /// Whether the other end has all that was written, as far as is known.
    fn is_delivered(&self) -> bool;

    /// Its socket, where the kernel may move payload from and to it by itself.
    fn plain(&self) -> Option<&LocalSocket>;

    /// The addresses of its two ends.
    fn source(&self) -> Source;
}

impl dyn LocalEnd {
    /// Ends it with `reply`, and with a reset where that is empty or not taken.
    pub(crate) async fn end_with(&self, reply: &[u8]) {
        if !reply.is_empty() && self.send_at_once(reply) {
            self.say_goodbye().await;
        }
    }

    /// Waits until the other end has all that was written, as far as is known.
    pub(crate) async fn delivered(&self) {
        while !self.is_delivered() {
            tokio::time::sleep(ACKNOWLEDGED_POLL).await;
        }
    }

    /// Lets what was written arrive: a connection that is closed with bytes unread is reset, and what it was
    /// told is lost. So what the other end still sends is thrown away, as much and as long as is bounded.
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
