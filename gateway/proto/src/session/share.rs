//! Bounds the payload that bulk streams may have in flight. The bound of all bulk streams together
//! is the payload that the carrier transfers in twice the sum of the round trip and [`ALLOWANCE`].
//! The streams share the bound equally.
//!
//! More payload would only wait in the kernel queues of the carrier, where no small stream can
//! overtake it. Without this bound, an exchange of 64 bytes next to one bulk stream took 6 ms on
//! loopback. With a smaller bound, a window could not grow with its stream, and a gateway that
//! waits for a processor would have no payload to send.
//!
//! While small streams are active, and for [`SMALL_MEMORY`] after that, the allowance for the
//! gateways' own time is almost zero. Bulk streams then become slightly slower, and small streams
//! wait for a much shorter time.
//!
//! The rate is measured where payload is consumed. A measuring interval ends when a quarter of the
//! bound has been consumed. The measurement needs no timer and no table.

use std::time::{Duration, Instant};

use super::schedule::SMALL_MEMORY;

/// Time that both gateways may take, in addition to the path's round trip, before the carrier has
/// no payload to send.
const ALLOWANCE: Duration = Duration::from_micros(1000);
/// Replaces [`ALLOWANCE`] while small streams are active, since small streams wait behind the bulk
/// in flight.
const ALLOWANCE_BESIDE_SMALL: Duration = Duration::from_micros(30);
/// Tolerance of [`round_trip_max`]: the path's round trip divided by this number, plus one more
/// [`ALLOWANCE`]. Within the tolerance, the path is treated as unchanged.
const SPREAD: u32 = 8;
/// The bound for all streams together before the first measurement.
const INITIAL_BYTES: u64 = 1 << 20;
/// A stream that consumes this many bytes in a measuring interval is a bulk stream.
const BULK_BYTES: u64 = 1 << 10;

/// The longest round trip that bulk can cause while it keeps its bound. `rtt` is the path's own
/// round trip. A longer round trip has a different cause, such as a changed path or other traffic
/// in the path's queues.
pub(crate) fn round_trip_max(rtt: Duration) -> Duration {
    2 * (rtt + ALLOWANCE) + rtt / SPREAD + ALLOWANCE
}

/// The bulk bound of all streams of a session.
#[derive(Debug)]
pub(crate) struct BulkShare {
    least: u64,
    bytes: u64,
    /// The path's round trip. `None`: bulk is not bounded.
    rtt: Option<Duration>,
    stretch: u64,
    since: Option<Instant>,
    consumed: u64,
    streams: u64,
    streams_before: u64,
    /// Number of small streams in this measuring interval: streams that have consumed less than
    /// [`BULK_BYTES`], and did so in their last interval, too. A bulk stream may have only the end of
    /// a frame in an interval.
    small: u64,
    /// The end of the last measuring interval with a small stream.
    small_at: Option<Instant>,
}

/// The consumption of one stream in the current measuring interval.
#[derive(Debug, Default)]
pub(crate) struct StreamShare {
    stretch: u64,
    consumed: u64,
    /// Whether the stream was a bulk stream in the last interval in which it consumed payload.
    was_bulk: bool,
}

impl BulkShare {
    /// `least` is the number of bytes that all streams together may always have in flight.
    pub(crate) fn new(least: u64) -> Self {
        Self {
            least,
            bytes: least.max(INITIAL_BYTES),
            rtt: None,
            stretch: 1,
            since: None,
            consumed: 0,
            streams: 0,
            streams_before: 0,
            small: 0,
            small_at: None,
        }
    }

    /// Sets the path's round trip time, without the queues of both ends.
    pub(crate) fn set_rtt(&mut self, rtt: Option<Duration>) {
        self.rtt = rtt;
    }

    /// Records that `stream` consumed `length` bytes. Returns the largest useful window for
    /// `stream`, in bytes.
    pub(crate) fn consume(&mut self, now: Instant, stream: &mut StreamShare, length: u64) -> u64 {
        let Some(rtt) = self.rtt else {
            return u64::MAX;
        };
        if stream.stretch != self.stretch {
            *stream = StreamShare {
                stretch: self.stretch,
                consumed: 0,
                was_bulk: stream.consumed >= BULK_BYTES,
            };
            self.small += u64::from(!stream.was_bulk);
        }
        let is_bulk = stream.consumed >= BULK_BYTES;
        stream.consumed += length;
        if !is_bulk && stream.consumed >= BULK_BYTES {
            self.streams += 1;
            self.small -= u64::from(!stream.was_bulk);
        }
        let since = *self.since.get_or_insert(now);
        self.consumed += length;
        if self.consumed >= self.bytes / 4 {
            self.measured(rtt, since, now);
            self.since = Some(now);
        }
        self.bytes / self.streams.max(self.streams_before).max(1)
    }

