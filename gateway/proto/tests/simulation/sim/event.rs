//! The events that sessions report to drivers and applications.

use muxtunnel_proto::{
    CarrierId, Event, ListenEvent, Outcome, Reason, ResetCode, Source, StreamId,
};

use super::model::Verdict;
use super::seen::Seen;
use super::socket::{Phase, Socket};
use super::world::{ENTRY, World};

impl World {
    /// Handles the session's events.
    pub fn drain_events(&mut self, side: usize) {
        while let Some(event) = self.sides[side].session.poll_event() {
            self.trace.note(format_args!("{side} sees {event:?}"));
            match event {
                Event::Ready | Event::GoAway => {}
                Event::Assigned(_) => panic!("an assignment, which was not agreed"),
                Event::CarrierUp { carrier } => self.carrier_is_up(side, carrier),
                Event::CarrierEnded { carrier, .. } => self.end_carrier(side, carrier),
                Event::CarrierRetired { carrier } => self.carrier_retired(side, carrier),
                Event::CarriersWanted { count } => {
                    assert_eq!(side, ENTRY, "the exit received a request for carriers");
                    self.heard = count;
                    self.see(Seen::CarriersWanted);
                }
                Event::Writable { stream } => {
                    if let Some(socket) = self.sides[side].sockets.get_mut(&stream) {
                        socket.waits = false;
                    }
                }
                Event::Incoming {
                    stream,
                    target,
                    source,
                } => self.incoming(side, stream, &target, source),
                Event::Opened { stream, .. } => self.opened(side, stream),
                Event::OpenFailed { stream, refusal } => {
                    let Some(socket) = self.sides[side].sockets.remove(&stream) else {
                        assert!(
                            self.model.lost[side],
                            "an answer to {stream:?}, which was given up"
                        );
                        continue;
                    };
                    self.note_open_failed(side, &socket, refusal.reason);
                    let now = self.now;
                    self.model
                        .see_open_failed(socket.label, side, now, &refusal);
                    self.model
                        .end(socket.label, side, Verdict::NotOpened(refusal));
                }
                Event::OpenReturned { stream } => {
                    let socket = self.sides[side].sockets.remove(&stream);
                    let label = socket.expect("the open was not given up").label;
                    self.see(Seen::OpenReturned);
                    if self.model.went_away[1 - side] {
                        self.see(Seen::GoAwayCrossedOpen);
                    }
                    self.model.see_returned(label, side);
                }
                Event::Listen(ListenEvent::Asked { .. })
                | Event::Listen(ListenEvent::GivenUp { .. })
                | Event::Listen(ListenEvent::Listening { .. })
                | Event::Listen(ListenEvent::Ended { .. }) => self.listen_event(side, event),
                Event::Finished { stream } => self.finished(side, stream),
                Event::Reset { stream, cause } => self.cut(side, stream, cause),
            }
        }
        self.drop_all_over(side);
    }

    fn carrier_is_up(&mut self, side: usize, carrier: CarrierId) {
        if carrier != CarrierId::FIRST {
            self.see(Seen::CarrierJoined);
            if side == ENTRY && self.alive() == 1 {
                self.see(Seen::CarrierResumed);
            }
        }
    }

    fn incoming(&mut self, side: usize, id: StreamId, target: &str, source: Option<Source>) {
        let label = target["tcp://".len()..target.len() - 2]
            .parse()
            .expect("a label");
        assert_eq!(source, self.profile.source_of(label), "stream {label}");
        self.model.see_incoming(label, side);
        let (plan, ending) = self.draw_plan();
        let socket = Socket::new(label, Phase::Dialling, plan, ending);
        let before = self.sides[side].sockets.insert(id, socket);
        assert!(before.is_none(), "{id:?} is in use");
        if !self.profile.faults.slow_accepts || self.choices.one_in(4) {
            self.answer(side, id);
        }
    }

    /// Ends the dial of a target.
    pub fn answer(&mut self, side: usize, id: StreamId) {
        if self.profile.faults.refusals && self.choices.one_in(5) {
            self.refuse(side, id);
        } else {
            self.accept(side, id);
        }
    }

