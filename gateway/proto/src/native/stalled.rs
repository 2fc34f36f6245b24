//! Streams whose local sockets take nothing while others wait for the credit that they hold.
//!
//! The session's credit is one: enough streams that stall, each with a first window, hold all of it, and no other
//! stream of the peer's may send a byte. As long as the peer has used it up, a look once a second resets those that
//! have been longest without progress, and for longer than the configured time, until a part of it is free again.
//! Where nobody waits, nobody is reset.

use std::time::{Duration, Instant};

use super::NativeSession;
use super::stream::{Phase, Stream};
use crate::session::{Event, Outcome, ResetCode, StreamId};

/// How often it is looked while the peer has used up the session's credit.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// One look makes at least this part of the session's credit free.
const FREED_SHARE: u64 = 64;

/// Whether the peer waits for the session's credit.
#[derive(Debug, Default)]
pub(super) struct Stalled {
    /// The next look; `None`: there was credit at the last one.
    look: Option<Instant>,
    /// The credit was used up since the last look.
    used_up: bool,
}

impl NativeSession {
    /// Payload has been counted.
    pub(super) fn note_received(&mut self, now: Instant) {
        if !self.window.is_used_up() || self.config.stall_timeout.is_none() {
            return;
        }
        match self.stalled.look {
            Some(_) => self.stalled.used_up = true,
            None => self.stalled.look = Some(now + LOOK_EVERY),
        }
    }

    pub(super) fn stall_look(&self) -> Option<Instant> {
        self.stalled.look
    }

    /// Resets streams that have stalled for too long, where others wait.
    pub(super) fn look_at_stalled(&mut self, now: Instant) {
        let due = self.stalled.look.is_some_and(|look| look <= now);
        let Some(stall_timeout) = self.config.stall_timeout.filter(|_| due) else {
            return;
        };
        let waits = std::mem::take(&mut self.stalled.used_up) || self.window.is_used_up();
        self.stalled.look = waits.then_some(now + LOOK_EVERY);
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
