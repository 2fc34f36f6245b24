//! What the drivers do with the carrier: write frames, read them, lose it.

use muxtunnel_proto::{CarrierId, Header, SessionError, StreamId, Transmit};

use super::model::Verdict;
use super::pipe::Portion;
use super::seen::Seen;
use super::world::World;

/// First view of the unread bytes that a session gets; it may ask for more.
const PEEK_BYTES: usize = 40;

impl World {
    /// The carrier takes up to `frames` frames, as long as it has room. Returns whether it took any.
    pub fn transmit(&mut self, side: usize, frames: usize) -> bool {
        if self.pipes[side].stalled || self.model.lost[side] {
            return false;
        }
        let taken = self.write_frames(side, frames);
        if taken > 0
            && let Some(rtt) = self.profile.transport_rtt
        {
            self.sides[side].session.handle_rtt(CarrierId::ONLY, rtt);
        }
        self.drop_all_over(side);
        taken > 0
    }

    fn write_frames(&mut self, side: usize, frames: usize) -> usize {
        for taken in 0..frames {
            let wanted = self.sides[side].session.wants_transmit();
            if self.pipes[side].flying_bytes() >= self.profile.pipe_bytes {
                if wanted && self.pipes[1 - side].flying_bytes() >= self.profile.pipe_bytes {
                    self.see(Seen::BothPipesFull);
                }
                return taken;
            }
            let Some(frame) = self.sides[side].session.poll_transmit() else {
                let more = self.sides[side].session.wants_transmit();
                assert!(!more, "more to transmit, and nothing came");
                return taken;
            };
            assert!(wanted, "a frame that nobody announced: {frame:?}");
            self.write(side, frame);
        }
        frames
    }

    fn write(&mut self, side: usize, frame: Transmit) {
        self.trace.note(format_args!(
            "{:?} {side} writes {frame:?}",
            self.now - self.began
        ));
        match frame {
            Transmit::Control { bytes, .. } => {
                self.wire.write(side, &bytes);
                self.pipes[side].write_bytes(self.now, bytes);
            }
            Transmit::Data {
                header, payload, ..
            } => {
                self.wire.write(side, &header);
                self.pipes[side].write_bytes(self.now, header.to_vec());
                let socket = self.sides[side]
                    .sockets
                    .get_mut(&payload.stream)
                    .expect("payload of a socket that is gone");
                let batch = socket.batch.as_mut().expect("payload without a batch");
                assert_eq!(batch.token, payload.token);
                assert_eq!(payload.range.start, batch.written, "a gap in a batch");
                assert!(payload.range.end <= batch.length && !payload.range.is_empty());
                batch.written = payload.range.end;
                let portion = Portion {
                    label: socket.label,
                    from: side,
                    range: batch.start + payload.range.start as u64
                        ..batch.start + payload.range.end as u64,
                };
                if payload.last {
                    assert_eq!(batch.written, batch.length);
                    socket.batch = None;
                }
                self.pipes[side].write_payload(self.now, portion);
            }
        }
    }

    /// The driver of `side` reads up to `length` bytes. Returns whether there were any.
    pub fn receive(&mut self, side: usize, length: usize) -> bool {
        if self.model.lost[side] || self.pipes[1 - side].stalled {
            return false;
        }
        let read = self.pipes[1 - side].read(self.now, length);
        if read > 0 {
            self.trace.note(format_args!(
                "{:?} {side} receives {read}",
                self.now - self.began
            ));
        }
        if let Err(error) = self.consume(side) {
            self.give_up_session(side, &error);
        } else if self.pipes[1 - side].at_end() {
            self.note_end_of_carrier(side);
            self.lose(side);
        }
        read > 0
    }

    /// Whole frames and payload go to the session and the sockets.
    fn consume(&mut self, side: usize) -> Result<(), SessionError> {
        loop {
            let moved = if let Some(receive) = self.sides[side].session.receiving(CarrierId::ONLY) {
                let portion = self.pipes[1 - side].take_payload(receive.length);
                portion.is_some_and(|portion| {
                    self.move_payload(side, receive.stream, &portion);
                    true
                })
            } else {
                self.consume_frame(side)?
            };
            if !moved {
                return Ok(());
            }
            self.drain_events(side);
        }
    }

