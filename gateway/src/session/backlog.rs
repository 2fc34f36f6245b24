//! How much may wait in front of the network: about a millisecond of the carrier's measured rate.
//!
//! What waits cannot be overtaken, in the kernel ([`Path::bound_queue`]) or in our queue, so a small
//! stream's bytes wait behind it. Sampled while writing, at most every [`SAMPLE_EVERY`]; no timer.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::io::transport::Path;
use crate::stream::batch::BATCH_BYTES_MAX;
use crate::stream::buffers::SMALL_BYTES;
use crate::stream::pipe::PIPE_BYTES;

/// Of the carrier's rate.
const WAIT: Duration = Duration::from_millis(1);
/// Pause between two samples of the rate.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Bytes in the kernel that were not sent once: enough for the time that this process may be away...
const NOT_SENT_BYTES_MIN: usize = 128 << 10;
/// ...and more than a millisecond of any rate that was measured.
const NOT_SENT_BYTES_MAX: usize = 4 << 20;
/// Bytes in our own queue: frames are taken while there are fewer, so two full batches leave together.
const QUEUED_BYTES_MAX: usize = 2 * BATCH_BYTES_MAX;

/// The bounds of one carrier.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Of the rate; `usize::MAX` before it is known.
    bytes: Cell<usize>,
    sampled: Cell<Option<Instant>>,
}

impl Backlog {
    /// Nothing is known yet: the least for the kernel, the most for our own queue. Without a `path`
    /// nothing will be known.
    pub(crate) fn new(path: Option<&dyn Path>) -> std::io::Result<Self> {
        if let Some(path) = path {
            path.bound_queue(NOT_SENT_BYTES_MIN as u32)?;
        }
        Ok(Self {
            bytes: Cell::new(usize::MAX),
            sampled: Cell::new(None),
        })
    }

    /// Bytes of our own queue.
    pub(crate) fn queued_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, QUEUED_BYTES_MAX)
    }

    /// Bytes that one stream sends in one turn.
    pub(crate) fn batch_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, BATCH_BYTES_MAX)
    }

    /// The same, where they are spliced.
    pub(crate) fn splice_max(&self) -> usize {
        self.bytes.get().clamp(SMALL_BYTES, PIPE_BYTES)
    }

    /// Something was written at `now`: is it time to sample the rate?
    /// Returns the path's round trip time when it was: the least of the carrier's, for the smoothed one of a
    /// near path is what its ends take for it when their processors are busy.
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
        if sampled.is_some() && info.rate > 0 {
            self.set(path, info.rate)?;
        }
        Ok(Some(info.rtt_min))
    }

    /// `rate`: bytes a second.
    fn set(&self, path: &dyn Path, rate: u64) -> std::io::Result<()> {
        let bytes = of_rate(rate);
        let not_sent = |bytes: usize| bytes.clamp(NOT_SENT_BYTES_MIN, NOT_SENT_BYTES_MAX) as u32;
        let before = match self.bytes.replace(bytes) {
            usize::MAX => not_sent(0),
            bytes => not_sent(bytes),
        };
        if before != not_sent(bytes) {
            path.bound_queue(not_sent(bytes))?;
        }
        Ok(())
    }
}

/// [`WAIT`] of `rate`, rounded up to a power of two, so that a rate that wavers changes nothing.
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
        let backlog = Backlog::new(Some(&carrier)).unwrap();
        let bounds = |rate| {
            backlog.set(&carrier, rate).unwrap();
            let not_sent = socket2::SockRef::from(&carrier).tcp_notsent_lowat();
            (
                not_sent.unwrap() as usize,
                backlog.queued_max(),
                backlog.batch_max(),
            )
        };
        // 200 Mbit/s, 4 Gbit/s and 100 Gbit/s.
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
