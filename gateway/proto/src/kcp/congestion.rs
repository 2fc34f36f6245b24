//! How much is sent, and when: by the rate at which the other end acknowledges and the least round trip, after BBR
//! (draft-cardwell-iccrg-bbr-congestion-control-00; the rate after draft-cheng-iccrg-delivery-rate-estimation-00).
//!
//! KCP itself has a window that begins again at one segment after each time-out, which random loss keeps down, or none
//! (`nc`), which fills any queue on the path. A lost segment says little here: what counts is whether more arrives
//! when more is sent.

use super::SEGMENT_PAYLOAD_BYTES;

/// Bytes of a segment.
const SEGMENT: u64 = SEGMENT_PAYLOAD_BYTES as u64;
/// Round trips in which the greatest rate counts.
const ROUNDS: usize = 10;
/// Parts of a thousand: doubles what is sent with each round trip.
const GAIN_STARTUP: u64 = 2885;
const GAIN_DRAIN: u64 = 347;
/// Of each eight round trips one probes for more, and one drains what that has queued. What is probed with has to be more than
/// what is lost of it, or the rate falls for ever: BBR has 1.25, which is as much as 20 % of loss.
const GAINS_CRUISE: [u64; 8] = [1400, 600, 1000, 1000, 1000, 1000, 1000, 1000];
/// Of what the path holds: room for acknowledgements that come in bursts.
const GAIN_WINDOW: u64 = 2000;
/// The rate has not grown by a quarter in so many rounds: the path is full.
const ROUNDS_FULL: u8 = 3;
/// Before anything is measured (RFC 6928 has 10; KCP's own window is 32).
const WINDOW_FIRST: u64 = 32 * SEGMENT;
/// What one turn of the event loop may have to send at once.
const WINDOW_MIN: u64 = 64 * SEGMENT;
/// After time-outs without an acknowledgement.
const WINDOW_LOST: u64 = 4 * SEGMENT;
/// Timers and two event loops: a shorter round trip says nothing of the path.
const RTT_MIN: u64 = 2_000;
/// How long the least round trip is believed.
const RTT_EXPIRES: u64 = 10_000_000;
/// How long less is sent to measure it again.
const RTT_PROBE: u64 = 200_000;
/// Of the rate, what is sent at once after a pause; timers are as exact as that.
const BURST: u64 = 2_000;
const BURST_MIN: u64 = 16 * SEGMENT;

/// What was known when a segment was sent.
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
    /// `until`: set once little enough is on its way.
    ProbeRtt {
        until: Option<u64>,
    },
}

/// Of one connection; bytes of payload and microseconds.
#[derive(Debug)]
pub(super) struct Congestion {
    phase: Phase,
    delivered: u64,
    delivered_at: u64,
    first_at: u64,
    /// Until more than that is delivered, rates are of a time when less was offered than the path could take; 0: they
    /// are not.
    app_limited_until: u64,
    rates: [u64; ROUNDS],
    round: usize,
    round_ends: u64,
    full_rate: u64,
    full_rounds: u8,
    filled: bool,
    /// Bytes that arrived and that were lost in this round.
    round_arrived: u64,
    round_lost: u64,
    rtt_least: Option<u64>,
    rtt_least_at: u64,
    window: u64,
    /// Bytes that may be sent now; below zero after what did not have to wait.
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

    /// Bytes a second that the path takes; 0: not known.
    pub(super) fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// Bytes on their way at once.
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

    /// Bytes that the path holds, times `gain` parts of a thousand.
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

    /// Bytes a second that are sent.
    fn pace(&self) -> u64 {
        let known = match self.rate() {
            // The first window in the first round trip, or in 10 ms where that is not known either.
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
        // Both are below 2^63 for any rate that a clock of microseconds can measure.
        let burst = i64::try_from(burst).unwrap_or(i64::MAX);
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_add(more).min(burst);
    }

    /// Whether a segment may be sent while `in_flight` bytes are on their way; else when, unless only an acknowledgement
    /// makes room.
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

    /// `bytes` are sent, while `in_flight` others are on their way.
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

    /// There is nothing more to send, though more might be sent.
    pub(super) fn ran_dry(&mut self, in_flight: u64) {
        self.app_limited_until = (self.delivered + in_flight).max(1);
    }

    /// `bytes` have arrived.
    pub(super) fn delivered(&mut self, now: u64, bytes: u64) {
        self.delivered += bytes;
        self.delivered_at = now;
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
    }

    /// `bytes` were overtaken by others.
    pub(super) fn lost(&mut self, bytes: u64) {
        self.round_lost += bytes;
    }

    /// A datagram with acknowledgements is handled: of all segments that it names, `newest` was sent last; `bytes`
    /// arrived in all, and `in_flight` are still on their way.
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
            // What was measured while there was enough to send is believed until there is enough again.
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
        // In less time than the path takes, what is measured is how acknowledgements were gathered.
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
        // Whatever the path loses besides, it is full.
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

    /// Nothing was acknowledged for several time-outs.
    pub(super) fn lost_all(&mut self) {
        self.window = WINDOW_LOST;
    }
}
