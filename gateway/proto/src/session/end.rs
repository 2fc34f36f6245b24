//! Why streams, opens and sessions end.

/// Why a stream was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The peer reset the stream with this reason.
    PeerReset(ResetCode),
    /// The stream's carrier ended.
    CarrierLost,
    /// The peer sent more than its credit, or raised the credit of this side beyond the protocol's
    /// range.
    PeerBrokeCredit,
    /// The local socket accepted no data for too long while other streams waited for the session's
    /// credit. The undelivered payload is dropped.
    Stalled,
    /// This side has sent 2^48 bytes on the stream. The undelivered payload is dropped.
    OffsetsExhausted,
}

/// Why an open stream is cut: the code of RESET_STREAM and STOP_SENDING (docs/protocol.md). JMUX
/// has no reset codes, so its resets become [`ResetCode::Cancelled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetCode {
    /// The local socket was reset or failed.
    Cancelled,
    /// No payload was transferred within the idle timeout.
    IdleTimeout,
    /// One half had ended, and no payload was transferred within the half-open timeout.
    HalfOpenTimeout,
    /// The gateway is shutting down.
    Draining,
    /// The peer did not answer the open in time.
    OpenTimeout,
    /// 2^48 bytes have been sent on the stream.
    OffsetsExhausted,
    /// The peer is shutting down and never accepted the stream. The stream may be opened on another
    /// session.
    NotTaken,
    /// The stream's socket accepted no data for too long while other streams waited for the
    /// session's credit.
    Stalled,
    /// The stream was refused, with the reason as in the answer to an open.
    Refused(Reason),
    /// A code that this version does not name.
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

    /// The reset code for a number on the wire.
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

/// The code of a refused open is this number plus SOCKS5's reply number.
const REFUSED: u16 = 0x100;

/// Why a stream was not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The class of the refusal.
    pub reason: Reason,
    /// A human-readable text.
    pub description: String,
}

impl Refusal {
    /// A refusal with its class and a human-readable text.
    #[must_use]
    pub fn new(reason: Reason, description: impl Into<String>) -> Self {
        Self {
            reason,
            description: description.into(),
        }
    }
}

/// Classes of refusal: SOCKS5's reply numbers (RFC 1928, section 6). JMUX uses the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// 1: any other failure.
    General,
    /// 2: the rules do not permit the target.
    NotAllowed,
    /// 3: no route to the target's network.
    NetworkUnreachable,
    /// 4: the host is unreachable, or the name has no address.
    HostUnreachable,
    /// 5: the target refused the connection.
    ConnectionRefused,
    /// 6: the dial timed out (SOCKS5: TTL expired).
    TimedOut,
    /// 8: the address or scheme is not supported.
    AddressType,
    /// A reply number that this version does not name.
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

    /// The class for a number on the wire.
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

/// Why an open was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The hello is not complete.
    #[error("the session is not established yet")]
    NotReady,
    /// The peer has announced that it shuts down.
    #[error("the peer is shutting down and accepts no more streams")]
    GoingAway,
    /// This side's table is full.
    #[error("the session is at its limit of {streams_max} streams")]
    TooManyStreams {
        /// The limit.
        streams_max: u32,
    },
    /// The peer's table is full.
    #[error("the peer accepts at most {streams_max} streams at once")]
    PeerStreamLimit {
        /// The peer's limit.
        streams_max: u64,
    },
    /// The whole receive budget is granted.
    #[error(
        "the session's receive budget of {receive_budget} bytes has no room for another stream"
    )]
    BudgetExhausted {
        /// The budget in bytes.
        receive_budget: u64,
    },
    /// The peer does not support the announcement of clients to targets.
    #[error(
        "the peer cannot send the client's address to the target: update the peer, or remove proxyProtocol.send"
    )]
    NoSources,
    /// The target does not fit an OPEN.
    #[error("the target has {length} bytes, expected at most {TARGET_LENGTH_MAX}")]
    TargetTooLong {
        /// Length of the target in bytes.
        length: usize,
    },
}

/// Longest target URL in bytes, in both protocols.
pub const TARGET_LENGTH_MAX: usize = 1024;

/// Why a session cannot continue. The driver closes the carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The peer uses a different protocol, so the session sends it no close frame.
    #[error("{0}")]
    Foreign(String),
    /// The peer broke a rule of the protocol.
    #[error("{problem}")]
    Violation {
        /// The code for the peer, if the protocol has a close frame.
        code: Option<u64>,
        /// The broken rule, and how the peer broke it.
        problem: String,
    },
    /// No hello arrived in time.
    #[error("the peer sent no hello in time; does the peer use the same protocol?")]
    HelloTimeout,
    /// The session had no carrier for too long, or the peer did not report the bytes that it
    /// received on a lost carrier.
    #[error("the session could not be resumed in time")]
    ResumeTimeout,
    /// The peer ended the session.
    #[error("the peer ended the session, code {code:#x}: {reason}")]
    ClosedByPeer {
        /// The protocol's code. 0: the peer no longer needs the session.
        code: u64,
        /// The peer's text.
        reason: String,
    },
}
