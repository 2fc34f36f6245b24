//! The session's round trip time, measured by PING when credit moves.
//!
//! The smoothed value includes the carrier's queues, because a window must cover the queues, too.
//! If a stream begins while other streams fill the carrier, a window computed from the minimum
//! would never grow. The path's own value, which bounds the carrier's queues, is the minimum. If
//! the path changes, or another sender fills the path's queues, all answers take longer than this
//! minimum. If this session's bulk cannot be the cause ([`round_trip_max`]), the minimum within
//! [`PATH_WINDOW`] becomes the path's value.

use std::time::{Duration, Instant};

use crate::session::share::round_trip_max;

/// The assumed value before the first answer: windows grow as on a WAN.
const ASSUMED: Duration = Duration::from_millis(100);
/// Minimum interval between two PINGs. No timer is used, because a PING becomes due when credit
/// moves.
const INTERVAL: Duration = Duration::from_millis(100);
/// If every answer takes too long for the path during this time, a different path is assumed.
const PATH_WINDOW: Duration = Duration::from_secs(10);
/// The value of a PING that does not measure. PINGs that measure have other values.
pub(super) const PROBE: u64 = 0;
/// The weight of a new measurement is 1 divided by this number.
const SMOOTHING: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    least: Option<Duration>,
    /// The time since which every answer takes longer than [`round_trip_max`], and the shortest of
    /// these answers.
    longer: Option<(Instant, Duration)>,
    /// The transport's measurement. If an intermediary terminates connections, the measurement
    /// covers only the first hop.
    transport: Option<Duration>,
    last: Option<Instant>,
    /// The time at which the unanswered PING was sent.
    waiting: Option<Instant>,
    value: u64,
    due: bool,
}

impl Rtt {
    pub(super) fn get(&self) -> Duration {
        self.smoothed.unwrap_or(ASSUMED)
    }

    /// The path's round trip without this side's queues. `None` until both the transport and a PING
    /// have measured a round trip.
    pub(super) fn path(&self) -> Option<Duration> {
        Some(self.transport?.max(self.least?))
    }

    /// The longest known round trip, for time limits. Zero until there is a measurement.
    pub(super) fn known(&self) -> Duration {
        let known = [self.smoothed, self.transport];
        known.into_iter().flatten().max().unwrap_or_default()
    }

    pub(super) fn set_transport(&mut self, rtt: Duration) {
        self.transport = Some(rtt);
    }

