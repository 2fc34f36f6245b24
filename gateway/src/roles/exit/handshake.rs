//! Handshakes of connections, each with a permit of the limiter, and their errors.

use std::net::IpAddr;
use std::pin::Pin;

use muxtunnel_gateway_config::Protocol;

use super::Exit;
use crate::base::handshake_limiter::{Dropped, has_gone};
use crate::io::carrier::Carrier;
use crate::session::end::SessionEnd;
use crate::session::hello;

/// Why a connection did not become a carrier.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Unproved(#[from] std::io::Error),
    #[error("{0}")]
    Silent(SessionEnd),
    #[error(
        "evicted: too many connections have not completed their handshake, and this connection was the oldest from its address"
    )]
    Evicted,
    #[error(transparent)]
    Dropped(#[from] Dropped),
}

/// Whether the handshake counts as failed, because of wrong credentials, invalid bytes or a
/// timeout. A connection that only closes is the probe of a load balancer and no failure. Evicted
/// connections and connections that were dropped early do not count here, because the limiter
/// counts them itself.
pub(super) fn is_failure<T>(proved: &Result<T, HandshakeError>) -> bool {
    match proved {
        Err(HandshakeError::Unproved(error)) => !has_gone(error),
        Err(HandshakeError::Silent(SessionEnd::Protocol(_))) => true,
        Ok(_)
        | Err(HandshakeError::Silent(_) | HandshakeError::Evicted | HandshakeError::Dropped(_)) => {
            false
        }
    }
}

impl Exit {
    /// Runs the handshake `proof` while holding a permit, and reports the result to the limiter.
    /// `source` is the address that the limiter counts; `None`: the connection has no client
    /// address. For `fails`, see [`is_failure`].
    ///
    /// `proof` remains in the caller's future. If `proof` were passed by value, the future of each
    /// connection would contain it three times: as a variable of the caller, as an argument, and as
    /// the polled future. There are thousands of such futures.
    ///
    /// # Errors
    /// The handshake failed, the connection was evicted, or it was dropped early, before `proof`
    /// was polled.
    pub(super) async fn prove<T, E: Into<HandshakeError>>(
        &self,
        source: Option<IpAddr>,
        proof: Pin<&mut impl Future<Output = Result<T, E>>>,
        fails: impl FnOnce(&Result<T, HandshakeError>) -> bool,
    ) -> Result<T, HandshakeError> {
        let mut permit = self.handover.limiter.enter(source)?;
        let proved = tokio::select! {
            biased;
            proved = proof => proved.map_err(Into::into),
            () = permit.evicted() => Err(HandshakeError::Evicted),
        };
        if fails(&proved) {
            permit.failed();
        } else if proved.is_ok() {
            permit.succeeded();
        }
        proved
    }
}

/// Refuses a carrier whose session is unknown or has ended.
pub(super) fn refuse(carrier: Carrier) {
    tracing::info!(
        peer = carrier.peer(),
        "Carrier refused because its session is unknown or has ended"
    );
    drop(tokio::task::spawn_local(hello::refuse_unknown(carrier)));
}

/// Refuses a carrier that would start a session, since the exit accepts no further sessions.
pub(super) fn turn_away(carrier: Carrier, protocol: Protocol) {
    drop(tokio::task::spawn_local(hello::turn_away(
        carrier, protocol,
    )));
}
