//! The native protocol on the wire, version 1: docs/protocol.md says the same in prose.
//!
//! Every frame: a fixed header of 16 bytes, `type u8 | length u24 | stream u48 | offset u48`, then
//! `length` bytes of body; integers are big endian. Frames about the session have no stream; the last
//! 8 bytes of their header are one `value u64`, bytes 4 to 7 a `number u32`. What a frame does not use
//! is zero and is refused when it is not.

mod hello;
mod source;

pub use hello::{Hello, HelloAck, LISTEN_FEATURE, MAGIC, Parameters, RESUME, SOURCE, VERSION};

use crate::session::{LISTEN_ADDRESS_LENGTH_MAX, ListenId, Source, StreamId, TARGET_LENGTH_MAX};

/// Bytes of every frame's header.
pub const HEADER_BYTES: usize = 16;
/// Longest payload of one STREAM frame, bytes.
pub const FRAME_BYTES_MAX: u32 = 1 << 20;
/// Least value of the parameter `frame_max`, bytes.
pub const FRAME_BYTES_MIN: u32 = 16 << 10;
/// Longest body of any frame but STREAM, bytes.
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
}

impl Frame {
    /// Whether it means something only on its carrier, or is made anew where that is lost: nobody waits
    /// for its acknowledgement.
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
    /// A parameter of the hello is there twice, is too short, or has an impossible value.
    #[error("parameter {0} of the hello is malformed")]
    BadParameter(u16),
}

#[derive(Clone, Copy)]
struct Head {
    frame_type: u8,
    length: u32,
    number: u32,
    value: u64,
    stream: u64,
    offset: u64,
}

impl Head {
    fn read(header: &[u8; HEADER_BYTES]) -> Self {
        let wide = u128::from_be_bytes(*header);
        Self {
            frame_type: (wide >> 120) as u8,
            length: (wide >> 96) as u32 & 0x00ff_ffff,
            number: (wide >> 64) as u32,
            value: wide as u64,
            stream: (wide >> 48) as u64 & OFFSET_MAX,
            offset: wide as u64 & OFFSET_MAX,
        }
    }

    /// Of a frame about the session.
    fn value(self) -> Result<u64, DecodeError> {
        if self.number == 0 {
            Ok(self.value)
        } else {
            Err(DecodeError::BadField(self.frame_type))
        }
    }

    /// Of a frame about a stream; id 0 names none.
    fn stream(self) -> Result<StreamId, DecodeError> {
        if self.stream == 0 {
            return Err(DecodeError::BadField(self.frame_type));
        }
        Ok(StreamId(self.stream))
    }

    /// Of a frame about a stream that has no offset.
    fn stream_only(self) -> Result<StreamId, DecodeError> {
        if self.offset != 0 {
            return Err(DecodeError::BadField(self.frame_type));
        }
        self.stream()
    }

    /// Of a frame about a listener; id 0 names none.
    fn listen(self) -> Result<ListenId, DecodeError> {
        match self.number {
            0 => Err(DecodeError::BadField(self.frame_type)),
            number => Ok(ListenId(number)),
        }
    }

    fn code(self) -> Result<u16, DecodeError> {
        u16::try_from(self.offset).map_err(|_| DecodeError::BadField(self.frame_type))
    }

    fn blank(self) -> Result<(), DecodeError> {
        if self.stream == 0 && self.offset == 0 {
            Ok(())
        } else {
            Err(DecodeError::BadField(self.frame_type))
        }
    }
}

/// Reads what `bytes` begin with. Never panics; allocates at most [`BODY_BYTES_MAX`] and only when
/// all of the frame is there.
///
/// # Errors
/// [`DecodeError`]: the session must be given up.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        if let Some(&frame_type) = bytes.first() {
            body_bounds(frame_type)?;
        }
        return Ok(Decoded::Incomplete {
            needed: HEADER_BYTES,
        });
    };
    let head = Head::read(header);
    let (least, most) = body_bounds(head.frame_type)?;
    if !(least..=most).contains(&head.length) {
        return Err(DecodeError::BadLength {
            frame_type: head.frame_type,
            length: head.length,
        });
    }
    if matches!(head.frame_type, STREAM | STREAM_FIN) {
        return Ok(Decoded::Stream {
            stream: head.stream()?,
            offset: head.offset,
            length: head.length,
            fin: head.frame_type == STREAM_FIN,
        });
    }
    let consumed = HEADER_BYTES + head.length as usize;
    let Some(body) = bytes.get(HEADER_BYTES..consumed) else {
        return Ok(Decoded::Incomplete { needed: consumed });
    };
    Ok(Decoded::Frame {
        frame: frame(head, body)?,
        consumed,
    })
}

