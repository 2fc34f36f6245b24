//! Computes how many carriers a session can use for the bytes that it sends. This module does no
//! I/O; `driver/autoscale.rs` samples the carriers.
//!
//! Next to small streams, bulk gets a second carrier, also on a short path, because small streams
//! cannot overtake the bulk that a carrier has taken.
//!
//! Apart from that, the autoscaler requests more carriers while the network holds up all bulk
//! carriers. The round trip time must also be long enough for a window to limit the rate. What holds
//! up the carriers decides how many more it requests:
//! - A congestion window: as many carriers as streams send bulk, as soon as the rate is steady. So
//!   the streams of the session get the same share of a bottleneck as without the mux, and never a
//!   larger share. The new carriers are on trial: the autoscaler keeps them only if the rate rises.
//! - The buffers of both hosts, for long enough: twice as many carriers, but at least one for each
//!   stream that sends bulk, without a trial. They double again only if the rate has risen. The
//!   session keeps these carriers as long as it needs them, even if congestion windows hold them up
//!   later.
//!
//! After a quiet time, the number of requested carriers falls one by one.
//!
//! Two backoffs prevent oscillation. The pause after a failed trial doubles, and so does the quiet
//! time after a carrier was removed too early.

use std::time::{Duration, Instant};

use muxtunnel_gateway_config::POOL_MAX;

/// Minimum round trip time. On a shorter path, the path or the CPU reaches its limit before a
/// window does.
const RTT_MIN: Duration = Duration::from_millis(2);
/// How long buffers have to hold up all bulk carriers before the number of carriers rises: this
/// number of round trips, but at least [`HELD_BY_BUFFERS_MIN`] and at most [`HELD_MAX`].
const HELD_RTTS: u32 = 5;
const HELD_BY_BUFFERS_MIN: Duration = Duration::from_millis(500);
/// Congestion windows have to hold up all bulk carriers for this time with a steady rate, or for
/// [`HELD_MAX`].
const HELD_MIN: Duration = Duration::from_secs(1);
const HELD_MAX: Duration = Duration::from_secs(3);
/// Length of a trial: this number of round trips, but at least [`TRIAL_MIN`] and at most
/// [`TRIAL_MAX`]. The length depends on the round trip time, since a window grows once per round
/// trip.
const TRIAL_RTTS: u32 = 30;
const TRIAL_MIN: Duration = Duration::from_secs(3);
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// A trial that waits for carriers for longer than this time ends. The peer may refuse further
/// carriers.
const TRIAL_UNUSED_MAX: Duration = Duration::from_secs(60);
/// The rate is steady if it differs from the last sample by at most this part.
const STEADY: f64 = 0.25;
/// Minimum gain of the carriers on trial, as a part of the mean rate of one bulk carrier before the
/// trial. A gain of `GAIN_EARLY` ends the trial early, and the carriers stay. Otherwise the carriers
/// stay only with a gain of `GAIN` at the end of the trial.
const GAIN_EARLY: f64 = 0.5;
const GAIN: f64 = 0.25;
/// Minimum gain of the carriers on trial, as a part of the session's whole rate before the trial. A
/// smaller gain may be a fluctuation.
const GAIN_MIN: f64 = 0.05;
/// Pause after a failed trial; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(16 * 60);
/// How long the session must need fewer carriers before the autoscaler requests one carrier fewer;
/// doubles up to [`PAUSE_MAX`].
const QUIET: Duration = Duration::from_secs(30);
/// If a removed carrier is needed again within this time, the autoscaler removed it too early.
const REGRET: Duration = Duration::from_secs(10 * 60);
/// Time between two removals of carriers on an idle session.
const QUIET_NEXT: Duration = Duration::from_secs(5);
/// The session needs all of its carriers if its rate exceeds this part of the rate that its bulk
/// carriers could send with one carrier fewer.
const FULL: f64 = 0.9;
/// Rate, in bytes per second, from which bulk next to small streams gets a carrier of its own.
const BULK_RATE: f64 = 1e6;
/// Rate below which a session is idle, in bytes per second.
const IDLE_RATE: f64 = 16e3;
const CARRIERS_MAX: usize = POOL_MAX as usize;
// A session that has lost all carriers of its pool can dial as many again.
const _: () = assert!(2 * CARRIERS_MAX <= muxtunnel_proto::native::CARRIERS_MAX);

