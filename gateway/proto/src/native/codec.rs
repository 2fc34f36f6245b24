//! The native protocol on the wire, version 1: docs/protocol.md says the same in prose.
//!
//! Every frame: a fixed header of 16 bytes, `type u8 | length u24 | stream u48 | offset u48`, then
//! `length` bytes of body; integers are big endian. Frames about the session have no stream; the last
//! 8 bytes of their header are one `value u64`, bytes 4 to 7 a `number u32`. What a frame does not use
//! is zero and is refused when it is not.

mod decode;
mod encode;
mod hello;
mod source;

pub use decode::decode;
pub use encode::{datagram_header, encode, stream_header};
pub use hello::{
    ASSIGN_FEATURE, DATAGRAM_FEATURE, Hello, HelloAck, LISTEN_FEATURE, MAGIC, Parameters, RESUME,
    SOURCE, VERSION,
};

use crate::session::{
    Assignment, DATAGRAM_BYTES_MAX, LISTEN_ADDRESS_LENGTH_MAX, ListenId, Source, StreamId,
    TARGET_LENGTH_MAX,
};

/// Bytes of every frame's header.
pub const HEADER_BYTES: usize = 16;
/// Longest payload of one STREAM frame, bytes.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Least value of the parameter `frame_max`, bytes.
pub const FRAME_BYTES_MIN: u32 = 16 << 10;
/// Longest body of any frame but STREAM and DATAGRAM, bytes.
pub const BODY_BYTES_MAX: usize = 2 << 10;
/// Longest text of a reason or an address, bytes.
pub const TEXT_BYTES_MAX: usize = 256;
/// Largest stream id, offset and stream credit: 48 bits.
pub const OFFSET_MAX: u64 = (1 << 48) - 1;

const HELLO: u8 = 0x01;
const HELLO_ACK: u8 = 0x02;
const SESSION_CLOSE: u8 = 0x03;
const PING: u8 = 0x04;
const PONG: u8 = 0x05;
const GOAWAY: u8 = 0x06;
const OPEN: u8 = 0x08;
const OPENED: u8 = 0x09;
const OPEN_FROM: u8 = 0x0a;
const STREAM: u8 = 0x10;
const STREAM_FIN: u8 = 0x11;
const MAX_STREAM_DATA: u8 = 0x18;
const MAX_DATA: u8 = 0x19;
const MAX_STREAMS: u8 = 0x1a;
const RESET_STREAM: u8 = 0x1b;
const STOP_SENDING: u8 = 0x1c;
const ACK: u8 = 0x20;
const CARRIER_LOST: u8 = 0x21;
const CARRIERS: u8 = 0x22;
const RETIRE: u8 = 0x23;
const LISTEN: u8 = 0x28;
const LISTENING: u8 = 0x29;
const UNLISTEN: u8 = 0x2a;
const DATAGRAM: u8 = 0x30;
const ASSIGN: u8 = 0x31;

