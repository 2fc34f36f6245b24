//! Accounts for a stream: its local end, the bytes that it carried, and the reason why it ended.
//!
//! The account owns the stream's counters, adds to the counters of the gateway, of the forward and of the peer,
//! and logs one line when the stream ends. The line shows the result of a connection, and never
//! contains payload.

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
use crate::io::local_end::LocalEnd;
use crate::io::local_socket::LocalAddress;
use crate::io::socket::Keepalive;

/// The local end of a stream.
#[derive(Debug)]
pub(crate) enum Local {
    /// The client, on the side that listens.
    Client {
        address: LocalAddress,
        /// The URL of the client's target.
        target: Rc<str>,
        /// The stream's places in its forward, and of its peer.
        admission: Admission,
        ended: Ended,
    },
    /// The target, on the side that dials.
    Target {
        /// The URL that was dialled, as the peer sent it.
        target: String,
        /// The address that the URL resolved to.
        address: LocalAddress,
        /// The stream's places in its forward, if this side has the forward, and of its peer.
        admission: Admission,
    },
}

/// The channel on which the stream reports why it ended; `None`: nothing waits for the reason. The
/// channel is needed if the local socket of the stream is a Unix socket, which has no reset.
pub(crate) type Ended = RefCell<Option<oneshot::Sender<Reason>>>;

#[derive(Debug)]
pub(crate) struct Account {
    local: Local,
    since: Instant,
    /// Number of payload bytes from the local socket.
    sent: Cell<u64>,
    /// `sent` at the last call of [`Self::sent_since_last`].
    sent_before: Cell<u64>,
    /// Number of payload bytes that the local socket took.
    received: Cell<u64>,
    /// Facts about the last check that found a change: the number of bytes and events at that time,
    /// and the time.
    heard: Cell<(u64, Instant)>,
    /// The keepalive of the local end; `None`: it was never set.
    keepalive: Cell<Option<Option<Keepalive>>>,
    /// The number in `heard` at which the local end had acknowledged all bytes; `None`: unknown.
    settled: Cell<Option<u64>>,
}

#[cfg(test)]
impl Local {
    /// For tests: a client of the forward `web`.
    pub(crate) fn of_client(target: &str, ended: Ended) -> Self {
        use crate::base::forward::Forwards;
        use muxtunnel_gateway_config::Limits;
        let forward = Forwards::default().named("web", Limits::default());
        Self::Client {
            address: LocalAddress::Unix("/client".into()),
            target: target.into(),
            admission: forward.admit(Instant::now()).unwrap(),
            ended,
        }
    }
}

impl Account {
    pub(crate) fn new(local: Local) -> Self {
        let since = Instant::now();
        Self {
            local,
            since,
            sent: Cell::new(0),
            sent_before: Cell::new(0),
            received: Cell::new(0),
            heard: Cell::new((0, since)),
            keepalive: Cell::new(None),
            settled: Cell::new(None),
        }
    }

    /// Counts the stream as open, since both sides have accepted it.
    pub(crate) fn opened(&self, telemetry: &Telemetry) {
        self.count(telemetry, StreamCounters::opened);
        if let Some(forward) = self.admission().forward() {
            forward.dials.connected(Instant::now());
        }
    }

    /// Counts payload from the local socket.
    pub(crate) fn sent(&self, telemetry: &Telemetry, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
        self.count(telemetry, |streams| streams.sent.add(bytes));
    }

    /// Bytes of payload from the local socket since the last call.
    pub(crate) fn sent_since_last(&self) -> u64 {
        let sent = self.sent.get();
        sent - self.sent_before.replace(sent)
    }

    /// Counts payload that the local socket took.
    pub(crate) fn received(&self, telemetry: &Telemetry, bytes: usize) {
        self.received.set(self.received.get() + bytes as u64);
        self.count(telemetry, |streams| streams.received.add(bytes));
    }

    /// The time since the first check that found the current numbers of bytes and of other events.
    /// `changes` is the number of other events.
    pub(crate) fn quiet_for(&self, now: Instant, changes: u64) -> Duration {
        let heard = self.sent.get() + self.received.get() + changes;
        if self.heard.get().0 != heard {
            self.heard.set((heard, now));
        }
        now.saturating_duration_since(self.heard.get().1)
    }

    /// Applies `keepalive` to `socket`, the stream's local end. Returns whether the peer of the local
    /// end has vanished while bytes were on their way to it. `quiet` is the result of
    /// [`Self::quiet_for`].
    pub(crate) fn has_vanished(
        &self,
        socket: &dyn LocalEnd,
        keepalive: Option<Keepalive>,
        quiet: Duration,
    ) -> bool {
        if self.keepalive.replace(Some(keepalive)) != Some(keepalive) {
            socket.set_keepalive(keepalive);
        }
        let (heard, settled) = (self.heard.get().0, self.settled.get());
        let Some(keepalive) = keepalive.filter(|keepalive| quiet >= keepalive.dead_after()) else {
            return false;
        };
        // The system's probes suffice if nothing is on its way.
        if settled == Some(heard) {
            return false;
        }
        match socket.unacknowledged() {
            Some(path) => keepalive.has_vanished(&path),
            None => {
                self.settled.set(Some(heard));
                false
            }
        }
    }

    /// The target and its address, if this side dialled the target.
    pub(crate) fn dialled(&self) -> Option<(&str, &LocalAddress)> {
        match &self.local {
            Local::Target {
                target, address, ..
            } => Some((target, address)),
            Local::Client { .. } => None,
        }
    }

    /// The local end, for another account.
    pub(crate) fn into_local(self) -> Local {
        self.local
    }

    /// The rate limit from the local socket into the carrier, if a limit is set.
    pub(crate) fn up(&self) -> Option<&Pace> {
        self.admission().up()
    }

    /// The rate limit from the carrier to the local socket, if a limit is set.
    pub(crate) fn down(&self) -> Option<&Pace> {
        self.admission().down()
    }

    /// The reason for a reset or a failure of the local socket.
    pub(crate) const fn local_reset(&self) -> Reason {
        match self.local {
            Local::Client { .. } => Reason::ClientReset,
            Local::Target { .. } => Reason::TargetReset,
        }
    }

    /// Logs the end of the stream. `carrier` is the peer's address on the carrier. `error` is the
    /// failure of the local socket, if any.
    pub(crate) fn closed(
        &self,
        telemetry: &Telemetry,
        carrier: &str,
        reason: Reason,
        error: Option<ErrorKind>,
    ) {
        self.count(telemetry, |streams| streams.closed(reason));
        if let Local::Client { ended, .. } = &self.local
            && let Some(ended) = ended.take()
        {
            // The receiver may have been dropped.
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
            Local::Target {
                target, address, ..
            } => (None, &**target, Some(address)),
        };
        tracing::info!(
            target: "muxgate::streams",
            forward = self.admission().forward().map(|forward| forward.name.as_str()),
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
        self.admission().counters().for_each(count);
    }

    const fn admission(&self) -> &Admission {
        match &self.local {
            Local::Client { admission, .. } | Local::Target { admission, .. } => admission,
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
            admission: Admission::default(),
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
