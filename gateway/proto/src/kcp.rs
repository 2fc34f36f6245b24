//! KCP (<https://github.com/skywind3000/kcp>): a reliable stream of bytes in datagrams, in its stream mode and without
//! error correction. Its wire is that of `ikcp.c`; what is sent when is our own.
//!
//! Not the crate `kcp` (0.6.0): its numbers are subtracted as signed ones, so one datagram with a far serial or time
//! panics where overflow is checked, as it is in our builds; acknowledgements wait without a bound, a segment may be as
//! long as a datagram, each acknowledgement and each flush walks over the whole window, and each segment is allocated.
//! It also has KCP's congestion window, see `congestion.rs`.
//!
//! # What is ours
//! - **The end of a direction** is an empty segment, in order and acknowledged like any other. A KCP in stream mode sends
//!   none, and hands one on as a message of no bytes, which its reader takes for the end.
//! - **The challenge.** KCP has no handshake, so who forges the source of a first datagram would make the acceptor keep
//!   state for it. The acceptor answers with a segment before the first one ([`CHALLENGE`]) instead, of which it keeps
//!   nothing: any KCP acknowledges it as an old duplicate, with its time, which is a proof that it receives there.
//! - **The reset.** Where a datagram is of a conversation that the acceptor does not know, and not of one that begins,
//!   the answer is the segment before that ([`RESET`]). Any KCP ignores it; ours ends.
//! - An end that is silent is asked for its window, as KCP asks for a closed one, and is gone where it does not answer.
//!
//! No socket and no clock: `now` is an argument. No allocation but for segments that come early.

mod congestion;
mod greeting;
mod receiver;
mod rtt;
mod segment;
mod sender;

use std::io::IoSlice;
use std::time::{Duration, Instant};

pub use greeting::{CHALLENGE, Opening, RESET, challenge, opening, reset};
use receiver::Receiver;
pub use segment::{Command, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, Segments};
use sender::{Sender, millis};

/// Bytes of a datagram: KCP's default, which most tunnels let pass.
pub const DATAGRAM_BYTES: usize = 1400;
/// Payload of a whole segment.
pub const SEGMENT_PAYLOAD_BYTES: usize = DATAGRAM_BYTES - HEADER_BYTES;
/// Between two questions about a closed window.
const ASK_WINDOW: u64 = 200_000;

/// The bounds of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Bytes that are held of what is sent.
    pub send_bytes: usize,
    /// Bytes that are held of what has come.
    pub receive_bytes: usize,
}

/// When a peer that is silent is gone.
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// Without a word while something is on its way to it.
    pub dead_after: Duration,
    /// Without a word it is asked so often...
    pub interval: Duration,
    /// ...and is gone after so many questions without an answer.
    pub retries: u32,
}

/// Why a connection has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The peer says nothing any more.
    Vanished,
    /// The peer does not know the connection.
    Reset,
}

/// What is known of the path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathState {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The least one.
    pub rtt_min: Duration,
    /// Bytes a second that the peer acknowledged; 0: not known.
    pub rate: u64,
    /// Whether less was offered than the path could take.
    pub app_limited: bool,
    /// Bytes that were not sent once.
    pub queued: usize,
    /// Bytes that may be on their way at once.
    pub window: u64,
    /// Segments sent more than once.
    pub resent: u64,
    /// Segments sent and not acknowledged.
    pub unacknowledged: u64,
    /// Bytes that the peer has acknowledged.
    pub acknowledged: u64,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Connection {
    conversation: u32,
    origin: Instant,
    sender: Sender,
    receiver: Receiver,
    keepalive: Keepalive,
    /// When the peer last said something.
    heard: u64,
    /// Questions since then.
    questions: u32,
    asked: u64,
    ask: bool,
    /// The peer has said something.
    met: bool,
    failure: Option<Failure>,
}

