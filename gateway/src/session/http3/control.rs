//! The unidirectional streams, on which both ends send messages about the whole connection (RFC
//! 9114, section 6.2).

use std::rc::Rc;

use bytes::Bytes;
use quinn::{Connection, RecvStream, SendStream};
use tokio::task::JoinSet;

use super::frame::{self, Budget, Cut, Frame, Frames};
use super::settings::{self, Settings};
use super::{code, end_of};
use crate::base::tasks::joined;
use crate::io::transport::Side;
use crate::session::end::SessionEnd;
use crate::session::quic_streams::{Broken, Overhead};

const CONTROL: u64 = 0x0;
const PUSH: u64 = 0x1;
const QPACK_ENCODER: u64 = 0x2;
const QPACK_DECODER: u64 = 0x3;
/// The instruction that sets the capacity of the dynamic table to 0 (RFC 9204, section 4.3.1). An
/// encoder without a table may send no other instruction.
const NO_TABLE: u8 = 0x20;
/// Number of bytes of one read on a stream whose content is discarded.
const CHUNK_BYTES: usize = 4 << 10;

/// Why reading from the peer ended.
#[derive(Debug)]
pub(super) enum Unheard {
    Broken(Broken),
    Ended(SessionEnd),
}

impl From<Broken> for Unheard {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<SessionEnd> for Unheard {
    fn from(end: SessionEnd) -> Self {
        Self::Ended(end)
    }
}

const CLOSED: Broken = Broken {
    code: code::CLOSED_CRITICAL_STREAM,
    problem: "the peer ended a critical stream",
};

const fn doubled(problem: &'static str) -> Broken {
    Broken {
        code: code::STREAM_CREATION_ERROR,
        problem,
    }
}

/// This side's control stream. This side opens no QPACK streams, since QPACK needs them for its
/// dynamic table only.
pub(super) struct Saying {
    connection: Connection,
    stream: SendStream,
    unsaid: Bytes,
}

impl Saying {
    /// Opens the stream and queues the settings, which are sent first.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn begin(connection: &Connection) -> Result<Self, SessionEnd> {
        let stream = connection.open_uni().await.map_err(end_of)?;
        // The stream carries few bytes, which have priority over all other streams.
        let _ = stream.set_priority(i32::MAX);
        let mut unsaid = Vec::new();
        frame::push_integer(&mut unsaid, CONTROL);
        settings::push(&mut unsaid);
        Ok(Self {
            connection: connection.clone(),
            stream,
            unsaid: unsaid.into(),
        })
    }

    /// Whether all messages have been sent.
    pub(super) fn is_done(&self) -> bool {
        self.unsaid.is_empty()
    }

    /// Queues a GOAWAY: this side takes no requests with the number `id` or a higher number.
    pub(super) fn go_away(&mut self, id: u64) {
        let (mut body, mut frame) = (Vec::new(), Vec::new());
        frame::push_integer(&mut body, id);
        frame::push(&mut frame, frame::GOAWAY, &body);
        self.unsaid = frame.into();
    }

    /// Sends the queued messages. A caller may drop the future and call again.
    ///
    /// # Errors
    /// The peer has stopped the stream, or the connection has ended.
    pub(super) async fn flush(&mut self) -> Result<(), Unheard> {
        while !self.unsaid.is_empty() {
            match self.stream.write(&self.unsaid).await {
                Ok(written) => drop(self.unsaid.split_to(written)),
                Err(quinn::WriteError::ConnectionLost(error)) => return Err(end_of(error).into()),
                Err(_) => return Err(ended(&self.connection)),
            }
        }
        Ok(())
    }
}

/// A message of the peer about the whole connection.
pub(super) enum Heard {
    /// Requests can be sent. `field_bytes_max` limits the size of their fields.
    Settings { field_bytes_max: u64 },
    /// The peer takes no requests with this number or a higher number.
    GoAway(u64),
}

