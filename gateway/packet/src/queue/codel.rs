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

    /// The queue is empty: whatever comes has not waited yet.
    pub(super) fn emptied(&mut self) {
        self.first_above = None;
    }

    /// Packets have waited longer than the target for an interval.
    fn is_above(&mut self, now: Instant, waited: Duration, is_short: bool) -> bool {
        if waited < self.target || is_short {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            Some(since) => now >= since,
            None => {
                self.first_above = Some(later(now, self.interval));
                false
            }
        }
    }

    /// Enters the state of dropping, at the rate that it had where that is not long ago.
    fn enter(&mut self, now: Instant) {
        let drops = self.count.saturating_sub(self.last_count);
        let remembered = self.interval.saturating_mul(INTERVALS_REMEMBERED);
        let is_recent = self
            .drop_next
            .is_some_and(|due| now.saturating_duration_since(due) < remembered);
        self.count = if drops > 1 && is_recent { drops } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = Some(self.after(now));
    }

    /// The control law: the next drop is an interval, divided by the root of the count, after `then`.
    fn after(&self, then: Instant) -> Instant {
        let seconds = self.interval.as_secs_f64() / f64::from(self.count.max(1)).sqrt();
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(self.interval);
        later(then, wait)
    }
}

fn later(then: Instant, wait: Duration) -> Instant {
    then.checked_add(wait).unwrap_or(then)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn begin() -> Instant {
        #[expect(
            clippy::disallowed_methods,
            reason = "a beginning for a test's own clock"
        )]
        Instant::now()
    }

    /// When packets are dropped, in ms, of one a ms that has waited for 100 ms.
    fn drops(codel: &mut Codel, begin: Instant, from: u32, to: u32) -> Vec<u32> {
        let dropped = |at: &u32| codel.judge(begin + MS * *at, MS * 100, false) == Verdict::Drop;
        (from..to).filter(dropped).collect()
    }

    #[test]
    fn drops_come_closer_by_the_root_of_their_count() {
        let mut codel = Codel::new(MS * 5, MS * 100);
        let drops = drops(&mut codel, begin(), 0, 500);
        // 100 ms above target, then 100, 100/sqrt(2), 100/sqrt(3), ... after the one before.
        assert_eq!(drops, [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn one_packet_below_the_target_ends_it() {
        let begin = begin();
        let mut codel = Codel::new(MS * 5, MS * 100);
        assert_eq!(drops(&mut codel, begin, 0, 250), [100, 200]);
        assert_eq!(codel.judge(begin + MS * 250, MS * 4, false), Verdict::Send);
        assert_eq!(drops(&mut codel, begin, 251, 351), []);
    }

    #[test]
    fn a_rate_that_was_needed_is_remembered_for_16_intervals() {
        let begin = begin();
        let again = |pause: u32| {
            let mut codel = Codel::new(MS * 5, MS * 100);
            drops(&mut codel, begin, 0, 500);
            codel.judge(begin + MS * 500, MS, false);
            drops(&mut codel, begin, 500 + pause, 800 + pause)
        };
        // Six more drops than at first, in 1.6 s: the next comes after 100/sqrt(6) ms.
        assert_eq!(again(1000), [1600, 1641, 1679, 1714, 1748, 1779]);
        assert_eq!(again(2000), [2600, 2700, 2771]);
    }

    #[test]
    fn a_short_queue_is_never_dropped_from() {
        let begin = begin();
        let mut codel = Codel::new(MS * 5, MS * 100);
        let sent = |at| codel.judge(begin + MS * at, MS * 1000, true) == Verdict::Send;
        assert!((0..1000).all(sent));
    }
}
