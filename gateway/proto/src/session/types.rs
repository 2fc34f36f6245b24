//! What crosses the border between a session and its driver.

use std::ops::Range;

/// A stream, as this side numbers it. In JMUX it is the local channel id (32 bits), in the native
/// protocol the number that both sides know (48 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub(crate) u64);

impl StreamId {
    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Who goes first among the streams of a session, in what each side sends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// By what it sends: ahead of bulk while that is little.
    #[default]
    Auto,
    /// Ahead of bulk, however much it sends.
    Interactive,
    /// Bulk from its first byte.
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

    /// The class of a number on the wire; one that is not known says nothing.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Interactive,
            2 => Self::Bulk,
            _ => Self::Auto,
        }
    }
}

/// A carrier connection of a session, as this side numbers it: in the order in which they were added,
/// never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CarrierId(pub(crate) u32);

impl CarrierId {
    /// The carrier that a session begins with; of a JMUX session, the only one.
    pub const FIRST: Self = Self(0);

    /// The number, for logs.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The driver's name of a buffer (or pipe) that holds payload to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(pub u64);

/// What [`super::Session::handle_header`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Header {
    /// Not a whole header or control frame: read until there are `needed` bytes.
    Incomplete {
        /// Bytes in all, counted from the first unread one; at most a whole datagram's frame.
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
    /// A whole frame with an IP packet, which is the driver's to hand on; skip its bytes.
    Datagram {
        /// Bytes of the frame's header.
        header: usize,
        /// Bytes of the frame.
        consumed: usize,
    },
}

/// Announced payload that is still on the carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Where it arrives.
    pub carrier: CarrierId,
    /// Where in its stream the next byte of it belongs. Over several carriers, what is before it may
    /// come later.
    pub offset: u64,
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
        header: FrameHeader,
        /// The payload behind it.
        payload: Payload,
    },
    /// The same, of a batch that was transmitted before: a part of one frame that a lost carrier did
    /// not deliver. The header goes in front of these bytes alone; the buffer's other frames stay as
    /// they are.
    Again {
        /// The carrier.
        carrier: CarrierId,
        /// The header's bytes.
        header: FrameHeader,
        /// The payload behind it.
        payload: Payload,
    },
}

/// Most bytes of a payload header of any protocol.
pub const HEADER_BYTES_MAX: usize = 16;

/// Most bytes of a control frame of any protocol: JMUX's, whose size is 16 bits.
pub const CONTROL_BYTES_MAX: usize = crate::jmux::codec::MESSAGE_SIZE_MAX;

/// Most bytes of what one datagram carries: the header of virtio-net and the longest IP packet.
pub const DATAGRAM_BYTES_MAX: usize = 10 + 65_535;

/// Bytes of the smallest packets that bulk comes in, in any protocol: JMUX's default.
pub const PACKET_BYTES_MIN: usize = crate::jmux::codec::PACKET_SIZE_DEFAULT as usize;

/// Bytes that a session's driver reads of a stream at first: session credit wakes one stream for each of these.
pub const FIRST_READ_BYTES: usize = 16 << 10;

/// The header of a payload frame, in place: every protocol's fits [`HEADER_BYTES_MAX`].
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
    /// It may be asked for again: the batch has to be kept until [`super::Session::poll_released`] names
    /// its token.
    pub retained: bool,
}

/// What a stream takes from its local socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendCapacity {
    /// Bytes; zero while a batch waits or credit is used up.
    pub bytes: u64,
    /// Header of a payload frame, bytes.
    pub header_bytes: usize,
    /// Payload of one full frame, bytes.
    pub payload_max: usize,
    /// The batch may be asked for again: [`Payload::retained`].
    pub retained: bool,
    /// More than half of what may be retained is: a batch should take no more memory than it has bytes.
    pub retain_scarce: bool,
}

/// Where the credit of one stream is, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditView {
    /// The peer's number of the stream.
    pub peer: u64,
    /// We may still send.
    pub send: u64,
    /// The peer may still send.
    pub recv: u64,
    /// Received, not taken by the local socket.
    pub buffered: u64,
    /// Taken, not given back yet.
    pub owed: u64,
}
