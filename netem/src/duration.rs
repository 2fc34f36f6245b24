//! Durations in the format of flags and custom resources: GEP-2257, from the Gateway API.
//!
//! Parses `50ms`, `1s500ms`, `2m`, and formats milliseconds. A duration without a unit is refused,
//! because it is ambiguous.

use std::time::Duration;

/// The text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a duration; write one to four numbers of up to five digits, each with a unit of h, m, s or ms, such as 50ms or 1s500ms"
)]
pub struct ParseDurationError {
    text: String,
}

/// Reads a GEP-2257 duration: one to four parts, each a number of one to five digits with the unit
/// `h`, `m`, `s` or `ms`. The duration is the sum of the parts.
///
/// # Errors
/// If the text has any other format. An empty text and a number without a unit are errors, too.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    parse_parts(text).ok_or_else(|| ParseDurationError {
        text: text.to_owned(),
    })
}

fn parse_parts(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    for _ in 0..4 {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if !(1..=5).contains(&digits) {
            return None;
        }
        let (number, tail) = rest.split_at(digits);
        let unit = tail.len()
            - tail
                .trim_start_matches(|c: char| c.is_ascii_alphabetic())
                .len();
        let (unit, tail) = tail.split_at(unit);
        let number: u64 = number.parse().ok()?;
        total += match unit {
            "h" => Duration::from_secs(number * 3600),
            "m" => Duration::from_secs(number * 60),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return None,
        };
        if tail.is_empty() {
            return Some(total);
        }
        rest = tail;
    }
    None
}

/// Milliseconds, rounded to three decimal places, the resolution of reports.
#[must_use]
pub fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_gep_2257_are_read() {
        for (text, milliseconds) in [
            ("50ms", 50),
            ("0s", 0),
            ("0ms", 0),
            ("1s500ms", 1500),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
        ] {
            assert_eq!(
                parse(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_number_without_a_unit_and_other_texts_are_refused() {
        for text in [
            "",
            "50",
            "ms",
            "-1s",
            "1.5s",
            "123456ms",
            "5us",
            "1s 5ms",
            "1s1s1s1s1s",
            "5msx",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
