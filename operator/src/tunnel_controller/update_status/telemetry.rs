//! Limits how often the status is written because of a figure that changes continuously.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Smallest change that is written, relative to the stored figure. The value is above the largest
/// rounding error of two significant digits (5 %), so a steady figure is written only once. The
/// value is below the largest rounding step (10 %, from 10 to 11), so a change by such a step is
/// written.
const CHANGE_MIN: f64 = 0.07;
/// Minimum time between two writes for an object.
const INTERVAL: Duration = Duration::from_secs(30);

/// When the telemetry of each object was last written. Contains the objects of the last
/// [`INTERVAL`].
#[derive(Debug, Default)]
pub struct TelemetryClock(Mutex<BTreeMap<String, Instant>>);

impl TelemetryClock {
    /// The figure to write: `measured` if it differs enough and the last write is long enough before
    /// `now`, otherwise `old`. If one of the two figures is missing, the result is `measured`.
    pub fn settle(
        &self,
        uid: &str,
        old: Option<f64>,
        measured: Option<f64>,
        now: Instant,
    ) -> Option<f64> {
        let (Some(old_figure), Some(figure)) = (old, measured) else {
            return measured.map(two_digits);
        };
        if (figure - old_figure).abs() <= old_figure.abs() * CHANGE_MIN {
            return old;
        }
        let mut written = self.0.lock();
        written.retain(|_, at| now.saturating_duration_since(*at) < INTERVAL);
        if written.contains_key(uid) {
            return old;
        }
        written.insert(uid.to_owned(), now);
        Some(two_digits(figure))
    }
}

/// `figure`, rounded to two significant digits.
fn two_digits(figure: f64) -> f64 {
    format!("{figure:.1e}").parse().unwrap_or(figure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_two_digits() {
        for (figure, rounded) in [(100.4, 100.0), (12.34, 12.0), (0.1234, 0.12), (0.0, 0.0)] {
            assert_eq!(two_digits(figure), rounded);
        }
    }

    #[test]
    fn a_small_change_is_not_written() {
        let clock = TelemetryClock::default();
        let now = Instant::now();
        assert_eq!(clock.settle("a", None, Some(100.4), now), Some(100.0));
        assert_eq!(
            clock.settle("a", Some(100.0), Some(106.9), now),
            Some(100.0)
        );
        assert_eq!(
            clock.settle("a", Some(100.0), Some(120.0), now),
            Some(120.0)
        );
    }

    #[test]
    fn a_figure_one_step_away_is_left_again() {
        let clock = TelemetryClock::default();
        let first = clock.settle("a", None, Some(107.0), Instant::now());
        assert_eq!(first, Some(110.0));
        assert_eq!(
            clock.settle("a", first, Some(101.0), Instant::now()),
            Some(100.0)
        );
    }

    #[test]
    fn a_second_change_waits() {
        let clock = TelemetryClock::default();
        let now = Instant::now();
        assert_eq!(
            clock.settle("a", Some(100.0), Some(150.0), now),
            Some(150.0)
        );
        let soon = now + Duration::from_secs(29);
        assert_eq!(
            clock.settle("a", Some(150.0), Some(50.0), soon),
            Some(150.0)
        );
        assert_eq!(clock.settle("b", Some(150.0), Some(50.0), soon), Some(50.0));
        let later = now + INTERVAL;
        assert_eq!(
            clock.settle("a", Some(150.0), Some(50.0), later),
            Some(50.0)
        );
    }

    #[test]
    fn no_carrier_has_no_figure() {
        let clock = TelemetryClock::default();
        assert_eq!(clock.settle("a", Some(1.0), None, Instant::now()), None);
    }
}
