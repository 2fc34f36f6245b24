//! Receive windows and their common budget.
//!
//! A window is the sum of three numbers of bytes:
//!
//! - `credit`: the peer may still send these bytes
//! - `buffered`: received, but not yet taken by the local socket
//! - `owed`: taken, but not yet returned to the peer as credit
//!
//! The session's [`Budget`] reserves the sum, so memory is bounded regardless of the peer.

use std::time::Instant;

use crate::session::share::{BulkShare, StreamShare};

/// Smallest window of a stream in bytes. jetsocat returns credit in steps of over 4 KiB, so a
/// window must be well above that.
pub const WINDOW_BYTES_MIN: u32 = 16 << 10;
/// Largest window of a stream in bytes. This is jetsocat's initial window, and suffices for 4
/// Gbit/s at a round trip time (RTT) of 130 ms.
pub const WINDOW_BYTES_MAX: u32 = 64 << 20;
/// Credit is returned once the owed credit reaches the window divided by this number, and at the
/// latest once it reaches [`RETURN_BYTES_MAX`].
const RETURN_SHARE: u64 = 8;
/// Credit of this many bytes is returned, even if the window is large.
const RETURN_BYTES_MAX: u64 = 1 << 20;
/// The initial window of a stream is the spare bytes of the [`Budget`] divided by this number.
const INITIAL_SHARE: u64 = 8;

/// Bytes that all bulk streams together may always have in flight: 200 Mbit/s at an RTT of 100 ms.
/// A bound from the measured RTT alone can be too small. If an intermediary terminates connections,
/// the transport measures a shorter RTT than that of the whole path.
pub(super) const BULK_BYTES_MIN: u64 = 5 << 19;

/// The bytes of one session that may be granted as credit.
///
/// The budget sets aside the smallest window for every stream that the table can still hold. A new
/// stream gets an eighth of the remaining bytes, but at least the smallest and at most the largest
/// window. A window that was used up doubles, but grows by at most half of the remaining bytes.
#[derive(Debug)]
pub(super) struct Budget {
    total: u64,
    reserved: u64,
    streams: u64,
    streams_max: u64,
}

impl Budget {
    pub(super) fn new(total: u64, streams_max: u32) -> Self {
        Self {
            total,
            reserved: 0,
            streams: 0,
            streams_max: u64::from(streams_max),
        }
    }

    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Bytes that are neither reserved nor set aside for later streams.
    fn spare(&self, streams_to_come: u64) -> u64 {
        let set_aside = streams_to_come * u64::from(WINDOW_BYTES_MIN);
        self.total
            .saturating_sub(self.reserved)
            .saturating_sub(set_aside)
    }

    /// Reserves the window of one more stream. `None`: the budget has no room.
    pub(super) fn reserve_initial(&mut self) -> Option<u32> {
        let to_come = self.streams_max.saturating_sub(self.streams + 1);
        let share = self.spare(to_come) / INITIAL_SHARE;
        let bytes = share.clamp(u64::from(WINDOW_BYTES_MIN), u64::from(WINDOW_BYTES_MAX));
        if self.reserved + bytes > self.total {
            return None;
        }
        self.reserved += bytes;
        self.streams += 1;
        u32::try_from(bytes).ok()
    }

    /// Reserves up to `wanted` more bytes for a stream. Returns how many it reserved.
    fn grow(&mut self, wanted: u64) -> u64 {
        let to_come = self.streams_max.saturating_sub(self.streams);
        let bytes = wanted.min(self.spare(to_come) / 2);
        self.reserved += bytes;
        bytes
    }

    /// Releases `bytes` of a window that became smaller.
    fn shrink(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.reserved);
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Releases the `bytes` that a removed stream had reserved.
    pub(super) fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.reserved && self.streams > 0);
        self.reserved = self.reserved.saturating_sub(bytes);
        self.streams = self.streams.saturating_sub(1);
    }
}

/// The peer sent more bytes than its credit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CreditExceeded;

