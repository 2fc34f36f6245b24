//! HELLO and HELLO_ACK, which agree on a version and on limits.
//!
//! A fixed part is followed by parameters, `id u16 | length u16 | value`. Unknown ids are skipped,
//! so that a later version can add parameters. The body has at most [`HELLO_BYTES_MAX`] bytes.

use std::fmt;

use super::{DecodeError, FRAME_BYTES_MAX, FRAME_BYTES_MIN, HELLO as HELLO_TYPE, OFFSET_MAX};

/// The first bytes of a HELLO.
pub const MAGIC: [u8; 8] = *b"MUXTUNEL";
/// The protocol version that this crate implements.
pub const VERSION: u16 = 1;
/// Feature bit 0: streams survive the loss of a carrier, and may use several carriers at once
/// (docs/protocol.md).
pub const RESUME: u32 = 1;
/// Feature bit 1: the dialler may ask the acceptor to listen.
pub const LISTEN_FEATURE: u32 = 2;
/// Feature bit 2: opens may carry the client's address.
pub const SOURCE: u32 = 4;
/// Feature bit 3: the session carries IP packets.
pub const DATAGRAM_FEATURE: u32 = 8;
/// Feature bit 4: the acceptor may assign addresses to the dialler.
pub const ASSIGN_FEATURE: u32 = 16;

/// Longest body of HELLO and HELLO_ACK, in bytes.
pub(super) const HELLO_BYTES_MAX: usize = 1024;
/// Bytes of the fixed fields of HELLO: magic, lowest version, highest version, features, carrier
/// number, session id, token.
pub(super) const HELLO_FIXED: usize = 8 + 2 + 2 + 4 + 4 + 16 + 32;
/// Bytes of the fixed fields of HELLO_ACK: version, reserved, features, session id, token.
pub(super) const ACK_FIXED: usize = 2 + 2 + 4 + 16 + 32;

const INITIAL_MAX_DATA: u16 = 1;
const INITIAL_MAX_STREAM_DATA: u16 = 2;
const INITIAL_MAX_STREAMS: u16 = 3;
const FRAME_MAX: u16 = 4;

/// The limits of one side. The names come from RFC 9000's transport parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Bytes that the peer may send on all streams together. MAX_DATA raises this limit.
    pub initial_max_data: u64,
    /// Bytes that the peer may send on each stream, at most 2^48 - 1. MAX_STREAM_DATA raises this
    /// limit.
    pub initial_max_stream_data: u64,
    /// Number of streams that the peer may open. MAX_STREAMS raises this limit.
    pub initial_max_streams: u64,
    /// Longest payload of a STREAM frame that this side accepts, 16 KiB to 1 MiB.
    pub frame_max: u32,
}

impl Default for Parameters {
    /// The values of missing parameters.
    fn default() -> Self {
        Self {
            initial_max_data: 0,
            initial_max_stream_data: 0,
            initial_max_streams: 0,
            frame_max: FRAME_BYTES_MIN,
        }
    }
}

impl Parameters {
    fn write(self, out: &mut Vec<u8>) {
        for (id, value) in [
            (INITIAL_MAX_DATA, self.initial_max_data),
            (INITIAL_MAX_STREAM_DATA, self.initial_max_stream_data),
            (INITIAL_MAX_STREAMS, self.initial_max_streams),
        ] {
            out.extend(id.to_be_bytes());
            out.extend(8u16.to_be_bytes());
            out.extend(value.to_be_bytes());
        }
        out.extend(FRAME_MAX.to_be_bytes());
        out.extend(4u16.to_be_bytes());
        out.extend(self.frame_max.to_be_bytes());
    }

    fn read(mut fields: Fields<'_>) -> Result<Self, DecodeError> {
        let mut parameters = Self::default();
        let mut seen = [false; FRAME_MAX as usize + 1];
        while !fields.0.is_empty() {
            let (id, value) = fields.parameter()?;
            let bad = DecodeError::BadParameter(id);
            if let Some(seen) = seen.get_mut(usize::from(id))
                && std::mem::replace(seen, true)
            {
                return Err(bad);
            }
            let long = || value.try_into().map(u64::from_be_bytes);
            match id {
                INITIAL_MAX_DATA => parameters.initial_max_data = long().map_err(|_| bad)?,
                INITIAL_MAX_STREAM_DATA => {
                    let limit = long().ok().filter(|limit| *limit <= OFFSET_MAX);
                    parameters.initial_max_stream_data = limit.ok_or(bad)?;
                }
                INITIAL_MAX_STREAMS => parameters.initial_max_streams = long().map_err(|_| bad)?,
                FRAME_MAX => {
                    let bytes = value.try_into().ok().map(u32::from_be_bytes);
                    let range = FRAME_BYTES_MIN..=FRAME_BYTES_MAX;
                    parameters.frame_max =
                        bytes.filter(|bytes| range.contains(bytes)).ok_or(bad)?;
                }
                _ => {}
            }
        }
        Ok(parameters)
    }
}

