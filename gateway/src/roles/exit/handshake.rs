//! Connections that did not come to be carriers.

use crate::base::handshake_limiter::has_gone;
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
}

impl HandshakeError {
    /// Whether the peer proved the wrong thing, or nothing in time. A connection that only closes is a probe, and one
    /// that was evicted is the limiter's to judge.
    pub(super) fn is_failure(&self) -> bool {
        match self {
            Self::Unproved(error) => !has_gone(error),
            Self::Silent(SessionEnd::Protocol(_)) => true,
            Self::Silent(_) | Self::Evicted => false,
        }
    }
}
