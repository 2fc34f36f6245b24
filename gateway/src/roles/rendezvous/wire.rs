//! Messages on a connection, one at a time. The functions read no byte after a message, since that
//! byte may belong to a carrier.

use std::io::{Error, ErrorKind};

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, Word, decode, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Reads the next message. The function allocates no more memory than the message needs.
///
/// # Errors
/// The error of read(2), or the connection ended. `InvalidData`: the message is invalid.
pub(super) async fn read(tcp: &mut TcpStream) -> std::io::Result<Word> {
    let mut bytes = [0; WORD_BYTES_MAX];
    tcp.read_exact(&mut bytes[..2]).await?;
    let invalid = |error| Error::new(ErrorKind::InvalidData, error);
    decode(&bytes[..2]).map_err(invalid)?;
    let end = 2 + usize::from(bytes[1]);
    tcp.read_exact(&mut bytes[2..end]).await?;
    match decode(&bytes[..end]).map_err(invalid)? {
        Some((word, _)) => Ok(word),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Sends a message.
///
/// # Errors
/// The error of write(2).
pub(super) async fn write(tcp: &mut TcpStream, word: &Word) -> std::io::Result<()> {
    tcp.write_all(&encode(word)).await
}
