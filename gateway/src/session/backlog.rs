//! Bounds the unsent bytes of a carrier to about one millisecond of its measured rate.
//!
//! The bound is needed because a small stream cannot overtake bytes in the kernel's queue
//! ([`Path::bound_queue`]) or in the carrier's own queue. A write samples the rate at most every
//! [`SAMPLE_EVERY`]; no timer runs.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::io::transport::Path;
use crate::stream::batch::BATCH_BYTES_MAX;
use crate::stream::buffers::SMALL_BYTES;
use crate::stream::pipe::PIPE_BYTES;

/// How long the unsent bytes may take at the carrier's rate.
const WAIT: Duration = Duration::from_millis(1);
/// Minimum interval between two samples of the rate.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Minimum bound on unsent bytes in the kernel, so that the carrier stays busy while this process
/// waits for a processor.
const NOT_SENT_BYTES_MIN: usize = 128 << 10;
/// Maximum bound on unsent bytes in the kernel. At every rate that was measured, these bytes take
/// more than one millisecond.
const NOT_SENT_BYTES_MAX: usize = 4 << 20;
/// A carrier beside warm carriers stays within its small bounds until the peer has acknowledged this
/// number of bytes. Its congestion window then is about as large as the smallest bound in the kernel.
const COLD_BYTES: u64 = 256 << 10;
/// Maximum of [`Backlog::queued_max`]. The writer adds frames while the queue holds fewer bytes, so
/// that one write can take two full batches.
const QUEUED_BYTES_MAX: usize = 2 * BATCH_BYTES_MAX;

/// The bounds of a carrier whose rate is unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// The session has no other carrier: the kernel's bound is its minimum, and the other bounds are
    /// their maximum.
    Alone,
    /// The session has had other carriers, which may be warm: all bounds are small, if the transport
    /// reports its path. Bulk would wait behind the small congestion window of the new carrier, and
    /// the receiver would wait for this bulk.
    Beside,
}

#[derive(Debug)]
pub(crate) struct Backlog {
    /// Bound that follows from the rate; the extreme of [`Start`] until the rate is known.
    bytes: Cell<usize>,
    /// Bound on unsent bytes in the kernel.
    not_sent: Cell<u32>,
    sampled: Cell<Option<Instant>>,
}

impl Backlog {
    /// Starts with an unknown rate. Without a `path` the rate stays unknown.
    pub(crate) fn new(path: Option<&dyn Path>, start: Start) -> std::io::Result<Self> {
        let (bytes, not_sent) = match start {
            Start::Beside if path.is_some() => (0, SMALL_BYTES as u32),
            Start::Alone | Start::Beside => (usize::MAX, NOT_SENT_BYTES_MIN as u32),
        };
        if let Some(path) = path {
            path.bound_queue(not_sent)?;
        }
        Ok(Self {
            bytes: Cell::new(bytes),
            not_sent: Cell::new(not_sent),
            sampled: Cell::new(None),
        })
    }

    /// Bound on the carrier's own queue, in bytes. The writer adds no frame once the queue holds
    /// this number of bytes.
    pub(crate) fn queued_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, QUEUED_BYTES_MAX)
    }

    /// Maximum number of bytes that one stream sends before other streams may send.
    pub(crate) fn batch_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, BATCH_BYTES_MAX)
    }

    /// Maximum number of bytes that one stream splices before other streams may send.
    pub(crate) fn splice_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, PIPE_BYTES)
    }

    /// Samples the rate after a write at `now`, if [`SAMPLE_EVERY`] has passed. After a sample, the
    /// function returns the carrier's minimum round trip time. The smoothed round trip time is less
    /// suitable: on a short path, it includes the scheduling delays of both hosts.
    pub(crate) fn sample(
        &self,
        path: &dyn Path,
        now: Instant,
    ) -> std::io::Result<Option<Duration>> {
        let sampled = self.sampled.get();
        if sampled.is_some_and(|sampled| now.duration_since(sampled) < SAMPLE_EVERY) {
            return Ok(None);
        }
        self.sampled.set(Some(now));
        let info = path.info()?;
        let is_cold = self.bytes.get() == 0 && info.acknowledged < COLD_BYTES;
        if sampled.is_some() && info.rate > 0 && !is_cold {
            self.set(path, info.rate)?;
        }
        Ok(Some(info.rtt_min))
    }

    /// Sets the bounds for `rate` bytes per second.
    fn set(&self, path: &dyn Path, rate: u64) -> std::io::Result<()> {
        let bytes = of_rate(rate);
        self.bytes.set(bytes);
        let not_sent = bytes.clamp(NOT_SENT_BYTES_MIN, NOT_SENT_BYTES_MAX) as u32;
        if self.not_sent.replace(not_sent) != not_sent {
            path.bound_queue(not_sent)?;
        }
        Ok(())
    }
}

/// Returns the bytes that leave in [`WAIT`] at `rate`, rounded up to a power of two. The rounding
/// keeps the bounds stable while the rate fluctuates.
fn of_rate(rate: u64) -> usize {
    let bytes = u128::from(rate) * WAIT.as_micros() / 1_000_000;
    usize::try_from(bytes)
        .unwrap_or(NOT_SENT_BYTES_MAX)
        .min(NOT_SENT_BYTES_MAX)
        .next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_bounds_follow_the_rate_within_their_limits() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let carrier = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let backlog = Backlog::new(Some(&carrier), Start::Alone).unwrap();
        let bounds = |rate| {
            backlog.set(&carrier, rate).unwrap();
            let not_sent = socket2::SockRef::from(&carrier).tcp_notsent_lowat();
            (
                not_sent.unwrap() as usize,
                backlog.queued_max(),
                backlog.batch_max(),
            )
        };
        let beside = Backlog::new(Some(&carrier), Start::Beside).unwrap();
        let not_sent = || {
            socket2::SockRef::from(&carrier)
                .tcp_notsent_lowat()
                .unwrap()
        };
        assert_eq!(not_sent() as usize, SMALL_BYTES);
        assert_eq!(beside.queued_max(), SMALL_BYTES);
        beside.set(&carrier, 1000).unwrap();
        assert_eq!(not_sent() as usize, NOT_SENT_BYTES_MIN);
        // The rates are 200 Mbit/s, 4 Gbit/s and 100 Gbit/s.
        assert_eq!(bounds(25_000_000), (NOT_SENT_BYTES_MIN, 32 << 10, 32 << 10));
        assert_eq!(
            bounds(500_000_000),
            (512 << 10, QUEUED_BYTES_MAX, BATCH_BYTES_MAX)
        );
        assert_eq!(
            bounds(12_500_000_000),
            (NOT_SENT_BYTES_MAX, QUEUED_BYTES_MAX, BATCH_BYTES_MAX)
        );
    }
}
