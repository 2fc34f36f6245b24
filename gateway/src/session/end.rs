//! Why a session, or one of its carriers, ended.

use muxtunnel_codes::Code;
use muxtunnel_proto::SessionError;

use crate::io::key_refusal::KeyRefusal;

/// Why a carrier ended. If the carrier was the last one, the session ended for the same reason. For
/// a session without a carrier, the value is the reason why the session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    /// The peer closed the carrier.
    #[error("the peer closed the carrier")]
    Closed,
    #[error("the carrier failed: {0}")]
    Io(std::io::Error),
    /// The peer does not accept this gateway's public key.
    #[error("{code}: {0}", code = Code::KeyRefused)]
    Refused(String),
    #[error("{code}: {0}", code = muxtunnel_codes::Code::ProtocolViolation)]
    Protocol(SessionError),
    /// The peer no longer needs the session.
    #[error("the peer ended the session")]
    Finished(SessionError),
    /// This side gave up the session, for this reason.
    #[error("{0}")]
    GivenUp(String),
    /// The peer is no longer permitted to connect.
    #[error("{code}: {0}", code = Code::PeerRevoked)]
    Revoked(String),
    /// Another carrier took the carrier's place.
    #[error("{code}: evicted because another carrier needed the place: the gateway or the peer is at its limit of carriers", code = Code::TooManyCarriers)]
    Evicted,
    /// This side shut the session down.
    #[error("this gateway shut the carrier down")]
    ShutDown,
    /// A task of the session panicked.
    #[error("a fault of this gateway ended the session")]
    Panicked,
}

impl From<std::io::Error> for SessionEnd {
    fn from(error: std::io::Error) -> Self {
        match KeyRefusal::is_by_peer(&error) {
            true => Self::Refused(error.to_string()),
            false => Self::Io(error),
        }
    }
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::ClosedByPeer { code: 0, .. } => Self::Finished(error),
            error => Self::Protocol(error),
        }
    }
}
