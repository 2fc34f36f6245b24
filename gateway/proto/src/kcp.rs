//! KCP (<https://github.com/skywind3000/kcp>): a reliable byte stream over datagrams, in stream
//! mode and without error correction. The wire format is compatible with `ikcp.c`. The times of
//! transmissions differ from `ikcp.c`: `congestion.rs` determines them.
//!
//! The crate `kcp` (0.6.0) is not suitable. The crate subtracts serials and times as signed
//! numbers. In builds with overflow checks, such as ours, one datagram with a distant serial or
//! time then causes a panic. The crate's queue of acknowledgements has no bound, and its segments
//! may be as long as a datagram. For each acknowledgement and each flush, the crate iterates over
//! the whole window, and it allocates each segment. The crate also uses KCP's congestion window,
//! which random loss keeps small.
//!
//! # Additions
//! - **The end of a direction** is an empty segment, which is ordered and acknowledged like any
//!   other segment. KCP in stream mode never sends an empty segment. An implementation that
//!   receives an empty segment delivers a message of zero bytes, which the reader treats as the
//!   end.
//! - **The challenge.** KCP has no handshake, so a forged source address in a first datagram would
//!   make the acceptor allocate state. Instead, the acceptor answers with a segment whose serial
//!   precedes the first serial ([`CHALLENGE`]), and keeps no state. Any KCP acknowledges this
//!   segment as an old duplicate and echoes its time, which proves that the peer receives datagrams
//!   at its address.
//! - **The reset.** A window request carries a random secret in two fields that KCP does not use.
//!   If the conversation of a window request is unknown and has already begun, the acceptor answers
//!   with the segment whose serial precedes the challenge ([`RESET`]), and repeats the secret. Our
//!   implementation then ends the connection. Any other KCP ignores this segment. A stranger that
//!   does not see the datagrams cannot forge a reset.
//! - **The keepalive.** The connection requests the window of a silent peer, as KCP does for a
//!   closed window. If the peer does not answer, the connection fails.
//!
//! The module has no socket and no clock: `now` is an argument. The module makes a separate
//! allocation only for a segment that arrives before earlier segments.

mod congestion;
mod greeting;
mod receiver;
mod rtt;
mod segment;
mod sender;

use std::io::IoSlice;
use std::time::{Duration, Instant};

use crate::patience::patience;
pub use greeting::{CHALLENGE, Opening, RESET, challenge, opening, reset};
use greeting::{fields_of_ask, secret_of_reset};
use receiver::Receiver;
pub use segment::{Command, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, Segments};
use sender::{Sender, millis};

/// Size of a datagram in bytes. The value is KCP's default, and small enough for most tunnels.
pub const DATAGRAM_BYTES: usize = 1400;
/// Payload of a full segment in bytes.
pub const SEGMENT_PAYLOAD_BYTES: usize = DATAGRAM_BYTES - HEADER_BYTES;
/// Interval of the window requests while the peer's window is closed, in microseconds.
const ASK_WINDOW: u64 = 200_000;

/// The bounds of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Maximum number of bytes in the send buffer.
    pub send_bytes: usize,
    /// Maximum number of bytes in the receive buffer.
    pub receive_bytes: usize,
}

/// The times after which a connection with a silent peer fails, on ordinary paths. The times grow
/// with long round trips ([`patience`]).
#[derive(Debug, Clone, Copy)]
pub struct Keepalive {
    /// While segments are in flight and no datagram arrives for this time, the connection fails.
    pub dead_after: Duration,
    /// The connection requests the peer's window after this time without a datagram, and repeats
    /// the request at this interval.
    pub interval: Duration,
    /// The connection fails after this many requests without an answer.
    pub retries: u32,
}

/// Why a connection has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The peer does not answer.
    Vanished,
    /// The peer does not know the connection.
    Reset,
}

/// The state of the path.
#[derive(Debug, Clone, Copy, Default)]
pub struct PathState {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// The shortest round trip.
    pub rtt_min: Duration,
    /// Bytes per second that the peer acknowledged; 0: unknown.
    pub rate: u64,
    /// Whether the sender had less to send than the path could carry.
    pub app_limited: bool,
    /// Bytes that have never been sent.
    pub queued: usize,
    /// Maximum number of bytes in flight.
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
    /// Sent in window requests. Only a reset that repeats the secret ends the connection.
    secret: u64,
    origin: Instant,
    sender: Sender,
    receiver: Receiver,
    keepalive: Keepalive,
    /// The time at which the last datagram of the peer arrived, except challenges and resets.
    heard: u64,
    /// Number of window requests since the last datagram of the peer.
    questions: u32,
    asked: u64,
    ask: bool,
    /// Whether a datagram of the peer has arrived.
    met: bool,
    failure: Option<Failure>,
}

