//! Frames (RFC 9114, section 7). A frame consists of a type, a length and a body.

use std::cell::Cell;
use std::rc::Rc;

use quinn::{ConnectionError, ReadError, RecvStream, VarInt};

use super::{FIELD_BYTES_MAX, code};
use crate::session::quic_streams::{Broken, Excessive, Overhead, StreamOverhead};

pub(super) const DATA: u64 = 0x0;
pub(super) const HEADERS: u64 = 0x1;
pub(super) const CANCEL_PUSH: u64 = 0x3;
pub(super) const SETTINGS: u64 = 0x4;
const PUSH_PROMISE: u64 = 0x5;
pub(super) const GOAWAY: u64 = 0x7;
pub(super) const MAX_PUSH_ID: u64 = 0xd;
/// Frame types that exist only in HTTP/2 (section 7.2.8).
const OF_HTTP2: [u64; 4] = [0x2, 0x6, 0x8, 0x9];

/// Maximum total length of the incomplete frames on all streams of a connection. DATA frames do not
/// count.
pub(super) const READING_MAX: usize = 1 << 20;
/// Number of bytes of one read of a skipped frame.
const SKIPPED_BYTES: usize = 64 << 10;

/// Length of the longest integer in bytes (RFC 9000, section 16).
const INTEGER_BYTES_MAX: usize = 8;

/// Appends `value`, which is at most 2^62 - 1.
pub(super) fn push_integer(bytes: &mut Vec<u8>, value: u64) {
    let long = value | 0b11 << 62;
    match value {
        0..0x40 => bytes.push(value as u8),
        0x40..0x4000 => bytes.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => bytes.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => bytes.extend(long.to_be_bytes()),
    }
}

/// Reads the integer at the beginning of `bytes`; also returns the bytes after it. `None`: the
/// integer is incomplete.
pub(super) fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (integer, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let mut value = u64::from(first & 0x3f);
    for byte in &integer[1..] {
        value = value << 8 | u64::from(*byte);
    }
    Some((value, rest))
}

/// Appends a frame of this `kind`.
pub(super) fn push(bytes: &mut Vec<u8>, kind: u64, body: &[u8]) {
    push_head(bytes, kind, body.len());
    bytes.extend_from_slice(body);
}

/// Appends the head of a frame.
pub(super) fn push_head(bytes: &mut Vec<u8>, kind: u64, length: usize) {
    push_integer(bytes, kind);
    push_integer(bytes, length as u64);
}

/// The kind and the length of a frame while they are read.
#[derive(Debug, Default)]
pub(super) struct Head {
    bytes: [u8; 2 * INTEGER_BYTES_MAX],
    filled: usize,
}

impl Head {
    /// Number of missing bytes as far as it is known; the next bytes may increase it.
    fn missing(&self) -> usize {
        let bytes = &self.bytes[..self.filled];
        let mut whole = 0;
        for _ in 0..2 {
            match bytes.get(whole) {
                Some(first) => whole += 1 << (first >> 6),
                None => whole += 1,
            }
        }
        whole.saturating_sub(self.filled)
    }

    /// Moves missing bytes from the beginning of `input` into the head; returns their number.
    pub(super) fn fill(&mut self, input: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(byte) = input.get(taken)
            && self.missing() > 0
        {
            self.bytes[self.filled] = *byte;
            self.filled += 1;
            taken += 1;
        }
        taken
    }

    /// Returns the type and the length if both are complete, and starts the next head.
    pub(super) fn take(&mut self) -> Option<(u64, u64)> {
        if self.missing() > 0 {
            return None;
        }
        let (kind, rest) = integer(&self.bytes[..self.filled])?;
        let (length, _) = integer(rest)?;
        self.filled = 0;
        Some((kind, length))
    }

    pub(super) fn has_begun(&self) -> bool {
        self.filled > 0
    }
}

/// Whether frames of type `kind` are known. Frames of unknown types are skipped (section 9).
///
/// # Errors
/// The peer must not send frames of this kind.
pub(super) fn is_known(kind: u64) -> Result<bool, Broken> {
    match kind {
        PUSH_PROMISE => Err(unexpected(
            "the peer sent PUSH_PROMISE, but pushes are not permitted",
        )),
        kind if OF_HTTP2.contains(&kind) => Err(unexpected(
            "the peer sent a frame of a type that exists only in HTTP/2",
        )),
        DATA | HEADERS | CANCEL_PUSH | SETTINGS | GOAWAY | MAX_PUSH_ID => Ok(true),
        _ => Ok(false),
    }
}

pub(super) const fn unexpected(problem: &'static str) -> Broken {
    Broken {
        code: code::FRAME_UNEXPECTED,
        problem,
    }
}

impl From<Excessive> for Broken {
    fn from(_: Excessive) -> Self {
        Self {
            code: code::EXCESSIVE_LOAD,
            problem: "the peer sent too many frames without payload",
        }
    }
}

/// The stream ends within a frame.
pub(super) const TRUNCATED: Broken = Broken {
    code: code::FRAME_ERROR,
    problem: "the peer ended a stream within a frame",
};

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u64,
    pub(super) body: Vec<u8>,
}

/// Why reading frames ended.
#[derive(Debug)]
pub(super) enum Cut {
    Peer(VarInt),
    /// A frame is longer than [`FIELD_BYTES_MAX`].
    TooLong,
    Broken(Broken),
    Connection(ConnectionError),
}

impl From<Broken> for Cut {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<Excessive> for Cut {
    fn from(excessive: Excessive) -> Self {
        Self::Broken(excessive.into())
    }
}

impl From<ReadError> for Cut {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Peer(code),
            ReadError::ConnectionLost(error) => Self::Connection(error),
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => Self::Peer(code::REQUEST_CANCELLED),
        }
    }
}

