//! A channel that the peer opens.

use std::rc::Rc;

use muxtunnel_proto::{Outcome, Reason, Refusal};

use super::Traffic;
use super::halves::{Line, Receiving, Sending};
use crate::io::ssh::events::{self, CONNECT_FAILED, PROHIBITED, RESOURCE_SHORTAGE};
use crate::session::bridge::link::Ask;

/// An open that waits for its answer.
pub(crate) struct Asked {
    asked: events::Asked,
    target: String,
    traffic: Rc<Traffic>,
}

impl Asked {
    pub(super) fn new(asked: events::Asked, target: String, traffic: &Rc<Traffic>) -> Self {
        Self {
            asked,
            target,
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

    fn accept(self, _: &str) -> Result<(Sending, Receiving), Outcome> {
        let channel = self.asked.accept().ok_or(Outcome::CarrierLost)?;
        Ok(Line::halves(Line::new(channel, &self.traffic)))
    }

    fn refuse(self, refusal: &Refusal) {
        let code = match refusal.reason {
            Reason::NotAllowed | Reason::AddressType => PROHIBITED,
            Reason::General | Reason::Other(_) => RESOURCE_SHORTAGE,
            Reason::NetworkUnreachable
            | Reason::HostUnreachable
            | Reason::ConnectionRefused
            | Reason::TimedOut => CONNECT_FAILED,
        };
        self.asked.refuse(code, &refusal.description);
    }

    /// Never completes, since the peer cannot cancel an open.
    async fn abandoned(&mut self) {
        std::future::pending::<()>().await;
    }
}