    /// Makes a PING due, unless one is in flight or was sent within [`INTERVAL`].
    pub(super) fn want(&mut self, now: Instant) {
        let recent = self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < INTERVAL);
        if !recent && self.waiting.is_none() {
            self.value += 1;
            self.last = Some(now);
            self.waiting = Some(now);
            self.due = true;
        }
    }

    /// Discards the PING in flight, because its carrier is lost.
    pub(super) fn abandon(&mut self) {
        self.waiting = None;
        self.due = false;
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The value of the PING to send now.
    pub(super) fn take(&mut self) -> Option<u64> {
        std::mem::take(&mut self.due).then_some(self.value)
    }

    /// The shortest answer of the path, after an answer that took `rtt`.
    fn least_with(&mut self, now: Instant, rtt: Duration) -> Duration {
        let least = self.least.map_or(rtt, |least| least.min(rtt));
        let path = self.transport.map_or(least, |rtt| rtt.max(least));
        if rtt <= round_trip_max(path) {
            self.longer = None;
            return least;
        }
        let (since, longer) = self.longer.get_or_insert((now, rtt));
        *longer = rtt.min(*longer);
        if now.saturating_duration_since(*since) < PATH_WINDOW {
            return least;
        }
        let longer = *longer;
        self.longer = None;
        longer
    }

    pub(super) fn handle_pong(&mut self, now: Instant, value: u64) {
        let Some(sent) = self.waiting.take_if(|_| value == self.value) else {
            return;
        };
        let rtt = now.saturating_duration_since(sent);
        self.least = Some(self.least_with(now, rtt));
        self.smoothed = Some(
            self.smoothed
                .map_or(rtt, |before| (before * (SMOOTHING - 1) + rtt) / SMOOTHING),
        );
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock needs a starting time"
)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_smoothed() {
        let mut now = Instant::now();
        let mut rtt = Rtt::default();
        for (milliseconds, expected) in [(40, 40), (80, 50), (10, 40)] {
            rtt.want(now);
            let value = rtt.take().unwrap();
            now += Duration::from_millis(milliseconds);
            rtt.handle_pong(now, value);
            assert_eq!(rtt.get(), Duration::from_millis(expected));
            now += INTERVAL;
        }
    }

    #[test]
    fn the_path_is_the_longer_of_the_least_answer_and_the_transports() {
        let now = Instant::now();
        let mut rtt = Rtt::default();
        rtt.set_transport(Duration::from_millis(3));
        assert_eq!(rtt.path(), None);
        for (at, answer, expected) in [(0, 9, 9), (200, 20, 9), (400, 1, 3)] {
            let now = now + Duration::from_millis(at);
            rtt.want(now);
            let value = rtt.take().unwrap();
            rtt.handle_pong(now + Duration::from_millis(answer), value);
            assert_eq!(rtt.path(), Some(Duration::from_millis(expected)));
        }
    }

    /// Answers each PING after `answer`, for the duration `time`, with at most one answer every
    /// [`INTERVAL`]. Returns the path's value.
    fn answers(rtt: &mut Rtt, now: &mut Instant, answer: Duration, time: Duration) -> Duration {
        let end = *now + time;
        while *now < end {
            rtt.want(*now);
            let value = rtt.take().unwrap();
            *now += answer;
            rtt.handle_pong(*now, value);
            *now += INTERVAL;
        }
        rtt.path().unwrap()
    }

    #[test]
    fn a_path_that_became_longer_counts_after_ten_seconds_and_a_shorter_one_at_once() {
        let ms = Duration::from_millis;
        let mut now = Instant::now();
        let mut rtt = Rtt::default();
        rtt.set_transport(ms(19));
        assert_eq!(answers(&mut rtt, &mut now, ms(20), PATH_WINDOW), ms(20));
        assert_eq!(answers(&mut rtt, &mut now, ms(60), ms(5_000)), ms(20));
        assert_eq!(answers(&mut rtt, &mut now, ms(60), ms(6_000)), ms(60));
        assert_eq!(answers(&mut rtt, &mut now, ms(20), ms(1)), ms(20));
    }

    #[test]
    fn what_our_own_bulk_explains_is_no_other_path_however_long_it_lasts() {
        let ms = Duration::from_millis;
        for path in [ms(0), ms(1), ms(20)] {
            let mut now = Instant::now();
            let mut rtt = Rtt::default();
            rtt.set_transport(path);
            answers(&mut rtt, &mut now, path, ms(1));
            let queue = 2 * path + ms(2);
            assert_eq!(answers(&mut rtt, &mut now, queue, 9 * PATH_WINDOW), path);
        }
    }

    #[test]
    fn one_answer_that_the_path_explains_begins_the_ten_seconds_again() {
        let ms = Duration::from_millis;
        let mut now = Instant::now();
        let mut rtt = Rtt::default();
        rtt.set_transport(ms(20));
        answers(&mut rtt, &mut now, ms(20), ms(1));
        for _ in 0..3 {
            answers(&mut rtt, &mut now, ms(60), ms(9_000));
            assert_eq!(answers(&mut rtt, &mut now, ms(30), ms(1)), ms(20));
        }
    }

    #[test]
    fn a_round_trip_longer_than_the_pause_is_measured_too() {
        let now = Instant::now();
        let mut rtt = Rtt::default();
        rtt.want(now);
        let value = rtt.take().unwrap();
        rtt.want(now + 2 * INTERVAL);
        assert_eq!(rtt.take(), None);
        rtt.handle_pong(now + 3 * INTERVAL, value);
        assert_eq!(rtt.get(), 3 * INTERVAL);
    }

    #[test]
    fn one_ping_at_a_time_and_answers_to_others_are_ignored() {
        let now = Instant::now();
        let mut rtt = Rtt::default();
        rtt.want(now);
        rtt.want(now);
        let value = rtt.take().unwrap();
        assert_eq!(rtt.take(), None);
        rtt.handle_pong(now, value + 1);
        assert_eq!(rtt.get(), ASSUMED);
    }
}
