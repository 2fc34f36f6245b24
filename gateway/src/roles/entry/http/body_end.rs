//! Finds the end of a request's body (RFC 9112, sections 6 and 7), so that the bytes after it stay
//! for the next request.
//!
//! Hyper decodes the body. If hyper finds another end than this module, the exchange fails: hyper
//! reads either the end of the stream, or bytes that are not a request. The other end is never the
//! begin of a request for a target.

use crate::ingress::listener::http::forwarded::BodyFraming;

#[derive(Debug)]
pub(super) enum BodyEnd {
    /// The number of bytes until the end.
    Length(u64),
    Chunked(Chunks),
}

/// The place in a chunked body.
#[derive(Debug, Clone, Copy)]
pub(super) enum Chunks {
    /// The size of a chunk, as far as it was read.
    Size(u64),
    /// After the digits of a size, until the end of the line.
    Extension(u64),
    /// The number of bytes until the next size, including the end of the line.
    Data(u64),
    /// A line after the last chunk. `is_empty` is true while the line has no character.
    Trailer {
        is_empty: bool,
    },
    Over,
}

impl BodyEnd {
    pub(super) const fn new(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => Self::Length(0),
            BodyFraming::Length(length) => Self::Length(length),
            BodyFraming::Chunked => Self::Chunked(Chunks::Size(0)),
        }
    }

    pub(super) const fn is_over(&self) -> bool {
        matches!(self, Self::Length(0) | Self::Chunked(Chunks::Over))
    }

    /// Reads up to the end of the body. Returns how many of `bytes` belong to the body.
    pub(super) fn take(&mut self, bytes: &[u8]) -> usize {
        match self {
            Self::Length(left) => {
                let taken = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                *left -= taken as u64;
                taken
            }
            Self::Chunked(chunks) => chunks.take(bytes),
        }
    }
}

impl Chunks {
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(byte) = bytes.get(at) {
            match *self {
                Self::Over => break,
                Self::Data(left) => {
                    let rest = bytes.len() - at;
                    let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rest);
                    at += taken;
                    let left = left - taken as u64;
                    *self = if left == 0 {
                        Self::Size(0)
                    } else {
                        Self::Data(left)
                    };
                }
                next => {
                    at += 1;
                    *self = next.after(*byte);
                }
            }
        }
        at
    }

    /// The place after a byte of a size, of an extension or of a trailer.
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::Size(0) | Self::Extension(0), b'\n') => Self::Trailer { is_empty: true },
            (Self::Size(size) | Self::Extension(size), b'\n') => Self::Data(size.saturating_add(2)),
            (Self::Size(size), byte) => match char::from(byte).to_digit(16) {
                // Hyper rejects a size that does not fit.
                Some(digit) => Self::Size(size.saturating_mul(16).saturating_add(u64::from(digit))),
                None => Self::Extension(size),
            },
            (Self::Trailer { is_empty: true }, b'\n') => Self::Over,
            (Self::Trailer { .. }, b'\n') => Self::Trailer { is_empty: true },
            (Self::Trailer { is_empty }, byte) => Self::Trailer {
                is_empty: is_empty && byte == b'\r',
            },
            (other, _) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_of(framing: BodyFraming, bytes: &[u8], piece: usize) -> Option<usize> {
        let mut body = BodyEnd::new(framing);
        let mut end = 0;
        for piece in bytes.chunks(piece) {
            if body.is_over() {
                break;
            }
            end += body.take(piece);
        }
        body.is_over().then_some(end)
    }

    #[test]
    fn a_body_ends_at_the_same_byte_in_any_pieces() {
        use BodyFraming::{Chunked, Length, None as Empty};
        for (framing, body) in [
            (Empty, ""),
            (Length(4), "body"),
            (Chunked, "0\r\n\r\n"),
            (Chunked, "4\r\nbody\r\n00\r\n\r\n"),
            (
                Chunked,
                "4;a=\"b\" \r\nb\r\nd\r\n0;x\r\nA: b\r\nC: 0\r\n\r\n",
            ),
            (Chunked, "A \r\n0\r\n\r\n0\r\n\r\r\n0\r\n\r\n"),
        ] {
            for piece in 1..=body.len() + 1 {
                let bytes = [body, "GET http://other/ HTTP/1.1\r\n"].concat();
                let end = end_of(framing, bytes.as_bytes(), piece);
                assert_eq!(end, Some(body.len()), "{body:?} in pieces of {piece}");
            }
        }
        for unfinished in [
            "",
            "4\r\nbod",
            "4\r\nbody\r\n",
            "0\r\n",
            "0\r\nA: b\r\n",
            "ffffffffffffffffff\r\n",
        ] {
            assert_eq!(end_of(Chunked, unfinished.as_bytes(), 64), None);
        }
    }
}