/// The peer's unidirectional streams.
pub(super) struct Hearing {
    connection: Connection,
    side: Side,
    /// Streams whose type has not been read yet.
    arriving: JoinSet<Option<(u64, RecvStream)>>,
    control: Option<RecvStream>,
    frames: Frames,
    overhead: Rc<Overhead>,
    has_settings: bool,
    /// Whether the peer has opened its QPACK encoder stream.
    has_encoder: bool,
    has_decoder: bool,
    qpack: JoinSet<Unheard>,
}

impl Hearing {
    pub(super) fn new(connection: &Connection, side: Side, budget: &Rc<Budget>) -> Self {
        Self {
            connection: connection.clone(),
            side,
            arriving: JoinSet::new(),
            control: None,
            frames: Frames::of_control(budget),
            overhead: Rc::clone(&budget.overhead),
            has_settings: false,
            has_encoder: false,
            has_decoder: false,
            qpack: JoinSet::new(),
        }
    }

    /// Whether the settings have arrived, so that this side may send requests.
    pub(super) fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Returns the next message. A caller may drop the future and call again.
    ///
    /// # Errors
    /// [`Unheard`].
    pub(super) async fn next(&mut self) -> Result<Heard, Unheard> {
        loop {
            // Buffered bytes are read without waiting, so the task yields here to other tasks.
            tokio::task::consume_budget().await;
            let frame = tokio::select! {
                biased;
                frame = next(&mut self.frames, &mut self.control) => frame,
                arrived = self.arriving.join_next(), if !self.arriving.is_empty() => {
                    if let Some(Some((kind, stream))) = arrived.and_then(joined) {
                        self.take(kind, stream)?;
                    }
                    continue;
                }
                unheard = self.qpack.join_next(), if !self.qpack.is_empty() => {
                    match unheard.and_then(joined) {
                        Some(unheard) => return Err(unheard),
                        None => continue,
                    }
                }
                stream = self.connection.accept_uni() => {
                    let stream = stream.map_err(end_of)?;
                    self.overhead.count().map_err(Broken::from)?;
                    self.arriving.spawn_local(kind_of(stream));
                    continue;
                }
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => return Err(CLOSED.into()),
                Err(cut) => return Err(unheard(&self.connection, cut)),
            };
            if let Some(heard) = self.read(&frame)? {
                return Ok(heard);
            }
        }
    }

    /// Accepts a stream of type `kind`.
    fn take(&mut self, kind: u64, mut stream: RecvStream) -> Result<(), Unheard> {
        match kind {
            CONTROL if self.control.is_some() => {
                Err(doubled("the peer opened a second control stream").into())
            }
            CONTROL => {
                self.control = Some(stream);
                Ok(())
            }
            QPACK_ENCODER if self.has_encoder => {
                Err(doubled("the peer opened a second encoder stream").into())
            }
            QPACK_ENCODER => {
                self.has_encoder = true;
                self.qpack.spawn_local(encoder(
                    self.connection.clone(),
                    stream,
                    Rc::clone(&self.overhead),
                ));
                Ok(())
            }
            QPACK_DECODER if self.has_decoder => {
                Err(doubled("the peer opened a second decoder stream").into())
            }
            QPACK_DECODER => {
                self.has_decoder = true;
                self.qpack
                    .spawn_local(decoder(self.connection.clone(), stream));
                Ok(())
            }
            PUSH if self.side == Side::Dials => {
                Err(id_error("the peer sent a push, but pushes are not permitted").into())
            }
            PUSH => Err(doubled("the peer, a client, opened a push stream").into()),
            _ => {
                // This fails if the stream has ended.
                let _ = stream.stop(code::STREAM_CREATION_ERROR);
                Ok(())
            }
        }
    }

