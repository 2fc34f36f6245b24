//! Frames that begin and end streams.

use std::time::Instant;

use super::violation;
use crate::native::stream::{Phase, Stream};
use crate::native::{NativeSession, SessionCode};
use crate::session::{
    Event, Outcome, Priority, Reason, Refusal, ResetCode, SessionError, Source, StreamId,
};

impl NativeSession {
    pub(super) fn handle_open(
        &mut self,
        now: Instant,
        stream: StreamId,
        priority: Priority,
        source: Option<Source>,
        target: String,
    ) -> Result<(), SessionError> {
        if !self.ids.is_next_of_peer(stream) {
            let text = format!("the peer may not open stream {} now", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        if !self.ids.has_room_for_peer(self.streams.len()) {
            let text = format!(
                "the peer opened more streams than the {} that this side has granted",
                self.ids.advertised()
            );
            return Err(violation(SessionCode::StreamLimitError, text));
        }
        self.ids.opened_by_peer(stream);
        let window = self.new_window(now);
        let send_window = self.peer.parameters.initial_max_stream_data;
        self.streams
            .insert(stream, Stream::accepting(stream, window, send_window));
        self.check_idle(now, stream);
        if self.departure.has_begun() {
            // The peer sent the OPEN before it received the GOAWAY that excludes the stream.
            self.cut(stream, ResetCode::NotTaken, "this side is shutting down");
        } else {
            self.data_ready.set_priority(stream, priority);
            self.events.push_back(Event::Incoming {
                stream,
                target,
                source,
            });
        }
        Ok(())
    }

    pub(super) fn handle_opened(
        &mut self,
        stream: StreamId,
        address: String,
    ) -> Result<(), SessionError> {
        if !self.ids.is_ours(stream) {
            let text = format!(
                "the peer sent OPENED for stream {}, which the peer itself opened",
                stream.0
            );
            return Err(violation(SessionCode::StreamStateError, text));
        }
        let Some(state) = self.known(stream)? else {
            return Ok(());
        };
        state.learn_answer();
        // In any other phase, the answer is too late: the stream was cut, and RESET_STREAM informs
        // the peer.
        if let Phase::Opening(deadline) = state.phase {
            state.phase = Phase::Open;
            self.deadlines.remove(&(deadline, stream));
            self.events.push_back(Event::Opened { stream, address });
        }
        Ok(())
    }

    pub(super) fn handle_reset(
        &mut self,
        now: Instant,
        stream: StreamId,
        code: ResetCode,
        final_size: u64,
        reason: String,
    ) -> Result<(), SessionError> {
        let resume = self.agreed.resume;
        let state = self.receivable(stream)?;
        let announced = state.window.received();
        let possible = state.learn_final_size(final_size) && (resume || final_size == announced);
        if !possible {
            let text = format!(
                "stream {} ends at {final_size}, but {announced} bytes have arrived",
                stream.0
            );
            return Err(violation(SessionCode::FinalSizeError, text));
        }
        let Some(state) = self.streams.get_mut(&stream) else {
            return Ok(());
        };
        if state
            .window
            .ingest(now, final_size, &mut self.window)
            .is_err()
        {
            let text = format!(
                "stream {} ends at {final_size}, beyond its credit",
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
            self.events.push_back(match code {
                ResetCode::NotTaken => Event::OpenReturned { stream },
                ResetCode::Refused(class) => {
                    let refusal = Refusal::new(class, reason);
                    Event::OpenFailed { stream, refusal }
                }
                _ => {
                    let refusal = Refusal::new(Reason::General, reason);
                    Event::OpenFailed { stream, refusal }
                }
            });
        } else if news {
            let cause = Outcome::PeerReset(code);
            self.events.push_back(Event::Reset { stream, cause });
        }
        self.retire_if_done(stream);
        Ok(())
    }

    pub(super) fn handle_stop(
        &mut self,
        stream: StreamId,
        code: ResetCode,
    ) -> Result<(), SessionError> {
        let Some(state) = self.known(stream)? else {
            return Ok(());
        };
        let unsent = state.cut_sending(code, "");
        // The peer refuses an open with RESET_STREAM, which precedes its STOP_SENDING.
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
