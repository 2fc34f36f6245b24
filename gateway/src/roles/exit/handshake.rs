//! Connections that prove who they are, while the limiter has a place for them, and why some of them do not come to be
//! carriers.

use std::net::IpAddr;

use super::Exit;
use crate::base::handshake_limiter::{Dropped, has_gone};
use crate::session::end::SessionEnd;

/// Why a connection did not come to be a carrier.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Unproved(std::io::Error),
    #[error("{0}")]
    Silent(SessionEnd),
    #[error("it was the oldest of too many that have not proved who they are, or said nothing")]
    Evicted,
    #[error(transparent)]
    Dropped(#[from] Dropped),
}

impl HandshakeError {
    /// Whether the peer proved the wrong thing, or nothing in time. A connection that only closes is a probe, and one
    /// that was evicted or dropped is the limiter's to judge.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Unproved(error) => !has_gone(error),
            Self::Silent(SessionEnd::Protocol(_)) => true,
            Self::Silent(_) | Self::Evicted | Self::Dropped(_) => false,
        }
    }
}

/// Whether it is held against the address of a connection how its proof went.
pub(super) fn is_failure<T>(proved: &Result<T, HandshakeError>) -> bool {
    proved.as_ref().is_err_and(HandshakeError::is_failure)
}

impl Exit {
    /// Has a connection prove who it is while it has a permit, and tells the limiter how that went. `source`: the address
    /// that the limiter counts it by; `None`: it comes from no address of a client. `is_failure`: see [`is_failure`].
    ///
    /// # Errors
    /// It proved nothing, was evicted, or was dropped early: then `proves` is dropped without having begun.
    pub(super) async fn prove<T>(
        &self,
        source: Option<IpAddr>,
        proves: impl Future<Output = Result<T, HandshakeError>>,
        is_failure: impl FnOnce(&Result<T, HandshakeError>) -> bool,
    ) -> Result<T, HandshakeError> {
        let mut permit = self.handover.limiter.enter(source)?;
        let proved = tokio::select! {
            biased;
            proved = proves => proved,
            () = permit.evicted() => Err(HandshakeError::Evicted),
        };
        match &proved {
            _ if is_failure(&proved) => permit.failed(),
            Ok(_) => permit.succeeded(),
            Err(_) => {}
        }
        proved
    }
}
