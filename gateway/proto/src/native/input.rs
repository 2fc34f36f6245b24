//! What arrives on the carrier: one frame a call, each arm one decision.

use std::time::Instant;

use super::carrier::State as CarrierState;
use super::codec::{self, Decoded, Frame, HEADER_BYTES, HelloAck};
use super::ranges::Unusable;
use super::stream::{Phase, Stream};
use super::{
    Hello, NativeSession, Parameters, RESUME, Receiving, SessionCode, Side, State, Ticket, VERSION,
};
use crate::session::{
    CarrierId, Event, Header, Outcome, Priority, Reason, Receive, Refusal, ResetCode, SessionError,
    StreamId,
};

/// The code of the SESSION_CLOSE that tells the peer of `error`; `None`: it knows, or would not
/// understand.
pub(super) fn close_code(error: &SessionError) -> Option<SessionCode> {
    match error {
        SessionError::Violation { code, .. } => Some(*code),
        SessionError::Native(codec::DecodeError::NotNative) => None,
        SessionError::Native(_) => Some(SessionCode::FrameEncodingError),
        SessionError::HelloTimeout => Some(SessionCode::HelloTimeout),
        SessionError::ResumeTimeout => Some(SessionCode::ProtocolViolation),
        SessionError::ClosedByPeer { .. } => None,
        SessionError::Jmux(_) | SessionError::TooManyOrphans => None,
    }
}

pub(super) fn violation(code: SessionCode, problem: impl Into<String>) -> SessionError {
    SessionError::Violation {
        code,
        problem: problem.into(),
    }
}

impl NativeSession {
    pub(super) fn handle_unread(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        bytes: &[u8],
    ) -> Result<Header, SessionError> {
        let Some(state) = self.carriers.get(&carrier).map(|carrier| carrier.state) else {
            return Ok(nothing(bytes));
        };
        let decoded = match codec::decode(bytes) {
            // Before the hello, bytes that make no sense come from another protocol.
            Err(_) if self.state == State::Hello => Err(codec::DecodeError::NotNative),
            decoded => decoded,
        }?;
        match (decoded, state) {
            (_, CarrierState::Refused) => Ok(nothing(bytes)),
            (Decoded::Incomplete { needed }, _) => Ok(Header::Incomplete { needed }),
            (Decoded::Frame { frame, consumed }, state) if !state.is_hello() => {
                self.check_behind_retire(state, Some(&frame))?;
                if let Some(carrier) = self.carriers.get_mut(&carrier) {
                    carrier.take(now, consumed, self.resume && !frame.is_passing());
                }
                self.handle_frame(now, carrier, frame)?;
                Ok(Header::Control { consumed })
            }
            (Decoded::Frame { frame, consumed }, _) => {
                self.handle_hello_frame(now, carrier, frame)?;
                Ok(Header::Control { consumed })
            }
            (
                Decoded::Stream {
                    stream,
                    offset,
                    length,
                    fin,
                },
                state,
            ) if !state.is_hello() => {
                self.check_behind_retire(state, None)?;
                let frame = StreamFrame {
                    stream,
                    offset,
                    length,
                    fin,
                };
                let receive = self.handle_stream(carrier, frame)?;
                if let Some(carrier) = self.carriers.get_mut(&carrier) {
                    carrier.take(now, HEADER_BYTES, self.resume);
                }
                Ok(Header::Payload {
                    consumed: HEADER_BYTES,
                    receive,
                })
            }
            (Decoded::Stream { .. }, _) => Err(codec::DecodeError::NotNative.into()),
        }
    }

    /// What begins a carrier.
    fn handle_hello_frame(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        frame: Frame,
    ) -> Result<(), SessionError> {
        match (frame, self.side) {
            (Frame::SessionClose { code, reason }, _) => {
                if self.express().is_none() {
                    return Err(SessionError::ClosedByPeer { code, reason });
                }
                // This carrier alone is not wanted.
                self.lose(now, carrier);
                self.events
                    .push_back(Event::CarrierEnded { carrier, reason });
                Ok(())
            }
            (Frame::Hello(hello), Side::Acceptor(_)) if self.state == State::Ready => {
                self.handle_join(carrier, &hello);
                Ok(())
            }
            (Frame::Hello(hello), Side::Acceptor(_)) => self.handle_hello(now, carrier, &hello),
            (Frame::HelloAck(ack), Side::Dialler) => self.handle_hello_ack(now, carrier, &ack),
            _ => Err(codec::DecodeError::NotNative.into()),
        }
    }