/// The dialler's first frame.
#[derive(Clone, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version that the dialler supports.
    pub version_min: u16,
    /// The highest version that the dialler supports.
    pub version_max: u16,
    /// Offered feature bits.
    pub features: u32,
    /// This carrier's number within the session, from 0.
    pub carrier: u32,
    /// Zero for a new session, otherwise the session to join (feature RESUME).
    pub session_id: [u8; 16],
    /// The session's token for a join, otherwise zero.
    pub token: [u8; 32],
    /// The dialler's limits.
    pub parameters: Parameters,
}

/// Omits the token.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hello")
            .field("versions", &(self.version_min..=self.version_max))
            .field("features", &self.features)
            .field("carrier", &self.carrier)
            .field("session_id", &self.session_id)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

impl Hello {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.version_min.to_be_bytes());
        out.extend(self.version_max.to_be_bytes());
        out.extend(self.features.to_be_bytes());
        out.extend(self.carrier.to_be_bytes());
        out.extend(self.session_id);
        out.extend(self.token);
        self.parameters.write(&mut out);
        out
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(body);
        if fields.array() != MAGIC {
            return Err(DecodeError::NotNative);
        }
        let version_min = u16::from_be_bytes(fields.array());
        let version_max = u16::from_be_bytes(fields.array());
        let features = u32::from_be_bytes(fields.array());
        let carrier = u32::from_be_bytes(fields.array());
        if version_min > version_max {
            return Err(DecodeError::BadField(HELLO_TYPE));
        }
        Ok(Self {
            version_min,
            version_max,
            features,
            carrier,
            session_id: fields.array(),
            token: fields.array(),
            parameters: Parameters::read(fields)?,
        })
    }
}

/// The acceptor's answer.
#[derive(Clone, PartialEq, Eq)]
pub struct HelloAck {
    /// The version of the session.
    pub version: u16,
    /// Agreed feature bits, a subset of the offered bits.
    pub features: u32,
    /// The session's id.
    pub session_id: [u8; 16],
    /// The secret with which another carrier joins the session.
    pub token: [u8; 32],
    /// The acceptor's limits.
    pub parameters: Parameters,
}

/// Omits the token.
impl fmt::Debug for HelloAck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HelloAck")
            .field("version", &self.version)
            .field("features", &self.features)
            .field("session_id", &self.session_id)
            .field("parameters", &self.parameters)
            .finish_non_exhaustive()
    }
}

impl HelloAck {
    pub(super) fn write(&self) -> Vec<u8> {
        let mut out = self.version.to_be_bytes().to_vec();
        out.extend([0, 0]);
        out.extend(self.features.to_be_bytes());
        out.extend(self.session_id);
        out.extend(self.token);
        self.parameters.write(&mut out);
        out
    }

    pub(super) fn read(body: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields(body);
        let version = u16::from_be_bytes(fields.array());
        if fields.array() != [0; 2] {
            return Err(DecodeError::BadField(super::HELLO_ACK));
        }
        Ok(Self {
            version,
            features: u32::from_be_bytes(fields.array()),
            session_id: fields.array(),
            token: fields.array(),
            parameters: Parameters::read(fields)?,
        })
    }
}

/// The remaining fields of a body. The length check of the header covers the fixed part; missing
/// bytes read as zero.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.0 = rest;
                *array
            }
            None => [0; N],
        }
    }

    fn parameter(&mut self) -> Result<(u16, &'a [u8]), DecodeError> {
        let Some((&[a, b, c, d], rest)) = self.0.split_first_chunk::<4>() else {
            return Err(DecodeError::BadParameter(0));
        };
        let id = u16::from_be_bytes([a, b]);
        let length = usize::from(u16::from_be_bytes([c, d]));
        let (value, rest) = rest
            .split_at_checked(length)
            .ok_or(DecodeError::BadParameter(id))?;
        self.0 = rest;
        Ok((id, value))
    }
}