/// A frame without payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The dialler's first frame.
    Hello(Hello),
    /// The acceptor's answer.
    HelloAck(HelloAck),
    /// The session ends; the last frame.
    SessionClose {
        /// [`super::SessionCode`] as a number.
        code: u64,
        /// For people.
        reason: String,
    },
    /// Asks for a PONG with the same value.
    Ping(u64),
    /// Answers the latest PING.
    Pong(u64),
    /// No stream of the peer's after `last` is taken.
    GoAway {
        /// The peer's last stream that was taken; id 0: none was.
        last: StreamId,
    },
    /// Opens a stream. STREAM frames may follow at once.
    Open {
        /// An id never used before, with the opener's low bit.
        stream: StreamId,
        /// [`crate::Priority`] as a number; one that is not known is 0.
        priority: u8,
        /// What the target is told. Only with the feature SOURCE.
        source: Option<Source>,
        /// URL, 1 to 1,024 bytes.
        target: String,
    },
    /// The target has been reached.
    Opened {
        /// The stream.
        stream: StreamId,
        /// The address that was connected to, for people and for SOCKS replies.
        address: String,
    },
    /// The stream may be sent up to this offset.
    MaxStreamData {
        /// The stream.
        stream: StreamId,
        /// Bytes from the stream's beginning.
        limit: u64,
    },
    /// All streams together may be sent up to this sum of offsets.
    MaxData(u64),
    /// This many streams may be opened in the session's whole life.
    MaxStreams(u64),
    /// The sender's half of the stream is cut.
    ResetStream {
        /// The stream.
        stream: StreamId,
        /// [`crate::ResetCode`] as a number.
        code: u16,
        /// Bytes that were sent on it.
        final_size: u64,
        /// For people; empty where the code says all.
        reason: String,
    },
    /// The receiver wants no more of the stream.
    StopSending {
        /// The stream.
        stream: StreamId,
        /// [`crate::ResetCode`] as a number.
        code: u16,
    },
    /// Bytes received on this carrier. Only with the feature RESUME.
    Ack {
        /// Since the carrier's first byte, headers included.
        received: u64,
    },
    /// A carrier has ended. Only with the feature RESUME.
    CarrierLost {
        /// Its number.
        carrier: u32,
        /// Bytes received on it.
        received: u64,
    },
    /// What the acceptor sends could use this many carriers. Only with the feature RESUME.
    Carriers {
        /// Carriers.
        count: u32,
        /// Ascends; the greatest one counts.
        serial: u64,
    },
    /// The last frame on this carrier but for ACK, PONG and SESSION_CLOSE. Only with the feature RESUME.
    Retire,
    /// The dialler asks the acceptor to listen. Only with the feature LISTEN, as the next two.
    Listen {
        /// An id that is greater than all before.
        listen: ListenId,
        /// [`crate::Priority`] of its streams, as a number; one that is not known is 0.
        priority: u8,
        /// `ADDRESS:PORT`, 1 to 64 bytes.
        address: String,
    },
    /// It does.
    Listening {
        /// The listener.
        listen: ListenId,
        /// What is listened on, for people.
        address: String,
    },
    /// It does not, or not any more.
    Unlisten {
        /// The listener.
        listen: ListenId,
        /// 0: the dialler gives it up; else the acceptor's [`crate::Reason`] as a number.
        code: u64,
        /// For people.
        reason: String,
    },
    /// The acceptor tells the dialler its addresses, once a session. Only with the feature ASSIGN.
    Assign(Assignment),
}

impl Frame {
    /// Whether it has a meaning only on its carrier, or is generated again where that is lost. Nobody waits for its
    /// acknowledgement.
    pub(super) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Ack { .. } | Self::Ping(_) | Self::Pong(_) | Self::Carriers { .. } | Self::Retire
        )
    }
}

/// What the unread bytes of a carrier begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// Not a whole header or frame yet: at least `needed` bytes in all are.
    Incomplete {
        /// Bytes, counted from the first unread one.
        needed: usize,
    },
    /// A whole frame of `consumed` bytes.
    Frame {
        /// The frame.
        frame: Frame,
        /// Its bytes.
        consumed: usize,
    },
    /// The header of a STREAM frame, [`HEADER_BYTES`] long; `length` bytes of payload follow.
    Stream {
        /// The stream.
        stream: StreamId,
        /// Where in the stream the payload belongs.
        offset: u64,
        /// Payload bytes.
        length: u32,
        /// The stream ends behind this payload.
        fin: bool,
    },
    /// A whole DATAGRAM frame: its packet is what is behind the first [`HEADER_BYTES`] of `consumed` bytes. Only with the
    /// feature DATAGRAM.
    Datagram {
        /// Its bytes.
        consumed: usize,
    },
}

/// Bytes that are not this protocol, or a frame that is not well formed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The carrier does not begin with a HELLO of ours.
    #[error("these bytes are not the native protocol; does the other end speak it?")]
    NotNative,
    /// The type is not known.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
    /// The length is not one that this type can have.
    #[error("frame type {frame_type:#04x} with a body of {length} bytes")]
    BadLength {
        /// First byte.
        frame_type: u8,
        /// Its length field.
        length: u32,
    },
    /// A field that the frame does not use is not zero, or one that it needs is.
    #[error("frame type {0:#04x} with a field that it cannot have")]
    BadField(u8),
    /// A text is not UTF-8.
    #[error("frame type {0:#04x} with a text that is not UTF-8")]
    NotUtf8(u8),
    /// Addresses or domains are malformed, or too many.
    #[error("malformed addresses or domains of a network")]
    BadAssignment,
    /// A parameter of the hello is there twice, is too short, or has an impossible value.
    #[error("parameter {0} of the hello is malformed")]
    BadParameter(u16),
}

#[cfg(test)]
mod tests;
