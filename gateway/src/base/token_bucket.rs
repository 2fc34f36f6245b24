//! A token bucket whose clock is given to it.
//!
//! Counted in time, not in tokens: what was taken is paid for by the time that it takes at the rate,
//! and as much as the burst may be owed. So it needs no refill, and a late look at it loses nothing.

use std::time::{Duration, Instant};

/// How much of something passes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    per_second: u64,
    burst: Duration,
    /// When all that was taken is paid for; `None`: nothing ever was taken.
    paid: Option<Instant>,
}

impl Bucket {
    /// `per_second` at least 1; `burst`: what may pass at once after a pause, as the time that it
    /// takes at the rate.
    pub(crate) fn new(per_second: u64, burst: Duration) -> Self {
        debug_assert!(per_second > 0);
        Self {
            per_second,
            burst,
            paid: None,
        }
    }

    /// Another rate from here on; what is owed is owed as time.
    pub(crate) fn set_rate(&mut self, per_second: u64) {
        debug_assert!(per_second > 0);
        self.per_second = per_second;
    }

    /// Takes `amount` if no more than the burst is owed then; whether it did.
    pub(crate) fn try_take(&mut self, now: Instant, amount: u64) -> bool {
        let paid = self.paid(now) + self.cost(amount);
        let fits = paid <= now + self.burst;
        if fits {
            self.paid = Some(paid);
        }
        fits
    }

    /// From when on something can be taken by [`Self::charge`]; `None`: from the beginning.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        self.paid.and_then(|paid| paid.checked_sub(self.burst))
    }

    /// Takes `amount`, whatever is owed then.
    pub(crate) fn charge(&mut self, now: Instant, amount: u64) {
        self.paid = Some(self.paid(now) + self.cost(amount));
    }

    fn paid(&self, now: Instant) -> Instant {
        self.paid.map_or(now, |paid| paid.max(now))
    }

    fn cost(&self, amount: u64) -> Duration {
        let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(self.per_second);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_seconds_worth_passes_at_once_and_then_one_for_each_share_of_a_second() {
        let start = Instant::now();
        let mut bucket = Bucket::new(5, SECOND);
        assert_eq!((0..9).filter(|_| bucket.try_take(start, 1)).count(), 5);
        assert!(!bucket.try_take(start + SECOND / 10, 1));
        assert!(bucket.try_take(start + SECOND / 5, 1));
        assert!(!bucket.try_take(start + SECOND / 5, 1));
    }

    #[test]
    fn a_pause_gives_no_more_than_the_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(5, SECOND);
        assert!(bucket.try_take(start, 5));
        let later = start + 3600 * SECOND;
        assert_eq!((0..99).filter(|_| bucket.try_take(later, 1)).count(), 5);
    }

    #[test]
    fn what_is_charged_passes_at_the_rate_however_late_it_is_looked_at() {
        let start = Instant::now();
        let mut bucket = Bucket::new(1_000_000, SECOND / 10);
        let (mut now, mut passed) = (start, 0);
        while passed < 10_000_000 {
            if let Some(ready) = bucket.ready_at() {
                // Timers fire late.
                now = now.max(ready + SECOND / 500);
            }
            bucket.charge(now, 20_000);
            passed += 20_000;
        }
        let took = now - start;
        assert!(took >= SECOND * 98 / 10 && took <= 10 * SECOND, "{took:?}");
    }

    #[test]
    fn another_rate_holds_for_what_is_taken_from_then_on() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, Duration::ZERO);
        bucket.charge(start, 10);
        assert_eq!(bucket.ready_at(), Some(start + SECOND));
        bucket.set_rate(100);
        bucket.charge(start, 100);
        assert_eq!(bucket.ready_at(), Some(start + 2 * SECOND));
    }
}
