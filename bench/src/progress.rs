//! The lines that tell people how far a benchmark is. Pure: numbers in, text out.

use std::time::Duration;

use muxtunnel_bench_api::result::{Cell, Status};
use muxtunnel_bench_api::{CellKey, EnvironmentKey, Matrix, Path};

use crate::table::figure;

/// Guess for what a run needs beyond its seconds, until one has been seen.
const RUN_OVERHEAD_GUESS: f64 = 1.0;
/// Guess for the time until an environment is up, until one has been seen, seconds.
const ENVIRONMENT_GUESS: f64 = 30.0;

/// Learns how long runs and environments take and says how long the rest will.
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
    /// The pace of a benchmark that has not begun.
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

    /// A run took this long.
    pub fn run_ended(&mut self, took: Duration) {
        self.run_seconds.add(took.as_secs_f64());
        self.runs_left = self.runs_left.saturating_sub(1);
    }

    /// An environment took this long to come up, probes included.
    pub fn environment_ready(&mut self, took: Duration) {
        self.environment_seconds.add(took.as_secs_f64());
        self.environments_left = self.environments_left.saturating_sub(1);
    }

    /// Runs that will not happen.
    pub fn skip_runs(&mut self, runs: u32) {
        self.runs_left = self.runs_left.saturating_sub(runs);
    }

    /// What is left, for people: `about 7 min left`.
    #[must_use]
    pub fn left(&self) -> String {
        let seconds = f64::from(self.runs_left) * self.run_seconds.value()
            + f64::from(self.environments_left) * self.environment_seconds.value();
        format!("about {} left", readable(seconds))
    }
}

/// `40 s`, `7 min`, `11 h 30 min`.
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

/// `[ 7/24] native   50 ms  Wan    10 conns`: the head of every line of a cell.
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
        "[{number:>width$}/{total}] {:6} {:>5} ms  {:5} {:>3} {plural}",
        key.route, environment.one_way_delay_ms, environment.tuning, key.connections
    )
}

/// How a cell ended, behind its head.
#[must_use]
pub fn cell_end(cell: &Cell) -> String {
    match (cell.status, cell.mbit_s) {
        (Status::Ok, Some(rate)) => {
            let range = format!("{}..{}", figure(rate.min), figure(rate.max));
            let ratio = match (cell.path, cell.ratio_to_direct) {
                (Path::Tunnel, Some(ratio)) => format!("  {ratio:.2} of direct"),
                _ => String::new(),
            };
            format!("{} Mbit/s ({range}){ratio}", figure(rate.median))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Matrix {
        Matrix {
            connections: vec![1, 10],
            one_way_delays_ms: vec![50],
            tunings: vec!["None".into()],
            paths: vec![Path::Direct, Path::Tunnel],
            protocols: vec!["Native".into()],
            duration_s: 5,
            warm_up_s: 2,
            rounds: 3,
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
}
