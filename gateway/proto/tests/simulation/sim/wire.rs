//! What crosses the carrier, read by a third party with books of its own.
//!
//! A frame is judged by what its sender can know: what it has sent, and what has arrived there. So a
//! frame for a stream that has ended, credit made from nothing, or a number used twice is found where it
//! begins, however forgiving the receiver is.

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

    /// `from` writes this control frame, or this header of a payload frame.
    pub fn write(&mut self, from: usize, bytes: &[u8]) {
        match self {
            Self::Jmux(books) => books.write(from, bytes),
            Self::Native(books) => books.write(from, bytes),
        }
    }

    /// `from` wrote this control frame on a carrier that did not deliver it.
    pub fn lose(&mut self, from: usize, bytes: &[u8]) {
        if let Self::Native(books) = self {
            books.lose(from, bytes);
        }
    }

    /// The carrier on which `side` would have answered a PING is gone.
    pub fn forget_ping(&mut self, side: usize) {
        if let Self::Native(books) = self {
            books.forget_ping(side);
        }
    }

    /// The session of `to` has handled it.
    pub fn arrive(&mut self, to: usize, bytes: &[u8]) {
        match self {
            Self::Jmux(books) => books.arrive(to, bytes),
            Self::Native(books) => books.arrive(to, bytes),
        }
    }

    /// Promised to the peer of `side`, minus consumed, is at most `budget`; `used` bytes wait there.
    pub fn check_session_credit(&self, side: usize, budget: u64, used: u64) {
        if let Self::Native(books) = self {
            books.check_session_credit(side, budget, used);
        }
    }

    /// What `side` may send of all streams together; `None`: as much as each of them may.
    pub fn session_credit(&self, side: usize) -> Option<u64> {
        match self {
            Self::Jmux(_) => None,
            Self::Native(books) => Some(books.session_credit(side)),
        }
    }

    /// What `side` promised to each new stream.
    pub fn first_window(&self, side: usize) -> u64 {
        match self {
            Self::Jmux(_) => 0,
            Self::Native(books) => books.first_window(side),
        }
    }

    /// Up to which offset `side` takes the stream, as it has said.
    pub fn stream_limit(&self, side: usize, stream: u64) -> Option<u64> {
        match self {
            Self::Jmux(_) => None,
            Self::Native(books) => books.stream_limit(side, stream),
        }
    }

    /// GOAWAY has arrived at `side`.
    pub fn is_told_of_goaway(&self, side: usize) -> bool {
        matches!(self, Self::Native(books) if books.is_told_of_goaway(side))
    }

    /// How many streams more `side` may open, by what it has written and what has arrived there.
    pub fn streams_left(&self, side: usize) -> u64 {
        match self {
            Self::Jmux(_) => u64::MAX,
            Self::Native(books) => books.streams_left(side),
        }
    }

    /// Nothing is in flight; `used`: bytes that wait on each side.
    pub fn check_at_rest(&self, used: [u64; 2]) {
        if let Self::Native(books) = self {
            books.check_at_rest(used);
        }
    }

    /// How many PONGs were written.
    pub fn pongs(&self) -> u64 {
        match self {
            Self::Jmux(_) => 0,
            Self::Native(books) => books.pongs(),
        }
    }

    /// All streams have ended and both sides know.
    pub fn judge(&self) {
        if let Self::Native(books) = self {
            books.judge();
        }
    }
}
