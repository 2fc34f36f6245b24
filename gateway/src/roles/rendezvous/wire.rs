//! Words over a connection, one at a time: never a byte beyond a word is read, for it may be a carrier's.

use std::io::{Error, ErrorKind};

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, Word, decode, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The next word. Allocates nothing but the word.
///
/// # Errors
/// As read(2); the connection ended; `InvalidData`: it is no word.
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

/// Says one word.
///
/// # Errors
/// As write(2).
pub(super) async fn write(tcp: &mut TcpStream, word: &Word) -> std::io::Result<()> {
    tcp.write_all(&encode(word)).await
}
