//! The actions of the drivers on carriers: dial a carrier, write frames, read frames, lose the
//! carrier.

use std::time::Duration;

use muxtunnel_proto::native::codec::{self, Frame, Hello, VERSION};
use muxtunnel_proto::{
    CarrierId, Header, Payload, Receive, SessionError, Transmit, native::SessionCode,
};

use super::application::RETAIN_EXCESS_MAX;
use super::link::Link;
use super::model::Verdict;
use super::pipe::Portion;
use super::seen::Seen;
use super::world::{ENTRY, EXIT, Retained, World};

/// Number of unread bytes that a session sees first. It may request more.
const PEEK_BYTES: usize = 40;
/// Frame types: the first byte of a frame.
const SESSION_CLOSE: u8 = 3;
const PING: u8 = 4;
pub const PONG: u8 = 5;
pub const ACK: u8 = 0x20;
pub const RETIRE: u8 = 0x23;

impl World {
    /// Number of links that both sides still use.
    pub fn alive(&self) -> usize {
        self.links.iter().filter(|link| link.is_alive()).count()
    }

    /// The delays of the next carrier.
    fn next_delays(&self) -> [Duration; 2] {
        let delays = &self.profile.delays;
        delays[self.links.len() % delays.len()]
    }

    /// Lets the entry dial another carrier. Returns whether the session permits it.
    pub fn dial(&mut self) -> bool {
        if self.model.lost[ENTRY] {
            return false;
        }
        let Some(entry) = self.sides[ENTRY].session.add_carrier(self.now) else {
            return false;
        };
        let exit = match self.model.lost[EXIT] {
            true => None,
            false => self.sides[EXIT].session.add_carrier(self.now),
        };
        self.trace
            .note(format_args!("carrier {entry:?} is {exit:?}"));
        let mut link = Link::new(self.next_delays(), [Some(entry), exit]);
        if exit.is_none() {
            refuse(self.now, &mut link);
        }
        self.links.push(link);
        true
    }

    /// Lets a peer that has the session's id, but not the token, try to join.
    pub fn forge(&mut self) {
        if self.model.lost[EXIT] {
            return;
        }
        let Some(exit) = self.sides[EXIT].session.add_carrier(self.now) else {
            return;
        };
        self.trace
            .note(format_args!("a forged carrier is {exit:?}"));
        let mut link = Link::new(self.next_delays(), [None, Some(exit)]);
        link.pipes[ENTRY].write_bytes(
            self.now,
            codec::encode(&Frame::Hello(Hello {
                version_min: VERSION,
                version_max: VERSION,
                features: codec::RESUME,
                carrier: self.choices.of(&[1, 9]),
                session_id: [7; 16],
                token: [8; 32],
                parameters: codec::Parameters::default(),
            })),
        );
        self.links.push(link);
    }

    /// Lets every carrier accept up to `frames` frames while it has room. Returns whether a frame
    /// was written.
    pub fn transmit(&mut self, side: usize, frames: usize) -> bool {
        let mut moved = false;
        for link in 0..self.links.len() {
            moved |= self.transmit_on(side, link, frames);
        }
        moved
    }

    pub fn transmit_on(&mut self, side: usize, link: usize, frames: usize) -> bool {
        let state = &self.links[link];
        if state.pipes[side].stalled || state.gone[side] {
            return false;
        }
        let id = state.ids[side].expect("the carrier is not gone");
        let taken = self.write_frames(side, link, id, frames);
        if taken > 0
            && let Some(rtt) = self.profile.transport_rtt
        {
            self.sides[side].session.handle_rtt(id, rtt);
        }
        self.close_if_ended(side, link, id);
        self.drop_all_over(side);
        taken > 0
    }

    fn write_frames(&mut self, side: usize, link: usize, id: CarrierId, frames: usize) -> usize {
        for taken in 0..frames {
            let wanted = self.sides[side].wants_transmit(id);
            let full = |pipe: &super::pipe::Pipe| pipe.flying_bytes() >= self.profile.pipe_bytes;
            if full(&self.links[link].pipes[side]) {
                if wanted && full(&self.links[link].pipes[1 - side]) {
                    self.see(Seen::BothPipesFull);
                }
                self.sides[side].session.handle_carrier_blocked(id);
                return taken;
            }
            let Some(frame) = self.sides[side].session.poll_transmit(self.now, id) else {
                let more = self.sides[side].wants_transmit(id);
                assert!(!more, "the session wants to transmit, but has no frame");
                return taken;
            };
            assert!(wanted, "the session did not want to transmit {frame:?}");
            self.write(side, link, frame);
            self.drop_released(side);
        }
        frames
    }

