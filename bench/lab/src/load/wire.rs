//! The requests of clients to `muxlab serve`: the first byte of each connection.

/// Bytes of one read or write of bulk data.
pub(crate) const BULK_BYTES: usize = 128 << 10;

/// Bytes of one read or write of a mirrored stream, small because there may be a thousand such
/// streams.
pub(crate) const MIRROR_BYTES: usize = 16 << 10;

/// Bytes of a small message.
pub(crate) const MESSAGE_BYTES: usize = 64;

/// A request: the first byte of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Request {
    /// Return received bytes.
    Echo = b'e',
    /// Return received bytes, in pieces of up to [`MIRROR_BYTES`].
    Mirror = b'm',
    /// Send until the connection ends.
    Send = b's',
    /// Discard received bytes, and count them.
    Receive = b'r',
    /// Send and receive at once.
    Both = b'b',
    /// Return messages of [`MESSAGE_BYTES`] until a message begins with [`Request::Send`]. Then do
    /// the same as for [`Request::Send`].
    Turn = b't',
    /// For each received byte, send the number of bytes discarded so far: 8 bytes, little-endian.
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

    /// The request that `byte` encodes.
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
