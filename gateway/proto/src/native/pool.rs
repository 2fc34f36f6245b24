//! The number of carriers: the acceptor requests carriers, and the dialler retires carriers without
//! loss.
//!
//! To retire a carrier, each side sends RETIRE as its last frame on the carrier, the dialler first.
//! Once the acceptor's RETIRE arrives, both ends have received all frames of the carrier, so no
//! frame is repeated. CARRIER_LOST on another carrier confirms this to the acceptor. A carrier that
//! ends earlier is treated as lost.

use std::time::Instant;

use super::carrier::State as CarrierState;
use super::codec::Frame;
use super::input::violation;
use super::transmit::next_passing;
use super::{Carrier, NativeSession, SessionCode, Side, State, Stream};
use crate::session::{CarrierId, Event, SessionError, Transmit};

/// The number of carriers that the acceptor requests.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    count: u32,
    /// Serial of the latest CARRIERS frame that this side created or received.
    serial: u64,
    due: bool,
}

impl Wanted {
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The frame to send now.
    pub(super) fn take(&mut self) -> Option<Frame> {
        std::mem::take(&mut self.due).then_some(Frame::Carriers {
            count: self.count,
            serial: self.serial,
        })
    }

    /// Queues the last request for carriers again, because the frame may have been lost with its
    /// carrier.
    pub(super) fn say_again(&mut self) {
        if self.serial > 0 {
            self.serial += 1;
            self.due = true;
        }
    }

    fn set(&mut self, count: u32) {
        if self.count != count {
            self.count = count;
            self.serial += 1;
            self.due = true;
        }
    }

    /// Handles the peer's request for `count` carriers. Returns whether the request is new.
    fn hear(&mut self, count: u32, serial: u64) -> bool {
        let later = serial > self.serial;
        if later {
            self.serial = serial;
        }
        later && std::mem::replace(&mut self.count, count) != count
    }
}

impl NativeSession {
    pub(super) fn ask_for_carriers(&mut self, count: u32) {
        if self.agreed.resume && matches!(self.side, Side::Acceptor(_)) {
            self.wanted.set(count);
        }
    }

    pub(super) fn handle_carriers(&mut self, count: u32, serial: u64) -> Result<(), SessionError> {
        if let Side::Acceptor(_) = self.side {
            let text = "the dialler requested carriers, which only the acceptor may do";
            return Err(violation(SessionCode::ProtocolViolation, text));
        }
        if self.wanted.hear(count, serial) {
            self.events.push_back(Event::CarriersWanted { count });
        }
        Ok(())
    }

    /// Begins to retire `id`. Retirement needs another carrier. Returns whether the retirement
    /// begins.
    pub(super) fn begin_to_retire(&mut self, id: CarrierId) -> bool {
        let retires = |carrier: &Carrier| {
            let state = carrier.state;
            matches!(state, CarrierState::Retiring { .. } | CarrierState::Retired)
        };
        let may = self.state == State::Ready
            && self.agreed.resume
            && matches!(self.side, Side::Dialler)
            && self.lost.is_empty()
            && self.is_spare(id)
            && !self.carriers.values().any(retires);
        if may {
            self.leave(id);
        }
        may
    }

    /// Handles RETIRE, the peer's last frame on `id`.
    pub(super) fn handle_retire(
        &mut self,
        now: Instant,
        id: CarrierId,
    ) -> Result<(), SessionError> {
        let state = self.carriers.get(&id).map(|carrier| carrier.state);
        match (self.side, state) {
            (Side::Acceptor(_), Some(CarrierState::Up)) if self.is_spare(id) => self.leave(id),
            (Side::Acceptor(_), Some(CarrierState::Up)) => {
                // The other carriers were lost in the meantime, and the peer has not been informed
                // yet.
                self.lose(now, id);
                let reason = "the peer retired the only carrier".to_owned();
                self.events.push_back(Event::CarrierEnded {
                    carrier: id,
                    reason,
                });
            }
            (Side::Dialler, Some(CarrierState::Retiring { said: true })) => {
                self.retire_in_order(id)?;
            }
            _ => {
                let text = "RETIRE on a carrier that the peer may not retire";
                return Err(violation(SessionCode::ProtocolViolation, text));
            }
        }
        Ok(())
    }

