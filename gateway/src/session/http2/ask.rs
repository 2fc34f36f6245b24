//! A request of the peer's.

use std::future::poll_fn;
use std::rc::Rc;

use h2::RecvStream;
use h2::server::SendResponse;
use http::{Method, Request, StatusCode};
use muxtunnel_proto::{Outcome, Refusal, ResetCode};

use super::halves::{Receiving, Sending};
use super::{Traffic, answer};
use crate::session::bridge::link::{Ask, Payload};

/// A CONNECT that waits for its answer.
pub(crate) struct Asked {
    target: String,
    answer: SendResponse<Payload>,
    body: RecvStream,
    traffic: Rc<Traffic>,
}

impl Asked {
    /// What `request` asks for; `None`: no tunnel, which it has been told.
    pub(super) fn read(
        request: Request<RecvStream>,
        mut answer: SendResponse<Payload>,
        traffic: &Rc<Traffic>,
    ) -> Option<Self> {
        let (head, body) = request.into_parts();
        // With a protocol it is an extended CONNECT (RFC 8441), which leads somewhere else.
        let is_tunnel =
            head.method == Method::CONNECT && head.extensions.get::<h2::ext::Protocol>().is_none();
        let authority = head.uri.authority().filter(|_| is_tunnel);
        let target = authority.and_then(|authority| {
            let port = authority.port_u16()?;
            let host = authority.host();
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some(format!("tcp://{host}:{port}"))
        });
        let Some(target) = target else {
            let status = match is_tunnel {
                true => StatusCode::BAD_REQUEST,
                false => StatusCode::METHOD_NOT_ALLOWED,
            };
            // Whoever has gone needs no answer.
            let _ = answer.send_response(answer::status(status), true);
            return None;
        };
        Some(Self {
            target,
            answer,
            body,
            traffic: Rc::clone(traffic),
        })
    }
}

impl Ask for Asked {
    type Sender = Sending;
    type Receiver = Receiving;

    fn target(&self) -> &str {
        &self.target
    }

    fn accept(mut self, address: &str) -> Result<(Sending, Receiving), Outcome> {
        let sender = self
            .answer
            .send_response(answer::granted(address), false)
            .map_err(|_| Outcome::PeerReset(ResetCode::Cancelled))?;
        let halves = (
            Sending::new(sender, Rc::clone(&self.traffic)),
            Receiving::new(self.body, self.traffic),
        );
        Ok(halves)
    }

    fn refuse(mut self, refusal: &Refusal) {
        // Whoever has gone needs no answer. What the peer still sends is reset by the library once this is dropped, behind the
        // answer (section 8.1).
        let _ = self.answer.send_response(answer::refused(refusal), true);
    }

    async fn abandoned(&mut self) {
        let _ = poll_fn(|context| self.answer.poll_reset(context)).await;
    }
}