/// Least and longest body of a type, bytes.
fn body_bounds(frame_type: u8) -> Result<(u32, u32), DecodeError> {
    let text = TEXT_BYTES_MAX as u32;
    Ok(match frame_type {
        HELLO => (hello::HELLO_FIXED as u32, hello::HELLO_BYTES_MAX as u32),
        HELLO_ACK => (hello::ACK_FIXED as u32, hello::HELLO_BYTES_MAX as u32),
        OPEN => (2, 1 + TARGET_LENGTH_MAX as u32),
        // priority, source, target
        OPEN_FROM => (
            1 + 1 + 1,
            (1 + source::SOURCE_BYTES_MAX + TARGET_LENGTH_MAX) as u32,
        ),
        STREAM | STREAM_FIN => (0, FRAME_BYTES_MAX),
        SESSION_CLOSE | OPENED => (0, text),
        RESET_STREAM => (2, 2 + text),
        LISTEN => (2, 1 + LISTEN_ADDRESS_LENGTH_MAX as u32),
        LISTENING | UNLISTEN => (0, text),
        PING | PONG | GOAWAY | MAX_STREAM_DATA | MAX_DATA | MAX_STREAMS | STOP_SENDING | ACK
        | CARRIER_LOST | CARRIERS | RETIRE => (0, 0),
        other => return Err(DecodeError::UnknownType(other)),
    })
}

fn frame(head: Head, body: &[u8]) -> Result<Frame, DecodeError> {
    let text = |bytes: &[u8]| {
        std::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| DecodeError::NotUtf8(head.frame_type))
    };
    Ok(match head.frame_type {
        HELLO => {
            head.blank()?;
            Frame::Hello(Hello::read(body)?)
        }
        HELLO_ACK => {
            head.blank()?;
            Frame::HelloAck(HelloAck::read(body)?)
        }
        SESSION_CLOSE => Frame::SessionClose {
            code: head.value()?,
            reason: text(body)?,
        },
        PING => Frame::Ping(head.value()?),
        PONG => Frame::Pong(head.value()?),
        GOAWAY if head.offset == 0 => Frame::GoAway {
            last: StreamId(head.stream),
        },
        OPEN => match body {
            [priority, target @ ..] => Frame::Open {
                stream: head.stream_only()?,
                priority: *priority,
                source: None,
                target: text(target)?,
            },
            [] => return Err(DecodeError::BadField(OPEN)),
        },
        OPEN_FROM => {
            let source = body.get(1..).and_then(source::read);
            let (Some((source, target @ [_, ..])), Some(priority)) = (source, body.first()) else {
                return Err(DecodeError::BadField(OPEN_FROM));
            };
            Frame::Open {
                stream: head.stream_only()?,
                priority: *priority,
                source: Some(source),
                target: text(target)?,
            }
        }
        OPENED => Frame::Opened {
            stream: head.stream_only()?,
            address: text(body)?,
        },
        MAX_STREAM_DATA => Frame::MaxStreamData {
            stream: head.stream()?,
            limit: head.offset,
        },
        MAX_DATA => Frame::MaxData(head.value()?),
        MAX_STREAMS => Frame::MaxStreams(head.value()?),
        RESET_STREAM => match body {
            [high, low, reason @ ..] => Frame::ResetStream {
                stream: head.stream()?,
                code: u16::from_be_bytes([*high, *low]),
                final_size: head.offset,
                reason: text(reason)?,
            },
            _ => return Err(DecodeError::BadField(RESET_STREAM)),
        },
        STOP_SENDING => Frame::StopSending {
            stream: head.stream()?,
            code: head.code()?,
        },
        ACK => Frame::Ack {
            received: head.value()?,
        },
        CARRIER_LOST => Frame::CarrierLost {
            carrier: head.number,
            received: head.value,
        },
        CARRIERS => Frame::Carriers {
            count: head.number,
            serial: head.value,
        },
        RETIRE => {
            head.blank()?;
            Frame::Retire
        }
        LISTEN => match body {
            [priority, address @ ..] if head.value == 0 => Frame::Listen {
                listen: head.listen()?,
                priority: *priority,
                address: text(address)?,
            },
            _ => return Err(DecodeError::BadField(LISTEN)),
        },
        LISTENING if head.value == 0 => Frame::Listening {
            listen: head.listen()?,
            address: text(body)?,
        },
        UNLISTEN => Frame::Unlisten {
            listen: head.listen()?,
            code: head.value,
            reason: text(body)?,
        },
        other => return Err(DecodeError::BadField(other)),
    })
}

/// The header of a STREAM frame of `length` payload bytes, at most [`FRAME_BYTES_MAX`], that belong
/// at `offset`, at most [`OFFSET_MAX`].
#[must_use]
pub fn stream_header(stream: StreamId, offset: u64, length: u32, fin: bool) -> [u8; HEADER_BYTES] {
    let frame_type = if fin { STREAM_FIN } else { STREAM };
    header(frame_type, length, stream.0, offset)
}