impl Connection {
    /// `secret`: a random number that a reset must repeat. `first`: the serial of the first segment
    /// in both directions. The value is 0, except in tests of the wraparound.
    #[must_use]
    pub fn new(
        (conversation, secret): (u32, u64),
        settings: Settings,
        keepalive: Keepalive,
        now: Instant,
        first: u64,
    ) -> Self {
        let window = settings.send_bytes / SEGMENT_PAYLOAD_BYTES;
        let window = u16::try_from(window).unwrap_or(u16::MAX);
        Self {
            conversation,
            secret,
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

    /// Records a round trip that was measured before the first segment was sent.
    pub fn measured(&mut self, rtt: Duration) {
        let rtt = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX);
        self.sender.rtt.sample(rtt);
    }

    /// Sets the times after which a connection with a silent peer fails.
    pub fn keep_alive(&mut self, keepalive: Keepalive) {
        self.keepalive = keepalive;
    }

    /// Handles a datagram. Segments of other conversations and malformed segments are ignored.
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
                        if !begins && secret_of_reset(&header) == self.secret {
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
        // The cumulative acknowledgement is handled last, because it discards the times of
        // segments. The acknowledgements of single segments need these times.
        if let Some((next, window)) = said {
            self.sender.peer_has(now, next, window);
        }
        self.sender.end_of_input(now);
    }

    /// Appends the next datagram to `out`. Returns `false` if no datagram can be sent now.
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
            let (time, serial) = fields_of_ask(self.secret);
            header(Command::Ask, time, serial, next).encode(0, out);
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

    /// The latest time at which [`Self::handle_timeout`] or [`Self::poll_transmit`] must be called
    /// next.
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

    /// A time in microseconds that is `ordinary` on ordinary paths.
    fn patience(&self, ordinary: Duration) -> u64 {
        let smoothed = self.sender.rtt.smoothed().unwrap_or(0);
        let time = patience(ordinary, Duration::from_micros(smoothed));
        u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
    }

    fn dead_at(&self) -> Option<u64> {
        let since = self.heard.max(self.sender.busy_since);
        let dead_after = self.patience(self.keepalive.dead_after);
        self.sender
            .is_in_flight()
            .then(|| since.saturating_add(dead_after))
    }

    /// Applies the timeouts that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.micros(now);
        if self.sender.handle_timeout(now) {
            // The peer may have restarted. It then answers only a window request.
            self.ask = true;
        }
        if self.dead_at().is_some_and(|at| now >= at) {
            self.failure.get_or_insert(Failure::Vanished);
        }
        if now >= self.question_at() {
            let silence = self.keepalive.interval * (self.keepalive.retries + 1);
            if now >= self.heard.saturating_add(self.patience(silence)) {
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

    /// Whether any datagram of the peer has arrived, including a challenge.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.met
    }

    /// Requests the peer's window, so that the peer answers.
    pub fn ask(&mut self) {
        self.ask = true;
    }

    /// Reads ordered payload. `None`: no payload has arrived yet. 0: the direction has ended.
    pub fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        self.receiver.read(bytes)
    }

    /// Whether [`Self::read`] returns payload or the end.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.receiver.is_readable()
    }

    /// Whether the window has grown and must be sent to the peer.
    #[must_use]
    pub fn is_to_tell(&self) -> bool {
        self.receiver.is_to_tell()
    }

    /// Raises the size of the receive buffer to `bytes`. A lower value has no effect.
    pub fn receive_up_to(&mut self, bytes: usize) {
        self.receiver.receive_up_to(bytes);
    }

    /// Accepts as many bytes as fit into the buffer. Returns the number of accepted bytes.
    pub fn write(&mut self, slices: &[IoSlice<'_>]) -> usize {
        self.sender.write(slices)
    }

    /// Whether [`Self::write`] accepts any byte.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.sender.room() > 0
    }

    /// Limits the accepted bytes that wait for their first transmission to about `bytes`.
    pub fn bound_queue(&mut self, bytes: usize) {
        self.sender.bound_queue(bytes);
    }

    /// Ends the sending direction after the bytes that were written.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// Whether the sending direction has been ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.sender.is_finished()
    }

    /// Whether the peer has received all written bytes and the end.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sender.is_settled()
    }

    /// The failure of the connection, if it has failed.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// The state of the path.
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
