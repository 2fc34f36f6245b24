//! The rate of one direction of a forward, which the forward's streams on all workers share.
//!
//! Streams take turns. The stream with the turn waits until the bucket has room, moves at most
//! [`Turn::most`] bytes, and is charged for the moved bytes. Other streams queue in order of
//! arrival, so each stream gets its share. Without a limit, the cost is one relaxed load.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

use crate::base::token_bucket::Bucket;

/// Burst after a pause, and approximately the maximum wait of a turn.
const BURST: Duration = Duration::from_millis(100);
/// Minimum number of bytes that a turn may move, so that slow forwards do not send tiny packets.
const TURN_BYTES_MIN: u64 = 1024;

/// An optional rate limit.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes per second; 0: no limit.
    per_second: AtomicU64,
    bucket: Mutex<Bucket>,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            per_second: AtomicU64::new(0),
            bucket: Mutex::new(Bucket::new(1, BURST)),
        }
    }
}

impl Pace {
    /// Sets the limit in bytes per second, also for open streams; `None`: no limit.
    pub(crate) fn set(&self, per_second: Option<u64>) {
        self.per_second.store(per_second.unwrap_or(0), Relaxed);
    }

    /// Returns `self` if a limit is set.
    pub(crate) fn limited(&self) -> Option<&Self> {
        (self.per_second.load(Relaxed) > 0).then_some(self)
    }

    pub(crate) async fn turn(&self) -> Turn<'_> {
        let mut bucket = self.bucket.lock().await;
        if let Some(ready) = bucket.ready_at() {
            tokio::time::sleep_until(ready.into()).await;
        }
        let per_second = self.per_second.load(Relaxed);
        // The limit may have been removed during the wait.
        bucket.set_rate(if per_second == 0 {
            u64::MAX
        } else {
            per_second
        });
        Turn { bucket, per_second }
    }
}

/// The turn of one stream. A turn costs nothing if it is dropped before [`Self::charge`].
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    bucket: MutexGuard<'a, Bucket>,
    per_second: u64,
}

impl Turn<'_> {
    /// Maximum number of bytes that the turn may move.
    pub(crate) fn most(&self) -> usize {
        let share = self.per_second / (1000 / BURST.as_millis() as u64);
        usize::try_from(share.max(TURN_BYTES_MIN)).unwrap_or(usize::MAX)
    }

    /// Charges for `bytes` moved bytes.
    pub(crate) fn charge(mut self, bytes: usize) {
        self.bucket.charge(Instant::now(), bytes as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_turn_that_is_not_over_keeps_the_others_waiting() {
        let pace = Pace::default();
        assert!(pace.limited().is_none());
        pace.set(Some(50_000));
        let first = pace.limited().unwrap().turn().await;
        assert_eq!(first.most(), 5_000);
        let mut second = Box::pin(pace.turn());
        tokio::select! {
            biased;
            _ = &mut second => panic!("two streams have the turn at the same time"),
            () = std::future::ready(()) => {}
        }
        first.charge(1);
        second.await.charge(0);
    }
}
