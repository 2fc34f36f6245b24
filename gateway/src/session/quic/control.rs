//! The control streams: one of each side, with what is said of the whole connection.

use std::rc::Rc;

use bytes::{Buf, Bytes};
use muxtunnel_proto::{Assignment, ListenWord};
use quinn::{Connection, RecvStream, SendStream};

use super::reading::{Cut, Reading};
use super::wire::{Message, VERSION};
use super::{end_of, violation};
use crate::session::end::SessionEnd;
use crate::session::quic_streams::Overhead;

/// What this side says. One message at a time: what it is to say next stays where it is known.
pub(super) struct Saying {
    connection: Connection,
    stream: SendStream,
    /// What has not gone.
    unsaid: Bytes,
}

/// What the peer says.
pub(super) struct Hearing {
    connection: Connection,
    /// `None`: it has not come.
    stream: Option<RecvStream>,
    has_heard: bool,
    /// A message that has begun to come.
    reading: Reading,
    overhead: Rc<Overhead>,
}

/// What the peer says.
pub(super) enum Heard {
    /// Streams can be opened, so many at once.
    Hello {
        streams_max: u32,
        /// Packets can be sent.
        packets: bool,
    },
    /// It takes no more streams.
    GoingAway,
    /// Of a listener.
    Listen(ListenWord),
    /// What this side has.
    Assign(Assignment),
}

impl Saying {
    /// How many streams this side takes is said first, and whether it takes packets.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn begin(
        connection: &Connection,
        streams_max: u32,
        packets: bool,
    ) -> Result<Self, SessionEnd> {
        let stream = connection.open_uni().await.map_err(end_of)?;
        // Little is said here, and before all else.
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

    /// Whether all that was said has gone.
    pub(super) fn is_done(&self) -> bool {
        self.unsaid.is_empty()
    }

    /// Says `message`, where [`Self::is_done`].
    pub(super) fn say(&mut self, message: &Message) {
        self.unsaid = message.encode().into();
    }

    /// Has some of what was said go. May be dropped and called again.
    ///
    /// # Errors
    /// The connection has ended.
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

    /// Whether streams can be opened.
    pub(super) fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// What the peer says next. May be dropped and called again.
    ///
    /// # Errors
    /// The connection has ended, or the peer breaks the protocol.
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
                    return Err(violation("its control stream does not begin with HELLO"));
                }
                Message::GoAway | Message::Unknown if self.overhead.count().is_err() => {
                    return Err(violation("too many messages that say nothing"));
                }
                Message::GoAway => return Ok(Heard::GoingAway),
                Message::Listen(word) => return Ok(Heard::Listen(word)),
                Message::Assign(assignment) => return Ok(Heard::Assign(assignment)),
                Message::Unknown => {}
                other => {
                    let text = format!("{other:?} is out of place on a control stream");
                    return Err(violation(text));
                }
            }
        }
    }
}

/// Neither control stream ends before the connection.
fn ended(connection: &Connection, cut: Cut) -> SessionEnd {
    match cut {
        Cut::Connection(error) => end_of(error),
        Cut::Malformed(error) => violation(error.to_string()),
        Cut::Peer(_) => match connection.close_reason() {
            Some(error) => end_of(error),
            None => violation("a control stream has ended"),
        },
    }
}
