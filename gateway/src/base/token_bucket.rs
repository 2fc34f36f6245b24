//! A token bucket whose caller supplies the time.
//!
//! The bucket counts time, not tokens. Taking an amount creates a debt: the time that the amount
//! needs at the rate. The debt may be as long as the burst. Time pays the debt, so the bucket needs
//! no refill, and a late check has the same result as a timely check.

use std::time::{Duration, Instant};

/// A rate limit with a burst.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bucket {
    per_second: u64,
    burst: Duration,
    /// When the debt is paid; `None`: nothing was taken yet.
    paid: Option<Instant>,
}

impl Bucket {
    /// Creates a bucket. `per_second` is at least 1. `burst` limits the amount that may pass at
    /// once after a pause. It is the time that this amount needs at the rate.
    pub(crate) fn new(per_second: u64, burst: Duration) -> Self {
        debug_assert!(per_second > 0);
        Self {
            per_second,
            burst,
            paid: None,
        }
    }

    /// Changes the rate from now on. An existing debt keeps its length in time.
    pub(crate) fn set_rate(&mut self, per_second: u64) {
        debug_assert!(per_second > 0);
        self.per_second = per_second;
    }

    /// Takes `amount` if the debt then does not exceed the burst. Returns whether it took the
    /// amount.
    pub(crate) fn try_take(&mut self, now: Instant, amount: u64) -> bool {
        let paid = self.paid(now) + self.cost(amount);
        let fits = paid <= now + self.burst;
        if fits {
            self.paid = Some(paid);
        }
        fits
    }

    /// Whether there is no debt.
    pub(crate) fn is_paid(&self, now: Instant) -> bool {
        self.paid.is_none_or(|paid| paid <= now)
    }

    /// The earliest time for [`Self::charge`]; `None`: any time.
    pub(crate) fn ready_at(&self) -> Option<Instant> {
        self.paid.and_then(|paid| paid.checked_sub(self.burst))
    }

    /// Takes `amount`, regardless of the resulting debt.
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