fn header(frame_type: u8, length: u32, stream: u64, offset: u64) -> [u8; HEADER_BYTES] {
    debug_assert!(length <= FRAME_BYTES_MAX && stream <= OFFSET_MAX && offset <= OFFSET_MAX);
    let wide = u128::from(frame_type) << 120
        | u128::from(length & 0x00ff_ffff) << 96
        | u128::from(stream & OFFSET_MAX) << 48
        | u128::from(offset & OFFSET_MAX);
    wide.to_be_bytes()
}

/// Of a frame about the session.
fn session_header(frame_type: u8, length: usize, number: u32, value: u64) -> [u8; HEADER_BYTES] {
    let wide = u128::from(frame_type) << 120
        | (length as u128 & 0x00ff_ffff) << 96
        | u128::from(number) << 64
        | u128::from(value);
    wide.to_be_bytes()
}

/// The bytes of a frame. Texts are cut at [`TEXT_BYTES_MAX`], a target at
/// [`TARGET_LENGTH_MAX`]; [`crate::Session::open`] refuses longer ones before.
#[must_use]
pub fn encode(frame: &Frame) -> Vec<u8> {
    let about_session = |frame_type, value| session_header(frame_type, 0, 0, value).to_vec();
    match frame {
        Frame::Hello(hello) => with_body(HELLO, 0, 0, &hello.write()),
        Frame::HelloAck(ack) => with_body(HELLO_ACK, 0, 0, &ack.write()),
        Frame::SessionClose { code, reason } => with_text(SESSION_CLOSE, 0, *code, reason),
        Frame::Ping(value) => about_session(PING, *value),
        Frame::Pong(value) => about_session(PONG, *value),
        Frame::GoAway { last } => header(GOAWAY, 0, last.0, 0).to_vec(),
        Frame::Open {
            stream,
            priority,
            source,
            target,
        } => {
            let mut body = vec![*priority];
            if let Some(source) = source {
                source::write(*source, &mut body);
            }
            body.extend(cut(target, TARGET_LENGTH_MAX).bytes());
            let frame_type = if source.is_some() { OPEN_FROM } else { OPEN };
            with_body(frame_type, stream.0, 0, &body)
        }
        Frame::Opened { stream, address } => {
            with_body(OPENED, stream.0, 0, cut(address, TEXT_BYTES_MAX).as_bytes())
        }
        Frame::MaxStreamData { stream, limit } => {
            header(MAX_STREAM_DATA, 0, stream.0, *limit).to_vec()
        }
        Frame::MaxData(limit) => about_session(MAX_DATA, *limit),
        Frame::MaxStreams(limit) => about_session(MAX_STREAMS, *limit),
        Frame::ResetStream {
            stream,
            code,
            final_size,
            reason,
        } => {
            let mut body = code.to_be_bytes().to_vec();
            body.extend(cut(reason, TEXT_BYTES_MAX).bytes());
            with_body(RESET_STREAM, stream.0, *final_size, &body)
        }
        Frame::StopSending { stream, code } => {
            header(STOP_SENDING, 0, stream.0, u64::from(*code)).to_vec()
        }
        Frame::Ack { received } => about_session(ACK, *received),
        Frame::CarrierLost { carrier, received } => {
            session_header(CARRIER_LOST, 0, *carrier, *received).to_vec()
        }
        Frame::Carriers { count, serial } => session_header(CARRIERS, 0, *count, *serial).to_vec(),
        Frame::Retire => header(RETIRE, 0, 0, 0).to_vec(),
        Frame::Listen {
            listen,
            priority,
            address,
        } => {
            let address = cut(address, LISTEN_ADDRESS_LENGTH_MAX);
            let mut out = session_header(LISTEN, 1 + address.len(), listen.0, 0).to_vec();
            out.push(*priority);
            out.extend(address.bytes());
            out
        }
        Frame::Listening { listen, address } => with_text(LISTENING, listen.0, 0, address),
        Frame::Unlisten {
            listen,
            code,
            reason,
        } => with_text(UNLISTEN, listen.0, *code, reason),
    }
}

fn with_body(frame_type: u8, stream: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    debug_assert!(body.len() <= BODY_BYTES_MAX);
    let mut out = header(frame_type, body.len() as u32, stream, offset).to_vec();
    out.extend(body);
    out
}

/// A frame about the session whose body is a text.
fn with_text(frame_type: u8, number: u32, value: u64, text: &str) -> Vec<u8> {
    let text = cut(text, TEXT_BYTES_MAX);
    let mut out = session_header(frame_type, text.len(), number, value).to_vec();
    out.extend(text.bytes());
    out
}

fn cut(text: &str, length_max: usize) -> &str {
    &text[..text.floor_char_boundary(length_max)]
}

#[cfg(test)]
mod tests;
