//! Why a session, or one of its carriers, ended.

use muxtunnel_codes::Code;
use muxtunnel_proto::SessionError;

/// Why a carrier ended, and with the last one its session; or why a session ended without one.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionEnd {
    /// The peer closed it.
    #[error("the peer closed the carrier")]
    Closed,
    /// The connection failed.
    #[error("the carrier failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol.
    #[error("{code}: {0}", code = muxtunnel_codes::Code::ProtocolViolation)]
    Protocol(SessionError),
    /// The peer has no more use for the session.
    #[error("the peer ended the session")]
    Finished(SessionError),
    /// It was given up, for this reason.
    #[error("{0}")]
    GivenUp(String),
    /// The other end may not connect any more.
    #[error("{code}: {0}", code = Code::PeerRevoked)]
    Revoked(String),
    /// Another carrier has its place.
    #[error("{code}: another carrier needed its place", code = Code::TooManyCarriers)]
    Evicted,
    /// This side shut the session down.
    #[error("this side shut the carrier down")]
    ShutDown,
    /// A task of the session panicked.
    #[error("a fault of this gateway ended the session")]
    Panicked,
}

impl From<SessionError> for SessionEnd {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::ClosedByPeer { code: 0, .. } => Self::Finished(error),
            error => Self::Protocol(error),
        }
    }
}
