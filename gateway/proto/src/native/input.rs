//! Handles arriving frames, one per call. Each arm delegates to one function. Read next:
//! `input/hello.rs`, `input/stream.rs`, `input/payload.rs`.

mod hello;
mod payload;
mod stream;

use std::time::Instant;

use super::carrier::State as CarrierState;
use super::codec::{self, Decoded, Frame, HEADER_BYTES};
use super::stream::{Phase, Stream};
use super::{NativeSession, SessionCode, State};
use crate::session::{CarrierId, Event, Header, Priority, ResetCode, SessionError, StreamId};
use payload::StreamFrame;

/// The code of the SESSION_CLOSE that informs the peer of `error`. `None`: the frame is of no use,
/// because the peer knows the reason or uses another protocol.
pub(super) fn close_code(error: &SessionError) -> Option<u64> {
    match error {
        SessionError::Violation { code, .. } => *code,
        SessionError::HelloTimeout => Some(SessionCode::HelloTimeout as u64),
        SessionError::ResumeTimeout => Some(SessionCode::ProtocolViolation as u64),
        SessionError::Foreign(_) | SessionError::ClosedByPeer { .. } => None,
    }
}

pub(super) fn violation(code: SessionCode, problem: impl std::fmt::Display) -> SessionError {
    SessionError::Violation {
        code: Some(code as u64),
        problem: format!("{code:?}: {problem}"),
    }
}

