//! The wire format of JMUX, compatible with Devolutions' jetsocat.
//!
//! Every message is `type u8 | size u16 (whole message) | flags u8`, then the body. Integers are
//! big endian. Source: JMUX-spec.md and `jmux-proto` in Devolutions/devolutions-gateway. jetsocat
//! sends flags 0 and ignores received flags, so the flags can carry our extensions. OPEN offers an
//! extension. If OPEN SUCCESS contains the same extension, both sides use the extension.

use crate::session::{CONTROL_BYTES_MAX, PACKET_BYTES_MIN, TARGET_LENGTH_MAX};

/// A channel's number, assigned by one side of a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A frame without payload. `recipient` is the receiver's number for the channel. `sender` is the
/// sender's number for the channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Control {
    /// Requests a stream to `target`.
    Open {
        /// The opener's number.
        sender: ChannelId,
        /// Offered initial credit in bytes.
        window: u32,
        /// Largest frame that the opener accepts, header included, in bytes.
        packet_max: u16,
        /// Offered extension bits.
        extensions: u8,
        /// Target URL.
        target: String,
    },
    /// Answers an OPEN: the stream is open.
    Opened {
        /// The opener's number.
        recipient: ChannelId,
        /// The acceptor's number.
        sender: ChannelId,
        /// Initial credit in bytes, which applies to each direction.
        window: u32,
        /// Largest frame in bytes, header included, which applies to each direction.
        packet_max: u16,
        /// Agreed extension bits.
        extensions: u8,
    },
    /// Answers an OPEN: the stream is refused.
    OpenFailed {
        /// The opener's number.
        recipient: ChannelId,
        /// SOCKS5 reply number (RFC 1928, section 6).
        reason: u32,
        /// A human-readable text.
        description: String,
    },
    /// Adds `increment` bytes of credit.
    Credit {
        /// The receiver's number.
        recipient: ChannelId,
        /// Number of bytes added.
        increment: u32,
    },
    /// Adds no credit, so that a silent carrier carries a byte. On the wire, the frame is a WINDOW
    /// ADJUST of 0 bytes with a flag, which jetsocat ignores.
    Probe {
        /// The receiver's number of any channel, or [`NO_CHANNEL`].
        recipient: ChannelId,
        /// Whether the frame answers a probe. The receiver answers any other probe.
        is_answer: bool,
    },
    /// The sender has no more payload.
    Finish {
        /// The receiver's number.
        recipient: ChannelId,
    },
    /// The sender no longer uses the channel.
    Close {
        /// The receiver's number.
        recipient: ChannelId,
        /// The stream was cut: the receiver resets its socket. Sent only if both sides agreed on
        /// the extension.
        abort: bool,
    },
}

/// The first frame of a carrier's unread bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decoded {
    /// The header or control frame is incomplete.
    Incomplete {
        /// Number of bytes needed, counted from the first unread byte.
        needed: usize,
    },
    /// A whole control frame of `consumed` bytes.
    Control {
        /// The frame.
        control: Control,
        /// Size of the frame in bytes.
        consumed: usize,
    },
    /// The header of a payload frame. `length` bytes of payload follow the header's `consumed`
    /// bytes.
    Data {
        /// The receiver's number for the channel.
        recipient: ChannelId,
        /// Payload bytes.
        length: usize,
        /// Bytes of the header.
        consumed: usize,
    },
}

/// Size of the header `type u8 | size u16 | flags u8` in bytes.
pub const HEADER_SIZE: usize = 1 + 2 + 1;
/// Size of a DATA message without its payload: header and channel.
pub const DATA_OVERHEAD: usize = HEADER_SIZE + 4;
/// Smallest `maximum packet size` that leaves room for payload.
pub const PACKET_SIZE_MIN: u16 = DATA_OVERHEAD as u16 + 1;
/// jetsocat's maximum packet size, header included. This is the default for an unknown peer.
pub const PACKET_SIZE_DEFAULT: u16 = 4096;
const _: () = assert!(PACKET_SIZE_DEFAULT as usize == PACKET_BYTES_MIN);
/// Largest message in bytes. The size field is a u16.
pub const MESSAGE_SIZE_MAX: usize = u16::MAX as usize;
const _: () = assert!(MESSAGE_SIZE_MAX == CONTROL_BYTES_MAX);
/// Longest description that this side sends in an OPEN FAILURE, in bytes.
pub const DESCRIPTION_LENGTH_MAX: usize = 256;