/// The receive window of one stream.
#[derive(Debug)]
pub(super) struct RecvWindow {
    credit: u64,
    received: u64,
    buffered: u64,
    owed: u64,
    /// Number of bytes by which the credit in our OPEN exceeds the smaller credit in the acceptor's
    /// answer. The peer may still send these bytes.
    slack: u64,
    /// Bytes taken since the window last grew.
    taken: u64,
    share: StreamShare,
}

impl RecvWindow {
    pub(super) fn new(bytes: u32) -> Self {
        Self {
            credit: u64::from(bytes),
            received: 0,
            buffered: 0,
            owed: 0,
            slack: 0,
            taken: 0,
            share: StreamShare::default(),
        }
    }

    fn window(&self) -> u64 {
        self.credit + self.buffered + self.owed
    }

    /// Bytes that the window has reserved in the budget.
    pub(super) fn reserved(&self) -> u64 {
        self.window() + self.slack
    }

    pub(super) fn buffered(&self) -> u64 {
        self.buffered
    }

    pub(super) fn owed(&self) -> u64 {
        self.owed
    }

    /// Credit that the peer may use now.
    pub(super) fn credit(&self) -> u64 {
        self.credit
    }

    /// Limits the acceptor's answer to the opener's window, because the answer is the initial
    /// window of both directions (jetsocat has one figure for both). The rest of the reservation is
    /// granted later.
    pub(super) fn limit_to_offer(&mut self, offered: u32) -> u32 {
        let answered = self.credit.min(u64::from(offered));
        self.owed += self.credit - answered;
        self.credit = answered;
        u32::try_from(answered).unwrap_or(u32::MAX)
    }

    /// Limits the opener's window to the acceptor's answer, which is the initial window of both
    /// directions.
    pub(super) fn limit_to_answer(&mut self, answered: u32) {
        let counted = self.credit.min(u64::from(answered));
        self.slack = self.credit - counted;
        self.credit = counted;
    }

    /// Bytes received since the stream's beginning.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Checks announced payload against the credit, before the payload is stored.
    pub(super) fn ingest(&mut self, length: u64) -> Result<(), CreditExceeded> {
        let beyond = length.saturating_sub(self.credit);
        if beyond > self.slack {
            return Err(CreditExceeded);
        }
        self.slack -= beyond;
        self.credit -= length - beyond;
        self.buffered += length;
        self.received += length;
        Ok(())
    }

    /// Records that the local socket took `length` bytes.
    pub(super) fn take(&mut self, length: u64) {
        debug_assert!(length <= self.buffered);
        let length = length.min(self.buffered);
        self.buffered -= length;
        self.owed += length;
        self.taken += length;
    }

    /// Accounts for buffered payload that is dropped.
    pub(super) fn drop_buffered(&mut self) {
        self.owed += std::mem::take(&mut self.buffered);
    }

    /// Whether this side owes the peer enough credit to send a credit frame.
    pub(super) fn return_due(&self) -> bool {
        self.owed > 0 && self.owed >= (self.window() / RETURN_SHARE).min(RETURN_BYTES_MAX)
    }

    /// Records that the local socket took `length` bytes at `now`. Doubles a window that was used
    /// up, as far as the budget and the bulk share permit. Withholds credit beyond the bulk share.
    pub(super) fn resize(
        &mut self,
        now: Instant,
        length: u64,
        bulk: &mut BulkShare,
        budget: &mut Budget,
    ) {
        let most = bulk.consume(now, &mut self.share, length);
        let most = most.clamp(WINDOW_BYTES_MIN.into(), WINDOW_BYTES_MAX.into());
        let window = self.window();
        let beyond = window.saturating_sub(most).min(self.owed);
        self.owed -= beyond;
        budget.shrink(beyond);
        if self.taken < window {
            return;
        }
        self.taken = 0;
        let room = most.saturating_sub(window);
        self.owed += budget.grow(window.min(room));
    }

