//! Handles arriving frames, one frame per call.

use super::codec::{self, ChannelId, Control};
use super::stream::{CloseMeaning, Offer, Stream};
use super::{
    CarrierId, EXTENSION_ABORT, Event, JmuxSession, ORPHANS_MAX, Outcome, PACKET_SIZE_MIN, Phase,
    Reason, Receive, Refusal, ResetCode, Session, SessionError, StreamId,
};

impl From<codec::DecodeError> for SessionError {
    fn from(error: codec::DecodeError) -> Self {
        Self::Foreign(error.to_string())
    }
}

impl JmuxSession {
    /// Checks a payload frame against credit, before the payload is stored.
    pub(super) fn announce(
        &mut self,
        carrier: CarrierId,
        stream: StreamId,
        length: usize,
    ) -> Receive {
        let wanted = self
            .streams
            .get_mut(&stream)
            .filter(|state| state.wants_payload());
        let offset = wanted.as_ref().map_or(0, |state| state.recv.received());
        let accepted = wanted.map(|state| state.recv.ingest(length as u64));
        let receive = Receive {
            carrier,
            offset,
            length,
            stream: matches!(accepted, Some(Ok(()))).then_some(stream),
        };
        if matches!(accepted, Some(Err(_))) {
            self.cut(stream, Outcome::PeerBrokeCredit);
        }
        self.receiving = Some(receive).filter(|receive| receive.length > 0);
        receive
    }

    pub(super) fn handle_control(&mut self, control: Control) -> Result<(), SessionError> {
        if self.orphans.len() >= ORPHANS_MAX {
            return Err(SessionError::Violation {
                code: None,
                problem: format!(
                    "the peer sent more than {ORPHANS_MAX} frames that need an answer, and did not read the answers"
                ),
            });
        }
        match control {
            Control::Open {
                sender,
                window,
                packet_max,
                extensions,
                target,
            } => {
                self.handle_open(sender, Offer { window, packet_max }, extensions, target);
            }
            Control::Opened {
                recipient,
                sender,
                window,
                packet_max,
                extensions,
            } => {
                let offer = Offer { window, packet_max };
                self.handle_opened(StreamId(recipient.0.into()), sender, offer, extensions);
            }
            Control::OpenFailed {
                recipient,
                reason,
                description,
            } => {
                self.handle_open_failed(StreamId(recipient.0.into()), reason, description);
            }
            Control::Credit {
                recipient,
                increment,
            } => self.handle_credit(StreamId(recipient.0.into()), increment),
            Control::Probe { is_answer, .. } => {
                self.answers = true;
                self.answer |= !is_answer;
            }
            Control::Finish { recipient } => self.handle_eof(StreamId(recipient.0.into())),
            Control::Close { recipient, abort } => {
                self.handle_close(StreamId(recipient.0.into()), abort);
            }
        }
        Ok(())
    }

    fn handle_open(&mut self, sender: ChannelId, offered: Offer, extensions: u8, target: String) {
        self.answers |= extensions & EXTENSION_ABORT != 0;
        if offered.packet_max < PACKET_SIZE_MIN {
            let text = format!(
                "a maximum packet size of {} bytes leaves no room for data",
                offered.packet_max
            );
            self.orphans
                .push_back(open_failed(sender, Refusal::new(Reason::General, text)));
            return;
        }
        let mut recv = match self.admit() {
            Ok(recv) => recv,
            Err(error) => {
                self.orphans.push_back(open_failed(
                    sender,
                    Refusal::new(Reason::General, error.to_string()),
                ));
                return;
            }
        };
        let answer = Offer {
            window: recv.limit_to_offer(offered.window),
            packet_max: offered.packet_max,
        };
        let stream = self
            .insert(|id| Stream::accepting(id, sender, recv, answer, extensions & EXTENSION_ABORT));
        self.events.push_back(Event::Incoming {
            stream,
            target,
            source: None,
        });
    }

