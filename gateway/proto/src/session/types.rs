//! The types that a session and its driver exchange.

use std::ops::Range;

/// A stream, by this side's number. In JMUX this is the local channel id (32 bits). In the native
/// protocol both sides use the same number (48 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The priority with which a stream sends, compared with other streams of its session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// The stream is sent ahead of bulk while it sends little.
    #[default]
    Auto,
    /// The stream is sent ahead of bulk, regardless of how much it sends.
    Interactive,
    /// The stream is bulk from the first byte.
    Bulk,
}

impl Priority {
    /// The number on the wire of the native protocol.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Auto => 0,
            Self::Interactive => 1,
            Self::Bulk => 2,
        }
    }

    /// The priority for a number on the wire. Unknown numbers are [`Self::Auto`].
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Interactive,
            2 => Self::Bulk,
            _ => Self::Auto,
        }
    }
}

/// A carrier connection of a session, numbered on this side in the order of addition. No number is
/// reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CarrierId(pub(crate) u32);

impl CarrierId {
    /// The first carrier of a session. A JMUX session has no other carrier.
    pub const FIRST: Self = Self(0);

    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The driver's identifier of a buffer or pipe that holds payload to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// The result of [`super::Session::handle_header`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// The header or control frame is incomplete. The driver reads until `needed` bytes are
    /// available.
    Incomplete {
        /// Total number of bytes, counted from the first unread byte. At most the size of a
        /// datagram frame.
        needed: usize,
    },
    /// A control frame was handled. The driver skips its bytes.
    Control {
        /// Bytes of the frame.
        consumed: usize,
    },
    /// A payload header was handled. The driver skips its bytes and then transfers the payload.
    Payload {
        /// Bytes of the header.
        consumed: usize,
        /// The payload that follows.
        receive: Receive,
    },
    /// A whole frame with an IP packet. The driver forwards the packet and skips the frame's bytes.
    Datagram {
        /// Bytes of the frame's header.
        header: usize,
        /// Bytes of the frame.
        consumed: usize,
    },
}

/// The announced payload that has not been read from the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// The carrier on which the payload arrives.
    pub carrier: CarrierId,
    /// Offset of the next payload byte in its stream. With several carriers, earlier bytes may
    /// arrive later.
    pub offset: u64,
    /// Remaining bytes.
    pub length: usize,
    /// The stream whose socket the payload is for. `None`: the stream is closed, so the driver
    /// discards the payload.
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
    /// A header, followed by payload that the driver holds.
    Data {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: FrameHeader,
        /// The payload that follows the header.
        payload: Payload,
    },
    /// A part of one frame that a lost carrier did not deliver. The frame belongs to an earlier
    /// batch. The header applies only to this part.
    Again {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: FrameHeader,
        /// The payload that follows the header.
        payload: Payload,
    },
}

/// Largest payload header of any protocol, in bytes.
pub const HEADER_BYTES_MAX: usize = 16;

/// Largest control frame of any protocol, in bytes: JMUX's, which has a size field of 16 bits.
pub const CONTROL_BYTES_MAX: usize = u16::MAX as usize;

/// Largest content of a datagram, in bytes: the header of virtio-net and the longest IP packet.
pub const DATAGRAM_BYTES_MAX: usize = 10 + 65_535;

/// Size in bytes of the smallest packets in which bulk payload arrives, in any protocol. The value
/// is JMUX's default.
pub const PACKET_BYTES_MIN: usize = 4096;

/// Bytes that a driver first reads from a stream. New session credit wakes one stream per unit of
/// this size.
pub const FIRST_READ_BYTES: usize = 16 << 10;

/// The header of a payload frame, stored inline. Every protocol's header fits [`HEADER_BYTES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    length: u8,
}

impl FrameHeader {
    pub(crate) fn new<const N: usize>(header: [u8; N]) -> Self {
        const { assert!(N <= HEADER_BYTES_MAX) };
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..N].copy_from_slice(&header);
        Self {
            bytes,
            length: N as u8,
        }
    }
}

impl std::ops::Deref for FrameHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Payload that the driver holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// The stream to which the payload belongs.
    pub stream: StreamId,
    /// The buffer that holds the payload.
    pub token: Token,
    /// The range within the batch that `source_ready` announced.
    pub range: Range<usize>,
    /// Whether this is the batch's last frame, so that the stream accepts the next batch.
    pub last: bool,
    /// Whether the session may request the payload again. The driver then keeps the batch until
    /// [`super::Session::poll_released`] returns its token.
    pub retained: bool,
}

/// The payload that a stream accepts from its local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendCapacity {
    /// Number of bytes. Zero while a batch waits or the credit is used up.
    pub bytes: u64,
    /// Size of a payload frame's header in bytes.
    pub header_bytes: usize,
    /// Largest payload of one frame in bytes.
    pub payload_max: usize,
    /// Whether the session may request the batch again, as in [`Payload::retained`].
    pub retained: bool,
    /// Whether more than half of the retransmit buffer is used. A batch should then take no more
    /// memory than its payload.
    pub retain_scarce: bool,
}

/// The credit of one stream, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditView {
    /// The peer's number for the stream.
    pub peer: u64,
    /// Bytes that this side may still send.
    pub send: u64,
    /// Bytes that the peer may still send.
    pub recv: u64,
    /// Bytes received, but not taken by the local socket.
    pub buffered: u64,
    /// Bytes taken by the local socket, but not yet returned to the peer as credit.
    pub owed: u64,
}