    /// Updates the bound after a measuring interval. The bound rises fast, because a window that
    /// limits its stream must start well above the carrier's congestion window, and must grow as
    /// fast as this congestion window. The bound falls slowly, because a process that waits for a
    /// processor appears to have a lower rate. But as soon as a small stream is active, the bound
    /// loses the part of the allowance.
    fn measured(&mut self, rtt: Duration, since: Instant, now: Instant) {
        let time = now.saturating_duration_since(since);
        let lately = |at| now.saturating_duration_since(at) < SMALL_MEMORY;
        let (alone, beside_small) = (rtt + ALLOWANCE, rtt + ALLOWANCE_BESIDE_SMALL);
        let mut is_beside_small = self.small_at.is_some_and(lately);
        // A longer interval has had a pause. Its small streams may have been active before the pause.
        if self.small > 0 && time < SMALL_MEMORY {
            if !is_beside_small {
                let bytes = self.bytes as f64 * beside_small.div_duration_f64(alone);
                self.bytes = (bytes as u64).max(self.least);
            }
            (self.small_at, is_beside_small) = (Some(now), true);
        }
        let wanted = 2 * if is_beside_small { beside_small } else { alone };
        let most = 2 * self.bytes;
        let bytes = u128::from(self.consumed) * wanted.as_nanos() / time.as_nanos().max(1);
        let bytes = u64::try_from(bytes).unwrap_or(most).min(most);
        if bytes > self.bytes {
            self.bytes += (bytes - self.bytes) / 2;
        } else {
            self.bytes = (self.bytes - (self.bytes - bytes) / 16).max(self.least);
        }
        self.stretch += 1;
        self.streams_before = std::mem::take(&mut self.streams);
        self.small = 0;
        self.consumed = 0;
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]
mod tests {
    use super::*;

    const LEAST: u64 = 256 << 10;
    const RTT: Duration = Duration::from_micros(500);
    /// Bytes that a rate of one gigabyte per second transfers in twice the sum of the round trip
    /// and the allowance.
    const SHARE: u64 = 2 * (RTT.as_nanos() + ALLOWANCE.as_nanos()) as u64;

    fn with_rtt(rtt: Duration) -> BulkShare {
        let mut share = BulkShare::new(LEAST);
        share.set_rtt(Some(rtt));
        share
    }

    /// Lets `streams` consume in turn for a second, at `rate` bytes per second together. Returns
    /// their shares.
    fn consume(share: &mut BulkShare, now: Instant, streams: usize, rate: u64) -> Vec<u64> {
        const STEPS: u32 = 100_000;
        let mut parts: Vec<StreamShare> = (0..streams).map(|_| StreamShare::default()).collect();
        let mut most = vec![0; streams];
        for step in 0..STEPS {
            let turn = step as usize % streams;
            let now = now + Duration::from_secs(1) * step / STEPS;
            most[turn] = share.consume(now, &mut parts[turn], rate / u64::from(STEPS));
        }
        most
    }

    fn is_near(value: u64, expected: u64) -> bool {
        value.abs_diff(expected) <= expected / 10
    }

    #[test]
    fn without_a_round_trip_time_there_is_no_bound() {
        let mut share = BulkShare::new(LEAST);
        let most = consume(&mut share, Instant::now(), 1, 1_000_000_000);
        assert_eq!(most, [u64::MAX]);
    }

    #[test]
    fn a_stream_has_twice_what_moves_in_a_round_trip_and_the_allowance() {
        let mut share = with_rtt(RTT);
        let most = consume(&mut share, Instant::now(), 1, 1_000_000_000);
        assert!(is_near(most[0], SHARE), "{most:?}");
    }

    #[test]
    fn streams_have_equal_parts() {
        let mut share = with_rtt(RTT);
        let most = consume(&mut share, Instant::now(), 4, 1_000_000_000);
        assert!(
            most.iter().all(|most| is_near(*most, SHARE / 4)),
            "{most:?}"
        );
    }

    /// Bulk at one gigabyte per second, next to which a small stream can be active.
    struct Both {
        share: BulkShare,
        now: Instant,
        bulk: StreamShare,
        small: StreamShare,
    }

    impl Both {
        /// Returns the part of the bulk stream, which is the whole bound.
        fn run(&mut self, time: Duration, with_small: bool) -> u64 {
            let (until, mut most) = (self.now + time, 0);
            while self.now < until {
                self.now += Duration::from_micros(10);
                if with_small {
                    self.share.consume(self.now, &mut self.small, 1);
                }
                most = self.share.consume(self.now, &mut self.bulk, 10_000);
            }
            most
        }
    }

