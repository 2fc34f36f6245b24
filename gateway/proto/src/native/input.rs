//! What arrives on the carrier: one frame a call, each arm one decision.

use std::time::Instant;

use super::codec::{self, Decoded, Frame, HEADER_BYTES};
use super::stream::{Phase, Stream};
use super::{
    FEATURES, Hello, HelloAck, NativeSession, Parameters, Receiving, SessionCode, Side, State,
    VERSION,
};
use crate::session::{
    CarrierId, Event, Header, Outcome, Reason, Receive, Refusal, ResetCode, SessionError, StreamId,
};

/// The code of the SESSION_CLOSE that tells the peer of `error`; `None`: it knows, or would not
/// understand.
pub(super) fn close_code(error: &SessionError) -> Option<SessionCode> {
    match error {
        SessionError::Violation { code, .. } => Some(*code),
        SessionError::Native(codec::DecodeError::NotNative) => None,
        SessionError::Native(_) => Some(SessionCode::FrameEncodingError),
        SessionError::HelloTimeout => Some(SessionCode::HelloTimeout),
        SessionError::ClosedByPeer { .. } => None,
        SessionError::Jmux(_) | SessionError::TooManyOrphans => None,
    }
}

fn violation(code: SessionCode, problem: impl Into<String>) -> SessionError {
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
        let decoded = match codec::decode(bytes) {
            // Before the hello, bytes that make no sense come from another protocol.
            Err(_) if self.is_waiting() => Err(codec::DecodeError::NotNative),
            decoded => decoded,
        }?;
        match decoded {
            Decoded::Incomplete { needed } => Ok(Header::Incomplete { needed }),
            Decoded::Frame { frame, consumed } => {
                self.handle_frame(now, frame)?;
                Ok(Header::Control { consumed })
            }
            Decoded::Stream {
                stream,
                offset,
                length,
                fin,
            } => {
                let receive = self.handle_stream(carrier, stream, offset, length, fin)?;
                Ok(Header::Payload {
                    consumed: HEADER_BYTES,
                    receive,
                })
            }
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.state, State::Hello(_))
    }

    fn handle_frame(&mut self, now: Instant, frame: Frame) -> Result<(), SessionError> {
        match (frame, self.state, self.side) {
            (Frame::SessionClose { code, reason }, ..) => {
                Err(SessionError::ClosedByPeer { code, reason })
            }
            (Frame::Hello(hello), State::Hello(_), Side::Acceptor(_)) => {
                self.handle_hello(now, &hello)
            }
            (Frame::HelloAck(ack), State::Hello(_), Side::Dialler) => {
                self.handle_hello_ack(now, &ack)
            }
            (frame, State::Ready, _) => self.handle_ready(now, frame),
            _ => Err(codec::DecodeError::NotNative.into()),
        }
    }

    fn handle_hello(&mut self, now: Instant, hello: &Hello) -> Result<(), SessionError> {
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
        let Side::Acceptor(identity) = self.side else {
            return Ok(());
        };
        self.first.push_back(Frame::HelloAck(HelloAck {
            version: VERSION,
            features: hello.features & FEATURES,
            session_id: identity.session_id,
            token: identity.token,
            parameters: self.parameters(),
        }));
        self.become_ready(now, hello.parameters);
        Ok(())
    }

    fn handle_hello_ack(&mut self, now: Instant, ack: &HelloAck) -> Result<(), SessionError> {
        if ack.version != VERSION || ack.features & !FEATURES != 0 {
            let text = format!(
                "the answer names version {} and features {:#x}, which were not offered",
                ack.version, ack.features
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        self.become_ready(now, ack.parameters);
        Ok(())
    }

    fn become_ready(&mut self, now: Instant, parameters: Parameters) {
        self.state = State::Ready;
        self.peer.data = parameters.initial_max_data;
        self.peer.streams = parameters.initial_max_streams;
        self.peer.parameters = parameters;
        self.rtt.want(now);
        self.events.push_back(Event::Ready);
    }

    fn handle_ready(&mut self, now: Instant, frame: Frame) -> Result<(), SessionError> {
        match frame {
            Frame::Ping(value) => self.pong = Some(value),
            Frame::Pong(value) => {
                self.rtt.handle_pong(now, value);
                self.window.set_rtt(self.rtt.path());
            }
            Frame::GoAway { .. } => {
                if !std::mem::replace(&mut self.peer_goes, true) {
                    self.events.push_back(Event::GoAway);
                }
            }
            Frame::Open { stream, target, .. } => self.handle_open(now, stream, target)?,
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
            Frame::Hello(_) | Frame::HelloAck(_) | Frame::SessionClose { .. } => {
                let text = "a hello in the middle of a session";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
            Frame::Ack { .. } | Frame::CarrierLost { .. } => {
                let text = "a frame of the feature RESUME, which was not agreed";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
        }
        Ok(())
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

    /// A stream of which the peer may still send payload.
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
        carrier: CarrierId,
        stream: StreamId,
        offset: u64,
        length: u32,
        fin: bool,
    ) -> Result<Receive, SessionError> {
        if self.state != State::Ready {
            return Err(codec::DecodeError::NotNative.into());
        }
        let frame_max = self.config.frame_max;
        if length > frame_max {
            let text = format!("{length} bytes in one frame, at most {frame_max} are taken");
            return Err(violation(SessionCode::FrameEncodingError, text));
        }
        let expected = self.receivable(stream)?.window.received();
        if offset != expected {
            let text = format!(
                "stream {} goes on at {offset}, expected {expected}; one carrier has no gaps",
                stream.0
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        let Some(state) = self.streams.get_mut(&stream) else {
            return Err(violation(SessionCode::StreamStateError, "no stream"));
        };
        if state
            .window
            .ingest(length.into(), &mut self.window)
            .is_err()
        {
            let text = format!(
                "stream {}: {length} bytes, {} were granted",
                stream.0,
                state.window.credit()
            );
            return Err(violation(SessionCode::FlowControlError, text));
        }
        let wanted = state.wants_payload();
        if !wanted {
            state.window.discard(&mut self.window);
        }
        let receive = Receive {
            carrier,
            length: length as usize,
            stream: wanted.then_some(stream),
        };
        // The stream is kept here, even if nobody wants the payload: FIN ends it.
        self.receiving = Some(Receiving {
            receive: Receive {
                stream: Some(stream),
                ..receive
            },
            fin,
        });
        if length == 0 {
            self.end_payload();
        }
        Ok(receive)
    }

    /// All of the announced payload has left the carrier.
    pub(super) fn end_payload(&mut self) {
        let Some(receiving) = self.receiving.take() else {
            return;
        };
        let Some(stream) = receiving.receive.stream.filter(|_| receiving.fin) else {
            return;
        };
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        if state.wants_payload() {
            self.events.push_back(Event::Finished { stream });
        }
        state.end_receiving();
        self.retire_if_done(stream);
    }

    fn handle_open(
        &mut self,
        now: Instant,
        stream: StreamId,
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
        let state = self.receivable(stream)?;
        let received = state.window.received();
        if final_size != received {
            let text = format!(
                "stream {} ends at {final_size}, but {received} bytes have come",
                stream.0
            );
            return Err(violation(SessionCode::FinalSizeError, text));
        }
        state.end_receiving();
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
