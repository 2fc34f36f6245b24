//! Receive windows: the number of bytes that the peer may send, on one stream and on all streams
//! together.
//!
//! Limits are absolute offsets, so a newer limit replaces an older one and no credit is lost. The
//! session's limit bounds memory: `MAX_DATA - consumed <= receive` always holds.
//!
//! A stream's window begins small. If half of the window is consumed in less than two round trips,
//! the window limits the stream, so it doubles. After [`IDLE`] without consumption, the window
//! falls back to its first size. Windows grow only while all of them together leave a quarter of
//! `receive` free. So stalled streams cannot use up the session's credit, regardless of the size of
//! their windows. Only first windows may overcommit.

use std::time::{Duration, Instant};

use super::codec::OFFSET_MAX;
use crate::session::share::{BulkShare, StreamShare};

/// Smallest window of a stream in bytes.
pub const WINDOW_BYTES_MIN: u64 = 16 << 10;
/// Largest window of a stream in bytes: 4 Gbit/s at an RTT of 130 ms.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Largest first window of a stream in bytes.
const INITIAL_BYTES_MAX: u64 = 64 << 10;
/// A first window is `receive` divided by this number, at least [`WINDOW_BYTES_MIN`] and at most
/// [`INITIAL_BYTES_MAX`]. So only many stalled streams together can use up `receive`.
const INITIAL_SHARE: u64 = 1024;
/// Credit is returned once the owed credit reaches the window divided by this number, and at the
/// latest once it reaches [`RETURN_BYTES_MAX`].
const RETURN_SHARE: u64 = 8;
/// Credit of this many bytes is returned, even if the window is large.
const RETURN_BYTES_MAX: u64 = 1 << 20;
/// After this time without consumption, the window of a stream falls back to the size of a first
/// window. Only the buffered bytes of the stream then count in the sum of all windows.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// A local socket makes progress when it takes this many bytes, or all waiting payload.
const PROGRESS_BYTES: u64 = 4 << 10;

/// Bytes that all bulk streams together may always have in flight.
const BULK_BYTES_MIN: u64 = 256 << 10;

/// The window of a new stream in bytes.
pub(super) fn initial(receive: u64) -> u64 {
    (receive / INITIAL_SHARE).clamp(WINDOW_BYTES_MIN, INITIAL_BYTES_MAX)
}

/// The peer sent more bytes than its credit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LimitExceeded;

/// The window of all streams together.
#[derive(Debug)]
pub(super) struct SessionWindow {
    receive: u64,
    /// The limit that was last sent to the peer.
    advertised: u64,
    received: u64,
    consumed: u64,
    /// Sum of the windows of all streams.
    windows: u64,
    share: BulkShare,
}

impl SessionWindow {
    /// The first limit is `receive` bytes. The hello announces it.
    pub(super) fn new(receive: u64) -> Self {
        Self {
            receive,
            advertised: receive,
            received: 0,
            consumed: 0,
            windows: 0,
            share: BulkShare::new(BULK_BYTES_MIN),
        }
    }

    /// The path's round trip time, without this side's queues.
    pub(super) fn set_rtt(&mut self, rtt: Option<Duration>) {
        self.share.set_rtt(rtt);
    }

    pub(super) fn buffered(&self) -> u64 {
        self.received - self.consumed
    }

    pub(super) fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Whether the peer has used up the limit, so that the peer's streams wait for more.
    pub(super) fn is_used_up(&self) -> bool {
        self.received == self.advertised
    }

    /// Total number of bytes that the peer may send once the peer has received the limit.
    pub(super) fn free(&self) -> u64 {
        self.receive - self.buffered()
    }

    fn ingest(&mut self, length: u64) -> Result<(), LimitExceeded> {
        if length > self.advertised - self.received {
            return Err(LimitExceeded);
        }
        self.received += length;
        Ok(())
    }

    fn consume(&mut self, length: u64) {
        debug_assert!(length <= self.buffered());
        self.consumed += length.min(self.buffered());
    }

    /// Whether enough was consumed to send a frame: at least an eighth of `receive`, or at least as
    /// much as the peer's remaining credit. The second condition matters when streams stall and
    /// little credit circulates.
    pub(super) fn due(&self) -> bool {
        let owed = self.consumed + self.receive - self.advertised;
        let left = self.advertised - self.received;
        owed > 0 && owed >= (self.receive / RETURN_SHARE).min(left)
    }

    /// The limit to send to the peer now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised = self.consumed + self.receive;
        self.advertised
    }

    /// Three quarters of `receive`, minus the windows of all streams.
    fn room(&self) -> u64 {
        (self.receive / 4 * 3).saturating_sub(self.windows)
    }
}

/// The window of one stream.
#[derive(Debug)]
pub(super) struct StreamWindow {
    size: u64,
    /// The part of the window that counts in the sum of all windows.
    counted: u64,
    share: StreamShare,
    initial: u64,
    advertised: u64,
    received: u64,
    consumed: u64,
    /// The time since which the consumption of half a window is measured.
    since: Instant,
    /// The value of `consumed` at `since`.
    consumed_before: u64,
    /// The time at which the socket last consumed [`PROGRESS_BYTES`] or all payload, or at which
    /// payload began to wait.
    progress: Instant,
    /// Bytes consumed since `progress`.
    crumbs: u64,
}

