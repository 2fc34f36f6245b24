//! The session's round trip time, measured by PING where there is something to measure it for.
//!
//! It counts the carrier's queues in, since a window must cover them too: with the least value alone, a
//! stream that begins while others fill the carrier would keep its first window for ever.

use std::time::{Duration, Instant};

/// What is assumed before the first answer: windows then grow as on a WAN.
const ASSUMED: Duration = Duration::from_millis(100);
/// Pause between two PINGs. There is no timer: one is due when credit moves.
const INTERVAL: Duration = Duration::from_millis(100);
/// A new measurement counts for one part in this many.
const SMOOTHING: u32 = 4;

#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    last: Option<Instant>,
    /// When the PING was sent that has not been answered.
    waiting: Option<Instant>,
    value: u64,
    due: bool,
}

impl Rtt {
    pub(super) fn get(&self) -> Duration {
        self.smoothed.unwrap_or(ASSUMED)
    }

    /// A PING becomes due, unless one is on its way or was sent within [`INTERVAL`].
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

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The value of the PING that is due.
    pub(super) fn take(&mut self) -> Option<u64> {
        std::mem::take(&mut self.due).then_some(self.value)
    }

    pub(super) fn handle_pong(&mut self, now: Instant, value: u64) {
        let Some(sent) = self.waiting.take_if(|_| value == self.value) else {
            return;
        };
        let rtt = now.saturating_duration_since(sent);
        self.smoothed = Some(
            self.smoothed
                .map_or(rtt, |before| (before * (SMOOTHING - 1) + rtt) / SMOOTHING),
        );
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test's clock has to begin somewhere"
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
