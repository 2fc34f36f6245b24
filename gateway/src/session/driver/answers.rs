//! Whether the peer answers on the carriers of the session. The choice among the sessions of one
//! peer depends on it. [`super::liveness`] and the transports end carriers without answers, which
//! takes longer.

use std::rc::Rc;
use std::time::Instant;

use super::{Carrier, Driver, now};

/// A request for an answer of the peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    at: Instant,
    /// [`Carrier::progress`] at this time.
    heard: u64,
}

impl Driver {
    /// Requests an answer on the carrier, unless the peer still owes an answer. Returns whether the
    /// protocol or the transport has such a request.
    pub(super) fn ask_on(self: &Rc<Self>, carrier: &Carrier) -> bool {
        if carrier.unanswered_since().is_some() {
            return true;
        }
        let heard = carrier.progress();
        let is_asked = self.update(|session| session.probe(carrier.id)) || carrier.transport.ping();
        if is_asked {
            carrier.asked.set(Some(Asked { at: now(), heard }));
        }
        is_asked
    }
}

impl Carrier {
    /// Number of received bytes, and of answers that the transport has received.
    pub(super) fn progress(&self) -> u64 {
        self.stats.received.get() + self.transport.answers()
    }

    /// The time of the oldest request that the peer has not answered.
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        let asked = self.asked.get()?;
        (asked.heard == self.progress()).then_some(asked.at)
    }

    /// The time of the last request, if the peer has answered it since the last call.
    pub(super) fn take_answered(&self) -> Option<Instant> {
        let asked = self.asked.get()?;
        let is_answered = asked.heard != self.progress();
        is_answered
            .then(|| self.asked.take())
            .flatten()
            .map(|asked| asked.at)
    }
}
