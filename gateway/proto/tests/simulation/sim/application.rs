//! The actions of the applications behind the sockets: open, answer, send, end, read, fail.

use muxtunnel_proto::native::RETAINED_OVERHEAD_BYTES;
use muxtunnel_proto::{OpenError, Priority, Reason, ResetCode, StreamId, Token};

use super::model::{Verdict, refusal};
use super::profile::Protocol;
use super::seen::Seen;
use super::socket::{Batch, Ending, Phase, Socket};
use super::world::World;

/// Maximum number of bytes of one read from a socket: the size of the driver's buffers.
const BATCH_BYTES_MAX: usize = 128 << 10;
/// A batch takes at most this many times its payload in memory.
const HELD_TIMES: usize = 4;
/// Number of bytes by which memory may exceed `retain`.
pub const RETAIN_EXCESS_MAX: u64 = (HELD_TIMES * BATCH_BYTES_MAX) as u64 + RETAINED_OVERHEAD_BYTES;

impl World {
    pub fn draw_open(&mut self, side: usize) {
        if (self.model.streams.len() as u32) < self.profile.streams && !self.model.lost[side] {
            let (plan, ending) = self.draw_plan();
            let priority = Priority::from_code(self.choices.below(3) as u8);
            self.open_as(side, plan, ending, priority);
        }
    }

    pub fn draw_plan(&mut self) -> (u64, Ending) {
        let plan = if self.choices.one_in(8) {
            0
        } else {
            self.choices.length(self.profile.plan_bytes_max) as u64
        };
        let ending = if self.profile.faults.aborts && self.choices.one_in(6) {
            Ending::Reset(self.draw_code())
        } else {
            Ending::Finish
        };
        (plan, ending)
    }

    pub fn draw_code(&mut self) -> ResetCode {
        self.choices.of(&[
            ResetCode::Cancelled,
            ResetCode::IdleTimeout,
            ResetCode::HalfOpenTimeout,
            ResetCode::Draining,
        ])
    }

    /// Opens a stream for an application. `None`: the session refused the open for a valid reason.
    pub fn open(&mut self, side: usize, plan: u64, ending: Ending) -> Option<StreamId> {
        self.open_as(side, plan, ending, Priority::Auto)
    }

    pub fn open_as(
        &mut self,
        side: usize,
        plan: u64,
        ending: Ending,
        priority: Priority,
    ) -> Option<StreamId> {
        let label = self.model.streams.len() as u32;
        let source = self.profile.source_of(label);
        let session = &mut self.sides[side].session;
        let opened = session.open(self.now, &format!("tcp://{label}:1"), priority, source);
        self.trace
            .note(format_args!("{side} open {label} {opened:?}"));
        let id = match opened {
            Ok(id) => {
                assert!(!self.wire.is_told_of_goaway(side), "an open after GOAWAY");
                let is_first_again = id.number() < u64::from(self.profile.streams);
                if self.profile.ids_left.is_some() && is_first_again {
                    self.see(Seen::IdsUsedUp);
                }
                id
            }
            Err(error) => {
                self.judge_open_error(side, &error);
                return None;
            }
        };
        assert_eq!(self.model.open(side, self.now), label);
        let socket = Socket::new(label, Phase::Opening, plan, ending);
        let before = self.sides[side].sockets.insert(id, socket);
        assert!(before.is_none(), "{id:?} is in use");
        Some(id)
    }

    fn judge_open_error(&mut self, side: usize, error: &OpenError) {
        let session = &self.sides[side].session;
        let opening = |socket: &&Socket| socket.phase == Phase::Opening;
        let unanswered = self.sides[side].sockets.values().filter(opening).count();
        let (seen, justified) = match error {
            OpenError::NotReady => (Seen::OpenBeforeReady, !session.is_ready()),
            OpenError::GoingAway if self.has_used_up_ids(side) => (Seen::IdsUsedUp, true),
            OpenError::GoingAway => (Seen::GoingAway, self.model.went_away[1 - side]),
            OpenError::TooManyStreams { streams_max } => (
                Seen::TableFull,
                session.stream_count() >= *streams_max as usize,
            ),
            OpenError::PeerStreamLimit { .. } => (
                Seen::PeerTableFull,
                self.wire.streams_left(side) <= unanswered as u64,
            ),
            OpenError::BudgetExhausted { .. } => {
                (Seen::TableFull, self.profile.protocol == Protocol::Jmux)
            }
            OpenError::NoSources | OpenError::TargetTooLong { .. } => (Seen::TableFull, false),
        };
        assert!(justified, "the session gave a wrong reason: {error}");
        self.see(seen);
    }

