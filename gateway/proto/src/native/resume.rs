//! The loss and addition of carriers while streams continue.
//!
//! To settle a lost carrier, the peer reports how many of the carrier's bytes arrived. The express
//! carrier then takes over the remaining bytes, in the original order. While a lost carrier is not
//! settled, the session sends no frame that must follow a frame of this carrier.

use std::time::Instant;

use super::carrier::State as CarrierState;
use super::codec::Frame;
use super::input::violation;
use super::lost::{Lost, LostCarriers};
use super::{Carrier, NativeSession, Phase, SessionCode, Side, State, Stream};
use crate::session::{
    CarrierId, Event, ListenTable, Outcome, Reason, Refusal, SessionError, StreamId,
};

impl NativeSession {
    /// Removes the carrier `id`, which is lost or which the session no longer needs.
    pub(super) fn lose(&mut self, now: Instant, id: CarrierId) {
        let Some(carrier) = self.carriers.remove(&id) else {
            return;
        };
        if self.state != State::Ready || !self.agreed.resume {
            return self.end();
        }
        // A carrier without a number never joined the session. A dialled carrier always has a
        // number, because the acceptor may have processed its hello although no answer arrived.
        let Some(number) = carrier.number else {
            return;
        };
        self.rtt.abandon();
        if let Side::Acceptor(_) = self.side {
            self.wanted.say_again();
        }
        if carrier.state == CarrierState::Retired {
            return;
        }
        self.lost.say_again(id);
        let waiting = self.data_ready.drain(id);
        self.lost.tell(Frame::CarrierLost {
            carrier: number,
            received: carrier.received(),
        });
        if carrier.state.is_joined() {
            let lost = Lost {
                number,
                since: now,
                log: carrier.log,
                again: carrier.again,
                told: false,
                waiting,
            };
            self.lost.add(id, lost);
        }
    }

