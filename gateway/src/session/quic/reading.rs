//! Reads messages from a stream, and translates the reasons for a cut.

use bytes::Bytes;
use muxtunnel_proto::ResetCode;
use quinn::{ConnectionError, ReadError, RecvStream, VarInt, WriteError};

use super::wire::{self, Message};
use crate::session::message::{HEADER_BYTES, Malformed};
use crate::session::quic_streams::{Broken, Framing, Overhead};

/// Why a stream ended.
#[derive(Debug)]
pub(super) enum Cut {
    /// The peer cut the stream, or ended it too early.
    Peer(ResetCode),
    Malformed(Malformed),
    Connection(ConnectionError),
}

impl From<Malformed> for Cut {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl From<ReadError> for Cut {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Peer(reset_code(code)),
            ReadError::ConnectionLost(error) => Self::Connection(error),
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => Self::Peer(ResetCode::Cancelled),
        }
    }
}

impl From<WriteError> for Cut {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Peer(reset_code(code)),
            WriteError::ConnectionLost(error) => Self::Connection(error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => {
                Self::Peer(ResetCode::Cancelled)
            }
        }
    }
}

/// Unframed payload, with the native protocol's codes.
#[derive(Debug, Default)]
pub(crate) struct Bare;

impl Framing for Bare {
    fn begin(_: usize, _: &mut Vec<u8>) {}

    fn code(code: ResetCode) -> VarInt {
        VarInt::from(code.code())
    }

    fn reset_code(code: VarInt) -> Option<ResetCode> {
        Some(reset_code(code))
    }

    fn payload(&mut self, pieces: Vec<Bytes>, _: &Overhead) -> Result<Vec<Bytes>, Broken> {
        Ok(pieces)
    }

    fn end(&self) -> Result<(), Broken> {
        Ok(())
    }
}

/// Decodes the native protocol's codes; the library sends 0 for a dropped stream.
fn reset_code(code: VarInt) -> ResetCode {
    match u16::try_from(code.into_inner()) {
        Ok(0) => ResetCode::Cancelled,
        Ok(code) => ResetCode::from_code(code),
        Err(_) => ResetCode::Other(u16::MAX),
    }
}

/// A message that is being read.
#[derive(Debug, Default)]
pub(super) struct Reading(Vec<u8>);

impl Reading {
    /// Returns the next message. A caller may drop the future and call again.
    ///
    /// # Errors
    /// [`Cut`].
    pub(super) async fn next(&mut self, stream: &mut RecvStream) -> Result<Message, Cut> {
        loop {
            // Buffered bytes are read without waiting, so the task yields here to other tasks.
            tokio::task::consume_budget().await;
            let wanted = match self.0.split_first_chunk() {
                None => HEADER_BYTES,
                Some((head, body)) => {
                    let (kind, length) = wire::header(*head)?;
                    if body.len() == length {
                        let message = wire::decode(kind, body)?;
                        self.0.clear();
                        return Ok(message);
                    }
                    HEADER_BYTES + length
                }
            };
            let missing = wanted - self.0.len();
            let Some(chunk) = stream.read_chunk(missing, true).await? else {
                return Err(Cut::Peer(ResetCode::Cancelled));
            };
            self.0.extend_from_slice(&chunk.bytes);
        }
    }
}