impl StreamWindow {
    /// The payload of the stream starts at the offset `first`.
    pub(super) fn new(now: Instant, first: u64, initial: u64, session: &mut SessionWindow) -> Self {
        session.windows += initial;
        Self {
            size: initial,
            counted: initial,
            share: StreamShare::default(),
            initial,
            advertised: (first + initial).min(OFFSET_MAX),
            received: first,
            consumed: first,
            since: now,
            consumed_before: first,
            progress: now,
            crumbs: 0,
        }
    }

    /// The offset up to which payload has been announced.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Bytes announced and not consumed, gaps included.
    pub(super) fn buffered(&self) -> u64 {
        self.received - self.consumed
    }

    /// The time since which the local socket has accepted no data, if payload waits. `offset` is
    /// the end of the contiguous payload that has arrived.
    pub(super) fn stalled_since(&self, offset: u64) -> Option<Instant> {
        (offset > self.consumed).then_some(self.progress)
    }

    /// Bytes that the peer may still send.
    pub(super) fn credit(&self) -> u64 {
        self.advertised - self.received
    }

    /// Bytes consumed whose credit has not been returned.
    pub(super) fn owed(&self) -> u64 {
        (self.consumed + self.size)
            .min(OFFSET_MAX)
            .saturating_sub(self.advertised)
    }

    /// Checks announced payload up to offset `end` against the credit, before the payload is
    /// stored.
    pub(super) fn ingest(
        &mut self,
        now: Instant,
        end: u64,
        session: &mut SessionWindow,
    ) -> Result<(), LimitExceeded> {
        if end > self.advertised {
            return Err(LimitExceeded);
        }
        session.ingest(end.saturating_sub(self.received))?;
        if self.buffered() == 0 {
            self.progress = now;
            self.crumbs = 0;
        }
        self.received = self.received.max(end);
        let held = self.held();
        if self.counted < held {
            self.count(held, session);
        }
        Ok(())
    }

    /// The part of an idle stream's window that counts in the sum of all windows: the buffered
    /// bytes, at most a first window.
    fn held(&self) -> u64 {
        self.buffered().min(self.initial)
    }

    fn count(&mut self, counted: u64, session: &mut SessionWindow) {
        session.windows = session.windows - self.counted + counted;
        self.counted = counted;
    }

    /// Records that the local socket took `length` bytes. The whole window then counts in the sum
    /// of all windows. The window grows if it limits the stream.
    pub(super) fn consume(
        &mut self,
        now: Instant,
        length: u64,
        rtt: Duration,
        session: &mut SessionWindow,
    ) {
        debug_assert!(length <= self.buffered());
        let length = length.min(self.buffered());
        self.consumed += length;
        self.crumbs += length;
        if self.crumbs >= PROGRESS_BYTES || self.buffered() == 0 {
            self.progress = now;
            self.crumbs = 0;
        }
        session.consume(length);
        self.count(self.size, session);
        let most = session
            .share
            .consume(now, &mut self.share, length)
            .max(self.initial);
        if self.size > most {
            self.size = most;
            self.count(most, session);
        }
        if self.consumed - self.consumed_before < self.size / 2 {
            return;
        }
        let limited = now.saturating_duration_since(self.since) < 2 * rtt;
        self.since = now;
        self.consumed_before = self.consumed;
        if limited {
            let more = self
                .size
                .min(WINDOW_BYTES_MAX.min(most) - self.size)
                .min(session.room());
            self.size += more;
            self.count(self.size, session);
        }
    }

    /// Gives up payload beyond `offset`, which will never be delivered.
    pub(super) fn give_up_beyond(&mut self, offset: u64, session: &mut SessionWindow) {
        let kept = offset.max(self.consumed);
        session.consume(self.received.saturating_sub(kept));
        self.received = self.received.min(kept);
    }

    /// Discards the buffered payload and all payload that arrives later.
    pub(super) fn discard(&mut self, session: &mut SessionWindow) {
        let buffered = self.buffered();
        self.consumed += buffered;
        session.consume(buffered);
    }

    /// Reduces the window to a first window after [`IDLE`] without consumption. Only the buffered
    /// bytes of the stream then count in the sum of all windows. Before that time, returns the time
    /// of the next check. Granted credit is not withdrawn.
    pub(super) fn shrink(&mut self, now: Instant, session: &mut SessionWindow) -> Option<Instant> {
        let idle_at = self.progress + IDLE;
        if now < idle_at {
            return Some(idle_at);
        }
        self.size = self.initial;
        self.count(self.held(), session);
        None
    }

    /// Whether enough was consumed to send a frame. The credit up to the last offset is always
    /// enough, because no more credit follows.
    pub(super) fn due(&self) -> bool {
        let owed = self.owed();
        let is_last = self.advertised + owed == OFFSET_MAX;
        owed > 0 && (is_last || owed >= (self.size / RETURN_SHARE).min(RETURN_BYTES_MAX))
    }

    /// The limit to send to the peer now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised += self.owed();
        self.advertised
    }

    /// Removes the window of a stream that has ended.
    pub(super) fn release(&mut self, session: &mut SessionWindow) {
        self.discard(session);
        self.count(0, session);
        self.size = 0;
        self.initial = 0;
    }
}

#[cfg(test)]
mod tests;
