//! One carrier of a native session: its hello, its own queue, and the number of bytes that both
//! ends have received on the carrier.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Receiving;
use super::codec::Frame;
use super::log::{Again, SendLog};

/// An acknowledgement is sent at once after this many received bytes. The acknowledgement of fewer
/// bytes waits for [`ACK_DELAY`].
const ACK_BYTES: u64 = 256 << 10;
/// Longest delay of an acknowledgement.
const ACK_DELAY: Duration = Duration::from_millis(25);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The peer's hello must arrive by this time, and the time grows with the round trip.
    Hello(Instant),
    Up,
    /// Only RETIRE and answers to the peer are sent on the carrier.
    Retiring {
        said: bool,
    },
    /// Both sides have sent RETIRE. The peer has received everything and closes the carrier.
    Retired,
    /// The carrier was given up. Only the close frame remains to be sent.
    Refused,
}

impl State {
    pub(super) fn is_hello(self) -> bool {
        matches!(self, Self::Hello(_))
    }

    /// Whether the carrier is up or being retired.
    pub(super) fn is_joined(self) -> bool {
        matches!(self, Self::Up | Self::Retiring { .. } | Self::Retired)
    }
}

#[derive(Debug)]
pub(super) struct Carrier {
    /// The number on the wire. The acceptor sets the number when it answers the hello.
    pub(super) number: Option<u32>,
    pub(super) state: State,
    began: Instant,
    /// Whether the peer of this carrier may differ from the session's peer.
    pub(super) elsewhere: bool,
    /// Frames that are sent before all other frames and are never repeated: the hello, or a close.
    pub(super) first: VecDeque<Frame>,
    pub(super) pong: Option<u64>,
    /// Whether a PING must be sent, to check whether the peer still answers.
    pub(super) probe: bool,
    /// Frames that a lost carrier did not deliver. These frames are sent before all later frames.
    pub(super) again: VecDeque<Again>,
    pub(super) log: SendLog,
    /// Whether the kernel currently accepts no more bytes.
    pub(super) blocked: bool,
    /// Number of bulk streams that send on the carrier.
    pub(super) homes: u32,
    pub(super) receiving: Option<Receiving>,
    /// Bytes received after the hello: whole control frames, headers and payload.
    received: u64,
    acknowledged: u64,
    /// The time at which an acknowledgement is due.
    ack_at: Option<Instant>,
    ack_due: bool,
}

impl Carrier {
    /// A connection whose hello must arrive within `hello`.
    pub(super) fn new(now: Instant, hello: Duration) -> Self {
        Self {
            number: None,
            began: now,
            state: State::Hello(now + hello),
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
        }
    }

    /// Lets the hello arrive within `time` after the carrier began, if this is later than before.
    pub(super) fn allow_hello(&mut self, time: Duration) {
        if let State::Hello(deadline) = self.state {
            self.state = State::Hello(deadline.max(self.began + time));
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Records that `length` bytes were received: a whole frame, a header, or payload.
    /// `asks`: the frame needs an acknowledgement.
    pub(super) fn take(&mut self, now: Instant, length: usize, asks: bool) {
        self.received += length as u64;
        if asks {
            self.ack_at.get_or_insert(now + ACK_DELAY);
        }
    }

    /// The time at which [`Self::handle_timeout`] must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Hello(deadline) => Some(deadline),
            State::Up | State::Retiring { .. } => self.ack_at.filter(|_| !self.ack_due),
            State::Retired | State::Refused => None,
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
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
