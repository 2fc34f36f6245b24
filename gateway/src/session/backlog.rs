//! Bounds the unsent bytes of a carrier to a short time at its measured rate ([`wait`]).
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

/// How long the unsent bytes may take at the carrier's rate: this part of the path's minimum round
/// trip time, but at least [`WAIT_MIN`] and at most [`WAIT_MAX`]. The rate of one of many carriers
/// on a long path is low, and with the bounds of [`WAIT_MIN`] its frames would be short.
const WAIT_PART: u32 = 32;
const WAIT_MIN: Duration = Duration::from_millis(1);
const WAIT_MAX: Duration = Duration::from_millis(8);
/// Minimum interval between two samples of the rate.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Minimum bound on unsent bytes in the kernel, so that the carrier stays busy while this process
/// waits for a processor.
const NOT_SENT_BYTES_MIN: usize = 128 << 10;
/// Maximum bound on unsent bytes in the kernel, which bounds the kernel's memory.
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
            self.set(path, info.rate, info.rtt_min)?;
        }
        Ok(Some(info.rtt_min))
    }

    /// Sets the bounds for `rate` bytes per second and the minimum round trip time `rtt_min`.
    fn set(&self, path: &dyn Path, rate: u64, rtt_min: Duration) -> std::io::Result<()> {
        let bytes = bytes_within(wait(rtt_min), rate);
        self.bytes.set(bytes);
        let not_sent = bytes.clamp(NOT_SENT_BYTES_MIN, NOT_SENT_BYTES_MAX) as u32;
        if self.not_sent.replace(not_sent) != not_sent {
            path.bound_queue(not_sent)?;
        }
        Ok(())
    }
}

/// How long the unsent bytes of a carrier may take if its minimum round trip time is `rtt_min`.
fn wait(rtt_min: Duration) -> Duration {
    (rtt_min / WAIT_PART).clamp(WAIT_MIN, WAIT_MAX)
}

/// Returns the bytes that leave within `wait` at `rate`, rounded up to a power of two. The rounding
/// keeps the bounds stable while the rate fluctuates.
fn bytes_within(wait: Duration, rate: u64) -> usize {
    let bytes = u128::from(rate) * wait.as_micros() / 1_000_000;
    usize::try_from(bytes)
        .unwrap_or(NOT_SENT_BYTES_MAX)
        .min(NOT_SENT_BYTES_MAX)
        .next_power_of_two()
}

#[cfg(test)]
mod tests {
    use muxtunnel_gateway_config::CongestionControl;

    use super::*;
    use crate::base::path::{PathInfo, PathProbe};
    use crate::io::socket::KeepaliveConfig;

    #[tokio::test]
    async fn the_bounds_follow_the_rate_within_their_limits() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let carrier = tokio::net::TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let backlog = Backlog::new(Some(&carrier), Start::Alone).unwrap();
        let bounds = |rate| {
            backlog.set(&carrier, rate, Duration::ZERO).unwrap();
            let not_sent = socket2::SockRef::from(&carrier).tcp_notsent_lowat();
            (
                not_sent.unwrap() as usize,
                backlog.queued_max(),
                backlog.batch_max(),
            )
        };
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

    #[test]
    fn the_bounds_are_larger_on_a_long_path() {
        let kib = |milliseconds, rate| {
            let wait = wait(Duration::from_millis(milliseconds));
            bytes_within(wait, rate) >> 10
        };
        // The rate is 100 Mbit/s.
        let rate = 12_500_000;
        assert_eq!([1, 30, 100].map(|rtt| kib(rtt, rate)), [16, 16, 64]);
        assert_eq!(
            [1000, u64::from(u32::MAX)].map(|rtt| kib(rtt, rate)),
            [128; 2]
        );
    }

    #[tokio::test]
    async fn a_carrier_beside_others_has_small_bounds_until_its_window_has_grown() {
        let mut path = Acknowledges(COLD_BYTES - 1);
        let backlog = Backlog::new(Some(&path), Start::Beside).unwrap();
        let mut now = Instant::now();
        let mut queued_max = |path: &Acknowledges| {
            now += SAMPLE_EVERY;
            backlog.sample(path, now).unwrap().unwrap();
            backlog.queued_max()
        };
        assert_eq!([0; 3].map(|_| queued_max(&path)), [SMALL_BYTES; 3]);
        path.0 = COLD_BYTES;
        assert_eq!(queued_max(&path), QUEUED_BYTES_MAX);
    }

    /// A path of 100 Gbit/s on which the peer has acknowledged this number of bytes.
    struct Acknowledges(u64);

    impl Path for Acknowledges {
        fn info(&self) -> std::io::Result<PathInfo> {
            Ok(PathInfo {
                rate: 12_500_000_000,
                acknowledged: self.0,
                ..PathInfo::default()
            })
        }

        fn prepare(&self, _: CongestionControl, _: KeepaliveConfig) -> std::io::Result<()> {
            Ok(())
        }

        fn follow(&self, _: KeepaliveConfig) -> std::io::Result<()> {
            Ok(())
        }

        fn bound_queue(&self, bytes: u32) -> std::io::Result<()> {
            let is_cold = self.0 < COLD_BYTES;
            let expected = if is_cold {
                SMALL_BYTES
            } else {
                NOT_SENT_BYTES_MAX
            };
            assert_eq!(bytes as usize, expected);
            Ok(())
        }

        fn probe(&self) -> std::io::Result<Box<dyn PathProbe>> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }
}
