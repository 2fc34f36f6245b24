//! Streams that the peer opens and takes back before they are answered (as CVE-2023-44487 in HTTP/2): each makes this side
//! dial, and leaves its place to the next one at once.
//!
//! One of many clients behind a peer may do that, so the connection goes on: further streams wait for a while, and the
//! peer's credit for streams bounds how many do.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::base::token_bucket::Bucket;

/// Taken back a second without a pause, and for how long at once.
const PER_SECOND: u64 = 200;
const BURST: Duration = Duration::from_secs(5);
/// Longest pause, so that streams of others are answered in time.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Those of one connection.
pub(super) struct TakenBack(RefCell<Bucket>);

impl Default for TakenBack {
    fn default() -> Self {
        Self(RefCell::new(Bucket::new(PER_SECOND, BURST)))
    }
}

impl TakenBack {
    /// One more.
    pub(super) fn count(&self) {
        let (mut bucket, now) = (self.0.borrow_mut(), Instant::now());
        if bucket.ready_at().is_none_or(|at| at < now + PAUSE_MAX) {
            bucket.charge(now, 1);
        }
    }

    /// Waits until the next stream may be taken up.
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