/// Extension bit: a CLOSE with this flag reports that the stream was cut ([`Control::Close`]).
pub const EXTENSION_ABORT: u8 = 0x01;
/// Flag of a WINDOW ADJUST of 0 bytes: the receiver has to answer ([`Control::Probe`]).
const FLAG_PROBE: u8 = 0x01;
/// Flag of a WINDOW ADJUST of 0 bytes: the frame answers a probe.
const FLAG_ANSWER: u8 = 0x02;
/// The recipient of a probe while no channel is open.
pub const NO_CHANNEL: ChannelId = ChannelId(u32::MAX);

const OPEN: u8 = 100;
const OPEN_SUCCESS: u8 = 101;
const OPEN_FAILURE: u8 = 102;
const WINDOW_ADJUST: u8 = 103;
const DATA: u8 = 104;
const EOF: u8 = 105;
const CLOSE: u8 = 106;

/// The bytes are not JMUX. The carrier is unusable, because frame boundaries are lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first byte is not a message type. The peer may not be a JMUX proxy.
    #[error("message type {0} does not exist in JMUX (100 to 106); is the peer a JMUX proxy?")]
    UnknownType(u8),
    /// The size is too small for the message, or differs from the fixed size of the message.
    #[error("message type {message_type} has a size of {size} bytes, expected {expected}")]
    BadSize {
        /// The message type.
        message_type: u8,
        /// The value of its size field.
        size: usize,
        /// The expected size.
        expected: &'static str,
    },
    /// The message contains a text that is not UTF-8.
    #[error("message type {0} has a text that is not UTF-8")]
    NotUtf8(u8),
}

/// Decodes the first frame of `bytes`. Never panics. Allocates at most the size of one message, and
/// only once the message is complete.
///
/// # Errors
/// [`DecodeError`]: the caller must close the carrier.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_SIZE>() else {
        if let Some(&message_type) = bytes.first() {
            check_type(message_type)?;
        }
        return Ok(Decoded::Incomplete {
            needed: HEADER_SIZE,
        });
    };
    let [message_type, high, low, flags] = *header;
    let size = usize::from(u16::from_be_bytes([high, low]));
    check_type(message_type)?;
    check_size(message_type, size)?;
    if message_type == DATA {
        return Ok(decode_data(bytes, size));
    }
    let Some(body) = bytes.get(HEADER_SIZE..size) else {
        return Ok(Decoded::Incomplete { needed: size });
    };
    let mut body = Body(body);
    let control = match message_type {
        OPEN => Control::Open {
            sender: body.channel(),
            window: body.u32(),
            packet_max: body.u16(),
            extensions: flags,
            target: body.text(message_type)?,
        },
        OPEN_SUCCESS => Control::Opened {
            recipient: body.channel(),
            sender: body.channel(),
            window: body.u32(),
            packet_max: body.u16(),
            extensions: flags,
        },
        OPEN_FAILURE => Control::OpenFailed {
            recipient: body.channel(),
            reason: body.u32(),
            description: body.text(message_type)?,
        },
        WINDOW_ADJUST => match (body.channel(), body.u32(), flags) {
            (recipient, 0, FLAG_PROBE | FLAG_ANSWER) => Control::Probe {
                recipient,
                is_answer: flags == FLAG_ANSWER,
            },
            (recipient, increment, _) => Control::Credit {
                recipient,
                increment,
            },
        },
        EOF => Control::Finish {
            recipient: body.channel(),
        },
        _ => Control::Close {
            recipient: body.channel(),
            abort: flags & EXTENSION_ABORT != 0,
        },
    };
    Ok(Decoded::Control {
        control,
        consumed: size,
    })
}

fn decode_data(bytes: &[u8], size: usize) -> Decoded {
    match bytes.get(HEADER_SIZE..DATA_OVERHEAD) {
        Some(channel) => Decoded::Data {
            recipient: Body(channel).channel(),
            length: size - DATA_OVERHEAD,
            consumed: DATA_OVERHEAD,
        },
        None => Decoded::Incomplete {
            needed: DATA_OVERHEAD,
        },
    }
}

fn check_type(message_type: u8) -> Result<(), DecodeError> {
    match message_type {
        OPEN..=CLOSE => Ok(()),
        _ => Err(DecodeError::UnknownType(message_type)),
    }
}

