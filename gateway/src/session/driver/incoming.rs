//! The peer's streams whose targets are still being dialled.
//!
//! Payload that arrives before the target answers waits in the stream's inbox, which the peer's
//! initial credit bounds. If the stream is cut in the meantime, its dial ends.

use std::rc::Rc;

use muxtunnel_codes::Code;
use muxtunnel_proto::{Outcome, Refusal, ResetCode, Source, StreamId};
use tokio::task::AbortHandle;

use super::Driver;
use super::stream::{Arrived, StreamIo};
use crate::net::dial::Dialled;
use crate::stream::account::Local;

/// A stream that has no socket yet.
pub(super) struct Incoming {
    dial: AbortHandle,
    target: String,
    arrived: Arrived,
}

#[cfg(test)]
impl Incoming {
    /// Whether payload waits for the socket.
    pub(super) fn holds(&self) -> bool {
        !self.arrived.inbox.is_empty()
    }
}

impl Driver {
    pub(super) fn dial(self: &Rc<Self>, stream: StreamId, target: String, source: Option<Source>) {
        for carrier in self.carriers.view().values() {
            carrier.heard();
        }
        if let Some(refusal) = self.takes_none() {
            self.telemetry.streams.refused(Code::Draining);
            self.update(|session| session.refuse(stream, refusal));
            return;
        }
        let driver = Rc::clone(self);
        let peer = self.identity();
        let dial = (self.dialler)(target.clone(), peer, source);
        let task = tokio::task::spawn_local(Rc::clone(self).guard(async move {
            let dialled = dial.await;
            if let Some(io) = driver.dialled(stream, dialled) {
                driver.run_stream(io).await;
            }
        }));
        let incoming = Incoming {
            dial: task.abort_handle(),
            target,
            arrived: Arrived::default(),
        };
        self.engine.incoming.borrow_mut().insert(stream, incoming);
    }

    /// Answers the open, unless the stream was cut in the meantime. Returns the stream if it is
    /// open.
    fn dialled(
        self: &Rc<Self>,
        stream: StreamId,
        dialled: Result<Dialled, Refusal>,
    ) -> Option<Rc<StreamIo>> {
        let incoming = self.engine.incoming.borrow_mut().remove(&stream)?;
        match dialled {
            Ok(Dialled {
                socket,
                address,
                admission,
                url,
            }) => {
                let reached = address.to_string();
                let target = Local::Target {
                    target: url.map_or(incoming.target, |url| url.to_string()),
                    address,
                    admission,
                };
                let io = Rc::new(StreamIo::accepted(stream, socket, target, incoming.arrived));
                // The local end is a target, which expects no answer.
                io.opened(&self.telemetry, "");
                self.streams.add(stream.number(), &io);
                self.update(|session| session.accept(stream, &reached));
                Some(io)
            }
            Err(refusal) => {
                self.update(|session| session.refuse(stream, refusal));
                self.idle_wake.notify_waiters();
                None
            }
        }
    }

    /// Keeps payload of a stream whose target is being dialled.
    pub(super) fn keep(&self, stream: StreamId, offset: u64, slices: &[std::io::IoSlice<'_>]) {
        if let Some(incoming) = self.engine.incoming.borrow_mut().get_mut(&stream) {
            let Arrived {
                inbox, reassembly, ..
            } = &mut incoming.arrived;
            reassembly.receive(offset, slices, inbox, self.share.pool());
        }
    }

    /// Why this side refuses further streams of the peer. Needed for JMUX only: the other protocols
    /// tell the peer that the session drains.
    fn takes_none(&self) -> Option<Refusal> {
        let has_a_word = self.config.protocol.can().go_away;
        (!has_a_word && self.has_expired()).then(|| {
            let text = format!(
                "{}: the certificate of this session has expired",
                Code::Draining
            );
            Refusal::new(muxtunnel_proto::Reason::General, text)
        })
    }

    /// Ends all dials, since the session is over.
    pub(super) fn stop_dialling(&self) {
        let dials = std::mem::take(&mut *self.engine.incoming.borrow_mut());
        for incoming in dials.into_values() {
            incoming.dial.abort();
        }
    }

    pub(super) fn incoming_finished(&self, stream: StreamId) {
        if let Some(incoming) = self.engine.incoming.borrow_mut().get_mut(&stream) {
            incoming.arrived.finished = true;
        }
    }

    pub(super) fn incoming_cut(self: &Rc<Self>, stream: StreamId, cause: Outcome) {
        let incoming = self.engine.incoming.borrow_mut().remove(&stream);
        if let Some(incoming) = incoming {
            tracing::debug!(
                stream = stream.number(),
                ?cause,
                "Stream was cut while its target was dialled"
            );
            incoming.dial.abort();
            // The received bytes cannot be delivered, so the stream ends.
            self.update(|session| session.reset(stream, ResetCode::Cancelled));
            self.idle_wake.notify_waiters();
        }
    }
}
