//! The heads of the frames (RFC 9113, section 4.1) in a stream of bytes.

/// Length of a frame's head.
pub(super) const HEAD_BYTES: usize = 9;
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
/// END_STREAM of DATA and HEADERS.
const END_STREAM: u8 = 0x1;
/// END_HEADERS of HEADERS, PUSH_PROMISE and CONTINUATION.
const END_HEADERS: u8 = 0x4;
/// The code of a reset follows its head.
const CODE_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of bytes that follow the head.
    pub(super) length: usize,
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn read(bytes: [u8; HEAD_BYTES]) -> Self {
        let [high, middle, low, kind, flags, stream @ ..] = bytes;
        Self {
            length: u32::from_be_bytes([0, high, middle, low]) as usize,
            kind,
            flags,
            // The first bit is reserved.
            stream: u32::from_be_bytes(stream) & (u32::MAX >> 1),
        }
    }

    pub(super) const fn ends_stream(self) -> bool {
        self.flags & END_STREAM != 0
    }

    /// Whether this is a DATA frame without any content. DATA of no stream is an error, which the
    /// library detects.
    pub(super) const fn is_empty_data(self) -> bool {
        self.kind == DATA && self.length == 0 && !self.ends_stream() && self.stream != 0
    }

    /// Whether CONTINUATION frames must follow.
    const fn begins_block(self) -> bool {
        matches!(self.kind, HEADERS | PUSH_PROMISE | CONTINUATION) && self.flags & END_HEADERS == 0
    }
}

/// Finds the heads in received bytes.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Number of bytes before the next head.
    skips: usize,
    /// Whether the peer must continue a block of fields.
    in_block: bool,
}

impl Incoming {
    /// `preface`: number of bytes before the first frame.
    pub(super) const fn new(preface: usize) -> Self {
        Self {
            skips: preface,
            in_block: false,
        }
    }

    /// Finds the next head in `bytes`, from the position `at` on. Returns the position of the head,
    /// and the head unless it is incomplete.
    pub(super) fn next(&mut self, bytes: &[u8], at: usize) -> (usize, Option<Head>) {
        let skipped = self.skips.min(bytes.len() - at);
        self.skips -= skipped;
        let at = at + skipped;
        let head = bytes[at..].first_chunk().copied().map(Head::read);
        (at, head)
    }

    /// Continues after `head`.
    pub(super) fn pass(&mut self, head: Head) {
        self.skips = HEAD_BYTES + head.length;
        self.in_block = head.begins_block();
    }

    /// Finds the heads after `bytes`, which follow the last head that was passed.
    pub(super) fn after(&self, bytes: &[u8]) -> Outgoing {
        let mut heads = Outgoing::new(self.skips);
        heads.read(bytes, |_, _| {});
        heads
    }

    /// Whether the next frame must continue a block of fields, so that any other frame is an error,
    /// which the library detects.
    pub(super) const fn is_in_block(&self) -> bool {
        self.in_block
    }
}

/// Finds the heads in bytes that arrive in any pieces.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Number of bytes before the next head.
    skips: usize,
    /// The next head, and the code of a reset.
    head: [u8; HEAD_BYTES + CODE_BYTES],
    filled: usize,
}

impl Outgoing {
    /// `preface`: number of bytes before the first frame.
    pub(super) const fn new(preface: usize) -> Self {
        Self {
            skips: preface,
            head: [0; HEAD_BYTES + CODE_BYTES],
            filled: 0,
        }
    }

    /// Reads `bytes`. Calls `found` with each head and the code of a reset.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(Head, u32)) {
        loop {
            let skipped = self.skips.min(bytes.len());
            self.skips -= skipped;
            bytes = &bytes[skipped..];
            let is_reset = self.filled >= HEAD_BYTES && self.head[3] == RST_STREAM;
            let wanted = match is_reset {
                true => HEAD_BYTES + CODE_BYTES,
                false => HEAD_BYTES,
            };
            if self.filled < wanted {
                if bytes.is_empty() {
                    return;
                }
                let taken = (wanted - self.filled).min(bytes.len());
                self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken;
                bytes = &bytes[taken..];
                continue;
            }
            let (head, code) = self.head.split_first_chunk().unwrap_or((&[0; _], &[]));
            let head = Head::read(*head);
            let code = match is_reset {
                true => code
                    .first_chunk()
                    .map_or(0, |code| u32::from_be_bytes(*code)),
                false => 0,
            };
            found(head, code);
            self.skips = (HEAD_BYTES + head.length).saturating_sub(self.filled);
            self.filled = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_codes_are_found_in_pieces_of_any_size() {
        let mut bytes = b"preface".to_vec();
        let frames: [(u8, u32, &[u8]); 5] = [
            (HEADERS, 1, b"fields"),
            (RST_STREAM, 1, &[0, 0, 0, 5]),
            (DATA, 3, &[0; 100]),
            (DATA, 3, &[]),
            (RST_STREAM, 3, &[0, 0, 0, 11]),
        ];
        for (kind, stream, payload) in frames {
            bytes.extend([0, 0, payload.len() as u8, kind, 0]);
            bytes.extend(stream.to_be_bytes());
            bytes.extend(payload);
        }
        let expected = [
            (HEADERS, 1, 0),
            (RST_STREAM, 1, 5),
            (DATA, 3, 0),
            (DATA, 3, 0),
            (RST_STREAM, 3, 11),
        ];
        for size in 1..=bytes.len() {
            let (mut outgoing, mut found) = (Outgoing::new(7), Vec::new());
            for piece in bytes.chunks(size) {
                outgoing.read(piece, |head, code| {
                    found.push((head.kind, head.stream, code));
                });
            }
            assert_eq!(found, expected, "{size}");
        }
    }
}
