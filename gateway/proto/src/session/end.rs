//! Why streams, opens and sessions end.

/// What cut a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was cut for this reason, by the peer but for [`ResetCode::OffsetsExhausted`].
    PeerReset(ResetCode),
    /// Its carrier ended.
    CarrierLost,
    /// The peer sent more than its credit, or raised ours beyond what the protocol can count.
    PeerBrokeCredit,
    /// Its local socket took nothing for too long while other streams waited for the session's credit: nothing of
    /// what came is delivered.
    Stalled,
}

/// Why an open stream is cut: the code of RESET_STREAM and STOP_SENDING (docs/protocol.md). JMUX
/// names no reason; there it is [`ResetCode::Cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetCode {
    /// The local socket was reset or failed.
    Cancelled,
    /// No byte moved for the idle time-out.
    IdleTimeout,
    /// One half had ended and no byte moved for the half-open time-out.
    HalfOpenTimeout,
    /// The gateway shuts down.
    Draining,
    /// The open was not answered in time.
    OpenTimeout,
    /// 2^48 bytes have been sent on the stream.
    OffsetsExhausted,
    /// It was never opened, since that side goes away: it may be opened elsewhere.
    NotTaken,
    /// Its socket took nothing for too long while other streams waited for the session's credit.
    Stalled,
    /// It was never opened: the refusal, as answered to an open.
    Refused(Reason),
    /// Any other number.
    Other(u16),
}

impl ResetCode {
    /// The number on the wire of the native protocol.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Cancelled => 1,
            Self::IdleTimeout => 2,
            Self::HalfOpenTimeout => 3,
            Self::Draining => 4,
            Self::OpenTimeout => 5,
            Self::OffsetsExhausted => 6,
            Self::NotTaken => 7,
            Self::Stalled => 8,
            Self::Refused(reason) => REFUSED | (reason.code().min(0xff) as u16),
            Self::Other(code) => code,
        }
    }

    /// The class of a number on the wire.
    #[must_use]
    pub fn from_code(code: u16) -> Self {
        match code {
            1 => Self::Cancelled,
            2 => Self::IdleTimeout,
            3 => Self::HalfOpenTimeout,
            4 => Self::Draining,
            5 => Self::OpenTimeout,
            6 => Self::OffsetsExhausted,
            7 => Self::NotTaken,
            8 => Self::Stalled,
            0x100..=0x1ff => Self::Refused(Reason::from_code(u32::from(code & 0xff))),
            code => Self::Other(code),
        }
    }
}

/// Codes of refused opens: this, and SOCKS5's reply number.
const REFUSED: u16 = 0x100;

/// Why a stream was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The class.
    pub reason: Reason,
    /// For people.
    pub description: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(reason: Reason, description: impl Into<String>) -> Self {
        Self {
            reason,
            description: description.into(),
        }
    }
}

/// Classes of refusal: SOCKS5's reply numbers (RFC 1928, section 6), which JMUX uses too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// 1.
    General,
    /// 2: not allowed by the rules.
    NotAllowed,
    /// 3.
    NetworkUnreachable,
    /// 4: host unreachable, or a name without addresses.
    HostUnreachable,
    /// 5.
    ConnectionRefused,
    /// 6 (TTL expired there, timed out here).
    TimedOut,
    /// 8: address or scheme not supported.
    AddressType,
    /// Any other number.
    Other(u32),
}

impl Reason {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::General => 1,
            Self::NotAllowed => 2,
            Self::NetworkUnreachable => 3,
            Self::HostUnreachable => 4,
            Self::ConnectionRefused => 5,
            Self::TimedOut => 6,
            Self::AddressType => 8,
            Self::Other(code) => code,
        }
    }

    /// The class of a number on the wire.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::General,
            2 => Self::NotAllowed,
            3 => Self::NetworkUnreachable,
            4 => Self::HostUnreachable,
            5 => Self::ConnectionRefused,
            6 => Self::TimedOut,
            8 => Self::AddressType,
            code => Self::Other(code),
        }
    }
}

/// Why an open was not even sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The hello is not over.
    #[error("the session is not established yet")]
    NotReady,
    /// The peer said that it goes away.
    #[error("the other side is shutting down and takes no more streams")]
    GoingAway,
    /// Our table is full.
    #[error("the session is at its limit of {streams_max} streams")]
    TooManyStreams {
        /// The limit.
        streams_max: u32,
    },
    /// The peer's table is full.
    #[error("the other side takes no more than {streams_max} streams at once")]
    PeerStreamLimit {
        /// Its limit.
        streams_max: u64,
    },
    /// Every byte of the receive budget is granted.
    #[error(
        "the session's receive budget of {receive_budget} bytes has no room for another stream"
    )]
    BudgetExhausted {
        /// Bytes.
        receive_budget: u64,
    },
    /// The peer cannot tell targets who their clients are.
    #[error("the other side does not tell targets who their clients are")]
    NoSources,
    /// It would not fit an OPEN that peers accept.
    #[error("the target has {length} bytes, at most {TARGET_LENGTH_MAX} are possible")]
    TargetTooLong {
        /// Bytes.
        length: usize,
    },
}

/// Longest target URL, bytes, in both protocols.
pub const TARGET_LENGTH_MAX: usize = 1024;

/// Why a session cannot go on. The driver gives up the carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The carrier's bytes are not the protocol: the peer would not understand a word of it.
    #[error("{0}")]
    Foreign(String),
    /// The peer broke a rule of the protocol.
    #[error("{problem}")]
    Violation {
        /// What it is told, where the protocol has a word for it.
        code: Option<u64>,
        /// Which rule, and how.
        problem: String,
    },
    /// No hello came.
    #[error("the other side did not say hello in time; does it speak the same protocol?")]
    HelloTimeout,
    /// There was no carrier for too long, or the peer did not say how much of a lost one it received.
    #[error("the session could not be resumed in time")]
    ResumeTimeout,
    /// The peer ended the session.
    #[error("the peer ended the session, code {code:#x}: {reason}")]
    ClosedByPeer {
        /// Of the protocol; 0: it has no more use for the session.
        code: u64,
        /// Its words.
        reason: String,
    },
}
