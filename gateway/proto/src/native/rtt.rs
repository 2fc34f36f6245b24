//! The session's round trip time, measured by PING where there is something to measure it for.

use std::time::{Duration, Instant};

/// What is assumed before the first answer: windows then grow as on a WAN.
const ASSUMED: Duration = Duration::from_millis(100);
/// Pause between two PINGs. There is no timer: one is due when credit moves.
const INTERVAL: Duration = Duration::from_secs(1);
/// The least measured value is believed for this long, as BBR does.
const BELIEVED: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Rtt {
    least: Option<(Instant, Duration)>,
    sent: Option<(Instant, u64)>,
    next_value: u64,
    due: bool,
}

impl Rtt {
    pub(super) fn get(&self) -> Duration {
        self.least.map_or(ASSUMED, |(_, rtt)| rtt)
    }

    /// A PING becomes due, unless one was sent within [`INTERVAL`].
    pub(super) fn want(&mut self, now: Instant) {
        let recent = self
            .sent
            .is_some_and(|(sent, _)| now.saturating_duration_since(sent) < INTERVAL);
        if !recent && !self.due {
            self.next_value += 1;
            self.sent = Some((now, self.next_value));
            self.due = true;
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// The value of the PING that is due.
    pub(super) fn take(&mut self) -> Option<u64> {
        std::mem::take(&mut self.due).then_some(self.next_value)
    }

    pub(super) fn handle_pong(&mut self, now: Instant, value: u64) {
        let Some((sent, _)) = self.sent.filter(|(_, expected)| *expected == value) else {
            return;
        };
        let rtt = now.saturating_duration_since(sent);
        let replace = self.least.is_none_or(|(when, least)| {
            rtt < least || now.saturating_duration_since(when) > BELIEVED
        });
        if replace {
            self.least = Some((now, rtt));
        }
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
    fn the_least_of_the_last_measurements_counts() {
        let mut now = Instant::now();
        let mut rtt = Rtt::default();
        for (milliseconds, expected) in [(50, 50), (90, 50), (20, 20)] {
            rtt.want(now);
            let value = rtt.take().unwrap();
            now += Duration::from_millis(milliseconds);
            rtt.handle_pong(now, value);
            assert_eq!(rtt.get(), Duration::from_millis(expected));
            now += INTERVAL;
        }
        now += BELIEVED;
        rtt.want(now);
        let value = rtt.take().unwrap();
        rtt.handle_pong(now + Duration::from_millis(70), value);
        assert_eq!(rtt.get(), Duration::from_millis(70));
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
