//! Simulates a session on a path, and checks the requested number of carriers against the rates.

use super::*;

const SAMPLE_EVERY: Duration = Duration::from_millis(500);
const MBIT: f64 = 1e6 / 8.0;

/// A path and an entry. After each sample, the entry adds or removes at most one carrier, until it
/// has the requested number within `bounds`.
struct Model {
    autoscaler: CarrierAutoscaler,
    now: Instant,
    rtt: Duration,
    /// Bytes per second that one carrier's window permits.
    window: f64,
    /// Capacity of the path, in bytes per second.
    path: f64,
    /// Bytes per second that a worker can move if the network does not limit it.
    cpu: f64,
    bounds: (usize, usize),
    up: usize,
    /// Whether one of several carriers is kept free of bulk.
    small_streams: bool,
    /// Relative fluctuation of the rates, without a pattern.
    noise: f64,
    random: u64,
    changes: usize,
}

impl Model {
    /// A round trip takes 100 ms, and a carrier's window permits 200 Mbit/s. The path and the CPU
    /// permit much more.
    fn new() -> Self {
        Self {
            autoscaler: CarrierAutoscaler::default(),
            now: Instant::now(),
            rtt: Duration::from_millis(100),
            window: 200.0 * MBIT,
            path: 100_000.0 * MBIT,
            cpu: 40_000.0 * MBIT,
            bounds: (1, 8),
            up: 1,
            small_streams: false,
            noise: 0.1,
            random: 1,
            changes: 0,
        }
    }

    fn random(&mut self) -> f64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) as f64 / f64::from(1_u32 << 31)
    }

    fn bulk(&self) -> usize {
        let kept = usize::from(self.small_streams && self.up > 1);
        self.up - kept
    }

    /// Runs the model for `seconds`, while applications offer `offered` bytes per second.
    fn run(&mut self, seconds: u64, offered: f64) {
        for _ in 0..2 * seconds {
            let bulk = self.bulk();
            let takes = (bulk as f64 * self.window).min(self.path);
            let held = offered > takes && takes < self.cpu;
            let waver = 1.0 + self.noise * (self.random() - 0.5);
            let sample = Sample {
                at: self.now,
                up: self.up,
                bulk,
                held: if held { bulk } else { 0 },
                rate: offered.min(takes).min(self.cpu) * waver,
                rtt: self.rtt,
            };
            let wanted = self
                .autoscaler
                .sample(&sample)
                .clamp(self.bounds.0, self.bounds.1);
            if wanted != self.up {
                self.changes += 1;
                self.up = if wanted > self.up {
                    self.up + 1
                } else {
                    self.up - 1
                };
            }
            self.now += SAMPLE_EVERY;
        }
    }
}

const ALL: f64 = 1e12;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

#[test]
fn an_elephant_that_windows_hold_up_has_all_carriers_within_seconds_and_keeps_them() {
    let mut model = Model::new();
    model.run(40, ALL);
    assert_eq!(model.up, 8);
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (8, 7));
}

#[test]
fn a_second_is_not_enough_to_be_sure() {
    let mut model = Model::new();
    model.run(1, ALL);
    assert_eq!(model.up, 1);
    model.run(2, ALL);
    assert_eq!(model.up, 2);
}

#[test]
fn an_application_that_sends_less_than_a_carrier_takes_has_one() {
    let mut model = Model::new();
    model.run(HOUR, 190.0 * MBIT);
    assert_eq!(model.changes, 0);
}

#[test]
fn where_the_cpu_is_the_limit_there_is_one() {
    let mut model = Model {
        window: 50_000.0 * MBIT,
        ..Model::new()
    };
    model.run(HOUR, ALL);
    assert_eq!(model.changes, 0);
}

#[test]
fn on_a_lan_there_is_one() {
    let mut model = Model {
        rtt: Duration::from_micros(500),
        ..Model::new()
    };
    model.run(HOUR, ALL);
    assert_eq!(model.changes, 0);
}

