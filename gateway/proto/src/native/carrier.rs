//! One carrier of a native session: its hello, what waits for it alone, and what both ends have of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Receiving;
use super::codec::Frame;
use super::log::{Again, SendLog};

/// Bytes received that are acknowledged at once...
const ACK_BYTES: u64 = 256 << 10;
/// ...and how long fewer wait.
const ACK_DELAY: Duration = Duration::from_millis(25);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The peer's hello is due at this moment.
    Hello(Instant),
    Up,
    /// Nothing is sent on it but RETIRE, which was said or will be, and what answers the peer.
    Retiring {
        said: bool,
    },
    /// RETIRE has come from both sides: the peer has all that was sent, and closes it.
    Retired,
    /// It was given up; what waits is the word that says so.
    Refused,
}

impl State {
    pub(super) fn is_hello(self) -> bool {
        matches!(self, Self::Hello(_))
    }

    /// Up, or on its way out of the session.
    pub(super) fn is_joined(self) -> bool {
        matches!(self, Self::Up | Self::Retiring { .. } | Self::Retired)
    }
}

#[derive(Debug)]
pub(super) struct Carrier {
    /// On the wire; the acceptor knows it once it has answered the hello.
    pub(super) number: Option<u32>,
    pub(super) state: State,
    /// Its peer may be another one than the session's.
    pub(super) elsewhere: bool,
    /// Frames that go before anything else and are never repeated: the hello, or a close.
    pub(super) first: VecDeque<Frame>,
    pub(super) pong: Option<u64>,
    /// A PING is due that shows whether the peer is there.
    pub(super) probe: bool,
    /// What a lost carrier did not deliver, unless it is sent before anything that was made later.
    pub(super) again: VecDeque<Again>,
    pub(super) log: SendLog,
    /// The kernel takes no more for now.
    pub(super) blocked: bool,
    /// Bulk streams that send on it.
    pub(super) homes: u32,
    pub(super) receiving: Option<Receiving>,
    /// Whole control frames, headers and payload that were taken, bytes behind the hello.
    received: u64,
    acknowledged: u64,
    /// When an acknowledgement is due at the latest.
    ack_at: Option<Instant>,
    ack_due: bool,
    /// The latest moment that is known: payload comes without one.
    now: Instant,
}

impl Carrier {
    /// A connection whose hello is due at `deadline`.
    pub(super) fn new(now: Instant, deadline: Instant) -> Self {
        Self {
            number: None,
            state: State::Hello(deadline),
            elsewhere: false,
            first: VecDeque::new(),
            pong: None,
            probe: false,
            again: VecDeque::new(),
            log: SendLog::default(),
            blocked: false,
            homes: 0,
            receiving: None,
            received: 0,
            acknowledged: 0,
            ack_at: None,
            ack_due: false,
            now,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// A frame, or its header, of `length` bytes was taken. `asks`: for an acknowledgement.
    pub(super) fn take(&mut self, now: Instant, length: usize, asks: bool) {
        self.received += length as u64;
        self.now = now;
        if asks {
            self.ack_at.get_or_insert(now + ACK_DELAY);
        }
    }

    /// Payload of `length` bytes was taken, behind its header.
    pub(super) fn take_payload(&mut self, length: usize, asks: bool) {
        self.take(self.now, length, asks);
    }

    /// When [`Self::handle_timeout`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Hello(deadline) => Some(deadline),
            State::Up | State::Retiring { .. } => self.ack_at.filter(|_| !self.ack_due),
            State::Retired | State::Refused => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        self.ack_due |= self.ack_at.is_some_and(|at| at <= now);
    }

    pub(super) fn is_ack_due(&self) -> bool {
        self.ack_due || (self.ack_at.is_some() && self.received - self.acknowledged >= ACK_BYTES)
    }

    /// The acknowledgement to transmit now.
    pub(super) fn acknowledge(&mut self) -> Frame {
        self.acknowledged = self.received;
        self.ack_at = None;
        self.ack_due = false;
        Frame::Ack {
            received: self.received,
        }
    }
}
