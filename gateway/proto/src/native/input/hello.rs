//! The first frames of a carrier: the hello of a session or of an additional carrier, and the
//! answers.

use std::time::Instant;

use super::violation;
use crate::native::carrier::State as CarrierState;
use crate::native::codec::{self, Frame, HelloAck};
use crate::native::{
    ASSIGN_FEATURE, Agreed, DATAGRAM_FEATURE, Hello, LISTEN_FEATURE, NativeSession, Parameters,
    RESUME, SOURCE, SessionCode, Side, State, Ticket, VERSION,
};
use crate::session::{CarrierId, Event, SessionError};

impl NativeSession {
    /// Handles the first frame of a carrier.
    pub(super) fn handle_hello_frame(
        &mut self,
        now: Instant,
        carrier: CarrierId,
        frame: Frame,
    ) -> Result<(), SessionError> {
        match (frame, self.side) {
            (Frame::SessionClose { code, reason }, _) => {
                let carried = self.carriers.get(&carrier);
                let elsewhere = carried.is_some_and(|carrier| carrier.elsewhere);
                if self.express().is_none() && !elsewhere {
                    return Err(SessionError::ClosedByPeer { code, reason });
                }
                // The peer refuses only this carrier.
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
                "the peer supports versions {} to {}, this side supports {VERSION}",
                hello.version_min, hello.version_max
            );
            return Err(violation(SessionCode::VersionUnsupported, text));
        }
        if hello.session_id != [0; 16] {
            let text = "the session to join is unknown";
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

    /// Another carrier asks to join. A peer without the token ends only its own carrier.
    fn handle_join(&mut self, id: CarrierId, hello: &Hello) {
        let known = self.agreed.resume
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
                "the answer to the hello has version {} and features {:#x}, but version {VERSION} and features {:#x} were offered",
                ack.version,
                ack.features,
                self.features()
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
                let text = "the answer to the hello assigned the carrier to another session";
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
        self.agreed = Agreed {
            resume: features & RESUME != 0,
            listen: features & LISTEN_FEATURE != 0,
            sources: features & SOURCE != 0,
            datagrams: features & DATAGRAM_FEATURE != 0,
            assign: features & ASSIGN_FEATURE != 0,
        };
        self.peer.data = parameters.initial_max_data;
        self.peer.streams = parameters.initial_max_streams;
        self.peer.parameters = parameters;
        self.rtt.want(now);
        self.events.push_back(Event::Ready);
        self.carrier_is_up(carrier);
    }
}

/// Compares two tokens in constant time.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b));
    std::hint::black_box(differences) == 0
}