/// One sample of the carriers of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) up: usize,
    /// Number of carriers that may carry bulk.
    pub(crate) bulk: usize,
    /// Number of bulk carriers that a congestion window holds up.
    pub(crate) held_by_congestion: usize,
    /// Number of bulk carriers that the send buffer or the receive window holds up.
    pub(crate) held_by_buffers: usize,
    /// Number of streams that send bulk.
    pub(crate) streams: usize,
    /// Bytes of bulk that streams have sent since the last sample.
    pub(crate) bulk_sent: f64,
    /// Whether small streams have sent lately. One of several carriers then takes no bulk.
    pub(crate) small: bool,
    /// Recently acknowledged bytes per second on all carriers.
    pub(crate) rate: f64,
    /// Round trip time of the path with empty queues.
    pub(crate) rtt: Duration,
}

impl Sample {
    fn held(&self) -> usize {
        self.held_by_congestion + self.held_by_buffers
    }

    fn is_held(&self) -> bool {
        self.rtt >= RTT_MIN && self.bulk > 0 && self.held() == self.bulk
    }

    /// Number of carriers with which each stream that sends bulk has a congestion window.
    fn windows(&self) -> usize {
        self.streams.max(1) + usize::from(self.small)
    }

    /// Whether bulk, of the last `passed`, needs a carrier without small streams.
    fn gives_way(&self, passed: Duration) -> bool {
        self.small && self.bulk_sent >= BULK_RATE * passed.as_secs_f64()
    }

    /// Whether only buffers hold up the bulk carriers.
    fn is_held_by_buffers(&self) -> bool {
        self.is_held() && self.held_by_congestion == 0
    }
}

/// Carriers on trial, which are removed if they add too little.
#[derive(Debug)]
struct Trial {
    /// Number of carriers before the trial.
    before: usize,
    /// Number of carriers in the last sample. The entry adds them one after another, and may add
    /// fewer than this side requests.
    up: usize,
    /// Number of bulk carriers before the trial.
    bulk: usize,
    rate: f64,
    /// How long the network held up at least one carrier since the last carrier was added. The
    /// trial's length counts only this time.
    lasted: Duration,
    /// How long the trial has waited for carriers.
    waited: Duration,
    /// Rate in the second half of the trial.
    late: Meter,
    /// Rate during the current interval. An interval ends once it is [`HELD_MIN`] long.
    second: Meter,
}

/// A doubling of the number of carriers: the number of bulk carriers and the rate before.
#[derive(Debug, Clone, Copy)]
struct Doubled {
    bulk: usize,
    rate: f64,
}

impl Doubled {
    /// Whether the rate has risen with the number of bulk carriers. If it has not, the other host
    /// reads too slowly, and more carriers do not help.
    fn helped(self, sample: &Sample) -> bool {
        sample.bulk <= self.bulk || sample.rate >= self.rate * (1.0 + GAIN)
    }
}

#[derive(Debug, Default)]
struct Meter {
    bytes: f64,
    time: Duration,
}

impl Meter {
    fn add(&mut self, rate: f64, time: Duration) {
        self.bytes += rate * time.as_secs_f64();
        self.time += time;
    }

    /// Rate in bytes per second.
    fn rate(&self) -> f64 {
        if self.time.is_zero() {
            0.0
        } else {
            self.bytes / self.time.as_secs_f64()
        }
    }
}

