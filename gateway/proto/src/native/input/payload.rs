//! Checks arriving payload before a byte is stored, and reports the payload as it arrives.

use std::time::Instant;

use super::violation;
use crate::native::ranges::Unusable;
use crate::native::stream::Stream;
use crate::native::{NativeSession, Receiving, SessionCode};
use crate::session::{CarrierId, Event, Receive, SessionError, StreamId};

/// A payload frame without its payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct StreamFrame {
    pub(super) stream: StreamId,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) fin: bool,
}

impl NativeSession {
    /// Checks a payload frame against offset and credit, before any of its payload is stored.
    pub(super) fn handle_stream(
        &mut self,
        now: Instant,
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
            let text = format!("{length} bytes in one frame, expected at most {frame_max}");
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
            self.judge_payload(now, frame)?;
            if self.streams.get(&stream).is_some_and(Stream::wants_payload) {
                receive.stream = Some(stream);
            }
        } else if !self.agreed.resume {
            let text = format!("stream {} has already ended", stream.0);
            return Err(violation(SessionCode::StreamStateError, text));
        }
        // If the stream is gone, a reset of the stream arrived on another carrier and overtook this
        // frame.
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

    fn judge_payload(&mut self, now: Instant, frame: StreamFrame) -> Result<(), SessionError> {
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
        if !self.agreed.resume && offset != state.window.received() {
            let text = format!(
                "stream {} continues at offset {offset}, expected {}: without resume, payload arrives in order",
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
            let text = format!(
                "stream {} continues to offset {end}, beyond its announced end",
                stream.0
            );
            return Err(violation(SessionCode::FinalSizeError, text));
        }
        if state.window.ingest(now, end, &mut self.window).is_err() {
            let text = format!(
                "stream {}: {length} bytes arrived, {} were granted",
                stream.0,
                state.window.credit()
            );
            return Err(violation(SessionCode::FlowControlError, text));
        }
        if !state.wants_payload() {
            state.window.discard(&mut self.window);
        }
        self.note_received(now);
        Ok(())
    }

    /// `length` bytes of announced payload have left their carrier.
    pub(in crate::native) fn move_payload(&mut self, now: Instant, id: CarrierId, length: usize) {
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
        carrier.take(now, length, self.agreed.resume);
        if let Some(state) = self.streams.get_mut(&stream)
            && state.wants_payload()
            && moved > 0
        {
            state.insert_range(offset, offset + moved);
            self.end_if_all_came(stream);
        }
    }

    /// Ends the peer's half once FIN and all payload before it have arrived, or are no longer
    /// needed.
    pub(super) fn end_if_all_came(&mut self, stream: StreamId) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        let wanted = state.wants_payload();
        let unwanted = !wanted && !state.recv_ended() && state.final_size().is_some();
        if (wanted && state.has_all()) || unwanted {
            state.end_receiving();
            if wanted && !state.is_cut() {
                self.events.push_back(Event::Finished { stream });
            }
            self.retire_if_done(stream);
        }
    }
}
