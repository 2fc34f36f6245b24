//! The progress lines of the log. Pure: numbers in, text out.

use std::time::Duration;

use muxtunnel_bench_api::result::{Cell, Status};
use muxtunnel_bench_api::{CellKey, EnvironmentKey, Matrix, Route};

use crate::table::{figure, range, ratio_figure};

/// Estimate of a run's overhead in seconds, used until a run has been measured.
const RUN_OVERHEAD_GUESS: f64 = 1.0;
/// Estimate of the seconds that an environment needs to become ready, used until an environment has
/// become ready.
const ENVIRONMENT_GUESS: f64 = 30.0;

/// Estimates the remaining time from the durations of runs and environments so far.
#[derive(Debug, Clone)]
pub struct Pace {
    run_seconds: Mean,
    environment_seconds: Mean,
    runs_left: u32,
    environments_left: u32,
}

#[derive(Debug, Clone, Copy)]
struct Mean {
    guess: f64,
    sum: f64,
    count: u32,
}

impl Mean {
    fn value(self) -> f64 {
        if self.count == 0 {
            self.guess
        } else {
            self.sum / f64::from(self.count)
        }
    }

    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }
}

impl Pace {
    /// Creates the estimate for a benchmark that has not begun.
    #[must_use]
    pub fn new(matrix: &Matrix) -> Self {
        let run_guess = f64::from(matrix.duration_s) + RUN_OVERHEAD_GUESS;
        Self {
            run_seconds: Mean {
                guess: run_guess,
                sum: 0.0,
                count: 0,
            },
            environment_seconds: Mean {
                guess: ENVIRONMENT_GUESS,
                sum: 0.0,
                count: 0,
            },
            runs_left: matrix.cells().len() as u32 * matrix.rounds,
            environments_left: matrix.environments().len() as u32,
        }
    }

    /// Records the duration of a run.
    pub fn run_ended(&mut self, took: Duration) {
        self.run_seconds.add(took.as_secs_f64());
        self.runs_left = self.runs_left.saturating_sub(1);
    }

    /// Records the time until an environment was ready, including probes.
    pub fn environment_ready(&mut self, took: Duration) {
        self.environment_seconds.add(took.as_secs_f64());
        self.environments_left = self.environments_left.saturating_sub(1);
    }

    /// Removes runs that will not take place.
    pub fn skip_runs(&mut self, runs: u32) {
        self.runs_left = self.runs_left.saturating_sub(runs);
    }

    /// The remaining time, such as `about 7 min left`.
    #[must_use]
    pub fn left(&self) -> String {
        let seconds = f64::from(self.runs_left) * self.run_seconds.value()
            + f64::from(self.environments_left) * self.environment_seconds.value();
        format!("about {} left", readable(seconds))
    }
}

/// Formats a duration, such as `40 s`, `7 min` or `11 h 30 min`.
#[must_use]
pub fn readable(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    let minutes = (seconds + 30) / 60;
    match (seconds, minutes) {
        (0..=90, _) => format!("{seconds} s"),
        (_, 0..=90) => format!("{minutes} min"),
        _ => format!("{} h {} min", minutes / 60, minutes % 60),
    }
}

/// `[ 7/24] native   50 ms  WAN    10 conns`: the head of every line of a cell.
#[must_use]
pub fn cell_head(total: usize, key: &CellKey, environment: &EnvironmentKey) -> String {
    let width = total.to_string().len();
    let number = key.index + 1;
    let plural = if key.connections == 1 {
        "conn "
    } else {
        "conns"
    };
    format!(
        "[{number:>width$}/{total}] {:7}{:>5} ms  {:5} {:>3} {plural}",
        key.route, environment.one_way_delay_ms, environment.profile, key.connections
    )
}

/// The end of a cell's line, after the head.
#[must_use]
pub fn cell_end(cell: &Cell) -> String {
    match (cell.status, cell.mbit_s) {
        (Status::Ok, Some(rate)) => {
            let range = range(&rate);
            // The untuned direct path is the baseline, so it has no ratio.
            let ratio = match (cell.ratio_to_untuned_direct, cell.ratio_to_direct) {
                _ if cell.is_untuned_direct() => String::new(),
                (Some(ratio), _) => format!("{:>6} x untuned direct", ratio_figure(ratio)),
                (None, Some(ratio)) => format!("{:>6} x direct", ratio_figure(ratio)),
                (None, None) => String::new(),
            };
            let end = format!("{:>6} Mbit/s {range:>15} {ratio}", figure(rate.median));
            end.trim_end().to_owned()
        }
        (status, _) => {
            let word = if status == Status::Refused {
                "REFUSED"
            } else {
                "FAILED"
            };
            let code = cell.code.as_deref().unwrap_or_default();
            format!(
                "{word} {code}: {}",
                cell.reason.as_deref().unwrap_or("no reason given")
            )
        }
    }
}

