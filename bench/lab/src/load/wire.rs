//! What a client of `muxlab serve` asks for: the first byte of each connection.

/// Bytes of one read or write of bulk data.
pub(crate) const BULK_BYTES: usize = 128 << 10;

/// Bytes of one read or write of a mirrored stream, of which there may be a thousand.
pub(crate) const MIRROR_BYTES: usize = 16 << 10;

/// Bytes of a small message.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Send back what comes.
    Echo = b'e',
    /// Send back what comes, in pieces of up to [`MIRROR_BYTES`].
    Mirror = b'm',
    /// Send until the connection ends.
    Send = b's',
    /// Discard what comes, and count it.
    Receive = b'r',
    /// Both at once.
    Both = b'b',
    /// Send back messages of [`MESSAGE_BYTES`] until one begins with [`Request::Send`]; then obey it.
    Turn = b't',
    /// For each byte that comes, send how many bytes were discarded so far: 8 bytes, little-endian.
    Count = b'c',
}

impl Request {
    const ALL: [Self; 7] = [
        Self::Echo,
        Self::Mirror,
        Self::Send,
        Self::Receive,
        Self::Both,
        Self::Turn,
        Self::Count,
    ];

    /// The request that a byte stands for.
    pub(crate) fn parse(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|request| *request as u8 == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_read_back() {
        for request in Request::ALL {
            assert_eq!(Request::parse(request as u8), Some(request));
        }
        assert_eq!(Request::parse(b'x'), None);
    }
}