impl Connection {
    /// `first`: the serial of the first segment of both directions: 0, but where a test wants the numbers' end.
    #[must_use]
    pub fn new(
        conversation: u32,
        settings: Settings,
        keepalive: Keepalive,
        now: Instant,
        first: u64,
    ) -> Self {
        let window = settings.send_bytes / SEGMENT_PAYLOAD_BYTES;
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        Self {
            conversation,
            origin: now,
            sender: Sender::new(0, first, settings.send_bytes, window),
            receiver: Receiver::new(first, settings.receive_bytes),
            keepalive,
            heard: 0,
            questions: 0,
            asked: 0,
            ask: false,
            met: false,
            failure: None,
        }
    }

    fn micros(&self, now: Instant) -> u64 {
        let passed = now.saturating_duration_since(self.origin).as_micros();
        u64::try_from(passed).unwrap_or(u64::MAX)
    }

    fn instant(&self, micros: u64) -> Option<Instant> {
        self.origin.checked_add(Duration::from_micros(micros))
    }

    /// The conversation's number.
    #[must_use]
    pub fn conversation(&self) -> u32 {
        self.conversation
    }

    /// A round trip was measured before the first segment was sent.
    pub fn measured(&mut self, rtt: Duration) {
        let rtt = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
        self.sender.rtt.sample(rtt);
    }

    /// When a silent peer is gone.
    pub fn keep_alive(&mut self, keepalive: Keepalive) {
        self.keepalive = keepalive;
    }