    #[test]
    fn a_small_stream_shortens_at_once_what_is_before_it_until_some_time_after_its_end() {
        const BESIDE_SMALL: u64 = 2 * (RTT.as_nanos() + ALLOWANCE_BESIDE_SMALL.as_nanos()) as u64;
        let ms = Duration::from_millis;
        let mut both = Both {
            share: with_rtt(RTT),
            now: Instant::now(),
            bulk: StreamShare::default(),
            small: StreamShare::default(),
        };
        assert!(is_near(both.run(ms(100), false), SHARE));
        // A measuring interval takes a quarter of 3 ms.
        assert!(is_near(both.run(ms(1), true), BESIDE_SMALL));
        assert!(is_near(both.run(SMALL_MEMORY - ms(1), false), BESIDE_SMALL));
        assert!(is_near(both.run(ms(100), false), SHARE));
    }

    #[test]
    fn a_bulk_stream_with_the_end_of_a_frame_in_an_interval_is_not_small() {
        let mut share = with_rtt(RTT);
        let mut now = Instant::now();
        let mut streams = [StreamShare::default(), StreamShare::default()];
        // A measuring interval takes 0.75 ms, that is 75 steps. One has only 100 bytes of `other`.
        for step in 0..100_000 {
            now += Duration::from_micros(10);
            let [bulk, other] = &mut streams;
            match step % 400 {
                0..200 => share.consume(now, other, 10_000),
                300 => share.consume(now, other, 100),
                _ => share.consume(now, bulk, 10_000),
            };
        }
        assert!(is_near(share.bytes, SHARE), "{}", share.bytes);
    }

    #[test]
    fn bulk_within_its_bound_explains_its_own_queue_and_no_longer_path() {
        let ms = Duration::from_millis;
        for rtt in [ms(0), ms(1), ms(20), ms(100)] {
            assert!(round_trip_max(rtt) > 2 * (rtt + ALLOWANCE), "{rtt:?}");
        }
        assert!(round_trip_max(ms(20)) < ms(50));
        assert!(round_trip_max(ms(0)) < ms(5));
    }

    /// Runs streams over a path of `rtt`, a sixteenth of the window at a time. Returns the last
    /// rate in bytes per second.
    fn rate_over(share: &mut BulkShare, now: &mut Instant, rtt: Duration, rounds: u32) -> f64 {
        let mut stream = StreamShare::default();
        let mut most = share.consume(*now, &mut stream, 1);
        let mut rate = 0.0;
        for _ in 0..rounds {
            let window = most;
            for _ in 0..16 {
                *now += rtt / 16;
                most = share.consume(*now, &mut stream, window / 16);
            }
            rate = window as f64 / rtt.as_secs_f64();
        }
        rate
    }

    #[test]
    fn a_path_that_became_three_times_as_long_starves_bulk_until_the_bound_knows_it() {
        let ms = Duration::from_millis;
        let mut share = with_rtt(ms(20));
        let mut now = Instant::now();
        rate_over(&mut share, &mut now, ms(20), 8);
        let starved = rate_over(&mut share, &mut now, ms(60), 400);
        assert!(starved < 2.0 * LEAST as f64 / 0.06, "{starved}");
        share.set_rtt(Some(ms(60)));
        let known = rate_over(&mut share, &mut now, ms(60), 12);
        assert!(known > 10.0 * starved, "{known}, {starved}");
    }

    #[test]
    fn a_rate_that_falls_is_followed_down_to_the_least() {
        let mut share = with_rtt(RTT);
        let now = Instant::now();
        consume(&mut share, now, 1, 1_000_000_000);
        let most = consume(&mut share, now + Duration::from_secs(1), 1, 50_000_000);
        assert_eq!(most, [LEAST]);
    }

    #[test]
    fn a_window_that_limits_its_stream_grows_by_half_at_least_with_each_round_trip() {
        let rtt = Duration::from_millis(100);
        let mut share = with_rtt(rtt);
        let mut stream = StreamShare::default();
        let mut now = Instant::now();
        let mut most = share.consume(now, &mut stream, 1);
        for _ in 0..6 {
            let before = most;
            // A whole window arrives within a round trip, a sixteenth at a time.
            for _ in 0..16 {
                now += rtt / 16;
                most = share.consume(now, &mut stream, before / 16);
            }
            assert!(most >= before / 2 * 3, "{before} -> {most}");
        }
    }
}
