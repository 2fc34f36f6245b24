//! Resets streams whose local sockets accept no data while other streams wait for credit.
//!
//! All streams share the session's credit. Enough stalled streams, each with a first window, use up
//! this credit, and the peer's other streams cannot send a byte. While the peer has used up the
//! session's credit, a check runs every second. The check resets the streams that have stalled for
//! longer than the configured time. It begins with the stream that has stalled longest, and stops
//! when a part of the credit is free again. A stream is reset only while another stream waits.

use std::time::{Duration, Instant};

use super::NativeSession;
use super::stream::{Phase, Stream};
use crate::session::{Event, Outcome, ResetCode, StreamId};

/// Interval of the checks while the peer has used up the session's credit.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// One check frees at least the session's credit divided by this number.
const FREED_SHARE: u64 = 64;

/// Whether the peer waits for the session's credit.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// The time of the next check. `None`: the peer has not used up the credit since the last
    /// check.
    next_check: Option<Instant>,
    /// The credit was used up since the last check.
    used_up: bool,
}

impl NativeSession {
    /// Records that payload has been counted against the session's credit.
    pub(super) fn note_received(&mut self, now: Instant) {
        if !self.window.is_used_up() || self.config.stall_timeout.is_none() {
            return;
        }
        match self.stalled.next_check {
            Some(_) => self.stalled.used_up = true,
            None => self.stalled.next_check = Some(now + CHECK_INTERVAL),
        }
    }

    pub(super) fn next_stall_check(&self) -> Option<Instant> {
        self.stalled.next_check
    }

    /// Resets streams that have stalled for too long while other streams wait.
    pub(super) fn check_stalled(&mut self, now: Instant) {
        let due = self.stalled.next_check.is_some_and(|check| check <= now);
        let Some(stall_timeout) = self.config.stall_timeout.filter(|_| due) else {
            return;
        };
        let waits = std::mem::take(&mut self.stalled.used_up) || self.window.is_used_up();
        self.stalled.next_check = waits.then_some(now + CHECK_INTERVAL);
        if !waits {
            return;
        }
        let since = |stream: &Stream| {
            let since = stream.stalled_since()?;
            (stream.phase == Phase::Open && since + stall_timeout <= now).then_some(since)
        };
        let stalled = self.streams.iter();
        let stalled = stalled.filter_map(|(id, stream)| Some((since(stream)?, *id)));
        let mut stalled: Vec<(Instant, StreamId)> = stalled.collect();
        stalled.sort_unstable();
        let enough = self.window.free() + self.config.receive_budget / FREED_SHARE;
        for (_, stream) in stalled {
            if self.window.free() >= enough {
                break;
            }
            let reason = "the local socket took no bytes while other streams waited for credit";
            self.cut(stream, ResetCode::Stalled, reason);
            let cause = Outcome::Stalled;
            self.events.push_back(Event::Reset { stream, cause });
        }
    }
}