    /// Whether frames on other carriers may overtake the frames of `id`. They may if another
    /// carrier has been the express carrier since `id` was established.
    fn is_spare(&self, id: CarrierId) -> bool {
        let carrier = self.carriers.get(&id);
        carrier.is_some_and(|carrier| carrier.is_up() && carrier.again.is_empty())
            && self.express().is_some_and(|express| express != id)
    }

    /// Moves the batches that wait for `id` to other carriers. Only RETIRE remains to be sent on
    /// `id`.
    fn leave(&mut self, id: CarrierId) {
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.state = CarrierState::Retiring { said: false };
        }
        for (stream, length) in self.data_ready.drain(id) {
            if self.streams.get(&stream).and_then(Stream::waiting) == Some(length) {
                self.schedule(stream, length);
            }
        }
    }

    /// Completes the retirement of `id`. Both sides have sent RETIRE, so the peer has received
    /// everything that was sent on `id`.
    fn retire_in_order(&mut self, id: CarrierId) -> Result<(), SessionError> {
        let Some(sent) = self.carriers.get(&id).map(|carrier| carrier.log.sent()) else {
            return Ok(());
        };
        self.handle_ack(id, sent)?;
        if let Some(carrier) = self.carriers.get_mut(&id) {
            carrier.state = CarrierState::Retired;
            let received = carrier.received();
            let told = carrier
                .number
                .map(|carrier| Frame::CarrierLost { carrier, received });
            if let Some(frame) = told {
                self.lost.tell(frame);
            }
        }
        Ok(())
    }

    /// After the peer's RETIRE, only answers to this side and the end of the carrier may arrive.
    pub(super) fn check_behind_retire(
        &self,
        state: CarrierState,
        frame: Option<&Frame>,
    ) -> Result<(), SessionError> {
        let heard = match state {
            CarrierState::Retiring { .. } => matches!(self.side, Side::Acceptor(_)),
            CarrierState::Retired => true,
            _ => false,
        };
        match frame {
            _ if !heard => Ok(()),
            Some(Frame::Ack { .. } | Frame::Pong(_) | Frame::SessionClose { .. }) => Ok(()),
            _ => {
                let text = "a frame after RETIRE";
                Err(violation(SessionCode::ProtocolViolation, text))
            }
        }
    }

    /// The next frame for a carrier that is being retired.
    pub(super) fn next_parting(&mut self, id: CarrierId) -> Option<Transmit> {
        let carrier = self.carriers.get_mut(&id)?;
        let CarrierState::Retiring { said } = carrier.state else {
            return None;
        };
        if let Some(frame) = next_passing(carrier, true) {
            return Some(self.pass(id, &frame));
        }
        carrier.state = CarrierState::Retiring { said: true };
        (!said).then(|| self.pass(id, &Frame::Retire))
    }

    /// Handles a report of the peer: the peer has received `received` bytes on the carrier `id`,
    /// and closes the carrier. Returns whether this completes the retirement.
    pub(super) fn is_retired_by(
        &mut self,
        id: CarrierId,
        received: u64,
    ) -> Result<bool, SessionError> {
        let state = self.carriers.get(&id).map(|carrier| carrier.state);
        match state {
            Some(CarrierState::Retired) => Ok(true),
            Some(CarrierState::Retiring { said: true }) => {
                self.handle_ack(id, received)?;
                let carrier = self.carriers.get(&id);
                Ok(carrier.is_some_and(|carrier| carrier.log.is_settled()))
            }
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_number_counts_and_only_a_change_is_news() {
        let mut wanted = Wanted::default();
        assert!(wanted.hear(3, 2));
        assert!(!wanted.hear(2, 1) && !wanted.hear(2, 2) && !wanted.hear(3, 3));
        assert!(wanted.hear(2, 4));
    }

    #[test]
    fn what_is_asked_for_is_said_once_and_again_where_a_carrier_is_lost() {
        let mut wanted = Wanted::default();
        wanted.say_again();
        assert_eq!(wanted.take(), None);
        wanted.set(2);
        wanted.set(3);
        let (count, serial) = (3, 2);
        assert_eq!(wanted.take(), Some(Frame::Carriers { count, serial }));
        assert_eq!(wanted.take(), None);
        wanted.say_again();
        let serial = 3;
        assert_eq!(wanted.take(), Some(Frame::Carriers { count, serial }));
    }
}