/// Bounds the cost of frames on all streams of a connection.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Total length of the incomplete frames, in bytes.
    reading: Cell<usize>,
    pub(super) overhead: Rc<Overhead>,
}

impl Budget {
    pub(super) fn new(overhead: &Rc<Overhead>) -> Self {
        Self {
            reading: Cell::new(0),
            overhead: Rc::clone(overhead),
        }
    }
}

/// Reads the frames of one stream that precede payload; a DATA frame is an error. The reader does
/// not read beyond the frame that it returns.
#[derive(Debug)]
pub(super) struct Frames {
    budget: Rc<Budget>,
    head: Head,
    /// The type of the current frame, and the number of its missing bytes.
    begun: Option<(u64, u64)>,
    is_known: bool,
    /// Counts frames of unknown types; `None`: this stream has no separate limit.
    overhead: Option<StreamOverhead>,
    body: Vec<u8>,
    /// Number of bytes taken from the budget.
    taken: usize,
}

impl Frames {
    pub(super) fn new(budget: &Rc<Budget>) -> Self {
        Self {
            budget: Rc::clone(budget),
            head: Head::default(),
            begun: None,
            is_known: false,
            overhead: Some(StreamOverhead::default()),
            body: Vec::new(),
            taken: 0,
        }
    }

    /// Creates a reader for the control stream. This stream has no separate limit of unknown
    /// frames, since a client may send the priority of each request on it (RFC 9218, section 7.2).
    pub(super) fn of_control(budget: &Rc<Budget>) -> Self {
        let mut frames = Self::new(budget);
        frames.overhead = None;
        frames
    }

    /// Returns the next frame of a known type; `None`: the stream has ended. A caller may drop the
    /// future and call again.
    ///
    /// # Errors
    /// [`Cut`].
    pub(super) async fn next(&mut self, stream: &mut RecvStream) -> Result<Option<Frame>, Cut> {
        loop {
            // Buffered bytes are read without waiting, so the task yields here to other tasks.
            tokio::task::consume_budget().await;
            if let Some((kind, length)) = self.head.take() {
                self.begin(kind, length)?;
            }
            let wanted = match self.begun {
                Some((kind, 0)) => {
                    self.begun = None;
                    if self.is_known {
                        let body = std::mem::take(&mut self.body);
                        self.give_back();
                        return Ok(Some(Frame { kind, body }));
                    }
                    continue;
                }
                Some((_, left)) => usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(SKIPPED_BYTES),
                None => self.head.missing(),
            };
            let Some(chunk) = stream.read_chunk(wanted, true).await? else {
                return match self.begun.is_some() || self.head.has_begun() {
                    true => Err(TRUNCATED.into()),
                    false => Ok(None),
                };
            };
            match &mut self.begun {
                Some((_, left)) => {
                    *left = left.saturating_sub(chunk.bytes.len() as u64);
                    if self.is_known {
                        self.body.extend_from_slice(&chunk.bytes);
                    }
                }
                None => _ = self.head.fill(&chunk.bytes),
            }
        }
    }

    fn begin(&mut self, kind: u64, length: u64) -> Result<(), Cut> {
        self.is_known = is_known(kind)?;
        self.begun = Some((kind, length));
        if !self.is_known {
            let all = &self.budget.overhead;
            let counted = match &mut self.overhead {
                Some(overhead) => overhead.count(all),
                None => all.count(),
            };
            return Ok(counted?);
        }
        if kind == DATA {
            return Err(unexpected("the peer sent DATA where payload is not permitted").into());
        }
        if length > FIELD_BYTES_MAX as u64 {
            return Err(Cut::TooLong);
        }
        let (all, length) = (&self.budget.reading, length as usize);
        if all.get() + length > READING_MAX {
            let problem = "the peer sent more concurrent requests than memory permits";
            return Err(Cut::Broken(Broken {
                code: code::EXCESSIVE_LOAD,
                problem,
            }));
        }
        all.set(all.get() + length);
        self.taken = length;
        Ok(())
    }

    fn give_back(&mut self) {
        let all = &self.budget.reading;
        all.set(all.get() - std::mem::take(&mut self.taken));
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the examples of RFC 9000, appendix A.1, and the bounds of each length.
    #[test]
    fn integers_are_read_as_they_were_written() {
        let given = [0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c];
        assert_eq!(integer(&given), Some((151_288_809_941_952_652, &[][..])));
        assert_eq!(integer(&[0x40, 0x25, 7]), Some((37, &[7][..])));
        for value in [
            0,
            63,
            64,
            16_383,
            16_384,
            (1 << 30) - 1,
            1 << 30,
            (1 << 62) - 1,
        ] {
            let mut bytes = Vec::new();
            push_integer(&mut bytes, value);
            assert_eq!(integer(&bytes), Some((value, &[][..])));
            for end in 0..bytes.len() {
                assert_eq!(integer(&bytes[..end]), None);
            }
        }
    }

    #[test]
    fn a_head_takes_what_it_lacks_and_no_more() {
        let mut bytes = Vec::new();
        push_head(&mut bytes, 0x1f * 7 + 0x21, 70_000);
        let length = bytes.len();
        bytes.extend([1, 2, 3]);
        for split in 0..=length {
            let mut head = Head::default();
            assert_eq!(head.fill(&bytes[..split]), split);
            assert_eq!(head.fill(&bytes[split..]), length - split);
            assert_eq!(head.take(), Some((0x1f * 7 + 0x21, 70_000)));
            assert!(!head.has_begun() && head.take().is_none());
        }
    }
}
