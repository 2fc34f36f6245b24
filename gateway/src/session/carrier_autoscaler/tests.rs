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
    /// Whether this window is a congestion window, and not the buffers of both hosts.
    congested: bool,
    /// Number of streams that send bulk.
    streams: usize,
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
    /// A round trip takes 100 ms, and a carrier's buffers permit 200 Mbit/s. The path and the CPU
    /// permit much more. One stream sends.
    fn new() -> Self {
        Self {
            autoscaler: CarrierAutoscaler::default(),
            now: Instant::now(),
            rtt: Duration::from_millis(100),
            window: 200.0 * MBIT,
            congested: false,
            streams: 1,
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
            self.step(offered);
        }
    }

    /// Takes one sample, and lets the entry act on it.
    fn step(&mut self, offered: f64) {
        let bulk = self.bulk();
        let takes = (bulk as f64 * self.window).min(self.path);
        let held = offered > takes && takes < self.cpu;
        let held = if held { bulk } else { 0 };
        // A path without room for the windows shrinks the congestion windows.
        let congested = self.congested || takes == self.path;
        let waver = 1.0 + self.noise * (self.random() - 0.5);
        let rate = offered.min(takes).min(self.cpu) * waver;
        let sample = Sample {
            at: self.now,
            up: self.up,
            bulk,
            held_by_congestion: if congested { held } else { 0 },
            held_by_buffers: if congested { 0 } else { held },
            streams: self.streams,
            bulk_sent: if self.streams > 0 { rate / 2.0 } else { 0.0 },
            small: self.small_streams,
            rate,
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

const ALL: f64 = 1e12;
const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

#[test]
fn bulk_next_to_small_streams_has_a_carrier_of_its_own_on_a_short_path() {
    for (small_streams, streams, offered, up) in [
        (true, 1, ALL, 2),
        (false, 1, ALL, 1),
        (true, 1, BULK_RATE / 2.0, 1),
        (true, 0, ALL, 1),
    ] {
        let mut model = Model {
            rtt: Duration::from_micros(100),
            small_streams,
            streams,
            ..Model::new()
        };
        model.run(MINUTE, offered);
        assert_eq!(model.up, up, "{small_streams}, {streams}, {offered}");
        // A little remains, such as a person who types.
        model.run(10 * MINUTE, BULK_RATE / 100.0);
        assert_eq!(model.up, 1, "{small_streams}, {streams}, {offered}");
    }
}

#[test]
fn an_elephant_that_windows_hold_up_has_all_carriers_within_seconds_and_keeps_them() {
    let mut model = Model::new();
    model.run(40, ALL);
    assert_eq!(model.up, 8);
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (8, 7));
}

#[test]
fn another_carrier_comes_after_five_round_trips_within_bounds() {
    for (rtt_ms, samples) in [(20, 1), (100, 1), (200, 2), (2000, 6)] {
        let mut model = Model {
            rtt: Duration::from_millis(rtt_ms),
            ..Model::new()
        };
        for _ in 0..samples {
            model.step(ALL);
            assert_eq!(model.up, 1, "{rtt_ms}");
        }
        model.step(ALL);
        assert_eq!(model.up, 2, "{rtt_ms}");
    }
}

/// Ten streams, each limited by the congestion window of its carrier, and at most 16 carriers.
fn congested() -> Model {
    Model {
        congested: true,
        streams: 10,
        bounds: (1, 16),
        ..Model::new()
    }
}

#[test]
fn streams_get_a_congestion_window_each_and_never_more() {
    let mut model = congested();
    model.run(2, ALL);
    assert_eq!(model.autoscaler.wanted, 10);
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (10, 9));
    model.streams = 12;
    model.run(MINUTE, ALL);
    assert_eq!((model.up, model.changes), (12, 11));
    model.streams = 1;
    model.run(2 * MINUTE, ALL);
    assert_eq!(model.up, 1);
    let mut model = Model {
        streams: 1,
        ..congested()
    };
    model.run(HOUR, ALL);
    assert_eq!(model.changes, 0);
}

