//! Frames (RFC 9114, section 7): a kind, a length, and as many bytes.

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
/// Those of HTTP/2 alone (section 7.2.8).
const OF_HTTP2: [u64; 4] = [0x2, 0x6, 0x8, 0x9];

/// Bytes of frames that are being read on all streams of a connection, payload apart.
pub(super) const READING_MAX: usize = 1 << 20;
/// Bytes of a frame that is skipped which are read at once.
const SKIPPED_BYTES: usize = 64 << 10;

/// Bytes of the longest integer (RFC 9000, section 16).
const INTEGER_BYTES_MAX: usize = 8;

/// Adds `value`, at most 2^62 - 1.
pub(super) fn push_integer(bytes: &mut Vec<u8>, value: u64) {
    let long = value | 0b11 << 62;
    match value {
        0..0x40 => bytes.push(value as u8),
        0x40..0x4000 => bytes.extend((value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => bytes.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => bytes.extend(long.to_be_bytes()),
    }
}

/// The integer at the beginning of `bytes`, and what follows; `None`: not all of it is there.
pub(super) fn integer(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    let (integer, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    let mut value = u64::from(first & 0x3f);
    for byte in &integer[1..] {
        value = value << 8 | u64::from(*byte);
    }
    Some((value, rest))
}

/// Adds a frame of this `kind`.
pub(super) fn push(bytes: &mut Vec<u8>, kind: u64, body: &[u8]) {
    push_head(bytes, kind, body.len());
    bytes.extend_from_slice(body);
}

/// The same up to its body.
pub(super) fn push_head(bytes: &mut Vec<u8>, kind: u64, length: usize) {
    push_integer(bytes, kind);
    push_integer(bytes, length as u64);
}

/// The kind and the length of a frame, as they come.
#[derive(Debug, Default)]
pub(super) struct Head {
    bytes: [u8; 2 * INTEGER_BYTES_MAX],
    filled: usize,
}

impl Head {
    /// How many bytes it lacks, as far as is known; the next ones may say more.
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

    /// Takes what it lacks from the beginning of `input`; returns how many bytes.
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

    /// The kind and the length, once they are there; then the next one begins.
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

/// Whether frames of `kind` are known; others are skipped (section 9).
///
/// # Errors
/// There is never one here.
pub(super) fn is_known(kind: u64) -> Result<bool, Broken> {
    match kind {
        PUSH_PROMISE => Err(unexpected("PUSH_PROMISE, where no push is allowed")),
        kind if OF_HTTP2.contains(&kind) => Err(unexpected("a frame of HTTP/2 alone")),
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
            problem: "too many frames that carry nothing",
        }
    }
}

/// The stream ends within a frame.
pub(super) const TRUNCATED: Broken = Broken {
    code: code::FRAME_ERROR,
    problem: "a stream that ends within a frame",
};

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u64,
    pub(super) body: Vec<u8>,
}

/// Why there is no frame.
#[derive(Debug)]
pub(super) enum Cut {
    /// The peer cut the stream.
    Peer(VarInt),
    /// One is longer than [`FIELD_BYTES_MAX`].
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

/// What frames on all streams of a connection may cost.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Bytes of those that are being read.
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

/// Frames that come on one stream, payload apart. Nothing behind the last one is read.
#[derive(Debug)]
pub(super) struct Frames {
    budget: Rc<Budget>,
    head: Head,
    /// The kind of the frame that has begun, and what it lacks.
    begun: Option<(u64, u64)>,
    is_known: bool,
    /// Those of no known kind; `None`: there is no bound for this stream alone.
    overhead: Option<StreamOverhead>,
    body: Vec<u8>,
    /// What is taken of the budget.
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

    /// Those of the control stream, where clients say of each request how urgent it is (RFC 9218, section 7.2).
    pub(super) fn of_control(budget: &Rc<Budget>) -> Self {
        let mut frames = Self::new(budget);
        frames.overhead = None;
        frames
    }

    /// The next frame of a known kind; `None`: the stream has ended. May be dropped and called again.
    ///
    /// # Errors
    /// [`Cut`].
    pub(super) async fn next(&mut self, stream: &mut RecvStream) -> Result<Option<Frame>, Cut> {
        loop {
            // What is buffered is read without waiting: others have their turn all the same.
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
            return Err(unexpected("DATA where no payload may be").into());
        }
        if length > FIELD_BYTES_MAX as u64 {
            return Err(Cut::TooLong);
        }
        let (all, length) = (&self.budget.reading, length as usize);
        if all.get() + length > READING_MAX {
            let problem = "more requests at once than there is memory for";
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

    /// RFC 9000, appendix A.1, and the bounds of each length.
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