    fn drop_released(&mut self, side: usize) {
        let state = &mut self.sides[side];
        while let Some(token) = state.session.poll_released() {
            let known = state.retained.remove(&token.0);
            assert!(known.is_some(), "{token:?} is released twice");
        }
        let retained = state.retained_bytes();
        let most = self.profile.ends[side].retain + RETAIN_EXCESS_MAX;
        assert!(retained <= most, "{retained} bytes retained of {most}");
    }

    fn write(&mut self, side: usize, link: usize, frame: Transmit) {
        self.trace.note(format_args!(
            "{:?} {side} writes {frame:?} on {link}",
            self.now - self.began
        ));
        let first = match &frame {
            Transmit::Control { bytes, .. } => bytes[0],
            Transmit::Data { header, .. } | Transmit::Again { header, .. } => header[0],
        };
        let last = [ACK, PONG, SESSION_CLOSE].contains(&first) || !self.links[link].retired[side];
        assert!(last, "{frame:?} after RETIRE");
        self.links[link].retired[side] |= first == RETIRE;
        match frame {
            Transmit::Control { bytes, .. } => {
                let link = &mut self.links[link];
                if link.ending[side] {
                    // The close refuses a single carrier and does not concern the session.
                    return link.pipes[side].write_bytes(self.now, bytes);
                }
                self.wire.write(side, &bytes);
                link.pinged[side] &= bytes[0] != PONG;
                if link.gone[1 - side] {
                    self.wire.lose(side, &bytes);
                } else {
                    link.unheard[side].push(bytes.clone());
                }
                link.pipes[side].write_bytes(self.now, bytes);
            }
            Transmit::Data {
                header, payload, ..
            } => {
                self.wire.write(side, &header);
                self.links[link].pipes[side].write_bytes(self.now, header.to_vec());
                let portion = self.take_batch(side, &payload);
                self.links[link].pipes[side].write_payload(self.now, portion);
            }
            Transmit::Again {
                header, payload, ..
            } => {
                assert!(
                    self.lost_at.is_some(),
                    "payload was repeated although no carrier was lost"
                );
                let batch = &self.sides[side].retained[&payload.token.0].portion;
                let portion = Portion {
                    range: batch.range.start + payload.range.start as u64
                        ..batch.range.start + payload.range.end as u64,
                    ..batch.clone()
                };
                assert!(portion.range.end <= batch.range.end);
                self.see(if payload.range.start > 0 {
                    Seen::PartRepeated
                } else {
                    Seen::PayloadRepeated
                });
                self.links[link].pipes[side].write_bytes(self.now, header.to_vec());
                self.links[link].pipes[side].write_payload(self.now, portion);
            }
        }
    }

    fn take_batch(&mut self, side: usize, payload: &Payload) -> Portion {
        let state = &mut self.sides[side];
        let socket = state
            .sockets
            .get_mut(&payload.stream)
            .expect("the socket of the payload is gone");
        let batch = socket.batch.as_mut().expect("payload without a batch");
        assert_eq!(batch.token, payload.token);
        assert_eq!(payload.range.start, batch.written, "a gap in a batch");
        assert!(payload.range.end <= batch.length && !payload.range.is_empty());
        batch.written = payload.range.end;
        let whole = Portion {
            label: socket.label,
            from: side,
            range: batch.start..batch.start + batch.length as u64,
        };
        let portion = Portion {
            range: batch.start + payload.range.start as u64..batch.start + payload.range.end as u64,
            ..whole.clone()
        };
        if payload.last {
            assert_eq!(batch.written, batch.length);
            let held = batch.held;
            socket.batch = None;
            if payload.retained {
                let retained = Retained {
                    portion: whole,
                    held,
                };
                let before = state.retained.insert(payload.token.0, retained);
                assert!(before.is_none(), "{:?} is in use", payload.token);
            }
        }
        portion
    }

