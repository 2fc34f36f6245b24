//! Connections of clients that were refused: their report, and the code of each reason.

use std::sync::Arc;

use muxtunnel_codes::Code;
use muxtunnel_proto::{OpenError, Refusal};

use crate::base::forward::Forward;
use crate::base::telemetry::Telemetry;
use crate::ingress::listener::answer::code_of;
use crate::io::local_socket::LocalAddress;

/// Reports the refusal of a connection.
#[derive(Clone)]
pub(crate) struct Refused {
    pub(super) telemetry: Arc<Telemetry>,
    forward: Arc<Forward>,
    pub(super) client: LocalAddress,
}

impl Refused {
    pub(crate) fn new(
        telemetry: &Arc<Telemetry>,
        forward: &Arc<Forward>,
        client: impl Into<LocalAddress>,
    ) -> Self {
        Self {
            telemetry: Arc::clone(telemetry),
            forward: Arc::clone(forward),
            client: client.into(),
        }
    }

    /// Counts and logs the refusal.
    pub(crate) fn report(&self, code: Code, reason: &str) {
        self.telemetry.streams.refused(code);
        self.forward.refused(code);
        if self.telemetry.may_log_refusal() {
            let (forward, client) = (&self.forward.name, &self.client);
            tracing::warn!(%code, forward, %client, reason, "Connection refused");
        }
    }
}

impl Refused {
    /// Logs that the dial of a target failed and that `next` is dialled.
    pub(super) fn report_retried(&self, refusal: &Refusal, next: &str) {
        if self.telemetry.may_log_refusal() {
            let (code, forward) = (code_of(refusal.reason), &self.forward.name);
            let (client, reason) = (&self.client, &refusal.description);
            tracing::info!(%code, forward, %client, reason, next, "Target not reached; dialling the next target");
        }
    }
}

pub(crate) fn code_of_open(error: &OpenError) -> Code {
    match error {
        OpenError::NotReady | OpenError::GoingAway => Code::CarrierConnecting,
        OpenError::TooManyStreams { .. } | OpenError::PeerStreamLimit { .. } => {
            Code::TooManyStreams
        }
        OpenError::BudgetExhausted { .. } => Code::MemoryExhausted,
        OpenError::TargetTooLong { .. } | OpenError::NoSources => Code::ConfigInvalid,
    }
}
