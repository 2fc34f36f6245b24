//! Streams that the peer opens and cancels before they are answered (compare CVE-2023-44487 in
//! HTTP/2). Each such stream makes this side dial, and frees its place for the next stream at once.
//!
//! The cause may be a single one of the peer's many clients, so the connection continues. Further
//! streams wait for a while; the peer's credit for streams bounds the number of waiting streams.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::token_bucket::Bucket;

/// Rate of cancelled streams, in streams per second, above which further streams wait. A burst may
/// have the streams of [`BURST`] at this rate.
const PER_SECOND: u64 = 200;
const BURST: Duration = Duration::from_secs(5);
/// Maximum pause, so that streams of other clients are answered in time.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Counts the cancelled streams of one connection.
pub(super) struct TakenBack(RefCell<Bucket>);

impl Default for TakenBack {
    fn default() -> Self {
        Self(RefCell::new(Bucket::new(PER_SECOND, BURST)))
    }
}

impl TakenBack {
    /// Counts a cancelled stream.
    pub(super) fn count(&self) {
        let (mut bucket, now) = (self.0.borrow_mut(), Instant::now());
        if bucket.ready_at().is_none_or(|at| at < now + PAUSE_MAX) {
            bucket.charge(now, 1);
        }
    }

    /// Waits until the next stream may be accepted.
    pub(super) async fn pause(&self) {
        loop {
            let ready = self.0.borrow().ready_at();
            match ready.filter(|at| *at > Instant::now()) {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_costs_nothing_and_whatever_comes_then_no_more_than_the_longest_pause() {
        let (taken_back, begun) = (TakenBack::default(), Instant::now());
        let ready = || taken_back.0.borrow().ready_at();
        for _ in 0..1000 {
            taken_back.count();
        }
        assert!(ready().is_none_or(|at| at <= Instant::now()));
        for _ in 0..10_000 {
            taken_back.count();
        }
        let ready = ready().unwrap();
        assert!(ready > begun + PAUSE_MAX - Duration::from_millis(10));
        assert!(ready < Instant::now() + PAUSE_MAX + Duration::from_millis(10));
    }
}