/// Computes how many carriers one session can use.
#[derive(Debug)]
pub(crate) struct CarrierAutoscaler {
    wanted: usize,
    sampled: Option<Instant>,
    /// How long the network held up all bulk carriers since their number last changed, minus twice
    /// the time during which it did not hold up all of them; at least 0.
    held: Duration,
    /// How long only buffers have held up all bulk carriers, without an interruption.
    held_by_buffers: Duration,
    /// Number of carriers that were requested because of buffers.
    for_buffers: usize,
    /// The last doubling, until a carrier is removed.
    doubled: Option<Doubled>,
    /// The number of carriers and the rate of the last sample without a trial.
    last: (usize, f64),
    trial: Option<Trial>,
    /// Mean bytes per second of one bulk carrier while the network holds up all bulk carriers.
    each: f64,
    /// After a failed trial: the number of carriers without the carrier on trial, and the earliest
    /// time of the next trial with more carriers.
    ceiling: Option<(usize, Instant)>,
    pause: Duration,
    /// When the session last needed all carriers.
    needed: Option<Instant>,
    /// When the session was last busy.
    busy: Option<Instant>,
    quiet: Duration,
    /// When the last carrier was removed; `None` if that was long ago or the carrier was restored.
    shrunk: Option<Instant>,
}

impl Default for CarrierAutoscaler {
    fn default() -> Self {
        Self {
            wanted: 1,
            sampled: None,
            held: Duration::ZERO,
            held_by_buffers: Duration::ZERO,
            for_buffers: 0,
            doubled: None,
            last: (0, 0.0),
            trial: None,
            each: 0.0,
            ceiling: None,
            pause: PAUSE,
            needed: None,
            busy: None,
            quiet: QUIET,
            shrunk: None,
        }
    }
}

impl CarrierAutoscaler {
    /// Adds a sample; returns the requested number of carriers, from 1 to [`CARRIERS_MAX`].
    pub(crate) fn sample(&mut self, sample: &Sample) -> usize {
        let Some(before) = self.sampled.replace(sample.at) else {
            self.needed = Some(sample.at);
            self.busy = Some(sample.at);
            self.last = (sample.up, sample.rate);
            return self.wanted;
        };
        let passed = sample.at.saturating_duration_since(before);
        let fewer = sample.bulk.saturating_sub(1) as f64 * self.each * FULL;
        // A carrier that only keeps bulk off the small streams is not needed without bulk.
        let fewer = if sample.up > sample.bulk {
            fewer.max(BULK_RATE)
        } else {
            fewer
        };
        let is_full = self.each > 0.0 && sample.rate > fewer;
        let is_needed = sample.is_held() || is_full || sample.gives_way(passed);
        if !self.has_too_many(sample) && is_needed {
            self.needed = Some(sample.at);
        }
        if sample.rate >= IDLE_RATE {
            self.busy = Some(sample.at);
        }
        if self.ceiling.is_some_and(|(_, until)| until <= sample.at) {
            self.ceiling = None;
        }
        match self.trial.take() {
            Some(trial) => self.judge(trial, sample, passed),
            None => self.watch(sample, passed),
        }
        self.shrink(sample);
        self.wanted
    }

    /// Runs while no carrier is on trial, and requests more carriers if they may help.
    fn watch(&mut self, sample: &Sample, passed: Duration) {
        if sample.gives_way(passed) {
            self.request(2, sample);
        }
        let (up, before) = std::mem::replace(&mut self.last, (sample.up, sample.rate));
        if !sample.is_held() {
            self.held = self.held.saturating_sub(2 * passed);
            self.held_by_buffers = Duration::ZERO;
            return;
        }
        // A part of this time was with another number of carriers.
        let passed = if up == sample.up {
            passed
        } else {
            (self.held, self.held_by_buffers) = (Duration::ZERO, Duration::ZERO);
            Duration::ZERO
        };
        self.held += passed;
        self.each = sample.rate / sample.bulk as f64;
        if sample.is_held_by_buffers() {
            self.held_by_buffers += passed;
            let enough = (sample.rtt * HELD_RTTS).clamp(HELD_BY_BUFFERS_MIN, HELD_MAX);
            let helped = self.doubled.is_none_or(|doubled| doubled.helped(sample));
            if self.held_by_buffers >= enough && helped {
                self.doubled = Some(Doubled {
                    bulk: sample.bulk,
                    rate: sample.rate,
                });
                self.request(sample.windows().max(2 * sample.up), sample);
                self.for_buffers = self.wanted;
            }
            return;
        }
        self.held_by_buffers = Duration::ZERO;
        let most = self.ceiling.map_or(CARRIERS_MAX, |(carriers, _)| carriers);
        let streams = sample.windows().min(most);
        self.request(sample.up.min(streams), sample);
        let steady = self.held >= HELD_MIN
            && sample.rate.max(before) * (1.0 - STEADY) <= sample.rate.min(before);
        if streams > sample.up && (steady || self.held >= HELD_MAX) {
            self.request(streams, sample);
            self.trial = Some(Trial {
                before: sample.up,
                up: sample.up,
                bulk: sample.bulk,
                rate: f64::midpoint(before, sample.rate),
                lasted: Duration::ZERO,
                waited: Duration::ZERO,
                late: Meter::default(),
                second: Meter::default(),
            });
            self.held = Duration::ZERO;
        }
    }

