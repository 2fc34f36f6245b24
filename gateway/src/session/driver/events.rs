//! Handles the events of a session.

use std::rc::Rc;

use muxtunnel_proto::{CarrierId, Event, Outcome, Refusal, StreamId};

use super::Driver;
use crate::base::closing::Reason;
use crate::session::mux::Progress;

impl Driver {
    pub(super) fn handle_event(self: &Rc<Self>, event: Event) {
        match event {
            Event::Ready => self.ready(),
            Event::CarrierUp { carrier } => self.carrier_up(carrier),
            Event::CarrierEnded { carrier, reason } => self.carrier_given_up(carrier, reason),
            Event::CarrierRetired { carrier } => self.carrier_retired(carrier),
            Event::CarriersWanted { count } => self.carriers_wanted(count),
            Event::GoAway => self.leave(),
            Event::Incoming {
                stream,
                target,
                source,
            } => self.dial(stream, target, source),
            Event::Opened { stream, address } => self.opened(stream, &address),
            Event::OpenFailed { stream, refusal } => self.open_failed(stream, refusal),
            Event::OpenReturned { stream } => self.open_returned(stream),
            Event::Writable { stream } => {
                if let Some(io) = self.stream(stream) {
                    io.wake_source();
                }
            }
            Event::Finished { stream } => self.finished(stream),
            Event::Assigned(assignment) => self.packets.assign(assignment),
            Event::Listen(event) => self.listener_event(event),
            Event::Reset { stream, cause } => self.cut(stream, cause),
        }
    }

    /// The session is established, so its first carrier is up.
    fn ready(&self) {
        self.carrier_up(CarrierId::FIRST);
        self.packets
            .agree(self.engine.session.view().has_datagrams());
        self.advance(Progress::Ready);
    }

    fn opened(self: &Rc<Self>, stream: StreamId, address: &str) {
        if let Some(io) = self.stream(stream)
            && !io.opened(&self.telemetry, address)
        {
            io.abandon(self, Reason::ClientReset, None);
        }
    }

    fn open_failed(&self, stream: StreamId, refusal: Refusal) {
        if let Some(io) = self.stream(stream) {
            io.refused(refusal);
        }
    }

    fn open_returned(&self, stream: StreamId) {
        match self.stream(stream) {
            // The gateway shuts down all its sessions, so no other session can take the open.
            Some(io) if self.ending.reason() == Some(Reason::Drained) => {
                io.refused(Refusal::new(
                    muxtunnel_proto::Reason::General,
                    "the gateway is shutting down",
                ));
            }
            Some(io) => io.returned(),
            None => {}
        }
    }

    fn finished(&self, stream: StreamId) {
        match self.stream(stream) {
            Some(io) => io.peer_finished(),
            None => self.incoming_finished(stream),
        }
    }

    pub(super) fn cut(self: &Rc<Self>, stream: StreamId, cause: Outcome) {
        match (self.stream(stream), self.ending.reason()) {
            (Some(io), Some(reason)) => io.cut(reason),
            // This side has cut the stream, and no longer counts the received bytes.
            (Some(io), None) if matches!(cause, Outcome::Stalled | Outcome::OffsetsExhausted) => {
                io.abandon(self, cause.into(), None);
            }
            (Some(io), None) => io.cut(cause.into()),
            (None, _) => self.incoming_cut(stream, cause),
        }
    }
}
