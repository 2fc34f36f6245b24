//! Connections that prove who they are while they hold a permit of the limiter, and why some of them do not come to be
//! carriers.

use std::net::IpAddr;
use std::pin::Pin;

use super::Exit;
use crate::base::handshake_limiter::{Dropped, has_gone};
use crate::session::end::SessionEnd;

/// Why a connection did not come to be a carrier.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Unproved(#[from] std::io::Error),
    #[error("{0}")]
    Silent(SessionEnd),
    #[error("it was the oldest of too many that have not proved who they are, or said nothing")]
    Evicted,
    #[error(transparent)]
    Dropped(#[from] Dropped),
}

/// Whether the peer proved the wrong thing, or nothing in time. A connection that only closes is a probe, and one that was
/// evicted or dropped early is the limiter's to judge.
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
    /// Has a connection prove who it is while it holds a permit, and tells the limiter how that went. `source`: the address
    /// that the limiter counts it by; `None`: it comes from no address of a client. `fails`: see [`is_failure`].
    ///
    /// `proof` stays where the caller has it. Passed by value it would be in the futures of thousands of connections
    /// three times: as a variable of the caller, as an argument, and as what is polled.
    ///
    /// # Errors
    /// The connection proved nothing, was evicted, or was dropped early: then `proof` has not begun.
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