    /// Reads a frame of the control stream.
    fn read(&mut self, frame: &Frame) -> Result<Option<Heard>, Broken> {
        if !self.has_settings && frame.kind != frame::SETTINGS {
            return Err(Broken {
                code: code::MISSING_SETTINGS,
                problem: "the peer's control stream does not begin with SETTINGS",
            });
        }
        if self.has_settings {
            // After the settings, a peer has reason to send only a few frames, and none of them
            // carries payload. So each frame counts as a frame without payload.
            self.overhead.count()?;
        }
        match frame.kind {
            frame::SETTINGS if self.has_settings => {
                Err(frame::unexpected("the peer sent a second SETTINGS frame"))
            }
            frame::SETTINGS => {
                self.has_settings = true;
                let Settings { field_bytes_max } = settings::read(&frame.body)?;
                Ok(Some(Heard::Settings { field_bytes_max }))
            }
            frame::GOAWAY => {
                let id = whole_integer(&frame.body)?;
                if self.side == Side::Dials && id % 4 != 0 {
                    return Err(id_error(
                        "the peer sent a GOAWAY with an invalid request number",
                    ));
                }
                Ok(Some(Heard::GoAway(id)))
            }
            frame::MAX_PUSH_ID if self.side == Side::Accepts => {
                whole_integer(&frame.body)?;
                Ok(None)
            }
            frame::CANCEL_PUSH => Err(id_error(
                "the peer sent CANCEL_PUSH, but pushes are not permitted",
            )),
            _ => Err(frame::unexpected(
                "the peer sent a frame that is not permitted on a control stream",
            )),
        }
    }
}

/// Returns the next frame of the control stream, once that stream is open.
async fn next(frames: &mut Frames, control: &mut Option<RecvStream>) -> Result<Option<Frame>, Cut> {
    match control {
        Some(stream) => frames.next(stream).await,
        None => std::future::pending().await,
    }
}

fn unheard(connection: &Connection, cut: Cut) -> Unheard {
    match cut {
        Cut::Broken(broken) => broken.into(),
        Cut::TooLong => Unheard::Broken(Broken {
            code: code::EXCESSIVE_LOAD,
            problem: "the peer sent a frame that is too long on its control stream",
        }),
        Cut::Connection(error) => end_of(error).into(),
        Cut::Peer(_) => ended(connection),
    }
}

/// The reason of the end: the peer cut a critical stream, or the connection has ended.
fn ended(connection: &Connection) -> Unheard {
    match connection.close_reason() {
        Some(error) => end_of(error).into(),
        None => CLOSED.into(),
    }
}

/// Reads a body that is a single integer.
fn whole_integer(body: &[u8]) -> Result<u64, Broken> {
    match frame::integer(body) {
        Some((value, [])) => Ok(value),
        _ => Err(Broken {
            code: code::FRAME_ERROR,
            problem: "the peer sent a frame whose body is not a single integer",
        }),
    }
}

pub(super) const fn id_error(problem: &'static str) -> Broken {
    Broken {
        code: code::ID_ERROR,
        problem,
    }
}

/// Reads the type of a new stream; `None`: the stream ended before its type.
async fn kind_of(mut stream: RecvStream) -> Option<(u64, RecvStream)> {
    let mut bytes = Vec::new();
    loop {
        if let Some((kind, _)) = frame::integer(&bytes) {
            return Some((kind, stream));
        }
        let chunk = stream.read_chunk(1, true).await.ok()??;
        bytes.extend_from_slice(&chunk.bytes);
    }
}

/// Reads an encoder stream. An encoder without a table sends only [`NO_TABLE`].
async fn encoder(
    connection: Connection,
    mut stream: RecvStream,
    overhead: Rc<Overhead>,
) -> Unheard {
    while let Ok(Some(chunk)) = stream.read_chunk(CHUNK_BYTES, true).await {
        tokio::task::consume_budget().await;
        if let Err(excessive) = overhead.count() {
            return Unheard::Broken(excessive.into());
        }
        if chunk.bytes.iter().any(|byte| *byte != NO_TABLE) {
            return Unheard::Broken(Broken {
                code: code::QPACK_ENCODER_STREAM_ERROR,
                problem: "the peer sent an instruction for QPACK's dynamic table, whose capacity is 0",
            });
        }
    }
    ended(&connection)
}

/// Reads and discards a decoder stream. Without a table, a decoder stream contains only stream
/// cancellations, which have no effect.
async fn decoder(connection: Connection, mut stream: RecvStream) -> Unheard {
    while let Ok(Some(_)) = stream.read_chunk(CHUNK_BYTES, true).await {
        tokio::task::consume_budget().await;
    }
    ended(&connection)
}
