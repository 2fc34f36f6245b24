//! Congestion control: determines how much is sent and when, from the rate of acknowledgements and
//! the shortest round trip. The control follows BBR
//! (draft-cardwell-iccrg-bbr-congestion-control-00). The measurement of the rate follows
//! draft-cheng-iccrg-delivery-rate-estimation-00.
//!
//! KCP's own window restarts at one segment after each timeout, so random loss keeps it small.
//! Without that window (KCP's option `nc`), KCP fills any queue on the path. Here, a lost segment
//! is only weak evidence of congestion. The path is full if the delivery rate does not grow when
//! more is sent.

use super::SEGMENT_PAYLOAD_BYTES;

/// Bytes of a segment.
const SEGMENT: u64 = SEGMENT_PAYLOAD_BYTES as u64;
/// Number of round trips over which the greatest rate is taken.
const ROUNDS: usize = 10;
/// Gain of the sending rate at the start, in thousandths. This gain doubles the sending rate with
/// each round trip.
const GAIN_STARTUP: u64 = 2885;
const GAIN_DRAIN: u64 = 347;
/// Gains of the sending rate after the start, in thousandths. Of eight round trips, one probes for
/// a higher rate, and the next drains the queue that the probe caused. The gain of the probe must
/// outweigh the loss on the path, otherwise the rate falls continuously. BBR's gain of 1.25 is
/// sufficient up to 20 % of loss.
const GAINS_CRUISE: [u64; 8] = [1400, 600, 1000, 1000, 1000, 1000, 1000, 1000];
/// The window in thousandths of the path's bandwidth-delay product. The window leaves room for
/// acknowledgements that arrive in bursts.
const GAIN_WINDOW: u64 = 2000;
/// The path is full when the rate has not grown by a quarter within this many round trips.
const ROUNDS_FULL: u8 = 3;
/// The window before any measurement: 32 segments, as in KCP. RFC 6928 has 10 segments.
const WINDOW_FIRST: u64 = 32 * SEGMENT;
/// Smallest window after an acknowledgement. One iteration of the event loop may have to send this
/// many bytes at once.
const WINDOW_MIN: u64 = 64 * SEGMENT;
/// The window after several timeouts without an acknowledgement, until the next acknowledgement.
const WINDOW_LOST: u64 = 4 * SEGMENT;
/// The delay of timers and two event loops, in microseconds. A measured round trip below this value
/// shows this delay, not the path.
const RTT_MIN: u64 = 2_000;
/// The shortest round trip is valid for this time, in microseconds.
const RTT_EXPIRES: u64 = 10_000_000;
/// How long the sending rate is reduced to measure the shortest round trip again, in microseconds.
const RTT_PROBE: u64 = 200_000;
/// Bytes that may be sent at once after a pause, as a duration at the current rate, in
/// microseconds. The value is the precision of timers.
const BURST: u64 = 2_000;
const BURST_MIN: u64 = 16 * SEGMENT;

/// The delivery state at the time when a segment was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) at: u64,
    delivered: u64,
    delivered_at: u64,
    first_at: u64,
    app_limited: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Cruise {
        index: usize,
        since: u64,
    },
    /// `until` is set once few enough bytes are in flight.
    ProbeRtt {
        until: Option<u64>,
    },
}

/// The state of one connection, in bytes of payload and microseconds.
#[derive(Debug)]
pub(super) struct Congestion {
    phase: Phase,
    delivered: u64,
    delivered_at: u64,
    first_at: u64,
    /// Samples are marked as limited by the application until more bytes than this are delivered.
    /// 0: samples are not limited by the application.
    app_limited_until: u64,
    rates: [u64; ROUNDS],
    round: usize,
    round_ends: u64,
    full_rate: u64,
    full_rounds: u8,
    filled: bool,
    /// Bytes that arrived in this round trip.
    round_arrived: u64,
    /// Bytes that were lost in this round trip.
    round_lost: u64,
    rtt_least: Option<u64>,
    rtt_least_at: u64,
    window: u64,
    /// Bytes that may be sent now. Negative after transmissions that did not wait for tokens.
    tokens: i64,
    tokens_at: u64,
    app_limited: bool,
}

