//! Bytes that this side reads while the library does not read.
//!
//! The library reads no frame while a PING, an answer to a PING or to SETTINGS, or a refusal waits
//! for room in the transport (h2, `Connection::poll_ready`). If both ends wait in this way, and the
//! buffers in both directions are full, neither end reads or sends again. Other libraries had the
//! same fault (<https://github.com/libp2p/rust-yamux/pull/104>). So this side reads ahead while the
//! transport takes no bytes.
//!
//! Bounds: a quarter of the receive memory, of which at most [`CONTROL_MAX`] bytes and one read may
//! be frames other than DATA. An honest peer has fewer of these in flight.

use std::collections::VecDeque;
use std::io::Result;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, ReadBuf};

use super::heads::{DATA, HEAD_BYTES, Outgoing};

/// Maximum number of bytes of frames other than DATA.
const CONTROL_MAX: usize = 256 << 10;
/// Maximum number of bytes of one read.
const READ_BYTES: usize = 16 << 10;

pub(super) struct Ahead {
    /// The bytes of each read, and the number of bytes of frames other than DATA that begin there.
    reads: VecDeque<(Bytes, usize)>,
    held: usize,
    control: usize,
    most: usize,
    /// Finds the heads of the frames that are read ahead.
    heads: Outgoing,
    /// What follows the bytes: an end, or a failure; `None`: the transport knows.
    end: Option<Result<()>>,
}

impl Ahead {
    /// Reads ahead at most `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self {
            reads: VecDeque::new(),
            held: 0,
            control: 0,
            most,
            heads: Outgoing::new(0),
            end: None,
        }
    }

    /// Reads what has arrived. Returns whether anything has arrived. `before` returns the state of
    /// the search for heads in front of the first byte that is read.
    pub(super) fn fill(
        &mut self,
        context: &mut Context<'_>,
        mut stream: impl AsyncRead + Unpin,
        before: impl Fn() -> Outgoing,
    ) -> bool {
        let mut arrived = false;
        while self.end.is_none() && self.held < self.most && self.control < CONTROL_MAX {
            let mut bytes = [0; READ_BYTES];
            let room = READ_BYTES.min(self.most - self.held);
            let mut buffer = ReadBuf::new(&mut bytes[..room]);
            let read = match Pin::new(&mut stream).poll_read(context, &mut buffer) {
                Poll::Ready(read) => read,
                Poll::Pending => break,
            };
            arrived = true;
            if read.is_err() || buffer.filled().is_empty() {
                self.end = Some(read);
                break;
            }
            if self.reads.is_empty() {
                self.heads = before();
            }
            let mut control = 0;
            self.heads.read(buffer.filled(), |head, _| {
                if head.kind != DATA {
                    control += HEAD_BYTES + head.length;
                }
            });
            self.held += buffer.filled().len();
            self.control += control;
            let bytes = Bytes::copy_from_slice(buffer.filled());
            self.reads.push_back((bytes, control));
        }
        arrived
    }

    /// Moves bytes to `buffer`; `None`: nothing was read ahead.
    pub(super) fn take(&mut self, buffer: &mut ReadBuf<'_>) -> Option<Result<()>> {
        let Some((bytes, control)) = self.reads.front_mut() else {
            return self.end.take();
        };
        let length = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..length]);
        bytes.advance(length);
        self.held -= length;
        if bytes.is_empty() {
            self.control -= *control;
            self.reads.pop_front();
        }
        Some(Ok(()))
    }
}
