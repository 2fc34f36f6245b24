//! Streams whose local sockets take nothing while others wait for the credit that they hold.
//!
//! The session's credit is one: enough streams that stall, each with a first window, hold all of it, and no other
//! stream of the peer's may send a byte. As long as the peer has used it up, a check once a second resets those that
//! have been longest without progress, and for longer than the configured time, until a part of it is free again.
//! Where nobody waits, nobody is reset.

use std::time::{Duration, Instant};

use super::NativeSession;
use super::stream::{Phase, Stream};
use crate::session::{Event, Outcome, ResetCode, StreamId};

/// Between two checks while the peer has used up the session's credit.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// One check makes at least this part of the session's credit free.
const FREED_SHARE: u64 = 64;

/// Whether the peer waits for the session's credit.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// `None`: there was credit at the last one.
    next_check: Option<Instant>,
    /// The credit was used up since the last check.
    used_up: bool,
}

impl NativeSession {
    /// Payload has been counted.
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

    /// Resets streams that have stalled for too long, where others wait.
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
            let reason = "its socket took nothing while other streams waited for credit";
            self.cut(stream, ResetCode::Stalled, reason);
            let cause = Outcome::Stalled;
            self.events.push_back(Event::Reset { stream, cause });
        }
    }
}
