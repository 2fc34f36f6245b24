//! Streams of a QUIC connection for any protocol ([`Framing`]): the halves of each stream, and the
//! state that all streams share.

mod overhead;
mod receiving;
mod requests;
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

use crate::base::tasks::Tasks;
use crate::io::quic::{CloseCode, Connection, window};
use crate::io::transport::Side;
use crate::session::bridge::link::{Below, Unsent};
use crate::session::shell::under::Under;
pub(crate) use overhead::{Excessive, Overhead, StreamOverhead};
pub(crate) use receiving::Receiving;
pub(crate) use requests::Requests;
use room::Room;
pub(crate) use sending::Sending;
use taken_back::TakenBack;

/// How long this side waits after a close, so that the library's task can send the last packet.
const CLOSE_TIME: Duration = Duration::from_millis(20);

/// How a protocol encodes a stream's bytes and codes. Each stream has a value of this type, which
/// tracks the peer's frames.
pub(crate) trait Framing: Default + 'static {
    /// Appends to `head` the bytes that precede payload of `bytes` bytes.
    fn begin(bytes: usize, head: &mut Vec<u8>);

    /// Encodes the code of a cut.
    fn code(code: ResetCode) -> VarInt;

    /// Decodes a received code. `None`: the code reports no cut, only that the peer needs no
    /// further bytes.
    fn reset_code(code: VarInt) -> Option<ResetCode>;

    /// Extracts the payload from received bytes. `overhead` counts the connection's frames without
    /// payload.
    ///
    /// # Errors
    /// The peer broke the protocol.
    fn payload(&mut self, pieces: Vec<Bytes>, overhead: &Overhead) -> Result<Vec<Bytes>, Broken>;

    /// Handles the end of the stream.
    ///
    /// # Errors
    /// The stream may not end here.
    fn end(&self) -> Result<(), Broken>;
}

/// How the peer broke the protocol, and the code with which to close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken {
    pub(crate) code: VarInt,
    pub(crate) problem: &'static str,
}

type Halves<F> = (Sending<F>, Receiving<F>);

/// State that all streams of one connection share.
pub(crate) struct Traffic {
    pub(crate) connection: Connection,
    unsent: Arc<Unsent>,
    /// Permits for the unacknowledged bytes of bulk.
    unacknowledged: Arc<Semaphore>,
    /// Number of bytes of all streams that the library has not taken yet.
    rests: Cell<usize>,
    /// Number of received bytes that no local end has taken.
    held: Cell<u64>,
    broken: Cell<Option<Broken>>,
    room: Room,
    taken_back: TakenBack,
    pub(crate) overhead: Rc<Overhead>,
    /// The tasks that send the last messages of streams. A panic of such a task ends the session.
    pub(crate) tasks: Tasks,
}

impl Traffic {
    /// Creates the state of a connection that `side` has dialled or accepted. `protocol` is the
    /// protocol's name.
    ///
    /// # Errors
    /// `below` is not a QUIC connection.
    pub(crate) fn new(
        side: Side,
        below: Below,
        config: &SessionConfig,
        protocol: &str,
    ) -> std::io::Result<Rc<Self>> {
        let Under::Quic(connection) = below.under else {
            let text = format!("{protocol} requires a QUIC connection");
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
            tasks: Tasks::default(),
        }))
    }

    /// Opens a stream of this side; `None`: the peer permits no stream now ([`Self::is_full`]).
    pub(crate) fn open<F: Framing>(self: &Rc<Self>) -> Option<Result<Halves<F>, ConnectionError>> {
        let stream = self.room.take(self.connection.quic())?;
        Some(stream.map(|(sender, receiver)| self.halves(sender, receiver)))
    }

    /// Whether the peer permits no more streams for now.
    pub(crate) fn is_full(&self) -> bool {
        self.room.is_full()
    }

    /// Waits until the peer permits another stream. A caller may drop the future and call again.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn has_room(&self) -> Result<(), ConnectionError> {
        self.room.wait(self.connection.quic()).await
    }

    /// Accepts the peer's next stream, after a delay if the peer has cancelled too many streams.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) async fn accept<F: Framing>(self: &Rc<Self>) -> Result<Halves<F>, ConnectionError> {
        tokio::task::consume_budget().await;
        self.taken_back.pause().await;
        let (sender, receiver) = self.connection.quic().accept_bi().await?;
        Ok(self.halves(sender, receiver))
    }

    /// Counts a stream that the peer cancelled before the answer.
    pub(crate) fn taken_back(&self) {
        self.taken_back.count();
    }

    fn halves<F: Framing>(self: &Rc<Self>, sender: SendStream, receiver: RecvStream) -> Halves<F> {
        (
            Sending::new(sender, Rc::clone(self)),
            Receiving::new(receiver, Rc::clone(self)),
        )
    }

    /// Whether streams have bytes to send or unacknowledged bytes.
    pub(crate) fn is_busy(&self) -> bool {
        !self.unsent.is_none()
    }

    /// Number of received bytes that no local end has taken.
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    /// Ends the connection and sends the reason to the peer. Only the first reason is sent.
    pub(crate) fn break_off(&self, broken: Broken) {
        if self.broken.get().is_none() {
            self.broken.set(Some(broken));
        }
        self.connection
            .quic()
            .close(broken.code, broken.problem.as_bytes());
    }

    /// Returns why this side has ended the connection, after the close was sent.
    pub(crate) async fn broken(&self) -> Option<Broken> {
        let broken = self.broken.get()?;
        tokio::time::sleep(CLOSE_TIME).await;
        Some(broken)
    }

    /// Ends the connection, and sends the peer the reason.
    pub(crate) async fn close(&self, code: CloseCode, text: &str) {
        self.connection.close(code, text);
        tokio::time::sleep(CLOSE_TIME).await;
    }
}

#[cfg(test)]
mod tests;