    fn opened(&mut self, side: usize, id: StreamId) {
        let socket = self.sides[side]
            .sockets
            .get_mut(&id)
            .expect("the stream was not given up");
        assert_eq!(socket.phase, Phase::Opening, "opened twice");
        socket.phase = Phase::Open;
        socket.waits = false;
        let label = socket.label;
        self.model.see_opened(label, side);
    }

    fn note_open_failed(&mut self, side: usize, socket: &Socket, reason: Reason) {
        let away = self.model.went_away[1 - side];
        let record = self.model.of(socket.label);
        let seen = match (&record.refusal, reason) {
            (Some(_), _) => Seen::Refused,
            (None, Reason::TimedOut) => Seen::OpenTimedOut,
            (None, _) if away && !record.incoming => Seen::GoAwayCrossedOpen,
            (None, _) => return,
        };
        self.see(seen);
    }

    fn finished(&mut self, side: usize, id: StreamId) {
        let socket = self.sides[side]
            .sockets
            .get_mut(&id)
            .expect("the stream was not given up");
        assert!(!socket.finish_seen && socket.cut.is_none(), "ended twice");
        socket.finish_seen = true;
        let label = socket.label;
        self.model.see_finished(label, side);
    }

    fn cut(&mut self, side: usize, id: StreamId, cause: Outcome) {
        let Some(socket) = self.sides[side].sockets.get_mut(&id) else {
            assert!(self.model.lost[side], "a cut of {id:?}, which is gone");
            return;
        };
        if cause == Outcome::CarrierLost && socket.cut.is_some() {
            return;
        }
        if cause == Outcome::Stalled {
            assert!(
                socket.held > 0 && socket.cut.is_none(),
                "the socket did not stall"
            );
            assert!(
                self.profile.stall_timeout.is_some(),
                "the profile has no stall timeout"
            );
            self.see(Seen::Stalled);
            // The driver drops the received payload.
            self.give_up(side, id, ResetCode::Stalled);
            return;
        }
        assert_eq!(socket.cut, None, "cut twice");
        if cause == Outcome::OffsetsExhausted {
            assert_eq!(self.profile.bytes_left, Some(socket.sent));
            self.see(Seen::OffsetsUsedUp);
            // The driver drops the received payload.
            self.give_up(side, id, ResetCode::OffsetsExhausted);
            return;
        }
        assert_ne!(
            socket.phase,
            Phase::Opening,
            "an open was cut instead of failing"
        );
        socket.cut = Some(cause);
        socket.ended = true;
        socket.batch = None;
        let (label, phase) = (socket.label, socket.phase);
        let finish_seen = socket.finish_seen;
        self.model.see_reset(label, side, cause);
        self.see(if finish_seen {
            Seen::CutAfterFinish
        } else {
            Seen::Cut
        });
        if phase == Phase::Dialling {
            self.see(Seen::ResetBeforeAccept);
            // No socket exists for the payload.
            self.give_up(side, id, ResetCode::Cancelled);
        }
    }

    pub fn drop_all_over(&mut self, side: usize) {
        let over = |(id, socket): (&StreamId, &Socket)| {
            (socket.cut.is_some() || socket.is_complete()).then_some(*id)
        };
        let ids: Vec<StreamId> = self.sides[side].sockets.iter().filter_map(over).collect();
        for id in ids {
            self.drop_if_over(side, id);
        }
    }

    /// The driver closes a socket when both directions have ended.
    pub fn drop_if_over(&mut self, side: usize, id: StreamId) {
        let socket = &self.sides[side].sockets[&id];
        let label = socket.label;
        if socket.cut.is_some() && socket.held == 0 {
            self.give_up(side, id, ResetCode::Cancelled);
        } else if socket.is_complete() && self.sides[side].session.credit(id).is_none() {
            self.sides[side].sockets.remove(&id);
            self.model.end(label, side, Verdict::Complete);
            self.see(Seen::CleanEnd);
        }
    }
}
