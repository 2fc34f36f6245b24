//! Streams of a QUIC connection, whatever a protocol says on them ([`Framing`]): their halves, and what they share.

mod overhead;
mod receiving;
mod room;
mod sending;
mod taken_back;

use std::cell::Cell;
use std::io::{Error, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use muxtunnel_gateway_config::SessionConfig;
use muxtunnel_proto::ResetCode;
use quinn::{ConnectionError, RecvStream, SendStream, VarInt};
use tokio::sync::Semaphore;

use crate::io::quic::{CloseCode, Connection, window};
use crate::io::transport::Side;
use crate::session::bridge::link::{Below, Under, Unsent};
pub(crate) use overhead::{Excessive, Overhead, StreamOverhead};
pub(crate) use receiving::Receiving;
use room::Room;
pub(crate) use sending::Sending;
use taken_back::TakenBack;

/// How long the last packet has to leave: the library sends it by a task of its own.
const CLOSE_TIME: Duration = Duration::from_millis(20);

/// What a protocol makes of a stream's bytes and codes. Each stream has one, with what it has read of the peer's frames.
pub(crate) trait Framing: Default + 'static {
    /// Adds what is sent before `bytes` of payload.
    fn begin(bytes: usize, head: &mut Vec<u8>);

    /// The code of a cut, as it is sent.
    fn code(code: ResetCode) -> VarInt;

    /// What a code that came says; `None`: no cut, the peer only needs no more.
    fn reset_code(code: VarInt) -> Option<ResetCode>;

    /// The payload in what came. `overhead`: what else came on the connection.
    ///
    /// # Errors
    /// The peer must not send it.
    fn payload(&mut self, pieces: Vec<Bytes>, overhead: &Overhead) -> Result<Vec<Bytes>, Broken>;

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

/// A stream.
type Halves<F> = (Sending<F>, Receiving<F>);

/// What all streams of one connection share.
pub(crate) struct Traffic {
    pub(crate) connection: Connection,
    unsent: Arc<Unsent>,
    /// Bytes that bulk may send before more is acknowledged.
    unacknowledged: Arc<Semaphore>,
    /// Bytes that the library has not taken yet, of all streams.
    rests: Cell<usize>,
    /// Bytes that were received and no local end has taken.
    held: Cell<u64>,
    broken: Cell<Option<Broken>>,
    room: Room,
    taken_back: TakenBack,
    pub(crate) overhead: Rc<Overhead>,
}

impl Traffic {
    /// Of a connection that `side` has dialled or accepted; `protocol`: its name.
    ///
    /// # Errors
    /// It is no QUIC connection.
    pub(crate) fn new(
        side: Side,
        below: Below,
        config: &SessionConfig,
        protocol: &str,
    ) -> std::io::Result<Rc<Self>> {
        let Under::Quic(connection) = below.under else {
            let text = format!("{protocol} does not run on bytes in order");
            return Err(Error::new(ErrorKind::InvalidInput, text));
        };
        let quic = connection.quic();
        quic.set_receive_window(window(config.memory.receive.0));
        quic.set_send_window(config.memory.retain.0);
        if side == Side::Accepts {
            quic.set_max_concurrent_bi_streams(config.streams_max.into());
        }
        Ok(Rc::new(Self {
            connection,
            unsent: below.unsent,
            unacknowledged: Arc::new(Semaphore::new(sending::bulk_share(config.memory.retain.0))),
            rests: Cell::new(0),
            held: Cell::new(0),
            broken: Cell::new(None),
            room: Room::default(),
            taken_back: TakenBack::default(),
            overhead: Rc::default(),
        }))
    }

    /// A new stream of this side's; `None`: [`Self::is_full`].
    pub(crate) fn open<F: Framing>(self: &Rc<Self>) -> Option<Result<Halves<F>, ConnectionError>> {
        let stream = self.room.take(self.connection.quic())?;
        Some(stream.map(|(sender, receiver)| self.halves(sender, receiver)))
    }

    /// The peer allows no more streams for now.
    pub(crate) fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// Waits until it does again. May be dropped and called again.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn has_room(&self) -> Result<(), ConnectionError> {
        self.room.wait(self.connection.quic()).await
    }

    /// The next stream of the peer's, later where it took back too many.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn accept<F: Framing>(self: &Rc<Self>) -> Result<Halves<F>, ConnectionError> {
        tokio::task::consume_budget().await;
        self.taken_back.pause().await;
        let (sender, receiver) = self.connection.quic().accept_bi().await?;
        Ok(self.halves(sender, receiver))
    }

    /// The peer took a stream back before it was answered.
    pub(crate) fn taken_back(&self) {
        self.taken_back.count();
    }

    /// Both halves of a stream.
    fn halves<F: Framing>(self: &Rc<Self>, sender: SendStream, receiver: RecvStream) -> Halves<F> {
        (
            Sending::new(sender, Rc::clone(self)),
            Receiving::new(receiver, Rc::clone(self)),
        )
    }

    /// Streams of the session have something to send, or what is not acknowledged.
    pub(crate) fn is_busy(&self) -> bool {
        !self.unsent.is_none()
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

    /// Why this side has ended the connection, once the peer was told.
    pub(crate) async fn broken(&self) -> Option<Broken> {
        let broken = self.broken.get()?;
        tokio::time::sleep(CLOSE_TIME).await;
        Some(broken)
    }

    /// Ends the connection, and tells the peer why.
    pub(crate) async fn close(&self, code: CloseCode, text: &str) {
        self.connection.close(code, text);
        tokio::time::sleep(CLOSE_TIME).await;
    }
}

#[cfg(test)]
mod tests;