    /// Adds the carrier `id`, whose hello is complete.
    pub(super) fn carrier_is_up(&mut self, id: CarrierId) {
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.state = CarrierState::Up;
        }
        self.events.push_back(Event::CarrierUp { carrier: id });
        for lost in self.lost.take_told() {
            self.inherit(lost);
        }
    }

    /// Handles the report that the peer received `received` bytes of the lost carrier `number`.
    pub(super) fn handle_lost(
        &mut self,
        now: Instant,
        heard_on: CarrierId,
        number: u32,
        received: u64,
    ) -> Result<(), SessionError> {
        let numbered = |carrier: &Carrier| carrier.number == Some(number);
        let alive = self.carriers.iter().find(|(_, carrier)| numbered(carrier));
        if let Some((&id, _)) = alive {
            if id == heard_on {
                let text = format!("CARRIER_LOST for carrier {number} arrived on that carrier");
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
            let retired = self.is_retired_by(id, received)?;
            self.lose(now, id);
            self.events.push_back(if retired {
                Event::CarrierRetired { carrier: id }
            } else {
                let reason = "the peer lost the carrier".to_owned();
                Event::CarrierEnded {
                    carrier: id,
                    reason,
                }
            });
        }
        // The carrier's hello may still be in flight. If it arrives later, this side must refuse
        // it.
        self.next_number = self.next_number.max(number.saturating_add(1));
        match self.lost.untold(number) {
            Some(id) => self.settle(id, received),
            // The carrier was settled before, or this side sent no frame on it.
            None => Ok(()),
        }
    }

    fn settle(&mut self, id: CarrierId, received: u64) -> Result<(), SessionError> {
        let Some(mut lost) = self.lost.remove(id) else {
            return Ok(());
        };
        let log = std::mem::take(&mut lost.log);
        let again = log.end(received, |sent| {
            self.retention.release(sent.held, sent.token);
        });
        let Ok(mut again) = again else {
            let text = format!(
                "carrier {}: the peer cannot have received {received} bytes",
                lost.number
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        };
        again.append(&mut lost.again);
        lost.again = again;
        if self.express().is_some() {
            self.inherit(lost);
        } else {
            // The report arrived on a carrier that is being retired.
            lost.told = true;
            self.lost.add(id, lost);
        }
        Ok(())
    }

    /// Queues on the express carrier the frames that a lost carrier did not deliver.
    fn inherit(&mut self, lost: Lost) {
        let heir = self.express();
        if let Some(heir) = heir.and_then(|heir| self.carriers.get_mut(&heir)) {
            heir.again.extend(lost.again);
        }
        for (stream, length) in lost.waiting {
            if self.streams.get(&stream).and_then(Stream::waiting) == Some(length) {
                self.schedule(stream, length);
            }
        }
        self.wake_blocked();
    }

    /// Lets the batch of `stream` wait, because no carrier can send it before a lost carrier is
    /// settled.
    pub(super) fn wait_for_carrier(&mut self, stream: StreamId, length: usize) {
        if let Some(lost) = self.lost.newest_mut() {
            lost.waiting.push((stream, length));
        }
    }

    /// Handles the peer's acknowledgement of `received` bytes of this carrier.
    pub(super) fn handle_ack(&mut self, id: CarrierId, received: u64) -> Result<(), SessionError> {
        let Some(carrier) = self.carriers.get_mut(&id) else {
            return Ok(());
        };
        if carrier.state == CarrierState::Retired {
            return Ok(());
        }
        let (log, retention) = (&mut carrier.log, &mut self.retention);
        let before = retention.released();
        let acknowledged =
            log.acknowledge(received, |sent| retention.release(sent.held, sent.token));
        if acknowledged.is_err() {
            let text = format!(
                "{received} bytes were acknowledged, but only {} were sent",
                carrier.log.sent()
            );
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        self.lost.acknowledge(id, received);
        if self.retention.released() > before {
            self.wake_blocked();
        }
        Ok(())
    }

    /// Applies the expired timeouts of carriers.
    pub(super) fn check_carriers(&mut self, now: Instant) -> Result<(), SessionError> {
        if self
            .resume_deadline()
            .is_some_and(|deadline| deadline <= now)
        {
            return Err(SessionError::ResumeTimeout);
        }
        let overdue = |carrier: &Carrier| match carrier.state {
            CarrierState::Hello(deadline) => deadline <= now,
            _ => false,
        };
        let late = self.carriers.iter().find(|(_, carrier)| overdue(carrier));
        if let Some((&id, _)) = late {
            if self.state != State::Ready {
                return Err(SessionError::HelloTimeout);
            }
            self.lose(now, id);
            let reason = SessionError::HelloTimeout.to_string();
            self.events.push_back(Event::CarrierEnded {
                carrier: id,
                reason,
            });
            return self.check_carriers(now);
        }
        for carrier in self.carriers.values_mut() {
            carrier.handle_timeout(now);
        }
        Ok(())
    }

    /// If the peer does not report on each lost carrier before this time, the session ends. For
    /// example, there may be no carrier for the report.
    pub(super) fn resume_deadline(&self) -> Option<Instant> {
        Some(self.lost.since()? + self.patience(self.config.resume_timeout))
    }

    /// Closes the session. Only SESSION_CLOSE remains to be transmitted, if `code` is set.
    pub(super) fn say_last(&mut self, code: Option<u64>, reason: String) {
        self.state = State::Closed;
        self.carriers
            .values_mut()
            .for_each(|carrier| carrier.first.clear());
        if self.carriers.is_empty() {
            return self.end();
        }
        let up = self
            .express()
            .or_else(|| self.carriers.keys().next().copied());
        if let Some(carrier) = up.and_then(|id| self.carriers.get_mut(&id))
            && let Some(code) = code
        {
            carrier
                .first
                .push_back(Frame::SessionClose { code, reason });
        }
    }

    /// Ends the session. Every stream is reset and every open fails. Opens that were never
    /// transmitted are returned and may be sent on another session. If the peer has ended the session
    /// in order, streams whose two halves have ended are not reset: the peer has received everything.
    fn end(&mut self) {
        self.state = State::Closed;
        self.carriers.clear();
        self.lost = LostCarriers::default();
        self.listens = ListenTable::new(matches!(self.side, Side::Dialler));
        let in_order = self.closed_in_order;
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        for stream in streams {
            let state = self.streams.get_mut(&stream);
            let opening = state
                .as_ref()
                .is_some_and(|s| matches!(s.phase, Phase::Opening(_)));
            let unsent = state.as_ref().is_some_and(|s| s.is_unsent());
            let news =
                state.is_some_and(|state| !(in_order && state.has_ended()) && state.tell_cut());
            self.retire(stream);
            if opening && unsent {
                self.events.push_back(Event::OpenReturned { stream });
            } else if opening {
                let refusal = Refusal::new(Reason::General, "the carrier was lost");
                self.events.push_back(Event::OpenFailed { stream, refusal });
            } else if news {
                let cause = Outcome::CarrierLost;
                self.events.push_back(Event::Reset { stream, cause });
            }
        }
    }
}
