//! Why a stream ended: the closed list of reasons, with the name, the code and the word to the peer of
//! each. [`crate::stream::account`] reports them.

use muxtunnel_codes::Code;
use muxtunnel_proto::{Outcome, ResetCode};

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Both halves ended by themselves.
    Completed,
    /// The client reset its connection, or that failed.
    ClientReset,
    /// The target reset its connection, or that failed.
    TargetReset,
    /// The other gateway cut it, and did not say why.
    PeerReset,
    /// Its carrier ended.
    CarrierLost,
    /// The peer sent more than its credit.
    CreditBroken,
    /// No byte passed for the idle time-out.
    IdleTimeout,
    /// One half had ended and no byte passed for the half-open time-out.
    HalfOpenTimeout,
    /// It was still open at the deadline of a shutdown.
    Drained,
    /// A new rule denies its target, or its peer.
    Denied,
    /// Its peer may not connect any more.
    Revoked,
    /// A fault of this gateway ended its session.
    Fault,
    /// The local socket on one side took nothing for too long while other streams waited for credit.
    Stalled,
}

impl Reason {
    /// All, in the order of their numbers.
    pub(crate) const ALL: [Self; 13] = [
        Self::Completed,
        Self::ClientReset,
        Self::TargetReset,
        Self::PeerReset,
        Self::CarrierLost,
        Self::CreditBroken,
        Self::IdleTimeout,
        Self::HalfOpenTimeout,
        Self::Drained,
        Self::Denied,
        Self::Revoked,
        Self::Fault,
        Self::Stalled,
    ];

    /// The value of the field `reason` and of the metrics' label.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientReset => "client-reset",
            Self::TargetReset => "target-reset",
            Self::PeerReset => "peer-reset",
            Self::CarrierLost => "carrier-lost",
            Self::CreditBroken => "credit-broken",
            Self::IdleTimeout => "idle-timeout",
            Self::HalfOpenTimeout => "half-open-timeout",
            Self::Drained => "drained",
            Self::Denied => "denied",
            Self::Revoked => "revoked",
            Self::Fault => "fault",
            Self::Stalled => "stalled",
        }
    }

    /// Its code, unless the end was a clean one.
    pub(crate) const fn code(self) -> Option<Code> {
        match self {
            Self::Completed => None,
            Self::ClientReset | Self::TargetReset => Some(Code::LocalReset),
            Self::PeerReset => Some(Code::PeerReset),
            Self::CarrierLost => Some(Code::CarrierLost),
            Self::CreditBroken => Some(Code::ProtocolViolation),
            Self::IdleTimeout => Some(Code::IdleTimedOut),
            Self::HalfOpenTimeout => Some(Code::HalfOpenTimedOut),
            Self::Drained => Some(Code::DrainDeadline),
            Self::Denied => Some(Code::StreamDenied),
            Self::Revoked => Some(Code::PeerRevoked),
            Self::Fault => Some(Code::SessionPanicked),
            Self::Stalled => Some(Code::StreamStalled),
        }
    }

    /// What the peer is told.
    pub(crate) const fn reset_code(self) -> ResetCode {
        match self {
            Self::IdleTimeout => ResetCode::IdleTimeout,
            Self::HalfOpenTimeout => ResetCode::HalfOpenTimeout,
            Self::Drained => ResetCode::Draining,
            Self::Stalled => ResetCode::Stalled,
            _ => ResetCode::Cancelled,
        }
    }
}

impl From<Outcome> for Reason {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::CarrierLost => Self::CarrierLost,
            Outcome::PeerBrokeCredit => Self::CreditBroken,
            Outcome::PeerReset(ResetCode::IdleTimeout) => Self::IdleTimeout,
            Outcome::PeerReset(ResetCode::HalfOpenTimeout) => Self::HalfOpenTimeout,
            Outcome::PeerReset(ResetCode::Draining) => Self::Drained,
            Outcome::Stalled | Outcome::PeerReset(ResetCode::Stalled) => Self::Stalled,
            Outcome::PeerReset(_) => Self::PeerReset,
        }
    }
}
