//! Computes a rate from the receiver's seconds, and median and range from rates. Pure.

use muxtunnel_bench_api::agent::ServerReport;
use muxtunnel_bench_api::result::Spread;

/// Seconds that may be missing at the end of the measured time, because sender and receiver do not
/// start at the same instant.
const MISSING_SECONDS_MAX: f64 = 0.5;

/// The part of a run whose bytes are counted.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Seconds at the start whose bytes are not counted.
    pub warm_up_s: u32,
    /// Seconds of the run, warm-up included. Bytes that arrive later come from buffers and are not
    /// counted.
    pub duration_s: u32,
}

/// Why a run has no rate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RateError {
    /// Not all streams arrived.
    #[error("{connected} of {asked} connections reached the iperf server")]
    Streams {
        /// Streams that connected.
        connected: u32,
        /// Requested streams.
        asked: u32,
    },
    /// The receiver has figures for too few of the measured seconds.
    #[error(
        "the iperf server reported {seen_s:.1} of {asked_s} measured seconds; the streams ended early"
    )]
    Short {
        /// Seconds with figures.
        seen_s: f64,
        /// Requested duration, seconds.
        asked_s: u32,
    },
    /// No byte arrived in the measured time.
    #[error("no byte arrived in the measured {0} seconds")]
    Silence(u32),
}

/// Received payload within `window`, 10^6 bit/s.
///
/// # Errors
/// See [`RateError`].
pub fn rate_mbit_s(
    report: &ServerReport,
    window: Window,
    connections: u32,
) -> Result<f64, RateError> {
    if report.connected != connections {
        return Err(RateError::Streams {
            connected: report.connected,
            asked: connections,
        });
    }
    let measured = window.warm_up_s..window.duration_s;
    let asked_s = window.duration_s.saturating_sub(window.warm_up_s);
    let counted = report
        .seconds
        .iter()
        .filter(|second| measured.contains(&second.start_s));
    let (bytes, seen_s) = counted.fold((0u64, 0.0), |(bytes, seen_s), second| {
        let length_s = (second.end_s - f64::from(second.start_s)).clamp(0.0, 1.0);
        (bytes.saturating_add(second.bytes), seen_s + length_s)
    });
    if seen_s < f64::from(asked_s) - MISSING_SECONDS_MAX {
        return Err(RateError::Short { seen_s, asked_s });
    }
    if bytes == 0 {
        return Err(RateError::Silence(asked_s));
    }
    Ok(bytes as f64 * 8.0 / seen_s / 1e6)
}

/// Median and range; `None` without values.
#[must_use]
pub fn spread(values: &[f64]) -> Option<Spread> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let middle = sorted.len() / 2;
    let median = if sorted.len().is_multiple_of(2) {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    } else {
        sorted[middle]
    };
    Some(Spread { median, min, max })
}

/// The value that `share` of the values do not exceed, by nearest rank; `None` without values.
/// `share`: above 0, up to 1.
#[must_use]
pub fn percentile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Rounds `value` to `digits` decimal places, the precision of the results.
#[must_use]
pub fn rounded(value: f64, digits: u32) -> f64 {
    let factor = 10f64.powi(digits as i32);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use muxtunnel_bench_api::agent::Second;

    use super::*;

    fn report(connected: u32, seconds: &[(u32, f64, u64)]) -> ServerReport {
        let seconds = seconds
            .iter()
            .map(|&(start_s, end_s, bytes)| Second {
                start_s,
                end_s,
                bytes,
            })
            .collect();
        ServerReport {
            seconds,
            connected,
            ended: connected,
            ..ServerReport::default()
        }
    }

    const WINDOW: Window = Window {
        warm_up_s: 1,
        duration_s: 3,
    };

    #[test]
    fn warm_up_and_draining_are_left_out() {
        let seconds = [
            (0, 1.0, 999),
            (1, 2.0, 250_000),
            (2, 3.0, 750_000),
            (3, 4.0, 999_999),
        ];
        assert_eq!(rate_mbit_s(&report(1, &seconds), WINDOW, 1), Ok(4.0));
    }

    #[test]
    fn a_cut_last_second_counts_by_its_length() {
        let seconds = [(0, 1.0, 1), (1, 2.0, 500_000), (2, 2.5, 250_000)];
        assert_eq!(rate_mbit_s(&report(2, &seconds), WINDOW, 2), Ok(4.0));
    }

    #[test]
    fn a_run_that_ended_early_has_no_rate() {
        let seconds = [(0, 1.0, 1), (1, 2.0, 500_000), (2, 2.4, 250_000)];
        let error = rate_mbit_s(&report(1, &seconds), WINDOW, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the iperf server reported 1.4 of 2 measured seconds; the streams ended early"
        );
    }

    #[test]
    fn a_missing_stream_has_no_rate() {
        let error = rate_mbit_s(&report(9, &[(1, 2.0, 5), (2, 3.0, 5)]), WINDOW, 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "9 of 10 connections reached the iperf server"
        );
    }

    #[test]
    fn silence_has_no_rate() {
        let error = rate_mbit_s(&report(1, &[(1, 2.0, 0), (2, 3.0, 0)]), WINDOW, 1).unwrap_err();
        assert_eq!(error, RateError::Silence(2));
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), Some(50.0));
        assert_eq!(percentile(&values, 0.99), Some(99.0));
        assert_eq!(percentile(&values[..20], 0.99), Some(100.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn the_median_of_odd_and_even_counts() {
        let median = |values: &[f64]| spread(values).map(|spread| spread.median);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(
            spread(&[3.0, 1.0, 2.0]),
            Some(Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            })
        );
    }
}