    /// Whether a native session has opened as many streams as it had numbers.
    fn has_used_up_ids(&self, side: usize) -> bool {
        let opened = self.model.opened_by(side) as u32;
        self.profile.protocol == Protocol::Native
            && self.profile.ids_left.is_some_and(|left| opened >= left)
    }

    /// A random socket of `side` for which `wanted` holds.
    fn pick(&mut self, side: usize, wanted: impl Fn(&Socket) -> bool) -> Option<StreamId> {
        let ids: Vec<StreamId> = self.sides[side]
            .sockets
            .iter()
            .filter(|(_, socket)| wanted(socket))
            .map(|(id, _)| *id)
            .collect();
        (!ids.is_empty()).then(|| self.choices.of(&ids))
    }

    pub fn draw_source(&mut self, side: usize) {
        let length = self.choices.length(BATCH_BYTES_MAX);
        if let Some(id) = self.pick(side, |socket| !socket.ended) {
            self.source(side, id, length);
        }
    }

    /// Lets an application send up to `length` bytes or end its direction. Returns whether the
    /// application sent bytes or ended its direction.
    pub fn source(&mut self, side: usize, id: StreamId, length: usize) -> bool {
        let state = &mut self.sides[side];
        let asleep = |socket: &Socket| socket.waits || socket.phase == Phase::Dialling;
        if state.sockets.get(&id).is_none_or(asleep) {
            return false;
        }
        let Some(capacity) = state.session.send_capacity(id) else {
            return false;
        };
        let socket = &self.sides[side].sockets[&id];
        if socket.sent == socket.plan {
            // An end of file may arrive while the last batch waits for the carrier.
            self.end_source(side, id);
            return true;
        }
        if socket.batch.is_some() {
            return false;
        }
        self.check_capacity(side, id, capacity.bytes);
        let socket = &self.sides[side].sockets[&id];
        let wanted = (socket.plan - socket.sent).min(length as u64);
        let length = wanted.min(capacity.bytes).min(BATCH_BYTES_MAX as u64);
        if length == 0 {
            self.note_exhausted(side, id);
            self.sides[side].session.want_credit(id);
            let socket = self.sides[side].sockets.get_mut(&id);
            socket.expect("the socket exists").waits = true;
            return false;
        }
        let opening = socket.phase == Phase::Opening;
        self.send(side, id, length as usize);
        if opening {
            self.see(Seen::EarlyData);
        }
        true
    }

    /// Checks that a stream may send exactly as many bytes as its own credit and the session's
    /// credit permit.
    fn check_capacity(&mut self, side: usize, id: StreamId, bytes: u64) {
        let state = &self.sides[side];
        let Some(session) = self.wire.session_credit(side) else {
            return;
        };
        let queued: u64 = state
            .sockets
            .values()
            .filter_map(|socket| socket.batch)
            .map(|batch| (batch.length - batch.written) as u64)
            .sum();
        let stream = state.session.credit(id).map_or(0, |credit| credit.send);
        let frame_max = u64::from(self.profile.ends[1 - side].frame_max);
        let granted = stream.min(frame_max).min(session.saturating_sub(queued));
        let batches = state.sockets.values().filter_map(|socket| socket.batch);
        let waiting: usize = batches.map(|batch| batch.held).sum();
        let room = self.profile.ends[side]
            .retain
            .saturating_sub(state.retained_bytes() + waiting as u64);
        let expected = if self.profile.resume() {
            granted.min(room)
        } else {
            granted
        };
        assert_eq!(
            bytes, expected,
            "{id:?}: stream credit {stream}, session credit {session}, {queued} queued, {room} bytes of room"
        );
        if granted > 0 && expected == 0 {
            self.see(Seen::RetainExhausted);
        }
    }

    fn note_exhausted(&mut self, side: usize, id: StreamId) {
        let credit = self.sides[side].session.credit(id);
        match credit.map(|credit| credit.send) {
            Some(0) => self.see(Seen::CreditExhausted),
            Some(_) if self.sides[side].sockets[&id].phase == Phase::Open => {
                self.see(Seen::SessionCreditExhausted);
            }
            _ => {}
        }
    }

    fn send(&mut self, side: usize, id: StreamId, length: usize) {
        let held = length * self.choices.of(&[1, 2, HELD_TIMES]);
        let Self { sides, model, .. } = self;
        let side_state = &mut sides[side];
        let socket = side_state.sockets.get_mut(&id).expect("the socket exists");
        side_state.next_token += 1;
        let token = Token(side_state.next_token);
        socket.batch = Some(Batch {
            token,
            start: socket.sent,
            length,
            held: held + RETAINED_OVERHEAD_BYTES as usize,
            written: 0,
        });
        socket.sent += length as u64;
        model.of(socket.label).flows[side].sent = socket.sent;
        side_state.session.source_ready(id, length, held, token);
        self.trace
            .note(format_args!("{side} {} sends {length}", id.number()));
    }

