//! The frames of one direction of a carrier, of which only the boundaries matter.

use muxtunnel_proto::{jmux, native};

use super::profile::Kind;
use crate::session::http2::PREFACE;

/// Length of the header of an HTTP/2 frame (RFC 9113, section 4.1).
const HTTP2_HEADER_BYTES: usize = 9;

/// The position within a frame at which a sequence of bytes ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Boundary,
    Header,
    Payload,
}

/// Parses the frames of one direction.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    kind: Kind,
    /// The received bytes of a header or of a control frame.
    begun: Vec<u8>,
    /// Number of payload bytes that follow.
    payload: usize,
}

impl Frames {
    pub(super) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            begun: Vec::new(),
            payload: 0,
        }
    }

    pub(super) fn place(&self) -> Place {
        match (self.payload, self.begun.is_empty()) {
            (0, true) => Place::Boundary,
            (0, false) => Place::Header,
            _ => Place::Payload,
        }
    }

    /// # Errors
    /// The bytes are not valid frames.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> Result<Place, String> {
        while !bytes.is_empty() {
            if self.payload > 0 {
                let length = self.payload.min(bytes.len());
                self.payload -= length;
                bytes = &bytes[length..];
            } else {
                let length = (self.needed()? - self.begun.len()).min(bytes.len());
                self.begun.extend_from_slice(&bytes[..length]);
                bytes = &bytes[length..];
                self.needed()?;
            }
        }
        Ok(self.place())
    }

    /// Total number of bytes of the header or control frame that has begun, as far as it is known.
    /// If it is complete, drops it and returns 0.
    fn needed(&mut self) -> Result<usize, String> {
        let payload = match self.kind {
            Kind::Native => match native::codec::decode(&self.begun)
                .map_err(|error| error.to_string())?
            {
                native::codec::Decoded::Incomplete { needed } => return Ok(needed),
                native::codec::Decoded::Frame { .. } | native::codec::Decoded::Datagram { .. } => 0,
                native::codec::Decoded::Stream { length, .. } => length as usize,
            },
            Kind::Jmux => {
                match jmux::codec::decode(&self.begun).map_err(|error| error.to_string())? {
                    jmux::codec::Decoded::Incomplete { needed } => return Ok(needed),
                    jmux::codec::Decoded::Control { .. } => 0,
                    jmux::codec::Decoded::Data { length, .. } => length,
                }
            }
            // No frame begins as the preface, because such a frame would have more than 5 MiB.
            Kind::Http2 if self.begun.first() == PREFACE.first() => {
                if self.begun.len() < PREFACE.len() {
                    return Ok(PREFACE.len());
                }
                0
            }
            Kind::Http2 => match self.begun[..] {
                [high, middle, low, _, _, _, _, _, _] => {
                    u32::from_be_bytes([0, high, middle, low]) as usize
                }
                _ => return Ok(HTTP2_HEADER_BYTES),
            },
        };
        self.begun.clear();
        self.payload = payload;
        Ok(0)
    }
}