    /// Lets the driver of `side` read up to `length` bytes of every carrier. Returns whether it
    /// read any.
    pub fn receive(&mut self, side: usize, length: usize) -> bool {
        let mut read = false;
        for link in 0..self.links.len() {
            read |= self.receive_on(side, link, length);
        }
        read
    }

    pub fn receive_on(&mut self, side: usize, link: usize, length: usize) -> bool {
        let state = &mut self.links[link];
        if state.gone[side] || state.ending[side] || state.pipes[1 - side].stalled {
            return false;
        }
        let read = state.pipes[1 - side].read(self.now, length);
        if read > 0 {
            self.trace.note(format_args!(
                "{:?} {side} receives {read} on {link}",
                self.now - self.began
            ));
        }
        if let Err(error) = self.consume(side, link) {
            self.give_up_session(side, link, &error);
        } else if self.links[link].pipes[1 - side].at_end() && !self.links[link].gone[side] {
            self.note_end_of_carrier(side, link);
            self.lose(side, link);
        }
        self.drop_released(side);
        read > 0 || self.links[link].gone[side]
    }

    /// Passes whole frames and payload to the session and the sockets.
    fn consume(&mut self, side: usize, link: usize) -> Result<(), SessionError> {
        let id = self.links[link].ids[side].expect("the carrier is not gone");
        while !self.links[link].gone[side] && !self.links[link].ending[side] {
            let moved = if let Some(receive) = self.sides[side].session.receiving(id) {
                let portion = self.links[link].pipes[1 - side].take_payload(receive.length);
                portion.is_some_and(|portion| {
                    self.move_payload(side, receive, &portion);
                    true
                })
            } else {
                self.consume_frame(side, link, id)?
            };
            if !moved {
                return Ok(());
            }
            self.drain_events(side);
        }
        Ok(())
    }

    fn move_payload(&mut self, side: usize, receive: Receive, portion: &Portion) {
        let length = portion.range.end - portion.range.start;
        self.sides[side]
            .session
            .payload_moved(self.now, receive.carrier, length as usize);
        let Some(stream) = receive.stream else {
            let refused = self.model.went_away[side];
            let known = self.model.of(portion.label);
            let unwanted = known.gave_up[side].is_some()
                || known.gave_up[1 - side].is_some()
                || known.verdicts[side].is_some()
                || (refused && !known.incoming);
            let cut = self.sides[side]
                .sockets
                .values()
                .any(|socket| socket.label == portion.label && socket.cut.is_some());
            assert!(unwanted || cut, "{portion:?} was discarded");
            self.see(Seen::DiscardedAfterReset);
            return;
        };
        assert_eq!(
            self.profile.bytes_before(receive.offset),
            portion.range.start,
            "the payload has another offset"
        );
        let socket = self.sides[side]
            .sockets
            .get_mut(&stream)
            .expect("the socket of the payload is gone");
        let deliverable = self.model.see_payload(portion, socket.label, side);
        socket.held += deliverable;
        let early = deliverable == 0;
        // A driver forwards at once the payload that the socket accepts.
        if !socket.stalled
            && deliverable > 0
            && socket.phase != super::socket::Phase::Dialling
            && self.choices.one_in(3)
        {
            let part = self.choices.of(&[1, 2, 8]);
            self.sink(side, stream, deliverable.div_ceil(part));
        }
        if early {
            self.see(Seen::OutOfOrder);
        }
    }

