//! What is known of one stream for people: who is at its local end, what it carried, why it ended.
//!
//! Owns the stream's own counters, adds to those of the gateway and of the forward, and writes one line of the log
//! when the stream is over. The line shows what became of a connection. Never payload.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tracing::field::display;

use crate::base::closing::Reason;
use crate::base::counters::StreamCounters;
use crate::base::forward::Admission;
use crate::base::pace::Pace;
use crate::base::telemetry::Telemetry;
use crate::io::local_socket::LocalAddress;

/// Who is at the local end of a stream.
#[derive(Debug)]
pub(crate) enum Local {
    /// On the side that listens.
    Client {
        /// Where it came from.
        address: LocalAddress,
        /// The URL of its target.
        target: Rc<str>,
        /// Its place in its forward.
        admission: Admission,
        ended: Ended,
    },
    /// On the side that dials.
    Target {
        /// The URL that was dialled, as it was written.
        target: String,
        /// What it resolved to.
        address: LocalAddress,
        /// Its place in its forward, where that is on this side.
        admission: Option<Admission>,
    },
    /// This gateway, which asks for something itself. It counts in no forward.
    Own {
        /// The URL that it asks for.
        target: Rc<str>,
        ended: Ended,
    },
}

/// Learns why the stream ended, where it was open and its local end is this gateway's: a Unix socket has no reset.
pub(crate) type Ended = RefCell<Option<oneshot::Sender<Reason>>>;

/// The account of one stream.
#[derive(Debug)]
pub(crate) struct Account {
    local: Local,
    since: Instant,
    /// Payload bytes from the local socket.
    sent: Cell<u64>,
    /// Payload bytes that the local socket took.
    received: Cell<u64>,
    /// How much had happened at the last look that saw more than the one before, and when that was.
    heard: Cell<(u64, Instant)>,
}

impl Account {
    pub(crate) fn new(local: Local) -> Self {
        let since = Instant::now();
        Self {
            local,
            since,
            sent: Cell::new(0),
            received: Cell::new(0),
            heard: Cell::new((0, since)),
        }
    }

    /// Both sides agree on the stream.
    pub(crate) fn opened(&self, telemetry: &Telemetry) {
        self.count(telemetry, StreamCounters::opened);
    }

    /// Payload from the local socket is on its way.
    pub(crate) fn sent(&self, telemetry: &Telemetry, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
        self.count(telemetry, |streams| streams.sent(bytes));
    }

    /// The local socket took payload.
    pub(crate) fn received(&self, telemetry: &Telemetry, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        self.count(telemetry, |streams| streams.received(bytes));
    }

    /// How long, as far as was asked before, no byte has passed and `changes`, the number of other
    /// things that happened, has stayed.
    pub(crate) fn quiet_for(&self, now: Instant, changes: u64) -> Duration {
        let heard = self.sent.get() + self.received.get() + changes;
        if self.heard.get().0 != heard {
            self.heard.set((heard, now));
        }
        now.saturating_duration_since(self.heard.get().1)
    }

    /// The target and its address, where this side dialled it.
    pub(crate) fn dialled(&self) -> Option<(&str, &LocalAddress)> {
        match &self.local {
            Local::Target {
                target, address, ..
            } => Some((target, address)),
            Local::Client { .. } | Local::Own { .. } => None,
        }
    }

    /// Who is at the local end, for another account.
    pub(crate) fn into_local(self) -> Local {
        self.local
    }

    /// The forward's rate limit from the local socket into the carrier, if there is one.
    pub(crate) fn up(&self) -> Option<&Pace> {
        self.admission().and_then(|forward| forward.up.limited())
    }

    /// The forward's rate limit from the carrier to the local socket, if there is one.
    pub(crate) fn down(&self) -> Option<&Pace> {
        self.admission().and_then(|forward| forward.down.limited())
    }

    /// The reason when the local socket was reset, or failed.
    pub(crate) const fn local_reset(&self) -> Reason {
        match self.local {
            Local::Client { .. } | Local::Own { .. } => Reason::ClientReset,
            Local::Target { .. } => Reason::TargetReset,
        }
    }

    /// The stream is over. `carrier`: address of the carrier's other end; `error`: what the local
    /// socket failed with.
    pub(crate) fn closed(
        &self,
        telemetry: &Telemetry,
        carrier: &str,
        reason: Reason,
        error: Option<ErrorKind>,
    ) {
        self.count(telemetry, |streams| streams.closed(reason));
        if let Local::Own { ended, .. } | Local::Client { ended, .. } = &self.local
            && let Some(ended) = ended.take()
        {
            // Who asked may have gone.
            let _ = ended.send(reason);
        }
        let (sent, received) = (self.sent.get(), self.received.get());
        let milliseconds = self.since.elapsed().as_millis() as u64;
        let code = reason.code().map(display);
        let (reason, error) = (reason.label(), error.map(display));
        let (client, target, dialled) = match &self.local {
            Local::Client {
                address, target, ..
            } => (Some(address), &**target, None),
            Local::Own { target, .. } => (Some(&LocalAddress::Gateway), &**target, None),
            Local::Target {
                target, address, ..
            } => (None, &**target, Some(address)),
        };
        tracing::info!(
            target: "muxgate::streams",
            forward = self.admission().map(|forward| forward.name.as_str()),
            client = client.map(display),
            target,
            dialled = dialled.map(display),
            carrier,
            sent,
            received,
            milliseconds,
            reason,
            code,
            error,
            "Stream closed"
        );
    }

    fn count(&self, telemetry: &Telemetry, count: impl Fn(&StreamCounters)) {
        count(&telemetry.streams);
        if let Some(forward) = self.admission() {
            count(&forward.streams);
        }
    }

    const fn admission(&self) -> Option<&Admission> {
        match &self.local {
            Local::Client { admission, .. } => Some(admission),
            Local::Target { admission, .. } => admission.as_ref(),
            Local::Own { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_quiet_from_the_first_look_that_saw_nothing_new() {
        let account = Account::new(Local::Target {
            target: "tcp://web:80".to_owned(),
            address: LocalAddress::Tcp(([10, 0, 0, 1], 80).into()),
            admission: None,
        });
        let start = account.since;
        let second = Duration::from_secs(1);
        assert_eq!(account.quiet_for(start + second, 0), second);
        account.sent.set(10);
        assert_eq!(account.quiet_for(start + 2 * second, 0), Duration::ZERO);
        assert_eq!(account.quiet_for(start + 5 * second, 0), 3 * second);
        assert_eq!(account.quiet_for(start + 6 * second, 1), Duration::ZERO);
    }
}