    /// Whether the session has more congestion windows than streams, and buffers are not the reason.
    fn has_too_many(&self, sample: &Sample) -> bool {
        let enough = sample.windows().max(self.for_buffers);
        !sample.is_held_by_buffers() && sample.up > enough
    }

    /// Requests at least `carriers`.
    fn request(&mut self, carriers: usize, sample: &Sample) {
        let carriers = carriers.min(CARRIERS_MAX);
        if carriers > sample.up && self.shrunk.take().is_some() {
            self.quiet = (2 * self.quiet).min(PAUSE_MAX);
        }
        self.wanted = self.wanted.max(carriers);
    }

    /// Decides whether to keep the carriers on trial. If bulk uses only as many carriers as before
    /// the trial, the new carriers serve other streams. Rates then do not decide.
    fn judge(&mut self, mut trial: Trial, sample: &Sample, passed: Duration) {
        if sample.up <= trial.before || sample.up != trial.up {
            // No carrier on trial is up yet, a further one has come up, or a carrier was lost.
            trial.up = sample.up;
            trial.lasted = Duration::ZERO;
            trial.waited += passed;
            (trial.late, trial.second) = (Meter::default(), Meter::default());
            self.trial = (trial.waited < TRIAL_UNUSED_MAX).then_some(trial);
            return;
        }
        if sample.bulk <= trial.bulk {
            return;
        }
        if sample.held() == 0 {
            self.trial = Some(trial);
            return;
        }
        let length = (sample.rtt * TRIAL_RTTS).clamp(TRIAL_MIN, TRIAL_MAX);
        trial.lasted += passed;
        trial.second.add(sample.rate, passed);
        if 2 * trial.lasted > length {
            trial.late.add(sample.rate, passed);
        }
        let gains = |meter: &Meter, part: f64| {
            meter.rate() >= trial.rate * (1.0 + (part / trial.bulk as f64).max(GAIN_MIN))
        };
        let early = trial.second.time >= HELD_MIN && gains(&trial.second, GAIN_EARLY);
        let over = trial.lasted >= length;
        if early || (over && gains(&trial.late, GAIN)) {
            self.pause = PAUSE;
        } else if over {
            self.wanted = trial.before;
            self.ceiling = Some((self.wanted, sample.at + self.pause));
            self.pause = (2 * self.pause).min(PAUSE_MAX);
        } else {
            if trial.second.time >= HELD_MIN {
                trial.second = Meter::default();
            }
            self.trial = Some(trial);
        }
    }

    fn shrink(&mut self, sample: &Sample) {
        let since = |at: Option<Instant>| {
            at.map_or(Duration::ZERO, |at| sample.at.saturating_duration_since(at))
        };
        if since(self.shrunk) >= REGRET {
            self.shrunk = None;
            self.quiet = QUIET;
        }
        let is_idle = since(self.busy) >= self.quiet;
        let again = since(self.shrunk);
        let shrunk_lately = self.shrunk.is_some() && self.shrunk >= self.needed;
        let quiet = match shrunk_lately {
            true if is_idle || self.has_too_many(sample) => again >= QUIET_NEXT,
            true => again >= self.quiet,
            false => since(self.needed) >= self.quiet,
        };
        if quiet && self.wanted > 1 {
            self.wanted = self.wanted.min(sample.up.max(2)) - 1;
            self.trial = None;
            self.for_buffers = self.for_buffers.min(self.wanted);
            self.doubled = None;
            self.shrunk = Some(sample.at);
        }
    }
}

#[cfg(test)]
mod tests;
