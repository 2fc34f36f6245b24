//! `muxbench target`: answers the connections of [`load`](crate::load), and knows their payload.
//!
//! Each connection begins with a [`Header`]. On a short connection, the client sends a request, and
//! the target sends the answer and ends the connection. On a long connection, the target returns
//! all bytes until the client ends its half.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::pattern::Pattern;

/// Bytes of the request of a short connection.
pub const REQUEST_BYTES: usize = 256;
/// Bytes of the answer of a short connection.
pub const ANSWER_BYTES: usize = 4096;
/// Bytes of one block of a long stream.
pub const BLOCK_BYTES: usize = 4096;
/// Offset of the answer in a connection's pattern, so that it differs from the request.
pub const ANSWER_OFFSET: u64 = 20_000;

/// Maximum number of connections at a time. Further connections wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 4096;
/// The target closes a connection that sends no byte for this long.
const IDLE: Duration = Duration::from_secs(60);
/// Pause after a failed accept, so that the loop does not take all CPU time during a lasting
/// failure, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// A connection with a request and an answer.
    Short(u64),
    /// A stream whose bytes the target returns.
    Long(u64),
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 9;

    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Self::Short(number) => (b's', number),
            Self::Long(number) => (b'l', number),
        };
        let mut bytes = [kind; Self::BYTES];
        bytes[1..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not a header.
    #[must_use]
    pub fn decode(bytes: [u8; Self::BYTES]) -> Option<Self> {
        let [kind, number @ ..] = bytes;
        let number = u64::from_be_bytes(number);
        match kind {
            b's' => Some(Self::Short(number)),
            b'l' => Some(Self::Long(number)),
            _ => None,
        }
    }
}

/// Answers until cancelled.
///
/// # Errors
/// An error occurs only if the semaphore is closed. This does not happen.
pub async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    let pattern = Arc::new(Pattern::new(ANSWER_BYTES));
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await.context("target")?;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let pattern = Arc::clone(&pattern);
        tokio::spawn(async move {
            // The client reports a broken connection.
            let _ = answer(stream, &pattern).await;
            drop(slot);
        });
    }
}

async fn answer(mut stream: TcpStream, pattern: &Pattern) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut header = [0; Header::BYTES];
    tokio::time::timeout(IDLE, stream.read_exact(&mut header)).await??;
    match Header::decode(header) {
        Some(Header::Short(number)) => {
            let mut request = [0; REQUEST_BYTES];
            tokio::time::timeout(IDLE, stream.read_exact(&mut request)).await??;
            if pattern.wrong(number as usize, 0, &request) > 0 {
                // This answer is longer than a valid answer, so the client counts it as wrong
                // bytes.
                return stream.write_all(&[0; ANSWER_BYTES + 1]).await;
            }
            let answer = pattern.at(number as usize, ANSWER_OFFSET, ANSWER_BYTES);
            stream.write_all(answer).await
        }
        Some(Header::Long(_)) => {
            let mut block = [0; BLOCK_BYTES];
            loop {
                let length = tokio::time::timeout(IDLE, stream.read(&mut block)).await??;
                if length == 0 {
                    return Ok(());
                }
                stream.write_all(&block[..length]).await?;
            }
        }
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back() {
        for header in [Header::Short(7), Header::Long(u64::MAX)] {
            assert_eq!(Header::decode(header.encode()), Some(header));
        }
        assert_eq!(Header::decode(*b"GET / HTT"), None);
    }
}
