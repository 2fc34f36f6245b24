//! `CoDel` of one flow (RFC 8289, section 5). The algorithm decides on each packet that leaves the
//! queue.

use std::time::{Duration, Instant};

/// If dropping ended less than this many intervals ago, the next dropping state begins at the
/// former rate (RFC 8289, 5.4).
const INTERVALS_REMEMBERED: u32 = 16;

/// The decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Send,
    /// Drop the packet, or mark and send it.
    Drop,
}

/// The state of one flow.
#[derive(Debug)]
pub(super) struct Codel {
    target: Duration,
    interval: Duration,
    /// The time at which the delay will have exceeded the target for a whole interval. `None` while
    /// the delay does not exceed the target.
    first_above: Option<Instant>,
    dropping: bool,
    /// Time of the next drop in the dropping state.
    drop_next: Option<Instant>,
    /// Number of drops in the dropping state.
    count: u32,
    /// The value of `count` when the dropping state was last entered.
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

    /// Decides on a packet that has waited for `waited`. `is_short`: so few packets wait behind
    /// this packet that the queue does not count as a standing queue.
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

    /// Resets the state after the flow's last packet has left.
    pub(super) fn emptied(&mut self) {
        self.first_above = None;
        self.dropping = false;
    }

    /// Whether the delay has exceeded the target for a whole interval.
    fn is_above(&mut self, now: Instant, waited: Duration, is_short: bool) -> bool {
        if waited < self.target || is_short {
            self.first_above = None;
            return false;
        }
        let interval = self.interval;
        now >= *self.first_above.get_or_insert_with(|| now + interval)
    }

    /// Enters the dropping state. Resumes the former rate if dropping ended recently.
    fn enter(&mut self, now: Instant) {
        let remembered = self.interval * INTERVALS_REMEMBERED;
        let is_recent = self.drop_next.is_some_and(|last| now < last + remembered);
        let since = self.count.saturating_sub(self.last_count);
        self.count = if is_recent { since.max(1) } else { 1 };
        self.last_count = self.count;
        self.dropping = true;
        self.drop_next = Some(self.after(now));
    }

    /// The time of the next drop. The gap is the interval divided by the square root of the count,
    /// so that the rate of a TCP connection falls linearly.
    fn after(&self, last: Instant) -> Instant {
        last + self.interval.div_f64(f64::from(self.count.max(1)).sqrt())
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test")]
mod tests {
    use super::*;

    const TARGET: Duration = Duration::from_millis(5);
    const INTERVAL: Duration = Duration::from_millis(100);

    /// In each millisecond, feeds one packet that has waited for `waited` ms. Returns the times of
    /// drops.
    fn drops(
        codel: &mut Codel,
        start: Instant,
        times: std::ops::Range<u64>,
        waited: u64,
    ) -> Vec<u64> {
        let waited = Duration::from_millis(waited);
        times
            .filter(|at| {
                let now = start + Duration::from_millis(*at);
                codel.judge(now, waited, false) == Verdict::Drop
            })
            .collect()
    }

    #[test]
    fn packets_that_wait_for_an_interval_are_dropped_ever_sooner() {
        let (mut codel, start) = (Codel::new(TARGET, INTERVAL), Instant::now());
        let dropped = drops(&mut codel, start, 0..500, 6);
        // The first drop is at 100 ms. Each gap after it is 100 / sqrt(count) ms.
        assert_eq!(dropped, [100, 200, 271, 329, 379, 424, 464]);
    }

    #[test]
    fn what_waits_for_less_than_the_target_or_not_for_an_interval_is_sent() {
        let (mut codel, start) = (Codel::new(TARGET, INTERVAL), Instant::now());
        assert!(drops(&mut codel, start, 0..1000, 4).is_empty());
        assert!(drops(&mut codel, start, 1000..1099, 6).is_empty());
        assert!(drops(&mut codel, start, 1099..1100, 4).is_empty());
        assert!(
            drops(&mut codel, start, 1100..1199, 6).is_empty(),
            "the interval starts again"
        );
    }

    #[test]
    fn the_last_packets_of_a_flow_are_no_queue() {
        let (mut codel, start) = (Codel::new(TARGET, INTERVAL), Instant::now());
        for at in 0..1000 {
            let now = start + Duration::from_millis(at);
            assert_eq!(
                codel.judge(now, Duration::from_secs(1), true),
                Verdict::Send
            );
        }
    }

    #[test]
    fn dropping_that_ended_lately_goes_on_at_its_rate() {
        let (mut codel, start) = (Codel::new(TARGET, INTERVAL), Instant::now());
        assert_eq!(drops(&mut codel, start, 0..1000, 6).len(), 27);
        drops(&mut codel, start, 1000..1001, 1);
        let again = drops(&mut codel, start, 1001..1201, 6);
        assert!(again.len() >= 5, "{again:?}");
        drops(&mut codel, start, 1201..1202, 1);
        let later = drops(&mut codel, start, 9000..9301, 6);
        assert_eq!(later, [9100, 9200, 9271]);
    }
}
