//! The local side of a stream: its socket, its phase and its account.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use muxtunnel_gateway_config::Timeouts;

use super::account::{Account, Local};
use super::life::Life;
use super::timeouts;
use crate::base::closing::Reason;
use crate::base::telemetry::Telemetry;
use crate::io::local_end::LocalEnd;

/// How long the local end of a cut stream may take to accept the received bytes.
pub(crate) const CUT_DELIVERY_MAX: Duration = Duration::from_secs(10);

/// How one direction of a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Clean,
    Cut,
}

pub(crate) struct LocalStream {
    pub(crate) socket: Box<dyn LocalEnd>,
    pub(crate) life: Life,
    pub(crate) account: Account,
}

impl LocalStream {
    /// A stream whose open is not answered yet. `peer_finished`: whether the peer has nothing more
    /// to send.
    pub(crate) fn new(socket: Box<dyn LocalEnd>, local: Local, peer_finished: bool) -> Self {
        Self {
            socket,
            life: Life::new(peer_finished),
            account: Account::new(local),
        }
    }

    /// Whether both sides have accepted the stream.
    pub(crate) fn is_open(&self) -> bool {
        self.life.is_open()
    }

    /// Whether the stream was cut and still delivers received bytes.
    pub(crate) fn delivers(&self) -> bool {
        self.life.why_cut().is_some_and(|cut| cut.deliver)
    }

    /// Checks the stream's time-outs and its local end ([`timeouts::check`]).
    pub(crate) fn check(
        &self,
        timeouts: Timeouts,
        now: Instant,
    ) -> Option<(Reason, Option<ErrorKind>)> {
        timeouts::check(timeouts, (&self.account, &self.life), &*self.socket, now)
    }

    /// Reports the end of the stream. `clean`: both directions ended in order.
    pub(crate) fn report(&self, telemetry: &Telemetry, peer: &str, clean: bool) {
        let cut = self.life.why_cut();
        let reason = match cut {
            Some(cut) => cut.reason,
            None if clean => Reason::Completed,
            None => Reason::CarrierLost,
        };
        let error = cut.and_then(|cut| cut.error);
        self.account.closed(telemetry, peer, reason, error);
    }

    /// Ends the local end, before it is closed. If the stream was cut and the cut permits delivery,
    /// waits until the other end of the socket has received the written bytes. Otherwise the reset
    /// that follows would discard the send buffer.
    pub(crate) async fn end(&self, clean: bool) {
        if clean {
            self.socket.end_in_order();
        } else if self.delivers() {
            let _ = tokio::time::timeout(CUT_DELIVERY_MAX, self.socket.delivered()).await;
        }
    }
}
