//! Durations on the command line: `50ms`, `8h`, `1m30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration as StdDuration;

use k8s_openapi::jiff::SignedDuration;

/// The longest duration: ten years, so that no time overflows.
const MAX: SignedDuration = SignedDuration::from_hours(87_600);

/// A duration that is not negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duration(SignedDuration);

impl Duration {
    /// The same as a [`StdDuration`].
    #[must_use]
    pub const fn as_std(self) -> StdDuration {
        self.0.unsigned_abs()
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let duration = text.parse::<SignedDuration>().ok();
        let duration = duration.filter(|one| !one.is_negative() && *one <= MAX);
        duration.map(Self).ok_or_else(|| {
            format!(
                "invalid duration {text:?}: expected at most ten years, with units h, m, s or ms, such as 50ms or 1m30s"
            )
        })
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_numbers_and_units() {
        for (text, milliseconds) in [
            ("50ms", 50),
            ("1m30s", 90_000),
            ("8h", 28_800_000),
            ("0s", 0),
        ] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.as_std(), StdDuration::from_millis(milliseconds));
            assert_eq!(duration.to_string().replace(' ', ""), text);
        }
        for text in ["", "5", "s", "-1s", "1s ago", "1d", "87601h"] {
            let error = text.parse::<Duration>().unwrap_err();
            assert!(error.contains("such as 50ms"), "{text}: {error}");
        }
    }
}
