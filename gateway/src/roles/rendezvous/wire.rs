//! Messages on a control connection, one at a time.

use std::io::{Error, ErrorKind, Result};

use muxtunnel_proto::rendezvous::{WORD_BYTES_MAX, Word, decode, encode};

use crate::io::duplex;
use crate::io::transport::Transport;

/// Reads the next message. The function allocates no more memory than the message needs.
///
/// # Errors
/// The connection failed or ended. `InvalidData`: the message is invalid.
pub(super) async fn read(control: &dyn Transport) -> Result<Word> {
    let mut bytes = [0; WORD_BYTES_MAX];
    duplex::read_exact(control, &mut bytes[..2]).await?;
    let invalid = |error| Error::new(ErrorKind::InvalidData, error);
    decode(&bytes[..2]).map_err(invalid)?;
    let end = 2 + usize::from(bytes[1]);
    duplex::read_exact(control, &mut bytes[2..end]).await?;
    match decode(&bytes[..end]).map_err(invalid)? {
        Some((word, _)) => Ok(word),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

/// Sends a message.
///
/// # Errors
/// The connection failed.
pub(super) async fn write(control: &dyn Transport, word: &Word) -> Result<()> {
    duplex::write_all(control, &encode(word)).await
}