fn check_size(message_type: u8, size: usize) -> Result<(), DecodeError> {
    let (fits, expected) = match message_type {
        OPEN => ((14..=14 + TARGET_LENGTH_MAX).contains(&size), "14 to 1038"),
        OPEN_SUCCESS => (size == 18, "18"),
        OPEN_FAILURE => (size >= 12, "at least 12"),
        WINDOW_ADJUST => (size == 12, "12"),
        DATA => (size >= DATA_OVERHEAD, "at least 8"),
        _ => (size == 8, "8"),
    };
    if fits {
        Ok(())
    } else {
        Err(DecodeError::BadSize {
            message_type,
            size,
            expected,
        })
    }
}

/// The fields of a body. [`check_size`] has checked its length; missing bytes read as zero.
struct Body<'a>(&'a [u8]);

impl Body<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.0 = rest;
                *array
            }
            None => [0; N],
        }
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    fn channel(&mut self) -> ChannelId {
        ChannelId(self.u32())
    }

    fn text(&self, message_type: u8) -> Result<String, DecodeError> {
        std::str::from_utf8(self.0)
            .map(str::to_owned)
            .map_err(|_| DecodeError::NotUtf8(message_type))
    }
}

/// The header of a DATA message of `length` payload bytes, 1..=65,527.
#[must_use]
pub fn data_header(recipient: ChannelId, length: u16) -> [u8; DATA_OVERHEAD] {
    debug_assert!(usize::from(length) + DATA_OVERHEAD <= MESSAGE_SIZE_MAX);
    let mut header = [0; DATA_OVERHEAD];
    header[0] = DATA;
    header[1..3].copy_from_slice(&length.saturating_add(DATA_OVERHEAD as u16).to_be_bytes());
    header[4..].copy_from_slice(&recipient.0.to_be_bytes());
    header
}

/// Encodes a control message. Texts are cut at [`TARGET_LENGTH_MAX`] and
/// [`DESCRIPTION_LENGTH_MAX`]. [`crate::Session::open`] refuses longer targets earlier.
#[must_use]
pub fn encode(control: &Control) -> Vec<u8> {
    let mut out = vec![0; HEADER_SIZE];
    let (message_type, flags) = match control {
        Control::Open {
            sender,
            window,
            packet_max,
            extensions,
            target,
        } => {
            put(&mut out, &[sender.0, *window]);
            out.extend(packet_max.to_be_bytes());
            out.extend(cut(target, TARGET_LENGTH_MAX).bytes());
            (OPEN, *extensions)
        }
        Control::Opened {
            recipient,
            sender,
            window,
            packet_max,
            extensions,
        } => {
            put(&mut out, &[recipient.0, sender.0, *window]);
            out.extend(packet_max.to_be_bytes());
            (OPEN_SUCCESS, *extensions)
        }
        Control::OpenFailed {
            recipient,
            reason,
            description,
        } => {
            put(&mut out, &[recipient.0, *reason]);
            out.extend(cut(description, DESCRIPTION_LENGTH_MAX).bytes());
            (OPEN_FAILURE, 0)
        }
        Control::Credit {
            recipient,
            increment,
        } => {
            put(&mut out, &[recipient.0, *increment]);
            (WINDOW_ADJUST, 0)
        }
        Control::Probe {
            recipient,
            is_answer,
        } => {
            put(&mut out, &[recipient.0, 0]);
            let flag = if *is_answer { FLAG_ANSWER } else { FLAG_PROBE };
            (WINDOW_ADJUST, flag)
        }
        Control::Finish { recipient } => {
            put(&mut out, &[recipient.0]);
            (EOF, 0)
        }
        Control::Close { recipient, abort } => {
            put(&mut out, &[recipient.0]);
            (CLOSE, if *abort { EXTENSION_ABORT } else { 0 })
        }
    };
    let [high, low] = u16::try_from(out.len()).unwrap_or(u16::MAX).to_be_bytes();
    out[..HEADER_SIZE].copy_from_slice(&[message_type, high, low, flags]);
    out
}

fn put(out: &mut Vec<u8>, fields: &[u32]) {
    for field in fields {
        out.extend(field.to_be_bytes());
    }
}

fn cut(text: &str, length_max: usize) -> &str {
    &text[..text.floor_char_boundary(length_max)]
}

#[cfg(test)]
mod tests;