#[test]
fn a_path_that_one_carrier_fills_is_tried_less_and_less() {
    let mut model = Model {
        path: 150.0 * MBIT,
        ..Model::new()
    };
    model.run(HOUR, ALL);
    // The model adds a carrier and removes it again after pauses of 1, 2, 4, 8 and 16 minutes.
    assert!((8..=18).contains(&model.changes), "{}", model.changes);
    model.run(6 * HOUR, ALL);
    assert!(model.changes <= 18 + 6 * 8, "{}", model.changes);
}

#[test]
fn no_more_are_kept_than_a_path_takes() {
    let mut model = Model {
        path: 650.0 * MBIT,
        ..Model::new()
    };
    model.run(MINUTE, ALL);
    assert_eq!(model.up, 4);
}

#[test]
fn after_a_quiet_time_the_least_number_is_left() {
    let mut model = Model::new();
    model.run(MINUTE, ALL);
    let before = model.changes;
    model.run(25, 0.0);
    assert_eq!((model.up, model.changes), (8, before));
    model.run(45, 0.0);
    assert_eq!((model.up, model.changes), (1, before + 7));
    let mut model = Model {
        bounds: (3, 8),
        ..Model::new()
    };
    model.run(2 * MINUTE, 0.0);
    model.run(MINUTE, ALL);
    model.run(3 * MINUTE, 0.0);
    assert_eq!(model.up, 3);
}

#[test]
fn what_is_needed_stays_while_less_is_sent() {
    let mut model = Model::new();
    model.run(MINUTE, ALL);
    model.run(10 * MINUTE, 500.0 * MBIT);
    assert_eq!(model.up, 3);
}

#[test]
fn a_load_between_two_numbers_of_carriers_makes_no_swing() {
    let mut model = Model::new();
    model.run(4 * HOUR, 390.0 * MBIT);
    assert_eq!(model.up, 2);
    model.changes = 0;
    // The third carrier adds almost nothing, so trials are as rare as for a carrier that adds
    // nothing.
    model.run(4 * HOUR, 410.0 * MBIT);
    assert!(model.changes <= 40, "{}", model.changes);
    model.changes = 0;
    // The third carrier adds a quarter of its share, so it stays.
    model.run(4 * HOUR, 500.0 * MBIT);
    assert!(model.changes <= 2, "{}", model.changes);
}

#[test]
fn a_load_that_comes_and_goes_makes_few_changes() {
    let mut model = Model::new();
    for _ in 0..60 {
        model.run(MINUTE, ALL);
        model.run(2 * MINUTE, 0.0);
    }
    // The number rises and falls twice. After that, the quiet time is longer than the pauses of the
    // load, so the number no longer falls.
    assert!(model.changes <= 50, "{}", model.changes);
    assert_eq!(model.up, 8);
}

#[test]
fn beside_small_streams_the_carriers_that_bulk_has_count() {
    let mut model = Model {
        small_streams: true,
        ..Model::new()
    };
    model.run(MINUTE, ALL);
    assert_eq!(model.up, 8);
}

#[test]
fn a_trial_that_pauses_is_not_over() {
    let mut model = Model::new();
    model.run(2, ALL);
    assert_eq!(model.up, 2);
    model.run(10, 0.0);
    assert_eq!(model.up, 2);
    model.run(30, ALL);
    assert_eq!(model.up, 8);
}

#[test]
fn where_no_more_may_be_dialled_nothing_swings() {
    let mut model = Model {
        bounds: (1, 2),
        ..Model::new()
    };
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (2, 1));
    model.run(2 * MINUTE, 0.0);
    assert_eq!(model.up, 1);
}

#[test]
fn no_more_are_wanted_than_the_protocol_has() {
    let mut model = Model {
        bounds: (1, 100),
        ..Model::new()
    };
    model.run(10 * MINUTE, ALL);
    assert_eq!(model.up, CARRIERS_MAX);
}