    /// Returns the increment for all owed credit. Zero: no frame is needed.
    pub(super) fn return_credit(&mut self) -> u32 {
        if !self.return_due() {
            return 0;
        }
        let increment = self
            .owed
            .min(u64::from(u32::MAX) - self.credit.min(u64::from(u32::MAX)));
        self.owed -= increment;
        self.credit += increment;
        u32::try_from(increment).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_new_stream_is_offered_an_eighth_of_what_is_not_set_aside() {
        let mut budget = Budget::new(256 << 20, 4096);
        let set_aside = 4095 * u64::from(WINDOW_BYTES_MIN);
        let first = budget.reserve_initial().unwrap();
        assert_eq!(u64::from(first), ((256 << 20) - set_aside) / 8);
    }

    #[test]
    fn every_stream_of_a_full_table_gets_the_least_window() {
        let mut budget = Budget::new(64 << 20, 4096);
        for _ in 0..4096 {
            assert!(budget.reserve_initial().unwrap() >= WINDOW_BYTES_MIN);
        }
        assert!(budget.reserved() <= 64 << 20);
    }

    #[test]
    fn a_window_used_up_doubles_and_the_growth_is_granted() {
        let mut budget = Budget::new(256 << 20, 16);
        let mut window = RecvWindow::new(WINDOW_BYTES_MIN);
        budget.reserved = u64::from(WINDOW_BYTES_MIN);
        budget.streams = 1;
        window.ingest(u64::from(WINDOW_BYTES_MIN)).unwrap();
        window.take(u64::from(WINDOW_BYTES_MIN));
        let mut bulk = BulkShare::new(BULK_BYTES_MIN);
        let length = WINDOW_BYTES_MIN.into();
        window.resize(Instant::now(), length, &mut bulk, &mut budget);
        assert_eq!(window.return_credit(), 2 * WINDOW_BYTES_MIN);
        assert_eq!(budget.reserved(), window.reserved());
    }

    #[test]
    fn a_window_beyond_the_share_of_bulk_is_not_given_back_in_full() {
        let mut budget = Budget::new(256 << 20, 16);
        let bytes = budget.reserve_initial().unwrap();
        let mut window = RecvWindow::new(bytes);
        let mut bulk = BulkShare::new(BULK_BYTES_MIN);
        bulk.set_rtt(Some(Duration::ZERO));
        let mut now = Instant::now();
        for _ in 0..100 {
            let length = window.credit().min(1 << 20);
            window.ingest(length).unwrap();
            window.take(length);
            now += Duration::from_secs(1);
            window.resize(now, length, &mut bulk, &mut budget);
            window.return_credit();
        }
        assert!(u64::from(bytes) > BULK_BYTES_MIN);
        assert_eq!(window.reserved(), BULK_BYTES_MIN);
        assert_eq!(budget.reserved(), BULK_BYTES_MIN);
    }

    #[test]
    fn credit_goes_back_in_steps_and_only_for_what_was_taken() {
        let mut window = RecvWindow::new(64 << 10);
        window.ingest(16 << 10).unwrap();
        assert!(!window.return_due());
        window.take(8 << 10);
        assert_eq!(window.return_credit(), 8 << 10);
        assert_eq!(window.return_credit(), 0);
    }

    #[test]
    fn more_than_the_credit_is_refused_before_it_is_stored() {
        let mut window = RecvWindow::new(16 << 10);
        assert_eq!(window.ingest((16 << 10) + 1), Err(CreditExceeded));
        assert_eq!(window.buffered(), 0);
    }

    #[test]
    fn a_smaller_offer_is_answered_as_it_is_and_the_rest_granted_later() {
        let mut window = RecvWindow::new(64 << 10);
        assert_eq!(window.limit_to_offer(1024), 1024);
        assert_eq!(window.return_credit(), (64 << 10) - 1024);
    }

    #[test]
    fn a_smaller_answer_counts_but_what_was_offered_is_still_taken() {
        let mut window = RecvWindow::new(64 << 10);
        window.limit_to_answer(16 << 10);
        assert_eq!(window.credit(), 16 << 10);
        assert_eq!(window.reserved(), 64 << 10);
        window.ingest(64 << 10).unwrap();
        assert_eq!(window.ingest(1), Err(CreditExceeded));
    }
}
