//! How many carriers a session can use for what it sends. Pure: `driver/autoscale.rs` samples the carriers.
//!
//! One more is wanted while the network holds up all that take bulk, for long enough to be sure, on a path
//! that is long enough for a window to be what limits. It is on trial then: it stays wanted only if more is
//! sent with it than without. After a quiet time one after another is not wanted any more.
//!
//! Neither may turn into a swing: after a trial that failed the next one waits, longer each time, and so
//! does shrinking that had to be taken back.

use std::time::{Duration, Instant};

/// A shorter path is full, or the CPU is, before a window is.
const RTT_MIN: Duration = Duration::from_millis(2);
/// Round trips for which all carriers have to be held up, and bounds of that time.
const HELD_RTTS: u32 = 10;
const HELD_MIN: Duration = Duration::from_secs(1);
const HELD_MAX: Duration = Duration::from_secs(3);
/// Round trips that a trial lasts, for a window grows once in each; and bounds of that time.
const TRIAL_RTTS: u32 = 30;
const TRIAL_MIN: Duration = Duration::from_secs(3);
const TRIAL_MAX: Duration = Duration::from_secs(10);
/// Part of a fair share that another carrier has to add: to end its trial early, and at its end.
const GAIN_EARLY: f64 = 0.5;
const GAIN: f64 = 0.25;
/// It adds at least this part of all, for rates waver.
const GAIN_MIN: f64 = 0.05;
/// Pause after a trial that failed; doubles up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(16 * 60);
/// Time without need of all carriers after which one is not wanted; doubles up to [`PAUSE_MAX`].
const QUIET: Duration = Duration::from_secs(30);
/// What is needed again within this time should have stayed.
const REGRET: Duration = Duration::from_secs(10 * 60);
/// Where hardly anything is sent, the next one follows so soon.
const QUIET_NEXT: Duration = Duration::from_secs(5);
/// Part of what carriers carry at most that they are left with.
const FULL: f64 = 0.9;
/// Bytes a second that are hardly anything.
const IDLE_RATE: f64 = 16e3;
/// One of the protocol's bounds.
const CARRIERS_MAX: usize = muxtunnel_proto::native::CARRIERS_MAX;

/// One sample of the carriers of a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    /// Carriers that are up.
    pub(crate) up: usize,
    /// Those that bulk may leave on.
    pub(crate) bulk: usize,
    /// Those of them that the network holds up: more waits than a window lets out.
    pub(crate) held: usize,
    /// Bytes a second that peers acknowledged of late, all together.
    pub(crate) rate: f64,
    /// Of the path, without what queues.
    pub(crate) rtt: Duration,
}

impl Sample {
    fn is_held(&self) -> bool {
        self.rtt >= RTT_MIN && self.bulk > 0 && self.held == self.bulk
    }
}

/// A carrier that may turn out to be of no use.
#[derive(Debug)]
struct Trial {
    /// With it.
    carriers: usize,
    /// Before it.
    bulk: usize,
    rate: f64,
    /// Time since it came up, as far as anything was held up, and what was sent in the latter half.
    lasted: Duration,
    late: Meter,
    /// What was sent of late.
    second: Meter,
}

/// A mean rate.
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

    /// Bytes a second.
    fn rate(&self) -> f64 {
        if self.time.is_zero() {
            0.0
        } else {
            self.bytes / self.time.as_secs_f64()
        }
    }
}

/// What is known of one session's need.
#[derive(Debug)]
pub(crate) struct CarrierAutoscaler {
    wanted: usize,
    sampled: Option<Instant>,
    /// For how long all were held up, less what they were not.
    held: Duration,
    /// What was sent in that time.
    sent: Meter,
    trial: Option<Trial>,
    /// Bytes a second that one carries when it is held up.
    each: f64,
    /// More were of no use, and are not tried before.
    ceiling: Option<(usize, Instant)>,
    pause: Duration,
    /// When all were needed last, or one fewer began to be wanted.
    needed: Option<Instant>,
    /// When more than hardly anything was sent.
    busy: Option<Instant>,
    quiet: Duration,
    /// When one fewer began to be wanted, unless that was long ago or taken back.
    shrunk: Option<Instant>,
}

impl Default for CarrierAutoscaler {
    fn default() -> Self {
        Self {
            wanted: 1,
            sampled: None,
            held: Duration::ZERO,
            sent: Meter::default(),
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
    /// Takes in one more sample; returns how many carriers are wanted, 1 to the protocol's bound.
    pub(crate) fn sample(&mut self, sample: &Sample) -> usize {
        let Some(before) = self.sampled.replace(sample.at) else {
            self.needed = Some(sample.at);
            self.busy = Some(sample.at);
            return self.wanted;
        };
        let passed = sample.at.saturating_duration_since(before);
        let fewer = sample.bulk.saturating_sub(1) as f64 * self.each * FULL;
        if sample.is_held() || sample.rate > fewer {
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

    /// No trial is on: is one more worth it?
    fn watch(&mut self, sample: &Sample, passed: Duration) {
        if !sample.is_held() {
            self.held = self.held.saturating_sub(2 * passed);
            if self.held.is_zero() {
                self.sent = Meter::default();
            }
            return;
        }
        // All that are up are of use.
        let most = self.ceiling.map_or(CARRIERS_MAX, |(carriers, _)| carriers);
        self.wanted = self.wanted.max(sample.up.min(most));
        self.held += passed;
        self.sent.add(sample.rate, passed);
        self.each = sample.rate / sample.bulk as f64;
        let enough = (sample.rtt * HELD_RTTS).clamp(HELD_MIN, HELD_MAX);
        if self.held < enough || sample.up >= most {
            return;
        }
        if self.shrunk.take().is_some() {
            self.quiet = (2 * self.quiet).min(PAUSE_MAX);
        }
        self.wanted = sample.up + 1;
        self.trial = Some(Trial {
            carriers: self.wanted,
            bulk: sample.bulk,
            rate: std::mem::take(&mut self.sent).rate(),
            lasted: Duration::ZERO,
            late: Meter::default(),
            second: Meter::default(),
        });
        self.held = Duration::ZERO;
    }

    /// Is the carrier on trial of any use? Where bulk has no more carriers than before, it is for what is
    /// not bulk, and that is no matter of rates.
    fn judge(&mut self, mut trial: Trial, sample: &Sample, passed: Duration) {
        if sample.up < trial.carriers {
            // It is not up yet, or another one was lost.
            trial.lasted = Duration::ZERO;
            (trial.late, trial.second) = (Meter::default(), Meter::default());
            self.trial = Some(trial);
            return;
        }
        if sample.bulk <= trial.bulk {
            return;
        }
        if sample.held == 0 {
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
            self.wanted = trial.carriers - 1;
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
            true if is_idle => again >= QUIET_NEXT,
            true => again >= self.quiet,
            false => since(self.needed) >= self.quiet,
        };
        if quiet && self.wanted > 1 {
            self.wanted = self.wanted.min(sample.up.max(2)) - 1;
            self.trial = None;
            self.shrunk = Some(sample.at);
        }
    }
}

#[cfg(test)]
mod tests;