    fn move_payload(&mut self, side: usize, stream: Option<StreamId>, portion: &Portion) {
        let length = portion.range.end - portion.range.start;
        self.sides[side]
            .session
            .payload_moved(CarrierId::ONLY, length as usize);
        let Some(stream) = stream else {
            let refused = self.model.went_away[side];
            let known = self.model.of(portion.label);
            let unwanted = known.gave_up[side].is_some()
                || known.verdicts[side].is_some()
                || (refused && !known.incoming);
            let cut = self.sides[side]
                .sockets
                .values()
                .any(|socket| socket.label == portion.label && socket.cut.is_some());
            assert!(unwanted || cut, "{portion:?} was thrown away");
            self.see(Seen::DiscardedAfterReset);
            return;
        };
        let socket = self.sides[side]
            .sockets
            .get_mut(&stream)
            .expect("payload for a socket that is gone");
        self.model.see_payload(portion, socket.label, side);
        socket.held += length;
        // A driver passes on at once what the socket takes.
        if !socket.stalled
            && socket.phase != super::socket::Phase::Dialling
            && self.choices.one_in(3)
        {
            let part = self.choices.of(&[1, 2, 8]);
            self.sink(side, stream, length.div_ceil(part));
        }
    }

    fn consume_frame(&mut self, side: usize) -> Result<bool, SessionError> {
        let pipe = &self.pipes[1 - side];
        let mut view = pipe.peek(PEEK_BYTES);
        while !view.is_empty() {
            let header =
                self.sides[side]
                    .session
                    .handle_header(self.now, CarrierId::ONLY, &view)?;
            match header {
                Header::Incomplete { needed } => {
                    assert!((view.len() + 1..=65_535).contains(&needed), "{needed}");
                    view = pipe.peek(needed);
                    if view.len() < needed {
                        self.see(Seen::FrameCut);
                        return Ok(false);
                    }
                }
                Header::Control { consumed } | Header::Payload { consumed, .. } => {
                    self.wire.arrive(side, &view[..consumed]);
                    self.pipes[1 - side].skip(consumed);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// A session has ended by itself: it may say why, then the carrier is closed.
    fn give_up_session(&mut self, side: usize, error: &SessionError) {
        assert!(self.sides[1 - side].closed, "between honest sides: {error}");
        self.close(side, error);
    }

    pub fn close(&mut self, side: usize, error: &SessionError) {
        self.trace.note(format_args!("{side} closes: {error}"));
        self.sides[side].closed = true;
        self.sides[side].session.close(error);
        while let Some(frame) = self.sides[side].session.poll_transmit() {
            self.write(side, frame);
        }
        let everything = self.pipes[side].flying_bytes();
        self.lose_keeping(side, everything);
    }

    /// The carrier is cut: each direction loses its tail, or only one does.
    pub fn draw_cut(&mut self) {
        let first = self.choices.below(2);
        let half = self.choices.one_in(2);
        for side in if half { vec![first] } else { vec![0, 1] } {
            let flying = self.pipes[side].flying_bytes();
            let kept = match self.choices.below(4) {
                0 => flying,
                1 => 0,
                _ => self.choices.below(flying + 1),
            };
            self.trace
                .note(format_args!("{side}: cut, {kept} of {flying} left"));
            if kept == flying {
                self.see(Seen::CarrierCutWithNothingLost);
            }
            self.pipes[side].cut(kept);
        }
        if half {
            self.see(Seen::CarrierHalfCut);
        }
    }

    fn note_end_of_carrier(&mut self, side: usize) {
        let inside = self.sides[side].session.receiving(CarrierId::ONLY);
        if inside.is_some() {
            self.see(Seen::CarrierCutInPayload);
        } else if !self.pipes[1 - side].is_empty() {
            self.see(Seen::CarrierCutInFrame);
        }
    }

    /// The driver of `side` finds its carrier gone, and closes its own direction.
    fn lose(&mut self, side: usize) {
        let flying = self.pipes[side].flying_bytes();
        let kept = self.choices.below(flying + 1);
        self.lose_keeping(side, kept);
    }

    fn lose_keeping(&mut self, side: usize, kept: usize) {
        self.trace.note(format_args!("{side} loses its carrier"));
        self.see(Seen::CarrierLost);
        self.pipes[side].cut(kept);
        self.model.lost[side] = true;
        self.sides[side]
            .session
            .handle_carrier_lost(CarrierId::ONLY);
        self.drain_events(side);
        let session = &mut self.sides[side].session;
        assert_eq!(session.stream_count(), 0, "streams outlived their carrier");
        assert_eq!(session.receive_budget_used(), 0, "memory outlived it");
        assert!(session.poll_transmit().is_none() && session.poll_timeout().is_none());
        // What came is still delivered; the session knows nothing of it any more.
        let sockets = std::mem::take(&mut self.sides[side].sockets);
        for (id, socket) in sockets {
            let verdict = match socket.cut {
                Some(cause) => Verdict::Cut(cause),
                None => {
                    assert!(socket.is_complete(), "{id:?} was not told: {socket:?}");
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