    fn end_source(&mut self, side: usize, id: StreamId) {
        let socket = &self.sides[side].sockets[&id];
        let label = socket.label;
        match socket.ending {
            Ending::Reset(code) => self.give_up(side, id, code),
            Ending::Finish => {
                self.trace.note(format_args!("{side} {} ends", id.number()));
                if socket.sent == 0 {
                    self.see(Seen::EmptyStream);
                }
                if !self.sides[side].sockets[&id].finish_seen {
                    self.see(Seen::HalfClose);
                }
                self.model.of(label).flows[side].finished = true;
                let Self { sides, .. } = self;
                let socket = sides[side].sockets.get_mut(&id).expect("the socket exists");
                socket.ended = true;
                sides[side].session.finish(id);
            }
        }
    }

    /// Lets an application or its target fail.
    pub fn give_up(&mut self, side: usize, id: StreamId, code: ResetCode) {
        self.trace
            .note(format_args!("{side} {} resets {code:?}", id.number()));
        let Some(socket) = self.sides[side].sockets.remove(&id) else {
            return;
        };
        self.note_reset(side, &socket);
        self.sides[side].session.reset(id, code);
        let verdict = match socket.cut {
            // The driver gives up a cut stream after it has delivered all received payload.
            Some(cause) => Verdict::Cut(cause),
            None => {
                self.model.of(socket.label).gave_up[side] = Some(code);
                Verdict::GaveUp
            }
        };
        self.model.end(socket.label, side, verdict);
    }

    fn note_reset(&mut self, side: usize, socket: &Socket) {
        let crossed = self.model.of(socket.label).gave_up[1 - side].is_some();
        for (happened, seen) in [
            (socket.batch.is_some(), Seen::ResetWithBatch),
            (socket.ended && socket.cut.is_none(), Seen::ResetAfterFinish),
            (socket.phase == Phase::Opening, Seen::ResetBeforeAnswer),
            (crossed && socket.cut.is_none(), Seen::ResetsCrossed),
        ] {
            if happened {
                self.see(seen);
            }
        }
    }

    /// Lets the dial of a target succeed.
    pub fn accept(&mut self, side: usize, id: StreamId) {
        self.trace
            .note(format_args!("{side} {} accepts", id.number()));
        let socket = self.sides[side]
            .sockets
            .get_mut(&id)
            .expect("the socket exists");
        socket.phase = Phase::Open;
        let (label, held, finished) = (socket.label, socket.held, socket.finish_seen);
        self.model.of(label).accepted = true;
        self.sides[side].session.accept(id, "192.0.2.1:80");
        if held > 0 {
            self.see(Seen::EarlyDataBeforeAccept);
        }
        if finished {
            self.see(Seen::FinishedBeforeAccept);
        }
    }

    /// Lets the dial of a target fail.
    pub fn refuse(&mut self, side: usize, id: StreamId) {
        self.trace
            .note(format_args!("{side} {} refuses", id.number()));
        let reason = self.choices.of(&[
            Reason::ConnectionRefused,
            Reason::General,
            Reason::NotAllowed,
            Reason::HostUnreachable,
        ]);
        let Some(socket) = self.sides[side].sockets.remove(&id) else {
            return;
        };
        let refusal = refusal(socket.label, reason);
        let record = self.model.of(socket.label);
        record.refusal = Some(refusal.clone());
        let flying = record.flows[1 - side].in_flight() > 0;
        self.model.end(socket.label, side, Verdict::Refused);
        self.sides[side].session.refuse(id, refusal);
        if socket.held > 0 {
            self.see(Seen::RefusedWithEarlyData);
        }
        if flying {
            self.see(Seen::RefusedWithEarlyDataInFlight);
        }
    }

    pub fn draw_sink(&mut self, side: usize) {
        let length = self.choices.length(256 << 10) as u64;
        let ready = |socket: &Socket| !socket.stalled && socket.phase != Phase::Dialling;
        if let Some(id) = self.pick(side, ready) {
            self.sink(side, id, length);
        }
    }

    /// Lets an application read up to `length` bytes. Returns the number of bytes.
    pub fn sink(&mut self, side: usize, id: StreamId, length: u64) -> u64 {
        let Self { sides, model, .. } = self;
        let Some(socket) = sides[side].sockets.get_mut(&id) else {
            return 0;
        };
        let taken = length.min(socket.held);
        if taken > 0 {
            socket.held -= taken;
            model.of(socket.label).flows[1 - side].delivered += taken;
            sides[side].session.sink_took(self.now, id, taken as usize);
            self.trace
                .note(format_args!("{side} {} reads {taken}", id.number()));
        }
        self.drop_if_over(side, id);
        taken
    }
}