    fn handle_opened(&mut self, stream: StreamId, sender: ChannelId, offer: Offer, extensions: u8) {
        self.answers |= extensions & EXTENSION_ABORT != 0;
        let waiting = self
            .streams
            .get_mut(&stream)
            .filter(|state| matches!(state.phase, Phase::Opening { .. }));
        let Some(state) = waiting else {
            // The success is late or was not requested, so the peer has a channel that this side
            // does not need.
            self.orphans.push_back(Control::Close {
                recipient: sender,
                abort: extensions & EXTENSION_ABORT != 0,
            });
            return;
        };
        if let Phase::Opening { deadline, .. } = state.phase {
            self.deadlines.remove(&(deadline, stream));
        }
        state.opened(sender, offer.window, offer.packet_max, extensions);
        if offer.packet_max < PACKET_SIZE_MIN {
            let text = format!(
                "the peer accepts packets of at most {} bytes, which leaves no room for data",
                offer.packet_max
            );
            self.reset(stream, ResetCode::Cancelled);
            self.events.push_back(Event::OpenFailed {
                stream,
                refusal: Refusal::new(Reason::General, text),
            });
            return;
        }
        // The local end of file may have waited for the answer.
        if state.finishing() {
            self.control_ready.push(stream);
        }
        self.events.push_back(Event::Opened {
            stream,
            address: String::new(),
        });
    }

    fn handle_open_failed(&mut self, stream: StreamId, reason: u32, description: String) {
        match self.streams.get(&stream).map(|state| state.phase) {
            Some(Phase::Opening { .. }) => {
                self.retire(stream);
                let refusal = Refusal::new(Reason::from_code(reason), description);
                self.events.push_back(Event::OpenFailed { stream, refusal });
            }
            // For a late failure: the peer no longer uses the number.
            _ => self.ids.release(stream),
        }
    }

    fn handle_credit(&mut self, stream: StreamId, increment: u32) {
        let Some(state) = self.streams.get_mut(&stream) else {
            return;
        };
        match state.add_credit(increment) {
            Ok(true) => self.events.push_back(Event::Writable { stream }),
            Ok(false) => {}
            Err(()) => self.cut(stream, Outcome::PeerBrokeCredit),
        }
    }

    fn handle_eof(&mut self, stream: StreamId) {
        let Some(state) = self
            .streams
            .get_mut(&stream)
            .filter(|state| state.phase == Phase::Open)
        else {
            return;
        };
        if state.handle_eof() {
            self.events.push_back(Event::Finished { stream });
        }
        if state.closing() {
            self.control_ready.push(stream);
        }
    }

    fn handle_close(&mut self, stream: StreamId, abort: bool) {
        let Some(state) = self
            .streams
            .get_mut(&stream)
            .filter(|state| state.phase == Phase::Open)
        else {
            self.ids.release(stream);
            return;
        };
        match state.handle_close(abort) {
            CloseMeaning::Confirmed => {}
            CloseMeaning::Finished => self.events.push_back(Event::Finished { stream }),
            CloseMeaning::Aborted => {
                self.events.push_back(Event::Reset {
                    stream,
                    cause: Outcome::PeerReset(ResetCode::Cancelled),
                });
            }
        }
        self.control_ready.push(stream);
        self.retire_if_done(stream);
    }

    /// Ends a stream whose peer broke the rules. Received payload counts in the budget until it is
    /// delivered.
    fn cut(&mut self, stream: StreamId, cause: Outcome) {
        match self.streams.get_mut(&stream) {
            Some(state) if state.phase == Phase::Open => {
                state.cut();
                self.data_ready.forget(stream);
                self.control_ready.push(stream);
                self.retire_if_done(stream);
            }
            _ => self.reset(stream, ResetCode::Cancelled),
        }
        self.events.push_back(Event::Reset { stream, cause });
    }
}

/// The answer to an open that is refused.
pub(super) fn open_failed(recipient: ChannelId, refusal: Refusal) -> Control {
    Control::OpenFailed {
        recipient,
        reason: refusal.reason.code(),
        description: refusal.description,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::jmux::JmuxConfig;

    /// Opens of a peer that reads no answers, because its path stalls.
    #[test]
    fn all_opens_of_an_honest_peer_may_be_refused_while_it_reads_nothing_and_a_flood_ends_the_session()
     {
        let mut session = JmuxSession::new(JmuxConfig {
            streams_max: 1,
            ..JmuxConfig::default()
        });
        let mut open = |number| {
            session.handle_control(Control::Open {
                sender: ChannelId(number),
                window: 1 << 20,
                packet_max: 1 << 12,
                extensions: 0,
                target: "tcp://a:1".to_owned(),
            })
        };
        let honest = JmuxConfig::default().streams_max;
        assert!((0..honest).all(|number| open(number).is_ok()));
        assert!((honest..100_000).any(|number| open(number).is_err()));
    }
}
