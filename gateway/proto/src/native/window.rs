//! Receive windows: what the peer may send, a stream and all together.
//!
//! Limits are absolute offsets, so a frame that says one coalesces with the next and none is ever
//! lost. The session's limit is the bound of memory: `MAX_DATA - consumed <= receive`, always. A
//! stream's window is what it is worth: it begins small, doubles while half of it is consumed in less
//! than two round trips (the window is then what limits the stream), and falls back once nothing has
//! been consumed for [`IDLE`]. Windows grow only while all of them together leave a quarter of `receive`
//! free, so streams that stall cannot take the session's credit from the others, however far they had
//! grown; only the least windows may overcommit.

use std::time::{Duration, Instant};

use super::codec::OFFSET_MAX;
use crate::session::share::{BulkShare, StreamShare};

/// Least window of a stream, bytes.
pub const WINDOW_BYTES_MIN: u64 = 16 << 10;
/// Largest window of a stream, bytes: 4 Gbit/s at an RTT of 130 ms.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Most of a stream's first window, bytes.
const INITIAL_BYTES_MAX: u64 = 64 << 10;
/// A first window is at most this part of `receive`, so that as many stalled streams are harmless.
const INITIAL_SHARE: u64 = 1024;
/// Credit goes back once it is this part of a window...
const RETURN_SHARE: u64 = 8;
/// ...or this many bytes.
const RETURN_BYTES_MAX: u64 = 1 << 20;
/// A stream that consumed nothing for this long has the window of a new one, and only what it holds counts.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// A local socket that takes less than this, and not all, takes nothing.
const PROGRESS_BYTES: u64 = 4 << 10;

/// Bytes that all bulk streams together always have.
const BULK_BYTES_MIN: u64 = 256 << 10;

/// The window of a new stream, bytes.
pub(super) fn initial(receive: u64) -> u64 {
    (receive / INITIAL_SHARE).clamp(WINDOW_BYTES_MIN, INITIAL_BYTES_MAX)
}

/// Received more than was granted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LimitExceeded;

/// All streams together.
#[derive(Debug)]
pub(super) struct SessionWindow {
    receive: u64,
    /// What the peer has been told.
    advertised: u64,
    received: u64,
    consumed: u64,
    /// The windows of all streams.
    windows: u64,
    share: BulkShare,
}

impl SessionWindow {
    /// The first limit, `receive` bytes, is told by the hello.
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

    /// The path's round trip time, without our own queues.
    pub(super) fn set_rtt(&mut self, rtt: Option<Duration>) {
        self.share.set_rtt(rtt);
    }

    pub(super) fn buffered(&self) -> u64 {
        self.received - self.consumed
    }

    pub(super) fn advertised(&self) -> u64 {
        self.advertised
    }

    /// Whether the peer has used up what it was told: its streams wait for more.
    pub(super) fn is_used_up(&self) -> bool {
        self.received == self.advertised
    }

    /// What the peer may send in all, once it is told.
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

    /// Whether enough was consumed to be worth a frame: an eighth, or as much as the peer has left,
    /// for where streams stall, little goes round.
    pub(super) fn due(&self) -> bool {
        let owed = self.consumed + self.receive - self.advertised;
        let left = self.advertised - self.received;
        owed > 0 && owed >= (self.receive / RETURN_SHARE).min(left)
    }

    /// The limit to tell the peer now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised = self.consumed + self.receive;
        self.advertised
    }

    /// What is left of three quarters of `receive` after all windows.
    fn room(&self) -> u64 {
        (self.receive / 4 * 3).saturating_sub(self.windows)
    }
}

/// One stream.
#[derive(Debug)]
pub(super) struct StreamWindow {
    size: u64,
    /// What of it counts among the windows of all streams.
    counted: u64,
    share: StreamShare,
    initial: u64,
    advertised: u64,
    received: u64,
    consumed: u64,
    /// When the measured stretch began, and what had been consumed then.
    since: Instant,
    consumed_before: u64,
    /// When it last consumed [`PROGRESS_BYTES`] or all that it held, or began to hold something.
    progress: Instant,
    /// Bytes consumed since.
    crumbs: u64,
}

impl StreamWindow {
    pub(super) fn new(now: Instant, initial: u64, session: &mut SessionWindow) -> Self {
        session.windows += initial;
        Self {
            size: initial,
            counted: initial,
            share: StreamShare::default(),
            initial,
            advertised: initial,
            received: 0,
            consumed: 0,
            since: now,
            consumed_before: 0,
            progress: now,
            crumbs: 0,
        }
    }

    /// Up to which offset payload has been announced.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Announced and not consumed, gaps included.
    pub(super) fn buffered(&self) -> u64 {
        self.received - self.consumed
    }

    /// Since when the local socket takes nothing, where something is there for it: payload up to `offset` has come.
    pub(super) fn stalled_since(&self, offset: u64) -> Option<Instant> {
        (offset > self.consumed).then_some(self.progress)
    }

    /// What the peer may still send.
    pub(super) fn credit(&self) -> u64 {
        self.advertised - self.received
    }

    /// What has been consumed and not been given back.
    pub(super) fn owed(&self) -> u64 {
        (self.consumed + self.size)
            .min(OFFSET_MAX)
            .saturating_sub(self.advertised)
    }

    /// Payload up to offset `end` is about to arrive. Checked before a byte of it is stored.
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

    /// What counts of an idle stream's window: what it holds, at most a first window.
    fn held(&self) -> u64 {
        self.buffered().min(self.initial)
    }

    fn count(&mut self, counted: u64, session: &mut SessionWindow) {
        session.windows = session.windows - self.counted + counted;
        self.counted = counted;
    }

    /// The local socket took `length` bytes: all of the window counts. Grows it where it is what limits the stream.
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

    /// What is beyond `offset` will never be delivered.
    pub(super) fn give_up_beyond(&mut self, offset: u64, session: &mut SessionWindow) {
        let kept = offset.max(self.consumed);
        session.consume(self.received.saturating_sub(kept));
        self.received = self.received.min(kept);
    }

    /// What is buffered, and what is still to come, is thrown away.
    pub(super) fn discard(&mut self, session: &mut SessionWindow) {
        let buffered = self.buffered();
        self.consumed += buffered;
        session.consume(buffered);
    }

    /// Falls back to a first window after [`IDLE`] without consumption, of which what it holds counts; else says when
    /// to look again. What has been promised stays promised.
    pub(super) fn shrink(&mut self, now: Instant, session: &mut SessionWindow) -> Option<Instant> {
        let idle_at = self.progress + IDLE;
        if now < idle_at {
            return Some(idle_at);
        }
        self.size = self.initial;
        self.count(self.held(), session);
        None
    }

    /// Whether enough was consumed to be worth a frame.
    pub(super) fn due(&self) -> bool {
        let owed = self.owed();
        owed > 0 && owed >= (self.size / RETURN_SHARE).min(RETURN_BYTES_MAX)
    }

    /// The limit to tell the peer now.
    pub(super) fn advertise(&mut self) -> u64 {
        self.advertised += self.owed();
        self.advertised
    }

    /// The stream is gone.
    pub(super) fn release(&mut self, session: &mut SessionWindow) {
        self.discard(session);
        self.count(0, session);
        self.size = 0;
        self.initial = 0;
    }
}

#[cfg(test)]
mod tests;
