//! The control streams: one of each side, with what is said of the whole connection.

use quinn::{Connection, RecvStream, SendStream};

use super::reading::{Cut, Reading};
use super::wire::{Message, VERSION};
use super::{end_of, violation};
use crate::session::end::SessionEnd;

/// Both of one connection.
pub(super) struct Control {
    connection: Connection,
    own: SendStream,
    /// `None`: it has not come.
    peer: Option<RecvStream>,
    has_heard: bool,
    /// A message that has begun to come.
    reading: Reading,
}

/// What the peer says.
pub(super) enum Heard {
    /// Streams can be opened, so many at once.
    Hello { streams_max: u32 },
    /// It takes no more streams.
    GoingAway,
}

impl Control {
    /// Says how many streams this side takes.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn begin(
        connection: &Connection,
        streams_max: u32,
    ) -> Result<Self, SessionEnd> {
        let own = connection.open_uni().await.map_err(end_of)?;
        // Little is said here, and before all else.
        let _ = own.set_priority(i32::MAX);
        let mut control = Self {
            connection: connection.clone(),
            own,
            peer: None,
            has_heard: false,
            reading: Reading::default(),
        };
        let hello = Message::Hello {
            version: VERSION,
            streams_max,
        };
        control.say(&hello).await?;
        Ok(control)
    }

    /// Has the peer open no more streams.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) async fn go_away(&mut self) -> Result<(), SessionEnd> {
        self.say(&Message::GoAway).await
    }

    async fn say(&mut self, message: &Message) -> Result<(), SessionEnd> {
        let said = self.own.write_all(&message.encode()).await;
        said.map_err(|error| self.ended(Cut::from(error)))
    }

    /// What the peer says next. May be dropped and called again.
    ///
    /// # Errors
    /// The connection has ended, or the peer breaks the protocol.
    pub(super) async fn next(&mut self) -> Result<Heard, SessionEnd> {
        loop {
            let peer = match &mut self.peer {
                Some(peer) => peer,
                none => none.insert(self.connection.accept_uni().await.map_err(end_of)?),
            };
            let said = match self.reading.next(peer).await {
                Ok(said) => said,
                Err(cut) => return Err(self.ended(cut)),
            };
            match said {
                Message::Hello { streams_max, .. } if !self.has_heard => {
                    self.has_heard = true;
                    return Ok(Heard::Hello { streams_max });
                }
                _ if !self.has_heard => {
                    return Err(violation("its control stream does not begin with HELLO"));
                }
                Message::GoAway => return Ok(Heard::GoingAway),
                Message::Unknown => {}
                other => {
                    let text = format!("{other:?} is out of place on a control stream");
                    return Err(violation(text));
                }
            }
        }
    }

    /// Neither control stream ends before the connection.
    fn ended(&self, cut: Cut) -> SessionEnd {
        match cut {
            Cut::Connection(error) => end_of(error),
            Cut::Malformed(error) => violation(error.to_string()),
            Cut::Peer(_) => match self.connection.close_reason() {
                Some(error) => end_of(error),
                None => violation("a control stream has ended"),
            },
        }
    }
}