#[test]
fn buffers_get_as_many_carriers_as_streams_and_then_twice_as_many() {
    let mut model = Model {
        streams: 3,
        bounds: (1, 16),
        ..Model::new()
    };
    model.run(2, ALL);
    assert_eq!(model.autoscaler.wanted, 3);
    model.run(10, ALL);
    assert_eq!(model.up, 16);
}

#[test]
fn a_rate_that_still_rises_is_no_baseline() {
    let mut model = congested();
    for window in [5.0, 10.0, 20.0, 40.0, 80.0] {
        model.window = window * MBIT;
        model.step(ALL);
        assert_eq!(model.autoscaler.wanted, 1);
    }
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
        streams: 2,
        ..Model::new()
    };
    model.run(HOUR, ALL);
    // The model adds a carrier and removes it again after pauses of 1, 2, 4, 8 and 16 minutes.
    assert!((8..=18).contains(&model.changes), "{}", model.changes);
    model.run(6 * HOUR, ALL);
    assert!(model.changes <= 18 + 6 * 8, "{}", model.changes);
    model.streams = 1;
    model.changes = 0;
    model.run(6 * HOUR, ALL);
    assert!(model.changes <= 2, "{}", model.changes);
}

#[test]
fn a_failed_trial_of_many_carriers_returns_to_the_number_before() {
    let mut model = Model {
        path: 150.0 * MBIT,
        ..congested()
    };
    model.run(8, ALL);
    assert_eq!(model.up, 10);
    model.run(10, ALL);
    assert_eq!((model.up, model.changes), (1, 18));
}

#[test]
fn full_buffers_double_the_carriers_although_a_trial_failed_before() {
    let mut model = Model {
        path: 150.0 * MBIT,
        ..congested()
    };
    model.run(30, ALL);
    assert_eq!(model.up, 1);
    (model.congested, model.path) = (false, 100_000.0 * MBIT);
    model.run(15, ALL);
    assert_eq!(model.up, 16);
}

#[test]
fn a_trial_with_fewer_carriers_than_requested_is_decided() {
    let mut model = Model {
        path: 150.0 * MBIT,
        bounds: (1, 4),
        ..congested()
    };
    model.run(30, ALL);
    assert_eq!((model.up, model.changes), (1, 6));
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
    model.run(10 * MINUTE, 480.0 * MBIT);
    assert_eq!(model.up, 3);
}

#[test]
fn a_load_between_two_numbers_of_carriers_makes_no_swing() {
    let mut model = Model::new();
    model.run(4 * HOUR, 390.0 * MBIT);
    assert_eq!(model.up, 2);
    model.changes = 0;
    // Two carriers become four, and the fourth is not needed.
    model.run(4 * HOUR, 410.0 * MBIT);
    assert_eq!((model.up, model.changes), (3, 3));
    model.run(4 * HOUR, 500.0 * MBIT);
    assert_eq!((model.up, model.changes), (3, 3));
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
fn one_bulk_stream_beside_small_streams_has_a_carrier_of_its_own() {
    let mut model = Model {
        streams: 1,
        small_streams: true,
        ..congested()
    };
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (2, 1));
}

#[test]
fn buffers_of_a_host_that_reads_slowly_get_two_carriers_and_no_more() {
    let mut model = Model::new();
    model.run(1, ALL);
    assert_eq!(model.up, 2);
    model.window /= 2.0;
    model.run(HOUR, ALL);
    assert_eq!((model.up, model.changes), (2, 1));
}

#[test]
fn a_trial_that_pauses_is_not_over() {
    let mut model = Model {
        streams: 2,
        ..congested()
    };
    model.run(2, ALL);
    assert_eq!(model.up, 2);
    model.run(10, 0.0);
    assert_eq!(model.up, 2);
    model.run(30, ALL);
    assert_eq!((model.up, model.changes), (2, 1));
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
