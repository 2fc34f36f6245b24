//! The wire format of the native protocol, version 1. docs/protocol.md describes it in prose.
//!
//! Every frame begins with a header of 16 bytes, `type u8 | length u24 | stream u48 | offset u48`.
//! A body of `length` bytes follows. Integers are big endian. Frames about the session have no
//! stream: bytes 4 to 7 of their header are a `number u32`, and the last 8 bytes are a `value u64`.
//! Unused fields must be zero; the decoder refuses other values.

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

/// Size of every frame's header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Longest payload of a STREAM frame in bytes.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Smallest value of the parameter `frame_max` in bytes.
pub const FRAME_BYTES_MIN: u32 = 16 << 10;
/// Longest body of a frame other than STREAM and DATAGRAM, in bytes.
pub const BODY_BYTES_MAX: usize = 2 << 10;
/// Longest text of a reason or an address, in bytes.
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
    /// Ends the session. No frame follows.
    SessionClose {
        /// [`super::SessionCode`] as a number.
        code: u64,
        /// A text for people.
        reason: String,
    },
    /// Asks for a PONG with the same value.
    Ping(u64),
    /// Answers the latest PING.
    Pong(u64),
    /// The sender accepts no stream that the peer opened after `last`.
    GoAway {
        /// The last accepted stream of the peer. Id 0: no stream was accepted.
        last: StreamId,
    },
    /// Opens a stream. STREAM frames may follow at once.
    Open {
        /// An id that was never used before. Ids of the dialler are even, ids of the acceptor are
        /// odd.
        stream: StreamId,
        /// [`crate::Priority`] as a number. Unknown numbers mean 0.
        priority: u8,
        /// The client whose address the peer sends to the target. Needs the feature SOURCE.
        source: Option<Source>,
        /// URL, 1 to 1,024 bytes.
        target: String,
    },
    /// Answers an OPEN: the target has been reached.
    Opened {
        /// The stream.
        stream: StreamId,
        /// The address that the side that answers has connected to, for people and for SOCKS
        /// replies.
        address: String,
    },
    /// The peer may send on the stream up to this offset.
    MaxStreamData {
        /// The stream.
        stream: StreamId,
        /// Bytes from the stream's beginning.
        limit: u64,
    },
    /// The peer may send until the offsets of all streams add up to this number of bytes.
    MaxData(u64),
    /// The peer may open this many streams over the session's whole life.
    MaxStreams(u64),
    /// Ends the sender's half of the stream with a reset.
    ResetStream {
        /// The stream.
        stream: StreamId,
        /// [`crate::ResetCode`] as a number.
        code: u16,
        /// Bytes that were sent on the stream.
        final_size: u64,
        /// A text for people; empty if the code suffices.
        reason: String,
    },
    /// The sender of this frame wants no more bytes of the stream.
    StopSending {
        /// The stream.
        stream: StreamId,
        /// [`crate::ResetCode`] as a number.
        code: u16,
    },
    /// Acknowledges bytes received on this carrier. Needs the feature RESUME.
    Ack {
        /// Number of bytes received on the carrier after its hello, headers included.
        received: u64,
    },
    /// Reports that a carrier has ended. Needs the feature RESUME.
    CarrierLost {
        /// The carrier's number.
        carrier: u32,
        /// Bytes received on the carrier after its hello.
        received: u64,
    },
    /// Number of carriers that the acceptor could use for the payload that it sends. Needs the
    /// feature RESUME.
    Carriers {
        /// Number of carriers.
        count: u32,
        /// Increases with each frame. The frame with the greatest serial is in force.
        serial: u64,
    },
    /// The last frame on this carrier except for ACK, PONG and SESSION_CLOSE. Needs the feature
    /// RESUME.
    Retire,
    /// The dialler asks the acceptor to listen. This frame and the next two need the feature
    /// LISTEN.
    Listen {
        /// An id greater than the ids of all earlier listeners.
        listen: ListenId,
        /// [`crate::Priority`] of the listener's streams, as a number. Unknown numbers mean 0.
        priority: u8,
        /// `ADDRESS:PORT`, 1 to 64 bytes.
        address: String,
    },
    /// Answers a LISTEN: the acceptor listens.
    Listening {
        /// The listener.
        listen: ListenId,
        /// The address that the acceptor listens on, for people.
        address: String,
    },
    /// Ends a listener, or refuses a LISTEN.
    Unlisten {
        /// The listener.
        listen: ListenId,
        /// 0: the dialler gives up the listener. Otherwise the acceptor's [`crate::Reason`] as a
        /// number.
        code: u64,
        /// A text for people.
        reason: String,
    },
    /// The acceptor assigns addresses to the dialler, once per session. Needs the feature ASSIGN.
    Assign(Assignment),
}

impl Frame {
    /// Whether the frame has a meaning only on the carrier that transmits it, or is created again
    /// if this carrier is lost. Such a frame needs no acknowledgement.
    pub(super) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Ack { .. } | Self::Ping(_) | Self::Pong(_) | Self::Carriers { .. } | Self::Retire
        )
    }
}

/// The first frame of a carrier's unread bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// The header or frame is incomplete.
    Incomplete {
        /// Number of bytes needed, counted from the first unread byte.
        needed: usize,
    },
    /// A whole frame of `consumed` bytes.
    Frame {
        /// The frame.
        frame: Frame,
        /// Size of the frame in bytes.
        consumed: usize,
    },
    /// The header of a STREAM frame, [`HEADER_BYTES`] long. `length` bytes of payload follow.
    Stream {
        /// The stream.
        stream: StreamId,
        /// The offset of the payload in the stream.
        offset: u64,
        /// Payload bytes.
        length: u32,
        /// The stream ends after this payload.
        fin: bool,
    },
    /// A whole DATAGRAM frame of `consumed` bytes. Its packet follows the first [`HEADER_BYTES`].
    /// Needs the feature DATAGRAM.
    Datagram {
        /// Size of the frame in bytes.
        consumed: usize,
    },
}

/// Bytes of another protocol, or a malformed frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The carrier does not begin with a HELLO of this protocol.
    #[error("these bytes are not the native protocol; does the peer use the native protocol?")]
    NotNative,
    /// The frame's type is unknown.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
    /// This frame type cannot have this length.
    #[error("frame type {frame_type:#04x} has an invalid length of {length} bytes")]
    BadLength {
        /// The frame's type.
        frame_type: u8,
        /// The value of its length field.
        length: u32,
    },
    /// An unused field is not zero, or a required field is zero.
    #[error("frame type {0:#04x} has an invalid field")]
    BadField(u8),
    /// A text of the frame is not UTF-8.
    #[error("frame type {0:#04x} has a text that is not UTF-8")]
    NotUtf8(u8),
    /// Addresses or domains of an ASSIGN are malformed, or there are too many.
    #[error("ASSIGN has malformed or too many addresses or domains")]
    BadAssignment,
    /// A parameter of the hello occurs twice, is too short, or has an invalid value.
    #[error("parameter {0} of the hello is malformed")]
    BadParameter(u16),
}

#[cfg(test)]
mod tests;
