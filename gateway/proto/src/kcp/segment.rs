//! The wire format of KCP: consecutive segments in a datagram, integers little endian (ikcp.c,
//! `ikcp_encode_seg`).

/// Size of a segment's header in bytes.
pub const HEADER_BYTES: usize = 24;
/// Largest accepted payload of a segment in bytes: the payload that fits into an IP packet of 1,500
/// bytes (Ethernet), after 28 bytes of IPv4 and UDP headers. The limit bounds the memory of a
/// window of segments.
pub const PAYLOAD_BYTES_MAX: usize = 1500 - 28 - HEADER_BYTES;

/// The purpose of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Payload. An empty segment ends the direction; a sender in stream mode has no other use for
    /// it.
    Push,
    /// Acknowledges one segment, by its serial and its time.
    Ack,
    /// Requests the window.
    Ask,
    /// Announces the window.
    Tell,
}

impl Command {
    const ALL: [(Self, u8); 4] = [
        (Self::Push, 81),
        (Self::Ack, 82),
        (Self::Ask, 83),
        (Self::Tell, 84),
    ];

    fn of(byte: u8) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(_, value)| *value == byte)
            .map(|(command, _)| *command)
    }

    fn byte(self) -> u8 {
        let mut all = Self::ALL.iter();
        all.find(|(command, _)| *command == self)
            .map_or(0, |(_, value)| *value)
    }
}

/// The header of a segment, except for its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The conversation's number. The side that begins the conversation chooses the number.
    pub conversation: u32,
    /// The segment's purpose.
    pub command: Command,
    /// Number of segments that the side that sends this header can receive.
    pub window: u16,
    /// Milliseconds of the sender's clock. In a [`Command::Ack`], the time of the acknowledged
    /// segment.
    pub time: u32,
    /// In a [`Command::Push`] or [`Command::Ack`]: the serial of the segment.
    pub serial: u32,
    /// The side that sends this header has received all segments before this serial.
    pub next: u32,
}

impl Header {
    /// Appends the header to `out`, with a payload of `length` bytes announced.
    pub fn encode(&self, length: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.conversation.to_le_bytes());
        // The second byte is the number of following fragments of a message. The number is 0 in
        // stream mode.
        out.extend_from_slice(&[self.command.byte(), 0]);
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
    }
}

/// The segments of a datagram, up to the first malformed segment.
#[derive(Debug, Clone)]
pub struct Segments<'a>(pub &'a [u8]);

impl<'a> Iterator for Segments<'a> {
    type Item = (Header, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.0.split_first_chunk::<HEADER_BYTES>()?;
        let word = |at: usize| {
            let bytes = header.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
            bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
        };
        let command = Command::of(header[4])?;
        let length = word(20) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        if length > PAYLOAD_BYTES_MAX {
            return None;
        }
        self.0 = rest;
        let header = Header {
            conversation: word(0),
            command,
            window: u16::from_le_bytes([header[6], header[7]]),
            time: word(8),
            serial: word(12),
            next: word(16),
        };
        Some((header, payload))
    }
}

/// The number closest to `base` whose low bits are `wire`. `None`: the number would be negative.
pub(super) fn expand(base: u64, wire: u32) -> Option<u64> {
    let ahead = wire.wrapping_sub(base as u32).cast_signed();
    base.checked_add_signed(ahead.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_read_as_they_were_written_up_to_a_malformed_one() {
        let header = |command, serial| Header {
            conversation: 0x0403_0201,
            command,
            window: 0x0605,
            time: 7,
            serial,
            next: u32::MAX,
        };
        let mut bytes = Vec::new();
        header(Command::Push, 1).encode(3, &mut bytes);
        bytes.extend_from_slice(b"abc");
        header(Command::Ack, 2).encode(0, &mut bytes);
        let whole = bytes.len();
        header(Command::Tell, 3).encode(1, &mut bytes);
        assert_eq!(bytes[..8], [1, 2, 3, 4, 81, 0, 5, 6]);
        let all: Vec<_> = Segments(&bytes).collect();
        assert_eq!(
            all,
            [
                (header(Command::Push, 1), &b"abc"[..]),
                (header(Command::Ack, 2), &b""[..])
            ],
            "the last segment announces a missing byte"
        );
        bytes[4] = 80;
        assert_eq!(Segments(&bytes[..whole]).count(), 0);
        let mut long = Vec::new();
        header(Command::Push, 1).encode(PAYLOAD_BYTES_MAX + 1, &mut long);
        long.resize(long.len() + PAYLOAD_BYTES_MAX + 1, 0);
        assert_eq!(Segments(&long).count(), 0);
    }

    #[test]
    fn numbers_go_on_where_their_low_bits_begin_again() {
        let base = (1 << 32) - 2;
        assert_eq!(expand(base, u32::MAX), Some(base + 1));
        assert_eq!(expand(base, 3), Some((1 << 32) + 3));
        assert_eq!(expand(3, u32::MAX), None);
        assert_eq!(expand(3, 1), Some(1));
    }
}