/// `round 1/3:  direct    221  native    739 Mbit/s`: a round of all routes. `figures`: the figure
/// of each run, or the reason why the run has no figure.
#[must_use]
pub fn round_line(total: usize, round: u32, rounds: u32, figures: &[(&Route, String)]) -> String {
    let indent = 3 + 2 * total.to_string().len();
    let figures = figures
        .iter()
        .map(|(route, figure)| format!("  {route} {figure:>6}"));
    format!(
        "{:indent$}round {round}/{rounds}:{} Mbit/s",
        "",
        figures.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muxtunnel_bench_api::Path;
    use muxtunnel_bench_api::result::Spread;

    use super::*;

    fn matrix() -> Matrix {
        Matrix {
            connections: vec![1, 10],
            one_way_delays_ms: vec![50],
            profiles: vec!["None".into()],
            paths: vec![Path::Direct, Path::Tunnel],
            protocols: vec!["Native".into()],
            duration_s: 5,
            warm_up_s: 2,
            rounds: 3,
            udp_bits_per_second: 100_000_000,
        }
    }

    #[test]
    fn time_left_starts_as_a_guess_and_follows_what_is_seen() {
        let mut pace = Pace::new(&matrix());
        assert_eq!(pace.left(), "about 2 min left"); // 12 runs of 6 s and 30 s
        pace.environment_ready(Duration::from_secs(10));
        for _ in 0..6 {
            pace.run_ended(Duration::from_secs(10));
        }
        assert_eq!(pace.left(), "about 60 s left");
        pace.skip_runs(6);
        assert_eq!(pace.left(), "about 0 s left");
    }

    #[test]
    fn durations_are_readable() {
        assert_eq!(readable(12.4), "12 s");
        assert_eq!(readable(400.0), "7 min");
        assert_eq!(readable(12.0 * 3600.0 + 60.0), "12 h 1 min");
    }

    #[test]
    fn heads_of_cells_line_up() {
        let matrix = matrix();
        let environment = &matrix.environments()[0];
        let heads: Vec<_> = matrix
            .cells()
            .iter()
            .map(|key| cell_head(24, key, environment))
            .collect();
        assert_eq!(heads[0], "[ 1/24] direct    50 ms  None    1 conn ");
        assert_eq!(heads[3], "[ 4/24] native    50 ms  None   10 conns");
    }

    fn cell(path: Path, profile: &str) -> Cell {
        Cell {
            path,
            protocol: (path == Path::Tunnel).then(|| "native".into()),
            one_way_delay_ms: 50,
            rtt_ms: Some(100.7),
            profile: profile.into(),
            connections: 1,
            rounds: 2,
            duration_s: 8,
            warm_up_s: 5,
            mbit_s: Some(Spread {
                median: 4360.0,
                min: 4249.0,
                max: 4470.0,
            }),
            ratio_to_direct: Some(1.13),
            ratio_to_untuned_direct: Some(19.73),
            udp: None,
            ping_pong: None,
            cpu_s_per_gb: None,
            status: Status::Ok,
            code: None,
            reason: None,
            iperf: None,
            kernel: None,
            congestion_control: None,
            carriers: None,
            sysctls: BTreeMap::new(),
        }
    }

    #[test]
    fn the_end_of_a_cell_compares_it_with_the_untuned_direct_path() {
        let tuned = cell(Path::Tunnel, "WAN");
        assert_eq!(
            cell_end(&tuned),
            "  4360 Mbit/s     4249..4470    19.7 x untuned direct"
        );
        let without_baseline = Cell {
            ratio_to_untuned_direct: None,
            ..tuned
        };
        assert_eq!(
            cell_end(&without_baseline),
            "  4360 Mbit/s     4249..4470    1.13 x direct"
        );
        let baseline = Cell {
            mbit_s: Some(Spread {
                median: 221.0,
                min: 121.0,
                max: 222.0,
            }),
            ..cell(Path::Direct, "None")
        };
        assert_eq!(cell_end(&baseline), "   221 Mbit/s       121..222~");
    }

    #[test]
    fn the_end_of_a_cell_without_a_figure_names_its_code_and_reason() {
        let failed = Cell {
            mbit_s: None,
            status: Status::Failed,
            code: Some("MT0507".into()),
            reason: Some("iperf did not start".into()),
            ..cell(Path::Tunnel, "WAN")
        };
        assert_eq!(cell_end(&failed), "FAILED MT0507: iperf did not start");
    }

    #[test]
    fn rounds_line_up_below_each_other() {
        let native = Route::Tunnel("Native".into());
        let line = |round, direct: &str, tunnel: &str| {
            let figures = [(&Route::Direct, direct.into()), (&native, tunnel.into())];
            round_line(36, round, 3, &figures)
        };
        assert_eq!(
            line(1, "221", "failed"),
            "       round 1/3:  direct    221  native failed Mbit/s"
        );
        assert_eq!(
            line(2, "4245", "-"),
            "       round 2/3:  direct   4245  native      - Mbit/s"
        );
    }
}
