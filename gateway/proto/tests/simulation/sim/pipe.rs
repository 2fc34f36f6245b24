//! One direction of a carrier. It delivers bytes in order, after a delay, in pieces of any size. A
//! cut loses the bytes at the end.
//!
//! Control frames and headers are real bytes. Payload is stored as a range of its stream. So the
//! transfer of a megabyte costs as much as the transfer of a byte, and every arriving byte can be
//! verified. If a session reads beyond a header, it receives the bytes that the payload would have.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A range of the bytes that one side sends on the stream `label`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion {
    pub label: u32,
    pub from: usize,
    pub range: Range<u64>,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Payload(Portion),
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Payload(portion) => (portion.range.end - portion.range.start) as usize,
        }
    }

    /// Removes and returns the first `length` bytes.
    fn split_off_front(&mut self, length: usize) -> Self {
        match self {
            Self::Bytes(bytes) => {
                let rest = bytes.split_off(length);
                Self::Bytes(std::mem::replace(bytes, rest))
            }
            Self::Payload(portion) => {
                let middle = portion.range.start + length as u64;
                let front = portion.range.start..middle;
                portion.range.start = middle;
                Self::Payload(Portion {
                    range: front,
                    ..portion.clone()
                })
            }
        }
    }

    fn append_to(&self, out: &mut Vec<u8>, limit: usize) {
        let room = limit.saturating_sub(out.len());
        match self {
            Self::Bytes(bytes) => out.extend(bytes.iter().take(room)),
            Self::Payload(portion) => {
                out.extend(portion.range.clone().take(room).map(|i| (i * 31) as u8));
            }
        }
    }
}

/// One direction of a carrier.
#[derive(Debug)]
pub struct Pipe {
    delay: Duration,
    /// Pieces that are written but not read by the other side's driver, with the time of arrival.
    flying: VecDeque<(Instant, Piece)>,
    /// Pieces that are read by the driver but not taken by the session.
    unread: VecDeque<Piece>,
    flying_bytes: usize,
    /// Whether the writer has closed the pipe or the pipe was cut, so that it accepts no more
    /// bytes.
    ended: bool,
    /// Whether the reader's driver currently does not read.
    pub stalled: bool,
}

impl Pipe {
    pub fn new(delay: Duration) -> Self {
        Self {
            delay,
            flying: VecDeque::new(),
            unread: VecDeque::new(),
            flying_bytes: 0,
            ended: false,
            stalled: false,
        }
    }

    pub fn write_bytes(&mut self, now: Instant, bytes: Vec<u8>) {
        self.write(now, Piece::Bytes(bytes));
    }

    pub fn write_payload(&mut self, now: Instant, portion: Portion) {
        self.write(now, Piece::Payload(portion));
    }

    fn write(&mut self, now: Instant, piece: Piece) {
        if !self.ended && piece.len() > 0 {
            self.flying_bytes += piece.len();
            self.flying.push_back((now + self.delay, piece));
        }
    }

    /// Number of bytes that are written and not read.
    pub fn flying_bytes(&self) -> usize {
        self.flying_bytes
    }

    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.front().map(|(arrival, _)| *arrival)
    }

    /// Whether all bytes in the pipe were read and taken.
    pub fn is_empty(&self) -> bool {
        self.flying.is_empty() && self.unread.is_empty()
    }

    /// Lets the reader's driver read up to `length` bytes that have arrived.
    pub fn read(&mut self, now: Instant, length: usize) -> usize {
        let mut left = length;
        while left > 0
            && let Some((arrival, piece)) = self.flying.front_mut()
            && *arrival <= now
        {
            let whole = piece.len() <= left;
            let taken = piece.len().min(left);
            let front = piece.split_off_front(taken);
            self.unread.push_back(front);
            if whole {
                self.flying.pop_front();
            }
            left -= taken;
            self.flying_bytes -= taken;
        }
        length - left
    }

    /// The first unread bytes, at most `limit`.
    pub fn peek(&self, limit: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &self.unread {
            if out.len() >= limit {
                break;
            }
            piece.append_to(&mut out, limit);
        }
        out
    }

    /// Removes a header or a control frame of `length` bytes, which the session has handled.
    pub fn skip(&mut self, length: usize) {
        let mut left = length;
        while left > 0 {
            let piece = self
                .take_front(left)
                .expect("the frame is longer than the unread bytes");
            assert!(
                matches!(piece, Piece::Bytes(_)),
                "payload was read as a frame: {piece:?}"
            );
            left -= piece.len();
        }
    }

    /// Removes and returns the next unread payload, at most `length` bytes.
    pub fn take_payload(&mut self, length: usize) -> Option<Portion> {
        match self.take_front(length)? {
            Piece::Payload(portion) => Some(portion),
            Piece::Bytes(bytes) => panic!("a frame was read as payload: {bytes:02x?}"),
        }
    }

    fn take_front(&mut self, length: usize) -> Option<Piece> {
        let front = self.unread.front_mut()?;
        if front.len() <= length {
            self.unread.pop_front()
        } else {
            Some(front.split_off_front(length))
        }
    }

    /// Ends the pipe. All bytes in the pipe except the first `kept` are lost.
    pub fn cut(&mut self, kept: usize) {
        self.ended = true;
        let mut left = kept;
        for (_, piece) in &mut self.flying {
            let whole = piece.len().min(left);
            *piece = piece.split_off_front(whole);
            left -= whole;
        }
        self.flying.retain(|(_, piece)| piece.len() > 0);
        self.flying_bytes = self.flying.iter().map(|(_, piece)| piece.len()).sum();
    }

    /// Whether the reader's driver sees the end.
    pub fn at_end(&self) -> bool {
        self.ended && self.flying.is_empty()
    }
}