    fn consume_frame(
        &mut self,
        side: usize,
        link: usize,
        id: CarrierId,
    ) -> Result<bool, SessionError> {
        let pipe = &self.links[link].pipes[1 - side];
        let mut view = pipe.peek(PEEK_BYTES);
        while !view.is_empty() {
            let header = self.sides[side]
                .session
                .handle_header(self.now, id, &view)?;
            match header {
                Header::Incomplete { needed } => {
                    assert!((view.len() + 1..=65_535).contains(&needed), "{needed}");
                    view = pipe.peek(needed);
                    if view.len() < needed {
                        self.see(Seen::FrameCut);
                        return Ok(false);
                    }
                }
                Header::Control { consumed } => {
                    let view = &view[..consumed];
                    let unheard = &mut self.links[link].unheard[1 - side];
                    if let Some(at) = unheard.iter().position(|bytes| bytes == view) {
                        unheard.remove(at);
                    }
                    self.heard(side, link, view);
                    return Ok(true);
                }
                Header::Datagram { .. } => panic!("neither side sends datagrams"),
                Header::Payload { consumed, receive } => {
                    if let Some(socket) = receive
                        .stream
                        .and_then(|id| self.sides[side].sockets.get_mut(&id))
                    {
                        let start = self.profile.bytes_before(receive.offset);
                        let end = start + receive.length as u64;
                        socket.announced = socket.announced.max(end);
                    }
                    let unheard = &mut self.links[link].unheard[1 - side];
                    if let Some(at) = unheard.iter().position(|bytes| *bytes == view[..consumed]) {
                        unheard.remove(at);
                    }
                    self.heard(side, link, &view[..consumed]);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn heard(&mut self, side: usize, link: usize, bytes: &[u8]) {
        // The records of the wire do not cover unknown peers.
        if self.links[link].ids.iter().all(Option::is_some) {
            self.links[link].pinged[side] |= bytes[0] == PING;
            self.wire.arrive(side, bytes);
        }
        self.links[link].pipes[1 - side].skip(bytes.len());
    }

    /// Handles the error with which a session has ended. The session may send its reason, and then
    /// the carrier is closed.
    fn give_up_session(&mut self, side: usize, link: usize, error: &SessionError) {
        let refused = self.links[link].ids[1 - side].is_none();
        let other = self.sides[1 - side].closed || self.model.lost[1 - side];
        assert!(
            other || refused,
            "both sides comply with the protocol, but the session failed: {error}"
        );
        self.close(side, error);
    }

    pub fn close(&mut self, side: usize, error: &SessionError) {
        self.trace.note(format_args!("{side} closes: {error}"));
        self.sides[side].closed = true;
        self.sides[side].session.close(error);
        self.say_last(side);
    }

    fn say_last(&mut self, side: usize) {
        for link in 0..self.links.len() {
            if self.links[link].gone[side] {
                continue;
            }
            let id = self.links[link].ids[side].expect("the carrier is not gone");
            while let Some(frame) = self.sides[side].session.poll_transmit(self.now, id) {
                self.write(side, link, frame);
            }
        }
        for link in 0..self.links.len() {
            if !self.links[link].gone[side] {
                let everything = self.links[link].pipes[side].flying_bytes();
                self.lose_keeping(side, link, everything);
            }
        }
        if !self.model.lost[side] {
            self.end_session(side);
        }
    }

    /// Cuts one carrier or all carriers. One or both directions lose the last bytes in flight.
    pub fn draw_cut(&mut self) {
        if self.alive() > 1 && self.choices.one_in(3) {
            self.see(Seen::AllCarriersCut);
            for link in 0..self.links.len() {
                if self.links[link].is_alive() {
                    self.cut_link(link);
                }
            }
        } else {
            let link = self.choices.below(self.links.len());
            self.cut_link(link);
        }
    }

    fn cut_link(&mut self, link: usize) {
        let first = self.choices.below(2);
        let half = self.choices.one_in(2);
        for side in if half { vec![first] } else { vec![0, 1] } {
            let flying = self.links[link].pipes[side].flying_bytes();
            let kept = match self.choices.below(4) {
                0 => flying,
                1 => 0,
                _ => self.choices.below(flying + 1),
            };
            self.trace.note(format_args!(
                "{side}: {link} is cut, {kept} of {flying} bytes in flight arrive"
            ));
            if kept == flying {
                self.see(Seen::CarrierCutWithNothingLost);
            }
            self.links[link].pipes[side].cut(kept);
        }
        if half {
            self.see(Seen::CarrierHalfCut);
        }
    }

    fn note_end_of_carrier(&mut self, side: usize, link: usize) {
        let id = self.links[link].ids[side].expect("the carrier is not gone");
        let inside = self.sides[side].session.receiving(id);
        if inside.is_some() {
            self.see(Seen::CarrierCutInPayload);
        } else if !self.links[link].pipes[1 - side].is_empty() {
            self.see(Seen::CarrierCutInFrame);
        }
    }

    /// Lets the driver of `side` detect that a carrier is lost, and close its own direction.
    fn lose(&mut self, side: usize, link: usize) {
        let flying = self.links[link].pipes[side].flying_bytes();
        let kept = self.choices.below(flying + 1);
        self.lose_keeping(side, link, kept);
    }

    fn lose_keeping(&mut self, side: usize, link: usize, kept: usize) {
        let others = self.alive();
        self.links[link].pipes[side].cut(kept);
        let id = self.links[link].ids[side].expect("the carrier is not gone");
        let retired = self.sides[side].session.is_retired(id);
        self.drop_link(side, link);
        if retired {
            self.see(Seen::CarrierRetiredByItsEnd);
        } else {
            self.see(Seen::CarrierLost);
            if self.links[link].retired[side] {
                self.see(Seen::RetireCut);
            }
            self.lost_at.get_or_insert(self.now);
        }
        let now = self.now;
        self.sides[side].session.handle_carrier_lost(now, id);
        if self.sides[side].session.is_over() {
            self.end_session(side);
        } else if others > 1 && !retired {
            self.see(Seen::CarrierLostBesideOthers);
        }
        self.drain_events(side);
    }

    /// Lets the driver of `side` drop the link. The peer must repeat the frames that `side` has not
    /// handled.
    fn drop_link(&mut self, side: usize, link: usize) {
        self.trace.note(format_args!("{side} closes {link}"));
        let state = &mut self.links[link];
        state.gone[side] = true;
        let flying = state.pipes[side].flying_bytes();
        state.pipes[side].cut(flying);
        if state.pinged[side] {
            self.wire.forget_ping(side);
        }
        for bytes in std::mem::take(&mut state.unheard[1 - side]) {
            self.wire.lose(1 - side, &bytes);
        }
    }

    /// Ends a carrier that the session no longer needs.
    pub fn end_carrier(&mut self, side: usize, id: CarrierId) {
        let link = self
            .links
            .iter()
            .position(|link| link.ids[side] == Some(id));
        let link = link.expect("the carrier is unknown");
        assert!(!self.links[link].gone[side], "{id:?} was gone");
        if self.links[link].ids.iter().any(Option::is_none) {
            self.see(Seen::JoinRefused);
        }
        self.links[link].ending[side] = true;
        self.lost_at.get_or_insert(self.now);
        self.close_if_ended(side, link, id);
    }

    pub fn close_if_ended(&mut self, side: usize, link: usize, id: CarrierId) {
        let state = &mut self.sides[side];
        if self.links[link].ending[side] && !state.wants_transmit(id) {
            state.session.handle_carrier_lost(self.now, id);
            self.drop_link(side, link);
        }
    }

    fn end_session(&mut self, side: usize) {
        if std::mem::replace(&mut self.model.lost[side], true) {
            return;
        }
        self.drain_events(side);
        for link in 0..self.links.len() {
            if !self.links[link].gone[side] {
                self.drop_link(side, link);
            }
        }
        let session = &mut self.sides[side].session;
        assert!(session.is_over(), "the session has not ended");
        assert_eq!(session.stream_count(), 0, "the ended session has streams");
        assert_eq!(
            session.receive_budget_used(),
            0,
            "the session has ended, but retains memory"
        );
        assert_eq!(session.poll_timeout(), None);
        // Received payload is still delivered. The session no longer has the sockets.
        let sockets = std::mem::take(&mut self.sides[side].sockets);
        for (id, socket) in sockets {
            let verdict = match socket.cut {
                Some(cause) => Verdict::Cut(cause),
                None => {
                    assert!(
                        socket.has_ended(),
                        "{id:?} did not learn of its end: {socket:?}"
                    );
                    if socket.held > 0 {
                        self.see(Seen::DeliveredAfterTheSession);
                    }
                    let flow = &mut self.model.of(socket.label).flows[1 - side];
                    flow.delivered += socket.held;
                    Verdict::Complete
                }
            };
            self.sides[side]
                .session
                .sink_took(self.now, id, socket.held as usize);
            self.model.end(socket.label, side, verdict);
        }
    }
}

/// Writes an exit's answer to a carrier that names an unknown session.
fn refuse(now: std::time::Instant, link: &mut Link) {
    let close = Frame::SessionClose {
        code: SessionCode::UnknownSession as u64,
        reason: "no such session".to_owned(),
    };
    let bytes = codec::encode(&close);
    let length = bytes.len();
    link.pipes[EXIT].write_bytes(now, bytes);
    link.pipes[EXIT].cut(length);
}
