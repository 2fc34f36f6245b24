//! What crosses the border between a session and its driver.

use std::ops::Range;
use std::time::Duration;

use crate::codec::ChannelId;
use crate::codec::jmux::{DATA_OVERHEAD, DecodeError, PACKET_SIZE_DEFAULT};

/// A stream, as this side numbers it. In JMUX it is the local channel id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u32);

impl StreamId {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// A carrier connection of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CarrierId(u8);

impl CarrierId {
    /// The one carrier of a JMUX session.
    pub const ONLY: Self = Self(0);
}

/// The driver's name of a buffer (or pipe) that holds payload to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// Bounds of one session.
#[derive(Debug, Clone, Copy)]
pub struct SessionConfig {
    /// Most streams at once.
    pub streams_max: u32,
    /// Bytes; the sum of credit granted and payload buffered never exceeds it. At least
    /// `streams_max` x [`super::WINDOW_BYTES_MIN`], so that every stream can have a window.
    pub receive_budget: u64,
    /// Largest frame that is offered and sent, header included: 9..=65,535 bytes.
    pub packet_max: u16,
    /// How long an open may stay unanswered (jetsocat answers nothing for an unsupported scheme).
    pub open_timeout: Duration,
}

impl Default for SessionConfig {
    /// 4,096 streams in 256 MiB, jetsocat's packet size, 15 s for an open (a peer's dial of 10 s and
    /// some round trips).
    fn default() -> Self {
        Self {
            streams_max: 4096,
            receive_budget: 256 << 20,
            packet_max: PACKET_SIZE_DEFAULT,
            open_timeout: Duration::from_secs(15),
        }
    }
}

/// What [`super::Session::handle_header`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// Not a whole header or control frame: read until there are `needed` bytes.
    Incomplete {
        /// Bytes in all, counted from the first unread one; at most 65,535.
        needed: usize,
    },
    /// A control frame was handled; skip its bytes.
    Control {
        /// Bytes of the frame.
        consumed: usize,
    },
    /// A payload header; skip its bytes, then move the payload.
    Payload {
        /// Bytes of the header.
        consumed: usize,
        /// What follows.
        receive: Receive,
    },
}

/// Announced payload that is still on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Where it arrives.
    pub carrier: CarrierId,
    /// Bytes left of it.
    pub length: usize,
    /// The stream whose socket it is for; `None`: throw it away (the stream is closed).
    pub stream: Option<StreamId>,
}

/// A frame to write to a carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transmit {
    /// A whole control frame.
    Control {
        /// The carrier.
        carrier: CarrierId,
        /// The frame's bytes.
        bytes: Vec<u8>,
    },
    /// A header, to be followed by payload of the driver's.
    Data {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: [u8; DATA_OVERHEAD],
        /// The payload behind it.
        payload: Payload,
    },
}

/// Payload in the driver's hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Its stream.
    pub stream: StreamId,
    /// Its buffer.
    pub token: Token,
    /// Which bytes of what was announced by `source_ready`.
    pub range: Range<usize>,
    /// It is the batch's last frame; the stream takes the next batch.
    pub last: bool,
}

/// What a stream takes from its local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendCapacity {
    /// Bytes; zero while a batch waits or credit is used up.
    pub bytes: u64,
    /// Payload of one full frame, bytes.
    pub payload_max: u16,
}

/// Where the credit of one stream is, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditView {
    /// The peer's number of the stream.
    pub peer: ChannelId,
    /// We may still send.
    pub send: u64,
    /// The peer may still send.
    pub recv: u64,
    /// Received, not taken by the local socket.
    pub buffered: u64,
    /// Taken, not given back yet.
    pub owed: u64,
}

/// What the application side must know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The peer asks for a stream: answer by `accept` or `refuse`.
    Incoming {
        /// The stream.
        stream: StreamId,
        /// Destination URL as the peer wrote it.
        target: String,
    },
    /// Our open succeeded; payload may flow.
    Opened {
        /// The stream.
        stream: StreamId,
    },
    /// Our open failed; the stream is gone.
    OpenFailed {
        /// The stream.
        stream: StreamId,
        /// Why.
        refusal: Refusal,
    },
    /// There is credit again.
    Writable {
        /// The stream.
        stream: StreamId,
    },
    /// The peer has no more payload: once all of it is delivered, shut the local socket's write side.
    Finished {
        /// The stream.
        stream: StreamId,
    },
    /// The stream was cut: deliver what came, then reset the local socket.
    Reset {
        /// The stream.
        stream: StreamId,
        /// By what.
        cause: Outcome,
    },
}

/// What cut a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The peer closed it before we were done, or said that it failed.
    PeerAborted,
    /// Its carrier ended.
    CarrierLost,
    /// The peer sent more than its credit, or raised ours beyond 32 bits.
    PeerBrokeCredit,
}

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
    /// The table is full.
    #[error("the session is at its limit of {streams_max} streams")]
    TooManyStreams {
        /// The limit.
        streams_max: u32,
    },
    /// Every byte of the receive budget is granted.
    #[error(
        "the session's receive budget of {receive_budget} bytes has no room for another stream"
    )]
    BudgetExhausted {
        /// Bytes.
        receive_budget: u64,
    },
    /// It would not fit an OPEN that peers accept.
    #[error("the target has {length} bytes, at most 1024 are possible")]
    TargetTooLong {
        /// Bytes.
        length: usize,
    },
}

/// Why a session cannot go on. The driver gives up the carrier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The carrier's bytes are not the protocol.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The peer makes us answer faster than it reads.
    #[error("the peer sent more than 1024 frames that need an answer without reading the answers")]
    TooManyOrphans,
}
