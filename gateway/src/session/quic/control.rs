//! The control streams, one for each side. These streams carry messages about the whole connection.

use std::rc::Rc;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{Assignment, ListenWord};
use quinn::{Connection, RecvStream, SendStream};

use super::reading::{Cut, Reading};
use super::wire::{Message, VERSION};
use super::{end_of, violation};
use crate::session::end::SessionEnd;
use crate::session::quic_streams::Overhead;

/// This side's control stream. The value holds one message at a time; the caller stores the state
/// for later messages.
pub(super) struct Saying {
    connection: Connection,
    stream: SendStream,
    /// The unsent bytes of the message.
    unsaid: Bytes,
}

/// The peer's control stream.
pub(super) struct Hearing {
    connection: Connection,
    /// `None`: the peer has not opened the stream yet.
    stream: Option<RecvStream>,
    has_heard: bool,
    reading: Reading,
    overhead: Rc<Overhead>,
}

/// Messages of the peer.
pub(super) enum Heard {
    /// The peer is ready. The peer accepts at most `streams_max` concurrent streams.
    Hello { streams_max: u32, packets: bool },
    /// The peer takes no further streams.
    GoingAway,
    /// A message about a listener.
    Listen(ListenWord),
    /// The addresses and DNS servers that the peer assigns to this side.
    Assign(Assignment),
}

impl Saying {
    /// Opens the stream and queues HELLO. HELLO contains the number of streams that this side
    /// takes, and whether it accepts packets.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn begin(
        connection: &Connection,
        streams_max: u32,
        packets: bool,
    ) -> Result<Self, SessionEnd> {
        let stream = connection.open_uni().await.map_err(end_of)?;
        // The stream carries few bytes, which have priority over all other streams.
        let _ = stream.set_priority(i32::MAX);
        let hello = Message::Hello {
            version: VERSION,
            streams_max,
            packets,
        };
        Ok(Self {
            connection: connection.clone(),
            stream,
            unsaid: hello.encode().into(),
        })
    }

    /// Whether the last message has been sent.
    pub(super) fn is_done(&self) -> bool {
        self.unsaid.is_empty()
    }

    /// Queues `message`. Call this function only if [`Self::is_done`] returns true.
    pub(super) fn say(&mut self, message: &Message) {
        self.unsaid = message.encode().into();
    }

    /// Sends a part of the queued message. A caller may drop the future and call again.
    ///
    /// # Errors
    /// The connection has ended, or the peer has stopped the stream.
    pub(super) async fn flush(&mut self) -> Result<(), SessionEnd> {
        match self.stream.write(&self.unsaid).await {
            Ok(written) => {
                self.unsaid.advance(written);
                Ok(())
            }
            Err(error) => Err(ended(&self.connection, Cut::from(error))),
        }
    }
}

impl Hearing {
    pub(super) fn new(connection: &Connection, overhead: &Rc<Overhead>) -> Self {
        Self {
            connection: connection.clone(),
            stream: None,
            has_heard: false,
            reading: Reading::default(),
            overhead: Rc::clone(overhead),
        }
    }

    /// Whether HELLO has arrived, so that this side may open streams.
    pub(super) fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Returns the next message. A caller may drop the future and call again.
    ///
    /// # Errors
    /// The connection has ended, or the peer broke the protocol.
    pub(super) async fn next(&mut self) -> Result<Heard, SessionEnd> {
        loop {
            let stream = match &mut self.stream {
                Some(stream) => stream,
                none => none.insert(self.connection.accept_uni().await.map_err(end_of)?),
            };
            let said = match self.reading.next(stream).await {
                Ok(said) => said,
                Err(cut) => return Err(ended(&self.connection, cut)),
            };
            match said {
                Message::Hello {
                    streams_max,
                    packets,
                    ..
                } if !self.has_heard => {
                    self.has_heard = true;
                    return Ok(Heard::Hello {
                        streams_max,
                        packets,
                    });
                }
                _ if !self.has_heard => {
                    return Err(violation(
                        "the peer's control stream does not begin with HELLO",
                    ));
                }
                Message::GoAway | Message::Unknown if self.overhead.count().is_err() => {
                    return Err(violation("the peer sent too many messages without effect"));
                }
                Message::GoAway => return Ok(Heard::GoingAway),
                Message::Listen(word) => return Ok(Heard::Listen(word)),
                Message::Assign(assignment) => return Ok(Heard::Assign(assignment)),
                Message::Unknown => {}
                other => {
                    let text = format!("unexpected message on the control stream: {other:?}");
                    return Err(violation(text));
                }
            }
        }
    }
}

/// The error for the end of a control stream. The stream must not end before the connection.
fn ended(connection: &Connection, cut: Cut) -> SessionEnd {
    match cut {
        Cut::Connection(error) => end_of(error),
        Cut::Malformed(error) => violation(error.to_string()),
        Cut::Peer(_) => match connection.close_reason() {
            Some(error) => end_of(error),
            None => violation("the peer ended its control stream"),
        },
    }
}
