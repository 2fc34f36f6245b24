//! An open of the peer.

use std::rc::Rc;
use std::time::Duration;

use muxtunnel_proto::{Outcome, Refusal, ResetCode, patience};

use super::reading::{Cut, Reading};
use super::wire::Message;
use super::{OPEN_MAX, Receiving, Sending};
use crate::session::bridge::link::{Ask, Receiver, Sender};
use crate::session::quic_streams::Traffic;

/// Maximum time that a refusal waits for credit.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// An open that waits for its answer.
pub(crate) struct Asked {
    target: String,
    sender: Sending,
    receiver: Receiving,
    traffic: Rc<Traffic>,
}

impl Asked {
    /// Reads the open on a new stream; `None`: the stream was cut, or its first message is not an
    /// open or did not arrive in time.
    pub(super) async fn read(
        (sender, mut receiver): (Sending, Receiving),
        traffic: Rc<Traffic>,
    ) -> Option<Self> {
        let mut reading = Reading::default();
        let limit = patience(OPEN_MAX, traffic.connection.quic().rtt());
        let message = tokio::time::timeout(limit, reading.next(receiver.stream())).await;
        match message {
            Ok(Ok(Message::Open { priority, target })) => {
                sender.set_priority(priority);
                Some(Self {
                    target,
                    sender,
                    receiver,
                    traffic,
                })
            }
            other => {
                if let Ok(Err(Cut::Peer(_))) = other {
                    traffic.taken_back();
                }
                tracing::debug!(?other, "The first message of a stream is not an open");
                None
            }
        }
    }
}

impl Ask for Asked {
    type Sender = Sending;
    type Receiver = Receiving;

    fn target(&self) -> &str {
        &self.target
    }

    fn accept(mut self, address: &str) -> Result<(Sending, Receiving), Outcome> {
        let answer = Message::Opened {
            address: address.to_owned(),
        };
        self.sender.say_soon(answer.encode());
        Ok((self.sender, self.receiver))
    }

    fn refuse(mut self, refusal: &Refusal) {
        let answer = Message::Refused(refusal.clone()).encode();
        self.receiver.stop(ResetCode::Refused(refusal.reason));
        drop(self.traffic.clone().tasks.spawn(async move {
            let said = tokio::time::timeout(REFUSAL_MAX, self.sender.say(answer)).await;
            if let Ok(Ok(())) = said {
                // A closed connection needs no answer.
                let _ = self.sender.finish();
            }
        }));
    }

    async fn abandoned(&mut self) {
        self.sender.stopped().await;
        self.traffic.taken_back();
    }
}
