//! The half of a stream that the peer sends.

use std::io::IoSlice;
use std::rc::Rc;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{Outcome, ResetCode};
use quinn::{ReadError, RecvStream, VarInt};

use super::{Broken, Framing, Traffic};
use crate::session::bridge::link::Receiver;

/// Maximum number of payload pieces in one read; each piece comes from one packet.
const PIECES_MAX: usize = 64;
/// While the local ends of a connection have this many bytes to take, a read returns a single
/// piece.
const HELD_MAX: u64 = 8 << 20;

/// The half of a stream that the peer sends.
pub(crate) struct Receiving<F: Framing> {
    stream: RecvStream,
    traffic: Rc<Traffic>,
    framing: F,
    /// Number of received bytes that the local end has not taken.
    held: u64,
}

impl<F: Framing> Receiving<F> {
    pub(super) fn new(stream: RecvStream, traffic: Rc<Traffic>) -> Self {
        Self {
            stream,
            traffic,
            framing: F::default(),
            held: 0,
        }
    }

    /// The library's stream, for messages that precede the payload.
    pub(crate) fn stream(&mut self) -> &mut RecvStream {
        &mut self.stream
    }

    /// Cuts the half with a code that the protocol itself defines.
    pub(crate) fn reject(&mut self, code: VarInt) {
        // This fails if the stream has ended.
        let _ = self.stream.stop(code);
    }

    fn broken(&self, broken: Broken) -> Outcome {
        self.traffic.break_off(broken);
        Outcome::CarrierLost
    }

    fn count(&mut self, held: u64) {
        let all = &self.traffic.held;
        all.set(all.get() - self.held + held);
        self.held = held;
    }
}

impl<F: Framing> Drop for Receiving<F> {
    fn drop(&mut self) {
        self.count(0);
        // Without this call the library would send code 0. This fails if the stream has ended.
        let _ = self.stream.stop(F::code(ResetCode::Cancelled));
    }
}

impl<F: Framing> Receiver for Receiving<F> {
    type Payload = Pieces;

    async fn receive(&mut self) -> Result<Option<Pieces>, Outcome> {
        let most = match self.traffic.held.get() < HELD_MAX {
            true => PIECES_MAX,
            false => 1,
        };
        loop {
            // Buffered bytes are read without waiting, so the task yields here to other tasks.
            tokio::task::consume_budget().await;
            let mut pieces = vec![Bytes::new(); most];
            let read = self.stream.read_chunks(&mut pieces).await;
            let Some(count) = read.map_err(not_read::<F>)? else {
                let end = self.framing.end();
                return match end {
                    Ok(()) => Ok(None),
                    Err(broken) => Err(self.broken(broken)),
                };
            };
            pieces.truncate(count);
            let payload = self.framing.payload(pieces, &self.traffic.overhead);
            let pieces = Pieces::from(payload.map_err(|broken| self.broken(broken))?);
            if pieces.has_remaining() {
                self.count(self.held + pieces.remaining() as u64);
                return Ok(Some(pieces));
            }
        }
    }

    /// Only counts the bytes, since the library gave the credit when this side read them.
    fn took(&mut self, bytes: usize) {
        self.count(self.held.saturating_sub(bytes as u64));
    }

    fn stop(&mut self, code: ResetCode) {
        // This fails if the stream has ended.
        let _ = self.stream.stop(F::code(code));
    }
}

fn not_read<F: Framing>(error: ReadError) -> Outcome {
    match error {
        ReadError::Reset(code) => {
            Outcome::PeerReset(F::reset_code(code).unwrap_or(ResetCode::Cancelled))
        }
        ReadError::ConnectionLost(_) => Outcome::CarrierLost,
        ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => {
            Outcome::PeerReset(ResetCode::Cancelled)
        }
    }
}

/// Payload that consists of pieces from several packets.
#[derive(Debug)]
pub(crate) struct Pieces {
    pieces: Vec<Bytes>,
    first: usize,
    remaining: usize,
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Self {
        Self {
            remaining: pieces.iter().map(Bytes::len).sum(),
            pieces,
            first: 0,
        }
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.remaining
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.get(self.first).map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.get(self.first..).unwrap_or_default();
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn advance(&mut self, bytes: usize) {
        let mut left = bytes.min(self.remaining);
        self.remaining -= left;
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if piece.len() > left {
                piece.advance(left);
                break;
            }
            left -= piece.len();
            *piece = Bytes::new();
            self.first += 1;
        }
    }
}
