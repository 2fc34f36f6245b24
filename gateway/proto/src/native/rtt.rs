//! The session's round trip time, measured by PING where there is something to measure it for.
//!
//! The smoothed value counts the carrier's queues in, since a window must cover them too: with the least
//! value alone, a stream that begins while others fill the carrier would keep its first window for ever.
//! The path's own value does not, for it bounds those queues.

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
    least: Option<Duration>,
    /// By the carrier's transport: that of its first hop, where something on the way ends connections.
    transport: Option<Duration>,
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

    /// The round trip of the path without our queues, once both measurements have been made.
    pub(super) fn path(&self) -> Option<Duration> {
        Some(self.transport?.max(self.least?))
    }

    pub(super) fn set_transport(&mut self, rtt: Duration) {
        self.transport = Some(rtt);
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

    /// The carrier of the PING that is on its way is gone.
    pub(super) fn abandon(&mut self) {
        self.waiting = None;
        self.due = false;
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
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
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
