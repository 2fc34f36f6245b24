//! Streams of a QUIC connection, whatever a protocol says on them ([`Framing`]): their halves, and what they share.

mod receiving;
mod sending;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use muxtunnel_proto::ResetCode;
use quinn::{RecvStream, SendStream, VarInt};

use crate::io::quic::Connection;
use crate::session::bridge::link::Unsent;
pub(crate) use receiving::Receiving;
pub(crate) use sending::Sending;

/// What a protocol makes of a stream's bytes and codes. Each stream has one, with what it has read of the peer's frames.
pub(crate) trait Framing: Default + 'static {
    /// Adds what is sent before `bytes` of payload.
    fn begin(bytes: usize, head: &mut Vec<u8>);

    /// The code of a cut, as it is sent.
    fn code(code: ResetCode) -> VarInt;

    /// What a code that came says; `None`: no cut, the peer only needs no more.
    fn reset_code(code: VarInt) -> Option<ResetCode>;

    /// The payload in what came.
    ///
    /// # Errors
    /// The peer must not send it.
    fn payload(&mut self, pieces: Vec<Bytes>) -> Result<Vec<Bytes>, Broken>;

    /// The stream ends here.
    ///
    /// # Errors
    /// It must not.
    fn end(&self) -> Result<(), Broken>;
}

/// How the peer broke the protocol, and the code by which it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) code: VarInt,
    pub(crate) problem: &'static str,
}

/// What all streams of one connection share.
pub(crate) struct Traffic {
    pub(crate) connection: Connection,
    unsent: Arc<Unsent>,
    /// Bytes that the library has not taken yet, of all streams.
    rests: Cell<usize>,
    /// Bytes that were received and no local end has taken.
    held: Cell<u64>,
    broken: Cell<Option<Broken>>,
}

impl Traffic {
    pub(crate) fn new(connection: Connection, unsent: Arc<Unsent>) -> Self {
        Self {
            connection,
            unsent,
            rests: Cell::new(0),
            held: Cell::new(0),
            broken: Cell::new(None),
        }
    }

    /// Both halves of a stream.
    pub(crate) fn halves<F: Framing>(
        self: &Rc<Self>,
        sender: SendStream,
        receiver: RecvStream,
    ) -> (Sending<F>, Receiving<F>) {
        (
            Sending::new(sender, Rc::clone(self)),
            Receiving::new(receiver, Rc::clone(self)),
        )
    }

    /// Payload that came and that no local end has taken, bytes.
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    /// Ends the connection, and tells the peer why. The first reason counts.
    pub(crate) fn break_off(&self, broken: Broken) {
        if self.broken.get().is_none() {
            self.broken.set(Some(broken));
        }
        self.connection
            .quic()
            .close(broken.code, broken.problem.as_bytes());
    }

    /// Why this side has ended the connection.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken.get()
    }
}
