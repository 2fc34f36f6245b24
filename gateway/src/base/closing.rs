//! The reasons why a stream can end, each with its name, code and reset code.
//! [`crate::stream::account`] reports these reasons.

use muxtunnel_codes::Code;
use muxtunnel_proto::{Outcome, ResetCode};

/// Why a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Both halves ended normally.
    Completed,
    /// The client reset its connection, or the connection failed.
    ClientReset,
    /// The target reset its connection, or the connection failed.
    TargetReset,
    /// The peer cut the stream without a reason, or all offsets of the stream are used up.
    PeerReset,
    CarrierLost,
    /// The peer sent more bytes than its credit permits.
    CreditBroken,
    /// No byte moved for the idle timeout.
    IdleTimeout,
    /// One half had ended, and no byte moved for the half-open timeout.
    HalfOpenTimeout,
    /// The stream was still open at the deadline of a shutdown.
    Drained,
    /// A new rule denies the stream's target or its peer.
    Denied,
    /// The peer is no longer permitted to connect.
    Revoked,
    /// An internal error of this gateway ended the session.
    Fault,
    /// The local socket on one side took no bytes for too long while other streams waited for
    /// credit.
    Stalled,
}

impl Reason {
    /// All reasons in the order of their numbers, each with the value of the log field `reason` and of
    /// the metrics' label.
    pub(crate) const ALL: [(Self, &'static str); 13] = [
        (Self::Completed, "completed"),
        (Self::ClientReset, "client-reset"),
        (Self::TargetReset, "target-reset"),
        (Self::PeerReset, "peer-reset"),
        (Self::CarrierLost, "carrier-lost"),
        (Self::CreditBroken, "credit-broken"),
        (Self::IdleTimeout, "idle-timeout"),
        (Self::HalfOpenTimeout, "half-open-timeout"),
        (Self::Drained, "drained"),
        (Self::Denied, "denied"),
        (Self::Revoked, "revoked"),
        (Self::Fault, "fault"),
        (Self::Stalled, "stalled"),
    ];

    // [`Self::label`] finds a reason by its place.
    const _IN_ORDER: () = {
        let mut place = 0;
        while place < Self::ALL.len() {
            assert!(Self::ALL[place].0 as usize == place);
            place += 1;
        }
    };

    /// The value of the log field `reason` and of the metrics' label.
    pub(crate) const fn label(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// The reason's code; `None` for a clean end.
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

    /// The code of the reset that is sent to the peer.
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
            Outcome::PeerReset(_) | Outcome::OffsetsExhausted => Self::PeerReset,
        }
    }
}
