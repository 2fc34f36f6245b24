//! Requests of the peer for a stream. There are two kinds:
//! - A CONNECT.
//! - A message on a listener's stream. The message reports that a connection has arrived at the
//!   peer's listener. This side accepts or refuses the connection.

use std::future::poll_fn;
use std::rc::Rc;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, StatusCode};
use muxtunnel_proto::{ListenEvent, ListenId, Outcome, Refusal, ResetCode, listen_target};

use super::Traffic;
use super::halves::{Receiving, Sending};
use super::listeners::{ACCEPT, Arrived, LISTEN, Listeners};
use crate::session::bridge::link::{Ask, Payload};
use crate::session::connect::{answer, target_of};

/// An open that waits for its answer.
pub(crate) struct Asked {
    target: String,
    by: By,
    traffic: Rc<Traffic>,
}

enum By {
    Connect(SendResponse<Payload>, Receiving),
    /// A message of a listener.
    Arrival(Arrived),
}

pub(super) enum Requested {
    Stream(Asked),
    Listener(ListenEvent),
}

impl Requested {
    /// Reads `request`; `None`: the request needs no further handling.
    pub(super) fn read(
        request: Request<RecvStream>,
        mut answer: SendResponse<Payload>,
        (traffic, listeners): (&Rc<Traffic>, &Listeners),
    ) -> Option<Self> {
        let (head, body) = request.into_parts();
        // A `:protocol` pseudo-header makes the request an extended CONNECT (RFC 8441).
        let protocol = head.extensions.get::<h2::ext::Protocol>();
        let authority = head.uri.authority();
        match protocol.map(h2::ext::Protocol::as_str) {
            Some(LISTEN) if listeners.are_enabled() => {
                let address = authority.map(ToString::to_string).unwrap_or_default();
                return listeners.asked(address, answer, body).map(Self::Listener);
            }
            Some(ACCEPT) if listeners.are_enabled() => {
                listeners.accepted(head.uri.path(), answer, body);
                return None;
            }
            _ => {}
        }
        let is_tunnel = head.method == Method::CONNECT && protocol.is_none();
        let authority = authority.filter(|_| is_tunnel);
        let Some(target) = authority.and_then(target_of) else {
            let status = match is_tunnel {
                true => StatusCode::BAD_REQUEST,
                false => StatusCode::METHOD_NOT_ALLOWED,
            };
            // A closed connection needs no answer.
            let _ = answer.send_response(answer::status(status), true);
            return None;
        };
        Some(Self::Stream(Asked {
            target,
            // Payload may arrive before the answer.
            by: By::Connect(answer, Receiving::new(body, Rc::clone(traffic))),
            traffic: Rc::clone(traffic),
        }))
    }
}

impl Asked {
    /// A connection that has arrived at a listener that this side requested.
    pub(super) fn arrived(listen: ListenId, arrived: Arrived, traffic: &Rc<Traffic>) -> Self {
        Self {
            target: listen_target(listen),
            by: By::Arrival(arrived),
            traffic: Rc::clone(traffic),
        }
    }
}

impl Ask for Asked {
    type Sender = Sending;
    type Receiver = Receiving;

    fn target(&self) -> &str {
        &self.target
    }

    fn accept(self, address: &str) -> Result<(Sending, Receiving), Outcome> {
        let traffic = self.traffic;
        match self.by {
            By::Connect(mut answer, receiving) => {
                let sender = answer
                    .send_response(answer::granted(address), false)
                    .map_err(|_| Outcome::PeerReset(ResetCode::Cancelled))?;
                Ok((Sending::new(sender, traffic), receiving))
            }
            By::Arrival(arrived) => {
                let (answer, sender) = arrived.accept(&traffic)?;
                let sending = Sending::new(sender, Rc::clone(&traffic));
                Ok((sending, Receiving::answered(answer, traffic)))
            }
        }
    }

    fn refuse(self, refusal: &Refusal) {
        match self.by {
            By::Connect(mut answer, _) => {
                // A closed connection needs no answer. The peer may send bytes after the answer.
                // When this value is dropped, the library resets the stream because of such bytes
                // (section 8.1).
                let _ = answer.send_response(answer::refused(refusal), true);
            }
            By::Arrival(arrived) => arrived.refuse(refusal),
        }
    }

    async fn abandoned(&mut self) {
        match &mut self.by {
            By::Connect(answer, _) => {
                let _ = poll_fn(|context| answer.poll_reset(context)).await;
            }
            // This side learns that the connection has closed only when it accepts the connection:
            // the peer then refuses the accepting request.
            By::Arrival(_) => std::future::pending().await,
        }
    }
}