    fn handle_hello(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        hello: &Hello,
    ) -> Result<(), SessionError> {
        if !(hello.version_min..=hello.version_max).contains(&VERSION) {
            let text = format!(
                "the other side speaks versions {} to {}, this one speaks {VERSION}",
                hello.version_min, hello.version_max
            );
            return Err(violation(SessionCode::VersionUnsupported, text));
        }
        if hello.session_id != [0; 16] {
            let text = "there is no such session to join";
            return Err(violation(SessionCode::UnknownSession, text));
        }
        self.answer_hello(carrier, hello);
        self.become_ready(
            now,
            carrier,
            hello.features & self.features(),
            hello.parameters,
        );
        Ok(())
    }

    fn answer_hello(&mut self, id: CarrierId, hello: &Hello) {
        let (features, parameters) = (hello.features & self.features(), self.parameters());
        self.next_number = hello.carrier.saturating_add(1);
        let (Some(ticket), Some(carrier)) = (self.ticket, self.carriers.get_mut(&id)) else {
            return;
        };
        carrier.number = Some(hello.carrier);
        carrier.first.push_back(Frame::HelloAck(HelloAck {
            version: VERSION,
            features,
            session_id: ticket.session_id,
            token: ticket.token,
            parameters,
        }));
    }

    /// Another carrier wants to join. Whoever does not know the token hurts nobody but itself.
    fn handle_join(&mut self, id: CarrierId, hello: &Hello) {
        let known = self.resume
            && self.ticket.is_some_and(|ticket| {
                ticket.session_id == hello.session_id && same(&ticket.token, &hello.token)
            });
        if known && hello.carrier >= self.next_number {
            self.answer_hello(id, hello);
            return self.carrier_is_up(id);
        }
        let reason = "the carrier may not join this session";
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.state = CarrierState::Refused;
            carrier.first.push_back(Frame::SessionClose {
                code: SessionCode::UnknownSession as u64,
                reason: reason.to_owned(),
            });
        }
        self.events.push_back(Event::CarrierEnded {
            carrier: id,
            reason: reason.to_owned(),
        });
    }

    fn handle_hello_ack(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        ack: &HelloAck,
    ) -> Result<(), SessionError> {
        if ack.version != VERSION || ack.features & !self.features() != 0 {
            let text = format!(
                "the answer names version {} and features {:#x}, which were not offered",
                ack.version, ack.features
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        match self.ticket {
            None => {
                self.ticket = Some(Ticket {
                    session_id: ack.session_id,
                    token: ack.token,
                });
                self.become_ready(now, carrier, ack.features, ack.parameters);
            }
            Some(ticket) if ticket.session_id == ack.session_id => self.carrier_is_up(carrier),
            Some(_) => {
                let text = "a carrier was joined to another session";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
        }
        Ok(())
    }

    fn become_ready(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        features: u32,
        parameters: Parameters,
    ) {
        self.state = State::Ready;
        self.resume = features & RESUME != 0;
        self.peer.data = parameters.initial_max_data;
        self.peer.streams = parameters.initial_max_streams;
        self.peer.parameters = parameters;
        self.rtt.want(now);
        self.events.push_back(Event::Ready);
        self.carrier_is_up(carrier);
    }

    fn handle_frame(
        &mut self,
        now: Instant,
        id: CarrierId,
        frame: Frame,
    ) -> Result<(), SessionError> {
        match frame {
            Frame::Ping(value) => {
                if let Some(carrier) = self.carriers.get_mut(&id) {
                    carrier.pong = Some(value);
                }
            }
            Frame::Pong(value) => {
                self.rtt.handle_pong(now, value);
                self.window.set_rtt(self.rtt.path());
            }
            Frame::GoAway { last } => self.handle_goaway(last),
            Frame::Open {
                stream,
                priority,
                target,
            } => {
                self.handle_open(now, stream, Priority::from_code(priority), target)?;
            }
            Frame::Opened { stream, address } => self.handle_opened(stream, address)?,
            Frame::MaxStreamData { stream, limit } => {
                if let Some(state) = self.known(stream)?
                    && state.raise_limit(limit)
                {
                    self.events.push_back(Event::Writable { stream });
                }
            }
            Frame::MaxData(limit) => {
                if limit > self.peer.data {
                    self.peer.data = limit;
                    self.wake_blocked();
                }
            }
            Frame::MaxStreams(limit) => self.peer.streams = self.peer.streams.max(limit),
            Frame::ResetStream {
                stream,
                code,
                final_size,
                reason,
            } => self.handle_reset(stream, ResetCode::from_code(code), final_size, reason)?,
            Frame::StopSending { stream, code } => {
                self.handle_stop(stream, ResetCode::from_code(code))?;
            }
            Frame::SessionClose { code, reason } => {
                return Err(SessionError::ClosedByPeer { code, reason });
            }
            Frame::Hello(_) | Frame::HelloAck(_) => {
                let text = "a hello in the middle of a session";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
            Frame::Ack { received } if self.resume => self.handle_ack(id, received)?,
            Frame::CarrierLost { carrier, received } if self.resume => {
                self.handle_lost(now, id, carrier, received)?;
            }
            Frame::Carriers { count, serial } if self.resume => {
                self.handle_carriers(count, serial)?;
            }
            Frame::Retire if self.resume => self.handle_retire(now, id)?,
            Frame::Ack { .. }
            | Frame::CarrierLost { .. }
            | Frame::Carriers { .. }
            | Frame::Retire => {
                let text = "a frame of the feature RESUME, which was not agreed";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
        }
        Ok(())
    }

    /// The peer takes none of our streams behind `last`, which may therefore be opened elsewhere.
    fn handle_goaway(&mut self, last: StreamId) {
        if std::mem::replace(&mut self.peer_goes, true) {
            return;
        }
        self.events.push_back(Event::GoAway);
        let opening = |stream: &Stream| matches!(stream.phase, Phase::Opening(_));
        let later = self.streams.range(StreamId(last.0.saturating_add(1))..);
        let returned: Vec<StreamId> = later
            .filter(|(id, stream)| self.is_ours(**id) && opening(stream))
            .map(|(id, _)| *id)
            .collect();
        for stream in returned {
            self.cut(stream, ResetCode::Cancelled, "");
            self.events.push_back(Event::OpenReturned { stream });
        }
    }

    /// A stream that a frame names; `None`: it is gone, which the peer may not know yet.
    fn known(&mut self, stream: StreamId) -> Result<Option<&mut Stream>, SessionError> {
        let last = if self.is_ours(stream) {
            self.next_id.saturating_sub(2)
        } else {
            self.peer_last
        };
        if stream.0 > last {
            let text = format!("stream {} was never opened", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        Ok(self.streams.get_mut(&stream))
    }

    /// A stream whose half of the peer's may still end.
    fn receivable(&mut self, stream: StreamId) -> Result<&mut Stream, SessionError> {
        match self.known(stream)? {
            Some(state) if !state.recv_ended() => Ok(state),
            _ => {
                let text = format!("stream {} had ended", stream.0);
                Err(violation(SessionCode::StreamStateError, text))
            }
        }
    }

    /// Judges a payload frame against offset and credit before a byte of it is stored.
    fn handle_stream(
        &mut self,
        id: CarrierId,
        frame: StreamFrame,
    ) -> Result<Receive, SessionError> {
        let StreamFrame {
            stream,
            offset,
            length,
            fin,
        } = frame;
        let frame_max = self.config.frame_max;
        if length > frame_max {
            let text = format!("{length} bytes in one frame, at most {frame_max} are taken");
            return Err(violation(SessionCode::FrameEncodingError, text));
        }
        let length = u64::from(length);
        let mut receive = Receive {
            carrier: id,
            offset,
            length: length as usize,
            stream: None,
        };
        let live = self.known(stream)?.filter(|state| !state.recv_ended());
        if live.is_some() {
            self.judge_payload(frame)?;
            if self.streams.get(&stream).is_some_and(Stream::wants_payload) {
                receive.stream = Some(stream);
            }
        } else if !self.resume {
            let text = format!("stream {} had ended", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        // Else it was reset, on another carrier, and this was sent before.
        if length > 0
            && let Some(carrier) = self.carriers.get_mut(&id)
        {
            carrier.receiving = Some(Receiving {
                stream,
                offset,
                length,
            });
        }
        if fin {
            self.end_if_all_came(stream);
        }
        Ok(receive)
    }

    fn judge_payload(&mut self, frame: StreamFrame) -> Result<(), SessionError> {
        let StreamFrame {
            stream,
            offset,
            length,
            fin,
        } = frame;
        let end = offset + u64::from(length);
        let announced = self.carriers.values().filter_map(|other| other.receiving);
        let overlaps = announced
            .filter(|other| other.stream == stream)
            .any(|other| offset < other.offset + other.length && other.offset < end);
        let Some(state) = self.streams.get_mut(&stream) else {
            return Ok(());
        };
        if !self.resume && offset != state.window.received() {
            let text = format!(
                "stream {} goes on at {offset}, expected {}; one carrier has no gaps",
                stream.0,
                state.window.received()
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        if length > 0 && state.wants_payload() {
            let overlap = if overlaps {
                Err(Unusable::Overlap)
            } else {
                state.check_range(offset, end)
            };
            if let Err(unusable) = overlap {
                let text = format!("stream {}, {offset} to {end}: {unusable:?}", stream.0);
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
        }
        if state.final_size().is_some_and(|size| end > size)
            || (fin && !state.learn_final_size(end))
        {
            let text = format!("stream {} goes on to {end} behind its end", stream.0);
            return Err(violation(SessionCode::FinalSizeError, text));
        }
        if state.window.ingest(end, &mut self.window).is_err() {
            let text = format!(
                "stream {}: {length} bytes, {} were granted",
                stream.0,
                state.window.credit()
            );
            return Err(violation(SessionCode::FlowControlError, text));
        }
        if !state.wants_payload() {
            state.window.discard(&mut self.window);
        }
        Ok(())
    }

    /// `length` bytes of announced payload have left their carrier.
    pub(super) fn move_payload(&mut self, id: CarrierId, length: usize) {
        let Some(carrier) = self.carriers.get_mut(&id) else {
            return;
        };
        let Some(receiving) = carrier.receiving.as_mut() else {
            debug_assert!(false, "no payload is announced");
            return;
        };
        debug_assert!(length as u64 <= receiving.length);
        let moved = (length as u64).min(receiving.length);
        let Receiving { stream, offset, .. } = *receiving;
        receiving.length -= moved;
        receiving.offset += moved;
        if receiving.length == 0 {
            carrier.receiving = None;
        }
        carrier.take_payload(length, self.resume);
        if let Some(state) = self.streams.get_mut(&stream)
            && state.wants_payload()
            && moved > 0
        {
            state.insert_range(offset, offset + moved);
            self.end_if_all_came(stream);
        }
    }

    /// Ends the peer's half once FIN and everything before it has come, or nobody waits for that.
    fn end_if_all_came(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        let wanted = state.wants_payload();
        let unwanted = !wanted && !state.recv_ended() && state.final_size().is_some();
        if (wanted && state.has_all()) || unwanted {
            state.end_receiving();
            if wanted {
                self.events.push_back(Event::Finished { stream });
            }
            self.retire_if_done(stream);
        }
    }

    fn handle_open(
        &mut self,
        now: Instant,
        stream: StreamId,
        priority: Priority,
        target: String,
    ) -> Result<(), SessionError> {
        if self.is_ours(stream) || stream.0 <= self.peer_last {
            let text = format!("stream {} cannot be opened by the other side now", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        let theirs = (self.streams.len() - self.ours) as u64;
        if self.peer_gone + theirs >= self.peer_streams_advertised {
            let text = format!(
                "{} streams were granted in all",
                self.peer_streams_advertised
            );
            return Err(violation(SessionCode::StreamLimitError, text));
        }
        self.peer_last = stream.0;
        let window = self.new_window(now);
        let send_limit = self.peer.parameters.initial_max_stream_data;
        self.streams
            .insert(stream, Stream::accepting(stream, window, send_limit));
        if self.goaway.is_some() {
            let code = ResetCode::Refused(Reason::General);
            self.cut(stream, code, "this side is shutting down");
        } else {
            self.data_ready.set_priority(stream, priority);
            self.events.push_back(Event::Incoming { stream, target });
        }
        Ok(())
    }

    fn handle_opened(&mut self, stream: StreamId, address: String) -> Result<(), SessionError> {
        if !self.is_ours(stream) {
            let text = format!("stream {} was opened by the other side", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        let Some(state) = self.known(stream)? else {
            return Ok(());
        };
        state.learn_answer();
        // Too late: it was cut, and the peer is being told.
        if let Phase::Opening(deadline) = state.phase {
            state.phase = Phase::Open;
            self.deadlines.remove(&(deadline, stream));
            self.events.push_back(Event::Opened { stream, address });
        }
        Ok(())
    }

    fn handle_reset(
        &mut self,
        stream: StreamId,
        code: ResetCode,
        final_size: u64,
        reason: String,
    ) -> Result<(), SessionError> {
        let resume = self.resume;
        let state = self.receivable(stream)?;
        let announced = state.window.received();
        let possible = state.learn_final_size(final_size) && (resume || final_size == announced);
        if !possible {
            let text = format!(
                "stream {} ends at {final_size}, but {announced} bytes have come",
                stream.0
            );
            return Err(violation(SessionCode::FinalSizeError, text));
        }
        let Some(state) = self.streams.get_mut(&stream) else {
            return Ok(());
        };
        if state.window.ingest(final_size, &mut self.window).is_err() {
            let text = format!(
                "stream {}: it ends at {final_size}, beyond its credit",
                stream.0
            );
            return Err(violation(SessionCode::FlowControlError, text));
        }
        if state.wants_payload() {
            state.end_at_gap(&mut self.window);
        } else {
            state.window.discard(&mut self.window);
            state.end_receiving();
        }
        state.learn_answer();
        let phase = std::mem::replace(&mut state.phase, Phase::Open);
        let unsent = state.cut_sending(code, "");
        let news = state.tell_cut();
        self.give_back(unsent);
        self.data_ready.forget(stream);
        self.control_ready.push(stream);
        if let Phase::Opening(deadline) = phase {
            self.deadlines.remove(&(deadline, stream));
            let reason_class = match code {
                ResetCode::Refused(reason) => reason,
                _ => Reason::General,
            };
            let refusal = Refusal::new(reason_class, reason);
            self.events.push_back(Event::OpenFailed { stream, refusal });
        } else if news {
            let cause = Outcome::PeerReset(code);
            self.events.push_back(Event::Reset { stream, cause });
        }
        self.retire_if_done(stream);
        Ok(())
    }

    fn handle_stop(&mut self, stream: StreamId, code: ResetCode) -> Result<(), SessionError> {
        let Some(state) = self.known(stream)? else {
            return Ok(());
        };
        let unsent = state.cut_sending(code, "");
        // An open that is refused says so by RESET_STREAM, which goes before.
        let news = !matches!(state.phase, Phase::Opening(_)) && state.tell_cut();
        self.give_back(unsent);
        self.data_ready.forget(stream);
        self.control_ready.push(stream);
        if news {
            let cause = Outcome::PeerReset(code);
            self.events.push_back(Event::Reset { stream, cause });
        }
        Ok(())
    }
}

/// A payload frame without its payload.
#[derive(Debug, Clone, Copy)]
struct StreamFrame {
    stream: StreamId,
    offset: u64,
    length: u32,
    fin: bool,
}

/// Nothing of a carrier that is of no more use is read.
fn nothing(bytes: &[u8]) -> Header {
    let needed = (bytes.len() + 1).min(usize::from(u16::MAX));
    Header::Incomplete { needed }
}

/// Whether two tokens are the same, in a time that tells nothing of them.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differences) == 0
}
