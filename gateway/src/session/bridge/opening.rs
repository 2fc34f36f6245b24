//! Streams that this side opens. A client's connection waits until the peer has answered.
//!
//! The bridge sends none of the client's bytes before the answer. So another session can retry an
//! open that no peer processed.

use std::convert::Infallible;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::{OpenError, Priority, Reason, Refusal, patience};

use super::Bridge;
use super::choice::Begun;
use super::link::{Link, NoStream, Opened};
use super::room::Taken;
use super::stream::Joined;
use crate::session::mux::{NotOpened, OpenEnd, Progress, Refused, is_failed_dial};
use crate::stream::early_data::Connection;

/// Maximum time until the peer answers an open, on ordinary paths.
const OPEN_MAX: Duration = Duration::from_secs(15);

/// An open of a client that has failed is given up after this time. A peer limits how many streams
/// are reset right after their open ([`http2`](crate::session::http2)), and all clients share this
/// limit.
const ABANDONED_AFTER: Duration = Duration::from_millis(250);
/// After this time without an answer to an open, the session checks whether the peer still answers.
const DOUBT_AFTER: Duration = Duration::from_secs(5);

impl<L: Link> Bridge<L> {
    /// Implements [`Mux::open`](crate::session::mux::Mux::open).
    ///
    /// # Errors
    /// This side cannot open a stream.
    pub(super) fn open(
        self: &Rc<Self>,
        target: &str,
        priority: Priority,
        client: Connection,
        refused: Refused,
    ) -> Result<(), Box<NotOpened>> {
        let begun = match self.begin_now(target, priority, &client) {
            Ok(begun) => begun,
            Err(error) => {
                let connection = client;
                return Err(Box::new(NotOpened { error, connection }));
            }
        };
        let (number, target) = (self.number(), target.to_owned());
        let bridge = Rc::clone(self);
        self.engine.asking.borrow_mut().insert(number, None);
        if begun.is_none() {
            self.count_up();
        }
        drop(tokio::task::spawn_local(Rc::clone(self).guard(
            async move {
                let opening = bridge.opened(begun, (&target, priority));
                let asked = bridge.ask(opening, client, refused).await;
                bridge.engine.asking.borrow_mut().remove(&number);
                match asked {
                    Some((client, (link, taken, opened))) => {
                        bridge.join((number, link, taken), client, opened).await;
                    }
                    None => bridge.stream_ended(),
                }
            },
        )));
        Ok(())
    }

    /// Opens the stream immediately; `None`: the open has to wait for room.
    fn begin_now(
        &self,
        target: &str,
        priority: Priority,
        client: &Connection,
    ) -> Result<Option<Begun<L>>, OpenError> {
        match self.progress() {
            _ if self.has_ended() => return Err(OpenError::GoingAway),
            Progress::Hello => return Err(OpenError::NotReady),
            Progress::GoingAway => return Err(OpenError::GoingAway),
            Progress::Ready => {}
        }
        let streams_max = self.config.streams_max;
        if self.stream_count() >= streams_max as usize {
            return Err(OpenError::TooManyStreams { streams_max });
        }
        if client.source.is_some() {
            return Err(OpenError::NoSources);
        }
        match self.is_waited_for(target) {
            true => Ok(None),
            false => self.begin(target, priority),
        }
    }

    /// Waits for room if the links are full, then for the answer.
    async fn opened(
        &self,
        begun: Option<Begun<L>>,
        (target, priority): (&str, Priority),
    ) -> Result<(u64, Taken, Opened<L>), NoStream> {
        let Begun { link, taken, open } = match begun {
            Some(begun) => begun,
            None => self.begin_later(target, priority).await?,
        };
        Ok((link, taken, open.await?))
    }

    /// Waits for the answer; tells the client if the open fails.
    async fn ask<T>(
        &self,
        open: impl Future<Output = Result<T, NoStream>>,
        client: Connection,
        refused: Refused,
    ) -> Option<(Connection, T)> {
        let mut open = pin!(open);
        let limit = patience(OPEN_MAX, self.round_trip());
        let doubts = async {
            tokio::time::sleep(DOUBT_AFTER).await;
            for member in self.carriers.all() {
                member.link.probe();
            }
            std::future::pending::<Infallible>().await
        };
        let asked = tokio::select! {
            biased;
            // Polled first, because the answer, or NotTaken, may arrive together with the end of
            // the link.
            asked = tokio::time::timeout(limit, open.as_mut()) => asked.unwrap_or_else(|_| {
                let text = format!("the peer did not answer the open within {} s", limit.as_secs());
                Err(NoStream::Refused(Refusal::new(Reason::TimedOut, text)))
            }),
            () = self.ending.begun() => Err(NoStream::Lost),
            never = doubts => match never {},
            // The client's connection has failed, for example by a reset.
            () = client.socket.failed() => {
                refused(OpenEnd::Abandoned);
                drop(client);
                let _ = tokio::time::timeout(ABANDONED_AFTER, open).await;
                return None;
            }
        };
        match asked {
            Ok(opened) => return Some((client, opened)),
            Err(NoStream::Refused(refusal))
                if client.has_next && is_failed_dial(refusal.reason) =>
            {
                refused(OpenEnd::Failed(refusal, client));
            }
            Err(NoStream::Refused(refusal)) => {
                let answer = client.answer.refused(Some(refusal.reason));
                refused(OpenEnd::Refused(refusal));
                client.socket.end_with(&answer).await;
            }
            Err(NoStream::Lost) => {
                let answer = client.answer.refused(None);
                refused(OpenEnd::Abandoned);
                client.socket.end_with(&answer).await;
            }
            Err(NoStream::NotTaken) => refused(OpenEnd::Returned(client)),
        }
        None
    }

    /// Sends the client the positive answer before any payload.
    async fn join(
        self: &Rc<Self>,
        place: (u64, u64, Taken),
        client: Connection,
        opened: Opened<L>,
    ) {
        let answer = client.answer.granted(&opened.address);
        // The socket's send buffer is empty, so a socket that does not take the answer is broken.
        // The source notices the failure.
        let told = answer.is_empty() || client.socket.send_at_once(&answer);
        let io = Joined::new(
            place,
            &self.engine.unsent,
            client.socket,
            client.local,
            client.early,
        );
        if !told {
            io.abandon(io.account.local_reset(), None);
        }
        let halves = (opened.sender, opened.receiver);
        self.run_stream(Rc::new(io), halves).await;
    }
}