    /// A datagram has come. What is not of this conversation is ignored, like what is malformed.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) {
        let now = self.micros(now);
        let mut said = None;
        for (header, payload) in Segments(datagram) {
            if header.conversation != self.conversation {
                break;
            }
            self.met = true;
            let begins = self.receiver.next() == 0;
            if header.command == Command::Push && payload.is_empty() {
                match header.serial {
                    CHALLENGE if self.receiver.next() < CHALLENGE.into() => {
                        self.receiver.acknowledge(CHALLENGE, header.time);
                        if begins && self.sender.acknowledged == 0 {
                            self.sender.begin_again();
                        }
                        continue;
                    }
                    RESET if self.receiver.next() < RESET.into() => {
                        if !begins {
                            self.failure.get_or_insert(Failure::Reset);
                        }
                        continue;
                    }
                    _ => {}
                }
            }
            self.heard = now;
            self.questions = 0;
            said = Some((header.next, header.window));
            match header.command {
                Command::Push => {
                    self.receiver.push(header.serial, header.time, payload);
                }
                Command::Ack => self.sender.peer_has_one(now, header.serial, header.time),
                Command::Ask => self.receiver.asked(),
                Command::Tell => {}
            }
        }
        // After what it says of single segments, whose times are known by that.
        if let Some((next, window)) = said {
            self.sender.peer_has(now, next, window);
        }
        self.sender.end_of_input(now);
    }

    /// Appends a datagram to `out`; returns whether there was one to be sent now.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut Vec<u8>) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let now = self.micros(now);
        let begin = out.len();
        let window = self.receiver.window();
        let header = |command, time, serial, next| Header {
            conversation: self.conversation,
            command,
            window,
            time,
            serial,
            next,
        };
        let next = self.receiver.next() as u32;
        let room = |out: &Vec<u8>| DATAGRAM_BYTES - (out.len() - begin);
        if std::mem::take(&mut self.ask) {
            header(Command::Ask, millis(now), 0, next).encode(0, out);
        }
        while room(out) >= HEADER_BYTES
            && let Some((serial, time)) = self.receiver.next_ack()
        {
            header(Command::Ack, time, serial, next).encode(0, out);
        }
        while let Some(segment) = self.sender.next(now) {
            if room(out) < HEADER_BYTES + segment.length {
                break;
            }
            let serial = segment.serial as u32;
            header(Command::Push, millis(now), serial, next).encode(segment.length, out);
            self.sender.send(now, segment, out);
        }
        if out.len() == begin && self.receiver.is_to_tell() {
            header(Command::Tell, millis(now), 0, next).encode(0, out);
        }
        let is_some = out.len() > begin;
        if is_some {
            self.receiver.told(window);
        }
        is_some
    }

    /// When [`Self::handle_timeout`] or [`Self::poll_transmit`] has something to do that nothing else brings about.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.failure.is_some() {
            return None;
        }
        let shut_out = self
            .sender
            .is_shut_out()
            .then(|| self.asked.saturating_add(ASK_WINDOW));
        let at = [
            self.sender.timeout(),
            shut_out,
            Some(self.question_at()),
            self.dead_at(),
        ];
        at.into_iter()
            .flatten()
            .min()
            .and_then(|at| self.instant(at))
    }

    fn question_at(&self) -> u64 {
        let interval = u64::try_from(self.keepalive.interval.as_micros()).unwrap_or(u64::MAX);
        let after = interval.saturating_mul(u64::from(self.questions) + 1);
        self.heard.saturating_add(after)
    }

    fn dead_at(&self) -> Option<u64> {
        let since = self.heard.max(self.sender.busy_since);
        let dead_after = u64::try_from(self.keepalive.dead_after.as_micros()).unwrap_or(u64::MAX);
        self.sender
            .is_in_flight()
            .then(|| since.saturating_add(dead_after))
    }

    /// Something may be due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.micros(now);
        self.sender.handle_timeout(now);
        if self.dead_at().is_some_and(|at| now >= at) {
            self.failure.get_or_insert(Failure::Vanished);
        }
        if now >= self.question_at() {
            if self.questions >= self.keepalive.retries {
                self.failure.get_or_insert(Failure::Vanished);
            }
            self.questions += 1;
            self.ask_at(now);
        } else if self.sender.is_shut_out() && now >= self.asked + ASK_WINDOW {
            self.ask_at(now);
        }
    }

    fn ask_at(&mut self, now: u64) {
        self.ask = true;
        self.asked = now;
    }

    /// Whether the peer has said anything, be it a challenge.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.met
    }

    /// Asks the peer for a word.
    pub fn ask(&mut self) {
        self.ask = true;
    }

    /// Reads what is ready; `None`: nothing is yet; 0: the direction has ended.
    pub fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        self.receiver.read(bytes)
    }

    /// Whether [`Self::read`] gives something, or the end.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.receiver.is_readable()
    }

    /// Whether the peer is to hear that it may send more.
    #[must_use]
    pub fn is_to_tell(&self) -> bool {
        self.receiver.is_to_tell()
    }

    /// Holds as many bytes of what has come, and no fewer than before.
    pub fn receive_up_to(&mut self, bytes: usize) {
        self.receiver.receive_up_to(bytes);
    }

    /// Takes what it can; returns how many bytes.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> usize {
        self.sender.write(slices)
    }

    /// Whether [`Self::write`] takes something.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.sender.room() > 0
    }

    /// Takes no more while about `bytes` wait that were not sent once.
    pub fn bound_queue(&mut self, bytes: usize) {
        self.sender.bound_queue(bytes);
    }

    /// Nothing more will be written.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Whether nothing more may be written.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.sender.is_finished()
    }

    /// Whether all that was written has arrived, the end included.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sender.is_settled()
    }

    /// Why it has failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// What is known of the path.
    #[must_use]
    pub fn path(&self) -> PathState {
        let rtt = |micros: Option<u64>| Duration::from_micros(micros.unwrap_or(0));
        PathState {
            rtt: rtt(self.sender.rtt.smoothed()),
            rtt_min: rtt(self.sender.rtt.least()),
            rate: self.sender.congestion.rate(),
            app_limited: self.sender.congestion.is_app_limited(),
            queued: self.sender.queued(),
            window: self.sender.congestion.window(),
            resent: self.sender.resent,
            unacknowledged: self.sender.in_flight_segments(),
            acknowledged: self.sender.acknowledged,
        }
    }
}
