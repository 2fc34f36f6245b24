//! Checks the frames on the carrier, with records that are independent of both sessions.
//!
//! The check of a frame uses only the frames that its sender has sent and received. So the check
//! detects a frame for an ended stream, credit without a source, or a number that is used twice at
//! the sender, even if the receiver tolerates the frame.

mod jmux;
mod native;

use super::profile::{Profile, Protocol};

pub enum Wire {
    Jmux(jmux::Books),
    Native(Box<native::Books>),
}

impl Wire {
    pub fn new(profile: &Profile) -> Self {
        match profile.protocol {
            Protocol::Jmux => Self::Jmux(jmux::Books::default()),
            Protocol::Native => Self::Native(Box::new(native::Books::new(profile))),
        }
    }

    /// Records that `from` writes this control frame, or this header of a payload frame.
    pub fn write(&mut self, from: usize, bytes: &[u8]) {
        match self {
            Self::Jmux(books) => books.write(from, bytes),
            Self::Native(books) => books.write(from, bytes),
        }
    }

    /// Records that a carrier did not deliver this control frame of `from`.
    pub fn lose(&mut self, from: usize, bytes: &[u8]) {
        if let Self::Native(books) = self {
            books.lose(from, bytes);
        }
    }

    /// Records the loss of the carrier on which `side` would have answered a PING.
    pub fn forget_ping(&mut self, side: usize) {
        if let Self::Native(books) = self {
            books.forget_ping(side);
        }
    }

    /// Records that the session of `to` has handled this control frame or header.
    pub fn arrive(&mut self, to: usize, bytes: &[u8]) {
        match self {
            Self::Jmux(books) => books.arrive(to, bytes),
            Self::Native(books) => books.arrive(to, bytes),
        }
    }

    /// Checks that the credit granted by `side` beyond what was consumed is at most `budget`.
    /// `used` bytes wait at the side.
    pub fn check_session_credit(&self, side: usize, budget: u64, used: u64) {
        if let Self::Native(books) = self {
            books.check_session_credit(side, budget, used);
        }
    }

    /// Bytes that `side` may send on all streams together. `None`: the protocol has no such bound.
    pub fn session_credit(&self, side: usize) -> Option<u64> {
        match self {
            Self::Jmux(_) => None,
            Self::Native(books) => Some(books.session_credit(side)),
        }
    }

    /// The window that `side` grants to each new stream.
    pub fn first_window(&self, side: usize) -> u64 {
        match self {
            Self::Jmux(_) => 0,
            Self::Native(books) => books.first_window(side),
        }
    }

    /// Offset up to which `side` has granted credit for the stream.
    pub fn stream_limit(&self, side: usize, stream: u64) -> Option<u64> {
        match self {
            Self::Jmux(_) => None,
            Self::Native(books) => books.stream_limit(side, stream),
        }
    }

    /// Whether GOAWAY has arrived at `side`.
    pub fn is_told_of_goaway(&self, side: usize) -> bool {
        matches!(self, Self::Native(books) if books.is_told_of_goaway(side))
    }

    /// Number of streams that `side` may still open, according to the frames that it has written
    /// and received.
    pub fn streams_left(&self, side: usize) -> u64 {
        match self {
            Self::Jmux(_) => u64::MAX,
            Self::Native(books) => books.streams_left(side),
        }
    }

    /// Checks the records when nothing is in flight. `used` is the number of bytes that wait at
    /// each side.
    pub fn check_at_rest(&self, used: [u64; 2]) {
        if let Self::Native(books) = self {
            books.check_at_rest(used);
        }
    }

    /// Number of PONGs that were written.
    pub fn pongs(&self) -> u64 {
        match self {
            Self::Jmux(_) => 0,
            Self::Native(books) => books.pongs(),
        }
    }

    /// Checks the records after all streams have ended and both sides have been informed.
    pub fn judge(&self) {
        if let Self::Native(books) = self {
            books.judge();
        }
    }
}
