//! The round trip and the retransmission timeout (RFC 6298, with the bounds of KCP's `nodelay`).

/// The timeout before any measurement, in microseconds (`IKCP_RTO_DEF`).
const WAIT_FIRST: u64 = 200_000;
/// Shortest timeout in microseconds (`IKCP_RTO_NDL`).
const WAIT_MIN: u64 = 30_000;
/// Allowance for a processor that is busy with other work, in microseconds.
const SLACK: u64 = 10_000;
const WAIT_MAX: u64 = 10_000_000;

/// The round trips of one connection in microseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    latest: u64,
    least: Option<u64>,
}

impl Rtt {
    pub(super) fn sample(&mut self, rtt: u64) {
        let rtt = rtt.max(1);
        self.latest = rtt;
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        match self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variation = rtt / 2;
            }
            Some(smoothed) => {
                let off = smoothed.abs_diff(rtt);
                self.variation = (self.variation * 3).saturating_add(off) / 4;
                self.smoothed = Some((smoothed * 7).saturating_add(rtt) / 8);
            }
        }
    }

    /// The smoothed round trip. `None`: no measurement exists yet.
    pub(super) fn smoothed(&self) -> Option<u64> {
        self.smoothed
    }

    pub(super) fn least(&self) -> Option<u64> {
        self.least
    }

    /// The time without an acknowledgement after which the oldest segments are sent again, for the
    /// `attempt`th time in a row.
    pub(super) fn wait(&self, attempt: u32) -> u64 {
        let first = self.smoothed.map_or(WAIT_FIRST, |smoothed| {
            smoothed.saturating_add((4 * self.variation).max(SLACK))
        });
        let mut wait = first.clamp(WAIT_MIN, WAIT_MAX);
        for _ in 0..attempt.min(16) {
            wait = (wait + wait / 2).min(WAIT_MAX);
        }
        wait
    }

    /// The time after which a segment is considered lost if a later segment has arrived (RFC 9002,
    /// section 6.1.2).
    pub(super) fn overtaken(&self) -> u64 {
        let rtt = self.smoothed.unwrap_or(WAIT_FIRST).max(self.latest);
        rtt.saturating_add((rtt / 8).max(1000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_follows_the_round_trip_and_grows_while_nothing_comes() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.wait(0), WAIT_FIRST);
        for _ in 0..100 {
            rtt.sample(100_000);
        }
        assert_eq!(rtt.wait(0), 110_000);
        assert_eq!(rtt.wait(1), 165_000);
        assert_eq!(rtt.wait(u32::MAX), WAIT_MAX);
        assert_eq!(rtt.overtaken(), 112_500);
        rtt.sample(u64::MAX / 64);
        assert!(rtt.wait(0) <= WAIT_MAX);
        assert_eq!(rtt.least(), Some(100_000));
    }
}