impl Congestion {
    pub(super) fn new(now: u64) -> Self {
        Self {
            phase: Phase::Startup,
            delivered: 0,
            delivered_at: now,
            first_at: now,
            app_limited_until: 0,
            rates: [0; ROUNDS],
            round: 0,
            round_ends: 0,
            full_rate: 0,
            full_rounds: 0,
            filled: false,
            round_arrived: 0,
            round_lost: 0,
            rtt_least: None,
            rtt_least_at: now,
            window: WINDOW_FIRST,
            tokens: BURST_MIN as i64,
            tokens_at: now,
            app_limited: false,
        }
    }

    /// Bytes per second that the path carries; 0: unknown.
    pub(super) fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// Maximum number of bytes in flight.
    pub(super) fn window(&self) -> u64 {
        match self.phase {
            Phase::ProbeRtt { .. } => self
                .window
                .min((self.path_holds(1000) / 2).max(WINDOW_LOST)),
            _ => self.window,
        }
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited
    }

    fn rtt(&self) -> u64 {
        self.rtt_least.unwrap_or(RTT_MIN).max(RTT_MIN)
    }

    /// The path's bandwidth-delay product in bytes, times `gain` thousandths.
    fn path_holds(&self, gain: u64) -> u64 {
        let bytes = u128::from(self.rate()) * u128::from(self.rtt()) * u128::from(gain);
        u64::try_from(bytes / 1_000_000_000).unwrap_or(u64::MAX)
    }

    fn gain(&self) -> u64 {
        match self.phase {
            Phase::Startup => GAIN_STARTUP,
            Phase::Drain => GAIN_DRAIN,
            Phase::Cruise { index, .. } => GAINS_CRUISE.get(index).copied().unwrap_or(1000),
            Phase::ProbeRtt { .. } => 1000,
        }
    }

    /// The sending rate in bytes per second.
    fn pace(&self) -> u64 {
        let known = match self.rate() {
            // The first window per round trip, or per 10 ms if no round trip has been measured yet.
            0 => self.window * 1_000_000 / self.rtt_least.unwrap_or(10_000).max(RTT_MIN),
            rate => rate,
        };
        let pace = u128::from(known) * u128::from(self.gain()) / 1000;
        u64::try_from(pace).unwrap_or(u64::MAX).max(SEGMENT)
    }

    fn refill(&mut self, now: u64) {
        let passed = now.saturating_sub(self.tokens_at);
        self.tokens_at = now;
        let pace = u128::from(self.pace());
        let burst = u128::from(BURST_MIN).max(pace * u128::from(BURST) / 1_000_000);
        let more = (pace * u128::from(passed) / 1_000_000).min(burst);
        // `burst` and `more` are below 2^63 for any rate that a clock of microseconds can measure.
        let burst = i64::try_from(burst).unwrap_or(i64::MAX);
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(more).min(burst);
    }

    /// Whether a segment may be sent while `in_flight` bytes are in flight. Otherwise returns the
    /// time at which the segment may be sent. `None`: only an acknowledgement makes room.
    pub(super) fn may_send(&mut self, now: u64, in_flight: u64) -> Result<(), Option<u64>> {
        if in_flight >= self.window() {
            return Err(None);
        }
        self.refill(now);
        if self.tokens > 0 {
            return Ok(());
        }
        let needed = u128::from((SEGMENT as i64).saturating_sub(self.tokens).unsigned_abs());
        let wait = needed * 1_000_000 / u128::from(self.pace());
        let wait = u64::try_from(wait).unwrap_or(u64::MAX);
        Err(Some(now.saturating_add(wait.max(1))))
    }

    /// Records a transmission of `bytes` while `in_flight` other bytes are in flight.
    pub(super) fn sent(&mut self, now: u64, bytes: u64, in_flight: u64) -> Sent {
        if in_flight == 0 {
            self.first_at = now;
            self.delivered_at = now;
        }
        self.tokens = self.tokens.saturating_sub_unsigned(bytes);
        Sent {
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_at: self.first_at,
            app_limited: self.app_limited_until > 0,
        }
    }

