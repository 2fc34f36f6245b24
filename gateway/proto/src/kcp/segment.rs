//! The wire of KCP: segments behind each other in a datagram, all integers little endian (ikcp.c, `ikcp_encode_seg`).

/// Bytes in front of each payload.
pub const HEADER_BYTES: usize = 24;
/// Most payload of a segment that is taken: what a datagram of 1,500 bytes (Ethernet) holds at most. It bounds what a
/// window of segments can hold in memory.
pub const PAYLOAD_BYTES_MAX: usize = 1500 - 28 - HEADER_BYTES;

/// What a segment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Payload. Without any, it ends the direction: a sender in stream mode has no empty segment for anything else.
    Push,
    /// One segment has come, by its serial and its time.
    Ack,
    /// How large is the window?
    Ask,
    /// The window is as large as this says.
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

/// What stands in front of a payload, but for its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The conversation, chosen by who begins it.
    pub conversation: u32,
    /// What it is for.
    pub command: Command,
    /// Segments that its sender's other end has room for.
    pub window: u16,
    /// Milliseconds of its sender's clock; of an [`Command::Ack`], those of the segment that has come.
    pub time: u32,
    /// Of a [`Command::Push`] or an [`Command::Ack`]: which one it is.
    pub serial: u32,
    /// All segments before this one have come to its sender.
    pub next: u32,
}

impl Header {
    /// Appends it to `out`, with `length` bytes of payload announced.
    pub fn encode(&self, length: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.conversation.to_le_bytes());
        // The second byte counts the fragments of a message that follow; in stream mode there are none.
        out.extend_from_slice(&[self.command.byte(), 0]);
        out.extend_from_slice(&self.window.to_le_bytes());
        out.extend_from_slice(&self.time.to_le_bytes());
        out.extend_from_slice(&self.serial.to_le_bytes());
        out.extend_from_slice(&self.next.to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
    }
}

/// The segments of a datagram; ends before the first one that is malformed.
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

/// The number near `base` whose low bits are `wire`; `None`: it would be below zero.
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
            "the last one announces a byte that is not there"
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
