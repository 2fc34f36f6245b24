//! Times in a readable format.

use k8s_openapi::jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The age in kubectl's format: `40s`, `12m`, `3h`, `5d`. A time in the future is `0s`.
#[must_use]
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    span(now.as_second() - then.as_second())
}

/// `in 12h`, or `12h ago` for a time in the past.
#[must_use]
pub fn distance(then: Timestamp, now: Timestamp) -> String {
    let seconds = then.as_second() - now.as_second();
    if seconds >= 0 {
        format!("in {}", span(seconds))
    } else {
        format!("{} ago", span(-seconds))
    }
}

/// Formats a span in the largest unit of which the span has at least two.
fn span(seconds: i64) -> String {
    match seconds.max(0) {
        seconds if seconds < 2 * MINUTE => format!("{seconds}s"),
        seconds if seconds < 2 * HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_one_unit() {
        let now: Timestamp = "2030-01-10T00:00:00Z".parse().unwrap();
        for (then, text) in [
            ("2030-01-09T23:59:20Z", "40s"),
            ("2030-01-09T23:48:00Z", "12m"),
            ("2030-01-09T21:00:00Z", "3h"),
            ("2030-01-05T00:00:00Z", "5d"),
            ("2030-01-11T00:00:00Z", "0s"),
        ] {
            assert_eq!(ago(then.parse().unwrap(), now), text);
        }
        let soon = "2030-01-10T12:00:00Z".parse().unwrap();
        assert_eq!(distance(soon, now), "in 12h");
        assert_eq!(distance(now, soon), "12h ago");
    }
}