    /// Records that the sender has no more data, although the path could carry more.
    pub(super) fn ran_dry(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// Records that `bytes` have arrived.
    pub(super) fn delivered(&mut self, now: u64, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
    }

    /// Records that `bytes` were overtaken and are considered lost.
    pub(super) fn lost(&mut self, bytes: u64) {
        self.round_lost += bytes;
    }

    /// Handles the result of one datagram of acknowledgements. `newest` is the acknowledged segment
    /// that was sent last, `bytes` is the total number of acknowledged bytes, and `in_flight` bytes
    /// remain in flight.
    pub(super) fn acknowledged(
        &mut self,
        now: u64,
        newest: &Sent,
        rtt: Option<u64>,
        bytes: u64,
        in_flight: u64,
    ) {
        let is_round = newest.delivered >= self.round_ends;
        if is_round {
            self.round_ends = self.delivered;
            // While the application limits the rate, rates measured before this limit remain valid.
            if !self.app_limited {
                self.round = (self.round + 1) % ROUNDS;
                if let Some(rate) = self.rates.get_mut(self.round) {
                    *rate = 0;
                }
            }
        }
        self.sample_rate(now, newest);
        self.sample_rtt(now, rtt);
        self.round_arrived += bytes;
        if is_round {
            if !self.filled {
                self.check_filled();
            }
            (self.round_arrived, self.round_lost) = (0, 0);
        }
        self.change_phase(now, in_flight);
        let gain = match self.filled {
            true => GAIN_WINDOW,
            false => GAIN_STARTUP,
        };
        let target = self.path_holds(gain).saturating_add(3 * SEGMENT);
        if self.filled {
            self.window = self.window.saturating_add(bytes).min(target);
        } else if self.window < target || self.delivered < WINDOW_FIRST {
            self.window = self.window.saturating_add(bytes);
        }
        self.window = self.window.max(WINDOW_MIN);
    }

    fn sample_rate(&mut self, now: u64, newest: &Sent) {
        let sending = newest.at.saturating_sub(newest.first_at);
        let arriving = now.saturating_sub(newest.delivered_at);
        self.first_at = self.first_at.max(newest.at);
        let time = sending.max(arriving);
        // A sample over less time than a round trip measures how acknowledgements are batched, not
        // the path.
        if time == 0 || time < self.rtt_least.unwrap_or(0) {
            return;
        }
        let bytes = u128::from(self.delivered.saturating_sub(newest.delivered));
        let rate = u64::try_from(bytes * 1_000_000 / u128::from(time)).unwrap_or(u64::MAX);
        self.app_limited = newest.app_limited;
        if newest.app_limited && rate < self.rate() {
            return;
        }
        if let Some(slot) = self.rates.get_mut(self.round) {
            *slot = (*slot).max(rate);
        }
    }

    fn sample_rtt(&mut self, now: u64, rtt: Option<u64>) {
        let Some(rtt) = rtt else { return };
        let expired = now.saturating_sub(self.rtt_least_at) > RTT_EXPIRES;
        if self.rtt_least.is_none_or(|least| rtt <= least) || (expired && rtt <= RTT_MIN) {
            self.rtt_least = Some(rtt);
            self.rtt_least_at = now;
        } else if expired && !matches!(self.phase, Phase::ProbeRtt { .. }) && self.filled {
            self.phase = Phase::ProbeRtt { until: None };
            self.rtt_least = Some(rtt);
        }
    }

    fn check_filled(&mut self) {
        // More than half of the bytes are lost, so the path is full.
        if self.round_lost > self.round_arrived {
            self.filled = true;
            return;
        }
        let rate = self.rate();
        if self.app_limited || rate == 0 {
            return;
        }
        if rate >= self.full_rate.saturating_mul(5) / 4 {
            self.full_rate = rate;
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.filled = self.full_rounds >= ROUNDS_FULL;
    }

    fn change_phase(&mut self, now: u64, in_flight: u64) {
        let cruise = |index| Phase::Cruise { index, since: now };
        match self.phase {
            Phase::Startup if self.filled => self.phase = Phase::Drain,
            Phase::Drain if in_flight <= self.path_holds(1000) => self.phase = cruise(2),
            Phase::Cruise { index, since } => {
                let is_over = now.saturating_sub(since) > self.rtt();
                let drained = index == 1 && in_flight <= self.path_holds(1000);
                if is_over || drained {
                    self.phase = cruise((index + 1) % GAINS_CRUISE.len());
                }
            }
            Phase::ProbeRtt { until: None } if in_flight <= self.window() => {
                let until = Some(now + RTT_PROBE.max(self.rtt()));
                self.phase = Phase::ProbeRtt { until };
            }
            Phase::ProbeRtt { until: Some(until) } if now >= until => {
                self.rtt_least_at = now;
                self.phase = cruise(2);
            }
            _ => {}
        }
    }

    /// Reduces the window after several timeouts without an acknowledgement.
    pub(super) fn lost_all(&mut self) {
        self.window = WINDOW_LOST;
    }
}