impl From<codec::DecodeError> for SessionError {
    fn from(error: codec::DecodeError) -> Self {
        match error {
            codec::DecodeError::NotNative => Self::Foreign(error.to_string()),
            error => Self::Violation {
                code: Some(SessionCode::FrameEncodingError as u64),
                problem: error.to_string(),
            },
        }
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
            // Before the hello, malformed bytes come from another protocol.
            Err(_) if self.state == State::Hello => Err(codec::DecodeError::NotNative),
            decoded => decoded,
        }?;
        match (decoded, state) {
            (_, CarrierState::Refused) => Ok(nothing(bytes)),
            (Decoded::Incomplete { needed }, _) => Ok(Header::Incomplete { needed }),
            (Decoded::Frame { frame, consumed }, state) if !state.is_hello() => {
                self.check_behind_retire(state, Some(&frame))?;
                if let Some(carrier) = self.carriers.get_mut(&carrier) {
                    carrier.take(now, consumed, self.agreed.resume && !frame.is_passing());
                }
                self.handle_frame(now, carrier, frame)?;
                Ok(Header::Control { consumed })
            }
            (Decoded::Frame { frame, consumed }, _) => {
                self.handle_hello_frame(now, carrier, frame)?;
                Ok(Header::Control { consumed })
            }
            (Decoded::Datagram { consumed }, state) if !state.is_hello() => {
                self.check_behind_retire(state, None)?;
                if !self.agreed.datagrams {
                    return Err(not_agreed());
                }
                if let Some(carrier) = self.carriers.get_mut(&carrier) {
                    carrier.take(now, consumed, false);
                }
                Ok(Header::Datagram {
                    header: HEADER_BYTES,
                    consumed,
                })
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
                let receive = self.handle_stream(now, carrier, frame)?;
                if let Some(carrier) = self.carriers.get_mut(&carrier) {
                    carrier.take(now, HEADER_BYTES, self.agreed.resume);
                }
                Ok(Header::Payload {
                    consumed: HEADER_BYTES,
                    receive,
                })
            }
            (Decoded::Stream { .. } | Decoded::Datagram { .. }, _) => {
                Err(codec::DecodeError::NotNative.into())
            }
        }
    }

    fn handle_ping(&mut self, id: CarrierId, value: u64) {
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.pong = Some(value);
        }
    }

    fn handle_pong(&mut self, now: Instant, value: u64) {
        self.rtt.handle_pong(now, value);
        self.window.set_rtt(self.rtt.path());
    }

    fn handle_max_stream_data(&mut self, stream: StreamId, limit: u64) -> Result<(), SessionError> {
        if let Some(state) = self.known(stream)?
            && state.raise_limit(limit)
        {
            self.events.push_back(Event::Writable { stream });
        }
        Ok(())
    }

    fn handle_max_data(&mut self, limit: u64) {
        if limit > self.peer.data {
            self.peer.data = limit;
            self.wake_blocked();
        }
    }

    fn handle_frame(
        &mut self,
        now: Instant,
        id: CarrierId,
        frame: Frame,
    ) -> Result<(), SessionError> {
        match frame {
            Frame::Ping(value) => self.handle_ping(id, value),
            Frame::Pong(value) => self.handle_pong(now, value),
            Frame::GoAway { last } => self.handle_goaway(last),
            Frame::Open {
                stream,
                priority,
                source,
                target,
            } => {
                if source.is_some() && !self.agreed.sources {
                    let text = "a frame of the feature SOURCE, which was not agreed on";
                    return Err(violation(SessionCode::ProtocolViolation, text));
                }
                let priority = Priority::from_code(priority);
                self.handle_open(now, stream, priority, source, target)?;
            }
            Frame::Opened { stream, address } => self.handle_opened(stream, address)?,
            Frame::MaxStreamData { stream, limit } => self.handle_max_stream_data(stream, limit)?,
            Frame::MaxData(limit) => self.handle_max_data(limit),
            Frame::MaxStreams(limit) => self.peer.streams = self.peer.streams.max(limit),
            Frame::ResetStream {
                stream,
                code,
                final_size,
                reason,
            } => self.handle_reset(now, stream, ResetCode::from_code(code), final_size, reason)?,
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
            Frame::Ack { .. }
            | Frame::CarrierLost { .. }
            | Frame::Carriers { .. }
            | Frame::Retire
                if self.agreed.resume =>
            {
                self.handle_carrier_frame(now, id, frame)?;
            }
            Frame::Listen { .. } | Frame::Listening { .. } | Frame::Unlisten { .. }
                if self.agreed.listen =>
            {
                self.handle_listen_frame(frame)?;
            }
            Frame::Assign(assignment) if self.agreed.assign => self.handle_assign(assignment)?,
            Frame::Ack { .. }
            | Frame::CarrierLost { .. }
            | Frame::Carriers { .. }
            | Frame::Retire
            | Frame::Assign(_)
            | Frame::Listen { .. }
            | Frame::Listening { .. }
            | Frame::Unlisten { .. } => return Err(not_agreed()),
        }
        Ok(())
    }

    /// Handles a frame of the feature RESUME, which was agreed on.
    fn handle_carrier_frame(
        &mut self,
        now: Instant,
        id: CarrierId,
        frame: Frame,
    ) -> Result<(), SessionError> {
        match frame {
            Frame::Ack { received } => self.handle_ack(id, received),
            Frame::CarrierLost { carrier, received } => {
                self.handle_lost(now, id, carrier, received)
            }
            Frame::Carriers { count, serial } => self.handle_carriers(count, serial),
            Frame::Retire => self.handle_retire(now, id),
            _ => Err(not_agreed()),
        }
    }

    /// Handles GOAWAY: the peer does not accept the streams that this side opened after `last`.
    /// These streams may be opened on another session.
    fn handle_goaway(&mut self, last: StreamId) {
        if !self.departure.hear() {
            return;
        }
        self.events.push_back(Event::GoAway);
        let opening = |stream: &Stream| matches!(stream.phase, Phase::Opening(_));
        let later = self.streams.range(StreamId(last.0.saturating_add(1))..);
        let returned: Vec<StreamId> = later
            .filter(|(id, stream)| self.ids.is_ours(**id) && opening(stream))
            .map(|(id, _)| *id)
            .collect();
        for stream in returned {
            self.cut(stream, ResetCode::Cancelled, "");
            self.events.push_back(Event::OpenReturned { stream });
        }
    }

    /// The stream that a frame names. `None`: the stream is gone, which the peer may not know yet.
    fn known(&mut self, stream: StreamId) -> Result<Option<&mut Stream>, SessionError> {
        if stream.0 > self.ids.last_like(stream) {
            let text = format!("stream {} was never opened", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        Ok(self.streams.get_mut(&stream))
    }

    /// The stream that a frame names. Its receiving half must not have ended.
    fn receivable(&mut self, stream: StreamId) -> Result<&mut Stream, SessionError> {
        match self.known(stream)? {
            Some(state) if !state.recv_ended() => Ok(state),
            _ => {
                let text = format!("stream {} has already ended", stream.0);
                Err(violation(SessionCode::StreamStateError, text))
            }
        }
    }
}

/// Leaves `bytes` unread, because the session no longer needs the carrier.
fn nothing(bytes: &[u8]) -> Header {
    let needed = (bytes.len() + 1).min(usize::from(u16::MAX));
    Header::Incomplete { needed }
}

fn not_agreed() -> SessionError {
    let text = "a frame of a feature that was not agreed on";
    violation(SessionCode::ProtocolViolation, text)
}
